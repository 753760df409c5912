"""The commands of a pretraining in their order, on a small corpus; then bad input of each kind."""

import json
import os
import subprocess
import sys

import numpy as np
import pytest
from record_files import read_records, write_json

from albertkit import build_store, train_tokenizer

WORDS = "the quick brown fox jumps over a lazy dog while seven old wizards brew strong potions near calm rivers".split()


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("commands")
    rng = np.random.default_rng(1)
    lines = []
    for _ in range(150):
        lines += [
            " ".join(rng.choice(WORDS, rng.integers(5, 14))) + "."
            for _ in range(rng.integers(2, 9))
        ] + [""]
    (folder / "text.txt").write_text("\n".join(lines), encoding="utf-8")
    train_tokenizer([folder / "text.txt"], folder / "tokenizer", 48)
    build_store([str(folder / "text.txt")], folder / "store", folder / "tokenizer")
    config = dict(
        vocab_size=48,
        embedding_size=16,
        hidden_size=64,
        num_attention_heads=2,
        num_hidden_layers=2,
        intermediate_size=64,
    )
    write_json(folder / "config.json", config)
    (folder / "run.toml").write_text(
        f'config = "{folder / "config.json"}"\nlength = 32\nbatch_tokens = 256\nheld_out = 0.2\noptimizer = "adamw"\n'
        "lr = 0.003\nwarmup_steps = 5\nsteps = 3\n"
    )
    return folder


@pytest.fixture
def answer(run_command):
    """`answer("evaluate", …)`: the JSON object that a command prints."""

    def run(*arguments):
        ran = run_command(*arguments, "--json")
        assert ran.status == 0, ran.err
        assert "Traceback" not in ran.err
        return ran.json

    return run


@pytest.fixture
def refused(run_command):
    """`refused("bad-value", "quickstart", …)`: the message of a command that is refused."""

    def run(slug, *arguments):
        ran = run_command(*arguments)
        assert ran.status == 2
        assert ran.out == ""
        assert "Traceback" not in ran.err
        assert f"error[{slug}]" in ran.err
        return ran.err

    return run


def test_from_text_to_numbers(folder, run_command, answer, refused):
    encoding = run_command(
        "tokenizer", "encode", folder / "text.txt", "--tokenizer", folder / "tokenizer", "--json"
    )
    encoded = json.loads(encoding.out.splitlines()[0])
    assert len(encoded["ids"]) == len(encoded["pieces"])
    assert answer("corpus", "inspect", folder / "store", "--length", 32)
    run = (
        "pretrain",
        folder / "store",
        "--out",
        folder / "run",
        "--config-file",
        folder / "run.toml",
    )
    assert answer(*run, "--dry-run")["steps"] == 3
    assert not (folder / "run").exists()
    run = (*run, "--steps", 60)  # a flag wins over the file
    result = answer(*run)
    assert result["steps"] == 60
    evaluated = answer("evaluate", folder / "run/final", folder / "store")
    assert evaluated["masked_lm_loss"] < evaluated["unigram_loss"] + 0.2
    trained_in_bf16 = pytest.approx(result["masked_lm_loss"], abs=0.02)
    assert evaluated["masked_lm_loss"] == trained_in_bf16
    low, high = evaluated["sentence_order_interval"]
    assert low <= evaluated["sentence_order_accuracy"] <= high
    # A second start must not overwrite; resuming a finished run changes nothing.
    refused("exists", *run)
    assert answer(*run, "--resume")["masked_lm_loss"] == pytest.approx(
        result["masked_lm_loss"], abs=1e-6
    )
    # The recorded settings reproduce the run.
    recorded = ("--config-file", folder / "run/run.toml")
    assert (
        answer("pretrain", folder / "store", "--out", folder / "run", *recorded, "--resume")[
            "steps"
        ]
        == 60
    )
    refused("changed", *run, "--lr", 0.1, "--resume")


def test_bad_input_is_reported_and_leaves_nothing(folder, tmp_path, run_command, refused):
    tokenizer = ("--tokenizer", folder / "tokenizer")
    (tmp_path / "latin.txt").write_bytes("caf\xe9 au lait\n".encode("latin-1"))
    (tmp_path / "empty.txt").write_text("")
    for number, (slug, *arguments) in enumerate(
        [
            ("not-found", tmp_path / "no.txt", *tokenizer),
            ("bad-encoding", tmp_path / "latin.txt", *tokenizer),
            ("empty", tmp_path / "empty.txt", *tokenizer),
            ("no-tokenizer", folder / "text.txt", "--tokenizer", tmp_path),
        ]
    ):
        refused(slug, "corpus", "build", *arguments, "--out", tmp_path / f"store-{number}")
    assert not list(tmp_path.glob("store-*"))
    (tmp_path / "single.txt").write_text("\n\n".join(f"the quick {word}." for word in WORDS))
    single = ("corpus", "build", tmp_path / "single.txt", *tokenizer, "--out", tmp_path / "single")
    assert run_command(*single).status == 0
    run = ("--out", tmp_path / "run", "--config-file")
    refused("too-little-data", "pretrain", tmp_path / "single", *run, folder / "run.toml")
    train = (
        "tokenizer",
        "train",
        folder / "text.txt",
        "--out",
        tmp_path / "t",
        "--vocab-size",
        9000,
    )
    assert "--vocab-size" in refused("too-little-data", *train)
    (tmp_path / "typo.toml").write_text("stepz = 3\n")
    assert "steps" in refused(
        "unknown-name", "pretrain", folder / "store", *run, tmp_path / "typo.toml"
    )
    assert not (tmp_path / "run").exists()


def test_a_mistaken_argument_of_quickstart_is_corrected_in_the_same_folder(
    folder, tmp_path, refused
):
    start = ("quickstart", "--out", tmp_path / "first", "--corpus")
    refused("not-found", *start, tmp_path / "no.txt")
    refused("too-little-data", *start, folder / "text.txt")
    refused("bad-value", *start, folder / "text.txt", "--minutes", "nan")
    (tmp_path / "first/tokenizer").mkdir()
    refused("changed", *start, tmp_path / "no.txt")


@pytest.mark.skipif(sys.platform == "win32", reason="needs a shell of POSIX")
def test_a_reader_that_has_gone_is_no_error(folder):
    command = f"{sys.executable} -m albertkit tokenizer encode {folder / 'text.txt'} --tokenizer {folder / 'tokenizer'}"
    process = subprocess.run(
        ["bash", "-c", f"{command} | true; exit ${{PIPESTATUS[0]}}"], capture_output=True, text=True
    )
    assert process.returncode == 0
    assert process.stderr == ""


@pytest.mark.slow
def test_two_processes_train_one_model(folder, tmp_path):
    """Gloo on one machine: twice the tokens of one process, and every process counts."""
    command = (
        "pretrain",
        folder / "store",
        "--config-file",
        folder / "run.toml",
        "--device",
        "cpu",
        "--precision",
        "fp32",
    )
    alone = [
        sys.executable,
        "-m",
        "albertkit",
        *map(str, command),
        "--out",
        str(tmp_path / "one"),
        "--json",
    ]
    launcher = [
        sys.executable,
        "-m",
        "torch.distributed.run",
        "--nproc-per-node",
        "2",
        "--master-port",
        "29617",
        "-m",
    ]
    launched = [
        *launcher,
        "albertkit",
        *map(str, command),
        "--out",
        str(tmp_path / "two"),
        "--json",
    ]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    tokens = {}
    for name, arguments in (("one", alone), ("two", launched)):
        process = subprocess.run(
            arguments, capture_output=True, text=True, timeout=300, env=environment
        )
        assert process.returncode == 0, process.stderr
        records = read_records(tmp_path / name / "metrics.jsonl")
        tokens[name] = next(r["tokens"] for r in reversed(records) if r["event"] == "step")
        evaluation = next(r for r in reversed(records) if r["event"] == "eval")
        tokens[name, "evaluated"] = evaluation["masked_lm_count"]
    assert tokens["two"] > 1.7 * tokens["one"]
    assert tokens["two", "evaluated"] == tokens["one", "evaluated"]
