"""Text tasks by name: GLUE's and the Korean ones in their official layouts, and tables of one's own."""

from typing import Any

from albertkit.errors import ConfigError, near_miss
from albertkit.tasks.texts.classes import TextClassification, TextRegression
from albertkit.tasks.texts.multilabel import MultiLabelClassification
from albertkit.tasks.texts.official import OFFICIAL
from albertkit.tasks.texts.task import TextTask

_CLASSES: dict[str, type[TextTask]] = {
    "classification": TextClassification, "regression": TextRegression, "multilabel": MultiLabelClassification,
}  # fmt: skip


def official_task(
    name: str, *, text: str = "", pair: str = "", label: str = "", id: str = "", **settings: Any
) -> TextTask:
    """A task whose files are in the official layout.

    Args:
        name: A key of `OFFICIAL`.
        text: Column of the text, or of the first of a pair, of a table that is laid out otherwise. Labels and metric stay.
        pair: Of the second text.
        label: Of the label.
        id: Of the ids.
        **settings: Fields of the task.

    Raises:
        ConfigError: unknown-task; bad-settings if other columns are named without the text's; swapped-pair.
    """
    if name not in OFFICIAL:
        raise ConfigError("unknown-task", f"there is no task `{name}`", near_miss(name, OFFICIAL))
    if (pair or label) and not text:
        raise ConfigError(
            "bad-settings",
            f"columns of `{name}` are named, but not that of the text",
            "name them all, --text-column first",
        )
    layout = OFFICIAL[name]
    known = {"labels": layout.labels} if layout.labels else {}
    return _CLASSES[layout.kind](
        **{
            "name": name,
            "layout": name,
            "metric": layout.metric,
            **known,
            **_columns(text, pair, label, id),
            **settings,
        }
    )


def table_task(
    kind: str, name: str, *, text: str, pair: str = "", label: str = "", id: str = "", **settings: Any
) -> TextTask:
    """A task on a table of one's own.

    Args:
        kind: classification, regression or multilabel.
        name: Any name.
        text: Column of the text, or of the first of a pair.
        pair: Of the second text; "" for none.
        label: Of the label; "" if it is never read. Multilabel: one column, or several of 0 and 1 with commas between.
        id: Of the ids; "": the number of the row is the id.
        **settings: Fields of the task.

    Raises:
        ConfigError: bad-settings, swapped-pair.
    """
    if kind == "multilabel" and "," in label:
        settings["label_columns"], label = tuple(part.strip() for part in label.split(",")), ""
    return _CLASSES[kind](**{"name": name, **_columns(text, pair, label, id), **settings})


def _columns(text: str, pair: str, label: str, id: str) -> dict[str, str]:
    return {"text_column": text, "pair_column": pair, "label_column": label, "id_column": id}
