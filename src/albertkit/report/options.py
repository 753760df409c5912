"""Options of `albertkit report`, `albertkit inspect` and `albertkit doctor`."""

from dataclasses import KW_ONLY, dataclass
from pathlib import Path


@dataclass(frozen=True)
class ReportOptions:
    """Write one HTML page about a run: curves, results with intervals, examples, sizes, settings, provenance, versions.

    Any run: of pretraining, fine-tuning, sentence embeddings or captioning, finished or not.

    Attributes:
        run: Folder of the run.
        out: HTML file; it needs no server and no network. Default: report.html in the run.
    """

    run: str | Path
    out: Path | None = None


@dataclass(frozen=True)
class InspectOptions:
    """Show configuration, parameters, FLOPs, memory, tokenizer and provenance of a model; its weights are not loaded.

    With --layers the model is run instead: how far each application of the shared layer moves the states, and where its heads
    look. Without a model: how large every published ALBERT is, compared with BERT, and what each way of sharing would cost.

    Attributes:
        model: Checkpoint folder, run, or `org/name` of the hub.
        length: Tokens of the sequences that FLOPs and memory are counted for. Default: the length it was trained with.
            With --layers: of a text at most, by default 128.
        layers: HTML file to draw what each application of the layer does.
        text: Text that is read with --layers; may be repeated. Default: a sample of English that every Python carries.
    """

    model: str | Path | None = None
    _: KW_ONLY
    length: int | None = None
    layers: Path | None = None
    text: tuple[str, ...] = ()


@dataclass(frozen=True)
class DoctorOptions:
    """Show what this machine and this installation can do, what is missing and how to get it.

    Exit status 1 if a package of the core is missing, outside its versions or broken.

    Attributes:
        folder: Verify files instead: the checksums of all runs, stores and prepared clips below it. Everything with checksums is
            read: about a second for a gigabyte.
        markdown: Print Markdown to paste into an issue.
        warm: Compile now the loops of tokenizers, stores, pretraining and engines, which else wait for their first
            use: for an image of a container, or before a demonstration.
    """

    folder: Path | None = None
    _: KW_ONLY
    markdown: bool = False
    warm: bool = False
    json: bool = False
