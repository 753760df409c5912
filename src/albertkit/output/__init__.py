"""The frames that every package fills in: commands, resumable jobs, sections to show."""
