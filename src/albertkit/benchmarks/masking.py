"""Masking alone, on one core: our stream beside transformers' collators."""

import warnings
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from albertkit.benchmarks.data import one_epoch, open_stream
from albertkit.benchmarks.harness import (
    Contender,
    Peer,
    Row,
    compare,
    interleave,
    missing,
    progress,
    using_threads,
    versions,
)
from albertkit.benchmarks.inputs import Inputs

TRANSFORMERS = Peer("transformers DataCollatorForLanguageModeling", "transformers", "pip install transformers")
LENGTH = 512
BATCH = 32  # sequences a collator gets at once: the same 16,384 tokens as our default batch
TOKENS = 4_000_000  # we draw in a round, in as many epochs as that takes: about a second
NOTE = (
    "ours draws segments, sentence order, spans of one to three words, 80 % [MASK] / 10 % kept / 10 % random, and "
    "packs; the whole-word collator draws single words and replaces all of them by [MASK], the token collator single "
    "pieces at 80/10/10. Both collators get equal lengths with offsets and special-token masks given, as they need"
)


def masking_row(inputs: Inputs, rounds: int) -> Row:
    """Masked tokens a second on one core, sequences of 512.

    Args:
        inputs: Text and tokenizer.
        rounds: Timed rounds.
    """
    from albertkit.corpus import TokenStore, build_store
    from albertkit.tokenizer import AlbertTokenizer

    tokenizer = AlbertTokenizer.from_pretrained(inputs.tokenizer_folder, text_rules="google")
    with using_threads(1), TemporaryDirectory(prefix="albertkit-bench-") as scratch:
        folder = Path(scratch)
        inputs.write_text(folder / "text.txt")
        build_store([str(folder / "text.txt")], folder / "store", tokenizer)
        store = TokenStore.open(folder / "store")
        stream = open_stream(store, LENGTH)
        counts = one_epoch(stream)
        epochs = max(1, round(TOKENS / counts["tokens"]))
        ours = Contender("albertkit", lambda: _draw(stream, epochs), epochs * counts["tokens"])
        shares = {ours.name: counts["predictions"] / counts["tokens"]}
        peers = []
        if TRANSFORMERS.installed:
            tokenizer.save_pretrained(folder / "tokenizer")
            peers = _collators(folder / "tokenizer", _sequences(store, tokenizer), shares)
        progress(f"masking: {counts['tokens']:,} tokens")
        seconds = interleave([ours, *peers], rounds, say=progress)
    return compare(
        f"masking, length {LENGTH}, one core", "tokens/s", ours, peers, seconds,
        equal=all(abs(share - 0.15) < 0.015 for share in shares.values()),
        compared="everybody's share of masked tokens with 15 %, within 1.5 %; see `masked_share` in details",
        missing=missing([TRANSFORMERS]),
        versions=versions("numba", "numpy", "torch", "transformers"),
        note=NOTE,
        details={"masked_share": shares, "tokens": counts["tokens"], "text": inputs.text_name},
    )  # fmt: skip


def _draw(stream: Any, epochs: int) -> None:
    """Epochs one after the other, each planned and shuffled anew; a stream begins the next when one is used up."""
    for epoch in range(epochs):
        stream.restore({**stream.state(), "epoch": epoch, "cursor": 0})
        one_epoch(stream)


def _sequences(store: Any, tokenizer: Any) -> list[dict[str, Any]]:
    """The store's text as the collator wants it: [CLS] 510 tokens [SEP], with offsets that leave a gap before words."""
    import numpy as np

    tokens = np.concatenate([np.asarray(shard, dtype=np.int64) for shard in store.tokens])
    starts = np.asarray(tokenizer.word_starts())
    inner = LENGTH - 2
    made = []
    for first in range(0, len(tokens) - inner + 1, inner):
        piece_ids = tokens[first : first + inner]
        begins = 3 * np.arange(1, inner + 1) + starts[piece_ids]  # a word start begins one after its neighbour's end
        ends = 3 * np.arange(2, inner + 2)
        spans = np.stack([begins, ends], axis=1)
        made.append(
            {
                "input_ids": [tokenizer.cls_id, *piece_ids.tolist(), tokenizer.sep_id],
                "special_tokens_mask": [1, *[0] * inner, 1],
                "offset_mapping": [(0, 0), *map(tuple, spans.tolist()), (0, 0)],
            }
        )
    return made


def _collators(folder: Path, sequences: Sequence[dict[str, Any]], shares: dict[str, float]) -> list[Contender]:
    from transformers import AlbertTokenizer, DataCollatorForLanguageModeling

    tokenizer = AlbertTokenizer.from_pretrained(str(folder))
    contenders = []
    for whole_words in (True, False):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # that it replaces everything by [MASK]; our note says so
            collator = DataCollatorForLanguageModeling(tokenizer, whole_word_mask=whole_words)
        name = f"transformers {'whole-word' if whole_words else 'token'} collator"
        batches = [[*sequences[first : first + BATCH]] for first in range(0, len(sequences), BATCH)]
        if not whole_words:
            batches = [[{k: v for k, v in s.items() if k != "offset_mapping"} for s in batch] for batch in batches]

        def run(collator: Any = collator, batches: Any = batches) -> None:
            for batch in batches:
                collator(batch)

        masked = [collator(batch)["labels"] != -100 for batch in batches]
        shares[name] = sum(int(m.sum()) for m in masked) / max(sum(m.numel() for m in masked), 1)
        contenders.append(Contender(name, run, float(len(sequences) * LENGTH)))
    return contenders
