"""Captions word by word: greedy, beam and sampling over cached states."""

from albertkit.captioning.generation.search import Generated, generate
from albertkit.captioning.generation.settings import CaptionIds, GenerationSettings

__all__ = ["CaptionIds", "Generated", "GenerationSettings", "generate"]
