"""An exported folder run by ONNX Runtime, as the class that it was exported from: heads and all.

T tokens of N sequences, S places of a row, H hidden, C labels, V vocabulary, P predictions.
"""

from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from albertkit.checkpoints.classes import HEADS
from albertkit.config import AlbertConfig
from albertkit.errors import CheckpointError, MissingExtraError
from albertkit.model import (
    AlbertForMaskedLM,
    AlbertForMultipleChoice,
    AlbertForPreTraining,
    AlbertForQuestionAnswering,
    AlbertForTokenClassification,
    PackedBatch,
)
from albertkit.model.outputs import BeamQuestionAnsweringOutput, PackedOutput
from albertkit.model.pretrained import PretrainedAlbert
from albertkit.tokenizer import AlbertTokenizer

ONNX_FILE = "model.onnx"
_CLASSES: dict[str, type[PretrainedAlbert]] = {kind.__name__: kind for kind in HEADS.values()}


class OnnxModel(PretrainedAlbert):
    """What every model of an exported folder is, beside the class it was exported from: `task.outputs` takes it for that class.

    It has no parameters; of the class only `packed_logits` (`packed_beams`, `encode`) is there. `load_onnx` makes it.

    Args:
        config: Of the model.
        session: ONNX Runtime's `InferenceSession`.
        tokenizer: That of the folder, if it has one.
    """

    def __init__(self, config: AlbertConfig, session: Any, tokenizer: AlbertTokenizer | None = None) -> None:
        nn.Module.__init__(self)
        self.config, self.session, self.tokenizer = config, session, tokenizer
        self.eval()

    @property
    def device(self) -> torch.device:
        """The CPU."""
        return torch.device("cpu")

    def run(self, batch: PackedBatch, p_mask: Tensor | None = None) -> dict[str, Tensor]:
        """Every output as ONNX Runtime returns it: [N, S, ...] of tokens, [N, ...] of sequences.

        Args:
            batch: N sequences. Tokens stand in their rows where their positions say.
            p_mask: int64 [T], of the beam head: 1 where no answer may lie.
        """
        given = {
            "input_ids": batch.input_ids, "attention_mask": torch.ones_like(batch.input_ids),
            "token_type_ids": batch.token_type_ids,
        }  # fmt: skip
        if p_mask is not None:
            given["p_mask"] = p_mask
        width, places = _places(batch)
        shape = (-1, 1, width) if isinstance(self, AlbertForMultipleChoice) else (-1, width)
        empty = torch.zeros(batch.num_sequences * width, dtype=torch.int64)
        rows = {name: empty.index_copy(0, places, values.long()).view(shape) for name, values in given.items()}
        names = [output.name for output in self.session.get_outputs()]
        found = self.session.run(names, {name: values.numpy() for name, values in rows.items()})
        return dict(zip(names, map(torch.from_numpy, found), strict=True))

    def encode(self, batch: PackedBatch, trace: None = None, positions: Tensor | None = None) -> PackedOutput:
        """As `AlbertModel.encode`, of a folder of that class."""
        found = self.run(batch)
        hidden = _tokens(found["last_hidden_state"], batch)
        return PackedOutput(hidden if positions is None else hidden[positions], found.get("pooler_output"))

    def packed_logits(self, batch: PackedBatch) -> Any:
        """As the class's own: [P, V] or [T, V], with [N, 2] of pretraining; [N, C], [T, C], [N, 1]; two [N, S] of spans."""
        found = self.run(batch)
        if isinstance(self, AlbertForQuestionAnswering):
            return _spans(found["start_logits"], batch), _spans(found["end_logits"], batch)
        if isinstance(self, AlbertForPreTraining):
            return _masked(found["prediction_logits"], batch), found["sop_logits"]
        if isinstance(self, AlbertForMaskedLM):
            return _masked(found["logits"], batch)
        return _tokens(found["logits"], batch) if isinstance(self, AlbertForTokenClassification) else found["logits"]

    def packed_beams(self, batch: PackedBatch, p_mask: Tensor | None = None) -> BeamQuestionAnsweringOutput:
        """As `AlbertForBeamQuestionAnswering.packed_beams`."""
        return BeamQuestionAnsweringOutput(self.run(batch, p_mask))


def load_onnx(folder: str | Path, num_threads: int = 0) -> OnnxModel:
    """Open what `albertkit export onnx` wrote.

    Args:
        folder: With `model.onnx` and `config.json`, which names the class.
        num_threads: Of ONNX Runtime. Default: as many as there are cores.

    Returns:
        An `OnnxModel` that is also of the class it was exported from.

    Raises:
        DataError: not-found, broken-json. CheckpointError: no-weights, broken-weights, ambiguous-head.
        MissingExtraError: missing-extra.
    """
    try:
        import onnxruntime as ort
    except ImportError:
        raise MissingExtraError.of("onnxruntime", "onnx", "running an exported model") from None
    path = Path(folder)
    config = AlbertConfig.from_pretrained(path)
    if not (path / ONNX_FILE).is_file():
        raise CheckpointError(
            "no-weights", f"there is no {ONNX_FILE} in `{path}`", f"make one: albertkit export onnx {path} OUT"
        )
    name = next(iter(config.foreign.get("architectures") or []), "")
    if name not in _CLASSES:
        raise CheckpointError(
            "ambiguous-head", f"`{path / 'config.json'}` names the class `{name}`", f"known: {', '.join(_CLASSES)}"
        )
    options = ort.SessionOptions()
    options.intra_op_num_threads = num_threads
    options.log_severity_level = 3  # errors alone: it warns of inputs with a default
    try:
        session = ort.InferenceSession(path / ONNX_FILE, options, providers=["CPUExecutionProvider"])
    except Exception as error:  # of ONNX Runtime's own kinds, which share no base class
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise CheckpointError(
            "broken-weights", f"ONNX Runtime cannot read `{path / ONNX_FILE}`: {reason}", "export the model again"
        ) from None
    kind = type(f"Onnx{name}", (OnnxModel, _CLASSES[name]), {})
    return kind(config, session, tokenizer_of(path))


def tokenizer_of(folder: Path) -> AlbertTokenizer | None:
    """The tokenizer of a folder, or None if it has none.

    Raises:
        CheckpointError: As `AlbertTokenizer.from_pretrained`, for one that cannot be read.
    """
    try:
        return AlbertTokenizer.from_pretrained(folder)
    except CheckpointError as error:
        if error.slug != "no-tokenizer":
            raise
        return None


def _places(batch: PackedBatch) -> tuple[int, Tensor]:
    """S, and where each token stands in the flattened rows: int64 [T]."""
    width = int(batch.position_ids.max()) + 1
    rows = torch.searchsorted(batch.offsets[1:], torch.arange(batch.num_tokens), right=True)
    return width, rows * width + batch.position_ids


def _tokens(values: Tensor, batch: PackedBatch) -> Tensor:
    """[N, S, ...] to [T, ...]."""
    return values.flatten(0, 1)[_places(batch)[1]]


def _masked(logits: Tensor, batch: PackedBatch) -> Tensor:
    """[N, S, V] to [P, V], or [T, V] of a batch that says nothing of masks."""
    tokens = _tokens(logits, batch)
    return tokens if batch.masked_positions is None else tokens[batch.masked_positions]


def _spans(logits: Tensor, batch: PackedBatch) -> Tensor:
    """[N, S], the lowest finite number after a sequence's end."""
    rows = batch.unpack(_tokens(logits, batch))
    return rows.masked_fill(~batch.padding_mask(), torch.finfo(rows.dtype).min)
