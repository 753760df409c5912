"""What people ask a model, from text to plain values: pipelines over engines."""

from albertkit.inference.loading import KINDS, load_pipeline, load_pipelines
from albertkit.inference.pipeline import Pipeline

__all__ = ["KINDS", "Pipeline", "load_pipeline", "load_pipelines"]
