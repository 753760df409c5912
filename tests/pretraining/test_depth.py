"""Runs whose depth grows: what is computed, what is counted, and what is refused."""

from dataclasses import replace

import pytest
import torch
from small_store import ALONE, write_config

from albertkit.config import AlbertConfig
from albertkit.errors import ConfigError
from albertkit.model import AlbertForPreTraining
from albertkit.pretraining import pretrain_command
from albertkit.pretraining import run as running
from albertkit.pretraining.objective import PretrainingObjective, num_layers_at, set_num_layers
from albertkit.pretraining.settings import PretrainSettings
from albertkit.pretraining.sources import open_pretraining_data

SETTINGS = PretrainSettings(
    length=32, batch_tokens=128, steps=10, lr=1e-3, held_out=0.2, start_layers=1, start_share=0.5
)


@pytest.fixture
def settings(store, tmp_path):
    return replace(SETTINGS, config=write_config(tmp_path, store.vocab_size, num_hidden_layers=3))


def test_passes_follow_from_the_update_alone():
    assert [num_layers_at(step / 10, SETTINGS, 3) for step in range(10)] == [1] * 5 + [2] * 3 + [
        3
    ] * 2
    deep = replace(SETTINGS, steps=100, start_share=0.6)
    passes = [num_layers_at(step / 100, deep, 12) for step in range(100)]
    assert [passes.count(n) for n in (1, 2, 4, 8, 12)] == [60, 10, 10, 10, 10]
    assert passes == sorted(passes)
    assert [
        num_layers_at(step / 100, replace(deep, start_layers=6), 12) for step in (0, 59, 60, 99)
    ] == [6, 6, 12, 12]
    assert [
        num_layers_at(step / 10, replace(SETTINGS, start_layers=None), 3) for step in range(10)
    ] == [3] * 10


def test_few_passes_are_a_model_of_fewer_layers(store, settings):
    batch = next(open_pretraining_data(store, settings).training(ALONE))[0]
    torch.manual_seed(0)
    model = AlbertForPreTraining(settings.model_config(store.vocab_size))
    shallow = AlbertForPreTraining(model.config.replace(num_hidden_layers=1))
    shallow.load_state_dict(model.state_dict())

    def loss(model):
        return PretrainingObjective(model).losses(batch)["masked_lm"].total.item()

    def flops(model):
        return PretrainingObjective(model).flops(batch)

    deep = loss(model)
    set_num_layers(model, 1)
    assert loss(model) == loss(shallow) != deep
    assert flops(model) == flops(shallow)
    set_num_layers(model, None)
    assert loss(model) == deep
    assert flops(model) > 2 * flops(shallow)


def test_a_run_grows_and_is_evaluated_with_all_passes(store, settings, tmp_path, monkeypatch):
    depths = []
    losses = PretrainingObjective.losses
    evaluate = running.evaluate_batches

    def noted(self, batch):
        depths.append(self.model.albert.encoder.depth)
        return losses(self, batch)

    def evaluated(model, *arguments):
        depths.append(f"evaluated with {model.albert.encoder.depth}")
        with monkeypatch.context() as patch:
            patch.setattr(PretrainingObjective, "losses", losses)
            return evaluate(model, *arguments)

    monkeypatch.setattr(PretrainingObjective, "losses", noted)
    monkeypatch.setattr(running, "evaluate_batches", evaluated)
    running.pretrain(store, tmp_path / "run", replace(settings, eval_every=3))
    all_layers = "evaluated with None"
    assert depths == [1, 1, 1, all_layers, 1, 1, 2, all_layers, 2, 2, 3, all_layers, 3, all_layers]


def test_the_estimate_weighs_all_depths(store, settings, monkeypatch):
    timed = []

    def seconds(prepared, *_):
        timed.append(prepared.model.albert.encoder.depth)
        return {1: 1.0, 2: 1.5, 3: 2.0}[timed[-1]], 100

    monkeypatch.setattr(pretrain_command, "_time_one_update", seconds)
    measured = pretrain_command.estimate(
        store, settings=replace(settings, start_share=0.8), limit=1e6
    )
    assert set(timed) == {1, 2, 3}
    seconds = 0.8 * 1 + 0.1 * 1.5 + 0.1 * 2
    assert measured.seconds_per_step == pytest.approx(seconds)
    assert measured.hours == pytest.approx(10 * seconds / 3600)
    assert measured.tokens_per_second == pytest.approx(100 / seconds)


@pytest.mark.parametrize(
    ("changes", "shape", "says"),
    [
        ({"start_layers": 3}, {}, "the model has 3 layers"),
        ({"start_layers": 0}, {}, "start_layers is 0, it must be a whole number, at least 1"),
        (
            {"start_share": 1.5},
            {},
            "start_share is 1.5, it must be a number, at least 0 and below 1",
        ),
        ({}, {"num_hidden_groups": 3}, "this one has 3"),
    ],
)
def test_what_cannot_grow_is_refused(store, settings, tmp_path, changes, shape, says):
    write_config(settings.config.parent, store.vocab_size, num_hidden_layers=3, **shape)
    assert AlbertConfig.from_pretrained(settings.config)
    for run in (
        lambda s: running.pretrain(store, tmp_path / "run", s),
        lambda s: pretrain_command.estimate(store, settings=s),
    ):
        with pytest.raises(ConfigError, match=says) as caught:
            run(replace(settings, **changes))
        assert caught.value.slug == "bad-value"
    assert not (tmp_path / "run").exists()
