"""The host waits for the device once an update: whole trainings on the device `meta`, where any value asked for is an error.

On `meta` tensors have shapes and no values: `.item()`, `nonzero`, masks as indices and branches on
tensors all raise. What is no CPU takes the accelerator's way through the code, here with torch's
packed attention and its gradient, as on CUDA.
"""

import pytest
import torch

from albertkit.config import AlbertConfig
from albertkit.model import AlbertForPreTraining, PackedBatch, attention
from albertkit.pretraining.objective import PretrainingObjective
from albertkit.training.loop import LoopSettings, TrainingRecipe, train
from albertkit.training.monitor import Display
from albertkit.training.processes import World

META = torch.device("meta")
STEPS = 4


class CountingWorld(World):
    """Another process than the one that writes; what it reads from the device is counted, and 1. Others, if any, add nothing."""

    reads: list[int]

    def to_host(self, *values):
        self.reads.append(sum(isinstance(value, torch.Tensor) for value in values))
        numbers = [
            n for v in values for n in ([1.0] * v.numel() if isinstance(v, torch.Tensor) else [v])
        ]
        # The third and the fourth: nobody asks for a plan or to stop
        return [*numbers[:2], 0.0, 0.0, *numbers[4:]]

    def sum(self, values):
        return values

    def gather(self, value):
        return [value] * self.size

    def barrier(self): ...


class Batches:
    """Endless updates of two micro-batches."""

    def __next__(self):
        batch = PackedBatch.from_sequences(
            [[1, 2, 3], [4, 5, 6, 7, 8]],
            None,
            [[0], [1, 2]],
            [[5], [6, 7]],
            sentence_order_labels=[0, 1],
        )
        return [batch, batch]

    def state(self):
        return {}

    def restore(self, state): ...


def run(tmp_path, dtype, model=None, objective=None, processes=1, **changes):
    model = model or make_model()
    model.compute_dtype = dtype
    world = CountingWorld(rank=1, size=processes, device=META)
    object.__setattr__(world, "reads", [])
    settings = LoopSettings(
        **{**dict(steps=STEPS, lr=0.01, log_every=STEPS, ema_decay=0.9), **changes}
    )
    recipe = TrainingRecipe(
        model=model,
        objective=(objective or PretrainingObjective)(model),
        stream=Batches(),
        loop=settings,
        save=None,
        evaluate=lambda: {"score": 1.0},
        select="score",
    )
    result = train(recipe, tmp_path, world, Display(None, silent=True))
    assert result.finished
    return world.reads


def make_model(dropout=0.0):
    sizes = dict(vocab_size=90, hidden_dropout_prob=dropout, attention_probs_dropout_prob=dropout)
    return AlbertForPreTraining(AlbertConfig.from_size("tiny", **sizes)).to(META)


@pytest.mark.parametrize(
    ("optimizer", "dtype"),
    [
        ("lamb", torch.bfloat16),
        ("adamw", torch.float32),
    ],
)
def test_one_read_an_update(tmp_path, monkeypatch, dtype, optimizer):
    monkeypatch.setattr(attention, "_VARLEN_DEVICES", ("cuda", "meta"))
    calls = []
    real = attention._varlen_attention()
    monkeypatch.setattr(
        attention, "_varlen_attention", lambda: lambda *args: calls.append(1) or real(*args)
    )
    reads = run(tmp_path, dtype, optimizer=optimizer, bias_correction=optimizer == "adamw")
    assert reads == [1] * STEPS + [1]  # the last one for the report
    assert bool(calls) == (dtype is torch.bfloat16)


def test_one_read_an_update_among_processes(tmp_path):
    """The norm; tokens; who asks for a plan; who asks to stop, and who has gradients: one transfer."""
    assert run(tmp_path, torch.bfloat16, processes=2) == [4] * STEPS + [1]


def test_dropout_and_recomputation_need_no_value_either(tmp_path):
    model = make_model(dropout=0.1)
    model.gradient_checkpointing = True
    assert run(tmp_path, torch.bfloat16, model)[:STEPS] == [1] * STEPS


def test_a_value_that_is_asked_for_is_found(tmp_path):
    class Asking(PretrainingObjective):
        def losses(self, batch):
            parts = super().losses(batch)
            assert float(parts["masked_lm"].total.detach()) > 0
            return parts

    with pytest.raises((RuntimeError, NotImplementedError), match="meta"):
        run(tmp_path, torch.float32, objective=Asking)
