"""Logits, hidden states, attentions, losses and gradients that transformers 5.23 printed for tiny models."""

import numpy as np
import pytest
import torch
from torch.testing import assert_close

from albertkit.model import (
    AlbertForMaskedLM,
    AlbertForMultipleChoice,
    AlbertForPreTraining,
    AlbertForQuestionAnswering,
    AlbertForSequenceClassification,
    AlbertForTokenClassification,
    PackedBatch,
)

# Folder, class, and which logits there are; True for one logit (or row of them) a token.
CASES = {
    "pretraining_g1": (AlbertForPreTraining, {"prediction_logits": True, "sop_logits": False}),
    "pretraining_g2_inner2": (
        AlbertForPreTraining,
        {"prediction_logits": True, "sop_logits": False},
    ),
    "masked_lm": (AlbertForMaskedLM, {"logits": True}),
    "seqcls_3class": (AlbertForSequenceClassification, {"logits": False}),
    "seqcls_multilabel": (AlbertForSequenceClassification, {"logits": False}),
    "seqcls_regression": (AlbertForSequenceClassification, {"logits": False}),
    "token_cls": (AlbertForTokenClassification, {"logits": True}),
    "question_answering": (
        AlbertForQuestionAnswering,
        {"start_logits": False, "end_logits": False},
    ),  # padding too
    "multiple_choice": (AlbertForMultipleChoice, {"logits": False}),
}


def load(folder, **changes):
    inputs = {
        name: torch.from_numpy(array) for name, array in np.load(folder / "inputs.npz").items()
    }
    outputs = {
        name: torch.from_numpy(array) for name, array in np.load(folder / "outputs.npz").items()
    }
    return CASES[folder.name][0].from_pretrained(folder, **changes), inputs, outputs


@pytest.mark.parametrize("name", CASES)
def test_forward_and_gradients(golden, name):
    model, inputs, expected = load(golden / "hf" / name)
    output = model(**inputs, output_hidden_states=True, output_attentions=True)
    real = inputs["attention_mask"].flatten(0, -2).bool()
    assert_close(output.loss, expected["loss"].reshape(()), atol=1e-5, rtol=0)
    for logits, per_token in CASES[name][1].items():
        chosen = real if per_token else slice(None)
        assert_close(output[logits][chosen], expected[logits][chosen], atol=3e-5, rtol=0)
        # Zeros at padding, also in the hole
        assert not per_token or not output[logits][~real].any()
    for ours, theirs in zip(output.hidden_states, expected["hidden_states"], strict=True):
        assert_close(ours[real], theirs[real], atol=3e-5, rtol=0)
        assert not ours[~real].any()
    for ours, theirs in zip(output.attentions, expected["attentions"], strict=True):
        assert_close(ours.transpose(1, 2)[real], theirs.transpose(1, 2)[real], atol=1e-6, rtol=0)

    output.loss.backward()
    parameters = dict(model.named_parameters())
    compared = [key.removeprefix("grad::") for key in expected if key.startswith("grad::")]
    assert len(compared) == 3
    for key in compared:
        assert_close(parameters[key].grad, expected[f"grad::{key}"], atol=1e-5, rtol=0)
    # Computes padding; transformers' embedding passes nothing to the padding row
    if name == "question_answering":
        parameters["albert.embeddings.word_embeddings.weight"].grad[model.config.pad_token_id] = 0
    norm = torch.stack([parameter.grad.double().norm() for parameter in parameters.values()]).norm()
    assert_close(norm, expected["grad_global_norm"].reshape(()), atol=1e-4, rtol=1e-5)


@pytest.mark.parametrize("name", CASES)
def test_double_precision_and_bare_input(golden, name):
    model, inputs, expected = load(golden / "hf" / name)
    bare = model(inputs["input_ids"])
    for logits in CASES[name][1]:
        assert_close(bare[logits], expected[f"bare_input_ids_only::{logits}"], atol=3e-5, rtol=0)
    loss = model.double()(**inputs).loss
    assert_close(loss, expected["loss_float64"].reshape(()), atol=1e-9, rtol=0)


@pytest.mark.parametrize("name", CASES)
def test_any_one_perturbed_weight_is_noticed(golden, name):
    """One element of every parameter in turn, moved by 0.1, against ten times the tolerances above."""
    model, inputs, expected = load(golden / "hf" / name)
    model.double()
    for key, parameter in model.named_parameters():
        index = [0] * parameter.dim()
        for table, ids in (
            ("word_embeddings", "input_ids"),
            ("token_type_embeddings", "token_type_ids"),
        ):
            if table in key:
                index[0] = int(inputs[ids].flatten()[0])
        # Adds the same to all scores of a query: no effect at all
        if key.endswith("attention.key.bias"):
            continue
        with torch.no_grad():
            parameter[tuple(index)] += 0.1
            output = model(**inputs)
            parameter[tuple(index)] -= 0.1
        real = inputs["attention_mask"].bool()
        of_loss = (output.loss - expected["loss_float64"]).abs()
        of_logits = [
            (output[logits] - expected[logits])[real if per_token else slice(None)].abs().max()
            for logits, per_token in CASES[name][1].items()
        ]
        # A bias common to all classes changes no softmax
        assert of_loss > 1e-8 or max(of_logits) > 3e-4, key


def test_pretraining_losses_are_the_same_losses(golden):
    model, inputs, expected = load(golden / "hf/pretraining_g2_inner2")
    batch = PackedBatch.from_padded(
        inputs["input_ids"],
        inputs["attention_mask"],
        inputs["token_type_ids"],
        labels=inputs["labels"],
        sentence_order_labels=inputs["sentence_order_label"],
    )
    losses = model.pretraining_losses(batch)
    loss = (
        losses.masked_lm.loss_sum / losses.masked_lm.label_count
        + losses.sentence_order.loss_sum / losses.sentence_order.label_count
    )
    assert_close(loss, expected["loss"].reshape(()), atol=1e-5, rtol=0)
    loss.backward()
    parameters = dict(model.named_parameters())
    for key in (key for key in expected if key.startswith("grad::")):
        assert_close(parameters[key.removeprefix("grad::")].grad, expected[key], atol=1e-5, rtol=0)


@pytest.mark.parametrize("name", ["seqcls_3class", "seqcls_multilabel", "seqcls_regression"])
def test_the_problem_type_is_inferred_as_transformers_does(golden, name):
    model, inputs, expected = load(golden / "hf" / name)
    stated = model.config.problem_type
    model.config.problem_type = None
    assert model(**inputs).loss.item() == pytest.approx(expected["loss"].item(), abs=1e-5)
    assert model.config.problem_type == stated
