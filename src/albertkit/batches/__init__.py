"""Data that flow: features of examples, packed batches, streams of updates."""
