"""Read lines of text, draw samples, and give example texts in the language of a vocabulary for cards and errors."""

from __future__ import annotations

import itertools
import random
import re
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from albertkit.encodings import (
    SAMPLE_BYTES,
    check_begins_as_utf8,
    check_mojibake,
    conversion_command,
    encoding_advice,
    likely_encoding,
)
from albertkit.errors import DataError, suggest_existing_path
from albertkit.tables.files import ByteStream, find_input_file
from albertkit.tables.text_lines import HEAD_BYTES, byte_lines, check_running_text, encoding_hint

if TYPE_CHECKING:
    from albertkit.tokenizer.tokenizer import AlbertTokenizer

_SAMPLE_LINES = 1000


def read_lines(path: Path) -> Iterator[str]:
    """Return the lines of a UTF-8 file, unpacked, without their ends; `-` is the standard input, read line by line."""
    if str(path) == "-":
        yield from _decode_lines(sys.stdin.buffer, "the standard input")
        return
    if path.is_dir() or not path.exists():
        problem = "is a folder, not a text file" if path.is_dir() else "does not exist"
        hint = suggest_existing_path(path, "name files; a pattern such as `texts/*.txt` names many")
        raise DataError("not-found", f"`{path}` {problem}", hint)
    with ByteStream(find_input_file(path)) as stream:
        check_mojibake(stream.peek(SAMPLE_BYTES), str(path))
        yield from _decode_lines(byte_lines(stream), f"`{path}`", str(path))


def check_is_running_text(path: Path, hints: dict[str, str]) -> None:
    """Refuse a structured file whose lines are to be read as texts; see `check_running_text`. A pipe is not looked at."""
    if path.is_file():
        with ByteStream(find_input_file(path)) as stream:
            head = stream.peek(HEAD_BYTES)
            check_begins_as_utf8(head, str(path))
            check_running_text(head, str(path), hints, path.name)


def _decode_lines(lines: Iterable[bytes], source: str, path: str | None = None) -> Iterator[str]:
    offset = 0
    lines = iter(lines)
    for number, line in enumerate(lines, start=1):
        if b"\0" in line:
            at = offset + line.index(b"\0")
            name = likely_encoding(_first_bytes(line, lines))
            if name:
                raise DataError(
                    "bad-encoding",
                    f"{source} is {name}, not UTF-8",
                    conversion_command(path or "FILE", name),
                )
            raise DataError(
                "wrong-kind",
                f"{source} has a zero byte at {at:,}: it is not a text file",
                "name plain-text files",
            )
        try:
            text = line.decode("utf-8-sig" if number == 1 else "utf-8")
        except UnicodeDecodeError as error:
            raise DataError(
                "bad-encoding",
                f"{source} is not UTF-8: byte 0x{line[error.start]:02x} at {offset + error.start:,} (line {number:,})",
                encoding_hint(path) if path else encoding_advice(_first_bytes(line, lines)),
            ) from None
        offset += len(line)
        yield text.rstrip("\r\n")


def _first_bytes(line: bytes, following: Iterator[bytes]) -> bytes:
    return (line + b"".join(itertools.islice(following, _SAMPLE_LINES)))[:SAMPLE_BYTES]


def draw_texts(texts: Iterable[str], size: int, seed: int) -> list[str]:
    """Draw texts evenly (reservoir sampling); return all of them, in order, if there are no more than `size`."""
    # SentencePiece's own sampling (0.2.3) takes no seed: `SetRandomGeneratorSeed` leaves the sample
    # as it is.
    draw = random.Random(seed)
    sample: list[str] = []
    for number, text in enumerate(texts):
        if number < size:
            sample.append(text)
        else:
            index = draw.randrange(number + 1)
            if index < size:
                sample[index] = text
    return sample


_HANGUL = re.compile("[\u1100-\u11ff\u3130-\u318f\uac00-\ud7a3]")
_KOREAN_SHARE = 0.2  # of a vocabulary; of multilingual ones 0.03


@dataclass(frozen=True)
class ExampleTexts:
    """Values that models of one language take. They ask for no knowledge that a small model lacks.

    Attributes:
        masked: A text with a `[MASK]`, which almost any noun fills.
        opinion: A text to classify.
        alike: Two texts to compare.
        ordered: Two texts in their order.
        with_names: A text with names.
        question: A question and its context.
        choice: A context, a question and choices.
    """

    masked: str
    opinion: str
    alike: tuple[str, str]
    ordered: tuple[str, str]
    with_names: str
    question: dict[str, Any]
    choice: dict[str, Any]


ENGLISH = ExampleTexts(
    masked="The following example shows how to use the [MASK].",
    opinion="A pleasure from the first page to the last.",
    alike=("A man plays the guitar.", "Someone is making music."),
    ordered=("The kettle boiled.", "She poured the tea."),
    with_names="Ada Lovelace was born in London.",
    question={"question": "Who wrote it?", "context": "It was written by Ada Lovelace in 1843."},
    choice={
        "context": "It rained all night.",
        "question": "How was the street in the morning?",
        "choices": ["wet", "dry"],
    },
)
KOREAN = ExampleTexts(
    masked="다음은 [MASK] 사용 방법을 보여 주는 예이다.",
    opinion="첫 장면부터 마지막까지 즐거웠다.",
    alike=("한 남자가 기타를 친다.", "누군가 음악을 연주한다."),
    ordered=("물이 끓었다.", "그녀는 차를 따랐다."),
    with_names="세종대왕은 서울에서 태어났다.",
    question={"question": "누가 썼는가?", "context": "이 글은 1443년에 세종대왕이 썼다."},
    choice={
        "context": "밤새 비가 왔다.",
        "question": "아침에 거리는 어땠는가?",
        "choices": ["젖었다", "말랐다"],
    },
)


def choose_example_texts(tokenizer: AlbertTokenizer) -> ExampleTexts:
    """Choose the example texts for a vocabulary: Korean if much of it is Hangul and it can spell them, else English."""
    size = tokenizer.vocab_size
    korean = sum(_HANGUL.search(tokenizer.id_to_piece(token)) is not None for token in range(size))
    texts = (KOREAN.opinion, *KOREAN.choice["choices"])
    can_spell = all(tokenizer.unk_id not in tokenizer.encode(text) for text in texts)
    return KOREAN if korean >= _KOREAN_SHARE * size and can_spell else ENGLISH
