"""Options of `albertkit pretrain` and `evaluate`, and of the commands that read a store: `corpus export` and `inspect`."""

from dataclasses import KW_ONLY, dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal

from cyclopts import Parameter

from albertkit.errors import ConfigError
from albertkit.pretraining.settings import MaskingOptions, PretrainSettings


@dataclass(frozen=True)
class PretrainOptions:
    """Train an ALBERT on masked tokens and sentence order, from scratch or from a checkpoint.

    Attributes:
        store: Token store, made with `albertkit corpus build`, also at an address (`s3://…`); or masked TFRecords:
            a file, a folder or a quoted glob.
        out: Folder of the run. The last model is saved in OUT/final, the best in OUT/best.
        settings: Training settings.
        start: Checkpoint folder, run, or org/name of the hub, to train further: of any class; heads that it lacks are
            initialised. The store's tokenizer may have more tokens than the model, after the model's own. The run keeps a
            copy in `start/`.
        tokenizer: Folder of the tokenizer that records were made with. Default: `tokenizer` beside them.
        resume: Continue the run in OUT from its newest checkpoint, to the same bits.
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
    """Train an ALBERT on masked tokens and sentence order, from scratch or from a checkpoint.

    Attributes:
        dry_run: Check everything that the run would check, print parameters, memory, steps and an estimate of the time, timed
            for about 30 seconds; train and write nothing.
    """

    _: KW_ONLY
    dry_run: bool = False


PretrainCommandOptions.__doc__ = (
    f"{PretrainCommandOptions.__doc__}{str(PretrainOptions.__doc__).partition('Attributes:')[2]}"
)


@dataclass(frozen=True)
class EvaluatePretrainedOptions:
    """Score a pretrained model on the held-out documents of a store, or on records, compared with two baselines.

    Attributes:
        model: A checkpoint folder with pretraining heads, or a run. A masked-LM model without a sentence-order head gets the
            masked-LM numbers alone.
        store: A token store made with the model's tokenizer, or its folder; or TFRecords of masked examples: a file, a folder of
            them, or a glob.
        length: Longest sequence. Default: the length it was trained with, else what the model allows, at most 512.
        batch_tokens: Tokens computed at once.
        held_out: Share of documents to evaluate on. Default: those held out when the model was trained on this very store;
            all documents of any other store.
        seed: Draws segments and masks, and the documents of another store. Default: the seed of the training, else 0.
        precision: fp32, bf16 or auto.
        device: auto, cpu, cuda or cuda:N.
    """

    model: str | Path
    store: Any
    _: KW_ONLY
    length: int | None = None
    batch_tokens: int = 16_384
    held_out: float | None = None
    seed: int | None = None
    precision: str = "fp32"
    device: str = "auto"

    def __post_init__(self) -> None:
        if self.held_out is not None and not 0 < self.held_out <= 1:
            raise ConfigError("bad-value", f"held_out is {self.held_out}", "use a share above 0 and at most 1")


@dataclass(frozen=True, kw_only=True)
class ExportSettings(MaskingOptions):
    """Settings of an export.

    Attributes:
        dupe_factor: How often every document is cut and masked (Google's default: 40, the Model Garden's: 10).
        files: Files that the records are dealt to in turn.
        pair_task: sop (sentence order) or nsp (next sentence).
        masked_lm_prob: Share of tokens to predict, above 0.
        held_out: Share of documents left out: those that training on the store with this share and seed would hold out.
        seed: Seed of everything random.
    """

    dupe_factor: int = 10
    files: int = 1
    pair_task: Literal["sop", "nsp"] = "sop"
    held_out: float = 0.0
    seed: int = 0

    def __post_init__(self) -> None:
        self.check()

    def problems(self) -> list[str]:
        """List what is impossible."""
        found = [*super().problems(), *self.out_of_range({"dupe_factor": 1, "files": 1})]
        if self.masked_lm_prob == 0:
            found.append("masked_lm_prob must be above 0, it is 0: Google's records hold predictions")
        return found


@dataclass(frozen=True)
class ExportOptions:
    """Write a store as the masked TFRecords that google-research's run_pretraining.py trains on.

    Attributes:
        store: Folder of the token store, or its address (`s3://…`), fetched once.
        out: Folder to make: `records-*.tfrecord`, the tokenizer and `export.json`. After an interruption the same command
            goes on.
        settings: Settings that change the content of the records.
        overwrite: Replace another export, and unfinished work with other settings.
        progress: Show it on stderr.
    """

    store: Any
    out: Path
    settings: ExportSettings = ExportSettings()
    _: KW_ONLY
    overwrite: bool = False
    progress: bool = False


@dataclass(frozen=True)
class InspectStoreOptions:
    """Show masked examples as the model will see them, and what an epoch of them is like.

    Attributes:
        store: Folder of the token store, or its address (`s3://…`), fetched once.
        number: Examples to show.
        seed: Draws the examples and masks.
        length: Longest sequence, in tokens.
        pair_task: `sop` (sentence order), `nsp` (next sentence) or `none` (one segment).
        sop_pairs: What sentence order does with a lone sentence: `pure` avoids it, `google` adds one of another document.
    """

    store: str
    _: KW_ONLY
    number: Annotated[int, Parameter(name=["--number", "-n"])] = 3
    seed: int = 0
    length: int = 128
    pair_task: Literal["sop", "nsp", "none"] = "sop"
    sop_pairs: Literal["pure", "google"] = "pure"
