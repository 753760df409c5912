"""Logits, hidden states, attentions, losses and gradients that transformers 5.23 printed for tiny models."""

from pathlib import Path

import numpy as np
import pytest
import torch

from albertkit.model import AlbertForMaskedLM, AlbertForPreTraining
from albertkit.model.pretrained import PretrainedAlbert

CASES = [
    ("pretraining_g1", AlbertForPreTraining),
    ("pretraining_g2_inner2", AlbertForPreTraining),
    ("masked_lm", AlbertForMaskedLM),
]
pytestmark = pytest.mark.filterwarnings("ignore:head size")


def load(folder: Path, model_class: type[PretrainedAlbert], **changes: object):
    inputs = {name: torch.from_numpy(array) for name, array in np.load(folder / "inputs.npz").items()}
    outputs = {name: torch.from_numpy(array) for name, array in np.load(folder / "outputs.npz").items()}
    return model_class.from_pretrained(folder, **changes), inputs, outputs


@pytest.mark.parametrize(("name", "model_class"), CASES)
def test_forward_and_gradients(golden: Path, name: str, model_class: type[PretrainedAlbert]) -> None:
    model, inputs, expected = load(golden / "hf" / name, model_class)
    output = model(**inputs, output_hidden_states=True, output_attentions=True)
    real = inputs["attention_mask"].bool()
    torch.testing.assert_close(output.loss, expected["loss"].reshape(()), atol=1e-5, rtol=0)
    logits = "logits" if name == "masked_lm" else "prediction_logits"
    torch.testing.assert_close(output[logits][real], expected[logits][real], atol=3e-5, rtol=0)
    assert not output[logits][~real].any()  # zeros at padding, also in the hole
    if name != "masked_lm":
        torch.testing.assert_close(output.sop_logits, expected["sop_logits"], atol=3e-5, rtol=0)
    for ours, theirs in zip(output.hidden_states, expected["hidden_states"], strict=True):
        torch.testing.assert_close(ours[real], theirs[real], atol=3e-5, rtol=0)
    for ours, theirs in zip(output.attentions, expected["attentions"], strict=True):
        torch.testing.assert_close(ours.transpose(1, 2)[real], theirs.transpose(1, 2)[real], atol=1e-6, rtol=0)

    output.loss.backward()
    parameters = dict(model.named_parameters())
    compared = [key.removeprefix("grad::") for key in expected if key.startswith("grad::")]
    assert compared
    for key in compared:
        torch.testing.assert_close(parameters[key].grad, expected[f"grad::{key}"], atol=1e-5, rtol=0)
    norm = torch.stack([parameter.grad.double().norm() for parameter in parameters.values()]).norm()
    torch.testing.assert_close(norm, expected["grad_global_norm"].reshape(()), atol=1e-4, rtol=1e-5)


@pytest.mark.parametrize(("name", "model_class"), CASES)
def test_double_precision_and_bare_input(golden: Path, name: str, model_class: type[PretrainedAlbert]) -> None:
    model, inputs, expected = load(golden / "hf" / name, model_class)
    logits = "logits" if name == "masked_lm" else "prediction_logits"
    bare = model(inputs["input_ids"])[logits]
    torch.testing.assert_close(bare, expected[f"bare_input_ids_only::{logits}"], atol=3e-5, rtol=0)
    loss = model.double()(**inputs).loss
    torch.testing.assert_close(loss, expected["loss_float64"].reshape(()), atol=1e-9, rtol=0)


@pytest.mark.parametrize("wrong", [{"hidden_act": "gelu"}, {"layer_norm_eps": 1e-3}, {"hidden_act": "relu"}])
def test_the_comparison_can_fail(golden: Path, wrong: dict[str, object]) -> None:
    model, inputs, expected = load(golden / "hf" / "pretraining_g1", AlbertForPreTraining, **wrong)
    real = inputs["attention_mask"].bool()
    difference = (model(**inputs).prediction_logits - expected["prediction_logits"])[real].abs().max()
    assert difference > 1e-4  # three times the tolerance above


def test_pretraining_losses_are_the_same_losses(golden: Path) -> None:
    from albertkit.model import PackedBatch

    model, inputs, expected = load(golden / "hf" / "pretraining_g2_inner2", AlbertForPreTraining)
    batch = PackedBatch.from_padded(
        inputs["input_ids"], inputs["attention_mask"], inputs["token_type_ids"],
        labels=inputs["labels"], sentence_order_labels=inputs["sentence_order_label"],
    )  # fmt: skip
    losses = model.pretraining_losses(batch)
    loss = (
        losses.masked_lm_loss_sum / losses.masked_lm_count
        + losses.sentence_order_loss_sum / losses.sentence_order_count
    )
    torch.testing.assert_close(loss, expected["loss"].reshape(()), atol=1e-5, rtol=0)
    loss.backward()
    parameters = dict(model.named_parameters())
    for key in (key for key in expected if key.startswith("grad::")):
        torch.testing.assert_close(parameters[key.removeprefix("grad::")].grad, expected[key], atol=1e-5, rtol=0)
