"""`albertkit bench quality`: masked-LM loss over time, a recipe of ours beside transformers' Trainer at its best setting.

Same text, tokenizer, model shape, cores and wall clock. Both are programs of their own that take turns (`slices.py`), so that
both see the same machine; each has a number of updates that its measured speed lets it make in its time, and its own whole
schedule. Weights are saved on the way and scored afterwards by one judge, on the Trainer's own distribution: full blocks of
documents neither has seen, 15 % of the tokens drawn one by one.
"""

import dataclasses
import statistics
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch

from albertkit.benchmarks.harness import Peer, Row, missing, progress, using_threads, versions
from albertkit.benchmarks.inputs import Inputs
from albertkit.benchmarks.quality_peer import PeerJob, PeerSetting
from albertkit.benchmarks.quality_text import Judge
from albertkit.benchmarks.slices import Runner, take_turns
from albertkit.config import AlbertConfig
from albertkit.corpus import TokenStore, build_store
from albertkit.errors import ConfigError
from albertkit.files import write_json
from albertkit.pretraining.estimate import estimate
from albertkit.pretraining.settings import PAPER_STEPS, PretrainSettings
from albertkit.tokenizer import AlbertTokenizer
from albertkit.training.state import list_checkpoints

TRANSFORMERS = Peer("transformers Trainer", "transformers", "pip install transformers accelerate")
SHARE = 0.2  # of the Trainer's time that we take
MOMENTS = 16  # at which each saves its weights
TURN = 10.0  # seconds of the Trainer; ours are in proportion
TIMED_UPDATES = 6  # of each of the Trainer's settings, after two that warm it up
# By the trials in docs/log.md. fp32 or bf16, compiled or not, depends on the machine and is measured.
PEER_BATCH, PEER_LR, PEER_INITIALIZER_RANGE = 8, 1e-3, 0.02
NOTE = (
    "times are active times: making the models and the Trainer's first update, which compiles, are left out, saving weights "
    "is in; ours is `albertkit pretrain` with the recipe's settings, steps and warm-up alone fitted to the time"
)


@dataclass(frozen=True)
class Curve:
    """Losses of one side.

    Attributes:
        seconds: Active time at each moment.
        losses: In nats, of the weights at each moment.
    """

    seconds: list[float]
    losses: list[float]

    def reached(self, loss: float) -> float | None:
        """Seconds at the first saved moment whose loss is no larger; None if there is none."""
        return next((s for s, value in zip(self.seconds, self.losses, strict=True) if value <= loss), None)

    def rounded(self) -> list[list[float]]:
        """Pairs for people and JSON."""
        return [[round(s, 1), round(v, 4)] for s, v in zip(self.seconds, self.losses, strict=True)]


def quality_rows(
    inputs: Inputs,
    recipe: Path,
    minutes: float = 20.0,
    threads: int = 0,
    out: Path | None = None,
    peer_batch: int = PEER_BATCH,
    peer_lr: float = PEER_LR,
) -> Iterator[Row]:
    """Train both and compare.

    Args:
        inputs: Text and tokenizer.
        recipe: TOML file of `PretrainSettings`; it names the model's configuration, which the Trainer's has, too.
        minutes: Active time of the Trainer; ours is a fifth of it.
        threads: Of both; 0 for all cores.
        out: Folder to keep weights, logs, `quality.json` and `quality.png` in. Default: one that is removed.
        peer_batch: Blocks of an update of the Trainer.
        peer_lr: Its peak learning rate.

    Yields:
        One row: how often in an hour each could reach the Trainer's lowest loss.

    Raises:
        ConfigError: bad-minutes; not-found, bad-settings-file, unknown-key, bad-settings of the recipe; missing-extra; not-empty.
        MachineError: peer-failed.
    """
    if minutes <= 0:
        raise ConfigError("bad-minutes", f"--minutes is {minutes}, it must be above 0", "leave it out for the default")
    settings = PretrainSettings(**PretrainSettings.read(recipe))
    if settings.config is not None:  # that its file is not here is said before a store is built
        AlbertConfig.from_pretrained(settings.config)
    if not TRANSFORMERS.installed:
        raise ConfigError("missing-extra", "transformers and accelerate are not installed", TRANSFORMERS.install)
    peer = PeerSetting(peer_batch, peer_lr, PEER_INITIALIZER_RANGE)
    with using_threads(threads):
        if out is not None:
            yield _race(inputs, settings, minutes, out, peer)
            return
        with TemporaryDirectory(prefix="albertkit-bench-") as folder:
            yield _race(inputs, settings, minutes, Path(folder), peer)


def _race(inputs: Inputs, settings: PretrainSettings, minutes: float, out: Path, peer: PeerSetting) -> Row:
    out.mkdir(parents=True, exist_ok=True)
    if any(out.iterdir()):
        raise ConfigError("not-empty", f"`{out}` is not empty", "name a new folder with --out")
    tokenizer = AlbertTokenizer.from_pretrained(inputs.tokenizer_folder, text_rules="google")
    inputs.write_text(out / "text.txt")
    build_store([str(out / "text.txt")], out / "store", tokenizer)
    store = TokenStore.open(out / "store")
    config = settings.model_config(store.vocab_size)
    config.save_pretrained(out)
    settings = dataclasses.replace(settings, config=out / "config.json", size=None)

    setting, peer_speed = _fastest(settings, peer, out)
    steps = max(MOMENTS, round(60 * minutes / peer_speed))
    job = _job(settings, out, "theirs", setting, steps, saves=_moments(steps))
    ours, our_speed = _ours(settings, store, 60 * minutes * SHARE)
    progress(f"{setting.name}: {steps:,} updates of {peer_speed:.3f} s; ours: {ours.steps:,} of {our_speed:.3f} s")
    ours.save(out / "ours.toml")
    run_ours = (out / "store", out / "ours", out / "ours.toml", torch.get_num_threads())
    runners = [
        _start("albertkit", out / "ours.log", TURN * SHARE, "quality_ours", *run_ours),
        _start(setting.name, out / "theirs.log", TURN, "quality_peer", job),
    ]
    try:
        runners[0].set_up(out / "ours" / "run.toml")  # written when all is ready, before the first update
        runners[1].set_up(out / "theirs" / "updates")  # after the first update, which compiles
        take_turns(runners, progress)
    finally:
        for runner in runners:
            runner.end()
    progress("scoring both")
    judge = Judge(store, store.held_out(settings.held_out, settings.seed), config, settings.length)
    files = [
        [folder / "model.safetensors" for folder in list_checkpoints(out / "ours")[:MOMENTS]],
        sorted((out / "theirs").glob("step-*.safetensors")),
    ]
    starts = [(out / "ours" / "run.toml").stat().st_mtime, float((out / "theirs" / "updates").read_text().split()[0])]
    curves = [
        Curve([runner.active(start, file.stat().st_mtime) for file in some], judge.curve(some))
        for runner, start, some in zip(runners, starts, files, strict=True)
    ]
    row = _row(inputs, ours, setting, curves, judge)
    row.details |= {"updates": {"ours": ours.steps, "theirs": steps}, "threads": torch.get_num_threads()}
    write_json(out / "quality.json", row.to_json())
    draw(out / "quality.png", {"albertkit": curves[0], setting.name: curves[1]}, judge.unigram_loss)
    return row


def _moments(steps: int) -> list[int]:
    return [round(steps * number / MOMENTS) for number in range(1, MOMENTS + 1)]


def _start(name: str, log: Path, turn: float, module: str, *arguments: object) -> Runner:
    command = [sys.executable, "-m", f"albertkit.benchmarks.{module}", *map(str, arguments)]
    with open(log, "wb") as stream:
        return Runner(name, subprocess.Popen(command, stdout=stream, stderr=stream), log, turn)


def _job(
    settings: PretrainSettings, out: Path, name: str, setting: PeerSetting, steps: int, saves: Sequence[int] = ()
) -> Path:
    (out / name).mkdir()
    job = PeerJob(
        store=str(out / "store"), out=str(out / name), config=str(out / "config.json"), length=settings.length,
        held_out=settings.held_out, seed=settings.seed, threads=torch.get_num_threads(), steps=steps, saves=list(saves),
        output_bias=settings.output_bias, setting=setting,
    )  # fmt: skip
    job.write(out / f"{name}.json")
    return out / f"{name}.json"


def _fastest(settings: PretrainSettings, peer: PeerSetting, out: Path) -> tuple[PeerSetting, float]:
    """The Trainer's fastest setting on this machine, and its seconds an update."""
    from shutil import which

    from albertkit.engines.processor import native_bf16

    speeds: dict[PeerSetting, float] = {}
    for bf16 in (False, True) if native_bf16(torch.device("cpu")) else (False,):
        for compiled in (False, True) if which("c++") else (False,):  # torch.compile writes C++ for a CPU
            setting = dataclasses.replace(peer, bf16=bf16, compile=compiled)
            name = f"speed-{len(speeds)}"
            job = _job(settings, out, name, setting, TIMED_UPDATES + 2)
            runner = _start(setting.name, out / f"{name}.log", 3600, "quality_peer", job)
            try:
                while runner.take_turn():
                    pass
            finally:
                runner.end()
            ends = [float(line) for line in (out / name / "updates").read_text().split()]
            speeds[setting] = statistics.median(later - end for end, later in pairwise(ends[1:]))
            progress(f"{setting.name}: {speeds[setting]:.3f} s an update")
    best = min(speeds, key=lambda setting: speeds[setting])
    return best, speeds[best]


def _ours(settings: PretrainSettings, store: TokenStore, seconds: float) -> tuple[PretrainSettings, float]:
    """The recipe with as many updates as its measured speed lets it make, and its seconds an update."""
    speed = estimate(store, settings).seconds_per_step
    every = max(1, round(seconds / speed / MOMENTS))
    steps = every * MOMENTS + 1  # the last update is followed by an evaluation of its own: one too many to wait for
    warmup = (
        None
        if settings.warmup_steps is None
        else round(settings.warmup_steps * steps / (settings.steps or PAPER_STEPS))
    )
    changes: dict[str, Any] = dict(steps=steps, warmup_steps=warmup, save_every=every, eval_every=0, keep=MOMENTS + 1)
    return dataclasses.replace(settings, **changes), speed


def _row(inputs: Inputs, ours: PretrainSettings, setting: PeerSetting, curves: list[Curve], judge: Judge) -> Row:
    own, theirs = curves
    target = min(theirs.losses)
    needed, taken = own.reached(target), theirs.reached(target)
    assert taken is not None
    name = setting.name
    rates = {"ours": 3600 / needed if needed else 0.0, name: 3600 / taken}
    model = f"H {judge.config.hidden_size}, {judge.config.num_hidden_layers} passes, length {ours.length}"
    return Row(
        f"masked-LM loss over time, {model}: reaching the Trainer's lowest loss", "times an hour",
        rates["ours"], {name: rates[name]}, {name: rates["ours"] / rates[name]},
        missing=missing([TRANSFORMERS]), versions=versions("torch", "transformers", "accelerate"),
        best=rates, spread=dict.fromkeys(rates, 0.0), rounds=1, note=NOTE,
        details={
            "text": inputs.text_name, "setting_of_theirs": dataclasses.asdict(setting), "loss_of_theirs": target,
            "seconds_of_theirs": taken, "seconds_of_ours_to_it": needed, "loss_of_ours": own.losses[-1],
            "seconds_of_ours": own.seconds[-1], "unigram_loss": judge.unigram_loss, "predictions_scored": judge.predictions,
            "curve_of_ours": own.rounded(), "curve_of_theirs": theirs.rounded(),
        },
    )  # fmt: skip


def draw(path: Path, curves: dict[str, Curve], unigram_loss: float) -> None:
    """Loss over time as a PNG; nothing where matplotlib is not installed."""
    try:
        from matplotlib.figure import Figure
    except ImportError:
        progress("no plot: matplotlib is not installed; pip install matplotlib")
        return
    figure = Figure(figsize=(8.0, 4.8), layout="constrained")
    axes = figure.add_subplot()
    for (name, curve), colour in zip(curves.items(), ("#0072b2", "#d55e00"), strict=True):
        axes.plot([s / 60 for s in curve.seconds], curve.losses, marker="o", markersize=4, color=colour, label=name)
    axes.axhline(min(list(curves.values())[1].losses), color="#d55e00", linewidth=1, linestyle=":")
    axes.axhline(unigram_loss, color="#656d77", linewidth=1, linestyle="--", label="piece frequencies")
    axes.set_xlabel("minutes of active time")
    axes.set_ylabel("masked-LM loss, held out (nats)")
    axes.set_xlim(left=0)
    axes.set_ylim(top=min(axes.get_ylim()[1], unigram_loss + 1))  # a depth that grows begins far above
    axes.grid(color="#d8dee4", linewidth=0.6)
    axes.legend(frameon=False)
    figure.savefig(path, dpi=150, metadata={"Software": None})
