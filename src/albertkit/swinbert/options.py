"""Options of `albertkit migrate swinbert` and `swinbert-checkpoint`."""

from dataclasses import KW_ONLY, dataclass
from pathlib import Path

DEFAULT_FOLDER = "models/captioning/albert-base-v2/"  # of the ALBERT in a migrated checkout


@dataclass(frozen=True)
class MigrateOptions:
    """Replace BERT by ALBERT in a SwinBERT checkout. Without an action, only show the changes.

    A few places of the two task scripts change, and files are added: `src/layers/albert`,
    `src/modeling/load_albert.py`, a configuration for each of SwinBERT's, and the guide ALBERT.md.
    `src/layers/bert` stays unchanged.

    Attributes:
        checkout: Folder with `src/tasks/run_caption_VidSwinBert.py`.
        diff: Show the changes as a unified diff (default).
        apply: Apply the changes. Run the same command again to continue an interrupted run;
            applying twice changes nothing.
        revert: Restore the original bytes of every file. Later edits in other places stay; edits in
            the same places are refused.
        check: Exit with status 1 if there are changes to apply.
        portable: Also make SwinBERT run on any device, without apex, deepspeed, fairscale and
            azureml, and score captions without its container's scorer. Later runs keep this option.
        force: Apply what is possible to files that differ from SwinBERT's, and overwrite files that
            are in the way.
    """

    checkout: Path
    _: KW_ONLY
    diff: bool = False
    apply: bool = False
    revert: bool = False
    check: bool = False
    portable: bool = False
    force: bool = False


@dataclass(frozen=True)
class ConvertSwinBertOptions:
    """Convert a trained SwinBERT to an albertkit captioner.

    Reads checkpoints of Microsoft's code (BERT) and of a migrated checkout (ALBERT). Every tensor
    is kept bit for bit, including Video Swin, `fc` and a learned mask. A BERT's layers keep
    separate weights, so the model does not become smaller.

    Attributes:
        source: Folder `checkpoint-…-…` of a SwinBERT training, its model.bin, or a safetensors file
            with the same names.
        target: Folder to write. It appears only when complete.
        config: config.json of the text model. Default: the one in the folder of the weights or
            named in log/args.json; for a BERT without one, derived from the shapes.
        tokenizer: Folder of the tokenizer. Default: the one in the folder of the weights (saved by
            SwinBERT's training) or named in log/args.json.
    """

    source: Path
    target: Path
    _: KW_ONLY
    config: Path | None = None
    tokenizer: Path | None = None
