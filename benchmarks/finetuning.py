"""Row `finetune`: examples a second of whole fine-tuning steps, compared with transformers' Trainer as run_glue uses it.

With `--model` the same training with us and with transformers' Trainer, which ends at the same
metric: same weights (a fresh head too), examples, batches in the same order, number of updates,
learning rates, AdamW with bias correction, clipping at 1; no dropout, of which the two draw
differently. Epsilon of theirs is set before each update to stand where ours does (`DecoupledAdam`):
torch's, by itself, moves the logits by 0.02 within 20 updates. What is left is the order in which
numbers are added: logits differ by 2e-7 after 20 updates of two layers of width 256 in fp32.
"""

import copy
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import torch

from albertkit.batches.features import ExampleStream, Features
from albertkit.config import AlbertConfig
from albertkit.model import AlbertForSequenceClassification
from albertkit.model.pretrained import PretrainedAlbert
from albertkit.tables.bad_rows import BadRows
from albertkit.tasks.data import read_split
from albertkit.tasks.finetune import FinetuningObjective
from albertkit.tasks.models import load_encoder, run_model
from albertkit.tasks.settings import FinetuneSettings
from albertkit.tasks.task import Task
from albertkit.tasks.texts import TextExample, official_task
from albertkit.training.loop import LoopSettings, TrainingRecipe, learning_rate, train
from albertkit.training.monitor import Display
from albertkit.training.optimizers import clip_gradients, make_optimizer
from albertkit.training.processes import World
from benchmarks.harness import (
    CPU,
    TIMING,
    Contender,
    Row,
    Timing,
    describe_peak,
    matmul_peak,
    measure,
    precisions,
    progress,
    scratch_folder,
    size_of,
    using_threads,
)
from benchmarks.inputs import TEXT, Inputs, Text
from benchmarks.trainer import (
    FIELDS,
    TRAINER,
    Example,
    TrainerSetting,
    contender,
    make_theirs,
    make_trainer,
    pad,
)

TASKS = {"mrpc": "MRPC", "sst2": "SST-2"}
MAX_LENGTH = 128  # run_glue.py: max_seq_length, and pad_to_max_length by default
# The published settings of most of GLUE; run_glue's documented command has the same
BATCH_SIZE = 32
# Of logits and loss against transformers, same weights and batch, fp32; without segments 0.07
TOLERANCE = 1e-5
NOTE = (
    "the same examples for all, encoded beforehand by albertkit with their segments (transformers' own tokenizer drops "
    f"them); {BATCH_SIZE} examples an update; the Trainer's time is that of its training loop, without its set-up; ours "
    "draws and packs its batches within the time"
)
DYNAMIC = "transformers Trainer, dynamic padding"
SETTINGS = (
    TrainerSetting(
        "transformers Trainer, run_glue's defaults (fp32, padded to 128)",
        BATCH_SIZE,
        pad_to=MAX_LENGTH,
    ),
    TrainerSetting(f"{DYNAMIC}, fp32", BATCH_SIZE),
    TrainerSetting(f"{DYNAMIC}, bf16", BATCH_SIZE, bf16=True),
    TrainerSetting(f"{DYNAMIC}, bf16, by length", BATCH_SIZE, bf16=True, group_by_length=True),
)
METRIC_PEER = "transformers Trainer, fp32"
LR = 2e-4  # for the small models that such a comparison is made with in minutes
WARMUP = 0.1
# Ours and Google's; the Trainer's defaults are 1e-8, 0.999 and 0
EPS, BETA2, WEIGHT_DECAY = 1e-6, 0.999, 0.01
METRIC_NOTE = (
    f"the same batches of {BATCH_SIZE} for both, no dropout, learning rate {LR:g} with {WARMUP:.0%} warm-up; median over the "
    "seeds, which draw the head and the order of the examples; ids and segments by albertkit"
)


def finetune(
    *,
    data: Path | None = None,
    model: Path | None = None,
    text: Text = TEXT,
    steps: int | None = None,
    timing: Timing = TIMING,
) -> Iterator[Row]:
    """Examples a second of fine-tuning steps compared with transformers' Trainer; with --model, the dev metric of both instead.

    Args:
        data: Folder with MRPC/ and SST-2/. Default: sentences of the text, and pairs of them.
        model: Checkpoint that both fine-tune on the two tasks of the data: do they reach the same
            metric? --rounds are its seeds.
        steps: Updates of 32 examples a round, by default 2; with --model updates of a training, by
            default 300.
    """
    if steps is not None and steps < 1:
        raise SystemExit(f"--steps is {steps}, it must be at least 1")
    with using_threads(timing.threads):
        if model is not None:
            yield from _same_metric(model, data, steps or 300, timing.rounds or 3)
            return
        with text.open(1.0) as inputs:
            for work, config in works(inputs, data, steps or 2, timing.model_config()):
                yield from _rows(work, config, timing.rounds or 3, steps or 2)


# --- examples a second ----------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Work:
    """Labelled features of a whole number of updates, their task, and its name as it is shown."""

    name: str
    task: Task
    features: Features


def works(
    inputs: Inputs, data: Path | None, steps: int, config: AlbertConfig
) -> Iterator[tuple[Work, AlbertConfig]]:
    """Yield pairs of MRPC's length and single texts of SST-2's; without data neighbouring sentences, and single ones."""
    tokenizer = inputs.open_tokenizer(config.vocab_size, "google")
    lines = inputs.lines
    for name, displayed_name in TASKS.items():
        task = official_task(name, length=MAX_LENGTH)
        if data is None:
            pairs = lines[1:] if name == "mrpc" else [None] * len(lines)
            rows = zip(lines, pairs, strict=False)
            examples = [TextExample(str(n), a, b, "01"[n % 2]) for n, (a, b) in enumerate(rows)]
            displayed_name = f"{'pairs of sentences' if name == 'mrpc' else 'sentences'} of the {inputs.text_name}"
        else:
            examples = read_split(task, task.files(data)["train"], "train", BadRows("skip"))
        num_examples = BATCH_SIZE * steps
        chosen = np.random.default_rng(0).choice(
            len(examples), num_examples, replace=len(examples) < num_examples
        )
        features = task.features([examples[n] for n in chosen], tokenizer, labelled=True)
        yield Work(displayed_name, task, features), config.with_changes(**task.head())


def _rows(work: Work, config: AlbertConfig, rounds: int, steps: int) -> Iterator[Row]:
    torch.manual_seed(0)
    model, dtypes = AlbertForSequenceClassification(config), precisions()
    lengths = work.features.lengths
    tokens, count = int(lengths.sum()), float(len(lengths))
    ours = {
        n: Contender(f"albertkit {n}", _our_steps(model, work, steps, dtype), count)
        for n, dtype in dtypes.items()
    }
    peaks = {name: matmul_peak(dtype) for name, dtype in dtypes.items()}
    gflop = (
        tokens * config.train_flops_per_token(float((lengths**2).sum() / tokens), 0.0) / count / 1e9
    )
    peers, equal = [], {}
    with scratch_folder() as scratch:
        if TRAINER.installed:
            theirs, examples = make_theirs(model), examples_of(work.features)
            settings = [setting for setting in SETTINGS if not setting.bf16 or "bf16" in dtypes]
            peers = [contender(setting, theirs, examples, count, scratch) for setting in settings]
            equal = _same_logits(model, theirs, work.features)
        title = f"fine-tuning, {work.name}, {size_of(config)}, ours in {{}}"
        rows, best = measure(
            title, "examples/s", ours, peers, rounds, peaks, gflop, note=NOTE, **FIELDS, **equal
        )
    for name, row in rows.items():
        row.details = {
            "examples": len(lengths),
            "mean_length": float(lengths.mean()),
            "longest": int(lengths.max()),
            "padded_share": 1 - tokens / (count * MAX_LENGTH),
            "gflop_per_example": gflop,
            "threads": torch.get_num_threads(),
            "matmul_gflops": best,
            "mfu": row.ours * gflop / best[name],
            "peak": f"{describe_peak(name)} in the same rounds, best, over the FLOP of an example's tokens",
        }
        yield row


def _our_steps(
    model: AlbertForSequenceClassification, work: Work, steps: int, dtype: torch.dtype
) -> Any:
    """Return our updates once over the examples, as `finetune` makes them."""
    model = copy.deepcopy(model).train()
    model.compute_dtype = dtype
    stream = ExampleStream(
        work.features, batch_size=BATCH_SIZE, batch_tokens=FinetuneSettings().batch_tokens
    )
    objective = FinetuningObjective(model, work.task)
    optimizer = make_optimizer("adamw", model.named_parameters(), 2e-5, bias_correction=True)

    def run() -> None:
        for _ in range(steps):
            for batch in next(stream):
                (part,) = objective.losses(batch).values()
                (part.total / BATCH_SIZE).backward()
            clip_gradients(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)

    return run


def examples_of(features: Features) -> list[Example]:
    """Return sequences as single examples with transformers' names."""
    cuts = features.offsets[1:-1]
    ids, types = (
        np.split(values.astype(np.int64), cuts)
        for values in (features.input_ids, features.token_type_ids)
    )
    labels = torch.from_numpy(features.per_sequence["labels"])
    return [
        {"input_ids": torch.from_numpy(i), "token_type_ids": torch.from_numpy(t), "labels": label}
        for i, t, label in zip(ids, types, labels, strict=True)
    ]


@torch.no_grad()
def _same_logits(
    model: AlbertForSequenceClassification, theirs: Any, features: Features
) -> dict[str, Any]:
    """Compare logits and loss of the first examples; return `equal` and `compared`."""
    batch = features.batch(np.arange(BATCH_SIZE))
    logits = model.eval().packed_logits(batch.packed)
    own_loss = float(model.task_loss(logits, batch.per_sequence["labels"]).mean())
    their_output = theirs.eval()(**pad(examples_of(features)[:BATCH_SIZE], MAX_LENGTH))
    difference, loss = float((logits - their_output.logits).abs().max()), float(their_output.loss)
    return {
        "equal": difference <= TOLERANCE and abs(own_loss - loss) <= TOLERANCE,
        "compared": f"the first {BATCH_SIZE} examples with the same weights in fp32: logits differ by at most {difference:.1e}; "
        f"loss ours {own_loss:.6f}, transformers' {loss:.6f}; within {TOLERANCE}",
    }


# --- the same metric ------------------------------------------------------------------------------


def _same_metric(model: Path, data: Path | None, steps: int, seeds: int) -> Iterator[Row]:
    """Fine-tune a checkpoint on tasks with both and score both on dev; a row's figures are the metric, its rounds the seeds."""
    if data is None:
        raise SystemExit("a model is given, but no --data: name the folder with MRPC/ and SST-2/")
    for name in TASKS:
        task = official_task(name, length=MAX_LENGTH)
        files = task.files(data)
        if "dev" not in files:
            raise SystemExit(f"`{data}` has no dev file of {name}")
        train, dev = (
            read_split(task, files[split], split, BadRows("skip")) for split in ("train", "dev")
        )
        train = train[: len(train) // BATCH_SIZE * BATCH_SIZE]  # every update is whole
        results = [_trained_by_both(model, task, train, dev, steps, seed) for seed in range(seeds)]
        for precision in precisions():
            yield _metric_row(task, precision, steps, results)


def _metric_row(task: Task, precision: str, steps: int, results: list[dict[str, Any]]) -> Row:
    ours = [result[f"albertkit {precision}"][0] for result in results]
    title = f"dev {task.metric} of {task.name} after {steps} updates, ours in {precision}"
    row = Row(
        title,
        task.metric,
        median(ours),
        {},
        {},
        rounds=len(results),
        missing=FIELDS["missing"],
        note=METRIC_NOTE,
    )
    row.versions = FIELDS["versions"]
    row.best["ours"], row.spread["ours"] = max(ours), (max(ours) - min(ours)) / median(ours)
    row.details["ours"] = ours
    if METRIC_PEER in results[0]:
        theirs = [result[METRIC_PEER][0] for result in results]
        row.peers[METRIC_PEER] = median(theirs)
        row.ratio[METRIC_PEER] = median(a / b for a, b in zip(ours, theirs, strict=True))
        row.best[METRIC_PEER], row.spread[METRIC_PEER] = (
            max(theirs),
            (max(theirs) - min(theirs)) / median(theirs),
        )
        row.details["theirs"] = theirs
        pairs = [
            (result[f"albertkit {precision}"][1], result[METRIC_PEER][1]) for result in results
        ]
        row.details["same_predictions"] = [
            float(np.mean(a.argmax(1) == b.argmax(1))) for a, b in pairs
        ]
        row.details["logits_differ"] = [float(np.abs(a - b).max()) for a, b in pairs]
    return row


def _trained_by_both(
    folder: Path, task: Task, train: Sequence[Any], dev: Sequence[Any], steps: int, seed: int
) -> dict[str, tuple[float, np.ndarray]]:
    """Return the metric and the dev logits [E, C] of each contender."""
    torch.manual_seed(seed)  # of the head
    dropout = ("hidden_dropout_prob", "attention_probs_dropout_prob", "classifier_dropout_prob")
    model, tokenizer, _ = load_encoder(folder, task, **dict.fromkeys(dropout, 0.0))
    features, dev_features = (
        task.features(examples, tokenizer, labelled=True) for examples in (train, dev)
    )
    options: dict[str, Any] = dict(
        batch_size=BATCH_SIZE, batch_tokens=BATCH_SIZE * MAX_LENGTH, seed=seed
    )
    outputs: dict[str, np.ndarray] = {}
    for precision, dtype in precisions().items():
        progress(f"{task.name}, seed {seed}: albertkit {precision}")
        ours = copy.deepcopy(model)
        ours.compute_dtype = dtype
        _train(ours, task, ExampleStream(features, **options), steps, seed)
        outputs[f"albertkit {precision}"] = np.stack(
            run_model(ours, task, dev_features, BATCH_SIZE * MAX_LENGTH)
        )
    if TRAINER.installed:
        progress(f"{task.name}, seed {seed}: {METRIC_PEER}")
        stream = ExampleStream(features, **options)
        order = np.concatenate([batch.sequences for _ in range(steps) for batch in next(stream)])
        outputs[METRIC_PEER] = _train_theirs(
            make_theirs(model), examples_of(features), order, dev_features, steps
        )
    scored = {}
    for name, logits in outputs.items():
        predictions = task.predictions(dev, dev_features, list(logits))
        scored[name] = task.score(dev, predictions)[task.metric], logits
    return scored


def _train(model: PretrainedAlbert, task: Task, stream: Any, steps: int, seed: int) -> None:
    """Train ours, by the one loop."""
    settings = LoopSettings(
        steps=steps,
        lr=LR,
        optimizer="adamw",
        bias_correction=True,
        weight_decay=WEIGHT_DECAY,
        warmup_steps=int(WARMUP * steps),
        seed=seed,
    )
    with scratch_folder() as scratch:
        recipe = TrainingRecipe(
            model=model,
            objective=FinetuningObjective(model, task),
            stream=stream,
            loop=settings,
            save=lambda folder: None,
            evaluate=lambda: {"none": 0.0},
            select="none",
        )
        train(recipe, scratch, World(0, 1, CPU), Display(None, silent=True))
    model.eval()


def _train_theirs(
    model: Any, examples: list[Example], order: np.ndarray, dev: Features, steps: int
) -> np.ndarray:
    """Run the Trainer's loop over the examples in our order, with dynamic padding; return dev's logits."""
    import transformers

    class Epsilon(transformers.TrainerCallback):
        """Keras's, and ours, is added to the root of the uncorrected moment."""

        def on_step_begin(self, args: Any, state: Any, control: Any, **arguments: Any) -> None:
            for group in arguments["optimizer"].param_groups:
                group["eps"] = EPS / (1 - BETA2 ** (state.global_step + 1)) ** 0.5

    with scratch_folder() as scratch:
        arguments: dict[str, Any] = dict(
            output_dir=str(scratch),
            num_train_epochs=1,
            per_device_train_batch_size=BATCH_SIZE,
            learning_rate=LR,
            weight_decay=WEIGHT_DECAY,
            max_grad_norm=1.0,
            train_sampling_strategy="sequential",
        )
        trainer = make_trainer(model, [examples[n] for n in order], pad, Epsilon(), **arguments)
        options: dict[str, Any] = dict(
            peak=1.0, total_steps=steps, warmup_steps=int(WARMUP * steps)
        )
        trainer.lr_scheduler = torch.optim.lr_scheduler.LambdaLR(
            trainer.create_optimizer(), lambda step: learning_rate(step, **options)
        )
        trainer.train()
    assert trainer.state.global_step == steps
    rows, logits = (
        examples_of(dev),
        np.zeros((dev.num_sequences, model.config.num_labels), np.float32),
    )
    by_length = np.argsort(dev.lengths, kind="stable")
    with torch.no_grad():
        for chosen in np.array_split(by_length, max(1, len(by_length) // BATCH_SIZE)):
            logits[chosen] = model.eval()(**pad([rows[n] for n in chosen])).logits.numpy()
    return logits
