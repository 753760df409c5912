"""Evaluation of a run in a migrated checkout: with the ALBERT and the tokenizer that the run was trained with."""

import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from albertkit.captioning.model import AlbertForImageCaptioning
from albertkit.captioning.swinbert.tokenizer import SwinBertTokenizer
from albertkit.errors import AlbertKitError, CheckpointError, DataError
from albertkit.model.folder import read_tensor_file
from albertkit.model_folder import local_folder

DEFAULT_FOLDER = "models/captioning/albert-base-v2/"
RECORDED = "albert_folder"  # in log/args.json; `model_name_or_path` becomes that of --pretrained_checkpoint there
_TEXT_MODEL = "trans_encoder."


def get_albert_folder(args: Any, train_args: Any) -> str:
    """Return the folder of the ALBERT that a run was trained with; the migrated scripts evaluate with it.

    What the command line or its --config names is used, after a warning, only where that folder is gone.
    """
    before, now = vars_of(train_args), vars_of(args)
    trained_with = before.get(RECORDED) or before.get("model_name_or_path")
    named = now.get("model_name_or_path")
    if not trained_with:
        return str(named or DEFAULT_FOLDER)
    if not named or Path(named) == Path(trained_with):
        return str(trained_with)
    if _is_there(trained_with):
        print(f"model_name_or_path `{named}` is not used: the run was trained with `{trained_with}`", file=sys.stderr)
        return str(trained_with)
    print(f"warning: the run was trained with `{trained_with}`, which is gone; `{named}` is used", file=sys.stderr)
    return str(named)


@dataclass(frozen=True)
class EvaluatedRun:
    """A run of SwinBERT's training that is evaluated.

    Attributes:
        checkpoint: Its `checkpoint-…/model.bin`.
        tokenizer_folder: Where the training saved its tokenizer.
    """

    checkpoint: Path
    tokenizer_folder: Path

    @classmethod
    def of(cls, args: Any) -> "EvaluatedRun | None":
        """Return the run that SwinBERT's arguments evaluate; None in a training."""
        values = vars_of(args)
        folder = values.get("eval_model_dir")
        if not folder or not (values.get("do_eval") or values.get("do_test")) or values.get("do_train"):
            return None
        checkpoint = Path(values.get("resume_checkpoint") or f"{folder}model.bin")
        return cls(checkpoint, Path(folder).parent / "tokenizer")

    def tokenizer(self, other: SwinBertTokenizer, do_lower_case: bool) -> SwinBertTokenizer:
        """Return the tokenizer that the run was trained with; `other` where the run kept none."""
        if not self.tokenizer_folder.is_dir() or not any(self.tokenizer_folder.iterdir()):
            return other
        own = SwinBertTokenizer.from_pretrained(self.tokenizer_folder, do_lower_case)
        if own.tokens != other.tokens:
            print(
                f"warning: the ALBERT's folder has another vocabulary than the run was trained with; the run's own, in "
                f"`{self.tokenizer_folder}`, is used",
                file=sys.stderr,
            )
        return own

    def check(self, model: AlbertForImageCaptioning) -> None:
        """Compare the checkpoint's names with the model's: SwinBERT would leave what is missing as it was initialised."""
        if not self.checkpoint.is_file():
            raise DataError(
                "not-found",
                f"no `{self.checkpoint}`",
                "end --eval_model_dir with a slash: SwinBERT puts `model.bin` behind it as it is",
            )
        names = {name for name in read_tensor_file(self.checkpoint) if name.startswith(_TEXT_MODEL)}
        if any(name.startswith(f"{_TEXT_MODEL}bert.") for name in names):
            raise CheckpointError(
                "weights-mismatch",
                f"`{self.checkpoint}` holds a BERT, this checkout loads ALBERT",
                "evaluate it with the original code: albertkit migrate swinbert . --revert",
            )
        missing = [name for name in model.state_dict() if f"{_TEXT_MODEL}{name}" not in names]
        if missing:
            raise CheckpointError(
                "weights-mismatch",
                f"`{self.checkpoint}` lacks {len(missing)} parameters of the text model, such as {missing[0]}",
                "name the checkpoint of this run, and keep log/args.json as its training wrote it",
            )


def vars_of(args: Any) -> Mapping[str, Any]:
    """Return the values of a Namespace, an EasyDict or a dictionary by name."""
    return args if isinstance(args, Mapping) else vars(args)


def _is_there(folder: str) -> bool:
    try:
        return local_folder(folder).is_dir()
    except AlbertKitError:
        return False
