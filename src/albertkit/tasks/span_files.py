"""Texts with spans of characters, as annotation tools export them, where words with a tag each are read.

They are refused with a command that makes words and tags of them. Spans beside tags must be those
of the tags.
"""

import re
import shlex
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

from albertkit.errors import DataError
from albertkit.files import StrPath
from albertkit.tables.files import ByteStream, find_input_file
from albertkit.tables.records import Records, quoted_name
from albertkit.tasks.metrics import entity_spans

_TEXTS = ("text", "sentence", "content")
_STARTS = ("start", "start_offset", "start_char", "begin")
_ENDS = ("end", "end_offset", "end_char")
_LABELS = ("label", "type", "labels", "entity_group", "entity", "tag")
_ARRAY = re.compile(rb"(\xef\xbb\xbf)?\s*\[\s*[\[{]")
_ARRAY_HEAD = 1000
_TEXT_ENDINGS = ("", ".json", ".jsonl", ".ndjson", ".txt")
# A word has the label of the first span that touches it.
_COMMAND = (
    'python -c "import json,re,sys; [print(json.dumps({{'
    "'tokens': [w[0] for w in W], "
    "'tags': [next((('B-' if w.start() <= s[{start}] else 'I-') + s[{label}] "
    "for s in {spans} if w.start() < s[{end}] and s[{start}] < w.end()), 'O') for w in W]"
    "}})) for r in {records} for W in [[*re.finditer(r'{word}', {text})]]]\" "
    "{file} > NEW.jsonl"
)


class _SpanForm(NamedTuple):
    """Where a record `r` has its text and its spans, and a span `s` what it says, as Python expressions."""

    text: str  # "" for none
    spans: str
    start: str
    end: str
    label: str


def refuse_texts_with_spans(
    file: StrPath | Records,
    first_records: Iterable[Any],
    word_pattern: str = r"\w+|[^\w\s]",
) -> None:
    """Refuse records that have spans in place of words with tags.

    Args:
        file: What the records are from.
        first_records: The first ones.
        word_pattern: Regular expression of the words that the command cuts from a text.

    Raises:
        DataError: missing-column.
    """
    form = next(chain.from_iterable(map(_span_forms, first_records)), None)
    if form is None:
        return
    hint = "write `tokens`, a list of words, and `tags`, a tag a word: B-PER, I-PER, …, or O"
    if form.text and not isinstance(file, Records) and Path(file).suffix in _TEXT_ENDINGS:
        with ByteStream(find_input_file(file)) as stream:
            is_array = _ARRAY.match(stream.peek(_ARRAY_HEAD))
        records = "map(json.loads, open(sys.argv[1]))"
        if is_array:
            records = "json.load(open(sys.argv[1]))"
        hint = _COMMAND.format(
            **form._asdict(),
            records=records,
            word=word_pattern,
            file=shlex.quote(str(file)),
        )
    name = quoted_name(file if isinstance(file, Records) else str(file))
    fact = f"{name} has texts with spans, as spaCy, Prodigy and doccano have them, and no words with tags"
    raise DataError("missing-column", fact, hint)


def _span_forms(record: Any) -> Iterator[_SpanForm]:
    """Yield the form of each field that has spans; names that a shell could run are left out."""
    lists: list[tuple[str, str, Any]] = []
    if isinstance(record, Mapping):
        text = next((f"r['{name}']" for name in _TEXTS if isinstance(record.get(name), str)), "")
        for name, values in record.items():
            if name.isidentifier():
                lists.append((text, f"r['{name}']", values))
        with suppress(KeyError, IndexError, TypeError):
            results = [result["value"] for result in record["annotations"][0]["result"]]
            expression = "[x['value'] for x in r['annotations'][0]['result']]"
            lists.append(("r['data']['text']", expression, results))
    elif isinstance(record, list) and [*map(type, record)] == [str, dict]:  # as spaCy 2 was trained
        lists.append(("r[0]", "r[1]['entities']", record[1].get("entities")))
    for text, expression, values in lists:
        keys = (
            _find_start_end_label_keys(values[0]) if isinstance(values, list) and values else None
        )
        if keys is not None:
            names = [repr(key) for key in keys]
            if isinstance(values[0][keys[2]], list):  # Label Studio's
                names[2] += "][0"
            yield _SpanForm(text, expression, *names)


def _find_start_end_label_keys(span: Any) -> tuple[Any, Any, Any] | None:
    """Return the keys of start, end and label; None if it is no span."""
    if isinstance(span, list):
        return (0, 1, 2) if [*map(type, span)] == [int, int, str] else None
    if not isinstance(span, Mapping):
        return None
    start, end, label = (
        next((name for name in names if name in span), "") for names in (_STARTS, _ENDS, _LABELS)
    )
    has_numbers = isinstance(span.get(start), int) and isinstance(span.get(end), int)
    return (start, end, label) if has_numbers and label else None


def check_spans_agree(
    file: StrPath, records: Iterable[tuple[int, Any]], as_bioes: Callable[[str], str]
) -> None:
    """Refuse predicted `tags` beside `entities` that are others: one of both may be the gold's.

    Raises:
        DataError: predictions-mismatch.
    """
    for line, record in records:
        entities, tags = record.get("entities"), record.get("tags")
        if not isinstance(entities, list) or not isinstance(tags, list) or entities == tags:
            continue
        if not all(isinstance(tag, str) and tag for tag in tags):
            continue  # no tags, which is said where they are read
        words = [
            word
            for word in record.get("words", record.get("tokens")) or []
            if isinstance(word, str)
        ]
        tagged = [
            (kind, _without_whitespace("".join(words[first : last + 1])))
            for kind, first, last in entity_spans(list(map(as_bioes, tags)))
        ]
        text = str(record.get("text", ""))
        differ = len(tagged) != len(entities)
        for entity in entities:
            keys = _find_start_end_label_keys(entity)
            if keys is None:
                continue
            # It may count the characters of the text or of the words, or the words.
            start, end, label = (entity[key] for key in keys)
            parts = [text[start:end], " ".join(words)[start:end], "".join(words)[start:end]]
            parts += ["".join(words[start:end]), "".join(words[start : end + 1])]
            differ |= {(str(label), _without_whitespace(part)) for part in parts}.isdisjoint(tagged)
        if differ:
            fact = f"`{file}`, line {line:,}: its `entities` are others than its `tags`; one may be the gold's"
            raise DataError("predictions-mismatch", fact, "leave out what was not predicted")


def _without_whitespace(text: str) -> str:
    return "".join(text.split())
