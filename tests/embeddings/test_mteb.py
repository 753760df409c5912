"""`SentenceEncoder` under mteb's runner: the scores of the same folder in sentence-transformers, prompts and all."""

import numpy as np
import pytest

from albertkit.embeddings.encoder import SentenceEncoder
from albertkit.embeddings.evaluation import evaluate

mteb = pytest.importorskip("mteb")
datasets = pytest.importorskip("datasets")
sentence_transformers = pytest.importorskip("sentence_transformers")

PROMPTS = {"query": "the fox ", "document": "the dog ", "STS": "over rivers "}


def of_pairs(sentences: list[str]):
    """mteb's KorSTS with pairs of our own."""
    task = mteb.get_task("KorSTS")
    scores = np.random.default_rng(2).uniform(0, 5, 100)
    columns = {"sentence1": sentences[:100], "sentence2": sentences[100:200], "score": scores.tolist()}
    task.dataset, task.data_loaded = {"test": datasets.Dataset.from_dict(columns)}, True
    return task


def of_documents(sentences: list[str]):
    """mteb's SciFact with texts of our own."""
    task = mteb.get_task("SciFact")
    texts = [text or "calm" for text in sentences]
    corpus = datasets.Dataset.from_list(
        [{"id": f"d{n}", "title": "", "text": text} for n, text in enumerate(texts[:200])]
    )
    queries = datasets.Dataset.from_list([{"id": f"q{n}", "text": text} for n, text in enumerate(texts[200:240])])
    relevant = {f"q{n}": {f"d{(7 * n) % 200}": 1, f"d{(3 * n) % 200}": 1} for n in range(40)}
    split = {"corpus": corpus, "queries": queries, "relevant_docs": relevant, "top_ranked": None}
    task.dataset, task.data_loaded = {"default": {"test": split}}, True
    return task


def scores_of(model, task) -> dict[str, float]:
    (result,) = mteb.evaluate(model, task, cache=None, show_progress_bar=False)
    (scores,) = result.scores["test"]
    defined = {name: value for name, value in scores.items() if isinstance(value, float) and value == value}
    assert len(defined) > 5
    # nauc: areas over confidences, in which two texts that are equally near may change places
    return {name: value for name, value in defined.items() if "time" not in name and not name.startswith("nauc")}


@pytest.mark.parametrize("prompts", [{}, PROMPTS], ids=["plain", "prompts"])
@pytest.mark.parametrize("make", [of_pairs, of_documents])
def test_mteb_gives_an_encoder_the_scores_of_its_folder_in_sentence_transformers(
    encoder, sentences, tmp_path, make, prompts
):
    encoder.settings["prompts"] = prompts
    encoder.save_pretrained(tmp_path)
    ours = scores_of(SentenceEncoder.from_pretrained(tmp_path), make(sentences))
    theirs = scores_of(sentence_transformers.SentenceTransformer(str(tmp_path), device="cpu"), make(sentences))
    assert ours == pytest.approx(theirs, abs=1e-4)
    if prompts:
        encoder.settings["prompts"] = {}
        assert scores_of(encoder, make(sentences)) != pytest.approx(theirs, abs=1e-4)


def test_the_command_measures_on_tasks(encoder, sentences, tmp_path, run_command, monkeypatch):
    encoder.save_pretrained(tmp_path / "model")
    monkeypatch.setattr(evaluate, "find_tasks", lambda names: [of_pairs(sentences)])
    done = run_command("embed", "evaluate", tmp_path / "model", "--mteb", "KorSTS", "--json")
    assert done.status == 0, done.err
    found = done.json["mteb"]["KorSTS"]
    assert found["metric"] == "cosine_spearman"
    assert found["score"] == pytest.approx(scores_of(encoder, of_pairs(sentences))["main_score"], abs=1e-5)
    assert "cosine_spearman" in run_command("embed", "evaluate", tmp_path / "model", "--mteb", "KorSTS").out


def test_several_models_and_a_prompt(encoder, sentences, tmp_path, run_command, monkeypatch):
    for name in "ab":
        encoder.save_pretrained(tmp_path / name)
    monkeypatch.setattr(evaluate, "find_tasks", lambda names: [of_pairs(sentences)])
    both = run_command(
        "embed", "evaluate", tmp_path / "a", tmp_path / "b", "--mteb", "KorSTS", "--table", tmp_path / "table.md"
    )
    head, _, *rows = [line for line in (tmp_path / "table.md").read_text().splitlines() if line.startswith("|")]
    assert "KorSTS of mteb" in head
    assert all(row.count("|") == head.count("|") for row in rows)
    assert (both.status, both.out.count("cosine_spearman")) == (0, 3), both.err  # compared, and of each
    done = run_command("embed", "evaluate", tmp_path / "a", "--mteb", "KorSTS", "--prompt", "the ")
    assert (done.status, "error[conflicting-options]" in done.err) == (2, True)


def test_unknown_tasks_and_missing_data_are_named(encoder, tmp_path, run_command, monkeypatch):
    encoder.save_pretrained(tmp_path / "model")
    done = run_command("embed", "evaluate", tmp_path / "model", "--mteb", "KorSTSS")
    assert (done.status, "error[unknown-name]" in done.err, "`KorSTS`" in done.err) == (2, True, True)

    def unreachable(self, **_: object) -> None:
        raise ConnectionError("no network")

    monkeypatch.setattr(type(mteb.get_task("KorSTS")), "load_data", unreachable)
    done = run_command("embed", "evaluate", tmp_path / "model", "--mteb", "KorSTS")
    assert (done.status, "error[unreachable]" in done.err, "no network" in done.err) == (1, True, True)
