"""Row `quality`: masked-LM loss over time, a recipe of ours compared with transformers' Trainer at its best setting.

Same text, tokenizer, model shape, cores and wall clock. Both are programs of their own that take
turns (`turns.py`), so that both see the same machine; each has a number of updates that its
measured speed lets it make in its time, and its own whole schedule. Weights are saved on the way
and scored afterwards by one judge, on the Trainer's own distribution: full blocks of documents
neither has seen, 15 % of the tokens drawn one by one.
"""

import dataclasses
import json
import statistics
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path
from shutil import which
from typing import Any

import torch

from albertkit.config import AlbertConfig
from albertkit.engines.engine import has_native_bf16
from albertkit.files import write_json
from albertkit.pretraining.pretrain_command import estimate
from albertkit.pretraining.settings import PAPER_STEPS, PretrainSettings
from albertkit.pretraining.sources import open_pretraining_data
from albertkit.pretraining.text_start import token_dimensions
from albertkit.training.checkpoints import list_checkpoints
from benchmarks.harness import CPU, Row, progress, scratch_folder, using_threads, versions
from benchmarks.inputs import TEXT, Inputs, Text
from benchmarks.quality_programs import Judge, PeerSetting
from benchmarks.trainer import TRAINER
from benchmarks.turns import Runner, take_turns

SHARE = 0.2  # of the Trainer's time that we take
MOMENTS = 16  # at which each saves its weights
TURN = 10.0  # seconds of the Trainer; ours are in proportion
TIMED_UPDATES = 6  # of each of the Trainer's settings, after two that warm it up
INITIALIZER_RANGE = 0.02
NOTE = (
    "times are active times: making the models and the Trainer's first update, which compiles, are left out, saving weights "
    "and a start from text are in; ours is "
    "`albertkit pretrain` with the recipe's settings, steps and warm-up alone fitted to the time"
)


@dataclass(frozen=True)
class Curve:
    """Losses of one side in nats, of the weights at each moment, and the active time of the moments."""

    seconds: list[float]
    losses: list[float]

    def reached(self, loss: float) -> float | None:
        """Return the seconds at the first saved moment whose loss is no larger; None if there is none."""
        return next(
            (s for s, value in zip(self.seconds, self.losses, strict=True) if value <= loss), None
        )

    def rounded(self) -> list[list[float]]:
        """Return pairs for the terminal and JSON."""
        return [[round(s, 1), round(v, 4)] for s, v in zip(self.seconds, self.losses, strict=True)]


def quality(
    *,
    recipe: Path,
    text: Text = TEXT,
    minutes: float = 20.0,
    threads: int = 0,
    out: Path | None = None,
    peer_batch: int = 8,
    peer_lr: float = 1e-3,
) -> Iterator[Row]:
    """Masked-LM loss over time of a pretraining recipe, compared with transformers' Trainer in five times the time.

    Args:
        recipe: TOML file of pretraining settings; the Trainer gets a model of the same
            configuration.
        minutes: That the Trainer trains; the recipe has a fifth of it.
        threads: Threads for both. Default: all cores.
        out: New folder to keep weights, logs, quality.json and quality.png in. Default: nothing is
            kept.
        peer_batch: Blocks of an update of the Trainer.
        peer_lr: Its peak learning rate. The defaults are the best found for H 256 and 4 layers;
            other shapes want trials.
    """
    if minutes <= 0:
        raise SystemExit(f"--minutes is {minutes}, it must be above 0")
    settings = PretrainSettings(**PretrainSettings.read(recipe))
    if settings.config is not None:  # that its file is not here is said before a store is built
        AlbertConfig.from_pretrained(settings.config)
    if not TRAINER.installed:
        raise SystemExit(f"transformers and accelerate are not installed: {TRAINER.install}")
    if out is not None and out.exists() and any(out.iterdir()):
        raise SystemExit(f"`{out}` is not empty: name a new folder with --out")
    setting = PeerSetting(peer_batch, peer_lr, INITIALIZER_RANGE)
    with text.open(100.0) as inputs, using_threads(threads), scratch_folder() as folder:
        yield Race(inputs, settings, out or folder).run(minutes, setting)


class Race:
    """Both trainings, in a folder that holds the store, the settings, weights and logs."""

    def __init__(self, inputs: Inputs, settings: PretrainSettings, out: Path) -> None:
        out.mkdir(parents=True, exist_ok=True)
        self.out, self.text_name, self.store = out, inputs.text_name, inputs.build_store(out)
        self.config = settings.model_config(self.store.vocab_size)
        self.config.save_pretrained(out)
        self.settings = dataclasses.replace(settings, config=out / "config.json", size=None)

    def run(self, minutes: float, setting: PeerSetting) -> Row:
        """Train both and compare: how often in an hour each could reach the Trainer's lowest loss."""
        out = self.out
        ours, our_speed = self._ours(60 * minutes * SHARE)
        ours.save(out / "ours.toml")
        setting, peer_speed = self._fastest(setting)
        steps = max(MOMENTS, round(60 * minutes / peer_speed))
        progress(
            f"{setting.name}: {steps:,} updates of {peer_speed:.3f} s; ours: {ours.steps:,} of {our_speed:.3f} s"
        )
        moments = [round(steps * number / MOMENTS) for number in range(1, MOMENTS + 1)]
        runners = [
            self._start("albertkit", "ours", TURN * SHARE),
            self._start(setting.name, "theirs", TURN, setting, steps=steps, saves=moments),
        ]
        try:
            # Written when all is ready, before the first update
            runners[0].set_up(out / "ours" / "run.toml")
            runners[1].set_up(out / "theirs" / "updates")  # after the first update, which compiles
            take_turns(runners)
        finally:
            for runner in runners:
                runner.end()
        progress("scoring both")
        held_out = self.store.held_out(ours.held_out, ours.seed)
        judge = Judge(self.store, held_out, self.config, ours.length)
        files = [
            [folder / "model.safetensors" for folder in list_checkpoints(out / "ours")[:MOMENTS]],
            sorted((out / "theirs").glob("step-*.safetensors")),
        ]
        counting = self._seconds_before(ours)
        starts = [(out / "ours" / "run.toml").stat().st_mtime, _moments(out / "theirs")[0]]
        curves = []
        for runner, start, runner_files in zip(runners, starts, files, strict=True):
            before = counting if runner is runners[0] else 0.0
            seconds = [before + runner.active(start, file.stat().st_mtime) for file in runner_files]
            curves.append(Curve(seconds, judge.losses(runner_files)))
        row = self._row(setting, curves, judge)
        row.details |= {
            "updates": {"ours": ours.steps, "theirs": steps},
            "threads": torch.get_num_threads(),
        }
        write_json(out / "quality.json", row.to_json())
        draw(
            out / "quality.png",
            {"albertkit": curves[0], setting.name: curves[1]},
            judge.unigram_loss,
        )
        return row

    def _seconds_before(self, ours: PretrainSettings) -> float:
        """Time what a start from text takes before the first update, which is part of our time."""
        if ours.initial_weights == "random":
            return 0.0
        source, started = open_pretraining_data(self.store, ours), time.perf_counter()
        source.cooccurrence(token_dimensions(self.config))
        return time.perf_counter() - started

    def _start(
        self,
        name: str,
        side: str,
        turn: float,
        setting: PeerSetting | None = None,
        **arguments: Any,
    ) -> Runner:
        """Start a program in the folder `side`: ours, or with a setting the Trainer's."""
        folder = self.out / side
        if setting:
            folder.mkdir()
        job = {
            "store": self.out / "store",
            "out": folder,
            "settings": self.out / "ours.toml",
            **arguments,
        }
        job |= {"threads": torch.get_num_threads(), "setting": setting and asdict(setting)}
        command = [
            sys.executable,
            "-m",
            "benchmarks.quality_programs",
            json.dumps(job, default=str),
        ]
        return Runner.start(name, self.out / f"{side}.log", turn, command)

    def _fastest(self, peer: PeerSetting) -> tuple[PeerSetting, float]:
        """Return the Trainer's fastest setting on this machine, and its seconds an update: fp32 or bf16, compiled or not."""
        speeds: dict[PeerSetting, float] = {}
        for bf16 in (False, True) if has_native_bf16(CPU) else (False,):
            # torch.compile writes C++ for a CPU
            for compiled in (False, True) if which("c++") else (False,):
                setting = dataclasses.replace(peer, bf16=bf16, compile=compiled)
                side = f"speed-{len(speeds)}"
                runner = self._start(
                    setting.name, side, 3600, setting, steps=TIMED_UPDATES + 2, saves=()
                )
                try:
                    take_turns([runner])
                finally:
                    runner.end()
                ends = _moments(self.out / side)
                speeds[setting] = statistics.median(
                    later - end for end, later in pairwise(ends[1:])
                )
                progress(f"{setting.name}: {speeds[setting]:.3f} s an update")
        best = min(speeds, key=lambda setting: speeds[setting])
        return best, speeds[best]

    def _ours(self, seconds: float) -> tuple[PretrainSettings, float]:
        """Return the recipe with as many updates as its measured speed lets it make, and its seconds an update."""
        settings = self.settings
        speed = estimate(self.store, settings=settings).seconds_per_step
        every = max(1, round(seconds / speed / MOMENTS))
        # The last update is followed by an evaluation of its own: one too many to wait for
        steps = every * MOMENTS + 1
        warmup = settings.warmup_steps
        if warmup is not None:
            warmup = round(warmup * steps / (settings.steps or PAPER_STEPS))
        changes: dict[str, Any] = dict(
            steps=steps, warmup_steps=warmup, save_every=every, eval_every=0, keep=MOMENTS + 1
        )
        return dataclasses.replace(settings, **changes), speed

    def _row(self, setting: PeerSetting, curves: list[Curve], judge: Judge) -> Row:
        own_curve, theirs = curves
        target = min(theirs.losses)
        needed, their_seconds = own_curve.reached(target), theirs.reached(target)
        assert their_seconds is not None
        name = setting.name
        rates = {"ours": 3600 / needed if needed else 0.0, name: 3600 / their_seconds}
        model = f"H {self.config.hidden_size}, {self.config.num_hidden_layers} layers, length {self.settings.length}"
        title = f"masked-LM loss over time, {model}: reaching the Trainer's lowest loss"
        ratio = {name: rates["ours"] / rates[name]}
        row = Row(
            title,
            "times an hour",
            rates["ours"],
            {name: rates[name]},
            ratio,
            best=rates,
            rounds=1,
            note=NOTE,
        )
        row.spread = dict.fromkeys(rates, 0.0)
        row.versions = versions("torch", "transformers", "accelerate")
        row.details = {
            "text": self.text_name,
            "setting_of_theirs": asdict(setting),
            "loss_of_theirs": target,
            "seconds_of_theirs": their_seconds,
            "seconds_of_ours_to_it": needed,
            "loss_of_ours": own_curve.losses[-1],
            "seconds_of_ours": own_curve.seconds[-1],
            "unigram_loss": judge.unigram_loss,
            "predictions_scored": judge.predictions,
            "curve_of_ours": own_curve.rounded(),
            "curve_of_theirs": theirs.rounded(),
        }
        return row


def _moments(folder: Path) -> list[float]:
    """Return when the Trainer's updates ended."""
    return [float(line) for line in (folder / "updates").read_text(encoding="utf-8").split()]


def draw(path: Path, curves: dict[str, Curve], unigram_loss: float) -> None:
    """Draw loss over time as a PNG; nothing where matplotlib is not installed."""
    try:
        from matplotlib.figure import Figure
    except ImportError:
        progress("no plot: matplotlib is not installed; pip install matplotlib")
        return
    figure = Figure(figsize=(8.0, 4.8), layout="constrained")
    axes = figure.add_subplot()
    for (name, curve), colour in zip(curves.items(), ("#0072b2", "#d55e00"), strict=True):
        axes.plot(
            [s / 60 for s in curve.seconds],
            curve.losses,
            marker="o",
            markersize=4,
            color=colour,
            label=name,
        )
    axes.axhline(min(list(curves.values())[1].losses), color="#d55e00", linewidth=1, linestyle=":")
    axes.axhline(
        unigram_loss, color="#656d77", linewidth=1, linestyle="--", label="token frequencies"
    )
    axes.set(
        xlabel="minutes of active time", ylabel="masked-LM loss, held out (nats)", xlim=(0, None)
    )
    # A model that grows begins far above
    axes.set_ylim(top=min(axes.get_ylim()[1], unigram_loss + 1))
    axes.grid(color="#d8dee4", linewidth=0.6)
    axes.legend(frameon=False)
    figure.savefig(path, dpi=150, metadata={"Software": None})
