"""ALBERT over a caption and visual tokens."""

from albertkit.captioning.model.captioning_model import AlbertForImageCaptioning
from albertkit.captioning.model.config import CaptionConfig
from albertkit.captioning.model.image_model import AlbertImgModel
from albertkit.captioning.model.layers import CaptionState, Context

__all__ = ["AlbertForImageCaptioning", "AlbertImgModel", "CaptionConfig", "CaptionState", "Context"]
