"""What is known of a machine, on machines that are not here."""

import os

import pytest
import torch

from albertkit.errors import MissingExtraError
from albertkit.training import processes
from albertkit.training.processes import (
    bf16_peak_flops,
    bf16_peak_of_gpu,
    make_results_repeatable,
    should_compile,
)

CPU = torch.device("cpu")
CUDA = torch.device("cuda:0")


@pytest.mark.parametrize(
    ("name", "tflops"),
    [
        ("NVIDIA H100 80GB HBM3", 989), ("NVIDIA H100 PCIe", 756), ("NVIDIA H100 NVL", 835), ("NVIDIA H200", 989),
        ("NVIDIA H200 NVL", 835), ("NVIDIA GH200 480GB", 989), ("NVIDIA H20", 148), ("NVIDIA A100-SXM4-80GB", 312),
        ("NVIDIA A100 80GB PCIe", 312), ("NVIDIA A10G", 70), ("NVIDIA A10", 125), ("NVIDIA L4", 121), ("NVIDIA L40S", 362),
        ("NVIDIA L40", 181), ("NVIDIA B200", 2250), ("NVIDIA GB200", 2500), ("NVIDIA GeForce RTX 4090", 165),
        ("AMD Instinct MI300X", 1307), ("NVIDIA RTX A1000", None), ("Tesla T4", None), ("NVIDIA A40", None),
    ],
)  # fmt: skip
def test_the_peak_by_the_name_of_the_device(monkeypatch, name, tflops):
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda _: name)
    expected = None if tflops is None else tflops * 1e12
    assert bf16_peak_flops(CUDA) == bf16_peak_of_gpu(name) == expected
    assert bf16_peak_flops(CPU) is None


def test_compilation_is_chosen_on_cuda_and_where_it_is_asked_for(monkeypatch):
    monkeypatch.setattr(processes.importlib.util, "find_spec", lambda _: "found")
    monkeypatch.setattr(processes.shutil, "which", lambda name: f"/usr/bin/{name}")
    assert [should_compile(option, CUDA) for option in ("auto", "on", "off")] == [
        True,
        True,
        False,
    ]
    assert [should_compile(option, CPU) for option in ("auto", "on", "off")] == [
        False,
        True,
        False,
    ]
    monkeypatch.setattr(processes.shutil, "which", lambda name: None)
    for variable in ("CC", "CXX"):
        monkeypatch.delenv(variable, raising=False)
    assert not should_compile("auto", CUDA)
    for device, missing in ((CPU, r"a C\+\+ compiler"), (CUDA, "a C compiler")):
        with pytest.raises(MissingExtraError, match=missing) as caught:
            should_compile("on", device)
        assert caught.value.slug == "not-installed"
    monkeypatch.setattr(processes.importlib.util, "find_spec", lambda _: None)
    with pytest.raises(MissingExtraError, match="triton"):
        should_compile("on", CUDA)


def test_a_gpu_repeats_itself_within_the_context_only(monkeypatch):
    monkeypatch.setattr(processes, "can_multiply_repeatably", lambda device: True)
    with make_results_repeatable(CPU):
        assert not torch.are_deterministic_algorithms_enabled()
    with make_results_repeatable(CUDA):
        assert torch.are_deterministic_algorithms_enabled()
        # Attention's gradient would stay as it is
        assert not torch.is_deterministic_algorithms_warn_only_enabled()
        assert not torch.utils.deterministic.fill_uninitialized_memory
    assert not torch.are_deterministic_algorithms_enabled()
    assert torch.utils.deterministic.fill_uninitialized_memory
    monkeypatch.setattr(processes, "can_multiply_repeatably", lambda device: False)
    with (
        pytest.warns(UserWarning, match="CUBLAS_WORKSPACE_CONFIG=:4096:8"),
        make_results_repeatable(CUDA),
    ):
        assert not torch.are_deterministic_algorithms_enabled()


def test_a_product_that_torch_refuses(monkeypatch):
    assert os.environ["CUBLAS_WORKSPACE_CONFIG"]  # set by importing a model
    assert processes.can_multiply_repeatably(CPU)

    def refuse(*_):
        raise RuntimeError(
            "you must set an environment variable before: CUBLAS_WORKSPACE_CONFIG=:4096:8"
        )

    monkeypatch.setattr(torch, "mm", refuse)
    assert not processes.can_multiply_repeatably(CPU)
