"""The forms of files with questions: SQuAD's own JSON, and records of one question each."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from albertkit.corpus.inputs import ByteStream, find_inputs
from albertkit.errors import DataError
from albertkit.tasks.tables.source import NOT_UTF8, not_json, not_utf8


class Broken(NamedTuple):
    """A text that is no JSON: why, as a line and as a whole file."""

    reason: str
    whole: str


class Record(NamedTuple):
    """What a file has in the place of a question.

    Attributes:
        number: Of the line, or of the question in the file, from 1.
        content: A dictionary if all is well. What the official form says of a paragraph is part of it.
        is_line: Whether it is a line of its own.
    """

    number: int
    content: Any
    is_line: bool

    @property
    def where(self) -> str:
        """How a person finds it."""
        if self.is_line:
            return f"line {self.number:,}"
        name = self.content.get("id") if isinstance(self.content, dict) else None
        return f"question {self.number:,}" if name is None else f"question `{name}`"


def records(file: Path) -> Iterator[Record]:
    """The records of a file, each one question, whatever the form:

    - SQuAD's `{"data": [{"title", "paragraphs": [{"context", "qas": [{"id", "question", "answers", "is_impossible"}]}]}]}`;
    - `{"question", "context", "id"?, "answers"?, "is_impossible"?, "title"?}`, one a line, streamed;
    - such records as a list, or as a list under "data", as transformers' examples have it.

    Args:
        file: May be compressed (gzip, xz, zstandard).

    Raises:
        DataError: not-found, truncated-file, broken-archive, broken-json, unknown-layout.
    """
    with ByteStream(find_inputs([file])[0]) as stream:
        lines = _lines(stream)
        first = next(lines, b"")
        head = _parsed(first)
        if not isinstance(head, dict) or "data" in head:
            whole = [first, *lines]
            document = head if len(whole) == 1 else _parsed(b"\n".join(whole))
            # The first line may be the broken one of a file of lines.
            if not (isinstance(document, Broken) and len(whole) > 1 and isinstance(_parsed(whole[1]), dict)):
                yield from (
                    Record(number, item, False) for number, item in enumerate(_of_document(file, document, first), 1)
                )
                return
            lines = iter(whole[1:])
        yield Record(1, head, True)
        for number, line in enumerate(lines, 2):
            if line.strip():
                yield Record(number, _parsed(line), True)


def _lines(stream: ByteStream) -> Iterator[bytes]:
    begun: list[bytes] = []
    while chunk := stream.read():
        *whole, rest = chunk.split(b"\n")
        if whole:
            yield b"".join([*begun, whole[0]])
            yield from whole[1:]
            begun = []
        begun.append(rest)
    if last := b"".join(begun):
        yield last


def _parsed(text: bytes) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        return Broken(not_json(error), f"not JSON: {error}")


def _hint(file: Path, start: bytes, reason: str) -> str:
    if not start.lstrip().startswith((b"{", b"[")):
        return "SQuAD is JSON, or JSONL records of question, context and answers"
    return not_utf8(str(file)) if reason == NOT_UTF8 else "restore it, or fetch it again"


def _of_document(file: Path, document: Any, start: bytes) -> Iterator[Any]:
    if isinstance(document, Broken):
        raise DataError("broken-json", f"`{file}` is {document.whole}", _hint(file, start, document.reason))
    articles = document.get("data") if isinstance(document, dict) else document
    if not isinstance(articles, list):
        raise DataError(
            "unknown-layout", f"`{file}` has no list of articles or questions under \"data\"",
            'give SQuAD\'s JSON, or lines such as {"question": "…", "context": "…"}',
        )  # fmt: skip
    for number, article in enumerate(articles):
        if not isinstance(article, dict) or "paragraphs" not in article:
            yield article
            continue
        title = article.get("title") or str(number)
        for paragraph in as_list(article["paragraphs"]):
            if not isinstance(paragraph, dict):
                yield paragraph
                continue
            for question in as_list(paragraph.get("qas")):
                given = {"context": paragraph.get("context"), "title": title}
                yield {**given, **question} if isinstance(question, dict) else question


def as_list(value: Any) -> list[Any]:
    """A list as it is, anything else as a list of it alone."""
    return value if isinstance(value, list) else [value]
