"""transformers' ALBERT under its Trainer: as documented, and at the best setting we found for it.

Everybody is given the same examples (ids, segments, labels, made beforehand) and starts from the
same weights.
"""

import copy
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from albertkit.model.pretrained import PretrainedAlbert
from albertkit.tables import IGNORED
from benchmarks.harness import Contender, Peer, versions

TRAINER = Peer("transformers Trainer", "transformers", "pip install transformers accelerate")
FIELDS: dict[str, Any] = dict(
    missing=TRAINER.missing, versions=versions("torch", "transformers", "accelerate")
)
Example = dict[
    str, Tensor
]  # input_ids, token_type_ids: int64 [length]; labels: int64 [length] or []; sentence_order_label: int64 []
QUIET: dict[str, Any] = dict(
    save_strategy="no",
    logging_strategy="no",
    report_to="none",
    disable_tqdm=True,
    use_cpu=True,
    dataloader_pin_memory=False,
    remove_unused_columns=False,
)


@dataclass(frozen=True)
class TrainerSetting:
    """Settings of a Trainer.

    Attributes:
        name: As it is shown.
        batch_size: Sequences a step.
        bf16: Autocast to bfloat16.
        pad_to: Length of every row; None for the longest of a batch.
        group_by_length: Let the Trainer put sequences of similar length together.
        compile: `torch_compile=True`.
    """

    name: str
    batch_size: int
    bf16: bool = False
    pad_to: int | None = None
    group_by_length: bool = False
    compile: bool = False


def best_setting(batch_size: int, bf16: bool = True, compile: bool = False) -> TrainerSetting:
    """Return the fastest of what transformers offers that we found."""
    precision = "bf16" if bf16 else "fp32"
    compiled = ", torch_compile" if compile else ""
    name = f"transformers Trainer, best ({precision}, longest in batch, by length, batch {batch_size}{compiled})"
    return TrainerSetting(name, batch_size, bf16=bf16, group_by_length=True, compile=compile)


def pad(examples: Sequence[Example], length: int | None = None) -> Example:
    """Stack examples in rows of one length, by default the longest one's, with an attention mask."""
    padded: Example = {}
    for name in (*examples[0], "attention_mask"):
        rows = [
            torch.ones_like(e["input_ids"]) if name == "attention_mask" else e[name]
            for e in examples
        ]
        if rows[0].dim() == 0:
            padded[name] = torch.stack(rows)
            continue
        fill = IGNORED if name == "labels" else 0
        stacked = pad_sequence(rows, batch_first=True, padding_value=fill)
        missing = (length or stacked.shape[1]) - stacked.shape[1]
        padded[name] = torch.nn.functional.pad(stacked, (0, missing), value=fill)
    return padded


def make_theirs(model: PretrainedAlbert, **options: Any) -> Any:
    """Return transformers' model of the same class with our weights; `options` are those of its class."""
    import transformers

    values = {
        k: v
        for k, v in model.config.to_dict().items()
        if k not in ("model_type", "parameter_sharing")
    }
    theirs = getattr(transformers, type(model).__name__)(
        transformers.AlbertConfig(**values), **options
    )
    unmatched = theirs.load_state_dict(model.state_dict(), strict=False)
    # The decoder is tied, as is its bias.
    missing = [key for key in unmatched.missing_keys if not key.startswith("predictions.decoder.")]
    if missing or unmatched.unexpected_keys:
        raise RuntimeError(
            f"transformers' weights differ from ours: {missing} {unmatched.unexpected_keys}"
        )
    theirs.tie_weights()
    return theirs


def make_trainer(
    model: Any, dataset: Any, collate: Callable[..., Any], callback: Any, **arguments: Any
) -> Any:
    """Return a Trainer that says and saves nothing; `arguments` are `TrainingArguments`."""
    import transformers

    settings = transformers.TrainingArguments(**QUIET, **arguments)
    trainer = transformers.Trainer(
        model=model,
        args=settings,
        train_dataset=dataset,
        data_collator=collate,
        callbacks=[callback],
    )
    # It writes to stdout, where our results go
    trainer.remove_callback(transformers.PrinterCallback)
    return trainer


def contender(
    setting: TrainerSetting, model: Any, examples: Sequence[Example], work: float, scratch: Path
) -> Contender:
    """Return a contender that trains once over the examples with a Trainer and times its training loop only.

    Making the Trainer, its optimizer and its data loader is left out: it happens once in a real
    run. The model is copied, so that every run starts from the same weights.
    """
    clock = _clock()
    if setting.pad_to:
        batches: list[Any] = [
            {k: v[0] for k, v in pad([e], setting.pad_to).items()} for e in examples
        ]
        collate: Callable[..., Any] = torch.utils.data.default_collate
    else:
        batches, collate = list(examples), pad
    arguments: dict[str, Any] = dict(
        output_dir=str(scratch),
        num_train_epochs=1,
        per_device_train_batch_size=setting.batch_size,
        bf16=setting.bf16,
        torch_compile=setting.compile,
    )
    if setting.group_by_length:
        arguments["train_sampling_strategy"] = "group_by_length"

    def make() -> Any:
        return make_trainer(copy.deepcopy(model).train(), batches, collate, clock, **arguments)

    reused = make() if setting.compile else None  # a new one would compile again

    def run() -> float:
        (reused or make()).train()
        return clock.seconds

    return Contender(setting.name, run, work)


def _clock() -> Any:
    import transformers

    class Clock(transformers.TrainerCallback):
        """Seconds between the start and the end of the Trainer's loop."""

        seconds = 0.0

        def on_train_begin(self, *_: Any, **__: Any) -> None:
            self._start = time.perf_counter()

        def on_train_end(self, *_: Any, **__: Any) -> None:
            self.seconds = time.perf_counter() - self._start

    return Clock()
