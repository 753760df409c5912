"""Options of `albertkit convert` and `albertkit init`."""

from dataclasses import KW_ONLY, dataclass
from pathlib import Path
from typing import Literal


@dataclass(frozen=True)
class ConvertOptions:
    """Convert an ALBERT of any origin to a checkpoint folder, or back to TensorFlow, and verify it.

    The result is read again, compared bit for bit, and run in transformers where that is installed.

    Attributes:
        source: TensorFlow checkpoint, SavedModel or TF-Hub module (folder or .tar.gz), folder of transformers (ALBERT or BERT),
            org/name of the Hugging Face hub; or the address of an archive:
            https://, gs://, a module of tfhub.dev, with #sha256=… behind it if you have the sum.
        target: Folder to write. It appears whole or not at all.
        to: transformers: a checkpoint folder; tf1: model.ckpt-best and albert_config.json; tf2: bert_model.ckpt of the Model
            Garden; npz: the names of tf1 in one file.
        head: Where the weights leave a doubt: encoder, pretraining, masked-lm, classification, regression,
            token-classification, multiple-choice, question-answering, beam-question-answering.
        config: Configuration file, if none lies beside the weights. For a BERT: the ALBERT to make of it.
        allow_missing: Parameter (or first part of its name) to initialise afresh if the source lacks it, or variable to leave
            out. Repeatable.
        lossy: Convert even if the result computes something else, for example a BERT with shared layers.
        overwrite: Replace a checkpoint that lies in TARGET; all other files stay.
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
    """Create an untrained ALBERT: a size or configuration, both pretraining heads, weights initialised from a seed.

    Attributes:
        tokenizer: Folder of the tokenizer, or a run; it decides the size of the vocabulary and the special ids.
        out: Folder to create. Train it with `albertkit pretrain STORE --continue OUT --out RUN`.
        size: A published size, or tiny or small in their manner. Default: base.
        config: A config.json in place of a size.
        seed: Initialises the weights.
    """

    _: KW_ONLY
    tokenizer: Path
    out: Path
    size: Literal["tiny", "small", "base", "large", "xlarge", "xxlarge"] | None = None
    config: Path | None = None
    seed: int = 0
