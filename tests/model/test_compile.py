"""One graph, no break: `torch.compile` of padded and packed passes, and `torch.export` with any batch and length.

Tracing takes seconds a model, so by default one class is traced in each way, with two layers;
`slow` are the others.
"""

import io

import pytest
import torch
from small_models import CLASSES, gradients, sequences
from torch.export import Dim
from torch.testing import assert_close

from albertkit.model import (
    AlbertForBeamQuestionAnswering,
    AlbertForMaskedLM,
    AlbertForMultipleChoice,
    AlbertForPreTraining,
    AlbertForQuestionAnswering,
    AlbertForTokenClassification,
    AlbertModel,
)

CASES = [
    model_class
    if model_class is AlbertForMaskedLM
    else pytest.param(model_class, marks=pytest.mark.slow)
    for model_class in CLASSES
]


@pytest.fixture(autouse=True)
def _fresh_compiler():
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()  # of tests before it in this process
    yield
    torch._dynamo.reset()


def inputs_for(model_class, rows, width):
    generator = torch.Generator().manual_seed(rows)
    shape = (rows, 2, width) if model_class is AlbertForMultipleChoice else (rows, width)
    lengths = torch.randint(2, width + 1, shape[:-1], generator=generator)
    return {
        "input_ids": torch.randint(5, 90, shape, generator=generator),
        "attention_mask": (torch.arange(width) < lengths[..., None]).long(),
        "token_type_ids": torch.randint(0, 2, shape, generator=generator),
    }


@pytest.mark.parametrize(
    "backend",
    [
        "eager",
        pytest.param("aot_eager", marks=pytest.mark.slow),
    ],
)
def test_the_packed_losses_are_one_graph_for_all_batches(make_class, backend):
    """`aot_eager` traces the backward pass too, as the compilers behind `torch.compile` get it."""
    model = make_class(AlbertForPreTraining, num_hidden_layers=2).train()
    compiled = torch.compile(model.pretraining_losses, fullgraph=True, backend=backend)
    for lengths in ((9, 1, 17), (5, 5), (3, 20, 7, 8), (11, 12, 2, 3, 4, 9), (24, 2)):
        batch = sequences(lengths)
        outputs = compiled(batch)
        expected = model.pretraining_losses(batch)
        for ours, theirs in zip(outputs, expected, strict=True):
            assert (int(ours.correct), int(ours.label_count)) == (
                int(theirs.correct),
                int(theirs.label_count),
            )
        losses = [
            parts.masked_lm.mean() + parts.sentence_order.mean() for parts in (outputs, expected)
        ]
        assert_close(losses[0], losses[1], atol=1e-5, rtol=1e-6)
        assert_close(gradients(model, losses[0]), gradients(model, losses[1]), atol=1e-5, rtol=1e-4)
    # The first batch's own, and one for all others
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == 2


@pytest.mark.parametrize("model_class", CASES)
def test_a_padded_pass_is_one_graph(make_class, model_class):
    model = make_class(model_class, num_labels=3, num_hidden_layers=2)
    compiled = torch.compile(model, fullgraph=True, backend="eager", dynamic=True)
    for rows, width in ((3, 11), (2, 20), (5, 7)):
        inputs = inputs_for(model_class, rows, width)
        labels = {}
        if model_class in (AlbertForMaskedLM, AlbertForPreTraining, AlbertForTokenClassification):
            labels["labels"] = torch.where(
                inputs["attention_mask"] == 1, inputs["input_ids"] % 3, -100
            )
        elif model_class in (AlbertForQuestionAnswering, AlbertForBeamQuestionAnswering):
            labels = {
                name: torch.ones(rows, dtype=torch.int64)
                for name in ("start_positions", "end_positions")
            }
        elif model_class is not AlbertModel:
            labels["labels"] = torch.ones(rows, dtype=torch.int64)
        output = compiled(**inputs, **labels, output_hidden_states=True, output_attentions=True)
        expected = model(**inputs, **labels, output_hidden_states=True, output_attentions=True)
        assert type(output) is type(expected)
        assert list(output) == list(expected)
        for name, value in expected.items():
            assert_close(output[name], value, atol=1e-5, rtol=0)


@pytest.mark.parametrize(
    "strict",
    [
        True,
        pytest.param(False, marks=pytest.mark.slow),
    ],
)
@pytest.mark.parametrize("model_class", CASES)
def test_exported_programs_take_any_batch_and_length(make_class, model_class, strict):
    model = make_class(model_class, num_labels=3, num_hidden_layers=2)
    inputs = inputs_for(model_class, 3, 11)
    # More places than there are beams
    min_length = 6 if model_class is AlbertForBeamQuestionAnswering else 2
    length = 2 if model_class is AlbertForMultipleChoice else 1
    shapes = {
        name: {0: Dim("batch"), length: Dim("length", min=min_length, max=24)} for name in inputs
    }
    program = torch.export.export(model, (), inputs, dynamic_shapes=shapes, strict=strict)
    file = io.BytesIO()
    torch.export.save(program, file)
    file.seek(0)
    loaded = torch.export.load(file).module()
    for rows, width in ((3, 11), (1, 24), (5, 6)):
        inputs = inputs_for(model_class, rows, width)
        output = loaded(**inputs)
        expected = model(**inputs)
        assert type(output) is type(expected)
        for name, value in expected.items():
            assert_close(output[name], value, atol=1e-5, rtol=0)
