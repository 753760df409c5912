"""What a training leaves: settings, curves, states to resume from; and the page about it."""

import json
from unittest.mock import patch

from hostile import Reader


def make_run(folder):
    import torch
    from read_checkpoints import make_folder

    from albertkit.pretraining.settings import PretrainSettings
    from albertkit.training.checkpoints import TrainingState, save_state

    PretrainSettings(steps=20).save(folder / "run.toml")
    lines = [
        {"event": "step", "step": n, "loss": 9 / n, "lr": 1e-4, "tokens": n * 512, "grad_norm": 1.0}
        for n in range(1, 21)
    ]
    lines += [
        {"event": "eval", "step": n, "loss": 8 / n, "masked_lm_loss": 4 / n} for n in (10, 20)
    ]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    for name in ("best", "final"):
        (folder / name).mkdir()
        make_folder(folder / name)
        (folder / name / "README.md").write_text(
            "# A model\n\n{{ 7*7 }} <script>alert(1)</script>\n"
        )
        (folder / name / "provenance.json").write_text(
            json.dumps({"store": "0" * 64, "held_out": 0.1, "seed": 0, "length": 16})
        )
    state = TrainingState(
        step=20,
        tokens=10_240,
        seconds=3.0,
        stream={"epoch": 1, "cursor": 3, "seed": 0, "documents": 9},
    )
    save_state(folder, state, {"albert.pooler.weight": torch.zeros(4, 4)}, lambda path: None, 2)


_CURVES = {}


def report(folder):
    """Draw each curve once: most damage is to other files than the numbers, and drawing takes nine tenths of a page."""
    from albertkit.report import run_page
    from albertkit.training.monitor import run_svgs

    def draw_curves(*numbers):
        key = repr(numbers)
        if key not in _CURVES:
            _CURVES[key] = run_svgs(*numbers)
        return _CURVES[key]

    with patch.object(run_page, "run_svgs", draw_curves):
        run_page.write_run_report(folder, folder / "page.html")
    assert "<script>alert(1)" not in (folder / "page.html").read_text()


def resume(folder):
    from albertkit.pretraining.settings import PretrainSettings
    from albertkit.training.checkpoints import load_state

    values = PretrainSettings.read(folder / "run.toml")
    settings = PretrainSettings(**values)
    settings.continues(folder, True)
    return load_state(folder)


def look(folder):
    from albertkit.report.inspect import inspect_folder

    return inspect_folder(folder / "best")


READERS = {
    "page about a run": Reader(
        make_run,
        report,
        ("run.toml", "metrics.jsonl", "*/README.md"),
        writes=True,
        tolerant=True,
    ),
    "state to resume from": Reader(make_run, resume, ("run.toml", "checkpoints/*/*")),
    "inspected model": Reader(make_run, look, ("best/config.json", "best/provenance.json")),
}
