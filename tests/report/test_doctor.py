"""Versions against requirements, the machine, and the verdict."""

import importlib.metadata
import json
import os
from types import SimpleNamespace

import pytest

import albertkit
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
    return doctor.examine().sections()[0].values


@pytest.mark.parametrize(
    ("have", "need", "status"),
    [
        ("2.13.0+cpu", ">=2.9", "ok"), ("2.9", ">=2.9", "ok"), ("2.8.1", ">=2.9", "too old"), ("2.10", ">=2.9", "ok"),
        ("6.0", ">=5,<6", "too new"), ("4.9", ">=5,<6", "too old"), ("3.0rc1", ">=2.9", "ok"),
        (None, ">=1", "unreadable"), ("1.0", "", "ok"),
    ],
)  # fmt: skip
def test_versions_are_compared_as_versions(installed, have, need, status):
    installed["torch"] = have
    (row,), _ = doctor.check_requirements([f"torch{need}"])
    assert row["status"] == status
    assert row["installed"] == have


def test_extras_name_what_is_missing_and_the_install_line(installed):
    installed.update({"matplotlib": "3.1", "pyarrow": "20"})
    core, extras = doctor.check_requirements(
        [
            "torch>=2.9", "colorama>=1; sys_platform == 'atari'", "matplotlib>=3.9; extra == 'report'",
            "tensorboard>=2; extra == 'report'", "pyarrow>=17; python_version >= '3' and extra == 'parquet'",
        ]
    )  # fmt: skip
    assert [(row["name"], row["status"]) for row in core] == [("torch", "missing")]
    assert extras["parquet"] == {"complete": True, "packages": extras["parquet"]["packages"], "install": None}
    assert extras["report"]["complete"] is False
    assert [row["status"] for row in extras["report"]["packages"]] == ["too old", "missing"]
    assert extras["report"]["install"] == "pip install -c constraints.txt 'albertkit[report]'"


def test_this_machine_is_described_truly():
    facts = doctor.examine().to_dict()
    json.dumps(facts)
    assert facts["machine"]["cores"] == os.cpu_count()
    if hasattr(os, "sched_getaffinity"):
        assert 1 <= facts["machine"]["usable_cores"] <= len(os.sched_getaffinity(0))
    torch = pytest.importorskip("torch")
    installed = {row["name"]: row["installed"] for row in facts["packages"]}
    assert installed["torch"].split("+")[0] == torch.__version__.split("+")[0]  # wheels may leave the build out
    assert facts["torch"]["threads"] == torch.get_num_threads()
    assert {"report", "parquet", "dev"} <= set(facts["extras"])


def test_cpu_flags_agree_with_torch():
    torch = pytest.importorskip("torch")
    flags = doctor.machine()["cpu_flags"]
    if flags is None or not hasattr(torch.cpu, "get_capabilities"):
        pytest.skip("the system does not tell its flags")
    known = torch.cpu.get_capabilities()
    for flag in ("avx2", "avx512_bf16", "avx512_vnni", "amx_bf16", "amx_int8"):
        assert (flag in flags) == known.get(flag, False), flag


def test_bf16_is_judged_as_auto_precision_judges_it():
    torch = pytest.importorskip("torch")
    from albertkit.engines.processor import faster_bf16, native_bf16

    if doctor.machine()["cpu_flags"] is None or not hasattr(torch.cpu, "get_capabilities"):
        pytest.skip("the system does not tell its flags")
    machine = doctor.machine()
    if any(flag in machine["cpu_flags"] for flag in ("bf16", "sve")):
        pytest.skip("ARM: torch names its abilities otherwise")
    cpu = torch.device("cpu")
    assert (machine["native_bf16"], machine["faster_bf16"]) == (native_bf16(cpu), faster_bf16(cpu))


@pytest.mark.parametrize(
    ("flags", "vendor", "words"),
    [
        ("avx512_bf16", "AuthenticAMD", "in hardware"),
        ("avx512_bf16 amx_bf16", "GenuineIntel", "in hardware"),
        ("avx512_bf16", "GenuineIntel", "in hardware, but not known to be faster than fp32"),
        ("avx2", "AuthenticAMD", "emulated: slower than fp32"),
        ("", "AuthenticAMD", "not known"),
    ],
)
def test_bf16_in_words(monkeypatch, flags, vendor, words):
    monkeypatch.setattr(doctor, "_proc_fields", lambda path: {"flags": flags, "vendor_id": vendor})
    assert machine_facts()["bf16 on the CPU"] == words


def test_a_cuda_device_is_described(monkeypatch):
    torch = pytest.importorskip("torch")
    properties = SimpleNamespace(name="NVIDIA T4", total_memory=16 << 30, major=7, minor=5)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: properties)
    monkeypatch.setattr(attention, "varlen_fault", lambda device: f"no kernel on {device}")
    (device,) = doctor.torch_details()["cuda_devices"]
    assert device == {
        "name": "NVIDIA T4", "memory_bytes": 16 << 30, "compute_capability": "7.5", "native_bf16": False, "bf16_peak": None,
        "packed_attention_fault": "no kernel on cuda:0",
    }  # fmt: skip
    properties.name, properties.major = "NVIDIA H100 80GB HBM3", 9
    facts = machine_facts()
    assert facts["packed attention"] == "does not work: no kernel on cuda:0"
    assert "H100" in facts["CUDA device"]
    assert "bf16 (data sheet: 989 TFLOP/s)" in facts["CUDA device"]


def test_a_missing_compiler_and_a_read_only_folder_are_problems_but_not_fatal(monkeypatch, tmp_path):
    monkeypatch.setenv("CXX", "no-such-compiler --flag")

    def refuse(**_kwargs):
        raise PermissionError

    facts = vars(doctor.examine()).copy()
    monkeypatch.setattr(doctor.tempfile, "TemporaryFile", refuse)
    facts["folders"] = [doctor.folder("cache", tmp_path / "not" / "there")]
    found = doctor.problems(facts)
    assert [problem["fatal"] for problem in found] == [False, False]
    assert "no-such-compiler" in found[1]["fact"]
    assert "XDG_CACHE_HOME" in found[0]["hint"]


def test_a_folder_that_is_not_there_yet_is_judged_by_the_one_above(tmp_path):
    place = doctor.folder("cache", tmp_path / "not" / "there")
    assert place["writable"]
    assert place["free_bytes"] > 0
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
        shown = ran.out
        assert ran.status == 1
        assert ("sentencepiece is missing" if have is None else "sentencepiece is too old: 0.0.1") in shown
        assert "pip install -c constraints.txt albertkit" in shown


def test_a_torch_that_cannot_be_imported_is_fatal(monkeypatch):
    facts = vars(doctor.examine()).copy()
    facts["torch"] = {"error": "OSError: libtorch.so: cannot open shared object file"}
    (problem,) = [problem for problem in doctor.problems(facts) if problem["fatal"]]
    assert "libtorch.so" in problem["fact"]
    assert "libtorch.so" in doctor.as_markdown(doctor.Examination(**facts | {"problems": [problem]}))


def test_markdown_is_tables_that_do_not_name_the_home_folder(monkeypatch):
    found = doctor.examine()
    monkeypatch.setenv("HOME", os.path.dirname(found.python["executable"]))
    shown = doctor.as_markdown(found)
    assert shown.startswith("### albertkit doctor\n\n|  |  |\n| --- | --- |\n")
    assert "| package | installed | needed | state |" in shown
    assert f"~/{os.path.basename(found.python['executable'])}" in shown
    assert "\x1b" not in shown


def test_a_copy_that_is_not_installed_is_refused(installed, slug_of):
    assert slug_of(doctor.examine) == "not-installed"


def test_the_command_prints_one_object_or_plain_tables(run_command):
    done = run_command("doctor", "--json")
    assert done.json["albertkit"] == albertkit.__version__
    assert {row["name"] for row in done.json["packages"]} >= {"torch", "numpy", "sentencepiece", "jinja2"}
    assert done.status == any(problem["fatal"] for problem in done.json["problems"])
    assert done.err == ""
    assert "sentencepiece" in run_command("doctor").out
    assert "\x1b" not in run_command("doctor").out
    done = run_command("doctor", "--json", "--markdown")
    assert (done.status, "error[conflicting-options]" in done.err) == (2, True)


def test_everything_is_compiled_beforehand(run_command, tmp_path):
    done = run_command("doctor", "--warm", "--json")
    assert done.status == 0, done.err
    assert {"tokenizers and stores", "pretraining", "engine in fp32", "engine in int8"} <= done.json["seconds"].keys()
    assert all(seconds >= 0 for seconds in done.json["seconds"].values())
    assert "conflicting-options" in run_command("doctor", tmp_path, "--warm").err
