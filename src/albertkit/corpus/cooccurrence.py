"""Compute token vectors from co-occurrence, in seconds: tokens that occur beside the same others get similar vectors."""

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from albertkit.corpus.store import TokenStore
from albertkit.jit import compiled

WINDOW = 4  # tokens to each side, inside a document
# Standard deviation of the vectors: 0.05 and 0.2 end 0.08 and 0.02 nats higher, 0.02 above a drawn
# table
SCALE = 0.1

# 1 / distance in twelfths, so that sums are exact in any order
_UNITS = np.array([0, 12, 6, 4, 3], np.uint32)
# Power of the context counts: rare contexts would give the largest mutual information
_SMOOTHING = 0.75
# Of the counts: 30,000 tokens by the 8,947 most frequent ones, which are 97 % of a text
_TABLE_BYTES = 1 << 30
_MAX_TOKENS = 500_000_000  # of a larger store every second, third, … document is counted
_FULL = np.uint32(4_000_000_000)  # a pair that was counted so often stays there
_OVERSAMPLED = 16
_POWER_ITERATIONS = 3


@dataclass(frozen=True)
class Documents:
    """Documents that are counted.

    Attributes:
        tokens: Ids of many documents, one after the other; uint16, uint32 or int64 [T].
        starts, ends: int64 [D], where each document that is counted begins and ends.
    """

    tokens: NDArray[Any]
    starts: NDArray[np.int64]
    ends: NDArray[np.int64]


def documents_without(store: TokenStore, left_out: list[NDArray[np.bool_]]) -> list[Documents]:
    """Return the documents of a store without those left out (for each shard, bool [documents]); of a large one a part."""
    stride = 1 + store.num_tokens // _MAX_TOKENS
    documents = []
    for shard, tokens in enumerate(store.tokens):
        bounds = store.sentence_offsets[shard][store.document_offsets[shard]].astype(np.int64)
        is_counted = ~left_out[shard] & (np.arange(len(left_out[shard])) % stride == 0)
        documents.append(Documents(tokens, bounds[:-1][is_counted], bounds[1:][is_counted]))
    return documents


def cooccurrence_vectors(
    documents: list[Documents],
    counts: NDArray[np.int64],
    size: int,
    seed: int,
) -> Tensor:
    """Compute a vector for every token that occurs.

    Args:
        documents: The text.
        counts: int64 [V], how often each token occurs in it, about; the most frequent ones are the
            contexts.
        size: Numbers of a vector, E.
        seed: Draws the projection of the randomised decomposition.

    Returns:
        fp32 [V, E] of standard deviation `SCALE` over the rows of tokens that have a neighbour;
        other rows are 0. Same bits for a seed on one machine with the same number of threads.
    """
    # Counts of pairs, positive pointwise mutual information, truncated singular value decomposition
    # (Levy and Goldberg 2014; Levy, Goldberg and Dagan 2015).
    contexts = np.argsort(-counts, kind="stable")[: max(1, _TABLE_BYTES // (4 * len(counts)))]
    contexts = contexts[counts[contexts] > 0]
    pairs = count_pairs(documents, len(counts), contexts)
    log_counts = np.log(np.maximum(pairs.sum(1, dtype=np.float64), 1))
    smoothed = pairs.sum(0, dtype=np.float64) ** _SMOOTHING
    log_shares = np.log(np.maximum(smoothed / smoothed.sum(), 1e-300))
    # Positive pointwise mutual information takes the place of the counts, in the same memory: both
    # have 4 bytes.
    same_memory = pairs.view(np.float32)
    _fill_pointwise_mutual_information(pairs, same_memory, log_counts, log_shares)
    information = torch.from_numpy(same_memory)
    rank = min(size, len(contexts))
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        num_components = min(rank + _OVERSAMPLED, len(contexts))
        u, values, _ = torch.svd_lowrank(information, num_components, _POWER_ITERATIONS)
    vectors = torch.zeros(len(counts), size)
    has_neighbour = information.any(1)  # the others' rows are 0 up to rounding
    if has_neighbour.sum() > 1:
        scaled = u[:, :rank] * values[:rank].sqrt()
        vectors[has_neighbour, :rank] = scaled[has_neighbour]
        vectors *= SCALE / vectors[has_neighbour].std()
    return vectors


def count_pairs(
    documents: list[Documents],
    vocab_size: int,
    contexts: NDArray[np.int64],
) -> NDArray[np.uint32]:
    """Count the tokens within `WINDOW` of each token in twelfths of 1 / distance: uint32 [V, contexts], the same in any order."""
    pairs = np.zeros((vocab_size, len(contexts)), np.uint32)
    columns = np.full(vocab_size, -1, np.int64)
    columns[contexts] = np.arange(len(contexts))
    threads = torch.get_num_threads()
    with ThreadPoolExecutor(threads) as pool:
        for group in documents:
            add = partial(
                _count_neighbour_pairs,
                group.tokens,
                group.starts,
                group.ends,
                columns,
                pairs,
                num_parts=threads,
            )
            tasks = [pool.submit(add, part=part) for part in range(threads)]
            for task in tasks:
                task.result()
    return pairs


@compiled
def _count_neighbour_pairs(
    tokens: NDArray[Any],
    document_starts: NDArray[np.int64],
    document_ends: NDArray[np.int64],
    columns: NDArray[np.int64],
    pair_counts: NDArray[np.uint32],
    part: int,
    num_parts: int,
) -> None:
    """Add the neighbours of every `num_parts`-th token of the vocabulary."""
    # So threads write to rows of their own.
    for document in range(len(document_starts)):
        start = document_starts[document]
        end = document_ends[document]
        for position in range(start, end):
            token = np.int64(tokens[position])
            if token % num_parts != part:
                continue
            for neighbour in range(max(start, position - WINDOW), min(end, position + WINDOW + 1)):
                column = columns[np.int64(tokens[neighbour])]
                if neighbour != position and column >= 0 and pair_counts[token, column] < _FULL:
                    pair_counts[token, column] += _UNITS[abs(neighbour - position)]


@compiled
def _fill_pointwise_mutual_information(
    pair_counts: NDArray[np.uint32],
    information: NDArray[np.float32],
    log_counts: NDArray[np.float64],
    log_shares: NDArray[np.float64],
) -> None:
    for token in range(pair_counts.shape[0]):
        for context in range(pair_counts.shape[1]):
            count = pair_counts[token, context]
            value = 0.0
            if count:
                value = max(0.0, np.log(count) - log_counts[token] - log_shares[context])
            information[token, context] = value
