"""Pipelines over engines: text to plain values."""
