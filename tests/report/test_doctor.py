"""Versions against requirements, the machine, and the verdict."""

import importlib.metadata
import json
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

import albertkit
from albertkit.engines import engine
from albertkit.model import attention
from albertkit.report import doctor


@pytest.fixture
def installed(monkeypatch):
    """Pretend that exactly these packages are installed."""
    versions = {}

    def version(name):
        if name not in versions:
            raise importlib.metadata.PackageNotFoundError(name)
        return versions[name]

    monkeypatch.setattr(importlib.metadata, "version", version)
    return versions


def machine_facts():
    return doctor.examine_machine().sections()[0].values


@pytest.mark.parametrize(
    ("have", "need", "status"),
    [
        ("2.13.0+cpu", ">=2.9", "ok"),
        ("2.9", ">=2.9", "ok"),
        ("2.8.1", ">=2.9", "too old"),
        ("2.10", ">=2.9", "ok"),
        ("6.0", ">=5,<6", "too new"),
        ("4.9", ">=5,<6", "too old"),
        ("3.0rc1", ">=2.9", "ok"),
        (None, ">=1", "unreadable"),
        ("1.0", "", "ok"),
    ],
)
def test_versions_are_compared_as_versions(installed, have, need, status):
    installed["torch"] = have
    (row,), _ = doctor.examine_core_and_extras([f"torch{need}"])
    assert row["status"] == status
    assert row["installed"] == have


def test_extras_name_what_is_missing_and_the_install_line(installed):
    installed.update({"matplotlib": "3.1", "pyarrow": "20"})
    core, extras = doctor.examine_core_and_extras(
        [
            "torch>=2.9",
            "colorama>=1; sys_platform == 'atari'",
            "matplotlib>=3.9; extra == 'report'",
            "tensorboard>=2; extra == 'report'",
            "pyarrow>=17; python_version >= '3' and extra == 'parquet'",
        ]
    )
    assert [(row["name"], row["status"]) for row in core] == [("torch", "missing")]
    assert extras["parquet"] == {
        "complete": True,
        "packages": extras["parquet"]["packages"],
        "install": None,
    }
    assert extras["report"]["complete"] is False
    assert [row["status"] for row in extras["report"]["packages"]] == ["too old", "missing"]
    assert extras["report"]["install"] == "pip install -c constraints.txt 'albertkit[report]'"


def test_this_machine_is_described_truly():
    facts = doctor.examine_machine().to_dict()
    json.dumps(facts)
    assert facts["machine"]["cores"] == os.cpu_count()
    if hasattr(os, "sched_getaffinity"):
        assert 1 <= facts["machine"]["usable_cores"] <= len(os.sched_getaffinity(0))
    import torch

    installed = {row["name"]: row["installed"] for row in facts["packages"]}
    # Wheels may leave the build out
    assert installed["torch"].split("+")[0] == torch.__version__.split("+")[0]
    assert facts["torch"]["threads"] == torch.get_num_threads()
    assert {"report", "parquet", "dev"} <= set(facts["extras"])


def test_the_instructions_are_those_of_the_system():
    flags = [
        line for line in Path("/proc/cpuinfo").read_text().splitlines() if line.startswith("flags")
    ]
    if not flags:
        pytest.skip("the system does not tell its flags")
    torch_facts = doctor.torch_facts()
    for name in ("avx2", "avx512_bf16", "avx512_vnni", "amx_bf16", "amx_int8"):
        assert (name in torch_facts["cpu_instructions"]) == (name in flags[0].split()), name
    assert ("fp32" in torch_facts["packed_precisions"]) == ("avx512dq" in flags[0].split())


@pytest.mark.parametrize(
    ("instructions", "vendor", "words", "engines"),
    [
        ("avx512_dq avx512_bf16", "AuthenticAMD", "in hardware", "packed weights in fp32, bf16"),
        ("avx512_bf16 amx_bf16", "GenuineIntel", "in hardware", "torch's products: packed weights need AVX-512"),
        ("avx512_dq avx512_vnni avx512_bf16", "GenuineIntel", "in hardware, but not known to be faster than fp32",
         "packed weights in fp32, bf16, int8"),
        ("avx2", "AuthenticAMD", "emulated, or not known to be faster than fp32",
         "torch's products: packed weights need AVX-512"),
    ],
)  # fmt: skip
def test_what_the_engines_make_of_a_processor_is_said(
    monkeypatch, instructions, vendor, words, engines
):
    monkeypatch.setattr(
        engine,
        "has_instructions",
        lambda *names: any(name in instructions.split() for name in names),
    )
    monkeypatch.setattr(engine, "is_intel", lambda: vendor == "GenuineIntel")
    facts = machine_facts()
    assert facts["bf16 on the CPU"] == words
    assert facts["engines"] == engines


def test_a_cuda_device_is_described(monkeypatch):
    import torch

    properties = SimpleNamespace(name="NVIDIA T4", total_memory=16 << 30, major=7, minor=5)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: properties)
    monkeypatch.setattr(
        attention, "varlen_attention_problem", lambda device: f"no kernel on {device}"
    )
    (device,) = doctor.torch_facts()["cuda_devices"]
    assert device == {
        "name": "NVIDIA T4",
        "memory_bytes": 16 << 30,
        "compute_capability": "7.5",
        "native_bf16": False,
        "bf16_peak": None,
        "packed_attention_fault": "no kernel on cuda:0",
    }
    properties.name = "NVIDIA H100 80GB HBM3"
    properties.major = 9
    facts = machine_facts()
    assert facts["packed attention"] == "does not work: no kernel on cuda:0"
    assert "H100" in facts["CUDA device"]
    assert "bf16 (data sheet: 989 TFLOP/s)" in facts["CUDA device"]


def test_a_missing_compiler_and_a_read_only_folder_are_problems_but_not_fatal(
    monkeypatch, tmp_path
):
    monkeypatch.setenv("CXX", "no-such-compiler --flag")

    def refuse(**_kwargs):
        raise PermissionError

    facts = vars(doctor.examine_machine()).copy()
    monkeypatch.setattr(doctor.tempfile, "TemporaryFile", refuse)
    facts["folders"] = [doctor.folder_write_facts("cache", tmp_path / "not/there")]
    problems = doctor.find_problems(facts)
    assert [problem["fatal"] for problem in problems] == [False, False]
    assert "no-such-compiler" in problems[1]["fact"]
    assert "XDG_CACHE_HOME" in problems[0]["hint"]


def test_a_folder_that_is_not_there_yet_is_judged_by_the_one_above(tmp_path):
    folder = doctor.folder_write_facts("cache", tmp_path / "not/there")
    assert folder["writable"]
    assert folder["free_bytes"] > 0
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("have", ["2.8.0", None])
def test_an_old_or_missing_core_package_is_fatal_and_exits_1(monkeypatch, run_command, have):
    real = importlib.metadata.version

    def version(name):
        if name == "sentencepiece" and have is None:
            raise importlib.metadata.PackageNotFoundError(name)
        return "0.0.1" if name == "sentencepiece" else real(name)

    monkeypatch.setattr(importlib.metadata, "version", version)
    for options in ([], ["--markdown"]):
        ran = run_command("doctor", *options)
        output = ran.out
        assert ran.status == 1
        assert (
            "sentencepiece is missing" if have is None else "sentencepiece is too old: 0.0.1"
        ) in output
        assert "pip install -c constraints.txt albertkit" in output


def test_a_torch_that_cannot_be_imported_is_fatal(tmp_path):
    (tmp_path / "torch").mkdir()
    (tmp_path / "torch/__init__.py").write_text(
        'raise OSError("libtorch.so: cannot open shared object file")'
    )
    paths = os.pathsep.join([str(tmp_path), *filter(None, [os.environ.get("PYTHONPATH")])])
    command = [sys.executable, "-m", "albertkit", "doctor"]
    for option in ("--json", "--markdown"):
        process = subprocess.run(
            [*command, option],
            env=os.environ | {"PYTHONPATH": paths},
            capture_output=True,
            text=True,
        )
        assert process.returncode == 1
        assert process.stderr == ""
        assert "torch cannot be imported: OSError: libtorch.so" in process.stdout


def test_markdown_is_tables_that_do_not_name_the_home_folder(monkeypatch):
    examination = doctor.examine_machine()
    monkeypatch.setenv("HOME", os.path.dirname(examination.python["executable"]))
    markdown = doctor.as_markdown(examination)
    assert markdown.startswith("### albertkit doctor\n\n|  |  |\n| --- | --- |\n")
    assert "| package | installed | needed | state |" in markdown
    assert f"~/{os.path.basename(examination.python['executable'])}" in markdown
    assert "\x1b" not in markdown


def test_a_copy_that_is_not_installed_is_refused(installed, slug_of):
    assert slug_of(doctor.examine_machine) == "not-installed"


def test_the_command_prints_one_object_or_plain_tables(run_command):
    result = run_command("doctor", "--json")
    assert result.json["albertkit"] == albertkit.__version__
    assert {row["name"] for row in result.json["packages"]} >= {
        "torch",
        "numpy",
        "sentencepiece",
        "jinja2",
    }
    assert result.status == any(problem["fatal"] for problem in result.json["problems"])
    assert result.err == ""
    assert "sentencepiece" in run_command("doctor").out
    assert "\x1b" not in run_command("doctor").out
    result = run_command("doctor", "--json", "--markdown")
    assert result.status == 2
    assert "error[conflicting-options]" in result.err


def test_everything_is_compiled_beforehand(run_command, tmp_path):
    result = run_command("doctor", "--warm", "--json")
    assert result.status == 0, result.err
    assert {
        "tokenizers and stores",
        "pretraining",
        "engine in fp32",
        "engine in int8",
    } <= result.json["seconds"].keys()
    assert all(seconds >= 0 for seconds in result.json["seconds"].values())
    assert "compiling:" not in result.err
    lines = run_command("doctor", "--warm").err.splitlines()
    assert lines == [f"compiling: {part}" for part in result.json["seconds"]]
    assert "conflicting-options" in run_command("doctor", tmp_path, "--warm").err
