"""Options of `albertkit finetune`, `predict`, `evaluate`, `score` and `early-exit`; without torch, so that `--help` is quick."""

from dataclasses import KW_ONLY, dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal

from cyclopts import Parameter

from albertkit.data.columns import Columns
from albertkit.tasks.settings import FinetuneSettings

Precision = Literal["auto", "fp32", "bf16", "int8"]
OnError = Literal["stop", "skip"]


@dataclass(frozen=True)
class PredictOptions:
    """Predict every example of a file, in its order, however large it is.

    Attributes:
        model: Any model folder, the run it came from, or `org/name` of the hub: fine-tuned, pretrained, sentence encoder.
        input: Input file or folder, URL, or `-` for standard input. For a fine-tuned model: a file or folder in the task's
            format (labels optional); for a model of single texts also a .txt file with one text per line. For other models, or
            with --kind: one input per line, as text or JSON (.jsonl): a text, a list of two, or an object. In Python also rows
            in memory, see `as_files`.
        out: A .jsonl file; of a task on texts also a .csv or .tsv file, for the columns of the input and the predictions; or a
            folder, for predictions.jsonl and the submission files (GLUE's .tsv, SQuAD's predictions.json, …). Default, and
            `-`: standard output.
        kind: Pipeline to use in place of the model's own: fill-mask, sentence-order or embed.
        top: Return only this many probabilities or guesses, the best first.
        split: Which file of a folder.
        on_error: What to do with unusable rows: stop with an error, or skip them and list them.
        batch_tokens: Most tokens computed at once.
        precision: fp32, bf16, int8, or auto: bf16 where the hardware multiplies it faster.
        device: auto, cpu, cuda or cuda:N.
        columns: Columns of a table, where they have other names than in training.
    """

    model: str | Path
    input: Any
    out: str | Path | None = None
    _: KW_ONLY
    kind: str | None = None
    top: int | None = None
    split: str = "test"
    on_error: OnError = "stop"
    batch_tokens: int = 8192
    precision: Precision = "auto"
    device: str = "auto"
    columns: Columns = field(default_factory=Columns)


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
    """Answer texts on the spot (--text), or a whole file in its order, however large it is.

    Attributes:
        text: A text, with [MASK] for a pretrained model; or the text that questions are about. May be repeated.
        pair: The second text of a --text.
        question: A question about the --text. May be repeated.
        choice: One of the answers to choose from. Repeated.
    """

    input: Any = None
    _: KW_ONLY
    text: _Several = ()
    pair: _Several = ()
    question: _Several = ()
    choice: _Several = ()
    columns: _OtherColumns = field(default_factory=_OtherColumns)
    json: bool = False


PredictCommandOptions.__doc__ = (
    f"{PredictCommandOptions.__doc__}{str(PredictOptions.__doc__).partition('Attributes:')[2]}"
)


@dataclass(frozen=True)
class EvaluateOptions:
    """Score a model: a pretrained one on a store or masked records, a fine-tuned one on labelled examples of its task.

    Attributes:
        model: Checkpoint folder, run, or `org/name` of the hub.
        data: Of a pretrained model a token store made with the model's tokenizer, also at an address (`s3://…`), or TFRecords
            of masked examples; of a fine-tuned one the task's file or folder, also at an address. In Python also rows in
            memory, see `as_files`.
        out: Fine-tuned: folder for predictions in the task's own files, and results.json.
        split: Fine-tuned: which file of a folder.
        on_error: Fine-tuned: what to do with unusable rows: stop with an error, or skip them and list them.
        threshold_from: SQuAD 2: the threshold as chosen in training (train), or chosen on these very questions (dev), as
            Google does; the result says so.
        length: Pretrained: longest sequence, in tokens. Default: the length it was trained with.
        held_out: Pretrained: share of documents. Default: those held out in training, or all of another store.
        seed: Pretrained: draws segments and masks, and the documents of another store. Default: the seed of the training.
        batch_tokens: Tokens computed at once.
        precision: fp32, bf16, int8 (of fine-tuned models), or auto: bf16 where the hardware multiplies it faster. Default:
            fp32 of a pretrained model, auto of a fine-tuned one, as in its training.
        device: auto, cpu, cuda or cuda:N.
        columns: Columns of a table, where they have other names than in training.
    """

    model: str | Path
    data: Any
    out: str | Path | None = None
    _: KW_ONLY
    split: str = "dev"
    on_error: OnError = "stop"
    threshold_from: Literal["train", "dev"] = "train"
    length: int | None = None
    held_out: float | None = None
    seed: int | None = None
    batch_tokens: int = 16_384
    precision: Precision | None = None
    device: str = "auto"
    columns: Columns = field(default_factory=Columns)


@dataclass(frozen=True)
class EarlyExitOptions:
    """Measure early exit: accuracy, layers and speed of every rule, compared with all layers.

    Attributes:
        model: Folder of a model fine-tuned with --exits, or the run it came from.
        data: Labelled examples: a file, or a folder in the task's layout.
        split: Which file of a folder.
        rule: patience:N (N layers in a row gave the same label) or entropy:SHARE (surer than that); may be repeated.
            Default: every patience, and entropies from 0.01 to 0.7.
        precision: fp32, bf16, int8, or auto: bf16 where the hardware multiplies it faster.
        batch_tokens: Most tokens computed at once.
        rounds: Timed rounds; each runs every rule once.
        allowed: Most loss of the metric for the recommended rule: 0.005 is half a point.
    """

    model: str | Path
    data: Any
    _: KW_ONLY
    split: str = "dev"
    rule: tuple[str, ...] = ()
    precision: Precision = "auto"
    batch_tokens: int = 8192
    rounds: int = 3
    allowed: float = 0.005


@dataclass(frozen=True)
class ScoreOptions:
    """Score a file of predictions, wherever it is from, as the task's official script does; with 95 % intervals.

    Attributes:
        task: `squad` (1.1 or 2.0, as the gold file says), `mrpc`, `ner`, … as for `finetune`; `classify`, `regress`,
            `multilabel` for a table of your own. In Python also a task.
        predictions: SQuAD's `predictions.json`; a submission table (`index`, `prediction`), or records that `albertkit predict`
            wrote, joined to the examples by id or, if the ids are 0, 1, 2, …, by position; or CoNLL columns, the last of
            which is the prediction. May be compressed.
        gold: The labelled file, in the task's own layout. Of CoNLL columns it may be left out: then the last but one is the
            gold tag.
        label: Of a table: column of the labels.
        id: Of a table: column of the ids. Default: `id`, `index`, `idx` or `guid`, if it is there.
        null_odds: SQuAD 2.0: `null_odds.json`, for the best thresholds and the average precisions.
        null_threshold: Questions with larger null odds count as unanswered; the official script's default.
        f1_of: `words`: score Korean answers by words, as SQuAD's script does. Default: they are refused, as KorQuAD counts
            characters.
        on_error: What to do with unusable rows of the gold file: stop with an error, or skip them and list them.
        out: Folder for `results.json` and, with the extra `report`, a picture.
    """

    task: Any
    predictions: str | Path
    gold: str | Path | None = None
    _: KW_ONLY
    label: Annotated[str | None, Parameter(name=("--label-column", "--label"))] = None
    id: Annotated[str | None, Parameter(name=("--id-column", "--id"))] = None
    null_odds: str | Path | None = None
    null_threshold: float = 1.0
    f1_of: Literal["words"] | None = None
    on_error: OnError = "stop"
    out: str | Path | None = None


@dataclass(frozen=True)
class FinetuneOptions:
    """Fine-tune a model on a task: GLUE, SQuAD, RACE, named entities, or a table of your own.

    Attributes:
        task: cola sst2 mrpc stsb qqp mnli qnli rte wnli, squad1 squad2, race siqa arc choice, ner wnut17 klue-ner, nsmc
            klue-nli kornli klue-sts korsts; or classify, regress, multilabel for a table. In Python also a task.
        model: Checkpoint folder, run, or `org/name` of the hub. For rte, mrpc and stsb the paper starts from a run on mnli.
        data: Folder in the task's layout, or the training file (CSV, TSV, JSONL, Parquet; gz, xz, zst), also at an address
            (`gs://…`). In Python also rows in memory, see `as_files`.
        out: Folder of the run. The best model is saved in OUT/best, its predictions of the dev set in OUT/dev.
        settings: Training settings.
        columns: Names of the columns of a table.
        dev: The dev file. Default: that of the folder, else a share of the training examples.
        resume: Continue the run in OUT from its newest checkpoint, to the same bits.
        on_error: What to do with unusable rows: stop with an error, or skip them and list them.
    """

    task: Any
    model: str | Path
    data: Any
    out: str | Path
    settings: FinetuneSettings = field(default_factory=FinetuneSettings)
    _: KW_ONLY
    columns: Columns = field(default_factory=Columns)
    dev: Any = None
    resume: bool = False
    on_error: OnError = "stop"


@dataclass(frozen=True)
class FinetuneCommandOptions(FinetuneOptions):
    """Fine-tune a model on a task: GLUE, SQuAD, RACE, named entities, or a table of your own.

    Attributes:
        check: Look at the data and train nothing: labels, lengths, truncation, overlap of train and dev.
    """

    out: str | Path | None = None  # type: ignore[assignment]  # --check writes nothing
    _: KW_ONLY
    check: bool = False


FinetuneCommandOptions.__doc__ = (
    f"{FinetuneCommandOptions.__doc__}{str(FinetuneOptions.__doc__).partition('Attributes:')[2]}"
)
