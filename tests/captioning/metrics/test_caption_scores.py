"""Caption metrics against pycocoevalcap 1.2 (golden) and against what nlg-eval publishes for its example."""

import json
from pathlib import Path
from typing import Any

import pytest

from albertkit.captioning.metrics import CaptionScores, score_captions

NAMES = ("Bleu_1", "Bleu_2", "Bleu_3", "Bleu_4", "ROUGE_L", "CIDEr")


def scored(items: list[dict[str, Any]], tokenize: bool = False) -> CaptionScores:
    references = {item["id"]: item["references"] for item in items}
    return score_captions(
        references, {item["id"]: item["candidate"] for item in items}, tokenize=tokenize
    )


def differences(ours: CaptionScores, theirs: dict[str, Any]) -> list[str]:
    """Names of the scores, of the corpus or of a clip, that differ by more than 1e-9."""
    wrong = [name for name in NAMES if abs(ours[name] - theirs[name]["corpus"]) > 1e-9]
    for name in NAMES:
        for (clip, scores), value in zip(ours.per_clip.items(), theirs[name]["each"], strict=True):
            wrong += [f"{name} of {clip}"] if abs(scores[name] - value) > 1e-9 else []
    return wrong


def pretokenised(golden: Path) -> dict[str, Any]:
    return json.loads((golden / "captioning" / "metrics_pretokenised.json").read_text())


@pytest.mark.parametrize("part", ["all_60", "first_7_only", "edge"])
def test_tokenised_captions_equal_the_original(golden, part):
    reference = pretokenised(golden)
    items = {
        "all_60": reference["items"],
        "first_7_only": reference["items"][:7],
        "edge": reference["edge_items"],
    }[part]
    assert not differences(scored(items), reference[part])


def test_raw_captions_equal_the_original(golden):
    reference = json.loads((golden / "captioning" / "metrics_ptb_meteor.json").read_text())
    assert not differences(scored(reference["items"], tokenize=True), reference["scores"])


def without_a_reference(items: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{**item, "references": item["references"][:1]} for item in items]


def with_another_word(items: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{**items[0], "candidate": f"{items[0]['candidate']} again"}, *items[1:]]


@pytest.mark.parametrize(
    "change",
    [
        without_a_reference,
        with_another_word,
        lambda items: items[:59] + items[:1],
    ],
)
def test_comparison_notices_another_input(golden, change):
    reference = pretokenised(golden)
    items = [{**item, "id": str(index)} for index, item in enumerate(change(reference["items"]))]
    assert len(differences(scored(items), reference["all_60"])) > len(NAMES) / 2


@pytest.mark.parametrize(
    ("constant", "value", "noticed"),
    [
        ("metrics._SMALL", 1e-7, "Bleu_4"),
        ("metrics._TINY", 1e-13, "Bleu_4"),
        ("metrics._SIGMA", 5.0, "CIDEr"),
        ("metrics._BETA", 1.0, "ROUGE_L"),
    ],
)
def test_comparison_notices_another_rule(golden, monkeypatch, constant, value, noticed):
    reference = pretokenised(golden)
    monkeypatch.setattr(f"albertkit.captioning.{constant}", value)
    wrong = {
        name.split(" ")[0] for name in differences(scored(reference["items"]), reference["all_60"])
    }
    assert wrong & {"Bleu_4", "ROUGE_L", "CIDEr"} == {noticed}
