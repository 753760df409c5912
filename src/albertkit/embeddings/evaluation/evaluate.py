"""`evaluate_embeddings`: compare similarities of vectors with human scores and a bag of tokens."""

import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from albertkit.data.bad_rows import BadRows
from albertkit.data.columns import Columns
from albertkit.data.given import Data, DataFile, DataFiles, as_files, is_in_memory
from albertkit.data.inputs import as_file
from albertkit.data.layouts import choose_form
from albertkit.data.tables import Table
from albertkit.embeddings.data import HIGHEST, LAYOUTS, pair_task, read_texts, score_range
from albertkit.embeddings.encoder import check_dimension
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
from albertkit.errors import ConfigError, DataError, near_miss
from albertkit.files import check_new_folder
from albertkit.frame.command import takes
from albertkit.tasks.data import read_split
from albertkit.tasks.registry import find_task
from albertkit.tasks.texts import OFFICIAL

Figures = dict[str, Any]

BINARY = {"klue-sts": 3.0}  # score from which a pair counts as alike, in the official F1 of the data set

KINDS = (*LAYOUTS, "scores", "pairs")


@dataclass(frozen=True, eq=False)
class PairFile:
    """Holds E pairs of texts."""

    kind: str  # one of `KINDS`
    path: str
    texts: list[str]
    pairs: list[str]
    scores: np.ndarray | None  # fp64 [E], larger for pairs that are more alike; None for texts that mean the same
    groups: list[str] | None  # source of each pair, if the file names it
    left_out: int  # rows that could not be used
    notes: tuple[str, ...] = ()  # what was done to the file


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
    results = _evaluate(models, named_files(files), options)
    evaluations = EmbeddingEvaluations(tuple(results))
    if options.out is not None:
        evaluations.save(options.out)
    if options.table is not None:
        write_embedding_table(embedding_table(results), options.table)
    return evaluations


def _evaluate(
    models: Sequence[str | Path], files: Mapping[str, tuple[str, Data]], options: MeasureOptions
) -> list[EmbeddingEvaluation]:
    """Measure models on the same files, which are read once."""
    if not isinstance(files, Mapping) or not all(
        isinstance(pair, tuple | list) and len(pair) == 2 and isinstance(pair[0], str) for pair in files.values()
    ):
        hint = 'give {"mine": ("scores", "pairs.tsv")}, or rows in place of the file'
        raise ConfigError("bad-value", "`files` maps a name to a kind and a file, and this does not", hint)
    column_settings = options.columns.settings()
    if column_settings and all(kind in LAYOUTS for kind, _ in files.values()):
        hint = f"leave out --{' --'.join(column_settings)}"
        raise ConfigError("conflicting-options", "columns are named, but only `scores` and `pairs` are tables", hint)
    bad_rows = BadRows(options.on_error)
    pair_files = {}
    for name, (kind, data) in files.items():
        with as_files(data) as path:
            pair_files[name] = read_pairs(kind, path, options.columns, bad_rows)
        if is_in_memory(data):
            pair_files[name] = replace(pair_files[name], path="rows in memory")
    evaluations = []
    for model in models:
        loaded = load_embedding_model(model, options.precision, options.prompt_name, options.prompt)
        for dimension in options.dimensions:
            check_dimension(dimension, loaded.dimension)
        results = {name: _figures(loaded, file, options) for name, file in pair_files.items()}
        evaluations.append(EmbeddingEvaluation(loaded.name, loaded.description, loaded.dimension, results))
    return evaluations


def _figures(model: EmbeddingModel, file: PairFile, options: MeasureOptions) -> Figures:
    """Return all figures of one file. Each text is computed once."""
    texts = list(dict.fromkeys([*file.texts, *file.pairs]))
    index_of = {text: index for index, text in enumerate(texts)}
    rows, pair_rows = ([index_of[text] for text in side] for side in (file.texts, file.pairs))
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
    notes = [*model.notes, *model.reading_notes(texts), *file.notes, *constants(a, b, file.scores)]
    if file.left_out:
        notes.append(f"rows left out: {file.left_out:,}")
    if model.token_ids is None:
        notes.append("no bag of tokens: the model has no tokenizer that counts tokens")
    figures["notes"] = notes
    return figures


def _measured(file: PairFile, a: np.ndarray, b: np.ndarray, seed: int) -> Figures:
    """Return the scores, or the retrieval, of vectors of the pairs, [E, D] each."""
    if file.scores is None:
        return {"retrieval": retrieval_figures(unit_vectors(a), unit_vectors(b), file.texts, file.pairs)}
    scores = similarity_scores(a, b, file.scores)
    figures = _correlated(file, file.scores, similarities(a, b)["cosine"], scores, seed)
    figures["groups"] = {}
    for group in dict.fromkeys(file.groups or ()):
        is_in_group = np.array([group_of_pair == group for group_of_pair in file.groups or ()])
        group_scores = similarity_scores(a[is_in_group], b[is_in_group], file.scores[is_in_group])
        figures["groups"][group] = {"pairs": int(is_in_group.sum()), "scores": group_scores}
    return figures


def _baseline(file: PairFile, a: Any, b: Any, seed: int) -> Figures:
    """Return the scores, or the retrieval, of bags of tokens of the pairs."""
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
        share = BINARY[file.kind] / HIGHEST
        figures["f1"] = f1_scores(labels >= share * score_range(labels, official=True)[1], cosines, share)
    return figures


# --- files of pairs -----------------------------------------------------------------------------------------------------


def read_pairs(kind: str, file: DataFiles | str, columns: Columns, bad_rows: BadRows) -> PairFile:
    """Read a file of one of `KINDS`: an official layout with human scores, or a table with a column of scores or of texts that
    mean the same. Pairs without named columns are the two columns of a table without a header.
    """
    if kind not in KINDS:
        raise ConfigError("unknown-name", f"there is no kind of data `{kind}`", near_miss(kind, KINDS))
    num_bad_rows, num_notes = len(bad_rows.found), len(bad_rows.notes)
    if kind == "pairs":
        rows = read_texts(as_file(file), replace(columns, label=None, id=None), 2, bad_rows)
        texts, pairs = [row[0] for row in rows], [row[1] for row in rows]
        left_out, notes = len(bad_rows.found) - num_bad_rows, tuple(bad_rows.notes[num_notes:])
        return PairFile(kind, str(file), texts, pairs, None, None, left_out, notes)
    column = _group_column(kind, as_file(file)) if kind in LAYOUTS else ""
    task = pair_task(kind, Columns() if kind in LAYOUTS else columns)
    if column:
        task = task.with_changes(id_column=column)  # ids of training data may repeat, so these can say the group
    examples = read_split(task, as_file(file), "train", bad_rows)
    return PairFile(
        kind,
        str(file),
        [example.text for example in examples],
        [example.pair for example in examples],
        np.array([example.label for example in examples], np.float64),
        [example.id for example in examples] if column else None,
        len(bad_rows.found) - num_bad_rows,
    )


def _group_column(kind: str, file: DataFile) -> str:
    """Return the column that says where a pair is from; "" where an edition of the file has none."""
    layout = OFFICIAL[kind]
    with Table(file, quoted=layout.quoted) as table:
        try:
            choose_form(table, layout.forms, layout.labels, True, kind)
        except DataError as error:
            fitting_kinds = [name for name in LAYOUTS if name != kind and _fits(table, name)]
            if fitting_kinds:
                hint = f"this looks like {fitting_kinds[0]}: {fitting_kinds[0]}={file}"
                raise DataError(error.slug, error.message, hint) from None
            raise
        return LAYOUTS[kind] if LAYOUTS[kind] in table.columns else ""


def _fits(table: Table, kind: str) -> bool:
    """Return whether a table has the columns of another official kind by name."""
    forms = [form for form in OFFICIAL[kind].forms if not form.header]
    return any(set(form.wanted(True)) <= set(table.columns) for form in forms)


def models_and_files(arguments: Sequence[str]) -> tuple[list[str], list[str]]:
    """Tell models from `KIND=PATH` arguments; at least one of each is required."""
    models: list[str] = []
    files: list[str] = []
    for argument in arguments:
        has_kind = "=" in argument and not Path(argument).is_dir()  # runs/lr=1e-4 is a folder
        (files if has_kind else models).append(argument)
    if unnamed := next((model for model in models if Path(model).is_file()), None):
        named_files([unnamed])
    if not models:
        raise ConfigError("bad-value", "no model is named", "albertkit embed evaluate MODEL korsts=sts-test.tsv")
    if not files:
        raise ConfigError(
            "bad-value",
            f"nothing to measure `{models[0]}` on",
            f"name files or folders as KIND=PATH, for example korsts=FOLDER; kinds: {', '.join(KINDS)}",
        )
    return models, files


def named_files(arguments: Sequence[str]) -> dict[str, tuple[str, str]]:
    """Read `KIND=PATH` arguments, each under a name: kind and file name, or the whole path where two would be the same.

    Of a folder in the layout of an official kind the test file is taken, the dev file where the test file has no scores.
    """
    kinds_and_paths = []
    for argument in arguments:
        kind, separator, path = argument.partition("=")
        if not separator or not path:
            raise ConfigError(
                "bad-value",
                f"`{argument}` is not KIND=PATH",
                f"say what it is: korsts={argument}; kinds: {', '.join(KINDS)}",
            )
        if kind in LAYOUTS and Path(path).is_dir():
            path = str(_file_of_folder(kind, Path(path)))
        kinds_and_paths.append((kind, path))
    short_names = [f"{kind} {Path(path).name}" for kind, path in kinds_and_paths]
    return {
        name if short_names.count(name) == 1 else f"{kind} {path}": (kind, path)
        for name, (kind, path) in zip(short_names, kinds_and_paths, strict=True)
    }


def _file_of_folder(kind: str, folder: Path) -> DataFile:
    """Return the file of an official folder that is measured on: the test file if it has scores, else the dev file."""
    task = find_task(kind)
    files = task.files(folder)
    for split in ("test", "dev"):
        if split in files:
            with suppress(DataError), Table(files[split], quoted=OFFICIAL[kind].quoted) as table:
                choose_form(table, OFFICIAL[kind].forms, OFFICIAL[kind].labels, True, kind)
                return files[split]
    raise DataError(
        "too-little-data",
        f"`{folder}` has no test or dev file with scores (found: {', '.join(sorted(files)) or 'none'})",
        f"name the file itself: {kind}=FILE",
    )
