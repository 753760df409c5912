"""transformers' ALBERT under its Trainer: as documented, and at the best setting we found for it.

Both are given the same examples as we are (ids, segments, labels, made beforehand) and start from the same weights.
"""

import copy
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from albertkit.benchmarks.harness import Contender
from albertkit.config import AlbertConfig
from albertkit.model.packing import IGNORED, PackedBatch

Example = dict[str, Tensor]  # input_ids, token_type_ids, labels: int64 [length]; sentence_order_label: int64 []


@dataclass(frozen=True)
class TrainerSetting:
    """How a Trainer is run.

    Attributes:
        name: As it is shown.
        batch_size: Sequences a step.
        bf16: Autocast to bfloat16.
        pad_to: "max_length", or "longest" of the batch.
        group_by_length: Let the Trainer put sequences of similar length together.
        compile: `torch_compile=True`.
    """

    name: str
    batch_size: int
    bf16: bool = False
    pad_to: str = "max_length"
    group_by_length: bool = False
    compile: bool = False


DOCUMENTED = TrainerSetting("transformers Trainer, documented (fp32, padded)", batch_size=8)


def best_setting(batch_size: int, bf16: bool = True, compile: bool = False) -> TrainerSetting:
    """The fastest of what transformers offers that we found."""
    precision = "bf16" if bf16 else "fp32"
    compiled = ", torch_compile" if compile else ""
    name = f"transformers Trainer, best ({precision}, longest in batch, by length, batch {batch_size}{compiled})"
    return TrainerSetting(name, batch_size, bf16=bf16, pad_to="longest", group_by_length=True, compile=compile)


def examples_of(batch: PackedBatch) -> list[Example]:
    """A packed batch as single examples with transformers' names."""
    assert batch.masked_positions is not None
    assert batch.masked_labels is not None
    labels = torch.full_like(batch.input_ids, IGNORED)
    labels[batch.masked_positions] = batch.masked_labels
    orders = batch.sentence_order_labels
    assert orders is not None
    parts = [tensor.split(list(batch.lengths)) for tensor in (batch.input_ids, batch.token_type_ids, labels)]
    return [
        {"input_ids": ids, "token_type_ids": types, "labels": targets, "sentence_order_label": order}
        for ids, types, targets, order in zip(*parts, orders, strict=True)
    ]


def pad(examples: Sequence[Example], length: int) -> Example:
    """Stack examples in rows of one length, with an attention mask."""
    fill = {"input_ids": 0, "token_type_ids": 0, "labels": IGNORED, "attention_mask": 0}
    rows = [{**e, "attention_mask": torch.ones_like(e["input_ids"])} for e in examples]
    padded = {
        name: torch.stack([F.pad(row[name], (0, length - len(row[name])), value=value) for row in rows])
        for name, value in fill.items()
    }
    return {**padded, "sentence_order_label": torch.stack([row["sentence_order_label"] for row in rows])}


def make_model(
    config: AlbertConfig, weights: dict[str, Tensor], name: str = "AlbertForPreTraining", **options: Any
) -> Any:
    """transformers' model with our weights.

    Args:
        config: Ours.
        weights: Ours.
        name: Of its class.
        **options: What it takes beside the configuration.

    Raises:
        RuntimeError: Names that one side has and the other has not.
    """
    import transformers

    values = {k: v for k, v in config.to_dict().items() if k not in ("model_type", "parameter_sharing")}
    model = getattr(transformers, name)(transformers.AlbertConfig(**values), **options)
    unmatched = model.load_state_dict(weights, strict=False)
    # The decoder is tied, as is its bias.
    missing = [key for key in unmatched.missing_keys if not key.startswith("predictions.decoder.")]
    if missing or unmatched.unexpected_keys:
        raise RuntimeError(f"transformers' weights differ from ours: {missing} {unmatched.unexpected_keys}")
    model.tie_weights()
    return model


def contender(
    setting: TrainerSetting,
    model: Any,
    examples: Sequence[Example],
    max_length: int,
    scratch: Path,
    pad: Callable[[Sequence[Example], int], Example] = pad,
) -> Contender:
    """A contender that trains once over the examples with a Trainer and times its training loop only.

    Making the Trainer, its optimizer and its data loader is left out: it happens once in a real run. Work is counted in tokens.

    Args:
        setting: Of the Trainer.
        model: transformers'; copied, so that every run starts from the same weights.
        examples: Unpadded.
        max_length: What "max_length" pads to.
        scratch: A folder for the Trainer.
        pad: Stacks examples in rows of a length.
    """
    import transformers

    clock = _clock(transformers)
    if setting.pad_to == "max_length":
        batches: list[Any] = [{k: v[0] for k, v in pad([e], max_length).items()} for e in examples]
        collate = torch.utils.data.default_collate
    else:
        batches, collate = list(examples), lambda rows: pad(rows, max(len(e["input_ids"]) for e in rows))
    options: dict[str, Any] = {"train_sampling_strategy": "group_by_length"} if setting.group_by_length else {}
    arguments = transformers.TrainingArguments(
        output_dir=str(scratch), num_train_epochs=1, per_device_train_batch_size=setting.batch_size, bf16=setting.bf16,
        torch_compile=setting.compile, save_strategy="no", logging_strategy="no", report_to="none", disable_tqdm=True,
        use_cpu=True, dataloader_pin_memory=False, remove_unused_columns=False, **options,
    )  # fmt: skip

    def make_trainer() -> Any:
        trainer = transformers.Trainer(
            model=copy.deepcopy(model).train(), args=replace(arguments), train_dataset=batches, data_collator=collate,
            callbacks=[clock],
        )  # fmt: skip
        trainer.remove_callback(transformers.PrinterCallback)  # it writes to stdout, where our results go
        return trainer

    kept = make_trainer() if setting.compile else None  # a new one would compile again

    def run() -> float:
        (kept or make_trainer()).train()
        return clock.seconds

    return Contender(setting.name, run, float(sum(len(e["input_ids"]) for e in examples)))


def _clock(transformers: Any) -> Any:
    class Clock(transformers.TrainerCallback):
        """Seconds between the start and the end of the Trainer's loop."""

        seconds = 0.0

        def on_train_begin(self, *_: Any, **__: Any) -> None:
            self._start = time.perf_counter()

        def on_train_end(self, *_: Any, **__: Any) -> None:
            self.seconds = time.perf_counter() - self._start

    return Clock()
