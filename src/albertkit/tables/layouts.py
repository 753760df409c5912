"""Layouts: what the files of a task are called, and which of their columns hold what."""

import glob
import math
import os
import re
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from albertkit.errors import DataError, closest_name, format_list, suggest_existing_path
from albertkit.tables.files import (
    check_no_broken_links,
    check_not_records,
    check_not_saved_dataset,
    find_inputs,
)
from albertkit.tables.records import SPLIT_NAMES, DataFile, DataFiles, Records, SplitRecords
from albertkit.tables.table import EXTENSIONS, PACKINGS, Quoting, Table

IDS = ("id", "index", "idx", "guid")  # `albertkit predict` writes id, GLUE's submissions have index
_SHARD = re.compile(r"-\d{5}-of-(\d{5})(-[0-9a-f]+)?(?=\.)")  # older ones end with a hash
_CLOSE = 0.6
# `lable` is 0.8 to `label`; `source2` in a file without labels is 0.67 to `score`
_CLOSE_LABEL = 0.75


@dataclass(frozen=True)
class TableForm:
    """Names the columns of one form in which a task's rows are found.

    Attributes:
        text: Column of the text, or of the first of a pair.
        pair: Of the second text; "" for none.
        label: Of the label; "" for none.
        ids: Names that the column of the ids may have. Without any of them the number of the row is
            the id.
        numbered: What the labels 0, 1, … stand for in this form. Empty: numbers are no labels, or
            names as any other.
        header: Of files without a header: names of the first columns.
    """

    text: str
    pair: str = ""
    label: str = ""
    ids: tuple[str, ...] = ()
    numbered: tuple[str, ...] = ()
    header: tuple[str, ...] = ()

    def required_columns(self, labelled: bool) -> list[str]:
        """Return the columns without which nothing can be read."""
        return [name for name in (self.text, self.pair, self.label if labelled else "") if name]


@dataclass(frozen=True)
class TaskLayout:
    """Describes the official layout of a task.

    Attributes:
        forms: Forms of its rows; the first that fits a file is taken.
        labels: Names of the labels in the order of their indices; none for a regression.
        metric: The score that counts.
        folder: Name of its folder in a collection such as GLUE.
        files: Split to the names, without extension, that its file may have, best first.
        submissions: Split to the name of the submission file, without extension; "" for all other
            splits.
        quoted: As `Table`.
        similar_from: Of a regression whose benchmark also scores pairs as similar or not: the label
            from which they are.
        empty_texts: Whether rows with an empty text are read, a pair without its second text as a
            single one; else they are bad rows. The published files have such rows.
        short_rows: Whether labelled rows that lack fields at their end are passed over, as the
            original does.
        label_names: What the hub calls the labels, in their order; they are read as `labels`.
    """

    forms: tuple[TableForm, ...]
    labels: tuple[str, ...] = ()
    metric: str = "accuracy"
    folder: str = ""
    files: Mapping[str, tuple[str, ...]] = field(default_factory=lambda: SPLIT_NAMES)
    submissions: Mapping[str, str] = field(default_factory=dict)
    quoted: Quoting = "commas"
    empty_texts: bool = False
    short_rows: bool = False
    label_names: tuple[str, ...] = ()
    similar_from: float | None = None

    @property
    def kind(self) -> str:
        """Kind of the task: classification or regression."""
        return "classification" if self.labels else "regression"


def files_by_split(
    data: DataFiles,
    find_files: Callable[[Path], dict[str, Path]],
    missing_description: str,
    hint: str,
) -> Mapping[str, DataFile]:
    """Return the files of a folder by split, those that `find_files` finds there, or rows by split; one file is "train"."""
    if isinstance(data, SplitRecords):
        return data
    if isinstance(data, Records):
        return {"train": data}
    if data.exists():
        check_not_records(data)
    if data.is_file() or (not data.exists() and glob.glob(str(data), recursive=True)):
        return {"train": data}
    if data.exists() and not data.is_dir():
        fact = f"`{data}` is not a plain file, and it must be read more than once"
        raise DataError("wrong-kind", fact, "put the rows into a file")
    if not data.is_dir():
        raise DataError(
            "not-found",
            f"no such file or folder: `{data}`",
            suggest_existing_path(data, "check the path"),
        )
    check_no_broken_links(data)
    files = find_files(data)
    if files:
        return files
    names = sorted(os.listdir(data))
    check_not_saved_dataset(data, names)
    raise DataError(
        "missing-file",
        f"`{data}` has {missing_description}; it holds {format_list(names, 10) or 'nothing'}",
        hint,
    )


# GLUE's download leaves the original's files of MRPC beside its own.
_BESIDE_GLUES = ("msr_paraphrase_train", "msr_paraphrase_test")


def find_split_files(
    data: DataFiles,
    names_by_split: Mapping[str, tuple[str, ...]],
    folder: str = "",
) -> Mapping[str, DataFile]:
    """Return the files of a folder by split: the one with a name of the split's that is no other split's.

    `data` is the folder, one above it that holds it under the name `folder`, or one file, which is
    then "train".
    """

    def find(data: Path) -> dict[str, Path]:
        by_split: dict[str, Path] = {}
        for split, names in names_by_split.items():
            candidates: list[Path] = []
            for name in names:
                parent, _, stem = name.rpartition("/")
                paths = _tables_by_name(Path(os.path.normpath(data / parent)))[stem]
                if not paths:
                    hub_names = SPLIT_NAMES.get(split, (split.replace("dev", "validation", 1),))
                    for hub_name in (stem, *hub_names):
                        paths = paths or find_shards(data, hub_name)
                if not (candidates and stem in _BESIDE_GLUES):
                    candidates += [
                        path for path in paths if path not in (*by_split.values(), *candidates)
                    ]
            if candidates:
                by_split[split] = check_one_file(data, split, candidates)
        return by_split

    if folder and isinstance(data, Path) and (data / folder).is_dir():
        data = data / folder
    looked = ", ".join(dict.fromkeys(name for names in names_by_split.values() for name in names))
    missing = f"none of the files {looked} (.tsv, .csv, .jsonl, .json, .parquet, also compressed)"
    return files_by_split(
        data, find, missing, "name the folder that holds them, or the file itself"
    )


def check_one_file(data: Path, split: str, candidates: Sequence[Path]) -> Path:
    """Return the file of a split, of which there must be one."""
    # A second one may hold other examples.
    if len(candidates) > 1:
        names = " and ".join(f"`{path.name}`" for path in candidates)
        raise DataError(
            "ambiguous",
            f"`{data}` has {names} for {split}",
            "keep one, or name the file itself",
        )
    return candidates[0]


def find_shards(data: Path, name: str) -> list[Path]:
    """Return the path of the one shard of a split, as the hub names them, or the glob of several; none if there is none."""
    for folder in (data, data / "data"):
        shards = [
            path
            for path in sorted(folder.glob(f"{glob.escape(name)}-*"))
            if _SHARD.search(path.name)
        ]
        if len(shards) == 1 and "-of-00001" in shards[0].name:
            return shards
        if shards:
            shard = _SHARD.search(shards[0].name)
            assert shard is not None
            total = int(shard[1])
            if len(shards) != total:
                fact = f"`{folder}` has {len(shards)} of the {total} shards of `{name}`"
                raise DataError("missing-file", fact, "copy or download the others, too")
            ending = shards[0].name[shard.end() :]
            if shard[2]:
                ending = f"-*{ending}"
            return [Path(glob.escape(str(folder)), f"{glob.escape(name)}-*-of-{total:05}{ending}")]
    return []


def check_is_one_split(file: DataFile) -> None:
    """Refuse a glob of files that are, by their names or those of their folders, of several splits."""
    if isinstance(file, Records) or not glob.has_magic(str(file)):
        return
    splits_of_files: list[set[str]] = []
    for input_file in find_inputs([file]):
        *_, folder, name = Path("", input_file.path).parts
        words = {folder.lower(), *re.split(r"[-_.]", name.lower())}
        splits_of_files.append({split for split, names in SPLIT_NAMES.items() if words & {*names}})
    # A folder of all of them may be called `test`.
    first, *further = splits_of_files
    splits = first.union(*further) - first.intersection(*further)
    if len(splits) > 1:
        fact = f"`{file}` names files of {' and '.join(sorted(splits))}"
        raise DataError("ambiguous", fact, "name those of train, and others with --dev")


def _tables_by_name(folder: Path) -> dict[str, list[Path]]:
    """Return the tables of a folder by name without extensions."""
    tables: dict[str, list[Path]] = defaultdict(list)
    for path in sorted(folder.iterdir()) if folder.is_dir() else ():
        parts = path.name.split(".")
        if parts[-1].lower() in PACKINGS:
            parts.pop()
        if len(parts) > 1 and parts[-1].lower() in EXTENSIONS and path.is_file():
            tables[".".join(parts[:-1])].append(path)
    return tables


def choose_form(
    table: Table,
    forms: Sequence[TableForm],
    labels: Sequence[str],
    labelled: bool,
    task_name: str,
    other_tasks: Mapping[str, Sequence[TableForm]] | None = None,
) -> TableForm:
    """Choose the form whose columns a just opened table has; a first line that is a row is declared one.

    A first line is only taken for a row if one of the task's labels is in it, or a number if there
    are none. The error names the task, and those of the others whose columns the file has.
    """
    for form in forms:
        if not form.header and set(form.required_columns(labelled)) <= set(table.columns):
            table.check(form.required_columns(labelled))
            return form
    for form in forms:
        label = dict(zip(form.header, table.columns, strict=False)).get(form.label, "")
        if not table.has_own_names and (label in labels or (not labels and is_number(label))):
            table.without_header(form.header, more_fields=True)
            return form
    with_header = [form for form in forms if not form.header]
    nearest = max(
        with_header, key=lambda form: len(set(form.required_columns(labelled)) & set(table.columns))
    )
    missing = [
        column for column in nearest.required_columns(labelled) if column not in table.columns
    ]
    names = ", ".join(f"`{column[:40]}`" for column in table.columns)
    only_label = missing == [nearest.label]
    close = closest_name(missing[0], table.columns, _CLOSE_LABEL if only_label else _CLOSE)
    if close:
        hint = f"did you mean `{close}`?"
    elif only_label:
        hint = (
            "is it a file without labels? It can be predicted, not trained on or scored; "
            "else name their column with --label-column"
        )
    else:
        columns = {
            "--text-column": nearest.text,
            "--pair-column": nearest.pair,
            "--label-column": labelled and nearest.label,
        }
        options = [f"{option} COLUMN" for option, needed in columns.items() if needed]
        hint = f"name its columns: {' '.join(options)}"
    alike = []
    for task, task_forms in (other_tasks or {}).items():
        labelled_forms = [form for form in task_forms if form.label and not form.header]
        if any(set(form.required_columns(True)) <= set(table.columns) for form in labelled_forms):
            alike.append(task)
    if alike:
        hint = f"these are the columns of {', '.join(alike[:3])}; or {hint}"
    raise DataError(
        "missing-column",
        f"{table.name}: no column `{missing[0]}` for {task_name}, only {names}",
        hint,
    )


def is_number(text: str) -> bool:
    """Return whether a text is a finite number."""
    # `1_0`, which Python reads as 10, is none.
    try:
        return "_" not in text and math.isfinite(float(text))
    except ValueError:
        return False


# --- the official layouts of GLUE and of Korean tables --------------------------------------------

# Columns, labels and their order: google-research/albert, `classifier_utils.py`. Beside GLUE's own
# files there are those of the original distributions, and the columns in which the Hugging Face hub
# has the same tasks. Only hub files number MNLI's labels, and in another order than that of their
# indices here.
_BINARY = ("0", "1")
_ENTAILED = ("entailment", "not_entailment")
_SENTIMENT = ("negative", "positive")
_INFERENCE = ("contradiction", "entailment", "neutral")
_HUB_INFERENCE = TableForm(
    "premise", "hypothesis", "label", ("idx",), numbered=("entailment", "neutral", "contradiction")
)
_HUB_PAIR = TableForm("sentence1", "sentence2", "label", ("idx",))

OFFICIAL: dict[str, TaskLayout] = {
    "cola": TaskLayout(
        (
            TableForm("sentence", "", "label", ("index", "idx")),
            TableForm("sentence", "", "label", header=("source", "label", "star", "sentence")),
        ),
        _BINARY,
        "matthews_correlation",
        "CoLA",
        {
            "train": ("train", "in_domain_train"),
            "dev": ("dev", "validation", "in_domain_dev"),
            "dev_out_of_domain": ("out_of_domain_dev",),
            "test": ("test",),
        },
        {"": "CoLA"},
        label_names=("unacceptable", "acceptable"),
    ),
    "sst2": TaskLayout(
        (TableForm("sentence", "", "label", ("index", "idx")),),
        _BINARY,
        "accuracy",
        "SST-2",
        SPLIT_NAMES,
        {"": "SST-2"},
        label_names=_SENTIMENT,
    ),
    "mrpc": TaskLayout(
        (TableForm("#1 String", "#2 String", "Quality", ("index",)), _HUB_PAIR),
        _BINARY,
        "accuracy_and_f1",
        "MRPC",
        {
            # the original distribution has no dev set; where there is one, its test set is GLUE's
            "train": ("train", "msr_paraphrase_train"),
            "dev": ("dev", "validation", "msr_paraphrase_test"),
            "test": ("test", "msr_paraphrase_test"),
        },
        {"": "MRPC"},
        label_names=("not_equivalent", "equivalent"),
    ),
    "stsb": TaskLayout(
        (
            TableForm("sentence1", "sentence2", "score", ("index",)),
            _HUB_PAIR,
            TableForm(
                "sentence1",
                "sentence2",
                "score",
                header=("genre", "file", "year", "number", "score", "sentence1", "sentence2"),
            ),
        ),
        (),
        "pearson_and_spearman",
        "STS-B",
        {
            "train": ("train", "original_sts-train", "sts-train"),
            "dev": ("dev", "validation", "original_sts-dev", "sts-dev"),
            "test": ("test", "original_sts-test", "sts-test"),
        },
        {"": "STS-B"},
    ),
    "qqp": TaskLayout(
        (
            TableForm("question1", "question2", "is_duplicate", ("id",)),
            TableForm("question1", "question2", "label", ("idx",)),
        ),
        _BINARY,
        "accuracy_and_f1",
        "QQP",
        SPLIT_NAMES,
        {"": "QQP"},
        empty_texts=True,  # some questions are, and the original reads the other alone
        short_rows=True,
        label_names=("not_duplicate", "duplicate"),
    ),
    "mnli": TaskLayout(
        (TableForm("sentence1", "sentence2", "gold_label", ("index",)), _HUB_INFERENCE),
        _INFERENCE,
        "accuracy",
        "MNLI",
        {
            "train": ("train",),
            "dev_matched": ("dev_matched", "validation_matched"),
            "dev_mismatched": ("dev_mismatched", "validation_mismatched"),
            "test_matched": ("test_matched",),
            "test_mismatched": ("test_mismatched",),
            "diagnostic": ("diagnostic", "../diagnostic/diagnostic"),
        },
        {
            "dev_matched": "MNLI-m",
            "test_matched": "MNLI-m",
            "dev_mismatched": "MNLI-mm",
            "test_mismatched": "MNLI-mm",
            "diagnostic": "AX",
            "": "MNLI",
        },
    ),
    "ax": TaskLayout(
        (
            TableForm("sentence1", "sentence2", "gold_label", ("index",)),
            TableForm("Premise", "Hypothesis", "Label"),
            _HUB_INFERENCE,
        ),
        _INFERENCE,
        "matthews_correlation",
        "diagnostic",
        {"dev": ("diagnostic-full",), "test": ("diagnostic", "test")},
        {"": "AX"},
    ),
    "qnli": TaskLayout(
        (TableForm("question", "sentence", "label", ("index", "idx"), numbered=_ENTAILED),),
        _ENTAILED,
        "accuracy",
        "QNLI",
        SPLIT_NAMES,
        {"": "QNLI"},
    ),
    "rte": TaskLayout(
        (TableForm("sentence1", "sentence2", "label", ("index", "idx"), numbered=_ENTAILED),),
        _ENTAILED,
        "accuracy",
        "RTE",
        SPLIT_NAMES,
        {"": "RTE"},
        quoted="look",  # there is an edition in quotes, with numbers for labels
    ),
    "wnli": TaskLayout(
        (TableForm("sentence1", "sentence2", "label", ("index", "idx")),),
        _BINARY,
        "accuracy",
        "WNLI",
        SPLIT_NAMES,
        {"": "WNLI"},
        label_names=("not_entailment", "entailment"),
    ),
    # --- Korean ---
    "nsmc": TaskLayout(
        (TableForm("document", "", "label", ("id",)),),
        _BINARY,
        "accuracy",
        "nsmc",
        {"train": ("train", "ratings_train"), "dev": ("dev",), "test": ("test", "ratings_test")},
        empty_texts=True,
        label_names=_SENTIMENT,  # eight of the 200,000 reviews
    ),
    "klue-nli": TaskLayout(
        (
            TableForm("premise", "hypothesis", "gold_label", ("guid",)),
            TableForm(
                "premise",
                "hypothesis",
                "label",
                ("guid",),
                numbered=("entailment", "neutral", "contradiction"),
            ),
        ),
        _INFERENCE,
        "accuracy",
        "klue-nli",
        {s: (f"klue-nli-v1.1_{s}", f"klue-nli-v1_{s}", *names) for s, names in SPLIT_NAMES.items()},
    ),
    "klue-sts": TaskLayout(
        (TableForm("sentence1", "sentence2", "labels.label", ("guid",)),),
        (),
        "pearson",
        "klue-sts",
        {s: (f"klue-sts-v1.1_{s}", f"klue-sts-v1_{s}", *names) for s, names in SPLIT_NAMES.items()},
        similar_from=3.0,  # KLUE's second metric, f1; the data hold the same decision as `binary-label`
    ),
    "kornli": TaskLayout(
        (TableForm("sentence1", "sentence2", "gold_label"), _HUB_INFERENCE),
        _INFERENCE,
        "accuracy",
        "KorNLI",
        {
            "train": ("train", "multinli.train.ko"),
            "train_snli": ("snli_1.0_train.ko",),
            "dev": ("dev", "xnli.dev.ko"),
            "test": ("test", "xnli.test.ko"),
        },
        empty_texts=True,  # translations
    ),
    "korsts": TaskLayout(
        (TableForm("sentence1", "sentence2", "score"),),
        (),
        "spearman",
        "KorSTS",
        {
            "train": ("sts-train", "train", "tune_train"),
            "dev": ("sts-dev", "dev", "tune_dev"),
            "test": ("sts-test", "test", "tune_test"),
        },
        empty_texts=True,
    ),
}
