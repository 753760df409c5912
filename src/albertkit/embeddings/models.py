"""Any model that makes vectors of texts, to be measured, to sample with or to be drawn: ALBERTs through our encoder, others
through sentence-transformers."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np
import torch

from albertkit.checkpoints.hub import local_folder
from albertkit.embeddings.encoder import SentenceEncoder
from albertkit.embeddings.folder import MODULES
from albertkit.embeddings.pooling import check_pooling
from albertkit.engines.engine import Precision
from albertkit.errors import CheckpointError, ConfigError, DataError, MissingExtraError
from albertkit.files import read_json
from albertkit.tokenizer.ragged import RaggedIds, ragged


@dataclass(frozen=True)
class EmbeddingModel:
    """Texts to vectors, whoever computes them.

    Attributes:
        name: As it was given.
        description: What it is, in words.
        dimension: D.
        compute: E texts to fp32 [E, D]; `encode` also looks at what comes out.
        token_ids: E texts to the ids of their pieces, without special tokens; None for a model without a tokenizer.
    """

    name: str
    description: str
    dimension: int
    compute: Callable[[Sequence[str]], np.ndarray]
    token_ids: Callable[[Sequence[str]], RaggedIds] | None

    def encode(self, texts: Sequence[str]) -> np.ndarray:
        """Vectors of E texts, fp32 [E, D].

        Raises:
            CheckpointError: vectors-not-finite.
        """
        vectors = self.compute(texts)
        if bad := int((~np.isfinite(vectors).all(1)).sum()):
            raise CheckpointError(
                "vectors-not-finite", f"`{self.name}` gives {bad:,} of {len(texts):,} texts a vector that is not finite",
                "its weights hold NaN or infinity, or its training diverged: use an earlier checkpoint",
            )  # fmt: skip
        return vectors


def load_embedding_model(model: str | Path, precision: Precision = "auto") -> EmbeddingModel:
    """Open a model; on a GPU if there is one.

    Args:
        model: A sentence-transformers folder, a run of `embed train`, a plain ALBERT checkpoint, which then has mean pooling,
            `org/name` of the hub, or the name of an installed package that carries a model. What is no ALBERT is run by
            sentence-transformers.
        precision: Of an ALBERT: fp32, bf16, int8, or auto: bf16 where the hardware multiplies it faster. Others have fp32.

    Raises:
        ConfigError: bad-precision.
        DataError: not-found, broken-json. CheckpointError: not-an-embedding-model, and what loading raises.
        MissingExtraError: missing-extra, for a model that is no ALBERT without sentence-transformers.
    """
    folder = model_in_package(str(model)) or local_folder(model)
    if (folder / "best").is_dir() and not (folder / "config.json").exists():
        folder = folder / "best"
    config = folder / "config.json"
    values = read_json(config) if config.exists() else {}
    if not isinstance(values, dict):
        raise DataError("broken-json", f"`{config}` holds no names and values", "copy it again")
    if values.get("model_type") == "albert":
        return _albert(str(model), folder, precision)
    if precision not in ("auto", "fp32"):
        raise ConfigError(
            "bad-precision", f"`{model}` is no ALBERT: it runs in fp32", f"leave out --precision {precision}"
        )
    return _other(str(model), folder)


def model_in_package(name: str) -> Path | None:
    """The folder of sentence embeddings that an installed package carries, found by the package's own list of files."""
    try:
        files = [] if Path(name).exists() else metadata.files(name) or []
    except (metadata.PackageNotFoundError, ValueError):
        return None
    found = [Path(str(file.locate())) for file in files if file.name == MODULES]
    return found[0].parent if len(found) == 1 else None


def open_sentence_transformer(source: str, device: str | None = None) -> Any:
    """sentence-transformers' model of a folder or of the hub, without transformers' progress bar of a fraction of a second.

    Raises:
        Whatever sentence-transformers, transformers or torch do.
    """
    from sentence_transformers import SentenceTransformer
    from transformers.utils import logging

    shown = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        return SentenceTransformer(source, device=device)
    finally:
        if shown:
            logging.enable_progress_bar()


def _albert(name: str, folder: Path, precision: Precision) -> EmbeddingModel:
    encoder = SentenceEncoder.from_pretrained(folder)
    if torch.cuda.is_available():
        encoder.to("cuda")
    pooling = " and ".join(check_pooling(encoder.pooling))
    named = "" if (folder / "modules.json").exists() else ", which the checkpoint does not name"
    arithmetic = encoder.engine(precision).precision
    description = f"ALBERT of {encoder.config.num_hidden_layers} layers in {arithmetic}, {pooling} pooling{named}"
    encode = partial(encoder.encode, precision=precision)
    return EmbeddingModel(name, description, encoder.kept(None), encode, encoder.tokenizer.encode_batch)


def _other(name: str, folder: Path) -> EmbeddingModel:
    try:
        metadata.version("sentence-transformers")
    except metadata.PackageNotFoundError:
        raise MissingExtraError.of("sentence-transformers", "embed", "a model that is no ALBERT") from None
    try:
        model = open_sentence_transformer(str(folder))
    except Exception as error:  # of transformers, torch or its own: they share no base class
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise CheckpointError(
            "not-an-embedding-model", f"sentence-transformers cannot load `{name}`: {reason}",
            "name a sentence-transformers folder, an ALBERT checkpoint, or a run of `albertkit embed train`",
        ) from None  # fmt: skip

    def encode(texts: Sequence[str]) -> np.ndarray:
        vectors = model.encode(list(texts), convert_to_numpy=True, show_progress_bar=False)
        return np.asarray(vectors, np.float32)

    kinds = " ".join(type(module).__name__ for module in model)
    dimension = encode(["a"]).shape[1]
    return EmbeddingModel(name, f"sentence-transformers: {kinds}", dimension, encode, _token_ids(model.tokenizer))


def _token_ids(tokenizer: Any) -> Callable[[Sequence[str]], RaggedIds] | None:
    if not callable(tokenizer):  # static embeddings have a tokenizer of another kind
        return None

    def token_ids(texts: Sequence[str]) -> RaggedIds:
        found = tokenizer(list(texts), add_special_tokens=False, truncation=False, verbose=False)["input_ids"]
        return ragged([np.asarray(row, np.int32) for row in found])

    return token_ids
