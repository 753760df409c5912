"""How much of a text the examples of an epoch show: a sentence longer than an example is cut, and the rest is not seen."""

from collections.abc import Sequence

import numpy as np

from albertkit.pretraining.examples import EpochPlan, Store, seen_tokens

LITTLE = 0.75  # well split English Wikipedia at 128 tokens: 0.89


def tokens_used(
    store: Store, plan: EpochPlan, included: Sequence[np.ndarray], shards: Sequence[int] | np.ndarray | None = None
) -> float:
    """The share of the tokens of some documents that is in an example of an epoch.

    Args:
        store: The token store.
        plan: The examples of the epoch, or of a block of it.
        included: One bool array [documents] a shard: the documents that the examples are of.
        shards: Those of the block. Default: all.

    Returns:
        A share of 1.
    """
    total = 0
    for shard in range(store.num_shards) if shards is None else shards:
        starts = np.asarray(store.sentence_offsets[shard])[np.asarray(store.document_offsets[shard])].astype(np.int64)
        total += int(np.diff(starts)[included[shard]].sum())
    return seen_tokens(plan.examples) / max(total, 1)


def used_text(share: float) -> str:
    """The share for people, and what to do if it is small."""
    line = f"{share:.0%}" if share >= 0.1 else f"{share:.1%}"
    if share >= LITTLE:
        return line
    return (
        f"{line}. What does not fit into --length is cut off: use a longer one, build the store with --sentences split if its "
        "lines hold several sentences, or train without pairs: --pair-task none"
    )
