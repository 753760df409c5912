"""Show a run while it goes on, and record it.

On a terminal: a progress bar over a table of the latest numbers. In a pipe: one plain line a report. Always: one JSON object a
report in `metrics.jsonl`, and TensorBoard files when tensorboard is installed. People read stderr; stdout stays free for results.
"""

import json
import math
import sys
import time
from pathlib import Path
from typing import IO, Any

from rich.console import Console, Group
from rich.live import Live
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table


class Display:
    """Shows and records training.

    Args:
        run: Folder of the run; None to show without recording (dry runs, all but the main process).
        title: What is being trained, shown beside the bar.
        silent: Show nothing (all but the main process).
    """

    def __init__(self, run: Path | None, title: str = "", silent: bool = False) -> None:
        self.run, self.title, self.silent = run, title, silent
        self.console = Console(stderr=True)
        self.is_live = self.console.is_terminal and not silent
        self._live: Live | None = None
        self._metrics: IO[str] | None = None
        self._board: Any = None
        self._latest: dict[str, float] = {}
        self._evaluation: tuple[int, dict[str, float]] | None = None
        self._first: tuple[int, float] | None = None

    def __enter__(self) -> "Display":
        if self.run is not None:
            self.run.mkdir(parents=True, exist_ok=True)
            self._metrics = open(self.run / "metrics.jsonl", "a", encoding="utf-8")
            self._board = _tensorboard(self.run)
        if self.is_live:
            columns = (
                TextColumn("{task.description}"),
                BarColumn(bar_width=None),
                MofNCompleteColumn(),
                TimeElapsedColumn(),
            )
            self._progress = Progress(
                *columns, TextColumn("left {task.fields[left]}"), console=self.console, expand=True
            )
            self._task = self._progress.add_task(self.title, total=None, left="…")
            self._live = Live(self._progress, console=self.console, refresh_per_second=4)
            self._live.__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        if self._live:
            self._live.__exit__(*error)
        if self._metrics:
            self._metrics.close()
        if self._board:
            self._board.close()

    def update(
        self, step: int, total_steps: int | None, record: dict[str, float], seconds_left: float | None = None
    ) -> None:
        """Report the updates since the last report.

        Args:
            step: Updates made.
            total_steps: Updates of the whole training; None if they are not known yet.
            record: Name to value.
            seconds_left: Of a time budget. Default: from the pace so far.
        """
        self._record({"event": "step", "step": step, **record})
        self._latest = record
        if seconds_left is None:
            seconds_left = self._seconds_left(step, total_steps) if total_steps else math.nan
        left = _duration(max(seconds_left, 0.0) if seconds_left == seconds_left else seconds_left)
        if self._live:
            self._progress.update(self._task, total=total_steps, completed=step, left=left)
            self._live.update(Group(self._table(), self._progress))
        elif not self.silent:
            print(f"step {step:>6}/{total_steps or '…'}  {_line(record)}  left {left}", file=sys.stderr, flush=True)

    def plan(self, plan: dict[str, Any], news: str | None) -> None:
        """Record a plan of a training by the clock, and report it if it is news."""
        self._record({"event": "plan", **plan})
        if news:
            self.note(news)

    def evaluation(self, step: int, metrics: dict[str, float]) -> None:
        """Report an evaluation on held-out documents."""
        self._record({"event": "eval", "step": step, **metrics})
        self._evaluation = (step, metrics)
        if self._live:
            self._live.update(Group(self._table(), self._progress))
        known = any(name in _SHORT for name in metrics)
        line = _line(metrics) if known else "  ".join(f"{n.replace('_', ' ')} {v:.4f}" for n, v in metrics.items())
        self.note(f"eval {step:>6}  {line}")

    def note(self, message: str) -> None:
        """Say something that happened."""
        if self._live:
            self.console.print(message, markup=False, highlight=False)  # paths and `albertkit[report]` hold brackets
        elif not self.silent:
            print(message, file=sys.stderr, flush=True)

    def _record(self, record: dict[str, Any]) -> None:
        if self._metrics:
            self._metrics.write(json.dumps({name: _recorded(value) for name, value in record.items()}) + "\n")
            self._metrics.flush()
        if self._board:
            for name, value in record.items():
                if isinstance(value, int | float) and name not in ("step", "evaluate"):
                    self._board.add_scalar(f"{record['event']}/{name}", value, record["step"])

    def _seconds_left(self, step: int, total_steps: int) -> float:
        """Estimate from the pace since this process's first report: first steps are slow and a resumed run starts late."""
        now = time.monotonic()
        if self._first is None or step <= self._first[0]:
            self._first = (step, now)
            return float("nan")
        first_step, first_time = self._first
        return (now - first_time) / (step - first_step) * (total_steps - step)

    def _table(self) -> Table:
        table = Table(box=None, pad_edge=False, header_style="dim")
        held_out = f"held-out (step {self._evaluation[0]})" if self._evaluation else "held-out"
        for heading in ("", "training", held_out):
            table.add_column(heading, justify="left" if not heading else "right")
        evaluated = dict(self._evaluation[1]) if self._evaluation else {}
        known = any(name in _SHORT for name in evaluated)
        for name, value in self._latest.items():
            if name not in ("tokens", "seconds"):
                shown = _format(name, evaluated.pop(name)) if name in evaluated else ""
                table.add_row(name.replace("_", " "), _format(name, value), shown)
        for name, value in evaluated.items():
            if not known:  # the scores of a task, which training does not have
                table.add_row(name.replace("_", " "), "", f"{value:.4f}")
        return table


def _recorded(value: Any) -> Any:
    """Round a number to six decimals, or to six significant digits where those are more: a learning rate may be 1e-06.

    Null stands for what JSON has no number for, such as the gradient norm of a skipped update.
    """
    if not isinstance(value, float):
        return value
    if not math.isfinite(value):
        return None
    return round(value, max(6, 5 - math.floor(math.log10(abs(value))))) if value else value


def _tensorboard(run: Path) -> Any:
    """Return a TensorBoard writer, or None where the extra `report` is not installed."""
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError:
        return None
    return SummaryWriter(str(run / "tensorboard"))


_SHORT = {
    "masked_lm_loss": "mlm", "masked_lm_perplexity": "ppl", "masked_lm_accuracy": "mlm acc",
    "sentence_order_loss": "sop", "sentence_order_accuracy": "sop acc",
    "learning_rate": "lr", "tokens_per_second": "tok/s", "grad_norm": "grad",
}  # fmt: skip


def _format(name: str, value: float) -> str:
    if name.endswith("accuracy") or name == "mfu":
        return f"{100 * value:.1f} %"
    if name == "learning_rate":
        return f"{value:.2e}"
    return f"{value:,.0f}" if name.endswith("per_second") else f"{value:.4f}"


def _line(record: dict[str, float]) -> str:
    shown = (n for n in record if n in _SHORT or n in ("loss", "mfu"))
    return "  ".join(f"{_SHORT.get(name, name)} {_format(name, record[name])}" for name in shown)


def _duration(seconds: float) -> str:
    if seconds != seconds:
        return "…"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"
