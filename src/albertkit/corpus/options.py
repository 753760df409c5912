"""Options of `albertkit corpus build`; among them the settings that decide the bytes of a store."""

from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

from albertkit.errors import ConfigError, near_miss
from albertkit.frame.command import SEVERAL

ENGINES = ("local", "ray")
ERRORS = ("strict", "replace")
FORMATS = ("text", "jsonl", "parquet", "wiki", "paragraphs", "pairs")
SEPARATOR = ";$;"  # between the sentences of a line of `pairs`
SENTENCES = ("lines", "split", "kiwi")


@dataclass(frozen=True)
class BuildSettings:
    """Settings that decide the bytes of a store, besides inputs and tokenizer.

    Attributes:
        format: `text`, `jsonl`, `parquet` or `wiki`; found out for each file if not given. Also `paragraphs` (each line is a
            document) and `pairs` (each line is one whose sentences the separator divides: `A;$;B`).
        field: JSONL field or Parquet column that holds the text; `a.b`, or `a[].b` of every item of a list (JSONL).
        separator: Between the sentences of a line of `pairs`; a line without it is passed over, counted and named.
        sentences: `lines` (a line is a sentence), `split`, or `kiwi` for Korean without full stops (250 times slower; extra
            `korean`). Not given: split in JSONL, Parquet, WikiExtractor's output and paragraphs; lines in pairs and in plain
            text, whose beginning is looked at first: the build stops if its lines are paragraphs.
        language: Two-letter code, for abbreviations. `en` serves Korean, Chinese and Japanese too.
        shard_tokens: Tokens a shard holds at most. 2^29: a file of 1 GiB (uint16) or 2 GiB, easy to copy and to check
            one by one, while offsets stay far below 2^32.
    """

    format: str | None = None
    field: str = "text"
    separator: str = SEPARATOR
    sentences: str | None = None
    language: str = "en"
    shard_tokens: int = 1 << 29

    def __post_init__(self) -> None:
        for name, known in (("format", FORMATS), ("sentences", SENTENCES)):
            if (value := getattr(self, name)) is not None:
                check_name(name, value, known)
        if not self.separator.strip(" "):
            raise ConfigError("bad-value", "the separator is empty", "use a sign that no sentence holds, like ;$;")
        if not 0 < self.shard_tokens <= 1 << 31:
            raise ConfigError("bad-value", f"shard_tokens is {self.shard_tokens:,}", "use 1 to 2^31")


@dataclass(frozen=True)
class BuildOptions:
    """Turn text files into a token store. Interrupted, the same command goes on.

    Attributes:
        inputs: Files, globs, folders or URLs: plain text (a line is a sentence, a blank line ends a document; say
            `--sentences split` if a line is a paragraph, `--format paragraphs` if it is a document), JSONL, Parquet or
            WikiExtractor's output, also `.gz`, `.xz` and `.zst`.
        out: Folder of the store; new, empty, or holding an unfinished build. Or an address (`s3://…`): built below
            `ALBERTKIT_CACHE` (`~/.cache/albertkit`), then uploaded.
        tokenizer: Folder that holds one `*.model`; or a run, whose model has one.
        settings: Settings that change the content of the store.
        errors: Bytes that are not UTF-8: `strict` stops and says where, `replace` goes on and counts them.
        workers: Number of processes that split and encode. Default: threads of this process on two cores or for less than 100
            MB, else one process a core. With `--engine ray`: number of input parts in work at a time; default: one for each
            core of the cluster, and as many waiting. The bytes of the store do not depend on it.
        engine: `local`, this machine; `ray`, all machines of a Ray cluster, which must see the inputs under the same names
            (extra `cluster`, `docs/scale.md`). The bytes of the store do not depend on it.
        address: `HOST:PORT` of the Ray cluster. Not given: the one this machine is part of, else this machine alone.
        overwrite: Replace another store, or other or damaged unfinished work, in `--out`.
        progress: Show it on stderr.
    """

    inputs: Annotated[Sequence[str | Path], SEVERAL]
    out: str | Path
    tokenizer: Any
    settings: BuildSettings = BuildSettings()
    _: KW_ONLY
    errors: Literal["strict", "replace"] = "strict"
    workers: int | None = None
    engine: Literal["local", "ray"] = "local"
    address: str | None = None
    overwrite: bool = False
    progress: bool = False

    def __post_init__(self) -> None:
        check_name("engine", self.engine, ENGINES)
        check_name("errors", self.errors, ERRORS)
        if self.workers is not None and self.workers < (least := 0 if self.engine == "local" else 1):
            raise ConfigError("bad-value", f"workers is {self.workers}", f"use {least} or more")


def check_name(option: str, value: str, known: Sequence[str]) -> None:
    """Refuse a value of an option that is none of the known ones."""
    if value not in known:
        raise ConfigError("unknown-name", f"there is no {option} `{value}`", near_miss(str(value), known))
