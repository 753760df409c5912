"""Every command in docs/checkpoints.md, run on files of the kinds and names that it speaks of."""

import json
import re
import shlex
import shutil
import subprocess
from pathlib import Path

import fsspec
import pytest
import torch

from albertkit.cli import app

PAGE = Path(__file__).parents[2] / "docs/checkpoints.md"


def commands():
    return [
        line
        for line in PAGE.read_text(encoding="utf-8").splitlines()
        if line.startswith("albertkit ")
    ]


@pytest.fixture(scope="module")
def workplace(golden, tmp_path_factory):
    """The sources that the page names: golden checkpoints under those names."""
    import transformers

    folder = tmp_path_factory.mktemp("workplace")
    tf1 = golden / "tf1"
    tf2 = golden / "tf2"
    for name, source in {
        "albert_base": tf1 / "pretrain_a",
        "albert_v2_base": tf2 / "mg211_converted_pretrainer",
    }.items():
        shutil.copytree(source, folder / name, ignore=shutil.ignore_patterns("start", "*.npz"))
    for file in (folder / "albert_base").glob("model.ckpt-8.*"):
        file.rename(file.with_name(file.name.replace("ckpt-8", "ckpt-best")))
    subprocess.run(["tar", "czf", "albert_base_v2.tar.gz", "albert_base"], cwd=folder, check=True)
    tasks = {
        "mnli": "classifier_mnli",
        "stsb": "regression_stsb",
        "race": "race",
        "squad1": "squad_v1",
        "squad2": "squad_v2",
    }
    for name, source in tasks.items():
        shutil.copytree(
            tf1 / source, folder / name, ignore=shutil.ignore_patterns("*.json", "*.npz")
        )
    shutil.copyfile(
        tf2 / "mg211_saved_model/saved_model.tar.gz", folder / "albert_en_base_3.tar.gz"
    )
    shape = dict(
        vocab_size=60,
        hidden_size=64,
        num_hidden_layers=3,
        num_attention_heads=2,
        intermediate_size=48,
    )
    old = transformers.AlbertForMaskedLM(transformers.AlbertConfig(embedding_size=16, **shape))
    old.config.architectures = ["AlbertForMaskedLM"]
    old.config.save_pretrained(folder / "old-folder")
    torch.save(old.state_dict(), folder / "old-folder/pytorch_model.bin")
    shape["num_hidden_layers"] = 6
    transformers.BertForPreTraining(transformers.BertConfig(**shape)).save_pretrained(
        folder / "bert-folder"
    )
    groups = {**shape, "embedding_size": 64, "num_hidden_groups": 3, "hidden_act": "gelu"}
    (folder / "three-groups.json").write_text(json.dumps({"model_type": "albert", **groups}))
    return folder


@pytest.fixture
def run(workplace, monkeypatch, tmp_path):
    """Run a command of the page; a bucket is one in memory, of the same name."""
    monkeypatch.chdir(workplace)
    monkeypatch.setenv("ALBERTKIT_CACHE", str(tmp_path / "cache"))
    archive = (workplace / "albert_base_v2.tar.gz").read_bytes()
    fsspec.filesystem("memory").pipe_file("/albert_models/albert_base_v2.tar.gz", archive)
    return lambda command: app(
        shlex.split(command.removeprefix("albertkit ").replace("gs://", "memory://"))
    )


def test_all_of_them_in_order(run, capsys):
    assert len(commands()) >= 15
    for command in commands():
        run(command)
        assert "verified" in capsys.readouterr().out, command
        assert Path(shlex.split(command)[3], "README.md").is_file()


def test_the_python_on_the_page(workplace, monkeypatch, tmp_path):
    block = re.search(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    assert block is not None
    shutil.copy(workplace / "albert_base_v2.tar.gz", tmp_path)
    monkeypatch.chdir(tmp_path)
    namespace = {}
    exec(block[1], namespace)
    assert namespace["report"].model_class == "AlbertForPreTraining"  # type: ignore[attr-defined]
