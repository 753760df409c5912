"""`convert --to tf2` writes the Model Garden's checkpoints: its names and bits, read by our reader and TensorFlow's."""

import json
import os
import subprocess
from pathlib import Path

import numpy as np
import pytest
import torch

from albertkit.config import AlbertConfig
from albertkit.conversion.convert import convert
from albertkit.conversion.tensorflow.bundle import (
    TensorBundle,
    Variable,
    read_variable_names,
    write_object_graph,
)
from albertkit.errors import CheckpointError
from albertkit.model import (
    AlbertForMaskedLM,
    AlbertForPreTraining,
    AlbertForSequenceClassification,
    AlbertModel,
)

CONFIG = AlbertConfig(
    vocab_size=50,
    embedding_size=8,
    hidden_size=64,
    num_hidden_layers=2,
    num_attention_heads=2,
    intermediate_size=96,
    max_position_embeddings=12,
)


@pytest.mark.parametrize(
    ("theirs", "options"),
    [
        (
            "mg211_converted_pretrainer",
            {"lossy": True},
        ),  # the converter drops the sentence-order head
        ("mg211_converted_encoder", {"head": "encoder", "lossy": True}),
        ("mg211_encoder", {}),
        ("mg211_model_e_eq_h", {}),
    ],
)
def test_names_and_bits_are_those_of_the_model_garden(golden, tmp_path, theirs, options):
    converted = theirs.startswith("mg211_converted")
    source = golden / "tf1/pretrain_a" if converted else golden / "tf2" / theirs
    if theirs == "mg211_converted_encoder":
        source = golden / "tf2" / theirs
    report = convert(source, tmp_path / "out", to="tf2", **options)
    assert report.tensors
    ours = TensorBundle.open(tmp_path / "out")
    expected = TensorBundle.open(golden / "tf2" / theirs)
    renamed = {
        key.replace("model/", "encoder/", 1) if "e_eq_h" in theirs else key: key
        for key in expected.names
    }
    assert set(ours.names) == set(renamed)
    for key in ours.names:
        assert ours.variable_names[key] == expected.variable_names[renamed[key]]
        assert ours.dtype(key) == expected.dtype(renamed[key])
        assert np.array_equal(ours.read(key), expected.read(renamed[key])), key


@pytest.mark.parametrize("model_class", [AlbertModel, AlbertForMaskedLM, AlbertForPreTraining])
@pytest.mark.parametrize("embedding_size", [8, 64])
def test_there_and_back_is_the_same_bits(tmp_path, model_class, embedding_size):
    torch.manual_seed(0)
    model = model_class(CONFIG.replace(embedding_size=embedding_size))
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if embedding_size == 64 and "embedding_hidden_mapping_in" in name:
                parameter.copy_(torch.eye(64) if parameter.dim() == 2 else torch.zeros(64))
            else:
                parameter += torch.randn_like(parameter)
    model.save_pretrained(tmp_path / "ours")
    sop = model_class is AlbertForPreTraining
    if sop:
        with pytest.raises(CheckpointError, match="no place for sop_classifier") as caught:
            convert(tmp_path / "ours", tmp_path / "tf2", to="tf2")
        assert caught.value.slug == "not-expressible"
        assert "--to tf1" in caught.value.hint
    report = convert(tmp_path / "ours", tmp_path / "tf2", to="tf2", lossy=sop)
    assert any("left out" in note and "sop_classifier" in note for note in report.notes) == sop
    convert(tmp_path / "tf2", tmp_path / "back")
    tensors = AlbertForMaskedLM if sop else model_class
    ours, back = (
        tensors.from_pretrained(tmp_path / name, strict=True).state_dict()
        for name in ("ours", "back")
    )
    assert ours.keys() == back.keys()
    assert all(torch.equal(ours[name], back[name]) for name in ours)
    convert(tmp_path / "back", tmp_path / "again", to="tf2", overwrite=True)
    for name in (
        "bert_model.ckpt.index",
        "bert_model.ckpt.data-00000-of-00001",
        "albert_config.json",
    ):
        if tensors is model_class:
            assert (tmp_path / "again" / name).read_bytes() == (
                tmp_path / "tf2" / name
            ).read_bytes()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"num_hidden_groups": 2}, "2 groups of 1 blocks"),
        ({"inner_group_num": 2}, "1 groups of 2 blocks"),
        ({"hidden_act": "gelu"}, "the erf"),
        ({"layer_norm_eps": 1e-5}, "layer_norm_eps"),
    ],
)
def test_what_the_model_garden_cannot_hold_is_refused(tmp_path, changes, message):
    AlbertModel(CONFIG.replace(**changes)).save_pretrained(tmp_path / "ours")
    with pytest.raises(CheckpointError, match=message) as caught:
        convert(tmp_path / "ours", tmp_path / "tf2", to="tf2")
    assert caught.value.slug == "not-expressible"
    assert not (tmp_path / "tf2").exists()


def test_a_task_head_is_left_out_only_where_that_is_asked_for(tmp_path):
    AlbertForSequenceClassification(CONFIG).save_pretrained(tmp_path / "ours")
    with pytest.raises(CheckpointError, match="no place for classifier"):
        convert(tmp_path / "ours", tmp_path / "tf2", to="tf2")
    convert(tmp_path / "ours", tmp_path / "tf2", to="tf2", lossy=True)
    assert not any(
        "classifier" in name for name in TensorBundle.open(tmp_path / "tf2").variable_names.values()
    )


def test_an_object_graph_has_every_object_once():
    shared = Variable(
        ("head", "table"), "words", (("net", "layer", "table"), ("model", "head", "table"))
    )
    second = Variable(("net", "layer", "a.b/c"), "other")
    graph = write_object_graph([shared, second])
    assert second.key == "net/layer/a..b.Sc/.ATTRIBUTES/VARIABLE_VALUE"
    assert read_variable_names(np.array(graph, object)) == {
        shared.key: "words",
        second.key: "other",
    }
    assert graph.count(b"words") == 1


@pytest.mark.peer
def test_tensorflow_restores_what_we_write(tmp_path):
    """ALBERTKIT_TENSORFLOW_PYTHON names a Python that has TensorFlow: a process of its own, since its protobuf may be another."""
    python = os.environ.get("ALBERTKIT_TENSORFLOW_PYTHON")
    if not python:
        pytest.skip("ALBERTKIT_TENSORFLOW_PYTHON is not set")
    torch.manual_seed(0)
    AlbertForMaskedLM(CONFIG).save_pretrained(tmp_path / "ours")
    convert(tmp_path / "ours", tmp_path / "tf2", to="tf2")
    script = Path(__file__).with_name("tensorflow_reading.py")
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    process = subprocess.run(
        [
            python,
            str(script),
            str(tmp_path / "tf2/bert_model.ckpt"),
            str(tmp_path / "read.npz"),
        ],
        capture_output=True,
        text=True,
        timeout=300,
        env={**environment, "CUDA_VISIBLE_DEVICES": ""},
    )
    assert process.returncode == 0, process.stderr[-3000:]
    assert json.loads(process.stdout.splitlines()[-1]) == {"restored": "same", "shared": True}
    ours = TensorBundle.open(tmp_path / "tf2")
    theirs = np.load(tmp_path / "read.npz")
    assert set(theirs.files) == set(ours.names)
    for key in ours.names:
        assert np.array_equal(ours.read(key), theirs[key]), key
