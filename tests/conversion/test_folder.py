"""Checkpoint folders: strict when read, whole when written."""

import json
import sys
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from small_models import tiny_config

from albertkit.errors import CheckpointError, ConfigError, DataError
from albertkit.files import read_json
from albertkit.model import (
    AlbertForMaskedLM,
    AlbertForPreTraining,
    AlbertForSequenceClassification,
    AlbertModel,
)
from albertkit.model.files import read_tensors

CONFIG = tiny_config(num_hidden_layers=2)


@pytest.fixture
def folder(tmp_path):
    """A saved `AlbertForPreTraining`."""
    torch.manual_seed(0)
    AlbertForPreTraining(CONFIG).save_pretrained(tmp_path / "model")
    return tmp_path / "model"


def rewrite(folder, change):
    tensors = load_file(folder / "model.safetensors")
    change(tensors)
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    return tensors


def test_the_folder_is_hugging_faces(folder):
    assert sorted(path.name for path in folder.iterdir()) == ["config.json", "model.safetensors"]
    config = read_json(folder / "config.json")
    assert config["architectures"] == ["AlbertForPreTraining"]
    assert config["model_type"] == "albert"
    assert config["dtype"] == "float32"
    with safe_open(folder / "model.safetensors", "pt") as file:
        assert file.metadata() == {"format": "pt"}
        assert len(file.keys()) == 32
        assert not any("decoder" in name for name in file.keys())  # noqa: SIM118


def test_foreign_configuration_is_kept(folder, tmp_path):
    config = read_json(folder / "config.json")
    (folder / "config.json").write_text(
        json.dumps({**config, "torch_dtype": "float16", "gap_size": 0})
    )
    model = AlbertForPreTraining.from_pretrained(folder, hidden_dropout_prob=0.25)
    assert model.config.hidden_dropout_prob == 0.25
    assert not model.training
    model.save_pretrained(tmp_path / "again")
    saved = read_json(tmp_path / "again/config.json")
    assert saved["gap_size"] == 0
    assert saved["dtype"] == "float32"
    assert "torch_dtype" not in saved


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda t: t.pop("albert.pooler.bias"), "missing: albert.pooler.bias"),
        (lambda t: t.update(surprise=torch.zeros(1)), "not in the model: .*surprise"),
        (
            lambda t: t.update({"predictions.bias": torch.zeros(91)}),
            r"predictions.bias \[91\] in the file, \[90\] in the",
        ),
        (
            lambda t: t.update({"predictions.decoder.bias": torch.ones(90)}),
            "predictions.decoder.bias and predictions.bias",
        ),
    ],
)
def test_whatever_does_not_fit_is_listed(folder, change, message):
    rewrite(folder, change)
    with pytest.raises(CheckpointError, match=message) as caught:
        AlbertForPreTraining.from_pretrained(folder)
    assert caught.value.slug == "weights-mismatch"


def test_missing_heads_must_be_allowed_where_asked(tmp_path):
    encoder = AlbertModel(CONFIG)
    encoder.save_pretrained(tmp_path)
    with pytest.raises(CheckpointError, match=r"missing: .*sop_classifier\.classifier\.weight"):
        AlbertForPreTraining.from_pretrained(tmp_path, strict=True)
    with pytest.raises(CheckpointError, match="missing: sop_classifier"):
        AlbertForPreTraining.from_pretrained(tmp_path, strict=True, allow_missing=["predictions"])
    model = AlbertForPreTraining.from_pretrained(
        tmp_path, strict=True, allow_missing=["predictions", "sop_classifier"]
    )
    for name, parameter in encoder.named_parameters():
        assert torch.equal(model.albert.get_parameter(name), parameter), name
    assert model.predictions.decoder.weight is model.albert.embeddings.word_embeddings.weight


def test_heads_a_class_does_not_have_are_left_out_and_said(folder, caplog):
    with caplog.at_level("INFO", logger="albertkit"):
        model = AlbertForMaskedLM.from_pretrained(folder)
    assert "albert.pooler.weight" in caplog.text
    assert "sop_classifier.classifier.bias" in caplog.text
    stored = load_file(folder / "model.safetensors")
    assert torch.equal(model.predictions.dense.weight, stored["predictions.dense.weight"])


def test_copies_of_a_shared_block_must_agree(tmp_path):
    model = AlbertModel(CONFIG.replace(parameter_sharing="attention", num_hidden_groups=2))
    model.save_pretrained(tmp_path)
    name = "encoder.albert_layer_groups.1.albert_layers.0.attention.key.bias"
    stored = rewrite(tmp_path, lambda tensors: tensors[name].add_(1))
    assert name in stored
    with pytest.raises(
        CheckpointError, match=f"shared in the model but different in the file: {name}"
    ):
        AlbertModel.from_pretrained(tmp_path)


def test_old_weights_files_are_read_without_their_buffers(folder):
    tensors = load_file(folder / "model.safetensors")
    old = {**tensors, "albert.embeddings.position_ids": torch.arange(24)[None]}
    old["predictions.decoder.weight"] = old["albert.embeddings.word_embeddings.weight"]
    torch.save(old, folder / "pytorch_model.bin")
    (folder / "model.safetensors").unlink()
    model = AlbertForPreTraining.from_pretrained(folder)
    for name, parameter in model.named_parameters():
        assert torch.equal(parameter, tensors[name]), name


class Dangerous:
    """What a stranger's pickle may hold."""

    def __reduce__(self):
        return print, ("run by a weights file",)


def test_objects_in_a_pickle_are_never_made(folder, capsys):
    (folder / "model.safetensors").unlink()
    torch.save({"weight": Dangerous()}, folder / "pytorch_model.bin")
    with pytest.raises(CheckpointError, match=r"\[corrupt\]"):
        AlbertForPreTraining.from_pretrained(folder)
    assert "run by" not in capsys.readouterr().out


def test_broken_and_missing_files_are_named(folder, tmp_path):
    weights = folder / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-100])
    with pytest.raises(CheckpointError, match=r"\[corrupt\]"):
        AlbertForPreTraining.from_pretrained(folder)
    weights.unlink()
    with pytest.raises(CheckpointError, match=r"(?s)\[missing-file\].*there: config.json"):
        AlbertForPreTraining.from_pretrained(folder)
    (tmp_path / "google").mkdir()
    for name in ("model.ckpt-best.index", "model.ckpt-best.data-00000-of-00001"):
        (tmp_path / "google" / name).touch()
    with pytest.raises(
        CheckpointError, match=rf"missing-file(.|\n)*albertkit convert {tmp_path / 'google'} MODEL"
    ):
        read_tensors(tmp_path / "google")
    with pytest.raises(DataError, match="no checkpoint folder"):
        AlbertForPreTraining.from_pretrained(tmp_path / "nowhere")
    (folder / "config.json").write_text('{"model_type": "bert"}')
    with pytest.raises(ConfigError, match="bert"):
        AlbertForPreTraining.from_pretrained(folder)


def test_a_failed_save_leaves_the_old_weights(folder, monkeypatch):
    import albertkit.model.files as module

    before = (folder / "model.safetensors").read_bytes()

    def half(tensors, path, metadata):
        Path(path).write_bytes(b"half")
        raise OSError(28, "No space left on device", path)

    monkeypatch.setattr(module, "save_file", half)
    with pytest.raises(OSError, match="No space"):
        AlbertForPreTraining(CONFIG).save_pretrained(folder)
    assert (folder / "model.safetensors").read_bytes() == before
    assert sorted(path.name for path in folder.iterdir()) == ["config.json", "model.safetensors"]


def test_weights_are_readable_like_every_other_file(folder):
    """safetensors 0.8 makes files that only their owner can read."""
    assert (folder / "model.safetensors").stat().st_mode == (folder / "config.json").stat().st_mode


@pytest.mark.skipif(sys.platform == "win32", reason="limits of POSIX")
def test_a_file_that_cannot_be_written_is_an_error_of_the_system(folder):
    """safetensors has errors of its own; the command line explains the system's (a full disk, for example)."""
    import resource

    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, before[1]))
    try:
        with pytest.raises(OSError, match="File too large"):
            AlbertForPreTraining(CONFIG).save_pretrained(folder)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert sorted(path.name for path in folder.iterdir()) == ["config.json", "model.safetensors"]


def test_loading_draws_only_what_the_file_lacks(tmp_path):
    """The encoder is the file's; the head is drawn as in a new model: within two deviations of its own, not all equal."""
    config = CONFIG
    encoder = AlbertModel(config)
    encoder.save_pretrained(tmp_path)
    torch.manual_seed(5)
    model = AlbertForSequenceClassification.from_pretrained(
        tmp_path, allow_missing=["classifier"], num_labels=3
    )
    for name, parameter in encoder.named_parameters():
        assert torch.equal(model.albert.get_parameter(name), parameter), name
    weight = model.classifier.weight
    spread = config.initializer_range
    assert weight.abs().max() <= 2 * spread
    assert weight.std() > spread / 2
    assert not model.classifier.bias.any()
    torch.manual_seed(5)
    reloaded = AlbertForSequenceClassification.from_pretrained(
        tmp_path, allow_missing=["classifier"], num_labels=3
    )
    assert torch.equal(reloaded.classifier.weight, weight)
    # New models are drawn as before
    assert AlbertModel(config).embeddings.word_embeddings.weight.std() > spread / 2
