"""`finetune --check`: what the data of a task are like, before anything is spent."""

from albertkit.tasks.checking.check import CheckReport, SplitCheck, check_data, check_task

__all__ = ["CheckReport", "SplitCheck", "check_data", "check_task"]
