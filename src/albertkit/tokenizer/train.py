"""Training a SentencePiece unigram model with ALBERT's special ids."""

import io
import itertools
import os
import random
import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from albertkit.errors import AlbertKitError, CheckpointError, ConfigError, DataError, MachineError
from albertkit.tokenizer import rules
from albertkit.tokenizer.batch import available_cores
from albertkit.tokenizer.sentencepiece_model import SPECIAL_PIECES
from albertkit.tokenizer.sentencepiece_tokenizer import SentencePieceTokenizer
from albertkit.tokenizer.text_files import read_lines

# Google's list for 30k-clean. A list, since SentencePiece reads a string as CSV, in which the quotation mark opens a
# field and the rest becomes one piece (0.2.3).
GOOGLE_SYMBOLS = ("(", ")", '"', "-", ".", "–", "£", "€")


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
) -> SentencePieceTokenizer:
    """Train a tokenizer and write its folder.

    The settings of 30k-clean: unigram, pad 0, unknown 1, control pieces [CLS] [SEP] [MASK] at 2 3 4, no begin or end of
    sentence, the user-defined symbols from 5 on, normaliser nmt_nfkc. The same texts and settings give the same bytes.

    Args:
        texts: Texts, or paths of text files (UTF-8, a sentence or paragraph a line, `.gz` accepted).
        out: Folder to write. Nothing is written unless training succeeds.
        vocab_size: Pieces, the special ones and the symbols counted.
        coverage: Share of the characters that must have a piece, above 0 and at most 1.
        max_sentences: Texts to train on; of more, a sample drawn evenly.
        seed: Of that sample.
        user_defined_symbols: Pieces that are always cut out of a text as they are.
        text_rules: "google", "multilingual" or "none"; applied to the texts first.
        num_threads: Threads to use; 0 for one a core.
        overwrite: Replace a tokenizer that lies in `out`.

    Returns:
        The tokenizer.

    Raises:
        DataError: empty-input, not-found, not-text, truncated-file.
        CheckpointError: folder-not-empty.
        ConfigError: vocab-too-large, vocab-too-small, bad-argument, bad-text-rules.
        MachineError: training-failed.
    """
    rules.check(text_rules)
    _check_folder(Path(out), overwrite)
    if max_sentences < 1:
        raise ConfigError(
            "bad-argument", f"max_sentences is {max_sentences}", "use 1 or more; 10_000_000 bounds the memory"
        )
    if not 0 < coverage <= 1:
        raise ConfigError(
            "bad-argument",
            f"coverage is {coverage}, not a share above 0 and at most 1",
            "use 0.99995, or 1.0 for little text",
        )
    reserved = len(SPECIAL_PIECES) + len(user_defined_symbols)
    if vocab_size <= reserved + 1:
        raise ConfigError(
            "vocab-too-small",
            f"vocab_size is {vocab_size}; special pieces and symbols alone take {reserved}",
            "use 8000 or more",
        )
    sample = _sample(_prepared(texts, text_rules), max_sentences, seed)
    if not sample:
        raise DataError(
            "empty-input", "there is no text to train a tokenizer on", "name files with at least one line of text"
        )
    model = _train(sample, vocab_size, coverage, list(user_defined_symbols), num_threads or available_cores())
    tokenizer = SentencePieceTokenizer(model, text_rules, source=out)
    tokenizer.save_pretrained(out)
    return tokenizer


def _check_folder(out: Path, overwrite: bool) -> None:
    """Ids mean nothing without their tokenizer: one that is there is not replaced unasked."""
    if out.exists() and not out.is_dir():
        raise CheckpointError("folder-not-empty", f"`{out}` is a file", "give the name of a folder to write")
    there = sorted(file.name for name in ("*.model", "vocab.txt", "tokenizer.json") for file in out.glob(name))
    if there and not overwrite:
        raise CheckpointError(
            "folder-not-empty",
            f"`{out}` holds a tokenizer ({', '.join(there)})",
            "choose another --out, or add --overwrite to replace it",
        )


def _prepared(texts: Iterable[str] | Sequence[Path], text_rules: str) -> Iterator[str]:
    """Non-empty texts after their rules."""
    for text in itertools.chain.from_iterable(read_lines(t) if isinstance(t, Path) else (t,) for t in texts):
        # SentencePiece keeps NUL for itself.
        prepared = rules.apply(text_rules, text.replace("\0", " "))
        if prepared.strip():
            yield prepared


def _sample(texts: Iterator[str], size: int, seed: int) -> list[str]:
    """An even sample of a stream (reservoir sampling); all of it, in order, if it is no longer than `size`.

    SentencePiece's own sampling (0.2.3) takes no seed: `SetRandomGeneratorSeed` leaves the sample as it is.
    """
    draw = random.Random(seed)
    sample: list[str] = []
    for number, text in enumerate(texts):
        if number < size:
            sample.append(text)
        elif (place := draw.randrange(number + 1)) < size:
            sample[place] = text
    return sample


def _train(sample: list[str], vocab_size: int, coverage: float, symbols: list[str], num_threads: int) -> bytes:
    """The bytes of the model file. Empties the sample."""
    import sentencepiece

    model = io.BytesIO()
    try:
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=_taken_from(sample), model_writer=model, model_type="unigram", vocab_size=vocab_size,
            character_coverage=coverage,
            pad_id=0, unk_id=1, bos_id=-1, eos_id=-1, pad_piece=SPECIAL_PIECES[0], unk_piece=SPECIAL_PIECES[1],
            control_symbols=list(SPECIAL_PIECES[2:]), user_defined_symbols=symbols,
            max_sentence_length=2**30,  # bytes; longer texts would be left out without a word (4,192 by default)
            num_threads=num_threads,
            minloglevel=3,  # fatal only; what is wrong comes as an exception
        )  # fmt: skip
    except (RuntimeError, ValueError) as error:
        raise _explained(str(error), vocab_size) from None
    return model.getvalue()


def _taken_from(sample: list[str]) -> Iterator[str]:
    """The texts in order, each let go when it has been copied: the sample never lies in memory twice."""
    sample.reverse()
    while sample:
        yield sample.pop()


def _explained(message: str, vocab_size: int) -> AlbertKitError:
    largest = re.search(r"Vocabulary size too high \(\d+\).*?<= (\d+)", message, re.DOTALL)
    if largest:
        return ConfigError(
            "vocab-too-large",
            f"vocab_size is {vocab_size:,}, but the text supports at most {int(largest[1]):,} pieces",
            f"use --vocab-size {largest[1]} (vocab_size={largest[1]}) or less, or give more text",
        )  # fmt: skip
    smallest = re.search(r"Vocabulary size is smaller than required_chars\. \d+ vs (\d+)", message)
    if smallest:
        return ConfigError(
            "vocab-too-small",
            f"vocab_size is {vocab_size:,}, but the characters alone need {int(smallest[1]):,} pieces",
            f"use a vocabulary above {smallest[1]}, or a lower coverage",
        )  # fmt: skip
    return MachineError("training-failed", f"SentencePiece could not train a model: {' '.join(message.split())[:300]}")
