"""An exported folder run by ONNX Runtime, as the class that it was exported from: heads and all.

T tokens of N sequences, S places of a row, H hidden, C labels, V vocabulary, P predictions.
"""

from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from albertkit.batches.packed import unpack
from albertkit.config import AlbertConfig
from albertkit.conversion.classes import HEADS
from albertkit.engines.engine import Engine, Precision
from albertkit.errors import CheckpointError, ConfigError, DataError, first_line, requires_package
from albertkit.files import read_json
from albertkit.model import (
    AlbertForBeamQuestionAnswering,
    AlbertForMaskedLM,
    AlbertForMultipleChoice,
    AlbertForPreTraining,
    AlbertForQuestionAnswering,
    AlbertForTokenClassification,
    AlbertModel,
    PackedBatch,
)
from albertkit.model.padded import (
    BaseModelOutput,
    BeamQuestionAnsweringOutput,
    LogitsOutput,
    ModelOutput,
    PackedOutput,
    PreTrainingOutput,
    QuestionAnsweringOutput,
)
from albertkit.model.pretrained import PretrainedAlbert
from albertkit.model_paths import find_weights, local_folder
from albertkit.tokenizer import AlbertTokenizer

ONNX_FILE = "model.onnx"
REPORT = "export.json"  # in the same folder: options of the export
_CLASSES: dict[str, type[PretrainedAlbert]] = {kind.__name__: kind for kind in HEADS.values()}


class OnnxModel(PretrainedAlbert):
    """Base of a model of an exported folder, which is also of the class it was exported from; see `load_onnx`.

    It has no parameters and cannot be trained: no labels, gradients, hidden states or attentions.
    """

    def __init__(
        self,
        config: AlbertConfig,
        session: Any,
        tokenizer: AlbertTokenizer | None = None,
        precision: Precision = "fp32",
    ) -> None:
        nn.Module.__init__(self)
        self.config = config
        self.session = session
        self.tokenizer = tokenizer
        self.precision = precision
        self.eval()

    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        token_type_ids: Tensor | None = None,
        position_ids: Tensor | None = None,
        p_mask: Tensor | None = None,
        return_dict: bool | None = None,
        **unsupported: Any,
    ) -> ModelOutput:
        """Run padded input as the class does; zeros at padding, of spans the lowest finite number.

        Args:
            input_ids: int64 [B, S]; of multiple choice [B, choices, S].
            attention_mask: As `input_ids`, 0 at padding. Default: no padding.
            token_type_ids: As `input_ids`. Default: 0.
            position_ids: int64 [S] or [B, S]. Default: 0 to S-1.
            p_mask: [B, S], of the beam head: 1 where no answer may lie.
            return_dict: False returns a plain tuple.
            **others: Options of the class that ONNX models lack; None.
        """
        unsupported_names = [
            name for name, value in unsupported.items() if value is not None and value is not False
        ]
        if unsupported_names:
            fact = f"a model over ONNX Runtime takes no `{unsupported_names[0]}`"
            hint = "load the model that it was exported from: its class takes labels, and returns losses and hidden states"
            raise ConfigError("bad-value", fact, hint)
        if input_ids is None:
            raise ConfigError(
                "bad-value", "no input_ids given", "give ids; ONNX models take no embeddings"
            )
        choices = (
            input_ids.shape[1]
            if isinstance(self, AlbertForMultipleChoice) and input_ids.dim() == 3
            else 0
        )
        ids, mask, types = (
            values.flatten(0, 1) if choices and values is not None else values
            for values in (input_ids, attention_mask, token_type_ids)
        )
        assert ids is not None
        batch = PackedBatch.from_padded(ids, mask, types, position_ids)
        token_mask = torch.ones_like(ids, dtype=torch.bool) if mask is None else mask != 0
        outputs = self.run(batch, None if p_mask is None else p_mask[token_mask])
        output = self._output(outputs, batch, token_mask, choices)
        return output if return_dict is not False else output.to_tuple()  # type: ignore[return-value]

    def _output(
        self, outputs: dict[str, Tensor], batch: PackedBatch, token_mask: Tensor, choices: int
    ) -> ModelOutput:
        """Return the output of ONNX Runtime as the output of the class."""

        def rows(name: str) -> Tensor:
            return unpack(_gather_tokens(outputs[name], batch), token_mask)

        if isinstance(self, AlbertModel):
            states, pooled = rows("last_hidden_state"), outputs.get("pooler_output")
            return BaseModelOutput(last_hidden_state=states, pooler_output=pooled)
        if isinstance(self, AlbertForBeamQuestionAnswering):
            return BeamQuestionAnsweringOutput(outputs)
        if isinstance(self, AlbertForPreTraining):
            return PreTrainingOutput(
                prediction_logits=rows("prediction_logits"), sop_logits=outputs["sop_logits"]
            )
        if isinstance(self, AlbertForQuestionAnswering):
            lowest = torch.finfo(torch.float32).min
            start, end = (
                rows(name).masked_fill(~token_mask, lowest)
                for name in ("start_logits", "end_logits")
            )
            return QuestionAnsweringOutput(start_logits=start, end_logits=end)
        if isinstance(self, AlbertForMaskedLM | AlbertForTokenClassification):
            return LogitsOutput(logits=rows("logits"))
        return LogitsOutput(
            logits=outputs["logits"].view(-1, choices) if choices else outputs["logits"]
        )

    @property
    def device(self) -> torch.device:
        """The CPU."""
        return torch.device("cpu")

    def run(self, batch: PackedBatch, p_mask: Tensor | None = None) -> dict[str, Tensor]:
        """Return every output as ONNX Runtime does: [N, S, ...] of tokens, [N, ...] of sequences.

        Tokens stand in their rows where their positions say. `p_mask`, int64 [T], is of the beam
        head: 1 where no answer may lie.
        """
        # ONNX Runtime raises less helpful errors
        config, max_length = self.config, self.config.max_position_embeddings
        if batch.longest > max_length:
            fact = f"a sequence has {batch.longest} tokens, the model reads {max_length}"
            raise DataError("too-large", fact, "cut it, or split it in windows")
        tables = dict(
            input_ids=config.vocab_size,
            token_type_ids=config.type_vocab_size,
            position_ids=max_length,
        )
        for name, size in tables.items():
            smallest, largest = (int(value) for value in getattr(batch, name).aminmax())
            if smallest < 0 or largest >= size:
                fact = f"{name} go from {smallest} to {largest}, the model knows 0 to {size - 1}"
                hint = "encode the text with the tokenizer in the model's folder"
                raise DataError("wrong-tokenizer", fact, hint)
        attention_mask = torch.ones_like(batch.input_ids)
        inputs = dict(
            input_ids=batch.input_ids,
            attention_mask=attention_mask,
            token_type_ids=batch.token_type_ids,
        )
        if p_mask is not None:
            inputs["p_mask"] = p_mask
        width, indices = _padded_indices(batch)
        shape = (-1, 1, width) if isinstance(self, AlbertForMultipleChoice) else (-1, width)
        empty = torch.zeros(batch.num_sequences * width, dtype=torch.int64)
        rows = {
            name: empty.index_copy(0, indices, values.long()).view(shape)
            for name, values in inputs.items()
        }
        names = [output.name for output in self.session.get_outputs()]
        arrays = self.session.run(names, {name: values.numpy() for name, values in rows.items()})
        return dict(zip(names, map(torch.from_numpy, arrays), strict=True))

    def encode(
        self, batch: PackedBatch, trace: None = None, positions: Tensor | None = None
    ) -> PackedOutput:
        """See `AlbertModel.encode`; for a folder of that class."""
        if not isinstance(self, AlbertModel):
            fact = f"{type(self).__name__} has its heads' outputs only, no states of the encoder"
            raise ConfigError(
                "bad-value", fact, "export the encoder: albertkit export onnx ENCODER --out ONNX"
            )
        outputs = self.run(batch)
        hidden = _gather_tokens(outputs["last_hidden_state"], batch)
        return PackedOutput(
            hidden if positions is None else hidden[positions], outputs.get("pooler_output")
        )

    def packed_logits(self, batch: PackedBatch) -> Any:
        """Return what the class does: [P, V] or [T, V], with [N, 2] of pretraining; [N, C], [T, C], [N, 1]; two [N, S]."""
        outputs = self.run(batch)
        if isinstance(self, AlbertForQuestionAnswering):
            return _mask_after_end(outputs["start_logits"], batch), _mask_after_end(
                outputs["end_logits"], batch
            )
        if isinstance(self, AlbertForPreTraining):
            return _gather_masked_tokens(outputs["prediction_logits"], batch), outputs["sop_logits"]
        if isinstance(self, AlbertForMaskedLM):
            return _gather_masked_tokens(outputs["logits"], batch)
        return (
            _gather_tokens(outputs["logits"], batch)
            if isinstance(self, AlbertForTokenClassification)
            else outputs["logits"]
        )

    def packed_beams(
        self, batch: PackedBatch, p_mask: Tensor | None = None
    ) -> BeamQuestionAnsweringOutput:
        """See `AlbertForBeamQuestionAnswering.packed_beams`."""
        return BeamQuestionAnsweringOutput(self.run(batch, p_mask))


class OnnxEngine(Engine):
    """The engine of a model over ONNX Runtime, in the precision of the export; a note says where another was asked for."""

    def __init__(self, model: OnnxModel, precision: Precision) -> None:
        notes: tuple[str, ...] = ()
        if precision not in ("auto", model.precision):
            notes = (f"not {precision}: the ONNX folder was exported in {model.precision}",)
        super().__init__(model.precision, notes)
        self._model = model

    def encode(self, batch: PackedBatch, positions: Tensor | None = None) -> PackedOutput:
        """Encode with an exported encoder, as `Engine.encode` does."""
        return self._model.encode(batch, positions=positions)


def is_onnx_folder(folder: Path) -> bool:
    """Return whether a folder holds an exported model and no weights of its own."""
    return (folder / ONNX_FILE).is_file() and find_weights(folder) is None


def load_onnx(folder: str | Path, num_threads: int = 0) -> OnnxModel:
    """Load a folder written by `albertkit export onnx`.

    Args:
        folder: With `model.onnx` and `config.json`, which names the class.
        num_threads: Of ONNX Runtime. Default: as many as there are cores.

    Returns:
        An `OnnxModel` that is also of the class it was exported from.

    Raises:
        DataError: not-found, bad-file. CheckpointError: missing-file, corrupt, ambiguous.
        MissingExtraError: not-installed.
    """
    with requires_package("onnxruntime", "onnx", "running an exported model"):
        import onnxruntime as ort
    path = local_folder(folder)
    config = AlbertConfig.from_pretrained(path)
    if not (path / ONNX_FILE).is_file():
        raise CheckpointError(
            "missing-file",
            f"there is no {ONNX_FILE} in `{path}`",
            f"make one: albertkit export onnx {path} --out ONNX",
        )
    name = next(iter(config.foreign.get("architectures") or []), "")
    if name not in _CLASSES:
        raise CheckpointError(
            "ambiguous",
            f"`{path / 'config.json'}` names the class `{name}`",
            f"known: {', '.join(_CLASSES)}",
        )
    options = ort.SessionOptions()
    options.intra_op_num_threads = num_threads
    options.log_severity_level = 3  # errors alone: it warns of inputs with a default
    try:
        session = ort.InferenceSession(
            path / ONNX_FILE, options, providers=["CPUExecutionProvider"]
        )
    except Exception as error:  # of ONNX Runtime's own kinds, which share no base class
        reason = first_line(error)
        raise CheckpointError(
            "corrupt",
            f"ONNX Runtime cannot read `{path / ONNX_FILE}`: {reason}",
            "export the model again",
        ) from None
    _check_graph(session, name, path)
    kind = type(f"Onnx{name}", (OnnxModel, _CLASSES[name]), {})
    report = read_json(path / REPORT, "report of the export") if (path / REPORT).exists() else {}
    return kind(config, session, load_optional_tokenizer(path), report.get("precision", "fp32"))


_INPUTS = {"input_ids", "attention_mask", "token_type_ids"}
_OUTPUTS = {
    "AlbertModel": {"last_hidden_state"},
    "AlbertForPreTraining": {"prediction_logits", "sop_logits"},
    "AlbertForQuestionAnswering": {"start_logits", "end_logits"},
    "AlbertForBeamQuestionAnswering": {"cls_logits"},
}


def _check_graph(session: Any, class_name: str, folder: Path) -> None:
    """Refuse a graph that another program exported with other names than transformers' or other types than int64."""
    inputs = {value.name: value.type for value in session.get_inputs()}
    outputs = {value.name for value in session.get_outputs()}
    expected_outputs = _OUTPUTS.get(class_name, {"logits"})
    is_usual = inputs.keys() == _INPUTS and set(inputs.values()) == {"tensor(int64)"}
    if not is_usual or not outputs >= expected_outputs:
        stated = ", ".join(f"{name} {kind}" for name, kind in inputs.items())
        fact = f"`{folder / ONNX_FILE}` reads {stated} and gives {', '.join(sorted(outputs))}"
        hint = f"an {class_name} reads {', '.join(sorted(_INPUTS))}, int64, and gives {', '.join(sorted(expected_outputs))}"
        raise CheckpointError("unsupported", fact, hint)


def load_optional_tokenizer(folder: Path) -> AlbertTokenizer | None:
    """Return the tokenizer of a folder, or None if it has none."""
    try:
        return AlbertTokenizer.from_pretrained(folder)
    except CheckpointError as error:
        if error.slug != "no-tokenizer":
            raise
        return None


def _padded_indices(batch: PackedBatch) -> tuple[int, Tensor]:
    """Return S, and the index of each token in the flattened rows, int64 [T]."""
    width = int(batch.position_ids.max()) + 1
    rows = torch.searchsorted(batch.offsets[1:], torch.arange(batch.num_tokens), right=True)
    return width, rows * width + batch.position_ids


def _gather_tokens(values: Tensor, batch: PackedBatch) -> Tensor:
    """Gather [N, S, ...] to [T, ...]."""
    return values.flatten(0, 1)[_padded_indices(batch)[1]]


def _gather_masked_tokens(logits: Tensor, batch: PackedBatch) -> Tensor:
    """Gather [N, S, V] to [P, V], or to [T, V] of a batch without masked positions."""
    tokens = _gather_tokens(logits, batch)
    return tokens if batch.masked_positions is None else tokens[batch.masked_positions]


def _mask_after_end(logits: Tensor, batch: PackedBatch) -> Tensor:
    """Return [N, S], the lowest finite number after a sequence's end."""
    rows = batch.unpack(_gather_tokens(logits, batch))
    return rows.masked_fill(~batch.padding_mask(), torch.finfo(rows.dtype).min)
