"""Options of `albertkit finetune`, `predict`, `evaluate`, `score`, `early-exit` and `compare-precision`; without torch."""

from dataclasses import KW_ONLY, dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal

from cyclopts import Parameter

from albertkit.command import BadRowOptions, BatchOptions, DeviceOptions, Precision, TableOptions
from albertkit.tables.columns import Columns
from albertkit.tasks.settings import FinetuneSettings
from albertkit.validation import Positive


@dataclass(frozen=True)
class PredictOptions(DeviceOptions, BatchOptions, TableOptions):
    """Predict all examples of a file of any size, in input order.

    Attributes:
        model: Fine-tuned model, pretrained model or sentence encoder: checkpoint folder, run, or
            `org/name` of the hub.
        input: Input file or folder, URL, or `-` for standard input. Fine-tuned model: file or
            folder in the task's format (labels optional); for single texts also .txt with one text
            per line. Other models, or with --kind: one input per line, as text or JSON (.jsonl): a
            text, a list of two, or an object. In Python also rows in memory, see `as_files`.
        out: Output: a .jsonl file; for text tasks also .csv or .tsv with the input columns and
            predictions; or a folder for predictions.jsonl and submission files (GLUE's .tsv,
            SQuAD's predictions.json, …). Default, and `-`: standard output.
        kind: Pipeline to use in place of the model's own: fill-mask, sentence-order or embed.
        top: Return only this many of the top probabilities or predictions, best first.
        split: Split to read if INPUT is a folder.
        progress: Show progress on stderr while a file or folder is written.
    """

    model: str | Path
    input: Any
    out: str | Path | None = None
    _: KW_ONLY
    kind: str | None = None
    top: Positive | None = None
    split: str = "test"
    progress: bool = False


_Several = Annotated[tuple[str, ...], Parameter(show_default=False)]


@dataclass(frozen=True, kw_only=True)
class _OtherColumns(Columns):
    """Columns without the short names: --text of this command is a text."""

    text: Annotated[str | None, Parameter(name="--text-column")] = None
    pair: Annotated[str | None, Parameter(name="--pair-column")] = None
    label: Annotated[str | None, Parameter(name="--label-column")] = None


_OtherColumns.__doc__ = Columns.__doc__


@dataclass(frozen=True)
class PredictCommandOptions(PredictOptions):
    """Predict single texts (--text), or all examples of a file of any size, in input order.

    Attributes:
        text: Input text, with [MASK] for a pretrained model; or the context of questions. May be
            repeated.
        pair: Second text of a --text.
        question: Question about the --text. May be repeated.
        choice: Answer to choose from. May be repeated.
    """

    input: Any = None
    _: KW_ONLY
    text: _Several = ()
    pair: _Several = ()
    question: _Several = ()
    choice: _Several = ()
    columns: _OtherColumns = field(default_factory=_OtherColumns)
    json: bool = False


@dataclass(frozen=True)
class EvaluateOptions(DeviceOptions, TableOptions):
    """Evaluate a pretrained model on a store or masked records, or a fine-tuned model on labelled examples.

    Attributes:
        model: Checkpoint folder, run, or `org/name` of the hub.
        data: Pretrained: token store built with the model's tokenizer, or TFRecords of masked
            examples. Fine-tuned: file or folder in the task's format. Stores, files and folders
            also at an address (`s3://…`). In Python also rows in memory, see `as_files`.
        out: Fine-tuned: folder for predictions in the task's file formats, and results.json.
        split: Fine-tuned: split to read if DATA is a folder.
        threshold_from: SQuAD 2: "no answer" threshold: train (chosen in training) or dev (chosen on
            the evaluated questions, as Google does; reported in the result).
        length: Pretrained: maximum sequence length, in tokens. Default: the training length.
        held_out: Pretrained: share of documents. Default: those held out in training, or all of
            another store.
        seed: Pretrained: random seed for segments, masks and the documents of another store.
            Default: the training seed.
        batch_tokens: Maximum tokens per batch.
        precision: Precision: fp32, bf16, int8 (fine-tuned only), or auto: bf16 where the hardware
            computes it faster. Default: fp32 for a pretrained model, auto for a fine-tuned one, as
            in training.
        progress: Show progress on stderr.
    """

    model: str | Path
    data: Any
    out: str | Path | None = None
    _: KW_ONLY
    split: str = "dev"
    threshold_from: Literal["train", "dev"] = "train"
    length: int | None = None
    held_out: float | None = None
    seed: int | None = None
    batch_tokens: int = 16_384
    precision: Precision | None = None
    progress: bool = False


@dataclass(frozen=True)
class EarlyExitOptions(BatchOptions):
    """Measure accuracy, layers used and speed of every early exit rule, compared with all layers.

    Attributes:
        model: Folder of a model fine-tuned with --exits, or its run.
        data: Labelled examples: a file, or a folder in the task's layout.
        split: Split to read if DATA is a folder.
        rule: Rule to measure: patience:N (same label after N layers in a row) or entropy:SHARE
            (entropy below this share of its maximum). May be repeated. Default: every patience, and
            entropies from 0.01 to 0.7.
        rounds: Number of timed rounds; each runs every rule once.
        allowed: Maximum loss of the metric for the recommended rule; 0.005 is half a point.
    """

    model: str | Path
    data: Any
    _: KW_ONLY
    split: str = "dev"
    rule: tuple[str, ...] = ()
    rounds: Positive = 3
    allowed: float = 0.005


@dataclass(frozen=True)
class ScoreOptions(BadRowOptions):
    """Score a file of predictions like the task's official script, with 95 % confidence intervals.

    Attributes:
        task: Task: `squad` (1.1 or 2.0, detected from the gold file), `mrpc`, `ner`, … as for
            `finetune`; `classify`, `regress` or `multilabel` for a table. In Python also a task.
        predictions: SQuAD's `predictions.json`; a submission table (`index`, `prediction`) or
            records from `albertkit predict`, matched to the examples by id, or by position if the
            ids are 0, 1, 2, …; or CoNLL columns, prediction last. From any program. May be
            compressed.
        gold: Labelled file in the task's layout. May be omitted for CoNLL columns: the last but one
            is the gold tag.
        label: Label column of a table. Default: `label`, of `multilabel` `labels`.
        id: Id column of a table. Default: `id`, `index`, `idx` or `guid`, if there is one.
        null_odds: SQuAD 2.0: `null_odds.json`, for the best thresholds and average precision.
        null_threshold: Null odds above which a question counts as unanswered. The default is the
            official script's.
        positive_class: Class of a table to score, of two, as for `finetune`. Default: the rarer
            one.
        f1_of: `words`: score Korean answers by words, like SQuAD's script. Default: refuse them,
            because KorQuAD counts characters.
        out: Folder for `results.json` and, with the extra `report`, a plot.
    """

    task: Any
    predictions: str | Path
    gold: str | Path | None = None
    _: KW_ONLY
    label: Annotated[str | None, Parameter(name=("--label-column", "--label"))] = None
    id: Annotated[str | None, Parameter(name=("--id-column", "--id"))] = None
    null_odds: str | Path | None = None
    null_threshold: float = 1.0
    positive_class: str | None = None
    f1_of: Literal["words"] | None = None
    out: str | Path | None = None


@dataclass(frozen=True)
class FinetuneOptions(TableOptions):
    """Fine-tune a model on a task: GLUE, SQuAD, RACE, named entities, or a table of your own.

    Attributes:
        task: Task: cola sst2 mrpc stsb qqp mnli qnli rte wnli, squad1 squad2, race siqa arc choice,
            ner wnut17 klue-ner, nsmc klue-nli kornli klue-sts korsts; or classify, regress,
            multilabel for a table. In Python also a task.
        model: Checkpoint folder, run, or `org/name` of the hub. For rte, mrpc and stsb the paper
            starts from a run on mnli.
        data: Folder in the task's layout, or the training file (CSV, TSV, JSONL, Parquet; gz, xz,
            zst), also at an address (`gs://…`). In Python also rows in memory, see `as_files`.
        out: Folder of the run. The best model is saved in OUT/best, its dev set predictions in
            OUT/dev.
        settings: Training settings.
        dev: Dev file. Default: the one in the folder, else a share of the training examples.
        unlabelled: More examples in the format of DATA, labels not needed: in every epoch the
            teacher's outputs on them are learned, too. Needs --teacher. Those with a text of dev or
            test are left out.
        resume: Continue the run in OUT from its newest checkpoint (bit-identical).
    """

    task: Any
    model: str | Path
    data: Any
    out: str | Path
    settings: FinetuneSettings = field(default_factory=FinetuneSettings)
    _: KW_ONLY
    dev: Any = None
    unlabelled: Any = None
    resume: bool = False


@dataclass(frozen=True)
class FinetuneCommandOptions(FinetuneOptions):
    """Fine-tune a model on a task: GLUE, SQuAD, RACE, named entities, or a table of your own.

    Attributes:
        check: Report labels, lengths, truncation and overlap of train and dev; do not train.
    """

    out: str | Path | None = None  # type: ignore[assignment]  # --check writes nothing
    _: KW_ONLY
    check: bool = False


@dataclass(frozen=True)
class ComparePrecisionOptions:
    """Compare a model in int8 or bf16 with fp32. The exit status is 1 if they differ too much.

    Attributes:
        model: Checkpoint folder or run; or an ONNX folder, compared with the folder that it was
            exported from.
        data: Labelled examples of the model's task (file, or folder in the task's layout); the
            task's metric decides and may fall by half a point. Default: a built-in text sample;
            hidden states and top predictions decide.
        precision: Precision to compare with fp32: int8 or bf16.
        split: Split to read if DATA is a folder.
    """

    model: str | Path
    data: str | Path | None = None
    _: KW_ONLY
    precision: Literal["int8", "bf16"] = "int8"
    split: str = "dev"
