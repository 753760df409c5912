"""ALBERT over a caption and visual tokens."""
