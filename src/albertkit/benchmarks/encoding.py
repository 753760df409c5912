"""`albertkit bench encode`: sentences of natural lengths to states of their first tokens, beside peers that pad."""

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import torch

from albertkit.benchmarks.harness import Contender, Row, compare, interleave, progress, size_of, using_threads
from albertkit.benchmarks.inference_agreement import (
    agreements_of,
    details_of_all,
    judged,
    make_engines,
    peak_contenders,
)
from albertkit.benchmarks.inference_peers import IdleMeter, Peers, Work, open_peers
from albertkit.benchmarks.inputs import Inputs
from albertkit.benchmarks.pretraining import VOCABULARY
from albertkit.config import AlbertConfig
from albertkit.engines import Engine
from albertkit.engines.engine import Precision
from albertkit.errors import ConfigError
from albertkit.model import PackedBatch

BATCH = 32
ORDERS = {"unsorted": False, "sorted": True}
NOTE = (
    "base with random weights; from ids to fp32 states of [CLS] in the order of the sentences, laying out batches included. "
    f"Everybody computes {BATCH} sentences at once: we as they come, without padding; peers padded to the longest of a batch, of "
    "batches as they come and of batches sorted by length over all sentences. Peers run in a process of their own with as many "
    "threads; exports, quantisation, calibration (int8 of OpenVINO, on these sentences) and a trial of their settings are done "
    "before the clock starts"
)


def encode_rows(
    inputs: Inputs,
    sentences: int = 256,
    rounds: int = 3,
    threads: int = 0,
    peer_python: str | None = None,
    config: AlbertConfig | None = None,
) -> Iterator[Row]:
    """Measure encoding a mix of sentences.

    Args:
        inputs: Text, and a tokenizer.
        sentences: Taken evenly from the text, then shuffled.
        rounds: Timed rounds.
        threads: Threads for everybody; 0 for all cores.
        peer_python: As `latency_rows`.
        config: Of the model, for tests. Default: base.

    Yields:
        A row with us in int8, in bf16 and in fp32, those that this machine has; in sentences/s.

    Raises:
        ConfigError: bad-sentences, bad-rounds, vocab-too-large. DataError: not-found, peer-failed.
    """
    config = config or AlbertConfig.from_size("base", vocab_size=VOCABULARY)
    sequences = sentence_ids(inputs, sentences, config)
    works = {name: Work(sequences, BATCH, by_length, prepared=False) for name, by_length in ORDERS.items()}
    with using_threads(threads), TemporaryDirectory(prefix="albertkit-bench-") as scratch:
        model, engines = make_engines(config)
        with open_peers(peer_python, model, works, Path(scratch), first_only=True) as peers:
            yield from _rows(sequences, works, config, engines, peers, rounds, inputs.text_name)


def sentence_ids(inputs: Inputs, count: int, config: AlbertConfig) -> list[list[int]]:
    """Sentences taken evenly from the text and shuffled, as ids.

    Raises:
        ConfigError: bad-sentences, vocab-too-large.
    """
    if count < 1:
        raise ConfigError("bad-sentences", f"--sentences is {count}, it must be at least 1", "leave it out")
    tokenizer = inputs.open_tokenizer(config.vocab_size)
    lines = inputs.lines
    places = np.linspace(0, len(lines) - 1, min(count, len(lines))).astype(int)
    shuffled = np.random.default_rng(0).permutation(places)  # sources follow one another, batches shall mix them
    longest = config.max_position_embeddings
    return [tokenizer.encode(lines[place], special_tokens=True)[:longest] for place in shuffled]


def _rows(
    sequences: list[list[int]],
    works: dict[str, Work],
    config: AlbertConfig,
    engines: dict[Precision, Engine],
    peers: Peers,
    rounds: int,
    text_name: str,
) -> Iterator[Row]:
    count = float(len(sequences))
    states: dict[Precision, Callable[[], np.ndarray]] = {
        name: partial(first_states, engine, sequences) for name, engine in engines.items()
    }
    meter = IdleMeter(peers)
    ours = {name: Contender(f"albertkit {name}", meter.ours(states[name]), count) for name in engines}
    theirs = [
        Contender(f"{name}, {order}", meter.theirs(name, order), count) for name in peers.ready for order in works
    ]
    peaks = peak_contenders(list(engines))
    progress(f"encode: {len(sequences):,} sentences, {torch.get_num_threads()} threads")
    agreements = agreements_of(
        states, {f"{name}, {order}": peers.states(name, order) for name in peers.ready for order in works}
    )
    seconds = interleave([*peaks.values(), *ours.values(), *theirs], rounds, say=progress)
    lengths = np.array(list(map(len, sequences)))
    gflop = config.train_flops_per_token(float((lengths**2).sum() / lengths.sum()), 0.0) / 3e9 * lengths.mean()
    best = {name: each.work / min(seconds[each.name]) for name, each in peaks.items()}
    for name, contender in ours.items():
        row = compare(
            f"encode, natural lengths, batch {BATCH}, {size_of(config)}, ours in {name}", "sentences/s", contender, theirs,
            seconds, note="; ".join([NOTE, *engines[name].notes]), **judged(name, agreements, peers),
        )  # fmt: skip
        row.peak = best[name] / float(gflop) if name in best else None
        row.details = {
            "best_padded_peer": {order: _closest(row, order) for order in works},
            "text": text_name, "sentences": len(sequences), "mean_length": float(lengths.mean()), "longest": int(lengths.max()),
            "padding": {order: padding(lengths, by_length) for order, by_length in ORDERS.items()},
            "tokens_per_second": row.ours * float(lengths.mean()), "gflop_per_sentence": float(gflop), "peak_gflops": best,
            **details_of_all(config, agreements, peers, meter, *works),
        }  # fmt: skip
        yield row


def first_states(engine: Engine, sequences: list[list[int]], device: torch.device | None = None) -> np.ndarray:
    """fp32 [N, H] on the host: the states of first tokens, computed batch by batch in the order given."""
    parts = []
    for start in range(0, len(sequences), BATCH):
        batch = PackedBatch.from_sequences(sequences[start : start + BATCH])
        batch = batch if device is None else batch.to(device)
        parts.append(engine.encode(batch, positions=batch.starts).hidden)
    return torch.cat(parts).float().cpu().numpy()


def padding(lengths: np.ndarray, by_length: bool) -> float:
    """Share of padding in batches."""
    ordered = np.sort(lengths)[::-1] if by_length else lengths
    batches = [ordered[start : start + BATCH] for start in range(0, len(ordered), BATCH)]
    return 1 - float(lengths.sum()) / sum(int(batch.max()) * len(batch) for batch in batches)


def _closest(row: Row, order: str) -> dict[str, float]:
    """Who comes closest to us, and our ratio to it."""
    ratios = {name: ratio for name, ratio in row.ratio.items() if name.endswith(f", {order}")}
    return dict([min(ratios.items(), key=lambda item: item[1])]) if ratios else {}
