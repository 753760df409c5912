"""Everything that decides a fine-tuning, in one flat place, that the command line shows without loading torch."""

import dataclasses
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from albertkit.config import AlbertConfig
from albertkit.tasks import presets
from albertkit.training.settings import EpochSettings


@dataclass(frozen=True, kw_only=True)
class FinetuneSettings(EpochSettings):
    """Settings of a fine-tuning. What is None is taken from the task's preset (the paper's table 14) and said.

    Attributes:
        length: Longest sequence, in tokens, special tokens included. Longer texts are cut, or go in windows.
        long_texts: truncate, or windows: a text that is too long is read in overlapping windows.
        stride: Tokens from the start of one window to the start of the next. Default: 128 for questions, else half a window.
        qa_head: Of question answering: spans (a start and an end), or beam (ends given starts, and whether there is an
            answer). Default: Google's choice, spans for squad1 and beam for squad2, which transformers cannot load.
        threshold_from: What the threshold for "no answer" is chosen on: train (a share of the training articles that is not
            trained on) or dev (Google's: on the very questions that are scored; said in every result).
        held_out: Share of the training examples kept as dev where the data have none.
        dropout: In the encoder; the classifier's is 0.1. Default: the preset's, else the model's own.
        batch_tokens: Most tokens computed at once on a device; an update is cut into as many parts as that takes.
        class_weights: none, or balanced: rare classes count more.
        freeze: Train the head alone.
        lora: Rank of low-rank adapters that are trained in place of the encoder's matrices; 0 for none.
        teacher: Folder of a larger model, fine-tuned on the same task, to learn from.
        teacher_weight: Share of the loss that is the teacher's.
        teacher_hidden: Weight of the distance to the teacher's hidden states; 0 for none.
        exits: Train a classifier after every pass, too, so that easy texts can leave early (PABEE's loss).
    """

    length: int | None = None
    long_texts: Literal["truncate", "windows"] = "truncate"
    stride: int | None = None
    qa_head: Literal["spans", "beam"] | None = None
    threshold_from: Literal["train", "dev"] = "train"
    held_out: float = 0.1
    batch_tokens: int = 8192
    class_weights: Literal["none", "balanced"] = "none"
    freeze: bool = False
    lora: int = 0
    teacher: Path | None = None
    teacher_weight: float = 0.5
    teacher_hidden: float = 0.0
    exits: bool = False

    def problems(self) -> list[str]:
        """List what is impossible."""
        at_least = dict(length=8, stride=1, batch_tokens=1, lora=0, teacher_hidden=0)
        found = [*super().problems(), *self.out_of_range(at_least, ("held_out",))]
        if not 0 <= self.teacher_weight <= 1:
            found.append(f"teacher_weight must be from 0 to 1, it is {self.teacher_weight}")
        if self.exits and self.teacher is not None:
            found.append("exits and teacher are both given; a student has one loss")
        if self.freeze and self.lora:
            found.append("freeze and lora are both given; lora trains parts of the encoder")
        return found

    def resolve(self, task_name: str, config: AlbertConfig, num_examples: int) -> tuple["FinetuneSettings", list[str]]:
        """Fill in what was left open.

        Args:
            task_name: For the preset.
            config: Of the model.
            num_examples: Training examples.

        Returns:
            The settings with every default a number, and a line for each that says where it is from.
        """
        self.check()
        preset = presets.PAPER.get(task_name)
        source = "the paper's table 14" if preset else "no published setting for this task"
        changes: dict[str, Any] = {}
        reasons = []
        batch_size = self.batch_size or (preset.batch_size if preset else presets.OTHER_BATCH_SIZE)
        if self.batch_size is None:
            changes["batch_size"] = batch_size
            reasons.append(f"batch_size: {batch_size} ({source})")
        if self.steps is not None:
            steps = self.steps
        elif self.epochs is not None or preset is None:
            epochs = self.epochs or presets.OTHER_EPOCHS
            steps = max(1, math.ceil(epochs * num_examples / batch_size))
            reasons.append(f"steps: {steps:,} = {epochs:g} epochs of {num_examples:,} at {batch_size}")
        else:
            steps = max(1, round(preset.steps * preset.batch_size / batch_size * num_examples / preset.examples))
            passes = steps * batch_size / num_examples
            reasons.append(f"steps: {steps:,} = {passes:.1f} epochs of {num_examples:,} at {batch_size} ({source})")
        changes["steps"], changes["epochs"] = steps, None
        if self.lr is None and self.freeze:
            changes["lr"] = presets.HEAD_LR
            reasons.append(f"lr: {presets.HEAD_LR:g}, only the head learns")
        elif self.lr is None and self.lora:
            changes["lr"] = presets.LORA_LR
            reasons.append(f"lr: {presets.LORA_LR:g}, LoRA's in its paper's table 9")
        elif self.lr is None:
            lr = preset.lr if preset else presets.OTHER_LR
            if config.hidden_size >= presets.LARGE_HIDDEN_SIZE and lr > presets.LARGE_LR:
                changes["lr"] = presets.LARGE_LR
                reasons.append(f"lr: {presets.LARGE_LR:g} in place of {lr:g}: models this wide diverge at more")
            else:
                changes["lr"] = lr
                reasons.append(f"lr: {lr:g} ({source})")
        if self.warmup is None:
            changes["warmup"] = round(preset.warmup_steps / preset.steps, 4) if preset else presets.OTHER_WARMUP
            reasons.append(f"warmup: {changes['warmup']:.1%} of the steps ({source})")
        if self.dropout is None:
            changes["dropout"] = preset.dropout if preset else config.hidden_dropout_prob
            own = f"the model's own is {config.hidden_dropout_prob:g}"
            reasons.append(f"dropout: {changes['dropout']:g} ({f'{source}; {own}' if preset else own})")
        if self.length is None:
            wanted = preset.length if preset else 512
            changes["length"] = min(wanted, config.max_position_embeddings)
            reasons.append(
                f"length: {changes['length']} ({source if preset else 'as long as the model reads, at most 512'})"
            )
        if self.eval_every is None:
            changes["eval_every"] = max(1, math.ceil(steps / 10))
        return dataclasses.replace(self, **changes), reasons
