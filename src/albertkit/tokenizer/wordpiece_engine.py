"""WordPiece in compiled code: the ids of the `tokenizers` library, without its normalising and cutting of whole texts."""

import threading
import unicodedata
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from albertkit.jit import compiled, inlined
from albertkit.tokenizer.ragged import RaggedIds
from albertkit.tokenizer.rules import replace_lone_surrogates

_MAX_WORD_LENGTH = 100  # characters; a longer one is unknown
_ALONE = 1 << 21  # flag of a character that is a word
_SPACE = -1
_UNSEEN, _REFUSED = 255, 254  # in place of a count
_START, _INSIDE = 0, 1  # roots of the trie


class WordPieceCharacters(NamedTuple):
    """Tables of characters.

    Attributes:
        counts: uint8 [0x110000]. Number of characters, or `_UNSEEN` or `_REFUSED`.
        begins: int32 [0x110000]. Index of the first of them in `forms`.
        forms: int32. Characters, with the flag `_ALONE`, or `_SPACE`.
    """

    counts: np.ndarray
    begins: np.ndarray
    forms: np.ndarray


# A dictionary of words seen before reached 3.2 MB/s on Korean, the `tokenizers` library has 5.3,
# this trie 62.
class Trie(NamedTuple):
    """The pieces, as a hash table of steps.

    Attributes:
        keys: int64 [slots]. (node << 21 | character) + 1, 0 if the slot is free; the number of slots is a power of two.
        children: int32 [slots]. The node that the step leads to.
        ids: int32 [nodes]. The piece that ends there, or -1.
    """

    keys: np.ndarray
    children: np.ndarray
    ids: np.ndarray


# Everything that BERT's rules do to a text, they do to each character by itself, except for one
# thing: NFD, before accents are stripped, puts neighbouring marks into order. So what a character
# becomes is asked of the library once, when it is first met, and kept in a table: the characters
# that it turns into, and for each whether it separates words (white space), stands alone
# (punctuation, Chinese) or belongs to a word. Marks that move in NFD and are not stripped (some of
# music and of old Korean) are refused: a text with one is the library's.
class WordPieceEngine:
    """Encodes with one vocabulary. May be used by several threads.

    Normaliser and pre-tokenizer are BERT's, of the `tokenizers` library; `orders_marks` says that
    the normaliser applies NFD.
    """

    def __init__(
        self,
        normalizer: Any,
        pre_tokenizer: Any,
        pieces: Mapping[str, int],
        unknown: int,
        orders_marks: bool,
    ) -> None:
        self._normalizer = normalizer
        self._pre_tokenizer = pre_tokenizer
        self._orders_marks = orders_marks
        self._unknown = unknown
        # A trie of the pieces: node and character lead to a node, which may have an id
        nodes: dict[tuple[int, str], int] = {}
        ids = [-1, -1]
        for piece, number in pieces.items():
            node, characters = (_INSIDE, piece[2:]) if piece.startswith("##") else (_START, piece)
            for c in characters:
                child = nodes.setdefault((node, c), len(ids))
                if child == len(ids):
                    ids.append(-1)
                node = child
            if characters:
                ids[node] = number
        slots = 1 << (2 * len(nodes)).bit_length()  # half of them or more are free
        keys = np.zeros(slots, np.int64)
        children = np.zeros(slots, np.int32)
        self._trie = Trie(keys, children, np.array(ids, np.int32))
        steps = np.array([node << 21 | ord(c) for node, c in nodes], np.int64)
        _fill_trie(self._trie, steps, np.fromiter(nodes.values(), np.int32, len(nodes)))
        self._characters = WordPieceCharacters(
            np.full(0x110000, _UNSEEN, np.uint8),
            np.zeros(0x110000, np.int32),
            np.zeros(0, np.int32),
        )
        self._lock = threading.Lock()

    def encode(self, texts: Sequence[str]) -> tuple[RaggedIds, np.ndarray]:
        """Encode N texts, most of the time without the interpreter's lock.

        Returns the ids, and the texts left to the library, bool [N], which have no ids here.
        """
        codes = np.frombuffer("".join(texts).encode("utf-32-le", "surrogatepass"), np.int32)
        starts = np.zeros(len(texts) + 1, np.int64)
        np.cumsum([len(text) for text in texts], out=starts[1:])
        unseen = np.unique(codes[self._characters.counts[codes] == _UNSEEN])
        if len(unseen):
            with self._lock:
                counts, begins, forms = self._characters
                # Another thread may have learned the rest meanwhile
                new = unseen[counts[unseen] == _UNSEEN].tolist()
                # What each character becomes; None if that depends on its neighbours
                new_forms: list[list[int] | None] = []
                for code in new:
                    characters = self._normalizer.normalize_str(replace_lone_surrogates(chr(code)))
                    if self._orders_marks and any(map(unicodedata.combining, characters)):
                        new_forms.append(None)
                        continue
                    form = []
                    for c in characters:
                        # One word, two around white space, or three
                        parts = len(self._pre_tokenizer.pre_tokenize_str(f"a{c}a"))
                        form.append((ord(c), _SPACE, ord(c) | _ALONE)[parts - 1])
                    new_forms.append(form)
                widths = [len(form or []) for form in new_forms]
                begins[new] = len(forms) + np.cumsum([0, *widths])[:-1]
                added = np.array([c for form in new_forms for c in form or []], np.int32)
                # Other threads look at the counts first: these are set when all that they promise
                # is there.
                self._characters = WordPieceCharacters(
                    counts,
                    begins,
                    np.concatenate([forms, added]),
                )
                counts[new] = [_REFUSED if form is None else len(form) for form in new_forms]
        learned = self._characters
        ids = np.empty(int(learned.counts[codes].sum(dtype=np.int64)) + 1, np.int32)
        offsets = np.zeros(len(texts) + 1, np.int64)
        refused = np.zeros(len(texts), np.bool_)
        _encode_texts(codes, starts, learned, self._trie, self._unknown, ids, offsets, refused)
        return RaggedIds(ids[: offsets[-1]].copy(), offsets), refused


# --- compiled -------------------------------------------------------------------------------------


@inlined
def _find_slot(keys, step):
    """Return the slot of a step, or the free one where it belongs."""
    slot = (step * 0x9E3779B97F4A7C1 ^ step >> 17) & (len(keys) - 1)
    while keys[slot] != 0 and keys[slot] != step + 1:
        slot = (slot + 1) & (len(keys) - 1)
    return slot


@compiled
def _fill_trie(trie, steps, children):
    for number in range(len(steps)):
        slot = _find_slot(trie.keys, steps[number])
        trie.keys[slot] = steps[number] + 1
        trie.children[slot] = children[number]


@inlined
def _cut_word(
    word,
    length,
    trie,
    unknown,
    ids,
    at,
):
    """Write the pieces of a word from `at` on, and return the position after them."""
    # As `WordpieceTokenizer` of BERT's tokenization.py: the longest piece that fits, from the left.
    # The trie has one root for pieces that start a word and one for those that go on.
    if length > _MAX_WORD_LENGTH:
        ids[at] = unknown
        return at + 1
    first = at
    start = 0
    while start < length:
        node = np.int64(_START if start == 0 else _INSIDE)
        longest = -1
        position = end = start
        while position < length:
            slot = _find_slot(trie.keys, node << 21 | np.int64(word[position]))
            if trie.keys[slot] == 0:
                break
            node = np.int64(trie.children[slot])
            position += 1
            if trie.ids[node] >= 0:
                longest = trie.ids[node]
                end = position
        if longest < 0:
            ids[first] = unknown
            return first + 1
        ids[at] = longest
        at += 1
        start = end
    return at


@compiled
def _encode_texts(
    codes,
    starts,
    characters,
    trie,
    unknown,
    ids,
    offsets,
    refused,
):
    counts = characters.counts
    begins = characters.begins
    forms = characters.forms
    word = np.empty(_MAX_WORD_LENGTH + 1, np.int32)
    at = 0
    for number in range(len(refused)):
        length = 0
        for position in range(starts[number], starts[number + 1]):
            code = codes[position]
            if counts[code] == _REFUSED:
                refused[number] = True
                at = offsets[number]
                length = 0
                break
            for row in range(begins[code], begins[code] + counts[code]):
                form = forms[row]
                if form >= 0 and form < _ALONE:
                    word[min(length, _MAX_WORD_LENGTH)] = form
                    length = min(length + 1, _MAX_WORD_LENGTH + 1)
                    continue
                at = _cut_word(word, length, trie, unknown, ids, at)
                length = 0
                if form >= _ALONE:
                    word[0] = form & (_ALONE - 1)
                    at = _cut_word(word, 1, trie, unknown, ids, at)
        at = _cut_word(word, length, trie, unknown, ids, at)
        offsets[number + 1] = at
