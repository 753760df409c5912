"""Second part of `albertkit bench finetune`: the same training with us and with transformers' Trainer ends at the same metric.

Same weights (a fresh head too), examples, batches in the same order, number of updates, learning rates, AdamW with bias
correction, clipping at 1; no dropout, of which the two draw differently. Epsilon of theirs is set before each update to stand
where ours does (`DecoupledAdam`): torch's, by itself, moves the logits by 0.02 within 20 updates. What is left is the order in
which numbers are added: logits differ by 2e-7 after 20 updates of two passes of width 256 in fp32.
"""

import copy
from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch
from torch import Tensor

from albertkit.benchmarks.finetuning import BATCH_SIZE, MAX_LENGTH, examples_of, pad
from albertkit.benchmarks.harness import Row, missing, progress, using_threads, versions
from albertkit.benchmarks.pretraining import TRANSFORMERS, precisions
from albertkit.benchmarks.transformers_peer import make_model
from albertkit.errors import ConfigError, DataError
from albertkit.model.pretrained import PretrainedAlbert
from albertkit.tasks.features import Features
from albertkit.tasks.task import Task
from albertkit.training.schedules import learning_rate

TRAINER = "transformers Trainer, fp32"
LR = 2e-4  # for the small models that such a comparison is made with in minutes
WARMUP = 0.1
EPS, BETA2, WEIGHT_DECAY = 1e-6, 0.999, 0.01  # ours and Google's; the Trainer's defaults are 1e-8, 0.999 and 0
NOTE = (
    f"the same batches of {BATCH_SIZE} for both, no dropout, learning rate {LR:g} with {WARMUP:.0%} warm-up; median over the "
    "seeds, which draw the head and the order of the examples; ids and segments by albertkit"
)


def same_metric_rows(
    model: Path,
    data: Path | None,
    names: Sequence[str] = ("mrpc", "sst2"),
    steps: int = 300,
    seeds: int = 3,
    threads: int = 0,
) -> Iterator[Row]:
    """Fine-tune a checkpoint on tasks with both and score both on dev.

    Args:
        model: Checkpoint folder with its tokenizer.
        data: Folder with the tasks' files.
        names: Tasks with one sequence an example.
        steps: Updates.
        seeds: Trainings of each.
        threads: Threads for everybody; 0 for all cores.

    Yields:
        For each task and each precision of ours a row whose figures are the task's metric, `rounds` the seeds.

    Raises:
        ConfigError: bad-settings without data, or for fewer than 1 step or seed.
        DataError, CheckpointError: What reading and loading raise.
    """
    from albertkit.tasks.data import read_split
    from albertkit.tasks.faults import Faults
    from albertkit.tasks.texts.names import official_task
    from albertkit.training.hardware import choose_precision

    if data is None:
        raise ConfigError("bad-settings", "a model is given, but no --data", "name the folder with MRPC/ and SST-2/")
    if steps < 1 or seeds < 1:
        raise ConfigError("bad-settings", f"{steps} steps and {seeds} seeds; both must be at least 1", "leave them out")
    faster_bf16 = choose_precision("auto", torch.device("cpu")) is torch.bfloat16
    for name in names:
        task = official_task(name, length=MAX_LENGTH)
        files = task.files(data)
        if "dev" not in files:
            raise DataError("unknown-layout", f"`{data}` has no dev file of {name}", "name a folder that has one")
        train, dev = (read_split(task, files[split], split, Faults("skip")) for split in ("train", "dev"))
        train = train[: len(train) // BATCH_SIZE * BATCH_SIZE]  # every update is whole
        with using_threads(threads):
            results = [_both(model, task, train, dev, steps, seed, faster_bf16) for seed in range(seeds)]
        for precision, _ in precisions(faster_bf16):
            yield _row(task, precision, steps, results)


def _row(task: Task, precision: str, steps: int, results: list[dict[str, Any]]) -> Row:
    ours = [result[f"albertkit {precision}"][0] for result in results]
    row = Row(
        f"dev {task.metric} of {task.name} after {steps} updates, ours in {precision}", task.metric, median(ours), {}, {},
        rounds=len(results), missing=missing([TRANSFORMERS]), note=NOTE,
        versions=versions("torch", "transformers", "accelerate"),
    )  # fmt: skip
    row.best["ours"], row.spread["ours"] = max(ours), _spread(ours)
    row.details["ours"] = ours
    if TRAINER in results[0]:
        theirs = [result[TRAINER][0] for result in results]
        row.peers[TRAINER] = median(theirs)
        row.ratio[TRAINER] = median(a / b for a, b in zip(ours, theirs, strict=True))
        row.best[TRAINER], row.spread[TRAINER] = max(theirs), _spread(theirs)
        row.details["theirs"] = theirs
        pairs = [(result[f"albertkit {precision}"][1], result[TRAINER][1]) for result in results]
        row.details["same_predictions"] = [float(np.mean(a.argmax(1) == b.argmax(1))) for a, b in pairs]
        row.details["logits_differ"] = [float(np.abs(a - b).max()) for a, b in pairs]
    return row


def _spread(values: list[float]) -> float:
    return (max(values) - min(values)) / median(values)


def _both(
    folder: Path, task: Task, train: Sequence[Any], dev: Sequence[Any], steps: int, seed: int, faster_bf16: bool
) -> dict[str, tuple[float, np.ndarray]]:
    """The metric and the dev logits [E, C] of each contender."""
    from albertkit.tasks.loading import load_encoder
    from albertkit.tasks.stream import ExampleStream

    torch.manual_seed(seed)  # of the head
    dropout = ("hidden_dropout_prob", "attention_probs_dropout_prob", "classifier_dropout_prob")
    model, tokenizer, _ = load_encoder(folder, task, **dict.fromkeys(dropout, 0.0))
    features = task.features(train, tokenizer, labelled=True)
    dev_features = task.features(dev, tokenizer, labelled=True)
    settings: dict[str, Any] = dict(batch_size=BATCH_SIZE, batch_tokens=BATCH_SIZE * MAX_LENGTH, seed=seed)
    outputs: dict[str, np.ndarray] = {}
    for precision, dtype in precisions(faster_bf16):
        progress(f"{task.name}, seed {seed}: albertkit {precision}")
        ours = copy.deepcopy(model)
        ours.compute_dtype = dtype
        _train(ours, task, ExampleStream(features, **settings), steps, seed)
        outputs[f"albertkit {precision}"] = _outputs(ours, task, dev_features)
    if TRANSFORMERS.installed:
        progress(f"{task.name}, seed {seed}: {TRAINER}")
        stream = ExampleStream(features, **settings)
        order = np.concatenate([batch.sequences for _ in range(steps) for batch in next(stream)])
        theirs = make_model(model.config, model.state_dict(), type(model).__name__)
        outputs[TRAINER] = _train_theirs(theirs, features, order, dev_features, steps)
    scored = {}
    for name, logits in outputs.items():
        predictions = task.predictions(dev, dev_features, list(logits))
        scored[name] = task.score(dev, predictions)[task.metric], logits
    return scored


def _train(model: PretrainedAlbert, task: Task, stream: Any, steps: int, seed: int) -> None:
    """Ours, by the one loop."""
    from albertkit.tasks.objective import FinetuningObjective
    from albertkit.training.display import Display
    from albertkit.training.distributed import World
    from albertkit.training.loop import LoopSettings, train

    settings = LoopSettings(
        steps=steps, lr=LR, optimizer="adamw", bias_correction=True, weight_decay=WEIGHT_DECAY,
        warmup_steps=int(WARMUP * steps), seed=seed,
    )  # fmt: skip
    with TemporaryDirectory(prefix="albertkit-bench-") as scratch:
        train(
            model, FinetuningObjective(model, task), stream, settings,
            run=Path(scratch), world=World(0, 1, torch.device("cpu")), display=Display(None, silent=True),
            save_model=lambda folder: None, evaluate=lambda: {"none": 0.0}, select="none",
        )  # fmt: skip
    model.eval()


def _outputs(model: PretrainedAlbert, task: Task, features: Features) -> np.ndarray:
    from albertkit.tasks.prediction import run_model

    return np.stack(run_model(model, task, features, BATCH_SIZE * MAX_LENGTH))


def _train_theirs(model: Any, features: Features, order: np.ndarray, dev: Features, steps: int) -> np.ndarray:
    """The Trainer's loop over the examples in our order, with dynamic padding; then dev's logits."""
    import transformers

    examples = examples_of(features)

    class Epsilon(transformers.TrainerCallback):
        """Keras's, and ours, is added to the root of the uncorrected moment."""

        def on_step_begin(self, args: Any, state: Any, control: Any, **others: Any) -> None:
            for group in others["optimizer"].param_groups:
                group["eps"] = EPS / (1 - BETA2 ** (state.global_step + 1)) ** 0.5

    def longest(rows: Sequence[dict[str, Tensor]]) -> dict[str, Tensor]:
        return pad(rows, max(len(row["input_ids"]) for row in rows))

    with TemporaryDirectory(prefix="albertkit-bench-") as scratch:
        arguments = transformers.TrainingArguments(
            output_dir=scratch, num_train_epochs=1, per_device_train_batch_size=BATCH_SIZE, learning_rate=LR,
            weight_decay=WEIGHT_DECAY, max_grad_norm=1.0, train_sampling_strategy="sequential",
            save_strategy="no", logging_strategy="no", report_to="none", disable_tqdm=True, use_cpu=True,
            dataloader_pin_memory=False, remove_unused_columns=False,
        )  # fmt: skip
        trainer = transformers.Trainer(
            model=model, args=arguments, train_dataset=[examples[n] for n in order], data_collator=longest,
            callbacks=[Epsilon()],
        )  # fmt: skip
        trainer.remove_callback(transformers.PrinterCallback)  # it writes to stdout, where our results go
        warmup = int(WARMUP * steps)
        trainer.lr_scheduler = torch.optim.lr_scheduler.LambdaLR(
            trainer.create_optimizer(),
            lambda step: learning_rate(step, peak=1.0, total_steps=steps, warmup_steps=warmup),
        )
        trainer.train()
    assert trainer.state.global_step == steps
    rows, logits = examples_of(dev), np.zeros((dev.num_sequences, model.config.num_labels), np.float32)
    by_length = np.argsort(dev.lengths, kind="stable")
    with torch.no_grad():
        for chosen in np.array_split(by_length, max(1, len(by_length) // BATCH_SIZE)):
            logits[chosen] = model.eval()(**longest([rows[n] for n in chosen])).logits.numpy()
    return logits
