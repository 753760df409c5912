"""Clips and their captions: manifests, folders, SwinBERT's files, and features prepared on disk."""
