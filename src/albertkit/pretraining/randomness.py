"""Randomness without state: every number is a pure function of (seed, purpose, epoch, index, counter).

A key is made by hashing what is drawn for; the i-th draw under a key hashes (key, i). Nothing is
carried from one example to the next, so any example can be made alone, by any worker, in any order,
and comes out the same.

The hash is the output function of SplitMix64 (Steele, Lea and Flood, "Fast splittable pseudorandom
number generators", 2014; constants of Stafford's variant 13): draw i = mix(key + (i + 1)·2⁶⁴/φ), so
the draws under one key are a SplitMix64 sequence.
"""

import numpy as np

from albertkit.jit import compiled

_GAMMA = np.uint64(0x9E3779B97F4A7C15)  # 2^64 / golden ratio, odd
_FIRST = np.uint64(0xBF58476D1CE4E5B9)
_SECOND = np.uint64(0x94D049BB133111EB)
_ONE = np.uint64(1)
_LOW_WORD = np.uint64(0xFFFFFFFF)
_TWO_POW_32 = np.uint64(1 << 32)

# What a number is drawn for: keys of different purposes share nothing.
SEGMENTS, ORDER, MASKS, BLOCKS = 1, 2, 3, 4


@compiled
def mix_bits(word: np.uint64) -> np.uint64:
    """Map 64-bit words one to one, so that every input bit changes every output bit with probability about one half."""
    word = (word ^ (word >> np.uint64(30))) * _FIRST
    word = (word ^ (word >> np.uint64(27))) * _SECOND
    return word ^ (word >> np.uint64(31))


@compiled
def subkey(key: np.uint64, index: int) -> np.uint64:
    """Return the key of part `index` of what `key` stands for."""
    return mix_bits(mix_bits(np.uint64(key)) + (np.uint64(index) + _ONE) * _GAMMA)


@compiled
def random_bits(key: np.uint64, counter: int) -> np.uint64:
    """Return 64 random bits: draw number `counter` under `key`."""
    return mix_bits(np.uint64(key) + (np.uint64(counter) + _ONE) * _GAMMA)


@compiled
def random_uniform(key: np.uint64, counter: int) -> float:
    """Return a multiple of 2⁻⁵³ in [0, 1)."""
    return np.float64(random_bits(key, counter) >> np.uint64(11)) * 2.0**-53


@compiled
def random_below(key: np.uint64, counter: int, bound: int) -> np.int64:
    """Return a whole number in [0, bound), each with exactly the same probability; 1 <= bound <= 2³².

    Lemire, "Fast random integer generation in an interval" (2019). A rejected word is hashed again,
    so that a draw takes one counter whatever happens.
    """
    word = random_bits(key, counter)
    wide = np.uint64(bound)
    product = (word >> np.uint64(32)) * wide
    if (product & _LOW_WORD) < wide:
        threshold = (_TWO_POW_32 - wide) % wide
        while (product & _LOW_WORD) < threshold:
            word = mix_bits(word + _GAMMA)
            product = (word >> np.uint64(32)) * wide
    return np.int64(product >> np.uint64(32))


@compiled
def count_ones(word: np.uint64) -> np.int64:
    """Number of bits set in a word."""
    word = word - ((word >> _ONE) & np.uint64(0x5555555555555555))
    word = (word & np.uint64(0x3333333333333333)) + (
        (word >> np.uint64(2)) & np.uint64(0x3333333333333333)
    )
    word = (word + (word >> np.uint64(4))) & np.uint64(0x0F0F0F0F0F0F0F0F)
    return np.int64((word * np.uint64(0x0101010101010101)) >> np.uint64(56))


@compiled
def count_heads(key: np.uint64, counter: int, tosses: int) -> int:
    """Count how many of `tosses` fair coins fall heads, 64 coins a draw: Binomial(½). Takes 1 + tosses // 64 counters."""
    count = 0
    while tosses >= 64:
        count += count_ones(random_bits(key, counter))
        counter += 1
        tosses -= 64
    mask = (_ONE << np.uint64(tosses)) - _ONE
    return count + count_ones(random_bits(key, counter) & mask)


def make_key(seed: int, purpose: int, epoch: int) -> np.uint64:
    """Return the key of one purpose (SEGMENTS, ORDER, MASKS or BLOCKS) in one epoch; the seed is taken modulo 2⁶⁴."""
    key = np.uint64(seed % (1 << 64))
    for part in (purpose, epoch):
        key = np.uint64(subkey(key, part))  # compiled functions hand back Python's own int
    return key


@compiled
def shuffle_rows(rows: np.ndarray, key: np.uint64) -> None:
    """Put the rows of an array [N, W], N < 2³², in random order, in place: Fisher and Yates, every order equally likely."""
    for i in range(rows.shape[0] - 1, 0, -1):
        j = random_below(key, i, i + 1)
        for k in range(rows.shape[1]):
            rows[i, k], rows[j, k] = rows[j, k], rows[i, k]
