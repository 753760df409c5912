"""What records, replaces or transforms torch's operations sees those of the model itself."""

import pytest
import torch
import transformers
from small_models import TINY, tiny_config
from torch import nn
from torch.testing import assert_close

import albertkit
from albertkit.model import AlbertForSequenceClassification

MASK = (torch.arange(9) < torch.tensor([9, 4])[:, None]).long()
BATCH = {"input_ids": torch.arange(3, 21).view(2, 9) * MASK, "attention_mask": MASK}


def make_model(ours):
    torch.manual_seed(0)
    config = transformers.AlbertConfig(**TINY, initializer_range=0.2)
    model = transformers.AlbertForSequenceClassification(config).eval()
    if not ours:
        return model
    our_model = AlbertForSequenceClassification(tiny_config()).eval()
    our_model.load_state_dict(model.state_dict())
    return our_model


def exported(model):
    return torch.export.export(model, (), BATCH).module()(**BATCH)


def exported_loosely(model):
    return torch.export.export(model, (), BATCH, strict=False).module()(**BATCH)


def compiled(model):
    return torch.compile(model, fullgraph=True, backend="eager")(**BATCH)


def recorded(model):
    from torch.fx.experimental.proxy_tensor import make_fx

    ids = BATCH["input_ids"]  # without a mask, whose values transformers reads
    return make_fx(lambda ids: model(input_ids=ids)[0])(ids)(ids), model(input_ids=ids)[0]


def traced(model):
    class Logits(nn.Module):
        def __init__(self):
            super().__init__()
            self.model = model

        def forward(self, ids, mask):
            return self.model(input_ids=ids, attention_mask=mask)[0]

    return torch.jit.trace(Logits(), tuple(BATCH.values()), check_trace=False)(*BATCH.values())


def called_with_other_parameters(model):
    doubled = {name: 2 * parameter for name, parameter in model.named_parameters()}
    halved = {name: parameter / 2 for name, parameter in doubled.items()}
    return torch.func.functional_call(model, halved, (), BATCH)


def mapped(model):
    answer = torch.func.vmap(lambda ids: model(input_ids=ids[None])[0][0], randomness="error")
    rows = BATCH["input_ids"][:1].expand(2, -1)
    return answer(rows), model(input_ids=rows)[0]


def differentiated(model):
    def loss(weight, ids, label):
        inputs = {"input_ids": ids[None], "labels": label[None]}
        return torch.func.functional_call(model, {name: weight}, (), inputs)["loss"]

    name, labels = "classifier.weight", torch.tensor([0, 1])
    weight = model.get_parameter(name).detach()
    rows = list(zip(BATCH["input_ids"], labels, strict=True))
    with torch.enable_grad():
        gradients = torch.stack([torch.func.grad(loss)(weight, *row) for row in rows])
        mean = model(input_ids=BATCH["input_ids"], labels=labels).loss
    return gradients.mean(0), torch.autograd.grad(mean, model.get_parameter(name))[0]


def counted(model):
    from torch.utils.flop_counter import FlopCounterMode

    with FlopCounterMode(display=False) as counter:
        logits = model(**BATCH)[0]
    assert counter.get_total_flops() > 100_000
    return logits


RUNNERS = [exported, exported_loosely, compiled, traced, called_with_other_parameters, counted]


def _logits(answer):
    return answer if isinstance(answer, torch.Tensor) else answer["logits"]


@torch.no_grad()
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("ours", [False, True])
@pytest.mark.parametrize("run", RUNNERS, ids=lambda run: run.__name__)
def test_model_itself_answers(run, ours):
    model = make_model(ours)
    expected = model(**BATCH)[0] if not ours else model(**BATCH).logits
    logits = _logits(run(albertkit.accelerate(model, "fp32")))
    assert_close(logits, expected, atol=1e-5, rtol=1e-5)


@torch.no_grad()
def test_shapes_without_numbers():
    from torch._subclasses.fake_tensor import FakeTensorMode

    model = albertkit.accelerate(make_model(ours=False), "fp32")
    with FakeTensorMode(allow_non_fake_inputs=True) as mode:
        fake = {name: mode.from_tensor(value) for name, value in BATCH.items()}
        assert model(**fake).logits.shape == (2, 2)


@torch.no_grad()
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("ours", [False, True])
@pytest.mark.parametrize("run", [mapped, recorded, differentiated], ids=lambda run: run.__name__)
def test_transformed_and_recorded_calls(run, ours):
    output, expected = run(albertkit.accelerate(make_model(ours), "fp32", training=True))
    assert_close(output, expected, atol=1e-5, rtol=1e-5)


@torch.no_grad()
def test_tangents_of_parameters():
    """Forward-mode derivatives are computed without gradients being on."""
    model = albertkit.accelerate(make_model(ours=False), "fp32")
    plain = make_model(ours=False)
    tangents = []
    for variant in (model, plain):
        variant.set_attn_implementation("eager")  # torch has no tangents of its fused one
        with torch.autograd.forward_ad.dual_level():
            duals = {
                name: torch.autograd.forward_ad.make_dual(
                    parameter.detach(), torch.ones_like(parameter)
                )
                for name, parameter in variant.named_parameters()
            }
            logits = torch.func.functional_call(
                variant, duals, (), {"input_ids": BATCH["input_ids"]}
            ).logits
            tangents.append(torch.autograd.forward_ad.unpack_dual(logits).tangent)
    assert tangents[1] is not None
    assert_close(*tangents, atol=1e-4, rtol=1e-4)


@torch.no_grad()
def test_function_modes_see_the_model():
    names = []

    class Names(torch.overrides.TorchFunctionMode):
        def __torch_function__(self, function, types, args=(), kwargs=None):
            names.append(getattr(function, "__name__", ""))
            return function(*args, **(kwargs or {}))

    model = albertkit.accelerate(make_model(ours=False), "fp32")
    with Names():
        model(**BATCH)
    assert "layer_norm" in names
