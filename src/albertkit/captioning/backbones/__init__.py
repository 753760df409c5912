"""Frames to visual tokens: transformers' video and image models, or a small network that is trained along."""
