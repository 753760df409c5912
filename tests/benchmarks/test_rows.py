"""A tiny run of every row: it has the documented shape, and outputs that must agree do, and are seen where they do not."""

import json
import sys
import time

import numpy as np
import pytest
import torch

from albertkit.captioning.layers import CaptionConfig
from albertkit.captioning.model import AlbertForImageCaptioning
from albertkit.config import AlbertConfig
from albertkit.corpus import TokenStore
from albertkit.model import AlbertForPreTraining, AlbertModel
from benchmarks import (
    accelerating,
    captioning,
    data,
    finetuning,
    harness,
    inference,
    pretraining,
    quality,
    serving,
)
from benchmarks.__main__ import ROWS, app, main
from benchmarks.quality_programs import Judge, blocks, masked_batches
from benchmarks.results import MEASUREMENTS
from benchmarks.turns import Runner, take_turns

KEYS = {
    "row",
    "unit",
    "ours",
    "peers",
    "ratio",
    "peak",
    "equal",
    "compared",
    "missing",
    "versions",
    "best",
    "spread",
}


@pytest.fixture
def run(tiny_store, tmp_path, capsys, monkeypatch):
    """`run("latency", "--shapes", "1x8")`: the rows that a command prints, of a tiny model, text and tokenizer."""
    for module, name, value in (
        (data, "TOKENS", 10_000),
        (serving, "TIMES", (1, 4)),
        (serving, "TEXTS_A_REQUEST", 8),
    ):
        monkeypatch.setattr(module, name, value)
    monkeypatch.setattr(accelerating, "precisions", lambda: list(harness.precisions())[:1])
    monkeypatch.setitem(harness.MATMUL, "cpu", 64)
    config = AlbertConfig(
        vocab_size=96,
        embedding_size=16,
        hidden_size=64,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=96,
        max_position_embeddings=128,
        initializer_range=0.2,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
    )
    config.save_pretrained(tmp_path)
    inputs = [
        "--text",
        tiny_store.parent / "text.txt",
        "--tokenizer",
        tiny_store.parent / "tokenizer",
    ]
    python = tmp_path / "python"  # without any library
    python.write_text(f'#!/bin/sh\nexec {sys.executable} -S "$@"\n')
    python.chmod(0o755)

    def run(name, *arguments, tiny=True):
        flags = {
            flag for argument in app[name].assemble_argument_collection() for flag in argument.names
        }
        options = ["--rounds", 1, "--threads", 1, "--config", tmp_path / "config.json"] * tiny
        options += inputs * ("--text" in flags)
        if name in ("latency", "encode", "embed") and "--peer-python" not in arguments:
            options += ["--peer-python", python]
        threads = torch.get_num_threads()
        main([name, *map(str, (*arguments, *options)), "--json"])
        assert torch.get_num_threads() == threads
        rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
        for row in rows if name != "bert" else ():
            assert set(row) >= KEYS
            assert row["ours"] > 0 or name == "quality"  # a tiny race may be lost
            assert row["peers"].keys() == row["ratio"].keys()
            assert row["best"].keys() == {"ours", *row["peers"]}
        return rows

    return run


@pytest.mark.parametrize(
    ("command", "number", "equal"),
    [
        ("tokenize", 1, {True}),
        ("data", 3, {True}),
        ("pretrain", 1, {True}),
        ("finetune --steps 1", 2, {True}),
        ("embed --sentences 20", 1, {True}),
        ("caption --visual-tokens 12 --words 5", 1, {True, None}),
        ("caption --train --visual-tokens 12", 1, {None}),
        ("latency --shapes 1x16 2x8", 2, {True, None}),
        ("encode --sentences 40", 1, {True, None}),
        ("accelerate --sentences 20", 3, {True}),
        ("accelerate-training", 3, {True}),
        ("serve --sentences 40 --clients 1 8 --precision fp32", 2, {True}),
        pytest.param("serve --overload --seconds 1.5", 2, {None}, marks=pytest.mark.slow),
        pytest.param(
            "serve --rate 5 --seconds 1.5 --precision fp32", 1, {None}, marks=pytest.mark.slow
        ),
        pytest.param("serve --beside 40 --precision fp32", 1, {None}, marks=pytest.mark.slow),
        pytest.param(
            "latency --shapes 1x16 2x40 --peer-python " + sys.executable,
            2,
            {True},
            marks=pytest.mark.slow,
        ),
        pytest.param(
            "encode --sentences 70 --peer-python " + sys.executable,
            1,
            {True},
            marks=pytest.mark.slow,
        ),
        pytest.param(
            "embed --sentences 40 --peer-python " + sys.executable,
            1,
            {True},
            marks=pytest.mark.slow,
        ),
    ],
)
def test_a_row_runs_and_is_equal(run, command, number, equal):
    rows = run(*command.split())
    assert len(rows) >= number
    assert {row["equal"] for row in rows} <= equal, [row["compared"] for row in rows]
    assert any(row["peers"] or row["missing"] for row in rows)


@pytest.mark.parametrize("command", ["pretrain", "encode --sentences 20", "latency --shapes 2x9"])
def test_a_row_for_a_gpu_runs_on_a_cpu(run, command, monkeypatch):
    for module in (pretraining, inference):
        monkeypatch.setattr(module, "find_device", lambda name: harness.CPU)
    for row in run(*command.split(), "--device", "cuda"):
        assert row["equal"], row["compared"]
        assert all("eager" in peer for peer in row["peers"])


def test_albert_and_bert_are_trained_scored_and_drawn(run, tmp_path):
    options = ("--hidden-size", 64, "--layers", 2, "--steps", 4, "--out", tmp_path / "out")
    (row,) = run("bert", *options)
    albert, wide, small = row["models"]
    assert small["parameters"] <= albert["parameters"] < wide["parameters"]
    assert albert["memory_mb"] < wide["memory_mb"]
    assert all(0 < model["train_loss"] < 8 and 0 < model["dev_loss"] < 8 for model in row["models"])
    assert (tmp_path / "out/bert.png").is_file()
    with pytest.raises(SystemExit, match="--task and --data go together"):
        run("bert", *options, "--task", "mrpc")


def test_every_row_is_in_the_results():
    assert set(MEASUREMENTS) == set(ROWS) - {"bert"}  # which compares architectures, not programs


@pytest.mark.parametrize(
    "command",
    [
        "latency --shapes 1x",
        "latency --shapes 1x129",
        "encode --sentences 0",
        "finetune --model x",
        "pretrain --steps 0",
        "latency --shapes 1x8 --peer-python /no/such",
        "data --google-albert /no/such",
        "quality --recipe x --minutes 0",
    ],
)
def test_a_command_that_cannot_be_measured_is_refused(run, command):
    with pytest.raises(SystemExit) as refused:
        run(*command.split(), tiny="quality" not in command)
    assert isinstance(refused.value.code, str)


def test_a_peer_that_fails_is_named_with_its_last_words(run, tmp_path):
    (tmp_path / "create_pretraining_data.py").write_text(
        "raise SystemExit('no TensorFlow here')\n", encoding="utf-8"
    )
    with pytest.raises(SystemExit, match="the peer ended with exit status 1: no TensorFlow here"):
        run("data", "--google-albert", tmp_path)


# --- differences are seen -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("precision", "change", "good"),
    [
        ("fp32", 5e-5, True),
        ("fp32", 3e-4, False),
        ("bf16", 1e-2, True),
        ("bf16", 0.1, False),
        ("int8", 0.2, False),
        ("fp32", np.nan, False),
        ("int8", np.nan, False),
    ],
)
def test_the_bounds_of_states(precision, change, good):
    reference = np.random.default_rng(0).standard_normal((40, 64)).astype(np.float32)
    changed = reference.copy()
    changed[7] += change * np.where(np.arange(64) % 2, 1, -1)  # one state of forty
    assert inference.agrees(precision, inference.comparison(changed, reference)) is good


def test_words_of_another_video_differ(tiny_model):
    config = tiny_model(AlbertModel).config.with_changes(initializer_range=0.3)
    torch.manual_seed(0)
    model = AlbertForImageCaptioning(CaptionConfig(img_feature_dim=512).stored_in(config)).eval()
    visual, other_visual = torch.randn(2, 1, 12, 512)
    with torch.inference_mode():
        words = captioning.from_cache(model, visual, 5, torch.float32)
        assert torch.equal(words, captioning.from_everything(model, visual, 5))
        assert not torch.equal(words, captioning.from_everything(model, other_visual, 5))


@pytest.mark.slow
def test_both_fine_tunings_learn_the_same(
    run, tiny_texts, tiny_model_folder, tmp_path, monkeypatch
):
    for split, part in (("train", tiny_texts[:96]), ("dev", tiny_texts[96:150])):
        rows = "".join(f"{text}\t{int('the' in text)}\n" for text in part)
        (tmp_path / f"{split}.tsv").write_text(f"sentence\tlabel\n{rows}", encoding="utf-8")
    monkeypatch.setattr(finetuning, "TASKS", {"sst2": "SST-2"})
    model = tiny_model_folder(AlbertForPreTraining, max_position_embeddings=128)

    def differ():
        return run("finetune", "--model", model, "--data", tmp_path, "--steps", 6)[-1]["details"][
            "logits_differ"
        ][0]

    assert differ() < 1e-5
    monkeypatch.setattr(finetuning, "EPS", 1e-4)  # another epsilon is noticed
    assert differ() > 1e-4


# --- the race -------------------------------------------------------------------------------------


def test_the_judge_scores_as_transformers(tiny_store):
    import transformers

    store = TokenStore.open(tiny_store)
    held_out = store.held_out(0.5, 0)
    config = AlbertConfig.from_size(
        "base", vocab_size=96, hidden_size=64, num_attention_heads=2, num_hidden_layers=2
    )
    judge = Judge(store, held_out, config, 32)
    weights = AlbertForPreTraining(config.replace(initializer_range=0.3)).state_dict()
    values = {
        k: v for k, v in config.to_dict().items() if k not in ("model_type", "parameter_sharing")
    }
    theirs = transformers.AlbertForMaskedLM(transformers.AlbertConfig(**values)).eval()
    theirs.load_state_dict(
        {k: v for k, v in weights.items() if "pooler" not in k and "sop" not in k}, strict=False
    )
    theirs.tie_weights()
    total = 0.0
    special = torch.tensor(store.tokenizer().special_ids())
    text = blocks(store, held_out, 32)
    batches = masked_batches(text, store.tokenizer())
    for batch in batches:
        positions, targets = batch.masked_targets()
        assert not torch.isin(targets, special).any()
        labels = torch.full_like(batch.input_ids, -100)
        labels[positions] = targets
        with torch.no_grad():
            loss = theirs(input_ids=batch.input_ids.view(-1, 32), labels=labels.view(-1, 32)).loss
        total += float(loss) * len(targets)
    assert sum(len(batch.masked_targets()[1]) for batch in batches) == judge.predictions
    assert judge.loss(weights) == pytest.approx(total / judge.predictions, abs=1e-5)
    assert 0.1 < judge.predictions / text.size < 0.2


WRITES = """
import sys, time
for n in range(100):
    open(sys.argv[1], "a").write(f"{time.time()}\\n")
    time.sleep(0.002)
"""


def test_only_one_program_runs_at_a_time(tmp_path):
    files = [tmp_path / "a", tmp_path / "b"]
    runners = []
    try:
        for file in files:
            command = [sys.executable, "-c", WRITES, str(file)]
            runners.append(Runner.start(file.name, tmp_path / f"{file.name}.log", 0.1, command))
            runners[-1].set_up(file)
        take_turns(runners)
    finally:
        for runner in runners:
            runner.end()
    for runner, file in zip(runners, files, strict=True):
        moments = [float(line) for line in file.read_text().split()]
        assert len(moments) == 100
        # Stopping takes a moment.
        assert all(
            any(begin <= moment <= end + 0.05 for begin, end in runner.slices) for moment in moments
        )
        assert runner.active(0.0, time.time()) == pytest.approx(
            sum(end - begin for begin, end in runner.slices)
        )
    failing = Runner.start(
        "theirs",
        tmp_path / "log",
        60.0,
        [sys.executable, "-c", "raise SystemExit('no such weights')"],
    )
    with pytest.raises(SystemExit, match="theirs ended with status 1: no such weights"):
        take_turns([failing])


@pytest.mark.slow
def test_a_race(run, tmp_path, monkeypatch):
    monkeypatch.setattr(quality, "which", lambda name: None)  # compiling takes a minute
    recipe = tmp_path / "tiny.toml"
    recipe.write_text(
        f'config = "{tmp_path / "config.json"}"\nlength = 32\nbatch_tokens = 512\nsteps = 100\nheld_out = 0.2\n'
        'pair_task = "none"\noptimizer = "adamw"\nlr = 2e-3\nwarmup_steps = 10\ninitial_weights = "text"\n'
    )
    out = tmp_path / "out"
    (row,) = run(
        "quality", "--recipe", recipe, "--minutes", 0.1, "--threads", 1, "--out", out, tiny=False
    )
    assert len(row["details"]["curve_of_ours"]) == len(row["details"]["curve_of_theirs"]) == 16
    for side in ("ours", "theirs"):
        seconds = [s for s, _ in row["details"][f"curve_of_{side}"]]
        assert seconds == sorted(seconds)
    assert (out / "quality.png").stat().st_size > 10_000
