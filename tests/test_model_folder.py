"""MODEL and TOKENIZER mean the same in every command: a folder, a run's recommended model, or a name of the hub."""

import json
import os
import shlex
import shutil
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from albertkit import AlbertConfig, AlbertTokenizer, model_paths
from albertkit.captioning.backbone import TokenGrid
from albertkit.captioning.captioner import VideoCaptioner
from albertkit.captioning.layers import CaptionConfig
from albertkit.captioning.model import AlbertForImageCaptioning
from albertkit.captioning.prepared import PreparedClips
from albertkit.cli import main
from albertkit.command import Columns
from albertkit.corpus import build_store
from albertkit.embeddings.encoder import SentenceEncoder
from albertkit.errors import CheckpointError, DataError, MachineError
from albertkit.model import AlbertForPreTraining, AlbertForSequenceClassification, AlbertModel
from albertkit.model_paths import (
    describe_selected_model,
    digest_while_loading,
    local_folder,
    model_of_run,
    model_of_run_or_folder,
    record_selected_model,
)
from albertkit.pretraining.run import next_commands
from albertkit.tasks.models import save_task_model
from albertkit.tasks.registry import find_task
from albertkit.tokenizer import train_tokenizer
from albertkit.tokenizer.texts import ENGLISH, KOREAN

KINDS = ("pretraining", "fine-tuning", "embedding", "captioning")


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """A run of every kind with another model in `final/` than in `best/`, and data of every kind."""
    runs = tmp_path_factory.mktemp("runs")
    words = "the quick brown fox jumps over a lazy dog while seven old wizards brew strong potions".split()
    rng = np.random.default_rng(1)
    texts = [" ".join(rng.choice(words, 9)) + "." for _ in range(200)]
    tokenizer = train_tokenizer(texts, runs / "tokenizer", 44)
    (runs / "text.txt").write_text(
        "\n".join("\n\n".join(texts[n : n + 5]) for n in range(0, 200, 5))
    )
    build_store([str(runs / "text.txt")], runs / "store", tokenizer, workers=0)
    (runs / "labels.tsv").write_text(
        "text\tlabel\n" + "".join(f"{text}\t{'ab'[n % 2]}\n" for n, text in enumerate(texts))
    )
    rows = "".join(
        f"{first}\t{second}\t{n % 5}\n" for n, (first, second) in enumerate(pairwise(texts))
    )
    (runs / "pairs.tsv").write_text("text\tpair\tlabel\n" + rows)
    np.save(runs / "vectors.npy", rng.normal(size=(199, 8)).astype(np.float32))
    config = AlbertConfig(
        vocab_size=tokenizer.vocab_size,
        embedding_size=16,
        hidden_size=64,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=64,
        max_position_embeddings=64,
    )
    task = find_task("classify", Columns(text="text", label="label")).with_changes(
        labels=("a", "b"), length=32
    )
    for seed, name in enumerate(("best", "final")):
        torch.manual_seed(seed)
        folders = {kind: runs / kind / name for kind in KINDS}
        AlbertForPreTraining(config).save_pretrained(folders["pretraining"], tokenizer)
        classifier = AlbertForSequenceClassification(config.with_changes(**task.head())).eval()
        save_task_model(folders["fine-tuning"], classifier, tokenizer, task)
        SentenceEncoder(AlbertModel(config), tokenizer, max_length=16).save_pretrained(
            folders["embedding"]
        )
        grid = TokenGrid(1, 1, 1)
        captioner = AlbertForImageCaptioning(
            CaptionConfig(img_feature_dim=8, grid=grid).stored_in(config)
        )
        VideoCaptioner(captioner, tokenizer).save_pretrained(folders["captioning"])
        for kind, folder in folders.items():
            record_selected_model(
                folder,
                1_200 + seed,
                "masked_lm_loss" if kind == "pretraining" else "accuracy",
                7.09123,
            )
            (runs / kind / "run.toml").write_text("steps = 1\n")
    return runs


class Reached(Exception):
    """Raised where a command has found the model that a run stands for."""


# Command line after `albertkit`; {run} is the run, the rest lies in the folder of the fixture,
# {out} is a new path.
COMMANDS = (
    "predict {run} --text fox",
    "predict {run} {text}",
    "predict {run} {labels}",
    "inspect {run}",
    "serve {run} --port 0",
    "serve name={run} --port 0",
    "compare-precision {run}",
    "export onnx {run} --out {out}",
    "evaluate {run} {store}",
    "evaluate {run} {labels}",
    "early-exit {run} {labels}",
    "finetune classify {run} {labels} --text text --label label --out {out}",
    "finetune classify {run} {labels} --text text --label label --check",
    "pretrain {store} --out {out} --continue {run} --steps 1 --length 32 --held-out 0.2",
    "convert {run} {out}",
    "corpus build {text} --tokenizer {run} --out {out}",
    "init --tokenizer {run} --out {out}",
    "tokenizer check {run}",
    "tokenizer encode {text} --tokenizer {run}",
    "tokenizer convert {run} {out}",
    "tokenizer extend {run} {text} --out {out}",
    "tokenizer extend {tokenizer} {text} --model {run} --out {out}",
    "tokenizer repair {run} --out {out}",
    "tokenizer trim {run} {text} --out {out}",
    "embed train scores {run} {pairs} --text text --pair pair --label label --out {out}",
    "embed distill {run} {text} --teacher {vectors} --out {out}",
    "embed augment scores {pairs} --cross-encoder {run} --text text --pair pair --label label --out {out}.tsv",
    "embed evaluate {run} scores={pairs} --text text --pair pair --label label",
    "embed encode {run} {text} --out {out}.npy",
    "caption train {run} {store} --out {out}",
    "caption predict {run} clip.mp4",
    "caption evaluate {run} {store}",
)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_finds_the_model_of_every_run(runs, tmp_path, monkeypatch, command, kind):
    def reached(folder):
        raise Reached(str(folder))

    monkeypatch.setattr(model_paths, "describe_selected_model", reached)
    clip = SimpleNamespace(captions=["a fox"])
    clips = SimpleNamespace(clips=lambda _: [clip], grid=(1, 1))
    monkeypatch.setattr(PreparedClips, "open", lambda _: clips)
    files = {
        name: runs / f"{name}.{end}"
        for name, end in (("text", "txt"), ("labels", "tsv"), ("pairs", "tsv"), ("vectors", "npy"))
    }
    folders = {
        "store": runs / "store",
        "tokenizer": runs / "tokenizer",
        "run": runs / kind,
        "out": tmp_path / "out",
    }
    with pytest.raises(Reached) as caught:
        main([part.format(**files, **folders) for part in command.split()])
    assert str(caught.value) == str(runs / kind / "best")


@pytest.mark.parametrize("kind", KINDS)
def test_a_command_prints_the_model_of_a_run_once_and_answers_as_that_model(runs, kind, capsys):
    """The tokenizers are equal, so `inspect`, which reads configuration and weights, tells `best/` from `final/`."""
    answers = {}
    for name in ("", "best", "final"):
        with pytest.raises(SystemExit) as ended:
            main(["inspect", str(runs / kind / name), "--json"])
        assert ended.value.code == 0
        printed = capsys.readouterr()
        answers[name] = {
            key: value for key, value in json.loads(printed.out).items() if key != "run"
        }
        metric = "masked lm loss 7.091" if kind == "pretraining" else "accuracy 7.091"
        assert printed.err == (
            "" if name else f"model  {runs / kind / 'best'}, step 1,200, {metric}\n"
        )
    assert answers[""] == answers["best"] != answers["final"]


def test_python_classes_read_runs(runs):
    for kind, model_class in (
        ("pretraining", AlbertForPreTraining),
        ("fine-tuning", AlbertForSequenceClassification),
        ("embedding", AlbertModel),
        ("captioning", AlbertForImageCaptioning),
    ):
        of_run, best, final = (
            model_class.from_pretrained(runs / kind / name) for name in ("", "best", "final")
        )
        word = "get_input_embeddings"
        assert torch.equal(getattr(of_run, word)().weight, getattr(best, word)().weight)
        assert not torch.equal(getattr(of_run, word)().weight, getattr(final, word)().weight)
        assert (
            AlbertTokenizer.from_pretrained(runs / kind).fingerprint
            == AlbertTokenizer.from_pretrained(runs / "tokenizer").fingerprint
        )
        assert AlbertConfig.from_pretrained(runs / kind) == best.config


# --- the rule -------------------------------------------------------------------------------------


def model(folder):
    folder.mkdir(parents=True)
    (folder / "config.json").write_text("{}")
    return folder


def test_the_model_of_a_run_is_best_or_else_final(tmp_path):
    run = tmp_path / "run"
    run.mkdir()
    assert model_of_run(run) is None
    # A folder of another kind, such as a tokenizer's
    assert model_of_run_or_folder(run) == local_folder(run) == run
    (run / "run.toml").write_text("")
    with pytest.raises(DataError, match="has no model yet, neither best/ nor final/") as caught:
        model_of_run(run)
    assert caught.value.hint == "wait for its first evaluation"
    (
        model(run / "checkpoints/step-000009"),
        model(run / "checkpoints/step-000010"),
        (run / "best").mkdir(),
    )
    with pytest.raises(DataError) as caught:
        local_folder(run)
    assert (
        caught.value.hint == f"look at its newest checkpoint: {run / 'checkpoints' / 'step-000010'}"
    )
    final = model(run / "final")
    assert model_of_run(run) == local_folder(run) == final
    (run / "best/config.json").write_text("{}")
    assert model_of_run(run) == local_folder(str(run)) == run / "best"
    assert local_folder(final) == final  # a model of a run that is named is itself
    assert model_of_run(run / "best/config.json") is None
    (run / "config.json").write_text("{}")
    assert local_folder(run) == run


def test_a_run_of_several_seeds_that_is_not_finished_names_the_model_of_a_seed(tmp_path):
    best = model(tmp_path / "seed-0/best")
    (tmp_path / "seed-0/run.toml").write_text("")
    with pytest.raises(DataError) as caught:
        local_folder(tmp_path)
    assert caught.value.hint == f"name the model of one of its seeds: {best}"


def test_what_was_recorded_of_a_model_is_described_as_far_as_it_can_be_read(tmp_path):
    assert describe_selected_model(tmp_path) == str(tmp_path)  # of a version that recorded nothing
    for value in (float("nan"), float("-inf"), None):
        record_selected_model(tmp_path, 12_000, "spearman", value)
        assert describe_selected_model(tmp_path) == f"{tmp_path}, step 12,000"
        assert "NaN" not in (tmp_path / "selected.json").read_text()
    record_selected_model(tmp_path, 12_000, "masked_lm_loss", 7.09149)
    assert describe_selected_model(tmp_path) == f"{tmp_path}, step 12,000, masked lm loss 7.091"
    for broken in ("", "[]", '{"step": "x", "metric": 3, "value": []}', "{"):
        (tmp_path / "selected.json").write_text(broken)
        assert describe_selected_model(tmp_path) == str(tmp_path)


def test_a_misspelt_path_is_answered_with_the_nearest_folder_and_no_network(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(model_paths, "_download", lambda *_: pytest.fail("asked the hub"))
    model(tmp_path / "run3/final"), model(tmp_path / "run3/best")
    for wrong, hint in {
        "run3/fianl": "did you mean `run3/final`?",
        "run3/step-5": "the folders in `run3`: best, final; names of the hub are not looked up where there is a folder `run3`",
        "rnu3": "did you mean `run3`?",
        "rnu3/final/x": "did you mean `run3`?",
        f"{tmp_path}/run3/bset": f"did you mean `{tmp_path}/run3/best`?",
        f"{tmp_path}/run3/zzz": f"the folders in `{tmp_path}/run3`: best, final",
        "/": "",
        "no such/model name": "give the path",
    }.items():
        if wrong == "/":
            assert local_folder(wrong) == Path("/")
            continue
        for load in (
            AlbertModel.from_pretrained,
            AlbertTokenizer.from_pretrained,
            AlbertConfig.from_pretrained,
        ):
            with pytest.raises(DataError, match="no checkpoint folder at") as caught:
                load(wrong)
            assert caught.value.slug == "not-found"
            assert caught.value.hint.startswith(hint), caught.value.hint


def test_googles_old_names_and_names_of_the_hub_are_downloaded(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    downloads = []

    def download(name, revision, patterns):
        downloads.append((name, "model.safetensors" in patterns))
        (tmp_path / "model.safetensors").write_text("")
        return tmp_path

    monkeypatch.setattr(model_paths, "_download", download)
    local_folder("albert-base-v2")
    local_folder("albert-xxlarge-v1", weights=False)
    local_folder("someone/model")
    with pytest.raises(DataError, match="no checkpoint folder at `albert-base-v3`"):
        local_folder("albert-base-v3")
    assert downloads == [
        ("albert/albert-base-v2", True),
        ("albert/albert-xxlarge-v1", False),
        ("someone/model", True),
    ]


def test_the_hub_is_named_where_it_cannot_be_reached(tmp_path, monkeypatch):
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    with pytest.raises(MachineError, match="`nobody/nothing`: the hub cannot be used"):
        AlbertTokenizer.from_pretrained("nobody/nothing")


def test_the_commands_after_a_pretraining_name_the_run_and_its_recommended_model(
    runs, tiny_tokenizer, tmp_path
):
    run = runs / "pretraining"
    commands = next_commands(runs / "store", run, tiny_tokenizer)
    assert commands[0] == (
        f"albertkit evaluate {run} {runs / 'store'}",
        f"score {run / 'best'}, step 1,200, masked lm loss 7.091",
    )
    assert all(str(run) in command and "final" not in command for command, _ in commands)
    assert commands[1][0].split(" --text ")[1] == f"'{ENGLISH.masked}' --kind fill-mask"
    spaced = shutil.copytree(run, tmp_path / "my run")
    for command, _ in next_commands("my records/*.tfrecord", spaced, tiny_tokenizer):
        assert str(spaced) in shlex.split(command)
    evaluation = next_commands("my records/*.tfrecord", spaced, tiny_tokenizer)[0][0]
    assert shlex.split(evaluation)[-1] == "my records/*.tfrecord"
    assert "'my records/*.tfrecord'" in evaluation


def test_the_commands_after_a_korean_pretraining_are_korean(runs, tmp_path):
    korean = [*KOREAN.ordered, KOREAN.with_names, KOREAN.opinion, *KOREAN.choice["choices"]] * 20
    commands = next_commands(
        runs / "store", runs / "pretraining", train_tokenizer(korean, tmp_path / "t", 54)
    )
    assert [
        word for command, _ in commands for word in shlex.split(command) if "[MASK]" in word
    ] == [KOREAN.masked]
    assert "finetune nsmc" in commands[2][0]


# --- paths of another kind, misspelt paths, arguments in another order ----------------------------

# Command line in the folder of the fixture, what the error says, its hint.
WRONG_PATHS = (
    ("inspect store", "error[wrong-kind]: `store` is a token store, not a model", "pretrain store --out RUN"),
    ("serve store --port 0", "error[wrong-kind]: `store` is a token store, not a model", ""),
    ("inspect data", "error[wrong-kind]: `data` holds data (dev.tsv, train.tsv), not a model", "give the path of"),
    ("serve data --port 0", "error[wrong-kind]: `data` holds data", ""),
    ("finetune cola data data --out x", "error[wrong-kind]: `data` holds data", ""),
    ("inspect pretraining/best/model.safetensors", "is a file, a model is a folder", "its folder: pretraining/best"),
    ("pretrain pretraining --out x", "error[wrong-kind]: `pretraining` is a run, not a token store", "--out STORE"),
    ("pretrain pretraining/best --out x", "`pretraining/best` is a model, not a token store", "--tokenizer"),
    ("pretrain stor --out x", "error[not-found]: no store at `stor`", "did you mean `store`?"),
    ("evaluate pretraining stor", "error[not-found]: no such file or folder: `stor`", "did you mean `store`?"),
    ("evaluate fine-tuning lables.tsv", "error[not-found]", "did you mean `labels.tsv`?"),
    ("finetune cola pretraining dtaa --out x", "error[not-found]", "did you mean `data`?"),
    ("finetune cola pretraining dtaa/train.tsv --out x", "error[not-found]", "did you mean `data/train.tsv`?"),
    ("pretrain store --out x --config-file pretraining/run.tml", "no settings file", "`pretraining/run.toml`?"),
    ("report pretrainin", "error[not-found]: no run folder at", "did you mean `pretraining`?"),
    ("embed train stsb data pretraining --out x", "error[doubtful]: `pretraining` is a run", "pretraining data"),
    ("embed train pretraining stsb data --out x", "given as the name of a task", "stsb pretraining data"),
    ("embed encode text.txt embedding/best --out x.npy", "error[doubtful]: `embedding/best` is a model", "best text.txt"),
    ("finetune pretraining cola data --out x", "given as the name of a task", "cola pretraining data"),
    ("finetune pretraining cola data --check", "given as the name of a task", "cola pretraining data"),
    ("predict text.txt fine-tuning", "error[doubtful]: `fine-tuning` is a run", "fine-tuning text.txt"),
)  # fmt: skip


@pytest.mark.parametrize(("command", "fact", "hint"), WRONG_PATHS)
def test_a_path_of_the_wrong_kind_or_place_is_answered_with_what_it_is(
    runs, monkeypatch, run_command, command, fact, hint
):
    (runs / "data").mkdir(exist_ok=True)
    for name in ("train", "dev"):
        (runs / "data" / f"{name}.tsv").write_text("sentence\tlabel\na fox\t1\na dog\t0\n")
    monkeypatch.chdir(runs)
    result = run_command(*command.split())
    printed_fact, _, printed_hint = result.err.partition("hint: ")
    assert result.status == 2
    assert fact in printed_fact
    assert hint in printed_hint
    assert not (runs / "x").exists()


def test_a_folder_that_holds_more_than_data_is_not_refused(tmp_path):
    for name in ("train.tsv", "vocab.txt"):
        (tmp_path / name).write_text("")
    assert local_folder(tmp_path) == tmp_path


def test_a_digest_means_the_files_of_a_model_and_nothing_else(tmp_path):
    """A copy has the same one; a byte in any file of the model or of one of its modules changes it."""
    folder = tmp_path / "model"
    copy = tmp_path / "copy"
    (folder / "pooling").mkdir(parents=True)
    for name in ("config.json", "model.safetensors", "pooling/config.json"):
        (folder / name).write_bytes(b"{}")
    (folder / "modules.json").write_text(json.dumps([{"path": ""}, {"path": "pooling"}]))
    with digest_while_loading(folder) as digest:
        pass
    shutil.copytree(folder, copy)
    (copy / "README.md").write_text("a card")
    os.utime(copy / "config.json", (1, 1))
    with digest_while_loading(copy) as copy_digest:
        assert copy_digest == digest
    for name in ("model.safetensors", "pooling/config.json"):
        (copy / name).write_bytes(b"[]")
        with digest_while_loading(copy) as copy_digest:
            assert copy_digest != digest
        (copy / name).write_bytes(b"{}")
    with pytest.raises(CheckpointError, match=r"\[changed\]"), digest_while_loading(folder):
        (folder / "model.safetensors").write_bytes(b"another")
