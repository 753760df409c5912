"""Any ALBERT to a checkpoint folder, and back to google-research/albert's files; verified before it gets its name."""

import shutil
import warnings
from collections.abc import Collection
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from albertkit.checkpoints.card import write_conversion_card
from albertkit.checkpoints.classes import HEADS, choose_head, with_labels
from albertkit.checkpoints.fit import fit
from albertkit.checkpoints.sources import open_source
from albertkit.checkpoints.targets import WRITERS, carry_tokenizer, check_expressible, drop_unknown_heads
from albertkit.checkpoints.verify import compare_outputs, reread
from albertkit.errors import CheckpointError, ConfigError
from albertkit.files import atomic_folder
from albertkit.tokenizer.loading import TOKENIZER_FILES

_CHECKPOINT_FILES = ("config.json", "albert_config.json")  # a folder with one of these may be overwritten
# Weights of any format; but a tokenizer may be called model.model.
_REPLACED = (*_CHECKPOINT_FILES, "README.md", "model.[!m]*", "bert_model.ckpt*", "pytorch_model*")


@dataclass(frozen=True)
class ConversionReport:
    """What was converted, and how far it was checked.

    Attributes:
        source: The path or name that was given.
        target: The folder written.
        kind: What the source was.
        model_class: The public class that loads the target.
        verified: The target was read again and holds the source's tensors, bit for bit. Always true: a target that
            does not is not left behind.
        tensors: How many tensors the target holds.
        missing: Parameters that the source did not hold, initialised afresh.
        unused: Names in the source that were left out.
        skipped: What is no weight, counted by kind: an optimizer's slots, counters, second copies of tied tensors.
        max_abs_diff: Largest difference of a tensor read again from the source's: 0, as `verified` says.
        outputs_max_abs_diff: Largest difference of our outputs from transformers' on random ids; None if it could not be run.
        relative_errors: For BERT with shared layers: |change| / |original| of each tensor.
        notes: What else there is to say.
    """

    source: str
    target: str
    kind: str
    model_class: str
    verified: bool
    tensors: int
    missing: list[str]
    unused: list[str]
    skipped: dict[str, int]
    max_abs_diff: float
    outputs_max_abs_diff: float | None
    relative_errors: dict[str, float] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)

    def to_dict(self) -> dict[str, Any]:
        """For JSON."""
        return asdict(self)


def convert(
    source: str | Path,
    target: str | Path,
    *,
    to: str = "transformers",
    head: str | None = None,
    config: str | Path | None = None,
    allow_missing: Collection[str] = (),
    lossy: bool = False,
    overwrite: bool = False,
) -> ConversionReport:
    """Convert a model and verify the result: written, read again, compared, and run where somebody else can run it.

    Args:
        source: A checkpoint of TensorFlow 1 or 2 (prefix, file or folder), a SavedModel or TF-Hub module (folder or
            `.tar.gz`), a folder of transformers of any year, of an ALBERT or a BERT, or `org/name` of the hub.
        target: Folder to write. It appears whole or not at all.
        to: "transformers": a checkpoint folder; "tf1": `model.ckpt-best` and `albert_config.json`, as google-research/albert
            writes them; "tf2": `bert_model.ckpt`, as the Model Garden's converter writes it; "npz": `model.npz` with the names
            of "tf1".
        head: A key of `albertkit.checkpoints.classes.HEADS`, where the weights leave a doubt. Default: what they are for.
        config: Configuration file, if there is none beside the weights. For a BERT: the ALBERT to make of it.
        allow_missing: Names, or first parts of names, of parameters that the source may lack, which are then initialised
            afresh, and of variables in the source that may be left out.
        lossy: Go on where the result computes something else than the source.
        overwrite: Replace a checkpoint that lies in `target`; files that are no part of one stay.

    Returns:
        The report; the same is in the target's README.md.

    Raises:
        ConfigError: bad-argument, bad-config, wrong-model. DataError: not-found, broken-json.
        CheckpointError: folder-not-empty, same-folder, weights-mismatch, ambiguous-head, not-expressible, verification-failed,
        and what `open_source` raises.
    """
    target = Path(target)
    if to not in WRITERS:
        raise ConfigError("bad-argument", f"there is no target format `{to}`", f"known: {', '.join(WRITERS)}")
    _check_target(Path(source), target, overwrite)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "head size")  # advice to somebody who chooses it
        return _convert(source, target, to, head, config, allow_missing, lossy)


def _convert(
    source: str | Path,
    target: Path,
    to: str,
    head: str | None,
    config: str | Path | None,
    allow_missing: Collection[str],
    lossy: bool,
) -> ConversionReport:
    with open_source(source, config, lossy) as found:
        chosen = choose_head(found, head, str(source))
        model_class = HEADS[chosen]
        found.config = with_labels(found.config, chosen, found.tensors)
        missing = fit(found, model_class, allow_missing, str(source))
        check_expressible(found.tensors, found.config, to, lossy)
        drop_unknown_heads(found, to, lossy)
        with atomic_folder(target) as folder:
            found.config = carry_tokenizer(found, folder)
            WRITERS[to](folder, found.tensors, found.config, model_class)
            model, outputs = reread(folder, found.tensors, model_class), None
            if model is not None:
                outputs, said = compare_outputs(model, folder)
                found.notes.append(said)
            report = ConversionReport(
                source=str(source), target=str(target), kind=found.kind, model_class=model_class.__name__,
                verified=True, tensors=len(found.tensors), missing=missing, unused=found.unknown,
                skipped=dict(found.skipped), max_abs_diff=0.0, outputs_max_abs_diff=outputs,
                relative_errors=found.relative_errors, notes=found.notes,
            )  # fmt: skip
            write_conversion_card(folder, target.name, report.to_dict(), found.folder / "README.md")
            _keep_others(target, folder)
    return report


def _check_target(source: Path, target: Path, overwrite: bool) -> None:
    if target.exists() and not target.is_dir():
        raise CheckpointError("folder-not-empty", f"`{target}` is a file", "give the name of a folder to write")
    if source.exists():
        inside = source.resolve() if source.is_dir() else source.resolve().parent
        if target.resolve() == inside or target.resolve() in inside.parents:
            raise CheckpointError("same-folder", f"`{target}` holds the source", "choose another folder to write")
    if not target.exists() or not any(target.iterdir()):
        return
    if not any((target / name).is_file() for name in _CHECKPOINT_FILES):
        raise CheckpointError(
            "folder-not-empty", f"`{target}` holds other files and no checkpoint", "choose another folder"
        )
    if not overwrite:
        raise CheckpointError(
            "folder-not-empty",
            f"`{target}` holds a checkpoint",
            "choose another folder, or add --overwrite to replace it",
        )


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
