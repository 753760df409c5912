"""Functions that SwinBERT's migrated scripts call: `get_albert_model(args)` and `get_albert_folder(args, train_args)`."""

from collections.abc import Mapping, MutableMapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, cast, get_type_hints

from albertkit.captioning.layers import CaptionConfig
from albertkit.errors import AlbertKitError, CheckpointError, ConfigError, DataError
from albertkit.model.files import read_tensor_file, read_tensors
from albertkit.model_paths import find_weights, local_folder
from albertkit.printable import print_note
from albertkit.swinbert.checkpoints import RECORDED, STRUCTURE, TEXT_MODEL
from albertkit.swinbert.classes import (
    AlbertConfig,
    AlbertForImageCaptioning,
    SwinBertTokenizer,
    describe_loading,
    load_weights,
    read_config_with_notes,
)
from albertkit.swinbert.options import DEFAULT_FOLDER
from albertkit.validation import list_wrong_values


@dataclass(frozen=True, kw_only=True)
class ModelArguments:
    """The arguments of SwinBERT that concern the text model, with its names and defaults, and `init`.

    Attributes:
        model_name_or_path: A folder, or `org/name` of the hub.
        config_name: Folder or file of the configuration. Default: in the model's folder.
        tokenizer_name: Folder of the tokenizer. Default: the model's folder.
        do_lower_case: Lower-case text, for a `vocab.txt` without a file of settings.
        drop_out: Dropout of hidden states.
        tie_weights, freeze_embedding, label_smoothing, drop_worst_ratio, drop_worst_after: As in
            `CaptionConfig`.
        img_feature_dim: Width of a visual token; concerns the projection alone.
        num_hidden_layers, hidden_size, num_attention_heads, intermediate_size: -1 keeps the
            configuration's.
        init: Whether weights are taken from the folder: auto takes them if there are any.
    """

    model_name_or_path: str = ""
    config_name: str = ""
    tokenizer_name: str = ""
    do_lower_case: bool = False
    drop_out: float = 0.1
    tie_weights: bool = False
    freeze_embedding: bool = False
    label_smoothing: float = 0.0
    drop_worst_ratio: float = 0.0
    drop_worst_after: int = 0
    img_feature_dim: int = 512
    num_hidden_layers: int = -1
    hidden_size: int = -1
    num_attention_heads: int = -1
    intermediate_size: int = -1
    init: Literal["auto", "pretrained", "scratch"] = "auto"

    @classmethod
    def of(cls, args: Any) -> "ModelArguments":
        """Read a Namespace, an EasyDict or a dictionary; what is missing, or None, has its default."""
        kinds = get_type_hints(cls)
        values = {
            name: value
            for name, value in vars_of(args).items()
            if name in kinds and value is not None
        }
        errors = list_wrong_values(values, kinds)
        if not values.get("model_name_or_path"):
            errors.append("model_name_or_path is not given")
        if errors:
            raise ConfigError(
                "bad-value",
                "; ".join(errors),
                "correct these arguments, or the file given as --config",
            )
        return cls(**values)


def get_albert_model(args: Any) -> tuple[AlbertForImageCaptioning, AlbertConfig, SwinBertTokenizer]:
    """Make the text model that SwinBERT's arguments ask for, with pretrained weights where there are any.

    What was loaded and what was not is printed on stderr. `args.initialised_from` becomes the
    folder or "scratch", and `args.albert_folder` the folder, so that SwinBERT's log/args.json
    records them. Where the arguments evaluate a run, its own tokenizer is used, and its checkpoint
    must hold every parameter of the model.

    Args:
        args: Namespace, EasyDict or dictionary; see `ModelArguments` for what is read and its
            defaults.

    Returns:
        The model on the CPU in evaluation mode, its configuration, and its tokenizer with the
        methods of SwinBERT's.

    Raises:
        ConfigError: bad-value, wrong-model; weights-mismatch for a width, or a number of heads,
            that the weights do not have.
        CheckpointError: wrong-tokenizer, missing-file, corrupt, weights-mismatch, no-tokenizer.
            DataError: not-found, bad-file. MachineError: unreachable.
    """
    arguments = ModelArguments.of(args)
    folder = local_folder(arguments.model_name_or_path)
    has_weights = arguments.init == "pretrained" or find_weights(folder) is not None
    tensors = read_tensors(folder) if arguments.init != "scratch" and has_weights else {}
    stored, notes = read_config_with_notes(arguments.config_name or folder)
    config = _adapt_config(stored, arguments, folder if tensors else None)
    tokenizer = SwinBertTokenizer.of_run(
        local_folder(arguments.tokenizer_name or folder), arguments.do_lower_case
    )
    run = EvaluatedRun.of(args)
    if run is not None:
        tokenizer = run.tokenizer(tokenizer, arguments.do_lower_case)
    # The guide of 2024 copies BERT's vocabulary of 30,522 tokens, which the weights of no ALBERT
    # have (30,000).
    if tokenizer.vocab_size != config.vocab_size:
        raise CheckpointError(
            "wrong-tokenizer",
            f"the tokenizer in `{arguments.tokenizer_name or folder}` has {tokenizer.vocab_size:,} tokens, the configuration "
            f"{config.vocab_size:,}",
            "use the tokenizer that the weights were trained with; without weights, correct vocab_size in config.json",
        )
    if tensors:
        model, fresh, left_out = load_weights(config, tensors, str(folder))
        source = str(folder)
    else:
        model = AlbertForImageCaptioning(config).eval()
        fresh = []
        left_out = []
        source = "scratch"
    if run is not None:
        run.check(model)
    # SwinBERT saves its arguments with the run: an evaluation finds the ALBERT there.
    for name, value in (("initialised_from", source), (RECORDED, arguments.model_name_or_path)):
        if isinstance(args, MutableMapping):
            args[name] = value
        elif not isinstance(args, Mapping):
            setattr(args, name, value)
    for line in (*notes, *describe_loading(model, source, folder, fresh, left_out)):
        print_note(line)
    return model, config, tokenizer


def _adapt_config(
    stored: AlbertConfig,
    arguments: ModelArguments,
    weights: Path | None,
) -> AlbertConfig:
    """Return the configuration of the folder with what the arguments ask for."""
    structure = {name: getattr(arguments, name) for name in STRUCTURE}
    changes = {
        name: value
        for name, value in structure.items()
        if value > 0 and value != getattr(stored, name)
    }
    # Any number of layers can be made of one layer; with more groups each layer has weights of its
    # own.
    fixed = sorted(
        name for name in changes if name != "num_hidden_layers" or stored.num_hidden_groups > 1
    )
    if weights and fixed:
        requested = ", ".join(f"{name} {changes[name]}" for name in fixed)
        stored_values = ", ".join(f"{name} {getattr(stored, name)}" for name in fixed)
        raise ConfigError(
            "weights-mismatch",
            f"the arguments ask for {requested}; the weights in `{weights}` have {stored_values}",
            'leave them at -1; or begin without these weights: "init": "scratch" in the file given as --config',
        )
    # VideoTransformer has its own `fc`, and gives a mask with the learned one in it.
    caption = {
        "video_attention": "full",
        "num_visual_tokens": 0,
        "backbone_dim": 0,
        "hard_gate": False,
    }
    same_names = (
        "tie_weights",
        "freeze_embedding",
        "label_smoothing",
        "drop_worst_ratio",
        "drop_worst_after",
    )
    caption |= {name: getattr(arguments, name) for name in same_names}
    if arguments.img_feature_dim > 0:
        caption["img_feature_dim"] = arguments.img_feature_dim
    changed = stored.replace(**changes, hidden_dropout_prob=arguments.drop_out)
    return cast(
        AlbertConfig,
        CaptionConfig(**CaptionConfig.of(stored).to_dict() | caption).stored_in(changed),
    )


def get_albert_folder(args: Any, train_args: Any) -> str:
    """Return the folder of the ALBERT that a run was trained with; the migrated scripts evaluate with it.

    What the command line or its --config names is used, after a warning, only where that folder is
    gone.
    """
    # SwinBERT's scripts take all arguments of an evaluation from log/args.json, and then put
    # bert-base-uncased here.
    before = vars_of(train_args)
    now = vars_of(args)
    trained_with = before.get(RECORDED) or before.get("model_name_or_path")
    requested_folder = now.get("model_name_or_path")
    if not trained_with:
        return str(requested_folder or DEFAULT_FOLDER)
    if not requested_folder or Path(requested_folder) == Path(trained_with):
        return str(trained_with)
    is_available = False
    with suppress(AlbertKitError):
        is_available = local_folder(trained_with).is_dir()
    if is_available:
        print_note(
            f"model_name_or_path `{requested_folder}` is not used: the run was trained with `{trained_with}`"
        )
        return str(trained_with)
    print_note(
        f"warning: the run was trained with `{trained_with}`, which is gone; `{requested_folder}` is used"
    )
    return str(requested_folder)


@dataclass(frozen=True)
class EvaluatedRun:
    """A run of SwinBERT's training that is evaluated: its `checkpoint-…/model.bin` and its tokenizer."""

    checkpoint: Path
    tokenizer_folder: Path

    @classmethod
    def of(cls, args: Any) -> "EvaluatedRun | None":
        """Return the run that SwinBERT's arguments evaluate; None in a training."""
        values = vars_of(args)
        folder = values.get("eval_model_dir")
        if (
            not folder
            or not (values.get("do_eval") or values.get("do_test"))
            or values.get("do_train")
        ):
            return None
        checkpoint = Path(values.get("resume_checkpoint") or f"{folder}model.bin")
        return cls(checkpoint, Path(folder).parent / "tokenizer")

    def tokenizer(self, default: SwinBertTokenizer, do_lower_case: bool) -> SwinBertTokenizer:
        """Return the tokenizer that the run was trained with; `default` where the run kept none."""
        if not self.tokenizer_folder.is_dir() or not any(self.tokenizer_folder.iterdir()):
            return default
        run_tokenizer = SwinBertTokenizer.of_run(self.tokenizer_folder, do_lower_case)
        if run_tokenizer.tokens != default.tokens:
            print_note(
                f"warning: the ALBERT's folder has another vocabulary than the run was trained with; the run's own, in "
                f"`{self.tokenizer_folder}`, is used"
            )
        return run_tokenizer

    def check(self, model: AlbertForImageCaptioning) -> None:
        """Compare the checkpoint's names with the model's."""
        # SwinBERT would leave what is missing as it was initialised, without a word.
        if not self.checkpoint.is_file():
            raise DataError(
                "not-found",
                f"no `{self.checkpoint}`",
                "end --eval_model_dir with a slash: SwinBERT puts `model.bin` behind it as it is",
            )
        names = {name for name in read_tensor_file(self.checkpoint) if name.startswith(TEXT_MODEL)}
        if any(name.startswith(f"{TEXT_MODEL}bert.") for name in names):
            raise CheckpointError(
                "weights-mismatch",
                f"`{self.checkpoint}` holds a BERT, this checkout loads ALBERT",
                "evaluate it with the original code: albertkit migrate swinbert . --revert",
            )
        missing = [name for name in model.state_dict() if f"{TEXT_MODEL}{name}" not in names]
        if missing:
            raise CheckpointError(
                "weights-mismatch",
                f"`{self.checkpoint}` lacks {len(missing)} parameters of the text model, such as {missing[0]}",
                "name the checkpoint of this run, and keep log/args.json as its training wrote it",
            )


def vars_of(args: Any) -> Mapping[str, Any]:
    """Return the values of a Namespace, an EasyDict or a dictionary by name."""
    return args if isinstance(args, Mapping) else vars(args)
