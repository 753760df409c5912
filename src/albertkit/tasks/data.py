"""The examples of a fine-tuning: training, dev, and those that a decision is calibrated on."""

import hashlib
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, fields
from functools import lru_cache
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np

from albertkit.batches.features import Features
from albertkit.encodings import normalize
from albertkit.errors import AlbertKitError, ConfigError, DataError, format_list
from albertkit.tables.bad_rows import BadRows, pluralize
from albertkit.tables.layouts import check_is_one_split
from albertkit.tables.records import (
    Data,
    DataFile,
    DataFiles,
    Records,
    as_files,
    file_name,
    quoted_name,
)
from albertkit.tasks.settings import FinetuneSettings
from albertkit.tasks.task import Task
from albertkit.tokenizer import AlbertTokenizer

Key = tuple[str, ...]

_FEW = 10  # examples, each of which may well have a label of its own
# Which examples are held out does not change with the seed of a run: runs must be compared on the
# same
_SPLIT_SEED = 0


@dataclass(frozen=True)
class Overlap:
    """Counts of the examples of a split that a training has seen, or of which it has seen a part.

    Attributes:
        same: In train, too, the texts of a pair in either order; upper case and white space make no
            difference.
        sharing: Not in train, but with a text of a training example, punctuation apart: one of a
            pair, the context of a question.
    """

    same: int = 0
    sharing: int = 0

    def lines(self, split: str, num_examples: int) -> Iterator[str]:
        """Yield a sentence for each count that is not 0."""
        of = f"of {num_examples:,} {split} examples"
        if self.same:
            yield f"{self.same:,} {of} are in train, too: they say nothing about new texts"
        if self.sharing:
            yield f"{self.sharing:,} {of} share a text with a training example"


def texts_of_example(task_kind: str, example: Any) -> tuple[str, ...]:
    """Return the texts that make an example what it is; the first is what is read, of a multiple choice the others are short."""
    if task_kind == "answers":
        return example.question, example.context
    if task_kind == "choice":
        return f"{example.context} {example.question}", *example.choices
    if task_kind == "texts":  # a row of a training of embeddings
        return tuple(example)
    texts = getattr(example, "text", None), getattr(example, "pair", None)
    return tuple(text for text in texts if text is not None)


def _identifying_texts(task_kind: str, example: Any) -> tuple[str, ...]:
    """Return the texts of which each would give an example away to a model that was trained on another one with it."""
    if task_kind == "answers":
        return (example.context,)
    return (
        (example.context or example.question,)
        if task_kind == "choice"
        else texts_of_example(task_kind, example)
    )


@lru_cache(maxsize=1 << 16)  # a text may stand in many examples
def plain_text(text: str) -> str:
    """Return a text as texts are compared: compatibility forms, upper case and white space make no difference."""
    return " ".join(normalize("NFKC", text).casefold().split())


@lru_cache(maxsize=1 << 16)
def _words_without_punctuation(text: str) -> str:
    """Return a plain text without punctuation, if it has anything else."""
    plain = plain_text(text)
    return " ".join(re.findall(r"\w+", plain)) or plain


_PLACEHOLDERS = ("nan", "none", "null", "n/a", "na", "<na>", "#n/a", "-", "--", "?", "_")


def placeholder_label_lines(task_kind: str, label_counts: Mapping[str, float]) -> Iterator[str]:
    """Yield a line on labels that people and programs write where there is none, such as SNLI's `-`; beside `+` it is one."""
    placeholders: tuple[str, ...] = () if "+" in label_counts else _PLACEHOLDERS
    if "0" in label_counts:  # the hub's test sets have -1; beside 1 alone it is one
        placeholders += ("-1",)
    missing = {name: count for name, count in label_counts.items() if name.lower() in placeholders}
    if missing and task_kind in ("classification", "multilabel"):
        names = format_list([f"`{name}`" for name in missing], 5)
        examples = pluralize(int(sum(missing.values())), "training example")
        yield f"labels {names}: the label of {examples}; or is it missing there?"


def unknown_token_share(features: Features, tokenizer: AlbertTokenizer) -> float:
    """Return the share of the tokens that the tokenizer does not know."""
    return features.num_unknown(tokenizer.unk_id) / len(features.input_ids)


# Of the tokens: Korean has 31 % under a tokenizer of English
UNKNOWN_SHARE = 0.02


def unknown_token_lines(source: str, share: float) -> Iterator[str]:
    """Yield a line on texts of which the tokenizer does not know too large a share."""
    if share > UNKNOWN_SHARE:
        yield f"{share:.1%} of the tokens of {source} are unknown: is the tokenizer of another language?"


def measure_overlap(task_kind: str, train: Sequence[Any], split_examples: Sequence[Any]) -> Overlap:
    """Count what another split has in common with the training examples."""
    # 87,599 questions of SQuAD and 10,570 of dev take 1.4 s of a core.
    train_keys = set[Key]()
    train_texts = set[str]()
    for example in train:
        train_keys.add(_unordered_key(map(plain_text, texts_of_example(task_kind, example))))
        train_texts.update(map(_words_without_punctuation, _identifying_texts(task_kind, example)))
    num_same = num_sharing = 0
    for example in split_examples:
        texts = texts_of_example(task_kind, example)
        if texts and _unordered_key(map(plain_text, texts)) in train_keys:
            num_same += 1
        elif not train_texts.isdisjoint(
            filter(None, map(_words_without_punctuation, _identifying_texts(task_kind, example)))
        ):
            num_sharing += 1
    plain_text.cache_clear()
    _words_without_punctuation.cache_clear()
    return Overlap(num_same, num_sharing)


def _unordered_key(texts: Iterable[str]) -> Key:
    return tuple(sorted(texts))


def held_out_display_name(file: DataFile) -> str:
    """Return what results call the dev examples that were held out of a training file."""
    return f"{file_name(file)}, held out"


def draw_held_out(
    task_kind: str,
    examples: Sequence[Any],
    labels: Sequence[tuple[str, ...]],
    share: float,
    data: DataFiles,
) -> set[int]:
    """Return numbers of about a share of the examples, at random, that have nothing in common with the others.

    Of questions whole articles are drawn, of pairs all that share a text: a model could else find
    the label of a pair as the one that its premise was not seen with (counting tokens was right
    12.7 % of the time on a third of KLUE-NLI drawn pair by pair). Where the examples hang together
    too much for that, those with the same first text are drawn together, or those that are equal;
    the last resort is to draw them one by one.
    """
    count = round(share * len(examples))
    held_out: set[int] = set()
    for keys in _key_levels(task_kind, examples):
        held_out = _draw_groups(_connected_groups(keys), labels, count)
        # Less than half or more than twice the share, and the next level is drawn. By rows, of 60
        # texts five times each all 30 of dev were in train.
        if count <= 2 * len(held_out) <= 4 * count:
            break
    is_possible = 0 < count < len(examples)
    if is_possible and held_out:
        return held_out
    if len(set(labels)) == len(examples) > _FEW and all(
        len(example_labels) == 1 for example_labels in labels
    ):
        raise DataError(
            "too-little-data",
            f"every one of the {len(examples):,} training examples in {quoted_name(data)} has a label of its own",
            "is it the right column? Name that of the label with --label-column",
        )
    reason = (
        "; every label, or every question's text, would be missing from training"
        if is_possible
        else ""
    )
    raise DataError(
        "too-little-data",
        f"{quoted_name(data)} has no dev file, and {share:.0%} of {len(examples):,} training examples are {count}{reason}",
        "name a dev file with --dev, or "
        + ("add examples" if count else "a larger share with --held-out"),
    )


def _key_levels(task_kind: str, examples: Sequence[Any]) -> Iterator[list[set[Key]]]:
    """Yield sets of keys, one an example, the strictest first; examples with a key in common are drawn together."""
    parts = [
        [_words_without_punctuation(text) for text in _identifying_texts(task_kind, example)]
        for example in examples
    ]
    whole_keys: list[set[Key]] = []
    for example in examples:
        texts = texts_of_example(task_kind, example)
        whole_keys.append(
            {("whole", *_unordered_key(map(_words_without_punctuation, texts)))} if texts else set()
        )
    yield [keys_of_texts_and_article(task_kind, example) for example in examples]
    yield [
        {(text,) for text in part[:1]} | whole_key
        for part, whole_key in zip(parts, whole_keys, strict=True)
    ]
    yield whole_keys
    yield [set() for _ in examples]


def keys_of_texts_and_article(task_kind: str, example: Any) -> set[Key]:
    """Return keys of an example, of which none may stand in another split: its texts, punctuation apart, and its article."""
    keys: set[Key] = {
        (text,)
        for text in map(_words_without_punctuation, _identifying_texts(task_kind, example))
        if text
    }
    if article := getattr(example, "article", ""):
        keys.add(("article", article))
    return keys


def _connected_groups(keys: Sequence[set[Key]]) -> list[list[int]]:
    """Return the numbers of the examples that hang together by common keys, in the order of the first of each group."""
    from scipy.sparse import coo_array
    from scipy.sparse.csgraph import connected_components

    numbers: dict[Key, int] = {}
    edges: list[tuple[int, int]] = []
    for example, example_keys in enumerate(keys):
        edges += [
            (example, len(keys) + numbers.setdefault(key, len(numbers))) for key in example_keys
        ]
    size = len(keys) + len(numbers)
    ends = np.array(edges, np.int64).reshape(-1, 2).T
    graph = coo_array((np.ones(len(edges), bool), (ends[0], ends[1])), shape=(size, size))
    groups: dict[int, list[int]] = {}
    for example, component in enumerate(
        connected_components(graph, directed=False)[1][: len(keys)].tolist()
    ):
        groups.setdefault(component, []).append(example)
    return list(groups.values())


def _draw_groups(
    groups: Sequence[Sequence[int]],
    labels: Sequence[tuple[str, ...]],
    count: int,
) -> set[int]:
    """Return the examples of random groups; each class has its share, and of every label an example stays."""
    order = np.random.default_rng(_SPLIT_SEED).permutation(len(groups)).tolist()
    remaining = Counter(label for example_labels in labels for label in example_labels)
    if all(len(example_labels) == 1 for example_labels in labels):
        # The r-th of the n examples of a class stands at (r + 1/2) / n: whatever is cut off in
        # front has its share of all.
        sizes = Counter[str]()
        ranks = Counter[str]()
        positions: dict[int, float] = {}
        for group in groups:
            sizes[labels[group[0]][0]] += len(group)
        for number in order:
            label = labels[groups[number][0]][0]
            positions[number] = (ranks[label] + len(groups[number]) / 2) / sizes[label]
            ranks[label] += len(groups[number])
        order.sort(key=lambda number: positions[number])
    held_out: set[int] = set()
    for number in sorted(order, key=lambda number: len(groups[number]) > count):  # large ones last
        if len(held_out) >= count:
            break
        group_counts = Counter(label for example in groups[number] for label in labels[example])
        some_remain = all(remaining[label] > group_counts[label] for label in group_counts)
        if len(groups[number]) < len(labels) - len(held_out) and some_remain:
            remaining.subtract(group_counts)
            held_out.update(groups[number])
    return held_out


@dataclass(frozen=True)
class TaskData:
    """Examples of a fine-tuning: train, dev and calibration."""

    task: Task  # fitted to the training examples
    train: list[Any]  # examples to train on
    dev: list[Any]  # examples that choose the best model
    # examples kept from training for a decision such as the threshold for "no answer"; mostly none
    calibration: list[Any]
    notes: list[str]  # a line for each thing that the user should know
    dev_file: str = "dev"  # name of the dev file, or what the dev examples are a share of
    # Examples without labels, of which a teacher's outputs are learned
    unlabelled: list[Any] = field(default_factory=list)


def find_split_file(task: Task, data: DataFiles, split: str) -> tuple[DataFile, str]:
    """Return the file to read, and which split it is."""
    if isinstance(data, Records) or (isinstance(data, Path) and not data.is_dir()):
        return data, split
    files = task.files(data)
    for name in (split, *(name for name in files if name.startswith(split))):
        if name in files:
            return files[name], name
    raise DataError(
        "missing-file",
        f"{quoted_name(data)} has no `{split}` of {task.name} (there: {', '.join(files)})",
        "name one of them with --split, or the file itself",
    )


def read_split(
    task: Task,
    file: DataFile,
    split: str,
    bad_rows: BadRows,
    labelled: bool = True,
) -> list[Any]:
    """Read all examples of a file."""
    before = len(bad_rows.rows)
    examples = list(task.examples(file, split=split, labelled=labelled, bad_rows=bad_rows))
    if examples:
        return examples
    if new_bad_rows := bad_rows.rows[before:]:
        raise DataError(
            "too-little-data",
            f"{quoted_name(file)} holds no example that can be used; {new_bad_rows[0].where}: {new_bad_rows[0].reason}",
            new_bad_rows[0].hint or f"correct the file; is it one of `{task.name}`?",
        )
    raise DataError(
        "too-little-data",
        f"{quoted_name(file)} has nothing to read but, perhaps, a header",
        "name a file with examples",
    )


def training_file(files: Mapping[str, DataFile], data: DataFiles) -> DataFile:
    """Return the file to train on of the data, by split."""
    if "train" in files:
        return files["train"]
    raise DataError(
        "missing-file",
        f"there is no training file in {quoted_name(data)} (found: {', '.join(sorted(files)) or 'nothing'})",
        "name the training file itself as DATA, and another with --dev",
    )


def dev_split(files: Mapping[str, DataFile]) -> str | None:
    """Return the first split that training is stopped by: "dev", or such as "dev_matched"."""
    return next((split for split in files if split.startswith("dev")), None)


def read_data(
    task: Task,
    data: DataFiles,
    dev: DataFiles | None,
    held_out: float,
    calibrate: bool,
    bad_rows: BadRows,
    unlabelled: DataFiles | None = None,
) -> TaskData:
    """Read the examples of a training."""
    files = task.files(data)
    train_file = training_file(files, data)
    check_is_one_split(train_file)
    train = read_split(task, train_file, "train", bad_rows)
    notes = []
    split = dev_split(files)
    if dev is not None:
        dev_file, _ = find_split_file(task, dev, "dev")
        dev_examples = read_split(task, dev_file, "dev", bad_rows)
        dev_name = file_name(dev_file)
        dev_source = f"`{dev_name if isinstance(dev_file, Records) else dev_file}`"
    elif split:
        dev_examples = read_split(task, files[split], split, bad_rows)
        dev_name = file_name(files[split])
        dev_source = f"`{dev_name}`"
    else:
        with _errors_name_left_out_rows(bad_rows):
            train, dev_examples = hold_out_share(task.kind, train, held_out, data)
        dev_source = f"{held_out:.0%} of the training examples, held out: there is no dev file"
        dev_name = held_out_display_name(train_file)
    notes.append(
        f"data: {pluralize(len(train), 'training example')}; dev: {len(dev_examples):,}, {dev_source}"
    )
    notes += measure_overlap(task.kind, train, dev_examples).lines("dev", len(dev_examples))
    calibration: list[Any] = []
    with _errors_name_left_out_rows(bad_rows):
        task = task.fitted(train)
    if calibrate:
        train, calibration = task.calibration_split(train)
        if calibration:
            notes.append(f"kept from training to calibrate on: {len(calibration):,} examples")
    unlabelled_examples: list[Any] = []
    if unlabelled is not None:
        other_files = {name: file for name, file in files.items() if not name.startswith("train")}
        unlabelled_examples = _read_unlabelled(
            task,
            unlabelled,
            other_files,
            [*dev_examples, *calibration],
            bad_rows,
        )
    notes += bad_rows.report_lines()
    if task.kind in ("classification", "multilabel"):
        labels = (
            example.label if isinstance(example.label, tuple) else (example.label,)
            for example in train
        )
        notes += placeholder_label_lines(task.kind, Counter(chain.from_iterable(labels)))
    return TaskData(task, train, dev_examples, calibration, notes, dev_name, unlabelled_examples)


def _read_unlabelled(
    task: Task,
    unlabelled: DataFiles,
    other_files: Mapping[str, DataFile],
    held_out: Sequence[Any],
    bad_rows: BadRows,
) -> list[Any]:
    """Return the examples of a file without labels but for those that have a text in common with dev or test."""
    file, _ = find_split_file(task, unlabelled, "train")
    try:
        examples = read_split(task, file, "train", bad_rows, labelled=False)
    except DataError as error:
        if error.slug != "missing-column":
            raise
        # The options that name columns are for all files
        hint = "give its columns the names that they have in DATA"
        raise DataError(error.slug, error.message, hint) from None
    compared = list(held_out)
    # Rows of other splits are compared only, and may be broken.
    unreadable = BadRows("skip")
    for split, split_file in other_files.items():
        compared += task.examples(split_file, split=split, labelled=False, bad_rows=unreadable)
    held_out_keys = {
        key for example in compared for key in keys_of_texts_and_article(task.kind, example)
    }
    remaining = [
        example
        for example in examples
        if held_out_keys.isdisjoint(keys_of_texts_and_article(task.kind, example))
    ]
    # They hold every text of the file.
    _words_without_punctuation.cache_clear()
    plain_text.cache_clear()
    line = f"unlabelled: {pluralize(len(remaining), 'example')} of `{file_name(file)}`"
    if num_left_out := len(examples) - len(remaining):
        line += f"; {num_left_out:,} left out, whose text stands in dev or test"
    bad_rows.note(line)
    if unreadable.rows:
        bad_rows.note(f"not compared with the unlabelled examples, {unreadable.left_out_line()}")
    if has_labelled_example(task, file):
        bad_rows.note(f"`{file_name(file)}` has labels: they are not read")
    if not remaining:
        raise DataError(
            "too-little-data",
            f"every text of {quoted_name(file)} stands in dev or test",
            "name other texts with --unlabelled, or leave it out",
        )
    return remaining


def has_labelled_example(task: Task, file: DataFile) -> bool:
    """Return whether a file has an example with a label; False for a pipe, which can be read only once."""
    if isinstance(file, Path) and not (file.is_file() or file.is_dir()):
        return False
    try:
        labelled = task.examples(file, split="train", labelled=True, bad_rows=BadRows("skip"))
        return next(iter(labelled), None) is not None
    except AlbertKitError:
        return False


@contextmanager
def _errors_name_left_out_rows(bad_rows: BadRows) -> Iterator[None]:
    """Let an error about what is left of the examples say which rows were left out."""
    try:
        yield
    except DataError as error:
        if not bad_rows.rows:
            raise
        raise DataError(
            error.slug,
            f"{error.message}; {bad_rows.left_out_line()}",
            bad_rows.rows[0].hint or "correct these rows first",
        ) from None


def read_data_from_anywhere(
    task: Task,
    data: Data,
    dev: Data,
    settings: FinetuneSettings,
    calibrate: bool,
    bad_rows: BadRows,
    unlabelled: Data = None,
) -> TaskData:
    """Read data that may be at an address or in memory, see `as_files`, as `read_data` does."""
    if unlabelled is not None and settings.teacher is None:
        raise ConfigError(
            "conflicting-options",
            "examples without labels are given, and no teacher to learn their labels from",
            "add a model that was fine-tuned on the task: --teacher MODEL",
        )
    with ExitStack() as stack:
        files = stack.enter_context(as_files(data))
        dev_files, unlabelled_files = (
            None if source is None else stack.enter_context(as_files(source))
            for source in (dev, unlabelled)
        )
        return read_data(
            task,
            files,
            dev_files,
            settings.held_out,
            calibrate,
            bad_rows,
            unlabelled_files,
        )


def apply_task_settings(task: Task, settings: FinetuneSettings) -> Task:
    """Return the task with what the settings name about its sequences; what they leave open stays as it is."""
    names = {f.name for f in fields(task)}
    if getattr(task, "version", 2) == 1:
        names.discard("threshold_from")
    if "long_texts" in names and "windows" not in (settings.long_texts, vars(task)["long_texts"]):
        names.discard("stride")
    changes = {}
    for setting in "length long_texts stride qa_head threshold_from positive_class".split():
        name = "head_kind" if setting == "qa_head" else setting
        value = getattr(settings, setting)
        if value == getattr(FinetuneSettings, setting):
            continue
        if name not in names:
            fact = f"`{task.name}` has no use for {setting} `{value}`"
            flag = setting.replace("_", "-")
            raise ConfigError("bad-value", fact, f"leave --{flag} out")
        changes[name] = value
    return task.with_changes(**changes)


def fingerprint(features: Features) -> str:
    """Return the SHA-256 of what the model is trained on: a run is only resumed on the same."""
    # Of what is learned, not of files: data that were moved or renamed are the same.
    digest = hashlib.sha256()
    arrays = (
        features.input_ids,
        features.offsets,
        *features.per_sequence.values(),
        *features.per_token.values(),
    )
    for array in arrays:
        digest.update(np.ascontiguousarray(array).tobytes())
    return digest.hexdigest()


def hold_out_share(
    task_kind: str,
    train: Sequence[Any],
    share: float,
    data: DataFiles,
) -> tuple[list[Any], list[Any]]:
    """Keep a share as dev, see `draw_held_out`."""
    # That must stay in training: no numbers, no choices, of tagged sentences types
    labels: list[tuple[str, ...]] = []
    for example in train:
        label = getattr(example, "label", None)
        if tags := getattr(example, "tags", ()):
            labels.append(tuple({tag[2:] for tag in tags} - {""}))
        elif isinstance(label, str):
            labels.append((label,))
        else:
            labels.append(label if isinstance(label, tuple) else ())
    held_out = draw_held_out(task_kind, train, labels, share, data)
    training = [example for number, example in enumerate(train) if number not in held_out]
    return training, [example for number, example in enumerate(train) if number in held_out]
