"""Find the characters that a SentencePiece model's normaliser leaves alone, whatever their neighbours.

The normaliser's rules are in the model file: a double array of the keys (darts-clone), then the replacements, each ended
by a zero byte. sentencepiece can list them (`SentencePieceNormalizer.Decompile`), but for the 225,000 rules of nmt_nfkc
that takes 0.42 s and 60 MB, and the engine loads in every worker process; walking the array takes 0.01 s.
"""

from typing import NamedTuple

import numpy as np

from albertkit.jit import compiled
from albertkit.tokenizer.digit_comma import SPACE

ORDINARY, SEPARATOR, REFUSED, LEADING = range(4)  # what a byte is to the kernel


class Characters(NamedTuple):
    """Tables of characters for the kernel.

    Attributes:
        bytes: uint8 [256]. ORDINARY, SEPARATOR, REFUSED, or LEADING a character of several bytes.
        unchanged: bool [0x110000]. Characters that the model's normaliser leaves alone, whatever their neighbours.
    """

    bytes: np.ndarray
    unchanged: np.ndarray


def characters(charsmap: bytes, blanks: bytes) -> Characters:
    """Sort out what the kernel takes, by the model's `precompiled_charsmap` (may be empty) and the bytes that separate words.

    The normaliser replaces the longest of its keys that fits. So a character is left alone if it is no key itself and not
    the second or later character of one; then no key of several characters can fit, either.
    """
    unchanged = np.ones(0x110000, dtype=np.bool_)
    if charsmap:
        size = int.from_bytes(charsmap[:4], "little")
        units = np.frombuffer(charsmap, "<u4", size // 4, 4).astype(np.int64)
        _rule_out(units, np.frombuffer(charsmap, np.uint8, offset=4 + size), unchanged)
    unchanged[[0, ord(" "), ord(SPACE)]] = False
    classes = np.full(256, LEADING, dtype=np.uint8)
    classes[:128] = np.where(unchanged[:128], ORDINARY, REFUSED)
    classes[list(blanks)] = SEPARATOR
    return Characters(classes, unchanged)


@compiled
def _rule_out(units, replacements, unchanged):
    """Mark the characters that some rule touches: a walk through all keys, depth first.

    A unit of darts-clone: bits 0-7 the byte that leads to it, bit 31 set where it holds a value instead, bit 8 whether a
    key ends there, bits 10-30 the offset of its children, by which 8 bits to the left if bit 9 is set.
    """
    # The children of an offset as a list: asking for each of 255 bytes takes ten times as long for the rules of nmt_nfkc.
    none = len(units)
    first, following = np.full((2, none + 256), none, np.int32)
    for place in range(none - 1, -1, -1):
        byte = units[place] & 0x800000FF
        if 0 < byte < 256:
            following[place] = first[place ^ byte]
            first[place ^ byte] = place
    # At each depth: the byte, and the child to try next.
    key, nodes = np.zeros(none, np.uint8), np.zeros(none + 1, np.int32)
    nodes[0] = first[min(_offset(units[0]), none)]
    depth = 0
    while depth >= 0:
        place = nodes[depth]
        if place == none:
            depth -= 1
            continue
        nodes[depth] = following[place]
        children = place ^ _offset(units[place])
        if children >= none or depth == none:  # of a damaged file
            continue
        key[depth] = units[place] & 0xFF
        depth += 1
        nodes[depth] = first[children]
        if units[place] & 0x100:
            _rule_out_key(key[:depth], replacements[units[children] & 0x7FFFFFFF :], unchanged)


@compiled
def _offset(unit):
    return (unit >> 10) << ((unit & 0x200) >> 6)


@compiled
def _rule_out_key(key, replacement, unchanged):
    first = character_bytes(key[0])
    if len(key) == first:
        same = replacement[len(key)] == 0
        for place in range(len(key)):
            same = same and replacement[place] == key[place]
        if not same:
            unchanged[character_code(key, 0)] = False
    place = first
    while place < len(key):
        unchanged[character_code(key, place)] = False
        place += character_bytes(key[place])


@compiled
def character_bytes(lead):
    """Return the number of bytes of the character that begins with this byte."""
    return 1 if lead < 0xC0 else 2 if lead < 0xE0 else 3 if lead < 0xF0 else 4


@compiled
def character_code(text, place):
    """Return the number of the character at this place."""
    lead = np.int64(text[place])
    width = character_bytes(lead)
    code = lead if width == 1 else lead & (0xFF >> (width + 1))
    for following in range(place + 1, place + width):
        code = code << 6 | (text[following] & 0x3F)
    return code
