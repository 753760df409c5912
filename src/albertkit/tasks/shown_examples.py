"""Some dev examples with their predictions, and the worst predictions, for people who look at a run."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from albertkit.files import atomic_file
from albertkit.report.task_results import for_json
from albertkit.tasks.task import Prediction, Task

FILE, ERRORS = "examples.jsonl", "errors.jsonl"
MOST, MOST_ERRORS = 20, 50


def save_examples(folder: Path, task: Task, examples: Sequence[Any], predictions: Sequence[Prediction]) -> Path:
    """Write the first examples and the worst predictions, one a line: prediction, `texts`, the label `gold`, and `error`.

    Args:
        folder: Made if missing.
        task: Of the examples.
        examples: Labelled.
        predictions: Of these examples, in their order.

    Returns:
        The file of the first examples; `errors.jsonl` beside it holds wrong predictions, the worst first: of `Task.error`.
    """
    errors = [task.error(example, prediction) for example, prediction in zip(examples, predictions, strict=True)]
    worst = sorted((n for n, error in enumerate(errors) if error > 0), key=lambda n: -errors[n])
    for name, numbers in ((FILE, list(range(min(MOST, len(examples))))), (ERRORS, worst[:MOST_ERRORS])):
        with atomic_file(folder / name, "w") as stream:
            for number in numbers:
                shown = {**task.shown(examples[number]), "error": round(errors[number], 6)}
                stream.write(json.dumps(for_json({**predictions[number], **shown}), ensure_ascii=False) + "\n")
    return folder / FILE
