"""Losses on vectors: values and gradients of sentence-transformers 6.2, and the rule for repeated texts."""

import json

import numpy as np
import pytest
import torch
from numpy.testing import assert_allclose

from albertkit.embeddings.losses import TeacherDistance, make_loss, positions_without_repeated_texts
from albertkit.embeddings.settings import EmbedSettings
from albertkit.errors import ConfigError

# Name in the golden file: our name, which vectors, which targets, dims of Matryoshka.
LOSSES = {
    "cosine_similarity_mse": ("cosine", "ab", "score_0_to_1", ()),
    "cosent_scale20": ("cosent", "ab", "score_0_to_1", ()),
    "angle_scale20": ("angle", "ab", "score_0_to_1", ()),
    "multiple_negatives_scale20": ("mnrl", "ab", None, ()),
    "multiple_negatives_hard_negative_scale20": ("mnrl", "abc", None, ()),
    "mse_to_teacher": ("teacher", "a", "teacher", ()),
    "softmax_nli_u_v_absdiff": ("softmax", "ab", "nli_label", ()),
    "matryoshka_cosine_16_8_4": ("cosine", "ab", "score_0_to_1", (16, 8, 4)),
}


@pytest.fixture(scope="module")
def reference(golden):
    folder = golden / "sts"
    return dict(np.load(folder / "losses.npz")), json.loads((folder / "losses.json").read_text())


def computed(name, arrays):
    ours, sides, target, dims = LOSSES[name]
    vectors = [torch.tensor(arrays[side], requires_grad=True) for side in sides]
    targets = None if target is None else torch.tensor(arrays[target])
    loss = (
        TeacherDistance("mse") if ours == "teacher" else make_loss(ours, vectors[0].shape[1], dims)
    )
    if ours == "softmax":
        loss.classifier.weight.data = torch.tensor(arrays["softmax_weight"])
        loss.classifier.bias.data = torch.tensor(arrays["softmax_bias"])
    value = loss(vectors, targets)
    value.backward()
    return value.item(), {side: vector.grad for side, vector in zip(sides, vectors, strict=True)}


@pytest.mark.parametrize("name", LOSSES)
def test_values_and_gradients_are_theirs(reference, name):
    arrays, values = reference
    value, gradients = computed(name, arrays)
    assert abs(value - values[name]) <= 1e-5
    for side, gradient in gradients.items():
        assert_allclose(gradient, arrays[f"grad_{name}_{side}"], atol=1e-5, rtol=0)


def test_all_negatives_of_an_example_are_ranked_below_its_positive():
    """By hand, as `MultipleNegativesRankingLoss` defines it for an anchor, a positive and n negatives."""
    anchor, *candidates = torch.nn.functional.normalize(
        torch.randn(4, 6, 8, generator=torch.manual_seed(0)), dim=-1
    )
    # [6, 18]: the positives of all examples, then their negatives
    logits = 20 * anchor @ torch.cat(candidates).T
    by_hand = torch.nn.functional.cross_entropy(logits, torch.arange(6))
    loss = make_loss("mnrl", 8)
    assert loss([anchor, *candidates], None).item() == pytest.approx(by_hand.item(), abs=1e-6)
    assert loss([anchor, candidates[0]], None).item() < by_hand.item() - 0.1


def test_cosine_to_a_teacher_is_zero_in_its_direction_whatever_the_length(reference):
    arrays, _ = reference
    teacher = torch.tensor(arrays["teacher"])
    assert TeacherDistance("cosine")([3 * teacher], teacher).item() == pytest.approx(0, abs=1e-6)
    off = TeacherDistance("cosine")([torch.tensor(arrays["a"])], teacher).item()
    expected = (
        1 - torch.nn.CosineSimilarity(dim=1)(torch.tensor(arrays["a"]), teacher).mean().item()
    )
    assert off == pytest.approx(expected, abs=1e-6)


def test_two_columns_regress_to_the_same_teacher_vector(reference):
    arrays, values = reference
    a, b, teacher = (torch.tensor(arrays[name]) for name in ("a", "b", "teacher"))
    losses = [TeacherDistance("mse")([side], teacher).item() for side in (a, b)]
    assert TeacherDistance("mse")([a, b], teacher).item() == pytest.approx(
        np.mean(losses), abs=1e-6
    )
    assert losses[0] == pytest.approx(values["mse_to_teacher"], abs=1e-5)


def test_matryoshka_refuses_what_cannot_be():
    with pytest.raises(ConfigError, match="17 numbers of vectors of 16"):
        make_loss("cosine", 16, (17, 4))
    with pytest.raises(ConfigError, match="cannot be combined with Matryoshka"):
        make_loss("softmax", 16, (8,))


def test_of_examples_that_share_a_text_the_first_stays():
    assert positions_without_repeated_texts(
        [(1, 2), (3, 4), (5, 1), (3, 6), (7, 7), (4, 8), (5, 9)]
    ).tolist() == [
        0,
        1,
        4,
        6,
    ]


@pytest.mark.parametrize("name", ["mnrl", "cosent"])
def test_a_scale_multiplies_the_cosines(name):
    """By hand: cross-entropy of scaled cosines; log(1 + sum of exp of scaled differences in the wrong order)."""
    generator = torch.Generator().manual_seed(0)
    a, b = (torch.randn(5, 8, generator=generator) for _ in range(2))
    cosines = torch.nn.functional.normalize(a, dim=1) @ torch.nn.functional.normalize(b, dim=1).T
    if name == "mnrl":
        targets = None
        expected = torch.nn.functional.cross_entropy(3 * cosines, torch.arange(5))
    else:
        targets = torch.tensor([0.1, 0.9, 0.4, 0.2, 0.7])
        scaled = 3 * cosines.diagonal()
        differences = [
            scaled[i] - scaled[j] for i in range(5) for j in range(5) if targets[i] < targets[j]
        ]
        expected = torch.logsumexp(torch.stack([torch.tensor(0.0), *differences]), 0)
    assert make_loss(name, 8, scale=3.0)([a, b], targets).item() == pytest.approx(
        expected.item(), abs=1e-5
    )
    assert make_loss(name, 8)([a, b], targets).item() != pytest.approx(expected.item(), abs=1e-3)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"scale": 0.0}, "above 0"),
        ({"loss": "cosine", "scale": 5.0}, "cosine has no scale"),
    ],
)
def test_a_scale_that_cannot_be_is_refused(options, message):
    settings = EmbedSettings(**options)
    refuse = settings.check if "loss" not in options else lambda: settings.choose_loss("scores")
    with pytest.raises(ConfigError, match=message):
        refuse()
