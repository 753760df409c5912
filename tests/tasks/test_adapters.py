"""Frozen encoder and LoRA: what trains, that it merges into a plain model which transformers reads, that a run resumes."""

import sys

import pytest
import torch
from small_models import tiny_config
from torch.testing import assert_close

from albertkit.config import AlbertConfig
from albertkit.errors import ConfigError, MissingExtraError
from albertkit.model import (
    AlbertForBeamQuestionAnswering,
    AlbertForQuestionAnswering,
    AlbertForSequenceClassification,
    AlbertForTokenClassification,
    PackedBatch,
)
from albertkit.tasks.finetune import add_lora, freeze_encoder, merge_lora
from albertkit.training.loop import LossPart

from .conftest import BatchObjective, train_on_batch

BATCH = PackedBatch.from_sequences([[2, 7, 8, 3], [2, 9, 3], [2, 11, 12, 13, 14, 3]])
LABELS = torch.tensor([0, 1, 1])
LOGITS = {
    AlbertForSequenceClassification: lambda model: model.packed_logits(BATCH),
    AlbertForTokenClassification: lambda model: model.packed_logits(BATCH),
    AlbertForQuestionAnswering: lambda model: torch.stack(model.packed_logits(BATCH)),
    AlbertForBeamQuestionAnswering: lambda model: model.packed_beams(BATCH).end_top_log_probs.clamp(
        min=-100
    ),
}


def tiny(model_class=AlbertForSequenceClassification, **changes):
    torch.manual_seed(0)
    return model_class(tiny_config(initializer_range=0.2, **changes)).eval()


def trained(lora):
    """With adapters that are not zero, as after training."""
    with torch.no_grad():
        for parameter in lora.parameters():
            if parameter.requires_grad:
                parameter += 0.1 * torch.randn_like(parameter)
    return lora


HEAD = {
    "classifier.weight",
    "classifier.bias",
    "albert.pooler.weight",
    "albert.pooler.bias",
}


def trainable(model):
    return {name: p for name, p in model.named_parameters() if p.requires_grad}


# --- frozen encoder -------------------------------------------------------------------------------


def test_frozen_encoder_leaves_the_head_and_the_pooler():
    model = tiny()
    freeze_encoder(model)
    assert set(trainable(model)) == HEAD
    hidden, pooled = model.train().albert.encode(BATCH)
    assert not hidden.requires_grad  # torch records nothing in the encoder
    assert pooled.requires_grad
    model.task_loss(model.packed_logits(BATCH), LABELS).mean().backward()
    assert all(p.grad is not None and p.grad.abs().max() > 0 for p in trainable(model).values())

    tagger = tiny(AlbertForTokenClassification)
    freeze_encoder(tagger)
    assert set(trainable(tagger)) == {"classifier.weight", "classifier.bias"}


def test_parameter_counts_of_base_are_those_in_the_docstrings():
    with torch.device("meta"):
        model = AlbertForSequenceClassification(AlbertConfig.from_size("base", vocab_size=30_000))
        freeze_encoder(model)
        assert model.num_parameters() == 11_685_122
        assert model.num_parameters(only_trainable=True) == 592_130
        add_lora(model, 8)
    assert (
        model.num_parameters(only_trainable=True) - 592_130
        == 8 * (8 * 768 + 2 * (768 + 3072))
        == 110_592
    )


# --- LoRA -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("model_class", LOGITS, ids=lambda c: c.__name__)
def test_adapters_start_as_nothing_take_effect_and_merge(model_class):
    logits = LOGITS[model_class]
    model = tiny(model_class)
    plain = logits(model)
    lora = add_lora(model, 4)
    assert_close(logits(lora), plain, atol=1e-6, rtol=1e-6)
    adapted = logits(trained(lora))
    assert (adapted - plain).abs().max() > 1e-2
    merged = merge_lora(lora)
    assert type(merged) is model_class
    assert set(merged.state_dict()) == set(tiny(model_class).state_dict())
    assert all(p.requires_grad for p in merged.parameters())
    assert_close(logits(merged), adapted, atol=1e-5, rtol=1e-5)
    assert_close(logits(lora), adapted, atol=0, rtol=0)  # merging left it as it was


@pytest.mark.parametrize(
    ("sharing", "groups", "attentions", "ffns"),
    [("all", 1, 1, 1), ("attention", 3, 1, 3), ("ffn", 3, 3, 1), ("none", 3, 3, 3)],
)
def test_every_way_of_sharing(sharing, groups, attentions, ffns):
    model = tiny(parameter_sharing=sharing, num_hidden_groups=groups)
    before = model.num_parameters()
    lora = trained(add_lora(model, 4))
    blocks = [group.albert_layers[0] for group in model.albert.encoder.albert_layer_groups]
    assert len({block.ffn for block in blocks}) == ffns
    assert len({block.attention.query for block in blocks}) == attentions
    attention = 4 * 4 * 2 * 64
    feed_forward = 2 * 4 * (64 + 96)
    assert model.num_parameters() - before == attentions * attention + ffns * feed_forward
    merged = merge_lora(lora)
    assert merged.num_parameters() == before
    assert_close(merged.packed_logits(BATCH), model.packed_logits(BATCH), atol=1e-5, rtol=0)


def test_only_adapters_head_and_pooler_train(tmp_path):
    lora = add_lora(tiny(), 4)
    names = set(trainable(lora))
    assert sum("lora_" in name for name in names) == 12  # A and B of six layers
    assert {name for name in names if "lora_" not in name} == HEAD
    frozen = {name: p.clone() for name, p in lora.named_parameters() if not p.requires_grad}
    run_training(lora, tmp_path, 3)
    assert all(
        torch.equal(p, frozen[name]) for name, p in lora.named_parameters() if name in frozen
    )


def test_merged_is_what_transformers_reads(tmp_path):
    import transformers

    lora = trained(add_lora(tiny(), 4))
    merge_lora(lora).save_pretrained(tmp_path)
    theirs = transformers.AlbertForSequenceClassification.from_pretrained(tmp_path).eval()
    rows = [[2, 7, 8, 3], [2, 9, 3], [2, 11, 12, 13, 14, 3]]
    expected = torch.cat([theirs(input_ids=torch.tensor([row])).logits for row in rows])
    assert_close(lora.packed_logits(BATCH), expected, atol=1e-5, rtol=0)
    # The unadapted model would be noticed
    assert (tiny().packed_logits(BATCH) - expected).abs().max() > 1e-2


def run_training(lora, run, steps, resume=False):
    """Learn the classes of three sequences."""

    def losses(batch):
        loss = lora.task_loss(lora.packed_logits(batch), LABELS)
        return {"class": LossPart(loss.loss_sum, 3, loss.correct)}

    def save(folder):
        merge_lora(lora).save_pretrained(folder)

    objective = BatchObjective(losses, lambda batch: {"class": 3})
    train_on_batch(lora, objective, BATCH, run, steps, save, resume)


def test_a_run_resumes_to_the_same_bits(tmp_path):
    dropout = dict(hidden_dropout_prob=0.1)
    uninterrupted = add_lora(tiny(**dropout), 4)
    run_training(uninterrupted, tmp_path / "whole", 4)
    run_training(add_lora(tiny(**dropout), 4), tmp_path / "halves", 2)
    resumed = add_lora(tiny(**dropout), 4)
    with torch.no_grad():  # as a fresh start in another process would draw them
        for parameter in trainable(resumed).values():
            parameter.normal_()
    run_training(resumed, tmp_path / "halves", 4, resume=True)
    ours = resumed.state_dict()
    theirs = uninterrupted.state_dict()
    assert all(torch.equal(ours[name], theirs[name]) for name in theirs)
    best = AlbertForSequenceClassification.from_pretrained(
        tmp_path / "halves/checkpoints/step-000004"
    )
    assert_close(
        best.packed_logits(BATCH), merge_lora(uninterrupted).packed_logits(BATCH), atol=0, rtol=0
    )
    start = merge_lora(add_lora(tiny(**dropout), 4)).packed_logits(BATCH)
    assert (best.packed_logits(BATCH) - start).abs().max() > 1e-3  # it has learned something


@pytest.mark.parametrize("rank", [0, 65])
def test_impossible_ranks_are_refused(rank):
    with pytest.raises(ConfigError, match=r"\[bad-value\]"):
        add_lora(tiny(), rank)


def test_without_peft_the_install_line_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "peft", None)
    with pytest.raises(MissingExtraError) as caught:
        add_lora(tiny(), 4)
    assert "albertkit[lora]" in caught.value.hint
