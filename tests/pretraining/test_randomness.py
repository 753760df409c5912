"""Draws: against SplitMix64's published output and against probability theory."""

import numpy as np
import pytest
from scipy import stats

from albertkit.pretraining.randomness import (
    count_heads,
    count_ones,
    make_key,
    random_below,
    random_bits,
    random_uniform,
    shuffle_rows,
    subkey,
)


def test_draws_are_splitmix64():
    # First outputs of Vigna's splitmix64.c for the state 1234567 (Rosetta Code, "Pseudo-random
    # numbers/Splitmix64").
    published = [
        6457827717110365317, 3203168211198807973, 9817491932198370423, 4593380528125082431, 16408922859458223821
    ]  # fmt: skip
    assert [random_bits(np.uint64(1234567), i) for i in range(5)] == published


@pytest.mark.parametrize("bound", [1, 2, 3, 7, 1000])
def test_bounded_draws_are_uniform(bound):
    key = make_key(5, 1, 0)
    draws = np.array([random_below(key, i, bound) for i in range(20_000)])
    assert draws.min() >= 0
    assert draws.max() < bound
    if bound > 1:
        assert stats.chisquare(np.bincount(draws, minlength=bound)).pvalue > 1e-4


def test_bounded_draws_are_unbiased_where_a_remainder_would_show():
    # Of 2^32 words taken modulo 3·2^30, the first third of the results would come up twice as often
    # as the others.
    bound = 3 << 30
    key = make_key(1, 2, 3)
    thirds = np.bincount(
        [random_below(key, i, bound) // (1 << 30) for i in range(30_000)], minlength=3
    )
    assert stats.chisquare(thirds).pvalue > 1e-4


def test_largest_bound():
    key = make_key(0, 1, 0)
    draws = [random_below(key, i, 1 << 32) for i in range(1000)]
    assert draws == [random_bits(key, i) >> 32 for i in range(1000)]


@pytest.mark.parametrize("tosses", [0, 1, 63, 64, 65, 300])
def test_heads_are_binomial(tosses):
    key = make_key(9, 1, 0)
    counts = np.array([count_heads(np.uint64(subkey(key, i)), 0, tosses) for i in range(20_000)])
    observed = np.bincount(counts, minlength=tosses + 1)
    expected = stats.binom.pmf(np.arange(tosses + 1), tosses, 0.5) * len(counts)
    common = expected > 20
    rare = observed[~common].sum(), expected[~common].sum()
    if tosses > 0:
        chi = ((observed[common] - expected[common]) ** 2 / expected[common]).sum() + (
            rare[0] - rare[1]
        ) ** 2 / max(rare[1], 1)
        assert stats.chi2.sf(chi, common.sum()) > 1e-4
    else:
        assert observed.tolist() == [len(counts)]


def test_ones_counts_bits():
    words = [
        0,
        1,
        (1 << 64) - 1,
        0x8000000000000001,
        *(random_bits(np.uint64(3), i) for i in range(50)),
    ]
    assert [count_ones(np.uint64(word)) for word in words] == [
        bin(word).count("1") for word in words
    ]


def test_keys_and_draws_of_neighbours_are_unrelated():
    def draws(key):
        return np.array([random_uniform(key, i) for i in range(4000)])

    base = draws(make_key(1, 1, 0))
    for second in (
        make_key(2, 1, 0),
        make_key(1, 2, 0),
        make_key(1, 1, 1),
        np.uint64(subkey(make_key(1, 1, 0), 0)),
    ):
        assert abs(np.corrcoef(base, draws(second))[0, 1]) < 4 / np.sqrt(len(base))
    assert make_key(-1, 1, 0) == make_key((1 << 64) - 1, 1, 0)


def test_shuffle_gives_every_order_equally_often():
    orders = {}
    for seed in range(12_000):
        rows = np.arange(4, dtype=np.uint32).reshape(4, 1)
        shuffle_rows(rows, make_key(seed, 2, 0))
        orders[tuple(rows[:, 0])] = orders.get(tuple(rows[:, 0]), 0) + 1
    assert len(orders) == 24
    assert stats.chisquare(list(orders.values())).pvalue > 1e-4
