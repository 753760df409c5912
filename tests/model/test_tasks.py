"""What transformers' own ALBERT tests expect of shapes, saving, resizing and arguments, of our classes; losses by hand."""

import json

import pytest
import torch
import torch.nn.functional as F
from small_models import CLASSES, shaken
from torch.testing import assert_close

from albertkit.config import AlbertConfig
from albertkit.errors import CheckpointError, ConfigError, DataError
from albertkit.model import (
    AlbertForBeamQuestionAnswering,
    AlbertForMaskedLM,
    AlbertForMultipleChoice,
    AlbertForPreTraining,
    AlbertForQuestionAnswering,
    AlbertForSequenceClassification,
    AlbertForTokenClassification,
    AlbertModel,
)
from albertkit.model.heads import span_loss

# Two groups, as in transformers' test.
TINY = dict(
    vocab_size=99,
    embedding_size=16,
    hidden_size=36,
    num_hidden_layers=2,
    num_hidden_groups=2,
    num_attention_heads=6,
    intermediate_size=37,
    max_position_embeddings=32,
    num_labels=3,
)
B = 13
S = 7
CHOICES = 4
SHAPES = {
    AlbertModel: {"last_hidden_state": (B, S, 36), "pooler_output": (B, 36)},
    AlbertForPreTraining: {"prediction_logits": (B, S, 99), "sop_logits": (B, 2)},
    AlbertForMaskedLM: {"logits": (B, S, 99)},
    AlbertForSequenceClassification: {"logits": (B, 3)},
    AlbertForTokenClassification: {"logits": (B, S, 3)},
    AlbertForQuestionAnswering: {"start_logits": (B, S), "end_logits": (B, S)},
    AlbertForMultipleChoice: {"logits": (B, CHOICES)},
    AlbertForBeamQuestionAnswering: {
        "start_top_log_probs": (B, 5),
        "start_top_index": (B, 5),
        "end_top_log_probs": (B, 25),
        "end_top_index": (B, 25),
        "cls_logits": (B,),
    },
}


def tiny(model_class, **changes):
    torch.manual_seed(0)
    return shaken(model_class(AlbertConfig.from_dict({**TINY, **changes})), 0.1)


def inputs_for(model_class):
    torch.manual_seed(1)
    shape = (B, CHOICES, S) if model_class is AlbertForMultipleChoice else (B, S)
    mask = torch.rand(shape) < 0.8
    mask[..., 0] = True
    return {
        "input_ids": torch.randint(0, 99, shape),
        "attention_mask": mask.long(),
        "token_type_ids": torch.randint(0, 2, shape),
    }


# --- shapes and arguments -------------------------------------------------------------------------


@pytest.mark.parametrize("model_class", CLASSES)
def test_shapes_of_everything(model_class):
    model = tiny(model_class)
    inputs = inputs_for(model_class)
    output = model(**inputs, output_hidden_states=True, output_attentions=True)
    assert {name: tuple(output[name].shape) for name in SHAPES[model_class]} == SHAPES[model_class]
    rows = B * CHOICES if model_class is AlbertForMultipleChoice else B
    assert [tuple(hidden.shape) for hidden in output.hidden_states] == [(rows, S, 36)] * 3
    assert [tuple(attention.shape) for attention in output.attentions] == [(rows, 6, S, S)] * 2
    assert list(model(**inputs)) == list(SHAPES[model_class])


@pytest.mark.parametrize("model_class", CLASSES)
def test_return_dict_false_is_a_tuple_of_the_same(model_class):
    model = tiny(model_class)
    inputs = inputs_for(model_class)
    output = model(**inputs, return_dict=None, output_attentions=None)
    values = model(**inputs, return_dict=False)
    assert type(values) is tuple
    for value, expected in zip(values, output.to_tuple(), strict=True):
        assert_close(value, expected)


@pytest.mark.parametrize("model_class", CLASSES)
def test_embeddings_in_place_of_ids(model_class):
    model = tiny(model_class)
    inputs = inputs_for(model_class)
    expected = model(**inputs)
    embeds = model.get_input_embeddings()(inputs.pop("input_ids"))
    for name, value in model(**inputs, inputs_embeds=embeds).items():
        assert_close(value, expected[name])
    with pytest.raises(ConfigError, match="neither of input_ids and inputs_embeds"):
        model(**inputs)


def test_an_unknown_argument_is_refused():
    with pytest.raises(TypeError, match="sentence_order_labels"):
        tiny(AlbertForMaskedLM)(torch.ones(1, 3, dtype=torch.int64), sentence_order_labels=1)


@pytest.mark.parametrize(
    "model_class", [AlbertForMaskedLM, AlbertForTokenClassification, AlbertForQuestionAnswering]
)
def test_shapes_that_do_not_fit_are_named(model_class):
    ids = torch.ones(2, 5, dtype=torch.int64)
    with pytest.raises(
        ConfigError, match=r"attention_mask has shape \[2, 4\], input_ids has \[2, 5\]"
    ):
        tiny(model_class)(ids, attention_mask=ids[:, :4])
    with pytest.raises(DataError, match="all padding"):
        tiny(model_class)(ids, attention_mask=ids * torch.tensor([[1], [0]]))
    with pytest.raises(ConfigError, match=r"shape \[5\], expected \[batch, length\]"):
        tiny(model_class)(ids[0])
    if model_class is not AlbertForQuestionAnswering:
        with pytest.raises(ConfigError, match=r"labels has shape \[2, 4\]"):
            tiny(model_class)(ids, labels=ids[:, :4])


def test_outputs_are_dictionaries_that_can_be_rebuilt():
    model = tiny(AlbertForQuestionAnswering)
    inputs = inputs_for(AlbertForQuestionAnswering)
    output = model(**inputs)
    assert isinstance(output, dict)
    assert output.loss is None
    assert "loss" not in output
    assert output[0] is output.start_logits is output["start_logits"]
    # accelerate, DataParallel
    rebuilt = type(output)({name: value.detach() for name, value in output.items()})
    assert torch.equal(rebuilt.end_logits, output.end_logits)
    leaves, spec = torch.utils._pytree.tree_flatten(output)
    assert len(leaves) == 2
    assert type(torch.utils._pytree.tree_unflatten(leaves, spec)) is type(output)
    with pytest.raises(AttributeError, match="no field 'pooler_output'"):
        output.pooler_output  # noqa: B018
    with pytest.raises(TypeError, match="no field logit"):
        type(output)(logit=1)


# --- losses ---------------------------------------------------------------------------------------


def test_losses_of_classes_labels_and_numbers_by_hand():
    inputs = inputs_for(AlbertForSequenceClassification)
    labels = torch.randint(0, 3, (B,))
    output = tiny(AlbertForSequenceClassification)(**inputs, labels=labels)
    assert_close(output.loss, F.cross_entropy(output.logits, labels))
    label_sets = torch.randint(0, 2, (B, 3)).float()
    output = tiny(AlbertForSequenceClassification)(**inputs, labels=label_sets)
    assert_close(output.loss, F.binary_cross_entropy_with_logits(output.logits, label_sets))
    scores = torch.randn(B)
    output = tiny(AlbertForSequenceClassification, num_labels=1)(**inputs, labels=scores)
    assert_close(output.loss, F.mse_loss(output.logits.squeeze(), scores))
    output = tiny(AlbertForSequenceClassification, problem_type="regression")(
        **inputs, labels=torch.zeros(B, 3)
    )
    assert_close(output.loss, output.logits.square().mean())


def test_right_predictions_are_counted():
    model = tiny(AlbertForSequenceClassification)
    logits = torch.tensor([[1.0, 2.0, 0.0], [3.0, 0.0, 1.0], [0.0, 1.0, 2.0]])
    counted = model.task_loss(logits, torch.tensor([1, 2, -100]))
    assert counted.correct == 1
    assert counted.label_count == 2
    model.config.problem_type = "multi_label_classification"
    counted = model.task_loss(logits, torch.tensor([[1.0, 1, 1], [1, 0, 0], [0, 0, 0]]))
    assert counted.correct == 5
    assert counted.label_count == 9


def test_positions_outside_are_ignored_as_in_transformers():
    logits = torch.randn(4, 6)
    expected = F.cross_entropy(logits[[0, 2]], torch.tensor([5, 0]), reduction="sum")
    loss = span_loss(logits, torch.tensor([[5], [6], [-3], [1000]]))
    assert_close(loss.loss_sum, expected)
    assert loss.label_count == 2
    assert span_loss(logits, torch.full((4,), 6)).mean() == 0


def test_dropout_before_the_head_is_classifier_dropout():
    for model_class in (
        AlbertForSequenceClassification,
        AlbertForTokenClassification,
        AlbertForMultipleChoice,
    ):
        model = tiny(model_class, classifier_dropout_prob=0.5).train()
        values = torch.ones(2000, 36)
        with torch.no_grad():
            model.classifier.weight.fill_(1.0)
            model.classifier.bias.zero_()
        num_kept = model._head(values, None)[:, 0] / 2
        # 5 standard errors of the mean of 2000 binomials
        assert abs(num_kept.mean().item() - 18) < 0.35
        assert num_kept.std().item() == pytest.approx(3.0, rel=0.1)
        assert (model.eval()._head(values, None) == 36).all()


# --- labels in the configuration ------------------------------------------------------------------


def test_labels_live_under_transformers_keys(tmp_path):
    config = AlbertConfig.from_dict({**TINY, "num_labels": 2, "id2label": {"0": "no", "1": "yes"}})
    assert config.num_labels == 2
    assert config.id2label == {0: "no", 1: "yes"}
    assert config.label2id == {"no": 0, "yes": 1}
    AlbertForSequenceClassification(config).save_pretrained(tmp_path)
    assert json.loads((tmp_path / "config.json").read_text())["id2label"] == {"0": "no", "1": "yes"}
    assert AlbertForSequenceClassification.from_pretrained(tmp_path).config.id2label == {
        0: "no",
        1: "yes",
    }
    wider = config.with_changes(num_labels=4)
    assert wider.id2label == {0: "LABEL_0", 1: "LABEL_1", 2: "LABEL_2", 3: "LABEL_3"}
    assert wider.with_changes(id2label={0: "a", 1: "b", 2: "c"}).num_labels == 3
    assert AlbertConfig.from_size("tiny").num_labels == 2
    assert AlbertConfig.from_size("tiny").problem_type is None


@pytest.mark.parametrize(
    "wrong",
    [
        {"num_labels": 0},
        {"num_labels": "3"},
        {"problem_type": "ranking"},
        {"num_labels": 3, "id2label": {0: "only"}},
    ],
)
def test_impossible_labels_are_refused(wrong):
    with pytest.raises(ConfigError, match=next(iter(wrong))) as caught:
        AlbertConfig.from_dict({**TINY, **wrong})
    assert caught.value.slug == "bad-value"


def test_a_half_character_is_no_size():
    with pytest.raises(ConfigError, match=r"\[bad-value\].*hidden_size"):
        AlbertConfig.from_dict({"hidden_size": "\ud800"})


def test_the_configuration_is_fixed_but_for_foreign_keys():
    config = AlbertConfig.from_dict(TINY)
    with pytest.raises(AttributeError, match="use `replace"):
        config.vocab_size = 5
    with pytest.raises(AttributeError, match="cannot assign to field 'hiden_size'"):
        config.hiden_size = 5
    copy = config.replace(vocab_size=5)
    copy.use_cache = False
    assert copy.vocab_size == 5
    assert copy.use_cache is False
    assert config.vocab_size == 99
    assert not hasattr(config, "use_cache")
    assert json.loads(copy.to_json_string())["use_cache"] is False
    assert hash(copy) != hash(config)


# --- saving and loading ---------------------------------------------------------------------------


@pytest.mark.parametrize("model_class", CLASSES)
def test_save_and_load_give_the_same_numbers(tmp_path, model_class):
    model = tiny(model_class)
    inputs = inputs_for(model_class)
    model.save_pretrained(tmp_path)
    loaded = model_class.from_pretrained(tmp_path)
    assert loaded.config == model.config
    assert loaded.config.architectures == [model_class.__name__]
    for name, value in model(**inputs).items():
        assert torch.equal(value, loaded(**inputs)[name])


def test_a_pretrained_encoder_gets_a_fresh_head_with_a_warning_or_an_error_where_asked(
    tmp_path, caplog
):
    tiny(AlbertForPreTraining).save_pretrained(tmp_path)
    with pytest.raises(CheckpointError, match=r"missing: classifier.bias, classifier.weight"):
        AlbertForSequenceClassification.from_pretrained(tmp_path, strict=True)
    model = AlbertForSequenceClassification.from_pretrained(tmp_path, num_labels=5)
    assert model.classifier.weight.shape == (5, 36)
    (warning,) = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert (
        "initialised afresh, train them before use: classifier.weight, classifier.bias" in warning
    )
    caplog.clear()
    AlbertForSequenceClassification.from_pretrained(
        tmp_path, strict=True, allow_missing=["classifier"], num_labels=5
    )
    assert not [record for record in caplog.records if record.levelname == "WARNING"]


def test_a_second_copy_of_the_word_embeddings_must_be_the_same(tmp_path):
    from safetensors.torch import load_file, save_file

    model = tiny(AlbertForMaskedLM)
    model.save_pretrained(tmp_path)
    tensors = load_file(tmp_path / "model.safetensors")
    tensors["predictions.decoder.weight"] = tensors[
        "albert.embeddings.word_embeddings.weight"
    ].clone()
    save_file(tensors, tmp_path / "model.safetensors")
    AlbertForMaskedLM.from_pretrained(tmp_path)
    tensors["predictions.decoder.weight"][7, 3] += 1e-3
    save_file(tensors, tmp_path / "model.safetensors")
    with pytest.raises(
        CheckpointError, match=r"different in the file: predictions\.decoder\.weight"
    ):
        AlbertForMaskedLM.from_pretrained(tmp_path)


# --- sizes ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("rows", [89, 99, 109])
@pytest.mark.parametrize("model_class", CLASSES)
def test_resizing_the_vocabulary(tmp_path, model_class, rows):
    model = tiny(model_class)
    inputs = inputs_for(model_class)
    inputs["input_ids"] = inputs["input_ids"].clamp(max=88)
    before = model(**inputs)
    old = model.get_input_embeddings().weight.detach().clone()
    model.get_input_embeddings().weight.requires_grad_(False)
    count = model.num_parameters()
    words = model.resize_token_embeddings(rows)
    assert words is model.get_input_embeddings()
    assert words.num_embeddings == rows
    assert tuple(words.weight.shape) == (rows, 16)
    assert torch.equal(words.weight[:99], old[:rows])
    assert not words.weight.requires_grad
    assert model.config.vocab_size == model.encoder_model.config.vocab_size == rows
    decoder = model.get_output_embeddings()
    if decoder is not None:
        assert decoder.weight is words.weight
        assert decoder.bias is model.predictions.bias
        assert decoder.bias.requires_grad
        assert not decoder.bias[99:].any()
        assert decoder.out_features == rows
    assert model.num_parameters() - count == (rows - 99) * (16 + (decoder is not None))
    after = model(**inputs)
    for name, value in before.items():
        assert_close(after[name][..., : min(rows, 99)], value[..., : after[name].shape[-1]])
    if rows > 99:
        assert 0 < words.weight[99:].abs().max() <= 0.04
    model.save_pretrained(tmp_path)
    loaded = model_class.from_pretrained(tmp_path)
    assert torch.equal(loaded.get_input_embeddings().weight, words.weight)


def test_resizing_up_to_a_multiple_is_as_in_transformers():
    model = tiny(AlbertForMaskedLM)
    transformers = pytest.importorskip("transformers")
    theirs = transformers.AlbertForMaskedLM(transformers.AlbertConfig(**model.config.to_dict()))
    for settings in ((None, 8), (104, 8), (105, 64)):
        rows = model.resize_token_embeddings(*settings).num_embeddings
        assert rows == theirs.resize_token_embeddings(*settings).num_embeddings


def test_resizing_to_nothing_is_refused_and_changes_nothing():
    model = tiny(AlbertForMaskedLM)
    with pytest.raises(ConfigError, match="vocab_size is 0"):
        model.resize_token_embeddings(0)
    assert model.resize_token_embeddings() is model.get_input_embeddings()
    assert model.config.vocab_size == model.get_input_embeddings().num_embeddings == 99


def test_parameters_device_and_dtype():
    model = tiny(AlbertForTokenClassification)
    everything = model.num_parameters()
    for parameter in model.albert.parameters():
        parameter.requires_grad_(False)
    assert everything == model.num_parameters()
    assert model.num_parameters(only_trainable=True) == 3 * 36 + 3
    assert everything - model.num_parameters(exclude_embeddings=True) == (99 + 32 + 2) * 16
    assert model.device.type == "cpu"
    assert model.dtype == torch.float32
    assert model.double().dtype == torch.float64


@pytest.mark.parametrize(
    ("model_class", "parameters"),
    [
        (AlbertModel, 11_683_584),
        (AlbertForPreTraining, 11_813_810),
        (AlbertForMaskedLM, 11_221_680),
        (AlbertForSequenceClassification, 11_685_122),
        (AlbertForTokenClassification, 11_094_530),
        (AlbertForQuestionAnswering, 11_094_530),
        (AlbertForMultipleChoice, 11_684_353),
    ],
)
def test_base_has_as_many_parameters_as_in_transformers(model_class, parameters):
    with torch.device("meta"):
        assert model_class(AlbertConfig.from_size("base")).num_parameters() == parameters


@pytest.mark.parametrize("model_class", CLASSES)
def test_checkpointing_by_transformers_names(model_class):
    model = tiny(model_class).train()
    inputs = inputs_for(model_class)
    grads = []
    switches = [
        lambda: model.gradient_checkpointing_enable({"use_reentrant": True}),
        model.gradient_checkpointing_disable,
        model.activation_checkpointing_enable,
    ]
    for switch, on in zip(switches, (True, False, True), strict=True):
        switch()
        assert model.is_gradient_checkpointing == on
        model.zero_grad()
        torch.manual_seed(3)
        sum(
            value.sum() for value in model(**inputs).values() if value.is_floating_point()
        ).backward()
        grads.append(
            {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}
        )
    assert_close(grads[0], grads[1])
    assert_close(grads[2], grads[1])
    with pytest.raises(ConfigError, match=r"(?s)\[bad-value\].*every_n_layers=2"):
        model.activation_checkpointing_enable(every_n_layers=2)
