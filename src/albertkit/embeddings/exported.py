"""A sentence encoder that was exported to ONNX: pooling, projection and length 1 are in its graph."""

from collections.abc import Callable
from typing import Any

from torch import Tensor

from albertkit.embeddings.encoder import SentenceEncoder
from albertkit.engines.onnx_model import OnnxModel
from albertkit.model.packing import PackedBatch

SENTENCE_EMBEDDING = "sentence_embedding"  # an output of the graph


class ExportedEncoder(SentenceEncoder):
    """`SentenceEncoder` whose `albert` is a model over ONNX Runtime with the output `sentence_embedding`."""

    @property
    def dimension(self) -> int:
        """D, numbers of a vector."""
        model: OnnxModel = self.albert  # type: ignore[assignment]
        return next(output.shape[1] for output in model.session.get_outputs() if output.name == SENTENCE_EMBEDDING)

    def _vectors(self, batch: PackedBatch, encode: Callable[..., Any]) -> Tensor:
        model: OnnxModel = self.albert  # type: ignore[assignment]
        return model.run(batch)[SENTENCE_EMBEDDING]
