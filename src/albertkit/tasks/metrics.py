"""Scores of classes, numbers, answers in a text and entities in tagged words, and their intervals by bootstrap.

An entity is right if the same type stands at the same words. Tags are read as conlleval (Sang and
Buchholz 2000) and seqeval's default mode read them, ill-formed ones included: an `I-PER` after `O`
or after another type starts an entity. The reading is ours, because scores of single sentences are
needed for intervals, nervaluate 1.2 refuses `E-` and `S-`, and seqeval has not been kept since
2020.
"""

import re
import string
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Literal, NamedTuple

import numpy as np

from albertkit.errors import DataError
from albertkit.training.monitor import wilson_interval

# 1 (or 100) where all answers are right, 0 where none is
_OF_RIGHT_ANSWERS = re.compile("accuracy|exact|f1|precision|recall")


def bootstrap_intervals(
    scores: Callable[[np.ndarray], dict[str, float]],
    num_examples: int,
    samples: int = 1000,
    seed: int = 0,
    sizes: Mapping[str, int] | None = None,
) -> dict[str, tuple[float, float]]:
    """Return 95 % intervals of several scores, all from the same samples.

    Args:
        scores: The scores of the examples with these numbers, int64 [E], drawn with replacement.
        num_examples: E.
        samples: How often to draw.
        seed: Of the drawing.
        sizes: Of how many examples a score is, where it is not of all.

    Returns:
        Low and high by name. NaN if the score was defined in no sample; samples where it was not
        are left out. Where all answers are right, or none, no sample knows of another: then it is
        Wilson's interval, of 80 right answers of 80 from 0.954 to 1.

    Source: Efron and Tibshirani 1993, chapter 13, the percentile interval.
    """
    random = np.random.default_rng(seed)
    sample_scores = [scores(random.integers(0, num_examples, num_examples)) for _ in range(samples)]
    edges = [(1 - 0.95) / 2, (1 + 0.95) / 2]
    intervals = {}
    for name in sample_scores[0]:
        values = np.array([values[name] for values in sample_scores])
        values = values[~np.isnan(values)]
        low, high = np.quantile(values, edges) if len(values) else (np.nan, np.nan)
        if low == high and low in (0, 1, 100) and _OF_RIGHT_ANSWERS.search(name):
            total = (sizes or {}).get(name, num_examples)
            scale = max(1.0, float(high))
            low, high = (scale * bound for bound in wilson_interval(total if low else 0, total))
        intervals[name] = (float(low), float(high))
    return intervals


Labels = Sequence[int] | np.ndarray
Rows = np.ndarray | slice  # numbers of examples
# Scores of some examples, as `bootstrap_intervals` samples them
RowScorer = Callable[[Rows], dict[str, float]]
EVERY_ROW = slice(None)


def class_scorer(
    labels: Labels,
    predictions: Labels,
    num_classes: int,
    positive: int = 1,
) -> RowScorer:
    """Return a scorer of accuracy, f1, f1_macro, precision, recall, matthews_correlation, and the mean accuracy_and_f1.

    Of two classes f1, precision and recall are those of class `positive`, of more the means over
    the classes.
    """
    # From counts 1,000 samples of 10,000 take 0.1 s, by scikit-learn's functions 8 to 11.
    cells = _confusion_cells(labels, predictions, num_classes)

    def scores(rows: Rows) -> dict[str, float]:
        counts = _count_confusion_cells(cells[rows], num_classes)
        columns = np.stack(_precision_recall_f1(counts))
        predicted = counts.sum(0)
        labelled = counts.sum(1)
        right = counts.trace()
        total = counts.sum()
        # As scikit-learn: a class that is neither predicted nor a label does not count.
        macro = columns[:, predicted + labelled > 0].mean(1)
        precision, recall, f1 = (columns[:, positive] if num_classes == 2 else macro).tolist()
        accuracy = float(right / total)
        # the correlation of C classes: Gorodkin 2004, equation 8
        spread = float(total**2 - (predicted**2).sum()) * float(total**2 - (labelled**2).sum())
        covariance = float(right * total - predicted @ labelled)
        return {
            "accuracy": accuracy,
            "f1": f1,
            "f1_macro": float(macro[2]),
            "precision": precision,
            "recall": recall,
            "matthews_correlation": covariance / spread**0.5 if spread else 0.0,
            "accuracy_and_f1": (accuracy + f1) / 2,
        }

    return scores


def class_table(labels: Labels, predictions: Labels, names: Sequence[str]) -> list[dict[str, Any]]:
    """Return a row a class: name, precision, recall, f1, support (how many examples have it)."""
    counts = _count_confusion_cells(_confusion_cells(labels, predictions, len(names)), len(names))
    columns = [column.tolist() for column in (*_precision_recall_f1(counts), counts.sum(1))]
    keys = ("name", "precision", "recall", "f1", "support")
    return [dict(zip(keys, row, strict=True)) for row in zip(names, *columns, strict=True)]


def confusion(labels: Labels, predictions: Labels, num_classes: int) -> list[list[int]]:
    """Return how often class i (row) was predicted as class j (column): C rows of C counts."""
    return _count_confusion_cells(
        _confusion_cells(labels, predictions, num_classes), num_classes
    ).tolist()


def _confusion_cells(labels: Labels, predictions: Labels, num_classes: int) -> np.ndarray:
    """Return the place of each example in a table of counts [C, C], flat."""
    return np.asarray(labels, np.int64) * num_classes + np.asarray(predictions, np.int64)


def _count_confusion_cells(cells: np.ndarray, num_classes: int) -> np.ndarray:
    return np.bincount(cells, minlength=num_classes**2).reshape(num_classes, num_classes)


def label_set_scorer(labels: np.ndarray, predictions: np.ndarray) -> RowScorer:
    """Return the scorer of label sets, given as 0 or 1, int64 [E, C].

    f1_micro is over all decisions, f1_macro over the labels, subset_accuracy the share of sets that
    are right as a whole.
    """
    right = labels & predictions
    either = labels + predictions
    is_exact = (labels == predictions).all(1)

    def scores(rows: Rows) -> dict[str, float]:
        num_right = right[rows].sum(0)
        num_either = either[rows].sum(0)
        return {
            # F1: twice what is right over what is predicted and what is a label
            "f1_micro": float(2 * num_right.sum() / max(num_either.sum(), 1)),
            "f1_macro": float(np.mean(2 * num_right / np.maximum(num_either, 1))),
            "subset_accuracy": float(is_exact[rows].mean()),
        }

    return scores


def _precision_recall_f1(confusion_matrix: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return precision, recall and F1 [C] of a confusion matrix [C, C]."""
    right = confusion_matrix.diagonal()
    predicted = confusion_matrix.sum(0)
    labelled = confusion_matrix.sum(1)
    return (
        right / np.maximum(predicted, 1),
        right / np.maximum(labelled, 1),
        2 * right / np.maximum(predicted + labelled, 1),
    )


Numbers = Sequence[float] | np.ndarray


def regression_scores(labels: Numbers, predictions: Numbers) -> dict[str, float]:
    """Return the scores of predicted numbers.

    Returns:
        pearson, spearman, pearson_and_spearman (the mean of the two) and mse, the mean squared
        error. A correlation with constants, or of fewer than two numbers, is NaN.
    """
    from scipy.stats import pearsonr, spearmanr

    gold = np.asarray(labels, np.float64)
    predicted = np.asarray(predictions, np.float64)
    pearson = spearman = float("nan")
    if len(gold) >= 2:
        with warnings.catch_warnings():  # scipy warns of constants, and says NaN
            warnings.simplefilter("ignore")
            pearson = float(pearsonr(gold, predicted)[0])
            spearman = float(spearmanr(gold, predicted)[0])
    return {
        "pearson": pearson,
        "spearman": spearman,
        "pearson_and_spearman": (pearson + spearman) / 2,
        "mse": float(np.mean((gold - predicted) ** 2)),
    }


def regression_scorer(labels: Numbers, predictions: Numbers) -> RowScorer:
    """Return `regression_scores` as a function of numbers of examples, for `bootstrap_intervals`."""
    gold = np.asarray(labels, np.float64)
    predicted = np.asarray(predictions, np.float64)
    # Ranks of a sample follow from how often each value was drawn, without sorting it: a thousand
    # samples of 10,000 examples take 0.5 s, by scipy's functions 7 s.
    order_of_gold, order_of_predicted = (
        np.unique(side, return_inverse=True)[1] for side in (gold, predicted)
    )

    def scores(rows: Rows) -> dict[str, float]:
        pearson = _pearson_correlation(gold[rows], predicted[rows])
        spearman = _pearson_correlation(
            _mean_ranks(order_of_gold[rows]), _mean_ranks(order_of_predicted[rows])
        )
        return {
            "pearson": pearson,
            "spearman": spearman,
            "pearson_and_spearman": (pearson + spearman) / 2,
            "mse": float(np.mean((gold[rows] - predicted[rows]) ** 2)),
        }

    return scores


def _mean_ranks(order: np.ndarray) -> np.ndarray:
    """Return ranks from 1 of values given by their places in sorted order; equal ones share the mean of theirs."""
    counts = np.bincount(order)
    return (np.cumsum(counts) - (counts - 1) / 2)[order]


def _pearson_correlation(a: np.ndarray, b: np.ndarray) -> float:
    # (The deviation of equal numbers may be rounded to more than 0.)
    if not (np.ptp(a) and np.ptp(b)):
        return float("nan")
    a = a - a.mean()
    b = b - b.mean()
    return float((a @ b) / np.sqrt((a @ a) * (b @ b)))


Version = Literal[1, 2]  # of SQuAD: 1.1 or 2.0
Scores = Mapping[str, float]  # question id to 0 to 1

_HANGUL = re.compile("[\uac00-\ud7a3]")
_PUNCTUATION = str.maketrans("", "", string.punctuation)
_ARTICLES = re.compile(r"\b(a|an|the)\b")


def normalize_answer(text: str) -> str:
    """Return a text in lower case, without ASCII punctuation, English articles and repeated spaces."""
    return " ".join(_ARTICLES.sub(" ", text.lower().translate(_PUNCTUATION)).split())


def are_korean_answers(golds: Iterable[str]) -> bool:
    """Return whether most answers hold Hangul.

    KorQuAD counts the characters that an answer shares with the right one; SQuAD counts words,
    which in Korean carry particles, so that its F1 of the same answers is lower.
    """
    korean = [bool(_HANGUL.search(gold)) for gold in golds]
    return sum(korean) > 0.5 * len(korean)


def exact_match(prediction: str, golds: Sequence[str], version: Version = 2) -> float:
    """Return 1 if the prediction equals one of the gold answers after normalisation, else 0."""
    predicted = normalize_answer(prediction)
    return float(any(predicted == gold for gold in _normalize_golds(golds, version)))


def f1(prediction: str, golds: Sequence[str], version: Version = 2) -> float:
    """Return the largest F1 of the prediction's words with those of a gold answer; arguments as `exact_match`."""
    words = normalize_answer(prediction).split()
    scores = []
    for gold in _normalize_golds(golds, version):
        gold_words = gold.split()
        num_common = sum((Counter(words) & Counter(gold_words)).values())
        score = 0.0
        # Where both are empty after normalisation, 2.0's script says 1, that of 1.1 says 0 although
        # they match exactly.
        if version == 2 and not (words and gold_words):
            score = float(words == gold_words)
        elif num_common:
            precision = num_common / len(words)
            recall = num_common / len(gold_words)
            score = 2 * precision * recall / (precision + recall)
        scores.append(score)
    return max(scores)


def question_scores(
    predictions: Mapping[str, str], gold: Iterable[tuple[str, Sequence[str]]], version: Version
) -> dict[str, tuple[float, float]]:
    """Return exact match and F1 of each question, 0 to 1, in the order of the gold data. A missing prediction scores 0."""
    scores = {}
    for name, answers in gold:
        if version == 1 and not answers:
            raise DataError(
                "bad-row",
                f"question `{name}` has no answer, which SQuAD 1.1 does not know",
                "score it as squad2",
            )
        prediction = predictions.get(name)
        if prediction is None:
            scores[name] = (0.0, 0.0)
        else:
            scores[name] = (
                exact_match(prediction, answers, version),
                f1(prediction, answers, version),
            )
    return scores


def squad_scores(
    predictions: Mapping[str, str],
    gold: Sequence[tuple[str, Sequence[str]]],
    version: Version,
    null_odds: Mapping[str, float] | None = None,
    null_threshold: float = 1.0,
) -> dict[str, float]:
    """Return the scores of the official script, in per cent.

    Returns:
        1.1: exact_match, f1. 2.0: exact, f1, total, and the same of the questions with answers
        (`HasAns_…`) and without (`NoAns_…`); with null odds also best_exact, best_exact_thresh,
        best_f1, best_f1_thresh and the average precisions pr_exact_ap, pr_f1_ap, pr_oracle_ap. A
        missing prediction counts as wrong; the official script of 2.0 stops there.
    """
    if not gold:
        raise DataError(
            "too-little-data",
            "there are no questions to score",
            "name a file of questions with answers",
        )
    scores = question_scores(predictions, gold, version)
    exact, words = ({name: pair[column] for name, pair in scores.items()} for column in (0, 1))
    if version == 1:
        return {"exact_match": _mean_percent(exact, exact), "f1": _mean_percent(words, words)}
    answerable = {name: bool(answers) for name, answers in gold}
    if null_odds is None:
        return _scores_by_answerability(exact, words, answerable)
    if missing := [name for name in scores if name not in null_odds]:
        raise DataError(
            "missing-file",
            f"the null odds lack {len(missing):,} questions, for example `{missing[0]}`",
            "name the null_odds.json that was written beside these predictions",
        )
    as_null = {
        name: float(not answerable[name])
        for name in predictions
        if null_odds.get(name, 0) > null_threshold
    }
    values = _scores_by_answerability(exact | as_null, words | as_null, answerable)
    for name, column in (("exact", exact), ("f1", words)):
        best = _best_null_threshold(column, predictions, null_odds, answerable)
        values[f"best_{name}"], values[f"best_{name}_thresh"] = best
    if any(answerable.values()):
        oracle = {name: float(has_answer) for name, has_answer in answerable.items()}
        for name, column in (("exact", exact), ("f1", words), ("oracle", oracle)):
            values[f"pr_{name}_ap"] = _average_precision(column, null_odds, answerable)
    return values


def _scores_by_answerability(
    exact: Scores,
    words: Scores,
    answerable: Mapping[str, bool],
) -> dict[str, float]:
    values: dict[str, float] = {}
    groups = {
        "": list(answerable),
        "HasAns_": [name for name in answerable if answerable[name]],
        "NoAns_": [name for name in answerable if not answerable[name]],
    }
    for prefix, names in groups.items():
        if names:
            values[f"{prefix}exact"] = _mean_percent(exact, names)
            values[f"{prefix}f1"] = _mean_percent(words, names)
            values[f"{prefix}total"] = len(names)
    return values


def _normalize_golds(golds: Sequence[str], version: Version) -> list[str]:
    normal = [normalize_answer(gold) for gold in golds]
    # The script of 2.0 leaves out gold answers of which nothing stays, such as "the".
    return normal if version == 1 else [gold for gold in normal if gold] or [""]


def _mean_percent(scores: Scores, names: Iterable[str]) -> float:
    """Add one by one, as the scripts do: the built-in sum compensates rounding since Python 3.12, and would differ."""
    values = [scores[name] for name in names]
    return float(100.0 * np.cumsum(values)[-1] / len(values))


def _best_null_threshold(
    scores: Scores,
    predictions: Mapping[str, str],
    odds: Mapping[str, float],
    answerable: Mapping[str, bool],
) -> tuple[float, float]:
    """Return the best score in per cent, and the odds up to which, inclusive, questions are answered to reach it.

    Among equal odds the order of `odds` decides, and a threshold may fall between them: so the
    official script.
    """
    score = best = float(sum(not has_answer for has_answer in answerable.values()))
    threshold = 0.0
    for name in sorted((name for name in odds if name in scores), key=odds.__getitem__):
        if answerable[name]:
            score += scores[name]
        elif predictions.get(name):
            score -= 1.0
        if score > best:
            best = score
            threshold = odds[name]
    return 100.0 * best / len(scores), threshold


def _average_precision(
    scores: Scores,
    odds: Mapping[str, float],
    answerable: Mapping[str, bool],
) -> float:
    """Return the area under precision over recall as questions are answered in the order of their odds, in per cent."""
    names = sorted((name for name in odds if name in scores), key=odds.__getitem__)
    right = np.cumsum([scores[name] if answerable[name] else 0.0 for name in names])
    ordered = np.array([odds[name] for name in names])
    ends = np.append(ordered[1:] != ordered[:-1], True)  # a threshold cannot part equal odds
    precision = (right / np.arange(1, len(names) + 1))[ends]
    recall = (right / sum(answerable.values()))[ends]
    return float(100.0 * np.sum(precision * np.diff(recall, prepend=0.0)))


Tags = Sequence[str]


class TaggedEntity(NamedTuple):
    kind: str
    first_word: int
    last_word: int


# nervaluate 1.2 fails on `E-` and `S-` tags and has no counts for each sentence; seqeval, the
# tests' oracle, had no release since 2020.
def entity_spans(tags: Tags) -> list[TaggedEntity]:
    """Return the entities of a sentence, ascending."""
    entities: list[TaggedEntity] = []
    before = "O"
    open_type = ""
    first = 0
    for index, tag in enumerate([*tags, "O"]):
        prefix = tag[:1]
        entity_type = tag[1:].removeprefix("-") or "_"
        # An `I-` after another type begins an entity, as for conlleval and seqeval.
        is_new = prefix in "BS" or before in "OES" or entity_type != open_type
        if before != "O" and (is_new or prefix == "O"):
            entities.append(TaggedEntity(open_type, first, index - 1))
        if is_new:
            first = index
        before = prefix
        open_type = entity_type
    return entities


def count_matching_entities(gold: Sequence[Tags], predicted: Sequence[Tags]) -> np.ndarray:
    """Count entities that are right, predicted, and in the gold data: int64 [sentences, 3]."""
    counts = []
    for gold_tags, predicted_tags in zip(gold, predicted, strict=True):
        gold_spans = set(entity_spans(gold_tags))
        predicted_spans = set(entity_spans(predicted_tags))
        counts.append((len(gold_spans & predicted_spans), len(predicted_spans), len(gold_spans)))
    return np.array(counts, np.int64).reshape(-1, 3)


def entity_scorer(gold: Sequence[Tags], predicted: Sequence[Tags]) -> RowScorer:
    """Return a scorer of precision, recall and f1 over all entities; 0 where nothing was predicted or nothing is there."""
    counts = count_matching_entities(gold, predicted)
    return lambda rows: _precision_recall_f1_of_entities(*counts[rows].sum(0))


def entity_scores_by_type(gold: Sequence[Tags], predicted: Sequence[Tags]) -> list[dict[str, Any]]:
    """Return the scores of each type: name, precision, recall, f1, support (entities in the gold data); sorted by name."""
    right_counts = Counter[str]()
    predicted_counts = Counter[str]()
    gold_counts = Counter[str]()
    for gold_tags, predicted_tags in zip(gold, predicted, strict=True):
        gold_spans = set(entity_spans(gold_tags))
        predicted_spans = set(entity_spans(predicted_tags))
        gold_counts.update(kind for kind, _, _ in gold_spans)
        predicted_counts.update(kind for kind, _, _ in predicted_spans)
        right_counts.update(kind for kind, _, _ in gold_spans & predicted_spans)
    return [
        {
            "name": kind,
            **_precision_recall_f1_of_entities(
                right_counts[kind], predicted_counts[kind], gold_counts[kind]
            ),
            "support": gold_counts[kind],
        }
        for kind in sorted(gold_counts | predicted_counts)
    ]


def _precision_recall_f1_of_entities(right: int, predicted: int, gold: int) -> dict[str, float]:
    precision = float(right / max(predicted, 1))
    recall = float(right / max(gold, 1))
    return {
        "precision": precision,
        "recall": recall,
        "f1": 2 * precision * recall / (precision + recall or 1.0),
    }
