"""`SentenceEncoder`: texts to vectors, through packed batches."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from albertkit.config import AlbertConfig
from albertkit.embeddings.pooling import Pooling, pool, wanted_positions
from albertkit.model import AlbertModel, PackedBatch
from albertkit.tasks.features import Features
from albertkit.tasks.stream import cut_by_tokens
from albertkit.tasks.texts.features import text_features
from albertkit.tokenizer import AlbertTokenizer

ACTIVATIONS: dict[str, type[nn.Module]] = {"identity": nn.Identity, "tanh": nn.Tanh}


class Projection(nn.Module):
    """A linear layer with an activation, on pooled vectors: sentence-transformers' `Dense`.

    Args:
        inputs: Of each vector.
        outputs: Of each vector.
        activation: A key of `ACTIVATIONS`.
        bias: Whether to add one.
    """

    def __init__(self, inputs: int, outputs: int, activation: str = "tanh", bias: bool = True) -> None:
        super().__init__()
        self.linear = nn.Linear(inputs, outputs, bias=bias)
        self.activation_name = activation
        self.activation = ACTIVATIONS[activation]()

    def forward(self, vectors: Tensor) -> Tensor:
        """[N, inputs] to [N, outputs]."""
        return self.activation(self.linear(vectors))


class SentenceEncoder(nn.Module):
    """An ALBERT, a pooling, perhaps a projection, perhaps vectors of length 1.

    Args:
        albert: The encoder. Its pooler is not used.
        tokenizer: Its tokenizer.
        pooling: How states of tokens become one vector.
        max_length: Longest sequence, special tokens included; longer texts are cut.
        projection: What follows the pooling.
        normalize: Whether vectors are divided by their length.
    """

    def __init__(
        self,
        albert: AlbertModel,
        tokenizer: AlbertTokenizer,
        pooling: Pooling = "mean",
        max_length: int = 128,
        projection: Projection | None = None,
        normalize: bool = False,
    ) -> None:
        super().__init__()
        self.albert, self.projection = albert, projection
        self.tokenizer, self.pooling, self.max_length, self.normalize = tokenizer, pooling, max_length, normalize

    @property
    def config(self) -> AlbertConfig:
        """Of the encoder."""
        return self.albert.config

    @property
    def dimension(self) -> int:
        """D, numbers of a vector."""
        return self.config.hidden_size if self.projection is None else self.projection.linear.out_features

    def forward(self, batch: PackedBatch) -> Tensor:
        """Vectors of a packed batch.

        Args:
            batch: N sequences, on the model's device.

        Returns:
            fp32 [N, D].
        """
        wanted = wanted_positions(batch, self.pooling)
        hidden = self.albert.encode(batch, positions=wanted).hidden
        vectors = pool(hidden, batch, self.pooling) if wanted is None else hidden.float()
        if self.projection is not None:
            vectors = self.projection(vectors)
        return F.normalize(vectors, dim=1) if self.normalize else vectors

    def features(self, texts: Sequence[str]) -> Features:
        """What the model sees of texts: a sequence each, in their order."""
        return text_features(texts, None, self.tokenizer, self.max_length)

    @torch.inference_mode()
    def encode(self, texts: Sequence[str], batch_tokens: int = 8192) -> np.ndarray:
        """Vectors of texts.

        Args:
            texts: E texts. An empty one is `[CLS] [SEP]`.
            batch_tokens: Most tokens computed at once.

        Returns:
            fp32 [E, D], in the order of the texts.
        """
        features = self.features(texts)
        vectors = np.empty((len(texts), self.dimension), np.float32)
        order = np.argsort(features.lengths, kind="stable")
        for run in cut_by_tokens(features.lengths[order], batch_tokens, order):
            batch = features.batch(run).packed.to(self.albert.device)
            vectors[run] = self(batch).cpu().numpy()
        return vectors

    # --- files --------------------------------------------------------------------------------------------------------

    @classmethod
    def from_pretrained(cls, folder: str | Path, pooling: Pooling | None = None) -> "SentenceEncoder":
        """Read a sentence-transformers folder of an ALBERT, or any ALBERT checkpoint, which then gets a pooling.

        Args:
            folder: The folder, a run that `embed train` left, or `org/name` of the hub.
            pooling: For a checkpoint that has none. Default: mean.

        Returns:
            The model in fp32 on the CPU, in evaluation mode.
        """
        from albertkit.embeddings.folder import load_encoder

        return load_encoder(folder, pooling)

    def save_pretrained(self, folder: str | Path) -> None:
        """Write a checkpoint folder that sentence-transformers loads."""
        from albertkit.embeddings.folder import save_encoder

        save_encoder(folder, self)
