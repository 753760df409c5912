"""Row `pretrain`: real tokens a second of whole optimisation steps, compared with transformers.

On a CPU the peer is transformers' Trainer. On a GPU it is a plain loop around transformers' model
with everything torch gives it: bf16 by autocast, SDPA, fused AdamW, padded to the longest of a
batch, its batches on the device beforehand, like ours; eager, and compiled.
"""

import copy
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch

from albertkit.batches.packed import PackedBatch
from albertkit.config import AlbertConfig
from albertkit.model import AlbertForPreTraining
from albertkit.pretraining.batches import BatchStream
from albertkit.pretraining.examples import ExampleSettings
from albertkit.pretraining.objective import PretrainingObjective
from albertkit.tables import IGNORED
from albertkit.training.optimizers import clip_gradients, make_optimizer
from albertkit.training.processes import (
    bf16_peak_flops,
    choose_precision,
    find_device,
    make_results_repeatable,
)
from benchmarks.harness import (
    CPU,
    TIMING,
    Contender,
    Row,
    Timing,
    describe_peak,
    device_name,
    matmul_peak,
    measure,
    precisions,
    scratch_folder,
    using_threads,
    waiting,
)
from benchmarks.inputs import TEXT, Inputs, Text
from benchmarks.trainer import (
    FIELDS,
    TRAINER,
    Example,
    TrainerSetting,
    best_setting,
    contender,
    make_theirs,
    pad,
)

DOCUMENTED = "transformers Trainer, documented (fp32, padded)"
# Of the loss, ours compared with transformers', same weights and batch, fp32
TOLERANCE = {"cpu": 1e-4, "cuda": 1e-3}
MASKED = 0.15
NOTE = (
    "the same examples for all, made beforehand; real tokens only, padding counts for nothing; the Trainer's time is "
    "that of its training loop, without its set-up. Our step holds all its sequences, a Trainer's step its own batch"
)
DEVICE_NOTE = (
    "batches are on the device beforehand; real tokens only, padding counts for nothing; all make the same number of "
    "steps over the same sequences, clips the gradient's norm and updates with AdamW"
)


@dataclass(frozen=True)
class Work:
    """One size of model and data.

    Attributes:
        name: As it is shown.
        config: The model.
        max_length: Longest sequence.
        sequences: Sequences of one of our steps.
        best_batch: Batch size of transformers at its best setting. On a CPU for the small model 8,
            the fastest of 8, 16 and 32 in one run on two shared cores; for base 4, a choice,
            nothing else was tried. A GPU cannot hold as many padded sequences with all logits as of
            ours.
        natural: Lengths as the text gives them; otherwise every sequence is full.
        compile: Measure the Trainer under `torch_compile` too; its warm-up takes a minute.
    """

    name: str
    config: AlbertConfig
    max_length: int
    sequences: int
    best_batch: int
    natural: bool = True
    compile: bool = True


def works(timing: Timing, device: torch.device) -> list[Work]:
    """Return what is measured: a small model at 128 and base at 512; on a GPU base at 512 and xxlarge."""
    if timing.config:
        config = timing.model_config()
        return [
            Work(
                timing.config.stem,
                config,
                min(64, config.max_position_embeddings),
                sequences=8,
                best_batch=4,
                compile=False,
            )
        ]
    base = timing.model_config()
    if device.type == "cuda":
        xxlarge = timing.model_config("xxlarge")
        return [
            Work("base, length 512, full", base, 512, sequences=256, best_batch=128, natural=False),
            Work("base, length 512, natural", base, 512, sequences=256, best_batch=128),
            Work(
                "xxlarge, length 512, full",
                xxlarge,
                512,
                sequences=32,
                best_batch=32,
                natural=False,
            ),
        ]
    small = base.replace(
        hidden_size=384, num_hidden_layers=6, num_attention_heads=6, intermediate_size=1536
    )
    return [
        Work("H 384, 6 layers, length 128", small, 128, sequences=64, best_batch=8),
        Work("base, length 512", base, 512, sequences=8, best_batch=4),
    ]


def pretrain(
    *, text: Text = TEXT, steps: int = 1, device: str = "cpu", timing: Timing = TIMING
) -> Iterator[Row]:
    """Real tokens a second of optimisation steps, compared with transformers and its Trainer.

    Args:
        steps: Our optimisation steps a round; all get the same examples.
        device: cpu, or cuda or cuda:N for base and xxlarge on a GPU, compared with transformers in
            a plain loop.
    """
    if steps < 1:
        raise SystemExit(f"--steps is {steps}, it must be at least 1")
    target = find_device(device)
    with text.open(2.0) as inputs, using_threads(timing.threads):
        for work in works(timing, target):
            with scratch_folder() as scratch:
                batches = (
                    natural_batches(inputs, work, steps, scratch)
                    if work.natural
                    else full_batches(work, steps)
                )
                if device == "cpu":
                    yield from _rows(work, batches, timing.rounds or 3, scratch)
                else:
                    yield from _rows_on_device(work, batches, timing.rounds or 3, target)


def natural_batches(inputs: Inputs, work: Work, steps: int, scratch: Path) -> list[PackedBatch]:
    """Return examples of the lengths that the text gives, `work.sequences` a batch, masks drawn."""
    inputs.open_tokenizer(work.config.vocab_size)
    store = inputs.build_store(scratch)
    everything = [np.ones(len(offsets) - 1, dtype=bool) for offsets in store.document_offsets]
    stream = BatchStream(
        store, everything, ExampleSettings(max_length=work.max_length), batch_tokens=work.max_length
    )
    singles: list[dict[str, Any]] = []
    while len(singles) < work.sequences * steps:
        singles += [single for micro_batch in next(stream) for single in _split(micro_batch)]
    batches = []
    for first in range(0, work.sequences * steps, work.sequences):
        chosen = singles[first : first + work.sequences]
        batches.append(
            PackedBatch.from_sequences(
                **{name: [single[name] for single in chosen] for name in singles[0]}
            )
        )
    return batches


def full_batches(work: Work, steps: int) -> list[PackedBatch]:
    """Return random tokens, every sequence as long as it may be, 15 % of the places masked."""
    generator = torch.Generator().manual_seed(0)
    length, masked = work.max_length, round(MASKED * work.max_length)
    batches = []
    for _ in range(steps):
        ids = torch.randint(
            5, work.config.vocab_size, (work.sequences, length), generator=generator
        )
        masked_positions = (
            torch.rand(work.sequences, length, generator=generator)
            .argsort(1)[:, :masked]
            .sort(1)
            .values
        )
        orders = torch.randint(0, 2, (work.sequences,), generator=generator).tolist()
        labels = ids.gather(1, masked_positions).tolist()
        batches.append(
            PackedBatch.from_sequences(
                ids.tolist(), None, masked_positions.tolist(), labels, orders
            )
        )
    return batches


def _split(batch: PackedBatch) -> Iterator[dict[str, Any]]:
    """Yield the sequences of a batch."""
    positions, labels = batch.masked_targets()
    assert batch.sentence_order_labels is not None
    for (start, end), order in zip(
        pairwise(batch.offsets.tolist()), batch.sentence_order_labels.tolist(), strict=True
    ):
        in_part = (positions >= start) & (positions < end)
        yield {
            "input_ids": batch.input_ids[start:end].tolist(),
            "token_type_ids": batch.token_type_ids[start:end].tolist(),
            "masked_positions": (positions[in_part] - start).tolist(),
            "masked_labels": labels[in_part].tolist(),
            "sentence_order_labels": order,
        }


def examples_of(batch: PackedBatch) -> list[Example]:
    """Return a packed batch as single examples with transformers' names."""
    positions, targets = batch.masked_targets()
    labels = torch.full_like(batch.input_ids, IGNORED)
    labels[positions] = targets
    orders = batch.sentence_order_labels
    assert orders is not None
    parts = [
        tensor.split(list(batch.lengths))
        for tensor in (batch.input_ids, batch.token_type_ids, labels)
    ]
    return [
        {
            "input_ids": ids,
            "token_type_ids": types,
            "labels": targets,
            "sentence_order_label": order,
        }
        for ids, types, targets, order in zip(*parts, orders, strict=True)
    ]


def _our_steps(
    model: AlbertForPreTraining,
    batches: list[PackedBatch],
    device: torch.device,
    dtype: torch.dtype,
    compiled: bool = False,
) -> Callable[[], None]:
    """Return our optimisation steps over the batches, as the training loop makes them; on CUDA repeatable."""
    model = copy.deepcopy(model).to(device).train()
    model.compute_dtype, model.compiled = dtype, compiled
    objective, optimizer = (
        PretrainingObjective(model),
        make_optimizer("adamw", model.named_parameters(), 1e-4),
    )
    on_device = [batch.to(device) for batch in batches]

    def run() -> None:
        with make_results_repeatable(device):
            for batch in on_device:
                parts = objective.losses(batch).values()
                torch.stack([part.total / max(part.count, 1) for part in parts]).sum().backward()
                clip_gradients(model.parameters(), 1.0)
                optimizer.step()
                optimizer.zero_grad(set_to_none=True)

    return waiting(run, device)


@torch.no_grad()
def _same_loss(
    work: Work,
    model: AlbertForPreTraining,
    theirs: Any,
    batch: PackedBatch,
    device: torch.device = CPU,
) -> dict[str, Any]:
    """Compare transformers' loss of a batch with ours, both in fp32 on the device; return `equal` and `compared`."""
    parts = (
        PretrainingObjective(copy.deepcopy(model).to(device).eval())
        .losses(batch.to(device))
        .values()
    )
    own_loss = float(sum(part.total / part.count for part in parts))
    padded = {
        name: values.to(device) for name, values in pad(examples_of(batch), work.max_length).items()
    }
    # In training it drops out before the sentence-order head
    their_loss = float(theirs.eval()(**padded).loss)
    compared = (
        f"ours {own_loss:.6f}, transformers' {their_loss:.6f}, within {TOLERANCE[device.type]}"
    )
    device_note = "" if device.type == "cpu" else f" on {device}"
    return {
        "equal": abs(own_loss - their_loss) <= TOLERANCE[device.type],
        "compared": f"the loss of the first batch with the same weights in fp32{device_note}: {compared}",
    }


def describe_work(work: Work, batches: list[PackedBatch]) -> tuple[float, dict[str, Any]]:
    """Return the GFLOP of a real token, and what the examples are like."""
    lengths = [length for batch in batches for length in batch.lengths]
    tokens = sum(lengths)
    predictions = sum(len(batch.masked_targets()[1]) for batch in batches)
    squares = sum(n * n for n in lengths)
    gflop = work.config.train_flops_per_token(squares / tokens, predictions / tokens) / 1e9
    return gflop, {
        "sequences": len(lengths),
        "tokens": tokens,
        "mean_length": tokens / len(lengths),
        "padded_share": 1 - tokens / (len(lengths) * work.max_length),
        "gflop_per_token": gflop,
        "threads": torch.get_num_threads(),
    }


def _rows(work: Work, batches: list[PackedBatch], rounds: int, scratch: Path) -> Iterator[Row]:
    """Measure us in bf16, where the processor multiplies it faster, and in fp32, compared with the Trainer."""
    torch.manual_seed(0)
    model, dtypes = AlbertForPreTraining(work.config), precisions()
    gflop, details = describe_work(work, batches)
    tokens = float(details["tokens"])
    ours = {
        n: Contender(f"albertkit {n}", _our_steps(model, batches, CPU, d), tokens)
        for n, d in dtypes.items()
    }
    peaks = {name: matmul_peak(dtype) for name, dtype in dtypes.items()}
    peers, equal = [], {}
    if TRAINER.installed:
        theirs = make_theirs(model)
        examples = [example for batch in batches for example in examples_of(batch)]
        faster = "bf16" in dtypes
        settings = [
            TrainerSetting(DOCUMENTED, 8, pad_to=work.max_length),
            best_setting(work.best_batch, faster),
        ]
        if work.compile and shutil.which("c++"):  # torch.compile writes C++ for a CPU
            settings.append(best_setting(work.best_batch, faster, compile=True))
        peers = [
            contender(setting, theirs, examples, tokens, scratch / "trainer")
            for setting in settings
        ]
        equal = _same_loss(work, model, theirs, batches[0])
    title = f"pretraining, {work.name}, ours in {{}}"
    rows, best = measure(
        title, "tokens/s", ours, peers, rounds, peaks, gflop, note=NOTE, **FIELDS, **equal
    )
    for name, row in rows.items():
        row.details = {
            **details,
            "peak": f"{describe_peak(name)} in the same rounds, best, over the FLOP of a token",
            "matmul_gflops": best,
            "mfu": row.ours * gflop / best[name],
        }
        yield row


# --- one device -----------------------------------------------------------------------------------


def _rows_on_device(
    work: Work, batches: list[PackedBatch], rounds: int, device: torch.device
) -> Iterator[Row]:
    """Measure us as `pretrain` runs by default and, if that is compiled, eager, compared with transformers in a plain loop."""
    dtype = choose_precision("auto", device)
    torch.manual_seed(0)
    model = AlbertForPreTraining(work.config)
    gflop, details = describe_work(work, batches)
    tokens, dtype_name = float(details["tokens"]), str(dtype).removeprefix("torch.")
    forms = {"eager": False} | ({"compiled": True} if device.type == "cuda" else {})
    ours, peers, equal = {}, [], {}
    for form, on in forms.items():
        ours[form] = Contender(
            f"albertkit {dtype_name}, {form}", _our_steps(model, batches, device, dtype, on), tokens
        )
    if TRAINER.installed:
        equal = _same_loss(work, model, make_theirs(model).to(device), batches[0], device)
        for form, on in forms.items():
            run = _their_steps(work, model, batches, device, dtype, on)
            peers.append(Contender(f"transformers {dtype_name}, {form}, padded", run, tokens))
    peaks = dict.fromkeys(forms, matmul_peak(dtype, device))
    title = f"pretraining, {work.name}, ours {{}} in {dtype_name}, {device_name(device)}"
    rows, best = measure(
        title, "tokens/s", ours, peers, rounds, peaks, gflop, note=DEVICE_NOTE, **FIELDS, **equal
    )
    promised = bf16_peak_flops(device)
    for form, row in reversed(rows.items()):
        row.details = {
            **details,
            "peak": f"{describe_peak(dtype_name, device)} in these rounds, best, over a token's FLOP",
            "matmul_tflops": best[form] / 1e3,
            "tflops": row.ours * gflop / 1e3,
            "share_of_matmul": row.ours * gflop / best[form],
            "data_sheet_tflops": promised and promised / 1e12,
            "mfu": promised and row.ours * gflop * 1e9 / promised,
        }
        yield row
    if device.type == "cuda":
        torch.cuda.empty_cache()


def _their_steps(
    work: Work,
    model: AlbertForPreTraining,
    batches: list[PackedBatch],
    device: torch.device,
    dtype: torch.dtype,
    compiled: bool,
) -> Callable[[], None]:
    """Return transformers' optimisation steps over the same sequences, `best_batch` at once."""
    theirs = make_theirs(model).to(device).train()
    forward: Callable[..., Any] = torch.compile(theirs) if compiled else theirs
    optimizer = torch.optim.AdamW(theirs.parameters(), lr=1e-4, fused=True)
    on_device = []
    for batch in batches:
        examples = examples_of(batch)
        for start in range(0, len(examples), work.best_batch):
            padded = pad(examples[start : start + work.best_batch])
            on_device.append({name: values.to(device) for name, values in padded.items()})

    def run() -> None:
        for padded in on_device:
            with torch.autocast(device.type, dtype, enabled=dtype != torch.float32):
                loss = forward(**padded).loss
            loss.backward()
            torch.nn.utils.clip_grad_norm_(theirs.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)

    return waiting(run, device)
