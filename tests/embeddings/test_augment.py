"""`embed augment` with a cross-encoder that has learned a rule: silver pairs, their scores, their balance."""

import json
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from record_files import write_lines

from albertkit.embeddings import augment as scoring
from albertkit.embeddings.augment import CrossEncoder, augment, balance_score_bands
from albertkit.errors import AlbertKitError
from albertkit.tables.columns import Columns
from albertkit.tables.table import Table
from albertkit.tasks.finetune import finetune
from albertkit.tasks.models import load_task_model, run_model
from albertkit.tasks.settings import FinetuneSettings
from albertkit.tasks.texts import TextExample

TABLE = Columns(text="one", pair="other", label="score")


def write_gold(path, words, rows, seed):
    """Pairs; the score, 0 to 4, says how many of the two texts have a wizard in them, times 2."""
    random = np.random.default_rng(seed)
    other_words = [word for word in words if word != "wizards"]
    lines = ["one\tother\tscore"]
    for _ in range(rows):
        sides = []
        for _ in range(2):
            side = list(random.choice(other_words, random.integers(3, 8)))
            if random.random() < 0.5:
                side.insert(int(random.integers(len(side) + 1)), "wizards")
            sides.append(" ".join(side))
        lines.append(f"{sides[0]}\t{sides[1]}\t{2 * sum('wizards' in side for side in sides)}")
    write_lines(path, lines)
    return path


@pytest.fixture(scope="module")
def gold(tmp_path_factory, words):
    folder = tmp_path_factory.mktemp("gold")
    for name, rows, seed in (("train", 240, 1), ("dev", 60, 2), ("test", 30, 3)):
        write_gold(folder / f"{name}.tsv", words, rows, seed)
    return folder


@pytest.fixture(scope="module")
def cross_encoder(tmp_path_factory, checkpoint, gold):
    folder = tmp_path_factory.mktemp("cross") / "run"
    settings = FinetuneSettings(
        epochs=6, lr=2e-3, batch_size=16, length=32, eval_every=30, precision="fp32"
    )
    finetune("regress", checkpoint, gold, folder, settings, columns=TABLE)
    return folder


@pytest.fixture(scope="module")
def augment_gold(gold, cross_encoder):
    """`augment_gold(out, **options)`: the report of silver pairs beside the gold ones."""
    return partial(augment, "scores", gold, cross_encoder=cross_encoder, columns=TABLE)


@pytest.fixture(scope="module")
def semantic(checkpoint):
    """Options that find semantic neighbours."""
    return dict(sampler="semantic", encoder=checkpoint, precision="fp32", balance=1.0)


@pytest.fixture(scope="module")
def silver(tmp_path_factory, augment_gold, semantic):
    """A table of semantic neighbours, its report."""
    out = tmp_path_factory.mktemp("silver") / "silver.tsv"
    return out, augment_gold(out, **semantic)


def rows_of(path):
    with Table(path) as table:
        assert table.columns == ("score", "text", "pair", "sampler", "rank")
        return [row.values for row in table.rows()]


def gold_pairs(gold):
    lines = [
        line.split("\t")
        for name in ("train", "dev", "test")
        for line in (gold / f"{name}.tsv").read_text().splitlines()[1:]
    ]
    return [frozenset(line[:2]) for line in lines]


def test_silver_pairs_are_unique_unordered_and_not_gold(silver, gold):
    """Acceptance test 9."""
    rows = rows_of(silver[0])
    pairs = [frozenset((row["text"], row["pair"])) for row in rows]
    assert len(rows) == silver[1].pairs > 300
    assert len(set(pairs)) == len(pairs)
    assert all(len(pair) == 2 for pair in pairs)
    assert not set(pairs) & set(gold_pairs(gold))
    assert {row["sampler"] for row in rows} == {"semantic"}
    assert {row["rank"] for row in rows} == {"1", "2", "3"}


def test_gold_pairs_are_removed_in_either_order(gold, tmp_path, augment_gold):
    """All pairs of a handful of gold texts are candidates, gold ones among them."""
    lines = (gold / "train.tsv").read_text().splitlines()[1:6] + (
        gold / "dev.tsv"
    ).read_text().splitlines()[1:3]
    swapped = [line.split("\t")[:2][::-1] for line in lines]
    texts = tmp_path / "texts.txt"
    write_lines(texts, (text for pair in swapped for text in pair))
    out = tmp_path / "silver.tsv"
    report = augment_gold(out, texts=texts, sampler="random", top_k=13, balance=0)
    assert report.texts == 14
    assert 0 < report.gold_removed <= 7
    pairs = {frozenset((row["text"], row["pair"])) for row in rows_of(out)}
    assert not pairs & {frozenset(pair) for pair in swapped}
    assert len(pairs) == report.pairs == report.candidates["random"] - report.gold_removed


def test_scores_are_the_cross_encoders(silver, cross_encoder):
    rows = rows_of(silver[0])[:50]
    task, model, tokenizer = load_task_model(cross_encoder)
    for row in rows:
        example = [TextExample("", row["text"], row["pair"])]
        features = task.features(example, tokenizer, labelled=False)
        (alone,) = task.predictions(example, features, run_model(model, task, features, 8192))
        assert float(row["score"]) == pytest.approx(np.clip(alone["value"], 0, 4), abs=2e-4)
    # The score of another pair would be noticed
    assert abs(float(rows[1]["score"]) - float(rows[0]["score"])) > 2e-4


def test_bands_say_what_was_found_and_kept(silver):
    path, report = silver
    scores = np.array([float(row["score"]) for row in rows_of(path)])
    edges = [0, 0.8, 1.6, 2.4, 3.2, 4]
    assert [band["from"] for band in report.bands] == pytest.approx(edges[:-1])
    counts = np.histogram(scores, edges)[0]
    # The table rounds to four digits
    assert np.abs(counts - [band["after"] for band in report.bands]).max() <= 1
    limit = np.median([band["before"] for band in report.bands if band["before"]])
    assert [band["after"] for band in report.bands] == [
        min(band["before"], round(limit)) for band in report.bands
    ]
    assert any(band["after"] < band["before"] for band in report.bands)


def test_the_same_seed_gives_the_same_bytes(silver, tmp_path, augment_gold, semantic):
    same_seed = tmp_path / "again.tsv"
    other_seed = tmp_path / "other.tsv"
    augment_gold(same_seed, **semantic)
    augment_gold(other_seed, **semantic, seed=1)
    assert same_seed.read_bytes() == silver[0].read_bytes()
    assert other_seed.read_bytes() != silver[0].read_bytes()
    report = json.loads(same_seed.with_suffix(".json").read_text())
    assert report["made_with"]["sampler"] == "semantic"
    assert report["dev"]["spearman"] > 0.5


def test_texts_are_compared_composed_and_on_one_line(tmp_path, augment_gold):
    texts = tmp_path / "texts.txt"
    texts.write_text(
        "the quick  fox\nthe quick fox\n\ncafe\u0301 fox\ncaf\u00e9 fox\nseven\told wizards\n"
    )
    report = augment_gold(tmp_path / "silver.tsv", texts=texts, sampler="random", balance=0)
    assert report.texts == 3
    plain = {"the quick fox", "café fox", "seven old wizards"}
    assert {row["text"] for row in rows_of(tmp_path / "silver.tsv")} <= plain


def test_a_weak_cross_encoder_is_refused_with_its_figure(
    gold, checkpoint, tmp_path, error_of, augment_gold
):
    untrained = tmp_path / "run"
    settings = FinetuneSettings(steps=1, lr=1e-9, batch_size=4, length=32)
    finetune("regress", checkpoint, gold, untrained, settings, columns=TABLE)
    out = tmp_path / "silver.tsv"
    error = error_of(augment_gold, out, cross_encoder=untrained)
    with pytest.raises(AlbertKitError, match="gold dev pairs"):
        augment_gold(out, cross_encoder=untrained, dev=str(gold / "dev.tsv"))
    assert error.slug == "doubtful"
    assert "60 gold dev pairs" in error.message
    assert not out.exists()
    report = augment_gold(out, cross_encoder=untrained, force=True)
    assert not report.dev["spearman"] >= 0.5
    assert out.exists()


def test_another_scale_is_reported(gold, cross_encoder, tmp_path):
    """Gold from 0 to 1, a cross-encoder from 0 to 4: it agrees, but its scores mean something else."""
    for name in ("train", "dev"):
        lines = [line.split("\t") for line in (gold / f"{name}.tsv").read_text().splitlines()]
        scaled = [
            [first, second, score if score == "score" else str(float(score) / 4)]
            for first, second, score in lines
        ]
        write_lines(tmp_path / f"{name}.tsv", map("\t".join, scaled))
    report = augment(
        "scores", tmp_path, tmp_path / "silver.tsv", cross_encoder=cross_encoder, columns=TABLE
    )
    assert report.dev["spearman"] > 0.5
    assert report.clipped > 0
    assert "another scale" in report.notes[-1]


@pytest.mark.parametrize(
    ("arguments", "slug"),
    [
        ({"sampler": "semantic"}, "bad-value"),
        ({"sampler": "bm25", "encoder": "model"}, "bad-value"),
        ({"top_k": 0}, "bad-value"),
        ({"balance": -1}, "bad-value"),
        ({"kind": "mnli"}, "unknown-name"),
        ({"columns": Columns()}, "missing-column"),
        ({"cross_encoder": "nowhere"}, "not-found"),
        ({"sampler": "mixed", "encoder": "model"}, "unknown-name"),
        ({"balance": float("nan")}, "bad-value"),
        ({"balance": float("inf")}, "bad-value"),
        ({"out": Path("silver.json")}, "bad-value"),
    ],
)
def test_mistakes_have_names(gold, cross_encoder, tmp_path, arguments, slug, slug_of):
    valid = dict(
        kind="scores", gold=gold, cross_encoder=cross_encoder, out=tmp_path / "s.tsv", columns=TABLE
    )
    assert slug_of(augment, **valid | arguments) == slug
    assert not (tmp_path / "s.tsv").exists()


def test_the_command_prints_the_bands(gold, cross_encoder, tmp_path, run_command):
    out = tmp_path / "silver.tsv"
    columns = ("--text", "one", "--pair", "other", "--label", "score")
    command = (
        "embed",
        "augment",
        "scores",
        gold,
        "--cross-encoder",
        cross_encoder,
        "--out",
        out,
        *columns,
    )
    output = run_command(*command).out
    assert "0 to 0.8" in output
    assert "Spearman" in output
    refused = run_command(*command, "--json")
    assert refused.status == 2
    assert "[exists]" in refused.err
    assert run_command(*command, "--json", "--overwrite").json["pairs"] == len(rows_of(out))


def test_no_limit_keeps_everything_and_no_rows_are_no_error():
    scores = np.random.default_rng(0).uniform(0, 5, 100)
    kept_rows, bands = balance_score_bands(scores, 0, 5, 0, seed=0)
    assert len(kept_rows) == 100 == sum(band["before"] for band in bands)
    assert balance_score_bands(scores[:0], 0, 5, 2.0, seed=0)[0].tolist() == []
    assert balance_score_bands(np.array([5.0, 0.0]), 0, 5, 2.0, seed=0)[1][-1]["before"] == 1


def test_scores_of_chunks_are_those_of_a_whole_and_progress_is_shown(
    tmp_path, monkeypatch, capfd, augment_gold
):
    options = dict(sampler="random", balance=0, precision="fp32")
    unchunked = tmp_path / "whole.tsv"
    chunks = tmp_path / "chunks.tsv"
    augment_gold(unchunked, **options)
    monkeypatch.setattr(scoring, "CHUNK", 100)
    monkeypatch.setattr("albertkit.output.progress._LINE_SECONDS", 0.0)
    augment_gold(chunks, **options, progress=True)
    output = capfd.readouterr().err
    assert "gold dev: 60 of 60 pairs" in output
    assert "candidates: 100 of 1," in output
    rows = [[float(row["score"]) for row in rows_of(path)] for path in (unchunked, chunks)]
    np.testing.assert_allclose(*rows, atol=2e-4)
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "chunks.json",
        "chunks.tsv",
        "whole.json",
        "whole.tsv",
    ]


def test_models_that_give_pairs_no_score_are_refused_with_what_to_do(
    gold, checkpoint, tmp_path, error_of, augment_gold
):
    settings = FinetuneSettings(steps=1, batch_size=4, length=32)
    finetune("classify", checkpoint, gold, tmp_path / "run", settings, columns=TABLE)
    for model, hint in ((tmp_path / "run", "korsts MODEL"), (checkpoint, f"korsts {checkpoint}")):
        error = error_of(augment_gold, tmp_path / "s.tsv", cross_encoder=model)
        assert error.slug == "wrong-model"
        assert f"albertkit finetune {hint} DATA --out RUN" in error.hint


def test_sentence_transformers_gives_the_cross_encoders_scores_without_a_sigmoid(cross_encoder):
    import sentence_transformers as st

    pairs = [("the quick wizards", "wizards"), ("a lazy dog", "calm rivers")]
    theirs = st.CrossEncoder(str(cross_encoder / "best"), device="cpu").predict(pairs)
    ours = CrossEncoder(cross_encoder, 8192, "fp32", "cpu").scores(*zip(*pairs, strict=True))
    assert np.abs(theirs - ours).max() < 1e-4
    assert max(theirs) > 1
