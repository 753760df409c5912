"""Engines: one set of weights made ready once, and run as fast as the machine can."""

from albertkit.engines.engine import Engine
from albertkit.engines.load import load_engine, on_engine

__all__ = ["Engine", "load_engine", "on_engine"]
