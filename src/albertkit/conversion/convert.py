"""Any ALBERT to a checkpoint folder, and back to google-research/albert's files; verified before it gets its name."""

import shutil
import warnings
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

import albertkit
from albertkit.command import takes
from albertkit.config import AlbertConfig
from albertkit.conversion import names, tensorflow_weights
from albertkit.conversion.checkpoints import open_checkpoint
from albertkit.conversion.classes import (
    HEADS,
    SourceModel,
    fit_tensors_and_list_missing,
    identity_projection,
    named_or_guessed_head,
    with_labels,
)
from albertkit.conversion.initial import special_ids
from albertkit.conversion.options import ConvertOptions
from albertkit.conversion.tensorflow.bundle import OBJECT_GRAPH, write_bundle, write_object_graph
from albertkit.conversion.tensorflow_weights import NPZ
from albertkit.errors import AlbertKitError, CheckpointError, MachineError
from albertkit.files import (
    CHECKSUMS,
    atomic_file,
    atomic_folder,
    check_new_folder,
    write_file,
    write_json,
)
from albertkit.model import AlbertForMultipleChoice
from albertkit.model.files import PREFIX, PROVENANCE, StateDict, read_provenance, write_tensors
from albertkit.model.pretrained import PretrainedAlbert, save_config_of_fp32
from albertkit.model_paths import SELECTED, WEIGHTS_FILE
from albertkit.output.progress import quiet_transformers
from albertkit.output.render import to_markdown
from albertkit.output.sections import FactList, Paragraph, Result, Section
from albertkit.printable import join_lines
from albertkit.tokenizer import AlbertTokenizer
from albertkit.tokenizer.files import TOKENIZER_FILES

TF1_PREFIX = "model.ckpt-best"  # as in Google's archives
_GOOGLE_EPSILON = 1e-12  # written into its code
# The keys that google-research/albert's AlbertConfig knows, in the order of its released files,
# then those it ignores.
_GOOGLE_KEYS = """
attention_probs_dropout_prob hidden_act hidden_dropout_prob embedding_size hidden_size initializer_range
intermediate_size max_position_embeddings num_attention_heads num_hidden_layers num_hidden_groups net_structure_type
layers_to_keep gap_size num_memory_blocks inner_group_num down_scale_factor type_vocab_size vocab_size
""".split()


def check_target_can_express(
    tensors: StateDict,
    config: AlbertConfig,
    to: str,
    lossy: bool,
) -> None:
    """Refuse a target format whose readers would compute something else than the source."""
    layers = config.num_hidden_layers
    groups = config.num_hidden_groups
    # Of 18 layers in 14 groups, layer 9 would be of another one.
    differing = [n for n in range(layers) if int(n / (layers / groups)) != int(n / layers * groups)]
    if differing:
        raise CheckpointError(
            "not-expressible",
            f"with {layers} layers in {groups} groups, transformers and google-research/albert round differently and use "
            f"another group in layer {differing[0]}",
        )
    if to == "transformers":
        return
    if to == "tf2":
        tensorflow_weights.check_one_block(config)
    reasons = []
    if config.layer_norm_eps != _GOOGLE_EPSILON:
        reasons.append(f"layer_norm_eps {config.layer_norm_eps} (always {_GOOGLE_EPSILON})")
    if config.hidden_act == "gelu":
        reasons.append("hidden_act gelu, the erf (always the tanh approximation, gelu_new)")
    if reasons and not lossy:
        raise CheckpointError(
            "not-expressible",
            f"google-research/albert cannot compute what this model does: {'; '.join(reasons)}",
            "to write it all the same, with outputs that differ, add --lossy",
        )
    if config.embedding_size != config.hidden_size:
        return
    identity = identity_projection(config.hidden_size)
    if any(not torch.equal(tensors[name], values) for name, values in identity.items()):
        raise CheckpointError(
            "not-expressible",
            "google-research/albert has no projection from E to H when they are equal, and this model has one that changes "
            "the embeddings",
        )


def drop_unknown_heads(source: SourceModel, to: str, lossy: bool) -> None:
    """Leave out the heads that the target has no place for, where that was asked for, and note them."""
    unknown = tensorflow_weights.unknown_heads(source.tensors) if to == "tf2" else []
    if not unknown:
        return
    heads = ", ".join(sorted({name.split(".")[0] for name in unknown}))
    if not lossy:
        raise CheckpointError(
            "not-expressible",
            f"checkpoints of the Model Garden have no place for {heads}: they hold an encoder, or an encoder "
            "and a masked-LM head",
            "to leave them out, add --lossy; --to tf1 keeps them",
        )
    for name in unknown:
        del source.tensors[name]
    source.notes.append(f"left out, the Model Garden's checkpoints have no place for them: {heads}")


def write_transformers(
    folder: Path, tensors: StateDict, config: AlbertConfig, model_class: type[PretrainedAlbert]
) -> None:
    """Write `config.json` and `model.safetensors`; every tensor is kept, also those that the class has no use for."""
    bare = all(name.startswith(PREFIX) for name in tensors)  # the encoder alone has no prefix
    write_tensors(
        folder / WEIGHTS_FILE,
        {name.removeprefix(PREFIX) if bare else name: t for name, t in tensors.items()},
    )
    save_config_of_fp32(folder, config, model_class)


def write_checkpoint(
    to: str,
    folder: Path,
    tensors: StateDict,
    config: AlbertConfig,
    model_class: type[PretrainedAlbert],
) -> None:
    """Write a model in the format `to` of `ConvertOptions`; Google's have an `albert_config.json`."""
    if to == "transformers":
        write_transformers(folder, tensors, config, model_class)
        return
    if to == "tf1":
        write_bundle(folder / TF1_PREFIX, _tf1_variables(tensors, config))
    elif to == "npz":
        with atomic_file(folder / NPZ) as stream:
            # A file with pickled objects could run code when it is read.
            np.savez(stream, allow_pickle=False, **_tf1_variables(tensors, config))
    else:  # as the Model Garden's converter writes it
        graph_variables, values = tensorflow_weights.variables(tensors, config)
        graph = np.array(write_object_graph(graph_variables), object)
        write_bundle(folder / tensorflow_weights.PREFIX, {**values, OBJECT_GRAPH: graph})
    values_by_key = config.to_dict()
    # So Google calls its tanh approximation.
    if config.hidden_act.startswith("gelu"):
        values_by_key["hidden_act"] = "gelu"
    write_json(
        folder / "albert_config.json",
        {key: values_by_key[key] for key in _GOOGLE_KEYS if key in values_by_key},
    )


def save_tokenizer_with_target(source: SourceModel, target: Path) -> AlbertConfig:
    """Save the tokenizer that lies beside the source beside the target, or copy its files if it cannot be loaded.

    Google's configurations, and BERT's in part, do not know the ids of `<pad>`, `[CLS]` and
    `[SEP]`: the tokenizer does.
    """
    files = sorted({file for pattern in TOKENIZER_FILES for file in source.folder.glob(pattern)})
    if not files:
        source.notes.append(
            "no tokenizer beside the source: put its spiece.model or vocab.txt into the target"
        )
        return source.config
    try:
        tokenizer = AlbertTokenizer.from_pretrained(source.folder)
        tokenizer.save_pretrained(target)
    except AlbertKitError as error:
        for file in files:
            shutil.copyfile(file, target / file.name)
        source.notes.append(f"tokenizer copied as it is, for it does not load: {error.message}")
        return source.config
    doubt = (
        ""
        if tokenizer.vocab_size == source.config.vocab_size
        else f", but the model has {source.config.vocab_size:,}"
    )
    source.notes.append(f"tokenizer: {tokenizer.vocab_size:,} tokens{doubt}")
    if source.kind == "transformers folder":
        return source.config
    return source.config.replace(**special_ids(tokenizer))


def _tf1_variables(tensors: StateDict, config: AlbertConfig) -> dict[str, NDArray[np.float32]]:
    """Return the tensors under TensorFlow 1's names, in its layout."""
    variables = {}
    for name, tensor in tensors.items():
        if name.startswith(names.MAPPING_IN) and config.embedding_size == config.hidden_size:
            continue
        variable = names.tf1_variable_name_and_layout(name)
        assert variable is not None  # a source's names are the table's
        variables[variable[0]] = names.to_tf1(tensor.numpy(), variable[1])
    return variables


_ROWS, _LENGTH = 2, 16
# Of the largest output, or of 1: fp32 rounding of deep models; a wrong tensor changes far more
_TOLERANCE = 1e-4

_REPORT = "please report this with the model's configuration"


def read_written_checkpoint(
    folder: Path,
    tensors: StateDict,
    model_class: type[PretrainedAlbert],
) -> PretrainedAlbert | None:
    """Read a target again, as a source, and if it is a checkpoint folder also as its class, strictly."""
    with open_checkpoint(folder) as copy:
        if copy.tensors.keys() != tensors.keys():
            differing = sorted(copy.tensors.keys() ^ tensors.keys())
            raise MachineError(
                "internal-error",
                f"written and read again, these are not on both sides: {', '.join(differing)}",
                _REPORT,
            )
        for name, tensor in tensors.items():
            _check_equal(name, copy.tensors[name], tensor)
    if not (folder / "config.json").exists():
        return None
    model = model_class.from_pretrained(folder, strict=True)
    for name, tensor in model.state_dict().items():
        _check_equal(name, tensor, tensors[name] if name in tensors else tensors[PREFIX + name])
    return model


def compare_outputs(ours: PretrainedAlbert, folder: Path) -> tuple[float | None, str]:
    """Run our model and transformers' on the same random ids, if it is installed and has such a class."""
    name = type(ours).__name__
    try:
        import transformers
    except ImportError:
        return None, "transformers is not installed: tensors were compared, outputs were not"
    their_class = getattr(transformers, name, None)
    if their_class is None:
        return None, f"transformers has no {name}: tensors were compared, outputs were not"
    peer = f"transformers {transformers.__version__}"
    try:
        with quiet_transformers(), warnings.catch_warnings(action="ignore"):
            theirs = their_class.from_pretrained(folder, dtype=torch.float32).eval()
    except Exception as error:
        # Whatever another program's loader raises; the tensors are compared already.
        return (
            None,
            f"{peer} does not load the folder, outputs were not compared: {type(error).__name__}: {error}",
        )
    config = ours.config
    rows = (_ROWS, 2) if isinstance(ours, AlbertForMultipleChoice) else (_ROWS,)
    shape = (*rows, min(_LENGTH, config.max_position_embeddings))
    generator = torch.Generator().manual_seed(0)
    inputs = {
        "input_ids": torch.randint(config.vocab_size, shape, generator=generator),
        "token_type_ids": torch.randint(config.type_vocab_size, shape, generator=generator),
    }
    with torch.no_grad():
        our_outputs = ours(**inputs)
        their_outputs = theirs(**inputs)
    pairs = [
        (our_outputs[name], their_outputs[name])
        for name in our_outputs
        if isinstance(their_outputs.get(name), Tensor)
    ]
    difference = max(float((a - b).abs().max()) for a, b in pairs)
    largest = max(1.0, *(float(b.abs().max()) for _, b in pairs))
    # Written so that NaN is refused, too.
    if not difference <= _TOLERANCE * largest:
        raise MachineError(
            "internal-error",
            f"the same weights give outputs that differ by {difference:.2g} from those of {peer} (largest {largest:.2g})",
            _REPORT,
        )
    return difference, f"outputs equal to those of {peer} to {difference:.1e}, on random ids"


def _check_equal(name: str, copy: Tensor, tensor: Tensor) -> None:
    # As bits: NaN equals itself then, and 0 is not -0.
    if copy.shape != tensor.shape or not torch.equal(
        copy.view(torch.int32), tensor.view(torch.int32)
    ):
        same_shape = copy.shape == tensor.shape
        difference = (
            f"{float((copy - tensor).abs().max()):.2g}"
            if same_shape
            else f"its shape, {list(copy.shape)}"
        )
        raise MachineError(
            "internal-error",
            f"{name}, written and read again, differs by {difference}",
            _REPORT,
        )


_HEADING = "## Conversion"
# Of finished models; a target is weights, configuration and tokenizer alone.
_LEFT_OUT = {
    "task.json": "how its task reads texts and names outputs",
    "modules.json": "how it makes vectors or scores of texts",
}
# A folder with one of these may be overwritten
_CHECKPOINT_FILES = ("config.json", "albert_config.json")
# Weights of any format; but a tokenizer may be called model.model.
_REPLACED = (
    *_CHECKPOINT_FILES,
    *("README.md", "model.[!m]*", "bert_model.ckpt*", "pytorch_model*"),
    *(PROVENANCE, SELECTED, CHECKSUMS, *_LEFT_OUT),  # of the weights before
)


@dataclass(frozen=True)
class ConversionReport(Result):
    """Report of a conversion, and of how far it was checked.

    Attributes:
        source: The path or name that was given.
        target: The folder written.
        kind: What the source was.
        model_class: The public class that loads the target.
        tensors: Number of tensors in the target, read again and equal to the source's bit for bit.
        missing: Parameters that the source did not hold, initialised afresh.
        unused: Names in the source that were left out.
        skipped: What is no weight, counted by kind: an optimizer's slots, counters, second copies
            of tied tensors.
        outputs_max_abs_diff: Largest difference of our outputs from transformers' on random ids;
            None if it could not be run.
        relative_errors: For BERT with shared layers: |change| / |original| of each tensor.
        notes: What else there is to say.
    """

    source: str
    target: str
    kind: str
    model_class: str
    tensors: int
    missing: list[str]
    unused: list[str]
    skipped: dict[str, int]
    outputs_max_abs_diff: float | None
    relative_errors: dict[str, float] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)

    @property
    def skipped_text(self) -> str | None:
        """Kinds of skipped variables with their counts, as text."""
        return ", ".join(f"{count} {kind}" for kind, count in self.skipped.items()) or None

    def sections(self) -> list[Section]:
        """Return the facts, what averaging layers cost, and the notes."""
        facts = {
            name: value
            for name, value in vars(self).items()
            if name not in ("notes", "relative_errors")
        }
        facts["skipped"] = self.skipped_text
        facts["tensors"] = f"{self.tensors}, verified: read again and equal bit for bit"
        if self.outputs_max_abs_diff is not None:
            facts["outputs_max_abs_diff"] = f"{self.outputs_max_abs_diff:.1g}"
        lines = [
            f"{name}: {share:.1%} of its norm is lost"
            for name, share in self.relative_errors.items()
        ]
        lines += [f"- {note}" for note in self.notes]
        return (
            [FactList(facts), Paragraph(join_lines(lines), form="code")]
            if lines
            else [FactList(facts)]
        )


@takes(ConvertOptions)
def convert(options: ConvertOptions) -> ConversionReport:
    """Convert a model and verify the result: written, read again, compared, and run where another program can run it.

    Returns:
        The report; the same is in the target's README.md.

    Raises:
        ConfigError: bad-value, unknown-name, wrong-model. DataError: not-found, bad-file.
        CheckpointError: exists, weights-mismatch, ambiguous, not-expressible, internal-error, and
            what reading the source raises.
    """
    target = Path(options.target)
    source_name = str(options.source)
    _check_target(Path(options.source), target, options.overwrite)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "head size")  # advice to a user who chooses it
        with open_checkpoint(options.source, options.config, options.lossy) as source:
            head = named_or_guessed_head(source, options.head, source_name)
            model_class = HEADS[head]
            source.config = with_labels(source.config, head, source.tensors)
            missing = fit_tensors_and_list_missing(
                source, model_class, options.allow_missing, source_name
            )
            check_target_can_express(source.tensors, source.config, options.to, options.lossy)
            drop_unknown_heads(source, options.to, options.lossy)
            with atomic_folder(target) as folder:
                source.config = save_tokenizer_with_target(source, folder)
                write_checkpoint(options.to, folder, source.tensors, source.config, model_class)
                model = read_written_checkpoint(folder, source.tensors, model_class)
                difference = None
                if model is not None:
                    difference, note = compare_outputs(model, folder)
                    source.notes.append(note)
                for file, meaning in _LEFT_OUT.items():
                    if (source.folder / file).is_file():
                        source.notes.append(
                            f"left out: `{file}`, {meaning}; the source itself needs no conversion"
                        )
                report = ConversionReport(
                    source=source_name,
                    target=str(target),
                    kind=source.kind,
                    model_class=model_class.__name__,
                    tensors=len(source.tensors),
                    missing=missing,
                    unused=source.unknown,
                    skipped=dict(source.skipped),
                    outputs_max_abs_diff=difference,
                    relative_errors=source.relative_errors,
                    notes=source.notes,
                )
                _write_card(folder, report, source.folder / "README.md")
                if provenance := read_provenance(source.folder):
                    write_json(folder / PROVENANCE, provenance)
                # What lies in the target and is no part of a checkpoint stays: notes, or the
                # tokenizer that the user put there.
                has_tokenizer = any(any(folder.glob(pattern)) for pattern in TOKENIZER_FILES)
                replaced = (*_REPLACED, *TOKENIZER_FILES) if has_tokenizer else _REPLACED
                for existing in target.iterdir() if target.is_dir() else ():
                    if (folder / existing.name).exists() or any(map(existing.match, replaced)):
                        continue
                    copy = shutil.copytree if existing.is_dir() else shutil.copy2
                    copy(existing, folder / existing.name)
    return report


def _write_card(folder: Path, report: ConversionReport, original: Path) -> None:
    """Write `README.md`: the source's own as it is, if it has one, and a section on the conversion."""
    if original.is_file():
        text = (
            original.read_text(encoding="utf-8", errors="replace")
            .split(f"\n{_HEADING}\n")[0]
            .rstrip()
        )
    else:
        text = f"---\nlibrary_name: transformers\ntags:\n- albert\n- albertkit\n---\n\n# {Path(report.target).name}"
    rows = {
        "from": f"{report.kind} {Path(report.source).name}",
        "class": report.model_class,
        "tensors": f"{report.tensors}, read again and equal bit for bit",
        "skipped": report.skipped_text,
    }
    sections: list[Section] = [
        Paragraph(f"Converted by albertkit {albertkit.__version__}.", "Conversion"),
        FactList(rows),
    ]
    why = "**Initialised afresh**, because the source does not hold them; they are random and must be trained:"
    for heading, tensors in ((why, report.missing), ("Left out of the source:", report.unused)):
        if tensors:
            lines = join_lines(f"- `{name}`" for name in tensors)
            sections.append(Paragraph(f"{heading}\n\n{lines}", form="markdown"))
    if report.notes:
        sections.append(
            Paragraph(join_lines(f"- {note}" for note in report.notes), form="markdown")
        )
    write_file(folder / "README.md", f"{text}\n\n{to_markdown(sections)}")


def _check_target(source: Path, target: Path, overwrite: bool) -> None:
    if not target.is_dir():
        check_new_folder(target)
    if source.exists():
        source_folder = source.resolve() if source.is_dir() else source.resolve().parent
        if target.resolve() == source_folder or target.resolve() in source_folder.parents:
            raise CheckpointError(
                "exists",
                f"`{target}` holds the source",
                "choose another folder to write",
            )
    if not target.exists() or not any(target.iterdir()):
        return
    if not any((target / name).is_file() for name in _CHECKPOINT_FILES):
        raise CheckpointError(
            "exists",
            f"`{target}` holds other files and no checkpoint",
            "choose another folder",
        )
    if not overwrite:
        raise CheckpointError(
            "exists",
            f"`{target}` holds a checkpoint",
            "choose another folder, or add --overwrite to replace it",
        )
