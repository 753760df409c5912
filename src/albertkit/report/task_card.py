"""The model card of a fine-tuned model: what it does, how well, on which examples, how to use it."""

import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from albertkit.files import atomic_file
from albertkit.report.card import cell, front_matter
from albertkit.report.templates import environment

# Kind of task: what the hub calls it.
PIPELINES = {
    "classification": "text-classification", "regression": "text-classification", "multilabel": "text-classification",
    "tagging": "token-classification", "choice": "multiple-choice", "answers": "question-answering",
}  # fmt: skip


def write_task_card(
    folder: str | Path,
    name: str,
    *,
    kind: str,
    task: str,
    model_class: str,
    parameters: int,
    start: str,
    examples: Mapping[str, int],
    scores: Mapping[str, float],
    intervals: Mapping[str, Any],
    settings: Mapping[str, Any],
    versions: Mapping[str, str],
) -> Path:
    """Write `README.md` into a fine-tuned folder.

    Args:
        folder: The folder.
        name: Heading, and the folder in the loading examples.
        kind: Kind of the task.
        task: Its name.
        model_class: That loads it.
        parameters: Of the model, head included.
        start: The checkpoint that was fine-tuned.
        examples: Numbers of training and dev examples.
        scores: On dev.
        intervals: Score to low and high, 95 %, bootstrap.
        settings: Of the run.
        versions: Package to version.

    Returns:
        The file written.
    """
    text = environment().get_template("task_card.md.j2").render(
        name=" ".join(name.split()),
        front_matter=front_matter(None, None, PIPELINES[kind]),
        kind=kind, task=task, model_class=model_class, parameters=parameters, start=start, examples=examples, scores=scores,
        intervals=intervals, settings=settings, versions=versions, cell=cell, quote=shlex.quote,
    )  # fmt: skip
    path = Path(folder) / "README.md"
    with atomic_file(path, "w") as stream:
        stream.write(text)
    return path
