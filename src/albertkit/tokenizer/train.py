"""Train a SentencePiece unigram model with ALBERT's special ids."""

import io
import re
import shlex
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from albertkit.command import takes
from albertkit.errors import CheckpointError, ConfigError, DataError, MachineError
from albertkit.files import atomic_folder, check_new_folder, check_other_files, check_writable
from albertkit.output.sections import Paragraph, Section, TableSection
from albertkit.tokenizer import rules
from albertkit.tokenizer.files import TOKENIZER_FILES
from albertkit.tokenizer.morphemes import Analyser, find_analyser
from albertkit.tokenizer.options import TokenizerSettings, TrainTokenizerOptions
from albertkit.tokenizer.sentencepiece import SentencePieceTokenizer, available_cores
from albertkit.tokenizer.sentencepiece_model import (
    NORMAL,
    SPACE,
    SPECIAL_PIECES,
    add_unused_pieces,
    ends_in_digit_comma,
    read_facts,
    rebuild_model,
    round_score,
    special_id_of_piece,
)
from albertkit.tokenizer.texts import check_is_running_text, draw_texts, read_lines
from albertkit.validation import check_fields


@dataclass(frozen=True)
class TextFit:
    """Fit of a vocabulary to some lines of text.

    Attributes:
        lines, words, pieces: Numbers; a word ends at a space of the text. Spaces that an analyser
            puts between morphemes end none, so that vocabularies with and without them can be
            compared.
        unknown_rate: Share of the tokens that are the unknown token.
        unknown_words: Share of the words that have an unknown character.
        pieces_a_word: Tokens per word.
        character_coverage: Share of the characters, spaces left out, that have a token.
        unknown_characters: The most frequent characters without a token.
        round_trip: Share of the lines whose ids decode to the line as the rules and the model's
            normaliser leave it.
    """

    lines: int
    words: int
    pieces: int
    unknown_rate: float
    unknown_words: float
    pieces_a_word: float
    character_coverage: float
    unknown_characters: list[str]
    round_trip: float

    def to_dict(self) -> dict[str, Any]:
        """Return all fields, for JSON."""
        return asdict(self)


def fit_sections(fits: Mapping[str, TextFit | None]) -> list[Section]:
    """Return a table of the fit of vocabularies to lines of text, a column each."""
    measured_fits = {name: fit for name, fit in fits.items() if fit is not None}
    if not measured_fits:
        return [Paragraph("the text is too short to hold lines out and measure on them")]
    formats: dict[str, Callable[[TextFit], str]] = {
        "lines": lambda fit: f"{fit.lines:,}",
        "tokens a word": lambda fit: f"{fit.pieces_a_word:.3f}",
        "unknown tokens": lambda fit: f"{fit.unknown_rate:.3%}",
        "words with an unknown character": lambda fit: f"{fit.unknown_words:.3%}",
        "characters with a token": lambda fit: f"{fit.character_coverage:.3%}",
        "unknown characters": lambda fit: "".join(fit.unknown_characters[:10]),
        "lines that decode to themselves": lambda fit: f"{fit.round_trip:.2%}",
    }
    return [
        TableSection(
            ["", *measured_fits],
            [[name, *map(text, measured_fits.values())] for name, text in formats.items()],
        )
    ]


def tokenizer_json_section(lines_compared: int, lines_differing: int) -> Section:
    """Return a line that compares the ids of `tokenizer.json` with those of its tokenizer."""
    if not lines_compared:
        return Paragraph("there is no tokenizer.json: transformers cannot open the folder")
    differ = f"{lines_differing:,} differ" if lines_differing else "none differs"
    return Paragraph(
        f"tokenizer.json, as transformers loads it: {lines_compared:,} lines compared, {differ}"
    )


def measure_tokenizer_fit(
    tokenizer: SentencePieceTokenizer, lines: Sequence[str]
) -> TextFit | None:
    """Encode lines that the vocabulary was not trained on, and count; None without lines."""
    if not lines:
        return None
    encoded = tokenizer.encode_batch(lines)
    normalized = [tokenizer.normalized(line) for line in lines]
    words = [word for line in normalized for word in line.split(SPACE) if word]
    characters = Counter(character for word in words for character in word)
    unknown = {c: n for c, n in characters.items() if tokenizer.piece_to_id(c) == tokenizer.unk_id}
    back = sum(
        tokenizer.decode(ids.tolist()) == line.replace(SPACE, " ").strip()
        for ids, line in zip(encoded.texts(), normalized, strict=True)
    )
    num_pieces = len(encoded.ids)
    num_words = len(words)
    if tokenizer.analyser:  # its spaces end no word
        num_words = sum(len(rules.apply(tokenizer.text_rules, line).split()) for line in lines)
    return TextFit(
        lines=len(lines),
        words=num_words,
        pieces=num_pieces,
        unknown_rate=int(np.count_nonzero(encoded.ids == tokenizer.unk_id)) / max(num_pieces, 1),
        unknown_words=sum(not unknown.keys().isdisjoint(word) for word in words)
        / max(len(words), 1),
        pieces_a_word=num_pieces / max(num_words, 1),
        character_coverage=1 - sum(unknown.values()) / max(characters.total(), 1),
        unknown_characters=sorted(unknown, key=unknown.__getitem__, reverse=True)[:20],
        round_trip=back / len(lines),
    )


def longest_pieces(tokenizer: SentencePieceTokenizer) -> list[str]:
    """Return the ten longest tokens of a vocabulary, by characters; a look at them shows what does not belong there."""
    return sorted(read_facts(tokenizer.model).pieces_of_type(NORMAL), key=len, reverse=True)[:10]


_MAX_SEED_LENGTH = 16  # characters, as in SentencePiece
_MAX_SEEDS = 1_000_000  # as in SentencePiece


@takes(TrainTokenizerOptions)
def train_tokenizer(options: TrainTokenizerOptions) -> SentencePieceTokenizer:
    """Train a tokenizer and write its folder.

    The settings of 30k-clean: unigram, pad 0, unknown 1, control tokens `[CLS]`, `[SEP]` and
    `[MASK]` at 2, 3 and 4, no begin or end of sentence, the user-defined symbols from 5 on,
    normaliser nmt_nfkc. The same texts and settings give the same bytes.

    Args:
        options: See `TrainTokenizerOptions`; its fields are arguments, too.

    Returns:
        The tokenizer.

    Raises:
        DataError: empty, not-found, bad-encoding, wrong-kind, corrupt.
        CheckpointError: exists.
        ConfigError: too-little-data, bad-value, unknown-name.
        MachineError: internal-error. MissingExtraError: not-installed, for morphemes without their
            analyser.

    Source: the settings of google-research/albert's README for 30k-clean.
    """
    return check_and_train_tokenizer(options.texts, Path(options.out), options.vocab_size, options)


def check_and_train_tokenizer(
    texts: Iterable[str | Path],
    out: Path,
    vocab_size: int,
    settings: TokenizerSettings,
) -> SentencePieceTokenizer:
    """Check everything, then train a tokenizer and write its folder."""
    import sentencepiece

    check_tokenizer_output_folder(out, settings.overwrite)
    _check_settings(settings, vocab_size)
    analyser = find_analyser(settings.analyser) if settings.morphemes != "none" else None
    sample = draw_texts(
        _read_texts(texts, settings.text_rules),
        settings.max_sentences,
        settings.seed,
    )
    if not sample:
        raise DataError(
            "empty",
            "there is no text to train a tokenizer on",
            "name files with at least one line of text",
        )
    seeds = None
    analyser_name = None
    if analyser and settings.morphemes == "boundary":
        normalize = sentencepiece.SentencePieceNormalizer(rule_name="nmt_nfkc").normalize
        seeds = morpheme_seeds(
            (normalize(text).replace(SPACE, " ").strip() for text in sample), analyser
        )
    if analyser and settings.morphemes == "spaces":
        analyser_name = settings.analyser
        sample = [analyser.separated(text, " ") for text in sample]
    model = _train_model(sample, vocab_size, settings, seeds)
    tokenizer = SentencePieceTokenizer(
        model,
        settings.text_rules,
        source=out,
        analyser=analyser_name,
    )
    with atomic_folder(out) as folder:  # half a tokenizer would have to be replaced by hand
        tokenizer.save_pretrained(folder)
        tokenizer.write_piece_listing(folder)
    return tokenizer


def _check_settings(settings: TokenizerSettings, vocab_size: int) -> None:
    check_fields(settings)
    rules.check_rules_name(settings.text_rules)
    names = list(settings.special_pieces)
    misplaced = any(
        not name.strip() or special_id_of_piece(name) not in (None, role)
        for role, name in enumerate(names)
    )
    if len(names) != len(SPECIAL_PIECES) or len(set(names)) < len(names) or misplaced:
        requirement = "needed are five names, for padding, unknown, start, separation, mask"
        fact = f"special_pieces is {' '.join(names)}; {requirement}"
        raise ConfigError("bad-value", fact, "use [PAD] [UNK] [CLS] [SEP] [MASK], for example")
    commas = [symbol for symbol in settings.user_defined_symbols if ends_in_digit_comma(symbol)]
    if commas and rules.has_google_rules(settings.text_rules):
        fact = f"the user-defined symbol {commas[0]!r} ends in a digit and a comma, which Google's rules take apart"
        raise ConfigError(
            "bad-value",
            fact,
            "leave it out, or use other text rules: --text-rules multilingual",
        )
    num_fixed = len(SPECIAL_PIECES) + len(settings.user_defined_symbols) + settings.reserve
    if settings.byte_fallback:
        num_fixed += 256
    if vocab_size <= num_fixed + 1:
        fact = f"vocab_size is {vocab_size}; special tokens, symbols and reserved tokens alone take {num_fixed}"
        raise ConfigError("bad-value", fact, "use 8000 or more")


def check_tokenizer_output_folder(out: Path, overwrite: bool) -> None:
    """Refuse to replace a tokenizer unasked, and a model's ever."""
    # Ids mean nothing without their tokenizer: a model would be lost with it.
    if not out.is_dir():
        check_new_folder(out)
    check_other_files(out, TOKENIZER_FILES, "a tokenizer")
    patterns = ("*.model", "vocab.txt", "tokenizer.json")
    existing_files = sorted(file.name for pattern in patterns for file in out.glob(pattern))
    if existing_files and not overwrite:
        raise CheckpointError(
            "exists",
            f"`{out}` holds a tokenizer ({', '.join(existing_files)})",
            "choose another --out, or add --overwrite to replace it",
        )
    check_writable(out)


def _read_texts(texts: Iterable[str | Path], text_rules: str) -> Iterator[str]:
    """Yield non-empty texts, and non-empty lines of files, after their rules."""
    for source in texts:
        lines: Iterable[str]
        if isinstance(source, Path):
            hints = {"other": "take the texts out of it, one a line"}
            file = shlex.quote(str(source)).replace("{", "{{").replace("}", "}}")
            for format in ("csv", "tsv", "jsonl"):
                command = f"albertkit tokenizer train {file} --format {format} --field {{column}}"
                hints[format] = f"name the column of the texts: {command}"
            check_is_running_text(source, hints)
            lines = read_lines(source)
        else:
            lines = (source,)
        for line in lines:
            # SentencePiece keeps NUL for itself.
            prepared = rules.apply(text_rules, line.replace("\0", " "))
            if prepared.strip():
                yield prepared


def morpheme_seeds(lines: Iterable[str], analyser: Analyser) -> list[tuple[str, int]]:
    """Return strings within morphemes and their occurrences, at most a million, by occurrences times length.

    The lines are text as the trainer's normaliser leaves it, with plain spaces. Strings that occur
    once are left out.
    """
    # SentencePiece prunes a large set of strings, its seeds, down to the vocabulary, and adds none:
    # if every seed lies within a morpheme, so does every token. Its own way,
    # `pretokenization_delimiter` (0.2.3), leaves out what the same thing always follows, the end of
    # a morpheme for one: of 1.3 million characters of Korean Wikipedia, its vocabulary of 8,000
    # lacks words as frequent as 그러나, 대한민국, 학교 and 때문. At 20,000 tokens it needs 2.889 tokens a
    # word, these seeds 2.413, a vocabulary without regard to morphemes 2.160.
    morphemes: Counter[str] = Counter()
    for line in lines:
        boundaries = {0, len(line), *analyser.boundaries(line)}
        boundaries.update(position for position, character in enumerate(line) if character == " ")
        marked = line.replace(" ", SPACE)
        for start, end in pairwise(sorted(boundaries)):
            mark = SPACE if start == 0 else ""
            morphemes[mark + marked[start:end]] += 1
    seeds: Counter[str] = Counter()
    for morpheme, count in morphemes.items():
        for start in range(len(morpheme)):
            for end in range(start + 2, min(start + _MAX_SEED_LENGTH, len(morpheme)) + 1):
                seeds[morpheme[start:end]] += count
    repeated = [
        (seed, count)
        for seed, count in seeds.items()
        if count > 1 and not ends_in_digit_comma(seed)
    ]
    repeated.sort(key=lambda pair: (-pair[1] * len(pair[0]), pair[0]))
    return repeated[:_MAX_SEEDS]


def _train_model(
    texts: Sequence[str],
    vocab_size: int,
    settings: TokenizerSettings,
    seeds: Sequence[tuple[str, int]] | None,
) -> bytes:
    """Return the content of a model file without tokens that end in a digit and a comma."""
    # No `tokenizer.json` can express what Google's rule does to such tokens, and transformers 4
    # does it under any rules. If there are some, a larger vocabulary is trained, which loses them
    # and the tokens of the lowest scores. `pretokenization_delimiter` before commas would do it in
    # one training, but it stays in the model file, and the search loses seeds that always precede a
    # comma.
    size = trained_size = vocab_size - settings.reserve
    while True:
        model = _run_trainer(texts, trained_size, settings, seeds)
        pieces = read_facts(model).pieces
        allowed = [
            piece for piece in pieces if piece[2] != NORMAL or not ends_in_digit_comma(piece[0])
        ]
        if len(allowed) >= size:
            break
        if len(pieces) < trained_size:
            max_size = len(allowed) + settings.reserve
            raise ConfigError(
                "too-little-data",
                f"vocab_size is {vocab_size:,}, but the text supports at most {max_size:,} tokens",
                f"use --vocab-size {max_size} (vocab_size={max_size}) or less, or give more text",
            )
        trained_size = size + 2 * (len(pieces) - len(allowed))
    optional_ids = [
        n for n, (piece, _, kind) in enumerate(allowed) if kind == NORMAL and len(piece) > 1
    ]
    optional_ids.sort(key=lambda n: allowed[n][1])
    dropped_ids = set(optional_ids[: len(allowed) - size])
    remaining = []
    for number, (piece, score, kind) in enumerate(allowed):
        if number not in dropped_ids:
            remaining.append((piece, round_score(score), kind))
    model = rebuild_model(model, remaining)  # which also takes the path of the seeds out
    return add_unused_pieces(model, settings.reserve) if settings.reserve else model


def _run_trainer(
    texts: Sequence[str],
    size: int,
    settings: TokenizerSettings,
    seeds: Sequence[tuple[str, int]] | None,
) -> bytes:
    """Return the content of SentencePiece's model file, with fewer tokens if the text supports no more.

    Without seeds SentencePiece finds its own.
    """
    import sentencepiece

    model = io.BytesIO()
    names = settings.special_pieces
    options: dict[str, Any] = {
        "sentence_iterator": iter(texts),
        "model_writer": model,
        "model_type": "unigram",
        "vocab_size": size,
        "hard_vocab_limit": False,
        "pad_id": 0,
        "unk_id": 1,
        "bos_id": -1,
        "eos_id": -1,
        "pad_piece": names[0],
        "unk_piece": names[1],
        "control_symbols": list(names[2:]),
        "user_defined_symbols": list(settings.user_defined_symbols),
        "character_coverage": settings.coverage,
        "byte_fallback": settings.byte_fallback,
        "split_digits": settings.split_digits,
        "max_sentence_length": 2
        ** 30,  # bytes; longer texts would be left out without a word (4,192 by default)
        "num_threads": settings.num_threads or available_cores(),
        "minloglevel": 3,  # fatal only; what is wrong comes as an exception
    }
    with TemporaryDirectory() as folder:
        if seeds is not None:
            options["seed_sentencepieces_file"] = f"{folder}/seeds"
            with open(f"{folder}/seeds", "w", encoding="utf-8", newline="\n") as stream:
                stream.writelines(f"{piece}\t{count}\n" for piece, count in seeds)
        try:
            sentencepiece.SentencePieceTrainer.train(**options)
        except (RuntimeError, ValueError) as error:
            too_small = re.search(
                r"Vocabulary size is smaller than required_chars\. \d+ vs (\d+)", str(error)
            )
            if too_small:
                min_size = int(too_small[1]) + settings.reserve
                vocab_size = size + settings.reserve
                raise ConfigError(
                    "bad-value",
                    f"vocab_size is {vocab_size:,}, but the characters alone need {min_size:,} tokens",
                    f"use a vocabulary above {min_size}, or a lower coverage",
                ) from None
            fact = f"SentencePiece could not train a model: {' '.join(str(error).split())[:300]}"
            raise MachineError(
                "internal-error", fact, "try more text or another --vocab-size"
            ) from None
    return model.getvalue()
