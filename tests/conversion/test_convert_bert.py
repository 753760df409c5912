"""A BERT as an ALBERT: the same outputs with a group for every layer; shared layers only on request, and with their loss."""

import json

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file
from small_models import padded_inputs, shaken
from torch.testing import assert_close

from albertkit.config import AlbertConfig
from albertkit.conversion.convert import convert
from albertkit.errors import CheckpointError
from albertkit.model import AlbertForMaskedLM, AlbertForPreTraining, AlbertModel

TINY = dict(
    vocab_size=60,
    hidden_size=64,
    num_hidden_layers=6,
    num_attention_heads=2,
    intermediate_size=96,
    max_position_embeddings=24,
    type_vocab_size=2,
)


def saved(folder, name="BertForPreTraining", **changes):
    torch.manual_seed(0)
    model = shaken(
        getattr(transformers, name)(transformers.BertConfig(**{**TINY, **changes})), 0.05
    )
    model.save_pretrained(folder)
    return model


@pytest.fixture
def inputs():
    return padded_inputs(60)


def states(model, inputs):
    """Everything a model computes, at real positions."""
    with torch.no_grad():
        output = model(**inputs, output_hidden_states=True)
    real = inputs["attention_mask"].bool()
    hidden_states = [t[real] if t.shape[:2] == real.shape else t for t in output.hidden_states]
    for name in (
        "prediction_logits",
        "logits",
        "sop_logits",
        "seq_relationship_logits",
        "last_hidden_state",
        "pooler_output",
    ):
        tensor = getattr(output, name, None)
        if tensor is not None:
            hidden_states.append(tensor[real] if tensor.shape[:2] == real.shape else tensor)
    return hidden_states


@pytest.mark.parametrize(
    ("name", "ours", "activation"),
    [
        ("BertForPreTraining", AlbertForPreTraining, "gelu"),
        ("BertForPreTraining", AlbertForPreTraining, "gelu_new"),
        ("BertForPreTraining", AlbertForPreTraining, "relu"),
        ("BertForMaskedLM", AlbertForMaskedLM, "gelu"),
        ("BertModel", AlbertModel, "gelu"),
    ],
)
def test_exact(tmp_path, inputs, name, ours, activation):
    bert = saved(tmp_path / "bert", name, hidden_act=activation)
    report = convert(tmp_path / "bert", tmp_path / "albert")
    assert report.kind == "BERT folder"
    assert report.model_class == ours.__name__
    assert report.relative_errors == {}
    albert = ours.from_pretrained(tmp_path / "albert")
    expected = states(bert, inputs)
    computed = states(albert, inputs)
    assert len(computed) == len(expected) >= 8
    for our_states, their_states in zip(computed, expected, strict=True):
        assert_close(our_states, their_states, atol=1e-5, rtol=0)
    theirs = getattr(transformers, ours.__name__).from_pretrained(tmp_path / "albert").eval()
    for our_states, their_states in zip(states(theirs, inputs), expected, strict=True):
        assert_close(our_states, their_states, atol=1e-5, rtol=0)


def test_names_of_2018(tmp_path, inputs):
    """bert-base-uncased's file still says gamma and beta, and holds the decoder twice."""
    bert = saved(tmp_path / "bert")
    file = tmp_path / "bert/model.safetensors"
    old = {
        name.replace("LayerNorm.weight", "LayerNorm.gamma").replace(
            "LayerNorm.bias", "LayerNorm.beta"
        ): tensor
        for name, tensor in load_file(file).items()
    }
    old["cls.predictions.decoder.weight"] = old["bert.embeddings.word_embeddings.weight"].clone()
    old["bert.embeddings.position_ids"] = torch.arange(24)[None]
    save_file(old, file)
    report = convert(tmp_path / "bert", tmp_path / "albert")
    assert report.skipped == {"tied copy": 1, "buffer": 1}
    albert = AlbertForPreTraining.from_pretrained(tmp_path / "albert")
    for ours, theirs in zip(states(albert, inputs), states(bert, inputs), strict=True):
        assert_close(ours, theirs, atol=1e-5, rtol=0)


def albert_config(file, **changes):
    values = {**TINY, "embedding_size": 64, "hidden_act": "gelu", **changes}
    file.write_text(json.dumps({"model_type": "albert", **values}))
    return file


def test_sharing_is_lossy_and_says_by_how_much(tmp_path):
    saved(tmp_path / "bert")
    three = albert_config(tmp_path / "three.json", num_hidden_groups=3)
    with pytest.raises(
        CheckpointError, match=r"(?s)\[doubtful\].*6 layers of BERT do not fit 3 groups"
    ) as error:
        convert(tmp_path / "bert", tmp_path / "albert", config=three)
    assert "albertkit pretrain STORE --teacher BERT" in error.value.hint
    report = convert(tmp_path / "bert", tmp_path / "albert", config=three, lossy=True)
    before, after = (
        load_file(tmp_path / name / "model.safetensors") for name in ("bert", "albert")
    )
    stack = torch.stack(
        [before[f"bert.encoder.layer.{layer}.output.dense.weight"] for layer in (2, 3)]
    ).double()
    name = "albert.encoder.albert_layer_groups.1.albert_layers.0.ffn_output.weight"
    assert_close(after[name], stack.mean(0).float(), atol=0, rtol=0)
    expected = float(((stack - stack.mean(0)) ** 2).sum().sqrt() / (stack**2).sum().sqrt())
    assert report.relative_errors[name] == pytest.approx(expected)
    assert len(report.relative_errors) == 3 * 16
    assert all(0 < value < 1 for value in report.relative_errors.values())
    assert AlbertConfig.from_pretrained(tmp_path / "albert").num_hidden_groups == 3
    single = convert(tmp_path / "bert", tmp_path / "one", lossy=True)
    assert AlbertConfig.from_pretrained(tmp_path / "one").num_hidden_groups == 1
    assert len(single.relative_errors) == 16
    assert any("albertkit pretrain STORE --teacher BERT" in note for note in single.notes)


def test_layers_that_are_equal_lose_nothing(tmp_path, inputs):
    """A BERT that is an ALBERT already: all layers the same."""
    bert = saved(tmp_path / "bert")
    with torch.no_grad():
        for layer in bert.bert.encoder.layer[1:]:
            layer.load_state_dict(bert.bert.encoder.layer[0].state_dict())
    bert.save_pretrained(tmp_path / "bert")
    report = convert(tmp_path / "bert", tmp_path / "albert", lossy=True)
    assert max(report.relative_errors.values()) < 1e-7
    albert = AlbertForPreTraining.from_pretrained(tmp_path / "albert")
    assert (
        sum(p.numel() for p in albert.albert.encoder.parameters())
        < sum(p.numel() for p in bert.bert.encoder.parameters()) / 5
    )
    for ours, theirs in zip(states(albert, inputs), states(bert, inputs), strict=True):
        assert_close(ours, theirs, atol=1e-5, rtol=0)


def test_a_configuration_may_change_nothing_but_the_groups(tmp_path):
    saved(tmp_path / "bert")
    for change in ({"embedding_size": 16}, {"hidden_act": "relu"}, {"num_attention_heads": 4}):
        config = albert_config(tmp_path / "other.json", num_hidden_groups=6, **change)
        with pytest.raises(CheckpointError, match=next(iter(change))) as error:
            convert(tmp_path / "bert", tmp_path / "albert", config=config, lossy=True)
        assert error.value.slug == "weights-mismatch"


def test_other_models_are_refused(tmp_path):
    config = transformers.DistilBertConfig(
        vocab_size=60, dim=64, n_layers=2, n_heads=2, hidden_dim=96
    )
    transformers.DistilBertModel(config).save_pretrained(tmp_path / "distil")
    with pytest.raises(ValueError, match="distilbert model, not an albert"):
        convert(tmp_path / "distil", tmp_path / "out")
