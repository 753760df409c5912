"""Some dev examples with what the model says of them, for people who look at a run."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from albertkit.files import atomic_file
from albertkit.report.task_results import for_json
from albertkit.tasks.task import Prediction, Task

FILE = "examples.jsonl"
MOST = 20


def save_examples(folder: Path, task: Task, examples: Sequence[Any], predictions: Sequence[Prediction]) -> Path:
    """Write the first examples, one a line: the prediction, the `texts` a person reads, and what people `said`.

    Args:
        folder: Made if missing.
        task: Of the examples.
        examples: Labelled.
        predictions: Of these examples, in their order.

    Returns:
        The file written.
    """
    path = folder / FILE
    with atomic_file(path, "w") as stream:
        for example, prediction in zip(examples[:MOST], predictions, strict=False):
            record = for_json({**prediction, **task.shown(example)})
            stream.write(json.dumps(record, ensure_ascii=False) + "\n")
    return path
