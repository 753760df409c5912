"""Metrics against what scikit-learn and scipy printed (golden), and against seqeval."""

import warnings

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import binomtest

from albertkit.files import read_json
from albertkit.tasks.metrics import (
    EVERY_ROW,
    bootstrap_intervals,
    class_scorer,
    class_table,
    confusion,
    count_matching_entities,
    entity_scorer,
    entity_scores_by_type,
    entity_spans,
    label_set_scorer,
    regression_scorer,
    regression_scores,
)

from .conftest import THEIR_NAMES


def furthest(case):
    """The largest difference from the golden metrics of a case; NaN is None there."""
    labels = case["labels"]
    predictions = case["predictions"]
    if case["task"] == "sts-b":
        ours = regression_scores(labels, predictions)
    else:
        ours = class_scorer(labels, predictions, 3 if "mnli" in case["task"] else 2)(EVERY_ROW)
    differences = []
    for name, theirs in case["metrics"].items():
        value = ours[THEIR_NAMES[name]]
        differences.append(float(not np.isnan(value)) if theirs is None else abs(value - theirs))
    return max(differences)


def test_glue_metrics_equal_golden(golden):
    cases = read_json(golden / "glue/metrics.json")["cases"]
    assert len(cases) == 42
    for case in cases:
        assert furthest(case) < 1e-9, (case["task"], case["name"])


def test_undefined_correlations_are_nan():
    for labels, predictions in (([1, 2, 3], [2, 2, 2]), ([5, 5], [1, 2]), ([1], [1])):
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            scores = regression_scores(labels, predictions)
        assert [name for name, value in scores.items() if np.isnan(value)] == [
            "pearson",
            "spearman",
            "pearson_and_spearman",
        ]


@settings(max_examples=40)
@given(
    st.integers(2, 6).flatmap(
        lambda c: st.tuples(
            st.just(c), st.lists(st.tuples(*[st.integers(0, c - 1)] * 2), min_size=1, max_size=30)
        )
    )
)
def test_class_scores_equal_scikit_learn(example):
    from sklearn import metrics

    num_classes, pairs = example
    labels, predictions = zip(*pairs, strict=True)
    average = "binary" if num_classes == 2 else "macro"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        precision, recall, f1, _ = metrics.precision_recall_fscore_support(
            labels, predictions, average=average, zero_division=0
        )
        theirs = {
            "accuracy": metrics.accuracy_score(labels, predictions),
            "f1": f1,
            "f1_macro": metrics.f1_score(labels, predictions, average="macro", zero_division=0),
            "precision": precision,
            "recall": recall,
            "matthews_correlation": metrics.matthews_corrcoef(labels, predictions),
        }
        rows = metrics.precision_recall_fscore_support(
            labels, predictions, labels=range(num_classes), zero_division=0
        )
    theirs["accuracy_and_f1"] = (theirs["accuracy"] + theirs["f1"]) / 2
    assert class_scorer(labels, predictions, num_classes)(EVERY_ROW) == pytest.approx(
        theirs, abs=1e-12
    )
    table = class_table(labels, predictions, [f"class {number}" for number in range(num_classes)])
    for row, *values in zip(table, *rows, strict=True):
        assert list(row.values())[1:] == pytest.approx(values, abs=1e-12)


def test_absent_class_and_single_class():
    assert class_scorer([0, 0], [0, 0], 2)(EVERY_ROW)["f1"] == 0.0  # class 1 occurs nowhere
    assert class_scorer([0, 0], [0, 0], 2)(EVERY_ROW)["accuracy"] == 1.0
    # Over the classes that occur
    assert class_scorer([0, 1], [0, 1], 5)(EVERY_ROW)["f1_macro"] == 1.0
    table = class_table([0, 1, 1], [0, 1, 0], ["a", "b", "c"])
    assert table[2] == {"name": "c", "precision": 0.0, "recall": 0.0, "f1": 0.0, "support": 0}
    assert table[1] == {"name": "b", "precision": 1.0, "recall": 0.5, "f1": 2 / 3, "support": 2}
    assert confusion([0, 1, 1], [0, 1, 0], 3) == [[1, 0, 0], [1, 1, 0], [0, 0, 0]]


def test_label_sets():
    scores = label_set_scorer(
        np.array([[1, 0, 0], [1, 1, 0], [0, 0, 0]]), np.array([[1, 0, 0], [0, 1, 0], [0, 1, 0]])
    )(EVERY_ROW)
    # label 0: 1 of 2 found; label 1: 1 found, 1 invented; label 2: nowhere, so 0
    assert scores == pytest.approx(
        {"f1_micro": 4 / 6, "f1_macro": (2 / 3 + 2 / 3 + 0) / 3, "subset_accuracy": 1 / 3}
    )


# --- entities -------------------------------------------------------------------------------------

TAGS = ["O", *(f"{prefix}-{kind}" for prefix in "BIES" for kind in ("PER", "LOC", "a-b")), "B", "I"]
sentence_pairs = st.integers(1, 12).flatmap(
    lambda length: st.tuples(
        *[st.lists(st.sampled_from(TAGS), min_size=length, max_size=length)] * 2
    )
)


@settings(max_examples=150)
@given(st.lists(sentence_pairs, min_size=1, max_size=4))
def test_entities_equal_seqeval_on_any_tags(pairs):
    from seqeval.metrics.sequence_labeling import get_entities, precision_recall_fscore_support

    gold, predicted = [list(side) for side in zip(*pairs, strict=True)]
    for tags in gold + predicted:
        assert entity_spans(tags) == get_entities(tags)
    ours = entity_scorer(gold, predicted)(EVERY_ROW)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        theirs = precision_recall_fscore_support(gold, predicted, average="micro", zero_division=0)
        rows = precision_recall_fscore_support(gold, predicted, average=None, zero_division=0)
    assert list(ours.values()) == pytest.approx([float(value) for value in theirs[:3]], abs=1e-12)
    for row, *values in zip(entity_scores_by_type(gold, predicted), *rows, strict=True):
        assert list(row.values())[1:] == pytest.approx(values, abs=1e-12)


def test_ill_formed_tags_are_read_as_conlleval_reads_them():
    assert entity_spans("O I-PER I-PER I-LOC B-LOC I-LOC".split()) == [
        ("PER", 1, 2),
        ("LOC", 3, 3),
        ("LOC", 4, 5),
    ]
    # a reading that lets only B- start an entity would find one entity less and notice it here
    assert entity_scorer([["I-PER", "O"]], [["I-PER", "O"]])(EVERY_ROW)["f1"] == 1.0
    assert entity_scorer([["B-PER"]], [["O"]])(EVERY_ROW) == {
        "precision": 0.0,
        "recall": 0.0,
        "f1": 0.0,
    }
    assert entity_scorer([[]], [[]])(EVERY_ROW)["f1"] == 0.0


# --- intervals ------------------------------------------------------------------------------------


def test_interval_of_a_mean_equals_scipys_bootstrap():
    from scipy.stats import bootstrap

    right = np.random.default_rng(1).random(400) < 0.8
    low, high = bootstrap_intervals(
        lambda rows: {"score": float(right[rows].mean())}, 400, samples=4000
    )["score"]
    theirs = bootstrap(
        (right,), np.mean, n_resamples=4000, method="percentile", rng=np.random.default_rng(3)
    ).confidence_interval
    # A tenth of the interval's width
    assert (low, high) == pytest.approx((theirs.low, theirs.high), abs=0.004)


def test_interval_is_reproducible_and_leaves_undefined_samples_out():
    labels = np.array([1.0, 1, 2])
    predictions = np.array([1.0, 2, 2])
    scores = lambda rows: regression_scores(labels[rows], predictions[rows])  # noqa: E731
    first, second = (bootstrap_intervals(scores, 3, samples=50, seed=4) for _ in range(2))
    assert first == second
    assert np.isfinite(first["pearson"]).all()
    assert np.isnan(
        bootstrap_intervals(lambda rows: {"score": float("nan")}, 3, samples=5)["score"]
    ).all()


def test_counted_samples_score_as_drawn_samples():
    random = np.random.default_rng(0)
    for digits in (0, 1, 9):  # with many ties, few, none
        labels, predictions = np.round(random.normal(size=(2, 80)), digits)
        counted = regression_scorer(labels, predictions)
        for _ in range(20):
            rows = random.integers(0, 80, 80)
            direct = regression_scores(labels[rows], predictions[rows])
            assert counted(rows) == pytest.approx(direct, abs=1e-12)
        assert np.isnan(counted(np.zeros(80, np.int64))["spearman"])
    for num_classes in (2, 3, 7):
        labels, predictions = random.integers(0, num_classes, (2, 60))
        counted = class_scorer(labels, predictions, num_classes)
        for _ in range(20):
            rows = random.integers(0, 60, 60)
            direct = class_scorer(labels[rows], predictions[rows], num_classes)(EVERY_ROW)
            assert counted(rows) == pytest.approx(direct, abs=1e-12)
    gold = [list(map(str, random.choice(TAGS, 5))) for _ in range(9)]
    predicted = [["B-PER"] * 5] * 9
    rows = random.integers(0, 9, 9)
    assert entity_scorer(gold, predicted)(rows) == entity_scorer(
        [gold[r] for r in rows], [predicted[r] for r in rows]
    )(EVERY_ROW)
    assert count_matching_entities([], []).shape == (0, 3)


@pytest.mark.parametrize(("right", "total"), [(80, 80), (0, 30)])
def test_where_all_answers_are_right_or_none_the_interval_is_wilsons(right, total):
    """The bootstrap knows no error that it has not seen; a correlation of 1 stays as it is."""
    accuracy = float(right > 0)
    intervals = bootstrap_intervals(
        lambda rows: {"accuracy": accuracy, "f1": 100 * accuracy, "pearson": 1.0}, total
    )
    wilson = binomtest(right, total).proportion_ci(method="wilson")
    assert intervals["accuracy"] == pytest.approx((wilson.low, wilson.high), abs=1e-9)
    assert intervals["pearson"] == (1.0, 1.0)
    if right:
        assert intervals["f1"] == pytest.approx((100 * wilson.low, 100.0))
