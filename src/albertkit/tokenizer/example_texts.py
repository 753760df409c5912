"""Example texts in the language of a vocabulary: what cards, pages and errors suggest to type."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from albertkit.tokenizer.tokenizer import AlbertTokenizer

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
        named: A text with names.
        question: A question and its context.
        choice: A context, a question and choices.
    """

    masked: str
    opinion: str
    alike: tuple[str, str]
    ordered: tuple[str, str]
    named: str
    question: dict[str, Any]
    choice: dict[str, Any]


ENGLISH = ExampleTexts(
    masked="The following example shows how to use the [MASK].",
    opinion="A pleasure from the first page to the last.",
    alike=("A man plays the guitar.", "Someone is making music."),
    ordered=("The kettle boiled.", "She poured the tea."),
    named="Ada Lovelace was born in London.",
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
    named="세종대왕은 서울에서 태어났다.",
    question={"question": "누가 썼는가?", "context": "이 글은 1443년에 세종대왕이 썼다."},
    choice={"context": "밤새 비가 왔다.", "question": "아침에 거리는 어땠는가?", "choices": ["젖었다", "말랐다"]},
)


def example_texts(tokenizer: AlbertTokenizer) -> ExampleTexts:
    """Return Korean texts for a vocabulary with much Hangul that can spell them, English ones for any other."""
    size = tokenizer.vocab_size
    korean = sum(_HANGUL.search(tokenizer.id_to_piece(token)) is not None for token in range(size))
    can_spell = all(
        tokenizer.unk_id not in tokenizer.encode(text) for text in (KOREAN.opinion, *KOREAN.choice["choices"])
    )
    return KOREAN if korean >= _KOREAN_SHARE * size and can_spell else ENGLISH
