"""Everything that decides the training of a captioner, that the command line shows without loading torch."""

import math
from dataclasses import KW_ONLY, dataclass, field
from pathlib import Path
from typing import Literal

from albertkit.training.settings import EpochSettings

_LR = 1e-4  # SwinBERT's 3e-4 lets CIDEr fall to 0 after a few epochs (its issue 13), 3e-5 does not


@dataclass(frozen=True, kw_only=True)
class CaptionSettings(EpochSettings):
    """Settings of the training of a captioner. What is None follows from the data and the model, and is reported.

    Attributes:
        objective: mlm: masked tokens are predicted, half of them at once; causal: each token from those before. Default:
            that of the captioner to start from; mlm for any other ALBERT.
        video_attention: What visual tokens see of each other: full, diagonal (only themselves), log (a learned gate), legacy
            (SwinBERT's gate). Default: that of the captioner to start from; full for any other ALBERT.
        sparsity_weight: Weight of the loss that pushes a learned gate towards 0.
        mask_prob: Of mlm: share of a caption's tokens, [SEP] included, that is predicted.
        max_masked: Most predicted tokens of a caption.
        shift: Random shift of training frames, up to this many pixels each way; only with a trained backbone.
        length: Longest caption in tokens, [CLS] and [SEP] included; longer ones are cut.
        label_smoothing: Probability given to all other tokens together.
        drop_worst_ratio: Share of an update's predictions, those with the highest loss, that does not count.
        drop_worst_after: Updates after which that begins.
        lr: Peak learning rate; AdamW with bias correction, linear warm-up, linear decay. An ALBERT that knows nothing yet
            takes ten times as much.
        backbone_lr_factor: What the rate is multiplied by for a backbone that is trained along and had weights before.
        weight_decay: Weight decay of AdamW.
        batch_size: Captions an update, over all processes.
        micro_batch: Most captions computed at once on a device.
        metric: What the best model is chosen by: cider, bleu_4, rouge_l or exact_match, on dev.
        num_beams: Number of beams when captions of the dev set are generated.
    """

    objective: Literal["mlm", "causal"] | None = None
    video_attention: Literal["full", "diagonal", "log", "legacy"] | None = None
    sparsity_weight: float = 0.5
    mask_prob: float = 0.5
    max_masked: int = 45
    shift: int = 0
    length: int = 50
    label_smoothing: float = 0.0
    drop_worst_ratio: float = 0.0
    drop_worst_after: int = 0
    lr: float = _LR
    backbone_lr_factor: float = 0.05
    weight_decay: float = 0.05
    warmup: float = 0.1
    batch_size: int = 32
    micro_batch: int = 32
    metric: Literal["cider", "bleu_4", "rouge_l", "exact_match"] = "cider"
    num_beams: int = 1

    def problems(self) -> list[str]:
        """List what is impossible."""
        at_least = dict(max_masked=1, length=3, micro_batch=1, num_beams=1)
        at_least |= dict(sparsity_weight=0, shift=0, drop_worst_after=0, backbone_lr_factor=0, weight_decay=0)
        shares = ("mask_prob", "label_smoothing", "drop_worst_ratio")
        return [*super().problems(), *self.out_of_range(at_least, shares)]

    def resolve(self, num_captions: int) -> tuple["CaptionSettings", list[str]]:
        """Fill in what was left open."""
        self.check()
        epochs, source = self.epochs or 15.0, "" if self.epochs else " (SwinBERT's)"
        steps = max(1, math.ceil(epochs * num_captions / self.batch_size))
        reason = f"{steps:,} = {epochs:g} epochs{source} of {num_captions:,} captions at {self.batch_size}"
        return self.filled({"steps": (steps, reason)})


@dataclass(frozen=True)
class TrainCaptionerOptions:
    """Train a captioner on prepared clips.

    Attributes:
        model: ALBERT to start from: checkpoint folder, run, or `org/name` of the hub. `albertkit init` makes an empty one.
        data: Folder that `albertkit caption prepare` wrote.
        out: Folder of the run. The best captioner is saved in OUT/best.
        settings: Training settings.
        train_split: Clips to learn from.
        dev_split: Clips whose captions choose the best model.
        backbone: Where the frozen backbone of the clips lies now, for example hf:FOLDER. Default: where it lay when they were
            prepared.
        resume: Continue the run in OUT from its newest checkpoint, to the same bits.
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
