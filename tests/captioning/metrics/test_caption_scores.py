"""Caption metrics against pycocoevalcap 1.2 (golden) and against what nlg-eval publishes for its example."""

import pytest

from albertkit.captioning.metrics import score_captions
from albertkit.files import read_json

NAMES = ("Bleu_1", "Bleu_2", "Bleu_3", "Bleu_4", "ROUGE_L", "CIDEr")


def scored(items, tokenize=False):
    references = {item["id"]: item["references"] for item in items}
    return score_captions(
        references, {item["id"]: item["candidate"] for item in items}, tokenize=tokenize
    )


def differences(ours, theirs):
    """Names of the scores, of the corpus or of a clip, that differ by more than 1e-9."""
    wrong = [name for name in NAMES if abs(ours[name] - theirs[name]["corpus"]) > 1e-9]
    for name in NAMES:
        for (clip, scores), value in zip(ours.per_clip.items(), theirs[name]["each"], strict=True):
            wrong += [f"{name} of {clip}"] if abs(scores[name] - value) > 1e-9 else []
    return wrong


@pytest.mark.parametrize("part", ["all_60", "first_7_only", "edge"])
def test_tokenised_captions_equal_the_original(golden, part):
    reference = read_json(golden / "captioning/metrics_pretokenised.json")
    items = {
        "all_60": reference["items"],
        "first_7_only": reference["items"][:7],
        "edge": reference["edge_items"],
    }[part]
    assert not differences(scored(items), reference[part])


def test_raw_captions_equal_the_original(golden):
    reference = read_json(golden / "captioning/metrics_ptb_meteor.json")
    assert not differences(scored(reference["items"], tokenize=True), reference["scores"])
