"""Rows of any table, by column name."""

from albertkit.tasks.tables.source import Quoting
from albertkit.tasks.tables.table import EXTENSIONS, PACKINGS, Row, Table

__all__ = ["EXTENSIONS", "PACKINGS", "Quoting", "Row", "Table"]
