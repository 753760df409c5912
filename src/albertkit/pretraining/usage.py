"""How much of a text the examples of an epoch show: a sentence longer than an example is cut, and the rest is not seen."""

from collections.abc import Sequence

import numpy as np

from albertkit.pretraining.examples import EpochPlan, Store, plain
from albertkit.tokenizer.compiled import compiled

LITTLE = 0.75  # ordinary sentences at 128 tokens: 0.89
_COUNTED = 1 << 30  # tokens of a large store that are looked at: two seconds


@compiled
def _mark(starts: np.ndarray, lengths: np.ndarray, seen: np.ndarray) -> None:
    """Mark the tokens of some segments."""
    for i in range(len(starts)):
        for k in range(np.int64(starts[i]), np.int64(starts[i]) + np.int64(lengths[i])):
            seen[k] = True


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
        A share of 1; of a large store that of its first 10^9 tokens.
    """
    used = total = 0
    examples = plan.examples
    for shard in range(store.num_shards) if shards is None else shards:
        seen = np.zeros(len(store.tokens[shard]), np.bool_)
        for segment in "ab":
            own = examples[examples[f"{segment}_shard"] == shard]
            _mark(plain(own[f"{segment}_start"]), plain(own[f"{segment}_length"]), seen)
        starts = plain(store.sentence_offsets[shard])[plain(store.document_offsets[shard])].astype(np.int64)
        used += int(seen.sum())
        total += int(np.diff(starts)[included[shard]].sum())
        if total >= _COUNTED:
            break
    return used / max(total, 1)


def used_text(share: float) -> str:
    """The share for people, and what to do if it is small."""
    line = f"tokens used an epoch: {share:.0%}" if share >= 0.1 else f"tokens used an epoch: {share:.1%}"
    if share >= LITTLE:
        return line
    return (
        f"{line}. What does not fit into --length is cut off: use a longer one, build the store with --sentences split if its "
        "lines hold several sentences, or train without pairs: --pair-task none"
    )
