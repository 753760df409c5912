"""Compile the engine's loops in another process, and answer by the model itself until that is done.

Run as `python -m albertkit.engines.compile_loops PRECISION`.
"""

import os
import subprocess
import sys
from functools import cache

import torch
from filelock import FileLock

from albertkit.batches.packed import PackedBatch
from albertkit.config import AlbertConfig
from albertkit.engines import load_engine
from albertkit.engines.engine import Engine, Precision
from albertkit.loop_cache import loops_folder
from albertkit.model import AlbertModel


def start_compiling_in_background(engine: Engine) -> tuple[str, ...]:
    """Let an engine that lacks its loops answer at once, by the model itself in fp32.

    Later answers differ from these in their last digits; where that matters, set
    `ALBERTKIT_WAIT_FOR_LOOPS=1`. An engine in int8 waits: its answers would differ by more.

    Returns:
        A note that says so; nothing where the engine is ready.
    """
    if (
        engine.precision == "int8"
        or os.environ.get("ALBERTKIT_WAIT_FOR_LOOPS")
        or not os.access(loops_folder(), os.W_OK)  # nothing could be left there for this process
        or not engine.lacks_loops()
    ):
        return ()
    engine.compiler = start_compiler(engine.precision)
    return (
        "computed by PyTorch in fp32 until another process has compiled the engine's loops, once, in 20 s of a core "
        "(to wait for them: ALBERTKIT_WAIT_FOR_LOOPS=1)",
    )


def compile_loops_of_engine(precision: Precision) -> tuple[AlbertModel, Engine]:
    """Compile the loops of an engine by running a tiny model: whole texts, and single positions of them."""
    config = AlbertConfig(
        vocab_size=8,
        embedding_size=16,
        hidden_size=64,
        intermediate_size=256,
        num_hidden_layers=2,
        num_attention_heads=2,
    )
    model = AlbertModel(config).eval()
    engine = load_engine(model, precision)
    batch = PackedBatch.from_sequences([[2, 4, 5, 3], [2, 6, 3]])
    engine.encode(batch)
    engine.encode(batch, torch.tensor([0, 4]))
    return model, engine


@cache
def start_compiler(precision: Precision) -> subprocess.Popen:
    """Start the process; it outlives this one, so that the next finds the loops."""
    return subprocess.Popen(
        # -P: the folder that a user stands in may have modules of any name
        [sys.executable, "-P", "-m", __spec__.name, precision],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )


def main(precision: Precision) -> None:
    """Compile, after those that are at it: they may leave nothing to do."""
    if hasattr(os, "nice"):  # not on Windows
        os.nice(5)  # the process that started this one answers meanwhile
    with FileLock(loops_folder() / "compiling.lock"):
        compile_loops_of_engine(precision)


if __name__ == "__main__":
    main(sys.argv[1])  # type: ignore[arg-type]
