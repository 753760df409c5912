"""`check_tokenizer`: compare the ids of everything that reads a tokenizer's folder.

Own readings (SentencePiece itself, the batch engine, offsets, decoding, the `tokenizer.json` that albertkit wrote, the
model's configuration) must agree with `encode`. The readings of transformers' classes and of sentence-transformers are
reported, too: where they differ, the folder is right, and known bugs are named.
"""

import os
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from albertkit.errors import CheckpointError
from albertkit.files import read_json
from albertkit.frame.result import Result
from albertkit.frame.section import Cell, Section, Span, Table, Text, Tone
from albertkit.model_folder import local_folder
from albertkit.tokenizer import rules
from albertkit.tokenizer.comparison import UNKNOWN, Comparison, Difference, Encode, compare, known_bugs, with_names
from albertkit.tokenizer.digit_comma import ends_in_digit_comma, without_comma
from albertkit.tokenizer.folder_files import JSON_NAME, read_settings
from albertkit.tokenizer.hard_sentences import HARD_SENTENCES
from albertkit.tokenizer.sentencepiece_tokenizer import SentencePieceTokenizer
from albertkit.tokenizer.tokenizer import AlbertTokenizer
from albertkit.tokenizer.transformers_readings import CLASS_READERS, library_versions, read_by_others
from albertkit.tokenizer.wordpiece import WordPieceTokenizer


@dataclass
class CheckReport(Result):
    """Report of `check_tokenizer`.

    Attributes:
        folder: The folder that was checked.
        kind: Class of the tokenizer.
        text_rules, vocab_size, fingerprint: See `AlbertTokenizer`.
        comparisons: One for each reader.
        versions: Installed versions of the libraries that were compared.
    """

    folder: str
    kind: str
    text_rules: str
    vocab_size: int
    fingerprint: str
    comparisons: list[Comparison]
    versions: dict[str, str] = field(default_factory=dict)

    @property
    def ok(self) -> bool:
        """Return True if all own readings agree."""
        return not any(comparison.own and comparison.differences for comparison in self.comparisons)

    def cannot_be_right(self) -> list[str]:
        """Return sentences about the classes of transformers that give other ids for this folder, whatever its settings."""
        return [
            f"{found.name} builds its own normalisation and gives other ids on {len(found.differences)} of "
            f"{found.compared} texts; open the folder with transformers.AutoTokenizer"
            for found in self.comparisons
            if found.differences and found.name in CLASS_READERS
        ]

    def cures(self) -> dict[str, tuple[str, str]]:
        """Return effect and advice of each known bug that was met."""
        met = {cause for c in self.comparisons for difference in c.differences for cause in difference.causes}
        return {bug.name: (bug.says, bug.cure) for bug in known_bugs() if bug.name in met}

    @property
    def exit_status(self) -> int:
        """Return 1 if albertkit's own readings differ."""
        return 0 if self.ok else 1

    def to_dict(self) -> dict[str, Any]:
        """Return all fields and `ok`, for JSON."""
        return {"ok": self.ok, **asdict(self), "faults": self.cures(), "notes": self.cannot_be_right()}

    def sections(self) -> list[Section]:
        """Return the readers that were compared, examples of what differs, and what to do."""
        versions = ", ".join(f"{name} {version}" for name, version in self.versions.items())
        title = (
            f"{self.folder}  {self.kind}, rules {self.text_rules}, {self.vocab_size:,} tokens, {self.fingerprint[:12]}"
        )
        rows = [_reader_row(found) for found in self.comparisons]
        sections: list[Section] = [Text(versions, title, "muted"), Table(["reader", "the same", "because"], rows)]
        for found in self.comparisons:
            shown = found.differences if found.own else found.examples()
            more = len(found.differences) - len(shown)
            note = f"an example of each kind; {more} more with --json" if more else ""
            sections.append(
                Table(["text", "because", "ours", "theirs"], list(map(_example_row, shown)), found.name, note)
            )
        cures = self.cures()
        sections += [Text([Span(name, "strong"), Span(f": {says}")]) for name, (says, _) in cures.items()]
        for cure in dict.fromkeys(cure for _, cure in cures.values()):
            names = ", ".join(name for name, (_, other) in cures.items() if other == cure)
            sections.append(Text(f"hint ({names}): {cure}"))
        sections += [Text(note, tone="warning") for note in self.cannot_be_right()]
        agree = "all of albertkit's readings agree"
        return [*sections, Text(agree) if self.ok else Text("albertkit's own readings differ", tone="bad")]


def _reader_row(found: Comparison) -> list[Any]:
    if found.skipped:
        return [found.name, Cell("-", "muted"), Cell(found.skipped, "muted")]
    causes = Counter(cause for difference in found.differences for cause in difference.causes)
    tone: Tone = "good" if not found.differences else "bad" if found.own else "warning"
    same = Cell(f"{found.compared - len(found.differences)} of {found.compared}", tone)
    return [found.name, same, ", ".join(f"{name} {count}" for name, count in causes.most_common())]


def _example_row(difference: Difference) -> list[Any]:
    ours, theirs = (" ".join(side)[:90] for side in difference.where())
    return [repr(difference.text)[:76], ", ".join(difference.causes), Cell(ours, "good"), Cell(theirs, "warning")]


def check_tokenizer(folder: str | os.PathLike[str], sentences: Sequence[str] | None = None) -> CheckReport:
    """Compare everything that reads a tokenizer's folder, on hard sentences.

    Args:
        folder: A checkpoint or tokenizer folder.
        sentences: Texts; default: the built-in ones.
    """
    path = local_folder(folder, weights=False)
    tokenizer = AlbertTokenizer.from_pretrained(path)
    texts = [text for _, text in HARD_SENTENCES] if sentences is None else list(sentences)
    return CheckReport(
        str(path),
        type(tokenizer).__name__,
        tokenizer.text_rules,
        tokenizer.vocab_size,
        tokenizer.fingerprint,
        [
            *_own_ways(tokenizer, texts),
            compare_json(path, tokenizer, texts),
            _config(path, tokenizer),
            *read_by_others(path, tokenizer, texts),
        ],
        library_versions(),
    )


# --- readings ---------------------------------------------------------------------------------------------------------


def _own_ways(tokenizer: AlbertTokenizer, texts: Sequence[str]) -> Iterator[Comparison]:
    """Compare SentencePiece, batches, offsets and decoding."""
    ours = isinstance(tokenizer, SentencePieceTokenizer | WordPieceTokenizer)
    analyser = getattr(tokenizer, "analyser", None)

    def batch(text: str) -> list[int]:
        return tokenizer.encode_batch([text, "and another", text]).text(2).tolist()

    def again(text: str) -> list[int]:
        return tokenizer.encode(tokenizer.decode(tokenizer.encode(text)))

    if isinstance(tokenizer, SentencePieceTokenizer):
        yield compare("SentencePiece itself", True, tokenizer, texts, _by_sentencepiece(tokenizer))
    yield compare("encode_batch", True, tokenizer, texts, batch)
    if tokenizer.start_engine():
        yield compare("encode_batch, compiled engine", True, tokenizer, texts, batch)
    yield compare("offsets", True, tokenizer, texts, lambda text: tokenizer.encode_with_offsets(text)[0])
    known = [text for text in texts if tokenizer.unk_id not in tokenizer.encode(text)]
    # What foreign rules remove or replace in decoding is not known; spaces between morphemes stay in the text.
    yield compare("decode and encode again", ours and not analyser, tokenizer, known, again)


def _by_sentencepiece(tokenizer: SentencePieceTokenizer) -> Encode:
    """Apply Google's digit-comma rule to SentencePiece's pieces as its code has it, a piece at a time."""
    import sentencepiece

    processor = sentencepiece.SentencePieceProcessor(model_proto=tokenizer.model)
    google = rules.is_google(tokenizer.text_rules)

    def split(piece: str) -> list[int]:
        if google and ends_in_digit_comma(piece):
            return [number for number, _ in without_comma(processor, piece)]
        return [processor.piece_to_id(piece)]

    def encode(text: str) -> list[int]:
        pieces = processor.encode(tokenizer.prepared(text), out_type=str)
        return [number for piece in pieces for number in split(piece)]

    return encode


def compare_json(folder: Path, tokenizer: AlbertTokenizer, texts: Sequence[str]) -> Comparison:
    """Compare a folder's `tokenizer.json`, as the library under transformers reads it, with its tokenizer."""
    own = "text_rules" in read_settings(folder)
    comparison = Comparison(JSON_NAME + ("" if own else ", not written by albertkit"), own)
    if not (folder / JSON_NAME).exists():
        try:
            tokenizer.tokenizer_json()
            comparison.skipped = "there is none; `save_pretrained` writes one"
        except CheckpointError as error:
            comparison.skipped = f"there is none: {error.message}"
        return comparison
    from tokenizers import Tokenizer

    try:
        reader = Tokenizer.from_file(str(folder / JSON_NAME))
    except Exception as error:  # the library raises nothing more particular
        comparison.add(JSON_NAME, [], [error], UNKNOWN)
        return comparison
    reader.no_padding()
    reader.no_truncation()

    def theirs(text: str) -> list[int]:
        if isinstance(tokenizer, SentencePieceTokenizer) and tokenizer.analyser:
            text = tokenizer.prepared(text)  # the library knows no analyser
        return reader.encode(text, add_special_tokens=False).ids

    return compare(comparison.name, own, tokenizer, texts, theirs, with_names(tokenizer))


def _config(folder: Path, tokenizer: AlbertTokenizer) -> Comparison:
    """Compare the model's configuration with the vocabulary. Ids of begin and end have no use in an ALBERT."""
    comparison = Comparison("config.json", True)
    if not (folder / "config.json").exists():
        comparison.skipped = "there is none"
        return comparison
    config = read_json(folder / "config.json", "model configuration")
    size, pad = config.get("vocab_size"), config.get("pad_token_id", 0)
    comparison.compared = 2
    if not isinstance(size, int) or size < tokenizer.vocab_size:
        comparison.add("vocab_size", [tokenizer.vocab_size], [size], "vocab-mismatch")
    if pad != tokenizer.pad_id:
        comparison.add("pad_token_id", [tokenizer.pad_id], [pad], "pad-mismatch")
    return comparison
