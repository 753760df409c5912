"""`JsonTokenizer`: a folder whose only tokenizer file is `tokenizer.json`, run by the `tokenizers` library.

transformers 5 saves no other file, and a model fine-tuned with it has learned from the ids of that file, its faults
included (`albertkit tokenizer check` shows an example). So it is run as it is, rather than turned back into SentencePiece. Two
things are albertkit's: padding and truncation that the file may ask for are left out, and the names of the five special
tokens in a text are plain text, not ids.
"""

import json
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from albertkit.errors import CheckpointError
from albertkit.files import read_json, sha256_bytes
from albertkit.folder_facts import AddedToken
from albertkit.tokenizer.folder_files import (
    CONFIG_NAME,
    JSON_NAME,
    SPECIAL_ROLES,
    check_no_rules,
    special_names,
)
from albertkit.tokenizer.ragged import RaggedIds, ragged
from albertkit.tokenizer.rules import encodable
from albertkit.tokenizer.tokenizer import AlbertTokenizer

_USUAL_NAMES = {
    "pad": ("<pad>", "[PAD]"), "unk": ("<unk>", "[UNK]"), "cls": ("[CLS]", "<cls>"), "sep": ("[SEP]", "<sep>"),
    "mask": ("[MASK]", "<mask>"),
}  # fmt: skip
_UNMATCHED = "\uffff"  # before a special token's name in a Unigram vocabulary: no text holds this noncharacter


_MOST_TOKENS = 10_000_000  # as `AlbertConfig`: beyond it a broken file
_UNKNOWN = "\U0010ff00"  # for private use: no vocabulary has it


class JsonTokenizer(AlbertTokenizer):
    """The tokenizer of a `tokenizer.json`. Make one with `AlbertTokenizer.from_pretrained`."""

    def __init__(
        self,
        content: str,
        names: Mapping[str, str] | None = None,
        text_rules: str = "tokenizer.json",
        source: str | os.PathLike[str] = JSON_NAME,
    ) -> None:
        """Use `from_pretrained` unless the file is in memory.

        Args:
            content: Content of a `tokenizer.json` with a Unigram or WordPiece model.
            names: What the special tokens are called, by role: "pad", "unk", "cls", "sep", "mask". Default: ALBERT's or
                BERT's usual names, whichever the vocabulary has.
            text_rules: What to call its rules.
            source: Where it came from, for messages.
        """
        self.text_rules = text_rules
        self._content, self._source = content, str(source)
        parts = self._parts()
        self._kind: str = parts["model"]["type"]
        self._whole = self._read(parts)
        self._added_names = {token.content for token in self._whole.get_added_tokens_decoder().values()}
        vocabulary = self._whole.get_vocab(with_added_tokens=True)
        self.vocab_size = max(vocabulary.values()) + 1
        if self.vocab_size > _MOST_TOKENS:
            raise self._broken(f"its largest id is {self.vocab_size - 1:,}")
        self._names = self._found_names(vocabulary, names or {})
        self.pad_id, self.unk_id, self.cls_id, self.sep_id, self.mask_id = (vocabulary[n] for n in self._names.values())
        self._backend = self._read(_without_specials(parts, set(self._names.values())))
        try:
            self._backend.encode(_UNKNOWN, add_special_tokens=False)
        except Exception as error:  # the unknown token is missing; the library says it at the first such text
            raise self._broken(str(error)) from None
        self.fingerprint = sha256_bytes(json.dumps([content, list(self._names.values())]).encode())

    def _arguments(self) -> tuple:
        return (self._content, self._names, self.text_rules, self._source)

    @classmethod
    def from_files(
        cls, folder: Path, settings: dict[str, Any], text_rules: str | None, only_json: bool
    ) -> "JsonTokenizer | None":
        """Read a `tokenizer.json`. See `AlbertTokenizer.from_files`."""
        file = folder / JSON_NAME
        if not file.exists():
            return None
        check_no_rules(folder, text_rules)
        read_json(file, "tokenizer")  # names the line of what is no JSON
        tokenizer = cls(file.read_text(encoding="utf-8"), special_names(settings), source=file)
        tokenizer._check_template()
        return tokenizer

    @classmethod
    def with_added(cls, folder: Path, tokenizer: AlbertTokenizer, added: Sequence[AddedToken]) -> "JsonTokenizer":
        """See `AlbertTokenizer.with_added`."""
        file = folder / JSON_NAME
        content = file.read_text(encoding="utf-8") if file.exists() else tokenizer.tokenizer_json()
        names = {role: tokenizer.id_to_piece(getattr(tokenizer, f"{role}_id")) for role in SPECIAL_ROLES}
        return JsonTokenizer(_with_added_tokens(content, added, folder), names, source=file)

    def matches_added(self, token: AddedToken) -> bool:
        """See `AlbertTokenizer.matches_added`; those that the file lists are matched."""
        return super().matches_added(token) or token.content in self._added_names

    def _saved(self) -> tuple[dict[str, bytes], dict[str, Any]]:
        return {JSON_NAME: self._content.encode()}, self._class_flags()

    # --- encoding -----------------------------------------------------------------------------------------------------

    def encode_batch(self, texts: Sequence[str], num_threads: int = 0) -> RaggedIds:
        """See `AlbertTokenizer.encode_batch`. `tokenizers` decides on the number of threads by itself."""
        with _panics_as_errors():
            encoded = self._backend.encode_batch_fast([encodable(text) for text in texts], add_special_tokens=False)
        return ragged([np.array(text.ids, dtype=np.int32) for text in encoded])

    def encode_with_offsets(self, text: str) -> tuple[list[int], list[tuple[int, int]]]:
        """See `AlbertTokenizer.encode_with_offsets`; the spans are those of the `tokenizers` library."""
        with _panics_as_errors():
            encoded = self._backend.encode(encodable(text), add_special_tokens=False)
        return encoded.ids, encoded.offsets

    def pieces(self, text: str) -> list[str]:
        """See `AlbertTokenizer.pieces`."""
        ids, spans = self.encode_with_offsets(text)
        return [text[a:b] if i == self.unk_id else self._piece(i) for i, (a, b) in zip(ids, spans, strict=True)]

    # --- the vocabulary -----------------------------------------------------------------------------------------------

    def special_ids(self) -> list[int]:
        """Return the ids of the five special tokens, ascending."""
        return sorted((self.pad_id, self.unk_id, self.cls_id, self.sep_id, self.mask_id))

    # --- inside -------------------------------------------------------------------------------------------------------

    def _encode_plain(self, text: str) -> list[int]:
        return self.encode_with_offsets(text)[0]

    def _decode(self, ids: list[int], skip_special_tokens: bool) -> str:
        with _panics_as_errors():
            return self._whole.decode(ids, skip_special_tokens=skip_special_tokens)

    def _piece(self, piece_id: int) -> str:
        return self._whole.id_to_token(piece_id) or ""

    def _starts_word(self, piece: str) -> bool:
        return not piece.startswith("##") if self._kind == "WordPiece" else super()._starts_word(piece)

    def _class_flags(self) -> dict[str, bool]:
        """Return `do_lower_case` and `keep_accents` as the normalisation in the file has them.

        The class `transformers.AlbertTokenizer` builds its own normalisation from these two.
        """
        kinds = set(re.findall(r'"type": *"(Lowercase|StripAccents)"', json.dumps(self._parts()["normalizer"])))
        return {"do_lower_case": "Lowercase" in kinds, "keep_accents": "StripAccents" not in kinds}

    def _parts(self) -> dict[str, Any]:
        try:
            parts = json.loads(self._content)
            kind = parts["model"]["type"]
        except (ValueError, KeyError, TypeError):
            raise self._broken("it is not the JSON of one") from None
        if kind not in ("Unigram", "WordPiece"):
            what = f"`{self._source}` holds a {kind} model"
            raise CheckpointError(
                "unsupported",
                what,
                "albertkit reads Unigram and WordPiece, which ALBERTs have; train one: `albertkit tokenizer train`",
            )
        parts["padding"] = parts["truncation"] = None
        return parts

    def _read(self, parts: dict[str, Any]) -> Any:
        from tokenizers import Tokenizer

        try:
            return Tokenizer.from_str(json.dumps(parts))
        except (KeyboardInterrupt, SystemExit):
            raise
        except BaseException as error:  # the library raises nothing more particular; its panics are no Exception
            raise self._broken(str(error)) from None

    def _broken(self, why: str) -> CheckpointError:
        return CheckpointError(
            "bad-file", f"`{self._source}` is not a tokenizer: {why}", "fetch it again, or save it again"
        )

    def _check_template(self) -> None:
        """Refuse a file that puts other special tokens around a text or a pair than `[CLS] A [SEP] B [SEP]`.

        transformers would give the model what the file says, and ALBERT's heads read the first token.
        """
        first, second = (self._whole.encode(text, add_special_tokens=False).ids for text in ("a", "b"))
        single = [self.cls_id, *first, self.sep_id]
        if self._whole.encode("a").ids == single and self._whole.encode("a", "b").ids == [
            *single,
            *second,
            self.sep_id,
        ]:
            return
        names = [self._piece(number) for number in self._whole.encode("a", "b").ids]
        fact = f"`{self._source}` reads the pair `a`, `b` as {' '.join(names)}, not as [CLS] a [SEP] b [SEP]"
        raise CheckpointError(
            "unsupported", fact, "set its post_processor as ALBERT's tokenizers have it, if the model wants it"
        )

    def _found_names(self, vocabulary: Mapping[str, int], given: Mapping[str, str]) -> dict[str, str]:
        names = {}
        for role in SPECIAL_ROLES:
            wanted = (given[role],) if role in given else _USUAL_NAMES[role]
            present = [name for name in wanted if name in vocabulary]
            if not present:
                what = f"`{self._source}` has no {role} token ({' or '.join(wanted)})"
                raise CheckpointError("wrong-tokenizer", what, f'name it in {CONFIG_NAME}: "{role}_token": …')
            names[role] = present[0]
        return names


@contextmanager
def _panics_as_errors() -> Iterator[None]:
    """State a panic of the library, which is no Exception and ends whatever catches those, as an error."""
    try:
        yield
    except BaseException as error:
        if type(error).__name__ != "PanicException":
            raise
        fact = f"the regular expressions of {JSON_NAME} fail on this text: {error}"
        raise CheckpointError("bad-file", fact, "leave the text out, or use another tokenizer") from None


def _with_added_tokens(content: str, added: Sequence[AddedToken], folder: Path) -> str:
    """Return the content of a `tokenizer.json` that matches further tokens; those that it lists itself stay as they are.

    Raises:
        CheckpointError: wrong-tokenizer if a token would get another id than the folder says.
    """
    from tokenizers import AddedToken as TheirToken
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_str(content)
    known = {token.content for token in tokenizer.get_added_tokens_decoder().values()}
    missing = [token for token in added if token.content not in known]
    for token in sorted(missing, key=lambda token: (token.id is None, token.id or 0)):
        tokenizer.add_tokens([TheirToken(token.content, **token.flags)])
        number = tokenizer.token_to_id(token.content)
        if token.id not in (None, number):
            fact = f"`{folder}` gives the added token `{token.content}` the id {token.id}, its vocabulary {number}"
            raise CheckpointError("wrong-tokenizer", fact, "fetch the tokenizer's files again, all from one place")
    return tokenizer.to_str()


def _without_specials(parts: dict[str, Any], names: set[str]) -> dict[str, Any]:
    """Return the parts of a tokenizer to which the names of its special tokens mean nothing."""
    model = dict(parts["model"])
    if model["type"] == "Unigram":
        model["vocab"] = [[_UNMATCHED + piece if piece in names else piece, score] for piece, score in model["vocab"]]
    added = [token for token in parts.get("added_tokens") or [] if token["content"] not in names]
    return {**parts, "model": model, "added_tokens": added, "post_processor": None}
