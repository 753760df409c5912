"""Pooled heads compute the last pass at first tokens only: same logits, same gradients."""

import pytest
from small_models import gradients
from torch.testing import assert_close

from albertkit.model import AlbertForMultipleChoice, AlbertForSequenceClassification
from albertkit.model.padded import Trace


def of_all_tokens(model, batch):
    """Logits from a last pass over every token."""
    return model._head(*model.albert.encode(batch))


@pytest.mark.parametrize("model_class", [AlbertForSequenceClassification, AlbertForMultipleChoice])
@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"num_hidden_layers": 1},
        {"num_hidden_groups": 3},
    ],
    ids=str,
)
def test_logits_and_gradients_are_those_of_a_whole_last_pass(
    make_class, packed, model_class, changes
):
    # In fp32 the sums of two threads differ by 1e-5
    model = make_class(model_class, **changes).double()
    logits = model.packed_logits(packed)
    expected = of_all_tokens(model, packed)
    assert_close(logits, expected, atol=1e-12, rtol=0)
    assert_close(
        gradients(model, logits.square().sum()),
        gradients(model, expected.square().sum()),
        atol=1e-11,
        rtol=0,
    )


def test_it_saves_work_and_a_trace_has_all_tokens(make_class, packed):
    model = make_class(AlbertForSequenceClassification)
    layer = model.albert.encoder.albert_layer_groups[0].albert_layers[0]
    rows = []
    layer.ffn.register_forward_hook(lambda module, inputs, output: rows.append(len(output)))
    model.packed_logits(packed)
    assert rows == [packed.num_tokens, packed.num_tokens, packed.num_sequences]

    rows.clear()
    trace = Trace(True, False)
    logits = model.packed_logits(packed, trace)
    assert rows == [packed.num_tokens] * 3
    assert [len(states) for states in trace.hidden_states] == [packed.num_tokens] * 4
    assert_close(logits, model.packed_logits(packed), atol=1e-6, rtol=0)
