"""Tagging: a tag for each word of a sentence, for example named entities; or for each character, as in KLUE-NER."""

from albertkit.tasks.tagging.sentences import Layout, TaggedExample, read_tagged
from albertkit.tasks.tagging.task import TAGGING_TASKS, TaggingTask, tagging_task

__all__ = ["TAGGING_TASKS", "Layout", "TaggedExample", "TaggingTask", "read_tagged", "tagging_task"]
