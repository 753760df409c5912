"""Compute vectors of texts, and how near they are, with sentence encoders."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from albertkit.data.features import Features, LabelledBatch
from albertkit.embeddings.encoder import SentenceEncoder
from albertkit.engines.engine import Engine, Precision
from albertkit.inference.pipeline import Pipeline, Result, is_text, text_of


class Embed(Pipeline[str]):
    """Compute the vector of a text.

    Args:
        encoder: Any sentence encoder.
        precision: As `Pipeline`.
    """

    kind = "embed"
    options = ("dimension",)
    example_name = "opinion"

    def __init__(self, encoder: SentenceEncoder, precision: Precision | Engine = "auto") -> None:
        super().__init__(encoder.albert, encoder.tokenizer, precision)
        self.encoder = encoder

    def parse(self, value: Any) -> str:
        """Read a text, or an object with `text`; an empty one has a vector, too."""
        value = text_of(value)
        if not is_text(value):
            raise self.bad_input(value, "a text")
        return value

    def features(self, inputs: Sequence[str]) -> Features:
        """Tokenize each text into a sequence, cut to the encoder's length."""
        return self.encoder.features(inputs)

    def outputs(self, batch: LabelledBatch) -> list[np.ndarray]:
        """Return the whole vector fp32 [D] of each sequence."""
        return list(self.encoder.vectors(batch.packed, self.engine).cpu().numpy())

    def token_states(self, batch: LabelledBatch) -> list[np.ndarray]:
        """Return the last hidden states of each sequence, fp32 [S, H], special tokens included."""
        hidden = self.engine.encode(batch.packed).hidden.float().cpu().numpy()
        return np.split(hidden, batch.packed.offsets[1:-1].tolist())

    def results(
        self,
        inputs: Sequence[str],
        features: Features,
        outputs: Sequence[Any],
        *,
        dimension: int | None = None,
        **_: Any,
    ) -> list[Result]:
        """Return `embedding`, fp32 [D], and `tokens`, how many were read."""
        kept = self.encoder.kept(dimension)
        return [
            {"embedding": vector[:kept], "tokens": tokens}
            for vector, tokens in zip(outputs, features.lengths.tolist(), strict=True)
        ]

    def similarity(self, first: list[str], second: list[str] | None = None) -> np.ndarray:
        """Return the cosine of every text with every other: fp32 [A, B].

        Args:
            first: A texts.
            second: B texts. Default: the first ones.
        """
        a = self._stacked(first)
        return self.encoder.similarity(a, a if second is None else self._stacked(second))

    def _stacked(self, texts: list[str]) -> np.ndarray:
        listed = [texts] if isinstance(texts, str) else list(texts)
        vectors = [record["embedding"] for record in self(listed)]
        return np.array(vectors, np.float32).reshape(len(listed), self.encoder.kept(None))
