"""Runs inside a migrated checkout of SwinBERT, with its own classes: what they train, compute and write.

    python in_checkout.py train MODEL -- FLAGS OF run_caption_VidSwinBert.py
    python in_checkout.py compute MODEL CHECKPOINT CAPTION OUT.npz VIDEO…

MODEL is albert, for `get_albert_model`, or bert, for the checkout's own `get_bert_model` in its
place.
"""

import json
import os
import sys
import time
import types

import numpy as np
import torch

# Only downloads of BERT's files use them
for missing in ("boto3", "botocore", "botocore.exceptions"):
    sys.modules.setdefault(missing, types.ModuleType(missing)).ClientError = OSError
sys.path.insert(0, os.getcwd())


def model_loader(model):
    """`get_albert_model` or `get_bert_model`."""
    if model == "bert":
        from src.modeling.load_bert import get_bert_model

        return get_bert_model
    from src.modeling.load_albert import get_albert_model

    return get_albert_model


def train(model, flags):
    """SwinBERT's own `main`, of training or evaluation."""
    import src.tasks.run_caption_VidSwinBert as task

    sys.argv = ["run_caption_VidSwinBert.py", *flags]
    task.get_albert_model = model_loader(model)
    task.shared_configs.shared_video_captioning_config(cbs=True, scst=True)
    args = task.get_custom_args(task.shared_configs)
    if model == "bert" and args.do_eval:
        task.get_albert_folder = lambda args, train_args: train_args.model_name_or_path
    task.main(args)


def compute(model, checkpoint, caption, out, *videos):
    """Frames of videos; of the first loss and logits of a caption with masked words, and captions of greedy and beam search."""
    import src.tasks.run_caption_VidSwinBert_inference as task
    from easydict import EasyDict
    from src.datasets.caption_tensorizer import build_tensorizer

    with open(os.path.join(checkpoint, os.pardir, "log", "args.json")) as stream:
        args = EasyDict(json.load(stream))
    args.max_img_seq_length = int(args.max_num_frames / 2 * (args.img_res / 32) ** 2)
    text, config, tokenizer = model_loader(model)(args)
    transformer = task.VideoTransformer(args, config, task.get_swin_model(args), text)
    state = torch.load(os.path.join(checkpoint, "model.bin"), map_location="cpu")
    wrong = transformer.load_state_dict(state, strict=False)
    unused = [
        name for name in (*wrong.missing_keys, *wrong.unexpected_keys) if "cls_img_feat" not in name
    ]
    assert not unused, unused
    transformer.float().eval()
    clips = [task._transforms(args, task._online_video_decode(args, video)) for video in videos]
    frames = clips[0]
    arrays = {"frames": torch.stack(clips).numpy()}
    torch.manual_seed(5)
    np.random.seed(5)
    with torch.no_grad():
        learning = build_tensorizer(args, tokenizer, is_train=True).tensorize_example_e2e(
            caption, frames
        )
        names = (
            "input_ids",
            "attention_mask",
            "token_type_ids",
            "img_feats",
            "masked_pos",
            "masked_ids",
        )
        inputs = {name: tensor[None] for name, tensor in zip(names, learning, strict=True)}
        arrays |= {name: inputs[name].numpy().copy() for name in names if name != "img_feats"}
        loss, logits = transformer(**inputs)[:2]
        arrays |= {"loss": loss.numpy(), "logits": logits.numpy()}
        writing = build_tensorizer(args, tokenizer, is_train=False).tensorize_example_e2e(
            "", frames
        )
        special = (
            tokenizer.cls_token,
            tokenizer.sep_token,
            tokenizer.pad_token,
            tokenizer.mask_token,
        )
        start, end, padding, mask = tokenizer.convert_tokens_to_ids(list(special))
        for beams in (1, 3):
            inputs = {
                name: tensor[None].clone() for name, tensor in zip(names, writing, strict=False)
            }
            inputs.pop("masked_ids", None)
            begun = time.perf_counter()
            ids, scores, *_ = transformer(
                is_decode=True,
                do_sample=False,
                bos_token_id=start,
                pad_token_id=padding,
                eos_token_ids=[end],
                mask_token_id=mask,
                add_od_labels=False,
                od_labels_start_posid=args.max_seq_a_length,
                max_length=args.max_gen_length,
                num_beams=beams,
                temperature=1,
                top_k=0,
                top_p=1,
                repetition_penalty=1,
                length_penalty=1,
                num_return_sequences=1,
                num_keep_best=1,
                **inputs,
            )
            arrays |= {f"seconds_{beams}": np.array(time.perf_counter() - begun)}
            arrays |= {f"ids_{beams}": ids.numpy(), f"scores_{beams}": scores.numpy()}
            text = tokenizer.decode(ids[0, 0].tolist(), skip_special_tokens=True)
            arrays |= {f"text_{beams}": np.array(text)}
    np.savez(out, **arrays)


if __name__ == "__main__":
    action, model, *arguments = sys.argv[1:]
    if action == "train":
        train(model, arguments[1:])
    else:
        compute(model, *arguments)
