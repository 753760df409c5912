"""`accelerate(model, training=True)`: losses and gradients of transformers' own classes, from our packed layers."""

import copy
import threading
import warnings
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
import transformers

import albertkit
from albertkit.errors import ConfigError, DataError
from albertkit.model import AlbertForSequenceClassification, AlbertModel
from tests.pipelines import test_accelerate
from tests.pipelines.test_accelerate import is_fast

pytestmark = pytest.mark.filterwarnings("error:accelerate")

DRAW = torch.Generator().manual_seed(3)
BATCH = test_accelerate.draw_batch(DRAW)
IDS = BATCH["input_ids"]
MASK = BATCH["attention_mask"]
TOKENS = torch.randint(0, 2, (4, 17), generator=DRAW).masked_fill(MASK == 0, -100)
ROWS = torch.tensor([0, 1, 1, 0])
LABELS = {
    "ForPreTraining": {"labels": IDS.masked_fill(TOKENS < 1, -100), "sentence_order_label": ROWS},
    "ForMaskedLM": {"labels": IDS.masked_fill(TOKENS < 1, -100)},
    "ForSequenceClassification": {"labels": ROWS},
    "ForTokenClassification": {"labels": TOKENS},
    "ForQuestionAnswering": {"start_positions": ROWS, "end_positions": ROWS + 1},
    "ForMultipleChoice": {"labels": ROWS},
}


def make_model(name, **changes):
    return test_accelerate.make_model(name, **{"classifier_dropout_prob": 0, **changes})


def model_and_twin(name, **changes):
    """An accelerated model in training mode, and an untouched twin."""
    model, twin = (make_model(name, **changes).train() for _ in range(2))
    assert albertkit.accelerate(model, "fp32", training=True) is model
    return model, twin


def batch_of(name):
    """Return the inputs of a class with its labels; a question of multiple choice has the four rows as its choices."""
    rows = (
        {key: value[None].repeat(4, 1, 1) for key, value in BATCH.items()}
        if "Choice" in name
        else BATCH
    )
    return {**rows, **LABELS[name]}


def gradients(model, batch):
    """Return the loss and the gradients of a fresh backward pass."""
    model.zero_grad()
    loss = model(**batch).loss
    loss.backward()
    return loss.detach(), {
        name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None
    }


def assert_same_gradients(model, twin, batch, tolerance=1e-5):
    """Compare a model with its untouched twin."""
    loss, ours = gradients(model, batch)
    expected_loss, theirs = gradients(twin, batch)
    assert abs(loss - expected_loss) < tolerance
    assert ours.keys() == theirs.keys()
    for name, gradient in theirs.items():
        assert torch.allclose(
            ours[name], gradient, atol=tolerance * max(1.0, float(gradient.abs().max()))
        ), name
    assert any(
        not torch.equal(ours[name], gradient) for name, gradient in theirs.items()
    )  # or nothing else computed it


@pytest.mark.parametrize("name", LABELS)
def test_losses_and_gradients_of_every_class(name):
    model, twin = model_and_twin(name)
    assert_same_gradients(model, twin, batch_of(name))
    assert_same_gradients(model.eval(), twin.eval(), batch_of(name))


@pytest.mark.parametrize(
    "changes",
    [
        {"num_hidden_groups": 3, "inner_group_num": 2},
        {"hidden_act": "gelu"},
        {"attn_implementation": "eager"},
    ],
)
def test_other_configurations(changes):
    model, twin = model_and_twin("ForMaskedLM", **changes)
    assert_same_gradients(model, twin, batch_of("ForMaskedLM"))


def test_a_sentence_transformer_trains(tiny_model_folder, tiny_texts):
    import sentence_transformers
    from sentence_transformers.sentence_transformer import losses as losses_of_library

    folder = str(tiny_model_folder(AlbertModel))
    settings = dict(
        device="cpu",
        config_kwargs=dict.fromkeys(("hidden_dropout_prob", "attention_probs_dropout_prob"), 0),
    )
    model, twin = (
        sentence_transformers.SentenceTransformer(folder, **settings).train() for _ in range(2)
    )
    albertkit.accelerate(model, "fp32", training=True)
    rows = [
        model.preprocess(
            [text[: 9 * n + 20] for n, text in enumerate(tiny_texts[start : start + 4])]
        )
        for start in (0, 4)
    ]
    losses = []
    for part in (model, twin):
        loss = losses_of_library.MultipleNegativesRankingLoss(part)(
            [dict(row) for row in rows], None
        )
        loss.backward()
        losses.append(float(loss))
    assert losses[0] == pytest.approx(losses[1], abs=1e-5)
    for (name, parameter), expected in zip(
        model.named_parameters(), twin.parameters(), strict=True
    ):
        if expected.grad is not None:
            assert torch.allclose(parameter.grad, expected.grad, atol=1e-4), name


@pytest.mark.parametrize("name", ["ForMaskedLM", "ForPreTraining"])
def test_logits_of_all_places_and_odd_calls_of_masked_words(name):
    model, twin = model_and_twin(name)
    batch = batch_of(name)
    real = MASK.bool()
    for part in (model, twin):  # a loss of one's own reads the logits, too
        output = part(**batch, num_items_in_batch=torch.tensor(7), return_dict=False)
        (output[0] + output[1][real].square().mean()).backward()
    for (key, parameter), expected in zip(model.named_parameters(), twin.parameters(), strict=True):
        assert torch.allclose(parameter.grad, expected.grad, atol=1e-5), key
    nothing = {**batch, "labels": torch.full_like(IDS, -100)}
    assert model(**nothing).loss.isnan()
    assert twin(**nothing).loss.isnan()
    assert list(model(**batch)) == list(twin(**batch))
    assert list(model(**BATCH)) == list(twin(**BATCH))
    for part in (model, twin):
        with pytest.raises((IndexError, RuntimeError), match="out of bounds"):
            part(**{**batch, "labels": batch["labels"] + 90})


def test_dropout_is_where_theirs_is():
    changes = {"hidden_dropout_prob": 0.5, "attention_probs_dropout_prob": 0.5}
    model, twin = model_and_twin("ForTokenClassification", **changes)
    first, second = (gradients(model, batch_of("ForTokenClassification"))[0] for _ in range(2))
    assert first != second
    # What their forward pass reads; their layer has one more, which it does not
    for part in (model, twin):
        part.albert.embeddings.dropout.p = 0
        attention = part.albert.encoder.albert_layer_groups[0].albert_layers[0].attention
        attention.attention_dropout.p = attention.dropout_prob = attention.output_dropout.p = 0
    assert_same_gradients(model, twin, batch_of("ForTokenClassification"))


def test_bf16_is_as_near_as_their_autocast():
    model, reference = model_and_twin("ForSequenceClassification")
    twin = copy.deepcopy(reference)
    batch = batch_of("ForSequenceClassification")
    _, expected = gradients(reference, batch)
    with torch.autocast("cpu", torch.bfloat16):
        (_, ours), (_, theirs) = gradients(model, batch), gradients(twin, batch)

    def distance(gradients_of):
        return sum(float((gradients_of[name] - expected[name]).norm()) for name in expected)

    assert 0 < distance(ours) < 1.1 * distance(theirs)


def test_updates_give_the_same_losses_and_the_engine_evaluates_between_them():
    model, twin = model_and_twin("ForSequenceClassification")
    batch = batch_of("ForSequenceClassification")
    losses = []
    for part in (model, twin):
        optimizer = torch.optim.AdamW(part.parameters(), 1e-3)
        for _ in range(20):
            optimizer.zero_grad()
            loss = part(**batch).loss
            loss.backward()
            optimizer.step()
            with torch.no_grad():
                losses.append((float(loss), float(part.eval()(**batch).loss)))
            part.train()
    assert torch.allclose(torch.tensor(losses[:20]), torch.tensor(losses[20:]), atol=1e-4)


def test_gradient_checkpointing_is_possible_and_restored():
    model, twin = (make_model("ForMaskedLM").train() for _ in range(2))
    with pytest.raises(ValueError, match="does not support"):
        model.activation_checkpointing_enable()
    albertkit.accelerate(model, "fp32", training=True)
    model.activation_checkpointing_enable()

    def count_saved_numbers():
        sizes = []
        with torch.autograd.graph.saved_tensors_hooks(
            lambda x: sizes.append(x.numel()) or x, lambda x: x
        ):
            model(**batch_of("ForMaskedLM"))
        return sum(sizes)

    checkpointed = count_saved_numbers()
    assert_same_gradients(model, twin, batch_of("ForMaskedLM"))
    model.activation_checkpointing_disable()
    assert checkpointed < 0.7 * count_saved_numbers()
    albertkit.restore(model)
    with pytest.raises(ValueError, match="does not support"):
        model.activation_checkpointing_enable()


@pytest.mark.parametrize("before", [True, False])
def test_adapters_before_and_after(before):
    import peft

    settings = dict(
        r=4,
        target_modules=["query", "value", "ffn", "position_embeddings"],
        init_lora_weights=False,
        modules_to_save=["classifier"],
    )
    parts = []
    for accelerated in (True, False):
        part = make_model("ForSequenceClassification").train()
        if accelerated and not before:
            albertkit.accelerate(part, "fp32", training=True)
        torch.manual_seed(5)
        part = peft.get_peft_model(part, peft.LoraConfig(**settings))
        if accelerated and before:
            albertkit.accelerate(part, "fp32", training=True)
        parts.append(part)
    model, twin = parts
    batch = batch_of("ForSequenceClassification")
    assert_same_gradients(model, twin, batch)
    merged, expected = (part.merge_and_unload().eval() for part in parts)
    with torch.no_grad():
        assert torch.allclose(merged(**batch).logits, expected(**batch).logits, atol=2e-5)
    assert is_fast(merged)


def test_frozen_and_resized_and_saved(tmp_path):
    model, twin = model_and_twin("ForMaskedLM")
    for part in (model, twin):
        part.albert.embeddings.requires_grad_(False)
        part.resize_token_embeddings(90 + 6, mean_resizing=False)
    twin.load_state_dict(model.state_dict())
    assert_same_gradients(model, twin, batch_of("ForMaskedLM"))
    for part, folder in ((model, "ours"), (twin, "theirs")):
        part.save_pretrained(tmp_path / folder)
    for name in ("config.json", "model.safetensors"):
        assert (tmp_path / "ours" / name).read_bytes() == (tmp_path / "theirs" / name).read_bytes()


def test_under_the_trainer_and_in_a_distributed_wrapper(tmp_path):
    rows = [
        {**{key: value[n] for key, value in BATCH.items()}, "labels": ROWS[n]} for n in range(4)
    ]
    logs = []
    for accelerated in (True, False):
        model = make_model("ForSequenceClassification")
        if accelerated:
            albertkit.accelerate(model, "fp32", training=True)
        arguments = transformers.TrainingArguments(
            str(tmp_path / "run"),
            max_steps=6,
            per_device_train_batch_size=2,
            logging_steps=1,
            eval_strategy="steps",
            eval_steps=3,
            save_strategy="no",
            report_to="none",
            disable_tqdm=True,
            use_cpu=True,
            gradient_checkpointing=accelerated,
        )
        trainer = transformers.Trainer(model, arguments, train_dataset=rows, eval_dataset=rows)
        trainer.train()
        logs.append(
            [entry.get("loss", entry.get("eval_loss")) for entry in trainer.state.log_history[:-1]]
        )
    assert len(logs[0]) == 8
    assert torch.allclose(torch.tensor(logs[0]), torch.tensor(logs[1]), atol=1e-3)

    torch.distributed.init_process_group(
        "gloo", store=torch.distributed.HashStore(), rank=0, world_size=1
    )
    try:
        model, twin = model_and_twin("ForSequenceClassification")
        wrapped = torch.nn.parallel.DistributedDataParallel(model)
        gradients(wrapped, batch_of("ForSequenceClassification"))
        _, theirs = gradients(twin, batch_of("ForSequenceClassification"))
        for name, parameter in model.named_parameters():
            assert torch.allclose(parameter.grad, theirs[name], atol=1e-5), name
    finally:
        torch.distributed.destroy_process_group()


@pytest.fixture
def fresh_accelerator():
    """An `Accelerator` of a process that has made none, in bf16."""
    from accelerate import Accelerator
    from accelerate.state import AcceleratorState

    AcceleratorState._reset_state(reset_partial_state=True)
    yield Accelerator(cpu=True, mixed_precision="bf16")
    AcceleratorState._reset_state(reset_partial_state=True)


@pytest.mark.parametrize("name", ["", "ForMaskedLM"])
def test_mixed_precision_of_the_accelerate_library_is_taken_off_in_any_order(
    name, fresh_accelerator
):
    expected = make_model(name)(**BATCH)[0]
    for restored_before in (True, False):
        model = albertkit.accelerate(make_model(name), "fp32", training=True)
        prepared = fresh_accelerator.prepare(model)
        assert not torch.equal(prepared(**BATCH)[0], expected)
        if restored_before:
            albertkit.restore(model)
            with torch.autocast("cpu", torch.bfloat16):
                in_bf16 = make_model(name)(**BATCH)[0]
            assert torch.equal(prepared(**BATCH)[0], in_bf16.float())
        model = fresh_accelerator.unwrap_model(prepared, keep_fp32_wrapper=False)
        real = MASK.bool()
        assert torch.allclose(model(**BATCH)[0][real], expected[real], atol=2e-5)
        assert torch.equal(model(**BATCH)[0], expected) == restored_before
        assert torch.equal(albertkit.restore(model)(**BATCH)[0], expected)


def test_what_it_does_not_compute_is_said_once():
    model = albertkit.accelerate(
        make_model("ForSequenceClassification").train(), "fp32", training=True
    )
    with pytest.warns(UserWarning, match="asked for output_hidden_states"):
        assert len(model(**BATCH, output_hidden_states=True).hidden_states) == 4
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model(**BATCH, output_hidden_states=True)
        torch._dynamo.reset()
        compiled = torch.compile(model, backend="eager")
        compiled(**BATCH)
    for mode in (True, False):
        with (
            pytest.raises(DataError, match="a sequence has 41 tokens, the model reads 40"),
            torch.no_grad(),
        ):
            model.train(mode)(torch.full((1, 41), 7))
    model.albert.encoder.register_forward_hook(lambda *_: None)
    with pytest.warns(UserWarning, match="`encoder` has a hook"):
        model(**BATCH)
    strange = make_model("")
    strange.encoder.albert_layer_groups[0].albert_layers[0].ffn_norm = torch.nn.LayerNorm(64)
    with pytest.raises(
        ConfigError, match=r"other layers than transformers' own: it has `encoder.*ffn_norm"
    ):
        albertkit.accelerate(strange, training=True)


def test_our_own_classes_train_as_before(tiny_model_folder):
    model = AlbertForSequenceClassification.from_pretrained(
        tiny_model_folder(AlbertModel),
        num_labels=3,
        classifier_dropout_prob=0,
        hidden_dropout_prob=0,
        attention_probs_dropout_prob=0,
    )
    model.train()
    batch = {**batch_of("ForSequenceClassification"), "input_ids": IDS % 50}
    expected, theirs = gradients(model, batch)
    loss, ours = gradients(albertkit.accelerate(model, "fp32", training=True), batch)
    assert loss == expected
    assert all(torch.equal(ours[name], gradient) for name, gradient in theirs.items())


def test_what_changes_afterwards_is_said():
    import peft

    model = albertkit.accelerate(make_model("ForSequenceClassification"), "fp32", training=True)
    attention = model.albert.encoder.albert_layer_groups[0].albert_layers[0].attention
    attention.num_attention_heads -= 1  # as transformers 4 does when it prunes one
    with pytest.warns(UserWarning, match="its layers were replaced since"):
        model(**BATCH)
    model = albertkit.accelerate(make_model("ForSequenceClassification"), "int8")
    model = peft.get_peft_model(
        model, peft.LoraConfig(r=2, target_modules=["query"], init_lora_weights=False)
    )
    with torch.no_grad(), pytest.warns(UserWarning, match="accelerate") as fallbacks:
        model(**BATCH)
    assert any("not int8: `encoder" in str(fallback.message) for fallback in fallbacks)


def test_checkpointing_stays_on_and_labels_of_other_heads_are_theirs():
    model = albertkit.accelerate(make_model("ForMaskedLM").train(), "fp32", training=True)
    model.activation_checkpointing_enable()
    assert albertkit.accelerate(model, "fp32", training=True).is_activation_checkpointing
    with pytest.warns(UserWarning, match="asked for sentence_order_label"):
        loss = model(**batch_of("ForMaskedLM"), sentence_order_label=ROWS).loss
    expected = (
        make_model("ForMaskedLM").train()(**batch_of("ForMaskedLM"), sentence_order_label=ROWS).loss
    )
    assert torch.allclose(loss, expected, atol=1e-5)


def test_two_threads_have_their_own_losses():
    model = albertkit.accelerate(make_model("ForMaskedLM").train(), "fp32", training=True)
    batches = [
        {**BATCH, "labels": BATCH["input_ids"].masked_fill(value != TOKENS, -100)}
        for value in (0, 1)
    ]
    expected = [float(model(**batch).loss) for batch in batches]
    meeting = threading.Barrier(2)
    # Both are inside at once: each waits for the other before its head is called
    original = model.albert.forward

    def wait_and_run(*args, **kwargs):
        output = original(*args, **kwargs)
        meeting.wait(30)
        return output

    model.albert.forward = wait_and_run
    with ThreadPoolExecutor(2) as pool:
        losses = list(pool.map(lambda batch: float(model(**batch).loss), batches))
    assert losses == pytest.approx(expected, abs=1e-5)


@pytest.mark.parametrize("name", ["ForMaskedLM", "ForTokenClassification", "ForQuestionAnswering"])
def test_losses_that_read_padding_in_training_and_evaluation(name):
    model, twin = model_and_twin(name)
    batch = batch_of(name)
    if "labels" in batch:
        batch["labels"] = (IDS + 1) % 2  # also on padding
    assert_same_gradients(model, twin, batch)
    for training in (True, False):
        albertkit.accelerate(model, "fp32", training=training)
        with torch.no_grad():
            loss, expected = (part.eval()(**batch).loss for part in (model, twin))
        assert torch.allclose(loss, expected, atol=1e-5)


@pytest.mark.parametrize("part", ["albert.pooler", "predictions", "predictions.dense"])
@pytest.mark.parametrize("kind", ["forward", "full_backward", "full_backward_pre"])
def test_hooks_change_what_they_change_in_the_model_itself(part, kind):
    def double(module, *tensors):
        if isinstance(tensors[-1], torch.Tensor):
            return 2 * tensors[-1]
        return tuple(2 * tensor for tensor in tensors[0])

    model, twin = model_and_twin("ForPreTraining")
    hooks = [
        getattr(albert.get_submodule(part), f"register_{kind}_hook")(double)
        for albert in (model, twin)
    ]
    batch = batch_of("ForPreTraining")
    with warnings.catch_warnings(action="ignore"):
        loss, ours = gradients(model, batch)
        expected_loss, theirs = gradients(twin, batch)
    assert torch.allclose(loss, expected_loss, atol=1e-5)
    for name, gradient in theirs.items():
        assert torch.allclose(ours[name], gradient, atol=1e-5), name
    for hook in hooks:
        hook.remove()
    assert_same_gradients(model, twin, batch)  # without a warning


def test_noise_in_embeddings_and_a_forward_of_ones_own():
    model, twin = (make_model("ForMaskedLM").train() for _ in range(2))
    original = model.forward
    model.forward = lambda **batch: {"loss": 3 * original(**batch).loss}
    albertkit.accelerate(model, "fp32", training=True)
    batch = batch_of("ForMaskedLM")
    assert torch.allclose(model(**batch)["loss"], 3 * twin(**batch).loss, atol=1e-5)
    del model.forward
    for part in (model, twin):  # as Trainer's `neftune_noise_alpha` does
        words = part.get_input_embeddings()
        words.neftune_noise_alpha = 5
        words.register_forward_hook(transformers.integrations.neftune_post_forward_hook)
    losses = []
    for part in (model, twin):
        torch.manual_seed(1)
        with warnings.catch_warnings(action="ignore"):
            losses.append(float(part(**batch).loss))
    assert losses[0] == pytest.approx(losses[1], abs=1e-5)


@pytest.mark.parametrize("name", ["ForMaskedLM", "ForSequenceClassification"])
@pytest.mark.parametrize(
    "part",
    ["albert.encoder.albert_layer_groups.0.albert_layers.0.ffn", "albert.embeddings.LayerNorm"],
)
def test_gradients_of_gradients_are_an_error(name, part):
    model = albertkit.accelerate(make_model(name).train(), "fp32", training=True)
    loss = model(**batch_of(name)).loss
    weight = model.get_submodule(part).weight
    with pytest.raises(RuntimeError, match="gradients of gradients are not computed here"):
        torch.autograd.grad(loss, weight, create_graph=True)
