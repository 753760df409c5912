"""A word-by-word engine for SentencePiece unigram models: the same ids, without walking the lattice of words seen before.

No piece of such a model crosses a space, so a text is segmented word by word. A compiled kernel cuts the bytes of many
texts into words, looks each up in a table, and segments unseen ones itself (Viterbi, as `EncodeOptimized` in
SentencePiece's unigram_model.cc).

Exactness. SentencePiece adds scores in single precision along the whole text, so where two segmentations of a word score
nearly the same, rounding decides, and it depends on what came before. The kernel adds in double precision and keeps with
each word the gap to its second best segmentation. A path of k pieces whose partial sums stay below M in magnitude is off
by at most k·M·2⁻²⁴; rounded addition is monotone, so SentencePiece takes a path whose rounded score is largest; so the
best segmentation wins surely if its gap exceeds 2·k·M·2⁻²⁴. Here k is bounded by the bytes of the word + 2 and the bound
is doubled. The kernel takes only characters that the model's normaliser leaves alone whatever stands beside them. A text
with any other, or with a word below the bound, is handed to SentencePiece as a whole.
"""

from collections.abc import Iterable
from typing import Any, NamedTuple

import numba
import numpy as np

from albertkit.tokenizer.digit_comma import SPACE, DigitCommaRule
from albertkit.tokenizer.sentencepiece_model import BYTE, NORMAL, UNIGRAM, USER_DEFINED, ModelFacts

_UNKNOWN_PENALTY = 10.0  # kUnkPenalty in unigram_model.cc
_LONGEST_WORD = 1024  # bytes; longer ones go to SentencePiece
_KEY_BYTES = 24  # longest word that is remembered
_MOST_IDS = 5  # most ids of a word that is remembered
_TABLE_BITS = 18  # 262,144 slots of 64 bytes: 16 MiB a thread
_WAYS = 4  # slots a word may go to; when all are taken, it replaces one
_GAP_UNIT = 2.0**-20  # gaps and scores are kept as whole numbers, rounded to the safe side
_SCORE_UNIT = 2.0**-6

ORDINARY, SEPARATOR, REFUSED, LEADING = range(4)  # what a byte is to the kernel


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


class WordMemo(NamedTuple):
    """The table of words of one thread.

    Attributes:
        keys: uint64 [slots, 4]. Bytes of a word, zeros after it; the fourth column fills half a cache line.
        values: int32 [slots, 8]. Number of ids, gap, score, the ids.
    """

    keys: np.ndarray
    values: np.ndarray


class Characters(NamedTuple):
    """What the kernel makes of characters.

    Attributes:
        bytes: uint8 [256]. ORDINARY, SEPARATOR, REFUSED, or LEADING a character of several bytes.
        unchanged: bool [0x110000]. Characters that the model's normaliser leaves alone, whatever stands beside them.
    """

    bytes: np.ndarray
    unchanged: np.ndarray


class Lattice(NamedTuple):
    """Room to segment one word in: for each place, the best way to it.

    Attributes:
        best: float64. Score of the best way.
        second: float64. Score of the second best last step.
        previous: int32. Where its last piece starts, -1 if there is no way.
        pieces: int32. That piece.
        path: int32. The pieces of the best segmentation, last first.
        ids: int32. The ids of the whole word.
    """

    best: np.ndarray
    second: np.ndarray
    previous: np.ndarray
    pieces: np.ndarray
    path: np.ndarray
    ids: np.ndarray


def fits(facts: ModelFacts) -> bool:
    """Whether the engine can stand in for a model; what is asked for is what the argument above needs."""
    kinds = {kind for _, _, kind in facts.pieces}
    usable = [(piece, score, kind) for piece, score, kind in facts.pieces if kind in (NORMAL, USER_DEFINED)]
    return (
        facts.model_type == UNIGRAM
        and not facts.whitespace_as_suffix
        and facts.dummy_prefix and facts.one_space and facts.escape_spaces
        and BYTE not in kinds
        and all(SPACE not in piece[1:] and "\0" not in piece and score <= 0 for piece, score, _ in usable)
        and any(piece == SPACE and kind == NORMAL for piece, _, kind in usable)
        and not any(piece.startswith(SPACE) for piece, _, kind in usable if kind == USER_DEFINED)
    )  # fmt: skip


def unigram_tables(facts: ModelFacts, unknown_id: int, rule: DigitCommaRule | None) -> UnigramTables:
    """Lay a model out for the kernel; it must be one that `fits`."""
    normal = [np.float32(score) for _, score, kind in facts.pieces if kind == NORMAL]
    best, worst = float(max(normal)), float(min(normal))
    # User-defined pieces score better than any way round them (unigram_model.cc).
    scores = np.array([s if kind == NORMAL else len(p.encode()) * best - 0.1 for p, s, kind in facts.pieces])
    rows = sorted((p.encode(), n) for n, (p, _, kind) in enumerate(facts.pieces) if kind in (NORMAL, USER_DEFINED))
    nodes = len({text[:length] for text, _ in rows for length in range(len(text) + 1)})
    trie = _build_trie(
        np.frombuffer(b"".join(text for text, _ in rows), dtype=np.uint8), np.cumsum([len(text) for text, _ in rows]),
        np.array([number for _, number in rows]), nodes,
    )  # fmt: skip
    space = trie[0]
    for byte in SPACE.encode():
        space = _child(trie, space, byte)
    if rule is None:
        size = len(facts.pieces)
        rule = DigitCommaRule(np.ones(size, np.int64), np.arange(size), np.arange(size, dtype=np.int32), np.zeros(0))
    ids = np.array([unknown_id, _piece(space), space], dtype=np.int64)
    scores[unknown_id] = worst - _UNKNOWN_PENALTY
    return UnigramTables(trie, scores, rule.counts, rule.starts, rule.ids, ids)


def empty_memo() -> WordMemo:
    """A table without words."""
    slots = 1 << _TABLE_BITS
    return WordMemo(np.zeros((slots, 4), np.uint64), np.zeros((slots, 8), np.int32))


def characters(normalizer_rules: Iterable[tuple[str, str]], blanks: bytes) -> Characters:
    """Sort out what the kernel takes.

    The normaliser replaces the longest of its keys that fits. So a character is left alone if it is no key itself and not
    the second or later character of one; then no key of several characters can fit, either.

    Args:
        normalizer_rules: What the model's normaliser replaces, and with what.
        blanks: The bytes that separate words.
    """
    unchanged = np.ones(0x110000, dtype=np.bool_)
    for key, value in normalizer_rules:
        if len(key) == 1:
            unchanged[ord(key)] &= key == value
        else:
            for character in key[1:]:
                unchanged[ord(character)] = False
    unchanged[[0, ord(" "), ord(SPACE)]] = False
    classes = np.full(256, LEADING, dtype=np.uint8)
    classes[:128] = np.where(unchanged[:128], ORDINARY, REFUSED)
    classes[list(blanks)] = SEPARATOR
    return Characters(classes, unchanged)


def encode_bytes(
    text: np.ndarray, starts: np.ndarray, known: Characters, tables: UnigramTables, memo: WordMemo
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Encode many texts. Needs no interpreter lock; a memo must not be used by two threads at once.

    Args:
        text: uint8. UTF-8 of N texts, end to end.
        starts: int64 [N+1]. Where each begins.
        known: The characters the kernel takes.
        tables: The model.
        memo: The table of words, which grows.

    Returns:
        ids int32 [T]; offsets int64 [N+1]; the texts left to SentencePiece, bool [N], which have no ids here.
    """
    size = _LONGEST_WORD + 2
    most = int(tables.rewrite_counts.max())
    best, second = np.zeros((2, size))
    previous, pieces, path = np.zeros((3, size), np.int32)
    lattice = Lattice(best, second, previous, pieces, path, np.zeros(size * most, np.int32))
    count = len(starts) - 1
    # A word of n bytes becomes at most n + 1 pieces, or as many times more ids as the digit-comma rule makes of two bytes.
    room = (len(text) + count) * max(1, most - 1) + size
    ids = np.empty(room, dtype=np.int32)
    offsets, refused = np.zeros(count + 1, dtype=np.int64), np.zeros(count, dtype=np.bool_)
    _encode_texts(text, starts, known, tables, memo, lattice, ids, offsets, refused)
    return ids[: offsets[-1]].copy(), offsets, refused


# --- compiled ---------------------------------------------------------------------------------------------------------

_compiled: Any = numba.njit(nogil=True, cache=True, error_model="numpy")


@_compiled
def _child(trie, node, byte):  # type: ignore[no-untyped-def]
    """The node after a byte, or 0. A node is the number that stands in the trie."""
    child = trie[(node >> 31) + byte]
    return child if child & 0x1FF == byte + 1 else 0


@_compiled
def _piece(node):  # type: ignore[no-untyped-def]
    """The piece that ends at a node, or -1."""
    return (node >> 9 & 0x3FFFFF) - 1


@_compiled
def _build_trie(text, ends, numbers, nodes):  # type: ignore[no-untyped-def]
    """Node by node in the order of their depth; a node stands for a run of the sorted pieces that begin alike."""
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
        base = _free_base(trie, taken, labels, count, max(1, free - labels[0]))
        taken[base] = True
        trie[places[node]] |= base << 31
        for number in range(count):
            places[made], firsts[made], lasts[made] = base + labels[number], begins[number], begins[number + 1]
            depths[made] = depth + 1
            trie[places[made]] = labels[number] + 1
            made += 1
        furthest = max(furthest, base)
    return trie[: furthest + 257].copy()


@_compiled
def _free_base(trie, taken, labels, count, base):  # type: ignore[no-untyped-def]
    """The first base from `base` on where all children find room."""
    while True:
        fits_here = not taken[base]
        for number in range(count):
            fits_here = fits_here and trie[base + labels[number]] == 0
        if fits_here:
            return base
        base += 1


@_compiled
def _segment(text, begin, end, tables, lattice):  # type: ignore[no-untyped-def]
    """Segment a space and the word after it. Place 0 is before the space, place i + 1 after i bytes of the word.

    Written out in one piece: with calls for a step in the trie and in the lattice a word took 2.5 times as long.

    Returns the number of ids, which are left in `lattice.ids`, the gap to the second best segmentation, and the score.
    """
    trie, scores = tables.trie, tables.scores
    best, second, previous, pieces = lattice.best, lattice.second, lattice.previous, lattice.pieces
    unknown, space, after_space = tables.ids[0], tables.ids[1], tables.ids[2]
    length = end - begin
    for place in range(length + 2):
        previous[place] = -1
    best[0] = previous[0] = previous[1] = 0
    best[1], second[1], pieces[1] = scores[space], -np.inf, space
    place = 0
    while place <= length:
        position = first = begin + max(place - 1, 0)
        node, width, covered = after_space, 1, True
        if place > 0:
            node, width, covered = trie[0], min(_width(text[position]), end - position), False
        here = best[place]
        while position < end:
            byte = np.int64(text[position])
            node = trie[(node >> 31) + byte]
            if node & 0x1FF != byte + 1:
                break
            position += 1
            piece = (node >> 9 & 0x3FFFFF) - 1
            if piece >= 0:
                there = position - begin + 1
                score = here + scores[piece]
                if previous[there] < 0:
                    best[there], second[there], previous[there], pieces[there] = score, -np.inf, place, piece
                elif score > best[there]:
                    best[there], second[there], previous[there], pieces[there] = score, best[there], place, piece
                elif score > second[there]:
                    second[there] = score
                covered = covered or position - first == width
        if not covered:
            there = place + width
            score = here + scores[unknown]
            if previous[there] < 0:
                best[there], second[there], previous[there], pieces[there] = score, -np.inf, place, unknown
            elif score > best[there]:
                best[there], second[there], previous[there], pieces[there] = score, best[there], place, unknown
            elif score > second[there]:
                second[there] = score
        place += width
    return _trace_back(length + 1, tables, lattice)


@_compiled
def _width(lead):  # type: ignore[no-untyped-def]
    """Bytes of the character that begins with this byte."""
    return 1 if lead < 0xC0 else 2 if lead < 0xE0 else 3 if lead < 0xF0 else 4


@_compiled
def _trace_back(last, tables, lattice):  # type: ignore[no-untyped-def]
    best, second, previous, pieces = lattice.best, lattice.second, lattice.previous, lattice.pieces
    path, ids = lattice.path, lattice.ids
    starts, counts, rewritten, unknown = tables.rewrite_starts, tables.rewrite_counts, tables.rewrite_ids, tables.ids[0]
    gap = np.inf
    count = 0
    place = last
    while place > 0:
        gap = min(gap, best[place] - second[place])
        path[count] = pieces[place]
        count += 1
        place = previous[place]
    at = 0
    after_unknown = False
    for number in range(count - 1, -1, -1):
        piece = path[number]
        if piece == unknown and after_unknown:  # SentencePiece makes one piece of neighbouring unknown characters
            continue
        after_unknown = piece == unknown
        for row in range(starts[piece], starts[piece] + counts[piece]):
            ids[at] = rewritten[row]
            at += 1
    return at, gap, best[last]


@_compiled
def _packed(text, begin, end):  # type: ignore[no-untyped-def]
    """Up to eight bytes as a number."""
    packed = np.uint64(0)
    for position in range(begin, end):
        packed |= np.uint64(text[position]) << np.uint64(8 * (position - begin))
    return packed


@_compiled
def _key(text, begin, end):  # type: ignore[no-untyped-def]
    """A word of up to 24 bytes as three numbers; zeros for longer ones, which have no slot."""
    if end - begin > _KEY_BYTES:
        return np.uint64(0), np.uint64(0), np.uint64(0)
    if end - begin <= 8:
        return _packed(text, begin, end), np.uint64(0), np.uint64(0)
    return (
        _packed(text, begin, begin + 8),
        _packed(text, begin + 8, min(end, begin + 16)),
        _packed(text, begin + 16, end),
    )


@_compiled
def _slot(keys, key):  # type: ignore[no-untyped-def]
    """The slot of a word and True, or the one to put it into and False."""
    mixed = key[0] * np.uint64(0x9E3779B97F4A7C15)
    mixed ^= key[1] * np.uint64(0xC2B2AE3D27D4EB4F) ^ key[2] * np.uint64(0x165667B19E3779F9)
    mixed = (mixed ^ (mixed >> np.uint64(29))) * np.uint64(0xBF58476D1CE4E5B9)
    first = np.int64(mixed >> np.uint64(64 - _TABLE_BITS)) & ~(_WAYS - 1)
    for slot in range(first, first + _WAYS):
        if keys[slot, 0] == key[0] and keys[slot, 1] == key[1] and keys[slot, 2] == key[2]:
            return slot, key[0] != 0
        if keys[slot, 0] == 0:
            return slot, False
    return first + np.int64(mixed & np.uint64(_WAYS - 1)), False


@_compiled
def _learn(text, begin, end, tables, memo, lattice):  # type: ignore[no-untyped-def]
    """Segment a word and remember it if it is short. Its ids are left in `lattice.ids`."""
    found, gap, score = _segment(text, begin, end, tables, lattice)
    key = _key(text, begin, end)
    if key[0] != 0 and found <= _MOST_IDS:
        slot, _ = _slot(memo.keys, key)
        memo.keys[slot, 0], memo.keys[slot, 1], memo.keys[slot, 2] = key
        memo.values[slot, 0] = found
        memo.values[slot, 1] = np.int32(min(gap, 1000.0) / _GAP_UNIT)
        memo.values[slot, 2] = np.int32(-score / _SCORE_UNIT) + 1
        memo.values[slot, 3 : 3 + found] = lattice.ids[:found]
    return found, gap, score


@_compiled
def _word_end(text, position, end, classes, unchanged):  # type: ignore[no-untyped-def]
    """Where the word at `position` ends; -1 if it holds a character that is refused."""
    while position < end:
        byte = np.int64(text[position])
        kind = classes[byte]
        if kind == ORDINARY:
            position += 1
        elif kind == LEADING:
            width = _width(byte)
            code = byte & (0xFF >> (width + 1))
            for place in range(position + 1, position + width):
                code = code << 6 | (text[place] & 0x3F)
            if not unchanged[code]:
                return -1
            position += width
        else:
            return position if kind == SEPARATOR else -1
    return position


@_compiled
def _encode_text(text, begin, end, known, tables, memo, lattice, ids, at):  # type: ignore[no-untyped-def]
    """Write the ids of a text from `at` on. Returns where they end; -1 if the text is SentencePiece's."""
    classes, unchanged, keys, values = known.bytes, known.unchanged, memo.keys, memo.values
    magnitude = 1.0  # of the sum of scores so far, a little more
    position = begin
    while position < end:
        if classes[text[position]] == SEPARATOR:
            position += 1
            continue
        last = _word_end(text, position, end, classes, unchanged)
        if last < 0 or last - position > _LONGEST_WORD:
            return -1
        narrow = (last - position + 2) * 2.0**-22
        slot, seen = _slot(keys, _key(text, position, last))
        if seen:
            magnitude += values[slot, 2] * _SCORE_UNIT
            if values[slot, 1] * _GAP_UNIT <= narrow * magnitude:
                return -1
            for number in range(values[slot, 0]):
                ids[at + number] = values[slot, 3 + number]
            at += values[slot, 0]
        else:
            found, gap, score = _learn(text, position, last, tables, memo, lattice)
            magnitude -= score
            if gap <= narrow * magnitude:
                return -1
            for number in range(found):
                ids[at + number] = lattice.ids[number]
            at += found
        position = last
    return at


@_compiled
def _encode_texts(text, starts, known, tables, memo, lattice, ids, offsets, refused):  # type: ignore[no-untyped-def]
    at = 0
    for number in range(len(refused)):
        after = _encode_text(text, starts[number], starts[number + 1], known, tables, memo, lattice, ids, at)
        refused[number] = after < 0
        if after >= 0:
            at = after
        offsets[number + 1] = at
