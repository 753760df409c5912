"""What is done on a GPU only, as far as a CPU can do it: the same functions, with a stand-in for the kernel."""

from itertools import pairwise

import pytest
import torch
import torch.nn.functional as F

from albertkit.model import PackedBatch, attention
from albertkit.model.attention import packed_attention, varlen_attention_problem
from albertkit.model.heads import top_and_correct_on_accelerator, top_and_correct_on_cpu


def test_right_predictions_are_counted_alike_where_logits_are_equal():
    generator = torch.Generator().manual_seed(0)
    for _ in range(20):
        logits = torch.randint(0, 4, (50, 7), generator=generator).float()  # many equal ones
        target = torch.randint(0, 7, (50,), generator=generator)
        label_logits = logits.gather(1, target[:, None])
        expected, actual = (
            count(logits, label_logits, target)
            for count in (top_and_correct_on_cpu, top_and_correct_on_accelerator)
        )
        assert torch.equal(actual[0], expected[0])
        assert int(actual[1]) == int(expected[1]) == int((logits.argmax(1) == target).sum()) > 0


def stand_in(query, key, value, starts, key_starts, longest, longest_key):
    """torch's packed attention by its documentation: [T, A, D], int32 offsets, SDPA within each sequence."""
    assert starts.dtype == key_starts.dtype == torch.int32
    assert torch.equal(starts, key_starts)
    assert longest == longest_key == int(starts.diff().max())
    assert query.stride(-1) == 1
    assert query.data_ptr() % 16 == query.stride(0) * query.element_size() % 16 == 0
    parts = []
    for start, end in pairwise(starts.tolist()):
        sequence = (tensor[start:end].transpose(0, 1) for tensor in (query, key, value))
        parts.append(F.scaled_dot_product_attention(*sequence).transpose(0, 1))
    return torch.cat(parts)


@pytest.mark.parametrize("lengths", [(5, 1, 33), (200, 3)])
def test_the_call_of_packed_attention(monkeypatch, lengths):
    batch = PackedBatch.from_sequences([[1] * n for n in lengths])
    heads = 3
    size = 8
    qkv = torch.randn(
        sum(lengths), 3 * heads * size, generator=torch.Generator().manual_seed(1)
    ).to(torch.bfloat16)
    expected = packed_attention(qkv, batch, heads)
    # On a CPU, `packed_attention` asks for nothing else: let it believe it is compiled, as on CUDA.
    monkeypatch.setattr(torch.compiler, "is_compiling", lambda: True)
    monkeypatch.setattr(attention, "_VARLEN_DEVICES", ("cpu",))
    monkeypatch.setattr(attention, "_varlen_attention", lambda: stand_in)
    torch.testing.assert_close(packed_attention(qkv, batch, heads), expected, atol=0.02, rtol=0.02)
    monkeypatch.setattr(attention, "_varlen_attention", lambda: pytest.fail)
    for refused, dropout in (
        (qkv.float(), 0.0),
        (qkv, 0.5),
        (qkv[:, : 3 * heads * 4].clone(), 0.0),
    ):
        assert packed_attention(refused, batch, heads, dropout).shape == (
            len(qkv),
            refused.shape[1] // 3,
        )


def test_a_device_without_packed_attention_is_told_why(monkeypatch):
    assert varlen_attention_problem(torch.device("cpu")) == "torch has none for cpu"
    varlen_attention_problem.cache_clear()
    monkeypatch.setattr(attention, "_VARLEN_DEVICES", ("cpu",))
    assert "CPU" in varlen_attention_problem(torch.device("cpu"))  # the trial: torch's own reason
    varlen_attention_problem.cache_clear()
    monkeypatch.setattr(attention, "_varlen_attention", lambda: None)
    assert "2.10 is the first" in varlen_attention_problem(torch.device("cpu"))
    varlen_attention_problem.cache_clear()
    monkeypatch.setattr(attention, "_varlen_attention", lambda: stand_in)
    assert varlen_attention_problem(torch.device("cpu")) == ""
    varlen_attention_problem.cache_clear()
