"""mteb opens the folder of a `SentenceEncoder` through sentence-transformers: its scores follow from the encoder's vectors."""

import datasets
import numpy as np
import pytest
from scipy.stats import spearmanr
from sklearn.metrics import ndcg_score

from .conftest import row_cosines

pytestmark = pytest.mark.peer

PROMPTS = {"query": "the fox ", "document": "the dog ", "STS": "over rivers "}


@pytest.fixture(scope="module")
def mteb():
    """Imported by the tests alone: with what it brings it takes 3 s, also where no test of a peer is run."""
    return pytest.importorskip("mteb")


@pytest.fixture(scope="module")
def scores_of(mteb):
    """`scores_of(folder, task)`: mteb's scores of a folder."""
    import sentence_transformers

    def evaluate(folder, task):
        model = sentence_transformers.SentenceTransformer(str(folder), device="cpu")
        (result,) = mteb.evaluate(model, task, cache=None, show_progress_bar=False)
        (scores,) = result.scores["test"]
        return scores

    return evaluate


@pytest.mark.parametrize("prompts", [{}, PROMPTS], ids=["plain", "prompts"])
def test_correlation_of_pairs(mteb, scores_of, encoder, sentences, tmp_path, prompts):
    """mteb's KorSTS with pairs of our own."""
    encoder.settings["prompts"] = prompts
    encoder.save_pretrained(tmp_path)
    task = mteb.get_task("KorSTS")
    labels = np.random.default_rng(2).uniform(0, 5, 100)
    columns = {
        "sentence1": sentences[:100],
        "sentence2": sentences[100:200],
        "score": labels.tolist(),
    }
    task.dataset = {"test": datasets.Dataset.from_dict(columns)}
    task.data_loaded = True
    scores = scores_of(tmp_path, task)
    prompt = "STS" if prompts else None
    first, second = (
        encoder.encode(columns[name], prompt_name=prompt) for name in ("sentence1", "sentence2")
    )
    assert scores["cosine_spearman"] == pytest.approx(
        spearmanr(row_cosines(first, second), labels).statistic, abs=1e-4
    )
    if prompts:
        unprompted = encoder.similarity(
            encoder.encode(columns["sentence1"]), encoder.encode(columns["sentence2"])
        )
        assert scores["cosine_spearman"] != pytest.approx(
            spearmanr(np.diag(unprompted), labels).statistic, abs=1e-4
        )


@pytest.mark.parametrize("prompts", [{}, PROMPTS], ids=["plain", "prompts"])
def test_retrieval_of_documents(mteb, scores_of, encoder, sentences, tmp_path, prompts):
    """mteb's SciFact with texts of our own; queries and documents have their own prompts."""
    encoder.settings["prompts"] = prompts
    encoder.save_pretrained(tmp_path)
    task = mteb.get_task("SciFact")
    texts = list(dict.fromkeys(text for text in sentences if text))
    documents = texts[:200]
    queries = texts[200:240]
    relevance = np.zeros((len(queries), len(documents)))
    for number in range(len(queries)):
        relevance[number, [7 * number % 200, 3 * number % 200]] = 1
    corpus = [
        {"id": f"d{number}", "title": "", "text": text} for number, text in enumerate(documents)
    ]
    split = {
        "corpus": datasets.Dataset.from_list(corpus),
        "queries": datasets.Dataset.from_list(
            [{"id": f"q{n}", "text": text} for n, text in enumerate(queries)]
        ),
        "relevant_docs": {
            f"q{q}": {f"d{d}": 1 for d in np.flatnonzero(row)} for q, row in enumerate(relevance)
        },
        "top_ranked": None,
    }
    task.dataset = {"default": {"test": split}}
    task.data_loaded = True
    scores = scores_of(tmp_path, task)
    similarities = encoder.similarity(
        encoder.encode_query(queries), encoder.encode_document(documents)
    )
    assert scores["ndcg_at_10"] == pytest.approx(
        ndcg_score(relevance, similarities, k=10), abs=1e-4
    )
