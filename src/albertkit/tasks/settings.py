"""Everything that decides a fine-tuning, in one flat place, that the command line shows without loading torch."""

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from albertkit.config import AlbertConfig
from albertkit.tasks import presets
from albertkit.training.settings import EpochSettings


@dataclass(frozen=True, kw_only=True)
class FinetuneSettings(EpochSettings):
    """Settings of a fine-tuning. What is None is taken from the task's preset (the paper's table 14) and reported.

    Attributes:
        length: Longest sequence, in tokens, special tokens included. Longer texts are cut, or go in windows.
        long_texts: truncate, or windows: a text that is too long is read in overlapping windows.
        stride: Tokens from the start of one window to the start of the next. Default: 128 for questions, else half a window.
        qa_head: Head for question answering: spans (a start and an end), or beam (ends given starts, and whether there is an
            answer). Default: Google's choice, spans for squad1 and beam for squad2, which transformers cannot load.
        threshold_from: What the threshold for "no answer" is chosen on: train (a share of the training articles that is not
            trained on) or dev (Google's: on the very questions that are scored; reported in every result).
        held_out: Share of the training examples used as dev set if the data have none.
        dropout: Dropout in the encoder; the classifier's is 0.1. Default: the preset's, else the model's own.
        batch_tokens: Most tokens computed at once on a device; an update is cut into as many parts as that takes.
        class_weights: none, or balanced: rare classes count more.
        freeze: Train the head alone.
        lora: Rank of low-rank adapters that are trained in place of the encoder's matrices; 0 for none.
        teacher: Folder of a larger model, fine-tuned on the same task, to learn from.
        teacher_weight: Weight of the teacher's part of the loss, 0 to 1.
        teacher_hidden: Weight of the distance to the teacher's hidden states; 0 for none.
        exits: Train a classifier after every layer, for early exit (PABEE's loss).
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
        """Return the settings with every default a number, and a line for each that says where it is from."""
        self.check()
        preset = presets.PAPER.get(task_name)
        source = "the paper's table 14" if preset else "no published setting for this task"
        batch_size = self.batch_size or (preset.batch_size if preset else presets.OTHER_BATCH_SIZE)
        if preset and self.epochs is None:
            steps = max(1, round(preset.steps * preset.batch_size / batch_size * num_examples / preset.examples))
            epochs, from_preset = f"{steps * batch_size / num_examples:.1f}", f" ({source})"
        else:
            steps = max(1, math.ceil((self.epochs or presets.OTHER_EPOCHS) * num_examples / batch_size))
            epochs, from_preset = f"{self.epochs or presets.OTHER_EPOCHS:g}", ""
        warmup = round(preset.warmup_steps / preset.steps, 4) if preset else presets.OTHER_WARMUP
        dropout = preset.dropout if preset else config.hidden_dropout_prob
        own = f"the model's own is {config.hidden_dropout_prob:g}"
        length = min(preset.length if preset else 512, config.max_position_embeddings)
        defaults: dict[str, tuple[float, str]] = {
            "batch_size": (batch_size, f"{batch_size} ({source})"),
            "steps": (steps, f"{steps:,} = {epochs} epochs of {num_examples:,} at {batch_size}{from_preset}"),
            "lr": self._rate(preset, config, source),
            "warmup": (warmup, f"{warmup:.1%} of the steps ({source})"),
            "dropout": (dropout, f"{dropout:g} ({f'{source}; {own}' if preset else own})"),
            "length": (length, f"{length} ({source if preset else 'as long as the model reads, at most 512'})"),
        }
        return self.filled(defaults)

    def _rate(self, preset: presets.Preset | None, config: AlbertConfig, source: str) -> tuple[float, str]:
        """Return the learning rate where none is set, and where it is from."""
        if self.freeze:
            return presets.HEAD_LR, f"{presets.HEAD_LR:g}, only the head learns"
        if self.lora:
            return presets.LORA_LR, f"{presets.LORA_LR:g}, LoRA's in its paper's table 9"
        return presets.default_rate(preset.lr if preset else presets.OTHER_LR, source, config.hidden_size)
