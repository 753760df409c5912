"""One training of an encoder, from features to the best model and its results: puts model, objective and run together."""

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from torch import nn

from albertkit.data.features import Features
from albertkit.data.stream import ExampleStream
from albertkit.embeddings.encoder import SentenceEncoder
from albertkit.embeddings.learning.dev import AnyDev, Evaluator
from albertkit.embeddings.learning.objective import EmbeddingObjective, TeacherRows
from albertkit.embeddings.settings import EncoderSettings
from albertkit.files import read_json, sha256_bytes
from albertkit.frame.card import Card, code, literal, settings_sections, versions
from albertkit.frame.rendering import cell
from albertkit.frame.section import Facts, Section, Text
from albertkit.model.folder import PROVENANCE
from albertkit.model_folder import or_model_of_run
from albertkit.tasks.data import fingerprint
from albertkit.training.hardware import describe
from albertkit.training.loop import LoopSettings, Recipe
from albertkit.training.results import result_sections, score_table
from albertkit.training.run import Best, Run, RunResult
from albertkit.training.state import TrainingState

REMEDY = "try a lower --lr, a longer --warmup or another --seed"
_NO_BOUND = 1 << 62  # tokens computed at once: in-batch losses need the examples of an update together

AnyEncoderSettings = TypeVar("AnyEncoderSettings", bound=EncoderSettings)


@dataclass(frozen=True, kw_only=True)
class EmbeddingResult(RunResult):
    """Result of a training of sentence embeddings.

    Attributes:
        kind: Of the data, or "distillation".
        intervals: Score to low and high, 95 %.
        constant: What was constant, so that nothing was learned; mostly nothing.
        truncated: Texts that were longer than the model reads and were cut: `train`, `dev`.
    """

    kind: str
    intervals: dict[str, tuple[float, float]] = field(default_factory=dict)
    constant: tuple[str, ...] = ()
    truncated: dict[str, int] = field(default_factory=dict)

    def extras(self) -> dict[str, Any]:
        """Return what only sentence embeddings have, as plain values by name."""
        extras = {"kind": self.kind, "intervals": self.intervals, "constant": list(self.constant)}
        return {**extras, "truncated": self.truncated}

    def sections(self) -> list[Section]:
        """Return the scores and where the model is."""
        shown = result_sections(self.results(), self.metric) if self.scores else []
        return [*shown, Facts({"model": self.model})]

    def results(self) -> dict[str, Any]:
        """Return what `training.results` shows: scores, intervals, notes."""
        notes = [f"nothing learned: {line}; {REMEDY}" for line in self.constant]
        return {**self.scores, "intervals": self.intervals, "notes": [*notes, *self.notes()]}


@dataclass(frozen=True)
class Training:
    """Holds what one training trains, and on what."""

    kind: str  # as `EmbeddingResult.kind`
    encoder: SentenceEncoder  # will be moved to the process's device
    loss: nn.Module  # on vectors
    loss_name: str
    examples: Sequence[tuple[str, ...]]  # E of K texts each
    targets: np.ndarray | TeacherRows | None  # as `EmbeddingObjective`
    texts: np.ndarray | None  # as `EmbeddingObjective`
    devs: Sequence[AnyDev]
    metric: str  # chooses the best model
    data: str  # the training examples in words
    dev: str  # the dev examples in words
    provenance: dict[str, Any]  # without the fingerprints of the examples
    notes: Sequence[str]
    start_weights: float = 0.0  # as `EmbedSettings.start_weights`

    @property
    def start(self) -> str:
        """Return the checkpoint that it was trained from."""
        return str(self.provenance["model"])

    def fingerprint(self, features: Features) -> str:
        """Return the SHA-256 of what is learned; a teacher's vectors are known by texts and teacher, which provenance names."""
        known = fingerprint(features).encode()
        if isinstance(self.targets, np.ndarray):
            known += self.targets.tobytes()
        return sha256_bytes(known)


def example_features(encoder: SentenceEncoder, examples: Sequence[tuple[str, ...]]) -> Features:
    """Return what the model sees of E examples of K texts: K sequences of each, which stay together."""
    features = encoder.features([text for texts in examples for text in texts])
    return replace(features, examples=features.examples // len(examples[0]))


def train_encoder(run: Run[AnyEncoderSettings], training: Training) -> EmbeddingResult:
    """Train once; the settings of the run are resolved."""
    settings, world = run.settings, run.world
    encoder, metric = training.encoder, training.metric
    features, evaluator = example_features(encoder, training.examples), Evaluator(training.devs, encoder, world)
    provenance = training.provenance | {"data": training.fingerprint(features), "dev": evaluator.fingerprint()}
    run.check_made_from(provenance)
    objective = EmbeddingObjective(
        encoder, training.loss_name, training.loss, len(training.examples[0]), training.targets, training.texts, world
    ).to(world.device)
    run.place(encoder.albert)
    if encoder.albert.pooler is not None:  # no vector goes through it
        encoder.albert.pooler.requires_grad_(False)
    truncated = {"train": features.num_truncated, "dev": evaluator.num_truncated}
    cut = (
        f"texts longer than {encoder.max_length} tokens, cut: {truncated['train']:,} of "
        f"{features.num_sequences:,} in training, {truncated['dev']:,} of {evaluator.num_texts:,} on dev"
    )
    unfinished = EmbeddingResult(kind=training.kind, metric=metric)

    def evaluate() -> dict[str, float]:
        scores, _ = evaluator.measure(encoder)
        return {metric: scores[metric], **scores}  # the one that counts is shown first

    def load(folder: Path) -> SentenceEncoder:
        best = SentenceEncoder.from_pretrained(folder).to(world.device)
        best.albert.compute_dtype = encoder.albert.compute_dtype
        return best

    def score(best: SentenceEncoder, state: TrainingState) -> EmbeddingResult:
        scores, intervals = evaluator.measure(best, intervals=True)
        constant = tuple(evaluator.constant)
        return replace(
            unfinished,
            value=scores[metric],
            scores=scores,
            intervals=intervals,
            constant=constant,
            collapsed=constant[0] if constant else None,
            truncated=truncated,
        )

    def write(best: SentenceEncoder, result: EmbeddingResult) -> None:
        write_embedding_card(run.folder / "best", run.name, best, training, settings, result)

    recipe = Recipe(
        model=objective,
        objective=objective,
        stream=ExampleStream(
            features,
            grouped=True,
            batch_size=settings.batch_size or 1,
            batch_tokens=_NO_BOUND,
            seed=settings.seed,
            rank=world.rank,
            world_size=world.size,
        ),
        loop=LoopSettings.over_epochs(settings, start_weights=training.start_weights),
        evaluate=evaluate,
        select=metric,
        save=lambda folder: encoder.save_pretrained(folder),
        provenance=provenance,
        doubts=lambda step, metrics: [f"{line}; {REMEDY}" for line in evaluator.constant],
        notes=[*training.notes, *([cut] if any(truncated.values()) else ()), describe(encoder.albert, world.device)],
        repeatable=False,  # see docs/gpu.md
    )
    return run.fit(recipe, Best(unfinished, load, score, write))


# --- the model card ---------------------------------------------------------------------------------------------------

_LONGEST = 10  # models of a lineage
_ON_HUB = re.compile(r"[\w.-]+/[\w.-]+")
_DATASETS = {  # kinds whose data lie on the hub under a name
    "stsb": "sentence-transformers/stsb", "klue-sts": "klue/klue", "klue-nli": "klue/klue", "mnli": "nyu-mll/multi_nli",
    "kornli": "kakaobrain/kor_nli",
}  # fmt: skip

_SENTENCE_TRANSFORMERS = """from sentence_transformers import SentenceTransformer
model = SentenceTransformer({place})
vectors = model.encode(["A text.", "Another one."])"""
_ALBERTKIT = """from albertkit.embeddings import SentenceEncoder
model = SentenceEncoder.from_pretrained({place})
vectors = model.encode(["A text.", "Another one."])"""


def write_embedding_card(
    folder: Path,
    name: str,
    encoder: SentenceEncoder,
    training: Training,
    settings: EncoderSettings,
    result: EmbeddingResult,
) -> None:
    """Write `README.md` into the folder of an encoder, under a name, with scores on dev, their intervals and settings."""
    place = {"place": literal(f"{name}/{Path(folder).name}")}
    compared = "Texts are compared by the cosine of their vectors."
    if settings.dims:
        compared += (
            f" The first {', '.join(map(str, settings.dims))} numbers of a vector were trained to be one by themselves: "
            "`truncate_dim` of sentence-transformers, `dimension` of albertkit's `encode`."
        )
    sections: list[Section] = [
        Text(_summary(encoder, training), form="markdown"),
        code(_SENTENCE_TRANSFORMERS.format_map(place), title="Using it"),
        code(_ALBERTKIT.format_map(place)),
        Text(compared, form="markdown"),
        Text(
            f"On {training.dev}, which also chose the best of the run's models. Intervals are 95%.",
            "Results",
            form="markdown",
        ),
        score_table(result.scores, result.intervals),
        *settings_sections(settings.for_card(), versions()),
    ]
    Card(name, _fields(" ".join(name.split()), training, settings, result.scores), sections).write(folder)


def _summary(encoder: SentenceEncoder, training: Training) -> str:
    """Return what the model is and where it comes from, in two sentences."""
    pooling = encoder.pooling if isinstance(encoder.pooling, str) else " and ".join(encoder.pooling)
    parameters = sum(p.numel() for p in encoder.parameters())
    said = (
        f"Sentence embeddings by ALBERT: vectors of {encoder.dimension:,} numbers, {parameters:,} parameters, {pooling} "
        f"pooling, texts of at most\n{encoder.max_length:,} tokens. Trained with albertkit from `{cell(training.start)}` on "
        f"{training.data}, with the loss `{training.loss_name}`."
    )
    before = [f"from `{cell(model)}`{f' on `{cell(kind)}`' if kind else ''}" for model, kind in lineage(training.start)]
    return f"{said}\nBefore that: {', '.join(before)}." if before else said


def lineage(start: str) -> list[tuple[str, str]]:
    """Return what each earlier model of local folders was trained from, and on what kind of data, the latest first."""
    found: list[tuple[str, str]] = []
    while len(found) < _LONGEST and (file := _provenance_of(Path(start))) is not None:
        known = read_json(file)
        if not isinstance(known, dict) or not isinstance(known.get("model"), str):
            break
        start = known["model"]
        found.append((start, str(known.get("kind") or known.get("task") or "")))
    return found


def _provenance_of(folder: Path) -> Path | None:
    places = (folder / PROVENANCE, or_model_of_run(folder) / PROVENANCE) if folder.is_dir() else ()
    return next((place for place in places if place.exists()), None)


def _fields(name: str, training: Training, settings: EncoderSettings, scores: Mapping[str, float]) -> dict[str, Any]:
    """Return the metadata that a hub shows; what is not known is left out."""
    first = ([model for model, _ in lineage(training.start)] or [training.start])[-1]
    fields: dict[str, Any] = {"language": settings.languages} if settings.languages else {}
    if settings.license:
        fields["license"] = settings.license
    fields |= {"library_name": "sentence-transformers", "pipeline_tag": "sentence-similarity"}
    if _ON_HUB.fullmatch(first) and not Path(first).exists():
        fields["base_model"] = first
    if training.kind in _DATASETS:
        fields["datasets"] = [_DATASETS[training.kind]]
    fields["tags"] = ["sentence-transformers", "feature-extraction", "albert", "albertkit"]
    metrics = [
        {"type": score, "value": round(value, 4), "name": score.replace("_", " ")}
        for score, value in scores.items()
        if math.isfinite(value)
    ]
    result = {
        "task": {"type": "sentence-similarity", "name": "Sentence similarity"},
        "dataset": {"type": _DATASETS.get(training.kind, training.kind or "unknown"), "name": training.dev},
        "metrics": metrics,
    }
    return fields | {"model-index": [{"name": name, "results": [result]}]}
