"""`albertkit score`: prediction files of every task against what scikit-learn, seqeval and the official scripts printed."""

import gzip
import json
import random
import subprocess

import pytest
from sklearn.metrics import f1_score

from albertkit.errors import AlbertKitError
from albertkit.files import read_json
from albertkit.tables.bad_rows import BadRows
from albertkit.tasks.choices import choice_task
from albertkit.tasks.evaluate import score_file, show_scores
from albertkit.tasks.tagging import tagging_task
from albertkit.tasks.texts import official_task

from .conftest import THEIR_NAMES, read_examples

GLUE_FILES = {
    "cola": ("cola", "CoLA/dev.tsv"),
    "sst-2": ("sst2", "SST-2/dev.tsv"),
    "mrpc": ("mrpc", "MRPC/dev.tsv"),
    "sts-b": ("stsb", "STS-B/dev.tsv"),
    "qqp": ("qqp", "QQP/dev.tsv"),
    "qnli": ("qnli", "QNLI/dev.tsv"),
    "rte": ("rte", "RTE/dev.tsv"),
    "wnli": ("wnli", "WNLI/dev.tsv"),
    "mnli": ("mnli", "MNLI/dev_matched.tsv"),
    "mismnli": ("mnli", "MNLI/dev_mismatched.tsv"),
}


def submission(file, predictions):
    """GLUE's form."""
    rows = [f"{number}\t{value}\n" for number, value in enumerate(predictions)]
    file.write_text("index\tprediction\n" + "".join(rows), encoding="utf-8")
    return file


def write(file, content):
    """JSON, of records a line each; compressed if the name says so; or text as it is."""
    if isinstance(content, list):
        text = "".join(json.dumps(record) + "\n" for record in content)
    else:
        text = content if isinstance(content, str) else json.dumps(content)
    file.write_bytes(gzip.compress(text.encode()) if file.suffix == ".gz" else text.encode())
    return file


# --- GLUE -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("theirs", GLUE_FILES)
def test_submissions_score_as_scikit_learn_and_scipy_do(golden, tmp_path, theirs):
    name, file = GLUE_FILES[theirs]
    labels = getattr(official_task(name), "labels", ())
    cases = read_json(golden / "glue/metrics.json")["cases"]
    ours = [
        case for case in cases if case["task"] == theirs and case["name"].startswith("dev rows")
    ]
    assert len(ours) >= 3
    for case in ours:
        predictions = [labels[value] if labels else value for value in case["predictions"]]
        path = submission(tmp_path / "predictions.tsv", predictions)
        results = score_file(name, path, golden / "glue/data" / file)
        scores = {key: results[THEIR_NAMES[key]] for key in case["metrics"]}
        undefined = {key for key, value in case["metrics"].items() if value is None}
        assert {key for key, value in scores.items() if value is None} == undefined
        for key in scores.keys() - undefined:
            # Their labels went through float32: 3.8 is 3.7999999
            tolerance = 1e-7 if theirs == "sts-b" else 1e-9
            assert scores[key] == pytest.approx(case["metrics"][key], abs=tolerance)
        assert results["examples"] == len(predictions)
    if theirs != "sts-b":  # one right prediction less must show
        right = next(n for n, value in enumerate(case["predictions"]) if value == case["labels"][n])
        predictions[right] = next(label for label in labels if label != predictions[right])
        changed = score_file(name, submission(path, predictions), golden / "glue/data" / file)
        assert changed["accuracy"] == pytest.approx(results["accuracy"] - 1 / len(predictions))


def test_predictions_are_joined_by_id_or_by_position(tmp_path):
    gold = write(tmp_path / "gold.csv", "id,text,label\na,x,yes\nb,y,no\nc,z,no\n")
    by_id = write(tmp_path / "by_id.csv", "id,prediction\nc,no\na,yes\nb,yes\n")
    by_place = write(tmp_path / "by_place.tsv", "index\tprediction\n0\tyes\n1\tyes\n2\tno\n")
    records = [
        {"id": name, "label": label, "index": 1, **cut}
        for name, label, cut in (("b", "yes", {}), ("c", "no", {"truncated": 9}), ("a", "yes", {}))
    ]
    lines = write(tmp_path / "lines.jsonl.gz", records)
    results = [
        score_file("classify", path, gold, label="label") for path in (by_id, by_place, lines)
    ]
    assert [scores["accuracy"] for scores in results] == [2 / 3] * 3
    assert results[0]["confusion"] == {"names": ["no", "yes"], "counts": [[1, 1], [0, 1]]}


@pytest.mark.parametrize("column", ["ID", "text"])
def test_predictions_in_another_order_are_refused(tmp_path, column):
    """By position the accuracy would be 1/3."""
    gold = write(tmp_path / "gold.csv", "ID,text,label\na,x,yes\nb,y,no\nc,z,no\n")
    record = {"a": ("x", "yes"), "b": ("y", "no"), "c": ("z", "no")}
    rows = [
        {"ID": name, "text": text, "prediction": label} for name, (text, label) in record.items()
    ]
    records = [{name: row[name] for name in (column, "prediction")} for row in rows]
    assert score_file("classify", write(tmp_path / "p.jsonl", records), gold)["accuracy"] == 1
    mixed = write(tmp_path / "mixed.jsonl", records[::-1])
    with pytest.raises(
        AlbertKitError, match=f"(?s)`{column}` in another order.*--id-column {column}"
    ):
        score_file("classify", mixed, gold)
    assert score_file("classify", mixed, gold, id=column)["accuracy"] == 1


def test_tables_of_numbers_and_of_label_sets(tmp_path):
    numbers = write(tmp_path / "gold.csv", "stars\n1\n2\n4\n")
    predicted = write(tmp_path / "predicted.csv", "prediction\n2\n3\n5\n")
    scores = score_file("regress", predicted, numbers, label="stars", out=tmp_path / "out")
    assert scores["mse"] == 1.0
    assert scores["pearson"] == pytest.approx(1.0)
    assert "pairs" not in scores
    assert read_json(tmp_path / "out/results.json")["pairs"] == [
        [1, 2],
        [2, 3],
        [4, 5],
    ]
    sets = write(tmp_path / "sets.tsv", "tags\na,b\n\nb\n")
    records = write(
        tmp_path / "sets.jsonl", '{"labels": ["a", "b"]}\n{"labels": ["c"]}\n{"labels": ["b"]}\n'
    )
    with pytest.raises(AlbertKitError, match="an empty line"):
        score_file("multilabel", records, sets, label="tags")
    scores = score_file(
        "multilabel",
        records,
        write(tmp_path / "sets.jsonl.gz", '{"tags": ["a", "b"]}\n{"tags": []}\n{"tags": ["b"]}\n'),
        label="tags",
    )
    assert scores["f1_micro"] == pytest.approx(6 / 7)
    assert scores["subset_accuracy"] == pytest.approx(2 / 3)
    assert scores["notes"] == ["predicted, but the label of no example: `c`"]


# --- SQuAD ----------------------------------------------------------------------------------------


def test_published_predictions(data, run_command):
    squad = data / "squad"
    predictions = squad / "predictions-v1.1-bert-ensemble.json.gz"
    results = run_command("score", "squad", predictions, squad / "dev-v1.1.json.gz", "--json").json
    assert results["exact_match"] == 86.20624408703878
    assert results["f1"] == 92.19557978351145
    assert results["task"] == "squad1"
    assert results["missing"] == 0
    assert results["extra"] == 0
    low, high = results["intervals"]["exact_match"]
    error = 100 * (0.862 * 0.138 / 10570) ** 0.5
    assert (low, high) == pytest.approx((86.206 - 1.96 * error, 86.206 + 1.96 * error), abs=0.06)


def test_null_odds_as_the_official_script(golden, tmp_path):
    gold = golden / "squad/v20_dev60.json"
    results = read_json(golden / "squad/pred_v2_v20_s384_k5x5.json")["n20_l30"]
    predictions = write(tmp_path / "predictions.json", results["predictions_no_threshold"])
    odds = write(tmp_path / "null_odds.json.gz", results["null_odds"])
    official = results["official_no_threshold"]
    plain = score_file("squad", predictions, gold)
    with_odds = score_file("squad2", predictions, gold, null_odds=odds)
    for scores, theirs in (
        (plain, official["without_na_file"]),
        (with_odds, official["with_na_file"]),
    ):
        assert scores["task"] == "squad2"
        assert {name: scores[name] for name in theirs} == pytest.approx(theirs, abs=1e-9)
        assert scores["exact_match"] == scores["exact"]
    assert plain["exact"] != with_odds["exact"]
    assert "null odds above 1" in with_odds["notes"][0]
    unruled = score_file("squad2", predictions, gold, null_odds=odds, null_threshold=float("inf"))
    assert unruled["exact"] == plain["exact"]
    assert unruled["notes"] == []


def test_missing_and_superfluous_answers_are_counted_and_said(golden, tmp_path):
    results = read_json(golden / "squad/pred_v1_v11_s384.json")["n20_l30"]
    answers = dict(list(results["predictions"].items())[3:]) | {"nobody asked": "42"}
    scores = score_file(
        "squad", write(tmp_path / "p.json", answers), golden / "squad/v11_dev60.json"
    )
    assert scores["missing"] == 3
    assert scores["extra"] == 1
    assert scores["examples"] == 60
    assert scores["exact_match"] < results["eval_v1"]["exact_match"]
    assert [note.split()[0] for note in scores["notes"]] == ["3", "1"]


def test_records_of_predict_score_as_the_official_file(golden, tmp_path):
    results = read_json(golden / "squad/pred_v1_v11_s384.json")["n20_l30"]
    records = [
        {"id": name, "answer": text, "nbest": [{"text": text}]}
        for name, text in results["predictions"].items()
    ]
    lines = write(tmp_path / "predictions.jsonl", records)
    scores = score_file("squad1", lines, golden / "squad/v11_dev60.json")
    assert {name: scores[name] for name in ("exact_match", "f1")} == pytest.approx(
        results["eval_v1"], abs=1e-9
    )


# --- tags and choices -----------------------------------------------------------------------------


def test_tags_score_as_seqeval_does_from_one_file_and_from_two(data, tmp_path):
    from seqeval.metrics import classification_report

    gold = data / "ner/wnut17/emerging.dev.conll"
    examples = read_examples(tagging_task("wnut17"), gold)
    draw = random.Random(0)
    kinds = sorted({tag for example in examples for tag in example.tags})
    tags = [
        [draw.choice(kinds) if draw.random() < 0.05 else tag for tag in example.tags]
        for example in examples
    ]
    columns = [
        list(zip(e.words, e.tags, row, strict=True)) for e, row in zip(examples, tags, strict=True)
    ]
    predictions = write(
        tmp_path / "p.conll",
        "\n".join("".join(f"{w}\t{p}\n" for w, _, p in rows) for rows in columns),
    )
    gold_and_predictions = write(
        tmp_path / "both.conll",
        "\n".join("".join(f"{w} {g} {p}\n" for w, g, p in rows) for rows in columns),
    )
    lines = write(
        tmp_path / "p.jsonl",
        [{"id": e.id, "tags": t} for e, t in zip(examples, tags, strict=True)],
    )
    truth = [list(example.tags) for example in examples]
    report = classification_report(truth, tags, output_dict=True, zero_division=0)
    for scores in (
        score_file("wnut17", predictions, gold),
        score_file("ner", gold_and_predictions),
        score_file("wnut17", lines, gold),
    ):
        assert scores["f1"] == pytest.approx(report["micro avg"]["f1-score"], abs=1e-12)
        assert scores["precision"] == pytest.approx(report["micro avg"]["precision"], abs=1e-12)
        for row in scores["types"]:
            assert row["f1"] == pytest.approx(report[row["name"]]["f1-score"], abs=1e-12)
            assert row["support"] == report[row["name"]]["support"]


@pytest.mark.parametrize(
    ("name", "file"),
    [
        ("siqa", "siqa-dev.jsonl"),
        ("arc", "arc_challenge_dev.csv"),
    ],
)
def test_choices_score_from_every_file_that_predict_writes(data, tmp_path, name, file):
    task = choice_task(name)
    gold = data / "multiple-choice" / file
    # ARC has questions without choices
    examples = read_examples(task, gold, bad_rows=BadRows("skip"))
    records = [
        {
            "id": e.id,
            "label": e.names[number % len(e.choices)],
            "index": number % len(e.choices),
            "probabilities": {},
        }
        for number, e in enumerate(examples)
    ]
    right = sum(record["index"] == e.label for record, e in zip(records, examples, strict=True))
    paths = task.write(tmp_path, records, split="dev")
    assert len(paths) == 2
    for path in paths:
        assert score_file(name, path, gold, on_error="skip")["accuracy"] == right / len(examples)


# --- what is wrong --------------------------------------------------------------------------------

GOLD = "id,text,label\na,x,yes\nb,y,no\nc,z,no\n"
WRONG = {
    "missing id": ("predictions-mismatch", lambda f: table(f, "id,prediction\na,yes\nb,no\n")),
    "strange id": (
        "predictions-mismatch",
        lambda f: table(f, "id,prediction\na,yes\nb,no\nd,no\n"),
    ),
    "double id": ("bad-row", lambda f: table(f, "id,prediction\na,yes\nb,no\nb,no\n")),
    "too few": ("predictions-mismatch", lambda f: table(f, "prediction\nyes\nno\n")),
    "other labels": ("bad-label", lambda f: table(f, "prediction\n1\n0\n0\n")),
    "no column": ("missing-column", lambda f: table(f, "id,said,so\na,yes,1\nb,no,1\nc,no,1\n")),
    "no label": ("missing-column", lambda f: score_file("multilabel", f / "g.csv", f / "g.csv")),
    "no such label": (
        "missing-column",
        lambda f: score_file("classify", f / "g.csv", f / "g.csv", label="lable"),
    ),
    "no number": (
        "predictions-mismatch",
        lambda f: table(f, "prediction\n1\nnan\n2\n", "regress", "n\n1\n2\n3\n", "n"),
    ),
    "no gold number": (
        "bad-row",
        lambda f: table(f, "prediction\n1\n2\n2\n", "regress", "n\n1\ntwo\n3\n", "n"),
    ),
    "empty gold": ("too-little-data", lambda f: table(f, "prediction\n", "classify", "label\n")),
    "no gold": (
        "bad-label",
        lambda f: score_file("mrpc", write(f / "p.tsv", "index\tprediction\n0\t1\n")),
    ),
    "no file": ("not-found", lambda f: score_file("squad", f / "none.json", f / "none.json")),
    "label of mrpc": (
        "conflicting-options",
        lambda f: score_file("mrpc", f / "p", f / "g", label="x"),
    ),
    "odds of mrpc": (
        "conflicting-options",
        lambda f: score_file("mrpc", f / "p", f / "g", null_odds=f / "o"),
    ),
    "broken json": ("bad-file", lambda f: squad(f, '{"a": "x", "b"')),
    "broken line": (
        "bad-row",
        lambda f: squad(f, '{"id": "a", "answer": "x"}\n{"id": "b", "ans\n'),
    ),
    "n-best": ("predictions-mismatch", lambda f: squad(f, {"a": [{"text": "x"}]})),
    "other questions": ("predictions-mismatch", lambda f: squad(f, {"b": "x"})),
    "odds of squad 1.1": (
        "conflicting-options",
        lambda f: squad(f, {"a": "x"}, null_odds=f / "p.json"),
    ),
    "null odds are texts": (
        "predictions-mismatch",
        lambda f: squad(f, {"a": "x"}, "squad2", null_odds=f / "p.json"),
    ),
    "other words": ("predictions-mismatch", lambda f: tags(f, "Anna\tO\nlacht\tO\n")),
    "too few words": ("predictions-mismatch", lambda f: tags(f, "Anna\tO\n")),
    "too many words": ("predictions-mismatch", lambda f: tags(f, "Anna\tO\nlebt\tO\nhier\tO\n")),
    "no tags": ("bad-label", lambda f: tags(f, "Anna\nlebt\n")),
    "too few tags": ("predictions-mismatch", lambda f: tags(f, '{"id": "0", "tags": ["O"]}\n')),
    "choice": ("bad-label", lambda f: choice(f, "C")),
}


def table(folder, predictions, kind="classify", gold=GOLD, label="label"):
    return score_file(
        kind, write(folder / "p.csv", predictions), write(folder / "g.csv", gold), label=label
    )


def squad(folder, predictions, name="squad", **options):
    answer = {"text": "x", "answer_start": 0}
    paragraph = {"context": "x y", "qas": [{"id": "a", "question": "q", "answers": [answer]}]}
    gold = write(
        folder / "g.json", {"data": [{"title": "t", "paragraphs": [paragraph]}], "version": "1.1"}
    )
    return score_file(name, write(folder / "p.json", predictions), gold, **options)


def tags(folder, predictions, gold="Anna\tB-PER\nlebt\tO\n"):
    return score_file(
        "ner", write(folder / "p.conll", predictions), write(folder / "g.conll", gold)
    )


def choice(folder, chosen, **other_fields):
    row = {"question": "q", "choice1": "x", "choice2": "y", "label": "A"}
    gold = write(folder / "g.jsonl", [row])
    return score_file(
        "choice",
        write(folder / "p.jsonl", [{"label": chosen, **other_fields}]),
        gold,
    )


@pytest.mark.parametrize("name", WRONG)
def test_what_is_wrong_is_said(tmp_path, name):
    slug, call = WRONG[name]
    write(tmp_path / "g.csv", GOLD)
    with pytest.raises(AlbertKitError) as caught:
        call(tmp_path)
    assert caught.value.slug == slug, caught.value
    assert caught.value.hint


def test_gold_is_read_as_evaluate_reads_it(tmp_path):
    gold = write(tmp_path / "own.csv", 'id,text,label\n0,"well, yes",a\n1,no,b\n')
    predictions = write(tmp_path / "preds.tsv", "id\tprediction\n0\ta\n1\ta\n")
    assert score_file("classify", predictions, gold, label="label")["accuracy"] == 0.5


@pytest.mark.parametrize(
    ("chosen", "expected"),
    [
        (None, "fraud"),
        ("ok", "ok"),
    ],
)
def test_the_class_of_f1_is_named_and_can_be_chosen(tmp_path, capsys, chosen, expected):
    gold = ["ok"] * 9 + ["fraud"] * 3
    predicted = ["ok"] * 8 + ["fraud"] * 2 + ["ok"] * 2
    write(tmp_path / "g.csv", "\n".join(["label", *gold]))
    write(tmp_path / "p.csv", "\n".join(["prediction", *predicted]))
    scores = score_file(
        "classify", tmp_path / "p.csv", tmp_path / "g.csv", label="label", positive_class=chosen
    )
    assert scores["f1"] == pytest.approx(f1_score(gold, predicted, pos_label=expected))
    assert scores["positive_class"] == expected
    show_scores(scores)
    assert f"f1 ({expected})" in capsys.readouterr().out
    with pytest.raises(AlbertKitError, match="conflicting-options"):
        score_file("mrpc", tmp_path / "p.csv", tmp_path / "g.csv", positive_class="1")


def test_all_wrong_labels_are_named(tmp_path):
    gold = write(tmp_path / "own.tsv", "id\tsentence\tlabel\n0\tgood\t1\n1\tbad\t0\n2\tfine\t1\n")
    predictions = write(tmp_path / "p.tsv", "id\tprediction\n0\tx\n1\ty\n2\tx\n")
    with pytest.raises(AlbertKitError, match=r"predicted, but no label: `x` \(2\), `y` \(1\)"):
        score_file("sst2", predictions, gold)


# --- gold and prediction side by side -------------------------------------------------------------

SIDE_BY_SIDE = {
    "classify": lambda f, name: table(f, f"id,label,{name}\na,yes,no\nb,no,yes\nc,no,yes\n"),
    "regress": lambda f, name: table(
        f, f"n,{name}\n1,3\n2,2\n3,1\n", "regress", "n\n1\n2\n3\n", "n"
    ),
    "squad": lambda f, name: squad(f, [{"id": "a", "answer": "x", name: "y"}]),
    "ner": lambda f, name: tags(f, [{"id": "0", "tags": ["B-PER", "O"], name: ["O", "B-PER"]}]),
    "choice": lambda f, name: choice(f, "A", **{name: "B"}),
}
SCORES = {
    "classify": "accuracy",
    "regress": "pearson",
    "squad": "exact_match",
    "ner": "f1",
    "choice": "accuracy",
}


@pytest.mark.parametrize("name", ["score", "scores", "logits", "probability"])
def test_scores_are_predictions_of_numbers_and_beside_a_label_doubtful(tmp_path, name):
    gold = "text,label\na,1\nb,2\nc,3\n"
    assert table(tmp_path, f"text,{name}\na,3\nb,2\nc,1\n", "regress", gold)[
        "pearson"
    ] == pytest.approx(-1)
    with pytest.raises(
        AlbertKitError, match=f"may have its predictions in any of `label`, `{name}`"
    ):
        table(tmp_path, f"label,{name}\n1,3\n2,2\n3,1\n", "regress", gold)
    classes = f"label,{name}\nyes,0.9\nno,0.8\nno,0.7\n"  # as pipelines of transformers write them
    assert table(tmp_path, classes)["accuracy"] == 1


@pytest.mark.parametrize("task", SIDE_BY_SIDE)
@pytest.mark.parametrize("name", ["prediction", "Predicted", "pred"])
def test_predictions_beside_the_gold_are_scored(tmp_path, task, name):
    """Every prediction is wrong, so 0 (a correlation of -1) is right; the gold against itself would be 1."""
    assert SIDE_BY_SIDE[task](tmp_path, name)[SCORES[task]] == pytest.approx(
        -1 if task == "regress" else 0
    )


@pytest.mark.parametrize("task", SIDE_BY_SIDE)
def test_a_column_of_an_unknown_name_beside_the_label_is_refused(tmp_path, task):
    with pytest.raises(
        AlbertKitError,
        match=r"\[predictions-mismatch\].*may have its predictions in any of .*`guess`",
    ):
        SIDE_BY_SIDE[task](tmp_path, "guess")


LIKELIEST = {  # likeliest classes, in the order of GOLD's labels yes, no, no
    "object": lambda yes: {"probabilities": {"yes": yes, "no": 1 - yes}},
    "list": lambda yes: {"logits": [yes, 1 - yes]},
}


@pytest.mark.parametrize("form", LIKELIEST)
@pytest.mark.parametrize(
    ("likeliest", "is_gold"),
    [
        ((0.9, 0.2, 0.1), False),
        ((0.1, 0.2, 0.1), True),
    ],
)
def test_labels_beside_probabilities_are_the_likeliest_or_refused(
    tmp_path, form, likeliest, is_gold
):
    """The labels are the gold's: scored, they would have an accuracy of 1."""
    records = [
        {"id": name, "label": label, **LIKELIEST[form](yes)}
        for name, label, yes in zip("abc", ["yes", "no", "no"], likeliest, strict=True)
    ]
    write(tmp_path / "g.csv", GOLD)
    predictions = write(tmp_path / "p.jsonl", records)
    if not is_gold:
        assert score_file("classify", predictions, tmp_path / "g.csv")["accuracy"] == 1
        return
    with pytest.raises(
        AlbertKitError, match=r"\[predictions-mismatch\].*1 label other than the likeliest by"
    ):
        score_file("classify", predictions, tmp_path / "g.csv")


@pytest.mark.parametrize("form", ["objects", "lists", "of words", "tags"])
@pytest.mark.parametrize("is_predicted", [True, False])
def test_entities_beside_tags_are_those_of_the_tags_or_refused(tmp_path, form, is_predicted):
    """The tags are the gold's: scored, predictions that name no right entity would have an f1 of 1."""
    start, end = (5, 9) if is_predicted else (0, 4)
    word = int(is_predicted)
    entities = {
        "objects": [
            {
                "type": "PER",
                "text": "Anna lebt"[start:end],
                "start": start,
                "end": end,
                "score": 0.9,
            }
        ],
        "lists": [[start, end, "PER"]],
        "of words": [{"start": word, "end": word + 1, "type": "PER"}],
        "tags": ["B-PER", "O"][:: -1 if is_predicted else 1],
    }[form]
    record = {"id": "0", "tokens": ["Anna", "lebt"], "tags": ["B-PER", "O"], "entities": entities}
    if not is_predicted:
        assert tags(tmp_path, [record])["f1"] == 1
        return
    with pytest.raises(
        AlbertKitError,
        match=r"\[predictions-mismatch\].*line 1: its `entities` are others than its `tags`",
    ):
        tags(tmp_path, [record])


def test_entities_that_cannot_be_placed_are_not_taken_for_others(tmp_path):
    record = {"id": "0", "tokens": ["Anna", "lebt"], "tags": ["B-PER", "O"]}
    for entities in ([{"type": "PER", "text": "Anna"}], [["PER"]]):
        assert tags(tmp_path, [record | {"entities": entities}])["f1"] == 1
    numbered = record | {"tags": [0, 1], "entities": [[0, 4, "PER"]]}
    with pytest.raises(AlbertKitError, match="`0`"):
        tags(tmp_path, [numbered])


@pytest.mark.parametrize(
    ("column", "hint"),
    [
        ("category", "name it with --label-column"),
        ("labell", "did you mean `labell`?"),
    ],
)
def test_a_gold_file_without_the_usual_label(tmp_path, column, hint):
    predictions = write(tmp_path / "p.csv", "id,prediction\na,x\n")
    gold = write(tmp_path / "g.csv", f"id,{column}\na,x\n")
    with pytest.raises(AlbertKitError, match="no column `label`") as caught:
        score_file("classify", predictions, gold)
    assert caught.value.hint == hint


def test_numbers_of_another_order_than_the_columns_are_predictions(tmp_path):
    """The first class is number 2, as where columns are sorted by name and numbers are not."""
    numbers = write(tmp_path / "g.csv", "id,label\na,2\nb,0\nc,1\nd,0\n")
    rows = "a,2,0.8,0.1,0.1\nb,0,0.1,0.8,0.1\nc,1,0.1,0.1,0.8\nd,0,0.2,0.7,0.1\n"
    shares = ",".join(
        f"probabilities.{name}" for name in ("contradiction", "entailment", "neutral")
    )
    predictions = write(tmp_path / "p.csv", f"id,label,{shares}\n{rows}")
    assert score_file("classify", predictions, numbers)["accuracy"] == 1


ROWS = [
    ("Bob", "O", "B-PER"),
    ("ran", "B-LOC", "O"),
    ("", "", ""),
    ("Paris", "O", "B-LOC"),
    ("is", "O", "O"),
]


def columns(*indices):
    """A file with these columns of `ROWS`: words, predictions, gold."""
    return "".join(" ".join(row[index] for index in indices).strip() + "\n" for row in ROWS)


def test_tags_before_the_gold_are_refused(tmp_path):
    """The last column is the gold: it would be 1.0. conlleval prints 0.00 for the right order."""
    gold = columns(0, 2)
    with pytest.raises(
        AlbertKitError,
        match=r"\[predictions-mismatch\].*predictions in column 2 or in column 3, the last",
    ) as caught:
        tags(tmp_path, columns(0, 1, 2), gold)
    command = caught.value.hint.partition(": ")[2].replace("NEW_FILE", "predicted.conll")
    subprocess.run(command, shell=True, check=True, cwd=tmp_path)
    assert tags(tmp_path, (tmp_path / "predicted.conll").read_text(), gold)["f1"] == 0
    silent = columns(0, 1, 2).replace("B-LOC O", "O O")  # nothing is predicted
    with pytest.raises(AlbertKitError, match="or in column 3"):
        tags(tmp_path, silent, gold)
    assert tags(tmp_path, columns(0, 2, 1), gold)["f1"] == 0
    assert tags(tmp_path, gold.replace(" ", " NNP B-NP "), gold)["f1"] == 1


def test_one_file_of_tags_says_which_column_is_the_gold(tmp_path):
    scores = score_file("ner", write(tmp_path / "both.conll", columns(0, 2, 1)))
    assert scores["accuracy"] == 0.25
    (note,) = [note for note in scores["notes"] if "conlleval" in note]
    assert "column 2 is read as the gold tags, column 3, the last, as the predicted ones" in note
    gold_alone = [{"tokens": ["Bob", "ran"], "tags": ["B-PER", "O"]}]
    with pytest.raises(AlbertKitError, match="no column of predictions, only `tokens`, `tags`"):
        score_file("ner", write(tmp_path / "gold.jsonl", gold_alone))


@pytest.mark.parametrize(
    ("gold", "predicted"),
    [
        ("12345", "01234"),
        ("01234", "12345"),
        ("1213", "0102"),
    ],
)
def test_numbers_of_classes_that_begin_with_another_one_are_refused(tmp_path, gold, predicted):
    texts = [
        f"text,label\n{''.join(f'a,{label}' + chr(10) for label in labels)}"
        for labels in (gold, predicted)
    ]
    with pytest.raises(
        AlbertKitError, match=r"\[predictions-mismatch\].*numbers that begin with another one"
    ):
        table(tmp_path, texts[1], "classify", texts[0])


def test_a_class_that_no_gold_row_has_is_no_other_numbering(tmp_path):
    scores = table(tmp_path, "label\n0\n1\n2\n", "classify", "text,label\na,1\nb,1\nc,2\n")
    assert scores["accuracy"] == pytest.approx(2 / 3)
    assert scores["notes"] == ["predicted, but the label of no example: `0`"]


@pytest.mark.parametrize(
    ("predicted", "accuracy"),
    [
        ([0, 1, 2, 3], 1),
        ([1, 2, 3, 4], 1),
        ([1, 2, 3, 0], 0),
        (["A", "B", 1, 0], 0.5),
        ([1, 2, 1, 2], None),
    ],
)
def test_numbers_for_letters_are_mapped_where_their_first_one_is_certain(
    tmp_path, predicted, accuracy
):
    rows = [
        {"question": "q", "choices": ["w", "x", "y", "z"], "label": letter} for letter in "ABCD"
    ]
    gold = write(tmp_path / "g.jsonl", rows)
    predictions = write(
        tmp_path / "p.jsonl",
        [{"label": str(label)} for label in predicted],
    )
    if accuracy is None:
        with pytest.raises(AlbertKitError, match="may begin with 0 or with 1"):
            score_file("choice", predictions, gold)
    else:
        assert score_file("choice", predictions, gold)["accuracy"] == accuracy


def test_two_columns_of_predictions_are_refused(tmp_path):
    with pytest.raises(AlbertKitError, match="any of `pred`, `prediction`"):
        table(tmp_path, "id,pred,prediction\na,yes,no\nb,no,yes\nc,no,yes\n")


def test_numbers_of_choices_begin_as_the_gold_does(tmp_path):
    rows = [{"question": "q", "choices": ["x", "y", "z"], "label": label} for label in (0, 2, 1, 1)]
    gold = write(tmp_path / "g.jsonl", rows)
    assert score_file("choice", gold, gold)["accuracy"] == 1
    rolled = [{"label": label} for label in (1, 2, 1, 0)]
    predictions = write(tmp_path / "p.jsonl", rolled)
    assert score_file("choice", predictions, gold)["accuracy"] == 0.5


@pytest.mark.parametrize(
    "rows", ["I-A I-A O I-B", "B-A E-A O S-B", "B-A L-A O U-B", "B-A I-A O B-B", "B-A M-A E-A S-B"]
)
def test_tags_against_themselves_are_all_right(tmp_path, rows):
    gold = write(
        tmp_path / "g.conll", "".join(f"w{n} {tag}\n" for n, tag in enumerate(rows.split()))
    )
    gold_twice = write(
        tmp_path / "both.conll",
        "".join(f"w{n} {tag} {tag}\n" for n, tag in enumerate(rows.split())),
    )
    for scores in (score_file("ner", gold, gold), score_file("ner", gold_twice)):
        assert scores["f1"] == 1
        assert scores["accuracy"] == 1


GOLD_TAGS = [
    "O I-ORG I-ORG O",
    "B-PER I-PER O B-ORG",
    "B-ORG I-PER O O",
    "B-LOC O O I-LOC",
    "B-PER O B-PER O",
]
PREDICTED_TAGS = [
    "O B-ORG I-ORG O",
    "B-PER I-PER O I-ORG",
    "B-ORG B-PER O O",
    "B-LOC O I-LOC I-LOC",
    "B-PER O O O",
]


def test_ill_formed_gold_is_scored_as_seqeval_does(tmp_path):
    """seqeval 1.2.2 printed these numbers: 7 entities of 9 found, 8 predicted."""

    predictions, gold = (
        "\n".join("".join(f"w{n} {tag}\n" for n, tag in enumerate(row.split())) for row in rows)
        for rows in (PREDICTED_TAGS, GOLD_TAGS)
    )
    scores = tags(tmp_path, predictions, gold)
    expected = {
        "precision": 0.875,
        "recall": 0.7777777777777778,
        "f1": 0.8235294117647058,
        "accuracy": 0.75,
    }
    assert {name: scores[name] for name in expected} == pytest.approx(expected, abs=1e-12)
    assert any(
        "3 sentences with tags that are not IOB2, such as an `I-` after `O`" in note
        for note in scores["notes"]
    )
    with pytest.raises(AlbertKitError, match="`I-ORG` after `O` is not IOB2"):
        read_examples(tagging_task("ner"), tmp_path / "g.conll", "train")


def test_tags_with_a_column_that_counts_are_scored(tmp_path):
    rows = [("EU", "B-ORG", "B-ORG"), ("is", "O", "B-ORG"), ("big", "O", "O")]
    gold = write(
        tmp_path / "g.conll",
        "".join(f"{n} {word} {tag}\n" for n, (word, tag, _) in enumerate(rows, 1)),
    )
    gold_and_predictions = write(
        tmp_path / "both.conll",
        "".join(f"{n}\t{w}\t{a}\t{b}\n" for n, (w, a, b) in enumerate(rows, 1)),
    )
    bare = write(tmp_path / "p.conll", "".join(f"{word} {tag}\n" for word, _, tag in rows))
    for scores in (
        score_file("ner", gold_and_predictions),
        score_file("ner", bare, gold),
        score_file("ner", gold_and_predictions, gold),
    ):
        assert scores["precision"] == 0.5
        assert scores["recall"] == 1
        assert scores["accuracy"] == pytest.approx(2 / 3)


@pytest.mark.parametrize("seed", range(15))
def test_odd_files_of_tags_score_as_seqeval_does(tmp_path, seed):
    """Ill-formed tags on both sides, hyphens in types, numbered words, comments, tabs or blanks, empty lines at both ends."""
    from seqeval.metrics import accuracy_score, f1_score, precision_score, recall_score

    draw = random.Random(seed)
    kinds = [
        "O",
        "O",
        "O",
        *(f"{prefix}-{kind}" for prefix in "BI" for kind in ("PER", "work-of-art")),
    ]
    # Most sentences are well-formed: else another scheme is the file's, and its tags are rewritten
    # on both sides.
    gold = [["B-PER", "I-PER", "O", "B-PER"]] * 30 + [
        draw.choices(kinds, k=draw.randint(1, 9)) for _ in range(8)
    ]
    draw.shuffle(gold)
    predicted = [
        [draw.choice(kinds) if draw.random() < 0.3 else tag for tag in row] for row in gold
    ]

    def content(rows):
        mark = draw.choice(" \t")
        numbered = draw.random() < 0.5
        commented = draw.random() < 0.5
        lines = [""] * draw.randint(0, 2)
        for row in rows:
            lines += ["# sent_id = 1"] * commented
            for number, tag in enumerate(row, 1):
                lines.append(mark.join([*([str(number)] * numbered), f"w{number}", tag]))
            lines += [""] * draw.randint(1, 2)
        return "\n".join(lines)

    scores = tags(tmp_path, content(predicted), content(gold))
    theirs = {
        "precision": precision_score(gold, predicted, zero_division=0),
        "recall": recall_score(gold, predicted, zero_division=0),
        "f1": f1_score(gold, predicted, zero_division=0),
        "accuracy": accuracy_score(gold, predicted),
    }
    assert {name: scores[name] for name in theirs} == pytest.approx(theirs, abs=1e-12)
