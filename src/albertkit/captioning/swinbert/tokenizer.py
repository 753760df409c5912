"""Our tokenizers with the methods that SwinBERT's code calls: its tensorizer, its evaluation and its saver."""

import os
import random
from collections.abc import Sequence
from pathlib import Path

from albertkit.tokenizer.loading import CONFIG_NAME, JSON_NAME, VOCAB_NAME
from albertkit.tokenizer.tokenizer import AlbertTokenizer


class SwinBertTokenizer:
    """An `AlbertTokenizer` in the place of SwinBERT's `BertTokenizer`.

    Unlike in BERT's, the name of a special token within a caption is plain text.

    Attributes:
        tokenizer: The tokenizer.
        vocab_size: Number of pieces.
        pad_token, unk_token, cls_token, sep_token, mask_token: What special pieces are called.
    """

    def __init__(self, tokenizer: AlbertTokenizer) -> None:
        self.tokenizer = tokenizer
        self.vocab_size = tokenizer.vocab_size
        self._pieces = [tokenizer.id_to_piece(number) for number in range(tokenizer.vocab_size)]
        self._ids = {piece: number for number, piece in enumerate(self._pieces)}
        special = (tokenizer.pad_id, tokenizer.unk_id, tokenizer.cls_id, tokenizer.sep_id, tokenizer.mask_id)
        self.pad_token, self.unk_token, self.cls_token, self.sep_token, self.mask_token = (
            self._pieces[number] for number in special
        )

    @classmethod
    def from_pretrained(cls, folder: str | os.PathLike[str], do_lower_case: bool = True) -> "SwinBertTokenizer":
        """Read the tokenizer of a folder.

        Args:
            folder: With a SentencePiece model, `vocab.txt` or `tokenizer.json`.
            do_lower_case: Of a `vocab.txt` with no file beside it that says so; else it changes nothing.

        Raises:
            CheckpointError, DataError: As `AlbertTokenizer.from_pretrained`.
        """
        path = Path(folder)
        says_nothing = not any((path / name).exists() for name in (CONFIG_NAME, JSON_NAME)) and not any(
            path.glob("*.model")
        )
        if says_nothing and (path / VOCAB_NAME).exists() and not do_lower_case:
            from albertkit.tokenizer.wordpiece import WordPieceTokenizer, bert_rules, read_vocabulary

            rules = bert_rules({"do_lower_case": False})
            return cls(WordPieceTokenizer(read_vocabulary(path / VOCAB_NAME), rules, source=path / VOCAB_NAME))
        return cls(AlbertTokenizer.from_pretrained(path))

    def save_pretrained(self, folder: str | os.PathLike[str]) -> None:
        """Write what `from_pretrained` reads."""
        self.tokenizer.save_pretrained(folder)

    def __len__(self) -> int:
        return self.vocab_size

    def tokenize(self, text: str) -> list[str]:
        """Pieces of a text; unknown ones under the name of the unknown piece."""
        return [self._pieces[number] for number in self.tokenizer.encode(text)]

    def convert_tokens_to_ids(self, tokens: str | Sequence[str]) -> int | list[int]:
        """Id of a piece, or ids of pieces; that of the unknown piece for what is none."""
        unknown = self.tokenizer.unk_id
        if isinstance(tokens, str):
            return self._ids.get(tokens, unknown)
        return [self._ids.get(token, unknown) for token in tokens]

    def get_random_token(self) -> str:
        """Any piece, by Python's generator, which SwinBERT seeds; BERT's sometimes drew one past the last."""
        return self._pieces[random.randrange(self.vocab_size)]

    def decode(self, ids: Sequence[int], skip_special_tokens: bool = False) -> str:
        """Text of ids."""
        return self.tokenizer.decode(ids, skip_special_tokens)
