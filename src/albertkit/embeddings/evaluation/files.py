"""Files that sentence embeddings are measured on: pairs of texts, with human scores or without."""

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from albertkit.data.bad_rows import BadRows
from albertkit.data.columns import Columns
from albertkit.data.layouts import choose_form
from albertkit.data.tables import Table
from albertkit.embeddings.data import pair_task, read_texts
from albertkit.errors import ConfigError, DataError, near_miss
from albertkit.tasks.data import read_split
from albertkit.tasks.registry import find_task
from albertkit.tasks.texts import OFFICIAL

LAYOUTS = {"stsb": "genre", "korsts": "genre", "klue-sts": "source"}  # and the column that says where a pair is from
KINDS = (*LAYOUTS, "scores", "pairs")


@dataclass(frozen=True, eq=False)
class PairFile:
    """Holds E pairs of texts."""

    kind: str  # one of `KINDS`
    path: str
    texts: list[str]
    pairs: list[str]
    scores: np.ndarray | None  # fp64 [E], larger for pairs that are more alike; None for texts that mean the same
    groups: list[str] | None  # source of each pair, if the file names it
    left_out: int  # rows that could not be used


def read_pairs(kind: str, file: str | Path, columns: Columns, bad_rows: BadRows) -> PairFile:
    """Read a file of one of `KINDS`: an official layout with human scores, or a table with a column of scores or of texts that
    mean the same. Pairs without named columns are the two columns of a table without a header.
    """
    if kind not in KINDS:
        raise ConfigError("unknown-name", f"there is no kind of data `{kind}`", near_miss(kind, KINDS))
    before = len(bad_rows.found)
    if kind == "pairs":
        rows = read_texts(Path(file), replace(columns, label=None, id=None), 2, bad_rows)
        texts, pairs = [row[0] for row in rows], [row[1] for row in rows]
        return PairFile(kind, str(file), texts, pairs, None, None, len(bad_rows.found) - before)
    column = _group_column(kind, file) if kind in LAYOUTS else ""
    task = pair_task(kind, Columns() if kind in LAYOUTS else columns)
    if column:
        task = task.with_changes(id_column=column)  # ids of training data may repeat, so these can say the group
    examples = read_split(task, Path(file), "train", bad_rows)
    return PairFile(
        kind,
        str(file),
        [example.text for example in examples],
        [example.pair for example in examples],
        np.array([example.label for example in examples], np.float64),
        [example.id for example in examples] if column else None,
        len(bad_rows.found) - before,
    )


def _group_column(kind: str, file: str | Path) -> str:
    """Return the column that says where a pair is from; "" where an edition of the file has none."""
    layout = OFFICIAL[kind]
    with Table(file, quoted=layout.quoted) as table:
        try:
            choose_form(table, layout.forms, layout.labels, True, kind)
        except DataError as error:
            if like := [other for other in LAYOUTS if other != kind and _fits(table, other)]:
                raise DataError(error.slug, error.message, f"this looks like {like[0]}: {like[0]}={file}") from None
            raise
        return LAYOUTS[kind] if LAYOUTS[kind] in table.columns else ""


def _fits(table: Table, kind: str) -> bool:
    """Return whether a table has the columns of another official kind by name."""
    forms = [form for form in OFFICIAL[kind].forms if not form.header]
    return any(set(form.wanted(True)) <= set(table.columns) for form in forms)


def models_and_files(arguments: Sequence[str]) -> tuple[list[str], list[str]]:
    """Tell models from `KIND=PATH` arguments."""
    models: list[str] = []
    files: list[str] = []
    for argument in arguments:
        named = "=" in argument and not Path(argument).is_dir()  # runs/lr=1e-4 is a folder
        (files if named else models).append(argument)
    if unnamed := next((model for model in models if Path(model).is_file()), None):
        named_files([unnamed])
    if not models:
        raise ConfigError("bad-value", "no model is named", "albertkit embed evaluate MODEL korsts=sts-test.tsv")
    if not files:
        raise ConfigError(
            "bad-value",
            f"nothing to measure `{models[0]}` on",
            f"name files or folders as KIND=PATH, for example korsts=FOLDER; kinds: {', '.join(KINDS)}",
        )
    return models, files


def named_files(arguments: Sequence[str]) -> dict[str, tuple[str, str]]:
    """Read `KIND=PATH` arguments, each under a name: kind and file name, or the whole path where two would be the same.

    Of a folder in the layout of an official kind the test file is taken, the dev file where the test file has no scores.
    """
    found = []
    for argument in arguments:
        kind, given, path = argument.partition("=")
        if not given or not path:
            raise ConfigError(
                "bad-value",
                f"`{argument}` is not KIND=PATH",
                f"say what it is: korsts={argument}; kinds: {', '.join(KINDS)}",
            )
        if kind in LAYOUTS and Path(path).is_dir():
            path = str(_file_of_folder(kind, Path(path)))
        found.append((kind, path))
    short = [f"{kind} {Path(path).name}" for kind, path in found]
    return {
        name if short.count(name) == 1 else f"{kind} {path}": (kind, path)
        for name, (kind, path) in zip(short, found, strict=True)
    }


def _file_of_folder(kind: str, folder: Path) -> Path:
    """Return the file of an official folder that is measured on: the test file if it has scores, else the dev file."""
    task = find_task(kind)
    files = task.files(folder)
    for split in ("test", "dev"):
        if split in files:
            with suppress(DataError), Table(files[split], quoted=OFFICIAL[kind].quoted) as table:
                choose_form(table, OFFICIAL[kind].forms, OFFICIAL[kind].labels, True, kind)
                return files[split]
    raise DataError(
        "too-little-data",
        f"`{folder}` has no test or dev file with scores (found: {', '.join(sorted(files)) or 'none'})",
        f"name the file itself: {kind}=FILE",
    )
