"""Runs that continue a model: every class of checkpoint, more pieces than before, only the new rows, resumed to the bit."""

import os
import shutil
import signal
from dataclasses import replace

import numpy as np
import pytest
import torch
from record_files import write_json, write_lines
from small_store import SETTINGS, differing, store_of, weights, write_config

from albertkit.conversion.initial import init_model
from albertkit.corpus import TokenStore
from albertkit.files import read_json
from albertkit.model import (
    AlbertForMaskedLM,
    AlbertForPreTraining,
    AlbertForSequenceClassification,
    AlbertModel,
)
from albertkit.pretraining import run as run_module
from albertkit.pretraining.preparation import initialise_from_checkpoint, initialise_from_seed
from albertkit.pretraining.pretrain_command import estimate
from albertkit.pretraining.run import evaluate, pretrain
from albertkit.pretraining.sources import open_pretraining_data
from albertkit.tokenizer import AlbertTokenizer

SETTINGS = replace(SETTINGS, steps=8, eval_every=4, save_every=4, log_every=4)
OLD = (
    "the quick brown fox jumps over a lazy dog while seven old wizards brew strong potions".split()
)
NEW = "빠른 갈색 여우가 게으른 개를 뛰어넘고 늙은 마법사가 물약을 만든다".split()
WORDS = "albert.embeddings.word_embeddings.weight"
BIAS = "predictions.bias"
SPECIALS = "[PAD] [UNK] [CLS] [SEP] [MASK]".split()


def make_store(folder, pieces, words):
    """A WordPiece tokenizer of these pieces and a store of 60 documents of these words."""
    (folder / "tokenizer").mkdir(parents=True)
    write_lines(folder / "tokenizer/vocab.txt", [*SPECIALS, *pieces])
    rng = np.random.default_rng(5)
    text = "\n\n".join(
        "\n".join(
            " ".join(rng.choice(words, rng.integers(4, 12))) for _ in range(rng.integers(2, 9))
        )
        for _ in range(60)
    )
    return store_of(folder, text, folder / "tokenizer")


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    """`old/`, `more/`: stores whose tokenizers have 21 and 31 pieces, the first 21 the same; `model/`: trained on the first."""
    folder = tmp_path_factory.mktemp("continue")
    make_store(folder / "old", OLD, OLD)
    make_store(folder / "more", OLD + NEW, OLD + NEW)
    settings = replace(SETTINGS, config=write_config(folder, len(SPECIALS + OLD)))
    shutil.move(pretrain(folder / "old/store", folder / "run", settings).model, folder / "model")
    return folder


@pytest.fixture
def go_on(tmp_path, home):
    """Continue the model of `home` on the store of its tokens (`old`) or of `more`, in a folder of `tmp_path`."""

    def pretrained(store, folder="run", start=home / "model", resume=False, **changes):
        settings = replace(SETTINGS, **changes)
        return pretrain(
            home / store / "store", tmp_path / folder, settings, start=start, resume=resume
        )

    return pretrained


def tokenizer_of(home, name):
    return AlbertTokenizer.from_pretrained(home / name / "tokenizer")


# --- what a model to continue may be --------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "fresh", "left_out"),
    [
        (AlbertForPreTraining, [], None),
        (AlbertForMaskedLM, ["pooler", "sop_classifier"], None),
        (AlbertModel, ["predictions", "sop_classifier"], None),
        (AlbertForSequenceClassification, ["predictions", "sop_classifier"], "classifier"),
    ],
)
def test_every_class_of_checkpoint(tmp_path, home, kind, fresh, left_out):
    """What it has is taken bit by bit; what it lacks is named and drawn from the seed; its task is forgotten."""
    allowed = ("classifier",) if kind is AlbertForSequenceClassification else ()
    kind.from_pretrained(home / "model", allow_missing=allowed).save_pretrained(tmp_path / "model")
    shutil.copy(home / "old/tokenizer/vocab.txt", tmp_path / "model")
    config = read_json(tmp_path / "model/config.json")
    labels = {
        "id2label": {"0": "a", "1": "b", "2": "c"},
        "problem_type": "single_label_classification",
    }
    write_json(tmp_path / "model/config.json", config | (labels if allowed else {}))
    start, repeated, different = (
        initialise_from_checkpoint(
            tmp_path / "model", tokenizer_of(home, "old"), replace(SETTINGS, seed=seed)
        )
        for seed in (1, 1, 2)
    )
    assert start.continued["initialised"] == fresh
    assert start.continued["class"] == kind.__name__
    assert start.notes == [
        f"not in `{tmp_path / 'model'}`, initialised: {', '.join(fresh)}"
    ] * bool(fresh) + [f"in `{tmp_path / 'model'}`, of no use here: {left_out}"] * bool(left_out)
    assert "id2label" not in start.model.config.to_dict()
    changed = differing(dict(start.model.state_dict()), weights(home / "model"))
    assert {name.removeprefix("albert.").split(".")[0] for name in changed} <= set(fresh)
    assert bool(changed) == bool(fresh)
    assert not differing(dict(start.model.state_dict()), dict(repeated.model.state_dict()))
    assert bool(
        differing(dict(start.model.state_dict()), dict(different.model.state_dict()))
    ) == bool(fresh)


def test_a_shell_trains_to_the_same_bits_as_its_configuration(tmp_path, home, go_on):
    init_model(tmp_path / "shell", home / "old/tokenizer", config=home / "config.json", seed=3)
    initialised = go_on("old", "one", start=None, seed=3, config=home / "config.json")
    continued = go_on("old", "two", start=tmp_path / "shell", seed=3)
    assert not differing(weights(initialised.model), weights(continued.model))
    measured = estimate(home / "old/store", settings=SETTINGS, start=tmp_path / "shell")
    assert measured.parameters == sum(
        tensor.numel() for tensor in weights(tmp_path / "shell").values()
    )


def test_provenance_says_where_a_model_comes_from(home, go_on, capsys):
    model = go_on("old", steps=1, seed=7).model
    provenance = read_json(model / "provenance.json")
    assert provenance["continued"]["model"] == str(home / "model")
    assert provenance["continued"]["provenance"] == read_json(home / "model/provenance.json")
    assert len(provenance["continued"]["weights_sha256"]) == 64
    # With another seed, other documents are held out
    assert "--held-out 0.2 --seed 0" in capsys.readouterr().err
    go_on("old", "same", steps=1)
    assert "evaluations flatter" not in capsys.readouterr().err


# --- more pieces ----------------------------------------------------------------------------------


def test_new_rows_are_the_mean_of_the_old_and_noise(home):
    before = len(SPECIALS + OLD)
    start = initialise_from_checkpoint(home / "model", tokenizer_of(home, "more"), SETTINGS)
    old = weights(home / "model")
    new = start.model.state_dict()
    assert new[WORDS].shape == (before + len(NEW), 16)
    assert torch.equal(new[WORDS][:before], old[WORDS])
    assert torch.equal(new[BIAS][:before], old[BIAS])
    assert (new[BIAS][before:] == old[BIAS].min()).all()
    noise = (new[WORDS][before:] - old[WORDS].mean(0)) / old[WORDS].std(0)
    assert noise.std() == pytest.approx(0.1, abs=0.03)
    assert abs(noise.mean()) < 0.03
    assert differing(dict(new), old) == {WORDS, BIAS}
    assert start.model.predictions.decoder.weight is start.model.get_input_embeddings().weight
    assert any("tokenizer extend --model" in note for note in start.notes)


def test_spare_rows_are_made_anew_too(tmp_path, home):
    """A model with more rows than its tokenizer has pieces: nobody has trained them."""
    model = AlbertForPreTraining.from_pretrained(home / "model")
    model.resize_token_embeddings(24)
    model.save_pretrained(tmp_path / "model")
    shutil.copy(home / "old/tokenizer/vocab.txt", tmp_path / "model")
    start = initialise_from_checkpoint(tmp_path / "model", tokenizer_of(home, "more"), SETTINGS)
    assert start.model.config.vocab_size == 31
    assert differing(dict(start.model.state_dict()), weights(tmp_path / "model")) == {WORDS, BIAS}
    assert (
        initialise_from_checkpoint(
            tmp_path / "model", tokenizer_of(home, "old"), SETTINGS
        ).model.config.vocab_size
        == 24
    )


def test_other_vocabularies_are_refused(tmp_path, home, error_of):
    make_store(tmp_path / "smaller", OLD[:-1], OLD)
    make_store(tmp_path / "moved", [OLD[1], OLD[0], *OLD[2:], *NEW], OLD)
    for name, says in (("smaller", "20 tokens"), ("moved", "id 5 is `the`")):
        error = error_of(
            pretrain, tmp_path / name / "store", tmp_path / "run", SETTINGS, start=home / "model"
        )
        assert error.slug == "wrong-tokenizer"
        assert says in error.message
        assert "tokenizer extend" in error.hint
    assert not (tmp_path / "run").exists()


# --- only the new rows ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    "how",
    [
        dict(),
        dict(optimizer="lamb", ema_decay=0.5, clip_norm=0.1),
    ],
)
def test_only_new_rows_are_trained(tmp_path, home, go_on, how):
    """Everything else keeps its bits: no gradient, no decay, no moment; and every new row has moved."""
    before = len(SPECIALS + OLD)
    go_on("more", train_only="new-rows", **how)
    began = weights(tmp_path / "run/start")
    ended = weights(tmp_path / "run/final")
    assert differing(began, ended) == {WORDS, BIAS}
    for name in (WORDS, BIAS):
        assert torch.equal(began[name][:before], ended[name][:before])
        assert (began[name][before:] != ended[name][before:]).reshape(len(NEW), -1).any(1).all()
    assert torch.equal(ended[WORDS][:before], weights(home / "model")[WORDS])
    assert evaluate(tmp_path / "run/final", home / "more/store").masked_lm_count > 0
    # The comparison can tell: without the setting, every parameter moves.
    go_on("more", "all", **how)
    assert differing(weights(tmp_path / "all/start"), weights(tmp_path / "all/final")) == set(began)


def test_new_rows_train_as_a_tensor_of_their_own_would(tmp_path, home, go_on):
    """One update by hand: AdamW of the paper on the gradient's rows alone, clipped by their norm."""
    go_on(
        "more", train_only="new-rows", steps=1, warmup_steps=0, clip_norm=1e-3, schedule="constant"
    )
    model = AlbertForPreTraining.from_pretrained(tmp_path / "run/start").train()
    world = run_module.join_world("cpu")
    source = open_pretraining_data(home / "more/store", replace(SETTINGS, steps=1))
    (batch,) = next(source.training(world))
    losses = model.pretraining_losses(batch)
    mean = losses.masked_lm.loss_sum / len(batch.masked_labels)
    (mean + losses.sentence_order.loss_sum / batch.num_sequences).backward()
    first = len(SPECIALS + OLD)
    parts = {WORDS: model.get_input_embeddings().weight, BIAS: model.predictions.bias}
    norm = torch.stack([p.grad[first:].norm() for p in parts.values()]).norm()
    ended = weights(tmp_path / "run/final")
    for name, parameter in parts.items():
        gradient = parameter.grad[first:] * (1e-3 / norm)
        update = 0.1 * gradient / ((0.001 * gradient**2).sqrt() + 1e-6)
        decay = 0.01 * parameter[first:] if name == WORDS else 0.0
        torch.testing.assert_close(
            ended[name][first:], (parameter[first:] - 2e-3 * (update + decay)).detach()
        )


def test_rows_can_be_named(tmp_path, home, go_on, error_of):
    """A model that `tokenizer extend --model` has grown has as many rows as the store has pieces."""
    error = error_of(go_on, "old", train_only="new-rows")
    assert error.slug == "bad-value"
    assert "--new-rows-from" in error.hint
    go_on("old", train_only="new-rows", new_rows_from=18)
    grown = tmp_path / "grown"
    shutil.copytree(home / "model", grown)
    before = read_json(grown / "provenance.json")
    # As `tokenizer extend` writes it.
    write_json(grown / "provenance.json", before | {"new_rows_from": 18})
    noted = go_on("old", "noted", start=grown, train_only="new-rows")
    assert not differing(weights(tmp_path / "run/final"), weights(noted.model))
    began = weights(tmp_path / "run/start")
    ended = weights(tmp_path / "run/final")
    assert differing(began, ended) == {WORDS, BIAS}
    assert torch.equal(began[WORDS][:18], ended[WORDS][:18])
    assert not torch.equal(began[WORDS][18:], ended[WORDS][18:])


# --- stopped and resumed --------------------------------------------------------------------------


@pytest.mark.parametrize("train_only", ["all", "new-rows"])
@pytest.mark.parametrize("moment", ["after a checkpoint", "before any"])
def test_resumed_to_the_same_bits_without_the_model_it_began_with(
    tmp_path, home, go_on, monkeypatch, train_only, moment
):
    how = dict(
        start=shutil.copytree(home / "model", tmp_path / "model"),
        train_only=train_only,
        ema_decay=0.9,
    )
    go_on("more", "straight", **how)
    plain = run_module.evaluate_batches

    def interrupted(*arguments):
        if moment == "before any":
            raise KeyboardInterrupt
        os.kill(os.getpid(), signal.SIGTERM)
        return plain(*arguments)

    with monkeypatch.context() as patch:
        patch.setattr(run_module, "evaluate_batches", interrupted)
        if moment == "before any":
            with pytest.raises(KeyboardInterrupt):
                go_on("more", **how)
        else:
            result = go_on("more", **how)
            assert result.model is None
            assert result.steps == 4
    shutil.rmtree(tmp_path / "model")
    go_on("more", resume=True, **(how | {"start": None}))
    assert not differing(weights(tmp_path / "straight/final"), weights(tmp_path / "run/final"))
    origin = [read_json(tmp_path / n / "final/provenance.json") for n in ("straight", "run")]
    assert origin[0] == origin[1]


def test_a_run_is_not_resumed_with_another_model(home, go_on, slug_of):
    go_on("old", steps=1)
    go_on("old", resume=True, steps=1)
    assert slug_of(go_on, "old", start="x", resume=True, steps=1) == "changed"
    go_on("old", "drawn", start=None, steps=1, config=home / "config.json")
    assert slug_of(go_on, "old", "drawn", resume=True, steps=1) == "changed"
    assert slug_of(go_on, "old", steps=1) == "exists"


def test_what_cannot_go_together_is_said(tmp_path, home, go_on, error_of):
    for wrong, says in (
        (dict(size="tiny"), "size cannot be set"),
        (dict(config=home / "config.json"), "config cannot be set"),
        (dict(length=65), "64 positions"),
        (dict(start=None, train_only="new-rows"), "needs a model"),
        (dict(new_rows_from=3), "new_rows_from"),
        (dict(start=None, masked_lm_prob=0.0, pair_task="none"), "nothing to learn"),
    ):
        error = error_of(go_on, "old", **wrong)
        assert error.slug == "bad-value"
        assert says in error.message
        assert error.hint
    assert not (tmp_path / "run").exists()


def test_drawn_weights_do_not_depend_on_who_asks(home):
    settings = replace(SETTINGS, config=home / "config.json")
    pieces = TokenStore.open(home / "old/store").vocab_size
    first, second = (
        dict(initialise_from_seed(settings, pieces).model.state_dict()) for _ in range(2)
    )
    assert not differing(first, second)
