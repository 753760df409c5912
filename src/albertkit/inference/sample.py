"""Text to compare two forms of a model on, which every machine has."""

from itertools import chain, islice

import torch

from albertkit.config import AlbertConfig
from albertkit.corpus.builtin import builtin_documents
from albertkit.model import PackedBatch
from albertkit.tokenizer import AlbertTokenizer

_SEQUENCES, _AT_ONCE = 64, 8  # a batch has texts of all lengths: rows are padded
_LONGEST = 128  # tokens
_MASKED = 7  # every seventh piece, as in pretraining


def sample_batches(tokenizer: AlbertTokenizer | None, config: AlbertConfig) -> tuple[list[PackedBatch], str]:
    """Batches of single texts and pairs, pieces masked here and there, and what they are.

    Args:
        tokenizer: The model's. None: random pieces take the place of text.
        config: The model's.

    Raises:
        MachineError: no-builtin-text.
    """
    most = min(_LONGEST, config.max_position_embeddings)
    if tokenizer is None:
        return _batches(_random_pairs(config.vocab_size, most), config), "random pieces"
    texts = list(islice(chain.from_iterable(builtin_documents()), 2 * _SEQUENCES))
    encoded = [tokenizer.encode(text) for text in texts]
    rows = []
    for number, (one, other) in enumerate(zip(encoded[::2], encoded[1::2], strict=True)):
        first = [tokenizer.cls_id, *one, tokenizer.sep_id][:most]
        second = [*other, tokenizer.sep_id][: (most - len(first)) * (number % 2)]
        rows.append((first, second))
    return _batches(rows, config, tokenizer.mask_id), "built-in text"


def _random_pairs(pieces: int, most: int) -> list[tuple[list[int], list[int]]]:
    generator = torch.Generator().manual_seed(0)

    def ids(longest: int) -> list[int]:
        length = int(torch.randint(1, max(longest, 1) + 1, (), generator=generator))
        return torch.randint(0, pieces, (length,), generator=generator).tolist()

    return [(ids(most // 2), ids(most - most // 2)) for _ in range(_SEQUENCES)]


def _batches(
    rows: list[tuple[list[int], list[int]]], config: AlbertConfig, mask_id: int | None = None
) -> list[PackedBatch]:
    batches = []
    for start in range(0, len(rows), _AT_ONCE):
        pairs = rows[start : start + _AT_ONCE]
        ids = [[*first, *second] for first, second in pairs]
        types = [[0] * len(first) + [min(1, config.type_vocab_size - 1)] * len(second) for first, second in pairs]
        places = [list(range(_MASKED // 2, len(row), _MASKED)) for row in ids]
        if mask_id is not None:
            for row, masked in zip(ids, places, strict=True):
                for place in masked:
                    row[place] = mask_id
        batches.append(PackedBatch.from_sequences(ids, types, masked_positions=places))
    return batches
