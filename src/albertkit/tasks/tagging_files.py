"""Tagged sentences out of files: CoNLL columns (WNUT-17 among them), KLUE's characters, JSONL. Tags come out as IOB2.

A file has the scheme in which most of its sentences are well-formed; the other sentences are bad
rows, and are not guessed.
"""

import contextlib
import json
import re
import shlex
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain, islice
from pathlib import Path
from typing import Any

from albertkit.errors import DataError, suggest_name
from albertkit.tables.bad_rows import BadRows, UnusableRowError, pluralize
from albertkit.tables.files import ByteStream, find_input_file
from albertkit.tables.layouts import IDS, check_one_file, files_by_split, find_shards
from albertkit.tables.records import SPLIT_NAMES, DataFile, DataFiles, Records, quoted_name
from albertkit.tables.table import JSON_DECODER, PACKED_ENDINGS, json_items, parquet_records
from albertkit.tables.text_lines import (
    BLANKS,
    HEAD_BYTES,
    NOT_UTF8,
    has_half_characters,
    json_problem,
)
from albertkit.tables.text_lines import lines as lines_of
from albertkit.tasks.metrics import TaggedEntity, entity_spans
from albertkit.tasks.predictions import (
    PREDICTION_NAMES,
    File,
    join_predictions,
    parse_predicted_labels,
    read_predictions,
    record_id,
)
from albertkit.tasks.span_files import check_spans_agree, refuse_texts_with_spans
from albertkit.tasks.texts import ROWS_SEEN, note_unread_fields

_NUMBERED = 'write names in place of numbers: `datasets` has them as `dataset.features["ner_tags"].feature.names`'
_SAME_SENTENCES = "predict the very sentences that are scored"
_COMMENT = re.compile("#+ ")
# Of JSON, where `[` may be a word: objects, or texts with an object each, as spaCy 2 was trained.
_ARRAY = re.compile(rb'(\xef\xbb\xbf)?\s*\[\s*(\{|\[\s*"[^"]*",\s*\{)')
_RECORD = re.compile(r'\s*(\{|\["[^"]*",\s*\{)')
# Of CoNLL-U: `1-2` repeats words as one token, `8.1` was never written
_SPAN_INDEX = re.compile(r"\d+[-.]\d+")
_NO_WORD = re.compile("[\t\n\r]")
_LANGUAGE = re.compile("[a-z]{2,3}(-[a-z]+)*:(?=.)")  # before every word of WikiANN
_FORM = "a line is a word and its tag, with a tab or spaces between; or the file is JSONL with `tokens` and `tags`"

_ENDINGS = ("conll", "txt", "tsv", "bio", "jsonl", "parquet")
# What each file of a folder may be called. A compressed file has one more ending.
FILES: dict[str, dict[str, tuple[str, ...]]] = {
    "ner": {
        split: (*(f"{name}.{ending}" for name in names for ending in _ENDINGS), original)
        for (split, names), original in zip(
            SPLIT_NAMES.items(), ("eng.train", "eng.testa", "eng.testb"), strict=True
        )
    },
    "wnut17": {
        "train": ("wnut17train.conll",),
        "dev": ("emerging.dev.conll",),
        "test": ("emerging.test.annotated", "emerging.test.conll"),
    },
    "klue-ner": {
        "train": ("klue-ner-v1.1_train.tsv", "klue-ner-v1_train.tsv"),
        "dev": ("klue-ner-v1.1_dev.tsv", "klue-ner-v1_dev.tsv"),
        "test": ("klue-ner-v1.1_test.tsv", "klue-ner-v1_test.tsv"),
    },
}


@dataclass(frozen=True)
class TaggedExample:
    """A sentence of words, or of characters.

    Attributes:
        id: Of the sentence.
        words: None empty.
        tags: IOB2, one a word, but see `read_tagged` for ill-formed ones; empty if the labels are
            not wanted.
        spaces: Whether a space stands between words; if not, they are the characters of the text,
            spaces among them.
        scheme: Of the tags in the file, from which they were rewritten as IOB2.
    """

    id: str
    words: tuple[str, ...]
    tags: tuple[str, ...] = ()
    spaces: bool = True
    scheme: str = field(default="IOB2", compare=False)

    @property
    def text(self) -> str:
        """The words as one text."""
        return (" " if self.spaces else "").join(self.words)


@dataclass(frozen=True)
class TagFileLayout:
    """Layout of a file."""

    # a character a line, spaces as lines of their own, as KLUE-NER has it; else a word a line
    characters: bool = False
    word_column: int = 0  # column of the word, from 0; negative: from the end
    tag_column: int = -1  # column of the tag, likewise
    tokens_field: str = ""  # of JSONL; "": `tokens`
    tags_field: str = ""  # of JSONL; "": `tags`, or `ner_tags` as the hub has it


@dataclass
class _FileSentence:
    """A sentence of a file: words, tags as written, the line of each word; or a bad line with reason and hint."""

    id: str
    words: list[str] = field(default_factory=list)
    tags: list[str] = field(default_factory=list)
    lines: list[int] = field(default_factory=list)
    bad_row: tuple[int, str, str] | None = None


def find_tag_files(data: DataFiles, task_name: str) -> Mapping[str, DataFile]:
    """See `Task.files`."""
    names_of_split = FILES.get(task_name, FILES["ner"])

    def find(data: Path) -> dict[str, Path]:
        files = {}
        for split, names in names_of_split.items():
            paths = (
                data / (file_name + packing) for file_name in names for packing in PACKED_ENDINGS
            )
            shards = (find_shards(data, hub_name) for hub_name in SPLIT_NAMES[split])
            if candidates := [*filter(Path.is_file, paths), *chain.from_iterable(shards)]:
                files[split] = check_one_file(data, split, candidates)
        return files

    hint = f"call the files {', '.join(names[0] for names in names_of_split.values())}, or name one file"
    return files_by_split(data, find, f"no file of {task_name}", hint)


def read_tagged(
    file: DataFile, layout: TagFileLayout, *, labelled: bool, bad_rows: BadRows, strict: bool = True
) -> Iterator[TaggedExample]:
    """Yield the sentences of a file, in order.

    Columns are separated by a tab, or by spaces in lines without one, and every line has as many. A
    first column that counts the words of each sentence, or names it, is passed over, as is the
    language before every word of WikiANN. Blank lines and lines that begin with -DOCSTART- stand
    between sentences. A line that begins with `# ` or `## ` before the first word of a sentence is
    a comment if it has other columns than the words, or no tag where they have one; KLUE's name the
    sentence. A file that begins with `{` is JSONL: `tokens`, `tags` or `ner_tags`, and perhaps
    `id`; so are an array of JSON and Parquet.

    Args:
        strict: Sentences whose tags break the file's scheme are bad rows; else their entities are
            read as conlleval and seqeval read them, and tags of IOB2 stay as they are written.
    """
    name = quoted_name(file)
    form = _scan_columns(file, layout, labelled)
    records = _first_records(file) if form.is_json else []
    tokens_field = layout.tokens_field or "tokens"
    tags_field = layout.tags_field or _name_of_tags_field(records[0] if records else {})
    if not any(
        _has_strings(record, tags_field if labelled else tokens_field) for record in records
    ):
        refuse_texts_with_spans(file, records)
    if records and labelled and strict:
        read_fields = (tokens_field, tags_field, *IDS)
        hint = "name those to read with --text-column and --label-column"
        note_unread_fields(file, records, read_fields, hint, bad_rows)
    if (form.is_counted or form.is_named) and layout.word_column == 0:
        content = (
            "counts the words of each sentence"
            if form.is_counted
            else "names the sentence of each word"
        )
        bad_rows.note(f"{name}: the first column {content}; the words are in the second")
        layout = replace(layout, word_column=1)
    lettered = [column for column in form.lettered if column > layout.word_column]
    if layout.word_column in (0, 1) and lettered and layout.word_column not in form.lettered:
        command = _cut_command(file, [*range(min(lettered), form.width)], form.has_tabs)
        fact = f"{name}: no word in column {layout.word_column + 1} has a letter: are they places of words?"
        raise DataError("ambiguous", fact, f"if the words are in another column: {command}")
    if form.language:
        bad_rows.note(
            f"{name}: every word begins with `{form.language}`, as in WikiANN, which is left out"
        )
    if labelled and layout.tag_column == -2 and not form.is_json:
        columns = f"column {form.width - 1} is read as the gold tags, column {form.width}, the last, as the predicted ones"
        bad_rows.note(f"{name}: {columns}, as conlleval has them")
    if form.num_span_indices:
        lines = pluralize(form.num_span_indices, "line")
        bad_rows.note(
            f"{name}: {lines} with an index such as `1-2` or `8.1` left out: no words of their own"
        )
    if labelled and form.same_types >= 0:
        column = form.same_types + 1
        last = form.width
        fact = f"{name}: column {column} has tags of the same types as column {last}, the last, which is read"
        command = _cut_command(file, range(column), form.has_tabs)
        bad_rows.note(f"{fact}; to read the other: {command}")
    if form.num_doubtful:
        lines = pluralize(form.num_doubtful, "line")
        bad_rows.note(
            f"{name}: {lines} such as `# …` read as the word `#`: as many columns as the other words"
        )
    scheme = (
        find_scheme(s.tags for s in _read_sentences(file, layout, form, labelled))
        if labelled
        else "IOB2"
    )
    if scheme != "IOB2":
        bad_rows.note(f"{name} has {scheme} tags; they were read as IOB2")
    num_ill_formed = 0
    for sentence in _read_sentences(file, layout, form, labelled):
        entities = entity_spans(sentence.tags)
        ill_formed = _find_ill_formed_tag(
            sentence,
            write_tags(entities, len(sentence.tags), scheme),
            scheme,
        )
        # Scored tags stay: conlleval and seqeval agree on what they mean, and changed ones would
        # not reach 1 against themselves.
        bad_row = sentence.bad_row or (ill_formed if strict else None)
        if bad_row:
            bad_rows.add(file, *bad_row)
            continue
        num_ill_formed += ill_formed is not None
        tags = (
            sentence.tags
            if ill_formed and scheme == "IOB2"
            else write_tags(entities, len(sentence.tags))
        )
        yield TaggedExample(
            sentence.id, tuple(sentence.words), tuple(tags), not layout.characters, scheme
        )
    if num_ill_formed:
        sentences = pluralize(num_ill_formed, "sentence")
        fact = f"{name}: {sentences} with tags that are not {scheme}, such as an `I-` after `O`"
        bad_rows.note(f"{fact}; their entities are read as conlleval and seqeval do")


def _find_ill_formed_tag(
    sentence: _FileSentence,
    expected: list[str],
    scheme: str,
) -> tuple[int, str, str] | None:
    """Return the line of the first tag that the scheme does not have there, and what to say."""
    for index, (tag, right) in enumerate(zip(sentence.tags, expected, strict=True)):
        if tag != right:
            position = (
                f"after `{sentence.tags[index - 1]}`" if index else "at the start of a sentence"
            )
            reason = f"`{tag}` {position} is not {scheme}, as the file's other tags are: `{right}` would be"
            return sentence.lines[index], reason, ""
    return None


# --- formats --------------------------------------------------------------------------------------


@dataclass
class _ColumnFacts:
    """Facts of a file of columns that only all its lines show.

    Attributes:
        is_json: Whether it has no columns, but records.
        width: Columns of the first line that is no comment.
        has_tabs: Whether tabs separate them.
        is_tagged: Whether lines have a tag, as labelled ones must and most others of the file do.
        is_counted: Whether the first column counts the words of each sentence.
        is_named: Whether it has the same value for all words of a sentence, such as a number.
        language: What every word begins with, such as `en:`; "" for nothing.
        num_span_indices: Lines of such a file whose index is that of several words, or of none.
        num_doubtful: Lines that may be comments, or the word `#`.
        same_types: Another column, from 0, whose tags name some of the types of those that are
            read, as GermEval's nested entities do; -1 if there is none.
        lettered: Columns before that of the tags, from 0, of which some have a letter.
    """

    is_json: bool = False
    width: int = 0
    has_tabs: bool = False
    is_tagged: bool = False
    is_counted: bool = False
    is_named: bool = False
    language: str = ""
    num_span_indices: int = 0
    num_doubtful: int = 0
    same_types: int = -1
    lettered: frozenset[int] = frozenset()

    def is_comment(self, line: str, fields: Sequence[str], layout: TagFileLayout) -> bool:
        """Return whether a line before the first word of a sentence is a comment."""
        if self.is_counted:
            return line.startswith("#")
        has_form = (len(fields), "\t" in line) == (self.width, self.has_tabs)
        is_row = has_form and (not self.is_tagged or _has_tag(fields, layout))
        return _COMMENT.match(line) is not None and not is_row


def _scan_columns(file: File | Records, layout: TagFileLayout, labelled: bool) -> _ColumnFacts:
    lines = _numbered_lines(file)
    first = next(((number, line) for number, line in lines if line.strip()), (1, ""))
    if _RECORD.match(first[1]):
        return _ColumnFacts(is_json=True)
    rows = Counter[tuple[int, bool]]()  # by number of columns, and whether with tabs
    comments = Counter[tuple[int, bool]]()
    types: dict[int, set[str]] = defaultdict(set)
    num_tagged = num_span_indices = num_counting = num_others = 0
    num_runs = 0  # of equal values in the first column of a sentence
    languages = set[str]()
    lettered = set[int]()
    previous = -1
    previous_name: str | None = None
    begins = counts = True
    for _, line in chain([first], lines, [(0, "")]):
        if _is_sentence_boundary(line, layout):
            if not begins:
                num_counting = num_counting + counts
                num_others = num_others + (not counts)
            begins = True
            counts = True
            previous_name = None
            continue
        fields = _split_fields(line)
        if line.startswith("#"):
            comments[len(fields), "\t" in line] += begins and _COMMENT.match(line) is not None
            continue
        rows[len(fields), "\t" in line] += 1
        num_tagged += _has_tag(fields, layout)
        num_runs += fields[0] != previous_name
        previous_name = fields[0]
        language = _LANGUAGE.match(fields[0])
        languages.add(language[0] if language else "")
        for column, text in enumerate(fields):
            if column not in lettered and any(map(str.isalpha, text)):
                lettered.add(column)
            if text != "O" and is_tag(text):
                types[column].add(text[2:])
        if _SPAN_INDEX.fullmatch(fields[0]):
            num_span_indices += 1
            continue
        # (`int` refuses 4,301 digits.)
        index = int(fields[0]) if fields[0].isdecimal() and len(fields[0]) < 10 else None
        counts = (
            counts and index is not None and (index == previous + 1 or (begins and index in (0, 1)))
        )
        previous = -1 if index is None else index
        begins = False
    width, has_tabs = next(iter(rows or comments), (0, False))
    form = _ColumnFacts(
        width=width,
        has_tabs=has_tabs,
        is_tagged=labelled or 2 * num_tagged > rows.total(),
    )
    tag_column = layout.tag_column % width if form.is_tagged and width else width
    # `1 CD O` alone proves nothing: where every sentence has one word, none counts its words.
    if num_counting > num_others and rows.total() > num_counting and tag_column > 1:
        form.is_counted, form.num_span_indices = True, num_span_indices
    # No text has every word twice; 4: a sentence may.
    form.is_named = not form.is_counted and tag_column > 1 and rows.total() >= max(4, 2 * num_runs)
    if len(languages) == 1 and rows.total() > 1:
        form.language = languages.pop()
    if rows.total() >= 4:
        form.lettered = frozenset(column for column in lettered if column < tag_column)
    if layout.tag_column == -1:
        form.same_types = next(
            (c for c in sorted(types) if 0 < c < tag_column and types[c] & types[tag_column]), -1
        )
    if not form.is_tagged and not form.is_counted:
        form.num_doubtful = comments[width, has_tabs]
    return form


def _read_sentences(
    file: DataFile,
    layout: TagFileLayout,
    form: _ColumnFacts,
    labelled: bool,
) -> Iterator[_FileSentence]:
    lines = _numbered_lines(file)
    if form.is_json:
        return _record_sentences(lines, layout, labelled)
    if name := layout.tokens_field or layout.tags_field:
        raise DataError(
            "missing-column",
            f"{quoted_name(file)} has columns without names, and `{name}` is named",
            "leave the names out: words are first, tags last; names are for JSONL",
        )
    return _column_sentences(lines, layout, form, labelled)


def _numbered_lines(file: File | Records) -> Iterator[tuple[int, str]]:
    """Yield the lines of a file; records of Parquet, or of an array of JSON, as lines of JSON."""
    with ByteStream(find_input_file(file)) as stream:
        if stream.peek(4) == b"PAR1":
            records: Iterator[tuple[int, Any]] = enumerate(parquet_records(stream), 1)
        elif _ARRAY.match(stream.peek(HEAD_BYTES)):
            records = json_items(lines_of(stream), str(file))
        else:
            yield from lines_of(stream)
            return
        for number, record in records:
            # Parquet has dates and decimals.
            yield number, json.dumps(record, default=str)


def _column_sentences(
    lines: Iterable[tuple[int, str]], layout: TagFileLayout, form: _ColumnFacts, labelled: bool
) -> Iterator[_FileSentence]:
    sentence = _FileSentence("0")
    num_sentences = 0
    sentence_name = ""
    for number, line in chain(lines, [(0, "")]):
        if _is_sentence_boundary(line, layout):
            if sentence.words or sentence.bad_row:
                yield sentence
                num_sentences += 1
            sentence = _FileSentence(str(num_sentences))
            continue
        columns = [line] if line == " " else _split_fields(line)
        if form.is_named and sentence.lines and columns[0] != sentence_name:
            yield sentence
            num_sentences += 1
            sentence = _FileSentence(str(num_sentences))
        sentence_name = columns[0]
        if not sentence.lines and form.is_comment(line, columns, layout):
            if "\t" in line:
                sentence.id = columns[0].lstrip("# ") or sentence.id
            continue
        if form.is_counted and _SPAN_INDEX.fullmatch(columns[0]):
            continue
        sentence.lines.append(number)
        try:
            if "\r" in line:
                raise UnusableRowError(
                    "carriage returns within the line",
                    "if they end lines: tr '\\r' '\\n' < FILE > NEW_FILE",
                )
            if len(columns) != form.width:
                raise UnusableRowError(
                    f"number of columns {len(columns)}, of the first line {form.width}",
                    _FORM,
                )
            if form.is_counted and not columns[0].isdecimal():
                raise UnusableRowError(
                    f"`{columns[0]}` in the first column, which counts the words of each sentence"
                )
            word = _select_column(columns, layout.word_column).removeprefix(form.language)
            sentence.words.append(_clean_word(word, layout))
            if labelled:
                if form.width == 1:
                    raise UnusableRowError("one column alone, so there is no tag", _FORM)
                sentence.tags.append(_parse_tag(_select_column(columns, layout.tag_column)))
        except UnusableRowError as error:
            sentence.bad_row = sentence.bad_row or (number, *error.args)


def _is_sentence_boundary(line: str, layout: TagFileLayout) -> bool:
    """Return whether a line stands between sentences."""
    # Where characters are the words, a line may be a space.
    return not line.strip("\t" if layout.characters else BLANKS) or line.startswith("-DOCSTART-")


def _split_fields(line: str) -> list[str]:
    # Between tabs a word may hold spaces.
    return line.split("\t") if "\t" in line else re.split(" +", line.strip(" "))


def _has_tag(fields: Sequence[str], layout: TagFileLayout) -> bool:
    return -len(fields) <= layout.tag_column < len(fields) and is_tag(
        fields[layout.tag_column].strip(BLANKS)
    )


def _select_column(columns: list[str], index: int) -> str:
    try:
        return columns[index]
    except IndexError:
        raise UnusableRowError(
            f"there is no column {index} (counted from 0) among {len(columns)}"
        ) from None


def _record_sentences(
    lines: Iterable[tuple[int, str]], layout: TagFileLayout, labelled: bool
) -> Iterator[_FileSentence]:
    for index, (number, line) in enumerate(pair for pair in lines if pair[1].strip()):
        sentence = _FileSentence(str(index))
        try:
            record = JSON_DECODER.decode(line)
            if not isinstance(record, dict):
                raise UnusableRowError("not an object of JSON")
            name = record_id(record)
            sentence.id = str(index if name is None else name)
            sentence.words = [
                _clean_word(word, layout)
                for word in _string_list_of_record(record, layout.tokens_field or "tokens")
            ]
            tags_field = layout.tags_field or _name_of_tags_field(record)
            sentence.tags = (
                [_parse_tag(tag) for tag in _string_list_of_record(record, tags_field)]
                if labelled
                else []
            )
            sentence.lines = [number] * len(sentence.words)
            if not sentence.words or (labelled and len(sentence.tags) != len(sentence.words)):
                raise UnusableRowError(f"{len(sentence.words)} tokens, {len(sentence.tags)} tags")
        except UnusableRowError as error:
            sentence.bad_row = (number, *error.args)
        except (ValueError, RecursionError) as error:
            sentence.bad_row = number, json_problem(error), ""
        yield sentence


def _first_records(file: File | Records) -> list[Any]:
    records = []
    for _, line in islice(_numbered_lines(file), ROWS_SEEN):
        # A broken line is reported where the sentences are read.
        with contextlib.suppress(ValueError, RecursionError):
            records.append(json.loads(line))
    return records


def _has_strings(record: Any, field_name: str) -> bool:
    values = record.get(field_name) if isinstance(record, dict) else None
    return isinstance(values, list) and all(isinstance(value, str) for value in values)


def _name_of_tags_field(record: Any) -> str:
    return "ner_tags" if "ner_tags" in record and "tags" not in record else "tags"


def _string_list_of_record(record: dict[str, Any], field_name: str) -> list[str]:
    if field_name not in record:
        raise UnusableRowError(
            f"there is no field `{field_name}` ({suggest_name(field_name, record)})"
        )
    if not _has_strings(record, field_name):
        are_numbers = isinstance(record[field_name], list) and all(
            isinstance(value, int) for value in record[field_name]
        )
        raise UnusableRowError(
            f"`{field_name}` is not a list of strings",
            _NUMBERED if are_numbers else "",
        )
    return record[field_name]


def _clean_word(word: str, layout: TagFileLayout) -> str:
    if layout.characters and len(word) != 1:
        raise UnusableRowError(f"`{word}` is not one character")
    if has_half_characters(word):
        raise UnusableRowError(NOT_UTF8)
    if not (word if layout.characters else word.strip(BLANKS)) or _NO_WORD.search(word):
        raise UnusableRowError(f"{word!r} is not a word: it is empty, or has a tab or a line break")
    return word if layout.characters else word.strip(BLANKS)


def _parse_tag(tag: str) -> str:
    tag = tag.strip(BLANKS)
    if not is_tag(tag):
        raise UnusableRowError(
            f"tag `{tag}` is neither `O` nor `B-…`, `I-…`, `E-…` or `S-…`",
            _FORM,
        )
    return as_bioes(tag)


SCHEMES = ("IOB2", "IOB1", "BIOES")

_TAG = re.compile(r"O|[BIESLUM]-.+", re.DOTALL)
_IOB = re.compile(r"O|[BI]-.+", re.DOTALL)
# BILOU and BMES (Chinese data) call the same places by other letters
_BIOES = str.maketrans("LUM", "ESI")


def is_tag(text: str) -> bool:
    """Return whether it could be a tag of any scheme."""
    return _TAG.fullmatch(text) is not None


def as_bioes(tag: str) -> str:
    """Return a tag of BILOU or BMES with the prefixes of BIOES; other tags stay."""
    return tag[0].translate(_BIOES) + tag[1:]


def tags_to_bioes(tags: Iterable[str], labels: Sequence[str]) -> list[str]:
    """Return the tags of a sentence in BIOES, the scheme that `entity_spans` reads, whatever that of the model's labels.

    A label without `B-` or `I-` (`PER`) continues an entity of its name, as in the aggregation of
    transformers. `E-`, `S-`, `L-`, `U-` and `M-` are prefixes only where all labels are tags, or
    where the type has a `B-`: `E-mail` may be a name.
    """
    only_tags = all(map(is_tag, labels))
    prefixed = {
        label
        for label in labels
        if _IOB.fullmatch(label) or (is_tag(label) and f"B{label[1:]}" in labels)
    }
    return [
        as_bioes(tag) if tag in prefixed or (only_tags and is_tag(tag)) else f"I-{tag}"
        for tag in tags
    ]


def write_tags(
    entities: Sequence[TaggedEntity],
    num_words: int,
    scheme: str = "IOB2",
) -> list[str]:
    """Return the tags of a sentence."""
    tags = ["O"] * num_words
    for kind, first, last in entities:
        tags[first : last + 1] = [f"I-{kind}"] * (last + 1 - first)
        if scheme != "IOB1" or (first > 0 and tags[first - 1][2:] == kind):
            tags[first] = f"B-{kind}"
        if scheme == "BIOES":
            tags[last] = f"S-{kind}" if first == last else f"E-{kind}"
    return tags


def find_scheme(sentences: Iterable[list[str]]) -> str:
    """Return the scheme in which most sentences are well-formed, the first of `SCHEMES` if several are equal."""
    fits = Counter[str]()
    for tags in sentences:
        entities = entity_spans(tags)
        fits.update(scheme for scheme in SCHEMES if write_tags(entities, len(tags), scheme) == tags)
    return max(SCHEMES, key=lambda scheme: fits[scheme])


# --- predictions ----------------------------------------------------------------------------------


def read_predicted_tags(
    file: File,
    examples: Sequence[TaggedExample],
    beside_gold: bool,
) -> list[list[str]]:
    """Return the predicted tags of each sentence; the file must have the words of the sentences, in their order.

    Tags are rewritten as IOB2 where the gold tags were, or where they have the prefixes of BIOES,
    BILOU or BMES: accuracy compares tags as they are written. Others are kept, ill-formed ones
    included.

    Args:
        file: Columns, of which the last one is read, or JSON records.
        examples: The sentences with their gold tags.
        beside_gold: Whether the gold tags are from the same file, so that `tags` of its records are
            none of a prediction.
    """
    form = _scan_columns(file, TagFileLayout(), labelled=True)
    if form.is_json:
        records = _first_records(file)
        names = {name.lower() for record in records if isinstance(record, dict) for name in record}
        is_tags = not beside_gold and "tags" in names and names.isdisjoint(PREDICTION_NAMES)
        if not is_tags and names.isdisjoint(PREDICTION_NAMES):
            refuse_texts_with_spans(file, records, r"\S+")
        predictions = read_predictions(file, () if beside_gold else ("tags",))
        if is_tags:
            numbered = (
                (number, json.loads(line)) for number, line in _numbered_lines(file) if line.strip()
            )
            check_spans_agree(file, numbered, as_bioes)
        sentences = [
            [tag.strip(BLANKS) for tag in parse_predicted_labels(value, file)]
            for value in join_predictions([example.id for example in examples], predictions, file)
        ]
    else:
        sentences = _predicted_columns(form, examples, file)
    for tags, example in zip(sentences, examples, strict=True):
        if len(tags) != len(example.words):
            raise DataError(
                "predictions-mismatch",
                f"`{file}`: sentence {example.id} has {len(tags)} tags for {len(example.words)} words",
                _SAME_SENTENCES,
            )
        if strange := [tag for tag in tags if not is_tag(tag)]:
            raise DataError(
                "bad-label",
                f"`{file}`: `{strange[0]}` of sentence {example.id} is not a tag",
                "tags are O, B-type, I-type, …",
            )
    is_rewritten = any(example.scheme != "IOB2" for example in examples)
    if is_rewritten or any(tag[0] in "ESLUM" for tags in sentences for tag in tags):
        return [
            write_tags(entity_spans([as_bioes(tag) for tag in tags]), len(tags))
            for tags in sentences
        ]
    return sentences


def _predicted_columns(
    form: _ColumnFacts,
    examples: Sequence[TaggedExample],
    file: File,
) -> list[list[str]]:
    """Return the last column, cut into the sentences of the examples, whose words must be those of the file."""
    words = [(example.id, word) for example in examples for word in example.words]
    word_column = int(form.is_counted or form.is_named)
    layout = TagFileLayout(characters=any(not example.spaces for example in examples))
    rows: list[list[str]] = []
    begins = True
    for number, line in _numbered_lines(file):
        if _is_sentence_boundary(line, layout):
            begins = True
            continue
        fields = _split_fields(line)
        if begins and form.is_comment(line, fields, layout):
            continue
        begins = False
        if form.is_counted and _SPAN_INDEX.fullmatch(fields[0]):
            continue
        word_in_file = fields[word_column if len(fields) > 1 else 0].removeprefix(form.language)
        if len(rows) < len(words) and words[len(rows)][1] not in (
            word_in_file,
            word_in_file.strip(BLANKS),
        ):
            sentence, word = words[len(rows)]
            raise DataError(
                "predictions-mismatch",
                f"`{file}`, line {number:,}: `{word_in_file}`, but word {word!r} of sentence {sentence} is next",
                _SAME_SENTENCES,
            )
        rows.append([field.strip(BLANKS) for field in fields])
    if len(rows) != len(words):
        raise DataError(
            "predictions-mismatch",
            f"`{file}` has {len(rows):,} words, the gold data have {len(words):,}",
            _SAME_SENTENCES,
        )
    _check_other_columns_are_gold(rows, word_column, examples, file, form.has_tabs)
    return _cut_into_sentences([row[-1] for row in rows], examples)


def _check_other_columns_are_gold(
    rows: Sequence[Sequence[str]],
    word_column: int,
    examples: Sequence[TaggedExample],
    file: File,
    has_tabs: bool,
) -> None:
    """Refuse a column before the last that has tags of the gold's types and other entities: it may be what was predicted."""
    gold = [entity_spans(example.tags) for example in examples]
    gold_types = {entity[0] for entities in gold for entity in entities}
    last = min(map(len, rows), default=0) - 1
    for column in range(word_column + 1, last):
        tags = [row[column] for row in rows]
        if not all(map(is_tag, tags)):
            continue
        predicted = [
            entity_spans(sentence)
            for sentence in _cut_into_sentences(list(map(as_bioes, tags)), examples)
        ]
        types = {entity[0] for entities in predicted for entity in entities}
        if predicted != gold and (not types or types & gold_types):
            raise DataError(
                "predictions-mismatch",
                f"`{file}` may have its predictions in column {column + 1} or in column {last + 1}, the last",
                f"leave the other out, such as: {_cut_command(file, [word_column, column], has_tabs)}",
            )


def _cut_command(file: File | Records, columns: Sequence[int], has_tabs: bool) -> str:
    """Return the command that keeps some columns, from 0, of a file."""
    if has_tabs:
        program = f"cut -f {','.join(str(column + 1) for column in columns)}"
    else:
        fields = ", ".join(f"${column + 1}" for column in columns)
        program = f"awk '{{print {fields}}}'"
    return f"{program} {shlex.quote(str(file))} > NEW_FILE"


def _cut_into_sentences(tags: Sequence[str], examples: Sequence[TaggedExample]) -> list[list[str]]:
    remaining_tags = iter(tags)
    return [[next(remaining_tags) for _ in example.words] for example in examples]
