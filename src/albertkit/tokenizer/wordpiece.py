"""`WordPieceTokenizer`: the tokenizer of BERT, which Google's Chinese ALBERTs and some Korean ones use.

The rules are those of transformers' `BertTokenizer`, computed by the same library (`tokenizers`):
control characters go, Chinese characters stand alone, accents go (NFD, then marks), lower case;
then words are cut at white space and punctuation, and each becomes the longest pieces that fit,
from the left. `tokenizer_config.json` decides on the flags; without one, as in Google's archives,
they are those of uncased BERT, Google's default.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from albertkit.errors import CheckpointError
from albertkit.files import StrPath, read_json, read_text, sha256_bytes
from albertkit.folder_facts import BERT_CLASSES
from albertkit.tokenizer.files import (
    CONFIG_NAME,
    JSON_NAME,
    SPECIAL_ROLES,
    VOCAB_NAME,
    added_tokens,
    find_vocabularies,
    refuse_text_rules,
    special_names,
)
from albertkit.tokenizer.ragged import RaggedIds, encode_in_chunks, encode_refused_texts
from albertkit.tokenizer.sentencepiece import available_cores
from albertkit.tokenizer.tokenizer_json import JsonTokenizer

if TYPE_CHECKING:
    from albertkit.tokenizer.wordpiece_engine import WordPieceEngine

# Loading the compiled engine takes 0.7 s, half of it numba's own start; it takes 0.02 to 0.04 s for
# a megabyte where the library takes 0.2 to 0.4.
CHARACTERS_BEFORE_ENGINE = 2_000_000
_USUAL_NAMES = {"pad": "[PAD]", "unk": "[UNK]", "cls": "[CLS]", "sep": "[SEP]", "mask": "[MASK]"}


class BertRules(NamedTuple):
    """Flags of BERT's normaliser."""

    lower: bool = True
    strip_accents: bool = True
    split_chinese: bool = True

    @property
    def name(self) -> str:
        """Return the value of `text_rules`: "bert" and the flags that are on."""
        return " ".join(
            ["bert", *(flag for flag, on in zip(self._fields, self, strict=True) if on)]
        )


def bert_rules(settings: Mapping[str, Any]) -> BertRules:
    """Return the flags that a `tokenizer_config.json` asks for, under transformers' names and defaults."""
    lower = bool(settings.get("do_lower_case", True))
    strip = settings.get("strip_accents")
    if strip is None:
        strip = lower
    return BertRules(lower, bool(strip), bool(settings.get("tokenize_chinese_chars", True)))


def read_vocabulary(file: Path) -> list[str]:
    """Return the lines of a `vocab.txt`; the number of a line is its id."""
    # Lines end in \n, \r\n or \r. U+2028, which is a token of such vocabularies, ends none. Blanks
    # around a token are no part of it: transformers' `load_vocab` keeps them, Google's and
    # `tokenizers` do not.
    return [line.strip(" \t") or line for line in read_text(file).removesuffix("\n").split("\n")]


def bert_vocabulary_and_rules(
    content: Any, special_tokens: Mapping[str, str]
) -> tuple[list[str], BertRules] | None:
    """Return vocabulary and flags of a `tokenizer.json` that holds BERT's tokenizer and nothing more; None of any other.

    Args:
        content: Of the file.
        special_tokens: Names of the special tokens, by role; no further token may be added.
    """
    try:
        model = content["model"]
        normalizer = content["normalizer"]
        tokens = sorted(model["vocab"], key=model["vocab"].get)
        around = content["post_processor"]
        if around["type"] == "BertProcessing":
            pair = [around["cls"][0], "A", around["sep"][0], "B", around["sep"][0]]
        else:
            pair = [part["id"] for piece in around["pair"] for part in piece.values()]
        plain = (
            (model["type"], model["continuing_subword_prefix"], model["max_input_chars_per_word"])
            == ("WordPiece", "##", 100)
            and normalizer["type"] == "BertNormalizer"
            and normalizer["clean_text"]
            and content["pre_tokenizer"]["type"] == "BertPreTokenizer"
            and [model["vocab"][token] for token in tokens] == list(range(len(tokens)))
            and all(
                token["special"] and token["content"] in model["vocab"]
                for token in content["added_tokens"]
            )
            and {token["content"] for token in content["added_tokens"]}
            <= set(special_tokens.values())
            and all(
                isinstance(normalizer[flag], bool) for flag in ("lowercase", "handle_chinese_chars")
            )
            and normalizer["strip_accents"] in (True, False, None)
            and pair
            == [special_tokens["cls"], "A", special_tokens["sep"], "B", special_tokens["sep"]]
        )
        lower = normalizer["lowercase"]
        strip = normalizer["strip_accents"]
        if strip is None:
            strip = lower
        chinese = normalizer["handle_chinese_chars"]
    except (KeyError, TypeError, AttributeError):
        return None
    if not plain:
        return None
    return tokens, BertRules(lower, strip, chinese)


class WordPieceTokenizer(JsonTokenizer):
    """BERT's tokenizer over a vocabulary. Make one with `AlbertTokenizer.from_pretrained`."""

    def __init__(
        self,
        vocabulary: Sequence[str],
        rules: BertRules = BertRules(),  # noqa: B008
        names: Mapping[str, str] | None = None,
        source: StrPath = VOCAB_NAME,
    ) -> None:
        """Use `from_pretrained` unless the vocabulary is in memory.

        Args:
            vocabulary: Tokens by id; of a token listed twice, the last counts.
            rules: Normalisation of a text.
            names: Names of the special tokens, by role; default `[PAD] [UNK] [CLS] [SEP] [MASK]`.
            source: Path of the vocabulary, for messages.
        """
        self._vocabulary = list(vocabulary)
        self._rules = rules
        names = {**_USUAL_NAMES, **(names or {})}
        super().__init__(
            _bert_json(self._vocabulary, rules, names, source),
            names,
            rules.name,
            source,
        )
        self.vocab_size = len(self._vocabulary)
        identity = "\n".join([*self._vocabulary, "", rules.name, *self._names.values()])
        self.fingerprint = sha256_bytes(identity.encode())
        self._characters = 0
        self._engine: WordPieceEngine | None = None

    def _constructor_arguments(self) -> tuple:
        return (self._vocabulary, self._rules, self._names, self._source)

    @classmethod
    def from_files(
        cls,
        folder: Path,
        settings: dict[str, Any],
        text_rules: str | None,
        only_json: bool,
    ) -> "WordPieceTokenizer | None":
        """Read a `vocab.txt`, or BERT's tokenizer in a `tokenizer.json`. See `AlbertTokenizer.from_files`."""
        listed = [] if only_json else find_vocabularies(folder)
        if listed:
            refuse_text_rules(folder, text_rules)
            vocabulary = read_vocabulary(listed[0])
            names = special_names(settings)
            # A special token that was added behind it
            if not set(vocabulary).issuperset(names.values()):
                added = {number: name for name, number in added_tokens(folder).items()}
                while (name := added.get(len(vocabulary))) is not None:
                    vocabulary.append(name)
            return cls(vocabulary, bert_rules(settings), names, source=listed[0])
        file = folder / JSON_NAME
        if not file.exists():
            return None
        names = {**_USUAL_NAMES, **special_names(settings)}
        bert = bert_vocabulary_and_rules(read_json(file, "tokenizer"), names)
        if bert is None:
            return None
        refuse_text_rules(folder, text_rules)
        vocabulary, rules = bert
        if settings.get("tokenizer_class") in BERT_CLASSES:
            # transformers' class has these flags, whatever the file says
            rules = bert_rules(settings)
        return cls(vocabulary, rules, special_names(settings), source=file)

    def _files_and_settings_to_save(self) -> tuple[dict[str, bytes], dict[str, Any]]:
        listed = "".join(piece + "\n" for piece in self._vocabulary)
        return {VOCAB_NAME: listed.encode(), JSON_NAME: self._content.encode()}, {
            "tokenizer_class": "BertTokenizer",
            "do_lower_case": self._rules.lower,
            "strip_accents": self._rules.strip_accents,
            "tokenize_chinese_chars": self._rules.split_chinese,
        }

    def required_ids(self) -> list[int]:
        """See `AlbertTokenizer.required_ids`."""
        ids = {token: token_id for token_id, token in enumerate(self._vocabulary)}
        required = set(self.special_ids())
        for token, token_id in ids.items():
            letters = token.removeprefix("##")
            start = "##" if token.startswith("##") else ""
            characters = [start + letters[:1], *(f"##{letter}" for letter in letters[1:])]
            if len(letters) < 2 or not ids.keys() >= set(characters):
                required.add(token_id)
        return sorted(required)

    def with_tokens(self, ids: Sequence[int]) -> "WordPieceTokenizer":
        """See `AlbertTokenizer.with_tokens`."""
        vocabulary = [self._vocabulary[token_id] for token_id in ids]
        return WordPieceTokenizer(vocabulary, self._rules, self._names, self._source)

    def encode_batch(self, texts: Sequence[str], num_threads: int = 0) -> RaggedIds:
        """See `AlbertTokenizer.encode_batch`. Until a compiled engine pays, the work is the `tokenizers` library's."""
        self._characters += sum(map(len, texts))
        if self._characters < CHARACTERS_BEFORE_ENGINE:
            return super().encode_batch(texts, num_threads)
        self.start_engine()
        return encode_in_chunks(self._encode_chunk, texts, num_threads or available_cores())

    def start_engine(self) -> bool:
        """See `AlbertTokenizer.start_engine`; by itself after 2 million characters. True: it is one for every vocabulary."""
        from albertkit.tokenizer.wordpiece_engine import WordPieceEngine

        if self._engine is None:
            pieces = {piece: number for number, piece in enumerate(self._vocabulary)}
            engine = WordPieceEngine(
                self._backend.normalizer,
                self._backend.pre_tokenizer,
                pieces,
                self.unk_id,
                self._rules.strip_accents,
            )
            # Compiled before other threads see it; until then they encode by `tokenizers`.
            engine.encode(["a"])
            self._engine = engine
        self._characters = CHARACTERS_BEFORE_ENGINE
        return True

    def _encode_chunk(self, texts: Sequence[str]) -> RaggedIds:
        assert self._engine is not None
        encoded, refused = self._engine.encode(texts)
        return encode_refused_texts(encoded, refused, texts, super().encode_batch)

    def _piece(self, piece_id: int) -> str:
        return self._vocabulary[piece_id]


def _bert_json(
    vocabulary: list[str],
    rules: BertRules,
    names: Mapping[str, str],
    source: Any,
) -> str:
    """Return the content of `tokenizer.json`, as transformers' `BertTokenizer` builds it."""
    # Known differences, transformers followed in each: Google's own class lets words be 200
    # characters long before they become `[UNK]`, transformers 100; Google's gives a line that
    # stands in the vocabulary twice the id of the first, transformers of the last; the Python class
    # of transformers 4 composed a text (NFC) before anything else, the fast one and transformers 5
    # do not, so that with `strip_accents` false decomposed Hangul is unknown. Stripping accents
    # decomposes Hangul by itself.
    from tokenizers import (
        AddedToken,
        Tokenizer,
        decoders,
        models,
        normalizers,
        pre_tokenizers,
        processors,
    )

    ids = {piece: number for number, piece in enumerate(vocabulary)}
    specials = [names[role] for role in SPECIAL_ROLES]
    _, unk, cls, sep, _ = specials
    missing = [name for name in specials if name not in ids]
    if missing:
        fact = f"`{source}` ({len(vocabulary):,} lines) has no {' and no '.join(missing)}"
        raise CheckpointError(
            "wrong-tokenizer",
            fact,
            f'is it a WordPiece vocabulary? Other names go into {CONFIG_NAME}: "cls_token": …',
        )
    tokenizer = Tokenizer(models.WordPiece(ids, unk_token=unk, max_input_chars_per_word=100))
    flags = {"handle_chinese_chars": rules.split_chinese, "strip_accents": rules.strip_accents}
    tokenizer.normalizer = normalizers.BertNormalizer(
        clean_text=True,
        lowercase=rules.lower,
        **flags,
    )
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece(prefix="##")
    tokenizer.add_special_tokens(
        [AddedToken(name, special=True, normalized=False) for name in specials]
    )
    single = f"{cls}:0 $A:0 {sep}:0"
    special = [(cls, ids[cls]), (sep, ids[sep])]
    pair = f"{single} $B:1 {sep}:1"
    tokenizer.post_processor = processors.TemplateProcessing(
        single=single,
        pair=pair,
        special_tokens=special,
    )
    return tokenizer.to_str(pretty=False)
