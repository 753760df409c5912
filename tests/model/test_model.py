"""The model against itself where two ways must agree, and against plain torch."""

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from small_models import gradients, sequences

from albertkit.config import AlbertConfig
from albertkit.errors import DataError
from albertkit.model import (
    AlbertForPreTraining,
    AlbertModel,
    PackedBatch,
    attention,
    cpu_loops,
    heads,
    layers,
)
from albertkit.model.attention import attention_probabilities, packed_attention, padded_attention
from albertkit.model.heads import MaskedLMHead, class_loss

Make = Callable[..., AlbertForPreTraining]


def total_loss(model: AlbertForPreTraining, batch: PackedBatch) -> torch.Tensor:
    losses = model.pretraining_losses(batch)
    return losses.masked_lm.loss_sum / losses.masked_lm.label_count + losses.sentence_order.loss_sum


# --- attention ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("implementation", "dtype"),
    [
        *(
            (name, dtype)
            for name in ("even", "one by one")
            for dtype in (torch.float64, torch.float32, torch.bfloat16)
        ),
        ("loops", torch.bfloat16),
    ],
)
def test_attention_equals_torch_on_each_sequence(implementation, dtype, packed, monkeypatch):
    monkeypatch.setattr(attention, "choose_attention", lambda *_, **__: implementation)
    monkeypatch.setattr(cpu_loops, "_MIN_SIZE", 1)
    torch.manual_seed(0)
    qkv = torch.randn(packed.num_tokens, 3 * 64, dtype=torch.float64).to(dtype)
    grad = torch.randn(packed.num_tokens, 64).to(dtype)
    ours = qkv.clone().requires_grad_()
    theirs = qkv.double().requires_grad_()
    context = packed_attention(ours, packed, num_heads=2)
    pieces = []
    for sequence in theirs.split(packed.lengths):
        query, key, value = sequence.view(len(sequence), 3, 2, 32).permute(1, 2, 0, 3)
        pieces.append(F.scaled_dot_product_attention(query, key, value).transpose(0, 1).flatten(1))
    function = context.grad_fn.name()
    assert ("Short" in function) == (implementation == "loops")
    assert ("Sequence" in function) == (implementation == "one by one")
    context.backward(grad)
    torch.cat(pieces).backward(grad.double())
    tolerance = {torch.float64: 1e-12, torch.float32: 1e-5, torch.bfloat16: 4e-2}[dtype]
    torch.testing.assert_close(context.double(), torch.cat(pieces), atol=tolerance, rtol=0)
    torch.testing.assert_close(ours.grad.double(), theirs.grad, atol=tolerance, rtol=0)


@pytest.mark.parametrize(
    ("lengths", "heads", "dtype", "implementation"),
    [
        ([14] * 20 + [34], 12, torch.bfloat16, "loops"),
        ([14] * 20 + [34], 12, torch.float32, "one by one"),
        ([64] * 32, 4, torch.bfloat16, "even"),
        ([512, 400, 300, 124], 12, torch.bfloat16, "one by one"),
        ([4] * 7 + [128], 12, torch.float32, "one by one"),
    ],
)
def test_attention_goes_the_cheapest_way(lengths, heads, dtype, implementation):
    assert (
        attention.choose_attention(tuple(lengths), heads, dtype, with_loops=dtype == torch.bfloat16)
        == implementation
    )


def test_the_padded_path_computes_the_same(packed):
    qkv = torch.randn(packed.num_tokens, 3 * 64)
    expected = packed_attention(qkv, packed, num_heads=2)
    torch.testing.assert_close(padded_attention(qkv, packed, 2, 0.0), expected, atol=1e-6, rtol=0)


@pytest.mark.parametrize("implementation", ["even", "one by one"])
def test_attention_dropout_drops_probabilities_and_its_gradient_matches(
    implementation, monkeypatch
):
    monkeypatch.setattr(attention, "choose_attention", lambda *_, **__: implementation)
    batch = PackedBatch.from_sequences([[1] * 30, [1] * 20])
    qkv = torch.randn(50, 3 * 64, dtype=torch.float64, requires_grad=True)
    # With these the context is the dropped probabilities
    values = torch.eye(32, dtype=torch.float64)[:30].repeat(1, 2)
    with torch.no_grad():
        qkv[:30, 128:] = values
    torch.manual_seed(3)
    context = packed_attention(qkv, batch, 2, dropout=0.25)
    weights = context[:30].view(30, 2, 32)[..., :30].transpose(0, 1)
    plain = attention_probabilities(qkv, batch, 2)[0]
    keep_mask = weights != 0
    torch.testing.assert_close(weights[keep_mask], (plain / 0.75)[keep_mask])
    assert abs(keep_mask.double().mean().item() - 0.75) < 0.05  # 1800 draws: five standard errors

    def sample(inputs: torch.Tensor) -> torch.Tensor:
        torch.manual_seed(3)
        return packed_attention(inputs, batch, 2, dropout=0.25)[::7]

    assert torch.autograd.gradcheck(sample, (qkv,), fast_mode=True)


# --- gradients of weights that are used again and again -------------------------------------------


@pytest.mark.parametrize("recompute", [False, True])
def test_the_gradients_of_reused_weights_are_autograds(make_model, monkeypatch, recompute):
    model = make_model(num_hidden_layers=4)
    batch = sequences((9, 1, 17, 5))
    model.gradient_checkpointing = recompute
    results = gradients(model, total_loss(model, batch))
    with monkeypatch.context() as patched:
        patched.setattr(layers, "faster_for_repeated_layer", lambda projection: projection)
        expected = gradients(model, total_loss(model, batch))
    torch.testing.assert_close(results, expected, atol=1e-6, rtol=1e-4)
    weights = model.albert.encoder.layers(torch.float32)[0][1]
    assert weights.ffn(torch.ones(1, 64)).grad_fn.name() == "_UseBackward"


def test_reused_weights_after_a_pass_for_less_than_all_gradients(make_model):
    model = make_model(num_hidden_layers=3)
    batch = sequences((9, 1, 17, 5))
    loss = model.albert.encode(batch).hidden.square().sum()
    words = torch.autograd.grad(loss, model.get_input_embeddings().weight, retain_graph=True)[0]
    expected = gradients(model, model.albert.encode(batch).hidden.square().sum())
    model.zero_grad()
    for times in (1, 2):
        loss.backward(retain_graph=True)
        results = {
            name: value.grad / times
            for name, value in model.named_parameters()
            if value.grad is not None
        }
        torch.testing.assert_close(results, expected)
    torch.testing.assert_close(words, expected["albert.embeddings.word_embeddings.weight"])


# --- packed and padded ----------------------------------------------------------------------------


def test_a_packed_batch_equals_its_sequences_alone(make_model, packed):
    model = make_model()
    hidden, pooled = model.albert.encode(packed)
    pieces = zip(
        packed.input_ids.split(packed.lengths),
        packed.token_type_ids.split(packed.lengths),
        strict=True,
    )
    for n, (ids, types) in enumerate(pieces):
        alone = model.albert(ids[None], token_type_ids=types[None])
        torch.testing.assert_close(
            hidden.split(packed.lengths)[n], alone.last_hidden_state[0], atol=1e-5, rtol=0
        )
        torch.testing.assert_close(pooled[n], alone.pooler_output[0], atol=1e-5, rtol=0)


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"inner_group_num": 2, "num_hidden_groups": 3},
    ],
)
def test_packed_losses_and_gradients_equal_the_padded_ones(make_model, packed, padded, changes):
    model = make_model(**changes)
    output = model(**padded)
    losses = model.pretraining_losses(packed)
    assert losses.masked_lm.label_count == (padded["labels"] != -100).sum()
    assert losses.sentence_order.label_count == 5
    predicted = output.prediction_logits.argmax(-1)
    assert losses.masked_lm.correct == (predicted == padded["labels"]).sum()
    assert (
        losses.sentence_order.correct
        == (output.sop_logits.argmax(-1) == padded["sentence_order_label"]).sum()
    )
    loss = (
        losses.masked_lm.loss_sum / losses.masked_lm.label_count
        + losses.sentence_order.loss_sum / 5
    )
    torch.testing.assert_close(loss, output.loss, atol=1e-5, rtol=1e-6)
    ours = gradients(model, loss)
    theirs = gradients(model, output.loss)
    torch.testing.assert_close(ours, theirs, atol=2e-5, rtol=1e-4)


def test_the_last_pass_at_some_positions_is_the_whole_pass_there(make_model, packed):
    model = make_model(inner_group_num=2)
    hidden, pooled = model.albert.encode(packed)
    positions = torch.tensor([30, 3, 3, 11])
    selected = model.albert.encode(packed, positions=positions)
    torch.testing.assert_close(selected.hidden, hidden[positions], atol=1e-5, rtol=0)
    torch.testing.assert_close(selected.pooled, pooled, atol=1e-5, rtol=0)


# --- one layer, run many times --------------------------------------------------------------------


def test_fused_projections_are_the_three_projections(make_model):
    layer = make_model().albert.encoder.albert_layer_groups[0].albert_layers[0]
    hidden = torch.randn(50, 64)
    fused = layer.weights(torch.float32).qkv(hidden)
    parts = [
        projection(hidden)
        for projection in (layer.attention.query, layer.attention.key, layer.attention.value)
    ]
    torch.testing.assert_close(fused, torch.cat(parts, 1), atol=1e-6, rtol=1e-6)


def test_each_block_is_made_ready_once(make_model):
    passes = make_model(inner_group_num=2).albert.encoder.layers(torch.bfloat16)
    assert len(passes) == 6
    assert len({id(weights) for _, weights in passes}) == 2
    width = passes[0][0].attention.query.in_features
    assert passes[0][1].qkv(torch.zeros(2, width, dtype=torch.bfloat16)).dtype == torch.bfloat16


def test_layers_are_divided_as_the_original_divides_them():
    config = AlbertConfig(
        hidden_size=32,
        num_attention_heads=1,
        intermediate_size=32,
        num_hidden_layers=22,
        num_hidden_groups=22,
    )
    with torch.device("meta"):
        groups = AlbertModel(config).encoder.group_of_layer
    assert groups == [int(layer / 22 * 22) for layer in range(22)]
    assert groups != list(range(22))  # float truncation, as in transformer_model


@pytest.mark.parametrize(
    ("sharing", "shared", "unshared"),
    [
        ("attention", "attention.query.weight", "ffn.weight"),
        ("ffn", "ffn.weight", "attention.query.weight"),
    ],
)
def test_shared_parts_are_the_same_parameters(make_model, sharing, shared, unshared):
    model = make_model(parameter_sharing=sharing, num_hidden_groups=3)
    first, _, last = (group.albert_layers[0] for group in model.albert.encoder.albert_layer_groups)
    assert first.get_parameter(shared) is last.get_parameter(shared)
    assert first.get_parameter(unshared) is not last.get_parameter(unshared)
    assert model.num_parameters() == model.config.num_parameters(heads=True)


@pytest.mark.parametrize("sharing", ["attention", "ffn", "none"])
def test_sharing_needs_a_group_a_layer_and_counts_exactly(sharing):
    config = AlbertConfig.from_size("tiny", parameter_sharing=sharing)
    with torch.device("meta"):
        assert AlbertModel(config).num_parameters() == config.num_parameters()


# --- numbers --------------------------------------------------------------------------------------


def test_checkpointing_changes_nothing(make_model, packed):
    model = make_model(hidden_dropout_prob=0.1, attention_probs_dropout_prob=0.1).train()
    results = []
    for on in (False, True):
        model.gradient_checkpointing = on
        torch.manual_seed(5)
        loss = total_loss(model, packed)
        results.append((loss.detach(), gradients(model, loss)))
    torch.testing.assert_close(results[0], results[1], atol=1e-6, rtol=1e-5)


def test_bf16_is_close_and_gradients_stay_fp32(make_model, packed):
    model = make_model()
    exact_loss = total_loss(model, packed)
    exact = gradients(model, exact_loss)
    model.compute_dtype = torch.bfloat16
    loss = total_loss(model, packed)
    rough = gradients(model, loss)
    assert loss.dtype == torch.float32
    torch.testing.assert_close(loss, exact_loss, rtol=2e-2, atol=0)
    assert all(grad.dtype == torch.float32 for grad in rough.values())
    flat = [torch.cat([grad.flatten() for grad in grads.values()]) for grads in (exact, rough)]
    assert F.cosine_similarity(*flat, dim=0) > 0.999


def test_dropout_stands_where_the_original_has_it(make_model, packed, monkeypatch):
    shapes: list[tuple[int, ...]] = []

    def record(
        values: torch.Tensor, p: float, training: bool, inplace: bool = False
    ) -> torch.Tensor:
        assert p == 0.25
        assert training is True
        shapes.append(tuple(values.shape))
        return values

    model = make_model(hidden_dropout_prob=0.25).train()
    monkeypatch.setattr(F, "dropout", record)
    model.albert.encode(packed)
    tokens = packed.num_tokens
    assert (
        shapes == [(tokens, 16)] + [(tokens, 64)] * 6
    )  # embeddings; attention and feed-forward output of three layers
    shapes.clear()
    model.sop_classifier(torch.ones(2, 64))
    assert not shapes


def test_initialisation_is_the_originals():
    torch.manual_seed(0)
    model = AlbertForPreTraining(AlbertConfig.from_size("tiny", vocab_size=2000))
    for name, parameter in model.named_parameters():
        if name.endswith("bias"):
            assert not parameter.any(), name
        elif "LayerNorm" in name or "layer_norm" in name:
            assert (parameter == 1).all(), name
        else:
            assert parameter.abs().max() <= 0.04, name
            # tf.truncated_normal(0.02): the cut leaves 0.8796 of the deviation
            if parameter.numel() > 5000:
                assert parameter.std().item() == pytest.approx(0.02 * 0.8796, rel=0.05), name


# --- losses ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("predictions", [1, 128, 300])
def test_the_vocabulary_loss_is_torch_cross_entropy(predictions, monkeypatch):
    # 300 predictions: three products, the last of 44 rows
    monkeypatch.setattr(heads, "_LOGITS_ON_CPU", 128 * 1000)
    monkeypatch.setattr(heads, "_IN_CACHE", 50 * 1000)
    torch.manual_seed(0)
    config = AlbertConfig(
        vocab_size=1000,
        embedding_size=24,
        hidden_size=32,
        num_attention_heads=1,
        intermediate_size=8,
    )
    table = torch.nn.Embedding(1000, 24)
    head = MaskedLMHead(config, table).double()
    with torch.no_grad():
        head.bias.normal_()
    hidden = torch.randn(predictions, 32, dtype=torch.float64, requires_grad=True)
    labels = torch.randint(0, 1000, (predictions,))
    labels[::2] = head(hidden).argmax(1)[::2]
    parameters = [hidden, head.bias, head.decoder.weight, head.dense.weight]
    logits = head(hidden)
    expected = F.cross_entropy(logits, labels, reduction="sum")
    summed = head.summed_loss(hidden, labels)
    loss = summed.loss_sum
    torch.testing.assert_close(loss, expected)
    assert summed.correct == (logits.argmax(1) == labels).sum() >= (predictions + 1) // 2
    torch.testing.assert_close(
        torch.autograd.grad(3 * loss, parameters), torch.autograd.grad(3 * expected, parameters)
    )
    loss, *_ = head.summed_loss(hidden, labels)
    loss.backward(retain_graph=True)
    # Its memory is the gradient by now
    with pytest.raises(RuntimeError, match="compute the loss again"):
        loss.backward()


def test_no_target_means_zero_not_nan(make_model):
    model = make_model()
    losses = model.pretraining_losses(PackedBatch.from_sequences([[1, 2, 3]]))
    assert [value.item() for loss in losses for value in loss] == [0] * 6
    (losses.masked_lm.loss_sum + losses.sentence_order.loss_sum).backward()
    ids = torch.ones(1, 3, dtype=torch.int64)
    assert model(ids, labels=torch.full_like(ids, -100)).loss.item() == 0


def test_absent_sentence_order_labels_do_not_count():
    logits = torch.tensor([[1.0, 2.0], [3.0, 0.0], [0.0, 5.0]])
    counted = class_loss(logits, torch.tensor([1, -100, 0]))
    torch.testing.assert_close(counted.loss_sum, -logits.log_softmax(1)[[0, 2], [1, 0]].sum())
    assert counted.correct == 1
    assert counted.label_count == 2


def test_too_long_a_sequence_is_named(make_model):
    with pytest.raises(DataError, match="25 tokens, the model reads 24"):
        make_model()(torch.ones(1, 25, dtype=torch.int64))


def test_an_id_the_model_does_not_know_is_named(make_model):
    with pytest.raises(
        DataError,
        match=r"(?s)\[wrong-tokenizer\].*input_ids go from 3 to 90, the model knows 0 to 89",
    ):
        make_model()(torch.tensor([[3, 90]]))


@pytest.mark.gpu
@pytest.mark.parametrize("dropout", [0.0, 0.1])
def test_cuda_computes_what_the_cpu_does(make_model, packed, dropout):
    if not torch.cuda.is_available():
        pytest.skip("no CUDA device")
    model = make_model(attention_probs_dropout_prob=dropout)
    expected = total_loss(model, packed).item()
    model.cuda()
    batch = packed.to("cuda")
    assert total_loss(model, batch).item() == pytest.approx(expected, rel=1e-4)
    model.compute_dtype = torch.bfloat16
    model.train(mode=dropout > 0)
    loss = total_loss(model, batch)
    assert loss.item() == pytest.approx(expected, rel=0.3 if dropout else 2e-2)
    loss.backward()
    assert all(torch.isfinite(parameter.grad).all() for parameter in model.parameters())
