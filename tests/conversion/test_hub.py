"""Models of the hub: from a cache laid out here, and pushed to an API that only writes down what it is asked."""

import json
import shutil
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import huggingface_hub as hub
import pytest
import torch
from huggingface_hub import constants, errors
from huggingface_hub.utils import filter_repo_objects
from safetensors.torch import load_file
from small_models import tiny_config

from albertkit.config import AlbertConfig
from albertkit.errors import (
    AlbertKitError,
    CheckpointError,
    DataError,
    MachineError,
    MissingExtraError,
)
from albertkit.files import read_json
from albertkit.model import AlbertForMaskedLM, AlbertForSequenceClassification
from albertkit.model_paths import local_folder
from albertkit.report.inspect import inspect_folder

CONFIG = tiny_config()
MAIN = "a" * 40
OTHER = "b" * 40


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    """An empty cache, and no network."""
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    monkeypatch.chdir(tmp_path)
    return tmp_path / "cache"


@pytest.fixture
def cached(cache):
    """`someone/tiny-albert` with two revisions in the cache."""
    repository = cache / "models--someone--tiny-albert"
    (repository / "refs").mkdir(parents=True)
    models = {}
    for seed, (branch, commit) in enumerate({"main": MAIN, "v2": OTHER}.items()):
        torch.manual_seed(seed)
        models[branch] = AlbertForMaskedLM(CONFIG).eval()
        models[branch].save_pretrained(repository / "snapshots" / commit)
        (repository / "refs" / branch).write_text(commit)
    return models


def has_same_weights(ours, theirs):
    return all(
        torch.equal(a, b) for a, b in zip(ours.parameters(), theirs.parameters(), strict=True)
    )


def test_a_name_loads_from_the_cache(cached):
    assert has_same_weights(
        AlbertForMaskedLM.from_pretrained("someone/tiny-albert"), cached["main"]
    )
    assert has_same_weights(
        AlbertForMaskedLM.from_pretrained("someone/tiny-albert", revision="v2"), cached["v2"]
    )
    assert has_same_weights(
        AlbertForMaskedLM.from_pretrained("someone/tiny-albert", revision=OTHER), cached["v2"]
    )
    assert not has_same_weights(cached["main"], cached["v2"])
    changed = AlbertForMaskedLM.from_pretrained("someone/tiny-albert", hidden_dropout_prob=0.5)
    assert changed.config.hidden_dropout_prob == 0.5
    assert AlbertConfig.from_pretrained("someone/tiny-albert") == CONFIG
    assert inspect_folder("someone/tiny-albert").model.endswith(MAIN)


def test_a_folder_of_that_name_comes_first(cached):
    cached["v2"].save_pretrained("someone/tiny-albert")
    assert has_same_weights(AlbertForMaskedLM.from_pretrained("someone/tiny-albert"), cached["v2"])


def test_what_is_downloaded(cache, monkeypatch, tmp_path):
    """safetensors if there are any; `pytorch_model.bin` is asked for only if there are none."""
    requests = []

    def download(repo_id, **options):
        requests.append({"repo_id": repo_id, **options})
        return str(tmp_path / repo_id.split("/")[1])

    monkeypatch.setattr(hub, "snapshot_download", download)
    AlbertForMaskedLM(CONFIG).save_pretrained(tmp_path / "new")
    assert local_folder("org/new", "v1") == tmp_path / "new"
    (tmp_path / "old").mkdir()
    local_folder("org/old")
    assert [(call["repo_id"], call["revision"], "pytorch_model.bin" in call["allow_patterns"]) for call in requests] == [
        ("org/new", "v1", False), ("org/old", None, False), ("org/old", None, True),
    ]  # fmt: skip
    matched = [
        name
        for name in (
            "config.json",
            "model.safetensors",
            "spiece.model",
            "vocab.txt",
            "tokenizer.json",
            "tf_model.h5",
            "run.py",
        )
        if any(Path(name).match(pattern) for pattern in requests[0]["allow_patterns"])
    ]
    assert matched == "config.json model.safetensors spiece.model vocab.txt tokenizer.json".split()


@pytest.mark.parametrize("stored", ["safetensors", "bin"])
def test_weights_in_several_files_are_downloaded_loaded_and_inspected(
    stored, tmp_path, monkeypatch
):
    """The parameters are those that transformers reads from the whole repository."""
    import transformers

    repository = tmp_path / "repository"
    downloaded = tmp_path / "downloaded"
    original = AlbertForMaskedLM(CONFIG).eval()
    original.save_pretrained(repository, max_shard_size=4000)
    if stored == "bin":
        index = read_json(repository / "model.safetensors.index.json")
        names = {
            name: file.replace("model-", "pytorch_model-").replace(".safetensors", ".bin")
            for name, file in index["weight_map"].items()
        }
        for shard in repository.glob("*.safetensors"):
            torch.save(load_file(shard), repository / f"pytorch_{shard.stem}.bin")
            shard.unlink()
        (repository / "model.safetensors.index.json").unlink()
        (repository / "pytorch_model.bin.index.json").write_text(
            json.dumps({"metadata": {}, "weight_map": names})
        )
    for name in ("tf_model.h5", "run.py", "model.fp16.safetensors"):
        (repository / name).touch()

    def download(_, revision, allow_patterns):
        for name in filter_repo_objects(
            [file.name for file in repository.iterdir()], allow_patterns=allow_patterns
        ):
            downloaded.mkdir(exist_ok=True)
            shutil.copy(repository / name, downloaded)
        return str(downloaded)

    monkeypatch.setattr(hub, "snapshot_download", download)
    loaded = AlbertForMaskedLM.from_pretrained("org/shards")
    theirs = transformers.AlbertForMaskedLM.from_pretrained(repository)
    assert len(list(downloaded.glob("*model-*-of-*"))) > 1
    assert not {file.name for file in downloaded.iterdir()} & {
        "tf_model.h5",
        "run.py",
        "model.fp16.safetensors",
    }
    parameters = dict(theirs.named_parameters())
    assert all(torch.equal(parameters[name], tensor) for name, tensor in loaded.named_parameters())
    facts = inspect_folder("org/shards")
    original.save_pretrained(tmp_path / "whole")
    whole_facts = inspect_folder(tmp_path / "whole")
    assert facts.parameters == whole_facts.parameters
    assert facts.weights["types"] == whole_facts.weights["types"]
    assert facts.weights["bytes"] == sum(
        file.stat().st_size for file in downloaded.glob("*model-*-of-*")
    )


@pytest.mark.parametrize(
    "files",
    [
        ("safetensors",),
        ("bin",),
        ("bin", "safetensors"),
    ],
)
@pytest.mark.parametrize("use_safetensors", [True, False, None])
def test_use_safetensors_chooses_the_file_as_in_transformers(files, use_safetensors, tmp_path):
    """Each file holds another model; transformers says which one is read, or that none is."""
    import transformers

    for seed, kind in enumerate(("safetensors", "bin")):
        torch.manual_seed(seed)
        AlbertForMaskedLM(CONFIG).save_pretrained(tmp_path / kind)
    folder = tmp_path / "model"
    AlbertForMaskedLM(CONFIG).save_pretrained(folder)
    (folder / "model.safetensors").unlink()
    weights = {
        kind: load_file(tmp_path / kind / "model.safetensors") for kind in ("safetensors", "bin")
    }
    if "safetensors" in files:
        shutil.copy(tmp_path / "safetensors/model.safetensors", folder)
    if "bin" in files:
        torch.save(weights["bin"], folder / "pytorch_model.bin")
    try:
        theirs = transformers.AlbertForMaskedLM.from_pretrained(
            folder, use_safetensors=use_safetensors
        )
    except OSError:
        with pytest.raises(
            CheckpointError, match=f"use_safetensors={use_safetensors} asks for others"
        ):
            AlbertForMaskedLM.from_pretrained(folder, use_safetensors=use_safetensors)
    else:
        ours = AlbertForMaskedLM.from_pretrained(folder, use_safetensors=use_safetensors)
        assert torch.equal(ours.get_input_embeddings().weight, theirs.get_input_embeddings().weight)


@pytest.mark.parametrize(
    "name", "albert-base-v3 a/b/c /no/where ./runs/final ../final ~/final".split()
)
def test_what_cannot_be_a_name_is_never_looked_up(name, monkeypatch):
    monkeypatch.setattr(hub, "snapshot_download", lambda *_, **__: pytest.fail("asked the hub"))
    with pytest.raises(DataError, match=r"\[not-found\].*no checkpoint folder at"):
        AlbertForMaskedLM.from_pretrained(name)


def test_not_in_the_cache_and_no_network(cache):
    with pytest.raises(MachineError, match="`someone/else`: the hub cannot be used") as caught:
        AlbertForMaskedLM.from_pretrained("someone/else")
    assert caught.value.slug == "unreachable"
    assert "HF_HUB_OFFLINE" in caught.value.hint


def response(status):
    return SimpleNamespace(status_code=status, headers={}, request=None, url="", text="")


@pytest.mark.parametrize(
    ("error", "slug", "message"),
    [
        (
            errors.RepositoryNotFoundError("404", response=response(404)),
            "not-found",
            "no model of that name that you may use",
        ),
        (
            errors.RevisionNotFoundError("404", response=response(404)),
            "not-found",
            "no revision `v9`",
        ),
        (
            errors.HfHubHTTPError("503 out", response=response(503)),
            "unreachable",
            "HfHubHTTPError: 503 out",
        ),
        (
            ConnectionError("proxy says no\nand more"),
            "unreachable",
            "ConnectionError: proxy says no",
        ),
    ],
)
def test_what_the_hub_answers_is_said(monkeypatch, error, slug, message):
    def fail(*_, **__):
        raise error

    monkeypatch.setattr(hub, "snapshot_download", fail)
    with pytest.raises(AlbertKitError, match=message) as caught:
        local_folder("org/name", "v9")
    assert caught.value.slug == slug


class FakeApi:
    """Keeps a copy of what is uploaded."""

    calls: list[tuple[str, dict[str, Any]]]
    copy: Path

    def create_repo(self, repo_id, **options):
        self.calls.append(("create", {"repo_id": repo_id, **options}))

    def upload_folder(self, *, folder_path, **options):
        self.calls.append(("upload", options))
        shutil.copytree(folder_path, self.copy)
        return SimpleNamespace(commit_url="https://example.org/commit/1")


def test_push_uploads_what_save_writes(tmp_path, monkeypatch):
    monkeypatch.setattr(FakeApi, "calls", [], raising=False)
    monkeypatch.setattr(FakeApi, "copy", tmp_path / "uploaded", raising=False)
    monkeypatch.setattr(hub, "HfApi", FakeApi)
    model = AlbertForSequenceClassification(
        AlbertConfig.from_dict({**CONFIG.to_dict(), "num_labels": 4})
    ).eval()
    assert (
        model.push_to_hub("someone/mine", private=True, commit_message="Four labels")
        == "https://example.org/commit/1"
    )
    assert FakeApi.calls == [
        ("create", {"repo_id": "someone/mine", "private": True, "exist_ok": True}),
        ("upload", {"repo_id": "someone/mine", "commit_message": "Four labels"}),
    ]
    assert sorted(path.name for path in FakeApi.copy.iterdir()) == [
        "config.json",
        "model.safetensors",
    ]
    assert read_json(FakeApi.copy / "config.json")["num_labels"] == 4
    assert has_same_weights(AlbertForSequenceClassification.from_pretrained(FakeApi.copy), model)

    monkeypatch.setattr(
        FakeApi, "create_repo", lambda *_, **__: (_ for _ in ()).throw(ConnectionError("down"))
    )
    with pytest.raises(MachineError, match="ConnectionError: down"):
        model.push_to_hub("someone/mine")


def test_without_the_package_the_error_says_how_to_get_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    for use in (
        lambda: local_folder("org/name"),
        lambda: AlbertForMaskedLM(CONFIG).push_to_hub("org/name"),
    ):
        with pytest.raises(MissingExtraError, match=r"(?s)\[not-installed\].*huggingface_hub"):
            use()
