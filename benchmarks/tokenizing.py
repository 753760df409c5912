"""Row `tokenize`: text to ids, compared with every tokenizer a user of ALBERT would pick instead."""

import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

from sentencepiece import SentencePieceProcessor

from albertkit.tokenizer import AlbertTokenizer
from albertkit.tokenizer.sentencepiece import CHARACTERS_BEFORE_ENGINE
from benchmarks import google_rules
from benchmarks.harness import (
    TIMING,
    Contender,
    Peer,
    Row,
    Timing,
    compare,
    interleave,
    progress,
    scratch_folder,
    versions,
)
from benchmarks.inputs import TEXT, Text

Lines = Sequence[str]
Ids = list[list[int]]

TRANSFORMERS = Peer("transformers AlbertTokenizer", "transformers", "pip install transformers")
KITOKEN = Peer("kitoken", "kitoken", "pip install kitoken")
TOKIE = Peer("tokie", "tokie", "pip install tokie")
NOTE = (
    "raw sentencepiece and kitoken read the untouched lines: they skip Google's text rules, so they do less work "
    "than we do, and find unknown pieces at capital letters; `prepared text` is text with the rules applied before the "
    "clock starts, so that only the digit-comma rule is left out; transformers, tokenizers and tokie are given the rules "
    "in tokenizer.json. Everybody is warm: our compiled engine, which loads (0.7 s) after "
    f"{CHARACTERS_BEFORE_ENGINE:,} characters, too"
)


@dataclass(frozen=True)
class Encoder:
    """A tokenizer taking part.

    Attributes:
        name: As it is shown.
        encode: Encodes all lines as fast as the library can; the result is thrown away.
        ids: Ids of each line, without special tokens.
    """

    name: str
    encode: Callable[[Lines], object]
    ids: Callable[[Lines], Ids]


def tokenize(*, text: Text = TEXT, timing: Timing = TIMING) -> Iterator[Row]:
    """Text to ids, compared with transformers, tokenizers, sentencepiece, kitoken and tokie."""
    threads = timing.threads or os.cpu_count() or 1
    # tokenizers, kitoken, tokie; read when their pools start
    os.environ["RAYON_NUM_THREADS"] = str(threads)
    os.environ["TOKENIZERS_PARALLELISM"] = "true" if threads > 1 else "false"
    with text.open(4.0) as inputs, scratch_folder() as scratch:
        ours, *peers = encoders(inputs.tokenizer_folder, scratch, threads)
        lines, megabytes = inputs.lines, inputs.megabytes
        prepared = [google_rules.preprocess(line) for line in lines]
        peers += [
            _with_prepared_lines(prepared, peer)
            for peer in peers
            if peer.name.startswith("raw sentencepiece")
        ]
        processor = SentencePieceProcessor(
            model_file=str(next(inputs.tokenizer_folder.glob("*.model")))
        )
        reference = [google_rules.ids(processor, line) for line in lines]
        progress(f"tokenize: {len(lines):,} lines, {megabytes:.2f} MB, {threads} threads")
        identical = {
            encoder.name: _share_identical(encoder.ids(lines), reference)
            for encoder in (ours, *peers)
        }
        contenders = [
            Contender(encoder.name, partial(encoder.encode, lines), megabytes)
            for encoder in (ours, *peers)
        ]
        seconds = interleave(contenders, timing.rounds or 7)
    tokens = sum(map(len, reference))
    title = f"tokenize, {threads} thread{'s' if threads > 1 else ''}"
    row = compare(
        title,
        "MB/s",
        contenders[0],
        contenders[1:],
        seconds,
        equal=identical[ours.name] == 1.0,
        note=NOTE,
    )
    row.compared = (
        f"our ids with Google's rules written out in plain Python over raw sentencepiece, on all {len(lines):,} "
        "lines; `identical` in details is everybody's share of lines that agree with them"
    )
    row.missing = {**TRANSFORMERS.missing, **KITOKEN.missing, **TOKIE.missing}
    row.versions = versions(
        "sentencepiece", "tokenizers", "transformers", "kitoken", "tokie", "numba", "numpy"
    )
    row.details = {
        "identical": identical,
        "lines": len(lines),
        "megabytes": megabytes,
        "text": inputs.text_name,
        "tokens": tokens,
        "tokens_per_second": row.ours * tokens / megabytes,
        "threads": threads,
    }
    yield row


def _with_prepared_lines(prepared: Lines, encoder: Encoder) -> Encoder:
    """Return an encoder that is given these texts, whatever the lines are."""
    return Encoder(
        f"{encoder.name}, prepared text",
        lambda _: encoder.encode(prepared),
        lambda _: encoder.ids(prepared),
    )


def _share_identical(actual: Sequence[Sequence[int]], reference: Sequence[Sequence[int]]) -> float:
    num_equal = sum(
        list(row) == list(reference_row)
        for row, reference_row in zip(actual, reference, strict=True)
    )
    return num_equal / max(len(reference), 1)


def encoders(folder: Path, scratch: Path, threads: int) -> list[Encoder]:
    """Return us first, then every peer that is installed; `threads` are for those that take them as an argument."""
    tokenizer = AlbertTokenizer.from_pretrained(folder, text_rules="google")
    tokenizer.encode_batch(["word " * 100] * (CHARACTERS_BEFORE_ENGINE // 500), num_threads=threads)
    # Two folders as users have them: one with `spiece.model` alone, one with our `tokenizer.json`
    # as well.
    AlbertTokenizer.from_pretrained(folder).save_pretrained(scratch / "saved")
    (scratch / "alone").mkdir()
    model, tokenizer_json = scratch / "alone" / "spiece.model", scratch / "saved" / "tokenizer.json"
    model.write_bytes((scratch / "saved" / "spiece.model").read_bytes())

    def encode(lines: Lines) -> object:
        return tokenizer.encode_batch(lines, num_threads=threads)

    def ids(lines: Lines) -> Ids:
        ragged = tokenizer.encode_batch(lines, num_threads=threads)
        return _cut(ragged.ids.tolist(), ragged.offsets.tolist())

    result = [Encoder("albertkit", encode, ids)]
    if TRANSFORMERS.installed:
        result.append(_transformers(f"{TRANSFORMERS.name} (spiece.model)", model.parent))
        result.append(_transformers(f"{TRANSFORMERS.name} (tokenizer.json)", tokenizer_json.parent))
    result += [*_tokenizers(tokenizer_json), *_sentencepiece(model, threads)]
    if KITOKEN.installed:
        from kitoken import Kitoken

        kitoken = Kitoken.from_sentencepiece_file(str(model))
        result.append(
            Encoder("kitoken", kitoken.encode_all, lambda lines: kitoken.encode_all(lines, False))
        )
    if TOKIE.installed:
        result.append(_tokie(tokenizer_json))
    return result


def _cut(flat: list[int], offsets: list[int]) -> Ids:
    return [flat[start:end] for start, end in pairwise(offsets)]


def _transformers(name: str, folder: Path) -> Encoder:
    from transformers import AlbertTokenizer as TheirTokenizer

    tokenizer = TheirTokenizer.from_pretrained(str(folder))
    tokenizer.model_max_length = 10**9  # lines are not cut by anybody
    return Encoder(
        name, tokenizer, lambda lines: tokenizer(list(lines), add_special_tokens=False)["input_ids"]
    )


def _tokenizers(tokenizer_json: Path) -> list[Encoder]:
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(tokenizer_json))

    def ids(lines: Lines) -> Ids:
        return [
            encoding.ids
            for encoding in tokenizer.encode_batch(list(lines), add_special_tokens=False)
        ]

    return [
        Encoder("tokenizers encode_batch", tokenizer.encode_batch, ids),
        Encoder("tokenizers encode_batch_fast", tokenizer.encode_batch_fast, ids),
    ]


def _sentencepiece(model: Path, threads: int) -> Iterator[Encoder]:
    processor = SentencePieceProcessor(model_file=str(model))
    forms: dict[str, dict[str, Any]] = {"lists": {}, "numpy": {"return_type": "numpy"}}
    for form, options in forms.items():
        encode = partial(processor.encode, num_threads=threads, **options)
        yield Encoder(
            f"raw sentencepiece, {form}",
            encode,
            lambda lines, encode=encode: [list(map(int, line)) for line in encode(lines)],  # type: ignore[misc]
        )


def _tokie(tokenizer_json: Path) -> Encoder:
    from tokie import Tokenizer

    tokenizer = Tokenizer.from_json(str(tokenizer_json))

    def ids(lines: Lines) -> Ids:
        flat, lengths = tokenizer.encode_batch_flat(list(lines), add_special_tokens=False)
        return _cut(flat.tolist(), [0, *lengths.cumsum().tolist()])

    return Encoder("tokie", tokenizer.encode_batch_flat, ids)
