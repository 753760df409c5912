"""The card of a fine-tuned model: what it does, how well, on which examples, how to use it."""

import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from albertkit.frame.card import Card, code, hub_fields, settings_sections, versions
from albertkit.frame.rendering import cell
from albertkit.frame.section import Text
from albertkit.training.results import score_table

# Kind of task: what the hub calls it.
PIPELINES = {
    "classification": "text-classification", "regression": "text-classification", "multilabel": "text-classification",
    "tagging": "token-classification", "choice": "multiple-choice", "answers": "question-answering",
}  # fmt: skip


@dataclass(frozen=True)
class Finetuned:
    """Facts of a fine-tuned model, for its card.

    Attributes:
        kind: Kind of the task.
        task: Its name.
        model_class: The class that loads the model.
        parameters: Of the model, head included.
        start: The checkpoint that was fine-tuned.
        train: Number of training examples.
        dev: Number of dev examples.
    """

    kind: str
    task: str
    model_class: str
    parameters: int
    start: str
    train: int
    dev: int


def task_card(
    name: str, model: Finetuned, scores: Mapping[str, float], intervals: Mapping[str, Any], settings: Mapping[str, Any]
) -> Card:
    """Return the card of a fine-tuned model.

    Args:
        name: Heading, and the folder in the example.
        model: What was fine-tuned.
        scores: On dev.
        intervals: Score to low and high, 95 %, bootstrap.
        settings: Of the run.
    """
    transformers = ", and so does the class of that name in transformers"
    if model.model_class == "AlbertForBeamQuestionAnswering":
        transformers = "; transformers has no class for this head"
    loading = (
        "`task.json` says how inputs are read and what the outputs mean. In Python, albertkit's "
        f"`{model.model_class}.from_pretrained` loads the model{transformers}."
    )
    sections = [
        Text(
            f"An ALBERT model, fine-tuned with albertkit on the task `{model.task}` from `{cell(model.start)}`: "
            f"{model.train:,} training examples, {model.parameters:,} parameters.",
            form="markdown",
        ),
        Text(
            f"On {model.dev:,} dev examples, which also chose the best of the run's models. Intervals are 95%, by bootstrap "
            "over the examples.",
            "Results",
        ),
        score_table(scores, intervals),
        code(f"albertkit predict {shlex.quote(name)} INPUT --out PREDICTIONS.jsonl", "", "Using it"),
        Text(loading, form="markdown"),
        *settings_sections(settings, versions()),
    ]
    return Card(name, hub_fields(PIPELINES[model.kind]), sections)
