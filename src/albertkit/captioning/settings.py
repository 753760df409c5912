"""Everything that decides the training of a captioner, that the command line shows without loading torch."""

import math
from dataclasses import KW_ONLY, dataclass, field, fields
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple

from albertkit.errors import ConfigError
from albertkit.printable import Notes
from albertkit.training.settings import EpochSettings
from albertkit.validation import NotNegative, Positive, Range, Share, list_wrong_fields

VideoAttention = Literal["full", "diagonal", "log", "legacy"]
Objective = Literal["mlm", "causal"]
Rounding = Literal["floor", "round", "middle"]


class CaptionIds(NamedTuple):
    """The special tokens of a generation."""

    start: int  # [CLS]
    end: int  # [SEP]
    mask: int  # [MASK]; a captioner of the objective `mlm` predicts where it stands
    padding: int  # after the end


_LONGEST = 24


@dataclass(frozen=True, kw_only=True)
class GenerationSettings:
    """Settings of caption generation.

    Attributes:
        max_length: Maximum tokens per caption, [CLS] and [SEP] included. Default: the training
            length, or 24.
        num_beams: Number of beams; 1: greedy search.
        num_captions: Number of captions to return per clip, best first.
        length_penalty: Exponent of the length in a caption's score: log-probability /
            length^penalty.
        repetition_penalty: Divide positive logits of tokens already in the caption by this, and
            multiply negative ones.
        sample: Sample tokens instead of searching.
        temperature: Temperature for sampling: divides the logits.
        top_k: Sample from the k most likely tokens; 0: all.
        top_p: Sample from the most likely tokens with this total probability.
        seed: Random seed for sampling.
        bad_endings: Words that may not end a caption, except at maximum length: "a", "the", "with".
        swinbert: Use SwinBERT's search: it keeps only `num_captions` finished captions, and at
            maximum length [SEP] replaces the last word.
    """

    max_length: Annotated[int | None, Range(2)] = None
    num_beams: Positive = 4
    num_captions: Positive = 1
    length_penalty: Annotated[float, Range(above=0)] = 1.0
    repetition_penalty: Annotated[float, Range(above=0)] = 1.0
    sample: bool = False
    temperature: Annotated[float, Range(above=0)] = 1.0
    top_k: NotNegative = 0
    top_p: Annotated[float, Range(above=0, maximum=1)] = 1.0
    seed: NotNegative = 0
    bad_endings: tuple[str, ...] = ()
    swinbert: bool = field(default=False, repr=False)

    def __post_init__(self) -> None:
        errors = list_wrong_fields(self)
        if not errors and not self.sample and self.num_captions > self.num_beams:
            errors.append(
                f"num_captions {self.num_captions} is more than num_beams {self.num_beams}"
            )
        if errors:
            raise ConfigError("bad-value", "; ".join(errors), "change these settings of generation")

    @property
    def longest(self) -> int:
        """Return `max_length`, or 24."""
        return _LONGEST if self.max_length is None else self.max_length

    def to_dict(self) -> dict[str, Any]:
        """Return every setting that is not the default, for JSON."""
        changed = {
            f.name: getattr(self, f.name)
            for f in fields(self)
            if getattr(self, f.name) != f.default
        }
        return {
            name: list(value) if isinstance(value, tuple) else value
            for name, value in changed.items()
        }


_LR = 1e-4  # SwinBERT's 3e-4 lets CIDEr fall to 0 after a few epochs (its issue 13), 3e-5 does not


@dataclass(frozen=True, kw_only=True)
class CaptionSettings(EpochSettings):
    """Settings of captioner training. Values of None are derived from the data and the model, and reported.

    Attributes:
        objective: Training objective: mlm (predict masked tokens) or causal (predict the next
            token). Default: that of the initial captioner; mlm for any other ALBERT.
        video_attention: Attention between visual tokens: full, diagonal (only to itself), log
            (learned gate), legacy (SwinBERT's gate). Default: that of the initial captioner; full
            for any other ALBERT.
        sparsity_weight: Weight of the loss that pushes a learned gate towards 0.
        mask_prob: Share of a caption's tokens, [SEP] included, that mlm predicts.
        max_masked: Maximum predicted tokens per caption.
        shift: Maximum random shift of training frames in pixels, in each direction; only with a
            trained backbone.
        length: Maximum caption length in tokens, [CLS] and [SEP] included; longer captions are
            truncated.
        label_smoothing: Label smoothing: probability of all wrong tokens together.
        drop_worst_ratio: Share of an update's predictions, those with the highest loss, to ignore.
        drop_worst_after: Number of updates before `drop_worst_ratio` applies.
        lr: Peak learning rate. AdamW with bias correction, linear warm-up, linear decay. Use ten
            times as much for an untrained ALBERT.
        backbone_lr_factor: Learning rate factor of a pretrained backbone that is trained, too.
        weight_decay: Weight decay of AdamW.
        batch_size: Captions per update, summed over all processes.
        micro_batch: Maximum captions per micro-batch on each device.
        metric: Dev metric that selects the best model: cider, bleu_4, rouge_l or exact_match.
        num_beams: Number of beams for captions of the dev set.
    """

    objective: Objective | None = None
    video_attention: VideoAttention | None = None
    # SwinBERT's; for TVC it takes 0.1.
    sparsity_weight: Annotated[float, Range(0)] = 0.5
    # What SwinBERT was trained with; its program's own defaults are 0.15 and 3.
    mask_prob: Share = 0.5
    max_masked: Positive = 45
    shift: NotNegative = 0
    length: Annotated[int, Range(3)] = 50
    label_smoothing: Share = 0.0
    drop_worst_ratio: Share = 0.0
    drop_worst_after: NotNegative = 0
    lr: Annotated[float, Range(above=0, below=10)] = _LR
    # SwinBERT's recipe, as the length and the warm-up; its program's own default is 0.001.
    backbone_lr_factor: Annotated[float, Range(0)] = 0.05
    # SwinBERT's flag says so; its program ignores the flag and decays by 0.2.
    weight_decay: Annotated[float, Range(0)] = 0.05
    warmup: Share = 0.1
    batch_size: Positive = 32
    micro_batch: Positive = 32
    metric: Literal["cider", "bleu_4", "rouge_l", "exact_match"] = "cider"
    num_beams: Positive = 1

    def resolve(self, num_captions: int) -> tuple["CaptionSettings", Notes]:
        """Fill in what was left open."""
        self.check()
        epochs = self.epochs or 15.0
        source = "" if self.epochs else " (SwinBERT's)"
        steps = max(1, math.ceil(epochs * num_captions / self.batch_size))
        reason = f"{steps:,} = {epochs:g} epochs{source} of {num_captions:,} captions at {self.batch_size}"
        return self.with_defaults({"steps": (steps, reason)})


@dataclass(frozen=True)
class TrainCaptionerOptions:
    """Train a captioner on prepared clips.

    Attributes:
        model: ALBERT to start from: checkpoint folder, run, or `org/name` of the hub. `albertkit
            init` creates an untrained one.
        data: Folder from `albertkit caption prepare`.
        out: Folder of the run. The best captioner is saved in OUT/best.
        settings: Training settings.
        train_split: Split to train on.
        dev_split: Split that selects the best model.
        backbone: Current location of the clips' frozen backbone, for example hf:FOLDER. Default:
            the location recorded by `caption prepare`.
        resume: Continue the run in OUT from its newest checkpoint (bit-identical).
    """

    model: str | Path
    data: str | Path
    out: str | Path
    settings: CaptionSettings = field(default_factory=CaptionSettings)
    _: KW_ONLY
    train_split: str = "train"
    dev_split: str = "dev"
    backbone: str | None = None
    resume: bool = False
