"""Tasks on texts and pairs of texts: a class, several labels or a number for each; GLUE, Korean tasks, tables of one's own."""

from albertkit.tasks.texts.classes import (
    MultiLabelClassification,
    TextClassification,
    TextRegression,
    official_task,
    table_task,
)
from albertkit.tasks.texts.official import OFFICIAL
from albertkit.tasks.texts.task import TextExample, TextTask

__all__ = [
    "OFFICIAL", "MultiLabelClassification", "TextClassification", "TextExample", "TextRegression", "TextTask",
    "official_task", "table_task",
]  # fmt: skip
