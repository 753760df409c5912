"""Encode texts in which the name of a special token is that token, as transformers' tokenizers do."""

from collections.abc import Sequence
from functools import cached_property
from typing import Any

import numpy as np

from albertkit.tokenizer.ragged import RaggedIds, ragged
from albertkit.tokenizer.rules import encodable
from albertkit.tokenizer.sentencepiece import fill_missing
from albertkit.tokenizer.tokenizer import AlbertTokenizer


def lower(text: str) -> str:
    """Return a text in lower case, character by character, as tokenizers' `Lowercase`."""
    # So without Python's rule for a final sigma, which looks at the neighbours.
    return "".join(map(str.lower, text))


class NamedSpecials:
    """Reads texts as a tokenizer does, and `[SEP]`, `[MASK]`, `<pad>` in them as these tokens.

    Only texts with such a name go to the `tokenizers` library; the others keep their speed.

    Args:
        tokenizer: The tokenizer for all other texts.
        lower_case: Whether texts are lower-cased first, all but such names.
        names_are_tokens: False reads the names as text, too.
    """

    def __init__(
        self,
        tokenizer: AlbertTokenizer,
        lower_case: bool = False,
        names_are_tokens: bool = True,
    ) -> None:
        self.tokenizer = tokenizer
        self.lower_case = lower_case
        self._names = tokenizer.all_special_tokens if names_are_tokens else []
        self.cls_id = tokenizer.cls_id
        self.sep_id = tokenizer.sep_id
        self.truncation_side = tokenizer.truncation_side

    def encode_batch(self, texts: Sequence[str], num_threads: int = 0) -> RaggedIds:
        """See `AlbertTokenizer.encode_batch`."""
        is_mask_normalized = bool(self._names) and "normalized" in self.tokenizer.mask_flags
        indices = []
        for index, text in enumerate(texts):
            has_name = any(name in text for name in self._names)
            if has_name or (is_mask_normalized and self.tokenizer.mask_spans(text)):
                indices.append(index)
        plain_texts = list(map(lower, texts)) if self.lower_case else list(texts)
        if not indices:
            return self.tokenizer.encode_batch(plain_texts, num_threads)
        rows = []
        for index in indices:
            plain_texts[index] = ""
            ids = self._reader.encode(encodable(texts[index]), add_special_tokens=False).ids
            rows.append(np.array(ids, dtype=np.int32))
        encoded = self.tokenizer.encode_batch(plain_texts, num_threads)
        return fill_missing(encoded, np.array(indices), ragged(rows))

    @property
    def made_of(self) -> tuple[AlbertTokenizer, bool]:
        """Return the arguments."""
        return self.tokenizer, self.lower_case

    @cached_property
    def _reader(self) -> Any:
        from tokenizers import Tokenizer, normalizers

        tokenizer = Tokenizer.from_str(self.tokenizer.tokenizer_json())
        tokenizer.no_truncation()
        tokenizer.no_padding()
        if self.lower_case:
            steps = [normalizers.Lowercase()]
            if tokenizer.normalizer:
                steps.append(tokenizer.normalizer)
            tokenizer.normalizer = normalizers.Sequence(steps)
        return tokenizer
