"""`albertkit evaluate`: a pretrained model on a store or records, a fine-tuned one on its task."""

from pathlib import Path
from typing import Any

from albertkit.errors import DataError, suggest_path
from albertkit.pretraining.run import evaluate
from albertkit.pretraining.sources import is_pretraining_data
from albertkit.tasks.evaluate import evaluate_task
from albertkit.tasks.models import is_task_model
from albertkit.tasks.options import EvaluateOptions


def run_evaluate(options: EvaluateOptions) -> Any:
    """Score a model on data of its kind."""
    if options.data != "-" and not is_pretraining_data(options.data) and not Path(options.data).exists():
        hint = suggest_path(options.data, "check the path")
        raise DataError("not-found", f"no such file or folder: `{options.data}`", hint)
    if is_task_model(options.model) or not is_pretraining_data(options.data):
        return evaluate_task(options)
    return evaluate(
        options.model,
        options.data,
        length=options.length,
        held_out=options.held_out,
        seed=options.seed,
        batch_tokens=options.batch_tokens,
        precision=options.precision or "fp32",
        device=options.device,
        progress=options.progress,
    )
