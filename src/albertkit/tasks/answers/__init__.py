"""Answers that are spans of a text: SQuAD 1.1 and 2.0, and files of the same form."""

from albertkit.tasks.answers.questions import Answer, QuestionExample
from albertkit.tasks.answers.task import AnswerTask

__all__ = ["Answer", "AnswerTask", "QuestionExample"]
