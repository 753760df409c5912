"""`distill_embeddings`: a student learns the vectors of a teacher, in one language or, from parallel texts, in several."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

import numpy as np
import torch

from albertkit.data.bad_rows import BadRows, counted
from albertkit.embeddings.data import Examples, held_out_rows, read_texts
from albertkit.embeddings.distillation.teacher import Teacher, find_teacher, principal_components, teacher_vectors
from albertkit.embeddings.encoder import SentenceEncoder
from albertkit.embeddings.learning.data import read_scored
from albertkit.embeddings.learning.dev import AnyDev, Evaluator, Metric, PairDev, ScoredDev, TeacherDev
from albertkit.embeddings.learning.losses import ToTeacher, shortened
from albertkit.embeddings.learning.objective import TeacherRows
from albertkit.embeddings.learning.run import DEV_TOKENS, EmbeddingResult, Training, train_encoder
from albertkit.embeddings.learning.train import example_features, set_up, start_encoder
from albertkit.embeddings.options import EmbedDistillOptions
from albertkit.embeddings.pooling import Projection
from albertkit.embeddings.settings import DistillSettings
from albertkit.embeddings.unknown_words import column_names, known_words
from albertkit.errors import ConfigError
from albertkit.frame.command import takes
from albertkit.training.distributed import World
from albertkit.training.run import Run, open_run

_METRICS: dict[str, Metric] = {"spearman": "spearman", "retrieval": "retrieval", "mse": "negative_mse"}


@dataclass(frozen=True)
class DistillationData:
    """Holds what a student learns."""

    student: str
    teacher: Teacher
    rows: list[tuple[str, ...]]  # training examples of K texts
    vectors: TeacherRows  # of their first texts
    dev_rows: list[tuple[str, ...]]
    dev_vectors: np.ndarray  # of their first texts, fp32 [dev examples, W]
    scored: Examples | None
    notes: tuple[str, ...]


@takes(EmbedDistillOptions)
def distill_embeddings(options: EmbedDistillOptions) -> EmbeddingResult:
    """Train a student so that the vector of every text of an example is the teacher's of the first; see `EmbedDistillOptions`.

    The folder of the run is as of `train_embeddings`, and has `teacher/` with the teacher's vectors.

    Raises:
        CheckpointError: wrong-model, exists, missing-file, changed and what loading raises.
        ConfigError: bad-value, conflicting-options. DataError: doubtful, bad-file and what reading raises.
        MachineError: not-finite. MissingExtraError: not-installed.

    Source: Reimers and Gurevych 2020, "Making Monolingual Sentence Embeddings Multilingual".
    """
    with open_run(options.out, options.settings, "sentence embeddings: distillation", options.resume) as run:
        data = _read_distillation(options, run)
        return run.of_seeds(lambda one: _distill_once(one, data))


def _read_distillation(options: EmbedDistillOptions, run: Run[DistillSettings]) -> DistillationData:
    """Read the texts, and make the teacher's vectors of them."""
    student, data, settings, columns = options.student, Path(options.data), run.settings, options.columns
    bad_rows = BadRows(options.on_error)
    rows = read_texts(data, columns, None, bad_rows)
    encoder, _ = start_encoder(student, settings)
    names = column_names(columns, len(rows[0]))
    known = known_words(rows, encoder.tokenizer, student, options.force, names)
    prompts = options.teacher_prompt_name, options.teacher_prompt
    teacher = find_teacher(str(options.teacher), str(run.world.device), *prompts)
    if options.dev is not None and teacher.stored is not None:
        raise ConfigError(
            "conflicting-options",
            f"`{options.teacher}` has vectors of the texts of `{data}`, not of `{options.dev}`",
            "leave --dev out: a share of DATA is then held out",
        )
    kept = run.folder / "teacher"
    vectors = teacher_vectors(teacher, [row[0] for row in rows], kept / "train", run.world)
    if options.dev is None:
        train, held = held_out_rows([row[0] for row in rows], settings.held_out, data)
        dev_rows, goal = [rows[n] for n in held], vectors[held]
        where = f"{settings.held_out:.0%} of them, held out"
    else:
        train, dev_rows = list(range(len(rows))), read_texts(Path(options.dev), columns, len(rows[0]), bad_rows)
        goal = teacher_vectors(teacher, [row[0] for row in dev_rows], kept / "dev", run.world)
        where = f"`{Path(options.dev).name}`"
    scored = None if options.sts is None else read_scored(options.sts_kind, Path(options.sts), bad_rows)
    components = reduced(vectors, train, encoder, settings)
    examples = (
        f"data: {counted(len(train), 'example')} of {counted(len(rows[0]), 'text')}; dev: {len(dev_rows):,}, {where}"
    )
    if scored:
        examples += f"; {len(scored):,} scored pairs"
    width = f"{vectors.shape[1]} numbers a vector" + ("" if components is None else ", reduced by PCA")
    notes = [examples, f"teacher: {options.teacher}, {width}", *teacher.notes, known]
    if bad_rows.found:
        notes.append(f"rows left out: {len(bad_rows.found):,} (the first: {bad_rows.found[0].where})")
    return DistillationData(
        student=str(student),
        teacher=teacher,
        rows=[rows[n] for n in train],
        vectors=TeacherRows(vectors, np.array(train), components),
        dev_rows=dev_rows,
        dev_vectors=np.asarray(goal, np.float32) if components is None else goal @ components,
        scored=scored,
        notes=tuple(notes),
    )


def _distill_once(run: Run[DistillSettings], data: DistillationData) -> EmbeddingResult:
    """Train with one seed."""
    torch.manual_seed(run.settings.seed)  # of a fresh layer
    encoder, notes = start_encoder(data.student, run.settings)
    resolved, reasons = run.settings.resolve(encoder.config, encoder.max_length, len(data.rows))
    set_up(encoder, resolved)
    notes.append(add_layer(encoder, data.rows, data.vectors, run.world))
    parallel = len(data.rows[0]) > 1
    devs: list[AnyDev] = [TeacherDev(data.dev_rows, data.dev_vectors)]
    if parallel:
        devs.append(PairDev(data.dev_rows))
    dev = counted(len(data.dev_rows), "dev example")
    if data.scored:
        devs.append(ScoredDev(data.scored))
        dev += f" and {len(data.scored):,} scored pairs"
    loss = ToTeacher(resolved.loss, encoder.dimension if resolved.loss == "mse" else 1.0)
    metric = selection(resolved, data.scored is not None, parallel)
    training = Training(
        kind="distillation",
        encoder=encoder,
        loss=shortened(loss, encoder.dimension, resolved.dims),
        loss_name=resolved.loss,
        features=example_features(encoder, data.rows),
        columns=len(data.rows[0]),
        targets=data.vectors,
        texts=None,
        evaluator=Evaluator(devs, encoder, DEV_TOKENS, run.world),
        metric=metric,
        data=f"{counted(len(data.rows), 'example')}, the vectors of `{data.teacher.name}`",
        dev=dev,
        provenance={"model": data.student, "kind": "distillation", "teacher": data.teacher.identity},
        notes=[*data.notes, *notes, f"chosen by {metric.replace('_', ' ')}", *reasons],
    )
    return train_encoder(run.resolved(resolved), training)


def selection(settings: DistillSettings, scored: bool, parallel: bool) -> Metric:
    """Return the metric that chooses the best model."""
    there = {"spearman": scored, "retrieval": parallel, "mse": True}
    chosen: str = settings.select or next(name for name in _METRICS if there[name])
    if not there[chosen]:
        lacking = "a file of scored pairs: --sts FILE" if chosen == "spearman" else "parallel texts"
        raise ConfigError("bad-value", f"select {chosen} needs {lacking}", "name it, or select mse")
    return _METRICS[chosen]


_FITTED = 4096  # texts that a layer is fitted to


def reduced(
    vectors: np.ndarray, train: Sequence[int], encoder: SentenceEncoder, settings: DistillSettings
) -> np.ndarray | None:
    """Return the principal components that a teacher's vectors are reduced to, fp32 [W, D]; None for whole ones."""
    if not settings.teacher_pca or vectors.shape[1] == encoder.dimension:
        return None
    if vectors.shape[1] < encoder.dimension:
        raise ConfigError(
            "bad-value",
            f"the teacher's vectors have {vectors.shape[1]} numbers, the student's {encoder.dimension}",
            "leave --teacher-pca out: the student then learns a linear layer",
        )
    return principal_components(vectors[train[:100_000]], encoder.dimension)


def add_layer(encoder: SentenceEncoder, rows: Sequence[tuple[str, ...]], vectors: TeacherRows, world: World) -> str:
    """Give a student a linear layer to the teacher's vectors, if it has none of its own, and say so.

    It is there to match dimensions, and where they are equal because the teacher's directions are not the student's. It begins
    as the least-squares fit of the teacher's vectors of some texts. A random one spends hundreds of updates on becoming
    that: after 120 updates of 32 texts an H 256 student had cosine 0.08 with its teacher (Spearman 0.48 on STS-B dev), from
    the fit 0.60 (0.63). With no layer, and the teacher's vectors reduced to 256 numbers, it had 0.26 after 300 updates of 64.
    The first process fits, all get its layer.
    """
    some = range(0, len(rows), max(1, len(rows) * len(rows[0]) // _FITTED))
    goals = vectors[np.array(some)]
    before, width = encoder.dimension, goals.shape[1]
    if encoder.projection is not None or encoder.normalize:
        if before != width:
            raise ConfigError(
                "bad-value",
                f"the student makes vectors of {before} numbers by a layer of its own, the teacher of {width}",
                "start from the checkpoint that the student was made of",
            )
        return f"layer: the student's own, to the teacher's {width} numbers"
    layer = Projection(before, width, "identity").to(world.device)
    encoder.to(world.device)
    if world.is_main:
        features = encoder.features(list(chain.from_iterable(rows[n] for n in some)))
        ours = encoder.vectors_of(features, encoder.engine("fp32"))
        _fit(layer, ours, np.repeat(goals, len(rows[0]), axis=0))
    layer.load_state_dict(world.first({name: tensor.cpu() for name, tensor in layer.state_dict().items()}))
    encoder.projection = layer
    return f"layer: linear, {before} to the teacher's {width} numbers, first fitted to {len(some):,} examples"


def _fit(layer: Projection, ours: np.ndarray, goals: np.ndarray) -> None:
    """Fit a layer by least squares with the penalty that predicts left-out texts best; the bias is not penalised."""
    from sklearn.linear_model import RidgeCV

    fitted = RidgeCV(alphas=np.logspace(-3, 3, 7)).fit(ours, goals)
    with torch.no_grad():
        layer.linear.weight.copy_(torch.from_numpy(fitted.coef_))
        assert layer.linear.bias is not None
        layer.linear.bias.copy_(torch.from_numpy(fitted.intercept_))
