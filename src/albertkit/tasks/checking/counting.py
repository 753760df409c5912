"""What counting pieces alone reaches on dev: a model that does not beat it has learned no more than which words occur."""

from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from albertkit.tasks.metrics.regression import regression_scores
from albertkit.tasks.texts.task import TextExample
from albertkit.tokenizer import AlbertTokenizer

if TYPE_CHECKING:
    from scipy.sparse import csr_matrix

MOST = 20_000  # training examples: half a minute of fitting at most
KINDS = ("classification", "regression")


def counting_baseline(
    kind: str, train: Sequence[TextExample], dev: Sequence[TextExample], tokenizer: AlbertTokenizer
) -> dict[str, float]:
    """A linear model on TF-IDF of pieces, trained on train and scored on dev.

    Of pairs it sees both texts, what they share and where they differ.

    Args:
        kind: classification (logistic regression) or regression (ridge), by scikit-learn with its own settings.
        train: Labelled; at most the first 20,000.
        dev: Labelled.
        tokenizer: Cuts texts into pieces.

    Returns:
        accuracy and majority, the share of the most frequent class of dev; or pearson and spearman. Empty if there is but
        one class to learn.
    """
    from sklearn.linear_model import LogisticRegression, Ridge

    features = _Counts(train[:MOST], tokenizer)
    seen, asked = features(train[:MOST]), features(dev)
    labels, wanted = ([example.label for example in rows] for rows in (train[:MOST], dev))
    if kind == "regression":
        scores = regression_scores(np.array(wanted, np.float64), Ridge().fit(seen, labels).predict(asked))
        return {name: scores[name] for name in ("pearson", "spearman")}
    if len(set(labels)) < 2:
        return {}
    predicted = LogisticRegression(max_iter=1000).fit(seen, labels).predict(asked)
    largest = max(Counter(wanted).values())
    return {"accuracy": float(np.mean(predicted == np.array(wanted))), "majority": largest / len(wanted)}


class _Counts:
    """Examples as rows of TF-IDF; of a pair four blocks."""

    def __init__(self, train: Sequence[TextExample], tokenizer: AlbertTokenizer) -> None:
        from sklearn.feature_extraction.text import TfidfVectorizer

        self._tokenizer = tokenizer
        texts = [text for example in train for text in (example.text, example.pair) if text is not None]
        self._weights = TfidfVectorizer(analyzer=list, sublinear_tf=True).fit(self._pieces(texts))

    def __call__(self, examples: Sequence[TextExample]) -> "csr_matrix":
        from scipy.sparse import hstack

        first = self._weights.transform(self._pieces([example.text for example in examples]))
        if all(example.pair is None for example in examples):
            return first
        second = self._weights.transform(self._pieces([example.pair or "" for example in examples]))
        return hstack([first, second, first.multiply(second), abs(first - second)]).tocsr()

    def _pieces(self, texts: Sequence[str]) -> list[list[int]]:
        return [ids.tolist() for ids in self._tokenizer.encode_batch(texts).texts()]
