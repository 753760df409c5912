"""SwinBERT's trained captioners as ours, with their Video Swin."""

import math
from collections import Counter
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor

from albertkit.captioning.captioner import VideoCaptioner
from albertkit.captioning.layers import CaptionConfig
from albertkit.captioning.video import FrameSampling
from albertkit.captioning.video_swin import KIND, read_video_swin
from albertkit.command import takes
from albertkit.config import AlbertConfig, make_config_with_notes
from albertkit.conversion import bert
from albertkit.conversion.classes import identity_projection
from albertkit.errors import CheckpointError, DataError, format_list
from albertkit.files import new_folder, read_typed, sha256_file, write_json
from albertkit.model.files import PROVENANCE, StateDict, read_tensor_file
from albertkit.model_paths import CAPTIONER_FILE
from albertkit.output.sections import FactList, Paragraph, Result, Section
from albertkit.printable import join_lines
from albertkit.swinbert.classes import AlbertForImageCaptioning, SwinBertTokenizer, search_settings
from albertkit.swinbert.options import ConvertSwinBertOptions
from albertkit.tokenizer.tokenizer import AlbertTokenizer

ARGS = "log/args.json"  # in the folder above the checkpoints, written by SwinBERT's training
# In it; `model_name_or_path` becomes that of --pretrained_checkpoint there
RECORDED = "albert_folder"
# -1: the configuration's
STRUCTURE = ("num_hidden_layers", "hidden_size", "num_attention_heads", "intermediate_size")
TEXT_MODEL = "trans_encoder."
NAMES = ("model.bin", "model.safetensors", "pytorch_model.bin")
# A 2048-wide head for masked regions (2.2 M numbers), which no loss and no output looks at
_UNUSED = "cls_img_feat."
BACKBONE = "swin."
_PREDICTIONS = "cls.predictions."
_DECODER, _WORDS = "predictions.decoder.weight", "albert.embeddings.word_embeddings.weight"
_PROJECTION = "albert.img_embedding.projection."
_GATE = "albert.video_gate"
# Around the text model: SwinBERT's names and ours.
# `fc` and `img_embedding` are not folded: a migrated ALBERT has a LayerNorm between them.
_AROUND = {
    "fc.weight": "albert.img_embedding.fc.weight",
    "fc.bias": "albert.img_embedding.fc.bias",
    "learn_vid_att.weight": _GATE,
}


@dataclass
class SwinBertState:
    """The tensors of a SwinBERT checkpoint, sorted."""

    # Named as in `AlbertForImageCaptioning`, float32
    tensors: dict[str, Tensor] = field(default_factory=dict)
    body: Literal["bert", "albert"] = "bert"  # as Microsoft trains it, or a migrated checkout
    tied: bool = False  # the output matrix is the word embeddings
    backbone: dict[str, Tensor] = field(default_factory=dict)  # `swin.*` under its own names
    # Tensors without a place here: `cls_img_feat.*`
    left_out: Counter[str] = field(default_factory=Counter)

    @property
    def gate_tokens(self) -> int:
        """Return M of the learned mask, 0 without one."""
        gate = self.tensors.get(_GATE)
        return 0 if gate is None else round(gate.numel() ** 0.5)

    @property
    def backbone_dim(self) -> int:
        """Return the width of the visual tokens that `fc` reads; 0 without `fc`."""
        weight = self.tensors.get(_AROUND["fc.weight"])
        return 0 if weight is None else weight.shape[1]


def read_arguments(file: Path) -> dict[str, Any]:
    """Read SwinBERT's arguments of the training that left a file of weights; empty if they are not kept."""
    # The run has it, and its folders `checkpoint-…` have the weights.
    for folder in (file.parent.parent, file.parent):
        if (folder / ARGS).is_file():
            return read_typed(folder / ARGS, dict[str, Any], "SwinBERT's arguments")
    return {}


def find_state_file(file_or_folder: Path) -> Path:
    """Return the file itself, or that of a checkpoint's folder."""
    if file_or_folder.is_file():
        return file_or_folder
    if not file_or_folder.is_dir():
        raise DataError(
            "not-found",
            f"no SwinBERT checkpoint at `{file_or_folder}`",
            "name its folder, or its model.bin",
        )
    for name in NAMES:
        if (file_or_folder / name).is_file():
            return file_or_folder / name
    existing_names = ", ".join(sorted(file.name for file in file_or_folder.iterdir())) or "nothing"
    raise CheckpointError(
        "missing-file",
        f"none of {', '.join(NAMES)} in `{file_or_folder}` (there: {existing_names})",
        "name a folder `checkpoint-…-…`",
    )


def sort_state(state: StateDict, file: Path) -> SwinBertState:
    """Give every tensor its name here."""
    shorts = {name: name.removeprefix(TEXT_MODEL) for name in state}
    bodies = {short.split(".")[0] for short in shorts.values() if ".img_embedding." in short} & {
        "bert",
        "albert",
    }
    if len(bodies) != 1:
        raise CheckpointError(
            "weights-mismatch",
            f"`{file}` has neither bert.img_embedding.* nor albert.img_embedding.*: it is not of SwinBERT",
            "convert an ALBERT or BERT with `albertkit convert`",
        )
    sorted_state = SwinBertState(body="bert" if bodies == {"bert"} else "albert")
    text = ("bert.", _PREDICTIONS) if sorted_state.body == "bert" else ("albert.", "predictions.")
    unknown = []
    for name, short in shorts.items():
        if short.startswith(_UNUSED):
            sorted_state.left_out[f"{_UNUSED}*"] += 1
        elif name.startswith(BACKBONE):
            sorted_state.backbone[name] = state[name]
        elif short in _AROUND:
            sorted_state.tensors[_AROUND[short]] = state[name].float()
        elif short.startswith(text):
            albert_name = short
            if short.startswith("bert.img_embedding."):
                albert_name = short.replace("bert.img_embedding.", _PROJECTION)
            elif sorted_state.body == "bert":
                prefix = "" if short.startswith(_PREDICTIONS) else "albert."
                albert_name = prefix + bert.grouped_albert_name(short.removeprefix("bert."))
            sorted_state.tensors[albert_name] = state[name].float()
        else:
            unknown.append(name)
    if unknown:
        raise CheckpointError(
            "weights-mismatch",
            f"`{file}` has {len(unknown)} names that SwinBERT has not: {format_list(unknown)}",
            "take out what your changes of SwinBERT added, or give it a place in the code",
        )
    _check_projection(sorted_state, file)
    if sorted_state.body == "bert":
        sorted_state.tensors |= identity_projection(
            len(sorted_state.tensors[f"{_PROJECTION}weight"])
        )
    # SwinBERT does not tie the output matrix to the word embeddings unless it is asked to.
    sorted_state.tensors.pop("predictions.decoder.bias", None)  # a second copy of predictions.bias
    decoder = sorted_state.tensors.get(_DECODER)
    words = sorted_state.tensors.get(_WORDS)
    sorted_state.tied = decoder is None or (words is not None and torch.equal(decoder, words))
    if sorted_state.tied:
        sorted_state.tensors.pop(_DECODER, None)
    return sorted_state


def _check_projection(state: SwinBertState, file: Path) -> None:
    """Make sure that `fc` and `img_embedding` are whole and fit each other."""
    first = state.tensors.get(_AROUND["fc.weight"])
    offset = state.tensors.get(_AROUND["fc.bias"])
    second = state.tensors.get(f"{_PROJECTION}weight")
    last = state.tensors.get(f"{_PROJECTION}bias")
    if second is None or last is None or (first is None) != (offset is None):
        raise CheckpointError(
            "weights-mismatch",
            f"`{file}` has only a part of fc and img_embedding",
            "copy it again",
        )
    if first is None or offset is None:
        return
    if (
        first.dim() != 2
        or second.dim() != 2
        or second.shape[1] != len(first)
        or first.shape[:1] != offset.shape
    ):
        shapes = f"{list(first.shape)} and {list(second.shape)}"
        raise CheckpointError(
            "weights-mismatch",
            f"fc and img_embedding in `{file}` have shapes {shapes}",
            "copy it again",
        )


_KEPT_ARGS = (
    "max_num_frames",
    "img_res",
    "vidswin_size",
    "kinetics",
    "max_seq_length",
    "max_seq_a_length",
    "max_gen_length",
    "add_od_labels",
    "learn_mask_enabled",
    "sparse_mask_soft2hard",
    "loss_sparse_w",
    "mask_prob",
    "train_yaml",
)
_HEAD_SIZE = 64  # of every BERT that was published
_TOKENIZER_FILES = ("vocab.txt", "tokenizer.json", "*.model")


@dataclass(frozen=True)
class SwinBertReport(Result):
    """A SwinBERT checkpoint that was read or converted.

    Attributes:
        source: The file of weights.
        text_model: bert, or the albert of a migrated checkout.
        tensors: Parameters of the model.
        backbone_tensors: Tensors of Video Swin, 0 without a backbone.
        fc: Whether there is an `fc` between backbone and `img_embedding`.
        tied: Whether the output matrix is the word embeddings.
        gate_tokens: Visual tokens of the learned mask, 0 without one.
        left_out: Tensors that have no place in the model: `cls_img_feat.*`, which nothing uses.
        training: The arguments in SwinBERT's `log/args.json` that later use depends on: frames,
            resolution, lengths.
        notes: Facts that no file holds.
    """

    source: Path
    text_model: str
    tensors: int
    backbone_tensors: int
    fc: bool
    tied: bool
    gate_tokens: int
    left_out: dict[str, int]
    training: dict[str, Any]
    notes: tuple[str, ...]

    def sections(self) -> list[Section]:
        """Return the facts, and the notes below them."""
        left_out = ", ".join(f"{count} {name}" for name, count in self.left_out.items()) or None
        facts = {
            **vars(self),
            "left_out": left_out,
            "training": None,
            "notes": None,
            **self.training,
        }
        return [
            FactList(facts),
            Paragraph(join_lines(f"- {note}" for note in self.notes), form="code"),
        ]


def load_swinbert_captioner(
    source: str | Path,
    config: str | Path | None,
    tokenizer: str | Path | None,
) -> tuple[VideoCaptioner, SwinBertReport]:
    """Read a trained SwinBERT whole: text model, Video Swin, tokenizer, which frames it sees and how it writes captions."""
    model, report, state = load_swinbert(source, config)
    arguments = read_arguments(report.source)
    notes = list(report.notes)
    captioner_tokenizer = _load_tokenizer(report.source, tokenizer, model.config, arguments)
    backbone = None
    if state.backbone:
        backbone = read_video_swin(
            state.backbone,
            report.source,
            f"{KIND}{report.source.resolve()}",
        )
        backbone.saves_weights = True
        if backbone.out_dim != model.caption.visual_width:
            raise CheckpointError(
                "weights-mismatch",
                f"Video Swin in `{report.source}` gives tokens of width {backbone.out_dim}, "
                f"fc reads {model.caption.visual_width}",
                "copy it again",
            )
    else:
        notes.append(
            "no swin.* in the file: the captioner has no backbone, and takes prepared features alone"
        )
    if arguments.get("add_od_labels"):
        notes.append(
            "trained with a second text (add_od_labels); captions are written without one here"
        )
    sampling = grid = None
    # SwinBERT decodes even places from the first frame to the last, rounded down; its files of
    # frames are made by rounding to the nearest, which moves MSVD's CIDEr from 109.4 to 120.6.
    # Frames differ by 0.98 of 255 levels on average: its decoder repeats chroma samples, ours
    # interpolates them.
    if backbone is not None:
        size = arguments.get("img_res", backbone.frame_size)
        frames = arguments.get("max_num_frames")
        if frames is None:
            # The gate has a row for each visual token: half the frames times the patches of 32
            # pixels in one.
            per_frame = backbone.grid(1, backbone.frame_size).num_tokens
            frames = report.gate_tokens // per_frame * backbone.patch[0] or 32
            notes.append(
                f"no {ARGS}: {frames} frames of {size} pixels, as the shapes or SwinBERT's defaults have it"
            )
        sampling = FrameSampling(num_frames=frames, size=size, rounding="floor")
        grid = backbone.grid(frames, size)
    search_names = ("num_beams", "length_penalty", "repetition_penalty")
    search = {name: arguments[name] for name in search_names if name in arguments}
    search["max_length"] = arguments.get("max_gen_length", 20)
    # A search returns no more captions than it has beams.
    search["num_keep_best"] = min(arguments.get("num_keep_best", 1), arguments.get("num_beams", 1))
    captioner = VideoCaptioner(
        model,
        captioner_tokenizer,
        backbone,
        sampling,
        grid,
        search_settings(search),
    )
    return captioner, replace(report, notes=tuple(notes))


@takes(ConvertSwinBertOptions)
def convert_swinbert(options: ConvertSwinBertOptions) -> SwinBertReport:
    """Convert a trained SwinBERT to a captioner's folder, which appears whole or not at all."""
    captioner, report = load_swinbert_captioner(options.source, options.config, options.tokenizer)
    with new_folder(Path(options.target)) as folder:
        captioner.save_pretrained(folder)
        provenance = {"converted_from": report.source.name, "sha256": sha256_file(report.source)}
        write_json(folder / PROVENANCE, {**provenance, "swinbert": report.training})
    return report


def load_swinbert(
    source: str | Path,
    config: str | Path | None = None,
) -> tuple[AlbertForImageCaptioning, SwinBertReport, SwinBertState]:
    """Read the text model of a trained SwinBERT. A BERT becomes an ALBERT with a group for every layer and E = H.

    Visual tokens go in as the backbone gives them: `fc` is part of the model.
    """
    if (Path(source) / CAPTIONER_FILE).is_file():
        raise CheckpointError(
            "weights-mismatch",
            f"`{source}` is a captioner already",
            "use it as it is",
        )
    file = find_state_file(Path(source))
    state = sort_state(read_tensor_file(file), file)
    arguments = read_arguments(file)
    notes: list[str] = []
    values = _read_configuration(state, file, Path(config) if config else None, arguments, notes)
    if "drop_out" in arguments:
        values = values | {"hidden_dropout_prob": arguments["drop_out"]}
    config_values = bert.albert_config_from_bert(values) if state.body == "bert" else values
    albert_config, _ = make_config_with_notes(config_values, file)
    # A configuration in the folder of the weights is that of this very model
    settings = {**arguments, **values}
    tie_weights = bool(settings.get("tie_weights", state.tied))
    if tie_weights != state.tied:
        equal = "equal" if state.tied else "not equal"
        notes.append(
            f"tie_weights was {tie_weights}, the output matrix and the word embeddings are {equal}"
        )
    has_times = "albert.img_embedding.time_embeddings" in state.tensors
    caption = CaptionConfig(
        img_feature_dim=state.tensors[f"{_PROJECTION}weight"].shape[1],
        backbone_dim=state.backbone_dim,
        visual_norm="albert.img_embedding.LayerNorm.weight" in state.tensors,
        grid=CaptionConfig.of(albert_config).grid if has_times else None,
        # The learned gate V is added to scores as (1 - V) x -10,000: below 0.999 a visual token
        # sees nothing but itself.
        video_attention="legacy" if state.gate_tokens else "full",
        num_visual_tokens=state.gate_tokens,
        hard_gate=bool(settings.get("sparse_mask_soft2hard", False)),
        tie_weights=state.tied,
        freeze_embedding=bool(settings.get("freeze_embedding", False)),
        label_smoothing=settings.get("label_smoothing", 0.0),
        drop_worst_ratio=settings.get("drop_worst_ratio", 0.0),
        drop_worst_after=settings.get("drop_worst_after", 0),
    )
    model, _ = AlbertForImageCaptioning.from_tensors(
        caption.stored_in(albert_config), state.tensors, (), str(file)
    )
    report = SwinBertReport(
        source=file,
        text_model=state.body,
        tensors=len(state.tensors),
        backbone_tensors=len(state.backbone),
        fc=bool(state.backbone_dim),
        tied=state.tied,
        gate_tokens=state.gate_tokens,
        left_out=dict(state.left_out),
        training={key: arguments[key] for key in _KEPT_ARGS if key in arguments},
        notes=tuple(notes),
    )
    return model, report, state


def _read_configuration(
    state: SwinBertState,
    file: Path,
    config: Path | None,
    arguments: dict[str, Any],
    notes: list[str],
) -> dict[str, Any]:
    """Return the text model's configuration: of a file, or else of a BERT's tensors and arguments."""
    folders = [file.parent, *_model_folders(file, arguments, "config.json")]
    files = [folder / "config.json" for folder in folders if (folder / "config.json").is_file()]
    if config is not None:
        files = [config / "config.json" if config.is_dir() else config]
    if files:
        values = read_typed(files[0], dict[str, Any], "model configuration")
        structure = {name: arguments.get(name) for name in STRUCTURE}
        return values | {
            name: value for name, value in structure.items() if isinstance(value, int) and value > 0
        }
    if state.body == "albert":
        raise CheckpointError(
            "missing-file",
            f"`{file}` holds an ALBERT, and there is no config.json in its folder or where log/args.json says",
            "name the folder that the training began with: --config models/captioning/albert-base-v2",
        )
    shapes = {name: tuple(tensor.shape) for name, tensor in state.tensors.items()}
    try:
        vocab_size, hidden_size = shapes["albert.embeddings.word_embeddings.weight"]
        inner = shapes["albert.encoder.albert_layer_groups.0.albert_layers.0.ffn.bias"][0]
        values = {
            "vocab_size": vocab_size,
            "hidden_size": hidden_size,
            "intermediate_size": inner,
            "num_hidden_layers": len(
                {name.split(".")[3] for name in shapes if "albert_layer_groups" in name}
            ),
            "max_position_embeddings": shapes["albert.embeddings.position_embeddings.weight"][0],
            "type_vocab_size": shapes["albert.embeddings.token_type_embeddings.weight"][0],
        }
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
    return {**values, "num_attention_heads": heads}


def _model_folders(file: Path, arguments: dict[str, Any], *patterns: str) -> list[Path]:
    """Return the folders with such files that log/args.json names, as seen from the checkout that the run lies in."""
    names = [
        arguments.get(name)
        for name in ("config_name", "tokenizer_name", RECORDED, "model_name_or_path")
    ]
    folders = [
        parent / name
        for name in names
        if name and isinstance(name, str)
        for parent in file.resolve().parents
    ]
    return [
        folder
        for folder in folders
        if folder.is_dir() and any(any(folder.glob(pattern)) for pattern in patterns)
    ]


def _load_tokenizer(
    file: Path,
    tokenizer_folder: str | Path | None,
    config: AlbertConfig,
    arguments: dict[str, Any],
) -> AlbertTokenizer:
    """Return the tokenizer that the captioner was trained with."""
    if tokenizer_folder:
        folders = [Path(tokenizer_folder)]
    else:
        usual = (file.parent, file.parent / "tokenizer", file.parent.parent / "tokenizer")
        folders = [
            folder
            for folder in usual
            if any(any(folder.glob(pattern)) for pattern in _TOKENIZER_FILES)
        ]
        folders += _model_folders(file, arguments, *_TOKENIZER_FILES)
    if not folders:
        raise CheckpointError(
            "no-tokenizer",
            f"there is no vocab.txt, tokenizer.json or SentencePiece model in the folder of `{file}`",
            "name the folder of the tokenizer that it was trained with: --tokenizer FOLDER",
        )
    lower = bool(arguments.get("do_lower_case", True))
    tokenizer = SwinBertTokenizer.of_run(folders[0], lower).tokenizer
    if tokenizer.vocab_size != config.vocab_size:
        raise CheckpointError(
            "wrong-tokenizer",
            f"the tokenizer in `{folders[0]}` has {tokenizer.vocab_size:,} tokens, the model {config.vocab_size:,}",
            "name the folder of the right tokenizer with --tokenizer",
        )
    return tokenizer
