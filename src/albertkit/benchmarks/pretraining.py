"""`albertkit bench pretrain`: real tokens a second of whole optimisation steps, beside transformers and its Trainer."""

import shutil
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch

from albertkit.benchmarks.harness import (
    Contender,
    Peer,
    Row,
    compare,
    interleave,
    missing,
    progress,
    using_threads,
    versions,
)
from albertkit.benchmarks.inputs import Inputs
from albertkit.config import AlbertConfig
from albertkit.errors import ConfigError
from albertkit.model import AlbertForPreTraining, PackedBatch

TRANSFORMERS = Peer("transformers Trainer", "transformers", "pip install transformers accelerate")
TOLERANCE = 1e-4  # of the loss, ours beside transformers', same weights and batch, fp32
VOCABULARY = 30_000  # as published, whatever the tokenizer: the prediction head's share of the work depends on it
MATMUL = 2048  # width of the square matrices that measure the peak
NOTE = (
    "the same examples for all, made beforehand; real tokens only, padding counts for nothing; the Trainer's time is "
    "that of its training loop, without its set-up. Our step holds all its sequences, a Trainer's step its own batch"
)


@dataclass(frozen=True)
class Work:
    """One size of model and data.

    Attributes:
        name: As it is shown.
        config: The model.
        max_length: Longest sequence.
        sequences: Sequences of one of our steps.
        best_batch: Batch size of transformers at its best setting. For the small model 8, the fastest of 8, 16 and 32 in
            one run on two shared cores; for base 4, a choice, nothing else was tried.
        compile: Measure transformers under `torch_compile` too; its warm-up takes a minute.
    """

    name: str
    config: AlbertConfig
    max_length: int
    sequences: int
    best_batch: int
    compile: bool = True


def works() -> list[Work]:
    """The two sizes measured: a small model at 128, and base at 512."""
    small = AlbertConfig.from_size(
        "base",
        hidden_size=384,
        num_hidden_layers=6,
        num_attention_heads=6,
        intermediate_size=1536,
        vocab_size=VOCABULARY,
    )
    return [
        Work("H 384, 6 layers, length 128", small, 128, sequences=64, best_batch=8),
        Work("base, length 512", AlbertConfig.from_size("base", vocab_size=VOCABULARY), 512, sequences=8, best_batch=4),
    ]


def pretrain_rows(
    inputs: Inputs, rounds: int = 3, threads: int = 0, steps: int = 1, sizes: Sequence[Work] | None = None
) -> Iterator[Row]:
    """Measure pretraining steps.

    Args:
        inputs: Text and tokenizer.
        rounds: Timed rounds.
        threads: Threads for everybody; 0 for all cores.
        steps: Our optimisation steps a round; the peers get the same examples.
        sizes: What to measure. Default: `works()`.

    Yields:
        For each size a row with us in bf16, where the processor multiplies it faster, and one with us in fp32.

    Raises:
        ConfigError: bad-steps; vocab-too-large for a tokenizer of more than 30,000 pieces.
        DataError: no-examples.
    """
    if steps < 1:
        raise ConfigError("bad-steps", f"--steps is {steps}, it must be at least 1", "leave it out for the default")
    with using_threads(threads):
        for work in works() if sizes is None else sizes:
            with TemporaryDirectory(prefix="albertkit-bench-") as scratch:
                batches = natural_batches(inputs, work, steps, Path(scratch))
                yield from _rows(work, batches, rounds, Path(scratch))


def natural_batches(inputs: Inputs, work: Work, steps: int, scratch: Path) -> list[PackedBatch]:
    """Examples of the lengths that the text gives, `work.sequences` a batch, masks drawn."""
    import numpy as np

    from albertkit.corpus import TokenStore, build_store
    from albertkit.pretraining.examples import ExampleSettings
    from albertkit.pretraining.stream import BatchStream

    tokenizer = inputs.open_tokenizer(VOCABULARY, "google")
    inputs.write_text(scratch / "text.txt")
    build_store([str(scratch / "text.txt")], scratch / "store", tokenizer)
    store = TokenStore.open(scratch / "store")
    everything = [np.ones(len(offsets) - 1, dtype=bool) for offsets in store.document_offsets]
    stream = BatchStream(store, everything, ExampleSettings(max_length=work.max_length), batch_tokens=work.max_length)
    singles: list[dict[str, Any]] = []
    while len(singles) < work.sequences * steps:
        singles += [single for micro_batch in next(stream) for single in _split(micro_batch)]
    return [
        _join(singles[first : first + work.sequences]) for first in range(0, work.sequences * steps, work.sequences)
    ]


def _split(batch: PackedBatch) -> list[dict[str, Any]]:
    """A batch as plain sequences."""
    ends = batch.offsets.tolist()
    positions, labels = batch.masked_positions, batch.masked_labels
    orders = batch.sentence_order_labels
    assert positions is not None
    assert labels is not None
    assert orders is not None
    singles = []
    for (start, end), order in zip(pairwise(ends), orders.tolist(), strict=True):
        here = (positions >= start) & (positions < end)
        singles.append(
            {
                "input_ids": batch.input_ids[start:end].tolist(),
                "token_type_ids": batch.token_type_ids[start:end].tolist(),
                "masked_positions": (positions[here] - start).tolist(),
                "masked_labels": labels[here].tolist(),
                "sentence_order_labels": order,
            }
        )
    return singles


def _join(singles: list[dict[str, Any]]) -> PackedBatch:
    return PackedBatch.from_sequences(**{name: [single[name] for single in singles] for name in singles[0]})


def _rows(work: Work, batches: list[PackedBatch], rounds: int, scratch: Path) -> Iterator[Row]:
    from albertkit.training.hardware import choose_precision

    faster_bf16 = choose_precision("auto", torch.device("cpu")) is torch.bfloat16
    torch.manual_seed(0)
    model = AlbertForPreTraining(work.config)
    ours = {name: _steps(f"albertkit {name}", model, batches, dtype) for name, dtype in precisions(faster_bf16)}
    matmuls = {name: matmul(name, dtype) for name, dtype in precisions(faster_bf16)}
    peers, equal, compared = _peers(work, model, batches, faster_bf16, scratch)
    progress(f"pretrain, {work.name}: {_total(batches):,} tokens a round, {torch.get_num_threads()} threads")
    seconds = interleave([*matmuls.values(), *ours.values(), *peers], rounds, say=progress)
    measured = {name: matmul.work / min(seconds[matmul.name]) for name, matmul in matmuls.items()}
    flops, details = describe_work(work, batches)
    for name, contender in ours.items():
        row = compare(
            f"pretraining, {work.name}, ours in {name}", "tokens/s", contender, peers, seconds,
            equal=equal, compared=compared, missing=missing([TRANSFORMERS]), note=NOTE,
            versions=versions("torch", "transformers", "accelerate"), details=dict(details),
        )  # fmt: skip
        row.peak = measured[name] * 1e9 / flops
        row.details |= {
            "peak": f"{name} matmul of {MATMUL} x {MATMUL} in the same rounds, best, over the FLOP of a token",
            "matmul_gflops": measured, "mfu": row.ours / row.peak,
        }  # fmt: skip
        yield row


def precisions(faster_bf16: bool) -> list[tuple[str, torch.dtype]]:
    """What we are measured in: bf16 where the processor multiplies it faster, and fp32."""
    return [("bf16", torch.bfloat16)] * faster_bf16 + [("fp32", torch.float32)]


def _total(batches: list[PackedBatch]) -> int:
    return sum(batch.num_tokens for batch in batches)


def _steps(name: str, model: AlbertForPreTraining, batches: list[PackedBatch], dtype: torch.dtype) -> Contender:
    """Our optimisation steps over the batches, as the training loop makes them."""
    import copy

    from albertkit.pretraining.objective import PretrainingObjective
    from albertkit.training.optimizers import clip_gradients, make_optimizer

    model = copy.deepcopy(model).train()
    model.compute_dtype = dtype
    objective = PretrainingObjective(model)
    optimizer = make_optimizer("adamw", model.named_parameters(), 1e-4)

    def run() -> None:
        for batch in batches:
            parts = objective.losses(batch).values()
            torch.stack([part.total / max(part.count, 1) for part in parts]).sum().backward()
            clip_gradients(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)

    return Contender(name, run, float(_total(batches)))


def matmul(name: str, dtype: torch.dtype) -> Contender:
    """The machine's peak in GFLOP/s: products of large square matrices."""
    left = torch.randn(MATMUL, MATMUL).to(dtype)
    right = torch.randn(MATMUL, MATMUL).to(dtype)
    out = torch.empty_like(left)

    def run() -> None:
        for _ in range(3):
            torch.matmul(left, right, out=out)

    return Contender(f"matmul {name}", run, 3 * 2 * MATMUL**3 / 1e9)


def _peers(
    work: Work, model: AlbertForPreTraining, batches: list[PackedBatch], faster_bf16: bool, scratch: Path
) -> tuple[list[Contender], bool | None, str]:
    """transformers at both settings, and whether its loss equals ours."""
    if not TRANSFORMERS.installed:
        return [], None, ""
    from albertkit.benchmarks import transformers_peer as peer

    theirs = peer.make_model(work.config, model.state_dict())
    examples = [example for batch in batches for example in peer.examples_of(batch)]
    settings = [peer.DOCUMENTED, peer.best_setting(work.best_batch, faster_bf16)]
    if work.compile and shutil.which("c++"):  # torch.compile writes C++ for a CPU
        settings.append(peer.best_setting(work.best_batch, faster_bf16, compile=True))
    contenders = [
        peer.contender(setting, theirs, examples, work.max_length, scratch / "trainer") for setting in settings
    ]
    own = _loss(model, batches[0])
    padded = peer.pad(peer.examples_of(batches[0]), work.max_length)
    with torch.no_grad():
        other = float(theirs.eval()(**padded).loss)  # in training it drops out before the sentence-order head
    compared = (
        f"the loss of the first batch with the same weights in fp32: ours {own:.6f}, transformers' {other:.6f}, "
        f"within {TOLERANCE}"
    )
    return contenders, abs(own - other) <= TOLERANCE, compared


@torch.no_grad()
def _loss(model: AlbertForPreTraining, batch: PackedBatch) -> float:
    from albertkit.pretraining.objective import PretrainingObjective

    return float(sum(part.total / part.count for part in PretrainingObjective(model.eval()).losses(batch).values()))


def describe_work(work: Work, batches: list[PackedBatch]) -> tuple[float, dict[str, Any]]:
    """FLOP of a real token, and what the examples are like."""
    lengths = [length for batch in batches for length in batch.lengths]
    tokens = sum(lengths)
    predictions = sum(len(batch.masked_labels) for batch in batches if batch.masked_labels is not None)
    flops = work.config.train_flops_per_token(sum(n * n for n in lengths) / tokens, predictions / tokens)
    return flops, {
        "sequences": len(lengths), "tokens": tokens, "mean_length": tokens / len(lengths),
        "padded_share": 1 - tokens / (len(lengths) * work.max_length), "gflop_per_token": flops / 1e9,
        "threads": torch.get_num_threads(),
    }  # fmt: skip
