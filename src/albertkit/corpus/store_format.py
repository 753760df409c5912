"""The format of a token store: names of its files, types, and the manifest.

manifest.json          format version, counts, dtype, tokenizer fingerprint, settings, size and sha256 of every file
tokens-00000.bin       uint16 up to 65,536 tokens of the vocabulary, else uint32; little-endian, no header
sentences-00000.bin    uint32 [sentences + 1], offsets into the tokens of the shard
documents-00000.bin    uint32 [documents + 1], offsets into the sentences of the shard
tokenizer/             the tokenizer the ids belong to
"""

import json
from typing import Any

from albertkit.files import sha256_bytes

FORMAT_VERSION = 1
MANIFEST = "manifest.json"
UNFINISHED = ".build"  # in the folder of a store: what a build works in
KINDS = ("tokens", "sentences", "documents")


def shard_file(kind: str, shard: int) -> str:
    """Return the name of a shard's file; kind is tokens, sentences or documents."""
    return f"{kind}-{shard:05d}.bin"


def token_dtype(vocab_size: int) -> str:
    """Return the smallest type that holds every id: "uint16" or "uint32"."""
    return "uint16" if vocab_size <= 1 << 16 else "uint32"


def signed(manifest: dict[str, Any]) -> dict[str, Any]:
    """Return a manifest with the sha256 of itself."""
    return {**manifest, "sha256": sha256_bytes(json.dumps(manifest).encode())}


def is_signed(manifest: Any) -> bool:
    """Return True if a manifest has the sha256 of itself."""
    if not isinstance(manifest, dict):
        return False
    rest = {name: value for name, value in manifest.items() if name != "sha256"}
    return signed(rest)["sha256"] == manifest.get("sha256")
