"""Captions word by word: greedy, beam and sampling over cached states."""
