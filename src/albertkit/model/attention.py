"""Bidirectional attention inside each sequence of a packed batch; one function hides how it is done.

T tokens of N sequences, S tokens in one sequence, A heads of width D, H = A·D.

CPU: one sequence at a time, as plain matrix products over views of the packed projections: no
padding, no gathering. Forward and backward on two Zen 4 cores, torch 2.13, in ms, against
`scaled_dot_product_attention` on the same views:

    64 sequences of <= 128, H 384    fp32  33 (SDPA  36)    bf16  31 (SDPA  76)
    16 sequences of <= 512, H 768    fp32 209 (SDPA 220)    bf16 116 (SDPA 233)

Gathering into padded buckets of like length with a key mask was slower still (fp32 60 and 350, bf16
89 and 273), because SDPA with a mask is. The price is keeping the probabilities for the backward
pass: A·S values a token.

Short sequences are the exception: there the calls themselves cost most. Of nearly one length, a few
products over all sequences at once take half to a third of the time (17 of <= 64, H 192, bf16: 1.6
ms against 5.8; 32 of 128, H 256: 10.5 against 21.3; from 64 of <= 128, H 384, on there is no
difference); in bf16, compiled loops take the shortest ones (`choose_attention`).

CUDA: `torch.nn.attention.varlen` in half precision (its defaults mean bidirectional in every
version); where that cannot do it (fp32, dropout, odd head sizes), one padded SDPA call. A compiled
model uses the same two: their shapes do not depend on the lengths of each sequence. Padded batches
are one SDPA call everywhere.
"""

from collections.abc import Callable, Iterable, Sequence
from functools import cache
from itertools import accumulate
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from albertkit.batches.packed import PackedBatch
from albertkit.model import cpu_loops
from albertkit.model.padded import PaddedBatch

_VARLEN_DEVICES = ("cuda",)


def _varlen_attention() -> Callable[..., Any] | None:
    """Return torch's packed attention, or None before torch 2.10. Imported on first use: it brings torch._dynamo, 1.1 s.

    An import statement, which a compiler follows; it does not follow `import_module`.
    """
    try:
        from torch.nn.attention.varlen import varlen_attn
    except ImportError:
        return None
    return varlen_attn


@cache
def varlen_attention_problem(device: torch.device) -> str:
    """Return why torch's packed attention cannot be used on a device; empty if a trial works, with its gradient."""
    attend = _varlen_attention()
    if attend is None:
        return f"torch {torch.__version__} has none, 2.10 is the first that does"
    if device.type not in _VARLEN_DEVICES:
        return f"torch has none for {device.type}"
    try:
        with torch.inference_mode(False), torch.enable_grad():
            qkv = torch.zeros(16, 3, 2, 64, dtype=torch.bfloat16, device=device, requires_grad=True)
            offsets = torch.tensor([0, 16], dtype=torch.int32, device=device)
            attend(*qkv.unbind(1), offsets, offsets, 16, 16).sum().backward()
    except (
        RuntimeError,
        NotImplementedError,
    ) as error:  # an older GPU, or a torch built without these kernels
        return str(error).split("\n", 1)[0]
    return ""


def packed_attention(
    qkv: Tensor, batch: PackedBatch | PaddedBatch, num_heads: int, dropout: float = 0.0
) -> Tensor:
    """Compute scaled dot-product attention; a token sees the tokens of its own sequence.

    Args:
        qkv: [T, 3H], queries, keys and values side by side, each as A heads of width D.
        batch: Its `offsets` and `lengths` delimit the sequences.
        num_heads: A.
        dropout: Probability of dropping an attention probability.

    Returns:
        [T, H].
    """
    if isinstance(batch, PaddedBatch):
        return _masked_attention(
            qkv.view(*batch.mask.shape, -1), batch.mask, num_heads, dropout
        ).flatten(0, 1)
    if qkv.device.type == "cpu" and not torch.compiler.is_compiling():
        cheapest = choose_attention(
            batch.lengths,
            num_heads,
            qkv.dtype,
            with_loops=not dropout and cpu_loops.is_supported_by_loops(qkv),
        )
        # Not torch's scaled_dot_product_attention: 64 sequences of up to 128, H 384, bf16, forward
        # and backward 31 ms for 76, 16 of up to 512, H 768 116 for 233.
        if cheapest == "loops":
            return cpu_loops.short_attention(qkv, batch.lengths, num_heads)
        if cheapest == "even":
            return _even_attention(qkv, batch, num_heads, dropout)
        return _SequenceAttention.apply(qkv, batch.lengths, num_heads, dropout)
    query, key, value = qkv.view(len(qkv), 3, num_heads, -1).unbind(1)
    size = query.shape[-1]
    # torch's packed attention knows no dropout and half precision only. Heads of a multiple of 8
    # keep every row of the view aligned to 16 bytes, which the kernel reads at once.
    is_supported = (
        dropout == 0
        and query.dtype in (torch.bfloat16, torch.float16)
        and size % 8 == 0
        and size <= 256
    )
    # What is compiled is not tried first.
    is_compiling = torch.compiler.is_compiling()
    if (
        is_supported
        and qkv.device.type in _VARLEN_DEVICES
        and (is_compiling or not varlen_attention_problem(qkv.device))
    ):
        attend = _varlen_attention()
        if attend is not None:
            offsets = batch.offsets.int()  # the kernel takes no others
            return attend(
                query, key, value, offsets, offsets, batch.longest, batch.longest
            ).reshape(len(qkv), -1)
    return padded_attention(qkv, batch, num_heads, dropout)


def choose_attention(
    lengths: tuple[int, ...], num_heads: int, dtype: torch.dtype, with_loops: bool
) -> str:
    """Return how sequences attend in the least time on a CPU: all at once ("even"), one by one, or in compiled loops."""
    # Nanoseconds forward and backward on two cores of an Intel Xeon. 32 sequences, 12 heads, bf16,
    # milliseconds even, one by one, loops: SST-2's of 14 tokens, 34 at most, 8.3, 12.4, 2.8; MRPC's
    # of 54 17.4, 18.3, 26.5; of 32 each 3.8, 14.1, 8.4. In fp32 a call costs less and a number
    # more: 9.2 and 4.9, 31 and 13, 6.0 and 6.9.
    a_sequence, a_padded_score = (3.5e5, 5.5) if dtype == torch.bfloat16 else (1.2e5, 11.0)
    count = len(lengths)
    longest = max(lengths)
    squares = sum(n * n for n in lengths)
    costs = {
        "even": 1e6 + num_heads * count * longest * (200 + a_padded_score * longest),
        "one by one": a_sequence * count + num_heads * squares * 6.5,
    }
    if with_loops:
        costs["loops"] = 3e5 + num_heads * squares * 19
    return min(costs, key=lambda name: costs[name])


def _even_attention(qkv: Tensor, batch: PackedBatch, num_heads: int, dropout: float) -> Tensor:
    """Compute all sequences at once; padding gets a large negative score."""
    count, longest = batch.num_sequences, batch.longest
    mask = None
    if count * longest > len(qkv):
        mask = batch.padding_mask()
        indices = mask.flatten().nonzero().squeeze(1)
        qkv = qkv.new_zeros(count * longest, qkv.shape[1]).index_copy(0, indices, qkv)
    # The product itself adds the score of padding: 32 of 96 to 128, H 384, bf16, forward and
    # backward 20 to 25 ms; filled in afterwards 25 to 29, the same bits.
    hidden = qkv.new_zeros(count, longest)
    if mask is not None:
        hidden.masked_fill_(~mask, torch.finfo(qkv.dtype).min)
    hidden = hidden.repeat_interleave(num_heads, 0)[:, None]
    context = _EvenAttention.apply(qkv.view(count, longest, -1), hidden, num_heads, dropout)
    return context if mask is None else context.index_select(0, indices)


class _EvenAttention(torch.autograd.Function):
    """Softmax attention of N sequences of one length S: [N, S, 3H] to [N·S, H]; `hidden` [N·A, 1, S] is added to scores."""

    @staticmethod
    def forward(ctx: Any, qkv: Tensor, hidden: Tensor, num_heads: int, dropout: float) -> Tensor:
        count, longest, _ = qkv.shape
        heads = qkv.view(count, longest, 3, num_heads, -1).permute(2, 0, 3, 1, 4)
        query, key, value = (part.flatten(0, 1) for part in heads)
        # One tensor of all scores forward and one backward, written over: autograd makes three of
        # each. 8 of 512, 12 heads, bf16, forward and backward on two cores with AMX 61 → 55 ms, and
        # 106 → 81 where glibc gives such blocks back at once; 8 of 384 34 → 29 and 58 → 29; 32 of
        # 128 25 → 21.
        probabilities = torch.baddbmm(
            hidden, query, key.transpose(1, 2), alpha=query.shape[-1] ** -0.5
        )
        weights = torch.softmax(probabilities, -1, out=probabilities)
        dropped = None
        if dropout:
            weights, dropped = torch.native_dropout(probabilities, dropout, True)
        ctx.save_for_backward(query, key, value, probabilities, dropped)
        ctx.num_heads, ctx.dropout = num_heads, dropout
        context = torch.bmm(weights, value).unflatten(0, (count, num_heads))
        return context.transpose(1, 2).reshape(count * longest, -1)

    @staticmethod
    @cpu_loops.differentiable_once
    def backward(ctx: Any, grad_context: Tensor) -> tuple[Tensor | None, ...]:
        *attended, probabilities, dropped = ctx.saved_tensors
        rows, longest, width = attended[0].shape
        heads = ctx.num_heads
        count = rows // heads
        grad_out = grad_context.view(count, longest, heads, width).transpose(1, 2)
        grad_qkv = grad_context.new_empty(count, longest, 3, heads, width)
        _write_gradients(
            attended,
            probabilities,
            dropped,
            ctx.dropout,
            grad_out.reshape(rows, longest, width),
            grad_qkv.permute(2, 0, 3, 1, 4),
        )
        return grad_qkv.flatten(2), None, None, None


def _write_gradients(
    attended: Sequence[Tensor],
    probabilities: Tensor,
    dropped: Tensor | None,
    dropout: float,
    grad_out: Tensor,
    out: Iterable[Tensor],
) -> None:
    """Write the gradients of queries, keys and values [A, S, D] into `out`, given that of their context.

    `dropped` is the mask of the probabilities [A, S, S] that were kept; None without dropout.
    """
    query, key, value = attended
    grad_weights, weights = torch.bmm(grad_out, value.transpose(1, 2)), probabilities
    if dropped is not None:
        keep = 1 / (1 - dropout)
        weights = probabilities * dropped * keep
        grad_weights.mul_(dropped).mul_(keep)
    grad_query, grad_key, grad_value = out
    shape = grad_value.shape
    grad_value.copy_(torch.bmm(weights.transpose(1, 2), grad_out).view(shape))
    # The gradient of probabilities is replaced by that of scores: row by row, and a row is read
    # before it is written.
    grad_scores = torch.ops.aten._softmax_backward_data.out(
        grad_weights, probabilities, -1, grad_weights.dtype, grad_input=grad_weights
    )
    scale = query.shape[-1] ** -0.5
    grad_query.copy_(torch.baddbmm(query, grad_scores, key, beta=0, alpha=scale).view(shape))
    grad_key.copy_(
        torch.baddbmm(key, grad_scores.transpose(1, 2), query, beta=0, alpha=scale).view(shape)
    )


def attention_probabilities(
    qkv: Tensor, batch: PackedBatch | PaddedBatch, num_heads: int
) -> list[Tensor] | Tensor:
    """Return what `packed_attention` weighs values with, for people to look at; not on the fast path.

    Returns:
        N tensors [A, S, S], each of its sequence's length; of a padded batch one tensor [B, A, S,
        S].
    """
    if isinstance(batch, PaddedBatch):
        query, key, _ = qkv.view(*batch.mask.shape, 3, num_heads, -1).permute(2, 0, 3, 1, 4)
        scores = query @ key.transpose(-1, -2) * query.shape[-1] ** -0.5
        return scores.masked_fill(
            ~batch.mask[:, None, None], torch.finfo(scores.dtype).min
        ).softmax(-1)
    probabilities = []
    for sequence in qkv.split(batch.lengths):
        query, key, _ = _split_query_key_value_heads(sequence, num_heads)
        scores = query @ key.transpose(1, 2) * query.shape[-1] ** -0.5
        probabilities.append(scores.softmax(-1))
    return probabilities


def _split_query_key_value_heads(qkv: Tensor, num_heads: int) -> tuple[Tensor, Tensor, Tensor]:
    """Return views [A, S, D] of the queries, keys and values in [S, 3H]."""
    query, key, value = qkv.view(len(qkv), 3, num_heads, -1).permute(1, 2, 0, 3)
    return query, key, value


def padded_attention(qkv: Tensor, batch: PackedBatch, num_heads: int, dropout: float) -> Tensor:
    context = _masked_attention(batch.unpack(qkv), batch.padding_mask(), num_heads, dropout)
    return context.flatten(0, 1).index_select(0, batch.padded_positions())


def _masked_attention(qkv: Tensor, mask: Tensor, num_heads: int, dropout: float) -> Tensor:
    """Map [B, S, 3H] to [B, S, H]: every token attends, none to positions where the mask [B, S] is False."""
    query, key, value = qkv.view(*mask.shape, 3, num_heads, -1).permute(2, 0, 3, 1, 4)
    context = F.scaled_dot_product_attention(
        query, key, value, attn_mask=mask[:, None, None], dropout_p=dropout
    )
    return context.transpose(1, 2).flatten(2)


class _SequenceAttention(torch.autograd.Function):
    """Softmax attention one sequence after the other, on the CPU."""

    @staticmethod
    def forward(
        ctx: Any, qkv: Tensor, lengths: tuple[int, ...], num_heads: int, dropout: float
    ) -> Tensor:
        context = qkv.new_empty(len(qkv), qkv.shape[1] // 3)
        needs_gradient = ctx.needs_input_grad[0]
        # One flat buffer for the probabilities of all sequences: one allocation, one saved tensor.
        # They are kept for the backward pass, 441 KB a token for base at 512.
        sizes = [num_heads * s * s for s in lengths]
        store = qkv.new_empty(sum(sizes) if needs_gradient else max(sizes))
        offsets = list(accumulate(sizes, initial=0)) if needs_gradient else [0] * (len(sizes) + 1)
        dropped: list[Tensor] = []
        for sequence, out, offset, s in zip(
            qkv.split(lengths), context.split(lengths), offsets, lengths, strict=False
        ):
            query, key, value = _split_query_key_value_heads(sequence, num_heads)
            probabilities = store[offset : offset + num_heads * s * s].view(num_heads, s, s)
            scores = torch.baddbmm(
                probabilities, query, key.transpose(1, 2), beta=0, alpha=query.shape[-1] ** -0.5
            )
            torch.softmax(scores, -1, out=probabilities)
            weights = probabilities
            if dropout:
                weights, mask = torch.native_dropout(probabilities, dropout, True)
                dropped.append(mask)
            out.view(s, num_heads, -1).copy_(torch.bmm(weights, value).transpose(0, 1))
        if needs_gradient:
            ctx.save_for_backward(qkv, store, *dropped)
            ctx.lengths, ctx.offsets = lengths, offsets
            ctx.num_heads, ctx.dropout = num_heads, dropout
        return context

    @staticmethod
    @cpu_loops.differentiable_once
    def backward(ctx: Any, grad_context: Tensor) -> tuple[Tensor | None, ...]:
        qkv, store, *dropped = ctx.saved_tensors
        lengths, num_heads = ctx.lengths, ctx.num_heads
        grad_qkv = torch.empty_like(qkv)
        parts = zip(
            qkv.split(lengths),
            grad_qkv.split(lengths),
            grad_context.split(lengths),
            ctx.offsets,
            strict=False,
        )
        for n, (sequence, grad, grad_out, offset) in enumerate(parts):
            s = lengths[n]
            _write_gradients(
                _split_query_key_value_heads(sequence, num_heads),
                store[offset : offset + num_heads * s * s].view(num_heads, s, s),
                dropped[n] if dropped else None,
                ctx.dropout,
                grad_out.view(s, num_heads, -1).transpose(0, 1),
                _split_query_key_value_heads(grad, num_heads),
            )
        return grad_qkv, None, None, None
