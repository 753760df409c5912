"""Everything that decides a fine-tuning, in one flat place, that the command line shows without loading torch."""

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from albertkit.config import AlbertConfig
from albertkit.tasks import presets
from albertkit.training.settings import EpochSettings
from albertkit.validation import NotNegative, Positive, Range, Share


@dataclass(frozen=True, kw_only=True)
class FinetuneSettings(EpochSettings):
    """Settings of fine-tuning. Values of None come from the task's preset (the paper's table 14) and are reported.

    Attributes:
        length: Maximum sequence length in tokens, special tokens included. Longer texts are truncated or split into windows.
        long_texts: How to read texts longer than `length`: truncate, or windows (overlapping).
        stride: Tokens between the starts of two windows. Default: 128 for questions, else half a window.
        qa_head: Question answering head: spans (start and end), or beam (end given start, plus answerability; transformers cannot
            load it). Default: Google's choice, spans for squad1 and beam for squad2.
        threshold_from: Data for choosing the "no answer" threshold: train (a held-out share of the training articles) or dev (the
            evaluated questions, as Google does; reported in every result).
        held_out: Share of the training examples used as dev set if there is none.
        dropout: Dropout in the encoder; the classifier's is 0.1. Default: the preset's, else the model's own.
        batch_tokens: Maximum tokens per micro-batch on each device; an update is split into as many as needed.
        class_weights: Class weights in the loss: none, or balanced (rare classes count more).
        positive_class: Of two classes the one whose f1, precision and recall are reported. Default: the rarer one in training;
            tasks with official labels keep theirs.
        freeze: Freeze the encoder and train only the head.
        lora: Rank of LoRA adapters, trained in place of the encoder's matrices; 0: none.
        teacher: Folder of a larger model, fine-tuned on the same task, to distil from.
        teacher_weight: Weight of the distillation loss, 0 to 1.
        teacher_hidden: Weight of the distance to the teacher's hidden states; 0: none.
        exits: Train a classifier after every layer for early exit (PABEE's loss).
    """

    length: Annotated[int | None, Range(8)] = None
    long_texts: Literal["truncate", "windows"] = "truncate"
    stride: Positive | None = None
    qa_head: Literal["spans", "beam"] | None = None
    threshold_from: Literal["train", "dev"] = "train"
    held_out: Share = 0.1
    batch_tokens: Positive = 8192
    class_weights: Literal["none", "balanced"] = "none"
    positive_class: str | None = None
    freeze: bool = False
    lora: NotNegative = 0
    teacher: Path | None = None
    teacher_weight: Annotated[float, Range(0, 1)] = 0.5
    teacher_hidden: Annotated[float, Range(0)] = 0.0
    exits: bool = False

    def problems(self) -> list[str]:
        """List what is impossible."""
        found = super().problems()
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
