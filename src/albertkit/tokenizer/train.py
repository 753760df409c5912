"""Training a SentencePiece unigram model with ALBERT's special ids."""

import io
import itertools
import os
import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from albertkit.errors import AlbertKitError, CheckpointError, ConfigError, DataError, MachineError, near_miss
from albertkit.files import atomic_folder, check_writable
from albertkit.tokenizer import rules
from albertkit.tokenizer.batch import available_cores
from albertkit.tokenizer.digit_comma import SPACE
from albertkit.tokenizer.loading import TOKENIZER_FILES
from albertkit.tokenizer.model_file import with_unused
from albertkit.tokenizer.morphemes import Analyser, find_analyser
from albertkit.tokenizer.sampling import even_sample
from albertkit.tokenizer.seeds import morpheme_seeds, write_seeds
from albertkit.tokenizer.sentencepiece_model import SPECIAL_PIECES, role_of
from albertkit.tokenizer.sentencepiece_tokenizer import SentencePieceTokenizer
from albertkit.tokenizer.text_files import read_lines

# Google's list for 30k-clean. A list, since SentencePiece reads a string as CSV, in which the quotation mark opens a
# field and the rest becomes one piece (0.2.3).
GOOGLE_SYMBOLS = ("(", ")", '"', "-", ".", "–", "£", "€")
MORPHEMES = ("none", "boundary", "spaces")


def train_tokenizer(
    texts: Iterable[str] | Sequence[Path],
    out: str | os.PathLike[str],
    vocab_size: int = 30000,
    coverage: float = 0.99995,
    max_sentences: int = 10_000_000,
    seed: int = 0,
    user_defined_symbols: Sequence[str] = GOOGLE_SYMBOLS,
    text_rules: str = "google",
    num_threads: int = 0,
    overwrite: bool = False,
    *,
    morphemes: str = "none",
    analyser: str = "mecab",
    byte_fallback: bool = False,
    split_digits: bool = False,
    reserve: int = 0,
    special_pieces: Sequence[str] = SPECIAL_PIECES,
) -> SentencePieceTokenizer:
    """Train a tokenizer and write its folder.

    The settings of 30k-clean: unigram, pad 0, unknown 1, control pieces [CLS] [SEP] [MASK] at 2 3 4, no begin or end of
    sentence, the user-defined symbols from 5 on, normaliser nmt_nfkc. The same texts and settings give the same bytes.

    Args:
        texts: Texts, or paths of text files (UTF-8, a sentence or paragraph a line, `.gz` accepted).
        out: Folder to write. Nothing is written unless training succeeds.
        vocab_size: Pieces, the special ones and the symbols counted.
        coverage: Share of the characters that must have a piece, 0.98 to 1.
        max_sentences: Texts to train on; of more, a sample drawn evenly.
        seed: Of that sample.
        user_defined_symbols: Pieces that are always cut out of a text as they are.
        text_rules: One of `albertkit.tokenizer.rules.NAMES`, or registered; applied to the texts first.
        num_threads: Threads to use; 0 for one a core.
        overwrite: Replace a tokenizer that lies in `out`.
        morphemes: What the morphemes of Korean are to the model. "none": nothing. "boundary": no piece crosses from one to
            the next; encoding needs no analyser, which is why it is the one to choose. "spaces": they are separated by
            spaces, in training and, by the same analyser, in every encoding; transformers does not do that.
        analyser: Who finds them: "mecab" or "kiwi".
        byte_fallback: Encode a character without a piece as the bytes of its UTF-8, for which there are 256 pieces,
            rather than as unknown.
        split_digits: No piece holds more than one digit.
        reserve: Pieces `[unused0]`, … at the end that no text ever matches.
        special_pieces: Names of the pieces with the ids 0 to 4: padding, unknown, start, separation, mask.

    Returns:
        The tokenizer.

    Raises:
        DataError: empty-input, not-found, bad-encoding, binary-file, truncated-file.
        CheckpointError: folder-not-empty.
        ConfigError: vocab-too-large, vocab-too-small, bad-argument, bad-text-rules.
        MachineError: training-failed. MissingExtraError: missing-extra, for morphemes without their analyser.

    Source: the settings of google-research/albert's README for 30k-clean.
    """
    rules.check(text_rules)
    check_folder(Path(out), overwrite)
    _check_names(special_pieces)
    if morphemes not in MORPHEMES:
        raise ConfigError("bad-argument", f"morphemes is `{morphemes}`", near_miss(morphemes, MORPHEMES))
    if max_sentences < 1:
        raise ConfigError(
            "bad-argument", f"max_sentences is {max_sentences}", "use 1 or more; 10_000_000 bounds the memory"
        )
    if not 0.98 <= coverage <= 1:  # SentencePiece takes no other
        raise ConfigError(
            "bad-argument",
            f"coverage is {coverage}, not a share from 0.98 to 1",
            "use 0.99995, or 1.0 for little text",
        )
    taken = len(SPECIAL_PIECES) + len(user_defined_symbols) + reserve + 256 * byte_fallback
    if reserve < 0 or vocab_size <= taken + 1:
        raise ConfigError(
            "vocab-too-small",
            f"vocab_size is {vocab_size}; special pieces, symbols and what is reserved alone take {taken}",
            "use 8000 or more",
        )
    found = find_analyser(analyser) if morphemes != "none" else None
    sample = even_sample(_prepared(texts, text_rules), max_sentences, seed)
    if not sample:
        raise DataError(
            "empty-input", "there is no text to train a tokenizer on", "name files with at least one line of text"
        )
    model = train_model(
        _taken_from(sample, found if morphemes == "spaces" else None), vocab_size,
        num_threads or available_cores(), seeds=_seeds(sample, found) if found and morphemes == "boundary" else None,
        character_coverage=coverage, user_defined_symbols=list(user_defined_symbols), byte_fallback=byte_fallback,
        split_digits=split_digits, reserve=reserve,
        pad_piece=special_pieces[0], unk_piece=special_pieces[1], control_symbols=list(special_pieces[2:]),
    )  # fmt: skip
    spaced = analyser if morphemes == "spaces" else None
    tokenizer = SentencePieceTokenizer(model, text_rules, source=out, analyser=spaced)
    with atomic_folder(out) as folder:  # half a tokenizer would have to be replaced by hand
        tokenizer.save_pretrained(folder)
        tokenizer.write_listing(folder)
    return tokenizer


def check_folder(out: Path, overwrite: bool) -> None:
    """Ids mean nothing without their tokenizer: one that is there is not replaced unasked, and a model's never.

    Raises:
        CheckpointError: folder-not-empty.
    """
    if out.exists() and not out.is_dir():
        raise CheckpointError("folder-not-empty", f"`{out}` is a file", "give the name of a folder to write")
    others = sorted(f.name for f in out.glob("*") if not any(map(f.match, TOKENIZER_FILES))) if out.is_dir() else []
    if others:
        raise CheckpointError(
            "folder-not-empty",
            f"`{out}` holds what is no part of a tokenizer: {', '.join(others[:5])}{' …' * (len(others) > 5)}",
            "choose an empty folder, or one that does not exist",
        )
    there = sorted(file.name for name in ("*.model", "vocab.txt", "tokenizer.json") for file in out.glob(name))
    if there and not overwrite:
        raise CheckpointError(
            "folder-not-empty",
            f"`{out}` holds a tokenizer ({', '.join(there)})",
            "choose another --out, or add --overwrite to replace it",
        )
    check_writable(out)


def _prepared(texts: Iterable[str] | Sequence[Path], text_rules: str) -> Iterator[str]:
    """Non-empty texts after their rules."""
    for text in itertools.chain.from_iterable(read_lines(t) if isinstance(t, Path) else (t,) for t in texts):
        # SentencePiece keeps NUL for itself.
        prepared = rules.apply(text_rules, text.replace("\0", " "))
        if prepared.strip():
            yield prepared


def _check_names(special_pieces: Sequence[str]) -> None:
    names = list(special_pieces)
    wrong = [name for place, name in enumerate(names) if not name.strip() or role_of(name) not in (None, place)]
    if len(names) != len(SPECIAL_PIECES) or len(set(names)) < len(names) or wrong:
        raise ConfigError(
            "bad-argument",
            f"special_pieces is {' '.join(names)}; needed are five names, for padding, unknown, start, separation, mask",
            "use [PAD] [UNK] [CLS] [SEP] [MASK], for example",
        )


def _seeds(sample: list[str], analyser: Analyser) -> list[tuple[str, int]]:
    import sentencepiece

    normalize = sentencepiece.SentencePieceNormalizer(rule_name="nmt_nfkc").normalize
    return morpheme_seeds((normalize(text).replace(SPACE, " ").strip() for text in sample), analyser)


def train_model(
    texts: Iterator[str],
    vocab_size: int,
    num_threads: int,
    seeds: Sequence[tuple[str, int]] | None = None,
    reserve: int = 0,
    **settings: Any,
) -> bytes:
    """Content of a model file.

    Args:
        texts: Texts after their rules.
        vocab_size: Number of pieces.
        num_threads: Threads to use.
        seeds: Strings of which pieces are chosen, and how often they occur. Default: all that SentencePiece finds.
        reserve: Unused pieces at the end, among `vocab_size`.
        **settings: Of SentencePiece's trainer, beside those of all of our models.
    """
    import sentencepiece

    model = io.BytesIO()
    with TemporaryDirectory() as folder:
        if seeds is not None:
            settings["seed_sentencepieces_file"] = f"{folder}/seeds"
            write_seeds(Path(folder) / "seeds", seeds)
        try:
            sentencepiece.SentencePieceTrainer.train(
                sentence_iterator=texts, model_writer=model, model_type="unigram",
                vocab_size=vocab_size - reserve,
                pad_id=0, unk_id=1, bos_id=-1, eos_id=-1,
                max_sentence_length=2**30,  # bytes; longer texts would be left out without a word (4,192 by default)
                num_threads=num_threads,
                minloglevel=3,  # fatal only; what is wrong comes as an exception
                **settings,
            )  # fmt: skip
        except (RuntimeError, ValueError) as error:
            raise _explained(str(error), vocab_size, reserve) from None
    if seeds is None and not reserve:
        return model.getvalue()
    return with_unused(model.getvalue(), reserve)  # which also takes the path of the seeds out


def _taken_from(sample: list[str], analyser: Analyser | None) -> Iterator[str]:
    """The texts in order, each let go when it has been copied: the sample never lies in memory twice."""
    sample.reverse()
    while sample:
        text = sample.pop()
        yield analyser.separated(text, " ") if analyser else text


def _explained(message: str, vocab_size: int, reserve: int) -> AlbertKitError:
    largest = re.search(r"Vocabulary size too high \(\d+\).*?<= (\d+)", message, re.DOTALL)
    if largest:
        most = int(largest[1]) + reserve
        return ConfigError(
            "vocab-too-large",
            f"vocab_size is {vocab_size:,}, but the text supports at most {most:,} pieces",
            f"use --vocab-size {most} (vocab_size={most}) or less, or give more text",
        )  # fmt: skip
    smallest = re.search(r"Vocabulary size is smaller than required_chars\. \d+ vs (\d+)", message)
    if smallest:
        return ConfigError(
            "vocab-too-small",
            f"vocab_size is {vocab_size:,}, but the characters alone need {int(smallest[1]) + reserve:,} pieces",
            f"use a vocabulary above {int(smallest[1]) + reserve}, or a lower coverage",
        )  # fmt: skip
    return MachineError(
        "training-failed",
        f"SentencePiece could not train a model: {' '.join(message.split())[:300]}",
        "try more text or another --vocab-size",
    )
