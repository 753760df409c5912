"""A small task for the training loop: the next of 21 tokens, from batches that are drawn from their number."""

import json
import os
import signal
from functools import partial

import torch
from safetensors.torch import save_file

from albertkit.batches.packed import PackedBatch
from albertkit.training import loop
from albertkit.training.loop import LoopSettings, LossPart, TrainingRecipe, train
from albertkit.training.monitor import Display
from albertkit.training.pace import ClockPace, Plan
from albertkit.training.processes import World

WORLD = World(0, 1, torch.device("cpu"))


class CountingStream:
    """Batch number n is drawn from n alone; `split` cuts each batch into micro-batches of one sequence.

    Batches of the numbers in `poison` give an infinite loss; `before` holds what is called before a
    batch of a number.
    """

    def __init__(
        self,
        split=False,
        poison=(),
        before=None,
    ):
        self.cursor = 0
        self.split = split
        self.poison = poison
        self.before = before or {}

    def __next__(self):
        self.before.get(self.cursor, lambda: None)()
        generator = torch.Generator().manual_seed(self.cursor)
        sequences = [torch.randint(0, 20, (n,), generator=generator).tolist() for n in (3, 7, 5)]
        if self.cursor in self.poison:
            sequences[0][0] = 20
        self.cursor += 1
        groups = [[s] for s in sequences] if self.split else [sequences]
        return [PackedBatch.from_sequences(group) for group in groups]

    def state(self):
        return {"cursor": self.cursor}

    def restore(self, state):
        self.cursor = state["cursor"]


class NextPieceObjective:
    """Predict (id * 7) mod 20 of every token from its embedding; token 20 gives an infinite loss."""

    def __init__(self, model):
        self.model = model

    def count_targets(self, batch):
        return {"piece": batch.num_tokens}

    def losses(self, batch):
        targets = batch.input_ids * 7 % 20
        logits = self.model(batch.input_ids)
        if (batch.input_ids == 20).any():
            logits = logits * float("inf")
        total = torch.nn.functional.cross_entropy(logits, targets, reduction="sum")
        return {"piece": LossPart(total, batch.num_tokens, (logits.argmax(1) == targets).sum())}

    def flops(self, batch):
        return 1.0


def make_model():
    torch.manual_seed(3)
    return torch.nn.Sequential(
        torch.nn.Embedding(21, 8), torch.nn.Dropout(0.1), torch.nn.Linear(8, 20)
    )


def weights(model):
    return torch.cat([p.detach().reshape(-1) for p in model.parameters()])


class ReplayedPace(ClockPace):
    """Follow the plans of another training by the clock, whatever the clock says."""

    def __init__(self, plans, adopted):
        super().__init__(1.0, adopted, 0.0)
        self._by_step = {plan.step: plan for plan in plans}

    def wants_plan(self, step):
        return False

    def must_plan(self, step):
        return step in self._by_step

    def plan(self, step):
        return self._by_step[step]


def saved_plans(run):
    """Read the plans of a training by the clock from its last checkpoint."""
    state = json.loads(max(run.glob("checkpoints/*/training_state.json")).read_text())
    return [Plan(**plan) for plan in state["plans"]]


def replay_plans(monkeypatch, run):
    """Let the trainings that follow go by the plans of another one."""
    plans = saved_plans(run)
    monkeypatch.setattr(
        loop,
        "choose_pace",
        lambda settings, state: ReplayedPace(plans, [Plan(**plan) for plan in state.plans]),
    )


def killed():
    raise RuntimeError("killed")


stopped = partial(os.kill, os.getpid(), signal.SIGTERM)


def train_small(
    folder,
    stream=None,
    model=None,
    resume=False,
    evaluate=lambda: {"score": 0.5},
    smaller=False,
    **settings,
):
    """Train and return the model, and how the training ended."""
    model = model or make_model()
    recipe = TrainingRecipe(
        model=model,
        objective=NextPieceObjective(model),
        stream=stream or CountingStream(),
        loop=LoopSettings(**{"lr": 0.05, "optimizer": "adamw", **settings}),
        evaluate=evaluate,
        select="score",
        smaller=smaller,
        save=lambda target: save_file(dict(model.state_dict()), target / "model.safetensors"),
    )
    return model, train(recipe, folder, WORLD, Display(folder, silent=True), resume=resume)
