"""A plugin of pytest: transformers' ALBERTs are accelerated as soon as they are put into evaluation; engine calls are counted."""

import warnings
from typing import Any

import transformers

import albertkit
from albertkit.pipelines.accelerate import _TransformersForward

Model = transformers.AlbertPreTrainedModel
computed: list[str] = []  # a name for each time that the engine computed


def eval_and_accelerate(model: Any, _eval: Any = Model.eval) -> Any:
    evaluated = _eval(model)
    if any(type(module) is transformers.AlbertModel for module in model.modules()) and model.device.type == "cpu":
        with warnings.catch_warnings(action="ignore"):
            albertkit.accelerate(model, "fp32")
    return evaluated


def output_and_count(forward: Any, *arguments: Any, _output: Any = _TransformersForward._output) -> Any:
    computed.append(type(forward.model).__name__)
    return _output(forward, *arguments)


Model.eval = eval_and_accelerate
_TransformersForward._output = output_and_count


def pytest_terminal_summary(terminalreporter: Any) -> None:
    terminalreporter.write_line(f"computed by the engine: {len(computed)} calls")
