"""Scores of many pairs, kept on disk while they are computed: what was computed is not computed again."""

import shutil
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from albertkit.embeddings.encoding.progress import EncodeProgress
from albertkit.embeddings.silver.scorers import Scorer
from albertkit.errors import CheckpointError
from albertkit.files import atomic_file, read_json, sha256_bytes, write_json
from albertkit.tasks.metrics.regression import regression_scores
from albertkit.tasks.texts import TextExample

LEAST_SPEARMAN = 0.5  # on gold dev pairs; what a weaker one says of pairs is mostly noise
CHUNK = 1024  # pairs whose scores are computed and kept at once: 20 s of a small model on one core


class KeptScores:
    """Scores of pairs, in chunks that a killed call leaves for the next one.

    Args:
        scorer: The model.
        folder: Of the chunks; `clear` removes it.
        progress: Whether progress is shown on stderr.
    """

    def __init__(self, scorer: Scorer, folder: Path, progress: bool) -> None:
        self._scorer, self._folder, self._progress = scorer, folder, progress
        self.resumed = 0

    def of(self, name: str, texts: Sequence[str], pairs: Sequence[str]) -> np.ndarray:
        """Return the scores of pairs, fp64 [C].

        Args:
            name: What the pairs are, for the folder and the progress.
            texts: C first texts.
            pairs: C second texts.
        """
        folder = self._folder / name.replace(" ", "-")
        listed = "\0".join((*texts, *pairs)).encode("utf-8", "surrogatepass")
        key = {"scorer": self._scorer.digest, "pairs": sha256_bytes(listed), "chunk": CHUNK}
        known = folder / "key.json"
        if not (known.exists() and read_json(known) == key):
            shutil.rmtree(folder, ignore_errors=True)
            write_json(known, key)
        files = [folder / f"{start:09}.npy" for start in range(0, len(texts), CHUNK)]
        done = sum(len(np.load(file)) for file in files if file.exists())
        self.resumed += done
        with EncodeProgress(len(texts), self._progress, name, "pairs") as display:
            display.start(done)
            for file, start in zip(files, range(0, len(texts), CHUNK), strict=True):
                if not file.exists():
                    rows = slice(start, start + CHUNK)
                    scores = np.asarray(self._scorer.scores(texts[rows], pairs[rows]), np.float64)
                    with atomic_file(file) as stream:
                        np.lib.format.write_array(stream, scores, allow_pickle=False)
                    done += len(scores)
                    display.update(done)
        return np.concatenate([np.load(file) for file in files]) if files else np.zeros(0)

    def clear(self) -> None:
        """Remove what was kept."""
        shutil.rmtree(self._folder, ignore_errors=True)


def check_scorer(
    name: str, dev: Sequence[TextExample], predicted: np.ndarray, force: bool
) -> tuple[dict[str, float], list[str]]:
    """Make sure that a scorer agrees with gold scores enough to stand in for them.

    Args:
        name: Of the scorer.
        dev: Gold pairs that it was not trained on.
        predicted: Its scores of them.
        force: Go on if not.

    Returns:
        pairs, pearson, spearman, mse; and what a user should know about them.

    Raises:
        CheckpointError: weak-cross-encoder.
    """
    labels = np.array([example.label for example in dev], np.float64)
    scores = regression_scores(labels, predicted)
    if not force and not scores["spearman"] >= LEAST_SPEARMAN:
        figure = "undefined: its scores are constant" if np.isnan(scores["spearman"]) else f"{scores['spearman']:.3f}"
        raise CheckpointError(
            "weak-cross-encoder",
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
