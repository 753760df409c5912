"""Every way of sharing trains, is saved, and comes back as it was; what transformers cannot share is written out and said."""

import shutil
from dataclasses import replace

import pytest
import torch
from safetensors.torch import load_file
from small_models import padded_inputs
from small_store import build_small_store

from albertkit.config import AlbertConfig
from albertkit.errors import CheckpointError
from albertkit.model import AlbertForPreTraining, PackedBatch
from albertkit.pretraining.card import PretrainingFacts, model_card
from albertkit.pretraining.run import pretrain
from albertkit.pretraining.settings import PretrainSettings
from albertkit.training.optimizers import clip_gradients, make_optimizer

TINY = dict(
    vocab_size=90,
    embedding_size=16,
    hidden_size=64,
    num_hidden_layers=4,
    num_attention_heads=2,
    intermediate_size=96,
    max_position_embeddings=64,
)
SHARINGS = {
    "all": {},
    "groups": {"num_hidden_groups": 2, "inner_group_num": 2},
    "attention": {"parameter_sharing": "attention", "num_hidden_groups": 4},
    "ffn": {"parameter_sharing": "ffn", "num_hidden_groups": 4},
    "none": {"parameter_sharing": "none", "num_hidden_groups": 4},
}
GROUP = "albert.encoder.albert_layer_groups"


def train(model, updates=12):
    """Losses of updates on one batch."""
    inputs = padded_inputs()
    labels = torch.where(
        (torch.arange(20) % 3 == 0) & inputs["attention_mask"].bool(), inputs["input_ids"], -100
    )
    order = torch.tensor([0, 1, 1])
    batch = PackedBatch.from_padded(*inputs.values(), labels=labels, sentence_order_labels=order)
    optimizer = make_optimizer("lamb", model.named_parameters(), lr=0.02)
    losses = []
    for _ in range(updates):
        parts = model.pretraining_losses(batch)
        loss = (
            parts.masked_lm.loss_sum / parts.masked_lm.label_count
            + parts.sentence_order.loss_sum / 3
        )
        loss.backward()
        clip_gradients(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return losses


@pytest.fixture
def trained(request):
    """A model of the sharing that the test names, after some updates."""
    torch.manual_seed(0)
    model = AlbertForPreTraining(AlbertConfig(**TINY, **SHARINGS[request.param]))
    losses = train(model)
    assert losses[-1] < losses[0] - 0.5, losses
    return model.eval()


def every_sharing(test):
    return pytest.mark.parametrize("trained", SHARINGS, indirect=True)(test)


@every_sharing
def test_it_trains_and_comes_back_with_the_same_sharing(trained, tmp_path):
    trained.save_pretrained(tmp_path)
    reloaded = AlbertForPreTraining.from_pretrained(tmp_path)
    assert reloaded.config == trained.config
    own_config = dict(trained.named_parameters())
    loaded = dict(reloaded.named_parameters())
    # A shared parameter has one name, so these are the same parameters
    assert own_config.keys() == loaded.keys()
    assert all(torch.equal(own_config[name], loaded[name]) for name in own_config)
    with torch.no_grad():
        our_values = trained(**padded_inputs())
        their_values = reloaded(**padded_inputs())
    assert torch.equal(our_values.prediction_logits, their_values.prediction_logits)
    assert torch.equal(our_values.sop_logits, their_values.sop_logits)
    # Copies made by loading would drift apart here.
    train(trained.train(), updates=3)
    train(reloaded.train(), updates=3)
    assert all(torch.equal(own_config[name], loaded[name]) for name in own_config)
    assert reloaded.num_parameters() == reloaded.config.num_parameters(heads=True)


@every_sharing
def test_transformers_computes_the_same(trained, tmp_path):
    import transformers

    trained.save_pretrained(tmp_path)
    theirs = transformers.AlbertForPreTraining.from_pretrained(tmp_path).eval()
    inputs = padded_inputs()
    real = inputs["attention_mask"].bool()

    def deviation():
        with torch.no_grad():
            our_values = trained(**inputs)
            their_values = theirs(**inputs)
        difference = (
            (our_values.prediction_logits - their_values.prediction_logits)[real].abs().max()
        )
        return max(
            difference.item(), (our_values.sop_logits - their_values.sop_logits).abs().max().item()
        )

    assert deviation() < 1e-5
    last = theirs.get_parameter(
        f"{GROUP}.{trained.config.num_hidden_groups - 1}.albert_layers.0.ffn_output.weight"
    )
    with torch.no_grad():
        last[3] += 0.5
    assert deviation() > 1e-4


@pytest.mark.parametrize(
    ("trained", "shared", "own_config"),
    [
        ("attention", "attention.", "ffn"),
        ("ffn", "ffn", "attention."),
    ],
    indirect=["trained"],
)
def test_what_transformers_cannot_share_is_written_out_and_said(
    trained, shared, own_config, tmp_path, caplog
):
    with caplog.at_level("INFO", logger="albertkit"):
        trained.save_pretrained(tmp_path)
    assert "once for each of the 4 layers" in caplog.text
    config = AlbertConfig.from_pretrained(tmp_path)
    assert config.parameter_sharing == trained.config.parameter_sharing
    assert config.num_hidden_groups == 4
    assert (
        "The layers share their"
        in model_card("m", PretrainingFacts(config=config.to_dict())).text()
    )
    assert (
        "The layers share their"
        not in model_card("m", PretrainingFacts(config=AlbertConfig(**TINY).to_dict())).text()
    )
    tensors = load_file(tmp_path / "model.safetensors")
    first = [name for name in tensors if f"{GROUP}.0." in name]
    for group in ("1", "2", "3"):
        for name in first:
            are_equal = torch.equal(
                tensors[name], tensors[name.replace(f"{GROUP}.0.", f"{GROUP}.{group}.")]
            )
            part = name.split("albert_layers.0.")[1]
            if part.startswith((shared, own_config)):
                assert are_equal == part.startswith(shared), name


@pytest.mark.parametrize("trained", ["attention", "none"], indirect=True)
def test_a_file_is_not_read_with_another_sharing(trained, tmp_path):
    trained.save_pretrained(tmp_path)
    with pytest.raises(CheckpointError, match="shared in the model but different in the file"):
        AlbertForPreTraining.from_pretrained(tmp_path, parameter_sharing="ffn")


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    return build_small_store(tmp_path_factory.mktemp("store"))


@pytest.mark.parametrize("sharing", ["groups", "attention", "none"])
def test_a_run_resumes_to_the_same_bits(tmp_path, store, sharing):
    config = AlbertConfig(
        **{**TINY, "vocab_size": store.vocab_size}, **SHARINGS[sharing], hidden_dropout_prob=0.1
    )
    config.save_pretrained(tmp_path)
    settings = PretrainSettings(
        config=tmp_path / "config.json",
        length=32,
        batch_tokens=128,
        steps=6,
        lr=2e-3,
        bias_correction=True,
        clip_norm=0.0,
        end_lr=1e-3,
        warmup_steps=2,
        held_out=0.2,
        eval_every=3,
        save_every=3,
        log_every=3,
        precision="fp32",
    )
    unbroken = tmp_path / "whole"
    part = tmp_path / "part"
    pretrain(store, unbroken, settings)
    shutil.copytree(unbroken, part)
    shutil.rmtree(part / "final")
    shutil.rmtree(part / "checkpoints/step-000006")
    state = load_file(part / "checkpoints/step-000003/training_state.safetensors")
    moments = {name.removeprefix("optimizer/") for name in state if name.startswith("optimizer/")}
    names = [name for name, _ in AlbertForPreTraining(config).named_parameters()]
    # One pair a shared parameter
    assert moments == {f"{name}/{slot}" for name in names for slot in "mv"}
    assert pretrain(store, part, settings, resume=True).steps == 6
    first, second = (load_file(run / "final/model.safetensors") for run in (unbroken, part))
    assert first.keys() == second.keys()
    assert all(torch.equal(first[name], second[name]) for name in first)
    with pytest.raises(CheckpointError, match="end_lr was"):
        pretrain(store, part, replace(settings, end_lr=0.0), resume=True)
