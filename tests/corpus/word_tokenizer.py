"""A tokenizer of whole words that needs no model file, with what a build asks of `AlbertTokenizer`."""

import hashlib
import json
import os
import signal
import time
import zlib
from pathlib import Path

import numpy as np

from albertkit.tokenizer import RaggedIds


class WordTokenizer:
    unk_id = 1

    def __init__(self, vocab_size=5000):
        self.vocab_size = vocab_size

    @property
    def fingerprint(self):
        return hashlib.sha256(f"words {self.vocab_size}".encode()).hexdigest()

    def ids(self, text):
        return [
            5 + zlib.crc32(word.encode()) % (self.vocab_size - 5)
            for word in text.replace("\u200b", " ").split()
        ]

    def encode_batch(self, texts, num_threads=0):
        rows = [self.ids(text) for text in texts]
        offsets = np.cumsum([0, *map(len, rows)], dtype=np.int64)
        return RaggedIds(np.array([i for row in rows for i in row], np.int32), offsets)

    def save_pretrained(self, folder):
        Path(folder).mkdir(parents=True, exist_ok=True)
        (Path(folder) / "words.json").write_text(json.dumps(self.vocab_size))

    @classmethod
    def from_pretrained(cls, folder):
        return cls(json.loads((Path(folder) / "words.json").read_text()))


class DyingTokenizer(WordTokenizer):
    """Its worker is killed, as by the kernel when memory runs out, at the word `die`."""

    def encode_batch(self, texts, num_threads=0):
        if any("die" in text.split() for text in texts):
            os.kill(os.getpid(), signal.SIGKILL)
        return super().encode_batch(texts, num_threads)


class SlowTokenizer(DyingTokenizer):
    """Takes a moment for every batch, so that there is a middle in which something can be killed."""

    def encode_batch(self, texts, num_threads=0):
        time.sleep(0.05)
        return super().encode_batch(texts, num_threads)
