"""Options of `albertkit corpus build`."""

from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

from albertkit.corpus.settings import BuildSettings
from albertkit.errors import ConfigError, near_miss
from albertkit.frame.command import SEVERAL

ENGINES = ("local", "ray")
ERRORS = ("strict", "replace")


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
        settings: What decides the bytes besides inputs and tokenizer.
        errors: Bytes that are not UTF-8: `strict` stops and says where, `replace` goes on and counts them.
        workers: Processes that split and encode. Not given: threads of this process on two cores or for less than 100 MB, else
            one a core. With `--engine ray`: parts of the inputs in work at a time; not given, as many as the cluster has cores,
            and as many waiting. The bytes of the store do not depend on it.
        engine: `local`, this machine; `ray`, all machines of a Ray cluster, which must see the inputs under the same names
            (extra `cluster`, `docs/scale.md`). The bytes of the store do not depend on it.
        address: `HOST:PORT` of the Ray cluster. Not given: the one this machine is part of, else this machine alone.
        overwrite: Replace another store, or other or damaged unfinished work, in `--out`.
        progress: Show it on stderr.
    """

    inputs: Annotated[Sequence[str | Path], SEVERAL]
    out: str | Path
    tokenizer: Any
    settings: BuildSettings = BuildSettings()  # noqa: RUF009
    _: KW_ONLY
    errors: Literal["strict", "replace"] = "strict"
    workers: int | None = None
    engine: Literal["local", "ray"] = "local"
    address: str | None = None
    overwrite: bool = False
    progress: bool = False

    def __post_init__(self) -> None:
        for value, known in ((self.engine, ENGINES), (self.errors, ERRORS)):
            if value not in known:
                raise ConfigError("unknown-name", f"`{value}` is none of {', '.join(known)}", near_miss(value, known))
        if self.workers is not None and self.workers < (least := 0 if self.engine == "local" else 1):
            raise ConfigError("bad-value", f"workers is {self.workers}", f"use {least} or more")
