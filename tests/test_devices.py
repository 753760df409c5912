"""What must hold on every device: the same code on the CPU by default, and on CUDA with `pytest -m gpu`."""

import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import save_file
from torch.testing import assert_close

from albertkit.config import AlbertConfig
from albertkit.engines import load_engine
from albertkit.model import AlbertForPreTraining, PackedBatch
from albertkit.model.attention import packed_attention, varlen_attention_problem
from albertkit.pretraining.objective import PretrainingObjective
from albertkit.training.loop import LoopSettings, TrainingRecipe, train
from albertkit.training.monitor import Display
from albertkit.training.processes import World, make_results_repeatable

DEVICES = [
    pytest.param(torch.device("cpu"), id="cpu"),
    pytest.param(torch.device("cuda:0"), id="cuda", marks=pytest.mark.gpu),
]
LENGTHS = (130, 1, 64, 200, 17)


@pytest.fixture(params=DEVICES)
def device(request):
    if request.param.type == "cuda" and not torch.cuda.is_available():
        pytest.skip("no CUDA device")
    return request.param


def make_model(device, dtype, compiled=False):
    torch.manual_seed(0)
    sizes = dict(
        hidden_size=128,
        num_attention_heads=2,
        intermediate_size=256,
        num_hidden_layers=3,
        vocab_size=500,
    )
    model = AlbertForPreTraining(AlbertConfig.from_size("base", **sizes)).to(device).train()
    model.compute_dtype = dtype
    model.compiled = compiled
    return model


def batch_of(lengths, seed=0):
    generator = torch.Generator().manual_seed(seed)
    ids = [torch.randint(5, 500, (n,), generator=generator).tolist() for n in lengths]
    masked = [list(range(0, n, 7)) for n in lengths]
    labels = [
        [row[position] for position in positions]
        for row, positions in zip(ids, masked, strict=True)
    ]
    return PackedBatch.from_sequences(ids, None, masked, labels, [n % 2 for n in lengths])


def gradients(model, batch):
    model.zero_grad(set_to_none=True)
    losses = model.pretraining_losses(batch)
    loss = losses.masked_lm.mean() + losses.sentence_order.mean()
    loss.backward()
    return loss.item(), torch.cat([p.grad.flatten() for p in model.parameters()]).cpu()


@pytest.mark.parametrize("size", [64, 128])
def test_packed_attention_and_its_gradient(device, size):
    """Beside SDPA of each sequence by itself, in fp32."""
    heads = 3
    generator = torch.Generator().manual_seed(1)
    batch = batch_of(LENGTHS).to(device)
    qkv = (
        torch.randn(sum(LENGTHS), 3 * heads * size, generator=generator)
        .to(device, torch.bfloat16)
        .requires_grad_()
    )
    weights = torch.randn(sum(LENGTHS), heads * size, generator=generator).to(device)
    if device.type == "cuda":
        assert varlen_attention_problem(device) == ""
    actual = packed_attention(qkv, batch, heads)
    (actual.float() * weights).sum().backward()
    exact = qkv.detach().float().requires_grad_()
    parts = []
    for sequence in exact.split(LENGTHS):
        query, key, value = sequence.view(len(sequence), 3, heads, size).permute(1, 2, 0, 3)
        parts.append(F.scaled_dot_product_attention(query, key, value).transpose(0, 1).flatten(1))
    expected = torch.cat(parts)
    (expected * weights).sum().backward()
    assert_close(actual.float(), expected, atol=0.03, rtol=0.03)
    assert (qkv.grad.float() - exact.grad).norm() < 0.02 * exact.grad.norm()


@pytest.mark.parametrize(
    ("dtype", "share"),
    [
        (torch.float32, 1e-4),
        (torch.bfloat16, 0.05),
    ],
)
def test_losses_and_gradients_are_the_cpus(device, dtype, share):
    batch = batch_of(LENGTHS)
    expected_loss, expected = gradients(make_model(torch.device("cpu"), torch.float32), batch)
    loss, actual = gradients(make_model(device, dtype), batch.to(device))
    assert loss == pytest.approx(expected_loss, rel=share)
    assert (actual - expected).norm() < share * expected.norm()


@pytest.mark.gpu
@pytest.mark.parametrize(
    ("dtype", "share"),
    [
        (torch.float32, 1e-4),
        (torch.bfloat16, 0.03),
    ],
)
def test_compiled_passes_compute_the_same_on_cuda(dtype, share):
    if not torch.cuda.is_available():
        pytest.skip("no CUDA device")
    device = torch.device("cuda:0")
    eager, compiled = (make_model(device, dtype, on) for on in (False, True))
    for lengths in (LENGTHS, (9, 9), (300, 4, 51)):
        batch = batch_of(lengths).to(device)
        (expected_loss, expected), (loss, actual) = (
            gradients(eager, batch),
            gradients(compiled, batch),
        )
        assert loss == pytest.approx(expected_loss, rel=share)
        assert (actual - expected).norm() < share * expected.norm()


@pytest.mark.parametrize("precision", ["fp32", "auto"])
def test_an_engine_computes_what_the_model_does(device, precision):
    model = make_model(torch.device("cpu"), torch.float32).eval()
    batch = batch_of(LENGTHS)
    with torch.no_grad():
        expected = model.albert.encode(batch)
    engine = load_engine(model.to(device), precision)
    actual = engine.encode(batch.to(device))
    atol = 1e-4 if engine.precision == "fp32" else 0.1
    assert_close(actual.hidden.float().cpu(), expected.hidden, atol=atol, rtol=0)
    assert_close(actual.pooled.float().cpu(), expected.pooled, atol=atol, rtol=0)


class Batches:
    def __init__(self):
        self.cursor = 0

    def __next__(self):
        self.cursor += 1
        return [
            batch_of((90 + self.cursor, 30, 141), self.cursor),
            batch_of((12, 5 * self.cursor), -self.cursor),
        ]

    def state(self):
        return {"cursor": self.cursor}

    def restore(self, state):
        self.cursor = state["cursor"]


class ReadingWorld(World):
    """After the first read CUDA raises whenever the host waits elsewhere, until a file is written."""

    def read(self, *values):
        forbid_waiting(self.device, False)
        numbers = super().read(*values)
        forbid_waiting(self.device, True)
        return numbers


def forbid_waiting(device, forbid):
    if device.type == "cuda":
        torch.cuda.set_sync_debug_mode("error" if forbid else "default")


def run(folder, device, steps, optimizer, resume=False):
    dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
    model = make_model(device, dtype, compiled=False)
    settings = LoopSettings(
        steps=steps, lr=0.01, optimizer=optimizer, schedule="constant", save_every=3, ema_decay=0.9
    )
    world = ReadingWorld(0, 1, device)

    def save_model(target):
        forbid_waiting(device, False)
        save_file({"x": torch.zeros(1)}, target / "model.safetensors")

    with make_results_repeatable(device):
        recipe = TrainingRecipe(
            model=model,
            objective=PretrainingObjective(model),
            stream=Batches(),
            loop=settings,
            save=save_model,
            evaluate=lambda: {"score": 1.0},
            select="score",
        )
        train(recipe, folder, world, Display(folder, silent=True), resume=resume)
    forbid_waiting(device, False)
    return torch.cat([p.detach().flatten() for p in model.parameters()]).cpu()


@pytest.mark.parametrize("optimizer", ["lamb", "adamw"])
def test_a_resumed_training_ends_with_the_same_bits(device, tmp_path, optimizer):
    """On CUDA also: between the first read and the first file, the host waits nowhere but in `World.read`."""
    expected = run(tmp_path / "whole", device, 6, optimizer)
    assert torch.equal(run(tmp_path / "again", device, 6, optimizer), expected)
    run(tmp_path / "cut", device, 3, optimizer)
    assert torch.equal(run(tmp_path / "cut", device, 6, optimizer, resume=True), expected)
