"""LAMB, AdamW, clipping and schedules against trajectories printed by google-research/albert."""

import json

import numpy as np
import pytest
import torch

from albertkit.training.optimizers import clip_gradients, make_optimizer
from albertkit.training.schedules import learning_rate


def replay(arrays, optimizer_name, **options):
    """Feed the recorded gradients and return the largest deviation of parameters, first and second moments."""
    names = [key[len("param:") :] for key in arrays if key.startswith("param:")]
    tensors = {n: torch.nn.Parameter(torch.from_numpy(arrays[f"param:{n}"][0].copy())) for n in names}
    optimizer = make_optimizer(optimizer_name, tensors.items(), lr=0.0, **options)
    worst = {"param": 0.0, "m": 0.0, "v": 0.0}
    for t, lr in enumerate(arrays["lr"]):
        for name, parameter in tensors.items():
            parameter.grad = torch.from_numpy(arrays[f"grad:{name}"][t].copy())
        norm = clip_gradients(tensors.values(), 1.0)
        assert norm == pytest.approx(arrays["grad_global_norm"][t], rel=1e-5, abs=1e-9)
        optimizer.set_learning_rate(float(lr))
        optimizer.step()
        for name, parameter in tensors.items():
            mine = {"param": parameter.detach(), **optimizer.state[parameter]}
            for slot, value in mine.items():
                expected = torch.from_numpy(arrays[f"{slot}:{name}"][t + 1])
                excess = ((value - expected).abs() - 1e-5 * expected.abs()).max().item()
                worst[slot] = max(worst[slot], excess)
    return worst


@pytest.mark.parametrize(("file", "optimizer"), [("lamb", "lamb"), ("adamw", "adamw"), ("lamb_start", "lamb")])
def test_trajectory_equals_google(golden, file, optimizer):
    worst = replay(np.load(golden / "optim" / f"{file}.npz"), optimizer)
    assert max(worst.values()) < 2e-6, worst


def test_the_trajectory_test_can_fail(golden):
    arrays = np.load(golden / "optim" / "lamb.npz")
    assert replay(arrays, "lamb", bias_correction=True)["param"] > 1e-4
    assert replay(arrays, "adamw")["param"] > 1e-4
    assert replay(arrays, "lamb", weight_decay=0.0)["param"] > 1e-5


def test_corrected_adamw_equals_torch():
    torch.manual_seed(0)
    ours = torch.nn.Parameter(torch.randn(7, 5))
    theirs = torch.nn.Parameter(ours.detach().clone())
    mine = make_optimizer("adamw", [("weight", ours)], lr=0.01, eps=1e-8, bias_correction=True)
    reference = torch.optim.AdamW([theirs], lr=0.01, eps=1e-8, weight_decay=0.01)
    for _ in range(20):
        gradient = torch.randn(7, 5)
        ours.grad, theirs.grad = gradient.clone(), gradient.clone()
        mine.step()
        reference.step()
    torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-6)


def test_excluded_parameters_are_neither_decayed_nor_adapted():
    names = ["a.weight", "a.bias", "b.LayerNorm.weight", "c.full_layer_layer_norm.weight", "predictions.bias"]
    optimizer = make_optimizer("lamb", [(n, torch.nn.Parameter(torch.ones(2))) for n in names], lr=1.0)
    adapted = [optimizer.names[id(p)] for g in optimizer.param_groups if g["adapt"] for p in g["params"]]
    assert adapted == ["a.weight"]


def test_saved_moments_continue_the_same_trajectory():
    def advance(optimizer, parameter, steps, generator):
        for _ in range(steps):
            parameter.grad = torch.randn(4, generator=generator)
            optimizer.step()

    generator = torch.Generator().manual_seed(1)
    whole = torch.nn.Parameter(torch.ones(4))
    advance(make_optimizer("lamb", [("w", whole)], lr=0.1), whole, 6, generator)

    generator.manual_seed(1)
    part = torch.nn.Parameter(torch.ones(4))
    first = make_optimizer("lamb", [("w", part)], lr=0.1)
    advance(first, part, 3, generator)
    second = make_optimizer("lamb", [("w", part)], lr=0.1)
    second.restore({k: v.clone() for k, v in first.tensors().items()}, num_updates=3)
    advance(second, part, 3, generator)
    assert torch.equal(whole, part)


def test_schedules_equal_google(golden):
    schedules = json.loads((golden / "optim" / "optim.json").read_text())["schedules"]
    assert len(schedules) == 6
    for name, entry in schedules.items():
        steps = entry.get("at_steps") or range(len(entry["lr"]))
        for step, expected in zip(steps, entry["lr"], strict=True):
            ours = learning_rate(
                step,
                peak=entry["init_lr"],
                total_steps=entry["num_train_steps"],
                warmup_steps=entry["num_warmup_steps"],
                power=entry["poly_power"],
                start_warmup_step=entry["start_warmup_step"],
            )
            assert ours == pytest.approx(expected, rel=1e-5, abs=1e-9), (name, step)


def test_cosine_and_constant_end_where_they_should():
    settings = dict(peak=2.0, total_steps=10)
    assert learning_rate(5, schedule="cosine", **settings) == pytest.approx(1.0)
    assert learning_rate(10, schedule="cosine", **settings) == pytest.approx(0.0)
    assert learning_rate(10, schedule="constant", **settings) == 2.0
