"""Any ALBERT to a checkpoint folder, and back to google-research/albert's files; verified before it gets its name."""

import shutil
import warnings
from dataclasses import dataclass, field
from pathlib import Path

import albertkit
from albertkit.conversion.classes import HEADS, choose_head, fit, with_labels
from albertkit.conversion.options import ConvertOptions
from albertkit.conversion.sources import open_source
from albertkit.conversion.targets import carry_tokenizer, check_expressible, drop_unknown_heads, write
from albertkit.conversion.verify import compare_outputs, reread
from albertkit.errors import CheckpointError
from albertkit.files import atomic_file, atomic_folder, check_new_file
from albertkit.frame.command import takes
from albertkit.frame.rendering import to_markdown
from albertkit.frame.result import Result
from albertkit.frame.section import Facts, Section, Text
from albertkit.tokenizer.folder_files import TOKENIZER_FILES

_HEADING = "## Conversion"
_CHECKPOINT_FILES = ("config.json", "albert_config.json")  # a folder with one of these may be overwritten
# Weights of any format; but a tokenizer may be called model.model.
_REPLACED = (*_CHECKPOINT_FILES, "README.md", "model.[!m]*", "bert_model.ckpt*", "pytorch_model*")


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
        skipped: What is no weight, counted by kind: an optimizer's slots, counters, second copies of tied tensors.
        outputs_max_abs_diff: Largest difference of our outputs from transformers' on random ids; None if it could not be run.
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
        facts = {name: value for name, value in vars(self).items() if name not in ("notes", "relative_errors")}
        facts["skipped"] = self.skipped_text
        facts["tensors"] = f"{self.tensors}, verified: read again and equal bit for bit"
        if self.outputs_max_abs_diff is not None:
            facts["outputs_max_abs_diff"] = f"{self.outputs_max_abs_diff:.1g}"
        lines = [f"{name}: {share:.1%} of its norm is lost" for name, share in self.relative_errors.items()]
        lines += [f"- {note}" for note in self.notes]
        return [Facts(facts), Text("\n".join(lines))] if lines else [Facts(facts)]


@takes(ConvertOptions)
def convert(options: ConvertOptions) -> ConversionReport:
    """Convert a model and verify the result: written, read again, compared, and run where another program can run it.

    Returns:
        The report; the same is in the target's README.md.

    Raises:
        ConfigError: bad-value, unknown-name, wrong-model. DataError: not-found, bad-file.
        CheckpointError: exists, weights-mismatch, ambiguous, not-expressible, internal-error, and what reading
            the source raises.
    """
    target = Path(options.target)
    _check_target(Path(options.source), target, options.overwrite)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "head size")  # advice to a user who chooses it
        return _convert(str(options.source), target, options)


def _convert(source: str, target: Path, options: ConvertOptions) -> ConversionReport:
    to = options.to
    with open_source(options.source, options.config, options.lossy) as found:
        chosen = choose_head(found, options.head, source)
        model_class = HEADS[chosen]
        found.config = with_labels(found.config, chosen, found.tensors)
        missing = fit(found, model_class, options.allow_missing, source)
        check_expressible(found.tensors, found.config, to, options.lossy)
        drop_unknown_heads(found, to, options.lossy)
        with atomic_folder(target) as folder:
            found.config = carry_tokenizer(found, folder)
            write(to, folder, found.tensors, found.config, model_class)
            model, outputs = reread(folder, found.tensors, model_class), None
            if model is not None:
                outputs, said = compare_outputs(model, folder)
                found.notes.append(said)
            report = ConversionReport(
                source=source,
                target=str(target),
                kind=found.kind,
                model_class=model_class.__name__,
                tensors=len(found.tensors),
                missing=missing,
                unused=found.unknown,
                skipped=dict(found.skipped),
                outputs_max_abs_diff=outputs,
                relative_errors=found.relative_errors,
                notes=found.notes,
            )
            _write_card(folder, report, found.folder / "README.md")
            _keep_others(target, folder)
    return report


def _write_card(folder: Path, report: ConversionReport, original: Path) -> None:
    """Write `README.md`: the source's own as it is, if it has one, and a section on the conversion."""
    if original.is_file():
        text = original.read_text(encoding="utf-8", errors="replace").split(f"\n{_HEADING}\n")[0].rstrip()
    else:
        text = f"---\nlibrary_name: transformers\ntags:\n- albert\n- albertkit\n---\n\n# {Path(report.target).name}"
    rows = {
        "from": f"{report.kind} {Path(report.source).name}",
        "class": report.model_class,
        "tensors": f"{report.tensors}, read again and equal bit for bit",
        "skipped": report.skipped_text,
    }
    sections: list[Section] = [Text(f"Converted by albertkit {albertkit.__version__}.", "Conversion"), Facts(rows)]
    why = "**Initialised afresh**, because the source does not hold them; they are random and must be trained:"
    for heading, names in ((why, report.missing), ("Left out of the source:", report.unused)):
        if names:
            listed = "\n".join(f"- `{name}`" for name in names)
            sections.append(Text(f"{heading}\n\n{listed}", form="markdown"))
    if report.notes:
        sections.append(Text("\n".join(f"- {note}" for note in report.notes), form="markdown"))
    with atomic_file(folder / "README.md", "w") as stream:
        stream.write(f"{text}\n\n{to_markdown(sections)}")


def _check_target(source: Path, target: Path, overwrite: bool) -> None:
    if not target.is_dir():
        check_new_file(target)
    if source.exists():
        inside = source.resolve() if source.is_dir() else source.resolve().parent
        if target.resolve() == inside or target.resolve() in inside.parents:
            raise CheckpointError("exists", f"`{target}` holds the source", "choose another folder to write")
    if not target.exists() or not any(target.iterdir()):
        return
    if not any((target / name).is_file() for name in _CHECKPOINT_FILES):
        raise CheckpointError("exists", f"`{target}` holds other files and no checkpoint", "choose another folder")
    if not overwrite:
        fact = f"`{target}` holds a checkpoint"
        raise CheckpointError("exists", fact, "choose another folder, or add --overwrite to replace it")


def _keep_others(target: Path, folder: Path) -> None:
    """Take over what lies in the target and is no part of a checkpoint: notes, or the tokenizer that the user put there."""
    carried = any(file for pattern in TOKENIZER_FILES for file in folder.glob(pattern))
    replaced = (*_REPLACED, *TOKENIZER_FILES) if carried else _REPLACED
    for there in target.iterdir() if target.is_dir() else ():
        if (folder / there.name).exists() or any(map(there.match, replaced)):
            continue
        if there.is_dir():
            shutil.copytree(there, folder / there.name)
        else:
            shutil.copy2(there, folder / there.name)
