"""`accelerate`: a live model of other people's code computes with our engine, and stays what it is.

The modules of transformers' model themselves are shared, not their parameters: what replaces them
later (adapters, a larger vocabulary, pruned or parametrized layers) is seen at the next call, and is
called as a module where it is no plain layer.
"""

import copy
import inspect
import warnings
from collections.abc import Iterable, Iterator
from contextvars import ContextVar
from pathlib import Path
from threading import get_ident
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.nn.modules.module import _has_any_global_hook
from torch.overrides import _get_current_function_mode_stack
from torch.utils._device import DeviceContext
from torch.utils._python_dispatch import _get_current_dispatch_mode

from albertkit.batches.packed import PackedBatch, unpack
from albertkit.engines import load_engine
from albertkit.engines.engine import (
    Engine,
    Precision,
    all_modules_by_name,
    check_precision,
    reason_not_to_pack,
)
from albertkit.errors import ConfigError
from albertkit.model.heads import vocabulary_loss
from albertkit.model.layers import (
    AlbertLayer,
    has_hooks,
    is_unmodified_module,
    layer_norm_function,
    linear_function,
)
from albertkit.model.padded import PackedOutput, PaddedBatch, Trace, is_recorded_or_transformed
from albertkit.model.pretrained import AlbertModel, on_meta_device, resolve_config
from albertkit.tables import IGNORED

AnyModel = TypeVar("AnyModel")

_TENSOR_TYPES = (Tensor, nn.Parameter)
_SUPPORTED_ARGUMENTS = {
    "input_ids",
    "attention_mask",
    "token_type_ids",
    "position_ids",
    "return_dict",
}
_SUPPORTED_ARGUMENTS |= {"num_items_in_batch"}  # Trainer's, for the heads' losses
# transformers' own, which all compute the same; a user may register another
_ATTENTIONS = ("eager", "sdpa", "flash_attention_2", "flash_attention_3", "flex_attention", None)
# Of a module: what is followed, or changes nothing in its outputs
_CHANGING = {"training", "gradient_checkpointing", "chunk_size_feed_forward", "p", "dropout_prob"}
_CHANGING |= {"_is_hf_initialized", "_is_full_backward_hook"}
# Their hooks that leave the outputs as they are; that of NEFTune is among their integrations
_HARMLESS_HOOKS = ("transformers.utils.", "transformers.modeling_utils")
# Whether a loss of the call around it reads states at padding
_PADDING_COUNTS = ContextVar("padding counts", default=False)


def accelerate(
    model: AnyModel, precision: Precision = "auto", *, training: bool = False
) -> AnyModel:
    """Let a model compute with this package's code; its classes, outputs, losses and folder stay as they are.

    In inference on the CPU the engine computes, with gradients (if asked for) the packed layers.
    Padding is taken out before the encoder and put back as zeros behind it, unless the class's own
    loss reads it (of question answering, and at labels on padding). What they do not
    compute, the model computes as before: with gradients or in training unless asked for, hidden
    states of all layers, attentions, embeddings given as input (said in a warning, once); and while
    something looks at the model's operations (torch.export, torch.compile, tracing, torch.func,
    dispatch modes). Weights that change, whatever wrote them, are packed again at the next call:
    every number of the packed weights is looked at in each call, 1 to 2 ms for base.

    Args:
        model: Any ALBERT class of transformers 4 or 5, a pipeline of transformers over one, a
            `SentenceTransformer` whose transformer is an ALBERT, or any model class of this
            package. It may have adapters of PEFT, or get them later.
        precision: Of inference, as of `load_engine`: "fp32", "bf16", "int8", or "auto": bf16 where
            the processor multiplies it faster.
        training: Compute with gradients, too, in the parameters' dtype or that of the autocast
            around it. Gradient checkpointing can be enabled then, which transformers' ALBERT does not
            know. A model of this package trains on packed layers anyway.

    Returns:
        The same object.

    Raises:
        ConfigError: unknown-name; wrong-model where there is no ALBERT, or one whose layers were
            replaced.
    """
    check_precision(precision)
    encoders: list[nn.Module] = []
    for module in _modules_of_model_or_pipeline(model):
        # By name: transformers may be missing
        is_theirs = any(
            kind.__name__ == "AlbertModel" and kind.__module__.startswith("transformers.")
            for kind in type(module).__mro__
        )
        if is_theirs or isinstance(module, AlbertModel):
            encoders.append(module)
    if not encoders:
        kind = type(model).__name__
        hint = "give a model of transformers' ALBERT classes, a pipeline over one, a SentenceTransformer, or one of albertkit"
        raise ConfigError("wrong-model", f"there is no ALBERT in this {kind}", hint)
    checkpointed = [
        module
        for module in _modules_of_model_or_pipeline(model)
        if vars(module).get("gradient_checkpointing")
    ]
    restore(model)
    for encoder in encoders:
        if isinstance(encoder, AlbertModel):
            # Whose `encode` stays the model's
            fast = _LiveEngine(encoder, copy.copy(encoder), precision, training)
            encoder.encode = _OwnEncode(encoder, fast)  # type: ignore[method-assign]
        else:
            fast = _LiveEngine(encoder, BorrowedModel(encoder), precision, training)
            encoder.forward = _TransformersForward(encoder, fast)
        fast.engine()  # what it falls back from is said now
    for module in filter(_is_transformers_albert, _modules_of_model_or_pipeline(model)):
        if training:
            # Their methods and Trainer ask the outer model whether it can, and set the flag of
            # whatever has it.
            vars(module).update(
                supports_gradient_checkpointing=True, gradient_checkpointing=module in checkpointed
            )
        names = {kind.__name__ for kind in type(module).__mro__}
        if names & _HEADS_OF_PLACES and "forward" not in vars(module):
            module.forward = _HeadForward(module, training)
    return model


def restore(model: AnyModel) -> AnyModel:
    """Let a model compute by itself again: undo `accelerate`. Returns the same object."""
    for module in _modules_of_model_or_pipeline(model):
        for name in ("forward", "encode"):
            method: Any = vars(module).get(name)
            replacement = inspect.unwrap(getattr(method, "__func__", method))
            if isinstance(replacement, _TransformersForward | _HeadForward | _OwnEncode):
                replacement.is_restored = True
                # What is wrapped around it stays, as of accelerate's mixed precision
                if not hasattr(method, "__wrapped__"):
                    del vars(module)[name]
        if _is_transformers_albert(module):
            for name in ("supports_gradient_checkpointing", "gradient_checkpointing"):
                vars(module).pop(name, None)
    return model


def _modules_of_model_or_pipeline(model: Any) -> Iterator[nn.Module]:
    """Return the modules of a model, or of the model of a pipeline."""
    root = model if isinstance(model, nn.Module) else getattr(model, "model", None)
    return root.modules() if isinstance(root, nn.Module) else iter(())


def _is_transformers_albert(module: nn.Module) -> bool:
    return any(kind.__name__ == "AlbertPreTrainedModel" for kind in type(module).__mro__)


class _LiveEngine:
    """Engine and packed layers that follow the modules and weights of a live model.

    Args:
        model: Whose mode and hooks count.
        ours: Our model over the same parameters.
        precision: Of the engine.
        training: Whether gradients are computed, too.
    """

    def __init__(
        self, model: nn.Module, ours: AlbertModel, precision: Precision, training: bool
    ) -> None:
        self.model = model
        self.ours = ours
        self.precision = precision
        self.training = training
        self._warned: set[str] = set()
        self._engine: Engine | None = None
        self._unpackable = ""
        self._structure = self._current_structure()

    def _current_structure(self) -> Any:
        """Return everything but the parameters' numbers and the modules borrowed that decides a model's outputs."""
        if isinstance(self.ours, BorrowedModel):
            return self.ours.code_and_settings_by_module(self.model)
        return [
            (
                name,
                type(module),
                getattr(module, "eps", None),
                "forward" in vars(module),
                *module._parameters,
            )
            for name, module in all_modules_by_name(self.model)[1:]
        ]

    def engine(self) -> Engine:
        """Return the engine of the parameters as they are now."""
        self._take_current_modules()
        reason = reason_not_to_pack(self.ours)
        if self._engine is None or reason != self._unpackable:
            self._unpackable = reason
            self._engine = load_engine(self.ours, self.precision)
            for note in self._engine.notes:
                self.warn(note)
        return self._engine

    def packed_layers(self, device: str) -> AlbertModel:
        """Return our model, as it computes gradients in the dtype of the autocast around it."""
        self._take_current_modules()
        self.ours.compute_dtype = (
            torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else None
        )
        return self.ours

    def _take_current_modules(self) -> None:
        if isinstance(self.ours, BorrowedModel):
            self.ours.take_modules_of(self.model)

    def why_not_inference(self) -> str:
        """Return why the engine cannot compute this call though it might later; empty in inference."""
        if self.model.training:
            return "the model is in training mode: call model.eval()"
        if torch.is_grad_enabled() and any(p.requires_grad for p in _parameters(self.model)):
            return "gradients are on: call it under torch.no_grad() or torch.inference_mode()"
        return ""

    def reason_not_to_accelerate(self) -> str:
        """Return why the model has to compute this call by itself, or an empty text."""
        reason = self.why_not_inference()
        if reason and not self.training:
            return f"{reason}, or accelerate(model, training=True)"
        if self._current_structure() != self._structure:
            return "its layers were replaced since: call accelerate again"
        if _has_any_global_hook():
            return "all modules have a hook"
        for name, module in all_modules_by_name(self.model)[1:]:
            if has_hooks(module, _HARMLESS_HOOKS):
                return f"`{name}` has a hook"
        return ""

    def warn(self, fallback: str) -> None:
        """Say once what computes in another way than was asked for."""
        if fallback not in self._warned:
            self._warned.add(fallback)
            warnings.warn(f"accelerate: {fallback}", stacklevel=5)


def _parameters(model: nn.Module) -> list[nn.Parameter]:
    return [
        p
        for _, module in all_modules_by_name(model)
        for p in module._parameters.values()
        if p is not None
    ]


def _is_traced_or_transformed(tensors: Iterable[Any]) -> bool:
    """Return whether something records, replaces or transforms torch's operations: a compiler, a tracer, a mode, torch.func."""
    if is_recorded_or_transformed() or _get_current_dispatch_mode() is not None:
        return True
    modes = _get_current_function_mode_stack()
    if not all(isinstance(mode, DeviceContext) for mode in modes):
        return True
    return any(isinstance(x, Tensor) and type(x) not in _TENSOR_TYPES for x in tensors)


class _Forward:
    """Replacement for the `forward` of a class of transformers.

    Attributes:
        is_restored: Whether the class's own computes again.
    """

    def __init__(self, model: Any) -> None:
        self.model, self.is_restored = model, False
        self.__signature__ = inspect.signature(type(model).forward.__get__(model))

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        model = self.model
        # accelerate's `unwrap_model` binds what it finds to the model
        args = args[1:] if args and args[0] is model else args
        tensors = (*args, *kwargs.values(), *_parameters(model))
        if self.is_restored or _is_traced_or_transformed(tensors):
            return type(model).forward(model, *args, **kwargs)
        arguments = self.__signature__.bind(*args, **kwargs).arguments
        arguments |= arguments.pop("kwargs", {})
        return self.compute(arguments, args, kwargs)

    def compute(self, arguments: dict[str, Any], args: Any, kwargs: dict[str, Any]) -> Any:
        """Return the output for arguments by name, which are the same as `args` and `kwargs`."""
        raise NotImplementedError


class _TransformersForward(_Forward):
    """Replacement for the `forward` of transformers' `AlbertModel`.

    Args:
        model: Theirs.
        fast: What computes in its place.
    """

    def __init__(self, model: Any, fast: _LiveEngine) -> None:
        super().__init__(model)
        self.fast = fast

    def compute(self, arguments: dict[str, Any], args: Any, kwargs: dict[str, Any]) -> Any:
        if reason := self._why_unsupported(arguments) or self.fast.reason_not_to_accelerate():
            self.fast.warn(f"computed by the model itself, {reason}")
            return type(self.model).forward(self.model, *args, **kwargs)
        ids, mask = arguments["input_ids"], arguments.get("attention_mask")
        # The model's own buffers where none are given
        types, positions = arguments.get("token_type_ids"), arguments.get("position_ids")
        embeddings, width = self.model.embeddings, ids.shape[1]
        counted = torch.arange(width, device=ids.device)[None]
        if positions is None:
            buffered = getattr(embeddings, "position_ids", counted)[:, :width]
            # Of too long a row our error says so
            positions = buffered if buffered.shape[1] == width else counted
        positions = positions.expand(ids.shape)
        if types is None:
            buffered = getattr(embeddings, "token_type_ids", torch.zeros_like(counted)).expand(
                len(ids), -1
            )
            types = buffered.gather(1, positions.clamp(max=buffered.shape[1] - 1))
        inputs = {"token_type_ids": types, "position_ids": positions}
        keeps_padding = _PADDING_COUNTS.get() and mask is not None
        if not (keeps_padding or self.fast.why_not_inference()):
            with torch.no_grad():
                hidden, pooled = self.fast.engine().encode(
                    PackedBatch.from_padded(ids, mask, **inputs)
                )
                return self.make_output(arguments, hidden, pooled)
        batch: PackedBatch | PaddedBatch = PackedBatch.from_padded(ids, mask, **inputs)
        if keeps_padding and mask is not None:
            batch = PaddedBatch(ids.flatten(), types.flatten(), positions.flatten(), mask != 0)
        layers = self.fast.packed_layers(ids.device.type)
        with torch.autocast(ids.device.type, enabled=False):
            hidden, pooled = layers.encode(batch)
        return self.make_output(arguments, hidden, pooled)

    def _why_unsupported(self, arguments: dict[str, Any]) -> str:
        """Return what is not computed here: anything but rows of ids, padded on the right, to their last states."""
        requested = {
            name for name, value in arguments.items() if value is not None and value is not False
        }
        requested |= {
            name
            for name in ("output_hidden_states", "output_attentions")
            if getattr(self.model.config, name)
        }
        if unsupported := requested - _SUPPORTED_ARGUMENTS:
            return f"it was asked for {min(unsupported)}"
        ids, mask, types = (
            arguments.get(name) for name in ("input_ids", "attention_mask", "token_type_ids")
        )
        if not isinstance(ids, Tensor) or ids.dim() != 2 or not ids.numel():
            return "its input is not rows of ids"
        if types is not None and types.shape != ids.shape:
            return "its token types are not rows as its ids are"
        if mask is not None and (mask.shape != ids.shape or not bool((mask[:, 0] != 0).all())):
            return "its attention mask is not one of rows that begin with a token"
        return ""

    def make_output(self, arguments: dict[str, Any], hidden: Tensor, pooled: Tensor | None) -> Any:
        """Return the states in rows, in transformers' own class."""
        from transformers.modeling_outputs import BaseModelOutputWithPooling

        ids, mask = arguments["input_ids"], arguments.get("attention_mask")
        device = ids.device.type
        dtype = (
            torch.get_autocast_dtype(device)
            if torch.is_autocast_enabled(device)
            else self.model.dtype
        )
        everywhere = mask is None or len(hidden) == ids.numel()
        states = hidden.view(*ids.shape, -1) if everywhere else unpack(hidden, mask)  # type: ignore[arg-type]
        pooled = None if pooled is None else _leave_inference_mode(pooled.to(dtype))
        output = BaseModelOutputWithPooling(_leave_inference_mode(states.to(dtype)), pooled)
        return output if _returns_dict(arguments, self.model) else output.to_tuple()


_HEADS_OF_PLACES = {"AlbertForMaskedLM", "AlbertForPreTraining"}
_HEADS_OF_PLACES |= {"AlbertForTokenClassification", "AlbertForQuestionAnswering"}


class _HeadForward(_Forward):
    """Replacement for the `forward` of transformers' classes whose loss reads the state of every place.

    States at padding are computed where the loss reads them. In training, the loss of masked words is
    computed at the labels alone; the logits are theirs, of all places and with gradients, if somebody
    uses them.
    """

    # Six of seven places have no label. Updates of H 384 at 128 tokens in bf16: with the loss of
    # all places 1.33 times as fast as the untouched model's, at the labels alone 1.83 times.

    def __init__(self, model: Any, training: bool) -> None:
        super().__init__(model)
        self.training = training

    def compute(self, arguments: dict[str, Any], args: Any, kwargs: dict[str, Any]) -> Any:
        model = self.model
        token = _PADDING_COUNTS.set(self.does_padding_count(arguments))
        try:
            if self.has_labels_alone(arguments):
                return self.compute_at_labels(arguments)
            return type(model).forward(model, *args, **kwargs)
        finally:
            _PADDING_COUNTS.reset(token)

    def does_padding_count(self, arguments: dict[str, Any]) -> bool:
        mask, labels = arguments.get("attention_mask"), arguments.get("labels")
        if hasattr(self.model, "qa_outputs"):  # a softmax over all places of a row
            return torch.is_grad_enabled() or arguments.get("start_positions") is not None
        if mask is None or labels is None or mask.shape != labels.shape:
            return False
        return bool(((labels != IGNORED) & (mask == 0)).any())

    def has_labels_alone(self, arguments: dict[str, Any]) -> bool:
        """Return whether the loss is that of masked words, by the head that transformers has."""
        head = getattr(self.model, "predictions", None)
        if head is None or not self.training or not torch.is_grad_enabled():
            return False
        is_theirs = "forward" not in vars(head) and all(
            type(module).forward.__module__.startswith("transformers.")
            for module in (self.model, head)
        )
        needed = ["labels", "sentence_order_label"]
        if not hasattr(self.model, "sop_classifier"):
            needed.pop()
        return (
            is_theirs
            and is_unmodified_module(head.decoder, nn.Linear)
            and not any(has_hooks(module, ("albertkit.",)) for module in head.modules())
            and all(arguments.get(name) is not None for name in needed)
        )

    def compute_at_labels(self, arguments: dict[str, Any]) -> Any:
        model, head = self.model, self.model.predictions
        targets = arguments.pop("labels").flatten()
        has_order = hasattr(model, "sop_classifier")
        order = arguments.pop("sentence_order_label") if has_order else None
        states: list[Tensor] = []
        thread = get_ident()  # a hook is called by all threads that compute this model

        def collect(_: nn.Module, inputs: tuple[Tensor, ...]) -> None:
            if get_ident() == thread:
                states.append(inputs[0])

        hook = head.register_forward_pre_hook(collect)
        try:
            output = type(model).forward(model, **{**arguments, "return_dict": True})
        finally:
            hook.remove()
        hidden, has_label = states[0].flatten(0, 1), targets != IGNORED
        with torch.autocast(hidden.device.type, enabled=False):
            inner = head.activation(linear_function(hidden.dtype, head.dense)(hidden[has_label]))
            inner = layer_norm_function(hidden.dtype, head.LayerNorm)(inner)
            loss, _ = vocabulary_loss(
                inner, head.decoder.weight, head.decoder.bias, targets[has_label]
            )
            loss = loss / has_label.sum()
        if order is not None:
            loss = loss + nn.functional.cross_entropy(output.sop_logits.view(-1, 2), order.view(-1))
        output = type(output)(**{**output, "loss": loss})
        return output if _returns_dict(arguments, model) else output.to_tuple()


def _returns_dict(arguments: dict[str, Any], model: Any) -> bool:
    as_object = arguments.get("return_dict")
    return getattr(model.config, "return_dict", True) if as_object is None else as_object


class _OwnEncode:
    """Replacement for `AlbertModel.encode` of this package."""

    def __init__(self, model: AlbertModel, fast: _LiveEngine) -> None:
        self.model, self.fast = model, fast
        self.is_restored = False

    def __call__(
        self,
        batch: PackedBatch | PaddedBatch,
        trace: Trace | None = None,
        positions: Tensor | None = None,
        words: Tensor | None = None,
    ) -> PackedOutput:
        inputs = (batch.input_ids, batch.token_type_ids, batch.position_ids, words)
        states_wanted = trace is not None and (
            trace.hidden_states is not None or trace.attentions is not None
        )
        is_watched = _is_traced_or_transformed((*inputs, *_parameters(self.model)))
        is_left_out = self.is_restored or is_watched or states_wanted or words is not None
        if is_left_out or not isinstance(batch, PackedBatch):
            return AlbertModel.encode(self.model, batch, trace, positions, words)
        if reason := self.fast.reason_not_to_accelerate():
            self.fast.warn(f"computed by the model itself, {reason}")
        if reason or self.fast.why_not_inference():
            return AlbertModel.encode(self.model, batch, trace, positions, words)
        engine = self.fast.engine()
        with torch.no_grad():
            hidden, pooled = engine.encode(batch, positions)
        # As the model's own heads read them: engines compute a model of half precision in fp32
        if (dtype := self.model.dtype).itemsize < hidden.dtype.itemsize:
            hidden, pooled = hidden.to(dtype), None if pooled is None else pooled.to(dtype)
        return PackedOutput(
            _leave_inference_mode(hidden), None if pooled is None else _leave_inference_mode(pooled)
        )


def _leave_inference_mode(tensor: Tensor) -> Tensor:
    """Return a tensor that may be written to outside of `torch.inference_mode`, as the model's own may."""
    return (
        tensor.clone()
        if tensor.is_inference() and not torch.is_inference_mode_enabled()
        else tensor
    )


class BorrowedModel(AlbertModel):
    """An `AlbertModel` that has the linear layers, norms, tables and dropout of transformers' one.

    Args:
        theirs: transformers' `AlbertModel`.

    Raises:
        ConfigError: wrong-model if it is put together otherwise than transformers does.
    """

    def __init__(self, theirs: Any) -> None:
        from transformers import AlbertModel as TheirModel

        config = resolve_config(theirs.config, Path("config.json"))
        with on_meta_device():
            super().__init__(config, add_pooling_layer=theirs.pooler is not None)
        modules = dict(self.named_modules())
        self._leaves = [name for name, module in modules.items() if not module._modules]
        self._containers = [name for name, module in modules.items() if module._modules]
        self._blocks = {
            name: module for name, module in modules.items() if isinstance(module, AlbertLayer)
        }
        for block in self._blocks.values():
            # transformers has none behind the feed-forward layer, Google has
            block.ffn_dropout = 0.0
        self.training = False  # of this module alone: those it borrows are in their model's mode
        self._leaf_prefixes = tuple(f"{name}." for name in self._leaves)
        with on_meta_device():
            plain = TheirModel(copy.deepcopy(theirs.config), theirs.pooler is not None)
        try:
            structure, plain_structure = (
                self.code_and_settings_by_module(theirs),
                self.code_and_settings_by_module(plain),
            )
        except AttributeError as error:
            self._refuse(str(error))
        for name, _ in theirs.named_parameters():
            if not name.startswith(self._leaf_prefixes):
                self._refuse(f"it has `{name}`")
        if "forward" in vars(theirs):
            self._refuse("its forward was replaced")
        if attention := structure["config"][-1]:
            self._refuse(f"its attention is `{attention}`")
        for name in plain_structure | structure:
            code, *numbers = structure.get(name) or (None,)
            plain_code, *plain_numbers = plain_structure.get(name) or (None,)
            module = getattr(code, "__module__", "")
            if name in self._containers and module.startswith(("transformers.", "torch.")):
                plain_code = code  # transformers 4 has a class for each kind of attention
            if (code, numbers) != (plain_code, plain_numbers):
                self._refuse(f"`{name or type(theirs).__name__}`")
        self.take_modules_of(theirs)

    @staticmethod
    def _refuse(reason: str) -> None:
        hint = (
            "accelerate a model of transformers' own ALBERT classes, before its layers are replaced"
        )
        raise ConfigError(
            "wrong-model", f"this ALBERT has other layers than transformers' own: {reason}", hint
        )

    def code_and_settings_by_module(self, theirs: Any) -> dict[str, tuple]:
        """Return what is not borrowed of their model and decides its outputs: how its layers are put together, by name."""
        config = theirs.encoder.config
        attention = getattr(theirs.config, "_attn_implementation", None)
        if attention in _ATTENTIONS:
            attention = None
        layer_counts = config.num_hidden_layers, config.num_hidden_groups
        structure: dict[str, tuple] = {"config": (*layer_counts, attention)}
        for name, module in all_modules_by_name(theirs):
            if f"{name}.".startswith(self._leaf_prefixes):
                if name in self._leaves:
                    structure[name] = ()
                continue
            forward = vars(module).get("forward") if name else None  # their model's own is ours
            code = type(module).forward if name in self._containers else type(module)
            # Scales, and numbers of heads, of which transformers 4 prunes some
            numbers = [
                (key, value)
                for key, value in vars(module).items()
                if name and isinstance(value, int | float | str) and key not in _CHANGING
            ]
            structure[name] = code, forward, *numbers
        if theirs.pooler is None:
            structure.pop("pooler_activation", None)
        return structure

    def take_modules_of(self, theirs: nn.Module) -> None:
        """Take the modules, and the rates of dropout, that their model has now."""
        for name in self._leaves:
            container, _, leaf = name.rpartition(".")
            self.get_submodule(container)._modules[leaf] = theirs.get_submodule(name)
        for name, block in self._blocks.items():
            attention: Any = theirs.get_submodule(f"{name}.attention")
            block.training = attention.training
            # transformers 4 reads the number with torch's attention, and the module with its own.
            block.attention_dropout = getattr(
                attention, "dropout_prob", attention.attention_dropout.p
            )
            block.hidden_dropout = attention.output_dropout.p
        self.gradient_checkpointing = getattr(theirs, "gradient_checkpointing", False)
