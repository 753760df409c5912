"""What `convert` accepts, refuses and says; both directions; folders of transformers of other years."""

import os
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest
import torch
from record_files import write_json, write_lines
from safetensors.torch import load_file, save_file
from small_models import TINY, shaken

from albertkit.config import AlbertConfig
from albertkit.conversion.convert import convert
from albertkit.conversion.tensorflow.bundle import TensorBundle, write_bundle
from albertkit.errors import AlbertKitError, CheckpointError, ConfigError
from albertkit.files import read_json
from albertkit.model import (
    AlbertForMaskedLM,
    AlbertForMultipleChoice,
    AlbertForPreTraining,
    AlbertForQuestionAnswering,
    AlbertForSequenceClassification,
    AlbertForTokenClassification,
    AlbertModel,
)
from albertkit.model.files import read_tensors


@pytest.fixture(autouse=True)
def without_transformers(monkeypatch):
    """The tests here are about files; `test_verify.py` is about running the other side."""
    monkeypatch.setattr(
        "albertkit.conversion.convert.compare_outputs", lambda *_: (None, "not run")
    )


@pytest.fixture
def folder(tmp_path):
    """A checkpoint folder of an `AlbertForPreTraining` with every parameter random."""
    torch.manual_seed(0)
    shaken(AlbertForPreTraining(AlbertConfig(**TINY))).save_pretrained(tmp_path / "model")
    return tmp_path / "model"


def tf1_folder(folder, variables, **config):
    """A TensorFlow 1 checkpoint with the values of a configuration."""
    write_bundle(folder / "model.ckpt-1", variables)
    write_json(folder / "albert_config.json", {**TINY, "hidden_act": "gelu", **config})
    return folder


def change_config(folder, without=(), **changes):
    path = folder / "config.json"
    values = {**read_json(path), **changes}
    write_json(path, {key: value for key, value in values.items() if key not in without})


def variables_of(golden_or_folder):
    bundle = TensorBundle.open(golden_or_folder)
    return {name: bundle.read(name) for name in bundle.names}


# --- there and back -------------------------------------------------------------------------------

GOLDEN = [
    "pretrain_a",
    "pretrain_b",
    "pretrain_c",
    "pretrain_d",
    "pretrain_e",
    "classifier_mnli",
    "squad_v1",
    "squad_v2",
]


@pytest.mark.parametrize("name", [*GOLDEN, "race", "regression_stsb"])
@pytest.mark.parametrize("to", ["tf1", "npz"])
def test_there_and_back_to_the_same_bits(golden, tmp_path, name, to):
    head = {"race": "multiple-choice", "regression_stsb": "regression"}.get(name)
    convert(golden / "tf1" / name, tmp_path / "there", head=head)
    convert(tmp_path / "there", tmp_path / "back", to=to)
    original = TensorBundle.open(golden / "tf1" / name)
    weights = [
        key for key in original.names if not key.endswith(("adam_m", "adam_v", "global_step"))
    ]
    if to == "tf1":
        variables = variables_of(tmp_path / "back")
        assert sorted(path.name for path in (tmp_path / "back").glob("model*")) == [
            "model.ckpt-best.data-00000-of-00001",
            "model.ckpt-best.index",
        ]
    else:
        variables = dict(np.load(tmp_path / "back/model.npz"))
    assert sorted(variables) == sorted(weights)
    for key in weights:
        assert variables[key].dtype == np.float32
        assert variables[key].tobytes() == original.read(key).tobytes(), key
        assert variables[key].shape == original.shape(key)
    theirs = read_json(golden / "tf1" / name / "albert_config.json")
    ours = read_json(tmp_path / "back/albert_config.json")
    assert ours == theirs


def test_tensorflow_reads_nothing_else_than_we_wrote(folder, tmp_path):
    """From transformers' side: written in TensorFlow 1's names, read from there, the same folder again."""
    convert(folder, tmp_path / "tf1", to="tf1")
    report = convert(tmp_path / "tf1", tmp_path / "again")
    assert report.model_class == "AlbertForPreTraining"
    first = load_file(folder / "model.safetensors")
    second = load_file(tmp_path / "again/model.safetensors")
    assert first.keys() == second.keys()
    assert all(torch.equal(first[name], second[name]) for name in first)


def test_what_google_cannot_compute_is_not_written(tmp_path):
    for change in ({"hidden_act": "gelu"}, {"layer_norm_eps": 1e-5}):
        AlbertForPreTraining(AlbertConfig(**{**TINY, **change})).save_pretrained(tmp_path / "erf")
        with pytest.raises(CheckpointError, match=next(iter(change))) as error:
            convert(tmp_path / "erf", tmp_path / "tf1", to="tf1")
        assert error.value.slug == "not-expressible"
        assert not (tmp_path / "tf1").exists()
    convert(tmp_path / "erf", tmp_path / "tf1", to="tf1", lossy=True)
    shaken(AlbertModel(AlbertConfig(**{**TINY, "embedding_size": 64}))).save_pretrained(
        tmp_path / "square"
    )
    with pytest.raises(CheckpointError, match="no projection from E to H"):
        convert(tmp_path / "square", tmp_path / "out", to="tf1", lossy=True)


def test_groups_that_the_two_count_differently_are_refused(tmp_path):
    """18 layers in 14 groups: Google truncates l / L · G, transformers l / (L / G); one of them is off by rounding."""
    AlbertModel(
        AlbertConfig(**{**TINY, "num_hidden_layers": 18, "num_hidden_groups": 14})
    ).save_pretrained(tmp_path / "odd")
    with pytest.raises(CheckpointError, match=r"(?s)\[not-expressible\].*round differently"):
        convert(tmp_path / "odd", tmp_path / "out")


# --- folders of transformers ----------------------------------------------------------------------


def test_old_names_copies_and_buffers(folder, tmp_path):
    """Everything that transformers' files of 2019 to 2022 had and today's have not, in one pickled file."""
    new = load_file(folder / "model.safetensors")
    old = {
        "module."
        + name.replace("LayerNorm.weight", "LayerNorm.gamma").replace(
            "LayerNorm.bias", "LayerNorm.beta"
        ): t
        for name, t in new.items()
    }
    old["module.albert.embeddings.position_ids"] = torch.arange(24)[None]
    old["module.predictions.decoder.weight"] = new[
        "albert.embeddings.word_embeddings.weight"
    ].clone()
    old["module.predictions.decoder.bias"] = new["predictions.bias"].clone()
    (tmp_path / "old").mkdir()
    shutil.copy(folder / "config.json", tmp_path / "old")
    added = dict(
        num_beams=1, eos_token_ids=0, output_past=True, torch_dtype="float32", ln_type="postln"
    )
    change_config(tmp_path / "old", without=("dtype", "parameter_sharing", "model_type"), **added)
    torch.save(old, tmp_path / "old/pytorch_model.bin", _use_new_zipfile_serialization=False)
    report = convert(tmp_path / "old", tmp_path / "new")
    assert report.skipped == {"buffer": 1, "tied copy": 2}
    assert any("num_beams, eos_token_ids" in note for note in report.notes)
    tensors = load_file(tmp_path / "new/model.safetensors")
    assert tensors.keys() == new.keys()
    assert all(torch.equal(tensors[name], new[name]) for name in new)
    assert not (tmp_path / "new/pytorch_model.bin").exists()


def test_without_a_model_type_gelu_is_still_transformers_gelu(tmp_path):
    """Configurations of transformers 2.2 have none; its "gelu" was the erf, Google's is the tanh approximation."""
    AlbertModel(AlbertConfig(**{**TINY, "hidden_act": "gelu"})).save_pretrained(tmp_path / "old")
    change_config(tmp_path / "old", without=("model_type",))
    convert(tmp_path / "old", tmp_path / "new")
    assert AlbertConfig.from_pretrained(tmp_path / "new").hidden_act == "gelu"


@pytest.mark.parametrize("kind", ["safetensors", "bin"])
def test_several_files_with_an_index(folder, tmp_path, kind):
    tensors = load_file(folder / "model.safetensors")
    names = sorted(tensors)
    stem, suffix = ("model", "safetensors") if kind == "safetensors" else ("pytorch_model", "bin")
    (tmp_path / "shards").mkdir()
    (tmp_path / "shards/config.json").write_bytes((folder / "config.json").read_bytes())
    files = {name: f"{stem}-{1 + i % 3:05d}-of-00003.{suffix}" for i, name in enumerate(names)}
    for file in set(files.values()):
        part = {name: tensors[name] for name in names if files[name] == file}
        save = save_file if kind == "safetensors" else torch.save
        save(part, tmp_path / "shards" / file)
    index = tmp_path / "shards" / f"{stem}.{suffix}.index.json"
    write_json(index, {"metadata": {}, "weight_map": files})
    convert(tmp_path / "shards", tmp_path / "out")
    converted = load_file(tmp_path / "out/model.safetensors")
    assert all(torch.equal(converted[name], tensors[name]) for name in names)
    loaded = AlbertForPreTraining.from_pretrained(tmp_path / "shards")
    assert torch.equal(loaded.albert.pooler.weight, tensors["albert.pooler.weight"])

    (tmp_path / "shards" / files[names[0]]).unlink()
    with pytest.raises(CheckpointError, match=r"(?s)\[missing-file\].*which"):
        read_tensors(tmp_path / "shards")
    for broken in ("[]", '{"weight_map": 3}', '{"weight_map": {"nowhere": "../../etc/passwd"}}'):
        index.write_text(broken)
        with pytest.raises(AlbertKitError):
            read_tensors(tmp_path / "shards")


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
def test_other_dtypes_become_fp32(folder, tmp_path, dtype):
    tensors = {
        name: tensor.to(dtype) for name, tensor in load_file(folder / "model.safetensors").items()
    }
    save_file(tensors, folder / "model.safetensors")
    report = convert(folder, tmp_path / "out")
    converted = load_file(tmp_path / "out/model.safetensors")
    for name, tensor in tensors.items():
        assert converted[name].dtype == torch.float32
        assert torch.equal(converted[name], tensor.float())
    assert any("float64" in note for note in report.notes) == (dtype is torch.float64)
    assert read_json(tmp_path / "out/config.json")["dtype"] == "float32"


@pytest.mark.parametrize(
    "change",
    [
        {"hidden_dropout_prob": None},
        {"initializer_range": [1]},
        {"hidden_act": {}},
        {"id2label": 3},
        {"vocab_size": True},
        {"hidden_size": 10**12},
        {"num_hidden_layers": 10**6},
        {"layer_norm_eps": "1e-12"},
    ],
    ids=str,
)
def test_a_configuration_may_say_anything(folder, tmp_path, change):
    change_config(folder, **change)
    with pytest.raises(ConfigError, match=r"\[bad-value\]"):
        convert(folder, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_ids_that_a_model_does_not_have_are_null(folder, tmp_path):
    change_config(folder, bos_token_id=None)
    assert convert(folder, tmp_path / "out").tensors


def test_whole_numbers_are_no_weights(folder, tmp_path):
    tensors = load_file(folder / "model.safetensors")
    tensors["albert.pooler.weight"] = (tensors["albert.pooler.weight"] * 100).to(torch.int8)
    save_file(tensors, folder / "model.safetensors")
    with pytest.raises(CheckpointError, match=r"(?s)\[unsupported\].*int8"):
        convert(folder, tmp_path / "out")


def test_a_pooler_that_the_class_does_not_use_is_kept(folder, tmp_path):
    """albert-base-v2 on the hub is such a file: an `AlbertForMaskedLM` with a pooler, no sentence order."""
    tensors = load_file(folder / "model.safetensors")
    masked_lm = {name: tensor for name, tensor in tensors.items() if not name.startswith("sop")}
    save_file(masked_lm, folder / "model.safetensors")
    change_config(folder, architectures=["AlbertForMaskedLM"])
    report = convert(folder, tmp_path / "out")
    assert report.model_class == "AlbertForMaskedLM"
    assert report.tensors == 30
    assert load_file(tmp_path / "out/model.safetensors").keys() == masked_lm.keys()
    assert torch.equal(
        AlbertModel.from_pretrained(tmp_path / "out").pooler.weight, tensors["albert.pooler.weight"]
    )
    AlbertForMaskedLM.from_pretrained(tmp_path / "out")


def test_differing_copies_of_a_tied_tensor_are_refused(folder, tmp_path):
    tensors = load_file(folder / "model.safetensors")
    tensors["predictions.decoder.bias"] = tensors["predictions.bias"] + 1
    save_file(tensors, folder / "model.safetensors")
    with pytest.raises(
        CheckpointError,
        match=r"(?s)\[weights-mismatch\].*decoder.bias and predictions.bias .* differ",
    ):
        convert(folder, tmp_path / "out")


@pytest.mark.parametrize(
    ("model_class", "labels"),
    [
        (AlbertForSequenceClassification, 3),
        (AlbertForTokenClassification, 5),
        (AlbertForMultipleChoice, 2),
        (AlbertForQuestionAnswering, 2),
        (AlbertForMaskedLM, 2),
        (AlbertModel, 2),
    ],
)
def test_classes_of_transformers_folders(tmp_path, model_class, labels):
    config = AlbertConfig.from_dict({**TINY, "num_labels": labels})
    shaken(model_class(config)).save_pretrained(tmp_path / "model")
    report = convert(tmp_path / "model", tmp_path / "out")
    assert report.model_class == model_class.__name__
    assert AlbertConfig.from_pretrained(tmp_path / "out").num_labels == labels
    change_config(tmp_path / "model", without=("architectures",))
    if model_class in (AlbertForSequenceClassification, AlbertForMultipleChoice):
        with pytest.raises(CheckpointError, match=r"(?s)\[ambiguous\].*--head"):
            convert(tmp_path / "model", tmp_path / "again")
    else:
        assert convert(tmp_path / "model", tmp_path / "again").model_class == model_class.__name__


# --- TensorFlow's side ----------------------------------------------------------------------------


def test_one_output_is_a_regression_or_a_choice_and_nobody_guesses(golden, tmp_path):
    for name in ("race", "regression_stsb"):
        with pytest.raises(
            CheckpointError, match=r"(?s)\[ambiguous\].*a regression .* and multiple choice"
        ) as error:
            convert(golden / "tf1" / name, tmp_path / name)
        assert "--head regression` or `--head multiple-choice`" in error.value.hint
        assert not (tmp_path / name).exists()
    report = convert(golden / "tf1/regression_stsb", tmp_path / "score", head="regression")
    config = AlbertConfig.from_pretrained(tmp_path / "score")
    assert report.model_class == "AlbertForSequenceClassification"
    assert config.num_labels == 1
    assert config.problem_type == "regression"
    convert(golden / "tf1/classifier_mnli", tmp_path / "mnli")
    assert AlbertConfig.from_pretrained(tmp_path / "mnli").num_labels == 3
    with pytest.raises(CheckpointError, match="other shapes"):
        convert(golden / "tf1/classifier_mnli", tmp_path / "wrong", head="multiple-choice")
    with pytest.raises(ConfigError, match="no head `regresion`"):
        convert(golden / "tf1/race", tmp_path / "wrong", head="regresion")


def test_without_a_configuration_it_says_what_cannot_be_known(golden, tmp_path):
    variables = variables_of(golden / "tf1/pretrain_a")
    write_bundle(tmp_path / "bare/model.ckpt-8", variables)
    with pytest.raises(CheckpointError, match=r"\[missing-file\]") as error:
        convert(tmp_path / "bare", tmp_path / "out")
    assert "vocab_size 211, embedding_size 16, max_position_embeddings 48" in error.value.message
    assert (
        "num_attention_heads, num_hidden_layers and hidden_act leave no trace"
        in error.value.message
    )
    report = convert(
        tmp_path / "bare",
        tmp_path / "out",
        config=golden / "tf1/pretrain_a/albert_config.json",
    )
    assert report.tensors
    for name in ("base", "tiny"):
        (tmp_path / "bare" / f"albert_config_{name}.json").write_text("{}")
    with pytest.raises(CheckpointError, match="several configurations"):
        convert(tmp_path / "bare", tmp_path / "other")


def test_heads_come_from_the_configuration(golden, tmp_path):
    """TensorFlow 1's shapes allow any number; the Model Garden's show one, and it must be the configuration's."""
    stated = read_json(golden / "tf1/pretrain_a/albert_config.json")
    write_json(tmp_path / "eight.json", {**stated, "num_attention_heads": 8})
    convert(golden / "tf1/pretrain_a", tmp_path / "out", config=tmp_path / "eight.json")
    assert AlbertConfig.from_pretrained(tmp_path / "out").num_attention_heads == 8
    with pytest.raises(
        CheckpointError,
        match=r"(?s)\[weights-mismatch\].*4 attention heads, the configuration says 8",
    ):
        convert(golden / "tf2/mg22_converted", tmp_path / "tf2", config=tmp_path / "eight.json")


@pytest.mark.parametrize(
    ("source", "change", "reason"),
    [
        ("tf2/mg211_encoder", {"num_hidden_groups": 2}, "keeps the first and drops the others"),
        ("tf2/mg211_encoder", {"inner_group_num": 2}, "keeps the first and drops the others"),
        ("tf1/pretrain_a", {"vocab_size": 210}, ""),
        ("tf1/pretrain_a", {"hidden_size": 64}, ""),
        ("tf1/pretrain_a", {"intermediate_size": 71}, ""),
        ("tf1/pretrain_a", {"num_hidden_groups": 2}, ""),
        ("tf1/pretrain_a", {"embedding_size": 32}, ""),
    ],
)
def test_every_shape_is_checked_against_the_configuration(golden, tmp_path, source, change, reason):
    """Of groups, the Model Garden has dropped all but the first."""
    stated = read_json(golden / source / "albert_config.json")
    write_json(tmp_path / "other.json", {**stated, **change})
    with pytest.raises(CheckpointError, match=rf"(?s)\[weights-mismatch\].*{reason}"):
        convert(golden / source, tmp_path / "out", config=tmp_path / "other.json")


def test_names_on_either_side_are_listed(golden, tmp_path):
    variables = variables_of(golden / "tf1/pretrain_a")
    del variables["bert/pooler/dense/kernel"]
    variables["bert/embeddings/layer_normalization/beta"] = np.zeros(16, np.float32)
    source = tmp_path / "odd"
    write_bundle(source / "model.ckpt-1", variables)
    (source / "albert_config.json").write_bytes(
        (golden / "tf1/pretrain_a/albert_config.json").read_bytes()
    )
    with pytest.raises(CheckpointError, match=r"\[weights-mismatch\]") as error:
        convert(source, tmp_path / "out")
    assert "bert/embeddings/layer_normalization/beta" in error.value.message
    assert "albert.pooler.weight (bert/pooler/dense/kernel)" in error.value.message
    assert not (tmp_path / "out").exists()
    for partly in (["pooler"], ["bert/embeddings/layer_normalization"]):
        with pytest.raises(CheckpointError):
            convert(source, tmp_path / "out", allow_missing=partly)
    report = convert(
        source,
        tmp_path / "out",
        allow_missing=["pooler.weight", "bert/embeddings/layer_normalization"],
    )
    assert report.missing == ["albert.pooler.weight"]
    assert report.unused == ["bert/embeddings/layer_normalization/beta"]
    card = (tmp_path / "out/README.md").read_text()
    assert "Initialised afresh" in card
    assert "- `albert.pooler.weight`" in card
    assert "- `bert/embeddings/layer_normalization/beta`" in card
    fresh = load_file(tmp_path / "out/model.safetensors")["albert.pooler.weight"]
    assert 0.01 < fresh.std() < 0.03


def test_a_head_may_be_asked_for_that_is_not_there(golden, tmp_path):
    """The sentence-order head that the Model Garden dropped; a classifier on an encoder."""
    source = golden / "tf2/mg211_converted_pretrainer"
    with pytest.raises(
        CheckpointError,
        match=r"sop_classifier.classifier.weight \(cls/seq_relationship/output_weights\)",
    ):
        convert(source, tmp_path / "out", head="pretraining")
    report = convert(source, tmp_path / "out", head="pretraining", allow_missing=["sop_classifier"])
    assert report.model_class == "AlbertForPreTraining"
    assert len(report.missing) == 2
    report = convert(
        source, tmp_path / "classes", head="classification", allow_missing=["classifier"]
    )
    assert AlbertForSequenceClassification.from_pretrained(
        tmp_path / "classes"
    ).classifier.weight.shape == (2, 32)


def test_a_hub_modules_scope_and_released_archives(golden, tmp_path):
    """Google's tar.gz: one folder with the checkpoint, its configuration and `30k-clean.model`."""
    variables = {
        f"module/{name}": values for name, values in variables_of(golden / "tf1/pretrain_c").items()
    }
    write_bundle(tmp_path / "albert_base/model.ckpt-best", variables)
    config = (golden / "tf1/pretrain_c/albert_config.json").read_bytes()
    (tmp_path / "albert_base/albert_config.json").write_bytes(config)
    subprocess.run(["tar", "czf", "albert_base_v2.tar.gz", "albert_base"], cwd=tmp_path, check=True)
    report = convert(tmp_path / "albert_base_v2.tar.gz", tmp_path / "out")
    assert report.kind == "TensorFlow 1 checkpoint"
    assert report.model_class == "AlbertForPreTraining"
    assert any("identity" in note for note in report.notes)
    tensors = load_file(tmp_path / "out/model.safetensors")
    assert torch.equal(tensors["albert.encoder.embedding_hidden_mapping_in.weight"], torch.eye(20))


def test_a_hub_module_of_tensorflow_1(golden, tmp_path):
    """Laid out as TF-Hub lays them out: `variables/variables`, `assets/`, no configuration."""
    module = tmp_path / "module"
    write_bundle(module / "variables/variables", variables_of(golden / "tf1/pretrain_b"))
    (module / "assets").mkdir()
    (module / "assets/vocab.txt").write_text("[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\na\n")
    (module / "tfhub_module.pb").write_bytes(b"\x08\x03")
    with pytest.raises(CheckpointError, match=r"\[missing-file\]"):
        convert(module, tmp_path / "out")
    report = convert(module, tmp_path / "out", config=golden / "tf1/pretrain_b/albert_config.json")
    assert report.kind == "SavedModel of TensorFlow 1"
    assert report.model_class == "AlbertForPreTraining"
    assert (tmp_path / "out/vocab.txt").exists()
    config = AlbertConfig.from_pretrained(tmp_path / "out")
    assert config.pad_token_id == 0
    assert config.bos_token_id == 2
    assert config.eos_token_id == 3


@pytest.mark.parametrize(
    "file", ["model.ckpt-8", "model.ckpt-8.index", "model.ckpt-8.data-00000-of-00001", ""]
)
def test_a_checkpoint_has_many_names(golden, tmp_path, file):
    report = convert(golden / "tf1/pretrain_a" / file, tmp_path / "out")
    assert report.skipped == {"adam_m": 32, "adam_v": 32, "global_step": 1}


def test_two_tensors_of_one_name_are_refused(golden, tmp_path):
    variables = variables_of(golden / "tf1/pretrain_a")
    variables["module/bert/pooler/dense/bias"] = variables["bert/pooler/dense/bias"]
    source = tf1_folder(tmp_path / "twice", variables)
    with pytest.raises(CheckpointError, match=r"a second tensor for albert\.pooler\.bias"):
        convert(source, tmp_path / "out")


@pytest.mark.parametrize(
    "shape",
    [
        (),
        (0, 4),
        (2, 2, 2, 2),
        (64,),
    ],
)
def test_variables_of_impossible_shapes_are_an_error(tmp_path, shape):
    name = "bert/encoder/transformer/group_0/inner_group_0/attention_1/self/query/kernel"
    source = tf1_folder(tmp_path / "odd", {name: np.zeros(shape, np.float32)})
    with pytest.raises(CheckpointError, match=r"\[weights-mismatch\]"):
        convert(source, tmp_path / "out")


# --- targets --------------------------------------------------------------------------------------


def test_a_folder_with_something_in_it_is_not_overwritten(folder, tmp_path):
    target = tmp_path / "out"
    target.mkdir()
    convert(folder, target)  # empty: fine
    before = (target / "model.safetensors").read_bytes()
    with pytest.raises(CheckpointError, match=r"(?s)\[exists\].*holds a checkpoint"):
        convert(folder, target)
    (target / "left").touch()
    # Of the weights before, of which they would say what is not so of the new ones
    for name in (
        "pytorch_model.bin",
        "provenance.json",
        "selected.json",
        "SHA256SUMS",
        "task.json",
    ):
        (target / name).touch()
    convert(folder, target, overwrite=True, to="npz")
    assert sorted(path.name for path in target.iterdir()) == [
        "README.md",
        "albert_config.json",
        "left",
        "model.npz",
    ]
    convert(target, tmp_path / "back")
    assert (tmp_path / "back/model.safetensors").read_bytes() == before
    home = tmp_path / "home"
    home.mkdir()
    (home / "thesis.tex").touch()
    for overwrite in (False, True):
        with pytest.raises(CheckpointError, match="holds"):
            convert(folder, home, overwrite=overwrite)
    (tmp_path / "file").touch()
    with pytest.raises(CheckpointError, match="exists already"):
        convert(folder, tmp_path / "file")
    assert not list(tmp_path.glob(".partial*"))


def test_a_source_is_never_its_own_target(folder):
    for target in (folder, folder.parent):
        with pytest.raises(CheckpointError, match=r"\[exists\]"):
            convert(folder, target, overwrite=True)
    assert (folder / "model.safetensors").exists()


class Killed(BaseException):
    """The end of a process: nothing is done after it, not even in a `finally`."""


@pytest.mark.parametrize("overwrite", [False, True])
def test_killed_at_any_moment_the_target_is_whole_or_not_there(
    folder, tmp_path, monkeypatch, overwrite
):
    """Before each flush, rename and removal in turn; first anew, then over another checkpoint."""
    calls = 0
    last = 0

    def dying(function):
        def call(*arguments, **options):
            nonlocal calls
            calls += 1
            if calls > last:
                raise Killed
            return function(*arguments, **options)

        return call

    for owner, name in ((os, "fsync"), (os, "replace"), (shutil, "rmtree"), (Path, "unlink")):
        monkeypatch.setattr(owner, name, dying(getattr(owner, name)))
    target = tmp_path / "out"
    outcomes = []
    for last in range(60):  # noqa: B007 (read by `dying`)
        calls = -1000 if overwrite and not target.exists() else 0
        if calls:
            convert(folder, target)
            calls = 0
        try:
            convert(folder, target, overwrite=overwrite)
            break
        except Killed:
            outcomes.append(target.exists())
        if target.exists():
            calls = -1000
            assert AlbertForPreTraining.from_pretrained(target)
            assert len(list(target.iterdir())) == 3
            if not overwrite:
                break
    assert 5 < len(outcomes) < 60
    assert outcomes.count(overwrite) >= 5


def test_the_tokenizer_and_the_card_come_along(folder, tmp_path, data):
    from albertkit import AlbertTokenizer

    vocabulary = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *"abcdefghij"]
    write_lines(folder / "vocab.txt", vocabulary)
    (folder / "README.md").write_text("---\nlicense: mit\n---\n\n# Mine\n\nTrained with care.\n")
    report = convert(folder, tmp_path / "out")
    assert AlbertTokenizer.from_pretrained(tmp_path / "out").encode(
        "ab"
    ) == AlbertTokenizer.from_pretrained(folder).encode("ab")
    assert any("15 tokens, but the model has 90" in note for note in report.notes)
    card = (tmp_path / "out/README.md").read_text()
    assert card.startswith(
        "---\nlicense: mit\n---\n\n# Mine\n\nTrained with care.\n\n## Conversion\n"
    )
    twice = convert(tmp_path / "out", tmp_path / "twice")
    assert (tmp_path / "twice/README.md").read_text().count("## Conversion") == 1
    assert twice.tensors
    (folder / "vocab.txt").unlink()
    (folder / "spiece.model").write_bytes(b"no model")
    report = convert(folder, tmp_path / "copied")
    assert (tmp_path / "copied/spiece.model").read_bytes() == b"no model"
    assert any("copied as it is" in note for note in report.notes)


@pytest.mark.parametrize("file", ["task.json", "modules.json"])
def test_what_a_finished_model_has_more_is_said(folder, tmp_path, file):
    (folder / file).write_text("{}")
    report = convert(folder, tmp_path / "out")
    assert any(note.startswith(f"left out: `{file}`") for note in report.notes)
    assert f"left out: `{file}`" in (tmp_path / "out/README.md").read_text()


def test_what_is_no_checkpoint(tmp_path):
    (tmp_path / "empty").mkdir()
    (tmp_path / "flax").mkdir()
    (tmp_path / "flax/flax_model.msgpack").touch()
    (tmp_path / "text.txt").touch()
    (tmp_path / "broken.npz").write_bytes(b"PK no zip")
    write_json(tmp_path / "albert_config.json", TINY)
    write_bundle(
        tmp_path / "other/model.ckpt-1", {"resnet/conv/kernel": np.zeros((2, 2), np.float32)}
    )
    expected = {
        "empty": "wrong-kind",
        "flax": "wrong-kind",
        "text.txt": "wrong-kind",
        "broken.npz": "corrupt",
        "other": "wrong-kind",
        "nowhere": "not-found",
    }
    for name, slug in expected.items():
        with pytest.raises(AlbertKitError, match=rf"\[{slug}\]"):
            convert(tmp_path / name, tmp_path / "out")
    with pytest.raises(AlbertKitError, match="Flax weights of transformers"):
        convert(tmp_path / "flax", tmp_path / "out")
    with pytest.raises(ConfigError, match="to cannot be `tf3`"):
        convert(tmp_path / "empty", tmp_path / "out", to="tf3")


def test_a_pickle_that_runs_code_is_refused(folder, tmp_path):
    class Hostile:
        def __reduce__(self):
            return os.mkdir, (str(tmp_path / "executed"),)

    (folder / "model.safetensors").unlink()
    torch.save({"albert.pooler.bias": Hostile()}, folder / "pytorch_model.bin")
    with pytest.raises(CheckpointError, match=r"\[corrupt\]"):
        convert(folder, tmp_path / "out")
    assert not (tmp_path / "executed").exists()
