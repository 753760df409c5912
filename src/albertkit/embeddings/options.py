"""Options of the commands `albertkit embed …`; without torch, so that `--help` is quick."""

from collections.abc import Mapping
from dataclasses import KW_ONLY, dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal

from cyclopts import Parameter

from albertkit.data.columns import Columns
from albertkit.data.given import Data
from albertkit.embeddings.settings import DistillSettings, EmbedSettings
from albertkit.errors import ConfigError
from albertkit.frame.command import SEVERAL

OnError = Literal["stop", "skip"]
Precision = Literal["auto", "fp32", "bf16", "int8"]


@dataclass(frozen=True, kw_only=True)
class TableOptions:
    """Options of commands that read tables.

    Attributes:
        on_error: What to do with unusable rows: stop with an error, or skip them and list them.
        columns: Of a table.
    """

    on_error: OnError = "stop"
    columns: Columns = field(default_factory=Columns)


@dataclass(frozen=True, kw_only=True)
class PromptOptions:
    """Options of commands that make vectors.

    Attributes:
        prompt_name: Name of the model's prompt that is put before every text, such as query. Default: its own default.
        prompt: The prompt itself, such as 'query: '.
    """

    prompt_name: str | None = None
    prompt: str | None = None


@dataclass(frozen=True)
class EmbedTrainOptions(TableOptions):
    """Train sentence embeddings on scored pairs, inference, pairs or texts.

    Attributes:
        kind: stsb korsts klue-sts, or scores for a table; mnli klue-nli kornli, or nli for a table; pairs: two texts that mean
            the same (a table, without named columns one of two columns without a header); texts: a text a line (SimCSE).
        model: Checkpoint folder, folder of sentence embeddings, run, or `org/name` of the hub.
        data: Folder in the task's layout, or the training file (CSV, TSV, JSONL, Parquet; gz, xz, zst), also at an address
            (`gs://…`). In Python also rows in memory, see `as_files`; so `dev` and `silver`.
        out: Folder of the run. The best model is saved in OUT/best.
        settings: Training settings.
        dev: The dev file, or a folder that has one. Default: that of DATA, else a share of the training examples.
        dev_kind: Kind of the dev file, where it is another than that of the training data. Pairs with scores choose by
            Spearman's correlation, all others by how often a text finds its own among those of all dev examples.
        silver: Table of further scored pairs, as `albertkit embed augment` writes it.
        resume: Continue the run in OUT from its newest checkpoint, to the same bits.
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
    """Teach a student the vectors of a teacher, in one language or, from parallel texts, in several.

    Attributes:
        student: Checkpoint folder, folder of sentence embeddings, run, or `org/name` of the hub.
        data: A text a line; or a table of texts that mean the same, the first of which the teacher reads: all columns of one
            without a header, or those named with --text and --pair.
        out: Folder of the run. The best model is saved in OUT/best, the teacher's vectors in OUT/teacher.
        settings: Training settings.
        teacher: Folder of sentence embeddings, ALBERT checkpoint (mean pooling) or `org/name` of the hub; the name of an
            installed package that carries a model; or a .npy file of vectors, row n for text n.
        teacher_prompt_name: Name of the teacher's prompt that is put before every text it reads, such as query. Default: its
            own default.
        teacher_prompt: The prompt itself, such as 'query: '.
        dev: A file like DATA. Default: a share of DATA.
        sts: Scored pairs, a file or a folder that has a dev file; they then choose the best model.
        sts_kind: stsb, korsts or klue-sts.
        force: Train although much of the texts is unknown to the student's tokenizer.
        resume: Continue the run in OUT from its newest checkpoint, to the same bits.
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
class AugmentOptions(TableOptions):
    """Make silver pairs: find texts that may be alike, let a cross-encoder score them, balance the scores.

    Attributes:
        kind: Of the gold pairs: stsb, korsts, klue-sts; or scores for a table of two texts and a score.
        gold: Folder in that layout, or the training file.
        out: Table to write (.tsv): score, text, pair, sampler, rank. Its report comes beside it, as .json.
        cross_encoder: Run of `albertkit finetune` on such pairs. It must agree with the gold dev pairs (Spearman 0.5).
        bi_encoder: In place of a cross-encoder any model that makes vectors, as for `embed evaluate`: the score is their cosine,
            on a line fitted to the gold training pairs.
        dev: Gold dev file. Default: that of the folder, else a tenth of the training pairs, the same that `finetune` holds out.
        texts: Texts to pair, one a line. Default: those of the gold training pairs.
        sampler: bm25: common tokens, best with few gold pairs; semantic: near vectors; random; mixed: all three.
        encoder: Model whose vectors say what is near: as for `embed evaluate`.
        top_k: Neighbours of each text, of each sampler.
        balance: Most pairs of a fifth of the scale, as a multiple of the median of the fifths that have any. 0: no limit.
        force: Use a cross-encoder that agrees with gold too little.
        seed: Of what is drawn.
        batch_tokens: Most tokens computed at once.
        precision: Of the cross-encoder. auto: bf16 where the hardware multiplies it faster.
        device: auto, cpu, cuda or cuda:N.
        overwrite: Replace a table that exists.
        progress: Show it on stderr.
    """

    kind: str
    gold: str | Path
    out: Path
    _: KW_ONLY
    cross_encoder: str | Path | None = None
    bi_encoder: str | Path | None = None
    dev: Path | None = None
    texts: Path | None = None
    sampler: Literal["bm25", "semantic", "random", "mixed"] = "bm25"
    encoder: str | Path | None = None
    top_k: int = 3
    balance: float = 2.0
    force: bool = False
    seed: int = 0
    batch_tokens: int = 8192
    precision: Literal["fp32", "bf16", "auto"] = "auto"
    device: str = "auto"
    overwrite: bool = False
    progress: bool = False

    def check(self) -> None:
        """Refuse what cannot work."""
        if self.encoder is None and self.sampler in ("semantic", "mixed"):
            raise ConfigError(
                "bad-value",
                f"--sampler {self.sampler} needs a model that says what is near, and there is no --encoder",
                "name one: --encoder RUN (of `albertkit embed train`, or any sentence-transformers folder)",
            )
        if self.encoder is not None and self.sampler in ("bm25", "random"):
            raise ConfigError("bad-value", f"--sampler {self.sampler} uses no encoder", "leave --encoder out")
        if self.top_k < 1:
            raise ConfigError("bad-value", f"--top-k {self.top_k}", "use 1 or more")
        if self.balance < 0:
            raise ConfigError("bad-value", f"--balance {self.balance}", "use 0 for no limit, or a number above it")
        if (self.cross_encoder is None) == (self.bi_encoder is None):
            raise ConfigError(
                "bad-value",
                f"{'no' if self.cross_encoder is None else 'two'} models are named to score pairs",
                "name a cross-encoder (--cross-encoder RUN of finetune) or a sentence encoder (--bi-encoder MODEL)",
            )


@dataclass(frozen=True, kw_only=True)
class MeasureOptions(PromptOptions, TableOptions):
    """Settings of an evaluation.

    Attributes:
        dimensions: Measure again with only the first so many numbers of the vectors, as Matryoshka training allows. May
            be repeated.
        precision: Of an ALBERT. fp32 gives sentence-transformers' own figures; with the others one sees what speed
            costs.
        seed: Of the bootstrap intervals.
    """

    dimensions: Annotated[tuple[int, ...], Parameter(name="--dimension")] = ()
    precision: Precision = "fp32"
    seed: int = 0


@dataclass(frozen=True)
class EvaluateEmbeddingsOptions(MeasureOptions):
    """Measure a model on files of pairs, as `MeasureOptions` say.

    Attributes:
        model: Anything that makes vectors: see `EncodeOptions`.
        files: Name to kind and data: a path, an address, or rows in memory, see `as_files`. Kinds stsb, korsts, klue-sts and
            scores (a table) have human scores: correlations; `pairs` (a table) are texts that mean the same: retrieval both
            ways.
    """

    model: str | Path
    files: Mapping[str, tuple[str, Data]]


@dataclass(frozen=True)
class EmbedEvaluateOptions(MeasureOptions):
    """Measure sentence embeddings: correlation with human scores, retrieval both ways, compared with a bag of tokens.

    Attributes:
        models_and_files: One or more models: runs of `embed train`, sentence-transformers folders of any model, ALBERT
            checkpoints (mean pooling), or `org/name` of the hub. Then KIND=PATH, one or more. stsb, korsts, klue-sts: official
            files, or their folder; scores: a table of two texts and a score; pairs: a table of two texts that mean the same.
            Several models give a table with models in rows and data sets in columns.
        mteb: Name of a task of mteb, such as KorSTS, by mteb's own runner (extra `mteb`); may be repeated. Its data are those
            that mteb finds on this machine, or brings.
        out: Folder for results.json and similarity.csv; of several models a folder for each.
        table: Write the table of models and data sets: FILE.md or FILE.html.
    """

    models_and_files: Annotated[tuple[str, ...], SEVERAL]
    _: KW_ONLY
    mteb: tuple[str, ...] = ()
    out: Path | None = None
    table: Path | None = None


@dataclass(frozen=True)
class EncodeOptions(PromptOptions):
    """Turn every text of a file into a vector, in the order of the file. Interrupted, the same command goes on.

    Until it is finished the work lies beside `out`, in `.NAME.encoding/`; `out` appears whole. `NAME.json` beside it records
    what the vectors were made with: a finished file is not computed again by the same call, and not replaced by another one.

    Attributes:
        model: A sentence-transformers folder, a run of `embed train`, any ALBERT checkpoint (then with mean pooling), `org/name`
            of the hub, or an installed package that carries a model. What is no ALBERT is run by sentence-transformers.
        input: Lines of text; or CSV, TSV, JSONL or Parquet. `.gz`, `.xz` and `.zst` are unpacked.
        out: vectors.npy, or vectors.parquet with the columns id, text and vector.
        text: Column of the texts in a table. Default: `text`.
        id: Column of their names, for Parquet. Default: the place in the file, from 0.
        columns: Names of all columns, with commas between, of a file without a header.
        quoted: Fields may be quoted. Default: yes for comma-separated files, no for tab-separated files.
        on_error: What to do with unusable rows: stop with an error before anything is computed, or skip them and list them.
        dimension: Numbers to keep at the start of each vector. Default: as the model says, or all.
        normalize: Divide what is kept by its length.
        dtype: Of the numbers in the file.
        batch_tokens: Most tokens computed at once.
        precision: fp32, bf16, int8, or auto: bf16 where the hardware multiplies it faster.
        device: auto, cpu, cuda or cuda:N.
        length: Longest text in tokens, special tokens included. Default: the model's. Longer texts are cut and counted.
        overwrite: Replace a finished file, and unfinished work with other texts, model or settings.
        progress: Show it on stderr.
    """

    model: Any
    input: str | Path
    out: Path
    _: KW_ONLY
    text: str | None = None
    id: str | None = None
    columns: str | None = None
    quoted: Annotated[bool | None, Parameter(negative="--no-quoted")] = None
    on_error: OnError = "stop"
    dimension: int | None = None
    normalize: bool = False
    dtype: Literal["float32", "float16"] = "float32"
    batch_tokens: int = 8192
    precision: Precision = "auto"
    device: str = "auto"
    length: int | None = None
    overwrite: bool = False
    progress: bool = False

    def __post_init__(self) -> None:
        if self.batch_tokens < 1:
            raise ConfigError(
                "bad-value", f"batch_tokens is {self.batch_tokens}, it must be at least 1", "leave it out for 8192"
            )


@dataclass(frozen=True)
class MapOptions(PromptOptions, TableOptions):
    """Draw a map of texts: one HTML page to explore, with each text's nearest neighbours.

    Attributes:
        model: As for `embed evaluate`.
        input: A text a line; or a table: --text names the column, --pair a second one, --label the names that colour
            the points. Of more than 5,000 different texts a sample is drawn.
        out: HTML file; it needs no server and no network.
    """

    model: str | Path
    input: str | Path
    out: Path


@dataclass(frozen=True)
class StaticOptions:
    """Count a static encoder in a text, in seconds: a table of vectors that sentence-transformers opens, to compare with.

    Attributes:
        store: Token store of the text, as `albertkit corpus build` writes it.
        out: Folder to write. Not an existing one.
        dimension: Numbers of a vector.
        seed: Draws the projection of the randomised decomposition.
    """

    store: str | Path
    out: Path
    _: KW_ONLY
    dimension: int = 256
    seed: int = 0
