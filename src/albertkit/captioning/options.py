"""Options of the commands `albertkit caption …`."""

from dataclasses import KW_ONLY, dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

from cyclopts import Parameter

from albertkit.captioning.generation.settings import GenerationSettings
from albertkit.errors import ConfigError
from albertkit.frame.command import SEVERAL

Rounding = Literal["floor", "round", "middle"]
OnError = Literal["stop", "skip"]
# None, unless a flag of it is given: the captioner's own settings.
OwnGeneration = Annotated[GenerationSettings | None, Parameter(name="*", group="Generation", negative_bool="no-")]


@dataclass(frozen=True, kw_only=True)
class PreparationOptions:
    """Options of every preparation.

    Attributes:
        max_tokens: Visual tokens of a clip at most; more are averaged with their neighbours in space.
        train_backbone: Keep frames for a model of transformers or Video Swin, too: `caption train` then trains it along.
        batch_size: Clips that go through the backbone at once.
        workers: Threads that decode. Default: one a core, 8 at most.
        on_error: What to do with unusable clips: skip them and list them, or stop with an error at the first.
        progress: Show progress on stderr.
    """

    max_tokens: int = 196
    train_backbone: bool = False
    batch_size: int = 8
    workers: int | None = None
    on_error: OnError = "skip"
    progress: bool = False

    def __post_init__(self) -> None:
        for name in ("batch_size", "workers", "max_tokens"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ConfigError(
                    "bad-value", f"{name} is {value}, it must be at least 1", "leave it out for the default"
                )


@dataclass(frozen=True)
class PrepareOptions(PreparationOptions):
    """Decode the clips of a data set once and keep what a captioner sees of them. Interrupted, the same command goes on.

    Attributes:
        data: A manifest (.jsonl), a SwinBERT .yaml, captions as MSR-VTT, COCO, VATEX, MSVD, YouCook2 or TVC publish them, or
            a folder: of videos with texts beside them, with one of these for train, dev (or val) and test, or with
            published captions and their videos.
        out: Folder of the prepared clips.
        backbone: conv3d (frames are kept, the network is trained with the captioner), hf:FOLDER or hf:org/name (frozen: its
            features are kept), video-swin:FILE (frozen likewise), or features (the manifest names files of them).
        split: Prepare this split. Default: all there are.
        frames: Frames of a clip.
        size: Their height and width in pixels. Default: what the backbone wants.
        rounding: Which frames: the middles of equal parts, or floor or round of even places from the first to the last.
        device: auto, cpu, cuda or cuda:N.
    """

    data: str | Path
    out: Path
    _: KW_ONLY
    backbone: str = "conv3d"
    split: str | None = None
    frames: int = 8
    size: int | None = None
    rounding: Rounding = "middle"
    device: str = "auto"


@dataclass(frozen=True)
class ConvertClipsOptions:
    """Turn a manifest of clips into SwinBERT's files, or any data of clips into a manifest.

    Attributes:
        source: Data of clips, as `caption prepare` takes it.
        target: NAME.jsonl for a manifest; else a folder for TSVs, their indices and a YAML a split.
        split: Convert this split. Default: all there are.
        frames: Write so many frames of each clip, as JPEGs, instead of the path of its video.
        size: Height and width of these frames in pixels.
        rounding: Which frames: floor or round of even places from the first to the last, or the middles of equal parts.
        on_error: What to do with unusable clips: stop with an error, or skip them and list them.
    """

    source: str | Path
    target: str | Path
    _: KW_ONLY
    split: str | None = None
    frames: int | None = None
    size: int = 256
    rounding: Rounding = "round"
    on_error: OnError = "stop"


@dataclass(frozen=True, kw_only=True)
class CaptioningOptions:
    """Options of every use of a captioner.

    Attributes:
        out: A JSONL file for the captions, a line for each clip.
        backbone: Where the frozen backbone lies now, for example hf:FOLDER. Default: where it lay when the captioner was made.
        device: auto, cpu, cuda or cuda:N.
        generation: How captions are generated. Default: the captioner's own settings.
    """

    out: Path | None = None
    backbone: str | None = None
    device: str = "auto"
    generation: OwnGeneration = None


@dataclass(frozen=True)
class PredictCaptionsOptions(CaptioningOptions):
    """Caption videos, and draw what the captioner looked at. A clip that cannot be read is skipped and reported.

    Attributes:
        model: Captioner: a folder that `albertkit caption train` wrote, or `org/name` of the hub.
        videos: Files of video, manifests (.jsonl), or folders of videos.
        sheets: Folder for the contact sheets (PNG): the frames that were looked at, the caption, and how much each word looked
            at each frame.
        no_sheets: Draw none.
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
        model: Captioner: a folder that `albertkit caption train` wrote, or `org/name` of the hub.
        data: Folder that `albertkit caption prepare` wrote.
        split: Which clips.
    """

    model: Any
    data: str | Path
    _: KW_ONLY
    split: str = "test"


@dataclass(frozen=True)
class ScoreCaptionsOptions:
    """Score captions of any origin as the COCO caption scorer does, without Java; METEOR and SPICE where it is there.

    Attributes:
        predictions: One caption a clip: SwinBERT's TSV, JSON lines (`key`, `video` or `image_id`, and `caption`), COCO results,
            or plain text, a caption a line. May be compressed.
        references: A manifest (.jsonl), COCO annotations, a SwinBERT caption TSV; or files of plain text, each with a reference
            for every line of the predictions. Several files are put together.
        details: Write a JSON object a clip to this file: key, caption, references and scores.
        java: METEOR and SPICE, by the package pycocoevalcap and Java if both are installed.
    """

    predictions: str | Path
    references: Annotated[tuple[str | Path, ...], SEVERAL]
    _: KW_ONLY
    details: Path | None = None
    java: Annotated[bool, Parameter(negative="--no-java")] = True
