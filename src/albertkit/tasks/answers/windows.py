"""Features of questions: windows over the tokens of a text, with where each token stands in it.

A sequence is `[CLS] question [SEP] window [SEP]`. Source: `convert_examples_to_features` of google-research/albert
`squad_utils.py`; the tokens' places come from the tokenizer, not from a search for the longest common subsequence, so no
question is dropped and every place is exact.

E questions, M windows of T tokens in all, P tokens of a paragraph.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from albertkit.data.features import Features
from albertkit.tasks.answers.questions import QuestionExample

if TYPE_CHECKING:
    from albertkit.tokenizer import AlbertTokenizer

SPECIAL_TOKENS = 3
UNHELD = "no window holds the answer"
SMALLEST_ROOM = 16  # tokens of the text that a window holds at least, however long the question


class Paragraph(NamedTuple):
    """The tokens of a text, and the characters that each stands for."""

    ids: np.ndarray  # int32 [P]
    starts: np.ndarray  # int32 [P], first character
    ends: np.ndarray  # int32 [P], one past the last

    @classmethod
    def of(cls, text: str, tokenizer: AlbertTokenizer) -> Paragraph:
        """Tokenize a text."""
        ids, spans = tokenizer.encode_with_offsets(text)
        places = np.array(spans, np.int32).reshape(-1, 2)
        return cls(np.array(ids, np.int32), np.ascontiguousarray(places[:, 0]), np.ascontiguousarray(places[:, 1]))

    def pieces_of(self, start: int, end: int) -> tuple[int, int] | None:
        """Return the first and the last token of the characters `start:end`; None if no token stands for any of them."""
        first = int(np.searchsorted(self.ends, start, "right"))
        last = int(np.searchsorted(self.starts, end, "left")) - 1
        return (first, last) if first <= last else None


class Window(NamedTuple):
    """A part of a paragraph."""

    start: int  # its first token
    stop: int  # one past its last
    # bool [stop - start]; whether no other window shows more of what stands around the token ("max context")
    is_best: np.ndarray


@lru_cache(maxsize=4096)
def windows(num_pieces: int, room: int, stride: int) -> tuple[Window, ...]:
    """Cut a paragraph of P tokens into windows of `room`; at least one, which is empty if there are no tokens.

    A window begins every `stride` tokens, at most every `room`, so that no token is left out; such windows do not overlap, and
    an answer where two meet is in neither.
    """
    bounds, start = [(0, min(room, num_pieces))], 0
    while bounds[-1][1] < num_pieces:
        start += min(room, stride)
        bounds.append((start, min(start + room, num_pieces)))
    best_score, best_window = np.full(num_pieces, -1.0), np.zeros(num_pieces, np.int64)
    for number, (start, stop) in enumerate(bounds):
        place = np.arange(stop - start)
        score = np.minimum(place, stop - start - 1 - place) + 0.01 * (stop - start)
        better = score > best_score[start:stop]  # of equally good windows the first stays
        best_score[start:stop][better] = score[better]
        best_window[start:stop][better] = number
    return tuple(Window(a, b, best_window[a:b] == number) for number, (a, b) in enumerate(bounds))


def question_limit(length: int, max_query_length: int) -> int:
    """Return how many tokens of a question are kept, the first, so that a window has room for some of the text."""
    return min(max_query_length, length - SPECIAL_TOKENS - SMALLEST_ROOM)


def answer_features(
    examples: Sequence[QuestionExample],
    tokenizer: AlbertTokenizer,
    *,
    length: int,
    doc_stride: int,
    max_query_length: int,
    labelled: bool,
) -> Features:
    """Return windows of all questions. Each text is tokenized once, however many questions there are about it.

    Returns:
        Features. Per token: `char_starts` and `char_ends`, int32, the characters of the text that the token stands for, -1
        outside the text; `max_context`, bool, whether no other window shows more around it. Per sequence: `text_starts`,
        int64, the place of the first token of the text; `question_cut`, bool, whether the question was longer than kept;
        with labels, `start_positions` and `end_positions`, int64, the first and last token of the answer, and `impossible`,
        int64. A window that does not hold the whole answer is labelled 0, 0 and impossible, in SQuAD 1.1, too. `left_out`
        counts the tokens of each question beyond the limit.
    """
    limit = question_limit(length, max_query_length)
    questions = tokenizer.encode_batch([example.question for example in examples])
    paragraphs: dict[str, Paragraph] = {}
    cls, sep = np.array([tokenizer.cls_id], np.int32), np.array([tokenizer.sep_id], np.int32)
    nowhere, nothing = np.full(length, -1, np.int32), np.zeros(length, np.bool_)
    rows: list[tuple[np.ndarray, int]] = []
    numbers: list[int] = []
    starts: list[np.ndarray] = []
    ends: list[np.ndarray] = []
    best: list[np.ndarray] = []
    labels: list[tuple[int, int, int]] = []
    for number, example in enumerate(examples):
        paragraph = paragraphs.get(example.context)
        if paragraph is None:
            paragraph = paragraphs[example.context] = Paragraph.of(example.context, tokenizer)
        question = questions.text(number)[:limit]
        head = np.concatenate([cls, question, sep])
        answer = _answer_pieces(example, paragraph) if labelled else None
        for start, stop, is_best in windows(len(paragraph.ids), length - len(head) - 1, doc_stride):
            rows.append((np.concatenate([head, paragraph.ids[start:stop], sep]), len(head)))
            numbers.append(number)
            starts += [nowhere[: len(head)], paragraph.starts[start:stop], nowhere[:1]]
            ends += [nowhere[: len(head)], paragraph.ends[start:stop], nowhere[:1]]
            best += [nothing[: len(head)], is_best, nothing[:1]]
            inside = answer is not None and start <= answer[0] and answer[1] < stop
            shift = len(head) - start
            labels.append((answer[0] + shift, answer[1] + shift, 0) if inside and answer else (0, 0, 1))
    examples_of = np.array(numbers, np.int64)
    per_sequence = {
        "text_starts": np.array([first for _, first in rows], np.int64),
        "question_cut": (np.diff(questions.offsets) > limit)[examples_of],
    }
    if labelled:
        columns = np.array(labels, np.int64).reshape(-1, 3).T
        names = ("start_positions", "end_positions", "impossible")
        per_sequence |= {name: np.ascontiguousarray(column) for name, column in zip(names, columns, strict=True)}
    per_token = {
        "char_starts": np.concatenate(starts or [nowhere[:0]]),
        "char_ends": np.concatenate(ends or [nowhere[:0]]),
        "max_context": np.concatenate(best or [nothing[:0]]),
    }
    left_out = np.maximum(np.diff(questions.offsets) - limit, 0)
    return Features.of(rows, examples_of, per_sequence, per_token, left_out)


def _answer_pieces(example: QuestionExample, paragraph: Paragraph) -> tuple[int, int] | None:
    target = example.target
    return None if target is None else paragraph.pieces_of(target.start, target.start + len(target.in_context))


class Unrecoverable(NamedTuple):
    """A question whose answer does not come back whole from its labels."""

    id: str  # of the question
    answer: str  # what should come back
    found: str  # what comes back; "" if nothing
    reason: str  # why


def unrecoverable(examples: Sequence[QuestionExample], features: Features) -> Iterator[Unrecoverable]:
    """Yield the questions whose answer, cut from the text by the labels of no window, is exactly the one to learn.

    White space around either does not count. Unanswerable questions have nothing to recover.
    """
    bounds = features.sequences_of(len(examples))
    held = features.per_sequence["impossible"] == 0
    first = features.offsets[:-1] + features.per_sequence["start_positions"]
    last = features.offsets[:-1] + features.per_sequence["end_positions"]
    starts, ends = features.per_token["char_starts"][first], features.per_token["char_ends"][last]
    for number, example in enumerate(examples):
        target = example.target
        if target is None:
            continue
        wanted = target.in_context.strip()
        here = [window for window in range(bounds[number], bounds[number + 1]) if held[window]]
        found = {example.context[starts[window] : ends[window]].strip() for window in here}
        if found != {wanted}:
            text = min(found, default="")
            yield Unrecoverable(example.id, wanted, text, _reason(wanted, text))


def _reason(wanted: str, found: str) -> str:
    if not found:
        return UNHELD
    before, inside, after = found.partition(wanted)
    if not inside:
        return "a token stands for other characters"
    if before and after:
        return "starts and ends inside a token"
    return "starts inside a token" if before else "ends inside a token"


def count_reasons(found: Sequence[Unrecoverable]) -> dict[str, int]:
    """Return how many of each reason, most frequent first."""
    return dict(Counter(item.reason for item in found).most_common())
