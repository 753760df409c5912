"""Options of `albertkit pretrain` and `evaluate`, and of the commands that read a store: `corpus export` and `inspect`."""

from dataclasses import KW_ONLY, dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal

from cyclopts import Parameter

from albertkit.command import DeviceOptions, check_values
from albertkit.pretraining.settings import MaskingOptions, PretrainSettings
from albertkit.validation import Positive, Range, Share


@dataclass(frozen=True)
class PretrainOptions:
    """Pretrain an ALBERT with masked LM and sentence order, from scratch or from a checkpoint.

    Attributes:
        store: Token store from `albertkit corpus build`, also at an address (`s3://…`); or masked
            TFRecords: a file, a folder or a quoted glob.
        out: Folder of the run. The final model is saved in OUT/final, the best in OUT/best.
        settings: Training settings.
        start: Model to train further: checkpoint folder of any class, run, or org/name of the hub;
            missing heads are initialised. The store's tokenizer may add tokens after the model's
            own. The run keeps a copy in `start/`.
        tokenizer: Folder of the tokenizer that TFRecords were created with. Default: the folder
            `tokenizer` next to the records.
        resume: Continue the run in OUT from its newest checkpoint (bit-identical).
    """

    store: Any
    out: str | Path
    settings: PretrainSettings = field(default_factory=PretrainSettings)
    _: KW_ONLY
    start: Annotated[str | Path | None, Parameter(name="--continue")] = None
    tokenizer: str | Path | None = None
    resume: bool = False


@dataclass(frozen=True)
class PretrainCommandOptions(PretrainOptions):
    """Pretrain an ALBERT with masked LM and sentence order, from scratch or from a checkpoint.

    Attributes:
        dry_run: Check all inputs; print parameters, memory, steps and an estimated duration,
            measured for about 30 seconds. Trains and writes nothing.
    """

    _: KW_ONLY
    dry_run: bool = False


@dataclass(frozen=True)
class EvaluatePretrainedOptions(DeviceOptions):
    """Evaluate a pretrained model on held-out documents of a store, or on records, compared with two baselines.

    Attributes:
        model: Checkpoint folder with pretraining heads, or a run. Without a sentence-order head,
            only masked-LM metrics are computed.
        store: Token store (or its folder) built with the model's tokenizer; or TFRecords of masked
            examples: a file, a folder or a glob.
        length: Maximum sequence length in tokens. Default: the training length, else the model's
            maximum, at most 512.
        batch_tokens: Maximum tokens per batch.
        held_out: Share of documents to evaluate on. Default: those held out in training on this
            store; all documents of any other store.
        seed: Random seed for segments, masks and the documents of another store. Default: the
            training seed, else 0.
        precision: Precision: fp32, bf16 or auto.
        progress: Show progress on stderr.
    """

    model: str | Path
    store: Any
    _: KW_ONLY
    length: int | None = None
    batch_tokens: int = 16_384
    held_out: Annotated[float | None, Range(above=0, maximum=1)] = None
    seed: int | None = None
    precision: Literal["fp32", "bf16", "auto"] = "fp32"
    progress: bool = False

    def __post_init__(self) -> None:
        check_values(self)


@dataclass(frozen=True, kw_only=True)
class ExportSettings(MaskingOptions):
    """Settings of an export.

    Attributes:
        dupe_factor: Number of times that each document is cut and masked (Google's default: 40,
            Model Garden's: 10).
        files: Number of record files, filled in turn.
        pair_task: Task of the two segments: sop (sentence order) or nsp (next sentence).
        masked_lm_prob: Share of tokens to predict, above 0.
        held_out: Share of documents to leave out: those that training on the store with this share
            and seed holds out.
        seed: Random seed.
    """

    dupe_factor: Positive = 10
    files: Positive = 1
    pair_task: Literal["sop", "nsp"] = "sop"
    held_out: Share = 0.0
    seed: int = 0

    def __post_init__(self) -> None:
        self.check()

    def problems(self) -> list[str]:
        """List what is impossible."""
        problems = super().problems()
        if self.masked_lm_prob == 0:
            problems.append(
                "masked_lm_prob is 0, it must be above 0: Google's records hold predictions"
            )
        if self.pair_task == "nsp" and self.sop_pairs != ExportSettings.sop_pairs:
            problems.append("sop_pairs has no effect with pair_task nsp: leave it out")
        return problems


@dataclass(frozen=True)
class ExportOptions:
    """Export a token store to masked TFRecords for google-research's run_pretraining.py.

    Run the same command again to continue an interrupted run.

    Attributes:
        store: Folder of the token store, or its address (`s3://…`), which is downloaded once.
        out: Folder to create: `records-*.tfrecord`, the tokenizer and `export.json`.
        settings: Settings that change the content of the records.
        overwrite: Replace another export, or unfinished work with other settings.
        progress: Show progress on stderr.
    """

    store: Any
    out: Path
    settings: ExportSettings = ExportSettings()
    _: KW_ONLY
    overwrite: bool = False
    progress: bool = False


@dataclass(frozen=True)
class InspectStoreOptions:
    """Show masked examples as the model sees them, and statistics of an epoch.

    Attributes:
        store: Folder of the token store, or its address (`s3://…`), which is downloaded once.
        number: Number of examples to show.
        seed: Random seed for examples and masks.
        length: Maximum sequence length, in tokens.
        pair_task: Task of the two segments: `sop` (sentence order), `nsp` (next sentence) or `none`
            (one segment).
        sop_pairs: Sentence-order pairs where a chunk has one sentence: `pure` avoids them, `google`
            adds a sentence of another document.
        masked_lm_prob: Share of tokens to predict, above 0.
    """

    store: str
    _: KW_ONLY
    number: Annotated[int, Parameter(name=["--number", "-n"])] = 3
    seed: int = 0
    length: int = 128
    pair_task: Literal["sop", "nsp", "none"] = "sop"
    sop_pairs: Literal["pure", "google"] = "pure"
    masked_lm_prob: Annotated[float, Range(above=0, below=1)] = 0.15
