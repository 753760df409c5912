"""`train_embeddings`: from any ALBERT to vectors of texts that can be compared."""

import math
import re
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, NamedTuple, TypeVar

import numpy as np
import torch
from torch import nn

from albertkit.batches.features import ExampleStream, Features
from albertkit.command import takes
from albertkit.embeddings.data import (
    EmbeddingData,
    TextExamples,
    find_data_kind,
    read_embedding_data,
)
from albertkit.embeddings.encoder import SentenceEncoder, describe_or_refuse_unknown_words
from albertkit.embeddings.folder import Projection
from albertkit.embeddings.losses import EmbeddingObjective, TeacherRows, make_loss
from albertkit.embeddings.metrics import (
    constant_input_findings,
    correlation_intervals,
    correlation_scores,
    normalize_vectors,
    retrieval_scores,
    row_by_row_cosines,
)
from albertkit.embeddings.models import prompt_use_notes
from albertkit.embeddings.options import EmbedTrainOptions
from albertkit.embeddings.settings import EmbedSettings, EncoderSettings
from albertkit.files import read_json, sha256_bytes
from albertkit.model import AlbertModel
from albertkit.model.files import PROVENANCE
from albertkit.model_paths import local_folder, model_of_run_or_folder
from albertkit.output.render import (
    Card,
    code_block,
    escape_markdown,
    package_versions,
    python_literal,
    settings_sections,
)
from albertkit.output.sections import Paragraph, Section
from albertkit.printable import Notes
from albertkit.tables.bad_rows import BadRows, pluralize
from albertkit.tables.records import as_files
from albertkit.tasks.data import fingerprint
from albertkit.tasks.models import check_order, run_batches
from albertkit.training.checkpoints import TrainingState
from albertkit.training.loop import LoopSettings, TrainingRecipe
from albertkit.training.monitor import wilson_interval
from albertkit.training.processes import World, describe_precision
from albertkit.training.results import score_table
from albertkit.training.run import Best, Run, RunResult, open_run

_BATCH_TOKENS = 8192  # most tokens of dev texts computed at once
MetricName = Literal["spearman", "retrieval", "negative_mse"]


class ScoredDev:
    """Scores pairs that people scored, on any scale: does the cosine follow their scores?"""

    metric: MetricName = "spearman"

    def __init__(self, examples: TextExamples) -> None:
        assert examples.targets is not None
        self.texts = examples.texts
        self.scores = examples.targets

    def score(self, vectors: np.ndarray) -> dict[str, float]:
        """Return spearman and pearson of the cosines of [E, 2, D] with the scores; NaN where not defined."""
        scores = correlation_scores(self.scores, row_by_row_cosines(vectors[:, 0], vectors[:, 1]))
        return {
            name: math.nan if (value := scores[name]) is None else value
            for name in ("spearman", "pearson")
        }

    def intervals(self, vectors: np.ndarray) -> dict[str, tuple[float, float]]:
        """Return 95 % intervals, by bootstrap over the pairs."""
        return correlation_intervals(self.scores, row_by_row_cosines(vectors[:, 0], vectors[:, 1]))

    def constant_inputs(self, vectors: np.ndarray) -> list[str]:
        """List constant inputs, for which a correlation is undefined."""
        return constant_input_findings(vectors[:, 0], vectors[:, 1], self.scores)


class PairDev:
    """Scores texts that mean the same: does a text find its own among those of all examples, from the first column to each
    other one and back?
    """

    metric: MetricName = "retrieval"

    def __init__(self, texts: Sequence[tuple[str, ...]]) -> None:
        self.texts = texts

    def score(self, vectors: np.ndarray) -> dict[str, float]:
        """Return retrieval, the mean of retrieval_forward and retrieval_backward, of [E, K, D]; shares of the examples."""
        figures = []
        for column in range(1, vectors.shape[1]):
            sides = [row[0] for row in self.texts], [row[column] for row in self.texts]
            figures.append(
                retrieval_scores(
                    normalize_vectors(vectors[:, 0]), normalize_vectors(vectors[:, column]), *sides
                )
            )
        forward = float(np.mean([column_figures["forward"] for column_figures in figures]))
        backward = float(np.mean([column_figures["backward"] for column_figures in figures]))
        return {
            "retrieval": (forward + backward) / 2,
            "retrieval_forward": forward,
            "retrieval_backward": backward,
        }

    def intervals(self, vectors: np.ndarray) -> dict[str, tuple[float, float]]:
        """Return 95 % intervals of the shares, by Wilson's formula."""
        shares = self.score(vectors)
        count = len(vectors)
        return {
            name: wilson_interval(round(shares[name] * count), count)
            for name in shares
            # The mean of two shares is no share, which is what the formula is for.
            if name != self.metric
        }

    def constant_inputs(self, vectors: np.ndarray) -> list[str]:
        """List constant inputs, for which retrieval is undefined."""
        return constant_input_findings(vectors[:, 0], vectors[:, 1])


class TeacherDev:
    """Scores E examples of K texts by a teacher's vectors of the first ones, fp32 [E, D]: how far are ours?"""

    metric: MetricName = "negative_mse"

    def __init__(self, texts: Sequence[tuple[str, ...]], targets: np.ndarray) -> None:
        self.texts = texts
        self.targets = targets

    def score(self, vectors: np.ndarray) -> dict[str, float]:
        """Return minus the mean squared difference (larger is better) of [E, K, D], and the mean cosine with the teacher."""
        error = float(np.mean((vectors - self.targets[:, None]) ** 2, dtype=np.float64))
        cosines = [row_by_row_cosines(vectors[:, k], self.targets) for k in range(vectors.shape[1])]
        return {"negative_mse": -error, "cosine_to_teacher": float(np.mean(cosines))}

    def intervals(self, vectors: np.ndarray) -> dict[str, tuple[float, float]]:
        """Return none: there is no formula for them."""
        return {}

    def constant_inputs(self, vectors: np.ndarray) -> list[str]:
        """List constant inputs, for which the measure is undefined."""
        return constant_input_findings(vectors[:, 0], np.roll(vectors[:, 0], 1, axis=0))


AnyDev = ScoredDev | PairDev | TeacherDev


class EmbeddingEvaluator:
    """Makes vectors of dev texts with an encoder under training, and scores them.

    Metrics of a later dev set do not replace those of one before. The processes share the work, and
    each gets all.
    """

    def __init__(self, devs: Sequence[AnyDev], encoder: SentenceEncoder, world: World) -> None:
        self.devs = devs
        self._world = world
        # By the identity of the texts, because dev sets may share theirs.
        self._features: dict[int, Features] = {}
        for dev in devs:
            self._features[id(dev.texts)] = encoder.features(
                [text for row in dev.texts for text in row]
            )
        self.constant_inputs: list[str] = []  # by the last `measure`

    @property
    def num_texts(self) -> int:
        """Number of texts of all dev sets; shared ones count once."""
        return sum(features.num_sequences for features in self._features.values())

    @property
    def num_truncated(self) -> int:
        """Number of them that are longer than the encoder reads and are cut."""
        return sum(features.num_truncated for features in self._features.values())

    def fingerprint(self) -> str:
        """Return the SHA-256 of the dev examples: a run is only resumed with the same."""
        content = "".join(fingerprint(self._features[id(dev.texts)]) for dev in self.devs).encode()
        for dev in self.devs:
            if isinstance(dev, ScoredDev):
                content += np.ascontiguousarray(dev.scores).tobytes()
        return sha256_bytes(content)

    def measure(
        self,
        encoder: SentenceEncoder,
        with_intervals: bool = False,
    ) -> tuple[dict[str, float], dict[str, Any]]:
        """Return all metrics and, if wanted, their intervals."""
        scores: dict[str, float] = {}
        all_intervals: dict[str, Any] = {}
        self.constant_inputs = []
        vectors_of = {}
        for texts_id, features in self._features.items():
            device = encoder.albert.device
            vectors_of[texts_id] = run_batches(
                lambda batch: list(encoder(batch.packed).cpu().numpy()),
                features,
                _BATCH_TOKENS,
                device,
                self._world,
            )
        for dev in self.devs:
            vectors = np.stack(vectors_of[id(dev.texts)]).reshape(
                len(dev.texts),
                len(dev.texts[0]),
                -1,
            )
            scores = {**dev.score(vectors), **scores}
            all_intervals |= dev.intervals(vectors) if with_intervals else {}
            self.constant_inputs += [
                line for line in dev.constant_inputs(vectors) if line not in self.constant_inputs
            ]
        return scores, all_intervals


# Tokens computed at once: in-batch losses need the examples of an update together
_NO_TOKEN_LIMIT = 1 << 62

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
        """Return the results that only sentence embeddings have, as plain values by name."""
        extras = {
            "kind": self.kind,
            "intervals": self.intervals,
            "constant": list(self.constant),
        }
        return {**extras, "truncated": self.truncated}

    def scores_and_notes(self) -> dict[str, Any]:
        """Return scores, intervals and notes for `training.results`."""
        return {**super().scores_and_notes(), "intervals": self.intervals}


@dataclass(frozen=True)
class Training:
    """Model, loss and data of one training."""

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
        content = fingerprint(features).encode()
        if isinstance(self.targets, np.ndarray):
            content += self.targets.tobytes()
        return sha256_bytes(content)


def example_features(encoder: SentenceEncoder, examples: Sequence[tuple[str, ...]]) -> Features:
    """Return the features of E examples of K texts: K sequences of each, which stay together."""
    # Each pair is one example. When each text was one, Spearman fell from 0.515 to 0.464.
    features = encoder.features([text for texts in examples for text in texts])
    return replace(features, examples=features.examples // len(examples[0]))


def train_encoder(run: Run[AnyEncoderSettings], training: Training) -> EmbeddingResult:
    """Train once; the settings of the run are resolved."""
    settings = run.settings
    world = run.world
    encoder = training.encoder
    metric = training.metric
    features = example_features(encoder, training.examples)
    evaluator = EmbeddingEvaluator(training.devs, encoder, world)
    provenance = training.provenance | {
        "data": training.fingerprint(features),
        "dev": evaluator.fingerprint(),
    }
    run.check_made_from(provenance)
    objective = EmbeddingObjective(
        encoder,
        training.loss_name,
        training.loss,
        len(training.examples[0]),
        training.targets,
        training.texts,
        world,
    ).to(world.device)
    run.place_model(encoder.albert)
    if encoder.albert.pooler is not None:  # no vector goes through it
        encoder.albert.pooler.requires_grad_(False)
    truncated = {"train": features.num_truncated, "dev": evaluator.num_truncated}
    notes = [*training.notes]
    if any(truncated.values()):
        notes.append(
            f"texts longer than {encoder.max_length} tokens, cut: {truncated['train']:,} of "
            f"{features.num_sequences:,} in training, {truncated['dev']:,} of {evaluator.num_texts:,} on dev"
        )
    remedy = settings.remedy(encoder.config.hidden_size)
    unfinished = EmbeddingResult(kind=training.kind, metric=metric, remedy=remedy)

    def load(folder: Path) -> SentenceEncoder:
        best = SentenceEncoder.from_pretrained(folder).to(world.device)
        best.albert.compute_dtype = encoder.albert.compute_dtype
        return best

    def score(best: SentenceEncoder, state: TrainingState) -> EmbeddingResult:
        scores, intervals = evaluator.measure(best, with_intervals=True)
        constant = tuple(evaluator.constant_inputs)
        return replace(
            unfinished,
            value=scores[metric],
            scores=scores,
            intervals=intervals,
            constant=constant,
            collapsed="; ".join(constant) or None,
            truncated=truncated,
        )

    def write(best: SentenceEncoder, result: EmbeddingResult) -> None:
        write_embedding_card(run.folder / "best", run.name, best, training, settings, result)

    recipe = TrainingRecipe(
        model=objective,
        objective=objective,
        stream=ExampleStream(
            features,
            grouped=True,
            batch_size=settings.batch_size or 1,
            batch_tokens=_NO_TOKEN_LIMIT,
            seed=settings.seed,
            rank=world.rank,
            world_size=world.size,
        ),
        loop=LoopSettings.over_epochs(settings, start_weights=training.start_weights),
        evaluate=lambda: evaluator.measure(encoder)[0],
        select=metric,
        save=encoder.save_pretrained,
        provenance=provenance,
        doubts=lambda step, metrics: [f"{line}; {remedy}" for line in evaluator.constant_inputs],
        notes=[*notes, describe_precision(encoder.albert, world.device)],
        repeatable=False,  # see docs/gpu.md
    )
    return run.fit(recipe, Best(unfinished, load, score, write))


# --- the model card -------------------------------------------------------------------------------

_MAX_ANCESTORS = 10  # models of a lineage
_ON_HUB = re.compile(r"[\w.-]+/[\w.-]+")
_DATASETS = {  # kinds whose data lie on the hub under a name
    "stsb": "sentence-transformers/stsb",
    "klue-sts": "klue/klue",
    "klue-nli": "klue/klue",
    "mnli": "nyu-mll/multi_nli",
    "kornli": "kakaobrain/kor_nli",
}

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
    model_path = {"place": python_literal(f"{name}/{Path(folder).name}")}
    usage = "Texts are compared by the cosine of their vectors."
    if settings.dims:
        usage += (
            f" The first {', '.join(map(str, settings.dims))} numbers of a vector were trained to be one by themselves: "
            "`truncate_dim` of sentence-transformers, `dimension` of albertkit's `encode`."
        )
    pooling = encoder.pooling if isinstance(encoder.pooling, str) else " and ".join(encoder.pooling)
    parameters = sum(p.numel() for p in encoder.parameters())
    summary = (
        f"Sentence embeddings by ALBERT: vectors of {encoder.dimension:,} numbers, {parameters:,} parameters, {pooling} "
        f"pooling, texts of at most\n{encoder.max_length:,} tokens. Trained with albertkit from "
        f"`{escape_markdown(training.start)}` on {training.data}, with the loss `{training.loss_name}`."
    )
    ancestors = []
    for checkpoint, data_kind in find_training_ancestors(training.start):
        data = f" on `{escape_markdown(data_kind)}`" if data_kind else ""
        ancestors.append(f"from `{escape_markdown(checkpoint)}`{data}")
    if ancestors:
        summary += f"\nBefore that: {', '.join(ancestors)}."
    sections: list[Section] = [
        Paragraph(summary, form="markdown"),
        code_block(_SENTENCE_TRANSFORMERS.format_map(model_path), title="Using it"),
        code_block(_ALBERTKIT.format_map(model_path)),
        Paragraph(usage, form="markdown"),
        Paragraph(
            f"On {training.dev}, which also chose the best of the run's models. Intervals are 95%.",
            "Results",
            form="markdown",
        ),
        score_table(result.scores, result.intervals),
        *settings_sections(settings.settings_for_card(), package_versions()),
    ]
    Card(
        name, _hub_metadata(" ".join(name.split()), training, settings, result.scores), sections
    ).write(folder)


class Ancestor(NamedTuple):
    """Checkpoint from which a model was trained, and the kind of the data; "" where it is unknown."""

    checkpoint: str
    data_kind: str


def find_training_ancestors(start: str) -> list[Ancestor]:
    """Return the ancestors of a model in local folders, the latest first."""
    ancestors: list[Ancestor] = []
    while len(ancestors) < _MAX_ANCESTORS:
        folder = Path(start)
        paths = (
            (folder / PROVENANCE, model_of_run_or_folder(folder) / PROVENANCE)
            if folder.is_dir()
            else ()
        )
        file = next((path for path in paths if path.exists()), None)
        provenance = None if file is None else read_json(file)
        if not isinstance(provenance, dict) or not isinstance(provenance.get("model"), str):
            break
        start = provenance["model"]
        data_kind = str(provenance.get("kind") or provenance.get("task") or "")
        ancestors.append(Ancestor(start, data_kind))
    return ancestors


def _hub_metadata(
    name: str, training: Training, settings: EncoderSettings, scores: Mapping[str, float]
) -> dict[str, Any]:
    """Return the metadata for a hub; unknown fields are left out."""
    ancestors = find_training_ancestors(training.start)
    first = ancestors[-1].checkpoint if ancestors else training.start
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
        "dataset": {
            "type": _DATASETS.get(training.kind, training.kind or "unknown"),
            "name": training.dev,
        },
        "metrics": metrics,
    }
    return fields | {"model-index": [{"name": name, "results": [result]}]}


@takes(EmbedTrainOptions)
def train_embeddings(options: EmbedTrainOptions) -> EmbeddingResult:
    """Train sentence embeddings and score them on dev examples; see `EmbedTrainOptions` and `EmbedSettings`.

    The folder of the run gets `run.toml`, `metrics.jsonl`, `checkpoints/`, `best/` (the model to
    use) and `results.json`; with several seeds a folder for each. Under `torchrun` every process
    takes its share of each update and gradients are summed.

    Raises:
        CheckpointError: exists, missing-file, changed and what loading raises.
        ConfigError: unknown-name, bad-value, conflicting-options, no-device. DataError: what
            reading raises.
        MachineError: not-finite. MissingExtraError: not-installed.
    """
    kind = options.kind
    settings = options.settings
    check_order(kind, options.model, options.data)
    with (
        open_run(options.out, settings, f"sentence embeddings: {kind}", options.resume) as run,
        ExitStack() as stack,
    ):
        sources = {name: getattr(options, name) for name in ("data", "dev", "silver")}
        files: dict[str, Any] = {
            n: stack.enter_context(as_files(data))
            for n, data in sources.items()
            if data is not None
        }
        triplets = settings.choose_loss(find_data_kind(kind)) == "mnrl"
        examples = read_embedding_data(
            replace(options, **files),
            triplets,
            BadRows(options.on_error),
        )
        return run.of_seeds(lambda seed_run: _train_once(seed_run, kind, examples, options.model))


def _train_once(
    run: Run[EmbedSettings],
    kind: str,
    data: EmbeddingData,
    model: str | Path,
) -> EmbeddingResult:
    """Train with one seed."""
    torch.manual_seed(run.settings.seed)  # of fresh layers
    encoder, notes = load_start_encoder(model, run.settings)
    resolved, reasons = run.settings.resolve(
        data.kind,
        encoder.config,
        encoder.max_length,
        len(data.train),
    )
    apply_length_and_dropout(encoder, resolved)
    notes.append(
        describe_or_refuse_unknown_words(data.train.texts, encoder.tokenizer, model, force=True)
    )
    if resolved.projection:
        notes.append(f"projection: fresh, {encoder.dimension} to {resolved.projection}, tanh")
        encoder.projection = Projection(encoder.dimension, resolved.projection)
    loss = resolved.loss or "cosent"
    negatives = loss == "mnrl"
    if negatives:
        notes.append(
            "in-batch negatives: an example that shares a text with another of its update is left out of it"
        )
    dev = ScoredDev(data.dev) if data.dev.targets is not None else PairDev(data.dev.texts)
    training = Training(
        kind=kind,
        encoder=encoder,
        loss=make_loss(loss, encoder.dimension, resolved.dims, resolved.scale),
        loss_name=loss,
        examples=data.train.texts,
        targets=data.train.targets,
        texts=number_equal_texts(data.train) if negatives else None,
        devs=[dev],
        metric=dev.metric,
        data=f"{pluralize(len(data.train), 'example')} of the kind `{kind}`",
        dev=pluralize(len(data.dev), "dev example"),
        provenance={"model": str(model), "kind": kind},
        notes=[*data.notes, *notes, *reasons],
        start_weights=resolved.start_weights,
    )
    return train_encoder(run.resolved(resolved), training)


def load_start_encoder(
    model: str | Path, settings: EncoderSettings
) -> tuple[SentenceEncoder, Notes]:
    """Return the encoder to train, and notes on how its vectors are made."""
    encoder = SentenceEncoder.from_pretrained(local_folder(model), settings.pooling)
    if settings.prompt_name is not None:
        encoder.settings["default_prompt_name"] = settings.prompt_name
    pooling_origin = "" if settings.pooling else " (that of the model, or mean where it has none)"
    notes = [f"pooling: {encoder.pooling}{pooling_origin}"]
    if encoder.projection is not None:
        notes.append(f"projection: that of `{model}`, to {encoder.dimension} numbers")
    notes += prompt_use_notes(str(model), encoder.prompts, encoder.prompt)
    if encoder.normalize:
        notes.append(f"vectors: of length 1, as those of `{model}`")
    return encoder, notes


def apply_length_and_dropout(encoder: SentenceEncoder, settings: EncoderSettings) -> None:
    """Give an encoder the length and the dropout of resolved settings."""
    encoder.max_length = settings.length or encoder.max_length
    current = encoder.config
    probability = settings.dropout or 0.0
    if (current.hidden_dropout_prob, current.attention_probs_dropout_prob) != (
        probability,
        probability,
    ):
        config = current.with_changes(
            hidden_dropout_prob=probability,
            attention_probs_dropout_prob=probability,
        )
        albert = AlbertModel(config, add_pooling_layer=encoder.albert.pooler is not None)
        albert.load_state_dict(encoder.albert.state_dict())
        encoder.albert = albert.train(encoder.albert.training)


def number_equal_texts(examples: TextExamples) -> np.ndarray:
    """Number texts, int64 [E, K]: equal texts have equal numbers."""
    numbers: dict[str, int] = {}
    rows = [[numbers.setdefault(text, len(numbers)) for text in row] for row in examples.texts]
    return np.array(rows, np.int64)
