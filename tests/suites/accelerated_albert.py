"""A plugin of pytest: transformers' ALBERTs are accelerated when they change their mode; what is computed here is counted."""

import warnings
from typing import Any

import transformers

import albertkit
from albertkit.pipelines.accelerate import _TransformersForward

Model = transformers.AlbertPreTrainedModel
computed: list[str] = []  # a name for each time that the engine or the packed layers computed


def train_and_accelerate(model: Any, mode: bool = True, _train: Any = Model.train) -> Any:
    changed = _train(model, mode)
    if (
        any(type(module) is transformers.AlbertModel for module in model.modules())
        and model.device.type == "cpu"
    ):
        with warnings.catch_warnings(action="ignore"):
            albertkit.accelerate(model, "fp32", training=True)
    return changed


def output_and_count(
    forward: Any, *arguments: Any, _output: Any = _TransformersForward.make_output
) -> Any:
    computed.append(type(forward.model).__name__)
    return _output(forward, *arguments)


Model.train = train_and_accelerate  # which `eval` calls
_TransformersForward.make_output = output_and_count


def pytest_terminal_summary(terminalreporter: Any) -> None:
    terminalreporter.write_line(f"computed by the engine: {len(computed)} calls")
