"""`export_onnx`: a checkpoint folder to a folder that ONNX Runtime runs, compared with the model before it is saved."""

import shutil
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from albertkit.command import takes
from albertkit.conversion.classes import load_model
from albertkit.embeddings.encoder import SentenceEncoder
from albertkit.embeddings.folder import MODULES, is_encoder_folder, module_folders
from albertkit.engines.onnx import ONNX_FILE, REPORT, load_onnx, load_optional_tokenizer
from albertkit.errors import ConfigError, MachineError, requires_package
from albertkit.export.options import ExportOnnxOptions
from albertkit.files import atomic_folder, check_new_folder, write_json
from albertkit.folder_facts import FolderFacts
from albertkit.model import (
    AlbertForMaskedLM,
    AlbertForPreTraining,
    AlbertForSequenceClassification,
    AlbertForTokenClassification,
)
from albertkit.model.files import PROVENANCE
from albertkit.model.pretrained import PretrainedAlbert
from albertkit.model_paths import captioner_error, is_captioner_folder, local_folder
from albertkit.output.sections import FactList, Result, Section
from albertkit.pipelines.compare_precision import (
    PrecisionComparison,
    compare_with_fp32,
    compute_outputs,
    largest_difference_and_magnitude,
    sample_batches_and_source,
)
from albertkit.tasks.models import TASK
from albertkit.tokenizer.files import TOKENIZER_FILES

if TYPE_CHECKING:
    import onnx

_TOLERANCE = 1e-4  # of an fp32 output, as a share of the largest one where that is above 1
_COPIED_FILES = (
    *TOKENIZER_FILES,
    TASK,
    PROVENANCE,
    "sentence_bert_config.json",
    "config_sentence_transformers.json",
)
_PRODUCTS = ("MatMulInteger", "Gemm", "MatMul")
# A protobuf file holds no more than 2 GB; the numbers of a larger model go into a second file.
_MAX_FILE_BYTES = 2_000_000_000


@dataclass(frozen=True)
class OnnxReport(Result):
    """Report of `export_onnx`; `export.json` in the folder holds the same.

    Attributes:
        source: As it was given.
        out: The folder.
        model_class: Class of the model.
        precision: fp32 or int8.
        megabytes: Size of `model.onnx` and, of a large model, `model.onnx.data`; 1,000,000 bytes
            each.
        products: How many matrix products of each kind the graph has.
        max_abs_difference: The largest difference of two numbers of the outputs.
        agreement: Comparison with the model in fp32.
    """

    source: str
    out: str
    model_class: str
    precision: str
    megabytes: float
    products: dict[str, int]
    max_abs_difference: float
    agreement: PrecisionComparison

    def sections(self) -> list[Section]:
        """Return what was written, and the comparison."""
        facts = {
            "written": self.out,
            "model": f"{self.model_class}, {self.precision}, {self.megabytes:.1f} MB",
            "matrix products": ", ".join(
                f"{count} {kind}" for kind, count in self.products.items()
            ),
            "largest difference": f"{self.max_abs_difference:.2g}",
            **self.agreement.facts(),
            "saved in spite of": "; ".join(self.agreement.problems) or None,
        }
        return [FactList(facts)]


@takes(ExportOnnxOptions)
def export_onnx(options: ExportOnnxOptions) -> OnnxReport:
    """Write a model as `model.onnx`, with its configuration, tokenizer and task; see `ExportOnnxOptions`.

    Raises:
        CheckpointError: doubtful, exists, not-expressible, wrong-model, and what loading raises.
        ConfigError: unknown-name, bad-value. DataError: not-found, and what reading raises.
            MachineError: internal-error.
        MissingExtraError: not-installed.
    """
    precision = options.precision
    out = Path(options.out)
    check_new_folder(out)
    folder = local_folder(options.model)
    model = _load_model(folder, options.masked_lm)
    graph = build_onnx(model, precision)
    import onnx  # an extra, which `build_onnx` asks for

    with atomic_folder(out) as temporary:
        is_large = graph.ByteSize() > _MAX_FILE_BYTES
        location = f"{ONNX_FILE}.data" if is_large else None
        onnx.save(graph, temporary / ONNX_FILE, save_as_external_data=is_large, location=location)
        # It says what a CrossEncoder's outputs are; a sentence encoder is one graph.
        is_cross_encoder = FolderFacts.from_folder(folder).is_cross_encoder
        patterns = (*_COPIED_FILES, MODULES) if is_cross_encoder else _COPIED_FILES
        sources = {folder}
        if isinstance(model, SentenceEncoder):
            sources.add(module_folders(folder)["Transformer"])
        for file in sorted(
            {file for source in sources for pattern in patterns for file in source.glob(pattern)}
        ):
            shutil.copy2(file, temporary / file.name)
        name = "AlbertModel" if isinstance(model, SentenceEncoder) else type(model).__name__
        fields = {**model.config.foreign, "architectures": [name]}
        if isinstance(model, AlbertForSequenceClassification | AlbertForTokenClassification):
            # transformers.js does not make up names as transformers does: its pipelines fail.
            fields |= {"id2label": model.config.id2label, "label2id": model.config.label2id}
        model.config.replace(foreign=fields).save_pretrained(temporary)
        exported = load_onnx(temporary)
        batches, _ = sample_batches_and_source(load_optional_tokenizer(folder), model.config)
        reference = [compute_outputs(model, batch) for batch in batches]
        outputs = [compute_outputs(exported, batch) for batch in batches]
        difference, magnitude = largest_difference_and_magnitude(reference, outputs)
        if precision == "fp32" and not difference <= _TOLERANCE * max(1.0, magnitude):
            raise MachineError(
                "internal-error",
                f"ONNX Runtime's outputs differ from the model's by up to {difference:.2g}, the largest is {magnitude:.2g}",
                "please report this with the configuration",
            )
        comparison = compare_with_fp32(folder, model, exported, precision, options.data)
        remedy = "export fp32"
        if options.data is None:
            remedy = "compare on labelled examples of its task with --data DATA, export with --precision fp32"
        comparison.require_closeness(options.force, remedy)
        report = OnnxReport(
            source=str(options.model),
            out=str(out),
            model_class=type(model).__name__,
            precision=precision,
            megabytes=round(
                sum(file.stat().st_size for file in temporary.glob(f"{ONNX_FILE}*")) / 1e6, 2
            ),
            products=count_products(graph),
            max_abs_difference=difference,
            agreement=comparison,
        )
        write_json(temporary / REPORT, report.to_dict())
    return report


def build_onnx(
    model: PretrainedAlbert | SentenceEncoder, precision: str = "fp32"
) -> "onnx.ModelProto":
    """Build the ONNX model of a public class or a sentence encoder in memory, in fp32 or int8."""
    with requires_package("onnx", "onnx", "exporting a model"):
        import onnx  # noqa: F401
    from albertkit.export.classes import build_model
    from albertkit.export.graph import OnnxGraph, QuantizedGraph

    graph_class = QuantizedGraph if precision == "int8" else OnnxGraph
    return build_model(graph_class(dict(model.named_parameters())), model)


def count_products(model: "onnx.ModelProto") -> dict[str, int]:
    """Count the matrix products of each kind in a graph."""
    counts = Counter(node.op_type for node in model.graph.node)
    return {kind: counts[kind] for kind in _PRODUCTS if counts[kind]}


def _load_model(folder: Path, masked_lm: bool) -> PretrainedAlbert | SentenceEncoder:
    if is_captioner_folder(folder):
        raise captioner_error(folder)
    model = (
        SentenceEncoder.from_pretrained(folder) if is_encoder_folder(folder) else load_model(folder)
    )
    if not masked_lm:
        return model
    if not isinstance(model, AlbertForPreTraining | AlbertForMaskedLM):
        fact = f"`{folder}` ({type(model).__name__}) has no masked-LM head"
        raise ConfigError("bad-value", fact, "leave --masked-lm out, or name a pretrained model")
    return AlbertForMaskedLM.from_pretrained(folder).eval()
