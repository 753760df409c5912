"""Silver pairs: found, scored by a cross-encoder, balanced."""
