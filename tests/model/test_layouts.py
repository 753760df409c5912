"""Every head: packed, padded and one by one are the same numbers, forward and backward; so are accumulated parts."""

import pytest
import torch
import torch.nn.functional as F
from small_models import WITH_HEADS, gradients
from torch.testing import assert_close

from albertkit.model import (
    AlbertForBeamQuestionAnswering,
    AlbertForMaskedLM,
    AlbertForMultipleChoice,
    AlbertForPreTraining,
    AlbertForQuestionAnswering,
    AlbertForTokenClassification,
    AlbertModel,
    PackedBatch,
)
from albertkit.model.padded import PaddedBatch, PaddedPass


def make(make_class, model_class):
    model = make_class(model_class, num_labels=3)
    if isinstance(model, AlbertForBeamQuestionAnswering):
        model.start_n_top = model.end_n_top = 1  # one sequence has one token
    return model


def inputs_of(padded, model):
    inputs = {name: padded[name] for name in ("input_ids", "attention_mask", "token_type_ids")}
    if isinstance(model, AlbertForMultipleChoice):
        # Each sequence is a question's only choice
        return {name: tensor[:, None] for name, tensor in inputs.items()}
    return inputs


def real_values(values, lengths):
    """The real numbers of all sequences in one row: per sequence, or per token of [T, …] or [N, longest, …]."""
    parts = []
    for value in values:
        if len(value) == sum(lengths):
            parts.append(value)
        elif value.dim() > 1 and value.shape[1] == max(lengths):
            parts.extend(row[:length] for row, length in zip(value, lengths, strict=True))
        else:
            assert len(value) == len(lengths)
            parts.append(value)
    return torch.cat([value.flatten().to(torch.float32) for value in parts])


def numbers(model, layout, padded, packed):
    if layout == "padded":
        return real_values(list(model(**inputs_of(padded, model)).values()), packed.lengths)
    if layout == "packed":
        plain = PackedBatch(
            packed.input_ids,
            packed.token_type_ids,
            packed.position_ids,
            packed.offsets,
            packed.lengths,
        )
        if isinstance(model, AlbertForBeamQuestionAnswering):
            return real_values(list(model.packed_beams(plain).values()), packed.lengths)
        logits = model.packed_logits(plain)
        return real_values(list(logits) if isinstance(logits, tuple) else [logits], packed.lengths)
    alone = []
    for row, length in enumerate(packed.lengths):
        rows = {
            name: tensor[row : row + 1, ..., :length]
            for name, tensor in inputs_of(padded, model).items()
        }
        alone.append([value[0] for value in model(**rows).values()])
    columns = [[value.flatten() for value in column] for column in zip(*alone, strict=True)]
    return torch.cat([value.to(torch.float32) for column in columns for value in column])


def weighted(values):
    return (values * torch.cos(torch.arange(len(values)))).mean()


@pytest.mark.parametrize("model_class", WITH_HEADS)
def test_packed_padded_and_alone_agree(make_class, model_class, padded, packed):
    model = make(make_class, model_class)
    values = {
        layout: numbers(model, layout, padded, packed) for layout in ("padded", "packed", "alone")
    }
    grads = {layout: gradients(model, weighted(value)) for layout, value in values.items()}
    for layout in ("packed", "alone"):
        assert_close(values[layout], values["padded"], atol=1e-5, rtol=0)
        assert_close(grads[layout], grads["padded"], atol=1e-5, rtol=0)


@pytest.mark.parametrize("model_class", WITH_HEADS)
def test_bf16_stays_within_four_percent(make_class, model_class, padded, packed):
    """Of the norm of all logits, and a cosine of 0.997 between the gradients; measured: at worst 2.5 % and 0.9981."""
    model = make(make_class, model_class)
    exact = numbers(model, "packed", padded, packed)
    exact_grads = gradients(model, weighted(exact))
    model.compute_dtype = torch.bfloat16
    rough = numbers(model, "packed", padded, packed)
    rough_grads = gradients(model, weighted(rough))
    assert 0 < (rough - exact).norm() / exact.norm() < 0.04
    assert all(grad.dtype == torch.float32 for grad in rough_grads.values())
    flat = [
        torch.cat([grad.flatten() for grad in grads.values()])
        for grads in (exact_grads, rough_grads)
    ]
    assert F.cosine_similarity(*flat, dim=0) > 0.997


@pytest.mark.parametrize("layout", ["packed", "padded"])
@pytest.mark.parametrize("model_class", WITH_HEADS)
def test_logits_over_a_bf16_encoder_are_not_rounded_to_bf16(
    make_class, model_class, layout, padded, packed
):
    """Rounded ones tie, and a best model is chosen among ties; in evaluation the masked-LM head, too, is fp32."""
    model = make(make_class, model_class)
    model.compute_dtype = torch.bfloat16
    with torch.no_grad():
        logits = numbers(model, layout, padded, packed)
    if isinstance(model, AlbertForBeamQuestionAnswering):
        logits = logits[logits.frac() != 0]  # places
    assert (logits == logits.bfloat16().float()).float().mean() < 0.1


# --- computed with its padding --------------------------------------------------------------------


def test_a_padded_batch_agrees_at_every_real_token(make_class, padded, packed):
    model = make_class(AlbertModel, inner_group_num=2)
    mask = padded["attention_mask"].clone()
    mask[2, 5] = 0  # a hole
    mask[0, 0] = 0  # and a row that begins with padding: it is pooled from its first real token
    names = ("input_ids", "token_type_ids")
    inputs = (padded[names[0]], mask, padded[names[1]], None, None)
    options = {"output_hidden_states": True, "output_attentions": True}
    passes = [PaddedPass(model, *inputs, keep, **options) for keep in (False, True)]
    assert [padded_pass.packed for padded_pass in passes] == [True, False]
    ours, theirs = (padded_pass.rows(padded_pass.hidden) for padded_pass in passes)
    assert_close(ours, theirs, atol=1e-5, rtol=0)
    assert_close(passes[0].pooled, passes[1].pooled, atol=1e-5, rtol=0)
    outputs = [model(*inputs[:3], **options), passes[1].output(type(model(*inputs[:3])))]
    for name in ("hidden_states", "attentions"):
        assert_close(outputs[0][name], outputs[1][name], atol=1e-5, rtol=0)


def test_a_padded_batch_knows_its_first_tokens():
    mask = torch.tensor([[1, 1, 0], [0, 1, 1]]).bool()
    ids = torch.arange(6)
    batch = PaddedBatch(ids, ids, ids, mask)
    assert batch.starts.tolist() == [0, 4]
    assert batch.longest == 3


# --- accumulation ---------------------------------------------------------------------------------


def labelled(model_class):
    """Four rows with labels, and how many labels `num_items_in_batch` counts; not equally many a row where it may be so."""
    generator = torch.Generator().manual_seed(4)
    ids = torch.randint(5, 90, (4, 12), generator=generator)
    batch = {
        "input_ids": ids,
        "attention_mask": (torch.arange(12) < torch.tensor([[12], [5], [9], [7]])).long(),
    }
    # As many in each row: Trainer does not count sentence-order labels
    if model_class is AlbertForPreTraining:
        labels = torch.where(torch.arange(12) % 5 == 1, ids, -100) * batch["attention_mask"]
        labels[:, 2:] = -100
        return {**batch, "labels": labels, "sentence_order_label": torch.tensor([0, 1, 1, 0])}, 4
    if model_class in (AlbertForMaskedLM, AlbertForTokenClassification):
        labels = torch.where(batch["attention_mask"] == 1, ids % 3, -100)
        labels[1, 2:] = -100
        return {**batch, "labels": labels}, int((labels != -100).sum())
    if model_class in (AlbertForQuestionAnswering, AlbertForBeamQuestionAnswering):
        positions = {
            "start_positions": torch.tensor([1, 2, 0, 3]),
            "end_positions": torch.tensor([4, 2, 0, 5]),
        }
        if model_class is AlbertForBeamQuestionAnswering:
            positions["is_impossible"] = torch.tensor([0, 0, 1, 0])
        return {**batch, **positions}, 4
    if model_class is AlbertForMultipleChoice:
        batch = {
            name: torch.stack([tensor, tensor.roll(1, 0)], 1) for name, tensor in batch.items()
        }
    return {**batch, "labels": torch.tensor([0, 1, -100, 1])}, 3


@pytest.mark.parametrize("model_class", WITH_HEADS)
def test_four_accumulated_parts_are_one_batch(make_class, model_class):
    model = make(make_class, model_class)
    batch, count = labelled(model_class)
    expected = model(**batch).loss
    whole_grads = gradients(model, expected)
    parts = [{name: tensor[row : row + 1] for name, tensor in batch.items()} for row in range(4)]
    summed = torch.stack(
        [model(**part, num_items_in_batch=torch.tensor(count)).loss for part in parts]
    ).sum()
    assert_close(summed, expected, atol=1e-6, rtol=1e-6)
    assert_close(gradients(model, summed), whole_grads, atol=1e-6, rtol=1e-5)
    # Which the mean of the parts' means is not
    if model_class in (AlbertForMaskedLM, AlbertForTokenClassification):
        assert (torch.stack([model(**part).loss for part in parts]).mean() - expected).abs() > 1e-3


def test_four_packed_parts_are_one_batch(make_class, padded):
    model = make_class(AlbertForMaskedLM)
    arguments = {
        name: padded[name] for name in ("input_ids", "attention_mask", "token_type_ids", "labels")
    }
    expected = model.packed_loss(PackedBatch.from_padded(**arguments))
    parts = [
        model.packed_loss(
            PackedBatch.from_padded(
                **{name: tensor[row : row + 1] for name, tensor in arguments.items()}
            )
        )
        for row in range(5)
    ]
    for total, of_parts in zip(expected, zip(*parts, strict=True), strict=True):
        assert_close(torch.stack(of_parts).sum(), total, atol=0, rtol=1e-6)
    assert_close(expected.mean(), model(**arguments).loss, atol=1e-5, rtol=0)
