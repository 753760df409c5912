"""`albertkit bench encode|latency --device cuda`: our engine beside transformers with SDPA, eager and compiled, on one device."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from albertkit.benchmarks.encoding import BATCH, ORDERS, first_states, padding, sentence_ids
from albertkit.benchmarks.gpu_pretraining import (
    TRANSFORMERS,
    device_name,
    matmul_peak,
    peak_width,
    waiting,
)
from albertkit.benchmarks.harness import Contender, Row, compare, interleave, missing, progress, size_of, versions
from albertkit.benchmarks.inference_agreement import agreement, agrees
from albertkit.benchmarks.inputs import Inputs
from albertkit.benchmarks.latency import fixed_work
from albertkit.benchmarks.pretraining import VOCABULARY
from albertkit.config import AlbertConfig
from albertkit.engines import Engine, load_engine
from albertkit.model import AlbertModel, PackedBatch

SHAPES = ("1x128", "8x128", "1x384")
CALLS = 20  # of a small batch a round
Forward = Callable[[Tensor, Tensor], Tensor]  # ids and mask [B, S] to states [B, S, H]


def gpu_encode_rows(
    inputs: Inputs,
    device: torch.device,
    sentences: int = 8192,
    rounds: int = 5,
    compiled: bool = True,
    config: AlbertConfig | None = None,
) -> Iterator[Row]:
    """Measure sentences of natural lengths: ids on the host to the states of first tokens on the host.

    Args:
        inputs: Text, and a tokenizer.
        device: Where everybody computes; a CPU in tests.
        sentences: Taken evenly from the text, then shuffled.
        rounds: Timed rounds.
        compiled: Measure us and the peer under `torch.compile`, too.
        config: Of the model, for tests. Default: base.

    Yields:
        A row with us eager, and one with us compiled; in sentences/s.

    Raises:
        ConfigError: bad-sentences, bad-rounds, vocab-too-large.
    """
    config = config or AlbertConfig.from_size("base", vocab_size=VOCABULARY)
    sequences = sentence_ids(inputs, sentences, config)
    lengths = np.array(list(map(len, sequences)))
    ours, theirs = _contenders(config, device, compiled)
    runs = {name: partial(first_states, engine, sequences, device) for name, engine in ours.items()}
    peers = {
        f"{name}, {order}": partial(_padded_first_states, forward, sequences, by_length, device)
        for name, forward in theirs.items()
        for order, by_length in ORDERS.items()
    }
    progress(f"encode: {len(sequences):,} sentences on {device}")
    flop = config.train_flops_per_token(float((lengths**2).sum() / lengths.sum()), 0.0) / 3 * lengths.mean()
    details = {
        "sentences": len(sequences), "mean_length": float(lengths.mean()), "longest": int(lengths.max()),
        "padding": {order: padding(lengths, by_length) for order, by_length in ORDERS.items()},
    }  # fmt: skip
    title = f"encode, natural lengths, batch {BATCH}, {size_of(config)}"
    yield from _rows(title, "sentences/s", float(len(sequences)), runs, peers, device, rounds, float(flop), details)


def gpu_latency_rows(
    device: torch.device,
    shapes: Sequence[str] = SHAPES,
    rounds: int = 7,
    compiled: bool = True,
    config: AlbertConfig | None = None,
) -> Iterator[Row]:
    """Measure one small batch: from ids on the device to the states of all tokens there.

    Args:
        device: Where everybody computes; a CPU in tests.
        shapes: `SEQUENCESxLENGTH`.
        rounds: Timed rounds.
        compiled: As `gpu_encode_rows`.
        config: Of the model, for tests. Default: base.

    Yields:
        For each shape a row with us eager, and one with us compiled; in batches/s.

    Raises:
        ConfigError: bad-value, bad-rounds.
    """
    config = config or AlbertConfig.from_size("base", vocab_size=VOCABULARY)
    works = {shape: fixed_work(shape, config) for shape in shapes}
    ours, theirs = _contenders(config, device, compiled)
    for shape, work in works.items():
        batch = PackedBatch.from_sequences(work.sequences).to(device)
        ids = batch.input_ids.view(len(work.sequences), -1)
        mask = torch.ones_like(ids)
        runs = {name: partial(_packed_states, engine, batch) for name, engine in ours.items()}
        peers = {name: partial(forward, ids, mask) for name, forward in theirs.items()}
        progress(f"latency: {shape} on {device}")
        flop = batch.num_tokens * config.train_flops_per_token(float(ids.shape[1]), 0.0) / 3
        title = f"latency, {shape}, {size_of(config)}"
        yield from _rows(title, "batches/s", 1.0, runs, peers, device, rounds, float(flop), {}, CALLS)


def _contenders(
    config: AlbertConfig, device: torch.device, compiled: bool
) -> tuple[dict[str, Engine], dict[str, Forward]]:
    """Our engines and transformers' models with the same weights, by name."""
    import copy

    torch.manual_seed(0)
    model = AlbertModel(config, add_pooling_layer=False).eval()
    ours, theirs = {}, {}
    for form in ("eager", "compiled") if compiled else ("eager",):
        own = copy.deepcopy(model).to(device)
        own.compiled = form == "compiled"
        engine = load_engine(own)
        ours[f"albertkit {engine.precision}, {form}"] = engine
    if TRANSFORMERS.installed:
        theirs["transformers fp32, eager"] = _transformers(config, model, device, torch.float32, False)
        if (dtype := torch.bfloat16 if engine.precision == "bf16" else None) is not None:
            theirs["transformers bf16, eager"] = _transformers(config, model, device, dtype, False)
        if compiled:
            name = f"transformers {engine.precision}, compiled"
            theirs[name] = _transformers(config, model, device, dtype or torch.float32, True)
    return ours, theirs


def _transformers(
    config: AlbertConfig, model: AlbertModel, device: torch.device, dtype: torch.dtype, compiled: bool
) -> Forward:
    """transformers' encoder, its weights in `dtype`."""
    from albertkit.benchmarks.transformers_peer import make_model

    theirs = make_model(config, model.state_dict(), "AlbertModel", add_pooling_layer=False).to(device, dtype).eval()
    forward: Callable[..., Any] = torch.compile(theirs) if compiled else theirs

    @torch.inference_mode()
    def states(ids: Tensor, mask: Tensor) -> Tensor:
        return forward(input_ids=ids, attention_mask=mask).last_hidden_state.float()

    return states


def _packed_states(engine: Engine, batch: PackedBatch) -> Tensor:
    return engine.encode(batch).hidden.float().unflatten(0, (batch.num_sequences, -1))


def _padded_first_states(
    forward: Forward, sequences: list[list[int]], by_length: bool, device: torch.device
) -> np.ndarray:
    """fp32 [N, H] in the order of the sequences; batches padded to their longest."""
    order = sorted(range(len(sequences)), key=lambda n: -len(sequences[n])) if by_length else range(len(sequences))
    rows: list[Tensor] = []
    for start in range(0, len(order), BATCH):
        chosen = [torch.tensor(sequences[n]) for n in order[start : start + BATCH]]
        ids = torch.nn.utils.rnn.pad_sequence(chosen, batch_first=True)
        mask = torch.nn.utils.rnn.pad_sequence([torch.ones_like(one) for one in chosen], batch_first=True)
        rows.append(forward(ids.to(device), mask.to(device))[:, 0])
    found = torch.empty(len(order), rows[0].shape[1])
    found[torch.tensor(list(order))] = torch.cat(rows).cpu()
    return found.numpy()


def _rows(
    title: str,
    unit: str,
    work: float,
    ours: Mapping[str, Callable[[], Any]],
    theirs: Mapping[str, Callable[[], Any]],
    device: torch.device,
    rounds: int,
    flop: float,
    details: dict[str, Any],
    calls: int = 1,
) -> Iterator[Row]:
    """A row for each form of ours: everybody's outputs compared with transformers' in fp32, then everybody timed."""
    states = {name: np.asarray(torch.as_tensor(run()).cpu()) for name, run in {**ours, **theirs}.items()}
    reference = next((found for name, found in states.items() if name.startswith("transformers fp32")), None)
    agreements = {} if reference is None else {name: agreement(found, reference) for name, found in states.items()}

    def repeated(run: Callable[[], Any]) -> None:
        for _ in range(calls):
            run()

    contenders = {
        name: Contender(name, waiting(partial(repeated, run), device), work * calls)
        for name, run in {**ours, **theirs}.items()
    }
    precision = "bf16" if any("bf16" in name for name in ours) else "fp32"
    peak = matmul_peak(device, torch.bfloat16 if precision == "bf16" else torch.float32)
    seconds = interleave([peak, *contenders.values()], rounds, say=progress)
    best = peak.work / min(seconds[peak.name])
    for name in reversed(list(ours)):
        row = compare(
            f"{title}, {name}, {device_name(device)}", unit, contenders[name], [contenders[peer] for peer in theirs], seconds,
            missing=missing([TRANSFORMERS]), versions=versions("torch", "transformers"), peak=best / flop, details=dict(details),
        )  # fmt: skip
        if found := agreements.get(name):
            row.equal = agrees("bf16" if precision == "bf16" else "fp32", found)
            row.compared = "our states with those of transformers fp32 on this device; everybody's in details"
        row.details |= {
            "milliseconds": {"ours": 1e3 / row.ours, **{peer: 1e3 / rate for peer, rate in row.peers.items()}},
            "gflop": flop / 1e9, "peak": f"{precision} product of {peak_width(device)} x {peak_width(device)}, best round",
            "matmul_tflops": best / 1e12, "agreement": agreements,
        }  # fmt: skip
        yield row
