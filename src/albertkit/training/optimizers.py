"""LAMB and AdamW, in Google's form and in the bias-corrected one."""

import re
from collections.abc import Callable, Iterable, Mapping
from inspect import unwrap
from typing import Any

import torch
from torch import Tensor
from torch.optim.adamw import adamw

from albertkit.errors import ConfigError, suggest_name

# lamb_optimizer.py and optimization.py: these get neither weight decay nor LAMB's trust ratio.
EXCLUDED = re.compile("LayerNorm|layer_norm|bias")
# Muon for the layer's matrices was tried twice: a loss of 5.180 in 427 s for AdamW's 5.209 in 301;
# orthogonalising takes 42 ms of an update's 400.
OPTIMIZERS = ("lamb", "adamw")
_NO_BIAS_LEFT = 1_000_000  # 0.999 to this power is 0


class DecoupledAdam(torch.optim.Optimizer):
    """Adam with decoupled weight decay, optionally scaled by LAMB's trust ratio.

        m ← β₁m + (1−β₁)g;  v ← β₂v + (1−β₂)g²;  u = m / (√v + ε);  if decayed: u += λθ
        AdamW: θ ← θ − lr·u        LAMB: θ ← θ − lr·r·u,  r = ‖θ‖/‖u‖ per tensor if both are positive, else 1

    ε stands outside the root. Google's first code corrects no bias: its first update is
    (1−β₁)/√(1−β₂) ≈ 3.2 times the corrected one. `bias_correction` is how Model Garden trains. Its
    LAMB, TensorFlow Addons', adds ε to the corrected root: u = (m/(1−β₁ᵗ)) / (√(v/(1−β₂ᵗ)) + ε).
    Its AdamW, Keras's, to the uncorrected one: u = (m/(√v + ε))·√(1−β₂ᵗ)/(1−β₁ᵗ),
    `torch.optim.AdamW` with ε/√(1−β₂ᵗ) for ε, 32 times as much at the first update. It also decays
    before it updates, θ ← θ(1 − lr·λ) − lr·u, which is the same number.

    Args:
        named_parameters: (name, parameter) pairs. Names that match `EXCLUDED` are neither decayed
            nor adapted.
        lr: Learning rate; the loop sets it before every step.
        trust_ratio: True for LAMB, False for AdamW.
        betas: Decay of the two moments.
        eps: Added to the root of the second moment.
        weight_decay: λ.
        bias_correction: Model Garden's form.
        lr_factors: Beginnings of names and what the learning rate of these parameters is multiplied
            by.

    Attributes:
        slots: Names of what is kept of each parameter between updates.

    Source: google-research/albert lamb_optimizer.py, optimization.py; You et al. 2019, algorithm 2;
    Model Garden official/modeling/optimization/lamb.py, legacy_adamw.py.
    """

    slots: tuple[str, ...] = ("m", "v")

    # Without the wrappers that hide them from torch's compiler, and import it: 1.1 s of every start
    add_param_group = unwrap(torch.optim.Optimizer.add_param_group)
    zero_grad = unwrap(torch.optim.Optimizer.zero_grad)
    state_dict = unwrap(torch.optim.Optimizer.state_dict)
    load_state_dict = unwrap(torch.optim.Optimizer.load_state_dict)

    def __init__(
        self,
        named_parameters: Iterable[tuple[str, Tensor]],
        lr: float,
        *,
        trust_ratio: bool = False,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-6,
        weight_decay: float = 0.01,
        bias_correction: bool = False,
        lr_factors: Mapping[str, float] | None = None,
    ) -> None:
        pairs = list(named_parameters)
        self.names = {id(parameter): name for name, parameter in pairs}
        self.trust_ratio = trust_ratio
        groups: dict[tuple[float, bool], dict[str, Any]] = {}
        for name, parameter in pairs:
            factor = next(
                (f for start, f in (lr_factors or {}).items() if name.startswith(start)), 1.0
            )
            excluded = bool(EXCLUDED.search(name))
            adapt, decay = (False, 0.0) if excluded else (trust_ratio, weight_decay)
            group = dict(
                params=[], adapt=adapt, weight_decay=decay, lr=lr * factor, lr_factor=factor
            )
            groups.setdefault((factor, excluded), group)["params"].append(parameter)
        defaults = dict(lr=lr, betas=betas, eps=eps, bias_correction=bias_correction)
        super().__init__([groups[key] for key in sorted(groups)], defaults)
        self.num_updates = 0

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> None:  # type: ignore[override]
        """Apply one update from the gradients in place. `closure` is not supported."""
        self.num_updates += 1
        for group in self.param_groups:
            parameters = [p for p in group["params"] if p.grad is not None]
            for p in parameters:
                if not self.state[p]:
                    self.state[p] = {slot: torch.zeros_like(p) for slot in self.slots}
            if parameters:
                self.update(group, parameters)

    def update(self, group: dict[str, Any], parameters: list[Tensor]) -> None:
        """Update parameters that have a gradient, and what is kept of them in `self.state`."""
        beta1, beta2 = group["betas"]
        gradients = [p.grad for p in parameters if p.grad is not None]
        first = [self.state[p]["m"] for p in parameters]
        second = [self.state[p]["v"] for p in parameters]
        if not group["adapt"]:
            self._fused_adamw(group, parameters, gradients, first, second)
            return
        torch._foreach_lerp_(first, gradients, 1 - beta1)
        torch._foreach_mul_(second, beta2)
        torch._foreach_addcmul_(second, gradients, gradients, value=1 - beta2)

        scale, eps = 1.0, group["eps"]
        roots = torch._foreach_sqrt(second)
        if group["bias_correction"]:
            scale = 1 / (1 - beta1**self.num_updates)
            torch._foreach_div_(roots, (1 - beta2**self.num_updates) ** 0.5)
        torch._foreach_add_(roots, eps)
        updates = torch._foreach_div(first, roots)
        if scale != 1.0:
            torch._foreach_mul_(updates, scale)
        if group["weight_decay"]:
            torch._foreach_add_(updates, parameters, alpha=group["weight_decay"])
        weight_norms = torch.stack(torch._foreach_norm(parameters))
        update_norms = torch.stack(torch._foreach_norm(updates))
        has_norms = (weight_norms > 0) & (update_norms > 0)
        ratios = torch.where(has_norms, weight_norms / update_norms, 1.0)
        torch._foreach_mul_(updates, list(ratios.unbind()))
        torch._foreach_add_(parameters, updates, alpha=-group["lr"])

    def _fused_adamw(
        self,
        group: dict[str, Any],
        parameters: list[Tensor],
        gradients: list[Tensor],
        first: list[Tensor],
        second: list[Tensor],
    ) -> None:
        """Compute the same in torch's one-pass kernel: 7 ms in place of 66 for base on one core, limited by memory."""
        beta1, beta2 = group["betas"]
        # The kernel corrects bias and adds ε to the corrected root; Keras's ε, added to the
        # uncorrected one, is a larger ε there, and at an update far enough along there is no bias
        # left to correct.
        update, eps = self.num_updates, group["eps"]
        if not group["bias_correction"]:
            update = _NO_BIAS_LEFT
        elif not self.trust_ratio:
            # With torch's own form the Model Garden's weights are missed by 2.6e-2 after seven
            # updates with small gradients.
            eps /= (1 - beta2**update) ** 0.5
        # The kernel adds 1
        steps = torch.full((len(parameters),), float(update - 1), device=parameters[0].device)
        adamw(
            parameters,
            gradients,
            first,
            second,
            [],
            list(steps.unbind()),
            foreach=False,
            fused=True,
            amsgrad=False,
            beta1=beta1,
            beta2=beta2,
            lr=group["lr"],
            weight_decay=group["weight_decay"],
            eps=eps,
            maximize=False,
        )

    def set_learning_rate(self, lr: float) -> None:
        """Use this learning rate from the next step on."""
        for group in self.param_groups:
            group["lr"] = lr * group["lr_factor"]

    def tensors(self) -> dict[str, Tensor]:
        """Return the moments under `<parameter name>/m` and `/v`, for saving."""
        return {
            f"{self.names[id(p)]}/{slot}": tensor
            for p, slots in self.state.items()
            for slot, tensor in slots.items()
        }

    def restore(self, tensors: dict[str, Tensor], num_updates: int) -> None:
        """Take back what `tensors` gave, after `num_updates` updates."""
        self.num_updates = num_updates
        for group in self.param_groups:
            for p in group["params"]:
                name = self.names[id(p)]
                saved = {slot: tensors.get(f"{name}/{slot}") for slot in self.slots}
                slots = {
                    slot: tensor.to(p.device).clone()
                    for slot, tensor in saved.items()
                    if tensor is not None
                }
                if slots:
                    self.state[p] = slots


def make_optimizer(
    name: str, named_parameters: Iterable[tuple[str, Tensor]], lr: float, **options: Any
) -> DecoupledAdam:
    """Make LAMB or AdamW, by name; see `DecoupledAdam` for `options`."""
    if name not in OPTIMIZERS:
        raise ConfigError(
            "unknown-name", f"there is no optimizer `{name}`", suggest_name(name, OPTIMIZERS)
        )
    return DecoupledAdam(named_parameters, lr, trust_ratio=name == "lamb", **options)


def gradient_norm(parameters: Iterable[Tensor]) -> Tensor:
    """Return the global norm of all gradients, 0-d, on their device; parameters without a gradient do not count."""
    gradients = [p.grad for p in parameters if p.grad is not None]
    return torch.linalg.vector_norm(torch.stack(torch._foreach_norm(gradients)))


def clip_gradients(
    parameters: Iterable[Tensor], max_norm: float, norm: float | None = None
) -> float:
    """Scale all gradients by min(1, max_norm / norm) and return their global norm before.

    Unlike `torch.nn.utils.clip_grad_norm_`, adds no 1e-6 to the norm: `tf.clip_by_global_norm` does
    not. 0 clips nothing, as Model Garden's LAMB. `norm` is `gradient_norm` where the host has read
    it already; else it waits for the device here.
    """
    parameters = list(parameters)
    if norm is None:
        norm = float(gradient_norm(parameters))
    if 0 < max_norm < norm:  # False for NaN, which the loop's guard sees
        torch._foreach_mul_([p.grad for p in parameters if p.grad is not None], max_norm / norm)
    return norm
