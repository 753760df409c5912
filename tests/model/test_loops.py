"""Compiled loops over bfloat16 give what torch gives in fp32, rounded; what is not finite stays so."""

import os

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch.testing import assert_close

from albertkit.model import cpu_loops, heads

SHAPES = [(1, 1), (3, 1000), (77, 128), (16, 3001)]


@pytest.fixture(autouse=True)
def all_sizes(monkeypatch):
    monkeypatch.setattr(cpu_loops, "_MIN_SIZE", 1)


def half_a_step(expected):
    """Return half of the distance between two bfloat16 at each number, and a little for what the formulas are off by."""
    return expected.abs().clamp(min=1e-30) * 2**-8 * 1.02


@pytest.mark.parametrize("shape", SHAPES)
def test_gelu_and_its_gradient(shape):
    torch.manual_seed(0)
    values = (torch.randn(shape) * 3).bfloat16().requires_grad_()
    grad = torch.randn(shape).bfloat16()
    out = cpu_loops.gelu_new(values)
    out.backward(grad)
    exact = values.detach().float().requires_grad_()
    expected = F.gelu(exact, approximate="tanh")
    expected.backward(grad.float())
    assert ((out.float() - expected).abs() <= half_a_step(expected) + 1e-6).all()
    assert ((values.grad.float() - exact.grad).abs() <= half_a_step(exact.grad) + 3e-6).all()
    assert out.grad_fn.name() == "_GeluBackward"


def test_gelu_of_large_numbers_and_of_what_is_none():
    numbers = [
        -float("inf"),
        -3e38,
        -1000,
        0,
        1000,
        3e38,
        float("inf"),
        float("nan"),
        -float("nan"),
    ]
    values = torch.tensor(numbers).bfloat16().requires_grad_()
    out = cpu_loops.gelu_new(values)
    out.backward(torch.ones_like(out))
    assert_close(out[:7], values[:7].clamp(min=0), rtol=0, atol=1e-27)
    assert_close(values.grad[:7].float(), torch.tensor([0, 0, 0, 0.5, 1, 1, 1]), rtol=0, atol=1e-25)
    assert out[7:].isnan().all()
    assert values.grad[7:].isnan().all()


def test_what_the_loops_do_not_take_goes_to_torch(monkeypatch):
    monkeypatch.setattr(cpu_loops, "_MIN_SIZE", 100)
    for values in (
        torch.randn(200),
        torch.randn(20, 20).bfloat16().t(),
        torch.randn(99).bfloat16(),
    ):
        assert torch.equal(cpu_loops.gelu_new(values), F.gelu(values, approximate="tanh"))


@pytest.mark.parametrize("shape", SHAPES)
def test_exponentials_of_logits(shape, monkeypatch):
    torch.manual_seed(0)
    logits = (torch.randn(shape) * 4).bfloat16()
    labels = torch.randint(0, shape[1], shape[:1])
    labels[::2] = logits.argmax(1)[::2]
    logits[0, -1] = logits[0].max()  # the first of equal ones counts
    results = logits.clone()
    expected = logits.clone()
    total, loss, right = heads.exponentials_and_losses_with_torch(results, labels)
    monkeypatch.setattr(cpu_loops, "is_supported_by_loops", lambda values: False)
    torchs = heads.exponentials_and_losses_with_torch(expected, labels)
    assert_close(total, torchs[0], rtol=1e-5, atol=0)
    assert_close(loss, torchs[1], rtol=1e-5, atol=1e-5)
    assert right == torchs[2] >= (shape[0] + 1) // 2
    exact = (logits.float() - logits.float().amax(1, keepdim=True)).exp()
    assert ((results.float() - exact).abs() <= half_a_step(exact)).all()


def test_of_equal_logits_the_first_is_the_prediction():
    logits = torch.tensor([[1.0, 2.0, 2.0], [-2.0, -1.0, -3.0], [-2.0, -1.0, -3.0]]).bfloat16()
    for labels, right in (([1, 1, 0], 2), ([2, 0, 2], 0)):
        assert (
            heads.exponentials_and_losses_with_torch(logits.clone(), torch.tensor(labels))[2]
            == right
        )


@pytest.mark.parametrize(
    "odd",
    [
        float("inf"),
        float("nan"),
        -float("nan"),
    ],
)
def test_a_row_that_is_not_finite_has_no_loss(odd):
    logits = torch.zeros(2, 40).bfloat16()
    logits[1, 7] = odd
    total, loss, _ = heads.exponentials_and_losses_with_torch(logits, torch.tensor([3, 3]))
    assert total.isnan().flatten().tolist() == [False, True]
    assert loss.isnan()


def test_a_logit_of_minus_infinity_has_no_share():
    logits = torch.tensor([[0.0, -float("inf"), 0.0]]).bfloat16()
    total, loss, right = heads.exponentials_and_losses_with_torch(logits, torch.tensor([0]))
    assert total.item() == pytest.approx(2)
    assert loss.item() == pytest.approx(np.log(2), rel=1e-6)
    assert right == 1
    assert logits.tolist()[0] == pytest.approx([1, 0, 1], abs=1e-29)


@pytest.mark.parametrize(
    "odd",
    [
        float("inf"),
        float("nan"),
        -float("nan"),
    ],
)
def test_attention_to_what_is_not_finite_is_not_a_number(odd):
    qkv = torch.ones(30, 3 * 64).bfloat16()
    qkv[11, 64 + 5] = odd  # a key of the first head of the second sequence
    context = cpu_loops.short_attention(qkv, [10, 20], num_heads=2).isnan()
    assert context[10:, :32].all()
    assert not context[:10].any()
    assert not context[:, 32:].any()


@pytest.mark.parametrize("label", [-1, 40])
def test_a_label_without_a_logit_is_refused(label):
    with pytest.raises(IndexError, match=f"labels go from .*{label}.*, there are 40 logits"):
        heads.exponentials_and_losses_with_torch(
            torch.zeros(2, 40).bfloat16(), torch.tensor([3, label])
        )


def test_lengths_of_other_tokens_are_refused():
    with pytest.raises(ValueError, match="the sequences have 31 tokens, qkv has 30 rows"):
        cpu_loops.short_attention(torch.ones(30, 3 * 64).bfloat16(), [10, 21], num_heads=2)


def test_bits_do_not_depend_on_threads():
    torch.manual_seed(0)
    values = (torch.randn(64, 500) * 3).bfloat16()
    labels = torch.randint(0, 500, (64,))
    threads = torch.get_num_threads()
    results = []
    try:
        for count in (1, 2, 5):
            torch.set_num_threads(count)
            logits = values.clone()
            results.append(
                [
                    cpu_loops.gelu_new(values),
                    *heads.exponentials_and_losses_with_torch(logits, labels),
                    logits,
                ]
            )
    finally:
        torch.set_num_threads(threads)
    for result in results[1:]:
        assert all(map(torch.equal, results[0], result))


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
def test_a_fork_has_threads_of_its_own():
    values = torch.randn(64, 500).bfloat16()
    expected = cpu_loops.gelu_new(values)
    child = os.fork()
    if not child:
        os._exit(not torch.equal(cpu_loops.gelu_new(values), expected))
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
