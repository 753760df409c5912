"""albertkit bench all"""

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

Texts = Annotated[list[str] | None, Parameter(consume_multiple=True)]  # `--text *.gz`, as the shell expands it


def everything(
    *,
    out: Path,
    only: Texts = None,
    text: Texts = None,
    tokenizer: Path | None = None,
    data: Path | None = None,
    again: bool = False,
) -> int:
    """Run the benchmarks one after the other, and write a page of what came out. Killed? The same command goes on.

    Args:
        out: Folder of the results: NAME.json of each benchmark, and `measured.md`.
        only: Names of benchmarks. Default: all but quality, which takes half an hour by itself.
        text: Files, globs or folders of text. Default: the built-in English text.
        tokenizer: Folder with one `*.model`. Default: one trained on the text on the spot.
        data: Folder with MRPC/ and SST-2/, for fine-tuning. Default: sentences of the text.
        again: Measure also what the folder holds already.
    """
    from albertkit.benchmarks.everything import PAGE, measure_everything

    given = {"text": text or [], "tokenizer": [str(tokenizer)] * bool(tokenizer), "data": [str(data)] * bool(data)}
    measured = measure_everything(out, given, only or (), again)
    print(out / PAGE)
    return 1 if any(one.failed for one in measured) else 0
