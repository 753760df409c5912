"""Pairs that nobody scored: found, scored by a cross-encoder, balanced."""
