"""The card of a fine-tuned model: what it does, how well, on which examples, how to use it."""

import shlex
from collections.abc import Mapping
from typing import Any

from albertkit.frame.card import Card, code, hub_fields, settings_sections, versions
from albertkit.frame.rendering import cell
from albertkit.frame.section import Text
from albertkit.tasks.data import TaskData
from albertkit.training.results import score_table

# Kind of task: what the hub calls it.
PIPELINES = {
    "classification": "text-classification", "regression": "text-classification", "multilabel": "text-classification",
    "tagging": "token-classification", "choice": "multiple-choice", "answers": "question-answering",
}  # fmt: skip


def task_card(
    name: str,
    data: TaskData,
    start: str,
    parameters: int,
    scores: Mapping[str, float],
    details: Mapping[str, Any],
    settings: Mapping[str, Any],
) -> Card:
    """Return the card of a model fine-tuned from `start`; `name` is its heading, and the folder in the example."""
    model_class = data.task.model_class.__name__
    transformers = ", and so does the class of that name in transformers"
    if model_class == "AlbertForBeamQuestionAnswering":
        transformers = "; transformers has no class for this head"
    loading = (
        "`task.json` says how inputs are read and what the outputs mean. In Python, albertkit's "
        f"`{model_class}.from_pretrained` loads the model{transformers}."
    )
    sections = [
        Text(
            f"An ALBERT model, fine-tuned with albertkit on the task `{data.task.name}` from `{cell(start)}`: "
            f"{len(data.train):,} training examples, {parameters:,} parameters.",
            form="markdown",
        ),
        Text(
            f"On {len(data.dev):,} dev examples, which also chose the best of the run's models. Intervals are 95%, by bootstrap "
            "over the examples.",
            "Results",
        ),
        score_table(scores, details.get("intervals", {}), positive_class=details.get("positive_class", "")),
        code(f"albertkit predict {shlex.quote(name)} INPUT --out PREDICTIONS.jsonl", "", "Using it"),
        Text(loading, form="markdown"),
        *settings_sections(settings, versions()),
    ]
    return Card(name, hub_fields(PIPELINES[data.task.kind]), sections)
