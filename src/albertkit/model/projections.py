"""Linear layers and layer norms as functions, their weights made ready once and used as often as wanted.

Made ready means: cast to the dtype of the computation and, for several layers that read the same input, laid side by side.
That is done once per forward and not in each of ALBERT's layers. A module that is not a plain `nn.Linear` or `nn.LayerNorm`
(PEFT's LoRA, a quantized or parametrized layer, one with hooks) is called as it is: reading only its weight would bypass
what it adds, silently.
"""

from collections.abc import Callable
from contextlib import nullcontext
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from albertkit.model.loops import gelu_new

Projection = Callable[[Tensor], Tensor]


def linear(dtype: torch.dtype, *layers: nn.Module) -> Projection:
    """Return one function for linear layers that read the same input, of this dtype; it returns their outputs side by side."""
    if not all(_is_plain(layer, nn.Linear) for layer in layers):
        return lambda values: torch.cat([_call(layer, values) for layer in layers], -1)
    weights: list[Any] = [layer.weight for layer in layers]
    biases: list[Any] = [layer.bias for layer in layers]
    if len(layers) == 1:
        bias = None if biases[0] is None else biases[0].to(dtype)
        return partial(F.linear, weight=weights[0].to(dtype), bias=bias)
    return partial(F.linear, weight=torch.cat(weights).to(dtype), bias=torch.cat(biases).to(dtype))


def as_head_input(values: Tensor, head: nn.Module) -> Tensor:
    """Return hidden states in the dtype of a head's parameters, where that is wider: a head computes in fp32 over a bf16 encoder.

    Logits rounded to bf16 tie: of 1,500 scores of STS-B two values were left. A head is small: for a text of 128 tokens it
    multiplies a thousandth of what base's layers do. In a model that is bf16 as a whole, it computes in bf16.
    """
    own = next((parameter.dtype for parameter in head.parameters() if parameter.is_floating_point()), values.dtype)
    return values.to(torch.promote_types(values.dtype, own))


def for_few_rows(projection: Projection) -> Projection:
    """Return the same linear map, faster for a few rows in fp32 on the CPU: W xT in place of x WT; itself for anything else.

    Two rows through base's four matrices, mean of them on two Zen 4 cores: 0.52 ms in place of 1.28; four rows 0.77 of 1.05;
    eight 1.11 of 0.9 to 1.8, one 0.54 of 0.60.
    """
    if not isinstance(projection, partial) or projection.func is not F.linear:
        return projection
    weight, bias = projection.keywords["weight"], projection.keywords["bias"]
    if weight.device.type != "cpu" or weight.dtype != torch.float32:
        return projection

    def few(values: Tensor) -> Tensor:
        rows = (weight @ values.flatten(0, -2).t()).t().unflatten(0, values.shape[:-1])
        return rows if bias is None else rows + bias

    return few


def activated(projection: Projection, activation: Projection, values: Tensor) -> Tensor:
    """Apply a linear map and an activation. Without gradients on CUDA, the product applies Google's gelu itself.

    torch has no public name for that; its own TransformerEncoderLayer uses this one.
    """
    fused = values.device.type == "cuda" and not torch.is_grad_enabled() and not torch.compiler.is_compiling()
    fused = fused and activation is gelu_new
    if not fused or not isinstance(projection, partial) or projection.func is not F.linear:
        return activation(projection(values))
    weight, bias = projection.keywords["weight"], projection.keywords["bias"]
    rows = torch._addmm_activation(bias, values.flatten(0, -2), weight.t(), use_gelu=True)
    return rows.unflatten(0, values.shape[:-1])


def reused(projection: Projection) -> Projection:
    """Return the same linear map for a layer that is applied again and again in a forward pass on the CPU; itself elsewhere.

    Autograd adds up the gradients of a weight's uses one by one: 12 % of an update of base on short texts, 5 % on long ones. Here
    each is added inside the product that makes it, and rounded once.
    """
    if not isinstance(projection, partial) or projection.func is not F.linear or torch.compiler.is_compiling():
        return projection
    weight, bias = projection.keywords["weight"], projection.keywords["bias"]
    if bias is None or not (weight.requires_grad and bias.requires_grad):
        return projection
    if weight.device.type != "cpu" or torch.is_autocast_enabled("cpu"):
        return projection
    sums: list[Tensor] = []
    weight, bias = _Gathered.apply(sums, weight, bias)
    return partial(_Use.apply, sums, weight, bias)  # by position: `apply` takes no names in torch 2.11


class _Gathered(torch.autograd.Function):
    """Hand weight and bias to their uses; their gradients are in `sums` when all uses are through."""

    @staticmethod
    def forward(ctx: Any, sums: list[Tensor], weight: Tensor, bias: Tensor) -> tuple[Tensor, Tensor]:
        ctx.sums = sums
        ctx.set_materialize_grads(False)
        return weight.view_as(weight), bias.view_as(bias)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *_: None) -> tuple[Tensor | None, ...]:
        found = tuple(ctx.sums) or (None, None)
        ctx.sums.clear()  # a second pass backward begins anew
        return None, *found


class _Use(torch.autograd.Function):
    """A linear layer that adds to the gradients of weight and bias in `sums`."""

    @staticmethod
    def forward(ctx: Any, sums: list[Tensor], weight: Tensor, bias: Tensor, values: Tensor) -> Tensor:
        ctx.save_for_backward(values, weight)
        ctx.sums, ctx.gathered = sums, weight.grad_fn
        return F.linear(values, weight, bias)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        values, weight = ctx.saved_tensors
        if torch._C._will_engine_execute_node(ctx.gathered):  # not where only the gradient of values is asked for
            rows, given = grad.flatten(0, -2), values.flatten(0, -2)
            if ctx.sums:
                ctx.sums[0].addmm_(rows.t(), given)
                ctx.sums[1].add_(rows.sum(0))
            else:
                ctx.sums += [rows.t() @ given, rows.sum(0)]
        return None, None, None, grad @ weight if ctx.needs_input_grad[3] else None


def layer_norm(dtype: torch.dtype, norm: nn.Module) -> Projection:
    """Return a layer norm as a function of values in `dtype`."""
    if not isinstance(norm, nn.LayerNorm) or not _is_plain(norm, nn.LayerNorm):
        return partial(_call, norm)
    weight, bias = norm.weight.to(dtype), norm.bias.to(dtype)
    return partial(F.layer_norm, normalized_shape=norm.normalized_shape, weight=weight, bias=bias, eps=norm.eps)


def _is_plain(module: nn.Module, kind: type[nn.Module]) -> bool:
    return type(module) is kind and not module._forward_hooks and not module._forward_pre_hooks


def _call(module: nn.Module, values: Tensor) -> Tensor:
    """Return the module's own output. Its parameters stay in their dtype, so in half precision autocast casts them."""
    half = values.dtype in (torch.bfloat16, torch.float16)
    with torch.autocast(values.device.type, values.dtype) if half else nullcontext():
        return module(values).to(values.dtype)
