"""Our classes in the place of transformers': its arguments, methods and configurations, with the same outputs."""

import pytest
import torch
import transformers
from safetensors.torch import load_file
from small_models import padded_inputs, tiny_config
from torch.testing import assert_close

from albertkit.config import AlbertConfig
from albertkit.errors import AlbertKitError, ConfigError
from albertkit.model import (
    AlbertForBeamQuestionAnswering,
    AlbertForMaskedLM,
    AlbertForPreTraining,
    AlbertForQuestionAnswering,
    AlbertForSequenceClassification,
    AlbertModel,
)


@pytest.fixture
def folder(tmp_path):
    torch.manual_seed(0)
    AlbertForSequenceClassification(tiny_config(num_labels=3)).save_pretrained(tmp_path / "model")
    return tmp_path / "model"


@pytest.fixture
def pair(folder):
    """Ours and theirs, of the same weights."""
    return AlbertForSequenceClassification.from_pretrained(
        pretrained_model_name_or_path=folder
    ), transformers.AlbertForSequenceClassification.from_pretrained(folder).eval()


@pytest.mark.parametrize("source", ["file", "from_pretrained", "config"])
def test_what_is_returned_may_stand_in_the_configuration(folder, source):
    settings = {"output_hidden_states": True, "output_attentions": True}
    kind = "AlbertForSequenceClassification"
    if source == "file":
        AlbertConfig.from_pretrained(folder).with_changes(**settings).save_pretrained(folder)
    keywords = settings if source == "from_pretrained" else {}
    ours = AlbertForSequenceClassification.from_pretrained(folder, **keywords)
    theirs = (
        getattr(transformers, kind)
        .from_pretrained(folder, attn_implementation="eager", **keywords)
        .eval()
    )
    if source == "config":
        for model in (ours, theirs):
            model.config.output_hidden_states = model.config.output_attentions = True
    inputs = padded_inputs()
    with torch.no_grad():
        output = ours(**inputs)
        expected = theirs(**inputs)
    mask = inputs["attention_mask"].bool()
    assert list(output) == list(expected) == ["logits", "hidden_states", "attentions"]
    for a, b in zip(output.hidden_states, expected.hidden_states, strict=True):
        assert_close(a[mask], b[mask], atol=1e-5, rtol=0)
    assert_close(
        output.attentions[1][1, :, :7, :7], expected.attentions[1][1, :, :7, :7], atol=1e-5, rtol=0
    )
    with torch.no_grad():
        assert list(ours(**inputs, output_hidden_states=False, output_attentions=False)) == [
            "logits"
        ]


def test_tuples_may_stand_in_the_configuration(folder):
    model = AlbertForSequenceClassification.from_pretrained(folder, return_dict=False)
    assert isinstance(model(**padded_inputs()), tuple)
    assert model(**padded_inputs(), return_dict=True).logits.shape == (3, 3)


def test_a_model_is_made_of_transformers_configuration():
    values = {k: v for k, v in tiny_config().to_dict().items() if k != "parameter_sharing"}
    theirs = transformers.AlbertForSequenceClassification(
        transformers.AlbertConfig(**values, num_labels=4)
    ).eval()
    ours = AlbertForSequenceClassification(transformers.AlbertConfig(**values, num_labels=4)).eval()
    ours.load_state_dict(theirs.state_dict())
    with torch.no_grad():
        assert_close(
            ours(**padded_inputs()).logits, theirs(**padded_inputs()).logits, atol=1e-5, rtol=0
        )
    assert ours.config is ours.albert.config
    for name in ("model_type", "is_encoder_decoder"):
        assert getattr(ours.config, name) == getattr(theirs.config, name)
    assert AlbertConfig().model_type == theirs.config.model_type
    assert ours.config.get_text_config() is ours.config
    assert ours.main_input_name == theirs.main_input_name
    assert ours.base_model_prefix == theirs.base_model_prefix
    assert ours.supports_gradient_checkpointing
    with pytest.raises(ConfigError, match="not a configuration"):
        AlbertModel({"hidden_size": 64})


def test_positions_of_transformers_4_are_named_and_those_of_5_followed(pair):
    """Version 4 had `head_mask` before `inputs_embeds`, so what came after it stands one place further."""
    ours, theirs = pair
    inputs = padded_inputs()
    ids = inputs["input_ids"]
    shared = (inputs["attention_mask"], inputs["token_type_ids"], None, None)
    labels = torch.tensor([0, 2, 1])
    with torch.no_grad():
        expected = theirs(ids, *shared, labels).loss
        assert_close(ours(ids, *shared, labels).loss, expected)
    words = ours.albert.embeddings.word_embeddings(ids)
    wrong_calls = [
        (AlbertForPreTraining, (None, *shared, words), "by name"),
        (AlbertForPreTraining, (ids, *shared, None, ids), "sentence_order_label=…"),
        (AlbertForQuestionAnswering, (ids, *shared, None, labels), "start_positions=…"),
        (AlbertForBeamQuestionAnswering, (ids, *shared, None, labels), "start_positions=…"),
    ]
    for model_class, arguments, hint in wrong_calls:
        with pytest.raises(ConfigError) as raised:
            model_class(tiny_config())(*arguments)
        assert hint in raised.value.hint


@pytest.mark.parametrize(
    "name", ["output_hidden_states", "output_attentions", "return_dict", "problem_type"]
)
def test_hints_for_misspelt_keywords_name_the_right_one(folder, name):
    with pytest.raises(ConfigError) as raised:
        AlbertForSequenceClassification.from_pretrained(folder, **{name[:-1]: True})
    assert name in raised.value.hint


def test_arguments_of_transformers_4_are_read(pair):
    ours, theirs = pair
    inputs = padded_inputs()
    types = inputs["token_type_ids"][:1]
    with torch.no_grad():
        expected = theirs(**{**inputs, "token_type_ids": types.expand(3, -1)}).logits
        logits = ours(**{**inputs, "token_type_ids": types}, head_mask=None).logits
    assert_close(logits, expected, atol=1e-5, rtol=0)
    with pytest.raises(ConfigError, match="head_mask"):
        ours(**inputs, head_mask=torch.ones(3, 2))


def test_a_trace_computes_as_transformers_model(pair):
    ours, theirs = pair
    inputs = padded_inputs()
    order = ("input_ids", "attention_mask", "token_type_ids")
    ours.config.return_dict = False
    traced = torch.jit.trace(ours, tuple(inputs[name] for name in order), check_trace=False)
    flipped = {name: values.flip(0) for name, values in inputs.items()}
    with torch.no_grad():
        expected = theirs(**flipped).logits
    assert_close(traced(*(flipped[name] for name in order))[0], expected, atol=1e-5, rtol=0)


def test_prompt_tuning_computes_as_with_transformers_model(pair):
    import peft

    logits = []
    for model in pair:
        config = peft.PromptTuningConfig(
            task_type="SEQ_CLS", num_virtual_tokens=3, token_dim=16, num_layers=3
        )
        torch.manual_seed(1)
        prompted = peft.get_peft_model(model, config).eval()
        with torch.no_grad():
            logits.append(prompted(**padded_inputs()).logits)
    assert_close(logits[0], logits[1], atol=1e-5, rtol=0)


def test_embeddings_are_replaced_and_stay_tied():
    model = AlbertForMaskedLM(tiny_config())
    table = torch.nn.Embedding(90, 16)
    model.set_input_embeddings(table)
    assert (
        model.predictions.decoder.weight
        is table.weight
        is model.base_model.get_input_embeddings().weight
    )
    state = {name: 2 * tensor for name, tensor in model.state_dict().items()}
    doubled = AlbertForMaskedLM(tiny_config())
    doubled.load_state_dict(state)
    holder = torch.nn.Sequential(model)
    holder.load_state_dict({f"0.{name}": tensor for name, tensor in state.items()}, assign=True)
    assert torch.equal(model(**padded_inputs()).logits, doubled(**padded_inputs()).logits)
    assert not model.can_generate()
    for parameter in model.parameters():
        parameter.requires_grad_(False)
    assert not model(**padded_inputs()).logits.requires_grad
    model.enable_input_require_grads()
    assert model(**padded_inputs()).logits.requires_grad
    model.disable_input_require_grads()
    assert not model(**padded_inputs()).logits.requires_grad


def test_saving_takes_transformers_keywords(folder, tmp_path):
    model = AlbertForSequenceClassification.from_pretrained(folder)
    doubled = {name: 2 * tensor for name, tensor in model.state_dict().items()}
    model.save_pretrained(
        tmp_path / "two", state_dict=doubled, safe_serialization=True, max_shard_size="5GB"
    )
    loaded = transformers.AlbertForSequenceClassification.from_pretrained(
        tmp_path / "two"
    ).state_dict()
    assert all(torch.equal(loaded[name], tensor) for name, tensor in doubled.items())
    model.save_pretrained(tmp_path / "none", is_main_process=False)
    assert not (tmp_path / "none").exists()
    refused = [
        {"safe_serialization": False},
        {"push_to_hub": True},
        {"state_dict": {}},
        {"shards": 3},
    ]
    for keywords in (*refused, {"max_shard_size": "20 pages"}, {"max_shard_size": 0}):
        with pytest.raises(AlbertKitError):
            model.save_pretrained(tmp_path / "none", **keywords)


def test_shards_are_of_the_size_that_is_asked_for(folder, tmp_path):
    model = AlbertForSequenceClassification.from_pretrained(folder)
    for size in (None, "20KB", None):
        model.save_pretrained(tmp_path, max_shard_size=size)
        assert (size is None) == (len(list(tmp_path.glob("*.safetensors*"))) == 1)
    model.save_pretrained(tmp_path, max_shard_size="20KB")
    shards = sorted(tmp_path.glob("*.safetensors"))
    assert len(shards) > 1
    assert all(shard.stat().st_size < 22_000 or len(load_file(shard)) == 1 for shard in shards)
    for model_class in (
        transformers.AlbertForSequenceClassification,
        AlbertForSequenceClassification,
    ):
        loaded = model_class.from_pretrained(tmp_path).state_dict()
        assert all(torch.equal(loaded[name], tensor) for name, tensor in model.state_dict().items())


def test_keywords_that_are_not_computed_are_refused(folder):
    for keywords in (
        {"position_embedding_type": "relative_key"},
        {"is_decoder": True},
        {"pruned_heads": {0: [1]}},
    ):
        with pytest.raises(AlbertKitError, match=next(iter(keywords))):
            AlbertForSequenceClassification.from_pretrained(folder, **keywords)


def test_transformers_collator_pads_as_with_its_own_tokenizer(tiny_tokenizer, tmp_path):
    tiny_tokenizer.save_pretrained(tmp_path)
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path)
    texts = ["the quick brown fox", "a dog", "서울 에서"]
    rows = [
        {**tiny_tokenizer(text), "label": number, "weight": 0.5}
        for number, text in enumerate(texts)
    ]
    batch, expected = (
        transformers.DataCollatorWithPadding(tokenizer, pad_to_multiple_of=8)(
            [dict(row) for row in rows]
        )
        for tokenizer in (tiny_tokenizer, theirs)
    )
    assert batch.keys() == expected.keys()
    assert all(
        torch.equal(batch[name], expected[name]) and batch[name].dtype == expected[name].dtype
        for name in batch
    )
    with pytest.raises(TypeError, match="padding_side"):
        tiny_tokenizer.pad(rows, padding_side="left")


def test_outputs_are_rebuilt_by_whoever_takes_them_apart(pair):
    """FSDP rebuilds an ordered dictionary item by item, `DataParallel` one from pairs."""
    from torch.distributed.utils import _apply_to_tensors

    output = pair[0](**padded_inputs(), labels=torch.tensor([0, 2, 1]))
    for rebuilt in (_apply_to_tensors(torch.detach, output), type(output)(iter(output.items()))):
        assert type(rebuilt) is type(output)
        assert torch.equal(rebuilt.loss, output.loss)
        assert list(rebuilt) == list(output)
