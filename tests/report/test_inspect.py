"""`albertkit inspect`: exact parameter counts of every size and sharing, and the facts of a checkpoint folder."""

import io
import subprocess
import sys
from itertools import accumulate
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from small_models import tiny_config

from albertkit import model as classes
from albertkit.config import SIZES, AlbertConfig
from albertkit.errors import AlbertKitError
from albertkit.model import PackedBatch
from albertkit.model_paths import local_folder
from albertkit.output.render import print_sections
from albertkit.report.inspect import (
    PAPER,
    SHARINGS,
    PublishedSizes,
    estimate_memory_bytes,
    inspect_folder,
    published_sizes,
    size_rows_beside_published,
)

TINY = tiny_config(max_position_embeddings=40)
# Encoder and pooler, and with both heads: variables of the released checkpoints.
PUBLISHED_COUNTS = {
    "base": (11_683_584, 11_813_810),
    "large": (17_683_968, 17_847_474),
    "xlarge": (58_724_864, 59_021_490),
    "xxlarge": (222_595_584, 223_158_450),
}


def printed(result, width=None):
    """What a terminal shows of a result."""
    stream = io.StringIO()
    print_sections(result.sections(), stream, width)
    return stream.getvalue()


def test_the_published_sizes_to_the_last_parameter():
    rows = {row["name"]: row for row in published_sizes()}
    assert {
        name: (rows[name]["parameters"], rows[name]["with_heads"]) for name in PUBLISHED_COUNTS
    } == PUBLISHED_COUNTS


def test_berts_are_counted_as_transformers_counts_them():
    import transformers

    rows = {row["name"]: row for row in published_sizes()}
    large = dict(
        hidden_size=1024, num_hidden_layers=24, num_attention_heads=16, intermediate_size=4096
    )
    for name, changes in (("BERT-base", {}), ("BERT-large", large)):
        with torch.device("meta"):
            model = transformers.BertModel(transformers.BertConfig(**changes))
        assert rows[name]["parameters"] == model.num_parameters(), name


@pytest.mark.parametrize("size", SIZES)
def test_every_sharing_is_counted_as_a_model_of_it_has_parameters(size):
    row = next(row for row in published_sizes() if row["name"] == size)
    for sharing, changes in SHARINGS.items():
        with torch.device("meta"):
            model = classes.AlbertModel(AlbertConfig.from_size(size, **changes))
        assert row["sharing"][sharing] == model.num_parameters(), sharing


def test_sharing_costs_what_the_papers_fourth_table_says():
    base = next(row for row in published_sizes() if row["name"] == "base")
    paper = {"all": 12, "attention": 64, "ffn": 38, "none": 89}
    for sharing, millions in paper.items():
        assert base["sharing"][sharing] / 1e6 == pytest.approx(millions, abs=0.7), sharing


@pytest.mark.parametrize("sharing", ["all", "attention", "ffn", "none"])
@pytest.mark.parametrize(
    "name",
    ["AlbertModel", "AlbertForPreTraining", "AlbertForMaskedLM", "AlbertForSequenceClassification"],
)
def test_parts_of_a_folder_add_up_to_the_model(tmp_path, name, sharing):
    groups = 1 if sharing == "all" else 3
    model = getattr(classes, name)(
        TINY.replace(parameter_sharing=sharing, num_hidden_groups=groups)
    )
    model.save_pretrained(tmp_path)
    facts = inspect_folder(tmp_path)
    assert facts.model_class == name
    assert facts.problems == []
    parameters = facts.parameters
    assert parameters["total"] == sum(parameters["parts"].values()) == model.num_parameters()
    assert parameters["stored"] == sum(
        tensor.numel() for tensor in load_file(tmp_path / "model.safetensors").values()
    )
    assert (parameters["stored"] > parameters["total"]) == (sharing in ("attention", "ffn"))
    assert facts.memory["train_fp32"] == 16 * model.num_parameters()
    encoder = model.encoder_model
    assert parameters["parts"]["embeddings"] == sum(
        p.numel() for p in encoder.embeddings.parameters()
    )
    assert ("pooler" in parameters["parts"]) == (encoder.pooler is not None)


def allocated(model, length):
    """The most bytes that torch holds at once while a sequence is read, by its own profiler."""
    batch = PackedBatch.from_sequences([[5] * length])
    cpu = [torch.profiler.ProfilerActivity.CPU]
    with (
        torch.inference_mode(),
        torch.profiler.profile(activities=cpu, profile_memory=True) as profiled,
    ):
        model.encode(batch)
    events = profiled.profiler.kineto_results.events()
    changes = [
        event.nbytes()
        for event in sorted(events, key=lambda e: e.start_ns())
        if event.name() == "[memory]"
    ]
    return max(accumulate(changes))


@pytest.mark.parametrize(
    ("changes", "length"),
    [
        ({}, 24),
        ({}, 200),
        ({"num_attention_heads": 8, "hidden_size": 256}, 200),
        ({"num_hidden_groups": 3, "inner_group_num": 2}, 64),
        ({"num_hidden_groups": 3, "parameter_sharing": "ffn"}, 64),
    ],
)
def test_memory_to_read_is_what_torch_allocates(changes, length):
    config = TINY.replace(
        **{"hidden_size": 64, "intermediate_size": 256, "max_position_embeddings": 256, **changes}
    )
    model = classes.AlbertModel(config).eval()
    counted = estimate_memory_bytes(config, model.num_parameters(), length)
    measured = counted["load_fp32"] + allocated(model, length)
    assert counted["read_fp32"] == pytest.approx(measured, rel=0.01)
    shorter = estimate_memory_bytes(config, model.num_parameters(), length - 10)
    assert shorter["read_fp32"] != pytest.approx(measured, rel=0.01)  # 1 % tells lengths apart


def test_int8_holds_the_matrices_in_a_byte_a_number():
    for changes in (
        {},
        {"num_hidden_groups": 3, "inner_group_num": 2},
        {"num_hidden_groups": 3, "parameter_sharing": "ffn"},
    ):
        model = classes.AlbertForMaskedLM(TINY.replace(**changes))
        layers = [
            p for name, p in model.named_parameters() if ".albert_layers." in name and p.dim() == 2
        ]
        saved = sum(3 * p.numel() - 4 * len(p) for p in layers)
        counted = estimate_memory_bytes(model.config, model.num_parameters(), 40)
        assert counted["load_int8"] == counted["load_fp32"] - saved


def test_a_model_stands_beside_the_published_ones():
    config = TINY.replace(num_hidden_groups=3, parameter_sharing="attention")
    this_model, *published = size_rows_beside_published(config, 40)
    with torch.device("meta"):
        alone = classes.AlbertModel(config.replace(parameter_sharing="none")).num_parameters()
        assert this_model["parameters"] == classes.AlbertModel(config).num_parameters()
    assert this_model["unshared"] == alone
    assert this_model["saved"] == 1 - this_model["parameters"] / alone
    assert [row["name"] for row in published] == list(PAPER)
    rows = {row["name"]: row for row in published}
    assert rows["BERT-base"]["saved"] == 0
    base = AlbertConfig.from_size("base")
    assert rows["base"]["parameters"] == base.num_parameters() == PUBLISHED_COUNTS["base"][0]
    # BERT and ALBERT of one width compute the same, but for ALBERT's projection of the embedding.
    assert (
        rows["base"]["forward_flops_per_token"] - rows["BERT-base"]["forward_flops_per_token"]
        == 2 * 128 * 768
    )
    assert (
        size_rows_beside_published(config, 20)[1]["forward_flops_per_token"]
        < rows["BERT-base"]["forward_flops_per_token"]
    )


def test_a_run_is_inspected_by_its_best_model(tmp_path):
    (tmp_path / "run.toml").write_text("steps = 3\n")
    with pytest.raises(AlbertKitError) as caught:
        inspect_folder(tmp_path)
    assert caught.value.slug == "not-found"
    assert caught.value.hint == "wait for its first evaluation"
    TINY.save_pretrained(tmp_path / "checkpoints/step-000002")
    with pytest.raises(AlbertKitError) as caught:
        inspect_folder(tmp_path)
    assert str(tmp_path / "checkpoints/step-000002") in caught.value.hint
    for name in ("final", "best"):
        classes.AlbertModel(
            TINY.replace(num_hidden_layers=2 if name == "best" else 3)
        ).save_pretrained(tmp_path / name)
        facts = inspect_folder(tmp_path)
        assert Path(facts.model) == tmp_path / name == local_folder(tmp_path)
        assert facts.run == str(tmp_path)
    assert facts.config["num_hidden_layers"] == 2
    output = printed(inspect_folder(tmp_path))
    assert f"{tmp_path}, of which this is best/" in output
    assert inspect_folder(tmp_path / "best").run is None


def test_weights_that_do_not_fit_the_configuration_are_said(tmp_path):
    model = classes.AlbertModel(TINY)
    model.save_pretrained(tmp_path)
    tensors = load_file(tmp_path / "model.safetensors")
    tensors["encoder.albert_layer_groups.0.albert_layers.0.ffn.bias"] = torch.zeros(47)
    save_file(tensors, tmp_path / "model.safetensors")
    (problem,) = inspect_folder(tmp_path).problems
    assert "config.json asks for" in problem


def test_a_table_for_people_and_json_for_programs(tmp_path, run_command):
    config = TINY.replace(parameter_sharing="ffn", num_hidden_groups=3)
    classes.AlbertForPreTraining(config).save_pretrained(tmp_path)
    (tmp_path / "provenance.json").write_text('{"store": "0f0f", "length": 24, "seed": 123456}')
    (tmp_path / "spiece.model").write_bytes(b"broken")
    output = printed(inspect_folder(tmp_path), width=80)
    assert max(map(len, output.splitlines())) <= 80
    for part in (
        "in a sequence of 24",
        "once for each of",
        "0f0f",
        "123456",
        "✗ the tokenizer cannot be read",
    ):
        assert part in " ".join(output.split()), part
    facts = run_command("inspect", tmp_path, "--length", 40, "--json").json
    assert facts["flops"]["length"] == 40
    assert facts["flops"]["train_per_token"] == config.train_flops_per_token(40)
    output = printed(PublishedSizes(published_sizes()), width=80)
    assert max(map(len, output.splitlines())) <= 80
    assert "109,482,240" in output
    assert len(run_command("inspect", "--json").json["sizes"]) == 8


def test_what_cannot_be_inspected_is_answered_with_what_to_do(tmp_path):
    def refused(path, slug, hint, **options):
        with pytest.raises(AlbertKitError) as caught:
            inspect_folder(path, **options)
        assert caught.value.slug == slug
        assert hint in caught.value.hint

    (tmp_path / "tf").mkdir()
    (tmp_path / "tf/model.ckpt-best.index").touch()
    (tmp_path / "tf/albert_config.json").write_text("{}")
    refused(tmp_path / "tf", "wrong-kind", f"albertkit convert {tmp_path / 'tf'}")
    refused(tmp_path / "tf/model.ckpt-best", "wrong-kind", "albertkit convert")
    refused(tmp_path / "tf/model.ckpt-best.index", "wrong-kind", "albertkit convert")
    refused(tmp_path / "nowhere", "not-found", f"the folders in `{tmp_path}`: tf")
    TINY.save_pretrained(tmp_path / "old")
    refused(tmp_path / "old", "missing-file", "")
    (tmp_path / "old/pytorch_model.bin").touch()
    refused(tmp_path / "old", "corrupt", "copy it again")
    (tmp_path / "old/model.safetensors").write_bytes(b"\xff" * 20)
    refused(tmp_path / "old", "corrupt", "copy it again")
    refused(tmp_path / "old", "bad-value", "--length 40", length=41)
    refused(tmp_path / "old", "bad-value", "--length 40", length=0)


@pytest.mark.parametrize(
    ("provenance", "words", "share"),
    [
        ('{"masked_lm_prob": 0.4}', "40 % of the tokens predicted", 0.4),
        ("{}", "15 % of the tokens predicted, as is usual", 0.15),
    ],
)
def test_a_pretraining_step_predicts_the_share_that_the_model_was_trained_with(
    tmp_path, provenance, words, share
):
    classes.AlbertForPreTraining(TINY).save_pretrained(tmp_path)
    (tmp_path / "provenance.json").write_text(provenance)
    facts = inspect_folder(tmp_path)
    output = printed(facts, width=120)
    assert f"{words}\n" in output if share == 0.4 else f"{words}; the folder does not say" in output
    assert facts.flops["train_per_token"] == TINY.train_flops_per_token(40, share)
    (tmp_path / "provenance.json").write_text('{"masked_lm_prob": "much"}')
    with pytest.raises(AlbertKitError, match="not a share of the tokens"):
        inspect_folder(tmp_path)


def test_torch_is_not_imported(tmp_path):
    classes.AlbertForMaskedLM(TINY).save_pretrained(tmp_path)
    code = "import sys; from albertkit.cli.commands import inspect; inspect(sys.argv[1]); assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code, str(tmp_path)], check=True, capture_output=True)
