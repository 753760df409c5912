"""SwinBERT's trained captioners as ours: read to a model, converted to a checkpoint folder."""

import math
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from albertkit.captioning.model import AlbertForImageCaptioning, CaptionConfig
from albertkit.captioning.swinbert.state import SwinBertState, find_state_file, sort_state
from albertkit.checkpoints import bert
from albertkit.checkpoints.configurations import make_config, read_values
from albertkit.checkpoints.folder import fill, read_tensor_file, save_checkpoint
from albertkit.config import AlbertConfig
from albertkit.errors import CheckpointError, MachineError
from albertkit.files import read_json, sha256_file, write_json
from albertkit.tokenizer.tokenizer import AlbertTokenizer
from albertkit.vocabulary.model import new_folder

_ARGS = "log/args.json"  # in the folder above the checkpoints, written by SwinBERT's training
_KEPT_ARGS = (
    "max_num_frames", "img_res", "vidswin_size", "kinetics", "max_seq_length", "max_seq_a_length", "max_gen_length",
    "add_od_labels", "learn_mask_enabled", "sparse_mask_soft2hard", "loss_sparse_w", "mask_prob", "train_yaml",
)  # fmt: skip
_HEAD_SIZE = 64  # of every BERT that was published


@dataclass(frozen=True)
class SwinBertReport:
    """What became of a SwinBERT checkpoint.

    Attributes:
        source: The file of weights.
        tensors: Parameters of the model.
        folded: Whether `fc` and `img_embedding` became one map.
        tied: Whether the output matrix is the word embeddings.
        gate_tokens: Visual tokens of the learned mask, 0 without one.
        left_out: Tensors that have no place in the model: the backbone's `swin.*`, and `cls_img_feat.*`, which nothing uses.
        training: Of SwinBERT's `log/args.json`, what later use depends on: frames, resolution, lengths.
        max_abs_diff: Of a conversion: between the written and the read tensors; 0 is equal.
        notes: What was not written in any file.
    """

    source: Path
    tensors: int
    folded: bool
    tied: bool
    gate_tokens: int
    left_out: dict[str, int]
    training: dict[str, Any]
    notes: tuple[str, ...]
    max_abs_diff: float | None = None

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return {**asdict(self), "source": str(self.source), "notes": list(self.notes)}


def load_swinbert(
    source: str | Path, config: str | Path | None = None, dtype: torch.dtype = torch.float32
) -> tuple[AlbertForImageCaptioning, SwinBertReport]:
    """Read a trained SwinBERT as an ALBERT with a group for every layer and E = H, which computes the same.

    Visual tokens go in as the backbone gives them: `fc` is part of the model.

    Args:
        source: A checkpoint's folder, its `model.bin`, or a safetensors file of such a state dict.
        config: A BERT's `config.json`. Default: the one beside the weights; without it, shapes and `log/args.json` say all but
            the number of heads, which is then one for 64 of the hidden size, as in every published BERT.
        dtype: torch.float64 also keeps the product of the two projections unrounded.

    Returns:
        The model on the CPU in evaluation mode, and what became of the tensors.

    Raises:
        DataError: not-found, broken-json. CheckpointError: no-weights, broken-weights, weights-mismatch. ConfigError: bad-config.
    """
    file = find_state_file(Path(source))
    state = sort_state(read_tensor_file(file), file)
    arguments = _arguments(file)
    notes: list[str] = []
    values = _bert_values(state, file, Path(config) if config else None, arguments, notes)
    albert = _configuration(state, values, arguments, file, notes)
    model, _ = fill(AlbertForImageCaptioning, albert, state.tensors, (), str(file))
    if dtype != torch.float32:
        model = model.to(dtype)
        model.load_state_dict({**model.state_dict(), **state.tensors})
    report = SwinBertReport(
        file, len(state.tensors), state.folded, state.tied, state.gate_tokens, dict(state.left_out),
        {key: arguments[key] for key in _KEPT_ARGS if key in arguments}, tuple(notes),
    )  # fmt: skip
    return model, report


def convert_swinbert(
    source: str | Path, out: str | Path, *, config: str | Path | None = None, tokenizer: str | Path | None = None
) -> SwinBertReport:
    """Convert a trained SwinBERT to a checkpoint folder, and read it again.

    Args:
        source: As `load_swinbert`.
        out: A folder that does not exist yet; it appears whole or not at all.
        config: As `load_swinbert`.
        tokenizer: A folder with the `vocab.txt`. Default: beside the weights, or in `tokenizer/` beside the checkpoint's folder,
            where SwinBERT's training saves it.

    Raises:
        CheckpointError: folder-not-empty, vocab-mismatch, and what `load_swinbert` raises. MachineError: verification-failed.
    """
    model, report = load_swinbert(source, config)
    found, note = _tokenizer(report.source, Path(tokenizer) if tokenizer else None, model.config)
    with new_folder(Path(out)) as folder:
        save_checkpoint(folder, model, found)
        provenance = {"converted_from": report.source.name, "sha256": sha256_file(report.source)}
        write_json(folder / "provenance.json", {**provenance, "swinbert": report.training})
        again = AlbertForImageCaptioning.from_pretrained(folder, strict=True).state_dict()
        largest = max(float((again[name] - tensor).abs().max()) for name, tensor in model.state_dict().items())
        if largest != 0:
            raise MachineError("verification-failed", f"what was written differs by {largest}", "write it again")
    values = {**vars(report), "max_abs_diff": largest, "notes": (*report.notes, *note)}
    return SwinBertReport(**values)


def _arguments(file: Path) -> dict[str, Any]:
    """SwinBERT's arguments of the training, empty if they are not kept."""
    for folder in (file.parent.parent, file.parent):
        if (folder / _ARGS).is_file():
            values = read_json(folder / _ARGS, "SwinBERT's arguments")
            return values if isinstance(values, dict) else {}
    return {}


def _bert_values(
    state: SwinBertState, file: Path, named: Path | None, arguments: dict[str, Any], notes: list[str]
) -> dict[str, Any]:
    """The BERT's configuration: of a file, or else what the tensors and the arguments say."""
    beside = named or file.parent / "config.json"
    if beside.is_dir():
        beside = beside / "config.json"
    if named or beside.is_file():
        return read_values(beside)
    shapes = {name: tuple(tensor.shape) for name, tensor in state.tensors.items()}
    try:
        vocab_size, hidden_size = shapes["albert.embeddings.word_embeddings.weight"]
        inner = shapes["albert.encoder.albert_layer_groups.0.albert_layers.0.ffn.bias"][0]
        values = {
            "vocab_size": vocab_size, "hidden_size": hidden_size, "intermediate_size": inner,
            "num_hidden_layers": len({name.split(".")[3] for name in shapes if "albert_layer_groups" in name}),
            "max_position_embeddings": shapes["albert.embeddings.position_embeddings.weight"][0],
            "type_vocab_size": shapes["albert.embeddings.token_type_embeddings.weight"][0],
        }  # fmt: skip
    except (KeyError, ValueError) as error:
        raise CheckpointError(
            "weights-mismatch", f"`{file}` lacks {error}, or it has another shape", "copy it again"
        ) from None
    heads = arguments.get("num_attention_heads", -1)
    if not isinstance(heads, int) or heads < 1:
        heads = math.ceil(hidden_size / _HEAD_SIZE)
        notes.append(
            f"no config.json: {heads} attention heads of {_HEAD_SIZE}, and erf gelu, as in every published BERT"
        )
    return {**values, "num_attention_heads": heads, "hidden_dropout_prob": arguments.get("drop_out", 0.1)}


def _configuration(
    state: SwinBertState, values: dict[str, Any], arguments: dict[str, Any], file: Path, notes: list[str]
) -> AlbertConfig:
    config, _ = make_config(bert.albert_values(values), file)
    said = {**arguments, **values}  # a configuration beside the weights says it of this very model
    asked = bool(said.get("tie_weights", state.tied))
    if asked != state.tied:
        notes.append(
            f"tie_weights was {asked}, the output matrix and the word embeddings are {'' if state.tied else 'not '}equal"
        )
    caption = CaptionConfig(
        img_feature_dim=state.tensors["albert.img_embedding.projection.weight"].shape[1],
        visual_norm=False,
        video_attention="legacy" if state.gate_tokens else "full",
        num_visual_tokens=state.gate_tokens,
        hard_gate=bool(said.get("sparse_mask_soft2hard", False)),
        tie_weights=state.tied,
        freeze_embedding=bool(said.get("freeze_embedding", False)),
        label_smoothing=said.get("label_smoothing", 0.0),
        drop_worst_ratio=said.get("drop_worst_ratio", 0.0),
        drop_worst_after=said.get("drop_worst_after", 0),
    )
    return caption.put_into(config)


def _tokenizer(file: Path, named: Path | None, config: AlbertConfig) -> tuple[AlbertTokenizer | None, tuple[str, ...]]:
    """The tokenizer that the captioner was trained with, and a note where there is none."""
    for folder in [named] if named else [file.parent, file.parent / "tokenizer", file.parent.parent / "tokenizer"]:
        if not named and not (folder / "vocab.txt").is_file():
            continue
        tokenizer = AlbertTokenizer.from_pretrained(folder)
        if tokenizer.vocab_size != config.vocab_size:
            raise CheckpointError(
                "vocab-mismatch",
                f"the tokenizer in `{folder}` has {tokenizer.vocab_size:,} pieces, the model {config.vocab_size:,}",
                "name the folder of the right vocab.txt with --tokenizer",
            )
        return tokenizer, ()
    return None, ("no vocab.txt found: the folder holds no tokenizer; name one with --tokenizer",)
