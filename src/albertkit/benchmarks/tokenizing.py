"""`albertkit bench tokenize`: text to ids, beside every tokenizer a user of ALBERT would pick instead."""

import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from albertkit.benchmarks import google_rules
from albertkit.benchmarks.harness import Contender, Peer, Row, compare, interleave, missing, progress, versions
from albertkit.benchmarks.inputs import Inputs
from albertkit.tokenizer.batch import CHARACTERS_BEFORE_ENGINE

TRANSFORMERS = Peer("transformers AlbertTokenizer", "transformers", "pip install transformers")
PEERS = (
    TRANSFORMERS,
    Peer("kitoken", "kitoken", "pip install kitoken"),
    Peer("tokie", "tokie", "pip install tokie"),
)
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
    encode: Callable[[Sequence[str]], object]
    ids: Callable[[Sequence[str]], list[list[int]]]


def tokenize_rows(inputs: Inputs, rounds: int = 7, threads: int = 0) -> Iterator[Row]:
    """Measure tokenizing.

    Args:
        inputs: Text and tokenizer.
        rounds: Timed rounds.
        threads: Threads for everybody; 0 for all cores.

    Yields:
        One row, in MB/s of UTF-8 text.
    """
    threads = threads or os.cpu_count() or 1
    os.environ["RAYON_NUM_THREADS"] = str(threads)  # tokenizers, kitoken, tokie; read when their pools start
    os.environ["TOKENIZERS_PARALLELISM"] = "true" if threads > 1 else "false"
    with TemporaryDirectory(prefix="albertkit-bench-") as scratch:
        ours, *peers = encoders(inputs.tokenizer_folder, Path(scratch), threads)
        lines = inputs.lines
        prepared = [google_rules.preprocess(line) for line in lines]
        peers += [_given(prepared, peer) for peer in peers if peer.name.startswith("raw sentencepiece")]
        reference = _reference(inputs.tokenizer_folder, lines)
        progress(f"tokenize: {len(lines):,} lines, {inputs.megabytes:.2f} MB, {threads} threads")
        identical = {encoder.name: _share_identical(encoder.ids(lines), reference) for encoder in (ours, *peers)}
        contenders = [_contender(encoder, lines, inputs.megabytes) for encoder in (ours, *peers)]
        seconds = interleave(contenders, rounds, say=progress)
    tokens = sum(map(len, reference))
    row = compare(
        f"tokenize, {threads} thread{'s' if threads > 1 else ''}", "MB/s", contenders[0], contenders[1:], seconds,
        equal=identical[ours.name] == 1.0,
        compared=(
            f"our ids with Google's rules written out in plain Python over raw sentencepiece, on all {len(lines):,} "
            "lines; `identical` in details is everybody's share of lines that agree with them"
        ),
        missing=missing(PEERS),
        versions=versions("sentencepiece", "tokenizers", "transformers", "kitoken", "tokie", "numba", "numpy"),
        note=NOTE,
    )  # fmt: skip
    row.details = {
        "identical": identical, "lines": len(lines), "megabytes": inputs.megabytes, "text": inputs.text_name,
        "tokens": tokens, "tokens_per_second": row.ours * tokens / inputs.megabytes, "threads": threads,
    }  # fmt: skip
    yield row


def _contender(encoder: Encoder, lines: Sequence[str], megabytes: float) -> Contender:
    def run() -> None:
        encoder.encode(lines)

    return Contender(encoder.name, run, megabytes)


def _given(prepared: Sequence[str], encoder: Encoder) -> Encoder:
    """An encoder that is given these texts, whatever the lines are."""
    return Encoder(
        f"{encoder.name}, prepared text", lambda _: encoder.encode(prepared), lambda _: encoder.ids(prepared)
    )


def encoders(folder: Path, scratch: Path, threads: int) -> list[Encoder]:
    """Us first, then every peer that is installed.

    Args:
        folder: A folder with one `*.model`.
        scratch: An empty folder, for the files that peers load.
        threads: For those that take it as an argument; the others follow RAYON_NUM_THREADS.
    """
    model, tokenizer_json = _peer_files(folder, scratch)
    made = [_albertkit(folder, threads)]
    if TRANSFORMERS.installed:
        made.append(_transformers(f"{TRANSFORMERS.name} (spiece.model)", model.parent))
        made.append(_transformers(f"{TRANSFORMERS.name} (tokenizer.json)", tokenizer_json.parent))
    made += _tokenizers(tokenizer_json)
    made += _sentencepiece(model, threads)
    makers: dict[str, Callable[[], Encoder]] = {
        "kitoken": lambda: _kitoken(model),
        "tokie": lambda: _tokie(tokenizer_json),
    }
    return made + [makers[peer.name]() for peer in PEERS if peer.installed and peer.name in makers]


def _peer_files(folder: Path, scratch: Path) -> tuple[Path, Path]:
    """Two folders as users have them: one with `spiece.model` alone, one with our `tokenizer.json` as well."""
    from albertkit.tokenizer import AlbertTokenizer

    tokenizer = AlbertTokenizer.from_pretrained(folder)
    (scratch / "alone").mkdir()
    (scratch / "saved").mkdir()
    tokenizer.save_pretrained(scratch / "saved")
    model = scratch / "alone" / "spiece.model"
    model.write_bytes((scratch / "saved" / "spiece.model").read_bytes())
    return model, scratch / "saved" / "tokenizer.json"


def _albertkit(folder: Path, threads: int) -> Encoder:
    from albertkit.tokenizer import AlbertTokenizer

    tokenizer = AlbertTokenizer.from_pretrained(folder, text_rules="google")
    tokenizer.encode_batch(["word " * 100] * (CHARACTERS_BEFORE_ENGINE // 500), num_threads=threads)

    def ids(lines: Sequence[str]) -> list[list[int]]:
        ragged = tokenizer.encode_batch(lines, num_threads=threads)
        flat, offsets = ragged.ids.tolist(), ragged.offsets.tolist()
        return [flat[start:end] for start, end in pairwise(offsets)]

    return Encoder("albertkit", lambda lines: tokenizer.encode_batch(lines, num_threads=threads), ids)


def _transformers(name: str, folder: Path) -> Encoder:
    from transformers import AlbertTokenizer

    tokenizer = AlbertTokenizer.from_pretrained(str(folder))
    tokenizer.model_max_length = 10**9  # lines are not cut by anybody
    return Encoder(name, tokenizer, lambda lines: tokenizer(list(lines), add_special_tokens=False)["input_ids"])


def _tokenizers(tokenizer_json: Path) -> list[Encoder]:
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(tokenizer_json))

    def ids(lines: Sequence[str]) -> list[list[int]]:
        return [found.ids for found in tokenizer.encode_batch(list(lines), add_special_tokens=False)]

    return [
        Encoder("tokenizers encode_batch", tokenizer.encode_batch, ids),
        Encoder("tokenizers encode_batch_fast", tokenizer.encode_batch_fast, ids),
    ]


def _sentencepiece(model: Path, threads: int) -> list[Encoder]:
    from sentencepiece import SentencePieceProcessor

    processor = SentencePieceProcessor(model_file=str(model))

    def encoder(name: str, **options: Any) -> Encoder:
        return Encoder(
            name,
            lambda lines: processor.encode(lines, num_threads=threads, **options),
            lambda lines: [list(map(int, line)) for line in processor.encode(lines, num_threads=threads, **options)],
        )

    return [
        encoder("raw sentencepiece, lists"),
        encoder("raw sentencepiece, numpy", return_type="numpy"),
    ]


def _kitoken(model: Path) -> Encoder:
    from kitoken import Kitoken

    tokenizer = Kitoken.from_sentencepiece_file(str(model))
    return Encoder("kitoken", tokenizer.encode_all, lambda lines: tokenizer.encode_all(lines, False))


def _tokie(tokenizer_json: Path) -> Encoder:
    from tokie import Tokenizer

    tokenizer = Tokenizer.from_json(str(tokenizer_json))

    def ids(lines: Sequence[str]) -> list[list[int]]:
        flat, lengths = tokenizer.encode_batch_flat(list(lines), add_special_tokens=False)
        values, ends = flat.tolist(), lengths.cumsum().tolist()
        return [values[start:end] for start, end in zip([0, *ends], ends, strict=False)]

    return Encoder("tokie", tokenizer.encode_batch_flat, ids)


def _reference(folder: Path, lines: Sequence[str]) -> list[list[int]]:
    from sentencepiece import SentencePieceProcessor

    processor = SentencePieceProcessor(model_file=str(next(folder.glob("*.model"))))
    return [google_rules.ids(processor, line) for line in lines]


def _share_identical(found: Sequence[Sequence[int]], reference: Sequence[Sequence[int]]) -> float:
    same = sum(list(one) == list(other) for one, other in zip(found, reference, strict=True))
    return same / max(len(reference), 1)
