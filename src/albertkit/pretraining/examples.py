"""Examples: which tokens of the store become segments A and B, decided anew every epoch.

The rules are those of `create_instances_from_document` in google-research/albert's create_pretraining_data.py:

1. Once per document and epoch a target length is drawn: as many tokens as fit, or, with probability `short_seq_prob`, a
   uniform whole number from 2 to that.
2. Sentences are gathered greedily until the chunk reaches the target or the document ends.
3. A is the first `a_end` sentences of the chunk, `a_end` uniform in [1, sentences - 1]; B is the rest.
4. With probability ½ A and B change places (label 1); otherwise they stand in order (label 0).
5. While the pair is too long, the longer segment (B if they tie) loses a token, from its front or back with probability
   ½ each.

A chunk of one sentence cannot be split. Google takes B from a random document and calls the pair "swapped", which
lets topics leak into the sentence-order task, as in next-sentence prediction (google-research/albert, issue 234).
`sop_pairs="google"` does so too. The default, "pure", never lets a chunk have one sentence: a chunk ends when it has
reached the target *and* holds two sentences, and a last sentence left alone takes the one before it again. What
remains, documents of one sentence, is skipped and counted.

An example is two runs of consecutive tokens, so it is stored as 20 bytes, whatever its length.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import numpy as np

from albertkit.errors import ConfigError, DataError, near_miss
from albertkit.pretraining.randomness import (
    ORDER,
    SEGMENTS,
    below,
    bits,
    compiled,
    heads,
    make_key,
    shuffle_rows,
    subkey,
    uniform,
)

IN_ORDER, SWAPPED, RANDOM, SINGLE = 0, 1, 2, 3
KINDS = ("in order", "swapped", "random", "single")
LABELS = np.array([0, 1, 1, -100], np.int64)  # the sentence-order label of each kind; -100: none

# One example: 20 bytes. Starts are numbers of tokens in a shard, lengths are those after truncation. A and B are the
# segments as the model sees them, after any swap.
EXAMPLE = np.dtype(
    [("a_start", "<u4"), ("b_start", "<u4"), ("a_shard", "<u2"), ("b_shard", "<u2"), ("a_length", "<u2"),
     ("b_length", "<u2"), ("kind", "u1"), ("short_target", "u1"), ("unused", "<u2")]
)  # fmt: skip

# An example whose B is still to be read from another document, maybe of another shard: 32 bytes, only while planning.
_PENDING = np.dtype(
    [("example", "<i8"), ("key", "<u8"), ("a_length", "<u4"), ("b_target", "<i4"), ("document", "<i8")]
)  # fmt: skip

PAIR_TASKS = ("sop", "nsp", "none")
SOP_PAIRS = ("pure", "google")


class Store(Protocol):
    """What is read of a `TokenStore`."""

    num_shards: int
    vocab_size: int
    tokens: Sequence[np.ndarray]
    sentence_offsets: Sequence[np.ndarray]
    document_offsets: Sequence[np.ndarray]

    def tokenizer(self) -> Any: ...


@dataclass(frozen=True, kw_only=True)
class ExampleSettings:
    """How documents become examples.

    Attributes:
        max_length: Longest sequence in tokens, [CLS] and [SEP] included.
        short_seq_prob: Probability that a document is cut to a shorter random target in an epoch.
        pair_task: "sop" (are the segments in order or swapped?), "nsp" (does B follow A, or is it from another
            document?) or "none" (one segment, no label).
        sop_pairs: What sop does with a chunk of one sentence: "pure" avoids it, "google" takes B from a random
            document.
    """

    max_length: int = 512
    short_seq_prob: float = 0.1
    pair_task: str = "sop"
    sop_pairs: str = "pure"

    def __post_init__(self) -> None:
        for name, allowed in (("pair_task", PAIR_TASKS), ("sop_pairs", SOP_PAIRS)):
            if getattr(self, name) not in allowed:
                raise ConfigError(
                    "bad-value", f"{name} is {getattr(self, name)!r}", near_miss(str(getattr(self, name)), allowed)
                )
        if not 5 <= self.max_length <= 65535:
            raise ConfigError("bad-value", f"max_length is {self.max_length}", "use a length from 5 to 65535 tokens")
        if not 0 <= self.short_seq_prob <= 1:
            raise ConfigError("bad-value", f"short_seq_prob is {self.short_seq_prob}", "use a probability from 0 to 1")

    @property
    def num_specials(self) -> int:
        """[CLS] and [SEP] tokens in an example: 3, or 2 without a second segment."""
        return 2 if self.pair_task == "none" else 3


@dataclass(frozen=True)
class EpochPlan:
    """All examples of an epoch.

    Attributes:
        examples: [N] of dtype EXAMPLE, 20 bytes each.
        num_specials: [CLS] and [SEP] tokens in an example.
        skipped_documents: Documents of one sentence, which pure sentence-order prediction cannot use.
    """

    examples: np.ndarray
    num_specials: int
    skipped_documents: int

    def lengths(self, indices: np.ndarray | slice = slice(None)) -> np.ndarray:
        """Lengths of examples (default: all) in tokens, specials included: int64 [N]."""
        return lengths_of(self.examples[indices], self.num_specials)


def lengths_of(examples: np.ndarray, num_specials: int) -> np.ndarray:
    """Lengths in tokens, specials included: int64 [N]."""
    return examples["a_length"].astype(np.int64) + examples["b_length"] + num_specials


class _Rule(NamedTuple):
    """The settings as the compiled loops want them."""

    max_tokens: int
    short_seq_prob: float
    single: bool  # no second segment
    nsp: bool
    pure: bool
    num_documents: int  # among which a random one is drawn


@compiled
def _truncate(a_length: int, b_length: int, max_tokens: int, key: np.uint64, counter: int) -> tuple[int, int, int, int]:
    """Step 5 at once: how many tokens A and B lose depends on no draw, how many of them in front is Binomial(½).

    Returns:
        a_front, a_kept, b_front, b_kept: tokens dropped at the front and tokens kept.
    """
    excess = a_length + b_length - max_tokens
    if excess <= 0:
        return 0, a_length, 0, b_length
    until_equal = min(excess, abs(a_length - b_length))
    rest = excess - until_equal  # taken in turn, from B first
    a_lost, b_lost = rest // 2, (rest + 1) // 2
    if a_length > b_length:
        a_lost += until_equal
    else:
        b_lost += until_equal
    a_front = heads(key, counter, a_lost)
    b_front = heads(key, counter + 1 + a_lost // 64, b_lost)
    return a_front, a_length - a_lost, b_front, b_length - b_lost


@compiled
def _write(
    example: Any,
    a_start: int,
    a_length: int,
    b_start: int,
    b_length: int,
    max_tokens: int,
    key: np.uint64,
    counter: int,
) -> None:
    """Truncate a pair and note it."""
    a_front, a_kept, b_front, b_kept = _truncate(a_length, b_length, max_tokens, key, counter)
    example.a_start, example.a_length = a_start + a_front, a_kept
    example.b_start, example.b_length = b_start + b_front, b_kept


@compiled
def _chunk_end(sentences: np.ndarray, first: int, last: int, target: int, pure: bool) -> int:
    """The sentence before which the chunk that starts at `first` ends; `last` is the end of the document."""
    end = first + 1
    while end < last and (np.int64(sentences[end]) - np.int64(sentences[first]) < target or (pure and end - first < 2)):
        end += 1
    return end


@compiled
def _plan_shard(
    sentences: np.ndarray, documents: np.ndarray, included: np.ndarray, first_number: int, first_rank: int, shard: int,
    key: np.uint64, rule: _Rule, examples: np.ndarray, pending: np.ndarray,
) -> tuple[int, int, int]:  # fmt: skip
    """Plan the documents of one shard. Empty `examples` and `pending` only count.

    Args:
        sentences: uint32 [sentences + 1], into the tokens.
        documents: uint32 [documents + 1], into the sentences.
        included: bool [documents].
        first_number: Number of the shard's first document in the store.
        first_rank: Number of included documents in the shards before.
        shard: Number of the shard.
        key: Key of the epoch's segments.
        rule: The settings.
        examples: [N] of EXAMPLE, to fill.
        pending: [R] of _PENDING, to fill.

    Returns:
        Number of examples, how many of them are pending, and the documents skipped.
    """
    filled, waiting, skipped, rank = 0, 0, 0, first_rank - 1
    for number in range(len(documents) - 1):
        if not included[number]:
            continue
        rank += 1
        first, last = np.int64(documents[number]), np.int64(documents[number + 1])
        if rule.pure and last - first < 2:
            skipped += 1
            continue
        draws = subkey(key, first_number + number)
        target, counter = rule.max_tokens, 2
        if uniform(draws, 0) < rule.short_seq_prob:
            target = 2 + below(draws, 1, rule.max_tokens - 1)
        while first < last:
            end = _chunk_end(sentences, first, last, target, rule.pure)
            if rule.pure and end - first == 1:
                first -= 1
            middle = first + 1
            if end - first > 2:
                middle += below(draws, counter, end - first - 1)
            lone = end - first == 1
            if rule.single:
                kind = SINGLE
            elif lone or (rule.nsp and uniform(draws, counter + 1) < 0.5):
                kind = RANDOM
            elif not rule.nsp and uniform(draws, counter + 1) < 0.5:
                kind = SWAPPED
            else:
                kind = IN_ORDER
            if filled < len(examples):
                start, stop = np.int64(sentences[first]), np.int64(sentences[end])
                split = stop if kind == SINGLE else np.int64(sentences[middle])
                example = examples[filled]
                example.a_shard = example.b_shard = shard
                example.kind, example.short_target = kind, target < rule.max_tokens
                example.unused = 0
                truncation = bits(draws, counter + 2)
                if kind == SWAPPED:
                    _write(example, split, stop - split, start, split - start, rule.max_tokens, truncation, 0)
                elif kind == RANDOM:
                    example.a_start = start
                    wait = pending[waiting]
                    wait.example, wait.key, wait.a_length = filled, truncation, split - start
                    wait.b_target = target - (split - start)
                    wait.document = _other_document(truncation, rule.num_documents, rank)
                else:
                    _write(example, start, split - start, split, stop - split, rule.max_tokens, truncation, 0)
            filled += 1
            counter += 3
            waiting += kind == RANDOM
            first = middle if kind == RANDOM else end  # what a random segment replaced is put back
    return filled, waiting, skipped


@compiled
def _other_document(key: np.uint64, num_documents: int, own: int) -> int:
    """A random document other than `own`, if ten tries find one."""
    other = own
    for attempt in range(10):
        other = below(key, attempt, num_documents)
        if other != own:
            break
    return other


@compiled
def _read_random_segments(
    sentences: np.ndarray, documents: np.ndarray, included: np.ndarray, first_rank: int, shard: int, max_tokens: int,
    examples: np.ndarray, pending: np.ndarray,
) -> None:  # fmt: skip
    """Find B of the pending examples whose document lies in this shard: from a random sentence on, to the target.

    Args:
        sentences: uint32 [sentences + 1], into the tokens.
        documents: uint32 [documents + 1], into the sentences.
        included: int64, the numbers of the included documents in this shard.
        first_rank: Number of included documents in the shards before.
        shard: Number of the shard.
        max_tokens: Tokens that fit in an example, specials excluded.
        examples: [N] of EXAMPLE.
        pending: [R] of _PENDING.
    """
    for i in range(len(pending)):
        wait = pending[i]
        local = wait.document - first_rank
        if local < 0 or local >= len(included):
            continue
        first = np.int64(documents[included[local]])
        last = np.int64(documents[included[local] + 1])
        first += below(wait.key, 10, last - first)
        end = _chunk_end(sentences, first, last, wait.b_target, False)
        example = examples[wait.example]
        example.b_shard = shard
        b_start, b_length = np.int64(sentences[first]), np.int64(sentences[end]) - np.int64(sentences[first])
        _write(example, np.int64(example.a_start), np.int64(wait.a_length), b_start, b_length, max_tokens, wait.key, 11)


def plan_epoch(
    store: Store, included: Sequence[np.ndarray], settings: ExampleSettings, seed: int, epoch: int, shuffle: bool = True
) -> EpochPlan:
    """All examples of one epoch. Same arguments, same examples, whatever the sharding of the store.

    Args:
        store: The token store; documents and sentences are not empty.
        included: One bool array [documents] a shard: the documents to use. Random segments come from these alone.
        settings: How documents become examples.
        seed: Any whole number.
        epoch: Number of the epoch, from 0.
        shuffle: Put the examples of the whole epoch in random order; otherwise they follow the store.

    Returns:
        The plan: 20 bytes an example. Making it takes that memory and 32 bytes an example with a random segment.

    Raises:
        DataError: no-examples, if no document can be used.
    """
    included = [np.ascontiguousarray(flags, dtype=np.bool_) for flags in included]
    counts = np.array([np.count_nonzero(flags) for flags in included], np.int64)
    ranks = np.concatenate([[0], np.cumsum(counts)])
    sop = settings.pair_task == "sop"
    rule = _Rule(
        max_tokens=settings.max_length - settings.num_specials,
        short_seq_prob=float(settings.short_seq_prob),
        single=settings.pair_task == "none",
        nsp=settings.pair_task == "nsp",
        pure=sop and settings.sop_pairs == "pure",
        num_documents=int(ranks[-1]),
    )
    key = make_key(seed, SEGMENTS, epoch)
    boundaries = [(plain(store.sentence_offsets[k]), plain(store.document_offsets[k])) for k in range(store.num_shards)]
    numbers = np.concatenate([[0], np.cumsum([len(documents) - 1 for _, documents in boundaries])])

    def plan_shard(k: int, examples: np.ndarray, pending: np.ndarray) -> tuple[int, int, int]:
        sentences, documents = boundaries[k]
        return _plan_shard(
            sentences, documents, included[k], int(numbers[k]), int(ranks[k]), k, key, rule, examples, pending
        )

    found = np.array(
        [plan_shard(k, np.empty(0, EXAMPLE), np.empty(0, _PENDING)) for k in range(store.num_shards)], np.int64
    ).reshape(-1, 3)
    num_examples, num_pending, skipped = (int(n) for n in found.sum(axis=0))
    if not num_examples:
        raise _no_examples(int(ranks[-1]), skipped)
    examples, pending = np.empty(num_examples, EXAMPLE), np.empty(num_pending, _PENDING)
    done = waiting = 0
    for k, (filled, waits, _) in enumerate(found):
        mine = pending[waiting : waiting + waits]
        plan_shard(k, examples[done : done + filled], mine)
        mine["example"] += done
        done, waiting = done + filled, waiting + waits
    for k in range(store.num_shards) if num_pending else ():
        _read_random_segments(
            *boundaries[k], np.flatnonzero(included[k]), int(ranks[k]), k, rule.max_tokens, examples, pending
        )
    if shuffle:
        shuffle_rows(examples.view(np.uint32).reshape(num_examples, -1), make_key(seed, ORDER, epoch))
    return EpochPlan(examples, settings.num_specials, skipped)


def _no_examples(documents: int, skipped: int) -> DataError:
    if documents and documents == skipped:
        return DataError(
            "no-examples",
            f"all {documents:,} documents have one sentence, which sentence-order prediction cannot use",
            "separate documents by blank lines, not sentences; or use --pair-task none",
        )
    return DataError(
        "no-examples",
        f"no examples can be made of {documents:,} documents",
        "add text, or set aside a smaller share for evaluation",
    )


def plain(array: np.ndarray) -> np.ndarray:
    """A read-only view without numpy's memmap class, so that the compiled loops meet one type of array a dtype."""
    view = np.ascontiguousarray(array).view(np.ndarray)
    view.flags.writeable = False
    return view
