"""Early exits: training, files, rules, the curve."""

import math
from pathlib import Path

import numpy as np
import pytest
import torch
from scipy.stats import entropy
from torch.testing import assert_close

import albertkit
from albertkit.engines import load_engine
from albertkit.engines.early_exit import entropy_share, exit_early, pooler_output
from albertkit.errors import AlbertKitError
from albertkit.model import AlbertForSequenceClassification, AlbertModel
from albertkit.model.padded import Trace
from albertkit.pipelines.load import load_pipelines
from albertkit.tasks.early_exit import (
    EXITS,
    ExitHeads,
    ExitLosses,
    ExitRule,
    engine_exits,
    exit_curve,
)
from albertkit.tasks.models import load_task_model
from albertkit.tasks.settings import FinetuneSettings
from albertkit.tasks.texts import TextClassification
from albertkit.tokenizer import AlbertTokenizer

from .conftest import text_examples, whole_batch

WORDS = {"good": ["quick", "strong", "calm"], "bad": ["lazy", "old", "potions"]}


@pytest.fixture(scope="module")
def run(tmp_path_factory, start):
    """A classifier with four passes and exits, that has learned which words are good ones."""
    folder = tmp_path_factory.mktemp("exits")
    rng = np.random.default_rng(0)
    for split, count in (("train", 256), ("dev", 64)):
        rows = ["text\tlabel"]
        for number in range(count):
            label = ("good", "bad")[number % 2]
            rows.append(
                f"{' '.join(rng.choice(WORDS[label], 3))} {rng.choice(['fox', 'dog', 'rivers'])}\t{label}"
            )
        (folder / f"{split}.tsv").write_text("\n".join(rows) + "\n", encoding="utf-8")
    settings = FinetuneSettings(
        exits=True,
        steps=60,
        lr=3e-3,
        batch_size=32,
        length=32,
        eval_every=60,
        precision="fp32",
        dropout=0.0,
    )
    task = albertkit.find_task("classify", albertkit.Columns(text="text", label="label"))
    albertkit.finetune(task, start, folder, folder / "run", settings)
    return folder / "run"


@pytest.fixture(scope="module")
def start(tiny_tokenizer, tiny_model, tmp_path_factory):
    folder = tmp_path_factory.mktemp("start") / "model"
    tiny_model(AlbertModel, num_hidden_layers=4).save_pretrained(folder, tiny_tokenizer)
    return folder


def batch_of(run, texts):
    task, model, tokenizer = load_task_model(run)
    return task, model, task.features(text_examples(texts), tokenizer, labelled=False)


TEXTS = ["calm quick fox", "old", "potions lazy rivers", "strong dog calm quick"] * 5


def logits_by_layer(model, exits, batch):
    """By hand: every layer's state through pooler and exit head, the last one through the model's own head."""
    trace = Trace(True, False)
    with torch.no_grad():
        last = model.packed_logits(batch.packed, trace)
        states = enumerate(trace.hidden_states[1:-1], start=1)
        first = [
            exits(pooler_output(model.albert, s[batch.packed.starts]), torch.full((len(TEXTS),), n))
            for n, s in states
        ]
    return [*first, last]


# --- leaving --------------------------------------------------------------------------------------


def test_early_and_late_logits_are_those_of_the_heads(run):
    """By hand: every pass's state through pooler and head; the rule decides on these numbers and on nothing else."""
    _, model, features = batch_of(run, TEXTS)
    exits = ExitHeads.load(run / "best", model)
    batch = whole_batch(features)
    by_pass = logits_by_layer(model, exits, batch)
    engine = load_engine(model, "fp32")
    labels = torch.stack([logits.argmax(1) for logits in by_pass], dim=1)
    for patience in (1, 2):
        logits_of_rule, passes = exit_early(
            engine, batch.packed, engine_exits(model, exits, ExitRule("patience", patience))
        )
        for n in range(len(TEXTS)):
            agreed = 0
            expected = 4
            for layer in range(1, 3):
                agreed = agreed + 1 if labels[n, layer] == labels[n, layer - 1] else 0
                if agreed >= patience:
                    expected = layer + 1
                    break
            assert passes[n] == expected
            assert_close(logits_of_rule[n], by_pass[expected - 1][n], atol=1e-4, rtol=1e-4)
    shares = torch.tensor(
        [[entropy_share(row) for row in rows.numpy()] for rows in torch.stack(by_pass, dim=1)]
    )
    middle = float(shares[:, 0].quantile(0.5))  # between two of the four texts
    logits_of_rule, passes = exit_early(
        engine, batch.packed, engine_exits(model, exits, ExitRule("entropy", middle))
    )
    sure = shares[:, :3] < middle
    expected = torch.where(sure.any(1), sure.int().argmax(1) + 1, 4)
    assert passes.tolist() == expected.tolist()
    assert len(set(passes.tolist())) > 1


def test_entropy_is_scipys():
    logits = torch.tensor([[1.0, 2.0, 3.0], [0.0, 0.0, 0.0], [50.0, 0.0, 0.0]])
    expected = [entropy(row) / math.log(3) for row in logits.softmax(1).numpy()]
    np.testing.assert_allclose([entropy_share(row) for row in logits.numpy()], expected, atol=1e-6)


@pytest.mark.parametrize(
    "text",
    ["patience:0", "patience:1.5", "entropy:0", "entropy:1", "sure", "patience", "entropy:x", 3],
)
def test_rules_that_are_none(text):
    with pytest.raises(AlbertKitError, match="bad-value"):
        ExitRule.parse(text)


# --- training -------------------------------------------------------------------------------------


def test_the_loss_is_pabees(run):
    """Sum of j · loss of pass j over the sum of j, with torch's own cross-entropy."""
    task, model, _ = batch_of(run, TEXTS)
    losses = ExitLosses(model, task)
    losses.exits = ExitHeads.load(run / "best", model)
    examples = text_examples(TEXTS, ["bad"] * len(TEXTS))
    features = task.features(examples, AlbertTokenizer.from_pretrained(run / "best"), labelled=True)
    batch = whole_batch(features)
    rows = logits_by_layer(model, losses.exits, batch)
    with torch.no_grad():
        loss_part = losses.losses(batch)["classification"]
    labels = batch.per_sequence["labels"]
    layer_losses = [torch.nn.functional.cross_entropy(row, labels, reduction="sum") for row in rows]
    assert_close(loss_part.total, sum((j + 1) * loss for j, loss in enumerate(layer_losses)) / 10)
    assert int(loss_part.correct) == int((rows[-1].argmax(1) == labels).sum())


def test_a_run_has_exits_that_know_something(run):
    assert (run / "best" / EXITS).exists()
    curve = exit_curve(run, run.parent / "dev.tsv", precision="fp32", rounds=1)
    full, *rules = curve.points
    assert full.value > 0.95
    assert full.layers == 4
    assert sum(full.histogram) == curve.examples == 64
    first = next(point for point in rules if point.rule == "patience:1")
    assert first.value > 0.9
    assert first.layers < 4
    assert all(sum(point.histogram) == 64 for point in rules)


def test_no_round_is_refused(run):
    with pytest.raises(AlbertKitError, match="rounds is 0, it must be a whole number, at least 1"):
        exit_curve(run, run.parent / "dev.tsv", rounds=0)


def test_the_command(run, run_command):
    dev = str(run.parent / "dev.tsv")
    curve = run_command(
        "early-exit", run, dev, "--rule", "entropy:0.5", "--rounds", 1, "--json"
    ).json
    assert [point["rule"] for point in curve["points"]] == ["all layers", "entropy:0.5"]
    printed = run_command("early-exit", run, dev, "--rule", "patience:1", "--rounds", 1).out
    assert "patience:1" in printed
    assert "all layers" in printed


def test_pipelines_that_leave_early(run):
    _, model, features = batch_of(run, TEXTS)
    exits = engine_exits(model, ExitHeads.load(run / "best", model), ExitRule("entropy", 0.9))
    logits, passes = exit_early(load_engine(model, "fp32"), whole_batch(features).packed, exits)
    assert passes.min() < 4
    records_of_all_layers = albertkit.load_pipeline(run, precision="fp32")(TEXTS)
    for records in (
        albertkit.load_pipeline(run, precision="fp32", exits="entropy:0.9")(TEXTS),
        load_pipelines(run, precision="fp32", exits="entropy:0.9")["classify"](TEXTS),
    ):
        shares = torch.tensor([list(record["probabilities"].values()) for record in records])
        assert_close(shares, logits.softmax(1), atol=1e-5, rtol=1e-4)
        assert records[0]["probabilities"] != records_of_all_layers[0]["probabilities"]


def test_models_without_exits_make_all_passes_or_are_refused(start):
    with pytest.raises(AlbertKitError, match="wrong-model"):
        albertkit.load_pipeline(start, "embed", exits="patience:2")
    assert "embed" in load_pipelines(start, exits="patience:2")


# --- refusals -------------------------------------------------------------------------------------


def test_a_model_without_exits(run, tmp_path):
    _, model, _ = batch_of(run, TEXTS)
    with pytest.raises(AlbertKitError, match="--exits"):
        ExitHeads.load(tmp_path, model)


def test_exits_of_another_model(run, tmp_path):
    _, model, _ = batch_of(run, TEXTS)
    ExitHeads(6, 64, 2).save(tmp_path)
    with pytest.raises(AlbertKitError, match="weights-mismatch"):
        ExitHeads.load(tmp_path, model)
    (tmp_path / EXITS).write_bytes(b"nothing")
    with pytest.raises(AlbertKitError, match=r"\[corrupt\]"):
        ExitHeads.load(tmp_path, model)


def test_what_cannot_have_exits(run):
    task, model, _ = batch_of(run, TEXTS)
    with pytest.raises(AlbertKitError, match="bad-value"):
        ExitLosses(model, albertkit.find_task("stsb"))
    groups = model.config.replace(num_hidden_groups=2)
    with pytest.raises(AlbertKitError, match="groups"):
        ExitLosses(AlbertForSequenceClassification(groups), task)
    with pytest.raises(AlbertKitError, match="one loss"):
        FinetuneSettings(exits=True, teacher=Path("teacher")).check()
    assert isinstance(task, TextClassification)
