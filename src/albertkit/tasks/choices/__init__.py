"""Multiple choice: which of several answers to a question is right, with or without a text to read first."""

from albertkit.tasks.choices.reading import ChoiceExample
from albertkit.tasks.choices.task import CHOICE_TASKS, ChoiceTask, choice_task

__all__ = ["CHOICE_TASKS", "ChoiceExample", "ChoiceTask", "choice_task"]
