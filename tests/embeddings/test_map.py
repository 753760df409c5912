"""`embed map`: coordinates and neighbours of real vectors, and what it says of files it cannot draw."""

import json
import re

import numpy as np
import pytest

from albertkit.data.columns import Columns
from albertkit.embeddings import map as module
from albertkit.embeddings.encoder import Projection
from albertkit.embeddings.map import embedding_map
from albertkit.embeddings.models import load_embedding_model


def data_of(path):
    return json.loads(re.search(r'<script id="data" type="application/json">(.*?)</script>', path.read_text(), re.S)[1])


@pytest.fixture
def lines(tmp_path, sentences):
    path = tmp_path / "lines.txt"
    path.write_text("\n".join([*sentences[:120], sentences[1], ""]) + "\n")
    return path


def test_axes_are_principal_components_and_neighbours_the_nearest(checkpoint, lines, tmp_path):
    report = embedding_map(checkpoint, lines, tmp_path / "map.html")
    data = data_of(report.written)
    texts = data["texts"]
    assert texts == list(dict.fromkeys(line for line in lines.read_text().splitlines() if line))
    assert report.texts == len(texts) < report.rows
    vectors = load_embedding_model(checkpoint).encode(texts)
    units = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    centred = units - units.mean(0)
    _, singular, directions = np.linalg.svd(centred.astype(np.float64), full_matrices=False)
    expected = centred @ directions[:2].T
    points = np.array(data["points"])
    for axis in range(2):
        assert np.abs(np.corrcoef(points[:, axis], expected[:, axis])[0, 1]) > 0.9999
    np.testing.assert_allclose(report.variance, singular[:2] ** 2 / (singular**2).sum(), rtol=1e-3)
    cosines = units @ units.T
    np.fill_diagonal(cosines, -2)
    nearest = np.argsort(-cosines, axis=1)[:, :10]
    found = np.take_along_axis(cosines, np.array(data["neighbours"]), 1)
    np.testing.assert_allclose(found, np.take_along_axis(cosines, nearest, 1), atol=1e-5)
    np.testing.assert_allclose(data["cosines"], found, atol=6e-4)


def test_a_table_gives_names_and_second_texts(checkpoint, tmp_path, data, run_command):
    klue = data / "korean" / "klue" / "klue-sts-v1.1_dev.json"
    out = tmp_path / "map.html"
    columns = ["--text", "sentence1", "--pair", "sentence2", "--label", "source"]
    printed = run_command("embed", "map", checkpoint, klue, "--out", out, *columns, "--json").json
    drawn = data_of(out)
    assert printed["rows"] == 2 * 519
    assert len(drawn["texts"]) == printed["texts"] > 1000
    assert drawn["names"][0] == "airbnb-sampled"
    assert len(drawn["names"]) == 6


def test_of_more_texts_a_sample_is_drawn_the_same_in_any_order(checkpoint, tmp_path, sentences, monkeypatch):
    monkeypatch.setattr(module, "MOST_POINTS", 40)
    drawn = []
    for order in (sentences, [*reversed(sentences), *sentences]):
        path = tmp_path / "lines.txt"
        path.write_text("\n".join(order) + "\n")
        report = embedding_map(checkpoint, path, tmp_path / "map.html")
        assert report.texts == 40
        assert "a sample of the" in report.written.read_text()
        drawn.append(set(data_of(report.written)["texts"]))
    assert drawn[0] == drawn[1]
    assert drawn[0] != set([s for s in sentences if s][:40])


def test_constant_vectors_are_refused(encoder, lines, tmp_path, slug_of):
    encoder.projection = Projection(32, 4, "identity")
    encoder.projection.linear.weight.data.zero_()
    encoder.save_pretrained(tmp_path / "model")
    assert slug_of(embedding_map, tmp_path / "model", lines, tmp_path / "map.html") == "wrong-model"
    assert not (tmp_path / "map.html").exists()


@pytest.mark.parametrize(
    ("text", "columns", "slug"),
    [
        ("one\ntwo\n", None, "too-little-data"),
        ("a\tb\n1\t2\n", Columns(label="b"), "missing-column"),
        ("a\tb\n1\t2\n", Columns(text="c"), "missing-column"),
        ("a\tb\n1\t2\n3\n", Columns(text="a"), "bad-row"),
        ("a\tb\n1\t2\n", Columns(text="a", id="b"), "conflicting-options"),
    ],
)
def test_mistakes_have_names(checkpoint, tmp_path, text, columns, slug, slug_of):
    (tmp_path / "in.tsv").write_text(text)
    given = (checkpoint, tmp_path / "in.tsv", tmp_path / "map.html")
    assert slug_of(embedding_map, *given, columns=columns or Columns()) == slug


def test_a_map_is_a_page_and_counts_what_was_cut(checkpoint, lines, tmp_path, slug_of):
    assert slug_of(embedding_map, checkpoint, lines, tmp_path / "m.png") == "bad-value"
    assert not (tmp_path / "m.png").exists()
    (tmp_path / "folder.html").mkdir()
    assert slug_of(embedding_map, checkpoint, lines, tmp_path / "folder.html") == "wrong-kind"
    report = embedding_map(checkpoint, lines, tmp_path / "m.html")
    tokenizer = load_embedding_model(checkpoint).token_ids
    texts = data_of(report.written)["texts"]
    assert report.truncated == int((np.diff(tokenizer(texts).offsets) > 62).sum()) > 0
    assert report.to_dict()["notes"] == [
        f"{report.truncated} of {len(texts)} texts are longer than 62 tokens and were cut"
    ]
