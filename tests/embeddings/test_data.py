"""What becomes of the rows of each kind of data, and what an update is made of."""

import json
import re
import unicodedata
from pathlib import Path

import numpy as np
import pytest
import torch

from albertkit.batches.features import ExampleStream
from albertkit.command import Columns
from albertkit.embeddings.data import (
    CLASSES,
    TextExamples,
    make_triplets_and_count_unpaired,
    read_embedding_data,
    read_scored_pairs,
    read_texts,
    select_entailed,
    split_train_and_dev_rows,
)
from albertkit.embeddings.losses import EmbeddingObjective, TeacherDistance
from albertkit.embeddings.options import EmbedTrainOptions
from albertkit.embeddings.settings import EmbedSettings
from albertkit.embeddings.train import (
    apply_length_and_dropout,
    example_features,
    number_equal_texts,
)
from albertkit.errors import ConfigError, DataError
from albertkit.tables.bad_rows import BadRows

NAMED = Columns(text="a", pair="b", label="y")
UNNAMED = Columns()


def read_data(kind, data, *, on_error="stop", held_out=0.1, **options):
    """Read what `embed train` would."""
    options = EmbedTrainOptions(
        kind, "model", data, "out", EmbedSettings(held_out=held_out), **options
    )
    return read_embedding_data(options, True, BadRows(on_error))


def texts_of_example(file, columns=UNNAMED, count=None):
    return read_texts(file, columns, count, BadRows())


@pytest.fixture
def write_rows(tmp_path):
    """`write_rows(name, *rows)`: a file of these lines."""

    def write(name, *rows):
        (tmp_path / name).write_text("\n".join(rows) + "\n", encoding="utf-8")
        return tmp_path / name

    return write


def test_korsts_keeps_every_row_and_its_quotes(data):
    loaded = read_data("korsts", data / "korean/korsts")
    assert (len(loaded.train), len(loaded.dev)) == (5749, 1500)  # parsers that see quotes lose rows
    assert loaded.train.targets.min() == 0
    assert loaded.train.targets.max() == 1
    assert loaded.dev.targets.min() == 0
    assert loaded.dev.targets.max() == 5
    assert loaded.notes[1] == "scores: 0 to 5, divided by 5"


def test_klue_without_a_dev_file_is_held_out_and_another_kind_can_choose(data):
    klue = data / "korean/klue"
    loaded = read_data("klue-sts", klue / "klue-sts-v1.1_dev.json", held_out=0.2)
    assert len(loaded.train) + len(loaded.dev) == 519
    assert len(loaded.dev) == 104
    inference = read_data(
        "klue-nli",
        klue / "klue-nli-v1.1_dev.json",
        dev=data / "korean/korsts",
        dev_kind="korsts",
    )
    assert len(inference.dev) == 1500
    assert all(len(texts) == 3 for texts in inference.train.texts)
    assert "`sts-dev.tsv`" in inference.notes[0]


def test_a_table_is_scaled_by_its_own_range_and_silver_by_the_same(write_rows, tmp_path):
    gold = write_rows("train.tsv", "a\tb\ty", "p\tq\t1", "r\ts\t3", "t\tu\t2")
    write_rows("dev.tsv", "a\tb\ty", "p\tq\t9", "r\ts\t8")
    silver = write_rows(
        "silver.tsv", "score\ttext\tpair\tsampler\trank", "2.5\tv\tw\tbm25\t1", "7\tx\ty\tbm25\t2"
    )
    loaded = read_data("scores", tmp_path, columns=NAMED, silver=silver)
    assert loaded.train.texts[3:] == [("v", "w"), ("x", "y")]
    assert loaded.train.targets.tolist() == [0, 1, 0.5, 0.75, 1]
    assert loaded.dev.targets.tolist() == [9, 8]  # an order is all that is asked of them
    assert loaded.notes[1:3] == [
        "scores: 1 to 3 in training, made 0 to 1",
        "silver: 2 pairs beside 3, with scores of 2.50 to 7.00 on their scale",
    ]
    assert gold.exists()


def test_triplets_are_those_of_the_recipe():
    pairs = TextExamples(
        [("p", "e1"), ("p", "c1"), ("p", "e2"), ("p", "n"), ("lonely", "e3"), ("q", "c2"), ("q", "e4")],
        np.array([CLASSES.index(name) for name in (*"ec", *"en", *"ec", "e") for name in [
            {"e": "entailment", "c": "contradiction", "n": "neutral"}[name]]]),
    )  # fmt: skip
    triplets, alone = make_triplets_and_count_unpaired(pairs)
    assert triplets.texts == [
        ("p", "e1", "c1"), ("e1", "p", "c1"), ("p", "e2", "c1"), ("e2", "p", "c1"), ("q", "e4", "c2"), ("e4", "q", "c2"),
    ]  # fmt: skip
    assert alone == 1
    assert select_entailed(pairs).texts == [("p", "e1"), ("lonely", "e3"), ("q", "e4")]


# Pairs of which several have something in common, and what is on one side only.
CONNECTED = {
    "first texts": [(f"some text {n // 3}", f"another line {n}") for n in range(90)],
    "second texts": [(f"another line {n}", f"some text {n // 3}") for n in range(90)],
    "swapped": [
        (f"some text {n // 2}", f"this text {n // 2}")[:: 1 if n % 2 else -1] for n in range(90)
    ],
    "case": [
        ((f"some text {n // 2}", f"SOME TEXT {n // 2}")[n % 2], f"another line {n}")
        for n in range(90)
    ],
    "width": [
        ((f"some text {n // 2}", f"ｓｏｍｅ ｔｅｘｔ {n // 2}")[n % 2], f"another line {n}")
        for n in range(90)
    ],
    "white space": [
        ((f"some text {n // 2}", f" some text\u00a0 {n // 2}")[n % 2], f"another line {n}")
        for n in range(90)
    ],
    "punctuation": [
        (f"another line {n}", (f"some text {n // 2}", f"Some text, {n // 2}!")[n % 2])
        for n in range(90)
    ],
}


@pytest.mark.parametrize("name", CONNECTED)
def test_held_out_pairs_have_no_text_in_common_with_train(write_rows, name):
    rows = CONNECTED[name]
    train, dev = split_train_and_dev_rows(rows, 0.2, Path("data"))
    assert sorted(train + dev) == list(range(90))
    assert 18 <= len(dev) <= 20

    def numbers(indices):  # of the texts in which `text` occurs, whatever it looks like
        texts = (unicodedata.normalize("NFKC", text).lower() for n in indices for text in rows[n])
        return {re.sub(r"\D", "", text) for text in texts if "text" in text}

    assert numbers(train).isdisjoint(numbers(dev))
    loaded = read_data("pairs", write_rows("pairs.tsv", *map("\t".join, rows)), held_out=0.2)
    assert not [
        note
        for note in loaded.notes
        if "text with a training example" in note or "in train, too" in note
    ]


def test_too_few_rows_cannot_be_held_out():
    with pytest.raises(DataError, match="no dev file"):
        split_train_and_dev_rows([("one", "two")], 0.5, Path("data"))


def test_texts_are_lines_and_rows_are_tables(write_rows):
    lines = write_rows("lines.txt", "one, two", "", '"three"')
    assert texts_of_example(lines) == [("one, two",), ('"three"',)]
    rows = write_rows("rows.txt", "one\ttwo\tby A", "three\tfour\tby B")
    assert texts_of_example(rows) == [("one", "two", "by A"), ("three", "four", "by B")]
    columns = Columns(columns="en,ko,by", text="ko", pair="en")
    assert texts_of_example(rows, columns, 2) == [("two", "one"), ("four", "three")]
    table = write_rows("named.csv", "x,y", "one,two")
    assert texts_of_example(table, Columns(text="y")) == [("two",)]


@pytest.mark.parametrize(
    ("rows", "slug", "message"),
    [
        (["one\ttwo\tthree"], "bad-row", "line 1: 3 columns"),
        (["one\ttwo", "three"], "bad-row", "line 2: 1 field, but the table has 2 columns"),
        (["one\ttwo", "three\t "], "bad-row", "line 2: `column 2` is empty"),
    ],
)
def test_wrong_columns_are_refused_with_the_line(write_rows, rows, slug, message, error_of):
    file = write_rows("pairs.tsv", *rows)
    error = error_of(texts_of_example, file, UNNAMED, 2)
    assert error.slug == slug
    assert message in error.message


def test_rows_that_cannot_be_used_are_counted(write_rows):
    file = write_rows("pairs.tsv", "one\ttwo", "three", "four\tfive", "six\tseven")
    dev = write_rows("dev.tsv", "eight\tnine")
    loaded = read_data("pairs", file, dev=dev, on_error="skip")
    assert len(loaded.train) == 3
    assert any(note.startswith("rows left out: 1 (the first: line 2") for note in loaded.notes)


@pytest.mark.parametrize(
    ("kind", "options", "slug"),
    [
        ("korst", {}, "unknown-name"),
        ("scores", {"columns": Columns(text="a", pair="b")}, "missing-column"),
        ("pairs", {"silver": Path("silver.tsv")}, "conflicting-options"),
        ("pairs", {"dev_kind": "korsts"}, "conflicting-options"),
        ("pairs", {"columns": NAMED}, "conflicting-options"),
        ("texts", {}, "too-little-data"),
        ("nli", {"columns": NAMED}, "bad-label"),
    ],
)
def test_what_does_not_fit_is_refused(write_rows, kind, options, slug, slug_of):
    rows = ["p", "q"] if kind == "texts" else ["a\tb\ty", "p\tq\tmaybe", "r\ts\tentailment"]
    file = write_rows("data.tsv", *rows)
    assert slug_of(read_data, kind, file, **options) == slug


def test_scored_pairs_are_found_in_a_folder_or_a_file(data):
    folder = data / "korean/korsts"
    file = data / "korean/korsts/sts-test.tsv"
    in_folder = read_scored_pairs("korsts", folder, BadRows())
    assert in_folder.texts == read_scored_pairs("korsts", folder / "sts-dev.tsv", BadRows()).texts
    assert len(read_scored_pairs("korsts", file, BadRows())) == 1379
    with pytest.raises(ConfigError, match="`nli` is not a format with scores"):
        read_scored_pairs("nli", folder, BadRows())


# --- updates --------------------------------------------------------------------------------------


@pytest.fixture
def pairs(words):
    """30 pairs of 1 to 12 words, some texts of which are in two of them."""
    rng = np.random.default_rng(2)
    texts = [" ".join(rng.choice(words, rng.integers(1, 13))) for _ in range(60)]
    rows = list(zip(texts[::2], texts[1::2], strict=True))
    return TextExamples(
        [*rows[:28], (rows[0][0], rows[28][1]), (rows[29][0], rows[1][0])],
        np.arange(30, dtype=np.float32),
    )


def test_an_update_is_whole_examples_with_their_own_targets(encoder, pairs):
    goals = np.random.default_rng(3).normal(size=(30, 32)).astype(np.float32)
    features = example_features(encoder, pairs.texts)
    objective = EmbeddingObjective(encoder, "mse", TeacherDistance("mse"), 2, goals)
    stream = ExampleStream(features, grouped=True, batch_size=7, batch_tokens=1 << 62, seed=4)
    visited = []
    for _ in range(5):
        (batch,) = next(stream)
        numbers = batch.examples[::2].tolist()
        visited += numbers
        part = objective.losses(batch)["mse"]
        assert part.count == objective.count_targets(batch)["mse"] == len(numbers)
        with torch.no_grad():
            sides = [encoder(encoder.features([pairs.texts[n][k] for n in numbers]).batch(np.arange(len(numbers))).packed)
                     for k in (0, 1)]  # fmt: skip
        expected = np.mean([(side.numpy() - goals[numbers]) ** 2 for side in sides])
        assert part.total.item() / part.count == pytest.approx(expected, rel=1e-5)
        shifted = np.mean([(side.numpy() - goals[np.roll(numbers, 1)]) ** 2 for side in sides])
        assert part.total.item() / part.count != pytest.approx(shifted, rel=1e-3)
    assert sorted(visited) == list(range(30))


def test_an_example_that_shares_a_text_with_another_is_no_negative(encoder, pairs):
    numbers = number_equal_texts(pairs)
    assert numbers[28, 0] == numbers[0, 0]
    assert numbers[29, 1] == numbers[1, 0]
    features = example_features(encoder, pairs.texts)

    class Counted(torch.nn.Module):
        def forward(self, vectors, targets):
            assert len(vectors[0]) == len(targets) == 28
            assert (
                set(targets.tolist()).isdisjoint({28, 29})
                or len(set(targets.tolist()) & {0, 1, 28, 29}) == 2
            )
            return vectors[0].sum()

    objective = EmbeddingObjective(encoder, "mnrl", Counted(), 2, pairs.targets, numbers)
    batch = next(ExampleStream(features, grouped=True, batch_size=30, batch_tokens=1 << 62))[0]
    assert objective.count_targets(batch) == {"mnrl": 28}
    assert objective.losses(batch)["mnrl"].count == 28


def test_another_dropout_changes_nothing_but_training(encoder):
    before = encoder.encode(["the quick brown fox"], precision="fp32")
    apply_length_and_dropout(encoder, EmbedSettings(dropout=0.1, length=20))
    assert encoder.max_length == 20
    assert np.array_equal(encoder.eval().encode(["the quick brown fox"], precision="fp32"), before)
    features = encoder.features(["the quick brown fox"] * 2)
    vectors = encoder.train()(features.batch(np.arange(2)).packed)
    assert not torch.equal(vectors[0], vectors[1])
    encoder.eval()
    assert torch.equal(*encoder(features.batch(np.arange(2)).packed))


SENTENCES = [
    f"{name} {verb} {n}"
    for n, (name, verb) in enumerate([("Ann", "sees"), ("Bob", "hears"), ("Eve", "reads")] * 9)
]


@pytest.mark.parametrize(
    ("of_row", "message"),
    [
        (
            lambda n: f"CC-BY 2.0 (France) Attribution: example.org #{n}",
            "licence notes, such as `CC-BY 2.0 (France)",
        ),
        (lambda n: f"https://example.org/{n}", "addresses, such as `https://example.org/0`"),
        (lambda n: f"sent-{n:04}", "ids, numbers or dates, such as `sent-0000`"),
        (lambda n: f"2021-03-{n % 28 + 1:02} 10:00", "ids, numbers or dates"),
        (lambda n: f"{n} Mar 2021", "ids, numbers or dates"),
        (lambda n: "eng", "1 different value in 27 rows, such as `eng`"),
        (
            lambda n: f"Taken from the corpus of {'abcdefghi'[n % 9]}",
            "values that all begin with `Taken from the corpus of `",
        ),
    ],
)
def test_a_column_without_sentences_is_refused_with_the_options_that_name_the_others(
    write_rows, of_row, message, error_of
):
    rows = [f"{text}\t{text[::-1]}\t{of_row(n)}" for n, text in enumerate(SENTENCES)]
    file = write_rows("pairs.tsv", *rows)
    error = error_of(texts_of_example, file)
    assert error.slug == "doubtful"
    assert "`column 3` holds" in error.message
    assert message in error.message
    assert error.hint == "name the columns to read: --columns c1,c2,c3 --text c1 --pair c2"
    columns = Columns(columns="c1,c2,c3", text="c1", pair="c2")
    assert texts_of_example(file, columns) == [(text, text[::-1]) for text in SENTENCES]


def test_named_columns_of_json_and_several_languages_are_hinted_at(write_rows):
    rows = [
        f'{{"id": "a{n}", "one": "{text}", "two": "{text} 가"}}' for n, text in enumerate(SENTENCES)
    ]
    with pytest.raises(DataError, match="`id` holds ids") as caught:
        texts_of_example(write_rows("pairs.jsonl", *rows))
    assert caught.value.hint == "name the columns to read: --text one --pair two"
    rows = [f"{n}\t{text}\t{text}a\t{text}b" for n, text in enumerate(SENTENCES)]
    file = write_rows("four.tsv", *rows)
    with pytest.raises(DataError) as caught:
        texts_of_example(file)
    assert caught.value.hint.endswith(f"or keep all 3 of them: cut -f 2,3,4 {file} > texts.tsv")


def test_sentences_are_not_taken_for_anything_else(write_rows):
    rows = [
        f"query: {text}\t{text}\t2020년에 {text} 태어났습니다" for n, text in enumerate(SENTENCES)
    ]
    rows += ["Hello\tAnswered 14 of 20 questions, see https://example.org\t그래"] * 9
    assert len(texts_of_example(write_rows("a.tsv", *rows))) == 36


def test_tatoeba_as_downloaded_is_refused(data):
    file = data / "parallel-en-ko/tatoeba_kor-eng.txt"
    with pytest.raises(DataError, match=r"\[doubtful\].*`column 3` holds licence notes"):
        texts_of_example(file)
    columns = Columns(columns="c1,c2,c3", text="c1", pair="c2")
    assert texts_of_example(file, columns)[0] == ("Who?", "누구?")


def test_a_table_is_not_read_as_lines(write_rows, error_of):
    file = write_rows("t.tsv", "one\ttwo", "three\tfour")
    error = error_of(texts_of_example, file, UNNAMED, 1)
    assert error.slug == "doubtful"
    assert error.hint.endswith("--columns c1,c2 --text c2")
    assert len(texts_of_example(write_rows("u.txt", "one\ttwo", "three"), UNNAMED, 1)) == 2


# --- triplets, and the names of pairs -------------------------------------------------------------

TRIPLETS = [(f"query {n}", f"right {n}", f"wrong {n}") for n in range(12)]
BGE = [
    {
        "query": "q1",
        "pos": ["a", "b"],
        "neg": ["x", "y", "z"],
        "pos_scores": [1, 2],
        "type": "normal",
    },
    {"query": "q2", "pos": ["c"], "neg": ["u"], "pos_scores": [1], "type": "normal"},
]


def as_file(write_rows, form):
    """Write `TRIPLETS` in a form."""
    header = ["anchor", "positive", "negative"]
    if form == "jsonl":
        rows = [json.dumps(dict(zip(header, row, strict=True))) for row in TRIPLETS]
    elif form == "bge":
        rows = [json.dumps({"query": q, "pos": [pos], "neg": [neg]}) for q, pos, neg in TRIPLETS]
    else:
        mark = "," if form == "csv" else "\t"
        rows = [mark.join(row) for row in [*([header] if form != "named" else []), *TRIPLETS]]
    return write_rows(
        f"t.{'tsv' if form == 'named' else 'jsonl' if form == 'bge' else form}", *rows
    )


@pytest.mark.parametrize("form", "csv tsv jsonl bge named".split())
def test_triplets_keep_their_negatives_and_dev_pairs_have_none(write_rows, form):
    columns = Columns(columns="anchor,positive,negative") if form == "named" else Columns()
    loaded = read_data("pairs", as_file(write_rows, form), columns=columns)
    assert sorted(
        [*loaded.train.texts, *((*pair, f"wrong{pair[0][5:]}") for pair in loaded.dev.texts)]
    ) == sorted(TRIPLETS)
    assert loaded.notes[0].startswith(f"data: {len(loaded.train)} triplets; dev: {len(loaded.dev)}")
    assert 0 < len(loaded.dev) < 12


def test_lists_of_positives_and_negatives_meet_in_turn(write_rows):
    dev = write_rows("dev.tsv", "query\tpos", "q1\ta", "q9\tv")
    file = write_rows("bge.jsonl", *map(json.dumps, BGE))
    loaded = read_data("pairs", file, dev=dev)
    assert loaded.train.texts == [
        ("q1", "a", "x"),
        ("q1", "b", "y"),
        ("q1", "a", "z"),
        ("q2", "c", "u"),
    ]
    assert loaded.dev.texts == [("q1", "a"), ("q9", "v")]
    notes = "\n".join(loaded.notes)
    assert "not read: `pos_scores`, `type`" in notes
    assert "1 of 2 dev examples are in train, too" in notes
    assert texts_of_example(file, UNNAMED, 2) == [("q1", "a"), ("q1", "b"), ("q2", "c")]
    renamed = write_rows("other.jsonl", json.dumps({"ask": "q1", "found": ["a", "b"]}))
    assert texts_of_example(renamed, Columns(text="ask", pair="found"), 2) == [
        ("q1", "a"),
        ("q1", "b"),
    ]
    bad_rows = BadRows()
    assert read_texts(file, Columns(text="query", pair="pos"), 2, bad_rows, negatives=True)[0] == (
        "q1",
        "a",
    )
    assert bad_rows.notes == [f"`{file}`: read: `query`, `pos`; not read: `neg`"]
    # A table of separated fields has no lists
    csv = write_rows("list.csv", "query,pos", 'q1,"[""a""]"')
    assert texts_of_example(csv, UNNAMED, 2) == [("q1", '["a"]')]


def test_several_negatives_are_all_of_an_example(write_rows):
    rows = [
        "query\tpositive\tnegative_1\tnegative_2",
        *(f"q{n}\tp{n}\tx{n}\ty{n}" for n in range(20)),
    ]
    loaded = read_data("pairs", write_rows("n.tsv", *rows))
    assert {len(row) for row in loaded.train.texts} == {4}
    assert {len(row) for row in loaded.dev.texts} == {2}
    assert "18 pairs and 2 negatives each" in loaded.notes[0]


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"query": "q", "pos": ["a"], "neg": []}, "`neg` is empty"),
        ({"query": "q", "pos": ["a", " "], "neg": ["b"]}, "`pos` is empty"),
        ({"query": "q", "pos": ["a", 3], "neg": ["b"]}, "`pos` is empty, or no list of texts"),
    ],
)
def test_triplets_that_lack_a_text_are_refused(write_rows, row, message):
    with pytest.raises(DataError, match=message):
        read_data("pairs", write_rows("b.jsonl", json.dumps(row)))


def test_a_header_of_pairs_is_known_by_its_names(write_rows, tmp_path):
    rows = [f"what is {n}?\tit is {n}." for n in range(3)]
    for header in (
        "question\tanswer",
        "English\tKorean",
        "ko\ten",
        "Text 1\tText 2",
        "sentence-a\tsentence-b",
    ):
        assert texts_of_example(write_rows("h.tsv", header, *rows), UNNAMED, 2)[0] == (
            "what is 0?",
            "it is 0.",
        )
        assert len(texts_of_example(tmp_path / "h.tsv")) == 3
    bad_rows = BadRows()
    assert len(read_texts(write_rows("o.tsv", "first\tsecond", *rows), Columns(), 2, bad_rows)) == 4
    (note,) = bad_rows.notes
    assert note.endswith(
        "(`first`, `second`) is read as a row of texts; if it names columns: --text first --pair second"
    )
    for header, has_note in (
        ("원문\t번역문", True),
        ("Hello\tBonjour", True),
        ("Hi.\tSalut.", False),
    ):
        bad_rows = BadRows()
        read_texts(write_rows("o.tsv", header, *rows), Columns(), 2, bad_rows)
        assert bool(bad_rows.notes) is has_note
    dictionary = BadRows()
    read_texts(
        write_rows("d.tsv", *(f"word{c}\tmot{c}" for c in "abcdefghi")), Columns(), None, dictionary
    )
    assert dictionary.notes == []
    scored = write_rows("s.tsv", "sentence1\tsentence2\tscore", *(f"{row}\t0.5" for row in rows))
    with pytest.raises(
        DataError,
        match=r"3 columns \(`sentence1`, `sentence2`, `score`\), but an example has 2 texts",
    ):
        read_texts(scored, Columns(), 2, BadRows(), negatives=True)


# --- scores ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("top", "note"),
    [
        (5, "scores: 0 to 5, divided by 5"),
        (1, "scores: 0 to 1, where the published files have 0 to 5"),
        (100, ""),
    ],
)
def test_official_scores_have_one_of_two_scales(write_rows, top, note):
    shares = [0, 0.24, 0.5, 0.76, 1]
    rows = [f"one {n}\ttwo {n}\t{share * top}" for n, share in enumerate(shares)]
    file = write_rows("train.tsv", "sentence1\tsentence2\tscore", *rows)
    if not note:
        with pytest.raises(
            DataError,
            match="the scores are 0 to 100, those of the official pairs 0 to 5, or 0 to 1",
        ):
            read_data("stsb", file, dev=file)
        return
    loaded = read_data("stsb", file, dev=file)
    assert loaded.train.targets.tolist() == pytest.approx(shares)
    assert note in loaded.notes
    assert "5 of 5 dev examples are in train, too: they say nothing about new texts" in loaded.notes
