"""Run the models in a separate process, which the front starts, and restarts if it dies.

Run as `python -m albertkit.serve.worker DESCRIPTOR`, with the number of a socket that it inherits.
"""

import contextlib
import gc
import logging
import os
import signal
import socket
import sys
import traceback
from collections.abc import Iterator
from pathlib import Path
from time import perf_counter
from typing import Any

import torch
from pydantic_core import to_json

from albertkit.engines.compile_loops import start_compiling_in_background
from albertkit.engines.onnx import is_onnx_folder
from albertkit.errors import AlbertKitError, DataError, MachineError, explain_os_error
from albertkit.model_paths import digest_while_loading
from albertkit.pipelines.compare_precision import compare_precision
from albertkit.pipelines.load import load_pipelines
from albertkit.pipelines.pipeline import Pipeline
from albertkit.serve.logs import log_to_stderr
from albertkit.serve.protocol import (
    TOKEN_STATES,
    Alive,
    Channel,
    Done,
    Failed,
    LoadedModel,
    Ready,
    StartMessage,
    WorkMessage,
)
from albertkit.tasks.early_exit import missing_exits_notes
from albertkit.tasks.models import run_batches

logger = logging.getLogger("albertkit.serve.worker")  # not `__main__`, which it runs as

Models = dict[str, dict[str, Any]]  # name to kind to pipeline


def main(descriptor: int) -> None:
    """Load the models and answer batches until the front ends. Signals are ignored: the front may still need answers.

    Ctrl-C and most supervisors (systemd, timeout) send theirs to the whole process group.
    """
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    channel = Channel(socket.socket(fileno=descriptor))
    start = channel.receive()
    if start is None:
        return
    options = start.options
    log_to_stderr(options.log_level)
    if options.threads:
        torch.set_num_threads(options.threads)
    with contextlib.suppress(BrokenPipeError, ConnectionResetError):  # the front has ended
        try:
            models, facts = load_served_models(start)
        except Exception as error:
            channel.send(_failed_message(None, error))
            return
        gc.collect()
        # Else a collection walks through a million objects, 0.2 s in which nothing is computed
        gc.freeze()
        channel.send(Ready(facts))
        while (work := channel.receive()) is not None:
            channel.send(
                work
                if isinstance(work, Alive)
                else _answer_work(models, work, options.batch_tokens)
            )


def load_served_models(start: StartMessage) -> tuple[Models, dict[str, LoadedModel]]:
    options, models, facts = start.options, {}, {}
    for name, folder in start.folders.items():
        with digest_while_loading(folder) as digest:
            models[name] = load_pipelines(
                folder, precision=options.precision, device=options.device, exits=options.exits
            )
        first = next(iter(models[name].values()))
        for pipeline in models[name].values():
            # Early exits have loops of their own.
            if isinstance(pipeline, Pipeline) and not options.exits:
                for note in start_compiling_in_background(pipeline.engine):
                    logger.info("%s: %s", name, note)  # no note of the model's: it passes
        notes = (*first.notes, *missing_exits_notes(folder, options.exits))
        facts[name] = LoadedModel(first.precision, notes, digest)
        # An exported model was compared when it was exported.
        if first.precision == "int8" and not is_onnx_folder(Path(folder)):
            hint = "serve it with --precision bf16, measure it on examples (`albertkit compare-precision MODEL DATA`)"
            compare_precision(folder, precision="int8").require_closeness(options.force, hint)
        for pipeline in models[name].values():
            if isinstance(pipeline, Pipeline):
                # The first call of a kernel compiles or loads it, and no client should wait for
                # that. An example may be longer than a tiny model reads
                with contextlib.suppress(AlbertKitError):
                    pipeline(pipeline.example)
                pipeline.engine.follows_weights = False  # no other code changes the model
    return models, facts


def _answer_work(models: Models, work: WorkMessage, batch_tokens: int) -> Done | Failed:
    begin = perf_counter()
    try:
        pipelines = models[work.model]
        if not isinstance(work.content, dict):
            pipeline = pipelines["embed" if work.kind == TOKEN_STATES else work.kind]
            compute = pipeline.token_states if work.kind == TOKEN_STATES else pipeline.outputs
            outputs = run_batches(compute, work.content, batch_tokens, pipeline.device)
        elif work.kind == "caption":
            with time_limit(work.seconds):
                outputs = [pipelines["caption"](**work.content)]
        else:
            from albertkit.pipelines.layers import trace_layers

            pipeline = next(iter(pipelines.values()))
            layers = trace_layers(pipeline.model, pipeline.tokenizer, **work.content)
            # Half a million numbers: encoded here, not on the front's event loop
            outputs = [to_json(layers)]
    except Exception as error:
        return _failed_message(work.number, error)
    return Done(work.number, outputs, perf_counter() - begin)


class _OutOfTimeError(BaseException):  # not an Exception: decoders would take it for a broken frame
    pass


@contextlib.contextmanager
def time_limit(seconds: float) -> Iterator[None]:
    """Raise an error if the block takes longer."""

    def end(*_: object) -> None:
        raise _OutOfTimeError

    signal.signal(signal.SIGALRM, end)
    signal.setitimer(signal.ITIMER_REAL, max(seconds, 1e-3))
    try:
        yield
    except _OutOfTimeError:
        fact = f"captioning the video takes longer than {seconds:.0f} seconds"
        raise DataError("too-large", fact, "send a shorter or smaller video") from None
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)


def _failed_message(number: int | None, error: Exception) -> Failed:
    """Return an error for the front; a bug has its traceback, for the log."""
    if isinstance(error, AlbertKitError):
        return Failed(number, error)
    if isinstance(error, OSError) and (explained := explain_os_error(error)):
        return Failed(number, explained)
    bug = MachineError(
        "internal-error", f"{type(error).__name__}: {error}", "see the log of the service"
    )
    return Failed(number, bug, "".join(traceback.format_exception(error)))


if __name__ == "__main__":
    main(int(sys.argv[1]))
    os._exit(0)  # threads of the engines have nothing left to do
