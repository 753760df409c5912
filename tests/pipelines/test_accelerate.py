"""A live model of transformers, sentence-transformers or ours: the same outputs from the engine, and back."""

import copy
import functools
import warnings

import pytest
import torch
import transformers

import albertkit
from albertkit.errors import ConfigError, DataError
from albertkit.model import AlbertForMaskedLM, AlbertForSequenceClassification, AlbertModel
from albertkit.pipelines.accelerate import _OwnEncode, _TransformersForward

CLASSES = [
    "",
    "ForPreTraining",
    "ForMaskedLM",
    "ForSequenceClassification",
    "ForTokenClassification",
    "ForQuestionAnswering",
]


def shape(**changes):
    return transformers.AlbertConfig(
        vocab_size=90,
        embedding_size=16,
        hidden_size=64,
        num_hidden_layers=3,
        num_attention_heads=4,
        intermediate_size=128,
        max_position_embeddings=40,
        initializer_range=0.2,
        **changes,
    )


def draw_batch(draw):
    """Four rows, three of them padded, with two segments."""
    mask = (torch.arange(17) < torch.tensor([17, 3, 9, 11])[:, None]).long()
    return {
        "input_ids": torch.randint(5, 90, (4, 17), generator=draw) * mask,
        "attention_mask": mask,
        "token_type_ids": (torch.arange(17) > 2).long() * mask,
    }


@pytest.fixture
def batch():
    return draw_batch(torch.Generator().manual_seed(0))


def make_model(name, **changes):
    torch.manual_seed(1)
    return getattr(transformers, f"Albert{name or 'Model'}")(shape(**changes)).eval()


def is_fast(model):
    return any(
        isinstance(module.__dict__.get("forward"), _TransformersForward)
        for module in model.modules()
    )


@pytest.mark.parametrize("name", CLASSES)
def test_outputs_of_transformers_classes_at_every_real_token(name, batch):
    model = make_model(name)
    with torch.no_grad():
        before = model(**batch)
        assert albertkit.accelerate(model, "fp32") is model
        assert is_fast(model)
        after = model(**batch)
        as_tuple = model(**batch, return_dict=False)
    assert type(after) is type(before)
    assert list(after) == list(before)
    assert len(as_tuple) == len(after)
    real = batch["attention_mask"].bool()
    for key, value in before.items():
        theirs, ours = (v[real] if v.shape[:2] == real.shape else v for v in (value, after[key]))
        assert torch.allclose(theirs, ours, atol=2e-5), key
        assert not torch.equal(theirs, ours)  # or nothing else computed it


@torch.no_grad()
def test_bf16_is_as_near_as_torchs_own():
    sizes = dict(
        vocab_size=200,
        embedding_size=64,
        hidden_size=256,
        num_attention_heads=4,
        intermediate_size=1024,
    )
    torch.manual_seed(0)
    model = transformers.AlbertModel(transformers.AlbertConfig(**sizes)).eval()
    ids = torch.randint(5, 200, (6, 30))
    expected = model(ids)[0]
    rounded = copy.deepcopy(model).to(torch.bfloat16)(ids)[0].float()
    states = albertkit.accelerate(model, "bf16")(ids)[0]
    assert float((states - expected).abs().mean()) < 1.1 * float((rounded - expected).abs().mean())
    assert float((states - expected).abs().max()) < 0.01 * float(expected.abs().max())


def test_what_the_engine_does_not_compute_is_the_models_own(batch):
    model = make_model("")
    untouched = make_model("")
    albertkit.accelerate(model, "fp32")
    left_padded = {name: values.flip(1) for name, values in batch.items()}
    embedded = model.embeddings.word_embeddings(batch["input_ids"]).detach()
    with torch.no_grad():
        for call in (
            {**batch, "output_hidden_states": True},
            {**batch, "output_attentions": True},
            left_padded,
            {"inputs_embeds": embedded, "attention_mask": batch["attention_mask"]},
        ):
            ours = model(**call)
            theirs = untouched(**call)
            assert list(ours) == list(theirs)
            assert torch.equal(ours.last_hidden_state, theirs.last_hidden_state)
        assert len(model(**batch, output_hidden_states=True).hidden_states) == 4


def test_training_and_gradients_warn_once_and_work(batch):
    model = albertkit.accelerate(make_model("ForSequenceClassification"), "fp32")
    with pytest.warns(UserWarning, match=r"gradients are on: .* torch\.no_grad"):
        model(**batch)
    model.train()
    with pytest.warns(UserWarning, match=r"model\.eval\(\)"):
        loss = model(**batch, labels=torch.tensor([0, 1, 0, 1])).loss
    loss.backward()
    assert model.albert.embeddings.word_embeddings.weight.grad is not None
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model(**batch)
        model.eval()(**batch)


def test_changed_weights_are_used_at_once(batch):
    model = albertkit.accelerate(make_model("ForSequenceClassification"), "fp32")
    with torch.no_grad():
        model(**batch)
        model.albert.embeddings.word_embeddings.weight.mul_(2)
        changed = model(**batch).logits
        albertkit.restore(model)
        assert not is_fast(model)
        assert torch.allclose(changed, model(**batch).logits, atol=2e-5)
        albertkit.accelerate(model, "fp32")
        model.load_state_dict(make_model("ForSequenceClassification").state_dict())
        loaded = model(**batch).logits
        assert torch.allclose(
            loaded, make_model("ForSequenceClassification")(**batch).logits, atol=2e-5
        )


def test_a_resized_vocabulary_is_known_at_once(batch):
    model = albertkit.accelerate(make_model(""), "fp32")
    with torch.no_grad():
        model(**batch)
        model.resize_token_embeddings(100)
        larger = torch.tensor([[2, 99, 3]])
        assert torch.allclose(model(larger)[0], albertkit.restore(model)(larger)[0], atol=2e-5)
        albertkit.accelerate(model, "fp32").resize_token_embeddings(10)
        with pytest.raises(DataError, match="the model knows 0 to 9"):
            model(larger)


def test_restored_is_as_before_and_a_copy_is_its_own(batch):
    model = make_model("")
    with torch.no_grad():
        before = model(**batch).last_hidden_state
        albertkit.accelerate(model, "fp32")
        twin = copy.deepcopy(model)
        twin.embeddings.word_embeddings.weight.zero_()
        assert is_fast(twin)
        assert torch.allclose(model(**batch).last_hidden_state[0], before[0], atol=2e-5)
        assert not torch.allclose(twin(**batch).last_hidden_state[0], before[0], atol=2e-5)
        assert torch.equal(albertkit.restore(model)(**batch).last_hidden_state, before)


def test_frozen_stays_frozen_and_what_was_replaced_is_the_models_own(batch):
    model = make_model("").requires_grad_(False)
    albertkit.accelerate(model, "fp32")
    model.embeddings.word_embeddings.weight.mul_(2)
    model(**batch)
    assert not any(parameter.requires_grad for parameter in albertkit.restore(model).parameters())
    albertkit.accelerate(model, "fp32").pooler = None
    with pytest.warns(UserWarning, match="its layers were replaced since"):
        states = model(**batch).last_hidden_state
    assert torch.equal(states, albertkit.restore(model)(**batch).last_hidden_state)


def test_traced_and_autocast_and_broadcast_types(batch):
    model = make_model("")
    with torch.no_grad():
        expected = model(batch["input_ids"], token_type_ids=batch["token_type_ids"][:1])[0]
        albertkit.accelerate(model, "fp32")
        assert torch.equal(
            model(batch["input_ids"], token_type_ids=batch["token_type_ids"][:1])[0], expected
        )
        with torch.autocast("cpu", torch.bfloat16):
            assert model(**batch)[0].dtype == albertkit.restore(make_model(""))(**batch)[0].dtype
        traced = torch.jit.trace(model, batch["input_ids"], strict=False)
        flipped = batch["input_ids"].flip(1)
        assert torch.allclose(traced(flipped)["last_hidden_state"], model(flipped)[0], atol=2e-5)


def test_hooks_are_called(batch):
    model = albertkit.accelerate(make_model(""), "fp32")
    calls = []
    model.encoder.embedding_hidden_mapping_in.register_forward_hook(lambda *_: calls.append(1))
    with torch.no_grad():
        model(**batch)
    assert calls


def test_saved_folder_is_unchanged(tmp_path):
    model = make_model("ForMaskedLM")
    model.save_pretrained(tmp_path / "a")
    albertkit.accelerate(model, "fp32").save_pretrained(tmp_path / "b")
    for name in ("config.json", "model.safetensors"):
        assert (tmp_path / "a" / name).read_bytes() == (tmp_path / "b" / name).read_bytes()


def test_a_pipeline_and_a_sentence_transformer(tiny_model_folder, tiny_texts):
    checkpoint = tiny_model_folder(AlbertModel)
    texts = [text[: 20 * n + 20] for n, text in enumerate(tiny_texts[:3])]
    pipeline = transformers.pipeline(
        "feature-extraction", model=str(checkpoint), tokenizer=str(checkpoint)
    )
    before = pipeline(texts)
    assert albertkit.accelerate(pipeline, "fp32") is pipeline
    assert is_fast(pipeline.model)
    for theirs, ours in zip(before, pipeline(texts), strict=True):
        assert torch.allclose(torch.tensor(theirs), torch.tensor(ours), atol=2e-5)
    import sentence_transformers

    encoder = sentence_transformers.SentenceTransformer(str(checkpoint), device="cpu")
    before = encoder.encode(texts)
    assert is_fast(albertkit.accelerate(encoder, "fp32"))
    assert torch.allclose(torch.tensor(before), torch.tensor(encoder.encode(texts)), atol=2e-5)


def test_a_wrapped_encode_of_ours_computes_by_itself_once_restored(tiny_model_folder, batch):
    model = AlbertForMaskedLM.from_pretrained(tiny_model_folder(AlbertModel)).eval()
    batch["input_ids"] = batch["input_ids"] % 50
    with torch.no_grad():
        before = model(**batch).logits
        fast_encode = albertkit.accelerate(model, "int8").albert.encode
        model.albert.encode = functools.wraps(fast_encode)(
            lambda *args, **options: fast_encode(*args, **options)
        )
        assert not torch.equal(model(**batch).logits, before)
        assert torch.equal(albertkit.restore(model)(**batch).logits, before)


def test_our_own_classes(tiny_model_folder, batch):
    model = AlbertForSequenceClassification.from_pretrained(
        tiny_model_folder(AlbertModel), num_labels=3
    )
    batch["input_ids"] = batch["input_ids"] % 50
    with torch.no_grad():
        before = model(**batch).logits
        albertkit.accelerate(model, "fp32")
        assert isinstance(model.albert.__dict__["encode"], _OwnEncode)
        assert torch.allclose(model(**batch).logits, before, atol=2e-5)
        assert model(**batch, output_hidden_states=True).hidden_states is not None
        assert torch.equal(albertkit.restore(model)(**batch).logits, before)


@torch.no_grad()
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("kind", [AlbertForSequenceClassification, AlbertForMaskedLM])
def test_our_own_classes_in_half_precision(kind, dtype, batch):
    model = kind(shape()).eval()
    expected = copy.deepcopy(model).to(dtype)(**batch).logits
    logits = albertkit.accelerate(model, "fp32").to(dtype)(**batch).logits
    assert logits.dtype == dtype
    assert torch.allclose(logits.float(), expected.float(), atol=0.1, rtol=0.05)


def test_what_is_no_plain_albert_is_refused():
    with pytest.raises(ConfigError, match="no ALBERT in this Linear"):
        albertkit.accelerate(torch.nn.Linear(2, 2))
    with pytest.raises(ConfigError, match="no precision"):
        albertkit.accelerate(make_model(""), "int4")
    model = make_model("")
    model.encoder = torch.nn.Sequential(model.encoder)
    with pytest.raises(ConfigError, match="other layers"):
        albertkit.accelerate(model)
