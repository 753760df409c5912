"""`distill_embeddings`: a student learns the vectors of a teacher, in one language or, from parallel texts, in several."""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
import torch

from albertkit.embeddings.distillation.student import add_layer, column_names, known_words, reduced
from albertkit.embeddings.distillation.teacher import Teacher, find_teacher
from albertkit.embeddings.distillation.teacher_vectors import TeacherRows, teacher_vectors
from albertkit.embeddings.learning.data import read_scored
from albertkit.embeddings.learning.dev import AnyDev, Judge, Metric, PairDev, ScoredDev, TeacherDev
from albertkit.embeddings.learning.examples import Examples, held_out_rows
from albertkit.embeddings.learning.losses import ToTeacher, shortened
from albertkit.embeddings.learning.results import EmbeddingResult, with_seeds
from albertkit.embeddings.learning.run import DEV_TOKENS, Training, train_encoder
from albertkit.embeddings.learning.settings import DistillSettings
from albertkit.embeddings.learning.texts import read_texts
from albertkit.embeddings.learning.train import check_folder, example_features, set_up, start_encoder
from albertkit.errors import ConfigError
from albertkit.tasks.columns import Columns
from albertkit.tasks.faults import Faults, counted
from albertkit.training.distributed import World, join_world
from albertkit.training.run_folder import alone_in_run

_METRICS: dict[str, Metric] = {"spearman": "spearman", "retrieval": "retrieval", "mse": "negative_mse"}


@alone_in_run
def distill_embeddings(
    student: str | Path,
    teacher: str | Path,
    data: str | Path,
    out: str | Path,
    settings: DistillSettings | None = None,
    *,
    columns: Columns | None = None,
    teacher_prompt_name: str | None = None,
    teacher_prompt: str | None = None,
    dev: str | Path | None = None,
    sts: str | Path | None = None,
    sts_kind: str = "stsb",
    force: bool = False,
    resume: bool = False,
    on_error: Literal["stop", "skip"] = "stop",
) -> EmbeddingResult:
    """Train a student so that the vector of every text of an example is the teacher's of the first.

    Args:
        student: Any checkpoint folder, a folder of sentence embeddings, or `org/name` of the hub.
        teacher: Folder of sentence embeddings, ALBERT checkpoint (mean pooling) or `org/name` of the hub; name of an installed
            package that carries a model; or a .npy file of vectors, row n for text n of DATA.
        data: A text a line, or a table of texts that mean the same, the first of which the teacher reads.
        out: Folder of the run, as of `train_embeddings`, and `teacher/` with its vectors.
        settings: See `DistillSettings`.
        columns: Names of the columns of a table. Default: it has no header, and all are texts.
        teacher_prompt_name: Name of the teacher's prompt that is put before every text it reads. Default: its own default.
        teacher_prompt: The prompt itself, in place of a named one.
        dev: A file like DATA. Default: a share of DATA.
        sts: Scored pairs, a file or a folder that has a dev file.
        sts_kind: stsb, korsts or klue-sts.
        force: Train although much of the texts is unknown to the student's tokenizer.
        resume: Continue from the newest checkpoint, to the same bits.
        on_error: What to do about rows that cannot be used: stop, or skip and count them.

    Raises:
        CheckpointError: no-teacher, run-exists, no-run, other-settings, resume-mismatch and what loading raises.
        ConfigError: bad-settings, conflicting-options. DataError: unknown-words, broken-vectors and what reading raises.
        MachineError: loss-not-finite. MissingExtraError: missing-extra.

    Source: Reimers and Gurevych 2020, "Making Monolingual Sentence Embeddings Multilingual".
    """
    settings, run = settings or DistillSettings(), Path(out)
    settings.check()
    world = join_world(settings.device)
    resume = check_folder(settings, run, resume)
    faults = Faults(on_error)
    rows = read_texts(Path(data), columns or Columns(), None, faults)
    encoder, _ = start_encoder(student, settings)
    known = known_words(rows, encoder.tokenizer, student, force, column_names(columns, len(rows[0])))
    source = find_teacher(str(teacher), str(world.device), teacher_prompt_name, teacher_prompt)
    if dev is not None and source.stored is not None:
        raise ConfigError(
            "conflicting-options", f"`{teacher}` has vectors of the texts of `{data}`, not of `{dev}`",
            "leave --dev out: a share of DATA is then held out",
        )  # fmt: skip
    vectors = teacher_vectors(source, [row[0] for row in rows], run / "teacher", world)
    if dev is None:
        train, held = held_out_rows([row[0] for row in rows], settings.held_out, Path(data))
        dev_rows, goal = [rows[n] for n in held], vectors[held]
        where = f"{settings.held_out:.0%} of them, held out"
    else:
        train, dev_rows = list(range(len(rows))), read_texts(Path(dev), columns or Columns(), len(rows[0]), faults)
        goal = teacher_vectors(source, [row[0] for row in dev_rows], run / "teacher" / "dev", world)
        where = f"`{Path(dev).name}`"
    scored = None if sts is None else read_scored(sts_kind, Path(sts), faults)[0]
    components = reduced(vectors, train, encoder, settings)
    lesson = Lesson(
        str(student), source, [rows[n] for n in train], TeacherRows(vectors, np.array(train), components), dev_rows,
        np.asarray(goal, np.float32) if components is None else goal @ components, scored,
        (
            f"data: {counted(len(train), 'example')} of {counted(len(rows[0]), 'text')}; dev: {len(dev_rows):,}, {where}"
            + (f"; {len(scored):,} scored pairs" if scored else ""),
            f"teacher: {teacher}, {vectors.shape[1]} numbers a vector" + ("" if components is None else ", reduced by PCA"),
            *source.notes, known,
            *([f"rows left out: {len(faults.found):,} (the first: {faults.found[0].where})"] if faults.found else ()),
        ),
    )  # fmt: skip

    def once(one: DistillSettings, folder: Path) -> EmbeddingResult:
        training, resolved = _prepared(lesson, one, world)
        return train_encoder(training, folder, resolved, one.loss, world, resume=resume)

    return with_seeds(settings, run, world, once)


@dataclass(frozen=True)
class Lesson:
    """What a student learns.

    Attributes:
        student: As it was given.
        teacher: Whose vectors they are.
        rows: Training examples of K texts.
        vectors: Of their first texts.
        dev_rows: Dev examples.
        dev_vectors: fp32 [dev examples, W], of their first texts.
        scored: Scored pairs, if there are any.
        notes: Lines for a person.
    """

    student: str
    teacher: Teacher
    rows: list[tuple[str, ...]]
    vectors: TeacherRows
    dev_rows: list[tuple[str, ...]]
    dev_vectors: np.ndarray
    scored: Examples | None
    notes: tuple[str, ...]


def _prepared(lesson: Lesson, settings: DistillSettings, world: World) -> tuple[Training, DistillSettings]:
    """The training of one seed."""
    torch.manual_seed(settings.seed)  # of a fresh layer
    encoder, notes = start_encoder(lesson.student, settings)
    resolved, reasons = settings.resolve(encoder.config, encoder.max_length, len(lesson.rows))
    set_up(encoder, resolved)
    notes.append(add_layer(encoder, lesson.rows, lesson.vectors, world))
    parallel = len(lesson.rows[0]) > 1
    devs: list[AnyDev] = [TeacherDev(lesson.dev_rows, lesson.dev_vectors)]
    if parallel:
        devs.append(PairDev(lesson.dev_rows))
    if lesson.scored:
        devs.append(ScoredDev(lesson.scored))
    loss = ToTeacher(settings.loss, encoder.dimension if settings.loss == "mse" else 1.0)
    metric = selection(settings, lesson.scored is not None, parallel)
    training = Training(
        kind="distillation", encoder=encoder, loss=shortened(loss, encoder.dimension, resolved.dims),
        features=example_features(encoder, lesson.rows), columns=len(lesson.rows[0]),
        targets=lesson.vectors, texts=None, judge=Judge(devs, encoder, DEV_TOKENS, world), metric=metric,
        data=f"{counted(len(lesson.rows), 'example')}, the vectors of `{lesson.teacher.name}`",
        dev=counted(len(lesson.dev_rows), "dev example")
        + (f" and {len(lesson.scored):,} scored pairs" if lesson.scored else ""),
        provenance={"model": lesson.student, "kind": "distillation", "teacher": lesson.teacher.identity},
        notes=[*lesson.notes, *notes, f"chosen by {metric.replace('_', ' ')}", *reasons],
    )  # fmt: skip
    return training, resolved


def selection(settings: DistillSettings, scored: bool, parallel: bool) -> Metric:
    """The metric that chooses the best model.

    Raises:
        ConfigError: bad-settings if it is one that cannot be computed.
    """
    there = {"spearman": scored, "retrieval": parallel, "mse": True}
    chosen: str = settings.select or next(name for name in _METRICS if there[name])
    if not there[chosen]:
        lacking = "a file of scored pairs: --sts FILE" if chosen == "spearman" else "parallel texts"
        raise ConfigError("bad-settings", f"select {chosen} needs {lacking}", "name it, or select mse")
    return _METRICS[chosen]
