"""albertkit bench quality"""

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

Texts = Annotated[list[str] | None, Parameter(consume_multiple=True)]  # `--text *.gz`, as the shell expands it


def quality(
    *,
    recipe: Path,
    text: Texts = None,
    tokenizer: Path | None = None,
    minutes: float = 20.0,
    megabytes: float = 100.0,
    threads: int = 0,
    out: Path | None = None,
    peer_batch: int = 8,
    peer_lr: float = 1e-3,
    json: bool = False,
) -> None:
    """Masked-LM loss over time of a pretraining recipe, beside transformers' Trainer in five times the time.

    Args:
        recipe: TOML file of pretraining settings; the Trainer gets a model of the same configuration.
        text: Files, globs or folders of text. Default: the built-in English text.
        tokenizer: Folder with one `*.model`. Default: one trained on the text on the spot.
        minutes: That the Trainer trains; the recipe has a fifth of it.
        megabytes: Text to use at most, in millions of bytes.
        threads: Threads for both. Default: all cores.
        out: New folder to keep weights, logs, quality.json and quality.png in. Default: nothing is kept.
        peer_batch: Blocks of an update of the Trainer.
        peer_lr: Its peak learning rate. The defaults are the best found for H 256 and 4 passes; other shapes want trials.
        json: Print one JSON object a row.
    """
    from albertkit.benchmarks.inputs import open_inputs
    from albertkit.benchmarks.quality import quality_rows
    from albertkit.benchmarks.showing import show

    with open_inputs(text or [], tokenizer, megabytes) as inputs:
        show(quality_rows(inputs, recipe, minutes, threads, out, peer_batch, peer_lr), json)
