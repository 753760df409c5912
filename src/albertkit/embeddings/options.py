"""Options of the commands `albertkit embed …`; without torch, so that `--help` is quick."""

from collections.abc import Mapping
from dataclasses import KW_ONLY, dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal

from cyclopts import Parameter

from albertkit.command import (
    SEVERAL,
    BadRowOptions,
    BatchOptions,
    DeviceOptions,
    Precision,
    TableOptions,
    check_values,
)
from albertkit.embeddings.settings import DistillSettings, EmbedSettings
from albertkit.errors import ConfigError
from albertkit.tables.records import Data
from albertkit.validation import Positive, Range


@dataclass(frozen=True, kw_only=True)
class PromptOptions:
    """Options of commands that compute vectors.

    Attributes:
        prompt_name: Name of the model's prompt to prepend to every text, such as query. Default:
            the model's default prompt.
        prompt: Prompt to prepend to every text, such as 'query: '.
    """

    prompt_name: str | None = None
    prompt: str | None = None


@dataclass(frozen=True)
class EmbedTrainOptions(TableOptions):
    """Train sentence embeddings on scored pairs, NLI, pairs with the same meaning, or single texts.

    Attributes:
        kind: Kind of data: stsb, korsts, klue-sts, or scores for a table; mnli, klue-nli, kornli,
            or nli for a table; pairs: a table of texts with the same meaning (two columns, named or
            not), or of triplets (columns anchor, positive, negative; or BGE's query, pos, neg);
            texts: one text per line (SimCSE).
        model: Checkpoint folder, sentence embedding folder, run, or `org/name` of the hub.
        data: Folder in the task's layout, or the training file (CSV, TSV, JSONL, Parquet; gz, xz,
            zst), also at an address (`gs://…`). In Python also rows in memory, see `as_files`; also
            for `dev` and `silver`.
        out: Folder of the run. The best model is saved in OUT/best.
        settings: Training settings.
        dev: Dev file, or a folder with one. Default: the one in DATA, else a share of the training
            examples.
        dev_kind: Kind of the dev file, if it differs from the training data. Scored pairs select
            the best model by Spearman correlation, all others by retrieval of a text's partner
            among all dev examples.
        silver: Table of additional scored pairs, from `albertkit embed augment`.
        resume: Continue the run in OUT from its newest checkpoint (bit-identical).
    """

    kind: str
    model: str | Path
    data: Any
    out: str | Path
    settings: EmbedSettings = field(default_factory=EmbedSettings)
    _: KW_ONLY
    dev: Any = None
    dev_kind: str | None = None
    silver: Any = None
    resume: bool = False


@dataclass(frozen=True)
class EmbedDistillOptions(TableOptions):
    """Train a student to reproduce a teacher's sentence vectors; multilingual with parallel texts.

    Attributes:
        student: Checkpoint folder, sentence embedding folder, run, or `org/name` of the hub.
        data: File with one text per line; or a table of texts with the same meaning, the teacher's
            text first: all columns of a table without a header, or those named with --text and
            --pair.
        out: Folder of the run. The best model is saved in OUT/best, the teacher's vectors in
            OUT/teacher.
        settings: Training settings.
        teacher: Sentence embedding folder, ALBERT checkpoint (mean pooling) or `org/name` of the
            hub; name of an installed package with a model; or .npy file of vectors, row n for text
            n.
        teacher_prompt_name: Name of the teacher's prompt to prepend to its texts, such as query.
            Default: its default prompt.
        teacher_prompt: Prompt to prepend to the teacher's texts, such as 'query: '.
        dev: Dev file in the format of DATA. Default: a share of DATA.
        sts: Scored pairs (file, or folder with a dev file) that select the best model.
        sts_kind: Kind of --sts: stsb, korsts or klue-sts.
        force: Train even if much of the texts is unknown to the student's tokenizer.
        resume: Continue the run in OUT from its newest checkpoint (bit-identical).
    """

    student: str | Path
    data: str | Path
    out: str | Path
    settings: DistillSettings = field(default_factory=DistillSettings)
    _: KW_ONLY
    teacher: str | Path
    teacher_prompt_name: str | None = None
    teacher_prompt: str | None = None
    dev: str | Path | None = None
    sts: str | Path | None = None
    sts_kind: str = "stsb"
    force: bool = False
    resume: bool = False


@dataclass(frozen=True)
class AugmentOptions(DeviceOptions, TableOptions):
    """Create silver pairs (Augmented SBERT): sample similar texts, score them with a cross-encoder, balance scores.

    Attributes:
        kind: Kind of the gold pairs: stsb, korsts, klue-sts; or scores for a table of two texts and
            a score.
        gold: Gold pairs: folder in the layout of KIND, or the training file.
        out: Table to write (.tsv): score, text, pair, sampler, rank. A report (.json) is written
            next to it.
        cross_encoder: Run of `albertkit finetune` on such pairs. Spearman correlation with the gold
            dev pairs must be at least 0.5.
        dev: Gold dev file. Default: the one in the folder, else the tenth of the training pairs
            that `finetune` holds out.
        texts: Texts to pair, one per line. Default: the texts of the gold training pairs.
        sampler: How to find pairs: bm25 (common tokens; best with few gold pairs), semantic
            (similar vectors) or random.
        encoder: Embedding model for the sampler semantic, as for `embed evaluate`.
        top_k: Number of neighbours per text.
        balance: Maximum pairs in each fifth of the score range, as a multiple of the median of the
            non-empty fifths. 0: no limit.
        force: Use a cross-encoder whose correlation is too low.
        seed: Random seed for sampling and balancing.
        batch_tokens: Maximum tokens per batch.
        precision: Precision of the cross-encoder: fp32, bf16, or auto: bf16 where the hardware
            computes it faster.
        overwrite: Replace an existing table.
        progress: Show progress on stderr.
    """

    kind: str
    gold: str | Path
    out: Path
    _: KW_ONLY
    cross_encoder: str | Path
    dev: Path | None = None
    texts: Path | None = None
    sampler: Literal["bm25", "semantic", "random"] = "bm25"
    encoder: str | Path | None = None
    top_k: Positive = 3
    balance: Annotated[float, Range(0)] = 2.0
    force: bool = False
    seed: int = 0
    batch_tokens: int = 8192
    precision: Literal["fp32", "bf16", "auto"] = "auto"
    overwrite: bool = False
    progress: bool = False

    def check(self) -> None:
        """Refuse what cannot work."""
        if self.encoder is None and self.sampler == "semantic":
            raise ConfigError(
                "bad-value",
                "the sampler `semantic` needs a model that says what is near, and no encoder is named",
                "name one: --encoder RUN (of `albertkit embed train`, or any sentence-transformers folder)",
            )
        if self.encoder is not None and self.sampler != "semantic":
            raise ConfigError(
                "bad-value",
                f"the sampler `{self.sampler}` uses no encoder",
                "leave --encoder out",
            )


@dataclass(frozen=True, kw_only=True)
class MeasureOptions(PromptOptions, TableOptions):
    """Settings of an evaluation.

    Attributes:
        dimensions: Also evaluate vectors truncated to this many dimensions (Matryoshka). May be
            repeated.
        precision: Precision of ALBERT models: fp32 (matches sentence-transformers), bf16, int8 or
            auto (faster, may change scores).
        seed: Random seed for bootstrap intervals.
    """

    dimensions: Annotated[tuple[int, ...], Parameter(name="--dimension")] = ()
    precision: Precision = "fp32"
    seed: int = 0


@dataclass(frozen=True)
class EvaluateEmbeddingsOptions(MeasureOptions):
    """Measure a model on files of pairs, as `MeasureOptions` say.

    Attributes:
        model: Any model that computes vectors: see `EncodeOptions`.
        files: Mapping of name to (kind, data); data is a path, an address, or rows in memory, see
            `as_files`. Kinds stsb, korsts, klue-sts and scores (a table) have human scores:
            correlations; `pairs` (a table) are texts with the same meaning: retrieval in both
            directions.
    """

    model: str | Path
    files: Mapping[str, tuple[str, Data]]


@dataclass(frozen=True)
class EmbedEvaluateOptions(MeasureOptions):
    """Evaluate sentence embeddings: correlation with human scores, bidirectional retrieval, bag-of-tokens baseline.

    Attributes:
        models_and_files: One or more models: runs of `embed train`, sentence-transformers folders,
            ALBERT checkpoints (mean pooling) or `org/name` of the hub. Then one or more KIND=PATH.
            stsb, korsts, klue-sts: official files, or their folder; scores: a table of two texts
            and a score; pairs: a table of two texts with the same meaning. Several models give a
            table: models in rows, data sets in columns.
        out: Folder for results.json and similarity.csv; with several models one folder each.
        table: Write the table of models and data sets to FILE.md or FILE.html.
    """

    models_and_files: Annotated[tuple[str, ...], SEVERAL]
    _: KW_ONLY
    out: Path | None = None
    table: Path | None = None


@dataclass(frozen=True)
class EncodeOptions(PromptOptions, DeviceOptions, BatchOptions, BadRowOptions):
    """Compute a sentence vector for every text of a file, in input order.

    Run the same command again to continue an interrupted run; `out` appears only when complete,
    unfinished work is in `.NAME.encoding/` next to it. `NAME.json` records model and settings: the
    same call does not compute a finished file again, another call does not replace it.

    Attributes:
        model: Sentence-transformers folder, run of `embed train`, ALBERT checkpoint (mean pooling),
            `org/name` of the hub, or installed package with a model. Other architectures run in
            sentence-transformers.
        input: One text per line; or CSV, TSV, JSONL or Parquet. `.gz`, `.xz` and `.zst` are
            decompressed.
        out: Output: vectors.npy, or vectors.parquet with the columns id, text and vector.
        text: Text column of a table. Default: `text`.
        id: Id column of a table, for Parquet. Default: the row number, from 0.
        columns: Names of all columns of a file without a header, separated by commas.
        quoted: Allow quoted fields. Default: yes for comma-separated files, no for tab-separated
            files.
        dimension: Truncate vectors to this many dimensions. Default: the model's setting, or all.
        normalize: Normalise the (truncated) vectors to length 1.
        dtype: Data type of the vectors in the file.
        length: Maximum text length in tokens, special tokens included. Default: the model's. Longer
            texts are truncated and counted.
        overwrite: Replace a finished file, or unfinished work with other texts, model or settings.
        progress: Show progress on stderr.
    """

    model: Any
    input: str | Path
    out: Path
    _: KW_ONLY
    text: str | None = None
    id: str | None = None
    columns: str | None = None
    quoted: Annotated[bool | None, Parameter(negative="--no-quoted")] = None
    dimension: int | None = None
    normalize: bool = False
    dtype: Literal["float32", "float16"] = "float32"
    length: int | None = None
    overwrite: bool = False
    progress: bool = False

    def __post_init__(self) -> None:
        check_values(self)
