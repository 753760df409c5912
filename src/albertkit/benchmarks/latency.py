"""`albertkit bench latency`: one small batch through `load_engine`, beside transformers, ONNX Runtime and OpenVINO."""

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import torch

from albertkit.benchmarks.harness import Contender, Row, compare, interleave, progress, size_of, using_threads
from albertkit.benchmarks.inference_agreement import (
    MATMUL,
    agreements_of,
    details_of_all,
    judged,
    make_engines,
    peak_contenders,
)
from albertkit.benchmarks.inference_peers import SETTLE, IdleMeter, Peers, Work, open_peers
from albertkit.benchmarks.pretraining import VOCABULARY
from albertkit.config import AlbertConfig
from albertkit.engines import Engine
from albertkit.engines.engine import Precision
from albertkit.errors import ConfigError
from albertkit.model import PackedBatch

SHAPES = ("1x128", "1x16", "8x128", "1x384")
TOKENS_A_ROUND = 640  # a small batch is computed several times a round, and the median taken
MOST_CALLS = 20
NOTE = (
    "base with random weights; everybody returns all tokens' states in fp32, without the pooler. Peers run in a process of "
    "their own with as many threads; exports, quantisation, calibration on these lengths (int8 of OpenVINO; ours and ONNX "
    "Runtime's need none) and a trial of their settings for this shape are done before the clock starts. They know the shape "
    f"beforehand and need no mask. A round is the median of several calls; {SETTLE * 1e3:.0f} ms after each contender let "
    "thread pools fall asleep"
)


def latency_rows(
    shapes: Sequence[str] = SHAPES,
    rounds: int = 7,
    threads: int = 0,
    peer_python: str | None = None,
    config: AlbertConfig | None = None,
) -> Iterator[Row]:
    """Measure the time of one batch of sequences of one length.

    Args:
        shapes: `SEQUENCESxLENGTH`.
        rounds: Timed rounds.
        threads: Threads for everybody; 0 for all cores.
        peer_python: Interpreter with the peers. Default: the one that the environment variable
            `ALBERTKIT_INFERENCE_PEERS_PYTHON` names, or this one.
        config: Of the model, for tests. Default: base.

    Yields:
        For each shape a row with us in int8, in bf16 and in fp32, those that this machine has; in batches/s.

    Raises:
        ConfigError: bad-value, bad-rounds. DataError: not-found, peer-failed.
    """
    config = config or AlbertConfig.from_size("base", vocab_size=VOCABULARY)
    works = {shape: fixed_work(shape, config) for shape in shapes}
    with using_threads(threads), TemporaryDirectory(prefix="albertkit-bench-") as scratch:
        model, engines = make_engines(config)
        with open_peers(peer_python, model, works, Path(scratch)) as peers:
            for shape, work in works.items():
                yield from _rows(shape, work, config, engines, peers, rounds)


def fixed_work(shape: str, config: AlbertConfig) -> Work:
    """Random ids of a shape.

    Raises:
        ConfigError: bad-value.
    """
    first, _, second = shape.partition("x")
    if not (first.isdecimal() and second.isdecimal()):
        raise ConfigError("bad-value", f"`{shape}` is no shape", "write SEQUENCESxLENGTH, like 1x128")
    count, length = int(first), int(second)
    if not (count and 1 <= length <= config.max_position_embeddings):
        limit = config.max_position_embeddings
        raise ConfigError("bad-value", f"`{shape}`: a length must be between 1 and {limit}", "name another shape")
    ids = np.random.default_rng(0).integers(5, config.vocab_size, (count, length))
    return Work(ids.tolist(), count)


def _rows(
    shape: str, work: Work, config: AlbertConfig, engines: dict[Precision, Engine], peers: Peers, rounds: int
) -> Iterator[Row]:
    batch = PackedBatch.from_sequences(work.sequences)
    calls = min(MOST_CALLS, max(1, TOKENS_A_ROUND // batch.num_tokens))
    states: dict[Precision, Callable[[], np.ndarray]] = {
        name: partial(_all_states, engine, batch) for name, engine in engines.items()
    }
    meter = IdleMeter(peers)
    ours = {name: Contender(f"albertkit {name}", meter.ours(states[name], calls), 1.0) for name in engines}
    theirs = [Contender(name, meter.theirs(name, shape, calls), 1.0) for name in peers.ready]
    peaks = peak_contenders(list(engines))
    progress(f"latency: {shape}, {torch.get_num_threads()} threads")
    agreements = agreements_of(states, {name: peers.states(name, shape) for name in peers.ready})
    seconds = interleave([*peaks.values(), *ours.values(), *theirs], rounds, say=progress)
    lengths = np.array(batch.lengths)
    gflop = lengths.sum() * config.train_flops_per_token(float(lengths.mean()), 0.0) / 3e9
    for name, contender in ours.items():
        row = compare(
            f"latency, {shape}, {size_of(config)}, ours in {name}", "batches/s", contender, theirs, seconds,
            note="; ".join([NOTE, *engines[name].notes]), **judged(name, agreements, peers),
        )  # fmt: skip
        best = {peak: each.work / min(seconds[each.name]) for peak, each in peaks.items()}
        row.peak = best[name] / gflop if name in best else None
        row.details = {
            "milliseconds": {"ours": 1e3 / row.ours, **{peer: 1e3 / rate for peer, rate in row.peers.items()}},
            "calls_a_round": calls, "gflop": float(gflop), "peak_gflops": best,
            "peak": f"products of {MATMUL} x {MATMUL} in {name} with packed weights, best round",
            **details_of_all(config, agreements, peers, meter, shape),
        }  # fmt: skip
        yield row


def _all_states(engine: Engine, batch: PackedBatch) -> np.ndarray:
    return engine.encode(batch).hidden.unflatten(0, (batch.num_sequences, -1)).numpy()
