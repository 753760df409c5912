"""The report of a build, and warnings about its counts."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from albertkit.frame.result import Result
from albertkit.frame.section import Facts, Section


@dataclass
class BuildReport(Result):
    """Counts and facts of a finished build.

    Attributes:
        out: The store.
        documents, sentences, tokens, shards: In the store.
        empty_documents: Left out: no text, or no token.
        duplicate_documents: Left out: the same text as an earlier document.
        single_sentence_documents: In the store, but no sentence-order pair comes from them alone.
        cut_documents: Made by cutting a document longer than `readers.DOCUMENT_CHARACTERS`.
        unknown_tokens: Tokens that are the unknown token.
        bad_bytes: Bytes that are not UTF-8 (with errors="replace").
        faulty_lines: Lines of pairs that were passed over: no separator, or nothing on one of its sides.
        faults: The places of the first of them, `file:line`.
        input_files, empty_files: Files read; those without a byte.
        characters, text_bytes: Text of all documents, also of those left out.
        seconds: Of this run.
        mb_per_second: UTF-8 text in 10^6 bytes a second, in this run.
        peak_memory_mb: Peaks of this process and its workers, added (10^6 bytes).
        engine: "local" or "ray".
        workers: Worker processes; 0 is this one.
        nodes: Machines at the end of this run.
        resumed: An interrupted build was taken up.
        already_built: The same store lay there; nothing was done.
        warnings: Sentences on counts that speak against the use of the store.
    """

    out: str
    documents: int = 0
    sentences: int = 0
    tokens: int = 0
    shards: int = 0
    empty_documents: int = 0
    duplicate_documents: int = 0
    single_sentence_documents: int = 0
    cut_documents: int = 0
    unknown_tokens: int = 0
    bad_bytes: int = 0
    faulty_lines: int = 0
    faults: list[str] = field(default_factory=list)
    input_files: int = 0
    empty_files: int = 0
    characters: int = 0
    text_bytes: int = 0
    seconds: float = 0.0
    mb_per_second: float = 0.0
    peak_memory_mb: float = 0.0
    engine: str = "local"
    workers: int = 0
    nodes: int = 1
    resumed: bool = False
    already_built: bool = False
    warnings: tuple[str, ...] = ()

    def sections(self) -> list[Section]:
        """Return the facts, without usual ones; the first faulty lines are in a warning."""
        usual = {"engine": "local", "nodes": 1, "faults": self.faults, "warnings": self.warnings}
        return [Facts({name: value for name, value in vars(self).items() if value and usual.get(name) != value})]


_LONG_LINE = 60  # tokens; sentences of English Wikipedia have 29 on average


def warnings_of(counts: dict[str, Any]) -> Iterator[str]:
    """Yield warnings about the counts of a manifest that speak against its use."""
    if counts["single_sentence_documents"] == counts["documents"]:
        yield (
            "no document has two sentences: sentence order cannot be learnt from this store; "
            "put a blank line between documents only, or use --sentences split"
        )
    if counts["lines"] and counts.get("line_tokens", 0) > _LONG_LINE * counts["lines"]:
        yield (
            f"a line has {counts['line_tokens'] / counts['lines']:,.0f} tokens on average and is taken for one sentence; what is "
            "longer than a sequence is cut. If lines are paragraphs, use --sentences split; if they are documents, "
            "--format paragraphs"
        )
    if counts["lines"] and counts["unfinished_lines"] > 0.5 * counts["lines"]:
        yield (
            f"{counts['unfinished_lines']:,} of {counts['lines']:,} lines end without punctuation: if a line is "
            "not a whole sentence, use --sentences split"
        )
    if counts["unknown_tokens"] > 0.05 * counts["tokens"]:
        share = counts["unknown_tokens"] / counts["tokens"]
        yield f"{share:.1%} of the tokens are unknown: this tokenizer does not fit this text"
    if counts["cut_documents"]:
        yield (
            f"{counts['cut_documents']:,} documents were too long and were cut; put blank lines between documents, or, if each "
            "line is a document, use --format paragraphs"
        )
    if counts["bad_bytes"]:
        yield f"{counts['bad_bytes']:,} bytes were not UTF-8 and were replaced"
    if "faulty_lines" in counts:
        yield (
            f"{counts['faulty_lines']:,} lines were passed over, without two sentences and the separator between them: "
            f"{', '.join(counts['faults'][:5])}{' …' if counts['faulty_lines'] > 5 else ''}"
        )
    if counts["empty_files"]:
        yield f"{counts['empty_files']:,} files are empty"
