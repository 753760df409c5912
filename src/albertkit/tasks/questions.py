"""Questions about paragraphs: the official JSON of SQuAD 1.1 and 2.0, and records of one question each."""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import chain, zip_longest
from pathlib import Path
from typing import Any, NamedTuple

from albertkit.errors import DataError
from albertkit.files import parse_json
from albertkit.tables.bad_rows import BadRows, UnusableRowError, pluralize
from albertkit.tables.files import ByteStream, find_input_file
from albertkit.tables.layouts import IDS, check_one_file, files_by_split
from albertkit.tables.records import SPLIT_NAMES, DataFile, DataFiles, quoted_name, row_name
from albertkit.tables.table import PACKED_ENDINGS, parquet_records
from albertkit.tables.text_lines import json_problem, utf8_hint
from albertkit.tasks.predictions import record_id
from albertkit.tasks.texts import ROWS_SEEN, note_unread_fields
from albertkit.tokenizer.rules import replace_lone_surrogates

_SUFFIXES = tuple(
    kind + packed for kind in (".json", ".jsonl", ".parquet") for packed in PACKED_ENDINGS
)
_FIELDS = ("question", "context", "answers", "is_impossible", "title", *IDS)
# Of articles and paragraphs: structure, or names of what a question has
_OUTER_FIELDS = (
    *_FIELDS,
    "paragraphs",
    "qas",
)
_NO_LABELS_HINT = "without answers, questions can only be predicted (`albertkit predict`)"


class AnnotatedAnswer(NamedTuple):
    """An answer and the character of the context where it starts; -1 if the context does not hold it.

    Attributes:
        text: As the file has it; what predictions are compared with.
        start: From 0.
        respaced: As the context has it, if its white space differs there.
    """

    text: str
    start: int
    respaced: str = ""

    @property
    def text_in_context(self) -> str:
        """The characters of the context that are the answer."""
        return self.respaced or self.text


@dataclass(frozen=True)
class QuestionExample:
    """A question about a text.

    Attributes:
        id: The file's (`id`, `guid` …); of records without one the number of the record, from 0.
        question: The question.
        context: The text with the answer.
        answers: The right ones. The model is trained on `target`.
        impossible: Whether the text has no answer; then there are no `answers`.
        article: Title of the article that the text is from; questions of one article should not be
            both trained and scored on. Without titles the number of the article, or the text
            itself.
        repaired: Whether an answer was not where the file said, and was moved to where the text has
            it nearest.
    """

    id: str
    question: str
    context: str
    answers: tuple[AnnotatedAnswer, ...] = ()
    impossible: bool = False
    article: str = ""
    repaired: bool = False

    @property
    def target(self) -> AnnotatedAnswer | None:
        """The first answer that the text holds: what a model is trained on. Google accepts exactly one answer."""
        return next((answer for answer in self.answers if answer.start >= 0), None)


def find_question_files(data: DataFiles, version: int) -> Mapping[str, DataFile]:
    """Return the files with "train", "dev" (or "validation") and "test" in their names, such as `train-v1.1.json.gz`."""
    # Both versions may lie in one folder.
    foreign = "v1." if version == 2 else "v2."

    def find(data: Path) -> dict[str, Path]:
        names = sorted(
            p.name
            for p in data.iterdir()
            # `predictions.json` may lie beside the data.
            if p.name.endswith(_SUFFIXES) and "predictions" not in p.name
        )
        files: dict[str, Path] = {}
        for split, words in SPLIT_NAMES.items():
            fitting = [
                data / n
                for n in names
                if any(word in n.lower() for word in words) and foreign not in n
            ]
            if fitting:
                files[split] = check_one_file(data, split, fitting)
        return files

    hint = "name the file, or a folder with train-v1.1.json and dev-v1.1.json, or their v2.0 (may be .gz)"
    return files_by_split(data, find, f"no file for SQuAD {version}", hint)


def read_questions(
    file: DataFile, *, version: int, split: str = "dev", labelled: bool, bad_rows: BadRows
) -> Iterator[QuestionExample]:
    """Read questions in the order of the file.

    The file may be compressed, and in any form that `read_question_records` knows. Answers are `[{"text",
    "answer_start"}]` or transformers' `{"text": […], "answer_start": […]}`.
    """
    ids: set[str] = set()
    repaired = respaced = contradicted = 0
    first_records: list[Any] = []
    for record in read_question_records(file):
        if len(first_records) < ROWS_SEEN:
            first_records.append(record.content)
        default_id = str(record.number - 1)  # from 0, as the rows of a table
        try:
            example = _record_example(record.content, default_id, version, labelled)
            if example.id in ids:
                raise UnusableRowError(f"a second question with the id `{example.id}`")
        except UnusableRowError as error:
            reason, hint = error.args
            bad_rows.add(file, record.number, reason, hint, record.location)
            continue
        ids.add(example.id)
        repaired += example.repaired
        respaced += example.target is not None and example.target.respaced != ""
        contradicted += example.impossible and bool(_read_answers(record.content.get("answers")))
        yield example
    notes = (
        (repaired, "with an answer at another place than it says; the nearest is taken"),
        (
            respaced,
            "with an answer that has other white space than the text; the model learns that of the text",
        ),
        (
            contradicted,
            "marked as `is_impossible` in spite of answers; taken as questions without an answer",
        ),
    )
    for count, fact in notes:
        if count:
            bad_rows.note(f"{quoted_name(file)}: {pluralize(count, 'question')} {fact}")
    if labelled and split == "train":
        note_unread_fields(
            file,
            first_records,
            _FIELDS,
            "rename those to read to question and context",
            bad_rows,
        )


def _record_example(record: Any, default_id: str, version: int, labelled: bool) -> QuestionExample:
    if isinstance(record, ValueError | RecursionError):
        raise UnusableRowError(json_problem(record))
    if not isinstance(record, dict):
        raise UnusableRowError(
            "this is not a question: an object with `question` and `context` is needed"
        )
    question = _read_required_text(record, "question")
    context = _read_required_text(record, "context")
    name = record_id(record)
    title = record.get("title")
    example = QuestionExample(
        id=default_id if name is None else str(name),
        question=question,
        context=context,
        article=title if isinstance(title, str) and title else context,
    )
    if not labelled:
        return example
    if record.get("answers", []) is None and record.get("is_impossible") is not True:
        raise UnusableRowError("`answers` is null", "write [] where there is no answer")
    file_answers = _read_answers(record.get("answers"))
    impossible = record.get("is_impossible", "answers" in record and not file_answers)
    if not isinstance(impossible, bool):
        raise UnusableRowError("`is_impossible` is neither true nor false")
    if impossible:
        if version == 1:
            raise UnusableRowError(
                "the question has no answer, which SQuAD 1.1 does not know",
                "take it as SQuAD 2.0: squad2",
            )
        return replace(example, impossible=True)
    if not file_answers:
        hint = _NO_LABELS_HINT
        for name in ("answer", "answer_text", "gold_answers"):
            if record.get(name) and "answers" not in record:
                hint = f"call `{name}` answers"
        reason = "the question has no answer and is not marked as `is_impossible`"
        raise UnusableRowError(reason, hint)
    located = tuple(_locate_answer(context, text, start) for text, start in file_answers)
    if all(answer.start < 0 for answer in located):
        raise UnusableRowError(f"the context does not hold the answer `{located[0].text}`")
    # White space that differs moves a start by a few characters: that is no repair.
    moved = any(
        answer.start not in (-1, start)
        and not (answer.respaced and abs(answer.start - (start or 0)) <= len(answer.text))
        for answer, (_, start) in zip(located, file_answers, strict=True)
    )
    return replace(example, answers=located, repaired=moved)


def _read_required_text(record: dict[str, Any], key: str) -> str:
    value = record.get(key)
    if not isinstance(value, str):
        raise UnusableRowError(f"`{key}` is missing" if value is None else f"`{key}` is not a text")
    if not value.strip():
        raise UnusableRowError(f"`{key}` is empty")
    return replace_lone_surrogates(value)


def _read_answers(values: Any) -> list[tuple[str, int | None]]:
    """Return texts and starts of all answers that are not empty."""
    if isinstance(values, dict):
        columns = ensure_list(values.get("text", [])), ensure_list(values.get("answer_start", []))
        values = [{"text": text, "answer_start": start} for text, start in zip_longest(*columns)]
    answers = []
    for answer in ensure_list([] if values is None else values):
        text = answer.get("text") if isinstance(answer, dict) else answer
        start = answer.get("answer_start") if isinstance(answer, dict) else None
        if not isinstance(text, str) or not isinstance(start, int | None):
            raise UnusableRowError(
                "`answers` is not a list of objects with `text` and `answer_start`"
            )
        if text.strip():
            answers.append((replace_lone_surrogates(text), start))
    return answers


def _locate_answer(context: str, text: str, start: int | None) -> AnnotatedAnswer:
    """Return an answer where the text has it; only if it is nowhere, where the same characters have other white space between.

    Google's ALBERT learns such answers, too: it does not compare them with the text.
    """
    position = max(start or 0, 0)
    before = context.rfind(text, 0, position + len(text))
    after = context.find(text, position)
    nearest = max(before, after)
    if before >= 0 and after >= 0:
        nearest = before if position - before <= after - position else after
    if nearest >= 0:
        return AnnotatedAnswer(text, nearest)
    respaced = re.compile(r"\s*".join(map(re.escape, "".join(text.split()))))
    matches = respaced.finditer(context)
    best = min(matches, key=lambda match: abs(match.start() - position), default=None)
    return (
        AnnotatedAnswer(text, -1) if best is None else AnnotatedAnswer(text, best.start(), best[0])
    )


class QuestionRecord(NamedTuple):
    """A question as a file has it."""

    number: int  # of the line, or of the question in the file, from 1
    location: str  # how an error calls it
    content: Any  # a dictionary if all is well; the error of a line that is no JSON


def read_question_records(file: DataFile) -> Iterator[QuestionRecord]:
    """Yield the records of a file, each one question, whatever the form:

    - SQuAD's `{"data": [{"title", "paragraphs": [{"context", "qas": [{"id", "question", "answers", "is_impossible"}]}]}]}`;
    - `{"question", "context", "id"?, "answers"?, "is_impossible"?, "title"?}`, one a line, streamed;
    - such records as the rows of a Parquet file, as a list, or as a list under "data", as transformers' examples have it.
    """
    with ByteStream(find_input_file(file)) as stream:
        if stream.peek(4) == b"PAR1":
            for number, record in enumerate(parquet_records(stream), 1):
                yield QuestionRecord(number, f"record {number:,}", record)
            return
        lines = _lines(stream)
        first = next(lines, b"")
        head = _parse_json(first)
        if not isinstance(head, dict) or "data" in head:
            all_lines = [first, *lines]
            document = head if len(all_lines) == 1 else _parse_json(b"\n".join(all_lines))
            # The first line may be the broken one of a file of lines.
            if not (
                isinstance(document, Exception)
                and len(all_lines) > 1
                and isinstance(_parse_json(all_lines[1]), dict)
            ):
                for number, item in enumerate(_questions_of_document(file, document, first), 1):
                    name = record_id(item) if isinstance(item, dict) else None
                    yield QuestionRecord(
                        number,
                        f"question {number:,}" if name is None else f"question `{name}`",
                        item,
                    )
                return
            lines = iter(all_lines[1:])
        for number, line in enumerate(chain([first], lines), 1):
            if line.strip():
                yield QuestionRecord(number, row_name(file, number), _parse_json(line))


def _lines(stream: ByteStream) -> Iterator[bytes]:
    # SQuAD is one line of 30 MB: its parts are joined once.
    begun: list[bytes] = []
    while chunk := stream.read():
        *complete, remainder = chunk.split(b"\n")
        if complete:
            yield b"".join([*begun, complete[0]])
            yield from complete[1:]
            begun = []
        begun.append(remainder)
    if last := b"".join(begun):
        yield last


def _parse_json(text: bytes) -> Any:
    """Return the value of a JSON text, or the error."""
    try:
        return parse_json(text)
    except (ValueError, RecursionError) as error:
        return error


def _questions_of_document(file: DataFile, document: Any, start: bytes) -> Iterator[Any]:
    if isinstance(document, Exception):
        hint = (
            utf8_hint(file)
            if isinstance(document, UnicodeDecodeError)
            else "restore it, or fetch it again"
        )
        if not start.lstrip().startswith((b"{", b"[")):
            hint = "SQuAD is JSON, or JSONL records of question, context and answers"
        raise DataError("bad-file", f"{quoted_name(file)} is not JSON: {document}", hint)
    articles = document.get("data") if isinstance(document, dict) else document
    if not isinstance(articles, list):
        raise DataError(
            "missing-file",
            f'{quoted_name(file)} has no list of articles or questions under "data"',
            'give SQuAD\'s JSON, or lines such as {"question": "…", "context": "…"}',
        )
    for number, article in enumerate(articles):
        if not isinstance(article, dict) or "paragraphs" not in article:
            yield article
            continue
        title = article.get("title") or str(number)
        for paragraph in ensure_list(article["paragraphs"]):
            if not isinstance(paragraph, dict):
                yield paragraph
                continue
            unread = {
                name: value
                for name, value in {**article, **paragraph}.items()
                if name not in _OUTER_FIELDS
            }
            for question in ensure_list(paragraph.get("qas")):
                outer = {**unread, "context": paragraph.get("context"), "title": title}
                yield {**outer, **question} if isinstance(question, dict) else question


def ensure_list(value: Any) -> list[Any]:
    """Return a list as it is, anything else as a list of it alone."""
    return value if isinstance(value, list) else [value]
