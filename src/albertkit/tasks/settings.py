"""Everything that decides a fine-tuning, in one flat place, that the command line shows without loading torch."""

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from albertkit.config import AlbertConfig
from albertkit.printable import Notes
from albertkit.training.settings import EpochSettings
from albertkit.validation import NotNegative, Positive, Range, Share


@dataclass(frozen=True)
class Preset:
    """Settings of one task."""

    lr: float  # peak learning rate of AdamW, with linear warm-up and linear decay to 0
    batch_size: int  # examples an update
    dropout: float  # in the encoder ("ALBERT DR"); the classifier's is 0.1 in all
    steps: int  # updates, with as many training examples as the task has
    warmup_steps: int  # of them
    length: int  # longest sequence
    # Training examples of the official task; with another number, steps and warm-up are in
    # proportion
    examples: int


# Lan et al. 2020, table 14; stsb, rte and mrpc there start from a checkpoint that was fine-tuned on
# MNLI. run_glue.sh of google-research/albert has the same (its dropout is the checkpoint's own).
PAPER = {
    "cola": Preset(1e-5, 16, 0.0, 5336, 320, 512, 8_551),
    "stsb": Preset(2e-5, 16, 0.0, 3598, 214, 512, 5_749),
    "sst2": Preset(1e-5, 32, 0.0, 20935, 1256, 512, 67_349),
    "mnli": Preset(3e-5, 128, 0.0, 10000, 1000, 512, 392_702),
    "qnli": Preset(1e-5, 32, 0.0, 33112, 1986, 512, 104_743),
    "qqp": Preset(5e-5, 128, 0.1, 14000, 1000, 512, 363_849),
    "rte": Preset(3e-5, 32, 0.1, 800, 200, 512, 2_490),
    "mrpc": Preset(2e-5, 32, 0.0, 800, 200, 512, 3_668),
    "wnli": Preset(2e-5, 16, 0.1, 2000, 250, 512, 635),
    "squad1": Preset(5e-5, 48, 0.0, 3649, 365, 384, 87_599),
    "squad2": Preset(3e-5, 48, 0.0, 8144, 814, 512, 130_319),
    "race": Preset(2e-5, 32, 0.1, 12000, 1000, 512, 87_866),
}

# Everything else: three epochs at the middle of the table's rates, a tenth of warm-up.
OTHER_LR = 2e-5
OTHER_BATCH_SIZE = 32
OTHER_EPOCHS = 3.0
OTHER_WARMUP = 0.1

# google-research/albert issues 197 and 86: xlarge and xxlarge v2 do not learn at the table's higher
# rates; 5e-6 to 1e-5 work.
LARGE_HIDDEN_SIZE, LARGE_LR = 2048, 1e-5
# Hidden sizes up to which models learn little below a rate. Turc et al. 2019, section 4: BERTs of
# 128 to 512 were fine-tuned at up to 3e-4. At 192, MRPC rises from 67.0 to 69.4 (1e-3: 67.9) and
# STS-B by vectors from 69.2 to 73.4 in as many updates.
NARROW_LR = {256: 3e-4, 512: 1e-4}


def learning_rate_and_reason(lr: float, source: str, hidden_size: int) -> tuple[float, str]:
    """Return a learning rate that a model of a hidden size learns with, and its reason."""
    if hidden_size >= LARGE_HIDDEN_SIZE and lr > LARGE_LR:
        return LARGE_LR, f"{LARGE_LR:g} in place of {lr:g}: models this wide diverge at more"
    narrow_lr = next((rate for size, rate in NARROW_LR.items() if hidden_size <= size), lr)
    if lr < narrow_lr:
        return (
            narrow_lr,
            f"{narrow_lr:g} in place of {lr:g}: models this narrow learn little at less",
        )
    return lr, f"{lr:g} ({source})"


# Hu et al. 2021, LoRA, table 9: 4e-4 to 5e-4 for RoBERTa-base on GLUE. A head on fixed features:
# that of linear probes.
LORA_LR, HEAD_LR = 4e-4, 1e-3


@dataclass(frozen=True, kw_only=True)
class FinetuneSettings(EpochSettings):
    """Settings of fine-tuning. Values of None come from the task's preset (the paper's table 14) and are reported.

    Attributes:
        length: Maximum sequence length in tokens, special tokens included. Longer texts are
            truncated or split into windows.
        long_texts: How to read texts longer than `length`: truncate, or windows (overlapping).
        stride: Tokens between the starts of two windows. Default: 128 for questions, else half a
            window.
        qa_head: Question answering head: spans (start and end), or beam (end given start, plus
            answerability; transformers cannot load it). Default: Google's choice, spans for squad1
            and beam for squad2.
        threshold_from: Data for choosing the "no answer" threshold: train (a held-out share of the
            training articles) or dev (the evaluated questions, as Google does; reported in every
            result).
        held_out: Share of the training examples used as dev set if there is none.
        dropout: Dropout in the encoder; the classifier's is 0.1. Default: the preset's, else the
            model's own.
        batch_tokens: Maximum tokens per micro-batch on each device; an update is split into as many
            as needed.
        class_weights: Class weights in the loss: none, or balanced (rare classes count more).
        positive_class: Of two classes the one whose f1, precision and recall are reported. Default:
            the rarer one in training; tasks with official labels keep theirs.
        freeze: Freeze the encoder and train only the head.
        lora: Rank of LoRA adapters, trained in place of the encoder's matrices; 0: none.
        teacher: Model to distil from, fine-tuned on the same task: an ALBERT, a BERT, or for
            classes, numbers and tags any that transformers opens. Of another tokenizer it reads the
            texts by its own. Labels are matched by name.
        teacher_weight: Weight of the distillation loss, 0 to 1. Default: 0.5; beside texts without
            labels so much more that a labelled example has the weight of one of these.
        edited_copies: Copies of every training text with some words changed, on which the teacher's
            outputs are learned as on examples without labels; 0: none.
        teacher_hidden: Weight of the distance to the teacher's hidden states, which needs one
            tokenizer; 0: none.
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
    teacher_weight: Annotated[float | None, Range(0, 1)] = None
    edited_copies: NotNegative = 0
    teacher_hidden: Annotated[float, Range(0)] = 0.0
    exits: bool = False

    def problems(self) -> list[str]:
        """List what is impossible."""
        problems = super().problems()
        if self.exits and self.teacher is not None:
            problems.append("exits and teacher are both given; a student has one loss")
        if self.edited_copies and self.teacher is None:
            problems.append("edited_copies is given, and no teacher to learn their labels from")
        if self.freeze and self.lora:
            problems.append("freeze and lora are both given; lora trains parts of the encoder")
        return problems

    def resolve(
        self,
        task_name: str,
        config: AlbertConfig,
        num_examples: int,
        num_unlabelled: int = 0,
    ) -> tuple["FinetuneSettings", Notes]:
        """Return the settings with every default a number, and a line for each that says where it is from.

        Args:
            task_name: Of a published task, whose settings are known, or of another.
            config: Of the model that is fine-tuned.
            num_examples: Examples of an epoch.
            num_unlabelled: Those of them that have no label.
        """
        self.check()
        preset = PAPER.get(task_name)
        source = "the paper's table 14" if preset else "no published setting for this task"
        batch_size = self.batch_size or (preset.batch_size if preset else OTHER_BATCH_SIZE)
        if preset and self.epochs is None:
            steps = max(
                1,
                round(
                    preset.steps * preset.batch_size / batch_size * num_examples / preset.examples
                ),
            )
            epochs = f"{steps * batch_size / num_examples:.1f}"
            from_preset = f" ({source})"
        else:
            steps = max(1, math.ceil((self.epochs or OTHER_EPOCHS) * num_examples / batch_size))
            epochs = f"{self.epochs or OTHER_EPOCHS:g}"
            from_preset = ""
        warmup = round(preset.warmup_steps / preset.steps, 4) if preset else OTHER_WARMUP
        dropout = preset.dropout if preset else config.hidden_dropout_prob
        model_dropout = f"the model's own is {config.hidden_dropout_prob:g}"
        length = min(preset.length if preset else 512, config.max_position_embeddings)
        if self.freeze:
            lr = HEAD_LR
            lr_reason = f"{HEAD_LR:g}, only the head learns"
        elif self.lora:
            lr = LORA_LR
            lr_reason = f"{LORA_LR:g}, LoRA's in its paper's table 9"
        else:
            lr, lr_reason = learning_rate_and_reason(
                preset.lr if preset else OTHER_LR,
                source,
                config.hidden_size,
            )
        defaults: dict[str, tuple[float, str]] = {
            "batch_size": (batch_size, f"{batch_size} ({source})"),
            "steps": (
                steps,
                f"{steps:,} = {epochs} epoch{'' if epochs == 1 else 's'} of {num_examples:,} at {batch_size}{from_preset}",
            ),
            "lr": (lr, lr_reason),
            "warmup": (warmup, f"{warmup:.1%} of the steps ({source})"),
            "dropout": (
                dropout,
                f"{dropout:g} ({f'{source}; {model_dropout}' if preset else model_dropout})",
            ),
            "length": (
                length,
                f"{length} ({source if preset else 'as long as the model reads, at most 512'})",
            ),
        }
        if self.teacher is not None:
            # The task's loss is the mean over the labelled examples of an update. At half the
            # weight 3 of 32 hid what the teacher said of the others: after 600 updates on pairs of
            # STS-B the correlation was 0.10, and 0.45 without the labels.
            weight = 1 - 0.5 * (1 - num_unlabelled / num_examples)
            defaults["teacher_weight"] = (weight, f"{weight:.3g} (a half, less for few labels)")
        return self.with_defaults(defaults)
