"""SQuAD scores against the official scripts' numbers (golden), and against published predictions."""

import gzip
import json

import pytest
from record_files import read_records

from albertkit.errors import DataError
from albertkit.files import read_json
from albertkit.tasks.metrics import exact_match, f1, normalize_answer, squad_scores


def gold_of(file):
    content = file.read_bytes()
    articles = json.loads(gzip.decompress(content) if file.suffix == ".gz" else content)["data"]
    questions = [
        q for article in articles for paragraph in article["paragraphs"] for q in paragraph["qas"]
    ]
    return [(q["id"], [answer["text"] for answer in q["answers"]]) for q in questions]


def test_string_pairs(golden):
    both_empty = 0
    for pair in read_records(golden / "squad/string_pairs.jsonl"):
        prediction = pair["prediction"]
        golds = pair["golds"]
        assert normalize_answer(prediction) == pair["normalised_prediction"]
        assert [normalize_answer(gold) for gold in golds] == pair["normalised_golds"]
        assert exact_match(prediction, golds) == pair["v2_exact"]
        assert f1(prediction, golds) == pytest.approx(pair["v2_f1"], abs=1e-12)
        if pair["v1_exact"] is not None:
            assert exact_match(prediction, golds, 1) == pair["v1_exact"]
            assert f1(prediction, golds, 1) == pytest.approx(pair["v1_f1"], abs=1e-12)
            both_empty += pair["v1_f1"] != pair["v2_f1"]
    assert both_empty >= 2  # pairs where the wrong version would be noticed


@pytest.mark.parametrize(
    "setting", ["v20_s128_k5x5", "v20_s128_k2x3", "v20_s384_k5x5", "edge_s128_k5x5"]
)
def test_version_2_equals_the_official_script(golden, setting):
    gold = gold_of(
        golden / "squad" / ("edge_cases.json" if "edge" in setting else "v20_dev60.json")
    )
    compared = 0
    for results in read_json(golden / "squad" / f"pred_v2_{setting}.json").values():
        for name in ("no_threshold", "threshold_0", "best_f1_threshold"):
            predictions = results[f"predictions_{name}"]
            official = results[f"official_{name}"]
            predicted_gold = [pair for pair in gold if pair[0] in predictions]
            assert squad_scores(predictions, predicted_gold, 2) == pytest.approx(
                official["without_na_file"], abs=1e-9
            )
            with_odds = squad_scores(predictions, predicted_gold, 2, results["null_odds"])
            assert with_odds == pytest.approx(official["with_na_file"], abs=1e-9)
            compared += len(official["with_na_file"])
    assert compared > 70


@pytest.mark.parametrize("setting", ["v11_s384", "v11_s128", "v11_s128_ties", "edge_s128"])
def test_version_1_equals_the_official_script(golden, setting):
    gold = gold_of(
        golden / "squad" / ("edge_cases.json" if "edge" in setting else "v11_dev60.json")
    )
    for results in read_json(golden / "squad" / f"pred_v1_{setting}.json").values():
        answerable_gold = [pair for pair in gold if pair[1]]
        assert squad_scores(results["predictions"], answerable_gold, 1) == pytest.approx(
            results["eval_v1"], abs=1e-9
        )
        right = {name: golds[0] for name, golds in answerable_gold}
        assert squad_scores(right, answerable_gold, 1) != pytest.approx(
            results["eval_v1"], abs=1e-9
        )


def test_missing_predictions_count_as_wrong():
    gold = [("a", ["Ulm"]), ("b", []), ("c", ["in Bern"])]
    scores = squad_scores({"a": "ulm.", "x": "not asked"}, gold, 2)
    assert scores["exact"] == 100 / 3
    assert scores["total"] == 3
    assert scores["NoAns_exact"] == 0.0
    assert squad_scores({"c": "Bern"}, gold[2:], 1) == pytest.approx(
        {"exact_match": 0.0, "f1": 200 / 3}
    )


def test_what_cannot_be_scored_is_said():
    for slug, call in {
        "bad-row": lambda: squad_scores({}, [("a", [])], 1),
        "missing-file": lambda: squad_scores({"a": ""}, [("a", [])], 2, {"b": 1.0}),
        "too-little-data": lambda: squad_scores({}, [], 2),
    }.items():
        with pytest.raises(DataError, match=rf"\[{slug}\]"):
            call()
