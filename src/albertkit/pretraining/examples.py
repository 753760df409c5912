"""Examples: which tokens of the store become segments A and B, decided again in every epoch.

The rules are those of `create_instances_from_document` in google-research/albert's
create_pretraining_data.py:

1. Once per document and epoch a target length is drawn: as many tokens as fit, or, with probability `short_seq_prob`, a
   uniform whole number from 2 to that.
2. Sentences are gathered greedily until the chunk reaches the target or the document ends.
3. A is the first `a_end` sentences of the chunk, `a_end` uniform in [1, sentences - 1]; B is the rest.
4. With probability ½ A and B change places (label 1); otherwise they stand in order (label 0).
5. While the pair is too long, the longer segment (B if they tie) loses a token, from its front or back with probability
   ½ each.

A chunk of one sentence cannot be split. Google takes B from a random document and calls the pair
"swapped", which lets topics leak into the sentence-order task, as in next-sentence prediction
(google-research/albert, issue 234). `sop_pairs="google"` does so too. The default, "pure", never
lets a chunk have one sentence: a chunk ends when it has reached the target *and* holds two
sentences, and a last sentence left alone takes the one before it again. What remains, documents of
one sentence, is skipped and counted.

Without a second segment (`pair_task="none"`) nothing is truncated: a chunk ends before a sentence
that does not fit, and a sentence that does not fit alone is cut into windows, so every token of a
document is in exactly one example of an epoch.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal, NamedTuple, Protocol

import numpy as np

from albertkit.errors import DataError
from albertkit.jit import compiled
from albertkit.pretraining.randomness import (
    BLOCKS,
    ORDER,
    SEGMENTS,
    count_heads,
    make_key,
    random_below,
    random_bits,
    random_uniform,
    shuffle_rows,
    subkey,
)
from albertkit.validation import Range, check_fields

IN_ORDER, SWAPPED, RANDOM, SINGLE = 0, 1, 2, 3  # kinds of examples

# One example: 20 bytes. Starts are numbers of tokens in a shard, lengths are those after
# truncation. A and B are the segments as the model sees them, after any swap.
# An example is two runs of consecutive tokens, so it is stored as 20 bytes, whatever its length. A
# terabyte of text is some 700 million examples, 15 GB for each process, so an epoch of a large
# store is planned a block of shards at a time: in each epoch the shards are put in another random
# order and cut into blocks.
EXAMPLE = np.dtype(
    [
        ("a_start", "<u4"),
        ("b_start", "<u4"),
        ("a_shard", "<u2"),
        ("b_shard", "<u2"),
        ("a_length", "<u2"),
        ("b_length", "<u2"),
        ("kind", "<u2"),
        ("short_target", "<u2"),
    ]
)

# An example whose B is still to be read from another document, maybe of another shard: 32 bytes,
# only while planning.
PENDING = np.dtype(
    [
        ("example", "<i8"),
        ("key", "<u8"),
        ("a_length", "<u4"),
        ("b_target", "<i4"),
        ("document", "<i8"),
    ]
)


class Shard(NamedTuple):
    """A shard as the compiled loops read it."""

    number: int
    sentences: np.ndarray  # uint32 [sentences + 1], offsets into the tokens
    documents: np.ndarray  # uint32 [documents + 1], offsets into the sentences
    included: np.ndarray  # bool [documents]
    first_document: int  # documents in the shards before
    first_rank: int  # included documents in the planned shards before


class Rule(NamedTuple):
    """The settings as the compiled loops want them."""

    max_tokens: int
    short_seq_prob: float
    single: bool  # no second segment
    nsp: bool
    pure: bool
    num_documents: int  # among which a random one is drawn


@compiled
def truncated_front_and_kept_lengths(
    a_length: int,
    b_length: int,
    max_tokens: int,
    key: np.uint64,
    counter: int,
) -> tuple[int, int, int, int]:
    """Do step 5 at once: how many tokens A and B lose depends on no draw, how many of them in front is Binomial(½).

    Returns tokens dropped at the front of A and kept of it, and the same of B.
    """
    excess = a_length + b_length - max_tokens
    if excess <= 0:
        return 0, a_length, 0, b_length
    until_equal = min(excess, abs(a_length - b_length))
    remaining = excess - until_equal  # taken in turn, from B first
    a_lost = remaining // 2
    b_lost = (remaining + 1) // 2
    if a_length > b_length:
        a_lost += until_equal
    else:
        b_lost += until_equal
    a_front = count_heads(key, counter, a_lost)
    b_front = count_heads(key, counter + 1 + a_lost // 64, b_lost)
    return a_front, a_length - a_lost, b_front, b_length - b_lost


@compiled
def _write_example(
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
    a_front, a_kept, b_front, b_kept = truncated_front_and_kept_lengths(
        a_length, b_length, max_tokens, key, counter
    )
    example.a_start, example.a_length = a_start + a_front, a_kept
    example.b_start, example.b_length = b_start + b_front, b_kept


@compiled
def _chunk_end(sentence_offsets: np.ndarray, first: int, last: int, target: int, pure: bool) -> int:
    """Return the sentence before which the chunk that starts at `first` ends; `last` is the end of the document."""
    end = first + 1
    while end < last and (
        np.int64(sentence_offsets[end]) - np.int64(sentence_offsets[first]) < target
        or (pure and end - first < 2)
    ):
        end += 1
    return end


@compiled
def _other_document(key: np.uint64, num_documents: int, own_rank: int) -> int:
    """Return a random document other than `own_rank`, if ten tries find one."""
    candidate = own_rank
    for attempt in range(10):
        candidate = random_below(key, attempt, num_documents)
        if candidate != own_rank:
            break
    return candidate


@compiled
def _window_end(
    sentence_offsets: np.ndarray,  # offsets of the shard
    start: int,  # number of a token
    following: int,  # the first sentence boundary after it
    last: int,  # that at the end of the document
    target: int,
    max_tokens: int,
    draw: np.uint64,
) -> int:
    """Return the token before which a segment without a partner ends, that starts at token `start`.

    It holds whole sentences, as many as fit, until it has reached the target. A sentence that does
    not fit alone is cut into windows: the first is at least half as long as fits, at random, so
    that the cuts lie elsewhere in every epoch.
    """
    end = start
    for boundary in range(following, last + 1):
        sentence_end = int(sentence_offsets[boundary])
        if sentence_end - start > max_tokens:
            break
        end = sentence_end
        if end - start >= target:
            break
    if end > start:
        return end
    if start > np.int64(sentence_offsets[following - 1]):  # in the middle of a sentence already
        return start + max_tokens
    return start + max_tokens - random_below(draw, 0, (max_tokens + 1) // 2)


@compiled
def _plan_windows(
    sentence_offsets: np.ndarray,
    first: int,
    last: int,
    shard: int,
    target: int,
    rule: Rule,
    draws: np.uint64,
    examples: np.ndarray,
    filled: int,
) -> int:
    """Plan a document whose segments have no partner, every token in exactly one of them; return how many are filled then."""
    start = np.int64(sentence_offsets[first])
    stop = np.int64(sentence_offsets[last])
    following = first + 1
    counter = 2
    while start < stop:
        while np.int64(sentence_offsets[following]) <= start:
            following += 1
        end = _window_end(
            sentence_offsets,
            start,
            following,
            last,
            target,
            rule.max_tokens,
            random_bits(draws, counter),
        )
        if filled < len(examples):  # not only counting
            example = examples[filled]
            example.kind = SINGLE
            example.short_target = target < rule.max_tokens
            example.a_shard = example.b_shard = shard
            example.a_start = start
            example.a_length = end - start
            example.b_start = end
            example.b_length = 0
        filled += 1
        counter += 1
        start = end
    return filled


@compiled
def plan_shard_and_count(
    shard: Shard,
    key: np.uint64,  # of the epoch's segments
    rule: Rule,
    examples: np.ndarray,  # [N] of EXAMPLE, to fill
    pending: np.ndarray,  # [R] of PENDING, to fill
) -> tuple[int, int, int]:
    """Plan the documents of one shard; return the numbers of examples, of pending ones among them, and of documents skipped.

    Empty `examples` and `pending` only count.
    """
    sentence_offsets = shard.sentences
    filled = 0
    waiting = 0
    skipped = 0
    rank = shard.first_rank - 1
    for number in range(len(shard.documents) - 1):
        if not shard.included[number]:
            continue
        rank += 1
        first = np.int64(shard.documents[number])
        last = np.int64(shard.documents[number + 1])
        if rule.pure and last - first < 2:
            skipped += 1
            continue
        draws = subkey(key, shard.first_document + number)
        target = rule.max_tokens
        if random_uniform(draws, 0) < rule.short_seq_prob:
            target = 2 + random_below(draws, 1, rule.max_tokens - 1)
        if rule.single:
            filled = _plan_windows(
                sentence_offsets,
                first,
                last,
                shard.number,
                target,
                rule,
                draws,
                examples,
                filled,
            )
            continue
        counter = 2
        while first < last:
            end = _chunk_end(sentence_offsets, first, last, target, rule.pure)
            # A last sentence left alone takes the one before it again.
            if rule.pure and end - first == 1:
                first -= 1
            middle = first + 1
            if end - first > 2:
                middle += random_below(draws, counter, end - first - 1)
            is_heads = random_uniform(draws, counter + 1) < 0.5
            kind = IN_ORDER
            if end - first == 1 or (rule.nsp and is_heads):
                kind = RANDOM
            elif is_heads:
                kind = SWAPPED
            if filled < len(examples):  # not only counting
                example = examples[filled]
                truncation = random_bits(draws, counter + 2)
                start = np.int64(sentence_offsets[first])
                stop = np.int64(sentence_offsets[end])
                split = np.int64(sentence_offsets[middle])
                example.kind = kind
                example.short_target = target < rule.max_tokens
                example.a_shard = example.b_shard = shard.number
                if kind == RANDOM:
                    example.a_start = start
                    wait = pending[waiting]
                    wait.example = filled
                    wait.key = truncation
                    wait.a_length = split - start
                    wait.b_target = target - (split - start)
                    wait.document = _other_document(truncation, rule.num_documents, rank)
                elif kind == SWAPPED:
                    _write_example(
                        example,
                        split,
                        stop - split,
                        start,
                        split - start,
                        rule.max_tokens,
                        truncation,
                        0,
                    )
                else:
                    _write_example(
                        example,
                        start,
                        split - start,
                        split,
                        stop - split,
                        rule.max_tokens,
                        truncation,
                        0,
                    )
            filled += 1
            counter += 3
            waiting += kind == RANDOM
            first = middle if kind == RANDOM else end  # what a random segment replaced is put back
    return filled, waiting, skipped


@compiled
def read_random_segments(
    shard: Shard,
    included: np.ndarray,  # int64, numbers of the included documents in this shard
    max_tokens: int,  # that fit in an example, specials excluded
    examples: np.ndarray,  # [N] of EXAMPLE
    pending: np.ndarray,  # [R] of PENDING
) -> None:
    """Find B of the pending examples whose document lies in this shard: from a random sentence on, to the target."""
    sentence_offsets = shard.sentences
    for i in range(len(pending)):
        wait = pending[i]
        local = wait.document - shard.first_rank
        if local < 0 or local >= len(included):
            continue
        first = np.int64(shard.documents[included[local]])
        last = np.int64(shard.documents[included[local] + 1])
        first += random_below(wait.key, 10, last - first)
        end = _chunk_end(sentence_offsets, first, last, wait.b_target, False)
        example = examples[wait.example]
        example.b_shard = shard.number
        b_start = np.int64(sentence_offsets[first])
        b_length = np.int64(sentence_offsets[end]) - np.int64(sentence_offsets[first])
        _write_example(
            example,
            np.int64(example.a_start),
            np.int64(wait.a_length),
            b_start,
            b_length,
            max_tokens,
            wait.key,
            11,
        )


KINDS = ("in order", "swapped", "random", "single")
LABELS = np.array([0, 1, 1, -100], np.int64)  # the sentence-order label of each kind; -100: none

# Tokens of a block for each token of the longest sequence: 8.6e9 tokens at length 512 are some 29
# million examples, 580 MB, that one core plans in about 8 s. A store that is not larger is one
# block.
# The 430 shards of 1 TB in one piece, 777 million examples, took 15.5 GB and 200 s in every
# process, in blocks 575 MB and 7.4 s.
BLOCK_SEQUENCES = 1 << 24


class Store(Protocol):
    """The parts of a `TokenStore` that are read.

    Not imported: with another room's every change the loops of this module would be compiled again.
    """

    num_shards: int
    vocab_size: int
    tokens: Sequence[np.ndarray]
    sentence_offsets: Sequence[np.ndarray]
    document_offsets: Sequence[np.ndarray]

    def tokenizer(self) -> Any:
        """Return the `AlbertTokenizer` that the ids belong to."""


@dataclass(frozen=True, kw_only=True)
class ExampleSettings:
    """Rules by which documents become examples.

    Attributes:
        max_length: Longest sequence in tokens, [CLS] and [SEP] included.
        short_seq_prob: Probability that a document is cut to a shorter random target in an epoch.
        pair_task: "sop" (are the segments in order or swapped?), "nsp" (does B follow A, or is it
            from another document?) or "none" (one segment, no label).
        sop_pairs: What sop does with a chunk of one sentence: "pure" avoids it, "google" takes B
            from a random document.
    """

    max_length: Annotated[int, Range(5, 65535)] = 512
    short_seq_prob: Annotated[float, Range(0, 1)] = 0.1
    pair_task: Literal["sop", "nsp", "none"] = "sop"
    sop_pairs: Literal["pure", "google"] = "pure"

    def __post_init__(self) -> None:
        check_fields(self)

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
        skipped_documents: Documents of one sentence, which pure sentence-order prediction cannot
            use.
        first: Number that stands for the first example, in what is drawn by number; each block has
            its own.
    """

    examples: np.ndarray
    num_specials: int
    skipped_documents: int
    first: int = 0

    @property
    def has_pairs(self) -> bool:
        """Return whether examples have a second segment, and thus a sentence-order label."""
        return self.num_specials == 3

    def lengths(self, indices: np.ndarray | slice = slice(None)) -> np.ndarray:
        """Return the lengths of examples (default: all) in tokens, specials included: int64 [N]."""
        examples = self.examples[indices]
        return examples["a_length"].astype(np.int64) + examples["b_length"] + self.num_specials


def count_covered_tokens(examples: np.ndarray) -> int:
    """Count the tokens of a store that examples, [N] of dtype EXAMPLE, cover; one that several cover counts once."""
    total = 0
    parts = [
        [examples[f"{segment}_{name}"].astype(np.int64) for name in ("shard", "start", "length")]
        for segment in "ab"
    ]
    shards, starts, lengths = (np.concatenate(columns) for columns in zip(*parts, strict=True))
    for shard in np.unique(shards[lengths > 0]):
        in_shard = (shards == shard) & (lengths > 0)
        order = np.argsort(starts[in_shard])
        first = starts[in_shard][order]
        end = (starts[in_shard] + lengths[in_shard])[order]
        reached = np.concatenate([[0], np.maximum.accumulate(end)[:-1]])
        total += int(np.maximum(end - np.maximum(first, reached), 0).sum())
    return total


def shards_of_blocks(
    store: Store, settings: ExampleSettings, seed: int, epoch: int
) -> list[np.ndarray]:
    """Return the shards of each block of an epoch, rising int64: all of a small store, else a random share of them."""
    tokens = sum(len(shard) for shard in store.tokens)
    count = min(-(-tokens // (BLOCK_SEQUENCES * settings.max_length)), store.num_shards)
    shards = np.arange(store.num_shards, dtype=np.int64)
    if count > 1:
        shuffle_rows(shards.reshape(-1, 1), make_key(seed, BLOCKS, epoch))
    return [np.sort(part) for part in np.array_split(shards, max(count, 1))]


def plan_epoch(
    store: Store,
    included: Sequence[
        np.ndarray
    ],  # bool [documents] of each shard; random segments come from these alone
    settings: ExampleSettings,
    seed: int,
    epoch: int,
    shuffle: bool = True,  # else the examples follow the store
    block: int | None = None,  # see `shards_of_blocks`; default: the whole store at once
) -> EpochPlan:
    """Plan all examples of one epoch, or of a block of it: 20 bytes an example, and 32 more for a random segment meanwhile.

    Same arguments, same examples; of a whole epoch whatever the sharding.
    """
    indices = (
        [*range(store.num_shards)]
        if block is None
        else shards_of_blocks(store, settings, seed, epoch)[block].tolist()
    )
    shards = _read_shards(store, included, indices)
    num_documents = sum(int(np.count_nonzero(shard.included)) for shard in shards)
    rule = Rule(
        max_tokens=settings.max_length - settings.num_specials,
        short_seq_prob=float(settings.short_seq_prob),
        single=settings.pair_task == "none",
        nsp=settings.pair_task == "nsp",
        pure=settings.pair_task == "sop" and settings.sop_pairs == "pure",
        num_documents=num_documents,
    )
    key = make_key(seed, SEGMENTS, epoch)
    no_examples = np.empty(0, EXAMPLE)
    no_pending = np.empty(0, PENDING)
    counts = np.array(
        [plan_shard_and_count(shard, key, rule, no_examples, no_pending) for shard in shards],
        np.int64,
    ).reshape(
        -1,
        3,
    )
    num_examples, num_pending, num_skipped = counts.sum(axis=0).tolist()
    if not num_examples:
        raise _no_examples_error(num_documents, num_skipped)
    examples = np.empty(num_examples, EXAMPLE)
    pending = np.empty(num_pending, PENDING)
    example_start = pending_start = 0
    for shard, (shard_examples, shard_pending, _) in zip(shards, counts.tolist(), strict=True):
        example_end = example_start + shard_examples
        pending_end = pending_start + shard_pending
        pending_of_shard = pending[pending_start:pending_end]
        examples_of_shard = examples[example_start:example_end]
        plan_shard_and_count(shard, key, rule, examples_of_shard, pending_of_shard)
        pending_of_shard["example"] += example_start
        example_start = example_end
        pending_start = pending_end
    if num_pending:
        for shard in shards:
            documents = np.flatnonzero(shard.included)
            read_random_segments(shard, documents, rule.max_tokens, examples, pending)
    if shuffle:
        order = make_key(seed, ORDER, epoch)
        shuffle_rows(
            examples.view(np.uint32).reshape(num_examples, -1),
            np.uint64(subkey(order, block)) if block else order,
        )
    return EpochPlan(examples, settings.num_specials, num_skipped, (block or 0) << 32)


def _read_shards(
    store: Store,
    included: Sequence[np.ndarray],
    indices: Sequence[int],
) -> list[Shard]:
    """Read the offsets of some shards; the compiled loops follow them unchecked, so they are checked here."""
    shards = []
    planned = set(indices)
    first_document = first_rank = 0
    for index in range(store.num_shards):
        sentences = without_memmap(store.sentence_offsets[index])
        documents = without_memmap(store.document_offsets[index])
        if index in planned:
            _check_offsets("sentences", sentences, len(store.tokens[index]), index)
            _check_offsets("documents", documents, len(sentences) - 1, index)
            flags = np.ascontiguousarray(included[index], dtype=np.bool_)
            shards.append(Shard(index, sentences, documents, flags, first_document, first_rank))
            first_rank += int(np.count_nonzero(flags))
        first_document += len(documents) - 1
    return shards


def _check_offsets(kind: str, offsets: np.ndarray, end: int, shard: int) -> None:
    # Compiled loops check no bounds: a manifest that vouches for wrong offsets could have them read
    # foreign memory.
    has_ends = len(offsets) > 0 and offsets[0] == 0 and offsets[-1] == end
    if not (has_ends and bool((offsets[1:] > offsets[:-1]).all())):
        raise DataError(
            "corrupt",
            f"the offsets of {kind} in shard {shard} do not rise from 0 to {end:,}",
            "copy the store again, or build it again with --overwrite",
        )


def _no_examples_error(documents: int, skipped: int) -> DataError:
    if documents and documents == skipped:
        return DataError(
            "too-little-data",
            f"all {documents:,} documents have one sentence, which sentence-order prediction cannot use",
            "build the store again with `--sentences split` if its lines hold several sentences, or without the blank lines "
            "that divide sentences; only if documents really are single sentences, use --pair-task none",
        )
    return DataError(
        "too-little-data",
        f"no examples can be made of {documents:,} documents",
        "add text, or set aside a smaller share for evaluation",
    )


def foreign_id_error(largest: int, vocab_size: int) -> DataError:
    """Return the error for a store that holds an id which its tokenizer does not have."""
    return DataError(
        "corrupt",
        f"the store holds the id {largest:,}, its tokenizer has {vocab_size:,} tokens",
        "copy the store again, or build it again with --overwrite",
    )


def without_memmap(array: np.ndarray) -> np.ndarray:
    """Return a read-only view without numpy's memmap class, so that the compiled loops meet one type of array a dtype."""
    view = np.ascontiguousarray(array).view(np.ndarray)
    view.flags.writeable = False
    return view


LITTLE = 0.75  # well split English Wikipedia at 128 tokens: 0.89


# What is cut off makes no further pairs: that would change what the original's algorithm draws at
# short lengths.
def tokens_used(
    store: Store,
    plan: EpochPlan,
    included: Sequence[np.ndarray],
    shards: Sequence[int] | np.ndarray | None = None,
) -> float:
    """Return the share of the tokens of the included documents, of some shards or all, that is in an example of the plan.

    A sentence longer than an example is cut, and the rest is not seen.
    """
    total = 0
    for shard in range(store.num_shards) if shards is None else shards:
        starts = np.asarray(store.sentence_offsets[shard])[
            np.asarray(store.document_offsets[shard])
        ].astype(np.int64)
        total += int(np.diff(starts)[included[shard]].sum())
    return count_covered_tokens(plan.examples) / max(total, 1)


def format_used_share(share: float) -> str:
    """Return the share as text, and what to do if it is small."""
    line = f"{share:.0%}" if share >= 0.1 else f"{share:.1%}"
    if share >= LITTLE:
        return line
    return (
        f"{line}. What does not fit into --length is cut off: use a longer one, build the store with --sentences split if its "
        "lines hold several sentences, or train without pairs: --pair-task none"
    )
