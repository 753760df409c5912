"""The forms of files with questions: SQuAD's own JSON, and records of one question each."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from albertkit.corpus.inputs import ByteStream, find_inputs
from albertkit.errors import DataError


class Broken(NamedTuple):
    """A line that is no JSON."""

    reason: str


def records(file: Path) -> Iterator[tuple[int, Any]]:
    """The records of a file, each one question, whatever the form:

    - SQuAD's `{"data": [{"title", "paragraphs": [{"context", "qas": [{"id", "question", "answers", "is_impossible"}]}]}]}`;
    - `{"question", "context", "id"?, "answers"?, "is_impossible"?, "title"?}`, one a line, streamed;
    - such records as a list, or as a list under "data", as transformers' examples have it.

    Args:
        file: May be compressed (gzip, xz, zstandard).

    Yields:
        The line, or the number of the record, from 1; and what is there: a dictionary if all is well. What the official
        form says of a paragraph is put into the record of each question.

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
                yield from enumerate(_of_document(file, document), 1)
                return
            lines = iter(whole[1:])
        yield 1, head
        for number, line in enumerate(lines, 2):
            if line.strip():
                yield number, _parsed(line)


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
        return Broken(f"not valid JSON: {error}")


def _of_document(file: Path, document: Any) -> Iterator[Any]:
    if isinstance(document, Broken):
        raise DataError("broken-json", f"`{file}` is {document.reason}", "restore it, or fetch it again")
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
