"""A model whose heads read what an engine computes."""

import copy
from functools import partial
from typing import TypeVar

from torch import Tensor

from albertkit.engines.engine import Engine
from albertkit.engines.onnx_model import OnnxEngine
from albertkit.model.albert import AlbertModel
from albertkit.model.outputs import PackedOutput
from albertkit.model.packing import PackedBatch
from albertkit.model.padded import Trace
from albertkit.model.pretrained import PretrainedAlbert

Model = TypeVar("Model", bound=PretrainedAlbert)


def on_engine(model: Model, engine: Engine) -> Model:
    """The same heads over the engine's encoder, for `packed_logits` and `encode`; the model itself is left as it is.

    Args:
        model: Any class, in evaluation mode.
        engine: Of its encoder.
    """
    if isinstance(engine, OnnxEngine):
        return model  # it runs as a whole
    albert = copy.copy(model.encoder_model)
    albert.encode = partial(_encode, model.encoder_model, engine)  # type: ignore[method-assign]
    if isinstance(model, AlbertModel):
        return albert  # type: ignore[return-value]
    attached = copy.copy(model)
    attached._modules = {**model._modules, "albert": albert}
    return attached


def _encode(
    albert: AlbertModel, engine: Engine, batch: PackedBatch, trace: Trace | None = None, positions: Tensor | None = None
) -> PackedOutput:
    """As `AlbertModel.encode`; states of every pass are the model's own."""
    return engine.encode(batch, positions) if trace is None else albert.encode(batch, trace, positions)
