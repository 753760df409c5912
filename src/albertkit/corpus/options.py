"""Options of `albertkit corpus build`, and the settings that decide the bytes of a store."""

from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

from albertkit.command import SEVERAL, check_values
from albertkit.errors import ConfigError
from albertkit.validation import Range

Errors = Literal["strict", "replace"]
Format = Literal["text", "jsonl", "csv", "tsv", "parquet", "wiki", "paragraphs", "pairs"]
SEPARATOR = ";$;"  # between the sentences of a line of `pairs`


@dataclass(frozen=True)
class BuildSettings:
    """Settings that decide the bytes of a store, in addition to inputs and tokenizer.

    Attributes:
        format: Input format: `text`, `jsonl` (also JSON documents and arrays of them), `parquet`,
            `wiki`, `csv`, `tsv`, `paragraphs` (one document per line) or `pairs` (one document per
            line, its sentences separated by SEPARATOR: `A;$;B`). Default: one of the first four,
            detected for each file.
        field: JSON field, or column of a table, with the text. `a.b` for nested fields, `a[].b` for
            every item of a list (JSON).
        separator: Separator between the sentences of a line of `pairs`. Lines without it are
            skipped, counted and listed.
        sentences: How to find sentences: `lines` (one per line), `split`, or `kiwi` for Korean
            without full stops (250 times slower; extra `korean`). Default: split for JSONL, tables,
            WikiExtractor output and paragraphs; lines for pairs and plain text. The build stops if
            the first lines of plain text are paragraphs.
        language: Two-letter language code, for abbreviations. Use `en` for Korean, Chinese and
            Japanese, too.
        shard_tokens: Maximum tokens per shard, 1 to 2^31. The default 2^29 gives files of 1 GiB
            (uint16) or 2 GiB, easy to copy and verify; offsets stay far below 2^32.
    """

    format: Format | None = None
    field: str = "text"
    separator: str = SEPARATOR
    sentences: Literal["lines", "split", "kiwi"] | None = None
    language: str = "en"
    shard_tokens: Annotated[int, Range(1, 1 << 31)] = 1 << 29

    def __post_init__(self) -> None:
        check_values(self)
        if not self.separator.strip(" "):
            raise ConfigError(
                "bad-value",
                "the separator is empty",
                "use a sign that no sentence holds, like ;$;",
            )


@dataclass(frozen=True)
class BuildOptions:
    """Tokenize text files into a token store for pretraining.

    Run the same command again to continue an interrupted run.

    Attributes:
        inputs: Files, globs, folders or URLs: plain text (a sentence per line, a blank line between
            documents; use `--sentences split` for a paragraph per line, `--format paragraphs` for a
            document per line), JSONL, Parquet or WikiExtractor output; also `.gz`, `.xz`, `.zst`.
        out: Folder of the store: new, empty, or with an unfinished build. An address (`s3://…`) is
            built below `ALBERTKIT_CACHE` (`~/.cache/albertkit`), then uploaded.
        tokenizer: Folder with one `*.model`, or a run whose model has one.
        settings: Settings that change the content of the store.
        errors: How to treat bytes that are not UTF-8: `strict` stops and reports the position,
            `replace` replaces and counts them.
        workers: Number of processes. Default: threads of this process on two cores or for less than
            100 MB, else one process per core. With `--engine ray`: input parts processed at once;
            default: one per core of the cluster, plus as many waiting. Does not change the store.
        engine: Engine: `local`, or `ray` for all machines of a Ray cluster, which must see the
            inputs under the same paths (extra `cluster`, `docs/scale.md`). Does not change the
            store.
        address: `HOST:PORT` of the Ray cluster. Default: the cluster of this machine, else this
            machine alone.
        overwrite: Replace another store, or different or damaged unfinished work, in `--out`.
        progress: Show progress on stderr.
    """

    inputs: Annotated[Sequence[str | Path], SEVERAL]
    out: str | Path
    tokenizer: Any
    settings: BuildSettings = BuildSettings()
    _: KW_ONLY
    errors: Errors = "strict"
    workers: int | None = None
    engine: Literal["local", "ray"] = "local"
    address: str | None = None
    overwrite: bool = False
    progress: bool = False

    def __post_init__(self) -> None:
        check_values(self)
        min_workers = 0 if self.engine == "local" else 1
        if self.workers is not None and self.workers < min_workers:
            raise ConfigError(
                "bad-value",
                f"workers is {self.workers}",
                f"use {min_workers} or more",
            )
