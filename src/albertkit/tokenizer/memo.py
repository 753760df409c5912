"""A word-by-word engine for SentencePiece unigram models: the same ids, without walking the lattice of words seen before.

No piece of such a model crosses a space, so a text is segmented word by word. A compiled kernel cuts the bytes of many texts
into words, looks each up in a table, and segments unseen ones itself (Viterbi, as `Model::EncodeOptimized` in unigram_model.cc).

Exactness. SentencePiece adds scores in single precision along the whole text, so where two segmentations of a word score
nearly the same, rounding decides, and it depends on what came before. The kernel adds in double precision and keeps with each
word the gap to its second best segmentation. A path of k pieces whose partial sums stay below M in magnitude is off by at most
k·M·2⁻²⁴; rounded addition is monotone, so SentencePiece takes a path whose rounded score is largest; so the best
segmentation wins surely if its gap exceeds 2·k·M·2⁻²⁴. Here k is bounded by the bytes of the word + 2 and the bound is doubled.
A text with a word below the bound, or with anything else the kernel leaves alone, is handed to SentencePiece as a whole.
"""

from typing import Any, NamedTuple

import numba
import numpy as np

from albertkit.tokenizer.digit_comma import SPACE, DigitCommaRule
from albertkit.tokenizer.sentencepiece_model import BYTE, NORMAL, UNIGRAM, USER_DEFINED, ModelFacts

_UNKNOWN_PENALTY = 10.0  # kUnkPenalty in unigram_model.cc
_LONGEST_WORD = 1024  # bytes; longer ones go to SentencePiece
_KEY_BYTES = 24  # longest word that is remembered
_MOST_IDS = 5  # most ids of a word that is remembered
_TABLE_BITS = 18  # 262,144 slots of 64 bytes: 16 MiB a thread. Emptied when half full
_GAP_UNIT = 2.0**-20  # gaps and scores are kept as whole numbers, rounded to the safe side
_SCORE_UNIT = 2.0**-6

ORDINARY, SEPARATOR, REFUSED, MAYBE_SPACE = range(4)  # what a byte is to the kernel


class UnigramTables(NamedTuple):
    """A unigram model as flat arrays.

    Attributes:
        trie: int64 [nodes]. The pieces byte by byte, children of a node side by side in the order of their bytes. 64 bits
            hold a node: its byte (8), number of children (9), piece + 1 (22), first child (24). For 30,000 pieces it is
            0.7 MB and stays in the second cache; a hash table of edges does not: 1.4 against 2.1 µs a word.
        first_bytes: int64 [2, 256]. The children of the root and of the node after a space, by their bytes, or -1.
        scores: float64 [V].
        rewrite_counts: int64 [V]. The digit-comma rule; see `DigitCommaRule`.
        rewrite_starts: int64 [V].
        rewrite_ids: int32.
        ids: int64 [2]. Unknown piece, the piece of a space alone.
        unknown_score: float64 [1].
    """

    trie: np.ndarray
    first_bytes: np.ndarray
    scores: np.ndarray
    rewrite_counts: np.ndarray
    rewrite_starts: np.ndarray
    rewrite_ids: np.ndarray
    ids: np.ndarray
    unknown_score: np.ndarray


class WordMemo(NamedTuple):
    """The table of words of one thread.

    Attributes:
        keys: uint64 [slots, 4]. Bytes of a word, zeros after it; the fourth column fills the cache line.
        values: int32 [slots, 8]. Number of ids, gap, score, the ids.
        used: int64 [1]. Slots taken.
    """

    keys: np.ndarray
    values: np.ndarray
    used: np.ndarray


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
    trie = np.zeros(len({text[:length] for text, _ in rows for length in range(len(text) + 1)}), dtype=np.int64)
    _build_trie(
        np.frombuffer(b"".join(text for text, _ in rows), dtype=np.uint8), np.cumsum([len(text) for text, _ in rows]),
        np.array([number for _, number in rows]), trie,
    )  # fmt: skip
    space = trie[0]
    for byte in SPACE.encode():
        space = _child(trie, space, byte)
    first_bytes = np.array([[_child(trie, node, byte) for byte in range(256)] for node in (trie[0], space)])
    if rule is None:
        size = len(facts.pieces)
        rule = DigitCommaRule(np.ones(size, np.int64), np.arange(size), np.arange(size, dtype=np.int32), np.zeros(0))
    ids = np.array([unknown_id, _piece(space)], dtype=np.int64)
    unknown_score = np.array([worst - _UNKNOWN_PENALTY])
    return UnigramTables(trie, first_bytes, scores, rule.counts, rule.starts, rule.ids, ids, unknown_score)


def empty_memo() -> WordMemo:
    """A table without words."""
    slots = 1 << _TABLE_BITS
    return WordMemo(np.zeros((slots, 4), np.uint64), np.zeros((slots, 8), np.int32), np.zeros(1, np.int64))


def byte_classes(blanks: bytes) -> np.ndarray:
    """What each byte is in plain ASCII text (row 0) and in normalised text (row 1), uint8 [2, 256].

    Args:
        blanks: The bytes that separate words in plain text.
    """
    classes = np.full((2, 256), ORDINARY, dtype=np.uint8)
    classes[0, :32] = classes[0, 127:] = REFUSED  # control characters: SentencePiece's normaliser knows what they become
    classes[0, list(blanks)] = SEPARATOR
    classes[1, 0] = classes[1, 32] = REFUSED
    classes[1, SPACE.encode()[0]] = MAYBE_SPACE
    return classes


def encode_bytes(
    text: np.ndarray, starts: np.ndarray, plain: np.ndarray, classes: np.ndarray, tables: UnigramTables, memo: WordMemo
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Encode many texts. Needs no interpreter lock; a memo must not be used by two threads at once.

    Args:
        text: uint8. UTF-8 of N texts, end to end.
        starts: int64 [N+1]. Where each begins.
        plain: bool [N]. Plain ASCII, spaces as they are; otherwise normalised by SentencePiece, spaces written U+2581.
        classes: What each byte is, uint8 [2, 256].
        tables: The model.
        memo: The table of words, which grows.

    Returns:
        ids int32 [T]; offsets int64 [N+1]; the texts left to SentencePiece, bool [N], which have no ids here.
    """
    size = _LONGEST_WORD + 2
    lattice = Lattice(
        np.zeros(size), np.zeros(size), *(np.zeros(size, np.int32) for _ in range(3)),
        # every piece of a word could become several ids
        np.zeros(size * int(tables.rewrite_counts.max()), np.int32),
    )  # fmt: skip
    count = len(starts) - 1
    # A word of n bytes becomes at most n + 1 pieces, or as many times more ids as the digit-comma rule makes of two bytes.
    room = (len(text) + count) * max(1, int(tables.rewrite_counts.max()) - 1) + size
    ids = np.empty(room, dtype=np.int32)
    offsets, refused = np.zeros(count + 1, dtype=np.int64), np.zeros(count, dtype=np.bool_)
    _encode_texts(text, starts, plain, classes, tables, memo, lattice, ids, offsets, refused)
    return ids[: offsets[-1]].copy(), offsets, refused


# --- compiled ---------------------------------------------------------------------------------------------------------

_compiled: Any = numba.njit(nogil=True, cache=True)


@_compiled
def _child(trie, node, byte):  # type: ignore[no-untyped-def]
    """The node after a byte, or -1. A node is the number that stands in the trie."""
    low = node >> 39
    high = low + (node >> 8 & 0x1FF)
    while low < high:
        middle = (low + high) >> 1
        label = trie[middle] & 0xFF
        if label == byte:
            return trie[middle]
        if label < byte:
            low = middle + 1
        else:
            high = middle
    return -1


@_compiled
def _piece(node):  # type: ignore[no-untyped-def]
    """The piece that ends at a node, or -1."""
    return (node >> 17 & 0x3FFFFF) - 1


@_compiled
def _build_trie(text, ends, numbers, trie):  # type: ignore[no-untyped-def]
    """Node by node in the order of their depth; a node stands for a run of the sorted pieces that begin alike."""
    firsts, lasts, depths = np.zeros_like(trie), np.zeros_like(trie), np.zeros_like(trie)
    lasts[0] = len(ends)
    made = 1
    for node in range(len(trie)):
        row, depth = firsts[node], depths[node]
        starts = ends[row - 1] if row > 0 else 0
        if ends[row] - starts == depth:
            trie[node] |= (numbers[row] + 1) << 17
            row += 1
        trie[node] |= made << 39
        while row < lasts[node]:
            byte = text[ends[row - 1] + depth if row > 0 else depth]
            firsts[made], depths[made], trie[made] = row, depth + 1, byte
            while row < lasts[node] and text[ends[row - 1] + depth if row > 0 else depth] == byte:
                row += 1
            lasts[made] = row
            trie[node] += 1 << 8
            made += 1


@_compiled
def _step(best, second, previous, pieces, start, end, piece, score):  # type: ignore[no-untyped-def]
    """One more way to a place."""
    total = best[start] + score
    if previous[end] < 0 or total > best[end]:
        second[end] = best[end] if previous[end] >= 0 else -np.inf
        best[end] = total
        previous[end] = start
        pieces[end] = piece
    elif total > second[end]:
        second[end] = total


@_compiled
def _segment(text, begin, end, tables, lattice):  # type: ignore[no-untyped-def]
    """Segment a space and the word after it. Place 0 is before the space, place i + 1 after i bytes of the word.

    Returns the number of ids, which are left in `lattice.ids`, the gap to the second best segmentation, and the score.
    """
    trie, first_bytes, scores = tables.trie, tables.first_bytes, tables.scores
    best, second, previous, pieces = lattice.best, lattice.second, lattice.previous, lattice.pieces
    unknown, space = tables.ids
    length = end - begin
    for place in range(length + 2):
        previous[place] = -1
    best[0], previous[0] = 0.0, 0
    _step(best, second, previous, pieces, 0, 1, space, scores[space])
    place = 0
    while place <= length:
        position = first = begin + max(place - 1, 0)
        row, width, covered = 1, 1, True
        if place > 0:
            row, width, covered = 0, min(_width(text[position]), end - position), False
        node = first_bytes[row, text[position]] if position < end else -1
        while node >= 0:
            position += 1
            piece = _piece(node)
            if piece >= 0:
                _step(best, second, previous, pieces, place, position - begin + 1, piece, scores[piece])
                covered = covered or position - first == width
            node = _child(trie, node, text[position]) if position < end else -1
        if not covered:
            _step(best, second, previous, pieces, place, place + width, unknown, tables.unknown_score[0])
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
    """A word of up to 24 bytes as three numbers; zeros for the empty word and for longer ones, which have no slot."""
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
    """The slot of a word, or the free one where it would go."""
    mixed = key[0] * np.uint64(0x9E3779B97F4A7C15)
    mixed ^= key[1] * np.uint64(0xC2B2AE3D27D4EB4F) ^ key[2] * np.uint64(0x165667B19E3779F9)
    mixed = (mixed ^ (mixed >> np.uint64(29))) * np.uint64(0xBF58476D1CE4E5B9)
    slot = np.int64(mixed >> np.uint64(64 - _TABLE_BITS))
    while keys[slot, 0] != 0 and (keys[slot, 0] != key[0] or keys[slot, 1] != key[1] or keys[slot, 2] != key[2]):
        slot = (slot + 1) & (len(keys) - 1)
    return slot


@_compiled
def _learn(text, begin, end, tables, memo, lattice):  # type: ignore[no-untyped-def]
    """Segment a word and remember it if it is short. Its ids are left in `lattice.ids`."""
    found, gap, score = _segment(text, begin, end, tables, lattice)
    key = _key(text, begin, end)
    if key[0] != 0 and found <= _MOST_IDS:
        if memo.used[0] * 2 >= len(memo.keys):
            memo.keys[:] = 0
            memo.used[0] = 0
        memo.used[0] += 1
        slot = _slot(memo.keys, key)
        memo.keys[slot, 0], memo.keys[slot, 1], memo.keys[slot, 2] = key
        memo.values[slot, 0] = found
        memo.values[slot, 1] = np.int32(min(gap, 1000.0) / _GAP_UNIT)
        memo.values[slot, 2] = np.int32(-score / _SCORE_UNIT) + 1
        memo.values[slot, 3 : 3 + found] = lattice.ids[:found]
    return found, gap, score


@_compiled
def _word_end(text, position, end, classes, row):  # type: ignore[no-untyped-def]
    """Where the word at `position` ends; -1 if it holds a byte that is refused."""
    while position < end:
        kind = classes[row, text[position]]
        if kind != ORDINARY:
            if kind == SEPARATOR:
                return position
            if kind == REFUSED:
                return -1
            if position + 2 < end and text[position + 1] == 0x96 and text[position + 2] == 0x81:
                return position
        position += 1
    return position


@_compiled
def _encode_text(text, begin, end, row, classes, tables, memo, lattice, ids, at):  # type: ignore[no-untyped-def]
    """Write the ids of a text from `at` on. Returns where they end; -1 if the text is SentencePiece's."""
    keys, values = memo.keys, memo.values
    magnitude = 1.0  # of the sum of scores so far, a little more
    position = begin
    while position < end:
        if row == 0 and classes[0, text[position]] == SEPARATOR:
            position += 1
            continue
        if row == 1:  # at a U+2581; two of them in a row have an empty word between them
            if _word_end(text, position, end, classes, 1) != position:
                return -1
            position += 3
        last = _word_end(text, position, end, classes, row)
        if last < 0 or last - position > _LONGEST_WORD:
            return -1
        narrow = (last - position + 2) * 2.0**-22
        key = _key(text, position, last)
        slot = _slot(keys, key)
        if key[0] != 0 and keys[slot, 0] != 0:
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
            ids[at : at + found] = lattice.ids[:found]
            at += found
        position = last
    return at


@_compiled
def _encode_texts(text, starts, plain, classes, tables, memo, lattice, ids, offsets, refused):  # type: ignore[no-untyped-def]
    at = 0
    for number in range(len(plain)):
        row = 0 if plain[number] else 1
        after = _encode_text(text, starts[number], starts[number + 1], row, classes, tables, memo, lattice, ids, at)
        refused[number] = after < 0
        if after >= 0:
            at = after
        offsets[number + 1] = at
