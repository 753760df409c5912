"""`accelerate`: a live model of other people's code computes with our engine, and stays what it is."""

import copy
import inspect
import warnings
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch._C._functorch import is_functorch_wrapped_tensor
from torch.autograd import forward_ad
from torch.overrides import _get_current_function_mode_stack
from torch.utils._device import DeviceContext
from torch.utils._python_dispatch import _get_current_dispatch_mode

from albertkit.batches.packed import PackedBatch
from albertkit.engines.engine import Engine, Precision, check_precision, unpackable, walk
from albertkit.engines.load import load_engine
from albertkit.errors import ConfigError
from albertkit.model.padded import PackedOutput, PaddedBatch, Trace
from albertkit.model.pretrained import AlbertModel, resolve_config

AnyModel = TypeVar("AnyModel")

_TENSOR_TYPES = (Tensor, nn.Parameter)
_SUPPORTED_ARGUMENTS = {"input_ids", "attention_mask", "token_type_ids", "position_ids", "return_dict"}


def accelerate(model: AnyModel, precision: Precision = "auto") -> AnyModel:
    """Let a model compute with this package's engine, in inference on the CPU; its outputs, methods and folder stay as they are.

    Padding is taken out before the encoder and put back as zeros behind it. What the engine does not compute, the model
    computes as before: with gradients or in training (said in a warning, once), hidden states of all layers, attentions,
    embeddings given as input; and while something looks at the model's operations (torch.export, torch.compile, tracing,
    torch.func, dispatch modes). Weights that change, whatever wrote them, are packed again at the next call: every number
    of the packed weights is looked at in each call, 1 to 2 ms for base.

    Args:
        model: Any ALBERT class of transformers 4 or 5, a pipeline of transformers over one, a `SentenceTransformer` whose
            transformer is an ALBERT, or any model class of this package.
        precision: As of `load_engine`: "fp32", "bf16", "int8", or "auto": bf16 where the processor multiplies it faster.

    Returns:
        The same object.

    Raises:
        ConfigError: unknown-name; wrong-model where there is no ALBERT, or one whose layers were replaced.
    """
    check_precision(precision)
    encoders = list(_encoders(model))
    if not encoders:
        kind = type(model).__name__
        hint = "give a model of transformers' ALBERT classes, a pipeline over one, a SentenceTransformer, or one of albertkit"
        raise ConfigError("wrong-model", f"there is no ALBERT in this {kind}", hint)
    for encoder in encoders:
        _restore(encoder)
        if isinstance(encoder, AlbertModel):
            fast = _LiveEngine(encoder, copy.copy(encoder), precision)  # the engine may call the model's own `encode`
            encoder.encode = _OwnEncode(encoder, fast)  # type: ignore[method-assign]
        else:
            fast = _LiveEngine(encoder, _share_model(encoder), precision)
            encoder.forward = _TransformersForward(encoder, fast)
        for note in fast.engine().notes:
            warnings.warn(f"accelerate: {note}", stacklevel=2)
    return model


def restore(model: AnyModel) -> AnyModel:
    """Let a model compute by itself again: undo `accelerate`. Returns the same object."""
    for encoder in _encoders(model):
        _restore(encoder)
    return model


def _restore(encoder: nn.Module) -> None:
    for name in ("forward", "encode"):
        if isinstance(encoder.__dict__.get(name), _TransformersForward | _OwnEncode):
            del encoder.__dict__[name]


def _encoders(model: Any) -> Iterator[nn.Module]:
    """Find the ALBERT encoders in a model, or in the model of a pipeline."""
    root = model if isinstance(model, nn.Module) else getattr(model, "model", None)
    for module in root.modules() if isinstance(root, nn.Module) else ():
        kinds = type(module).__mro__
        if isinstance(module, AlbertModel) or any(
            kind.__name__ == "AlbertModel" and kind.__module__.startswith("transformers.") for kind in kinds
        ):
            yield module


def _share_model(theirs: Any) -> AlbertModel:
    """Return our model over the parameters of transformers' one, which both then have."""
    config = resolve_config(theirs.config, Path("config.json"))
    with torch.device("meta"):
        ours = AlbertModel(config, add_pooling_layer=theirs.pooler is not None)
    parameters = dict(theirs.named_parameters())
    different = parameters.keys() ^ dict(ours.named_parameters()).keys()
    if different:
        raise ConfigError(
            "wrong-model",
            f"this ALBERT has other parameters than transformers' own: {min(different)}",
            "merge adapters into it first (`model = model.merge_and_unload()`), or accelerate it before it is wrapped",
        )
    _share_parameters(parameters, ours)
    return ours.eval()


def _share_parameters(parameters: dict[str, nn.Parameter], ours: AlbertModel) -> None:
    """Let our model have these parameters. Frozen ones stay so: loading sets the flags of what they replace."""
    for name, parameter in ours.named_parameters():
        parameter.requires_grad_(parameters[name].requires_grad)
    ours.load_state_dict(parameters, assign=True)


class _LiveEngine:
    """Engine that follows the weights of a live model.

    Args:
        model: Whose training mode and hooks count.
        ours: Our model over the same parameters.
    """

    def __init__(self, model: nn.Module, ours: AlbertModel, precision: Precision) -> None:
        self.model = model
        self.ours = ours
        self.precision = precision
        self._warned: set[str] = set()
        self._engine: Engine | None = None
        self._unpackable = ""
        self._structure = _structure(model)

    def engine(self) -> Engine:
        """Return the engine of the parameters as they are now."""
        parameters = _parameters(self.model)
        if any(parameters[name] is not parameter for name, parameter in _parameters(self.ours).items()):
            _share_parameters(parameters, self.ours)
        if self._engine is None or (self._unpackable and self._unpackable != unpackable(self.ours)):
            self._unpackable = unpackable(self.ours)
            self._engine = load_engine(self.ours, self.precision)
        return self._engine

    def is_usable(self) -> bool:
        """Return whether the engine computes what the model would; warn once of training and gradients."""
        if self.model.training:
            return self._warn("the model is in training mode: call model.eval()")
        if torch.is_grad_enabled() and any(p.requires_grad for p in _parameters(self.model).values()):
            return self._warn("gradients are on: call it under torch.no_grad() or torch.inference_mode()")
        if _structure(self.model) != self._structure:
            return self._warn("its layers were replaced since: call accelerate again")
        hooks: list[Any] = []
        for _, module in walk(self.model)[1:]:
            hooks += (*module._forward_hooks.values(), *module._forward_pre_hooks.values())
        # transformers' own hooks collect states when they are asked for, and then the model computes them anyway
        return all(getattr(hook, "__module__", "").partition(".")[0] == "transformers" for hook in hooks)

    def _warn(self, reason: str) -> bool:
        if reason not in self._warned:
            self._warned.add(reason)
            warnings.warn(f"accelerate: computed by the model itself, {reason}", stacklevel=5)
        return False


def _structure(model: nn.Module) -> list[tuple]:
    """Return everything but the parameters' numbers that decides a model's outputs."""
    return [
        (name, type(module), getattr(module, "eps", None), "forward" in vars(module), *module._parameters)
        for name, module in walk(model)[1:]
    ]


def _parameters(model: nn.Module) -> dict[str, nn.Parameter]:
    modules = walk(model)
    return {f"{name}.{key}": p for name, module in modules for key, p in module._parameters.items() if p is not None}


def _is_watched(tensors: Iterable[Any]) -> bool:
    """Return whether something records, replaces or transforms torch's operations: a compiler, a tracer, a mode, torch.func."""
    if torch.compiler.is_compiling() or torch.jit.is_tracing() or _get_current_dispatch_mode() is not None:
        return True
    modes = _get_current_function_mode_stack()
    if forward_ad._current_level >= 0 or not all(isinstance(mode, DeviceContext) for mode in modes):
        return True
    return any(
        isinstance(x, Tensor) and (type(x) not in _TENSOR_TYPES or is_functorch_wrapped_tensor(x)) for x in tensors
    )


class _TransformersForward:
    """Replacement for the `forward` of transformers' `AlbertModel`."""

    def __init__(self, model: Any, fast: _LiveEngine) -> None:
        self.model, self.fast = model, fast
        self.__signature__ = inspect.signature(type(model).forward.__get__(model))

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if _is_watched((*args, *kwargs.values(), *_parameters(self.model).values())):
            return type(self.model).forward(self.model, *args, **kwargs)
        arguments = self.__signature__.bind(*args, **kwargs).arguments
        arguments |= arguments.pop("kwargs", {})
        if not self._can_compute(arguments) or not self.fast.is_usable():
            return type(self.model).forward(self.model, *args, **kwargs)
        other_inputs = {name: arguments.get(name) for name in ("attention_mask", "token_type_ids", "position_ids")}
        packed = PackedBatch.from_padded(
            arguments["input_ids"], **self._with_buffers(other_inputs, arguments["input_ids"].shape)
        )
        engine = self.fast.engine()
        with torch.no_grad():
            hidden, pooled = engine.encode(packed)
        return self._output(
            arguments, _leave_inference_mode(hidden), None if pooled is None else _leave_inference_mode(pooled)
        )

    def _can_compute(self, arguments: dict[str, Any]) -> bool:
        """Return whether the engine computes this call: rows of ids, right-padded, and nothing but the last states."""
        requested = {name for name, value in arguments.items() if value is not None and value is not False}
        config = self.model.config
        if requested - _SUPPORTED_ARGUMENTS or config.output_hidden_states or config.output_attentions:
            return False
        ids, mask, types = (arguments.get(name) for name in ("input_ids", "attention_mask", "token_type_ids"))
        if not isinstance(ids, Tensor) or ids.dim() != 2 or not ids.numel():
            return False
        if types is not None and types.shape != ids.shape:
            return False
        return mask is None or (mask.shape == ids.shape and bool((mask[:, 0] != 0).all()))

    def _with_buffers(self, inputs: dict[str, Tensor | None], shape: torch.Size) -> dict[str, Tensor | None]:
        """Return the arguments with the model's own positions and types, its buffers, where none are given."""
        embeddings = self.model.embeddings
        positions = getattr(embeddings, "position_ids", None)
        if inputs["position_ids"] is None and positions is not None and positions.shape[1] >= shape[1]:
            inputs["position_ids"] = positions[:, : shape[1]].expand(shape)
        types = getattr(embeddings, "token_type_ids", None)
        if inputs["token_type_ids"] is None and types is not None and inputs["position_ids"] is not None:
            inputs["token_type_ids"] = types.expand(shape[0], -1).gather(1, inputs["position_ids"].expand(shape))
        return inputs

    def _output(self, arguments: dict[str, Any], hidden: Tensor, pooled: Tensor | None) -> Any:
        """Return the states in rows, in transformers' own class."""
        from transformers.modeling_outputs import BaseModelOutputWithPooling

        ids, mask = arguments["input_ids"], arguments.get("attention_mask")
        dtype = torch.get_autocast_dtype("cpu") if torch.is_autocast_enabled("cpu") else self.model.dtype
        if mask is None:
            states = hidden.view(*ids.shape, -1)
        else:
            states = hidden.new_zeros(*ids.shape, hidden.shape[1])
            states[mask != 0] = hidden
        output = BaseModelOutputWithPooling(
            last_hidden_state=states.to(dtype), pooler_output=None if pooled is None else pooled.to(dtype)
        )
        as_object = arguments.get("return_dict")
        if as_object is None:
            as_object = getattr(self.model.config, "return_dict", True)
        return output if as_object else output.to_tuple()


class _OwnEncode:
    """Replacement for `AlbertModel.encode` of this package."""

    def __init__(self, model: AlbertModel, fast: _LiveEngine) -> None:
        self.model, self.fast = model, fast

    def __call__(
        self,
        batch: PackedBatch | PaddedBatch,
        trace: Trace | None = None,
        positions: Tensor | None = None,
        words: Tensor | None = None,
    ) -> PackedOutput:
        if _is_watched(
            (batch.input_ids, batch.token_type_ids, batch.position_ids, words, *_parameters(self.model).values())
        ):
            return AlbertModel.encode(self.model, batch, trace, positions, words)
        states_wanted = trace is not None and (trace.hidden_states is not None or trace.attentions is not None)
        if states_wanted or words is not None or not isinstance(batch, PackedBatch) or not self.fast.is_usable():
            return AlbertModel.encode(self.model, batch, trace, positions, words)
        engine = self.fast.engine()
        with torch.no_grad():
            hidden, pooled = engine.encode(batch, positions)
        return PackedOutput(_leave_inference_mode(hidden), None if pooled is None else _leave_inference_mode(pooled))


def _leave_inference_mode(tensor: Tensor) -> Tensor:
    """Return a tensor that may be written to outside of `torch.inference_mode`, as the model's own may."""
    return tensor.clone() if tensor.is_inference() and not torch.is_inference_mode_enabled() else tensor
