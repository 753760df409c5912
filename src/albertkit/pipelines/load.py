"""Load the pipeline of a folder."""

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from albertkit.conversion.classes import load_model, read_model_tokenizer
from albertkit.embeddings.encoder import SentenceEncoder
from albertkit.embeddings.folder import is_encoder_folder, read_max_length_and_lower_case
from albertkit.engines import load_engine
from albertkit.engines.engine import Engine, Precision
from albertkit.engines.onnx import OnnxModel, is_onnx_folder, load_onnx
from albertkit.errors import CheckpointError, ConfigError, suggest_name
from albertkit.folder_facts import FolderFacts
from albertkit.model import (
    AlbertForBeamQuestionAnswering,
    AlbertForMaskedLM,
    AlbertForMultipleChoice,
    AlbertForPreTraining,
    AlbertForQuestionAnswering,
    AlbertForSequenceClassification,
    AlbertForTokenClassification,
)
from albertkit.model.files import read_provenance, untrained_heads
from albertkit.model.pretrained import PretrainedAlbert
from albertkit.model_paths import is_captioner_folder, local_folder
from albertkit.pipelines.pipeline import Pipeline
from albertkit.pipelines.text_pipelines import BY_TASK, Classify, Embed, FillMask, SentenceOrder
from albertkit.tasks.answers import AnswerTask
from albertkit.tasks.choices import ChoiceTask
from albertkit.tasks.early_exit import ExitRule, has_exits, with_early_exit
from albertkit.tasks.models import is_task_model, load_task_model
from albertkit.tasks.tagging import TaggingTask
from albertkit.tasks.task import Task
from albertkit.tasks.texts import MultiLabelClassification, TextClassification, TextRegression
from albertkit.tokenizer import AlbertTokenizer
from albertkit.tokenizer.inputs import NamedSpecials
from albertkit.training.processes import find_device

logger = logging.getLogger("albertkit")

KINDS = (
    "fill-mask",
    "sentence-order",
    "classify",
    "score",
    "tag",
    "answer",
    "choose",
    "embed",
    "caption",
)


def load_pipeline(
    model: str | Path,
    kind: str | None = None,
    *,
    precision: Precision = "auto",
    device: str = "auto",
    exits: str | None = None,
) -> Any:
    """Load a folder as the pipeline it was trained for.

    Args:
        model: A checkpoint folder, a run, a folder of sentence-transformers, a captioner, or
            `org/name` of the hub.
        kind: One of `KINDS`. Default: what the folder says: fine-tuned models their task, sentence
            encoders and captioners theirs, pretrained models fill-mask; they can also be asked for
            sentence-order or embed (mean of the states).
        precision: As `load_engine`.
        device: auto, cpu, cuda or cuda:N.
        exits: A rule for leaving early, as `ExitRule.parse` reads it; for classifiers trained with
            exits.

    Returns:
        A `Pipeline`, or a `CaptionPipeline`.

    Raises:
        ConfigError: unknown-name, no-device. CheckpointError: wrong-model if the folder cannot do
            that, wrong-tokenizer, bad-file, wrong-model; and what loading raises.
    """
    if kind is not None and kind not in KINDS:
        raise ConfigError(
            "unknown-name", f"there is no pipeline `{kind}`", suggest_name(kind, KINDS)
        )
    path = local_folder(model)
    if exits is not None:
        pipeline = load_pipeline(model, kind, precision=precision, device=device)
        if not isinstance(pipeline, Classify):
            raise CheckpointError(
                "wrong-model", f"`{path}` does not classify", "leave out the rule for early exit"
            )
        rule = ExitRule.parse(exits)
        pipeline.model = with_early_exit(pipeline.model, pipeline.engine, path, rule)  # type: ignore[arg-type]
        return pipeline
    if kind == "caption" or (kind is None and is_captioner_folder(path)):
        return _load_captioner(path, device)
    if kind == "embed" or (kind is None and is_encoder_folder(path)):
        return Embed(SentenceEncoder.from_pretrained(path).to(find_device(device)), precision)
    loaded = _load_model(path)
    loaded.model.to(find_device(device))
    pipeline = _make_pipeline(kind, loaded, precision)
    if pipeline is None:
        own_kind = BY_TASK[loaded.task.kind].kind if loaded.task else "embed"
        raise CheckpointError(
            "wrong-model",
            f"`{model}` ({type(loaded.model).__name__}) has no trained head for {kind or 'any task'}",
            f"it can {own_kind}; other kinds need a model fine-tuned for them: albertkit finetune",
        )
    return pipeline


def load_pipelines(
    model: str | Path,
    *,
    precision: Precision = "auto",
    device: str = "auto",
    exits: str | None = None,
) -> dict[str, Any]:
    """Load every pipeline of a folder, over one set of weights and one engine.

    Args:
        model: As `load_pipeline`.
        precision: As `load_engine`.
        device: As `load_pipeline`; or meta: the weights are let go of. Such pipelines know `parse`,
            `features` and `results`, for a process that leaves `outputs` to another one. Not for
            captioners.
        exits: As `load_pipeline`; models without exits run all layers.

    Returns:
        Kind to pipeline; what the folder was trained for comes first.
    """
    path = local_folder(model)
    if exits is not None and has_exits(path):
        pipeline = load_pipeline(path, precision=precision, device=device, exits=exits)
        # A model with exits classifies, and does nothing else.
        return {pipeline.kind: pipeline}
    if is_captioner_folder(path):
        return {"caption": _load_captioner(path, device)}
    target_device = torch.device("meta") if device == "meta" else find_device(device)
    if device == "meta" and not is_onnx_folder(path):  # no weights are packed that are let go of
        precision = "fp32"
    if is_encoder_folder(path):
        return {"embed": Embed(SentenceEncoder.from_pretrained(path).to(target_device), precision)}
    loaded = _load_model(path)
    albert = loaded.model.to(target_device)
    if loaded.task is not None:
        return {BY_TASK[loaded.task.kind].kind: _make_pipeline(None, loaded, precision)}
    embed: list[Pipeline] = []
    # Its outputs are those of its heads: there are no states to make vectors of
    if isinstance(albert, OnnxModel):
        engine = load_engine(albert, precision)
    else:
        # As a checkpoint that is read as a sentence encoder
        length = min(128, albert.config.max_position_embeddings)
        embed = [
            Embed(
                SentenceEncoder(albert.encoder_model, loaded.tokenizer, max_length=length).eval(),
                precision,
            )
        ]
        engine = embed[0].engine
    heads = [_make_pipeline(kind, loaded, engine) for kind in ("fill-mask", "sentence-order")]
    return {pipeline.kind: pipeline for pipeline in [*heads, *embed] if pipeline is not None}


@dataclass(frozen=True)
class _FolderModel:
    task: Task | None
    model: PretrainedAlbert
    tokenizer: AlbertTokenizer
    reader: AlbertTokenizer | NamedSpecials  # of the inputs of the task
    untrained_heads: Sequence[str] = ()


def _load_model(path: Path) -> _FolderModel:
    if is_task_model(path):
        task, model, tokenizer = load_task_model(path)
        return _FolderModel(task, model, tokenizer, tokenizer)
    facts = FolderFacts.from_folder(path)
    facts.check_cross_encoder()
    if "initialised" in read_provenance(path):  # by `albertkit init`
        logger.warning("`%s` was never trained: its answers are random", path)
    model = load_onnx(path) if is_onnx_folder(path) else load_model(path)
    tokenizer = read_model_tokenizer(path, model.config)
    reader: AlbertTokenizer | NamedSpecials = tokenizer
    if facts.is_cross_encoder:
        _, lower_case = _sequence_settings(facts)
        reader = NamedSpecials(tokenizer, lower_case, facts.reads_special_names_as_tokens)
    inferred = infer_task(model, facts, tokenizer)
    return _FolderModel(inferred, model, tokenizer, reader, untrained_heads(path))


def _make_pipeline(
    kind: str | None, loaded: _FolderModel, precision: Precision | Engine
) -> Pipeline | None:
    """Return the pipeline of that kind, or of the first kind the model has a head for; None if it has none."""
    task, model, tokenizer = loaded.task, loaded.model, loaded.tokenizer
    if task is not None:
        pipeline_class = BY_TASK[task.kind]
        if kind not in (None, pipeline_class.kind):
            return None
        pipeline = pipeline_class(task, model, tokenizer, precision)
        pipeline.reader = loaded.reader
        return pipeline
    if (
        kind in (None, "fill-mask")
        and isinstance(model, AlbertForPreTraining | AlbertForMaskedLM)
        and "predictions" not in loaded.untrained_heads
    ):
        return FillMask(model, tokenizer, precision)
    if (
        kind == "sentence-order"
        and isinstance(model, AlbertForPreTraining)
        and "sop_classifier" not in loaded.untrained_heads
    ):
        return SentenceOrder(model, tokenizer, precision)
    return None


def _sequence_settings(facts: FolderFacts) -> tuple[int | None, bool]:
    """Return the longest sequence of a CrossEncoder, None for its tokenizer's, and whether texts are lower-cased."""
    if not facts.module_types():  # before version 6, where the file is not read
        return None, False
    return read_max_length_and_lower_case(facts.folder, "sequence-classification")


def _load_captioner(path: Path, device: str) -> Any:
    # Imported for captioners alone
    from albertkit.captioning.captioner import VideoCaptioner
    from albertkit.captioning.predict import CaptionPipeline

    return CaptionPipeline(VideoCaptioner.from_pretrained(path).to(find_device(device)))


def infer_task(
    model: PretrainedAlbert, facts: FolderFacts, tokenizer: AlbertTokenizer
) -> Task | None:
    """Return the task of a fine-tuned model without `task.json`, such as a converted one; None for a pretrained model.

    Names of labels are those of its configuration. Questions are answered as in SQuAD 1; Google's
    beam head as in SQuAD 2. A CrossEncoder of sentence-transformers has its activation and its
    length.
    """
    config = model.config
    labels = tuple(config.id2label.values())
    length = min(512, config.max_position_embeddings)
    if isinstance(model, AlbertForSequenceClassification):
        activation = facts.cross_encoder_activation()
        if facts.is_cross_encoder:
            max_length, _ = _sequence_settings(facts)
            length = min(max_length or tokenizer.model_max_length, config.max_position_embeddings)
        if len(labels) == 1:
            if facts.has_unexplained_output:
                advice = (
                    "`%s` does not say what its one output is: it gets a sigmoid, as in transformers and sentence-transformers; "
                    'for the output itself write "problem_type": "regression" into config.json'
                )
                logger.warning(advice, facts.folder)
            return TextRegression(
                name="regress", text_column="text", length=length, activation=activation
            )
        if len(set(labels)) < len(labels):
            raise CheckpointError(
                "ambiguous",
                f"`{facts.folder}` calls several classes the same: {', '.join(labels)}",
                "give each class a name of its own in id2label of config.json",
            )
        if config.problem_type == "regression":
            raise CheckpointError(
                "wrong-model",
                f"the model gives {len(labels)} numbers for a text, a pipeline answers with one",
                "call the class itself: AlbertForSequenceClassification.from_pretrained",
            )
        is_multilabel = (
            config.problem_type == "multi_label_classification" or activation == "sigmoid"
        )
        task_class = MultiLabelClassification if is_multilabel else TextClassification
        return task_class(name="classify", text_column="text", labels=labels, length=length)
    if isinstance(model, AlbertForTokenClassification):
        return TaggingTask(name="ner", labels=labels, length=length)
    if isinstance(model, AlbertForMultipleChoice):
        return ChoiceTask(name="choice", length=length)
    if isinstance(model, AlbertForQuestionAnswering):
        return AnswerTask(name="squad1", length=min(384, length))
    if isinstance(model, AlbertForBeamQuestionAnswering):
        return AnswerTask(name="squad2", version=2, head_kind="beam", length=min(384, length))
    return None
