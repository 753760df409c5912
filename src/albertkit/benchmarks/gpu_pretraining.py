"""`albertkit bench pretrain --device cuda`: real tokens a second of whole optimisation steps on one device, beside transformers.

The peer is a plain loop around transformers' model with everything torch gives it: bf16 by autocast, SDPA, fused AdamW, padded to
the longest of a batch, its batches on the device beforehand, like ours; eager, and under `torch.compile`.
"""

import copy
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch

from albertkit.benchmarks.harness import Contender, Peer, Row, compare, interleave, missing, progress, versions
from albertkit.benchmarks.inputs import Inputs
from albertkit.benchmarks.pretraining import VOCABULARY, Work, describe_work, natural_batches
from albertkit.config import AlbertConfig
from albertkit.model import AlbertForPreTraining, PackedBatch

TRANSFORMERS = Peer("transformers", "transformers", "pip install transformers")
TOLERANCE = 1e-3  # of the loss, ours beside transformers', same weights and batch, fp32
MASKED = 0.15
NOTE = (
    "batches are on the device beforehand; real tokens only, padding counts for nothing; everybody makes the same number of "
    "steps over the same sequences, clips the gradient's norm and updates with AdamW"
)


@dataclass(frozen=True)
class Measured:
    """One size of model and data.

    Attributes:
        work: As on the CPU; `best_batch` is that of the peer, who cannot hold as many padded sequences with all logits.
        natural: Lengths as the text gives them; otherwise every sequence is full.
    """

    work: Work
    natural: bool


def works() -> list[Measured]:
    """What is measured: base at 512, full and of natural lengths, and xxlarge."""
    base, xxlarge = (AlbertConfig.from_size(size, vocab_size=VOCABULARY) for size in ("base", "xxlarge"))
    return [
        Measured(Work("base, length 512, full", base, 512, sequences=64, best_batch=64), natural=False),
        Measured(Work("base, length 512, natural", base, 512, sequences=64, best_batch=64), natural=True),
        Measured(Work("xxlarge, length 512, full", xxlarge, 512, sequences=16, best_batch=16), natural=False),
    ]


def gpu_pretrain_rows(
    inputs: Inputs,
    device: torch.device,
    rounds: int = 5,
    steps: int = 4,
    compiled: bool = True,
    sizes: Sequence[Measured] | None = None,
) -> Iterator[Row]:
    """Measure pretraining steps on a device.

    Args:
        inputs: Text and tokenizer, for natural lengths.
        device: Where everybody computes; a CPU in tests.
        rounds: Timed rounds.
        steps: Optimisation steps a round.
        compiled: Measure us and the peer under `torch.compile`, too.
        sizes: What to measure. Default: `works()`.

    Yields:
        For each size a row with us as `pretrain` runs by default and, if that is compiled, one with us eager.
    """
    for measured in works() if sizes is None else sizes:
        with TemporaryDirectory(prefix="albertkit-bench-") as scratch:
            work = measured.work
            batches = (
                natural_batches(inputs, work, steps, Path(scratch)) if measured.natural else full_batches(work, steps)
            )
        yield from _rows(work, batches, device, rounds, compiled)
        if device.type == "cuda":
            torch.cuda.empty_cache()


def full_batches(work: Work, steps: int) -> list[PackedBatch]:
    """Random pieces, every sequence as long as it may be, 15 % of the places masked."""
    generator = torch.Generator().manual_seed(0)
    length, masked = work.max_length, round(MASKED * work.max_length)
    batches = []
    for _ in range(steps):
        ids = torch.randint(5, work.config.vocab_size, (work.sequences, length), generator=generator)
        places = torch.rand(work.sequences, length, generator=generator).argsort(1)[:, :masked].sort(1).values
        batches.append(
            PackedBatch.from_sequences(
                ids.tolist(), None, places.tolist(), ids.gather(1, places).tolist(),
                torch.randint(0, 2, (work.sequences,), generator=generator).tolist(),
            )
        )  # fmt: skip
    return batches


def _rows(work: Work, batches: list[PackedBatch], device: torch.device, rounds: int, compiled: bool) -> Iterator[Row]:
    from albertkit.training.hardware import choose_precision, peak_flops

    dtype = choose_precision("auto", device)
    torch.manual_seed(0)
    model = AlbertForPreTraining(work.config)
    forms = {"eager": False} | ({"compiled": True} if compiled else {})
    tokens = float(sum(batch.num_tokens for batch in batches))
    shown = str(dtype).removeprefix("torch.")
    ours = {
        form: Contender(
            f"albertkit {shown}, {form}", waiting(_our_steps(model, batches, device, dtype, on), device), tokens
        )
        for form, on in forms.items()
    }
    peers, equal, compared = [], None, ""
    if TRANSFORMERS.installed:
        equal, compared = _same_loss(work, model, batches[0], device)
        for form, on in forms.items():
            run = waiting(_their_steps(work, model, batches, device, dtype, on), device)
            peers.append(Contender(f"transformers {shown}, {form}, padded", run, tokens))
    peak = matmul_peak(device, dtype)
    progress(f"pretrain, {work.name}: {tokens:,.0f} tokens a round on {device}")
    seconds = interleave([peak, *ours.values(), *peers], rounds, say=progress)
    flops, details = describe_work(work, batches)
    measured_peak, promised = peak.work / min(seconds[peak.name]), peak_flops(device)
    for form in reversed(forms):
        row = compare(
            f"pretraining, {work.name}, ours {form} in {shown}, {device_name(device)}", "tokens/s", ours[form], peers, seconds,
            equal=equal, compared=compared, missing=missing([TRANSFORMERS]), note=NOTE,
            versions=versions("torch", "transformers"), details=dict(details),
        )  # fmt: skip
        row.peak = measured_peak / flops
        row.details |= {
            "peak": f"{shown} matmul of {peak_width(device)} x {peak_width(device)} in these rounds, best, over a token's FLOP",
            "matmul_tflops": measured_peak / 1e12, "tflops": row.ours * flops / 1e12, "share_of_matmul": row.ours / row.peak,
            "data_sheet_tflops": promised and promised / 1e12, "mfu": promised and row.ours * flops / promised,
        }  # fmt: skip
        yield row


def _our_steps(
    model: AlbertForPreTraining, batches: list[PackedBatch], device: torch.device, dtype: torch.dtype, compiled: bool
) -> Callable[[], None]:
    """Our optimisation steps, as the training loop makes them on CUDA: repeatable, with one wait a step."""
    from albertkit.pretraining.objective import PretrainingObjective
    from albertkit.training.hardware import repeatable
    from albertkit.training.optimizers import clip_gradients, make_optimizer

    model = copy.deepcopy(model).to(device).train()
    model.compute_dtype, model.compiled = dtype, compiled
    objective, optimizer = PretrainingObjective(model), make_optimizer("adamw", model.named_parameters(), 1e-4)
    there = [batch.to(device) for batch in batches]

    def run() -> None:
        with repeatable(device):
            for batch in there:
                parts = objective.losses(batch).values()
                torch.stack([part.total / max(part.count, 1) for part in parts]).sum().backward()
                clip_gradients(model.parameters(), 1.0)
                optimizer.step()
                optimizer.zero_grad(set_to_none=True)

    return run


def _their_steps(
    work: Work,
    model: AlbertForPreTraining,
    batches: list[PackedBatch],
    device: torch.device,
    dtype: torch.dtype,
    compiled: bool,
) -> Callable[[], None]:
    """transformers' optimisation steps over the same sequences, `best_batch` at once."""
    from albertkit.benchmarks import transformers_peer as peer

    theirs = peer.make_model(work.config, model.state_dict()).to(device).train()
    forward: Callable[..., Any] = torch.compile(theirs) if compiled else theirs
    optimizer = torch.optim.AdamW(theirs.parameters(), lr=1e-4, fused=True)
    there = []
    for batch in batches:
        examples = peer.examples_of(batch)
        for start in range(0, len(examples), work.best_batch):
            rows = examples[start : start + work.best_batch]
            padded = peer.pad(rows, max(len(row["input_ids"]) for row in rows))
            there.append({name: values.to(device) for name, values in padded.items()})

    def run() -> None:
        for padded in there:
            with torch.autocast(device.type, dtype, enabled=dtype != torch.float32):
                loss = forward(**padded).loss
            loss.backward()
            torch.nn.utils.clip_grad_norm_(theirs.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)

    return run


@torch.no_grad()
def _same_loss(work: Work, model: AlbertForPreTraining, batch: PackedBatch, device: torch.device) -> tuple[bool, str]:
    """Whether transformers' loss of a batch, both in fp32 on the device, equals ours."""
    from albertkit.benchmarks import transformers_peer as peer
    from albertkit.pretraining.objective import PretrainingObjective

    own_model = copy.deepcopy(model).to(device).eval()
    parts = PretrainingObjective(own_model).losses(batch.to(device)).values()
    own = float(sum(part.total / part.count for part in parts))
    theirs = peer.make_model(work.config, model.state_dict()).to(device).eval()
    padded = peer.pad(peer.examples_of(batch), work.max_length)
    other = float(theirs(**{name: values.to(device) for name, values in padded.items()}).loss)
    return abs(own - other) <= TOLERANCE, (
        f"the loss of the first batch with the same weights in fp32 on {device}: ours {own:.6f}, transformers' {other:.6f}, "
        f"within {TOLERANCE}"
    )


def waiting(run: Callable[[], Any], device: torch.device) -> Callable[[], None]:
    """The same, over when the device has done what it was asked."""

    def complete() -> None:
        run()
        if device.type == "cuda":
            torch.cuda.synchronize(device)

    return complete


def peak_width(device: torch.device) -> int:
    """Width of the square matrices that measure the peak."""
    return 8192 if device.type == "cuda" else 512


def matmul_peak(device: torch.device, dtype: torch.dtype) -> Contender:
    """The machine's peak in FLOP/s: products of large square matrices."""
    width, times = peak_width(device), 10
    left, right = (torch.randn(width, width, device=device).to(dtype) for _ in range(2))
    out = torch.empty_like(left)

    def run() -> None:
        for _ in range(times):
            torch.matmul(left, right, out=out)

    return Contender(f"matmul {dtype}", waiting(run, device), times * 2.0 * width**3)


def device_name(device: torch.device) -> str:
    """As rows show it."""
    return torch.cuda.get_device_name(device) if device.type == "cuda" else "CPU"
