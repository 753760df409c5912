"""Which of the public classes a set of weights is for."""

from collections.abc import Mapping
from pathlib import Path

from torch import Tensor

from albertkit import model as public
from albertkit.checkpoints.folder import load_checkpoint, read_tensors
from albertkit.checkpoints.found import FoundModel
from albertkit.config import AlbertConfig
from albertkit.errors import CheckpointError, ConfigError, near_miss
from albertkit.model.pretrained import PretrainedAlbert
from albertkit.model_folder import local_folder

# What --head may say, and the class it means.
HEADS: dict[str, type[PretrainedAlbert]] = {
    "encoder": public.AlbertModel,
    "pretraining": public.AlbertForPreTraining,
    "masked-lm": public.AlbertForMaskedLM,
    "classification": public.AlbertForSequenceClassification,
    "regression": public.AlbertForSequenceClassification,
    "token-classification": public.AlbertForTokenClassification,
    "multiple-choice": public.AlbertForMultipleChoice,
    "question-answering": public.AlbertForQuestionAnswering,
    "beam-question-answering": public.AlbertForBeamQuestionAnswering,
}
_BY_CLASS = {model_class.__name__: name for name, model_class in reversed(HEADS.items())}
_CAPTIONER = "AlbertForImageCaptioning"  # reads a video beside its text; the room of captions loads it
_LABELLED = ("classification", "regression", "token-classification")


def load_model(folder: str | Path) -> PretrainedAlbert:
    """A checkpoint folder as the class that its configuration names, or that its tensors leave no doubt of.

    Args:
        folder: A checkpoint folder, a run, or `org/name` of the hub.

    Raises:
        CheckpointError: ambiguous-head, no-task for a captioner, and what `load_checkpoint` raises.
    """
    path = local_folder(folder)
    config = AlbertConfig.from_pretrained(path)
    architecture = next(iter(config.foreign.get("architectures") or []), "")
    if architecture == _CAPTIONER:
        raise CheckpointError(
            "no-task", f"`{folder}` is a captioner: it reads a video, not a text alone",
            f"ask it for captions: albertkit caption predict {folder} VIDEO",
        )  # fmt: skip
    found = FoundModel("checkpoint folder", config, dict(read_tensors(path)), path, architecture)
    return load_checkpoint(path, HEADS[choose_head(found, None, str(folder))])


def choose_head(source: FoundModel, head: str | None, path: str) -> str:
    """The key of `HEADS` that fits: the one named, or that of the configuration, or what the heads' names leave no doubt of.

    Raises:
        ConfigError: bad-argument. CheckpointError: ambiguous-head.
    """
    if head is not None:
        if head not in HEADS:
            raise ConfigError("bad-argument", f"there is no head `{head}`", near_miss(head, HEADS))
        return head
    named = source.architecture.removeprefix("TF").removeprefix("Flax").replace("Bert", "Albert")
    if named in _BY_CLASS and not (named == "AlbertModel" and _parts(source.tensors) - {"albert"}):
        return _BY_CLASS[named]  # a regression is named in problem_type
    parts = _parts(source.tensors)
    if "start_logits" in parts:
        return "beam-question-answering"
    if "qa_outputs" in parts:
        return "question-answering"
    if "classifier" in parts:
        return _classifier(source, path)
    if "sop_classifier" in parts:
        return "pretraining"
    return "masked-lm" if "predictions" in parts else "encoder"


def with_labels(config: AlbertConfig, head: str, tensors: Mapping[str, Tensor]) -> AlbertConfig:
    """The configuration with as many labels as the head has outputs, and with the loss that the head is known to have."""
    if head not in _LABELLED:
        return config
    foreign = dict(config.foreign)
    outputs = 1 if head == "regression" else _outputs(tensors) or config.num_labels
    if config.num_labels != outputs or "id2label" not in foreign:
        labels = {number: f"LABEL_{number}" for number in range(outputs)}
        foreign["id2label"], foreign["label2id"] = labels, {label: number for number, label in labels.items()}
        foreign.pop("num_labels", None)
    if head == "regression":
        foreign["problem_type"] = "regression"
    return config.replace(foreign=foreign)


def _parts(tensors: Mapping[str, Tensor]) -> set[str]:
    return {name.split(".")[0] for name in tensors}


def _outputs(tensors: Mapping[str, Tensor]) -> int:
    """How many outputs the classifier has; 0 without one."""
    weight = tensors.get("classifier.weight")
    return 0 if weight is None or weight.dim() != 2 else len(weight)


def _classifier(source: FoundModel, path: str) -> str:
    outputs, pooler = _outputs(source.tensors), "albert.pooler.weight" in source.tensors
    google = "TensorFlow" in source.kind
    if not pooler and not google:
        return "token-classification"
    if outputs > 1 and google:
        return "classification"
    known = (
        "one output: a regression (GLUE's sts-b) and multiple choice (RACE) look the same"
        if outputs == 1
        else f"{outputs} outputs: classes of sequences and of tokens look the same"
    )
    choices = (
        "--head regression or --head multiple-choice"
        if outputs == 1
        else "--head classification or token-classification"
    )
    raise CheckpointError("ambiguous-head", f"the classifier in `{path}` has {known}", f"say which it is: {choices}")
