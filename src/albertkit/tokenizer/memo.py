"""A word-by-word engine for SentencePiece unigram models: the same ids, without walking the lattice of words seen before.

No piece of such a model crosses a space, so a text is segmented word by word. A compiled kernel cuts the bytes of many
texts into words, looks each up in a table, and segments unseen ones itself (Viterbi, as `EncodeOptimized` in
SentencePiece's unigram_model.cc).

Exactness. SentencePiece adds scores in single precision along the whole text, so where two segmentations of a word score
nearly the same, rounding decides, and it depends on what came before. The kernel adds in double precision and keeps with
each word the gap to its second best segmentation. A path of k pieces whose partial sums stay below M in magnitude is off
by at most k·M·2⁻²⁴; rounded addition is monotone, so SentencePiece takes a path whose rounded score is largest; so the
best segmentation wins surely if its gap exceeds 2·k·M·2⁻²⁴. Here k is bounded by the bytes of the word + 2 and the bound
is doubled. The kernel takes only characters that the model's normaliser leaves alone whatever their neighbours. A text
with any other, or with a word below the bound, is handed to SentencePiece as a whole.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from albertkit.jit import compiled
from albertkit.tokenizer.characters import LEADING, ORDINARY, SEPARATOR, character_bytes, characters
from albertkit.tokenizer.ragged import RaggedIds
from albertkit.tokenizer.unigram_tables import UnigramTables

END = "\0"  # between texts
_LONGEST_WORD = 1024  # bytes; longer ones go to SentencePiece
_KEY_BYTES = 24  # longest word that is remembered
_MOST_IDS = 5  # most ids of a word that is remembered
_TABLE_BITS = 18  # 262,144 slots of 64 bytes: 16 MiB a thread
_WAYS = 4  # slots a word may go to; when all are taken, it replaces one
_GAP_UNIT = 2.0**-20  # gaps and scores are kept as whole numbers, rounded to the safe side
_SCORE_UNIT = 2.0**-6


class WordMemo(NamedTuple):
    """The table of words of one thread.

    Attributes:
        keys: uint64 [slots, 4]. Bytes of a word, zeros after it; the fourth column fills half a cache line.
        values: int32 [slots, 8]. Number of ids, gap, score, the ids.
    """

    keys: np.ndarray
    values: np.ndarray


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


class WordEngine:
    """Encodes with one model, its normaliser's rules and the bytes that separate words. May be used by several threads."""

    def __init__(self, tables: UnigramTables, charsmap: bytes, blanks: bytes) -> None:
        self._tables = tables
        self._known = characters(charsmap, blanks)
        self._most = int(tables.rewrite_counts.max())
        self._memos: list[WordMemo] = []  # those not in use; list.pop and list.append are atomic

    def encode(self, texts: Sequence[str], lower: bool) -> tuple[RaggedIds, np.ndarray]:
        """Encode N texts, with the letters of ASCII lower-cased if wanted, most of the time without the interpreter's lock.

        Returns the ids, and the texts left to SentencePiece, bool [N], which have no ids here.
        """
        # One join for all texts: a call for each of them takes a third of the time of encoding, and keeps other threads out.
        text, ends = _joined(texts, lower)
        strange = len(ends) != len(texts)
        if strange:
            text, ends = _joined(["" if END in text else text for text in texts], lower)
        # A word of n bytes becomes at most n + 1 pieces, or as many times more ids as the digit-comma rule makes of two
        # bytes.
        size = _LONGEST_WORD + 2
        ids = np.empty((len(text) + len(texts)) * max(1, self._most - 1) + size, dtype=np.int32)
        offsets, refused = np.zeros(len(texts) + 1, dtype=np.int64), np.zeros(len(texts), dtype=np.bool_)
        best, second = np.zeros((2, size))
        previous, pieces, path = np.zeros((3, size), np.int32)
        lattice = Lattice(best, second, previous, pieces, path, np.zeros(size * self._most, np.int32))
        try:
            memo = self._memos.pop()
        except IndexError:
            memo = WordMemo(np.zeros((1 << _TABLE_BITS, 4), np.uint64), np.zeros((1 << _TABLE_BITS, 8), np.int32))
        _encode_texts(text, ends, self._known, self._tables, memo, lattice, ids, offsets, refused)
        self._memos.append(memo)
        if strange:
            refused |= [END in text for text in texts]
        return RaggedIds(ids[: offsets[-1]].copy(), offsets), refused


def _joined(texts: Sequence[str], lower: bool) -> tuple[np.ndarray, np.ndarray]:
    """Return the bytes of texts, END after each but the last, and where they end; more ends than texts if one has an END."""
    data = END.join(texts).encode()
    text = np.frombuffer(data.lower() if lower else data, np.uint8)
    return text, np.append(np.flatnonzero(text == ord(END)), len(text))


# --- compiled ---------------------------------------------------------------------------------------------------------


@compiled
def _segment(text, begin, end, tables, lattice):
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
            node, width, covered = trie[0], min(character_bytes(text[position]), end - position), False
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


@compiled
def _trace_back(last, tables, lattice):
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


@compiled
def _packed(text, begin, end):
    """Return up to eight bytes as a number."""
    packed = np.uint64(0)
    for position in range(begin, end):
        packed |= np.uint64(text[position]) << np.uint64(8 * (position - begin))
    return packed


@compiled
def _key(text, begin, end):
    """Return a word of up to 24 bytes as three numbers; zeros for longer ones, which have no slot."""
    if end - begin > _KEY_BYTES:
        return np.uint64(0), np.uint64(0), np.uint64(0)
    if end - begin <= 8:
        return _packed(text, begin, end), np.uint64(0), np.uint64(0)
    return (
        _packed(text, begin, begin + 8),
        _packed(text, begin + 8, min(end, begin + 16)),
        _packed(text, begin + 16, end),
    )


@compiled
def _slot(keys, key):
    """Return the slot of a word and True, or the one to put it into and False."""
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


@compiled
def _learn(text, begin, end, tables, memo, lattice):
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


@compiled
def _word_end(text, position, end, classes, unchanged):
    """Return where the word at `position` ends; -1 if it holds a character that is refused."""
    while position < end:
        byte = np.int64(text[position])
        kind = classes[byte]
        if kind == ORDINARY:
            position += 1
        elif kind == LEADING:
            width = character_bytes(byte)
            code = byte & (0xFF >> (width + 1))
            for place in range(position + 1, position + width):
                code = code << 6 | (text[place] & 0x3F)
            if not unchanged[code]:
                return -1
            position += width
        else:
            return position if kind == SEPARATOR else -1
    return position


@compiled
def _encode_text(text, begin, end, known, tables, memo, lattice, ids, at):
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


@compiled
def _encode_texts(text, ends, known, tables, memo, lattice, ids, offsets, refused):
    at = begin = 0
    for number in range(len(refused)):
        after = _encode_text(text, begin, ends[number], known, tables, memo, lattice, ids, at)
        begin = ends[number] + 1
        refused[number] = after < 0
        if after >= 0:
            at = after
        offsets[number + 1] = at
