"""The frames that every package fills in: commands, resumable jobs, sections to show."""

from pathlib import Path

PAGE_FOLDER = Path(__file__).with_name("page")  # of the service and of exported sites
