"""albertkit bench latency | encode"""

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

Texts = Annotated[list[str] | None, Parameter(consume_multiple=True)]  # `--text *.gz`, as the shell expands it


def latency(
    *,
    shapes: Texts = None,
    peer_python: str | None = None,
    rounds: int = 7,
    threads: int = 0,
    device: str = "cpu",
    json: bool = False,
) -> None:
    """Milliseconds of one small batch, beside transformers, ONNX Runtime and OpenVINO in fp32, bf16 and int8.

    Args:
        shapes: SEQUENCESxLENGTH of each batch. Default: 1x128 1x16 8x128 1x384.
        peer_python: Interpreter that has the peers. Default: what ALBERTKIT_INFERENCE_PEERS_PYTHON names, or this one.
        rounds: Timed rounds; each runs everybody once.
        threads: Threads for everybody. Default: all cores.
        device: cpu, or cuda or cuda:N for a GPU, beside transformers there, eager and compiled.
        json: Print one JSON object a row.
    """
    from albertkit.benchmarks.latency import SHAPES, latency_rows
    from albertkit.benchmarks.showing import show

    if device != "cpu":
        from albertkit.benchmarks.gpu_inference import gpu_latency_rows
        from albertkit.training.distributed import find_device

        show(gpu_latency_rows(find_device(device), shapes or SHAPES, rounds), json)
        return
    show(latency_rows(shapes or SHAPES, rounds, threads, peer_python), json)


def encode(
    *,
    text: Texts = None,
    tokenizer: Path | None = None,
    peer_python: str | None = None,
    sentences: int = 256,
    megabytes: float = 1.0,
    rounds: int = 3,
    threads: int = 0,
    device: str = "cpu",
    json: bool = False,
) -> None:
    """Sentences a second at natural lengths, beside peers that pad, of batches sorted by length and not.

    Args:
        text: Files, globs or folders of text, whose sentences are encoded. Default: the built-in English text.
        tokenizer: Folder with one `*.model`. Default: one trained on the text on the spot.
        peer_python: Interpreter that has the peers. Default: what ALBERTKIT_INFERENCE_PEERS_PYTHON names, or this one.
        sentences: How many, taken evenly from the text.
        megabytes: Text to use at most, in millions of bytes.
        rounds: Timed rounds; each runs everybody once.
        threads: Threads for everybody. Default: all cores.
        device: cpu, or cuda or cuda:N for a GPU, beside transformers there, eager and compiled.
        json: Print one JSON object a row.
    """
    from albertkit.benchmarks.encoding import encode_rows
    from albertkit.benchmarks.inputs import open_inputs
    from albertkit.benchmarks.showing import show

    if device != "cpu":
        from albertkit.benchmarks.gpu_inference import gpu_encode_rows
        from albertkit.training.distributed import find_device

        place = find_device(device)
        with open_inputs(text or [], tokenizer, megabytes) as inputs:
            show(gpu_encode_rows(inputs, place, sentences, rounds), json)
        return
    with open_inputs(text or [], tokenizer, megabytes) as inputs:
        show(encode_rows(inputs, sentences, rounds, threads, peer_python), json)
