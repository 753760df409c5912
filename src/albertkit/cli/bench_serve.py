"""albertkit bench serve"""

from pathlib import Path
from typing import Annotated, Literal

from cyclopts import Parameter

Texts = Annotated[list[str] | None, Parameter(consume_multiple=True)]  # `--text *.gz`, as the shell expands it


def serve(
    *,
    text: Texts = None,
    tokenizer: Path | None = None,
    model: Path | None = None,
    sentences: int = 2048,
    clients: Annotated[list[int] | None, Parameter(consume_multiple=True)] = None,
    rounds: int = 5,
    threads: int = 0,
    precision: Literal["auto", "fp32", "bf16", "int8"] = "auto",
    overload: bool = False,
    seconds: float = 60.0,
    json: bool = False,
) -> None:
    """Sentences a second through `albertkit serve` with many clients, beside the same engine without a service.

    Args:
        text: Files, globs or folders of text, whose sentences are sent. Default: the built-in English text.
        tokenizer: Folder with one `*.model`, for random weights. Default: one trained on the text on the spot.
        model: Sentence encoder or checkpoint to serve. Default: tiny and base with random weights, mean pooling.
        sentences: How many, taken evenly from the text; each is a request.
        clients: That ask at the same time; several for a row each. Default: 1 and 8 at tiny, 64 at base.
        rounds: Timed rounds.
        threads: Of the process that runs the model. Default: all cores.
        precision: fp32, bf16, int8, or auto: bf16 where the hardware multiplies it faster.
        overload: Send 1, 3 and 10 times as many requests of 32 texts as the service can answer, and count what is answered
            and what is refused.
        seconds: For which requests are sent with --overload.
        json: Print one JSON object a row.
    """
    from albertkit.benchmarks.inputs import open_inputs
    from albertkit.benchmarks.serving import serve_rows
    from albertkit.benchmarks.serving_overload import serve_overload_rows
    from albertkit.benchmarks.showing import show

    with open_inputs(text or [], tokenizer, 1.0) as inputs:
        if overload:
            rows = serve_overload_rows(inputs, model, seconds, threads=threads, precision=precision)
        else:
            rows = serve_rows(inputs, model, sentences, clients or (), rounds, threads, precision)
        show(rows, json)
