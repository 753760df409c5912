"""Options of `albertkit convert` and `albertkit init`."""

from dataclasses import KW_ONLY, dataclass
from pathlib import Path
from typing import Literal


@dataclass(frozen=True)
class ConvertOptions:
    """Convert an ALBERT checkpoint between TensorFlow, TF-Hub and transformers formats, and verify the result.

    The output is read again, compared bit for bit, and run in transformers if that is installed.

    Attributes:
        source: TensorFlow checkpoint, SavedModel or TF-Hub module (folder or .tar.gz), transformers
            folder (ALBERT or BERT), org/name of the Hugging Face hub; or the address of an archive
            (https://, gs://, a tfhub.dev module), optionally followed by #sha256=….
        target: Folder to write. It appears only when complete.
        to: Output format. transformers: checkpoint folder; tf1: model.ckpt-best and
            albert_config.json; tf2: bert_model.ckpt of the Model Garden; npz: one file with tf1's
            names.
        head: Task head, if it is not clear from the checkpoint: encoder, pretraining, masked-lm,
            classification, regression, token-classification, multiple-choice, question-answering,
            beam-question-answering.
        config: Configuration file, if there is none next to the weights. For a BERT: configuration
            of the ALBERT to create.
        allow_missing: Name (or prefix) of a parameter to initialise if the source lacks it, or of a
            variable to skip. May be repeated.
        lossy: Convert even if the outputs change, for example a BERT to an ALBERT with shared
            layers.
        overwrite: Replace a checkpoint in TARGET; keep all other files.
    """

    source: str | Path
    target: str | Path
    _: KW_ONLY
    to: Literal["transformers", "tf1", "tf2", "npz"] = "transformers"
    head: str | None = None
    config: str | Path | None = None
    allow_missing: tuple[str, ...] = ()
    lossy: bool = False
    overwrite: bool = False


@dataclass(frozen=True)
class InitOptions:
    """Create an untrained ALBERT with both pretraining heads, from a size or a configuration.

    Attributes:
        tokenizer: Folder of the tokenizer, or of a run; sets the vocabulary size and the special
            token ids.
        out: Folder to create. Train it with `albertkit pretrain STORE --continue OUT --out RUN`.
        size: Model size: a published one (base to xxlarge), or tiny or small in the same style.
            Default: base.
        config: A config.json, in place of a size.
        seed: Random seed for the weights.
    """

    _: KW_ONLY
    tokenizer: Path
    out: Path
    size: Literal["tiny", "small", "base", "large", "xlarge", "xxlarge"] | None = None
    config: Path | None = None
    seed: int = 0
