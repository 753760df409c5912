"""Models that score pairs of texts: cross-encoders, which read both texts at once, and the cosine of vectors."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Protocol

import numpy as np
from sklearn.linear_model import LinearRegression

from albertkit.embeddings.encoder import state_digest
from albertkit.embeddings.evaluation.similarity import unit_vectors
from albertkit.embeddings.models import load_embedding_model
from albertkit.engines.engine import Precision
from albertkit.errors import CheckpointError
from albertkit.files import sha256_bytes
from albertkit.tasks.loading import load_task_model
from albertkit.tasks.prediction import run_model
from albertkit.tasks.texts import TextExample, TextRegression
from albertkit.tokenizer.ragged import RaggedIds
from albertkit.training.distributed import join_world
from albertkit.training.hardware import choose_precision


class Scorer(Protocol):
    """A model that gives pairs of texts a score.

    Attributes:
        name: As it was given.
        digest: SHA-256 of all that decides the scores.
        token_ids: Texts to the ids of their pieces, without special tokens.
        notes: What a user should know about how the scores are computed.
    """

    name: str
    digest: str
    token_ids: Callable[[Sequence[str]], RaggedIds]
    notes: list[str]

    def scores(self, texts: Sequence[str], pairs: Sequence[str]) -> np.ndarray:
        """Return the score of each pair, on the scale of the gold pairs: fp64 [C]."""
        ...


class CrossEncoder:
    """A model of `finetune` that gives pairs a score.

    Args:
        folder: Its run.
        batch_tokens: Most tokens computed at once.
        precision: fp32, bf16, or auto: bf16 where the hardware multiplies it faster.
        device: auto, cpu, cuda or cuda:N.

    Raises:
        CheckpointError: not-a-cross-encoder, no-task, and what loading raises. ConfigError: bad-device, bad-precision.
    """

    def __init__(self, folder: str | Path, batch_tokens: int, precision: str = "auto", device: str = "auto") -> None:
        try:
            loaded = load_task_model(folder)
        except CheckpointError as error:
            if error.slug != "no-task":
                raise
            raise CheckpointError(
                "not-a-cross-encoder", f"`{folder}` is not fine-tuned: {error.message}",
                f"fine-tune it on the gold pairs: albertkit finetune korsts {folder} DATA --out RUN; or score by the cosine of "
                "vectors: --bi-encoder MODEL",
            ) from None  # fmt: skip
        if not isinstance(loaded.task, TextRegression):
            raise CheckpointError(
                "not-a-cross-encoder", f"`{folder}` was fine-tuned on `{loaded.task.name}`, which gives pairs no score",
                "fine-tune one: albertkit finetune korsts MODEL DATA --out RUN (or stsb, klue-sts, regress)",
            )  # fmt: skip
        world = join_world(device)
        loaded.model.to(world.device)
        loaded.model.compute_dtype = choose_precision(precision, world.device)
        self._loaded, self._batch_tokens = loaded, batch_tokens
        self.name, self.token_ids = str(folder), loaded.tokenizer.encode_batch
        self.notes: list[str] = []
        computed = f"{loaded.model.compute_dtype} {batch_tokens} {loaded.tokenizer.fingerprint} {loaded.task!r}"
        self.digest = sha256_bytes(f"{computed} {state_digest(loaded.model.state_dict())}".encode())

    def scores(self, texts: Sequence[str], pairs: Sequence[str]) -> np.ndarray:
        """The score of each pair, on the scale that it was trained on: fp64 [C]."""
        task, model, tokenizer = self._loaded
        examples = [TextExample("", *pair) for pair in zip(texts, pairs, strict=True)]
        features = task.features(examples, tokenizer, labelled=False)
        outputs = run_model(model, task, features, self._batch_tokens)
        return np.array(
            [prediction["value"] for prediction in task.predictions(examples, features, outputs)], np.float64
        )


class CosineScorer:
    """The cosine of a model's vectors, on the line that fits the scores of gold training pairs best.

    Args:
        model: Anything that makes vectors: see `load_embedding_model`.
        gold: Training pairs.
        precision: Of an ALBERT.
        device: Of the model.

    Raises:
        CheckpointError: not-an-embedding-model for a model without a tokenizer, and what loading raises.
    """

    def __init__(
        self, model: str | Path, gold: Sequence[TextExample], precision: Precision = "auto", device: str | None = None
    ) -> None:
        self._model = load_embedding_model(model, precision, device=device)
        if self._model.token_ids is None:
            raise CheckpointError(
                "not-an-embedding-model",
                f"`{model}` has no tokenizer whose pieces BM25 could count",
                "use another model",
            )
        self.name, self.token_ids = str(model), self._model.token_ids
        labels = np.array([example.label for example in gold], np.float64)
        cosines = self._cosines([example.text for example in gold], [example.pair or "" for example in gold])
        self._line = LinearRegression().fit(cosines[:, None], labels)
        slope, start = float(self._line.coef_[0]), float(self._line.intercept_)
        self.notes = [
            *self._model.notes,
            f"score: {start:.3f} + {slope:.3f} x cosine, fitted to {len(gold):,} gold training pairs",
        ]
        self.digest = sha256_bytes(f"{self._model.description} {slope!r} {start!r}".encode())

    def scores(self, texts: Sequence[str], pairs: Sequence[str]) -> np.ndarray:
        """Return the score of each pair: fp64 [C]."""
        return self._line.predict(self._cosines(texts, pairs)[:, None])

    def _cosines(self, texts: Sequence[str], pairs: Sequence[str]) -> np.ndarray:
        different = list(dict.fromkeys([*texts, *pairs]))
        place = {text: number for number, text in enumerate(different)}
        vectors = unit_vectors(self._model.encode(different))
        a, b = (vectors[[place[text] for text in side]] for side in (texts, pairs))
        return (a * b).sum(1).astype(np.float64)
