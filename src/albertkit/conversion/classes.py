"""Find which of the public classes a set of weights is for, and whether weights and tokenizer fit it."""

import logging
from collections import Counter
from collections.abc import Collection
from dataclasses import dataclass, field
from pathlib import Path

import torch
from torch import Tensor

from albertkit import model as public
from albertkit.config import AlbertConfig
from albertkit.conversion import names
from albertkit.errors import CheckpointError, ConfigError, format_list, suggest_name
from albertkit.files import files_not_matching_checksums
from albertkit.model.files import PREFIX, StateDict, load_matching_tensors, read_tensors
from albertkit.model.pretrained import PretrainedAlbert, on_meta_device
from albertkit.model_paths import captioner_error, local_folder
from albertkit.tokenizer import AlbertTokenizer


@dataclass
class SourceModel:
    """A model to convert.

    Attributes:
        kind: What it was: "TensorFlow 1 checkpoint", "TensorFlow 2 checkpoint", "SavedModel",
            "transformers folder", …
        config: Its configuration.
        tensors: fp32 on the CPU, under transformers' names, with "albert." before the encoder's,
            whatever the class.
        architecture: The class that its configuration names, if it names one.
        folder: Where its tokenizer's files may lie.
        unknown: Names in the source that no parameter of ALBERT has.
        skipped: Kinds of variables that are no weights, and how many of each there are.
        relative_errors: Of tensors that were not taken over exactly: name to |change| / |original|.
        notes: What else there is to say.
    """

    kind: str
    config: AlbertConfig
    tensors: dict[str, Tensor]
    folder: Path
    architecture: str = ""
    unknown: list[str] = field(default_factory=list)
    skipped: Counter[str] = field(default_factory=Counter)
    relative_errors: dict[str, float] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)

    def add_tensor(self, name: str, tensor: Tensor, origin: str) -> None:
        """Take over a tensor under transformers' name, as fp32."""
        if name in self.tensors:
            raise CheckpointError(
                "weights-mismatch",
                f"`{origin}` is a second tensor for {name}",
                "leave out one of the two",
            )
        if not tensor.is_floating_point():
            raise CheckpointError(
                "unsupported",
                f"`{origin}` is of the type {str(tensor.dtype).removeprefix('torch.')}",
                "convert the model before it is quantised",
            )
        if tensor.dtype == torch.float64:
            self.notes.append(f"{name} was float64 and is rounded to float32")
        self.tensors[name] = tensor.to(torch.float32).contiguous()


def identity_projection(width: int) -> dict[str, Tensor]:
    """Return the projection from E to H that changes nothing, where E = H."""
    return {
        f"{names.MAPPING_IN}weight": torch.eye(width),
        f"{names.MAPPING_IN}bias": torch.zeros(width),
    }


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
# Reversed: of heads that share a class, the first stands for it.
_BY_CLASS = {model_class.__name__: name for name, model_class in reversed(HEADS.items())}
_CAPTIONER = "AlbertForImageCaptioning"  # reads a video beside its text; captioning loads it
_LABELLED = ("classification", "regression", "token-classification")


def load_model(folder: str | Path) -> PretrainedAlbert:
    """Load a folder, run or model of the hub with the class that `config.json` names, or else its tensors imply."""
    path = local_folder(folder)
    config = AlbertConfig.from_pretrained(path)
    architecture = next(iter(config.foreign.get("architectures") or []), "")
    if architecture == _CAPTIONER:
        raise captioner_error(folder)
    source = SourceModel("checkpoint folder", config, dict(read_tensors(path)), path, architecture)
    return HEADS[named_or_guessed_head(source, None, str(folder))].from_pretrained(
        path, strict=True
    )


def named_or_guessed_head(source: SourceModel, named_head: str | None, path: str) -> str:
    """Return the key of `HEADS` that fits: the one named, else the configuration's, else the only one that the tensors allow."""
    if named_head is not None:
        if named_head not in HEADS:
            raise ConfigError(
                "bad-value", f"there is no head `{named_head}`", suggest_name(named_head, HEADS)
            )
        return named_head
    architecture = source.architecture.removeprefix("TF").removeprefix("Flax")
    architecture = architecture.replace("Bert", "Albert")
    if architecture in _BY_CLASS and not (
        architecture == "AlbertModel" and _name_prefixes(source.tensors) - {"albert"}
    ):
        return _BY_CLASS[architecture]  # a regression is named in problem_type
    parts = _name_prefixes(source.tensors)
    if "start_logits" in parts:
        return "beam-question-answering"
    if "qa_outputs" in parts:
        return "question-answering"
    if "classifier" in parts:
        outputs = _num_classifier_outputs(source.tensors)
        pooler = "albert.pooler.weight" in source.tensors
        google = "TensorFlow" in source.kind
        # transformers saves classifiers of tokens without a pooler; Google's checkpoints always
        # have one.
        if not pooler and not google:
            return "token-classification"
        if outputs > 1 and google:
            return "classification"
        doubt = f"{outputs} outputs: classes of sequences and of tokens look the same"
        choices = "classification` or `--head token-classification"
        if outputs == 1:
            doubt = (
                "one output: a regression (GLUE's sts-b) and multiple choice (RACE) look the same"
            )
            choices = "regression` or `--head multiple-choice"
        raise CheckpointError(
            "ambiguous",
            f"the classifier in `{path}` has {doubt}",
            f"convert it and say which it is: `albertkit convert {path} FOLDER --head {choices}`",
        )
    if "sop_classifier" in parts:
        return "pretraining"
    return "masked-lm" if "predictions" in parts else "encoder"


def with_labels(config: AlbertConfig, head: str, tensors: StateDict) -> AlbertConfig:
    """Return the configuration with as many labels as the head has outputs, and with the loss that the head is known to have."""
    if head not in _LABELLED:
        return config
    foreign = dict(config.foreign)
    outputs = 1 if head == "regression" else _num_classifier_outputs(tensors) or config.num_labels
    if config.num_labels != outputs or "id2label" not in foreign:
        labels = {number: f"LABEL_{number}" for number in range(outputs)}
        foreign["id2label"] = labels
        foreign["label2id"] = {label: number for number, label in labels.items()}
        foreign.pop("num_labels", None)
    if head == "regression":
        foreign["problem_type"] = "regression"
    return config.replace(foreign=foreign)


def _name_prefixes(tensors: StateDict) -> set[str]:
    return {name.split(".")[0] for name in tensors}


def _num_classifier_outputs(tensors: StateDict) -> int:
    """Return how many outputs the classifier has; 0 without one."""
    weight = tensors.get("classifier.weight")
    return 0 if weight is None or weight.dim() != 2 else len(weight)


def fit_tensors_and_list_missing(
    source: SourceModel,
    model_class: type[PretrainedAlbert],
    allow_missing: Collection[str],
    path: str,
) -> list[str]:
    """Account for every name, on both sides, and for every shape, and return the parameters that were missing.

    They are initialised, with the seed 0, and added to the source's. `allow_missing` has names or
    first parts of names, of parameters to initialise or of variables to leave out.
    """
    with on_meta_device():
        model = model_class(source.config)
    parameters = model.state_dict()
    # The source's names and the model's: those of the encoder alone have no prefix.
    prefix = "" if any(name.startswith(PREFIX) for name in parameters) else PREFIX
    own_names = {prefix + name: name for name in parameters}
    absent = sorted(own_names.keys() - source.tensors.keys())
    missing = [name for name in absent if not _is_allowed(name, allow_missing)]
    unknown = [name for name in source.unknown if not _is_allowed(name, allow_missing)]
    if unknown or missing:
        both_names = []  # also the one in TensorFlow 1
        for name in missing:
            variable = names.tf1_variable_name_and_layout(name)
            both_names.append(f"{name} ({variable[0]})" if variable else name)
        raise CheckpointError(
            "weights-mismatch",
            f"`{path}` does not fit {model_class.__name__}"
            + _format_names("names that ALBERT does not have", unknown)
            + _format_names("missing", both_names),
            "if that is right, name what may be left out or initialised afresh with --allow-missing NAME; "
            "if it is another model, say which with --head",
        )
    # The shapes
    load_matching_tensors(
        model,
        model.tied,
        source.tensors,
        [own_names[name] for name in absent],
        path,
    )
    if absent:
        # Fresh parameters are the same at every conversion, and the caller's generator is left as
        # it was.
        with torch.random.fork_rng():
            torch.manual_seed(0)
            fresh = model_class(source.config).state_dict()
        source.tensors.update((name, fresh[own_names[name]].clone()) for name in absent)
    return absent


def _is_allowed(name: str, allow_missing: Collection[str]) -> bool:
    """Return whether a name, with or without "albert.", is one of those given or begins with one of them."""
    parts = [name, name.removeprefix(PREFIX)]
    return any(
        part == start or part.startswith((f"{start}.", f"{start}/"))
        for part in parts
        for start in allow_missing
    )


def _format_names(title: str, names: list[str]) -> str:
    return f"; {title}: {format_list(names, 20)}" if names else ""


# --- the tokenizer of a model's folder ------------------------------------------------------------

# Rows beyond the tokenizer's tokens: vocabularies are filled up to a multiple of 8, 64 or 128 for
# speed.
_SPARE = 127
_VOCABULARIES = ("*.model", "vocab*.txt", "tokenizer.json")

logger = logging.getLogger("albertkit")


def check_vocabulary(tokens: int, rows: int, folder: str | Path = "") -> None:
    """Refuse a tokenizer with more tokens than its model has rows; `folder` is the folder that messages name."""
    if tokens > rows:
        raise CheckpointError(
            "wrong-tokenizer",
            f"the tokenizer{f' in `{folder}`' if folder else ''} has {tokens:,} tokens, the model {rows:,}",
            "use the tokenizer that the model was trained with: its folder should hold it",
        )


def has_tokenizer(folder: Path) -> bool:
    """Return whether a folder holds a tokenizer of any kind."""
    return any(any(folder.glob(pattern)) for pattern in _VOCABULARIES)


def read_model_tokenizer(
    folder: Path,
    config: AlbertConfig,
    display_name: str | Path | None = None,
) -> AlbertTokenizer:
    """Read the tokenizer of a model's folder, and make sure that it is its own; many spare rows are logged as a warning.

    `display_name` is what the user named, for messages.
    """
    tokenizer = AlbertTokenizer.from_pretrained(folder)
    tokens = tokenizer.vocab_size
    rows = config.vocab_size
    name = display_name or folder
    check_vocabulary(tokens, rows, name)
    if changed := files_not_matching_checksums(folder, _VOCABULARIES):
        fact = f"`{folder / changed[0]}` is not the file that was saved with the weights: its sha256 is not that in SHA256SUMS"
        raise CheckpointError(
            "wrong-tokenizer",
            fact,
            f"put the model's own {changed[0]} back; or, if it was replaced on purpose: rm {folder / 'SHA256SUMS'}",
        )
    if rows - tokens > _SPARE:
        fact = f"the tokenizer in `{name}` has {tokens:,} tokens, the model rows for {rows:,}"
        logger.warning("%s: is it the one that the model was trained with?", fact)
    return tokenizer
