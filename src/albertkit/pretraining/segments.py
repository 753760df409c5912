"""The compiled loops that cut documents into segments; `examples.py` states the rules.

A shard is planned by one pass over its sentence boundaries, at more than 100 million sentences a second and core. Pairs with a
random document are finished by a second pass, since that document may lie in another shard.
"""

from typing import Any, NamedTuple

import numpy as np

from albertkit.jit import compiled
from albertkit.pretraining.randomness import below, bits, heads, subkey, uniform

IN_ORDER, SWAPPED, RANDOM, SINGLE = 0, 1, 2, 3  # kinds of examples

# One example: 20 bytes. Starts are numbers of tokens in a shard, lengths are those after truncation. A and B are the
# segments as the model sees them, after any swap.
EXAMPLE = np.dtype(
    [
        ("a_start", "<u4"),
        ("b_start", "<u4"),
        ("a_shard", "<u2"),
        ("b_shard", "<u2"),
        ("a_length", "<u2"),
        ("b_length", "<u2"),
        ("kind", "u1"),
        ("short_target", "u1"),
        ("unused", "<u2"),
    ]
)

# An example whose B is still to be read from another document, maybe of another shard: 32 bytes, only while planning.
PENDING = np.dtype([("example", "<i8"), ("key", "<u8"), ("a_length", "<u4"), ("b_target", "<i4"), ("document", "<i8")])


class Rule(NamedTuple):
    """The settings as the compiled loops want them."""

    max_tokens: int
    short_seq_prob: float
    single: bool  # no second segment
    nsp: bool
    pure: bool
    num_documents: int  # among which a random one is drawn


@compiled
def _truncate(a_length: int, b_length: int, max_tokens: int, key: np.uint64, counter: int) -> tuple[int, int, int, int]:
    """Do step 5 at once: how many tokens A and B lose depends on no draw, how many of them in front is Binomial(½).

    Returns tokens dropped at the front of A and kept of it, and the same of B.
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
    """Return the sentence before which the chunk that starts at `first` ends; `last` is the end of the document."""
    end = first + 1
    while end < last and (np.int64(sentences[end]) - np.int64(sentences[first]) < target or (pure and end - first < 2)):
        end += 1
    return end


@compiled
def _target(draws: np.uint64, rule: Rule) -> int:
    """Step 1: the target length of a document in this epoch."""
    if uniform(draws, 0) < rule.short_seq_prob:
        return 2 + below(draws, 1, rule.max_tokens - 1)
    return rule.max_tokens


@compiled
def _kind(rule: Rule, lone: bool, coin: bool) -> int:
    """Decide the kind of a chunk: `lone` if it is one sentence, `coin` with probability ½."""
    if lone or (rule.nsp and coin):
        return RANDOM
    return SWAPPED if coin and not rule.nsp else IN_ORDER


@compiled
def _other_document(key: np.uint64, num_documents: int, own: int) -> int:
    """Return a random document other than `own`, if ten tries find one."""
    other = own
    for attempt in range(10):
        other = below(key, attempt, num_documents)
        if other != own:
            break
    return other


@compiled
def _window_end(
    sentences: np.ndarray,  # offsets of the shard
    start: int,  # number of a token
    following: int,  # the first sentence boundary after it
    last: int,  # that at the end of the document
    target: int,
    max_tokens: int,
    draw: np.uint64,
) -> int:
    """Return the token before which a segment without a partner ends, that starts at token `start`.

    It holds whole sentences, as many as fit, until it has reached the target. A sentence that does not fit alone is cut into
    windows: the first is at least half as long as fits, at random, so that the cuts lie elsewhere in every epoch.
    """
    end = start
    for boundary in range(following, last + 1):
        here = int(sentences[boundary])
        if here - start > max_tokens:
            break
        end = here
        if end - start >= target:
            break
    if end > start:
        return end
    if start > np.int64(sentences[following - 1]):  # in the middle of a sentence already
        return start + max_tokens
    return start + max_tokens - below(draw, 0, (max_tokens + 1) // 2)


@compiled
def _plan_windows(
    sentences: np.ndarray,
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
    start, stop, following, counter = np.int64(sentences[first]), np.int64(sentences[last]), first + 1, 2
    while start < stop:
        while np.int64(sentences[following]) <= start:
            following += 1
        end = _window_end(sentences, start, following, last, target, rule.max_tokens, bits(draws, counter))
        if filled < len(examples):  # not only counting
            example = examples[filled]
            example.kind, example.short_target, example.unused = SINGLE, target < rule.max_tokens, 0
            example.a_shard = example.b_shard = shard
            example.a_start, example.a_length, example.b_start, example.b_length = start, end - start, end, 0
        filled, counter, start = filled + 1, counter + 1, end
    return filled


@compiled
def plan_shard(
    sentences: np.ndarray,  # uint32 [sentences + 1], into the tokens
    documents: np.ndarray,  # uint32 [documents + 1], into the sentences
    included: np.ndarray,  # bool [documents]
    first_number: int,  # documents in the shards before
    first_rank: int,  # included ones among them
    shard: int,
    key: np.uint64,  # of the epoch's segments
    rule: Rule,
    examples: np.ndarray,  # [N] of EXAMPLE, to fill
    pending: np.ndarray,  # [R] of PENDING, to fill
) -> tuple[int, int, int]:
    """Plan the documents of one shard; return the numbers of examples, of pending ones among them, and of documents skipped.

    Empty `examples` and `pending` only count.
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
        target, counter = _target(draws, rule), 2
        if rule.single:
            filled = _plan_windows(sentences, first, last, shard, target, rule, draws, examples, filled)
            continue
        while first < last:
            end = _chunk_end(sentences, first, last, target, rule.pure)
            if rule.pure and end - first == 1:
                first -= 1
            middle = first + 1
            if end - first > 2:
                middle += below(draws, counter, end - first - 1)
            kind = _kind(rule, end - first == 1, uniform(draws, counter + 1) < 0.5)
            if filled < len(examples):  # not only counting
                example, truncation = examples[filled], bits(draws, counter + 2)
                start, stop = np.int64(sentences[first]), np.int64(sentences[end])
                split = np.int64(sentences[middle])
                example.kind, example.short_target, example.unused = kind, target < rule.max_tokens, 0
                example.a_shard = example.b_shard = shard
                if kind == RANDOM:
                    example.a_start = start
                    wait = pending[waiting]
                    wait.example, wait.key, wait.a_length = filled, truncation, split - start
                    wait.b_target = target - (split - start)
                    wait.document = _other_document(truncation, rule.num_documents, rank)
                elif kind == SWAPPED:
                    _write(example, split, stop - split, start, split - start, rule.max_tokens, truncation, 0)
                else:
                    _write(example, start, split - start, split, stop - split, rule.max_tokens, truncation, 0)
            filled += 1
            counter, waiting = counter + 3, waiting + (kind == RANDOM)
            first = middle if kind == RANDOM else end  # what a random segment replaced is put back
    return filled, waiting, skipped


@compiled
def read_random_segments(
    sentences: np.ndarray,  # uint32 [sentences + 1], into the tokens
    documents: np.ndarray,  # uint32 [documents + 1], into the sentences
    included: np.ndarray,  # int64, numbers of the included documents in this shard
    first_rank: int,  # included documents in the shards before
    shard: int,
    max_tokens: int,  # that fit in an example, specials excluded
    examples: np.ndarray,  # [N] of EXAMPLE
    pending: np.ndarray,  # [R] of PENDING
) -> None:
    """Find B of the pending examples whose document lies in this shard: from a random sentence on, to the target."""
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
