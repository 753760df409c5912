"""Packages that SwinBERT imports: found when used, stood in for where that changes nothing, named where it would."""

import sys
from types import ModuleType

import pytest
import torch

from albertkit.errors import ConfigError, MissingExtraError
from albertkit.swinbert.optional_packages import optional


def test_a_package_that_is_there_is_used(monkeypatch):
    module = ModuleType("deepspeed")
    module.initialize = lambda model: (model, "engine")
    lazy = optional("deepspeed")  # before it is there
    monkeypatch.setitem(sys.modules, "deepspeed", module)
    assert lazy.initialize("model") == ("model", "engine")
    assert optional("deepspeed", "initialize")("model") == ("model", "engine")
    with pytest.raises(AttributeError):
        optional("deepspeed", "initialise")("model")


def test_a_package_that_is_broken_says_so_itself(monkeypatch, tmp_path):
    (tmp_path / "fairscale").mkdir()
    (tmp_path / "fairscale/__init__.py").write_text("import nothing_of_that_name\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(ModuleNotFoundError, match="nothing_of_that_name"):
        optional("fairscale", "wrap")()


def test_training_without_apex_is_plain_float32(monkeypatch):
    monkeypatch.setitem(sys.modules, "apex", None)
    amp = optional("apex", "amp")
    parallel = optional("apex.parallel", "DistributedDataParallel")
    layer = torch.nn.Linear(2, 2)
    optimizer = torch.optim.SGD(layer.parameters(), lr=1.0)
    assert amp.initialize(layer, optimizer, enabled=True, opt_level="O0") == (layer, optimizer)
    with amp.scale_loss(layer(torch.ones(1, 2)).sum(), optimizer, delay_unscale=False) as loss:
        loss.backward()
    assert torch.equal(layer.weight.grad, torch.ones(2, 2))
    assert list(amp.master_params(optimizer)) == list(layer.parameters())
    amp.load_state_dict(amp.state_dict())
    with pytest.raises(ConfigError, match="O0, float32"):
        amp.initialize(layer, optimizer, opt_level="O2")
    with pytest.raises(MissingExtraError, match=r"apex\.parallel"):
        parallel(layer)


def test_nobody_listens_without_azureml(monkeypatch):
    monkeypatch.setitem(sys.modules, "azureml", None)
    run = optional("azureml.core.run", "Run").get_context()
    assert run.log(name="CIDEr", value=1.0) is None
