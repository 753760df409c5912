"""Options of `albertkit quickstart`, `albertkit report`, `albertkit inspect` and `albertkit doctor`."""

from dataclasses import KW_ONLY, dataclass
from pathlib import Path
from typing import Annotated, Literal

from albertkit.command import SEVERAL
from albertkit.validation import Range


@dataclass(frozen=True)
class QuickstartOptions:
    """Train a tiny ALBERT from text in minutes: tokenizer, token store, pretraining, evaluation, HTML report.

    Run the same command again to continue an interrupted run.

    Attributes:
        out: Folder for all output: corpus.txt, tokenizer/, store/, run/, report.html.
        corpus: Text files, globs or folders. Default: the documentation that is part of Python.
        vocab_size: Vocabulary size, in tokens.
        text_rules: Text normalisation: google (English: lower case, no accents), multilingual
            (keeps both) or none.
        minutes: Minutes of pretraining, including evaluations and checkpoints; the other steps take
            about one minute. The number of updates is re-estimated during the run (fewer on a busy
            machine), and the learning rate schedule follows.
        seed: Random seed for all steps.
    """

    out: str | Path = Path("quickstart")
    _: KW_ONLY
    corpus: Annotated[tuple[str, ...], SEVERAL] = ()
    vocab_size: int = 4000
    text_rules: Literal["google", "multilingual", "none"] = "google"
    minutes: Annotated[float, Range(above=0)] = 3.75
    seed: int = 0


@dataclass(frozen=True)
class ReportOptions:
    """Write an HTML report of a run: curves, results with intervals, examples, sizes, settings, provenance, versions.

    Works for finished and unfinished runs of pretraining, fine-tuning, sentence embeddings and
    captioning.

    Attributes:
        run: Folder of the run.
        out: HTML file; it needs no server and no network. Default: report.html in the run.
    """

    run: str | Path
    out: Path | None = None


@dataclass(frozen=True)
class InspectOptions:
    """Show a model's configuration, parameters, FLOPs, memory, tokenizer and provenance, without loading its weights.

    Without a model: sizes of all published ALBERTs compared with BERT, and the cost of each way of
    sharing.

    Attributes:
        model: Checkpoint folder, run, or `org/name` of the hub.
        length: Sequence length in tokens for FLOPs and memory. Default: the training length.
    """

    model: str | Path | None = None
    _: KW_ONLY
    length: int | None = None


@dataclass(frozen=True)
class DoctorOptions:
    """Show what this machine and installation support, what is missing, and how to install it.

    The exit status is 1 if a required package is missing, has an unsupported version or is broken.

    Attributes:
        folder: Verify the checksums of all runs, stores and prepared clips in this folder instead.
            Reads about 1 GB per second.
        markdown: Print Markdown to paste into an issue.
        warm: Compile the numba loops of tokenizers, stores, pretraining and engines now instead of
            at first use, for example in a container image.
    """

    folder: Path | None = None
    _: KW_ONLY
    markdown: bool = False
    warm: bool = False
    json: bool = False
