"""A model of sentence-transformers, with what the encoding of files asks of an encoder."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from albertkit.embeddings.distillation.teacher import folder_digest
from albertkit.embeddings.evaluation.similarity import unit_vectors
from albertkit.embeddings.models import open_other
from albertkit.errors import ConfigError
from albertkit.files import sha256_bytes


@dataclass(frozen=True, eq=False)
class TextsOfLengths:
    """E texts.

    Attributes:
        texts: Themselves.
        lengths: int64 [E], their tokens; of a model without a tokenizer their characters.
        num_truncated: Number of texts that are longer than the model reads.
    """

    texts: Sequence[str]
    lengths: np.ndarray
    num_truncated: int


class OtherEncoder:
    """Any model that sentence-transformers loads, in fp32.

    Args:
        name: As it was given.
        folder: Of the model.
        prompt_name, prompt, device: As `load_embedding_model`.
        length: Longest text in tokens. Default: the model's.

    Raises:
        As `open_other`.
    """

    def __init__(
        self, name: str, folder: Path, prompt_name: str | None, prompt: str | None, device: str, length: int | None
    ) -> None:
        self.model = open_other(name, str(folder), prompt_name, prompt, device, length)
        self._facts = f"{folder_digest(folder)} {self.model.notes} {self.model.room}"

    @property
    def max_length(self) -> int:
        """Tokens that the model reads, without special tokens and the prompt; 0 if it reads all."""
        return self.model.room or 0

    def features(self, texts: Sequence[str]) -> TextsOfLengths:
        """Return texts with their lengths."""
        lengths = np.array([len(text) for text in texts], np.int64)
        if self.model.token_ids is not None:
            lengths = np.diff(self.model.token_ids(texts).offsets)
        room = self.model.room
        cut = 0 if room is None else int((lengths > room).sum())
        return TextsOfLengths(texts, lengths + 1 if room is None else np.minimum(lengths, room) + 1, cut)

    def kept(self, dimension: int | None) -> int:
        """Return how many numbers of a vector are written.

        Raises:
            ConfigError: bad-value.
        """
        kept = self.model.dimension if dimension is None else dimension
        if not 0 < kept <= self.model.dimension:
            raise ConfigError(
                "bad-value", f"{kept} numbers of vectors that have {self.model.dimension}",
                f"use 1 to {self.model.dimension}",
            )  # fmt: skip
        return kept

    def encode_run(self, features: TextsOfLengths, run: np.ndarray, dimension: int, normalize: bool) -> np.ndarray:
        """Return vectors of some texts, computed at once: fp32 [N, dimension]."""
        vectors = self.model.compute([features.texts[n] for n in run.tolist()])[:, :dimension]
        return np.ascontiguousarray(unit_vectors(vectors) if normalize else vectors)

    def digest(self) -> str:
        """SHA-256 of all that decides the vectors."""
        return sha256_bytes(self._facts.encode())
