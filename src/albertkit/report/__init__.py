"""Loss plots, the HTML run report, the model card and the machine's check-up. Knows only numbers and names.

Public names are loaded when first used: `doctor` must run where jinja2 or matplotlib is missing.
"""

from importlib import import_module
from typing import Any

_WHERE = {
    "RunMetrics": "albertkit.report.metrics",
    "read_metrics": "albertkit.report.metrics",
    "wilson_interval": "albertkit.report.results",
    "plot_run": "albertkit.report.plots",
    "run_svg": "albertkit.report.plots",
    "model_card": "albertkit.report.card",
    "write_card": "albertkit.report.card",
    "run_page": "albertkit.report.page",
    "write_page": "albertkit.report.page",
    "examine": "albertkit.report.doctor",
}

__all__ = [*_WHERE]


def __getattr__(name: str) -> Any:
    if name not in _WHERE:
        raise AttributeError(f"module 'albertkit.report' has no attribute {name!r}")
    return getattr(import_module(_WHERE[name]), name)
