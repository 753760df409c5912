"""albertkit bench bert"""

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

Texts = Annotated[list[str] | None, Parameter(consume_multiple=True)]  # `--text *.gz`, as the shell expands it


def bert(
    *,
    out: Path = Path("albert-and-bert"),
    text: Texts = None,
    tokenizer: Path | None = None,
    megabytes: float = 1.0,
    hidden_size: int = 192,
    layers: int = 4,
    steps: int = 1000,
    task: str | None = None,
    data: Path | None = None,
    rounds: int = 3,
    threads: int = 0,
    json: bool = False,
) -> None:
    """Train ALBERT and BERT from nothing on the same text: parameters, memory, time, loss, overfitting.

    BERT is trained twice, as wide as the ALBERT and with as many parameters. Killed, the same command goes on.

    Args:
        out: Folder of the store, the three runs, bert.json and bert.png.
        text: Files, globs or folders of text. Default: the built-in English text.
        tokenizer: Folder with one `*.model`. Default: one trained on the text on the spot.
        megabytes: Text to use at most, in millions of bytes. The less, the more is overfitted.
        hidden_size: Width of the ALBERT, a multiple of 32.
        layers: Number of layers.
        steps: Updates of 2,048 tokens.
        task: Task to fine-tune each on afterwards, for example mrpc.
        data: Data of the task.
        rounds: Timed rounds; each times every model once.
        threads: Threads for all. Default: all cores.
        json: Print one JSON object.
    """
    from albertkit.benchmarks.bert import as_table, compare_with_bert
    from albertkit.benchmarks.inputs import open_inputs
    from albertkit.benchmarks.showing import show_columns
    from albertkit.cli.printing import print_result
    from albertkit.files import read_json

    with open_inputs(text or [], tokenizer, megabytes) as inputs:
        trained = compare_with_bert(
            inputs, out, hidden_size=hidden_size, layers=layers, steps=steps, rounds=rounds, threads=threads,
            task=task, data=data,
        )  # fmt: skip
    if json:
        print_result(read_json(out / "bert.json"), json)
    else:
        show_columns(as_table(trained, task))
