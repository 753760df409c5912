"""Tagged sentences out of files: CoNLL columns (WNUT-17 among them), KLUE's characters, JSONL. Tags come out as IOB2.

A file has the scheme in which most of its sentences are well-formed; the other sentences are bad rows, and are not guessed.
"""

import json
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import Any

from albertkit.data.bad_rows import BadRows, Unusable
from albertkit.data.inputs import ByteStream, find_inputs
from albertkit.data.layouts import split_files
from albertkit.data.lines import NOT_UTF8, has_half_characters, not_json, not_utf8
from albertkit.data.lines import lines as lines_of
from albertkit.data.tables import PACKINGS
from albertkit.errors import DataError, near_miss
from albertkit.tasks.metrics.tagging import spans
from albertkit.tasks.prediction_files import File, join, list_of, read_predictions

_SAME_SENTENCES = "predict the very sentences that are scored"
_COMMENT = re.compile("#+ ")
_NO_WORD = re.compile("[\t\n\r]")
_FORM = "a line is a word and its tag, with a tab or spaces between; or the file is JSONL with `tokens` and `tags`"

# What each file of a folder may be called, the first that is there. A compressed file has one more ending.
FILES: dict[str, dict[str, tuple[str, ...]]] = {
    "ner": {
        "train": ("train.conll", "train.txt", "train.tsv", "train.bio", "train.jsonl", "eng.train"),
        "dev": ("dev.conll", "dev.txt", "dev.tsv", "dev.bio", "dev.jsonl", "valid.txt", "validation.jsonl", "eng.testa"),
        "test": ("test.conll", "test.txt", "test.tsv", "test.bio", "test.jsonl", "eng.testb"),
    },
    "wnut17": {
        "train": ("wnut17train.conll",), "dev": ("emerging.dev.conll",),
        "test": ("emerging.test.annotated", "emerging.test.conll"),
    },
    "klue-ner": {
        "train": ("klue-ner-v1.1_train.tsv", "klue-ner-v1_train.tsv"),
        "dev": ("klue-ner-v1.1_dev.tsv", "klue-ner-v1_dev.tsv"),
        "test": ("klue-ner-v1.1_test.tsv", "klue-ner-v1_test.tsv"),
    },
}  # fmt: skip
_PACKED = ("", *(f".{packing}" for packing in PACKINGS))


@dataclass(frozen=True)
class TaggedExample:
    """A sentence of words, or of characters.

    Attributes:
        id: Of the sentence.
        words: None empty.
        tags: IOB2, one a word; empty if the labels are not wanted.
        spaces: Whether a space stands between words; if not, they are the characters of the text, spaces among them.
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
class Layout:
    """Layout of a file."""

    # a character a line, spaces as lines of their own, as KLUE-NER has it; else a word a line
    characters: bool = False
    word_column: int = 0  # column of the word, from 0; negative: from the end
    tag_column: int = -1  # column of the tag, likewise


@dataclass
class _Sentence:
    """A sentence of a file: words, tags as written, the line of each word; or a bad line with reason and hint."""

    id: str
    words: list[str] = field(default_factory=list)
    tags: list[str] = field(default_factory=list)
    lines: list[int] = field(default_factory=list)
    bad_row: tuple[int, str, str] | None = None


def find_files(data: Path, name: str) -> dict[str, Path]:
    """See `Task.files`."""
    wanted = FILES.get(name, FILES["ner"])

    def find(data: Path) -> dict[str, Path]:
        found = {}
        for split, names in wanted.items():
            paths = (data / (file_name + packing) for file_name in names for packing in _PACKED)
            if path := next(filter(Path.is_file, paths), None):
                found[split] = path
        return found

    hint = f"call the files {', '.join(names[0] for names in wanted.values())}, or name one file"
    return split_files(data, find, f"no file of {name}", hint)


def read_tagged(file: Path, layout: Layout, *, labelled: bool, bad_rows: BadRows) -> Iterator[TaggedExample]:
    """Yield the sentences of a file, in order.

    Columns are separated by a tab, or by spaces in lines without one, and every line has as many. Blank lines and lines
    that begin with -DOCSTART- stand between sentences. A line that begins with `# ` or `## ` and does not end in a tag is a
    comment; KLUE's name the sentence. A file that begins with `{` is JSONL: `tokens`, `tags` and perhaps `id`.
    """
    scheme = find_scheme(sentence.tags for sentence in _sentences(file, layout, labelled)) if labelled else "IOB2"
    if scheme != "IOB2":
        bad_rows.note(f"`{file}` has {scheme} tags; they were read as IOB2")
    for sentence in _sentences(file, layout, labelled):
        entities = spans(sentence.tags)
        bad_row = sentence.bad_row or _ill_formed(sentence, write_tags(entities, len(sentence.tags), scheme), scheme)
        if bad_row:
            number, reason, hint = bad_row
            bad_rows.add(file, number, reason, not_utf8(str(file)) if reason == NOT_UTF8 else hint)
        else:
            tags = tuple(write_tags(entities, len(sentence.tags)))
            yield TaggedExample(sentence.id, tuple(sentence.words), tags, not layout.characters, scheme)


def _ill_formed(sentence: _Sentence, expected: list[str], scheme: str) -> tuple[int, str, str] | None:
    """Return the line of the first tag that the scheme does not have there, and what to say."""
    for place, (tag, right) in enumerate(zip(sentence.tags, expected, strict=True)):
        if tag != right:
            where = f"after `{sentence.tags[place - 1]}`" if place else "at the start of a sentence"
            reason = f"`{tag}` {where} is not {scheme}, as the file's other tags are: `{right}` would be"
            return sentence.lines[place], reason, ""
    return None


# --- formats ----------------------------------------------------------------------------------------------------------


def _sentences(file: Path, layout: Layout, labelled: bool) -> Iterator[_Sentence]:
    lines = _lines(file)
    first = next(((number, line) for number, line in lines if line.strip()), (1, ""))
    if first[1].lstrip().startswith("{"):
        return _records(chain([first], lines), layout, labelled)
    return _columns(chain([first], lines), layout, labelled)


def _lines(file: Path) -> Iterator[tuple[int, str]]:
    with ByteStream(find_inputs([file])[0]) as stream:
        yield from lines_of(stream)


def _columns(lines: Iterable[tuple[int, str]], layout: Layout, labelled: bool) -> Iterator[_Sentence]:
    sentence, read, width = _Sentence("0"), 0, 0
    for number, line in chain(lines, [(0, "")]):
        blank = not line.strip("\t" if layout.characters else "\t ")
        if blank or line.startswith("-DOCSTART-"):
            if sentence.words or sentence.bad_row:
                yield sentence
                read += 1
            sentence = _Sentence(str(read))
            continue
        columns = [line] if line == " " else _fields(line)
        if _is_comment(line, columns):
            if "\t" in line and not sentence.words:
                sentence.id = columns[0].lstrip("# ")
            continue
        width = width or len(columns)
        sentence.lines.append(number)
        try:
            if len(columns) != width:
                raise Unusable(f"number of columns {len(columns)}, of the first line {width}", _FORM)
            sentence.words.append(_word(_column(columns, layout.word_column), layout))
            if labelled:
                if width == 1:
                    raise Unusable("one column alone, so there is no tag", _FORM)
                sentence.tags.append(_tag(_column(columns, layout.tag_column)))
        except Unusable as error:
            sentence.bad_row = sentence.bad_row or (number, *error.args)


def _fields(line: str) -> list[str]:
    return line.split("\t") if "\t" in line else re.split(" +", line.strip(" "))


def _is_comment(line: str, fields: list[str]) -> bool:
    return _COMMENT.match(line) is not None and not is_tag(fields[-1])


def _column(columns: list[str], number: int) -> str:
    try:
        return columns[number]
    except IndexError:
        raise Unusable(f"there is no column {number} (counted from 0) among {len(columns)}") from None


def _records(lines: Iterable[tuple[int, str]], layout: Layout, labelled: bool) -> Iterator[_Sentence]:
    for read, (number, line) in enumerate(pair for pair in lines if pair[1].strip()):
        sentence = _Sentence(str(read))
        try:
            record = json.loads(line)
            if not isinstance(record, dict):
                raise Unusable("not an object of JSON")
            sentence.id = str(record.get("id", read))
            sentence.words = [_word(word, layout) for word in _strings(record, "tokens")]
            sentence.tags = [_tag(tag) for tag in _strings(record, "tags")] if labelled else []
            sentence.lines = [number] * len(sentence.words)
            if not sentence.words or (labelled and len(sentence.tags) != len(sentence.words)):
                raise Unusable(f"{len(sentence.words)} tokens, {len(sentence.tags)} tags")
        except (json.JSONDecodeError, RecursionError) as error:
            sentence.bad_row = number, not_json(error), ""
        except Unusable as error:
            sentence.bad_row = (number, *error.args)
        yield sentence


def _strings(record: dict[str, Any], name: str) -> list[str]:
    if name not in record:
        raise Unusable(f"there is no field `{name}` ({near_miss(name, record)})")
    values = record[name]
    if not isinstance(values, list) or not all(isinstance(value, str) for value in values):
        raise Unusable(f"`{name}` is not a list of strings")
    return values


def _word(word: str, layout: Layout) -> str:
    if layout.characters and len(word) != 1:
        raise Unusable(f"`{word}` is not one character")
    if has_half_characters(word):
        raise Unusable(NOT_UTF8)
    if not word or _NO_WORD.search(word) or (word.isspace() and not layout.characters):
        raise Unusable(f"{word!r} is not a word: it is empty, or has a tab or a line break")
    return word if layout.characters else word.strip(" ")


def _tag(tag: str) -> str:
    tag = tag.strip(" ")
    if not is_tag(tag):
        raise Unusable(f"tag `{tag}` is neither `O` nor `B-…`, `I-…`, `E-…` or `S-…`", _FORM)
    return from_bilou(tag)


SCHEMES = ("IOB2", "IOB1", "BIOES")

_TAG = re.compile(r"O|[BIESLU]-.+", re.DOTALL)
_IOB = re.compile(r"O|[BI]-.+", re.DOTALL)
_BILOU = str.maketrans("LU", "ES")


def is_tag(text: str) -> bool:
    """Return whether it could be a tag of any scheme."""
    return _TAG.fullmatch(text) is not None


def from_bilou(tag: str) -> str:
    """Return the tag with the prefixes of BIOES."""
    return tag[0].translate(_BILOU) + tag[1:]


def entity_tags(tags: Iterable[str], labels: Sequence[str]) -> list[str]:
    """Return the tags of a sentence as `spans` reads them, whatever the scheme of a model's labels.

    A label without `B-` or `I-` (`PER`) continues an entity of its name, as in the aggregation of transformers. `E-`, `S-`, `L-`
    and `U-` are prefixes only where all labels are tags: `E-mail` may be a name.
    """
    is_scheme = is_tag if all(map(is_tag, labels)) else _IOB.fullmatch
    return [from_bilou(tag) if is_scheme(tag) else f"I-{tag}" for tag in tags]


def write_tags(entities: Sequence[tuple[str, int, int]], num_words: int, scheme: str = "IOB2") -> list[str]:
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
        entities = spans(tags)
        fits.update(scheme for scheme in SCHEMES if write_tags(entities, len(tags), scheme) == tags)
    return max(SCHEMES, key=lambda scheme: fits[scheme])


# --- predictions ------------------------------------------------------------------------------------------------------


def read_predicted_tags(file: File, examples: Sequence[TaggedExample]) -> list[list[str]]:
    """Return the predicted tags of each sentence; the file must have the words of the sentences, in their order.

    Tags are rewritten as IOB2 where the gold tags were, or where they have the prefixes of BIOES or BILOU: accuracy compares
    tags as they are written. Others are kept, ill-formed ones included.
    """
    with ByteStream(find_inputs([file])[0]) as stream:
        rows = list(lines_of(stream))
    first = next((line for _, line in rows if line.strip()), "")
    if first.lstrip().startswith("{"):
        given = read_predictions(file, ("tags",), ("id",))
        sentences = [list_of(value, file) for value in join([example.id for example in examples], given, file)]
    else:
        sentences = _last_columns(rows, examples, file)
    for tags, example in zip(sentences, examples, strict=True):
        if len(tags) != len(example.words):
            fact = f"`{file}`: sentence {example.id} has {len(tags)} tags for {len(example.words)} words"
            raise DataError("predictions-mismatch", fact, _SAME_SENTENCES)
        if strange := [tag for tag in tags if not is_tag(tag)]:
            fact = f"`{file}`: `{strange[0]}` of sentence {example.id} is not a tag"
            raise DataError("bad-label", fact, "tags are O, B-type, I-type, …")
    is_rewritten = any(example.scheme != "IOB2" for example in examples)
    if is_rewritten or any(tag[0] in "ESLU" for tags in sentences for tag in tags):
        return [write_tags(spans([from_bilou(tag) for tag in tags]), len(tags)) for tags in sentences]
    return sentences


def _last_columns(rows: Sequence[tuple[int, str]], examples: Sequence[TaggedExample], file: File) -> list[list[str]]:
    """Return the last column, cut into the sentences of the examples, whose words must be those of the first column."""
    words = [(example.id, word) for example in examples for word in example.words]
    tags: list[str] = []
    for number, line in rows:
        fields = _fields(line)
        if not line.strip() or line.startswith("-DOCSTART-") or _is_comment(line, fields):
            continue
        if len(tags) < len(words) and words[len(tags)][1] not in (fields[0], fields[0].strip(" ")):
            sentence, word = words[len(tags)]
            fact = f"`{file}`, line {number:,}: `{fields[0]}`, but word {word!r} of sentence {sentence} is next"
            raise DataError("predictions-mismatch", fact, _SAME_SENTENCES)
        tags.append(fields[-1].strip(" "))
    if len(tags) != len(words):
        fact = f"`{file}` has {len(tags):,} words, the gold data have {len(words):,}"
        raise DataError("predictions-mismatch", fact, _SAME_SENTENCES)
    rest = iter(tags)
    return [[next(rest) for _ in example.words] for example in examples]
