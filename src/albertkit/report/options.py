"""Options of `albertkit report`, `albertkit inspect` and `albertkit doctor`."""

from dataclasses import KW_ONLY, dataclass
from pathlib import Path


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
