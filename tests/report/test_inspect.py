"""`albertkit inspect`: exact parameter counts of every size and sharing, and the facts of a checkpoint folder."""

import io
import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from albertkit import model as classes
from albertkit.config import SIZES, AlbertConfig
from albertkit.errors import AlbertKitError
from albertkit.report.inspect import inspect_folder
from albertkit.report.inspect_text import print_inspection
from albertkit.report.sizes import SHARINGS, sizes

TINY = AlbertConfig(
    vocab_size=60, embedding_size=8, hidden_size=32, num_hidden_layers=3, num_attention_heads=1, intermediate_size=48,
    max_position_embeddings=40,
)  # fmt: skip
# Encoder and pooler, and with both heads: variables of the released checkpoints.
PUBLISHED = {
    "base": (11_683_584, 11_813_810),
    "large": (17_683_968, 17_847_474),
    "xlarge": (58_724_864, 59_021_490),
    "xxlarge": (222_595_584, 223_158_450),
}


def test_the_published_sizes_to_the_last_parameter():
    rows = {row["name"]: row for row in sizes()}
    assert {name: (rows[name]["parameters"], rows[name]["with_heads"]) for name in PUBLISHED} == PUBLISHED


def test_berts_are_counted_as_transformers_counts_them():
    transformers = pytest.importorskip("transformers")
    rows = {row["name"]: row for row in sizes()}
    large = dict(hidden_size=1024, num_hidden_layers=24, num_attention_heads=16, intermediate_size=4096)
    for name, changes in (("BERT-base", {}), ("BERT-large", large)):
        with torch.device("meta"):
            model = transformers.BertModel(transformers.BertConfig(**changes))
        assert rows[name]["parameters"] == model.num_parameters(), name


@pytest.mark.parametrize("size", SIZES)
def test_every_sharing_is_counted_as_a_model_of_it_has_parameters(size: str):
    row = next(row for row in sizes() if row["name"] == size)
    for sharing, changes in SHARINGS.items():
        with torch.device("meta"):
            model = classes.AlbertModel(AlbertConfig.from_size(size, **changes))
        assert row["sharing"][sharing] == model.num_parameters(), sharing


def test_sharing_costs_what_the_papers_fourth_table_says():
    base = next(row for row in sizes() if row["name"] == "base")
    paper = {"all": 12, "attention": 64, "ffn": 38, "none": 89}
    for sharing, millions in paper.items():
        assert base["sharing"][sharing] / 1e6 == pytest.approx(millions, abs=0.7), sharing


@pytest.mark.parametrize("sharing", ["all", "attention", "ffn", "none"])
@pytest.mark.parametrize(
    "name", ["AlbertModel", "AlbertForPreTraining", "AlbertForMaskedLM", "AlbertForSequenceClassification"]
)
def test_parts_of_a_folder_add_up_to_the_model(tmp_path: Path, name: str, sharing: str):
    groups = 1 if sharing == "all" else 3
    model = getattr(classes, name)(TINY.replace(parameter_sharing=sharing, num_hidden_groups=groups))
    model.save_pretrained(tmp_path)
    facts = inspect_folder(tmp_path)
    assert facts["class"] == name
    assert facts["problems"] == []
    parameters = facts["parameters"]
    assert parameters["total"] == sum(parameters["parts"].values()) == model.num_parameters()
    assert parameters["stored"] == sum(tensor.numel() for tensor in load_file(tmp_path / "model.safetensors").values())
    assert (parameters["stored"] > parameters["total"]) == (sharing in ("attention", "ffn"))
    assert facts["memory"]["train_fp32"] == 16 * model.num_parameters()
    encoder = model.encoder_model
    assert parameters["parts"]["embeddings"] == sum(p.numel() for p in encoder.embeddings.parameters())
    assert ("pooler" in parameters["parts"]) == (encoder.pooler is not None)


def test_weights_that_do_not_fit_the_configuration_are_said(tmp_path: Path):
    model = classes.AlbertModel(TINY)
    model.save_pretrained(tmp_path)
    tensors = load_file(tmp_path / "model.safetensors")
    tensors["encoder.albert_layer_groups.0.albert_layers.0.ffn.bias"] = torch.zeros(47)
    save_file(tensors, tmp_path / "model.safetensors")
    (problem,) = inspect_folder(tmp_path)["problems"]
    assert "config.json asks for" in problem


def test_a_table_for_people_and_json_for_programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("COLUMNS", "80")
    config = TINY.replace(parameter_sharing="ffn", num_hidden_groups=3)
    classes.AlbertForPreTraining(config).save_pretrained(tmp_path)
    (tmp_path / "provenance.json").write_text('{"store": "0f0f", "length": 24, "seed": 123456}')
    (tmp_path / "spiece.model").write_bytes(b"broken")
    shown = io.StringIO()
    print_inspection(tmp_path, out=shown)
    text = shown.getvalue()
    assert max(map(len, text.splitlines())) <= 80
    for part in ("in a sequence of 24", "once for each of", "0f0f", "123456", "! the tokenizer cannot be read"):
        assert part in " ".join(text.split()), part
    written = io.StringIO()
    print_inspection(tmp_path, as_json=True, length=40, out=written)
    facts = json.loads(written.getvalue())
    assert facts["flops"]["length"] == 40
    assert facts["flops"]["train_per_token"] == config.train_flops_per_token(40)
    shown = io.StringIO()
    print_inspection(None, out=shown)
    assert max(map(len, shown.getvalue().splitlines())) <= 80
    assert "109,482,240" in shown.getvalue()
    written = io.StringIO()
    print_inspection(None, as_json=True, out=written)
    assert len(json.loads(written.getvalue())["sizes"]) == 8


def test_what_cannot_be_inspected_is_answered_with_what_to_do(tmp_path: Path):
    def refused(path: Path, slug: str, hint: str, **options: int):
        with pytest.raises(AlbertKitError) as caught:
            inspect_folder(path, **options)
        assert caught.value.slug == slug
        assert hint in caught.value.hint

    (tmp_path / "tf").mkdir()
    (tmp_path / "tf" / "model.ckpt-best.index").touch()
    (tmp_path / "tf" / "albert_config.json").write_text("{}")
    refused(tmp_path / "tf", "not-converted", f"albertkit convert {tmp_path / 'tf'}")
    refused(tmp_path / "tf" / "model.ckpt-best", "not-converted", "albertkit convert")
    refused(tmp_path / "tf" / "model.ckpt-best.index", "not-converted", "albertkit convert")
    refused(tmp_path / "nowhere", "not-found", "check the path")
    refused(Path("albert/albert-base-v2"), "not-found", "albertkit convert albert/albert-base-v2")
    TINY.save_pretrained(tmp_path / "old")
    refused(tmp_path / "old", "no-weights", "")
    (tmp_path / "old" / "pytorch_model.bin").touch()
    refused(tmp_path / "old", "no-weights", "albertkit convert")
    (tmp_path / "old" / "model.safetensors").write_bytes(b"\xff" * 20)
    refused(tmp_path / "old", "broken-weights", "copy it again")
    refused(tmp_path / "old", "bad-value", "--length 40", length=41)


def test_torch_is_not_imported(tmp_path: Path):
    classes.AlbertForMaskedLM(TINY).save_pretrained(tmp_path)
    code = f"import sys; from albertkit.cli.inspect import inspect; inspect({str(tmp_path)!r}); assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True, capture_output=True)
