"""`evaluate_embeddings`: compare similarities of vectors with human scores and a bag of tokens."""

import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from albertkit.data.bad_rows import BadRows
from albertkit.embeddings.data import HIGHEST
from albertkit.embeddings.encoder import check_dimension
from albertkit.embeddings.evaluation.files import LAYOUTS, PairFile, models_and_files, named_files, read_pairs
from albertkit.embeddings.evaluation.results import (
    EmbeddingEvaluation,
    EmbeddingEvaluations,
    check_table_file,
    embedding_table,
    write_embedding_table,
)
from albertkit.embeddings.metrics import (
    bag_of_tokens,
    constants,
    correlation_intervals,
    correlations,
    f1_scores,
    mean_random_cosine,
    pair_cosines,
    retrieval_figures,
    similarities,
    similarity_scores,
    unit_vectors,
)
from albertkit.embeddings.models import EmbeddingModel, load_embedding_model
from albertkit.embeddings.options import EmbedEvaluateOptions, EvaluateEmbeddingsOptions, MeasureOptions
from albertkit.errors import ConfigError
from albertkit.files import check_new_folder
from albertkit.frame.command import takes

Figures = dict[str, Any]

BINARY = {"klue-sts": 3.0}  # score from which a pair counts as alike, in the official F1 of the data set


@takes(EvaluateEmbeddingsOptions)
def evaluate_embeddings(options: EvaluateEmbeddingsOptions) -> EmbeddingEvaluation:
    """Measure a model on files of pairs; see `EvaluateEmbeddingsOptions`.

    Raises:
        ConfigError: unknown-name, missing-column, conflicting-options, bad-value. DataError: bad-row and what else reading
        raises. CheckpointError, MissingExtraError: as `load_embedding_model`.
    """
    return _evaluate([options.model], options.files, options)[0]


def run_evaluate(options: EmbedEvaluateOptions) -> EmbeddingEvaluations:
    """Measure the models that are named on the files that are named, and write what is asked for."""
    if options.table is not None:
        check_table_file(options.table)
    if options.out is not None:
        check_new_folder(options.out)
    models, files = models_and_files(options.models_and_files)
    found = _evaluate(models, named_files(files), options)
    evaluations = EmbeddingEvaluations(tuple(found))
    if options.out is not None:
        evaluations.save(options.out)
    if options.table is not None:
        write_embedding_table(embedding_table(found), options.table)
    return evaluations


def _evaluate(
    models: Sequence[str | Path], files: Mapping[str, tuple[str, str | Path]], options: MeasureOptions
) -> list[EmbeddingEvaluation]:
    """Measure models on the same files, which are read once."""
    given = options.columns
    if given.settings() and all(kind in LAYOUTS for kind, _ in files.values()):
        hint = f"leave out --{' --'.join(given.settings())}"
        raise ConfigError("conflicting-options", "columns are named, but only `scores` and `pairs` are tables", hint)
    bad_rows = BadRows(options.on_error)
    read = {name: read_pairs(kind, path, given, bad_rows) for name, (kind, path) in files.items()}
    found = []
    for model in models:
        loaded = load_embedding_model(model, options.precision, options.prompt_name, options.prompt)
        for dimension in options.dimensions:
            check_dimension(dimension, loaded.dimension)
        results = {name: _figures(loaded, file, options) for name, file in read.items()}
        found.append(EmbeddingEvaluation(loaded.name, loaded.description, loaded.dimension, results))
    return found


def _figures(model: EmbeddingModel, file: PairFile, options: MeasureOptions) -> Figures:
    """Return all figures of one file. Each text is computed once."""
    texts = list(dict.fromkeys([*file.texts, *file.pairs]))
    place = {text: number for number, text in enumerate(texts)}
    rows, pair_rows = ([place[text] for text in side] for side in (file.texts, file.pairs))
    start = time.perf_counter()
    vectors = model.encode(texts)
    seconds = time.perf_counter() - start
    a, b = vectors[rows], vectors[pair_rows]
    figures: Figures = {"kind": file.kind, "path": file.path, "pairs": len(rows), "left_out": file.left_out}
    figures |= _measured(file, a, b, options.seed)
    figures["dimensions"] = {str(d): _measured(file, a[:, :d], b[:, :d], options.seed) for d in options.dimensions}
    figures["bag_of_tokens"] = None
    if model.token_ids is not None:
        bags = bag_of_tokens(model.token_ids(texts))
        figures["bag_of_tokens"] = _baseline(file, bags[rows], bags[pair_rows], options.seed)
    figures["mean_random_cosine"] = mean_random_cosine(vectors)
    figures["texts"] = len(texts)
    figures["truncated"] = model.num_truncated(texts)
    figures["sentences_per_second"] = len(texts) / seconds
    figures["notes"] = [*model.notes, *model.reading_notes(texts), *_notes(model, file, a, b)]
    return figures


def _measured(file: PairFile, a: np.ndarray, b: np.ndarray, seed: int) -> Figures:
    """Return what vectors of the pairs are worth, [E, D] each."""
    if file.scores is None:
        return {"retrieval": retrieval_figures(unit_vectors(a), unit_vectors(b), file.texts, file.pairs)}
    scores = similarity_scores(a, b, file.scores)
    figures = _correlated(file, file.scores, similarities(a, b)["cosine"], scores, seed)
    figures["groups"] = {}
    for group in dict.fromkeys(file.groups or ()):
        of_group = np.array([other == group for other in file.groups or ()])
        own = similarity_scores(a[of_group], b[of_group], file.scores[of_group])
        figures["groups"][group] = {"pairs": int(of_group.sum()), "scores": own}
    return figures


def _baseline(file: PairFile, a: Any, b: Any, seed: int) -> Figures:
    """Return what bags of tokens of the pairs are worth."""
    if file.scores is None:
        return {"retrieval": retrieval_figures(a, b, file.texts, file.pairs)}
    cosines = pair_cosines(a, b)
    scores = {f"{kind}_cosine": value for kind, value in correlations(file.scores, cosines).items()}
    return _correlated(file, file.scores, cosines, scores, seed)


def _correlated(
    file: PairFile, labels: np.ndarray, cosines: np.ndarray, scores: dict[str, float | None], seed: int
) -> Figures:
    """Return correlations, the intervals of those of the cosine, and F1 where the data set has it."""
    figures: Figures = {"scores": scores, "intervals": {}}
    if scores["pearson_cosine"] is not None:
        intervals = correlation_intervals(labels, cosines, seed)
        figures["intervals"] = {f"{kind}_cosine": interval for kind, interval in intervals.items()}
    if file.kind in BINARY:
        figures["f1"] = f1_scores(labels >= BINARY[file.kind], cosines, BINARY[file.kind] / HIGHEST)
    return figures


def _notes(model: EmbeddingModel, file: PairFile, a: np.ndarray, b: np.ndarray) -> list[str]:
    notes = constants(a, b, file.scores)
    if file.left_out:
        notes.append(f"rows left out: {file.left_out:,}")
    if model.token_ids is None:
        notes.append("no bag of tokens: the model has no tokenizer that counts tokens")
    return notes
