"""Frames to visual tokens: transformers' video and image models, or a small network that is trained along."""

from albertkit.captioning.backbones.backbone import Backbone, Grid, pool_grid, pooled_grid
from albertkit.captioning.backbones.registry import load_backbone, register_backbone

__all__ = ["Backbone", "Grid", "load_backbone", "pool_grid", "pooled_grid", "register_backbone"]
