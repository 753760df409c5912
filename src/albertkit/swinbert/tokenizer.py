"""Our tokenizers with the methods that SwinBERT's code calls: its tensorizer, its evaluation and its saver."""

import os
import random
from collections.abc import Sequence
from pathlib import Path

from albertkit.tokenizer.files import CONFIG_NAME, JSON_NAME, VOCAB_NAME
from albertkit.tokenizer.tokenizer import AlbertTokenizer


class SwinBertTokenizer:
    """An `AlbertTokenizer` in the place of SwinBERT's `BertTokenizer`.

    Unlike in BERT's, the name of a special token within a caption is plain text.

    Attributes:
        tokenizer: The tokenizer.
        vocab_size: Number of tokens.
        tokens: All of them, by id.
        pad_token, unk_token, cls_token, sep_token, mask_token: Names of special tokens.
        pad_token_id, unk_token_id, cls_token_id, sep_token_id, mask_token_id: Their ids.
    """

    def __init__(self, tokenizer: AlbertTokenizer) -> None:
        self.tokenizer = tokenizer
        self.vocab_size = tokenizer.vocab_size
        self.tokens = [tokenizer.id_to_piece(number) for number in range(tokenizer.vocab_size)]
        self.vocab = {token: number for number, token in enumerate(self.tokens)}
        self.pad_token_id, self.unk_token_id = tokenizer.pad_id, tokenizer.unk_id
        self.cls_token_id = tokenizer.cls_id
        self.sep_token_id = tokenizer.sep_id
        self.mask_token_id = tokenizer.mask_id
        self.all_special_ids = [
            self.pad_token_id,
            self.unk_token_id,
            self.cls_token_id,
            self.sep_token_id,
            self.mask_token_id,
        ]
        self.all_special_tokens = [self.tokens[number] for number in self.all_special_ids]
        self.pad_token, self.unk_token, self.cls_token, self.sep_token, self.mask_token = self.all_special_tokens

    @classmethod
    def from_pretrained(cls, folder: str | os.PathLike[str], do_lower_case: bool = True) -> "SwinBertTokenizer":
        """Read the tokenizer of a folder."""
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
        """Return tokens of a text; unknown ones under the name of the unknown token."""
        return [self.tokens[number] for number in self.tokenizer.encode(text)]

    def encode(self, text: str) -> list[int]:
        """Return ids of a text, without [CLS] and [SEP], as BERT's."""
        return self.tokenizer.encode(text)

    def convert_ids_to_tokens(self, ids: int | Sequence[int], skip_special_tokens: bool = False) -> str | list[str]:
        """Return token of an id, or tokens of ids."""
        if isinstance(ids, int):
            return self.tokens[ids]
        return [self.tokens[number] for number in ids if not (skip_special_tokens and number in self.all_special_ids)]

    def convert_tokens_to_string(self, tokens: Sequence[str]) -> str:
        """Return text of tokens."""
        return self.decode([self.vocab.get(token, self.unk_token_id) for token in tokens])

    def convert_tokens_to_ids(self, tokens: str | Sequence[str]) -> int | list[int]:
        """Return id of a token, or ids of tokens; that of the unknown token for what is none."""
        unknown = self.tokenizer.unk_id
        if isinstance(tokens, str):
            return self.vocab.get(tokens, unknown)
        return [self.vocab.get(token, unknown) for token in tokens]

    def get_random_token(self) -> str:
        """Draw any token with Python's generator, which SwinBERT seeds; BERT's sometimes drew one past the last."""
        return self.tokens[random.randrange(self.vocab_size)]

    def decode(
        self, ids: Sequence[int], skip_special_tokens: bool = False, clean_up_tokenization_spaces: bool = True
    ) -> str:
        """Return text of ids. The spaces are always those of the tokenizer's own text; the last argument changes nothing."""
        return self.tokenizer.decode(ids, skip_special_tokens)


def clean_up_tokenization(text: str) -> str:
    """Return text without the spaces that BERT's tokens leave before punctuation and within contractions."""
    for spaced in (" .", " ?", " !", " ,", " ' ", " n't", " 'm", " do not", " 's", " 've", " 're"):
        text = text.replace(spaced, " don't" if spaced == " do not" else spaced.strip())
    return text
