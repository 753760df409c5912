"""The smallest complete training on the frame `Run`: to name the number after a number."""

from dataclasses import replace
from functools import partial
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from torch import nn

from albertkit.batches.packed import PackedBatch
from albertkit.training.loop import LoopSettings, LossPart, TrainingRecipe
from albertkit.training.run import Best, Run, RunResult, open_run
from albertkit.training.settings import EpochSettings

NUMBERS = torch.arange(20)
UNFINISHED = RunResult(metric="accuracy", remedy="try a lower --lr")


class Successors:
    """The objective, and the endless stream of its batches."""

    def __init__(self, model: nn.Module) -> None:
        self.model = model
        self.update = 0

    def __next__(self) -> list[PackedBatch]:
        self.update += 1
        return [PackedBatch.from_sequences([[(self.update + n) % 20 for n in range(5)]])]

    def state(self) -> dict:
        return {"update": self.update}

    def restore(self, state: dict) -> None:
        self.update = state["update"]

    def count_targets(self, batch: PackedBatch) -> dict[str, int]:
        return {"number": batch.num_tokens}

    def losses(self, batch: PackedBatch) -> dict[str, LossPart]:
        logits = self.model(batch.input_ids)
        goals = (batch.input_ids + 1) % 20
        total = nn.functional.cross_entropy(logits, goals, reduction="sum")
        return {"number": LossPart(total, batch.num_tokens, (logits.argmax(1) == goals).sum())}

    def flops(self, batch: PackedBatch) -> float:
        return 1.0


def learn_successors(out: Path, settings: EpochSettings, resume: bool = False) -> RunResult:
    with open_run(out, settings, "successors", resume) as run:
        return run.of_seeds(learn_once)


def learn_once(run: Run[EpochSettings]) -> RunResult:
    model = make_model(run.settings.seed)
    task = Successors(model)
    run = run.resolved(
        replace(
            run.settings, steps=run.settings.steps or 60, lr=run.settings.lr or 0.1, eval_every=20
        )
    )
    run.check_made_from({"data": "numbers"})
    recipe = TrainingRecipe(
        model=model,
        objective=task,
        stream=task,
        loop=LoopSettings.over_epochs(run.settings),
        evaluate=partial(scores, model),
        select="accuracy",
        save=partial(save, model),
        provenance={"data": "numbers"},
        notes=["parameters: 364"],
    )
    return run.fit(
        recipe, Best(UNFINISHED, partial(load, model), result_of, write=lambda best, result: None)
    )


def make_model(seed: int) -> nn.Module:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Embedding(20, 8), nn.Dropout(0.1), nn.Linear(8, 20))


def save(model: nn.Module, folder: Path) -> None:
    save_file(dict(model.state_dict()), folder / "model.safetensors")


def load(model: nn.Module, folder: Path) -> nn.Module:
    model.load_state_dict(load_file(folder / "model.safetensors"))
    return model.eval()


def result_of(best: nn.Module, state: object) -> RunResult:
    metrics = scores(best)
    nothing = "no number is right" if metrics["accuracy"] == 0 else None
    return replace(UNFINISHED, value=metrics["accuracy"], scores=metrics, collapsed=nothing)


def scores(model: nn.Module) -> dict[str, float]:
    right = (model(NUMBERS).argmax(1) == (NUMBERS + 1) % 20).double()
    return {"accuracy": right.mean().item()}
