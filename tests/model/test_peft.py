"""PEFT's LoRA: adapters take effect although a block's weights are made ready once a forward pass."""

import pytest
import torch
from torch import nn

from albertkit.model import AlbertForPreTraining, AlbertForSequenceClassification
from albertkit.model.pretrained import PretrainedAlbert

peft = pytest.importorskip("peft")
TARGETS = [
    ["query", "value"],
    "all-linear",
    ["query", "ffn_output", "pooler", "embedding_hidden_mapping_in"],
]


def adapted(model: PretrainedAlbert, targets: list[str] | str) -> nn.Module:
    """With adapters that are not zero, as they are after training."""
    options = {"task_type": "SEQ_CLS"} if targets == "all-linear" else {}
    return peft.get_peft_model(
        model,
        peft.LoraConfig(
            r=4, target_modules=targets, init_lora_weights=False, lora_dropout=0.0, **options
        ),
    ).eval()


@pytest.mark.parametrize("targets", TARGETS, ids=str)
def test_adapters_take_effect_and_merge(make_class, padded, packed, targets):
    inputs = {name: padded[name] for name in ("input_ids", "attention_mask", "token_type_ids")}
    model = make_class(AlbertForSequenceClassification)
    plain = model(**inputs).logits.detach()
    lora = adapted(model, targets)
    logits = lora(**inputs, labels=torch.tensor([0, 1, 1, 0, 1])).logits
    assert (logits - plain).abs().max() > 1e-2
    torch.testing.assert_close(model.packed_logits(packed), logits, atol=1e-5, rtol=0)
    with lora.disable_adapter():
        torch.testing.assert_close(lora(**inputs).logits, plain, atol=1e-5, rtol=0)

    lora.train()
    lora(**inputs, labels=torch.tensor([0, 1, 1, 0, 1])).loss.backward()
    trained = {
        name: parameter for name, parameter in lora.named_parameters() if parameter.requires_grad
    }
    assert any("query" in name for name in trained)
    # Each adapter was on the way
    assert all(parameter.grad.abs().max() > 0 for parameter in trained.values())
    assert not any("lora" not in name and "modules_to_save" not in name for name in trained)

    # Plain linear layers again: the fast way must give the same
    merged = lora.eval().merge_and_unload()
    torch.testing.assert_close(merged(**inputs).logits, logits, atol=1e-5, rtol=0)


def test_adapters_in_half_precision_and_with_checkpointing(make_class, padded):
    inputs = {name: padded[name] for name in ("input_ids", "attention_mask", "token_type_ids")}
    labels = torch.tensor([0, 1, 1, 0, 1])
    model = make_class(AlbertForSequenceClassification, classifier_dropout_prob=0.0)
    lora = adapted(model, ["query", "value"]).train()
    grads = []
    for dtype, checkpointing in ((None, False), (None, True), (torch.bfloat16, False)):
        model.compute_dtype = dtype
        model.gradient_checkpointing = checkpointing
        lora.zero_grad()
        lora(**inputs, labels=labels).loss.backward()
        grads.append(torch.cat([p.grad.flatten() for p in lora.parameters() if p.requires_grad]))
    torch.testing.assert_close(grads[1], grads[0], atol=1e-6, rtol=1e-5)
    assert grads[2].dtype == torch.float32
    assert torch.cosine_similarity(grads[2], grads[0], dim=0) > 0.995


def test_hooks_and_other_layers_are_not_bypassed(make_class, packed):
    model = make_class(AlbertForPreTraining)
    layer = model.albert.encoder.albert_layer_groups[0].albert_layers[0]
    plain = model.pretraining_losses(packed).masked_lm.loss_sum
    calls: list[int] = []
    for module in (
        layer.attention.key,
        layer.full_layer_layer_norm,
        model.predictions.dense,
        model.predictions.decoder,
    ):
        handle = module.register_forward_hook(lambda *_: calls.append(1))
        model.packed_logits(packed)
        assert calls, module
        calls.clear()
        handle.remove()
    doubled = nn.Sequential(layer.ffn_output, nn.Linear(64, 64, bias=False))
    nn.init.eye_(doubled[1].weight)
    layer.ffn_output = doubled
    torch.testing.assert_close(
        model.pretraining_losses(packed).masked_lm.loss_sum, plain, rtol=1e-6, atol=0
    )
    doubled[1].weight.data *= 2
    assert (model.pretraining_losses(packed).masked_lm.loss_sum - plain).abs() > 1
