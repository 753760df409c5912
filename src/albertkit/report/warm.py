"""`albertkit doctor --warm`: compile the loops that most commands need, so that none of these pauses for it."""

import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr
from dataclasses import dataclass
from io import StringIO
from pathlib import Path
from typing import Any

import numpy as np
import torch

from albertkit.batches.packed import PackedBatch
from albertkit.config import AlbertConfig
from albertkit.corpus import build_store
from albertkit.engines.compile_loops import compile_loops_of_engine
from albertkit.engines.early_exit import Exits, exit_early
from albertkit.engines.engine import PRECISIONS
from albertkit.loop_cache import loops_folder
from albertkit.model import cpu_loops
from albertkit.output.sections import FactList, Result, Section
from albertkit.pretraining import PretrainSettings, pretrain
from albertkit.tokenizer import AlbertTokenizer, train_tokenizer, wordpiece
from albertkit.tokenizer.sentencepiece import CHARACTERS_BEFORE_ENGINE
from albertkit.training.processes import choose_precision


@dataclass(frozen=True)
class CompileReport(Result):
    """Report of `doctor --warm`.

    Attributes:
        seconds: By part of albertkit; near 0 where all of it was compiled before.
        notes: Engines that this machine does not have, and why.
        cache: Folder of what was compiled.
    """

    seconds: dict[str, float]
    notes: tuple[str, ...]
    cache: Path

    def sections(self) -> list[Section]:
        """Return the seconds of each part."""
        facts: dict[str, Any] = {name: f"{seconds:.1f} s" for name, seconds in self.seconds.items()}
        facts |= {"kept in": self.cache, "not here": list(self.notes) or None}
        return [FactList(facts, "compiled for this processor")]


def compile_loops(progress: bool = False) -> CompileReport:
    """Compile the loops of tokenizers, stores, pretraining and engines, by running each on a small input.

    Args:
        progress: Say on stderr what is compiled; all of it takes one to three minutes.
    """
    seconds: dict[str, float] = {}
    notes: list[str] = []
    terminal = sys.stderr

    @contextmanager
    def timed(part: str) -> Iterator[None]:
        if progress:
            print(f"compiling: {part}", file=terminal, flush=True)
        started = time.perf_counter()
        yield
        seconds[part] = round(time.perf_counter() - started, 3)

    text = ""
    for first in range(30):  # documents of ten sentences
        for second in range(10):
            text += f"The product of {first} and {second} is {first * second}.\n"
        text += "\n"
    with tempfile.TemporaryDirectory(prefix="albertkit-") as name, redirect_stderr(StringIO()):
        folder = Path(name)
        text_file = folder / "text.txt"
        text_file.write_text(text, encoding="utf-8")
        with timed("tokenizers and stores"):
            tokenizer = train_tokenizer([text_file], folder / "tokenizer", vocab_size=64)
            # The compiled engines are loaded only after so much text.
            tokenizer.encode_batch([text] * (1 + CHARACTERS_BEFORE_ENGINE // len(text)))
            build_store([text_file], folder / "store", folder / "tokenizer", workers=0)
        with timed("WordPiece"):
            (folder / "wordpiece").mkdir()
            vocabulary = "[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\na\n##b\n"
            (folder / "wordpiece" / "vocab.txt").write_text(vocabulary, encoding="utf-8")
            long_text = "ab a " * (1 + wordpiece.CHARACTERS_BEFORE_ENGINE // 5)
            AlbertTokenizer.from_pretrained(folder / "wordpiece").encode_batch([long_text])
        with timed("pretraining"):
            config = AlbertConfig(
                vocab_size=64,
                embedding_size=16,
                hidden_size=64,
                num_hidden_layers=2,
                num_attention_heads=2,
            )
            config.save_pretrained(folder)
            settings = PretrainSettings(
                config=folder / "config.json",
                length=32,
                batch_tokens=256,
                steps=2,
                warmup_steps=1,
                held_out=0.2,
                initial_weights="text",
            )
            pretrain(folder / "store", folder / "run", settings)
        if choose_precision("auto", torch.device("cpu")) == torch.bfloat16:
            # On a tensor that is large enough for its loops; the pretraining has none.
            with timed("training in bf16"):
                values = torch.zeros(64, 3 * 1024, dtype=torch.bfloat16, requires_grad=True)
                attended = cpu_loops.short_attention(values, [64], num_heads=16)
                (cpu_loops.gelu_new(values).sum() + attended.sum()).backward()
                starts = torch.zeros(len(values), dtype=torch.int64)
                cpu_loops.exponentials_and_losses_in_place(torch.zeros_like(values), starts)
        batch = PackedBatch.from_sequences([[2, 4, 3]])
        for precision in PRECISIONS[1:]:
            with timed(f"engine in {precision}"), torch.inference_mode():
                model, engine = compile_loops_of_engine(precision)
                layers = model.config.num_hidden_layers
                weights = np.zeros((layers, 2, model.config.hidden_size), np.float32)
                exits = Exits(weights, np.zeros((layers, 2), np.float32), patience=1, threshold=0.0)
                exit_early(engine, batch, exits)
                notes += engine.notes
    return CompileReport(seconds, tuple(dict.fromkeys(notes)), loops_folder())
