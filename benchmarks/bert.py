"""Row `bert`: ALBERT and BERT trained from nothing on the same text, for as many tokens.

BERT is an ALBERT that shares nothing and whose embeddings are as wide as the network
(`parameter_sharing none`), so both run through the same code: what differs is the architecture.
BERT comes twice: as wide as the ALBERT, with several times its parameters, and with at most its
parameters, which makes it narrower.
"""

import dataclasses
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from rich.console import Console
from rich.table import Table

from albertkit.config import AlbertConfig
from albertkit.corpus import TokenStore, build_store
from albertkit.files import atomic_file, write_json
from albertkit.model import AlbertForPreTraining
from albertkit.output.plots import BASELINE, EVALUATION, GRID, MUTED, TRAIN
from albertkit.pretraining.objective import Evaluation, Unigram, evaluate_batches
from albertkit.pretraining.pretrain_command import Estimate, estimate
from albertkit.pretraining.run import pretrain
from albertkit.pretraining.settings import PretrainSettings
from albertkit.pretraining.sources import held_out_stream
from albertkit.tasks.evaluate import evaluate_task
from albertkit.tasks.finetune import finetune
from albertkit.tasks.settings import FinetuneSettings
from albertkit.tokenizer import AlbertTokenizer
from albertkit.training.monitor import read_metrics
from albertkit.training.processes import join_world
from benchmarks.harness import TIMING, Timing, progress, using_threads, versions
from benchmarks.inputs import TEXT, Inputs, Text

HEAD_SIZE = 32
# The learning rate is the best of 5e-4, 1e-3 and 2e-3 for the ALBERT.
SETTINGS = PretrainSettings(
    length=128,
    batch_tokens=2048,
    held_out=0.1,
    optimizer="adamw",
    bias_correction=True,
    lr=1e-3,
    keep=1,
    precision="fp32",
)


@dataclass(frozen=True)
class Trained:
    """One model of the comparison.

    Attributes:
        name: As the table shows it.
        hidden_size: Width.
        parameters: Heads included.
        memory_mb: Weights, gradients, moments and the activations of an update; MB of 10^6 bytes.
        seconds_per_step: Median of interleaved timings.
        train_loss: Masked-LM loss on a sample of the training documents, in nats.
        dev_loss: The same on held-out documents.
        pair_accuracy: Accuracy of sentence order on held-out documents.
        pair_interval: Its 95 % interval.
        task: Scores of a fine-tuning on a pair task: its metric on "train" and "dev"; empty without
            data.
        curve: Steps, seconds at the timed speed, and dev loss of each evaluation.
    """

    name: str
    hidden_size: int
    parameters: int
    memory_mb: float
    seconds_per_step: float
    train_loss: float
    dev_loss: float
    pair_accuracy: float
    pair_interval: tuple[float, float]
    task: dict[str, float]
    curve: list[tuple[int, float, float]]

    def loss_after(self, seconds: float) -> float:
        """Return the dev loss of the last evaluation within so many seconds, NaN if there was none."""
        return next(
            (loss for _, elapsed, loss in reversed(self.curve) if elapsed <= seconds * 1.001),
            float("nan"),
        )


@dataclass(frozen=True)
class Comparison:
    """All models, and what they were trained on."""

    models: list[Trained]
    facts: dict[str, Any]
    task: str | None = None

    def to_json(self) -> dict[str, Any]:
        """Return plain values, those of bert.json."""
        return {"models": [dataclasses.asdict(model) for model in self.models], **self.facts}

    def print(self) -> None:
        """Print a table for the terminal."""
        heading, *rows = as_table(self.models, self.task)
        table = Table()
        for number, title in enumerate(heading):
            table.add_column(title, justify="right" if number else "left")
        for row in rows:
            table.add_row(*row)
        Console().print(table)


def bert(
    *,
    out: Path = Path("albert-and-bert"),
    text: Text = TEXT,
    hidden_size: int = 192,
    layers: int = 4,
    steps: int = 1000,
    task: str | None = None,
    data: Path | None = None,
    timing: Timing = TIMING,
) -> Iterator[Comparison]:
    """Train ALBERT and BERT from nothing on the same text: parameters, memory, time, loss, overfitting.

    BERT is trained twice, as wide as the ALBERT and with as many parameters. Killed, the same
    command goes on.

    Args:
        out: Folder of the store, the three runs, bert.json and bert.png.
        hidden_size: Width of the ALBERT, a multiple of 32.
        layers: Number of layers.
        steps: Updates of 2,048 tokens.
        task: Task to fine-tune each on afterwards, for example mrpc.
        data: Data of the task.
    """
    with text.open(1.0) as inputs, using_threads(timing.threads):
        sizes = dict(hidden_size=hidden_size, layers=layers, steps=steps)
        yield compare_with_bert(
            inputs, out, **sizes, rounds=timing.rounds or 3, task=task, data=data
        )


def configurations(
    vocab_size: int, hidden_size: int, layers: int, length: int
) -> dict[str, AlbertConfig]:
    """Return the three models: an ALBERT, a BERT of its width, and the widest BERT without more parameters."""
    sizes: dict[str, Any] = {
        "vocab_size": vocab_size,
        "num_hidden_layers": layers,
        "max_position_embeddings": length,
    }

    def of_width(width: int, **changes: Any) -> AlbertConfig:
        fields: dict[str, Any] = {
            "hidden_size": width,
            "intermediate_size": 4 * width,
            "num_attention_heads": width // HEAD_SIZE,
        }
        return AlbertConfig(**sizes, **fields, initializer_range=0.04, **changes)

    def bert(width: int) -> AlbertConfig:
        return of_width(
            width, embedding_size=width, num_hidden_groups=layers, parameter_sharing="none"
        )

    albert = of_width(hidden_size, embedding_size=min(128, hidden_size))
    max_parameters = albert.num_parameters(heads=True)
    widths = [
        w
        for w in range(HEAD_SIZE, hidden_size + 1, HEAD_SIZE)
        if bert(w).num_parameters(heads=True) <= max_parameters
    ]
    if not widths:
        raise SystemExit(
            f"no BERT of {layers} layers has at most {max_parameters:,} parameters: use a larger --hidden-size"
        )
    return {
        "ALBERT": albert,
        "BERT, as wide": bert(hidden_size),
        "BERT, as many parameters": bert(widths[-1]),
    }


def compare_with_bert(
    inputs: Inputs,
    out: Path,
    *,
    hidden_size: int = 192,
    layers: int = 4,
    steps: int = 1000,
    rounds: int = 3,
    task: str | None = None,
    data: Path | None = None,
) -> Comparison:
    """Train all three and compare them; a killed comparison goes on where it was. The options are those of the row."""
    if hidden_size < 2 * HEAD_SIZE or hidden_size % HEAD_SIZE:
        raise SystemExit(
            f"--hidden-size is {hidden_size}: use a multiple of {HEAD_SIZE}, for example 192"
        )
    if (task is None) != (data is None):
        raise SystemExit(
            "--task and --data go together: name both, for example --task mrpc --data glue/MRPC"
        )
    store = _store(inputs, out)
    every = max(min(20, steps), steps // 20)
    settings = dataclasses.replace(
        SETTINGS, steps=steps, eval_every=every, warmup_steps=steps // 10
    )
    runs: dict[str, PretrainSettings] = {}
    for name, config in configurations(
        store.vocab_size, hidden_size, layers, settings.length
    ).items():
        folder = out / name.replace(", ", "-").replace(" ", "-").lower()
        config.save_pretrained(folder)
        runs[name] = dataclasses.replace(settings, config=folder / "config.json")
    timed = _timed(store, runs, rounds)
    trained = []
    for name, own_run in runs.items():
        assert own_run.config is not None
        run = own_run.config.parent / "run"
        if pretrain(store, run, own_run, resume=(run / "run.toml").exists()).model is None:
            raise KeyboardInterrupt  # a signal; what there is is kept
        scores = (
            _fine_tuned(task, run / "final", data, run.parent / "task") if task and data else {}
        )
        trained.append(_describe(name, own_run, run, store, timed[name], scores))
    facts = {
        "text": inputs.text_name,
        "documents": store.num_documents,
        "tokens": store.num_tokens,
        "steps": steps,
    }
    comparison = Comparison(trained, {**facts, "versions": versions("torch")}, task)
    with suppress(ImportError):  # without matplotlib the table and bert.json say the same
        plot(trained, out / "bert.png")
    write_json(out / "bert.json", comparison.to_json())
    return comparison


def _store(inputs: Inputs, out: Path) -> TokenStore:
    out.mkdir(parents=True, exist_ok=True)
    if not (out / "text.txt").exists():
        inputs.write_text(out / "text.txt")
    if not (out / "tokenizer").exists():
        AlbertTokenizer.from_pretrained(inputs.tokenizer_folder).save_pretrained(out / "tokenizer")
    build_store([str(out / "text.txt")], out / "store", out / "tokenizer")
    return TokenStore.open(out / "store")


def _timed(
    store: TokenStore, runs: dict[str, PretrainSettings], rounds: int
) -> dict[str, Estimate]:
    """Time all models once a round, so that all see the same machine."""
    measured: dict[str, list[Estimate]] = {name: [] for name in runs}
    for number in range(rounds):
        progress(f"timing updates, round {number + 1} of {rounds}")
        for name, settings in runs.items():
            measured[name].append(estimate(store, settings=settings))
    seconds = {
        name: median(turn.seconds_per_step for turn in turns) for name, turns in measured.items()
    }
    return {
        name: dataclasses.replace(turns[0], seconds_per_step=seconds[name])
        for name, turns in measured.items()
    }


def _describe(
    name: str,
    settings: PretrainSettings,
    run: Path,
    store: TokenStore,
    measured: Estimate,
    task: dict[str, float],
) -> Trained:
    model = AlbertForPreTraining.from_pretrained(run / "final")
    held_out = store.held_out(settings.held_out, settings.seed)
    # As many documents that were trained on, chosen by another seed.
    other_documents = store.held_out(settings.held_out, settings.seed + 1)
    trained_documents = [
        other_part & ~own_part
        for other_part, own_part in zip(other_documents, held_out, strict=True)
    ]
    train, dev = (
        _scored(model, store, settings, documents) for documents in (trained_documents, held_out)
    )
    steps, losses = read_metrics(run).series("eval", "masked_lm_loss")
    assert train.masked_lm_loss is not None
    assert dev.masked_lm_loss is not None
    assert dev.sentence_order_accuracy is not None
    assert dev.sentence_order_interval is not None
    return Trained(
        name=name,
        hidden_size=model.config.hidden_size,
        parameters=measured.parameters,
        memory_mb=measured.training_state_mb + measured.activations_mb,
        seconds_per_step=measured.seconds_per_step,
        train_loss=train.masked_lm_loss,
        dev_loss=dev.masked_lm_loss,
        pair_accuracy=dev.sentence_order_accuracy,
        pair_interval=dev.sentence_order_interval,
        task=task,
        curve=[
            (s, s * measured.seconds_per_step, loss) for s, loss in zip(steps, losses, strict=True)
        ],
    )


def _scored(
    model: AlbertForPreTraining, store: TokenStore, settings: PretrainSettings, documents: list[Any]
) -> Evaluation:
    world = join_world("cpu")
    return evaluate_batches(
        model,
        held_out_stream(store, settings, documents, world),
        Unigram.of_store(store, documents),
        world,
    )


def _fine_tuned(task: str, model: Path, data: Path, out: Path) -> dict[str, float]:
    """Return the task's metric on dev and, where the data are a folder, on the training examples."""
    settings = FinetuneSettings(lr=3e-4, epochs=3, length=128)
    result = finetune(task, model, data, out, settings, resume=(out / "run.toml").exists())
    scores = {"dev": result.value}
    return (
        scores | {"train": evaluate_task(out, data, split="train").value}
        if data.is_dir()
        else scores
    )


def as_table(trained: list[Trained], task: str | None = None) -> list[list[str]]:
    """Return rows of text, the heading first, one column a model."""
    # The slowest model's last evaluation that all had time for.
    seconds = min(model.curve[-1][1] for model in trained)
    rows = [
        ["", *(model.name for model in trained)],
        ["width", *(f"{model.hidden_size:,}" for model in trained)],
        ["parameters", *(f"{model.parameters / 1e6:.2f} M" for model in trained)],
        ["memory of training", *(f"{model.memory_mb:,.0f} MB" for model in trained)],
        ["an update", *(f"{1000 * model.seconds_per_step:,.0f} ms" for model in trained)],
        ["masked-LM loss, held-out text", *(f"{model.dev_loss:.3f}" for model in trained)],
        ["masked-LM loss, training text", *(f"{model.train_loss:.3f}" for model in trained)],
        ["gap", *(f"{model.dev_loss - model.train_loss:+.3f}" for model in trained)],
        [
            f"held-out loss after {seconds:,.0f} s",
            *(f"{model.loss_after(seconds):.3f}" for model in trained),
        ],
        [
            "sentence order, held-out text",
            *(f"{model.pair_accuracy:.1%} ({_range(model)})" for model in trained),
        ],
    ]
    for split in trained[0].task:
        rows.append([f"{task}, {split}", *(f"{model.task[split]:.3f}" for model in trained)])
    return rows


def _range(model: Trained) -> str:
    return "{:.1%} to {:.1%}".format(*model.pair_interval)


def plot(trained: list[Trained], file: Path) -> None:
    """Draw held-out loss over tokens and over time."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9.0, 3.8), layout="constrained")
    by_steps, by_seconds = figure.subplots(1, 2, sharey=True)
    for model, colour in zip(trained, (TRAIN, EVALUATION, BASELINE), strict=True):
        steps, seconds, losses = zip(*model.curve, strict=True)
        label = f"{model.name} ({model.parameters / 1e6:.1f} M)"
        by_steps.plot(
            [step * SETTINGS.batch_tokens / 1e6 for step in steps],
            losses,
            color=colour,
            label=label,
        )
        by_seconds.plot(seconds, losses, color=colour)
        by_steps.plot(
            steps[-1] * SETTINGS.batch_tokens / 1e6,
            model.train_loss,
            "o",
            color=colour,
            fillstyle="none",
        )
    by_steps.plot([], [], "o", color=MUTED, fillstyle="none", label="training text, at the end")
    by_steps.set(xlabel="millions of tokens", ylabel="masked-LM loss on held-out text (nats)")
    by_seconds.set(xlabel="seconds of updates")
    by_steps.legend(frameon=False, fontsize=8)
    for axis in (by_steps, by_seconds):
        axis.grid(color=GRID)
        axis.set_axisbelow(True)
        axis.spines[["top", "right"]].set_visible(False)
    with atomic_file(file) as stream:
        figure.savefig(stream, format="png", dpi=100)
