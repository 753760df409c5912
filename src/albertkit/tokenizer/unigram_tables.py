"""A SentencePiece unigram model as flat arrays, for the kernel of `memo.py`."""

from typing import NamedTuple

import numpy as np

from albertkit.jit import compiled
from albertkit.tokenizer.digit_comma import SPACE, DigitCommaRule
from albertkit.tokenizer.sentencepiece_model import BYTE, NORMAL, UNIGRAM, USER_DEFINED, ModelFacts, symbol_score

_UNKNOWN_PENALTY = 10.0  # kUnkPenalty in unigram_model.cc
# How far behind the last base a free place is still looked for. Without a limit, filling the last gaps of the trie of
# 30,000 pieces takes 3.7 s; with this one 0.01, for 4 % more memory.
_WINDOW = 64


class UnigramTables(NamedTuple):
    """A unigram model as flat arrays.

    Attributes:
        trie: int64. A double array: the child of a node after byte b stands at the node's base + b, if it is one. 64 bits
            hold a node: its byte + 1 (9, zero where there is none), piece + 1 (22), base (32). Steps cost one look-up;
            with a hash table of edges a word took 2.1 µs, with sorted children 1.4.
        scores: float64 [V]. That of the unknown piece is the price of an unknown character.
        rewrite_counts: int64 [V]. The digit-comma rule; see `DigitCommaRule`.
        rewrite_starts: int64 [V].
        rewrite_ids: int32.
        ids: int64 [3]. Unknown piece, the piece of a space alone, the node after a space.
    """

    trie: np.ndarray
    scores: np.ndarray
    rewrite_counts: np.ndarray
    rewrite_starts: np.ndarray
    rewrite_ids: np.ndarray
    ids: np.ndarray


def fits(facts: ModelFacts) -> bool:
    """Return whether the engine can stand in for a model; what is asked for is what the argument in `memo.py` needs."""
    kinds = {kind for _, _, kind in facts.pieces}
    usable = [(piece, score, kind) for piece, score, kind in facts.pieces if kind in (NORMAL, USER_DEFINED)]
    return (
        facts.model_type == UNIGRAM
        and not facts.whitespace_as_suffix
        and facts.dummy_prefix
        and facts.one_space
        and facts.escape_spaces
        and BYTE not in kinds
        and all(SPACE not in piece[1:] and "\0" not in piece and score <= 0 for piece, score, _ in usable)
        and any(piece == SPACE and kind == NORMAL for piece, _, kind in usable)
        and not any(piece.startswith(SPACE) for piece, _, kind in usable if kind == USER_DEFINED)
    )


def unigram_tables(facts: ModelFacts, unknown_id: int, rule: DigitCommaRule | None) -> UnigramTables:
    """Lay a model out for the kernel; it must be one that `fits`."""
    normal = [np.float32(score) for _, score, kind in facts.pieces if kind == NORMAL]
    best, worst = float(max(normal)), float(min(normal))
    scores = np.array([s if kind == NORMAL else symbol_score(p, best) for p, s, kind in facts.pieces])
    rows = sorted((p.encode(), n) for n, (p, _, kind) in enumerate(facts.pieces) if kind in (NORMAL, USER_DEFINED))
    text = np.frombuffer(b"".join(text for text, _ in rows), dtype=np.uint8)
    ends, numbers = np.cumsum([len(text) for text, _ in rows]), np.array([number for _, number in rows])
    trie = _build_trie(text, ends, numbers)
    space = trie[0]
    for byte in SPACE.encode():
        space = _child(trie, space, byte)
    if rule is None:
        size = len(facts.pieces)
        rule = DigitCommaRule(np.ones(size, np.int64), np.arange(size), np.arange(size, dtype=np.int32), np.zeros(0))
    ids = np.array([unknown_id, _piece(space), space], dtype=np.int64)
    scores[unknown_id] = worst - _UNKNOWN_PENALTY
    return UnigramTables(trie, scores, rule.counts, rule.starts, rule.ids, ids)


@compiled
def _child(trie, node, byte):
    """Return the node after a byte, or 0. A node is the number that stands in the trie."""
    child = trie[(node >> 31) + byte]
    return child if child & 0x1FF == byte + 1 else 0


@compiled
def _piece(node):
    """Return the piece that ends at a node, or -1."""
    return (node >> 9 & 0x3FFFFF) - 1


@compiled
def _count_nodes(text, ends):
    """Return the number of different beginnings of the sorted pieces, the empty one among them."""
    nodes, first, last = 1, 0, 0  # where the piece before begins and ends
    for end in ends:
        same = 0
        while first + same < last and last + same < end and text[first + same] == text[last + same]:
            same += 1
        nodes += end - last - same
        first, last = last, end
    return nodes


@compiled
def _build_trie(text, ends, numbers):
    """Build the trie node by node in the order of their depth; a node stands for a run of the sorted pieces that begin alike."""
    nodes = _count_nodes(text, ends)
    trie = np.zeros(8 * nodes + 4096, dtype=np.int64)
    taken = np.zeros(len(trie), dtype=np.bool_)  # bases; one base a node makes the byte proof enough of a child
    places, firsts, lasts, depths = np.zeros((4, nodes), dtype=np.int64)
    labels, begins = np.zeros(256, dtype=np.int64), np.zeros(257, dtype=np.int64)
    lasts[0] = len(ends)
    made, free, furthest = 1, 1, 0
    for node in range(nodes):
        row, depth, count = firsts[node], depths[node], 0
        if ends[row] - (ends[row - 1] if row > 0 else 0) == depth:
            trie[places[node]] |= (numbers[row] + 1) << 9
            row += 1
        while row < lasts[node]:
            label = np.int64(text[(ends[row - 1] if row > 0 else 0) + depth])
            if count == 0 or labels[count - 1] != label:
                labels[count], begins[count] = label, row
                count += 1
            row += 1
        begins[count] = row
        if count == 0:  # a leaf: base 0 is the root's own, where no child is by another's byte
            continue
        while trie[free] != 0:
            free += 1
        base = _free_base(trie, taken, labels, count, max(1, free - labels[0], furthest - _WINDOW))
        taken[base] = True
        trie[places[node]] |= base << 31
        for number in range(count):
            places[made], firsts[made], lasts[made] = base + labels[number], begins[number], begins[number + 1]
            depths[made] = depth + 1
            trie[places[made]] = labels[number] + 1
            made += 1
        furthest = max(furthest, base)
    return trie[: furthest + 257].copy()


@compiled
def _free_base(trie, taken, labels, count, base):
    """Return the first base from `base` on where all children find room."""
    while True:
        fits_here = not taken[base]
        for number in range(count):
            fits_here = fits_here and trie[base + labels[number]] == 0
        if fits_here:
            return base
        base += 1
