"""`albertkit bench finetune`: examples a second of whole fine-tuning steps, beside transformers' Trainer as run_glue uses it."""

import copy
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from albertkit.benchmarks.harness import (
    Contender,
    Row,
    compare,
    interleave,
    missing,
    progress,
    size_of,
    using_threads,
    versions,
)
from albertkit.benchmarks.inputs import Inputs
from albertkit.benchmarks.pretraining import MATMUL, TRANSFORMERS, VOCABULARY, matmul, precisions
from albertkit.benchmarks.transformers_peer import Example, TrainerSetting, contender, make_model
from albertkit.config import AlbertConfig
from albertkit.errors import ConfigError
from albertkit.model import AlbertForSequenceClassification
from albertkit.tasks.features import Features, LabelledBatch
from albertkit.tasks.task import Task

MAX_LENGTH = 128  # run_glue.py: max_seq_length, and pad_to_max_length unless told otherwise
BATCH_SIZE = 32  # the published settings of most of GLUE; run_glue's documented command says the same
TOLERANCE = 1e-5  # of logits and loss, ours beside transformers', same weights and batch, fp32; without segments 0.07
NOTE = (
    "the same examples for all, encoded beforehand by albertkit with their segments (transformers' own tokenizer drops "
    f"them); {BATCH_SIZE} examples an update; the Trainer's time is that of its training loop, without its set-up; ours "
    "draws and packs its batches within the time"
)
SETTINGS = (
    TrainerSetting("transformers Trainer, run_glue's defaults (fp32, padded to 128)", BATCH_SIZE),
    TrainerSetting("transformers Trainer, dynamic padding, fp32", BATCH_SIZE, pad_to="longest"),
)
BF16_SETTINGS = (
    TrainerSetting("transformers Trainer, dynamic padding, bf16", BATCH_SIZE, bf16=True, pad_to="longest"),
    TrainerSetting(
        "transformers Trainer, dynamic padding, bf16, by length", BATCH_SIZE, bf16=True, pad_to="longest", group_by_length=True
    ),
)  # fmt: skip


@dataclass(frozen=True, eq=False)
class Work:
    """What is learned.

    Attributes:
        name: As it is shown.
        task: Of the examples.
        features: Labelled, of a whole number of updates.
    """

    name: str
    task: Task
    features: Features

    @property
    def examples(self) -> int:
        """Number of examples."""
        return self.features.num_sequences


def finetune_rows(
    inputs: Inputs,
    data: Path | None = None,
    rounds: int = 3,
    threads: int = 0,
    steps: int = 2,
    config: AlbertConfig | None = None,
) -> Iterator[Row]:
    """Measure fine-tuning steps of base with random weights on pairs of MRPC's length and on single texts of SST-2's.

    Args:
        inputs: Tokenizer, and text in place of `data`.
        data: Folder with `MRPC/` and `SST-2/`. Default: pairs of neighbouring sentences of the text, and single ones.
        rounds: Timed rounds.
        threads: Threads for everybody; 0 for all cores.
        steps: Updates a round.
        config: The model. Default: base with 30,000 pieces.

    Yields:
        For both a row with us in bf16, where the processor multiplies it faster, and one with us in fp32.

    Raises:
        ConfigError: bad-steps; vocab-too-large for a tokenizer of more pieces than the model has.
        DataError: What reading raises.
    """
    if steps < 1:
        raise ConfigError("bad-steps", f"--steps is {steps}, it must be at least 1", "leave it out for the default")
    config = config or AlbertConfig.from_size("base", vocab_size=VOCABULARY)
    with using_threads(threads):
        for work, its_config in _works(inputs, data, steps, config):
            with TemporaryDirectory(prefix="albertkit-bench-") as scratch:
                yield from _rows(work, its_config, rounds, steps, Path(scratch))


def _works(inputs: Inputs, data: Path | None, steps: int, config: AlbertConfig) -> Iterator[tuple[Work, AlbertConfig]]:
    from albertkit.tasks.data import read_split
    from albertkit.tasks.faults import Faults
    from albertkit.tasks.texts import TextExample
    from albertkit.tasks.texts.names import official_task

    tokenizer = inputs.open_tokenizer(config.vocab_size, "google")
    lines = inputs.lines
    for name, shown in (("mrpc", "MRPC"), ("sst2", "SST-2")):
        task = official_task(name, length=MAX_LENGTH)
        if data is None:
            pairs = lines[1:] if name == "mrpc" else [None] * len(lines)
            rows = zip(lines, pairs, strict=False)
            examples = [TextExample(str(n), a, b, "01"[n % 2]) for n, (a, b) in enumerate(rows)]
            shown = f"{'pairs of sentences' if name == 'mrpc' else 'sentences'} of the {inputs.text_name}"
        else:
            examples = read_split(task, task.files(data)["train"], "train", Faults("skip"))
        wanted = BATCH_SIZE * steps
        chosen = np.random.default_rng(0).choice(len(examples), wanted, replace=len(examples) < wanted)
        features = task.features([examples[n] for n in chosen], tokenizer, labelled=True)
        yield Work(shown, task, features), config.with_changes(**task.head())


def _rows(work: Work, config: AlbertConfig, rounds: int, steps: int, scratch: Path) -> Iterator[Row]:
    from albertkit.training.hardware import choose_precision

    faster_bf16 = choose_precision("auto", torch.device("cpu")) is torch.bfloat16
    torch.manual_seed(0)
    model = AlbertForSequenceClassification(config)
    ours = {name: _steps(f"albertkit {name}", model, work, steps, dtype) for name, dtype in precisions(faster_bf16)}
    matmuls = {name: matmul(name, dtype) for name, dtype in precisions(faster_bf16)}
    peers, equal, compared = _peers(work, model, faster_bf16, scratch)
    progress(f"finetune, {work.name}: {work.examples} examples a round, {torch.get_num_threads()} threads")
    seconds = interleave([*matmuls.values(), *ours.values(), *peers], rounds, say=progress)
    lengths = work.features.lengths
    tokens = lengths.sum()
    flops = float(tokens * config.train_flops_per_token(float((lengths**2).sum() / tokens), 0.0) / work.examples)
    measured = {name: each.work / min(seconds[each.name]) for name, each in matmuls.items()}
    for name, contender_of_ours in ours.items():
        row = compare(
            f"fine-tuning, {work.name}, {size_of(config)}, ours in {name}", "examples/s", contender_of_ours, peers, seconds,
            equal=equal, compared=compared, missing=missing([TRANSFORMERS]), note=NOTE,
            versions=versions("torch", "transformers", "accelerate"),
        )  # fmt: skip
        row.peak = measured[name] * 1e9 / flops
        row.details = {
            "examples": work.examples, "mean_length": lengths.mean(), "longest": int(lengths.max()),
            "padded_share": 1 - tokens / (work.examples * MAX_LENGTH), "gflop_per_example": flops / 1e9,
            "threads": torch.get_num_threads(), "matmul_gflops": measured, "mfu": row.ours / row.peak,
            "peak": f"{name} matmul of {MATMUL} x {MATMUL} in the same rounds, best, over the FLOP of an example's tokens",
        }  # fmt: skip
        row.details = {key: float(v) if isinstance(v, np.floating) else v for key, v in row.details.items()}
        yield row


def _steps(name: str, model: AlbertForSequenceClassification, work: Work, steps: int, dtype: torch.dtype) -> Contender:
    """Our updates once over the examples, as `finetune` makes them."""
    from albertkit.tasks.objective import FinetuningObjective
    from albertkit.tasks.settings import FinetuneSettings
    from albertkit.tasks.stream import ExampleStream
    from albertkit.training.optimizers import clip_gradients, make_optimizer

    model = copy.deepcopy(model).train()
    model.compute_dtype = dtype
    stream = ExampleStream(work.features, batch_size=BATCH_SIZE, batch_tokens=FinetuneSettings().batch_tokens)
    objective = FinetuningObjective(model, work.task)
    optimizer = make_optimizer("adamw", model.named_parameters(), 2e-5, bias_correction=True)

    def run() -> None:
        for _ in range(steps):
            micro_batches: list[LabelledBatch] = next(stream)
            for batch in micro_batches:
                (part,) = objective.losses(batch).values()
                (part.total / BATCH_SIZE).backward()
            clip_gradients(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)

    return Contender(name, run, float(work.examples))


# --- transformers -----------------------------------------------------------------------------------------------------


def examples_of(features: Features) -> list[Example]:
    """Sequences as single examples with transformers' names."""
    cuts = features.offsets[1:-1]
    ids, types = (np.split(values.astype(np.int64), cuts) for values in (features.input_ids, features.token_type_ids))
    labels = torch.from_numpy(features.per_sequence["labels"])
    return [
        {"input_ids": torch.from_numpy(i), "token_type_ids": torch.from_numpy(t), "labels": label}
        for i, t, label in zip(ids, types, labels, strict=True)
    ]


def pad(examples: Sequence[Example], length: int) -> Example:
    """Stack examples in rows of one length, with an attention mask."""
    rows = [{**e, "attention_mask": torch.ones_like(e["input_ids"])} for e in examples]
    names = ("input_ids", "token_type_ids", "attention_mask")
    padded = {name: torch.stack([F.pad(row[name], (0, length - len(row[name]))) for row in rows]) for name in names}
    return {**padded, "labels": torch.stack([row["labels"] for row in rows])}


def _peers(
    work: Work, model: AlbertForSequenceClassification, faster_bf16: bool, scratch: Path
) -> tuple[list[Contender], bool | None, str]:
    """transformers at all settings, and whether its logits and loss equal ours."""
    if not TRANSFORMERS.installed:
        return [], None, ""
    theirs = make_model(model.config, model.state_dict(), type(model).__name__)
    examples = examples_of(work.features)
    peers = [
        replace(contender(setting, theirs, examples, MAX_LENGTH, scratch / "trainer", pad), work=float(work.examples))
        for setting in (*SETTINGS, *(BF16_SETTINGS if faster_bf16 else ()))
    ]
    batch = work.features.batch(np.arange(BATCH_SIZE))
    with torch.no_grad():
        logits = model.eval().packed_logits(batch.packed)
        own: Any = model.task_loss(logits, batch.per_sequence["labels"]).mean()
        other = theirs.eval()(**pad(examples[:BATCH_SIZE], MAX_LENGTH))
    difference = float((logits - other.logits).abs().max())
    compared = (
        f"the first {BATCH_SIZE} examples with the same weights in fp32: logits differ by at most {difference:.1e}; "
        f"loss ours {float(own):.6f}, transformers' {float(other.loss):.6f}; within {TOLERANCE}"
    )
    return peers, _within(difference, own - other.loss), compared


def _within(difference: float, of_loss: Tensor) -> bool:
    return difference <= TOLERANCE and abs(float(of_loss)) <= TOLERANCE
