"""`evaluate_embeddings`: compare similarities of vectors with human scores and a bag of tokens."""

import csv
import os
import re
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from albertkit.command import takes
from albertkit.embeddings.data import (
    LAYOUTS,
    MAX_OFFICIAL_SCORE,
    find_pair_task,
    read_texts,
    score_scale,
)
from albertkit.embeddings.encoder import check_dimension
from albertkit.embeddings.metrics import (
    SIMILARITIES,
    constant_input_findings,
    correlation_intervals,
    correlation_scores,
    f1_scores,
    mean_random_cosine,
    normalize_vectors,
    pair_cosines,
    retrieval_scores,
    similarities,
    similarity_correlations,
    tfidf_vectors,
)
from albertkit.embeddings.models import EmbeddingModel, load_embedding_model
from albertkit.embeddings.options import (
    EmbedEvaluateOptions,
    EvaluateEmbeddingsOptions,
    MeasureOptions,
)
from albertkit.errors import ConfigError, DataError, suggest_name
from albertkit.files import atomic_file, check_local, check_new_folder, write_file, write_json
from albertkit.output.render import to_markdown, to_page
from albertkit.output.sections import Paragraph, Result, Section, TableSection
from albertkit.tables.bad_rows import BadRows
from albertkit.tables.columns import Columns
from albertkit.tables.files import as_file
from albertkit.tables.layouts import OFFICIAL, choose_form
from albertkit.tables.records import Data, DataFiles, as_files, is_in_memory
from albertkit.tables.table import Table
from albertkit.tasks.data import read_split
from albertkit.tasks.registry import find_task

FileFigures = Mapping[str, Any]

BASELINE = "bag of tokens"
# Columns as sentence-transformers' evaluator and the notebooks of the Korean models write them.
CSV_COLUMNS = [
    f"{name}_{kind}"
    for name in ("cosine", "euclidean", "manhattan", "dot")
    for kind in ("pearson", "spearman")
]


@dataclass(frozen=True)
class EmbeddingEvaluation(Result):
    """Result of `evaluate_embeddings`.

    Attributes:
        model: As it was given.
        description: What it is, in words.
        dimension: D.
        files: Name to figures: `kind`, `path`, `pairs` (how many), `left_out` (rows), `scores`
            (correlations by name, of four similarities) or `retrieval` (there and back),
            `intervals`, `f1` (of klue-sts), `groups`, `dimensions` (the same of leading numbers
            alone), `bag_of_tokens` (the baseline), `mean_random_cosine`, `texts` (different ones),
            `truncated` (of these), `sentences_per_second`, `notes`. What is not defined is None.
    """

    model: str
    description: str
    dimension: int
    files: dict[str, dict[str, Any]]

    def sections(self) -> list[Section]:
        """Return a table for each file, with the baseline as a row."""
        sections: list[Section] = [
            Paragraph(f"{self.model}: {self.description}, {self.dimension:,} numbers")
        ]
        for name, figures in self.files.items():
            table = _retrieval_table if "retrieval" in figures else _correlation_table
            random = figures["mean_random_cosine"]
            note = f"{figures['sentences_per_second']:,.0f} sentences a second"
            if random is not None:
                note = f"two random texts have a cosine of {random:.3f} on average; {note}"
            sections.append(table(figures, f"{name}: {figures['pairs']:,} pairs", note))
            if f1 := figures.get("f1"):
                threshold = f"at the best threshold, {f1['best_threshold']:.3f}: {f1['best']:.4f}"
                sections.append(
                    Paragraph(f"F1 where cosine x 5 reaches 3.0: {f1['official']:.4f}; {threshold}")
                )
            sections += [Paragraph(note, tone="warning") for note in figures["notes"]]
        return sections

    def save(self, folder: Path) -> None:
        """Write `results.json` and, of files with scores, `similarity.csv`, into a folder that is made if missing."""
        write_json(folder / "results.json", self.to_dict())
        scored = {name: figures for name, figures in self.files.items() if "scores" in figures}
        if not scored:
            return
        with atomic_file(folder / "similarity.csv", "w") as stream:
            writer = csv.writer(stream, lineterminator="\n")
            writer.writerow(["file", "dimension", *CSV_COLUMNS])
            for name, figures in scored.items():
                shorter = {d: cut["scores"] for d, cut in figures["dimensions"].items()}
                for dimension, scores in {self.dimension: figures["scores"], **shorter}.items():
                    values = [
                        scores["_".join(reversed(column.split("_")))] for column in CSV_COLUMNS
                    ]
                    writer.writerow(
                        [name, dimension, *("" if value is None else value for value in values)]
                    )


@dataclass(frozen=True)
class EmbeddingEvaluations(Result):
    """Figures of one model, or of several on the same files."""

    models: tuple[EmbeddingEvaluation, ...]

    def to_dict(self) -> dict[str, Any]:
        """Return the figures of the only model, or those of all as `models`."""
        models = [evaluation.to_dict() for evaluation in self.models]
        return models[0] if len(models) == 1 else {"models": models}

    def sections(self) -> list[Section]:
        """Return a table for each file, of several models under one that compares them."""
        comparison = (
            [embedding_scores_table(self.models, intervals=False)] if len(self.models) > 1 else []
        )
        return [
            *comparison,
            *(section for evaluation in self.models for section in evaluation.sections()),
        ]

    def save(self, folder: Path) -> None:
        """Write the results of one model into a folder, those of several into a folder each, named after the models."""
        if len(self.models) == 1:
            return self.models[0].save(folder)
        names = [
            re.sub(r"[^\w.-]+", "-", evaluation.model).strip("-.") or "model"
            for evaluation in self.models
        ]
        for number, (name, evaluation) in enumerate(zip(names, self.models, strict=True), 1):
            evaluation.save(folder / (name if names.count(name) == 1 else f"{number}-{name}"))


def _correlation_table(figures: FileFigures, title: str, note: str) -> TableSection:
    def row(name: str, row_figures: FileFigures, similarity: str = "cosine") -> list[Any]:
        cells: list[Any] = [name]
        for kind in ("pearson", "spearman"):
            key = f"{kind}_{similarity}"
            interval = row_figures.get("intervals", {}).get(key)
            cells.append(_format_score(row_figures["scores"][key]))
            cells.append(f"{interval[0]:.3f} to {interval[1]:.3f}" if interval else None)
        return cells

    rows = [row(similarity, figures, similarity) for similarity in SIMILARITIES]
    rows += [
        row(f"cosine, first {dimension} numbers", cut)
        for dimension, cut in figures["dimensions"].items()
    ]
    rows += [row(BASELINE, figures["bag_of_tokens"])] if figures["bag_of_tokens"] else []
    for group, group_figures in figures["groups"].items():
        rows.append(row(f"in {group} ({group_figures['pairs']:,})", group_figures))
    columns = ["", "pearson", "95% interval", "spearman", "95% interval"]
    return TableSection(columns, rows, title, note, strong=list(SIMILARITIES).index("cosine"))


def _retrieval_table(figures: FileFigures, title: str, note: str) -> TableSection:
    def row(name: str, row_figures: FileFigures) -> list[Any]:
        retrieval = row_figures["retrieval"]
        cells = [name]
        for direction in ("forward", "backward"):
            cells += [f"{retrieval[direction]:.1%}", _format_score(retrieval[f"{direction}_mrr"])]
        return cells

    rows = [row("this model", figures)]
    rows += [
        row(f"first {dimension} numbers", cut) for dimension, cut in figures["dimensions"].items()
    ]
    rows += [row(BASELINE, figures["bag_of_tokens"])] if figures["bag_of_tokens"] else []
    return TableSection(
        ["nearest is its own", "forward", "mean 1/rank", "backward", "mean 1/rank"],
        rows,
        title,
        note,
        strong=0,
    )


def _format_score(value: float | None) -> str:
    return "undefined" if value is None else f"{value:.4f}"


# --- several models -------------------------------------------------------------------------------

SUFFIXES = (".md", ".html")
CAPTION = (
    "Times 100. Data with scores: Spearman's correlation of the cosine with the scores, and its 95% interval by bootstrap. F1 "
    "of klue-sts: pairs of 3.0 or more, found by cosine x 5 of 3.0 or more; best F1: by the threshold that gives most on these "
    "pairs. Pairs: how often the nearest text is a text's own, there and back. A bag of tokens is TF-IDF over the tokens of a "
    "model's tokenizer, without any learning."
)


def embedding_scores_table(
    results: Sequence[EmbeddingEvaluation], intervals: bool = True
) -> TableSection:
    """Make the table of several models that were measured on the same files; a row a model, then a bag of tokens each."""
    files: Mapping[str, FileFigures] = results[0].files
    kinds = [figures["kind"] for figures in files.values()]
    short_names = dict(zip(files, kinds, strict=True))
    short_names |= {name: name for name, kind in short_names.items() if kinds.count(kind) > 1}
    measures = {
        name: list(_spearman_f1_or_retrieval_cells(figures, intervals))
        for name, figures in files.items()
    }
    columns = [
        "model",
        *(f"{short_names[name]}, {measure}" for name in files for measure in measures[name]),
    ]
    rows = []
    bags: dict[tuple[str, ...], str] = {}
    for evaluation in results:
        cells: list[str] = []
        bag_cells: list[str] = []
        for name, figures in evaluation.files.items():
            cells += _spearman_f1_or_retrieval_cells(figures, intervals).values()
            if figures["bag_of_tokens"]:
                bag_cells += _spearman_f1_or_retrieval_cells(
                    figures["bag_of_tokens"], intervals
                ).values()
            else:
                bag_cells += [""] * len(measures[name])
        rows.append([evaluation.model, *cells])
        if any(bag_cells):
            bags.setdefault(tuple(bag_cells), evaluation.model)
    for bag, model in bags.items():
        rows.append([f"{BASELINE} ({model})" if len(bags) > 1 else BASELINE, *bag])
    data_sets = [
        f"{short_names[name]}: {Path(figures['path']).name}, {figures['pairs']:,} pairs"
        for name, figures in files.items()
    ]
    return TableSection(
        columns,
        rows,
        "Sentence embeddings compared",
        f"{'; '.join(data_sets)}. {CAPTION}",
    )


def _spearman_f1_or_retrieval_cells(figures: FileFigures, intervals: bool) -> dict[str, str]:
    """Return the cells of one file by the name of the measure."""
    if "retrieval" in figures:
        directions = {"there": "forward", "back": "backward"}
        return {
            name: f"{100 * figures['retrieval'][direction]:.1f}"
            for name, direction in directions.items()
        }
    value = figures["scores"]["spearman_cosine"]
    interval = figures["intervals"].get("spearman_cosine")
    cells = {"Spearman": "undefined" if value is None else f"{100 * value:.1f}"}
    if value is not None and interval and intervals:
        cells["Spearman"] += f" ({100 * interval[0]:.1f} to {100 * interval[1]:.1f})"
    if "f1" in figures:
        cells |= {
            name: f"{100 * figures['f1'][key]:.1f}"
            for name, key in (("F1", "official"), ("best F1", "best"))
        }
    return cells


def check_table_file(file: str | os.PathLike[str]) -> Path:
    """Return the path of a table to write, if it ends as one."""
    path = check_local(file)
    if path.suffix not in SUFFIXES:
        raise ConfigError(
            "bad-value",
            f"`{path}` ends in neither {' nor '.join(SUFFIXES)}",
            f"--table {path.with_suffix('.md')}",
        )
    return path


Figures = dict[str, Any]

# Score from which a pair counts as alike, in the official F1 of the data set. It says little: 59.5
# for calling every pair alike, 59.3 to 60.3 for models of any Spearman. So the F1 at the best
# threshold is shown, too.
BINARY = {"klue-sts": 3.0}

KINDS = (*LAYOUTS, "scores", "pairs")


@dataclass(frozen=True, eq=False)
class PairFile:
    """Holds E pairs of texts."""

    kind: str  # one of `KINDS`
    path: str
    texts: list[str]
    pairs: list[str]
    # fp64 [E], larger for pairs that are more alike; None for texts that mean the same
    scores: np.ndarray | None
    groups: list[str] | None  # source of each pair, if the file names it
    bad_rows: BadRows  # rows that could not be used, and what was done to the file


@takes(EvaluateEmbeddingsOptions)
def evaluate_embeddings(options: EvaluateEmbeddingsOptions) -> EmbeddingEvaluation:
    """Measure a model on files of pairs; see `EvaluateEmbeddingsOptions`.

    Raises:
        ConfigError: unknown-name, missing-column, conflicting-options, bad-value. DataError:
            bad-row and what else reading raises. CheckpointError, MissingExtraError: as
            `load_embedding_model`.
    """
    return _evaluate_models([options.model], options.files, options)[0]


def run_embed_evaluate(options: EmbedEvaluateOptions) -> EmbeddingEvaluations:
    """Measure the models that are named on the files that are named, and write what is asked for."""
    table_file = None if options.table is None else check_table_file(options.table)
    if options.out is not None:
        check_new_folder(options.out)
    models, files = split_models_from_files(options.models_and_files)
    results = _evaluate_models(models, parse_kind_paths(files), options)
    evaluations = EmbeddingEvaluations(tuple(results))
    if options.out is not None:
        evaluations.save(options.out)
    if table_file is not None:  # Markdown, or an HTML page
        table = embedding_scores_table(results)
        plain = replace(table, title="")
        is_page = table_file.suffix == ".html"
        write_file(table_file, to_page(table.title, [plain]) if is_page else to_markdown([plain]))
    return evaluations


def _evaluate_models(
    models: Sequence[str | Path], files: Mapping[str, tuple[str, Data]], options: MeasureOptions
) -> list[EmbeddingEvaluation]:
    """Measure models on the same files, which are read once."""
    if not isinstance(files, Mapping) or not all(
        isinstance(pair, tuple | list) and len(pair) == 2 and isinstance(pair[0], str)
        for pair in files.values()
    ):
        raise ConfigError(
            "bad-value",
            "`files` maps a name to a kind and a file, and this does not",
            'give {"mine": ("scores", "pairs.tsv")}, or rows in place of the file',
        )
    column_settings = options.columns.settings()
    if column_settings and all(kind in LAYOUTS for kind, _ in files.values()):
        raise ConfigError(
            "conflicting-options",
            "columns are named, but only `scores` and `pairs` are tables",
            f"leave out --{' --'.join(column_settings)}",
        )
    pair_files = {}
    for name, (kind, data) in files.items():
        with as_files(data) as path:
            pair_files[name] = read_pairs(kind, path, options.columns, BadRows(options.on_error))
        if is_in_memory(data):
            pair_files[name] = replace(pair_files[name], path="rows in memory")
    evaluations = []
    for model in models:
        loaded = load_embedding_model(model, options.precision, options.prompt_name, options.prompt)
        for dimension in options.dimensions:
            check_dimension(dimension, loaded.dimension)
        results = {name: _measure_file(loaded, file, options) for name, file in pair_files.items()}
        evaluations.append(
            EmbeddingEvaluation(loaded.name, loaded.description, loaded.dimension, results)
        )
    return evaluations


def _measure_file(model: EmbeddingModel, file: PairFile, options: MeasureOptions) -> Figures:
    """Return all figures of one file. Each text is computed once."""
    texts = list(dict.fromkeys([*file.texts, *file.pairs]))
    index_of = {text: index for index, text in enumerate(texts)}
    rows, pair_rows = ([index_of[text] for text in side] for side in (file.texts, file.pairs))
    # Each text once: pairs repeat texts, and the speed is of texts.
    start = time.perf_counter()
    vectors = model.encode(texts)
    seconds = time.perf_counter() - start
    a = vectors[rows]
    b = vectors[pair_rows]
    figures: Figures = {
        "kind": file.kind,
        "path": file.path,
        "pairs": len(rows),
        "left_out": len(file.bad_rows.rows),
    }
    figures |= _score_pair_vectors(file, a, b, options.seed)
    figures["dimensions"] = {}
    for dimension in options.dimensions:
        cut_figures = _score_pair_vectors(file, a[:, :dimension], b[:, :dimension], options.seed)
        figures["dimensions"][str(dimension)] = cut_figures
    # What needs no learning: 68.2 on STS-B, 66.5 on KorSTS and 41.2 on KLUE-STS, more than a tiny
    # ALBERT trained on them.
    figures["bag_of_tokens"] = None
    if model.token_ids is not None:
        bags = tfidf_vectors(model.token_ids(texts))
        if file.scores is None:
            retrieval = retrieval_scores(bags[rows], bags[pair_rows], file.texts, file.pairs)
            figures["bag_of_tokens"] = {"retrieval": retrieval}
        else:
            cosines = pair_cosines(bags[rows], bags[pair_rows])
            scores = {
                f"{kind}_cosine": value
                for kind, value in correlation_scores(file.scores, cosines).items()
            }
            figures["bag_of_tokens"] = _correlation_figures(file, cosines, scores, options.seed)
    figures["mean_random_cosine"] = mean_random_cosine(vectors)
    figures["texts"] = len(texts)
    figures["truncated"] = model.num_truncated(texts)
    figures["sentences_per_second"] = len(texts) / seconds
    notes = [
        *model.notes,
        *model.truncation_and_unknown_notes(texts),
        *file.bad_rows.report_lines(),
        *constant_input_findings(a, b, file.scores),
    ]
    if model.token_ids is None:
        notes.append("no bag of tokens: the model has no tokenizer that counts tokens")
    figures["notes"] = notes
    return figures


def _score_pair_vectors(file: PairFile, a: np.ndarray, b: np.ndarray, seed: int) -> Figures:
    """Return the scores, or the retrieval, of vectors of the pairs, [E, D] each."""
    if file.scores is None:
        return {
            "retrieval": retrieval_scores(
                normalize_vectors(a), normalize_vectors(b), file.texts, file.pairs
            )
        }
    scores = similarity_correlations(a, b, file.scores)
    figures = _correlation_figures(file, similarities(a, b)["cosine"], scores, seed)
    figures["groups"] = {}
    for group in dict.fromkeys(file.groups or ()):
        is_in_group = np.array([group_of_pair == group for group_of_pair in file.groups or ()])
        group_scores = similarity_correlations(
            a[is_in_group], b[is_in_group], file.scores[is_in_group]
        )
        figures["groups"][group] = {"pairs": int(is_in_group.sum()), "scores": group_scores}
    return figures


def _correlation_figures(
    file: PairFile,
    cosines: np.ndarray,
    scores: dict[str, float | None],
    seed: int,
) -> Figures:
    """Return correlations, the intervals of those of the cosine, and F1 where the data set has it."""
    labels = file.scores
    assert labels is not None
    figures: Figures = {"scores": scores, "intervals": {}}
    if scores["pearson_cosine"] is not None:
        intervals = correlation_intervals(labels, cosines, seed)
        figures["intervals"] = {f"{kind}_cosine": interval for kind, interval in intervals.items()}
    if file.kind in BINARY:
        # A share: some editions have scores of 0 to 1.
        share = BINARY[file.kind] / MAX_OFFICIAL_SCORE
        figures["f1"] = f1_scores(
            labels >= share * score_scale(labels, is_official=True)[1],
            cosines,
            share,
        )
    return figures


# --- files of pairs -------------------------------------------------------------------------------


def read_pairs(kind: str, file: DataFiles | str, columns: Columns, bad_rows: BadRows) -> PairFile:
    """Read a file of one of `KINDS`: an official layout with human scores, or a table with a column of scores or of texts that
    mean the same. Pairs without named columns are the two columns of a table without a header.
    """
    if kind not in KINDS:
        raise ConfigError(
            "unknown-name",
            f"there is no kind of data `{kind}`",
            suggest_name(kind, KINDS),
        )
    if kind == "pairs":
        rows = read_texts(as_file(file), replace(columns, label=None, id=None), 2, bad_rows)
        texts = [row[0] for row in rows]
        pairs = [row[1] for row in rows]
        return PairFile(kind, str(file), texts, pairs, None, None, bad_rows)
    column = ""  # that says where a pair is from, which not every edition of a file has
    if kind in LAYOUTS:
        layout = OFFICIAL[kind]
        with Table(as_file(file), quoted=layout.quoted) as table:
            try:
                choose_form(table, layout.forms, layout.labels, True, kind)
            except DataError as error:
                for other_kind in LAYOUTS:
                    forms = [form for form in OFFICIAL[other_kind].forms if not form.header]
                    if other_kind != kind and any(
                        set(form.required_columns(True)) <= set(table.columns) for form in forms
                    ):
                        hint = f"this looks like {other_kind}: {other_kind}={as_file(file)}"
                        raise DataError(error.slug, error.message, hint) from None
                raise
            if LAYOUTS[kind] in table.columns:
                column = LAYOUTS[kind]
    task = find_pair_task(kind, Columns() if kind in LAYOUTS else columns)
    if column:
        # Ids of training data may repeat, so these can say the group
        task = task.with_changes(id_column=column)
    examples = read_split(task, as_file(file), "train", bad_rows)
    return PairFile(
        kind,
        str(file),
        [example.text for example in examples],
        [example.pair for example in examples],
        np.array([example.label for example in examples], np.float64),
        [example.id for example in examples] if column else None,
        bad_rows,
    )


def split_models_from_files(arguments: Sequence[str]) -> tuple[list[str], list[str]]:
    """Tell models from `KIND=PATH` arguments; at least one of each is required."""
    models: list[str] = []
    files: list[str] = []
    for argument in arguments:
        has_kind = "=" in argument and not Path(argument).is_dir()  # runs/lr=1e-4 is a folder
        (files if has_kind else models).append(argument)
    unnamed = next((model for model in models if Path(model).is_file()), None)
    if unnamed:
        parse_kind_paths([unnamed])
    if not models:
        raise ConfigError(
            "bad-value",
            "no model is named",
            "albertkit embed evaluate MODEL korsts=sts-test.tsv",
        )
    if not files:
        raise ConfigError(
            "bad-value",
            f"nothing to measure `{models[0]}` on",
            f"name files or folders as KIND=PATH, for example korsts=FOLDER; kinds: {', '.join(KINDS)}",
        )
    return models, files


def parse_kind_paths(kind_path_arguments: Sequence[str]) -> dict[str, tuple[str, str]]:
    """Read `KIND=PATH` arguments, each under a name: kind and file name, or the whole path where two would be the same.

    Of a folder in the layout of an official kind the test file is taken, the dev file where the
    test file has no scores.
    """
    kinds_and_paths = []
    for argument in kind_path_arguments:
        kind, separator, path = argument.partition("=")
        if not separator or not path:
            raise ConfigError(
                "bad-value",
                f"`{argument}` is not KIND=PATH",
                f"say what it is: korsts={argument}; kinds: {', '.join(KINDS)}",
            )
        if kind in LAYOUTS and Path(path).is_dir():
            files = find_task(kind).files(Path(path))
            layout = OFFICIAL[kind]
            for split in ("test", "dev"):
                if split in files:
                    # A test file without scores has no form with labels
                    with suppress(DataError), Table(files[split], quoted=layout.quoted) as table:
                        choose_form(table, layout.forms, layout.labels, True, kind)
                        path = str(files[split])
                        break
            else:
                raise DataError(
                    "too-little-data",
                    f"`{Path(path)}` has no test or dev file with scores (found: {', '.join(sorted(files)) or 'none'})",
                    f"name the file itself: {kind}=FILE",
                )
        kinds_and_paths.append((kind, path))
    short_names = [f"{kind} {Path(path).name}" for kind, path in kinds_and_paths]
    return {
        name if short_names.count(name) == 1 else f"{kind} {path}": (kind, path)
        for name, (kind, path) in zip(short_names, kinds_and_paths, strict=True)
    }
