"""LAMB, AdamW, clipping and schedules against trajectories of google-research/albert and TensorFlow's Model Garden."""

import math
import subprocess
import sys

import numpy as np
import pytest
import torch

from albertkit.files import read_json
from albertkit.training.loop import learning_rate
from albertkit.training.optimizers import clip_gradients, make_optimizer


def replay(arrays, optimizer_name):
    """Feed the recorded gradients and return the largest deviation of parameters, first and second moments."""
    names = [key[len("param:") :] for key in arrays if key.startswith("param:")]
    tensors = {
        n: torch.nn.Parameter(torch.from_numpy(arrays[f"param:{n}"][0].copy())) for n in names
    }
    optimizer = make_optimizer(optimizer_name, tensors.items(), lr=0.0)
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


def google_rate(step, run):
    """Our learning rate for the settings of a recorded run or schedule."""
    warmup_steps = run["num_warmup_steps"]
    if run["start_warmup_step"]:  # which ours has not
        if (warmed := step - run["start_warmup_step"]) < warmup_steps:
            return run["init_lr"] * warmed / warmup_steps
        warmup_steps = 0
    return learning_rate(
        step,
        peak=run["init_lr"],
        total_steps=run["num_train_steps"],
        warmup_steps=warmup_steps,
        power=run["poly_power"],
    )


@pytest.mark.parametrize(
    ("file", "optimizer"),
    [
        ("lamb", "lamb"),
        ("adamw", "adamw"),
        ("lamb_start", "lamb"),
    ],
)
def test_trajectory_equals_google(golden, file, optimizer):
    arrays = np.load(golden / "optim" / f"{file}.npz")
    recorded = read_json(golden / "optim/optim.json")
    kinds = ("grad", "param", "m", "v")
    shapes = {
        f"{kind}:{name.replace('/', '.')}": shape
        for name, shape in recorded["variables"]
        for kind in kinds
    }
    assert set(arrays) == shapes.keys() | {"lr", "grad_global_norm"}  # all of which `replay` reads
    assert all(list(arrays[name].shape[1:]) == shape for name, shape in shapes.items())
    run = recorded["runs"][file]
    assert run["optimizer"] == optimizer
    for step, expected in enumerate(arrays["lr"]):
        assert google_rate(step, run) == pytest.approx(expected, rel=1e-5, abs=1e-9)
    worst = replay(arrays, optimizer)
    assert max(worst.values()) < 2e-6, worst


def test_corrected_adamw_is_torchs_with_another_epsilon():
    torch.manual_seed(0)
    ours = torch.nn.Parameter(torch.randn(7, 5))
    theirs = torch.nn.Parameter(ours.detach().clone())
    mine = make_optimizer("adamw", [("weight", ours)], lr=0.01, bias_correction=True)
    reference = torch.optim.AdamW([theirs], lr=0.01, weight_decay=0.01)
    for update in range(1, 21):
        gradient = 1e-5 * torch.randn(7, 5)
        ours.grad = gradient.clone()
        theirs.grad = gradient.clone()
        mine.step()
        reference.param_groups[0]["eps"] = 1e-6 / math.sqrt(1 - 0.999**update)
        reference.step()
    torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-6)


# Printed by Model Garden, tf-models-official 2.20.0 on TensorFlow 2.21:
# official.nlp.optimization.create_optimizer( init_lr=0.1, num_train_steps=8, num_warmup_steps=2,
# end_lr=0.02, optimizer_type=…), seven updates of three variables. AdamWeightDecay clips gradients
# to a norm of 1, LAMB does not. Sizes of the gradients: epsilon matters in the first three.
GRADIENT_SCALES = (1e-5, 1e-5, 1e-4, 2.0, 0.0, 3.0, 0.05)
MODEL_GARDEN_RATES = [0.0, 0.050000001, 0.079999998, 0.069999993, 0.059999999, 0.049999997, 0.039999999, 0.029999999, 0.02, 0.02, 0.02]  # fmt: skip # noqa: E501
MODEL_GARDEN_WEIGHTS = {
    "adamw": {
        "dense/kernel": [0.89361191, 0.62632233, -0.32642111, -0.88814211, -0.73791152, 0.19474179],
        "layer_norm/gamma": [-0.88457882, -0.083240442, 0.75223005],
        "dense/bias": [0.4960891, -0.45890403, -0.89665955],
    },
    "lamb": {
        "dense/kernel": [0.8326357, 0.62978899, -0.3075648, -0.8456406, -0.73673695, 0.17749318],
        "layer_norm/gamma": [-0.8449105, -0.075492881, 0.75992221],
        "dense/bias": [0.48621219, -0.46597511, -0.90208858],
    },
}


def model_garden_trajectory(optimizer_name, clip_norm):
    """The same seven updates by our optimizer; the largest deviation from Model Garden's weights."""
    expected = MODEL_GARDEN_WEIGHTS[optimizer_name]
    angles = {
        name: 10 * number + np.arange(len(values))
        for number, (name, values) in enumerate(expected.items())
    }

    def tensor(values, name):
        return torch.from_numpy(values.astype(np.float32)).view(
            (2, 3) if name == "dense/kernel" else 3
        )

    weights = {
        name: torch.nn.Parameter(tensor(np.cos(angle), name)) for name, angle in angles.items()
    }
    optimizer = make_optimizer(optimizer_name, weights.items(), lr=0.0, bias_correction=True)
    for step, scale in enumerate(GRADIENT_SCALES):
        for name, weight in weights.items():
            weight.grad = tensor(scale * np.sin(angles[name] + 3.0 * step), name)
        clip_gradients(weights.values(), clip_norm)
        optimizer.set_learning_rate(
            learning_rate(step, peak=0.1, total_steps=8, warmup_steps=2, end_lr=0.02)
        )
        optimizer.step()
    return max(
        (weights[n].detach().view(-1) - torch.tensor(expected[n])).abs().max().item()
        for n in expected
    )


@pytest.mark.parametrize(
    ("optimizer", "clip_norm"),
    [
        ("adamw", 1.0),
        ("lamb", 0.0),
    ],
)
def test_bias_correction_is_model_gardens(optimizer, clip_norm):
    assert model_garden_trajectory(optimizer, clip_norm) < 1e-6


def test_the_schedule_with_an_end_is_model_gardens():
    for step, expected in enumerate(MODEL_GARDEN_RATES):
        ours = learning_rate(step, peak=0.1, total_steps=8, warmup_steps=2, end_lr=0.02)
        assert ours == pytest.approx(expected, rel=1e-6)


def test_excluded_parameters_are_neither_decayed_nor_adapted():
    names = (
        "a.weight a.bias b.LayerNorm.weight c.full_layer_layer_norm.weight predictions.bias".split()
    )
    optimizer = make_optimizer(
        "lamb", [(n, torch.nn.Parameter(torch.ones(2))) for n in names], lr=1.0
    )
    adapted = [
        optimizer.names[id(p)] for g in optimizer.param_groups if g["adapt"] for p in g["params"]
    ]
    assert adapted == ["a.weight"]


def test_saved_moments_continue_the_same_trajectory():
    def advance(optimizer, parameter, steps, generator):
        for _ in range(steps):
            parameter.grad = torch.randn(4, generator=generator)
            optimizer.step()

    generator = torch.Generator().manual_seed(1)
    unbroken = torch.nn.Parameter(torch.ones(4))
    advance(make_optimizer("lamb", [("w", unbroken)], lr=0.1), unbroken, 6, generator)

    generator.manual_seed(1)
    part = torch.nn.Parameter(torch.ones(4))
    first = make_optimizer("lamb", [("w", part)], lr=0.1)
    advance(first, part, 3, generator)
    second = make_optimizer("lamb", [("w", part)], lr=0.1)
    second.restore({k: v.clone() for k, v in first.tensors().items()}, num_updates=3)
    advance(second, part, 3, generator)
    assert torch.equal(unbroken, part)


def test_schedules_equal_google(golden):
    schedules = read_json(golden / "optim/optim.json")["schedules"]
    assert len(schedules) == 6
    for name, entry in schedules.items():
        steps = entry.get("at_steps") or range(len(entry["lr"]))
        for step, expected in zip(steps, entry["lr"], strict=True):
            ours = google_rate(step, entry)
            assert ours == pytest.approx(expected, rel=1e-5, abs=1e-9), (name, step)


def test_cosine_and_constant_end_where_they_should():
    settings = dict(peak=2.0, total_steps=10)
    assert learning_rate(5, schedule="cosine", **settings) == pytest.approx(1.0)
    assert learning_rate(10, schedule="cosine", **settings) == pytest.approx(0.0)
    assert learning_rate(10, schedule="cosine", end_lr=0.5, **settings) == pytest.approx(0.5)
    assert learning_rate(10, schedule="constant", **settings) == 2.0


def test_no_optimizer_brings_torchs_compiler():
    """Which takes a second of every start: the wrappers of torch's base class import it."""
    code = """
import sys, torch
from albertkit.training.optimizers import OPTIMIZERS, make_optimizer
for name in OPTIMIZERS:
    optimizer = make_optimizer(name, [("weight", torch.ones(2, requires_grad=True))], lr=0.1)
    optimizer.zero_grad()
    optimizer.load_state_dict(optimizer.state_dict())
sys.exit("torch._dynamo" in sys.modules)
"""
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0
