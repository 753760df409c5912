"""A model that reads two texts at once and scores them: better than vectors, too slow for search, good for making labels."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from albertkit.errors import CheckpointError
from albertkit.tasks.loading import load_task_model
from albertkit.tasks.metrics.regression import regression_scores
from albertkit.tasks.prediction import run_model
from albertkit.tasks.texts import TextExample, TextRegression
from albertkit.training.distributed import join_world
from albertkit.training.hardware import choose_precision

LEAST_SPEARMAN = 0.5  # on gold dev pairs; what a weaker one says of pairs is mostly noise
_CHUNK = 8192  # pairs held as sequences at a time


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
        loaded = load_task_model(folder)
        if not isinstance(loaded.task, TextRegression):
            raise CheckpointError(
                "not-a-cross-encoder", f"`{folder}` was fine-tuned on `{loaded.task.name}`, which gives pairs no score",
                "fine-tune one: albertkit finetune korsts MODEL DATA --out RUN (or stsb, klue-sts, regress)",
            )  # fmt: skip
        world = join_world(device)
        loaded.model.to(world.device)
        loaded.model.compute_dtype = choose_precision(precision, world.device)
        self._folder, self._loaded, self._batch_tokens = folder, loaded, batch_tokens
        self.tokenizer = loaded.tokenizer

    def scores(self, texts: Sequence[str], pairs: Sequence[str]) -> np.ndarray:
        """The score of each pair, on the scale that it was trained on: fp64 [C]."""
        task, model, tokenizer = self._loaded
        found = np.empty(len(texts))
        for start in range(0, len(texts), _CHUNK):
            rows = slice(start, start + _CHUNK)
            examples = [TextExample("", *pair) for pair in zip(texts[rows], pairs[rows], strict=True)]
            features = task.features(examples, tokenizer, labelled=False)
            outputs = run_model(model, task, features, self._batch_tokens)
            found[rows] = [prediction["value"] for prediction in task.predictions(examples, features, outputs)]
        return found

    def check(self, dev: Sequence[TextExample], force: bool) -> tuple[dict[str, float], list[str]]:
        """Whether it agrees with people enough to stand in for them.

        Args:
            dev: Gold pairs that it was not trained on.
            force: Go on if not.

        Returns:
            pairs, pearson, spearman, mse; and what a person should know about them.

        Raises:
            CheckpointError: weak-cross-encoder.
        """
        labels = np.array([example.label for example in dev], np.float64)
        predicted = self.scores([example.text for example in dev], [example.pair or "" for example in dev])
        scores = regression_scores(labels, predicted)
        if not force and not scores["spearman"] >= LEAST_SPEARMAN:
            figure = (
                "undefined: its scores are constant" if np.isnan(scores["spearman"]) else f"{scores['spearman']:.3f}"
            )
            raise CheckpointError(
                "weak-cross-encoder",
                f"`{self._folder}` agrees too little with {len(dev):,} gold dev pairs: the Spearman correlation, which must be "
                f"{LEAST_SPEARMAN} at least, is {figure}",
                "fine-tune it longer or on more pairs; or use it as it is with --force",
            )
        notes = []
        if scores["mse"] > labels.var():  # correlations do not show another scale
            notes.append(
                f"the cross-encoder's scores may be on another scale: their mean squared error on the dev pairs is "
                f"{scores['mse']:.3f}, and that of saying the mean each time {labels.var():.3f}"
            )
        return {"pairs": len(dev), **{name: scores[name] for name in ("pearson", "spearman", "mse")}}, notes
