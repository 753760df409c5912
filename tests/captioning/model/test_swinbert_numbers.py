"""Losses, logits, states and gradients of SwinBERT's own weights, printed by SwinBERT itself."""

from collections import Counter

import pytest
import torch
from safetensors.torch import load_file
from torch.testing import assert_close


def _training(original, **changes):
    arrays = original.arrays("train")
    targets = {
        "masked_pos": torch.tensor(arrays["masked_pos"]),
        "masked_ids": torch.tensor(arrays["masked_ids"]),
    }
    return original.model(**{**original.inputs("train"), **targets, **changes})


def test_loss_and_logits_in_double_precision(exact):
    arrays = exact.arrays("train")
    loss, logits = _training(exact)
    assert loss.item() == pytest.approx(float(arrays["loss_float64"]), abs=1e-12)
    assert_close(logits, torch.tensor(arrays["logits_float64"]), atol=1e-12, rtol=0)


def test_loss_and_logits_in_single_precision(original):
    arrays = original.arrays("train")
    loss, logits = _training(original)
    # The gate's rounding times 10,000: see the README of the numbers
    rough = "near_one" in original.folder.name
    assert loss.item() == pytest.approx(float(arrays["loss"]), abs=2e-4 if rough else 2e-5)
    assert_close(logits, torch.tensor(arrays["logits"]), atol=2e-3 if rough else 5e-5, rtol=0)


def test_logits_of_every_place(original):
    arrays = original.arrays("train")
    (logits,) = original.model(**original.inputs("train"), is_training=False)
    text = logits.shape[1]
    # Rows of padding are rounding noise there
    real = torch.tensor(arrays["attention_mask"]).sum(-1)[:, :text] > 0
    rough = "near_one" in original.folder.name
    expected = torch.tensor(arrays["logits_not_training"])
    assert_close(logits[real], expected[real], atol=2e-3 if rough else 5e-5, rtol=0)


def test_states_and_a_mask_of_keys(original):
    arrays = original.arrays("train")
    if "last_hidden_state" not in arrays:
        pytest.skip("the folder has no states")
    inputs = original.inputs("train")
    states, pooled = original.model.albert(**inputs)
    real = torch.tensor(arrays["attention_mask"]).sum(-1) > 0
    assert_close(states[real], torch.tensor(arrays["last_hidden_state"])[real], atol=5e-5, rtol=0)
    assert_close(pooled, torch.tensor(arrays["pooled"]), atol=5e-5, rtol=0)
    inputs["attention_mask"] = torch.tensor(arrays["mask_2d"])
    (logits,) = original.model(**inputs, is_training=False)
    expected = torch.tensor(arrays["logits_not_training_2d_mask"])
    assert_close(logits, expected, atol=5e-5, rtol=0)


_FIRST_LAYER = "albert.encoder.albert_layer_groups.0.albert_layers.0"
# Where the original's names lie in ours.
_GRADIENTS = {
    "bert.embeddings.word_embeddings.weight": "albert.embeddings.word_embeddings.weight",
    "bert.img_embedding.weight": "albert.img_embedding.projection.weight",
    "bert.encoder.layer.0.attention.self.query.weight": f"{_FIRST_LAYER}.attention.query.weight",
    "cls.predictions.bias": "predictions.bias",
}


def test_gradients(original):
    if original.model.caption.has_learned_gate:
        pytest.skip(
            "fc and img_embedding are one matrix in ours; the gate's gradient has a test of its own"
        )
    arrays = original.arrays("train")
    _training(original)[0].backward()
    parameters = dict(original.model.named_parameters())
    compared = 0
    for theirs, name in _GRADIENTS.items():
        expected = torch.tensor(arrays[f"grad::{theirs}"])
        compared += 1
        assert_close(
            parameters[name].grad, expected, atol=1e-4 * float(expected.abs().max()), rtol=0
        )
    assert compared == len(_GRADIENTS)


def test_the_gate_has_no_gradient_as_swinbert_begins(original):
    """Why `legacy` is for weights only: the caption loss does not move the learned mask."""
    if not original.model.caption.has_learned_gate:
        pytest.skip("the folder has no learned mask")
    arrays = original.arrays("train")
    albert = original.model.albert
    inputs = original.inputs("train")
    context = albert.encode_context(albert.project(inputs["img_feats"]))
    hidden, _ = albert.read_caption(albert.embed(inputs["input_ids"]), context)
    hidden.square().sum().backward()
    moved = bool(abs(arrays["grad_caption_loss::learn_vid_att.weight"]).max() > 0)
    assert moved == ("near_one" in original.folder.name)
    hard = original.model.caption.hard_gate  # has no gradient at all
    assert (albert.video_gate.grad is None) == hard
    assert hard or bool(albert.video_gate.grad.abs().max() > 0) == moved


def test_sparsity_loss(original):
    if not original.model.caption.has_learned_gate:
        pytest.skip("the folder has no learned mask")
    expected = float(original.arrays("train")["loss_sparsity"])
    assert original.model.albert.sparsity_loss().item() == pytest.approx(expected, abs=1e-6)


def test_every_tensor_is_kept_to_the_bit(original):
    """Whatever their names: each stored tensor is one of the model's, but a tied matrix, which stands in the file twice."""

    def contents(state):
        return Counter((tuple(tensor.shape), tensor.numpy().tobytes()) for tensor in state.values())

    stored = {
        name: tensor
        for name, tensor in load_file(original.folder / "model.safetensors").items()
        if not name.startswith("swin.")
        and "cls_img_feat." not in name
        and not name.endswith("predictions.decoder.bias")
    }
    if original.model.caption.tie_weights:
        del stored[next(name for name in stored if name.endswith("predictions.decoder.weight"))]
    assert not contents(stored) - contents(original.model.state_dict())
    one_bit_off = {**stored, "x": next(iter(stored.values())) + 1}
    assert contents(one_bit_off) - contents(original.model.state_dict())
