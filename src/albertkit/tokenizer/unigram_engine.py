"""A word-by-word engine for SentencePiece unigram models: the same ids, without walking the lattice of words seen before.

No piece of such a model crosses a space, so a text is segmented word by word. A compiled kernel
cuts the bytes of many texts into words, looks each up in a table, and segments unseen ones itself
(Viterbi, as `EncodeOptimized` in SentencePiece's unigram_model.cc).

The kernel takes only characters that the model's normaliser leaves alone whatever their neighbours.
A text with any other, or with a word whose best two segmentations score nearly the same, is handed
to SentencePiece as a whole.
"""

import sys
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from llvmlite import ir
from numba.core import types
from numba.extending import intrinsic

from albertkit.jit import compiled, inlined, prefetch
from albertkit.tokenizer.ragged import RaggedIds
from albertkit.tokenizer.rules import END
from albertkit.tokenizer.sentencepiece_model import (
    BYTE,
    NORMAL,
    SPACE,
    UNIGRAM,
    USER_DEFINED,
    DigitCommaRule,
    ModelFacts,
    user_symbol_score,
)

ORDINARY, SEPARATOR, REFUSED, LEADING = range(4)  # what a byte is to the kernel


class CharacterTables(NamedTuple):
    """Tables of characters for the kernel.

    Attributes:
        bytes: uint8 [256]. ORDINARY, SEPARATOR, REFUSED, or LEADING a character of several bytes.
        unchanged: bool [0x110000]. Characters that the model's normaliser leaves alone, whatever
            their neighbours.
    """

    # The table of unchanged ones saves 19 ns a byte of lines beyond ASCII.
    bytes: np.ndarray
    unchanged: np.ndarray


def read_character_tables(charsmap: bytes, blanks: bytes) -> CharacterTables:
    """Return the characters that the kernel accepts, by the model's `precompiled_charsmap` (may be empty) and the separators."""
    # The normaliser replaces the longest of its keys that fits. So a character is left alone if it
    # is no key itself and not the second or later character of one; then no key of several
    # characters can fit, either.
    unchanged = np.ones(0x110000, dtype=np.bool_)
    if charsmap:
        size = int.from_bytes(charsmap[:4], "little")
        units = np.frombuffer(charsmap, "<u4", size // 4, 4).astype(np.int64)
        _mark_changed_characters(
            units, np.frombuffer(charsmap, np.uint8, offset=4 + size), unchanged
        )
    unchanged[[0, ord(" "), ord(SPACE)]] = False
    classes = np.full(256, LEADING, dtype=np.uint8)
    classes[:128] = np.where(unchanged[:128], ORDINARY, REFUSED)
    classes[list(blanks)] = SEPARATOR
    return CharacterTables(classes, unchanged)


@compiled
def _mark_changed_characters(units, replacements, unchanged):
    """Mark the characters that some rule touches: a walk through all keys, depth first."""
    # A unit of darts-clone: bits 0-7 the byte that leads to it, bit 31 set where it holds a value
    # instead, bit 8 whether a key ends there, bits 10-30 the offset of its children, by which 8
    # bits to the left if bit 9 is set. The children of an offset as a list: asking for each of 255
    # bytes takes ten times as long for the rules of nmt_nfkc.
    no_unit = len(units)
    first, following = np.full((2, no_unit + 256), no_unit, np.int32)
    for unit in range(no_unit - 1, -1, -1):
        byte = units[unit] & 0x800000FF
        if 0 < byte < 256:
            following[unit] = first[unit ^ byte]
            first[unit ^ byte] = unit
    # At each depth: the byte, and the child to try next.
    key = np.zeros(no_unit, np.uint8)
    nodes = np.zeros(no_unit + 1, np.int32)
    nodes[0] = first[min(_offset_of_children(units[0]), no_unit)]
    depth = 0
    while depth >= 0:
        unit = nodes[depth]
        if unit == no_unit:
            depth -= 1
            continue
        nodes[depth] = following[unit]
        children = unit ^ _offset_of_children(units[unit])
        if children >= no_unit or depth == no_unit:  # of a damaged file
            continue
        key[depth] = units[unit] & 0xFF
        depth += 1
        nodes[depth] = first[children]
        if not units[unit] & 0x100:
            continue
        position = bytes_of_character(key[0])
        if position == depth:  # a key of one character, which may replace itself
            replacement = replacements[units[children] & 0x7FFFFFFF :]
            is_unchanged = replacement[depth] == 0
            for index in range(depth):
                is_unchanged = is_unchanged and replacement[index] == key[index]
            if not is_unchanged:
                unchanged[character_code(key, 0)] = False
        while position < depth:
            unchanged[character_code(key, position)] = False
            position += bytes_of_character(key[position])


@compiled
def _offset_of_children(unit):
    return (unit >> 10) << ((unit & 0x200) >> 6)


@compiled
def bytes_of_character(lead):
    """Return the number of bytes of the character that begins with this byte."""
    if lead < 0xC0:
        return 1
    if lead < 0xE0:
        return 2
    return 3 if lead < 0xF0 else 4


@compiled
def character_code(text, position):
    """Return the code of the character at this position."""
    lead = np.int64(text[position])
    width = bytes_of_character(lead)
    code = lead if width == 1 else lead & (0xFF >> (width + 1))
    for following in range(position + 1, position + width):
        code = code << 6 | (text[following] & 0x3F)
    return code


_UNKNOWN_PENALTY = 10.0  # kUnkPenalty in unigram_model.cc
# How far behind the last base a free place is still looked for. Without a limit, filling the last
# gaps of the trie of 30,000 pieces takes 3.7 s; with this one 0.01, for 4 % more memory.
_WINDOW = 64


class UnigramTables(NamedTuple):
    """A unigram model as flat arrays.

    Attributes:
        trie: int64. A double array: the child of a node after byte b stands at the node's base + b,
            if it is one. 64 bits hold a node: its byte + 1 (9, zero where there is none), piece + 1
            (22), base (32). Steps cost one look-up; with a hash table of edges a word took 2.1 µs,
            with sorted children 1.4.
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


def is_supported_by_engine(facts: ModelFacts) -> bool:
    """Return True if the engine gives the ids of a model."""
    usable = [
        (piece, score, kind)
        for piece, score, kind in facts.pieces
        if kind in (NORMAL, USER_DEFINED)
    ]
    return (
        facts.model_type == UNIGRAM
        and not facts.whitespace_as_suffix
        and facts.dummy_prefix
        and facts.one_space
        and facts.escape_spaces
        and not facts.pieces_of_type(BYTE)
        and all(
            SPACE not in piece[1:] and "\0" not in piece and score <= 0
            for piece, score, _ in usable
        )
        and SPACE in facts.pieces_of_type(NORMAL)
        and not any(piece.startswith(SPACE) for piece in facts.pieces_of_type(USER_DEFINED))
    )


def unigram_tables(
    facts: ModelFacts,
    unknown_id: int,
    rule: DigitCommaRule | None,
) -> UnigramTables:
    """Return a model's tables for the kernel; the model must be one that `is_supported_by_engine`."""
    normal = [np.float32(score) for _, score, kind in facts.pieces if kind == NORMAL]
    best = float(max(normal))
    worst = float(min(normal))
    scores = np.zeros(len(facts.pieces))
    rows = []
    for number, (piece, score, kind) in enumerate(facts.pieces):
        scores[number] = score if kind == NORMAL else user_symbol_score(piece, best)
        if kind in (NORMAL, USER_DEFINED):
            rows.append((piece.encode(), number))
    rows.sort()
    text = np.frombuffer(b"".join(text for text, _ in rows), dtype=np.uint8)
    ends = np.cumsum([len(text) for text, _ in rows])
    piece_ids = np.array([piece_id for _, piece_id in rows])
    trie = _build_trie(text, ends, piece_ids)
    space = trie[0]
    for byte in SPACE.encode():  # it is a piece, so its bytes lead somewhere
        space = trie[(space >> 31) + byte]
    if rule is None:  # every piece becomes itself
        size = len(facts.pieces)
        unit_counts = np.ones(size, np.int64)
        rule = DigitCommaRule(
            unit_counts, np.arange(size), np.arange(size, dtype=np.int32), np.zeros(0)
        )
    ids = np.array([unknown_id, (space >> 9 & 0x3FFFFF) - 1, space], dtype=np.int64)
    scores[unknown_id] = worst - _UNKNOWN_PENALTY
    return UnigramTables(trie, scores, rule.counts, rule.starts, rule.ids, ids)


@compiled
def _count_nodes(sorted_text, ends):
    """Return the number of different beginnings of the sorted pieces, the empty one among them."""
    nodes = 1
    first = last = 0  # where the piece before begins and ends
    for end in ends:
        num_common = 0
        while (
            first + num_common < last
            and last + num_common < end
            and sorted_text[first + num_common] == sorted_text[last + num_common]
        ):
            num_common += 1
        nodes += end - last - num_common
        first, last = last, end
    return nodes


@compiled
def _build_trie(sorted_text, ends, piece_ids):
    """Build the trie node by node in the order of their depth; a node stands for a run of the sorted pieces that begin alike."""
    nodes = _count_nodes(sorted_text, ends)
    trie = np.zeros(8 * nodes + 4096, dtype=np.int64)
    # Bases; one base a node makes the byte proof enough of a child
    used_bases = np.zeros(len(trie), dtype=np.bool_)
    slots, firsts, lasts, depths = np.zeros((4, nodes), dtype=np.int64)
    labels = np.zeros(256, dtype=np.int64)
    begins = np.zeros(257, dtype=np.int64)
    lasts[0] = len(ends)
    num_created = 1
    free = 1
    furthest = 0
    for node in range(nodes):
        row = firsts[node]
        depth = depths[node]
        count = 0
        if ends[row] - (ends[row - 1] if row > 0 else 0) == depth:
            trie[slots[node]] |= (piece_ids[row] + 1) << 9
            row += 1
        while row < lasts[node]:
            label = np.int64(sorted_text[(ends[row - 1] if row > 0 else 0) + depth])
            if count == 0 or labels[count - 1] != label:
                labels[count] = label
                begins[count] = row
                count += 1
            row += 1
        begins[count] = row
        if count == 0:  # a leaf: base 0 is the root's own, where no child is by another's byte
            continue
        while trie[free] != 0:
            free += 1
        base = _free_base(
            trie,
            used_bases,
            labels,
            count,
            max(1, free - labels[0], furthest - _WINDOW),
        )
        used_bases[base] = True
        trie[slots[node]] |= base << 31
        for number in range(count):
            slots[num_created] = base + labels[number]
            firsts[num_created] = begins[number]
            lasts[num_created] = begins[number + 1]
            depths[num_created] = depth + 1
            trie[slots[num_created]] = labels[number] + 1
            num_created += 1
        furthest = max(furthest, base)
    return trie[: furthest + 257].copy()


@compiled
def _free_base(
    trie,
    used_bases,
    labels,
    count,
    base,
):
    """Return the first base from `base` on where all children find room."""
    while True:
        fits_here = not used_bases[base]
        for number in range(count):
            fits_here = fits_here and trie[base + labels[number]] == 0
        if fits_here:
            return base
        base += 1


_MAX_WORD_BYTES = 1024  # bytes; longer ones go to SentencePiece
_MAX_KEY_BYTES = 24  # of a word in the table
_MAX_IDS = 5  # of a word in the table
_TABLE_BITS = 18  # 262,144 slots of 64 bytes: 16 MiB a thread
_BLOCK = 16  # words: 16 ns each to cut, 100 for a line to come from memory
_PADDING = 8 * 3  # bytes after the last text that a key may be read from
_WAYS = 4  # slots a word may go to; when all are taken, it replaces one
_COUNT, _GAP, _SCORE, _IDS = range(8, 12)  # where they are among a slot's int32
_GAP_UNIT = 2.0**-20  # gaps and scores are kept as whole numbers, rounded to the safe side
_SCORE_UNIT = 2.0**-6


class WordMemo(NamedTuple):
    """The table of words of one thread, a line of the cache for each.

    Attributes:
        keys: uint64 [slots, 8]. The first three numbers: bytes of a word, zeros after it.
        values: int32 [slots, 16], the same memory. From the eighth number on: number of ids, gap,
            score, the ids.
    """

    keys: np.ndarray
    values: np.ndarray


class WordBlock(NamedTuple):
    """Words of a text that are cut before any of them is looked up, so that their slots are on their way from memory.

    Attributes:
        ends: int64 [BLOCK, 2]. Where each begins and ends.
        keys: uint64 [BLOCK, 4]. What it is looked up by, and the first slot it may be in.
    """

    ends: np.ndarray
    keys: np.ndarray


class Lattice(NamedTuple):
    """Arrays to segment one word in: for each offset in the word, the best path to it.

    Attributes:
        best: float64. Score of the best path, -inf if there is none.
        second: float64. Score of the second best last step.
        previous: int32. Offset where its last piece starts.
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
        self._character_tables = read_character_tables(charsmap, blanks)
        self._max_rewrite = int(tables.rewrite_counts.max())
        self._memos: list[WordMemo] = []  # those not in use; list.pop and list.append are atomic

    def encode(self, texts: Sequence[str], lower: bool) -> tuple[RaggedIds, np.ndarray]:
        """Encode N texts, with the letters of ASCII lower-cased if wanted, most of the time without the interpreter's lock.

        Returns the ids, and the texts left to SentencePiece, bool [N], which have no ids here.
        """
        # One join for all texts: a call for each of them takes a third of the time of encoding, and
        # keeps other threads out.
        text, ends = _encode_texts_with_ends(texts, lower)
        strange = len(ends) != len(texts)
        if strange:
            text, ends = _encode_texts_with_ends(
                ["" if END in text else text for text in texts], lower
            )
        # A word of n bytes becomes at most n + 1 pieces, or as many times more ids as the
        # digit-comma rule makes of two bytes.
        size = _MAX_WORD_BYTES + 2
        max_ids = (len(text) + len(texts)) * max(1, self._max_rewrite - 1) + size
        ids = np.empty(max_ids, dtype=np.int32)
        offsets = np.zeros(len(texts) + 1, dtype=np.int64)
        refused = np.zeros(len(texts), dtype=np.bool_)
        best, second = np.zeros((2, size))
        previous, pieces, path = np.zeros((3, size), np.int32)
        lattice = Lattice(
            best,
            second,
            previous,
            pieces,
            path,
            np.zeros(size * self._max_rewrite, np.int32),
        )
        try:
            memo = self._memos.pop()
        except IndexError:
            slots = 1 << _TABLE_BITS
            line = 8
            numbers = np.zeros((slots + 1) * line, np.uint64)
            first = -(numbers.ctypes.data // 8) % line  # where a line of the cache begins
            keys = numbers[first : first + slots * line].reshape(slots, line)
            memo = WordMemo(keys, keys.view(np.int32))
        word_ends = np.zeros((_BLOCK, 2), np.int64)
        block = WordBlock(word_ends, np.zeros((_BLOCK, 4), np.uint64))
        _encode_texts(
            text,
            ends,
            self._character_tables,
            self._tables,
            memo,
            lattice,
            block,
            ids,
            offsets,
            refused,
        )
        self._memos.append(memo)
        if strange:
            refused |= [END in text for text in texts]
        return RaggedIds(ids[: offsets[-1]].copy(), offsets), refused


def _encode_texts_with_ends(texts: Sequence[str], lower: bool) -> tuple[np.ndarray, np.ndarray]:
    """Return the bytes of texts, each followed by END, and padding; and where they end, more often if one has an END."""
    data = END.join([*texts, ""]).encode()
    text = np.frombuffer(data.lower() if lower else data, np.uint8)
    return np.append(text, np.zeros(_PADDING, np.uint8)), np.flatnonzero(text == ord(END))


# --- compiled -------------------------------------------------------------------------------------


@compiled
def _segment(
    text,
    begin,
    end,
    tables,
    lattice,
):
    """Segment a space and the word after it. Offset 0 is before the space, offset i + 1 after i bytes of the word.

    Returns the number of ids, which are left in `lattice.ids`, the gap to the second best
    segmentation, and the score.
    """
    # Written out in one piece: with calls for a step in the trie and in the lattice a word took 2.5
    # times as long.
    trie = tables.trie
    scores = tables.scores
    best = lattice.best
    second = lattice.second
    previous = lattice.previous
    pieces = lattice.pieces
    unknown = tables.ids[0]
    space = tables.ids[1]
    after_space = tables.ids[2]
    length = end - begin
    for offset in range(length + 2):
        best[offset] = -np.inf
    best[0] = previous[0] = previous[1] = 0
    best[1] = scores[space]
    second[1] = -np.inf
    pieces[1] = space
    offset = 0
    while offset <= length:
        position = first = begin + max(offset - 1, 0)
        node = after_space
        width = 1
        covered = True
        if offset > 0:
            node = trie[0]
            width = min(bytes_of_character(text[position]), end - position)
            covered = False
        score_before = best[offset]
        while position < end:
            byte = np.int64(text[position])
            node = trie[(node >> 31) + byte]
            if node & 0x1FF != byte + 1:
                break
            position += 1
            piece = (node >> 9 & 0x3FFFFF) - 1
            if piece >= 0:
                next_offset = position - begin + 1
                score = score_before + scores[piece]
                if score > best[next_offset]:
                    best[next_offset], second[next_offset] = score, best[next_offset]
                    previous[next_offset] = offset
                    pieces[next_offset] = piece
                elif score > second[next_offset]:
                    second[next_offset] = score
                covered = covered or position - first == width
        if not covered:
            next_offset = offset + width
            score = score_before + scores[unknown]
            if score > best[next_offset]:
                best[next_offset], second[next_offset] = score, best[next_offset]
                previous[next_offset] = offset
                pieces[next_offset] = unknown
            elif score > second[next_offset]:
                second[next_offset] = score
        offset += width
    return _trace_back(length + 1, tables, lattice)


@compiled
def _trace_back(last, tables, lattice):
    best = lattice.best
    second = lattice.second
    previous = lattice.previous
    pieces = lattice.pieces
    path = lattice.path
    ids = lattice.ids
    starts = tables.rewrite_starts
    counts = tables.rewrite_counts
    rewritten = tables.rewrite_ids
    unknown = tables.ids[0]
    gap = np.inf
    count = 0
    offset = last
    while offset > 0:
        gap = min(gap, best[offset] - second[offset])
        path[count] = pieces[offset]
        count += 1
        offset = previous[offset]
    at = 0
    after_unknown = False
    for number in range(count - 1, -1, -1):
        piece = path[number]
        # SentencePiece makes one piece of neighbouring unknown characters
        if piece == unknown and after_unknown:
            continue
        after_unknown = piece == unknown
        for row in range(starts[piece], starts[piece] + counts[piece]):
            ids[at] = rewritten[row]
            at += 1
    return at, gap, best[last]


@intrinsic
def _read_eight_bytes(context, text, position):
    """Return eight bytes of a text as a number, the first one the lowest."""

    def generate(
        context,
        builder,
        signature,
        arguments,
    ):
        array = context.make_array(signature.args[0])(context, builder, arguments[0])
        number = ir.IntType(64)
        value = builder.load(
            builder.bitcast(builder.gep(array.data, [arguments[1]]), number.as_pointer())
        )
        value.align = 1
        return value if sys.byteorder == "little" else builder.bswap(value)

    return types.uint64(text, types.int64), generate


@intrinsic
def _prefetch(context, table, row):
    """Fetch a row of a table, at most a line of the cache, from memory."""

    def generate(
        context,
        builder,
        signature,
        arguments,
    ):
        array = context.make_array(signature.args[0])(context, builder, arguments[0])
        pointer = builder.gep(
            array.data, [builder.mul(arguments[1], ir.Constant(ir.IntType(64), 8))]
        )
        prefetch(builder, builder.bitcast(pointer, ir.IntType(8).as_pointer()), second_cache=False)
        return context.get_dummy_value()

    return types.void(table, types.int64), generate


@inlined
def _read_bytes(text, position, count):
    """Return `count` bytes, at most eight, as a number."""
    if count >= 8:
        return _read_eight_bytes(text, position)
    if count <= 0:
        return np.uint64(0)
    return _read_eight_bytes(text, position) & (
        (np.uint64(1) << np.uint64(8 * count)) - np.uint64(1)
    )


@inlined
def _write_key(
    text,
    begin,
    end,
    key,
):
    """Write a word of up to 24 bytes as three numbers, and its first slot; zeros for longer ones, which have no slot."""
    count = end - begin
    if count > _MAX_KEY_BYTES:
        count = 0
    key[0] = _read_bytes(text, begin, count)
    key[1] = _read_bytes(text, begin + 8, count - 8)
    key[2] = _read_bytes(text, begin + 16, count - 16)
    mixed = key[0] * np.uint64(0x9E3779B97F4A7C15)
    mixed ^= key[1] * np.uint64(0xC2B2AE3D27D4EB4F) ^ key[2] * np.uint64(0x165667B19E3779F9)
    mixed = (mixed ^ (mixed >> np.uint64(29))) * np.uint64(0xBF58476D1CE4E5B9)
    key[3] = mixed


@inlined
def _first_slot(key):
    """Return the first slot of a word."""
    return np.int64(key[3] >> np.uint64(64 - _TABLE_BITS)) & ~(_WAYS - 1)


@inlined
def _find_slot(keys, key):
    """Return the slot of a word and True, or the one to put it into and False."""
    first = _first_slot(key)
    for slot in range(first, first + _WAYS):
        if keys[slot, 0] == key[0] and keys[slot, 1] == key[1] and keys[slot, 2] == key[2]:
            return slot, key[0] != 0
        if keys[slot, 0] == 0:
            return slot, False
    return first + np.int64(key[3] & np.uint64(_WAYS - 1)), False


@compiled
def _segment_and_store(
    text,
    begin,
    end,
    tables,
    memo,
    lattice,
    slot,
    key,
):
    """Segment a word and remember it in its slot if it is short. Its ids are left in `lattice.ids`."""
    num_ids, gap, score = _segment(text, begin, end, tables, lattice)
    if key[0] != 0 and num_ids <= _MAX_IDS:
        memo.keys[slot, 0] = key[0]
        memo.keys[slot, 1] = key[1]
        memo.keys[slot, 2] = key[2]
        memo.values[slot, _COUNT] = num_ids
        memo.values[slot, _GAP] = np.int32(min(gap, 1000.0) / _GAP_UNIT)
        memo.values[slot, _SCORE] = np.int32(-score / _SCORE_UNIT) + 1
        memo.values[slot, _IDS : _IDS + num_ids] = lattice.ids[:num_ids]
    return num_ids, gap, score


@inlined
def _word_end(
    text,
    position,
    end,
    byte_classes,
    is_unchanged,
):
    """Return the end of the word at `position`; -1 if it holds a refused character."""
    while position < end:
        byte = np.int64(text[position])
        kind = byte_classes[byte]
        if kind == ORDINARY:
            position += 1
        elif kind == LEADING:
            width = bytes_of_character(byte)
            code = byte & (0xFF >> (width + 1))
            for following in range(position + 1, position + width):
                code = code << 6 | (text[following] & 0x3F)
            if not is_unchanged[code]:
                return -1
            position += width
        else:
            return position if kind == SEPARATOR else -1
    return position


@inlined
def _cut_words(
    text,
    position,
    end,
    character_tables,
    memo,
    block,
):
    """Cut the next words of a text. Returns how many, and where the cutting ended; -1 words if the text is SentencePiece's."""
    count = 0
    while position < end and count < _BLOCK:
        if character_tables.bytes[text[position]] == SEPARATOR:
            position += 1
            continue
        last = _word_end(text, position, end, character_tables.bytes, character_tables.unchanged)
        if last < 0 or last - position > _MAX_WORD_BYTES:
            return -1, position
        block.ends[count, 0] = position
        block.ends[count, 1] = last
        _write_key(text, position, last, block.keys[count])
        _prefetch(memo.keys, _first_slot(block.keys[count]))
        count += 1
        position = last
    return count, position


@compiled
def _encode_text(
    text,
    begin,
    end,
    character_tables,
    tables,
    memo,
    lattice,
    block,
    ids,
    at,
):
    """Write the ids of a text from `at` on. Return the position after them; -1 if the text is for SentencePiece."""
    # SentencePiece adds scores in single precision along the whole text, so where two segmentations
    # of a word score nearly the same, rounding decides, and it depends on what came before. Here
    # they are added in double precision, and each word has the gap to its second best segmentation.
    # A path of k pieces whose partial sums stay below M in magnitude is off by at most k·M·2⁻²⁴;
    # rounded addition is monotone, so SentencePiece takes a path whose rounded score is largest; so
    # the best segmentation wins surely if its gap exceeds 2·k·M·2⁻²⁴. Here k is bounded by the
    # bytes of the word + 2, and the bound is doubled.
    keys = memo.keys
    values = memo.values
    magnitude = 1.0  # of the sum of scores so far, a little more
    position = begin
    while position < end:
        count, position = _cut_words(text, position, end, character_tables, memo, block)
        if count < 0:
            return -1
        for number in range(count):
            first, last = block.ends[number]
            narrow = (last - first + 2) * 2.0**-22
            slot, is_stored = _find_slot(keys, block.keys[number])
            if is_stored:
                magnitude += values[slot, _SCORE] * _SCORE_UNIT
                if values[slot, _GAP] * _GAP_UNIT <= narrow * magnitude:
                    return -1
                for n in range(values[slot, _COUNT]):
                    ids[at + n] = values[slot, _IDS + n]
                at += values[slot, _COUNT]
            else:
                num_ids, gap, score = _segment_and_store(
                    text,
                    first,
                    last,
                    tables,
                    memo,
                    lattice,
                    slot,
                    block.keys[number],
                )
                magnitude -= score
                if gap <= narrow * magnitude:
                    return -1
                for n in range(num_ids):
                    ids[at + n] = lattice.ids[n]
                at += num_ids
    return at


@compiled
def _encode_texts(
    text,
    ends,
    character_tables,
    tables,
    memo,
    lattice,
    block,
    ids,
    offsets,
    refused,
):
    at = begin = 0
    for number in range(len(refused)):
        after = _encode_text(
            text,
            begin,
            ends[number],
            character_tables,
            tables,
            memo,
            lattice,
            block,
            ids,
            at,
        )
        begin = ends[number] + 1
        refused[number] = after < 0
        if after >= 0:
            at = after
        offsets[number + 1] = at
