"""`evaluate_embeddings`: how well vectors of texts agree with people, and whether they beat counting pieces."""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np

from albertkit.embeddings.evaluation.bag_of_pieces import bag_of_pieces, pair_cosines
from albertkit.embeddings.evaluation.files import LAYOUTS, PairFile, read_pairs
from albertkit.embeddings.evaluation.retrieval import retrieval_figures
from albertkit.embeddings.evaluation.similarity import (
    constants,
    correlation_intervals,
    correlations,
    f1_scores,
    mean_random_cosine,
    similarities,
    similarity_scores,
    unit_vectors,
)
from albertkit.embeddings.models import EmbeddingModel, load_embedding_model
from albertkit.engines.engine import Precision
from albertkit.errors import ConfigError
from albertkit.tasks.columns import Columns
from albertkit.tasks.faults import Faults

Figures = dict[str, Any]

HIGHEST = 5.0  # of the official scores; the lowest is 0
BINARY = {"klue-sts": 3.0}  # score from which a pair counts as alike, in the official F1 of the data set


@dataclass(frozen=True)
class EmbeddingEvaluation:
    """What `evaluate_embeddings` found.

    Attributes:
        model: As it was given.
        description: What it is, in words.
        dimension: D.
        files: Name to figures: `kind`, `path`, `pairs` (how many), `left_out` (rows), `scores` or `retrieval`, `intervals`,
            `f1` (of klue-sts), `groups`, `dimensions`, `bag_of_pieces`, `mean_random_cosine`, `texts` (different ones),
            `truncated` (of these), `sentences_per_second`, `notes`. What is not defined is None.
    """

    model: str
    description: str
    dimension: int
    files: dict[str, Figures]

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return dict(vars(self))


def evaluate_embeddings(
    model: str | Path,
    files: Mapping[str, tuple[str, str | Path]],
    *,
    columns: Columns | None = None,
    dimensions: Sequence[int] = (),
    precision: Precision = "fp32",
    prompt_name: str | None = None,
    prompt: str | None = None,
    on_error: Literal["stop", "skip"] = "stop",
    seed: int = 0,
) -> EmbeddingEvaluation:
    """Measure a model on files of pairs.

    Args:
        model: Anything that makes vectors: see `load_embedding_model`.
        files: Name to kind and path. Kinds stsb, korsts, klue-sts and scores (a table) have people's scores: correlations;
            `pairs` (a table) are texts that mean the same: retrieval both ways.
        columns: Of the tables; the other kinds know theirs.
        dimensions: Leading numbers of the vectors to measure again with, as after Matryoshka training.
        precision: Of an ALBERT: fp32, whose figures are sentence-transformers' own, bf16, int8 or auto.
        prompt_name, prompt: What is put before every text: see `load_embedding_model`.
        on_error: Rows that cannot be used: stop, or skip and count them.
        seed: Of the bootstrap.

    Raises:
        ConfigError: unknown-kind, missing-column, conflicting-options, bad-argument. DataError: bad-row and what else reading
        raises. CheckpointError, MissingExtraError: as `load_embedding_model`.
    """
    return evaluate_models(
        [model], files, columns=columns, dimensions=dimensions, precision=precision, prompt_name=prompt_name, prompt=prompt,
        on_error=on_error, seed=seed,
    )[0]  # fmt: skip


def evaluate_models(
    models: Sequence[str | Path],
    files: Mapping[str, tuple[str, str | Path]],
    *,
    columns: Columns | None = None,
    dimensions: Sequence[int] = (),
    precision: Precision = "fp32",
    prompt_name: str | None = None,
    prompt: str | None = None,
    on_error: Literal["stop", "skip"] = "stop",
    seed: int = 0,
) -> list[EmbeddingEvaluation]:
    """Measure several models on the same files. Arguments as `evaluate_embeddings`; the files are read once."""
    given = columns or Columns()
    if given.settings() and all(kind in LAYOUTS for kind, _ in files.values()):
        raise ConfigError(
            "conflicting-options", "columns are named, but only `scores` and `pairs` are tables",
            f"leave out --{' --'.join(given.settings())}",
        )  # fmt: skip
    faults = Faults(on_error)
    read = {name: read_pairs(kind, path, given, faults) for name, (kind, path) in files.items()}
    found = []
    for model in models:
        loaded = load_embedding_model(model, precision, prompt_name, prompt)
        for dimension in dimensions:
            if not 0 < dimension <= loaded.dimension:
                raise ConfigError(
                    "bad-argument", f"--dimension {dimension}, but the vectors of `{model}` have {loaded.dimension} numbers",
                    f"name numbers from 1 to {loaded.dimension}",
                )  # fmt: skip
        results = {name: _figures(loaded, file, dimensions, seed) for name, file in read.items()}
        found.append(EmbeddingEvaluation(loaded.name, loaded.description, loaded.dimension, results))
    return found


def _figures(model: EmbeddingModel, file: PairFile, dimensions: Sequence[int], seed: int) -> Figures:
    """All figures of one file. Each text is computed once."""
    texts = list(dict.fromkeys([*file.texts, *file.pairs]))
    place = {text: number for number, text in enumerate(texts)}
    rows, pair_rows = ([place[text] for text in side] for side in (file.texts, file.pairs))
    start = time.perf_counter()
    vectors = model.encode(texts)
    seconds = time.perf_counter() - start
    a, b = vectors[rows], vectors[pair_rows]
    measure = _correlated if file.scores is not None else _retrieved
    figures: Figures = {"kind": file.kind, "path": file.path, "pairs": len(rows), "left_out": file.left_out}
    figures |= measure(file, a, b, seed)
    figures["dimensions"] = {str(d): measure(file, a[:, :d], b[:, :d], seed) for d in dimensions}
    figures["bag_of_pieces"] = None
    if model.token_ids is not None:
        bags = bag_of_pieces(model.token_ids(texts))
        figures["bag_of_pieces"] = _baseline(file, bags[rows], bags[pair_rows], seed)
    figures["mean_random_cosine"] = mean_random_cosine(vectors)
    figures["texts"] = len(texts)
    figures["truncated"] = model.num_truncated(texts)
    figures["sentences_per_second"] = len(texts) / seconds
    figures["notes"] = [*model.notes, *model.reading_notes(texts), *_notes(model, file, a, b)]
    return figures


def _correlated(file: PairFile, a: np.ndarray, b: np.ndarray, seed: int) -> Figures:
    assert file.scores is not None
    scores = similarity_scores(a, b, file.scores)
    cosines = similarities(a, b)["cosine"]
    figures: Figures = {"scores": scores, "intervals": {}, "groups": {}}
    if scores["pearson_cosine"] is not None:
        intervals = correlation_intervals(file.scores, cosines, seed)
        figures["intervals"] = {f"{kind}_cosine": interval for kind, interval in intervals.items()}
    if file.kind in BINARY:
        figures["f1"] = f1_scores(file.scores >= BINARY[file.kind], cosines, BINARY[file.kind] / HIGHEST)
    for group in dict.fromkeys(file.groups or ()):
        of_group = np.array([other == group for other in file.groups or ()])
        own = similarity_scores(a[of_group], b[of_group], file.scores[of_group])
        figures["groups"][group] = {"pairs": int(of_group.sum()), "scores": own}
    return figures


def _retrieved(file: PairFile, a: np.ndarray, b: np.ndarray, seed: int) -> Figures:
    return {"retrieval": retrieval_figures(unit_vectors(a), unit_vectors(b), file.texts, file.pairs)}


def _baseline(file: PairFile, a: Any, b: Any, seed: int) -> Figures:
    if file.scores is None:
        return {"retrieval": retrieval_figures(a, b, file.texts, file.pairs)}
    cosines = pair_cosines(a, b)
    figures: Figures = {}
    for name, values in (
        ("scores", correlations(file.scores, cosines)),
        ("intervals", correlation_intervals(file.scores, cosines, seed)),
    ):
        figures[name] = {f"{kind}_cosine": value for kind, value in values.items()}
    if file.kind in BINARY:
        figures["f1"] = f1_scores(file.scores >= BINARY[file.kind], cosines, BINARY[file.kind] / HIGHEST)
    return figures


def _notes(model: EmbeddingModel, file: PairFile, a: np.ndarray, b: np.ndarray) -> list[str]:
    notes = constants(a, b, file.scores)
    if file.left_out:
        notes.append(f"rows left out: {file.left_out:,}")
    if model.token_ids is None:
        notes.append("no bag of pieces: the model has no tokenizer that counts pieces")
    return notes
