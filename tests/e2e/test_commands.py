"""Every command in the order of the README, as a person would type them, on a small corpus; then bad input of each kind."""

import json
import os
import subprocess
import sys

import numpy as np
import pytest

WORDS = "the quick brown fox jumps over a lazy dog while seven old wizards brew strong potions near calm rivers".split()


def albertkit(*arguments, code=0, **environment):
    """Run a command; return its standard output."""
    done = subprocess.run(
        [sys.executable, "-m", "albertkit.cli", *map(str, arguments)],
        capture_output=True, text=True, timeout=300, env={**os.environ, **environment},
    )  # fmt: skip
    assert done.returncode == code, done.stderr
    assert "Traceback" not in done.stderr
    return done.stdout if code == 0 else done.stderr


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("commands")
    rng = np.random.default_rng(1)
    lines = []
    for _ in range(150):
        lines += [" ".join(rng.choice(WORDS, rng.integers(5, 14))) + "." for _ in range(rng.integers(2, 9))] + [""]
    (folder / "text.txt").write_text("\n".join(lines), encoding="utf-8")
    albertkit("tokenizer", "train", folder / "text.txt", "--out", folder / "tokenizer", "--vocab-size", 48)
    albertkit("corpus", "build", folder / "text.txt", "--tokenizer", folder / "tokenizer", "--out", folder / "store")
    config = dict(
        vocab_size=48,
        embedding_size=16,
        hidden_size=64,
        num_attention_heads=2,
        num_hidden_layers=2,
        intermediate_size=64,
    )
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "run.toml").write_text(
        f'config = "{folder / "config.json"}"\nlength = 32\nbatch_tokens = 256\nheld_out = 0.2\noptimizer = "adamw"\n'
        "lr = 0.003\nwarmup_steps = 5\nsteps = 3\n"
    )
    return folder


def test_from_text_to_numbers(folder):
    line = albertkit(
        "tokenizer", "encode", folder / "text.txt", "--tokenizer", folder / "tokenizer", "--json"
    ).splitlines()[0]
    encoded = json.loads(line)
    assert len(encoded["ids"]) == len(encoded["pieces"])
    shown = json.loads(albertkit("corpus", "inspect", folder / "store", "--length", 32, "--json"))
    assert shown
    dry = json.loads(
        albertkit(
            "pretrain",
            folder / "store",
            "--out",
            folder / "run",
            "--config-file",
            folder / "run.toml",
            "--dry-run",
            "--json",
        )
    )
    assert dry["steps"] == 3
    assert not (folder / "run").exists()
    # A flag wins over the file.
    run = ("pretrain", folder / "store", "--out", folder / "run", "--config-file", folder / "run.toml", "--steps", 60)
    result = json.loads(albertkit(*run, "--json"))
    assert result["steps"] == 60
    evaluated = json.loads(albertkit("evaluate", folder / "run" / "final", folder / "store", "--json"))
    assert evaluated["masked_lm_loss"] < evaluated["unigram_loss"] + 0.2
    assert evaluated["masked_lm_loss"] == pytest.approx(
        result["masked_lm_loss"], abs=0.02
    )  # trained in bf16, evaluated in fp32
    low, high = evaluated["sentence_order_interval"]
    assert low <= evaluated["sentence_order_accuracy"] <= high
    # A second start must not overwrite; resuming a finished run changes nothing.
    assert "error[exists]" in albertkit(*run, code=2)
    again = json.loads(albertkit(*run, "--resume", "--json"))
    assert again["masked_lm_loss"] == pytest.approx(result["masked_lm_loss"], abs=1e-6)
    # The recorded settings reproduce the run.
    resumed = albertkit(
        "pretrain",
        folder / "store",
        "--out",
        folder / "run",
        "--config-file",
        folder / "run" / "run.toml",
        "--resume",
        "--json",
    )
    assert json.loads(resumed)["steps"] == 60
    assert "error[changed]" in albertkit(*run, "--lr", 0.1, "--resume", code=2)


def test_bad_input_is_said_and_leaves_nothing(folder, tmp_path):
    tokenizer = ("--tokenizer", folder / "tokenizer")
    build = ("corpus", "build")
    missing = albertkit(*build, tmp_path / "no.txt", *tokenizer, "--out", tmp_path / "s1", code=2)
    assert "error[not-found]" in missing
    (tmp_path / "latin.txt").write_bytes("caf\xe9 au lait\n".encode("latin-1"))
    assert "error[bad-encoding]" in albertkit(
        *build, tmp_path / "latin.txt", *tokenizer, "--out", tmp_path / "s2", code=2
    )
    (tmp_path / "empty.txt").write_text("")
    assert "error[empty]" in albertkit(*build, tmp_path / "empty.txt", *tokenizer, "--out", tmp_path / "s3", code=2)
    assert "error[no-tokenizer]" in albertkit(
        *build, folder / "text.txt", "--tokenizer", tmp_path, "--out", tmp_path / "s4", code=2
    )
    assert not any((tmp_path / name).exists() for name in ("s1", "s2", "s3", "s4"))
    (tmp_path / "single.txt").write_text("\n\n".join(f"the quick {word}." for word in WORDS))
    albertkit(*build, tmp_path / "single.txt", *tokenizer, "--out", tmp_path / "single")
    run = ("pretrain", tmp_path / "single", "--out", tmp_path / "run", "--config-file", folder / "run.toml")
    assert "error[too-little-data]" in albertkit(*run, code=2)
    assert not (tmp_path / "run").exists()
    too_large = albertkit(
        "tokenizer", "train", folder / "text.txt", "--out", tmp_path / "t", "--vocab-size", 9000, code=2
    )
    assert "error[too-little-data]" in too_large
    assert "--vocab-size" in too_large
    (tmp_path / "typo.toml").write_text("stepz = 3\n")
    typo = albertkit(
        "pretrain", folder / "store", "--out", tmp_path / "run", "--config-file", tmp_path / "typo.toml", code=2
    )
    assert "steps" in typo
    assert not (tmp_path / "run").exists()


def test_a_mistaken_argument_of_quickstart_is_corrected_in_the_same_folder(folder, tmp_path):
    start = ("quickstart", "--out", tmp_path / "first", "--corpus")
    assert "error[not-found]" in albertkit(*start, tmp_path / "no.txt", code=2)
    assert "error[too-little-data]" in albertkit(*start, folder / "text.txt", code=2)
    assert "error[bad-value]" in albertkit(*start, folder / "text.txt", "--minutes", "nan", code=2)
    (tmp_path / "first" / "tokenizer").mkdir()
    assert "error[changed]" in albertkit(*start, tmp_path / "no.txt", code=2)


@pytest.mark.skipif(sys.platform == "win32", reason="needs a shell of POSIX")
def test_a_reader_that_has_gone_is_no_error(folder):
    command = (
        f"{sys.executable} -m albertkit.cli tokenizer encode {folder / 'text.txt'} --tokenizer {folder / 'tokenizer'}"
    )
    done = subprocess.run(["bash", "-c", f"{command} | true; exit ${{PIPESTATUS[0]}}"], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")


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
    one = [sys.executable, "-m", "albertkit.cli", *map(str, command), "--out", str(tmp_path / "one"), "--json"]
    launcher = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "--master-port", "29617", "-m"]
    two = [*launcher, "albertkit.cli", *map(str, command), "--out", str(tmp_path / "two"), "--json"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    tokens = {}
    for name, arguments in (("one", one), ("two", two)):
        done = subprocess.run(arguments, capture_output=True, text=True, timeout=300, env=environment)
        assert done.returncode == 0, done.stderr
        records = [json.loads(line) for line in (tmp_path / name / "metrics.jsonl").read_text().splitlines()]
        tokens[name] = next(r["tokens"] for r in reversed(records) if r["event"] == "step")
        evaluation = next(r for r in reversed(records) if r["event"] == "eval")
        tokens[name, "evaluated"] = evaluation["masked_lm_count"]
    assert tokens["two"] > 1.7 * tokens["one"]
    assert tokens["two", "evaluated"] == tokens["one", "evaluated"]
