"""`score`: anybody's predictions by the official rules of a task."""

from albertkit.tasks.scoring.score import score_file

__all__ = ["score_file"]
