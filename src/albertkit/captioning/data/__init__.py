"""Clips and their captions: manifests, folders, SwinBERT's files, and features prepared on disk."""

from albertkit.captioning.data.clip import Clip
from albertkit.captioning.data.frames import frames_of
from albertkit.captioning.data.manifest import write_manifest
from albertkit.captioning.data.prepare import prepare
from albertkit.captioning.data.prepared import PreparedClips
from albertkit.captioning.data.reading import read_clips, read_splits
from albertkit.captioning.data.swinbert_files import read_swinbert

__all__ = [
    "Clip", "PreparedClips", "frames_of", "prepare", "read_clips", "read_splits", "read_swinbert", "write_manifest",
]  # fmt: skip
