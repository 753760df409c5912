"""`export_onnx`: a checkpoint folder to a folder that ONNX Runtime runs, compared with the model before it is saved."""

import shutil
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from albertkit.captioning.folder import is_captioner_folder
from albertkit.checkpoints.classes import load_model
from albertkit.embeddings.encoder import SentenceEncoder
from albertkit.embeddings.folder import is_encoder_folder
from albertkit.engines.onnx_model import ONNX_FILE, REPORT, OnnxModel, load_onnx, tokenizer_of
from albertkit.errors import CheckpointError, ConfigError, MachineError, MissingExtraError
from albertkit.files import atomic_folder, write_json
from albertkit.inference.agreement import Agreement, agreement_of
from albertkit.inference.forms import largest_difference, outputs_of
from albertkit.inference.sample import sample_batches
from albertkit.model.pretrained import PretrainedAlbert
from albertkit.model_folder import local_folder
from albertkit.report.task_results import for_json
from albertkit.tasks.loading import TASK
from albertkit.tokenizer.loading import TOKENIZER_FILES

if TYPE_CHECKING:
    import onnx

PRECISIONS = ("fp32", "int8")
_TOLERANCE = 1e-4  # of an fp32 output, as a share of the largest one where that is above 1
_CARRIED = (*TOKENIZER_FILES, TASK, "sentence_bert_config.json", "config_sentence_transformers.json")
_PRODUCTS = ("MatMulInteger", "Gemm", "MatMul")
_ONE_FILE = 2_000_000_000  # bytes that a protobuf file can hold; the numbers of a larger model go beside it


@dataclass(frozen=True)
class ExportReport:
    """What `export_onnx` did.

    Attributes:
        source: As it was given.
        target: The folder.
        model_class: What was exported.
        precision: fp32 or int8.
        megabytes: Of `model.onnx` and, of a large model, what lies beside it; 1,000,000 bytes each.
        products: How many matrix products of each kind the graph has.
        max_abs_difference: The largest difference of two numbers of the outputs.
        agreement: With the model in fp32.
    """

    source: str
    target: str
    model_class: str
    precision: str
    megabytes: float
    products: dict[str, int]
    max_abs_difference: float
    agreement: Agreement

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON; a metric that is not defined is None."""
        return for_json({**vars(self), "agreement": self.agreement.to_dict()})

    def lines(self) -> dict[str, Any]:
        """The same for people: name to text."""
        agreement = self.agreement
        shown = {
            "written": self.target,
            "model": f"{self.model_class}, {self.precision}, {self.megabytes:.1f} MB",
            "matrix products": ", ".join(f"{count} {kind}" for kind, count in self.products.items()),
            "largest difference": f"{self.max_abs_difference:.2g}",
            **agreement.lines(),
        }
        return shown | ({"saved in spite of": "; ".join(agreement.problems)} if agreement.problems else {})


def export_onnx(
    model: str | Path,
    out: str | Path,
    *,
    precision: Literal["fp32", "int8"] = "fp32",
    data: str | Path | None = None,
    force: bool = False,
) -> ExportReport:
    """Write a model as `model.onnx`, with its configuration, tokenizer and task beside it.

    Inputs and outputs have transformers' names; both axes of the input may have any size.

    Args:
        model: A checkpoint folder of any class, a folder of a sentence encoder, a run, or `org/name` of the hub.
        out: Folder to make. It appears whole or not at all.
        precision: fp32; or int8: about a quarter of the bytes and a third of the time.
        data: Labelled examples of the model's task, a file or a folder in its layout: its metric is compared, too.
        force: Save an int8 model that does not say what the model says.

    Raises:
        CheckpointError: low-agreement, folder-not-empty, not-expressible, no-task, and what loading raises.
        ConfigError: bad-precision. DataError: not-found, and what reading raises. MachineError: verification-failed.
        MissingExtraError: missing-extra.
    """
    if precision not in PRECISIONS:
        raise ConfigError("bad-precision", f"`{precision}` is not exported", f"use one of {', '.join(PRECISIONS)}")
    target = Path(out)
    if target.exists() and not (target.is_dir() and not any(target.iterdir())):
        raise CheckpointError("folder-not-empty", f"`{target}` is there already", "choose a new folder")
    folder = local_folder(model)
    loaded = _load(folder)
    graph = build_onnx(loaded, precision)
    with atomic_folder(target) as made:
        _write(graph, made)
        _carry(folder, loaded, made)
        exported = load_onnx(made)
        difference = _checked_difference(folder, loaded, exported, precision)
        agreement = agreement_of(folder, loaded, exported, precision, data)
        agreement.require(
            force, "compare on labelled examples of its task with --data DATA" if data is None else "export fp32"
        )
        report = ExportReport(
            str(model), str(target), type(loaded).__name__, precision,
            round(sum(file.stat().st_size for file in made.glob(f"{ONNX_FILE}*")) / 1e6, 2), count_products(graph),
            difference, agreement,
        )  # fmt: skip
        write_json(made / REPORT, report.to_dict())
    return report


def build_onnx(model: PretrainedAlbert | SentenceEncoder, precision: str = "fp32") -> "onnx.ModelProto":
    """The model as an ONNX model in memory.

    Args:
        model: Of a public class, or a sentence encoder.
        precision: fp32 or int8.

    Raises:
        CheckpointError: not-expressible. MissingExtraError: missing-extra.
    """
    try:
        import onnx  # noqa: F401
    except ImportError:
        raise MissingExtraError.of("onnx", "onnx", "exporting a model") from None
    from albertkit.export.graph import Graph
    from albertkit.export.heads import build
    from albertkit.export.quantized import QuantizedGraph

    kind = QuantizedGraph if precision == "int8" else Graph
    return build(kind(dict(model.named_parameters())), model)


def count_products(model: "onnx.ModelProto") -> dict[str, int]:
    """How many matrix products of each kind a graph has."""
    counts = Counter(node.op_type for node in model.graph.node)
    return {kind: counts[kind] for kind in _PRODUCTS if counts[kind]}


def _load(folder: Path) -> PretrainedAlbert | SentenceEncoder:
    if is_captioner_folder(folder):
        raise CheckpointError(
            "not-expressible", f"`{folder}` holds a captioner", "captioners are run by `albertkit caption predict`"
        )
    return SentenceEncoder.from_pretrained(folder) if is_encoder_folder(folder) else load_model(folder)


def _write(graph: "onnx.ModelProto", folder: Path) -> None:
    import onnx

    beside = graph.ByteSize() > _ONE_FILE
    onnx.save(graph, folder / ONNX_FILE, save_as_external_data=beside, location=f"{ONNX_FILE}.data" if beside else None)


def _carry(folder: Path, model: PretrainedAlbert | SentenceEncoder, out: Path) -> None:
    """What belongs to the model beside its numbers."""
    for file in sorted({file for pattern in _CARRIED for file in folder.glob(pattern)}):
        shutil.copy2(file, out / file.name)
    name = "AlbertModel" if isinstance(model, SentenceEncoder) else type(model).__name__
    model.config.replace(foreign={**model.config.foreign, "architectures": [name]}).save_pretrained(out)


def _checked_difference(
    folder: Path, model: PretrainedAlbert | SentenceEncoder, exported: OnnxModel, precision: str
) -> float:
    """The largest difference of two numbers of the outputs on a sample of text; refused in fp32 if it is no rounding."""
    batches, _ = sample_batches(tokenizer_of(folder), model.config)
    reference, found = ([outputs_of(form, batch) for batch in batches] for form in (model, exported))
    largest, magnitude = largest_difference(reference, found)
    if precision == "fp32" and not largest <= _TOLERANCE * max(1.0, magnitude):
        raise MachineError(
            "verification-failed",
            f"ONNX Runtime's outputs differ from the model's by up to {largest:.2g}, the largest is {magnitude:.2g}",
            "please report this with the configuration",
        )
    return largest
