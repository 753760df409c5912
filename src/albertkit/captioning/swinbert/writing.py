"""A captioner as a run of SwinBERT's: `model.bin`, `log/args.json`, the tokenizer and the text model's configuration."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from albertkit.captioning.backbones.video_swin import VideoSwinBackbone
from albertkit.captioning.backbones.video_swin_checkpoint import published_state, sort_video_swin
from albertkit.captioning.captioner import VideoCaptioner
from albertkit.captioning.swinbert.checkpoint import (
    SwinBertReport,
    convert_swinbert,
    largest_difference,
    load_swinbert,
    tensors_of,
)
from albertkit.captioning.swinbert.options import ConvertSwinBertOptions
from albertkit.captioning.swinbert.state import ARGS, RECORDED, STRUCTURE, kept_arguments, swinbert_state
from albertkit.errors import CheckpointError, ConfigError
from albertkit.files import atomic_file, write_json
from albertkit.frame.command import takes
from albertkit.frame.result import Result
from albertkit.frame.section import Facts, Section, Text
from albertkit.model.folder import read_tensor_file
from albertkit.model_folder import local_folder
from albertkit.vocabulary.model import new_folder

CHECKPOINT, MODEL = "checkpoint", "model"
_SIZES = {96: ("tiny", [2, 2, 6, 2]), 128: ("base", [2, 2, 18, 2]), 192: ("large", [2, 2, 18, 2])}


@dataclass(frozen=True)
class WrittenSwinBert(Result):
    """A captioner written for SwinBERT.

    Attributes:
        checkpoint: The folder with `model.bin`, for `--eval_model_dir` and `--pretrained_checkpoint`.
        text_model: bert, for Microsoft's code, or albert, for a migrated checkout.
        tensors: Number of tensors in `model.bin`.
        max_abs_diff: Largest difference between the captioner and what is read from the file; 0 is equal.
        notes: What else SwinBERT needs.
    """

    checkpoint: Path
    text_model: str
    tensors: int
    max_abs_diff: float
    notes: tuple[str, ...]

    def sections(self) -> list[Section]:
        """Return the facts, and the notes below them."""
        notes = Text("\n".join(f"- {note}" for note in self.notes), form="code")
        return [Facts({**vars(self), "notes": None}), notes]


@takes(ConvertSwinBertOptions)
def convert_checkpoint(options: ConvertSwinBertOptions) -> SwinBertReport | WrittenSwinBert:
    """Convert a trained SwinBERT to a captioner; or with `to_swinbert` a captioner back."""
    if not options.to_swinbert:
        return convert_swinbert(options.source, options.target, config=options.config, tokenizer=options.tokenizer)
    if options.config or options.tokenizer:
        raise ConfigError(
            "bad-value",
            "--to-swinbert takes configuration and tokenizer from the captioner",
            "leave --config and --tokenizer out",
        )
    return write_swinbert(options.source, options.target)


def write_swinbert(captioner: str | Path, out: str | Path) -> WrittenSwinBert:
    """Write a captioner for SwinBERT, and read it again.

    Args:
        captioner: A captioner's folder, converted from SwinBERT or trained here on a Video Swin.
        out: A folder that does not exist yet; it appears whole or not at all.
    """
    source = VideoCaptioner.from_pretrained(captioner)
    model, backbone, folder = source.model, source.backbone, Path(out)
    _check(source, captioner)
    assert isinstance(backbone, VideoSwinBackbone)
    text, body = swinbert_state(model)
    swin = published_state(backbone)
    notes: list[str] = []
    with new_folder(folder) as made:
        file = made / CHECKPOINT / "model.bin"
        with atomic_file(file) as stream:
            torch.save({**swin, **text}, stream)
        source.tokenizer.save_pretrained(made / "tokenizer")
        source.tokenizer.save_pretrained(made / MODEL)
        stored = model.config.replace(foreign={**model.config.foreign, "architectures": [type(model).__name__]})
        if body == "albert":
            stored.save_pretrained(made / MODEL)
        else:
            write_json(made / MODEL / "config.json", _bert_config(model.config))
        write_json(made / ARGS, _arguments(source, captioner, folder, notes))
        largest = _difference(made, source)
    return WrittenSwinBert(folder / CHECKPOINT, body, len(swin) + len(text), largest, tuple(notes))


def _check(captioner: VideoCaptioner, name: str | Path) -> None:
    caption = captioner.model.caption
    found = []
    if not isinstance(captioner.backbone, VideoSwinBackbone) or captioner.sampling is None:
        backbone = "none" if captioner.backbone is None else f"`{captioner.backbone.name}`"
        found.append(f"its backbone is {backbone}, SwinBERT has Video Swin alone")
    if caption.objective != "mlm":
        found.append(f"its objective is {caption.objective}, SwinBERT's is mlm")
    if caption.video_attention not in ("full", "legacy"):
        found.append(f"its video_attention is {caption.video_attention}, SwinBERT has full and legacy")
    if captioner.backbone is not None and captioner.sampling is not None and captioner.grid is not None:
        whole = captioner.backbone.grid(captioner.sampling.num_frames, captioner.sampling.size)
        if whole != captioner.grid:
            found.append(
                f"its visual tokens are averaged from {whole.num_tokens} to {captioner.grid.num_tokens}, SwinBERT keeps all"
            )
    if found:
        raise CheckpointError(
            "not-expressible",
            f"the captioner in `{name}` cannot be run by SwinBERT: {'; '.join(found)}",
            "train one with --objective mlm on clips prepared with `--backbone video-swin:FILE --max-tokens 100000`",
        )


def _arguments(captioner: VideoCaptioner, source: str | Path, out: Path, notes: list[str]) -> dict[str, Any]:
    """Return SwinBERT's arguments: those it was converted with, and what has changed since."""
    assert isinstance(captioner.backbone, VideoSwinBackbone)
    assert captioner.sampling is not None
    caption, generation = captioner.model.caption, captioner.generation
    before = kept_arguments(local_folder(source))
    settings = captioner.backbone.settings()
    size, depths = _SIZES.get(settings["embed_dim"], ("", []))
    if not before:
        notes.append(
            f"{ARGS} names what the captioner knows; go on in SwinBERT with --pretrained_checkpoint and a --config"
        )
        if settings["depths"] == depths:
            before = {"vidswin_size": size}
    notes.append(f"model_name_or_path is {out / MODEL}")
    model = f"{(out / MODEL).resolve()}/"
    return {
        **before,
        "max_num_frames": captioner.sampling.num_frames,
        "img_res": captioner.sampling.size,
        "img_feature_dim": caption.img_feature_dim,
        "tie_weights": caption.tie_weights,
        "learn_mask_enabled": caption.learned,
        "sparse_mask_soft2hard": caption.hard_gate,
        "max_gen_length": generation.longest,
        "num_beams": generation.num_beams,
        "model_name_or_path": model,
        RECORDED: model,
        "config_name": "",
        "tokenizer_name": "",
        **dict.fromkeys(STRUCTURE, -1),
        "do_lower_case": before.get("do_lower_case", True),
        "drop_out": captioner.model.config.hidden_dropout_prob,
    }


def _bert_config(config: Any) -> dict[str, Any]:
    """Return the fields that SwinBERT's `BertConfig` reads."""
    same = (
        "vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size", "hidden_act",
        "hidden_dropout_prob", "attention_probs_dropout_prob", "max_position_embeddings", "type_vocab_size",
        "initializer_range", "layer_norm_eps",
    )  # fmt: skip
    return {"model_type": "bert", **{name: getattr(config, name) for name in same}}


def _difference(made: Path, source: VideoCaptioner) -> float:
    """Return the largest difference between a captioner and the files written of it."""
    file = made / CHECKPOINT / "model.bin"
    again, _ = load_swinbert(file, made / MODEL)
    ours, theirs = tensors_of(source), {**again.state_dict(), **sort_video_swin(read_tensor_file(file), file)[1]}
    fresh = {name for name in theirs if name.startswith("albert.img_embedding.fc.")} - ours.keys()  # the identity
    return largest_difference(ours, {name: theirs[name] for name in theirs.keys() - fresh})
