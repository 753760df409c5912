"""Tasks by name."""

from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

from albertkit.errors import CheckpointError, ConfigError, suggest_name
from albertkit.tables.columns import Columns, format_column_options
from albertkit.tables.layouts import OFFICIAL
from albertkit.tasks.answers import AnswerTask
from albertkit.tasks.choices import CHOICE_TASKS, ChoiceTask, choice_task
from albertkit.tasks.tagging import TAGGING_TASKS, TaggingTask, tagging_task
from albertkit.tasks.task import Task
from albertkit.tasks.texts import (
    USUAL_LABELS,
    MultiLabelClassification,
    TextClassification,
    TextRegression,
    TextTask,
    official_task,
    table_task,
)

TABLES = {"classify": "classification", "regress": "regression", "multilabel": "multilabel"}
ANSWERS: dict[str, Literal[1, 2]] = {"squad1": 1, "squad2": 2}
TASKS = (*OFFICIAL, *ANSWERS, *CHOICE_TASKS, *TAGGING_TASKS, *TABLES)
_ALIASES = {
    "sts": "stsb",
    "squad": "squad1",
    "squad11": "squad1",
    "squad20": "squad2",
    "conll": "ner",
}
_KINDS: dict[str, type[Task]] = {
    kind.kind: kind
    for kind in (
        TextClassification,
        TextRegression,
        MultiLabelClassification,
        TaggingTask,
        ChoiceTask,
        AnswerTask,
    )
}
_REGISTERED: dict[str, Task] = {}  # what `register_task` added


def register_task(task: Task) -> None:
    """Add a task, to be found by its name; folders of models that were fine-tuned on it are read as its class.

    Args:
        task: With its settings; its class may be one of one's own.

    Raises:
        ConfigError: bad-value for a name that is taken.
    """
    if task.name in TASKS or _REGISTERED.get(task.name, task) != task:
        raise ConfigError(
            "bad-value",
            f"there is a task `{task.name}` already",
            "choose another name",
        )
    _REGISTERED[task.name] = task


def find_task(name: str, columns: Columns | None = None) -> Task:
    """Return a task by name: one of `TASKS`, in any case, with or without hyphens; or one that was registered.

    Args:
        name: "mrpc", "SST-2", "squad2", …; or "classify", "regress", "multilabel" for a table of
            one's own.
        columns: Of a table. Official layouts know theirs, other tables have `text` and `label`
            (multilabel: `labels`); what is given wins.

    Raises:
        ConfigError: unknown-name with the nearest name; conflicting-options if columns are named
            for a task that has none.
    """
    name_of_plain = {task_name.replace("-", ""): task_name for task_name in TASKS}
    plain_name = name.lower().replace("-", "").replace("_", "").replace(".", "")
    task_name = (
        name if name in _REGISTERED else name_of_plain.get(_ALIASES.get(plain_name, plain_name))
    )
    if task_name is None:
        raise ConfigError(
            "unknown-name",
            f"there is no task `{name}`",
            suggest_name(name, (*TASKS, *_REGISTERED)),
        )
    columns = columns or Columns()
    if task_name in TABLES:
        label = columns.label or USUAL_LABELS.get(task_name, "label")
        return table_task(
            TABLES[task_name],
            task_name,
            replace(columns, text=columns.text or "text", label=label),
        )
    if task_name in OFFICIAL:
        return official_task(task_name, columns)
    if task_name in _REGISTERED:
        task = _REGISTERED[task_name]
    elif task_name in ANSWERS:
        # As Google has them: two logits a token for SQuAD 1.1, beams for 2.0
        head_kind: Literal["spans", "beam"] = "spans" if task_name == "squad1" else "beam"
        task = AnswerTask(name=task_name, version=ANSWERS[task_name], head_kind=head_kind)
    else:
        task = choice_task(task_name) if task_name in CHOICE_TASKS else tagging_task(task_name)
    return with_columns(task, columns)


def with_columns(task: Task, columns: Columns | None) -> Task:
    """Return a task that reads a table with other columns; labels, length and all else stay."""
    user_values = (columns or Columns()).settings()
    if not user_values:
        return task
    if not isinstance(task, TextTask | ChoiceTask | TaggingTask) or task.name == "race":
        raise ConfigError(
            "conflicting-options",
            f"`{task.name}` has a format of its own; there are no columns to name",
            f"leave out {format_column_options(user_values)}",
        )
    return task.with_columns(columns)


def task_from_dict(task_fields: dict[str, Any], source: Path) -> Task:
    """Return the task that a `task.json` describes."""
    try:
        registered = _REGISTERED.get(task_fields["name"])
        kind = (
            type(registered)
            if registered is not None and registered.kind == task_fields["kind"]
            else _KINDS[task_fields["kind"]]
        )
        return kind.from_dict(task_fields)
    except (KeyError, TypeError, ValueError) as error:
        raise CheckpointError(
            "bad-file",
            f"`{source}` describes no task: {error}",
            "copy it again from where the model was made",
        ) from None
