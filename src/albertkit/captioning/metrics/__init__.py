"""Scores of captions, by the definitions of the COCO caption scorer."""

from albertkit.captioning.metrics.scores import CaptionScores, score_captions

__all__ = ["CaptionScores", "score_captions"]
