"""Scorers of silver pairs, and their scores, which are kept."""

import shutil
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
from sklearn.linear_model import LinearRegression

from albertkit.embeddings.encoder import state_digest
from albertkit.embeddings.metrics import unit_vectors
from albertkit.embeddings.models import load_embedding_model
from albertkit.engines.engine import Precision
from albertkit.errors import CheckpointError
from albertkit.files import sha256_bytes
from albertkit.frame.job import Job
from albertkit.tasks.loading import load_task_model
from albertkit.tasks.metrics.regression import regression_scores
from albertkit.tasks.prediction import run_model
from albertkit.tasks.texts import TextExample, TextRegression
from albertkit.tokenizer.ragged import RaggedIds
from albertkit.training.distributed import join_world
from albertkit.training.hardware import choose_precision


class CrossEncoder:
    """A model of `finetune`, in the folder of its run, that gives pairs a score.

    Attributes:
        name: As it was given.
        digest: SHA-256 of all that decides the scores.
        token_ids: Texts to the ids of their tokens, without special tokens.
        notes: What a user should know about how the scores are computed.
    """

    def __init__(self, folder: str | Path, batch_tokens: int, precision: str = "auto", device: str = "auto") -> None:
        try:
            loaded = load_task_model(folder)
        except CheckpointError as error:
            if error.slug != "wrong-model":
                raise
            raise CheckpointError(
                "wrong-model",
                f"`{folder}` is not fine-tuned: {error.message}",
                f"fine-tune it on the gold pairs: albertkit finetune korsts {folder} DATA --out RUN; or score by the cosine of "
                "vectors: --bi-encoder MODEL",
            ) from None
        if not isinstance(loaded.task, TextRegression):
            raise CheckpointError(
                "wrong-model",
                f"`{folder}` was fine-tuned on `{loaded.task.name}`, which gives pairs no score",
                "fine-tune one: albertkit finetune korsts MODEL DATA --out RUN (or stsb, klue-sts, regress)",
            )
        world = join_world(device)
        loaded.model.to(world.device)
        loaded.model.compute_dtype = choose_precision(precision, world.device)
        self._loaded, self._batch_tokens = loaded, batch_tokens
        self.name = str(folder)
        self.token_ids: Callable[[Sequence[str]], RaggedIds] = loaded.tokenizer.encode_batch
        self.notes: list[str] = []
        computed = f"{loaded.model.compute_dtype} {batch_tokens} {loaded.tokenizer.fingerprint} {loaded.task!r}"
        self.digest = sha256_bytes(f"{computed} {state_digest(loaded.model.state_dict())}".encode())

    def scores(self, texts: Sequence[str], pairs: Sequence[str]) -> np.ndarray:
        """Return the score of each pair, on the scale that it was trained on: fp64 [C]."""
        task, model, tokenizer = self._loaded
        examples = [TextExample("", *pair) for pair in zip(texts, pairs, strict=True)]
        features = task.features(examples, tokenizer, labelled=False)
        outputs = run_model(model, task, features, self._batch_tokens)
        return np.array(
            [prediction["value"] for prediction in task.predictions(examples, features, outputs)], np.float64
        )


class CosineScorer:
    """The cosine of a model's vectors, on the line that fits the scores of gold training pairs best.

    Attributes as of `CrossEncoder`.
    """

    def __init__(
        self, model: str | Path, gold: Sequence[TextExample], precision: Precision = "auto", device: str | None = None
    ) -> None:
        self._model = load_embedding_model(model, precision, device=device)
        if self._model.token_ids is None:
            raise CheckpointError(
                "wrong-model",
                f"`{model}` has no tokenizer whose tokens BM25 could count",
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


Scorer = CrossEncoder | CosineScorer
LEAST_SPEARMAN = 0.5  # on gold dev pairs; what a weaker one says of pairs is mostly noise
CHUNK = 1024  # pairs whose scores are computed and kept at once: 20 s of a small model on one core


class KeptScores:
    """Scores of pairs, in chunks in a folder that a killed call leaves for the next one."""

    def __init__(self, scorer: Scorer, folder: Path, progress: bool) -> None:
        self._scorer, self._folder, self._progress = scorer, folder, progress
        self.resumed = 0

    def of(self, name: str, texts: Sequence[str], pairs: Sequence[str]) -> np.ndarray:
        """Return the scores of C pairs, fp64 [C]; the name is for the folder and the progress."""
        folder = self._folder / name.replace(" ", "-")
        listed = "\0".join((*texts, *pairs)).encode("utf-8", "surrogatepass")
        key = {"scorer": self._scorer.digest, "pairs": sha256_bytes(listed), "chunk": CHUNK}
        with Job(
            folder, key, overwrite=True, title=name, total=len(texts), unit="pairs", progress=self._progress
        ) as job:
            done = job.facts.get("done", 0)
            self.resumed += done
            job.progress.resume(done)
            for start in range(done, len(texts), CHUNK):
                rows = slice(start, start + CHUNK)
                scores = np.asarray(self._scorer.scores(texts[rows], pairs[rows]), np.float64)
                job.write("scores.bin", scores.tobytes())
                job.commit(done=start + len(scores))
                job.progress.update(start + len(scores))
            return np.fromfile(folder / "scores.bin") if texts else np.zeros(0)

    def clear(self) -> None:
        """Remove what was kept."""
        shutil.rmtree(self._folder, ignore_errors=True)


def check_scorer(
    name: str, dev: Sequence[TextExample], predicted: np.ndarray, force: bool
) -> tuple[dict[str, float], list[str]]:
    """Refuse a scorer that agrees too little with gold scores to stand in for them, unless `force`.

    Returns pairs, pearson, spearman, mse of its scores of the gold dev pairs, and what a user should know about them.
    """
    labels = np.array([example.label for example in dev], np.float64)
    scores = regression_scores(labels, predicted)
    if not force and not scores["spearman"] >= LEAST_SPEARMAN:
        figure = "undefined: its scores are constant" if np.isnan(scores["spearman"]) else f"{scores['spearman']:.3f}"
        raise CheckpointError(
            "doubtful",
            f"`{name}` agrees too little with {len(dev):,} gold dev pairs: the Spearman correlation, which must be "
            f"{LEAST_SPEARMAN} at least, is {figure}",
            "score by the cosine of a sentence encoder in place of it: --bi-encoder RUN (tiny models learn to compare two texts "
            "in one sequence hardly at all, however long they are fine-tuned); or use it as it is with --force",
        )
    notes = []
    if scores["mse"] > labels.var():  # correlations do not show another scale
        notes.append(
            f"the cross-encoder's scores may be on another scale: their mean squared error on the dev pairs is "
            f"{scores['mse']:.3f}, and that of saying the mean each time {labels.var():.3f}"
        )
    return {"pairs": len(dev), **{name: scores[name] for name in ("pearson", "spearman", "mse")}}, notes
