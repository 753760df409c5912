"""Options of `albertkit migrate swinbert` and `swinbert-checkpoint`."""

from dataclasses import KW_ONLY, dataclass
from pathlib import Path

DEFAULT_FOLDER = "models/captioning/albert-base-v2/"  # of the ALBERT in a migrated checkout


@dataclass(frozen=True)
class MigrateOptions:
    """Put ALBERT into BERT's place in a checkout of SwinBERT. Without an action: show what would change, and write nothing.

    A few places of the two task scripts are replaced, and files are added: `src/layers/albert`, `src/modeling/load_albert.py`, a
    configuration for each of SwinBERT's, and the guide ALBERT.md. `src/layers/bert` is never touched.

    Attributes:
        checkout: Folder with `src/tasks/run_caption_VidSwinBert.py`.
        diff: Show the changes as a unified diff. The default.
        apply: Make the changes. Twice is the same as once; interrupted, the same command goes on.
        revert: Give every file its original bytes again. Edits made since in other places stay.
        check: Exit with status 1 if there is anything left to apply.
        portable: Also let SwinBERT run on any device, start without apex, deepspeed, fairscale and azureml, and score captions
            without the scorer of its container. Stays chosen.
        force: Apply to a file that is not as in SwinBERT what can be applied, and write over files that are in the way; with
            --revert leave a file as it is whose changed places were edited since.
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
    """Convert a trained SwinBERT to a captioner, for caption predict, evaluate and train; or a captioner back.

    Both of Microsoft's code (BERT) and of a migrated checkout (ALBERT). Every tensor is kept to the bit, Video Swin, `fc` and a
    learned mask among them, and read again. A BERT's layers keep weights of their own, so nothing is saved by it.

    Attributes:
        source: Folder `checkpoint-…-…` of a SwinBERT training, its model.bin, or a safetensors file of the same names; with
            --to-swinbert a captioner.
        target: Folder to write. It appears whole or not at all.
        config: The text model's config.json. Default: in the folder of the weights, or where log/args.json says; for a BERT
            without one, from the shapes.
        tokenizer: Folder of the tokenizer. Default: in the folder of the weights, where SwinBERT's training saved it, or where
            log/args.json says.
        to_swinbert: The other way: write checkpoint/model.bin, log/args.json, tokenizer/ and model/ for SwinBERT's scripts.
    """

    source: Path
    target: Path
    _: KW_ONLY
    config: Path | None = None
    tokenizer: Path | None = None
    to_swinbert: bool = False
