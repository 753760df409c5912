"""Intervals against scipy's, and the four numbers as people read them."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import binomtest

from albertkit.errors import ConfigError
from albertkit.pretraining.card import list_measures, times_more_probable
from albertkit.training.monitor import wilson_interval


@given(
    st.integers(1, 2_000_000).flatmap(
        lambda total: st.tuples(st.integers(0, total), st.just(total))
    )
)
def test_wilson_interval_is_scipys(counts):
    correct, total = counts
    expected = binomtest(correct, total).proportion_ci(confidence_level=0.95, method="wilson")
    assert wilson_interval(correct, total) == pytest.approx(
        (expected.low, expected.high), abs=1e-12
    )


@pytest.mark.parametrize("total", [1, 7, 49, 1000, 123_457])
def test_wilson_interval_ends_exactly_at_none_and_all(total):
    assert wilson_interval(0, total)[0] == 0.0
    assert wilson_interval(total, total)[1] == 1.0


def test_nothing_measured_is_everything_possible():
    assert wilson_interval(0, 0) == (0.0, 1.0)


@pytest.mark.parametrize(("correct", "total"), [(-1, 5), (6, 5), (1, 0)])
def test_impossible_counts_are_refused(correct, total):
    with pytest.raises(ConfigError, match=r"\[bad-value\]"):
        wilson_interval(correct, total)


def test_measures_stand_beside_their_baselines():
    rows = list_measures(
        {
            "masked_lm_loss": 4.25,
            "masked_lm_accuracy": 0.3125,
            "masked_lm_count": 1600,
            "sentence_order_loss": 0.5,
            "sentence_order_accuracy": 0.75,
            "sentence_order_count": 400,
        },
        {"unigram_loss": 6.5, "most_frequent_accuracy": 0.05},
    )
    loss, accuracy, order_loss, order_accuracy = rows
    assert loss.value_text == "4.250"
    assert loss.baseline_text == "6.500"
    assert loss.interval_text == ""
    assert accuracy.value_text == "31.2%"
    assert accuracy.baseline_text == "5.0%"
    assert accuracy.interval == pytest.approx(
        tuple(binomtest(500, 1600).proportion_ci(method="wilson"))
    )
    assert order_loss.baseline_text == "0.693"
    assert order_accuracy.baseline_text == "50.0%"
    assert order_accuracy.interval_text == "70.5% to 79.0%"


def test_what_was_not_measured_has_no_row():
    rows = list_measures(
        {"masked_lm_loss": 4.0, "sentence_order_loss": math.nan, "sentence_order_accuracy": None}
    )
    assert [row.key for row in rows] == ["masked_lm_loss"]
    assert rows[0].baseline_text == ""


def test_times_more_probable():
    assert times_more_probable(4.0, 4.0 + math.log(9)) == pytest.approx(9)
    assert times_more_probable(4.0 + math.log(2), 4.0) == pytest.approx(0.5)
    assert times_more_probable(None, 4.0) is None
    assert times_more_probable(4.0, math.nan) is None
