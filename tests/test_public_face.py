"""What everybody meets first: lazy imports, quick help, errors that are documented, a configuration that counts right."""

import ast
import importlib
import pkgutil
import re
import subprocess
import sys
import tomllib
import warnings
from functools import cache
from pathlib import Path

import pytest

import albertkit
from albertkit import errors
from albertkit.cli import app
from albertkit.config import SIZES, AlbertConfig
from albertkit.errors import AlbertKitError, ConfigError, explain_os_error, suggest_name

ROOT = Path(__file__).parent.parent


HELP = """
import sys
import albertkit
from albertkit import AlbertConfig
from albertkit.cli import main

def refuse(*modules):
    assert not sys.modules.keys() & set(modules), "heavy imports"

refuse("torch", "numpy", "numba", "sentencepiece")
for command in sys.argv[1:]:
    try:
        main([*command.split(), "--help"])
    except SystemExit as ended:
        assert not ended.code
    refuse("torch", "numba")
"""


def test_importing_brings_nothing_heavy_and_help_never_loads_torch():
    commands = [
        "", "pretrain", "corpus build", "corpus inspect", "tokenizer train", "caption train", "caption predict",
        "compare-precision",
    ]  # fmt: skip
    process = subprocess.run(
        [sys.executable, "-c", HELP, *commands], capture_output=True, text=True
    )
    assert process.returncode == 0, process.stderr
    assert process.stdout.count("Usage: albertkit") == len(commands)


def test_every_public_name_stays_what_it_is_when_it_is_used_again():
    first = {name: getattr(albertkit, name) for name in albertkit.__all__}
    # Importing a submodule sets an attribute of its name
    for module in pkgutil.iter_modules(albertkit.__path__):
        importlib.import_module(f"albertkit.{module.name}")
    for name, value in first.items():
        assert getattr(albertkit, name) is value
        assert name == "__version__" or callable(value)
    with pytest.raises(AttributeError, match="no attribute 'AlbertModle'"):
        _ = albertkit.AlbertModle


def test_a_misspelt_command_or_flag_is_answered_with_the_right_one(run_command):
    misspelt = run_command("pretrian")
    assert misspelt.status != 0
    assert "pretrain" in misspelt.out + misspelt.err
    misspelt = run_command("pretrain", "store", "--out", "run", "--lerning-rate", "1")
    assert misspelt.status != 0
    assert "Traceback" not in misspelt.err


def test_a_hint_names_the_nearest_word_or_some_of_many():
    assert suggest_name("mprc", ("mrpc", "stsb")) == "did you mean `mrpc`?"
    assert suggest_name("zzz", ("mrpc", "stsb")) == "known: mrpc, stsb"
    hint = suggest_name("zzz", map(str, range(1000)))
    assert hint.endswith(" and 960 more")
    assert len(hint) < 300


def test_errors_have_no_traceback_and_exit_2(tmp_path, run_command):
    refused = run_command("pretrain", tmp_path / "nothing", "--out", tmp_path / "run")
    assert refused.status == 2
    assert refused.err.removeprefix("albertkit pretrain: loading\n").startswith("error[")
    assert "hint:" in refused.err
    assert "Traceback" not in refused.err
    assert not (tmp_path / "run").exists()


@cache
def slugs_in_source():
    """Map the first arguments of error classes, wherever an error is created, to the classes and their files."""
    slugs = {}
    for file in (ROOT / "src").rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and node.args:
                name = getattr(node.func, "id", getattr(node.func, "attr", ""))
                first = node.args[0]
                slug = first.value if isinstance(first, ast.Constant) else None
                if re.fullmatch(r"\w+Error", name) and re.fullmatch(
                    r"[a-z0-9]+(-[a-z0-9]+)*", str(slug)
                ):
                    slugs.setdefault(slug, {}).setdefault(name, file.name)
    return slugs


def test_every_error_has_a_heading_in_the_documentation():
    headings = set(
        re.findall(
            r"^## ([a-z0-9-]+)$", (ROOT / "docs/errors.md").read_text(encoding="utf-8"), re.M
        )
    )
    used = slugs_in_source()
    assert {slug: uses for slug, uses in used.items() if slug not in headings} == {}
    assert headings - used.keys() == set()
    assert len(headings) <= 45  # families: each one thing that a user can act on


def test_every_slug_has_one_exit_status_and_the_documentation_lists_those_of_1():
    by_exit_status = {slug: {} for slug in slugs_in_source()}
    for slug, uses in slugs_in_source().items():
        for name in uses.keys() - {"ServiceError"}:  # an HTTP status
            by_exit_status[slug].setdefault(getattr(errors, name).exit_code, []).append(
                (name, uses[name])
            )
    assert {slug: statuses for slug, statuses in by_exit_status.items() if len(statuses) > 1} == {}
    page = (ROOT / "docs/errors.md").read_text(encoding="utf-8")
    listed = re.search(r"Exit status 1: .*?\(([^)]*)\)", page, re.S)[1]
    assert set(re.split(r",\s+", listed)) == {
        slug for slug, statuses in by_exit_status.items() if 1 in statuses
    }


def test_operating_system_errors_are_explained():
    assert explain_os_error(OSError(28, "No space left", "x")).slug == "disk-full"
    full = explain_os_error(OSError(28, "No space left", "source", None, "copy"))
    assert "while writing `copy`" in str(full)
    assert explain_os_error(PermissionError(13, "denied", "x")).slug == "no-permission"
    assert explain_os_error(ValueError("ours to fix")) is None


def test_errors_survive_the_way_between_processes():
    import pickle

    error = pickle.loads(
        pickle.dumps(ConfigError("unknown-name", "there is no size `bas`", "did you mean `base`?"))
    )
    assert str(error) == "error[unknown-name]: there is no size `bas`\n\nhint: did you mean `base`?"
    assert isinstance(error, AlbertKitError)


def test_flops_of_base_are_the_published_arithmetic():
    config = AlbertConfig.from_size("base")
    assert config.train_flops_per_token(128) == pytest.approx(0.528e9, rel=2e-3)
    assert config.train_flops_per_token(512) == pytest.approx(0.570e9, rel=2e-3)


def test_versions_differ_in_dropout_alone():
    for size in SIZES:
        version_1 = AlbertConfig.from_size(size, 1)
        version_2 = AlbertConfig.from_size(size, 2)
        assert version_1.hidden_dropout_prob == (0.0 if size == "xxlarge" else 0.1)
        assert version_2.hidden_dropout_prob == version_2.attention_probs_dropout_prob == 0.0
        assert (
            version_1.replace(hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)
            == version_2
        )


def test_impossible_configurations_are_refused():
    for eps in (float("nan"), 0.0, -1e9):
        with pytest.raises(ConfigError, match="layer_norm_eps is"):
            AlbertConfig.from_size("base", layer_norm_eps=eps)
    with pytest.raises(ConfigError, match="num_hidden_groups x inner_group_num is 1 x 1,000,000"):
        AlbertConfig.from_size("base", inner_group_num=1_000_000)
    with pytest.raises(
        ConfigError, match="hidden_size 768 is not divisible by num_attention_heads 10"
    ):
        AlbertConfig.from_size("base", num_attention_heads=10)
    with pytest.raises(ConfigError) as caught:
        AlbertConfig.from_size("base", hiden_size=3)
    assert caught.value.hint == "did you mean `hidden_size`?"
    with pytest.raises(ConfigError) as caught:
        AlbertConfig.from_size("bas")
    assert caught.value.hint == "did you mean `base`?"
    with pytest.warns(UserWarning, match="head size 16"):
        AlbertConfig.from_size(
            "tiny", num_attention_heads=AlbertConfig.from_size("tiny").hidden_size // 16
        )


def test_googles_gelu_is_the_tanh_approximation(tmp_path):
    (tmp_path / "albert_config.json").write_text(
        '{"hidden_act": "gelu", "vocab_size": 30000, "hidden_size": 64, "num_attention_heads": 2}'
    )
    assert AlbertConfig.from_pretrained(tmp_path).hidden_act == "gelu_new"
    (tmp_path / "config.json").write_text(
        '{"model_type": "albert", "hidden_act": "gelu", "id2label": {"0": "no"}}'
    )
    config = AlbertConfig.from_pretrained(tmp_path)
    assert config.hidden_act == "gelu"
    assert config.to_dict()["id2label"] == {"0": "no"}
    (tmp_path / "config.json").write_text(
        '{"hidden_act": "gelu", "hidden_size": 64, "num_attention_heads": 1}'
    )
    assert AlbertConfig.from_pretrained(tmp_path).hidden_act == "gelu"  # transformers' of 2019


def test_constraints_pin_everything_that_is_declared():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    declared = [
        *project["dependencies"],
        *(d for extra in project["optional-dependencies"].values() for d in extra),
    ]
    pinned = {
        line.split("==")[0].lower().replace("_", "-")
        for line in (ROOT / "constraints.txt").read_text().splitlines()
    }
    names = {re.match(r"[\w-]+", d).group().lower().replace("_", "-") for d in declared} - {
        "albertkit"
    }
    assert names - pinned == set()


def test_every_command_answers_help(run_command):
    names = [name for name in app if not name.startswith("-")]
    assert {"pretrain", "evaluate", "quickstart", "corpus", "tokenizer", "doctor"} <= set(names)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert run_command("--help").status == 0


def test_the_name_of_transformers_fast_tokenizer_leads_to_ours():
    with pytest.raises(AttributeError, match=r"use albertkit\.AlbertTokenizer"):
        albertkit.AlbertTokenizerFast  # noqa: B018
