"""The best segmentation of a short string by a unigram model, without the space that SentencePiece puts before a text.

It is asked for pieces: how the old vocabulary would cut a new one.
"""

import math
from collections.abc import Mapping

from albertkit.tokenizer.sentencepiece_model import NORMAL, ModelFacts

_UNKNOWN_PENALTY = 10.0  # kUnkPenalty in unigram_model.cc


class UnigramPieces:
    """The pieces of a unigram model with their scores.

    Args:
        facts: The model.
        unknown: Id of the unknown piece.
    """

    def __init__(self, facts: ModelFacts, unknown: int) -> None:
        self.ids: Mapping[str, int] = {
            piece: number for number, (piece, _, kind) in enumerate(facts.pieces) if kind == NORMAL
        }
        self.scores = [score for _, score, _ in facts.pieces]
        self.lowest = min(self.scores[number] for number in self.ids.values())
        self._unknown = unknown
        self._longest = max(map(len, self.ids))

    def best(self, text: str) -> tuple[float, list[int]]:
        """Score and ids of the best segmentation; each character that no piece covers is unknown.

        Args:
            text: Short, as pieces are: with U+2581 for a space.
        """
        paths: list[tuple[float, int, int]] = [(0.0, 0, 0)]  # score, where the last piece starts, that piece
        for end in range(1, len(text) + 1):
            best = (paths[end - 1][0] + self.lowest - _UNKNOWN_PENALTY, end - 1, self._unknown)
            for start in range(max(0, end - self._longest), end):
                number = self.ids.get(text[start:end])
                if number is not None and paths[start][0] + self.scores[number] > best[0]:
                    best = (paths[start][0] + self.scores[number], start, number)
            paths.append(best)
        ids, end = [], len(text)
        while end:
            _, start, number = paths[end]
            ids.append(number)
            end = start
        return (paths[-1][0] if text else -math.inf), ids[::-1]
