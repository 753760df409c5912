"""Folders go both ways between albertkit and transformers, and both compute the same."""

import pytest
import torch
import transformers
from small_models import TINY, padded_inputs, shaken
from torch.testing import assert_close

from albertkit.config import AlbertConfig
from albertkit.model import AlbertForMaskedLM, AlbertForPreTraining, AlbertModel

SHAPES = [
    {},
    {"num_hidden_layers": 4, "num_hidden_groups": 2},
    {"num_hidden_layers": 5, "num_hidden_groups": 3, "inner_group_num": 2},
    {"embedding_size": 64},
    {"hidden_act": "gelu"},
    {"hidden_act": "relu"},
    {"parameter_sharing": "attention", "num_hidden_groups": 3},
    {"parameter_sharing": "ffn", "num_hidden_groups": 3},
    {"parameter_sharing": "none", "num_hidden_groups": 3},
]


@pytest.fixture
def inputs():
    return padded_inputs()


def assert_same(ours, theirs, inputs):
    with torch.no_grad():
        our_outputs = ours(**inputs)
        their_outputs = theirs(**inputs)
    real = inputs["attention_mask"].bool()
    for name in ("last_hidden_state", "prediction_logits", "logits"):
        if hasattr(our_outputs, name):
            assert_close(our_outputs[name][real], their_outputs[name][real], atol=1e-5, rtol=0)
    for name in ("pooler_output", "sop_logits"):
        if hasattr(our_outputs, name):
            assert_close(our_outputs[name], their_outputs[name], atol=1e-5, rtol=0)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_transformers_loads_what_we_save(tmp_path, inputs, shape):
    ours = shaken(AlbertForPreTraining(AlbertConfig(**{**TINY, **shape})))
    ours.save_pretrained(tmp_path)
    theirs, report = transformers.AlbertForPreTraining.from_pretrained(
        tmp_path, output_loading_info=True
    )
    assert not any(report[key] for key in ("missing_keys", "unexpected_keys", "mismatched_keys"))
    assert_same(ours, theirs.eval(), inputs)
    reloaded = AlbertForPreTraining.from_pretrained(tmp_path)
    assert reloaded.config == ours.config
    for (name, parameter), restored in zip(
        ours.named_parameters(), reloaded.parameters(), strict=True
    ):
        assert torch.equal(parameter, restored), name


@pytest.mark.parametrize("shape", SHAPES[:6], ids=str)
def test_we_load_what_transformers_saves(tmp_path, inputs, shape):
    theirs = shaken(
        transformers.AlbertForPreTraining(transformers.AlbertConfig(**{**TINY, **shape}))
    )
    theirs.save_pretrained(tmp_path)
    ours = AlbertForPreTraining.from_pretrained(tmp_path)
    assert_same(ours, theirs, inputs)
    assert list(ours.state_dict()) == list(dict.fromkeys(ours.state_dict()))
    assert set(ours.state_dict()) == set(theirs.state_dict()) - set(ours.tied)


@pytest.mark.parametrize("name", ["AlbertModel", "AlbertForMaskedLM"])
def test_the_other_classes_go_both_ways(tmp_path, inputs, name):
    ours_class = {"AlbertModel": AlbertModel, "AlbertForMaskedLM": AlbertForMaskedLM}[name]
    theirs = shaken(getattr(transformers, name)(transformers.AlbertConfig(**TINY)))
    theirs.save_pretrained(tmp_path / "theirs")
    ours = ours_class.from_pretrained(tmp_path / "theirs")
    assert_same(ours, theirs, inputs)
    ours.save_pretrained(tmp_path / "ours")
    assert_same(ours, getattr(transformers, name).from_pretrained(tmp_path / "ours").eval(), inputs)


def test_the_encoder_of_a_pretrained_folder_and_back(tmp_path, inputs):
    model = shaken(AlbertForPreTraining(AlbertConfig(**TINY)))
    model.save_pretrained(tmp_path / "whole")
    encoder = AlbertModel.from_pretrained(tmp_path / "whole")
    assert_same(
        encoder, transformers.AlbertModel.from_pretrained(tmp_path / "whole").eval(), inputs
    )
    encoder.save_pretrained(tmp_path / "encoder")
    assert_same(
        encoder, transformers.AlbertModel.from_pretrained(tmp_path / "encoder").eval(), inputs
    )


def test_dense_gradients_are_transformers(inputs):
    theirs = shaken(transformers.AlbertForPreTraining(transformers.AlbertConfig(**TINY)))
    ours = AlbertForPreTraining(AlbertConfig(**TINY))
    ours.load_state_dict(theirs.state_dict())
    labels = torch.where(torch.rand(3, 20) < 0.3, torch.randint(0, 90, (3, 20)), -100)
    labels[inputs["attention_mask"] == 0] = -100
    for model in (ours, theirs):
        model(**inputs, labels=labels, sentence_order_label=torch.tensor([0, 1, 1])).loss.backward()
    reference = dict(theirs.named_parameters())
    for name, parameter in ours.named_parameters():
        expected = reference[name].grad
        # transformers' embedding passes nothing to the padding row
        if name.endswith("word_embeddings.weight"):
            expected = expected.clone()
            expected[0] = parameter.grad[0]
        assert_close(parameter.grad, expected, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize(
    ("size", "encoder", "with_heads"),
    [
        ("base", 11_683_584, 11_813_810),
        ("large", 17_683_968, 17_847_474),
        ("xlarge", 58_724_864, 59_021_490),
        ("xxlarge", 222_595_584, 223_158_450),
        ("small", 11_683_584, 11_813_810),
    ],
)
def test_published_sizes_count_exactly(size, encoder, with_heads):
    config = AlbertConfig.from_size(size)
    assert config.num_parameters() == encoder
    assert config.num_parameters(heads=True) == with_heads
    foreign = {
        key: value
        for key, value in config.to_dict().items()
        if key not in ("model_type", "parameter_sharing")
    }
    with torch.device("meta"):
        assert AlbertModel(config).num_parameters() == encoder
        assert AlbertForPreTraining(config).num_parameters() == with_heads
        theirs = transformers.AlbertForPreTraining(transformers.AlbertConfig(**foreign))
    theirs.tie_weights()
    assert theirs.num_parameters() == with_heads
