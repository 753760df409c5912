"""Options of the commands `albertkit caption …`."""

from dataclasses import KW_ONLY, dataclass
from pathlib import Path
from typing import Annotated, Any

from cyclopts import Parameter

from albertkit.captioning.settings import GenerationSettings, Rounding
from albertkit.command import SEVERAL, DeviceOptions, check_values
from albertkit.errors import OnError
from albertkit.validation import Positive

# None, unless a flag of it is given: the captioner's own settings.
OwnGeneration = Annotated[
    GenerationSettings | None, Parameter(name="*", group="Generation", negative_bool="no-")
]


@dataclass(frozen=True, kw_only=True)
class PreparationOptions:
    """Common options for preparing clips.

    Attributes:
        max_tokens: Maximum visual tokens per clip; more are averaged over spatial neighbours.
        train_backbone: Also keep frames for a transformers or Video Swin backbone, so that `caption
            train` trains it.
        batch_size: Clips per batch of the backbone.
        workers: Number of decoding threads. Default: one per core, at most 8.
        on_error: How to treat unusable clips: skip and list them, or stop with an error at the
            first.
        progress: Show progress on stderr.
    """

    max_tokens: Positive = 196
    train_backbone: bool = False
    batch_size: Positive = 8
    workers: Positive | None = None
    on_error: OnError = "skip"
    progress: bool = False

    def __post_init__(self) -> None:
        check_values(self)


@dataclass(frozen=True)
class PrepareOptions(DeviceOptions, PreparationOptions):
    """Decode the clips of a data set once, and save the captioner's inputs.

    Run the same command again to continue an interrupted run.

    Attributes:
        data: Manifest (.jsonl), SwinBERT .yaml, captions as published by MSR-VTT, COCO, VATEX,
            MSVD, YouCook2 or TVC, or a folder: of videos with text files next to them, with one of
            these for train, dev (or val) and test, or with published captions and their videos.
        out: Folder of the prepared clips.
        backbone: Video backbone: conv3d (saves frames; trained with the captioner), hf:FOLDER,
            hf:org/name or video-swin:FILE (frozen; saves features), or features (files named in the
            manifest).
        split: Split to prepare. Default: all.
        frames: Number of frames per clip.
        size: Frame height and width in pixels. Default: the backbone's.
        rounding: How to choose frames: middle of equal parts, or floor or round of evenly spaced
            positions from first to last.
    """

    data: str | Path
    out: Path
    _: KW_ONLY
    backbone: str = "conv3d"
    split: str | None = None
    frames: int = 8
    size: int | None = None
    rounding: Rounding = "middle"


@dataclass(frozen=True, kw_only=True)
class CaptioningOptions(DeviceOptions):
    """Common options for running a captioner.

    Attributes:
        out: JSONL file for the captions, one line per clip.
        backbone: Current location of the frozen backbone, for example hf:FOLDER. Default: the
            location recorded in training.
        generation: How captions are generated. Default: the captioner's own settings.
    """

    out: Path | None = None
    backbone: str | None = None
    generation: OwnGeneration = None


@dataclass(frozen=True)
class PredictCaptionsOptions(CaptioningOptions):
    """Caption videos, and draw their frames. Unreadable clips are skipped and reported.

    Attributes:
        model: Captioner: a folder from `albertkit caption train`, or `org/name` of the hub.
        videos: Video files, manifests (.jsonl), or folders of videos.
        sheets: Folder for contact sheets (PNG): sampled frames and the caption.
        no_sheets: Do not draw contact sheets.
    """

    model: Any
    videos: Annotated[tuple[Path, ...], SEVERAL]
    _: KW_ONLY
    sheets: Path = Path("sheets")
    no_sheets: bool = False


@dataclass(frozen=True)
class EvaluateCaptionerOptions(CaptioningOptions):
    """Caption prepared clips and score the captions: BLEU, ROUGE-L, CIDEr-D, exact match.

    Attributes:
        model: Captioner: a folder from `albertkit caption train`, or `org/name` of the hub.
        data: Folder from `albertkit caption prepare`.
        split: Split to evaluate.
    """

    model: Any
    data: str | Path
    _: KW_ONLY
    split: str = "test"


@dataclass(frozen=True)
class ScoreCaptionsOptions:
    """Score captions like the COCO caption scorer: BLEU, ROUGE-L, CIDEr-D.

    Attributes:
        predictions: One caption per clip, from any program: SwinBERT's TSV, JSON lines (`key`,
            `video` or `image_id`, and `caption`), COCO results, or plain text with one caption per
            line. May be compressed.
        references: Manifest (.jsonl), COCO annotations or SwinBERT caption TSV; or plain text
            files, each with one reference for every line of the predictions. Several files are
            merged.
        details: Write one JSON object per clip to this file: key, caption, references and scores.
    """

    predictions: str | Path
    references: Annotated[tuple[str | Path, ...], SEVERAL]
    _: KW_ONLY
    details: Path | None = None
