"""What a migrated checkout trains comes home as a captioner: the same tensors and captions, trained on from."""

import dataclasses
import json
from argparse import Namespace

import numpy as np
import pytest
import torch
from small_clips import write_shapes
from swinbert_writer import published_state

from albertkit.captioning.backbones import load_backbone
from albertkit.captioning.captioner import VideoCaptioner
from albertkit.captioning.evaluate import evaluate_captioner
from albertkit.captioning.layers import gate_matrix
from albertkit.captioning.predict import predict_captions
from albertkit.captioning.prepare import prepare_clips
from albertkit.captioning.settings import CaptionSettings
from albertkit.captioning.train import train_captioner
from albertkit.captioning.video import FrameSampling
from albertkit.captioning.video_swin import VideoSwinBackbone
from albertkit.errors import CheckpointError
from albertkit.swinbert.checkpoints import convert_swinbert
from albertkit.swinbert.scripts import get_albert_model

FRAMES = 4
SIZE = 32
WIDTH = 16
SMALL = CaptionSettings(length=16, steps=2, batch_size=8, lr=1e-3, eval_every=2, precision="fp32")


@pytest.fixture(params=[False, True], ids=["untied", "tied with a learned mask"])
def run(request, shell, tmp_path):
    """A run of a migrated checkout: its classes in VideoTransformer's place, saved as SwinBERT saves them."""
    checkout = tmp_path / "SwinBERT"
    folder = checkout / "models/captioning/albert"
    folder.parent.mkdir(parents=True)
    folder.symlink_to(shell)
    arguments = dict(
        model_name_or_path="models/captioning/albert/",
        img_feature_dim=12,
        tie_weights=request.param,
        drop_out=0.1,
        max_num_frames=FRAMES,
        img_res=SIZE,
        max_gen_length=14,
        num_beams=1,
        learn_mask_enabled=request.param,
        do_lower_case=True,
    )
    torch.manual_seed(0)
    text, _, tokenizer = get_albert_model(
        Namespace(**{**arguments, "model_name_or_path": str(folder), "init": "scratch"})
    )
    swin = VideoSwinBackbone(
        embed_dim=8, depths=[1, 2], num_heads=[1, 2], window_size=[2, 3, 3], patch_size=[2, 4, 4]
    ).eval()
    tokens = swin.grid(FRAMES, SIZE).num_tokens
    fc = torch.nn.Linear(WIDTH, 12)
    gate = torch.nn.Embedding(tokens**2, 1)
    with torch.no_grad():
        for parameter in [*text.parameters(), *swin.parameters()]:
            parameter.add_(torch.randn_like(parameter) * (0.3 if parameter.dim() > 1 else 0.1))
        text.predictions.bias[tokenizer.convert_tokens_to_ids("[SEP]")] += 2
        gate.weight += 8  # where the soft mask is seen
    state = {f"trans_encoder.{name}": tensor for name, tensor in text.state_dict().items()}
    state |= {f"fc.{name}": tensor for name, tensor in fc.state_dict().items()} | published_state(
        swin
    )
    state |= {"learn_vid_att.weight": gate.weight.detach()} if request.param else {}
    checkpoint = checkout / "output/checkpoint-1-2"
    checkpoint.mkdir(parents=True)
    torch.save(state, checkpoint / "model.bin")
    (checkout / "output/log").mkdir()
    (checkout / "output/log/args.json").write_text(json.dumps(arguments))
    tokenizer.save_pretrained(checkout / "output/tokenizer")
    return dict(
        place=checkpoint,
        text=text,
        swin=swin,
        fc=fc,
        gate=gate if request.param else None,
        tokens=tokens,
    )


def captions_of_the_checkout(run, pixels, beams):
    """Ids and scores as VideoTransformer gets them: Swin, `fc`, the mask with the learned block, `is_decode`."""
    tokenizer = run["tokenizer"]
    length = 14
    tokens = run["tokens"]
    mask = torch.zeros(len(pixels), length + tokens, length + tokens)
    mask[:, :length, :length] = torch.ones(length, length).tril()
    mask[:, :, length:] = 1
    if run["gate"] is not None:
        mask[:, length:, length:] = gate_matrix(run["gate"].weight, False)
    with torch.no_grad():
        return run["text"](
            input_ids=torch.zeros(len(pixels), length, dtype=torch.int64),
            img_feats=run["fc"](run["swin"](pixels)),
            attention_mask=mask,
            token_type_ids=torch.zeros(len(pixels), length, dtype=torch.int64),
            is_decode=True,
            max_length=length,
            num_beams=beams,
            bos_token_id=tokenizer.cls_id,
            eos_token_ids=[tokenizer.sep_id],
            pad_token_id=tokenizer.pad_id,
            mask_token_id=tokenizer.mask_id,
        )


def test_a_run_of_a_migrated_checkout_comes_home(run, tmp_path):
    report = convert_swinbert(run["place"], tmp_path / "home")
    assert report.text_model == "albert"
    assert report.notes == ()
    captioner = VideoCaptioner.from_pretrained(tmp_path / "home")
    assert captioner.sampling == FrameSampling(num_frames=FRAMES, size=SIZE, rounding="floor")
    pixels = torch.from_numpy(
        np.random.default_rng(0).integers(0, 256, (3, FRAMES, SIZE, SIZE, 3), dtype=np.uint8)
    )
    run["tokenizer"] = captioner.tokenizer
    captions = set()
    for beams in (1, 3):
        ids, scores = captions_of_the_checkout(run, pixels, beams)
        settings = dataclasses.replace(captioner.generation, num_beams=beams)
        for number, (caption,) in enumerate(
            captioner.describe(captioner.context(pixels), settings)
        ):
            end = ids[number, 0].tolist().index(captioner.tokenizer.sep_id)
            assert list(caption.ids) == ids[number, 0, 1:end].tolist()
            assert abs(caption.score - float(scores[number, 0])) < 1e-5
            captions.add(caption.ids)
    assert len(captions) > 1
    stored = torch.load(run["place"] / "model.bin", weights_only=True)
    checkpoint_state = {
        name.removeprefix("trans_encoder."): tensor for name, tensor in stored.items()
    }
    ours = {"fc": "albert.img_embedding.fc", "learn_vid_att.weight": "albert.video_gate"}
    model = captioner.model.state_dict()
    backbone = published_state(captioner.backbone)
    for name, tensor in checkpoint_state.items():
        if (
            not (name == "predictions.decoder.weight" and report.tied)
            and name != "predictions.decoder.bias"
        ):
            renamed = (
                name.replace("fc.", f"{ours['fc']}.", 1)
                if name.startswith("fc.")
                else ours.get(name, name)
            )
            assert torch.equal(
                backbone[name] if name.startswith("swin.") else model[renamed], tensor
            ), name


@pytest.mark.parametrize("run", [True], indirect=True)
def test_it_is_captioned_evaluated_and_trained_on_from(run, tmp_path):
    convert_swinbert(run["place"], tmp_path / "home")
    clips = write_shapes(tmp_path / "clips")
    assert clips["dev"][0].source
    report = predict_captions(
        tmp_path / "home", [clips["dev"][0].source], no_sheets=True, device="cpu"
    )
    assert [clip.key for clip in report.clips] == [clips["dev"][0].key]
    sampling = FrameSampling(num_frames=FRAMES, size=SIZE, rounding="floor")
    swin = load_backbone(f"video-swin:{tmp_path / 'home'}")
    before = VideoCaptioner.from_pretrained(tmp_path / "home")
    for kind, along in (("features", False), ("frames", True)):
        prepare_clips(clips, tmp_path / kind, swin, sampling, train_backbone=along)
        scores = evaluate_captioner(before, tmp_path / kind, split="dev")
        assert scores.clips == len(clips["dev"])
        train_captioner(tmp_path / "home", tmp_path / kind, tmp_path / f"run-{kind}", SMALL)
        after = VideoCaptioner.from_pretrained(tmp_path / f"run-{kind}")
        assert after.model.caption.tie_weights == before.model.caption.tie_weights
        assert after.model.caption.backbone_dim == WIDTH
        assert isinstance(after.backbone, VideoSwinBackbone)
        # Two small updates moved what was there: nothing began afresh.
        moved = {
            name: float((tensor - before.model.state_dict()[name]).abs().max())
            for name, tensor in after.model.state_dict().items()
        }
        assert 0 < moved["albert.img_embedding.fc.weight"] <= max(moved.values()) < 5e-3
        assert (after.backbone.fingerprint() == swin.fingerprint()) == (kind == "features")


@pytest.mark.parametrize("run", [False], indirect=True)
def test_fewer_visual_tokens_than_swinbert_had_are_noticed(run, tmp_path):
    """Without positions and gate nothing else would: SwinBERT's captioner reads any number of tokens."""
    convert_swinbert(run["place"], tmp_path / "home")
    clips = write_shapes(tmp_path / "clips", splits=["dev"])
    swin = load_backbone(f"video-swin:{tmp_path / 'home'}")
    sampling = FrameSampling(num_frames=FRAMES, size=SIZE, rounding="floor")
    prepare_clips(clips, tmp_path / "pooled", swin, sampling, max_tokens=4)
    with pytest.raises(CheckpointError, match="visual tokens 2 x 4 x 4, not 2 x 1 x 2"):
        evaluate_captioner(
            VideoCaptioner.from_pretrained(tmp_path / "home"), tmp_path / "pooled", split="dev"
        )
