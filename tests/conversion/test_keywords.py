"""`from_pretrained` with transformers' keywords: honoured, harmless, or refused in words; fresh heads as transformers'."""

import pytest
import torch
from safetensors.torch import load_file, save_file
from small_models import tiny_config

from albertkit.config import AlbertConfig
from albertkit.engines import load_engine
from albertkit.errors import AlbertKitError, CheckpointError, ConfigError
from albertkit.model import (
    AlbertForMaskedLM,
    AlbertForMultipleChoice,
    AlbertForPreTraining,
    AlbertForQuestionAnswering,
    AlbertForSequenceClassification,
    AlbertForTokenClassification,
    AlbertModel,
    PackedBatch,
)

CONFIG = tiny_config()
CLASSES = (
    AlbertModel, AlbertForPreTraining, AlbertForMaskedLM, AlbertForSequenceClassification, AlbertForTokenClassification,
    AlbertForQuestionAnswering, AlbertForMultipleChoice,
)  # fmt: skip
IDS = torch.arange(5, 11)[None]


@pytest.fixture
def pretrained(tmp_path):
    torch.manual_seed(0)
    AlbertForPreTraining(CONFIG).save_pretrained(tmp_path / "pretrained")
    return tmp_path / "pretrained"


@pytest.fixture
def classifier(tmp_path):
    torch.manual_seed(1)
    AlbertForSequenceClassification(CONFIG.with_changes(num_labels=3)).save_pretrained(
        tmp_path / "classifier"
    )
    return tmp_path / "classifier"


@pytest.mark.parametrize("keyword", ["dtype", "torch_dtype"])
@pytest.mark.parametrize("value", [torch.bfloat16, "bfloat16", "float16", torch.float64])
def test_the_dtype_is_honoured(pretrained, keyword, value):
    model = AlbertForPreTraining.from_pretrained(pretrained, **{keyword: value})
    dtype = value if isinstance(value, torch.dtype) else getattr(torch, value)
    assert {parameter.dtype for parameter in model.parameters()} == {model.dtype} == {dtype}
    assert model.predictions.decoder.weight is model.albert.embeddings.word_embeddings.weight
    assert "dtype" not in model.config.foreign or model.config.foreign["dtype"] == "float32"
    stored = load_file(pretrained / "model.safetensors")
    assert torch.equal(model.predictions.dense.weight, stored["predictions.dense.weight"].to(dtype))


def test_a_model_in_bf16_computes_as_transformers_model_in_bf16(pretrained):
    import transformers

    theirs = transformers.AlbertForPreTraining.from_pretrained(
        pretrained, dtype=torch.bfloat16
    ).eval()
    ours = AlbertForPreTraining.from_pretrained(pretrained, dtype=torch.bfloat16)
    with torch.no_grad():
        our_logits = ours(IDS).prediction_logits
        their_logits = theirs(IDS).prediction_logits
    assert our_logits.dtype == their_logits.dtype == torch.bfloat16
    # 2^-8 of values around 1, twelve operations
    torch.testing.assert_close(our_logits, their_logits, atol=0.02, rtol=0)
    assert load_engine(ours).encode(PackedBatch.from_sequences([IDS[0].tolist()])).hidden.shape == (
        6,
        64,
    )


def test_auto_is_the_dtype_of_the_file(pretrained):
    assert AlbertForPreTraining.from_pretrained(pretrained, dtype="auto").dtype == torch.float32
    tensors = load_file(pretrained / "model.safetensors")
    save_file(
        {name: tensor.half() for name, tensor in tensors.items()}, pretrained / "model.safetensors"
    )
    assert AlbertForPreTraining.from_pretrained(pretrained, dtype="auto").dtype == torch.float16
    assert AlbertForPreTraining.from_pretrained(pretrained).dtype == torch.float32


@pytest.mark.parametrize(
    "value",
    [
        "cpu",
        torch.device("cpu"),
        {"": "cpu"},
        None,
    ],
)
def test_the_device_is_honoured(pretrained, value):
    assert AlbertForPreTraining.from_pretrained(pretrained, device_map=value).device.type == "cpu"


def test_harmless_keywords_change_nothing(pretrained):
    plain = AlbertForPreTraining.from_pretrained(pretrained)
    for implementation in ("sdpa", "eager"):
        model = AlbertForPreTraining.from_pretrained(
            pretrained,
            attn_implementation=implementation,
            low_cpu_mem_usage=True,
            trust_remote_code=True,
            use_safetensors=True,
            weights_only=True,
            token=None,
            cache_dir=None,
            subfolder=None,
            hidden_dropout_prob=0.0,
        )
        assert model.config == plain.config
        assert all(
            torch.equal(a, b) for a, b in zip(model.parameters(), plain.parameters(), strict=True)
        )


@pytest.mark.parametrize(
    ("keywords", "slug", "message", "hint"),
    [
        (
            {"attn_implementation": "flash_attention_2"},
            "bad-value",
            "one implementation",
            "leave it out",
        ),
        (
            {"quantization_config": {}},
            "bad-value",
            "int8 and bf16 are engines",
            "load_engine(model, 'int8')",
        ),
        (
            {"device_map": {"albert": 0, "predictions": "cpu"}},
            "bad-value",
            "names 2 devices",
            "cuda:0",
        ),
        ({"device_map": "tpu:7"}, "no-device", "device_map='tpu:7'", "leave it out"),
        ({"dtype": "bf16"}, "bad-value", "dtype='bf16'", "bfloat16"),
        ({"dtype": torch.int8}, "bad-value", "torch.int8", "float"),
        ({"dtype": "float16", "torch_dtype": "bfloat16"}, "bad-value", "differ", "leave one"),
        ({"subfolder": "x"}, "bad-value", "named whole", "path"),
        ({"cache_dir": "x"}, "bad-value", "the hub's cache", "HF_HOME"),
        ({"state_dict": {}}, "bad-value", "weights come from the folder", "load_state_dict"),
        ({"device_mop": "cpu"}, "unknown-name", "no keyword `device_mop`", "`device_map`"),
        ({"num_label": 3}, "unknown-name", "no keyword `num_label`", "`num_labels`"),
        (
            {"hidden_dropout": 0.1},
            "unknown-name",
            "no keyword `hidden_dropout`",
            "`hidden_dropout_prob`",
        ),
        ({"config": 3}, "bad-value", "config=3", "AlbertConfig"),
    ],
)
def test_what_cannot_be_honoured_is_refused_in_words(pretrained, keywords, slug, message, hint):
    with pytest.raises(ConfigError) as caught:
        AlbertForPreTraining.from_pretrained(pretrained, **keywords)
    assert caught.value.slug == slug
    assert message in caught.value.message
    assert hint in caught.value.hint


def test_a_configuration_may_be_given(pretrained):
    import transformers

    ours = CONFIG.replace(hidden_dropout_prob=0.25)
    theirs = transformers.AlbertConfig(
        **{k: v for k, v in ours.to_dict().items() if k != "parameter_sharing"}
    )
    (pretrained / "other").mkdir()
    ours.save_pretrained(pretrained / "other")
    for config in (ours, theirs, pretrained / "other", str(pretrained / "other/config.json")):
        model = AlbertForPreTraining.from_pretrained(pretrained, config=config)
        assert model.config.hidden_dropout_prob == 0.25
    with pytest.raises(CheckpointError, match="other shapes"):
        AlbertForPreTraining.from_pretrained(pretrained, config=CONFIG.replace(vocab_size=60))


@pytest.mark.parametrize("model_class", CLASSES)
@pytest.mark.parametrize(
    "source", [AlbertModel, AlbertForMaskedLM, AlbertForPreTraining, AlbertForQuestionAnswering]
)
def test_the_same_parameters_are_fresh_as_in_transformers(tmp_path, source, model_class, caplog):
    import transformers

    source(CONFIG).save_pretrained(tmp_path)
    load = getattr(transformers, model_class.__name__).from_pretrained
    _, info = load(tmp_path, output_loading_info=True)
    theirs = {
        name
        for name in info["missing_keys"]
        if not name.endswith("decoder.weight") and not name.endswith("decoder.bias")
    }
    caplog.clear()
    model = model_class.from_pretrained(tmp_path)
    messages = [
        record.getMessage()
        for record in caplog.records
        if record.levelname == "WARNING" and record.name == "albertkit"
    ]
    ours = set(messages[0].rpartition(": ")[2].split(", ")) if messages else set()
    assert ours == theirs
    if ours:
        with pytest.raises(CheckpointError, match="missing"):
            model_class.from_pretrained(tmp_path, strict=True)
    stored = load_file(tmp_path / "model.safetensors")
    name = "embeddings.word_embeddings.weight"
    stored_tensor = stored.get(f"albert.{name}", stored.get(name))
    assert torch.equal(model.get_input_embeddings().weight, stored_tensor)


def test_another_number_of_labels_makes_a_fresh_head_only_where_it_is_asked_for(classifier, caplog):
    load = AlbertForSequenceClassification.from_pretrained
    import transformers

    theirs = transformers.AlbertForSequenceClassification.from_pretrained
    stored = load_file(classifier / "model.safetensors")
    assert torch.equal(
        load(classifier, num_labels=3).classifier.weight, stored["classifier.weight"]
    )
    assert "afresh" not in caplog.text
    for labels in ({"num_labels": 5}, {"id2label": {n: str(n) for n in range(5)}}):
        with pytest.raises(RuntimeError, match="ignore_mismatched_sizes"):
            theirs(classifier, **labels)
        with pytest.raises(CheckpointError, match="ignore_mismatched_sizes"):
            load(classifier, **labels)
        model = load(classifier, **labels, ignore_mismatched_sizes=True)
        assert model.classifier.weight.shape == (5, 64)
        assert model.config.num_labels == 5
        assert torch.equal(model.albert.pooler.weight, stored["albert.pooler.weight"])
    assert caplog.text.count("initialised afresh") == 2
    config = AlbertConfig.from_pretrained(classifier).with_changes(num_labels=7)
    with pytest.raises(
        CheckpointError, match=r"classifier.weight \[3, 64\] in the file, \[7, 64\] in the model"
    ):
        load(classifier, config=config)
    assert load(
        classifier, config=config, ignore_mismatched_sizes=True
    ).classifier.weight.shape == (7, 64)
    with pytest.raises(CheckpointError, match="other shapes"):
        load(classifier, num_labels=5, strict=True)


def test_half_a_head_is_a_broken_file(classifier):
    tensors = load_file(classifier / "model.safetensors")
    del tensors["classifier.bias"]
    save_file(tensors, classifier / "model.safetensors")
    with pytest.raises(CheckpointError, match=r"missing: classifier\.bias"):
        AlbertForSequenceClassification.from_pretrained(classifier)


def test_our_own_commands_refuse_a_missing_head(pretrained):
    from albertkit.command import Columns
    from albertkit.files import write_json
    from albertkit.tasks.models import TASK, load_task_model
    from albertkit.tasks.registry import find_task

    task = find_task("classify", Columns(text="text", label="label")).with_changes(
        labels=("a", "b"), length=8
    )
    write_json(pretrained / TASK, task.to_dict())
    with pytest.raises(AlbertKitError) as caught:
        load_task_model(pretrained)
    assert caught.value.slug == "weights-mismatch"
    assert "albertkit finetune" in caught.value.hint
