"""Load and save fine-tuned models, and run them on features: outputs stand in the order of the features."""

import os
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch

from albertkit.batches.features import Features, LabelledBatch, batch_by_length
from albertkit.config import AlbertConfig
from albertkit.conversion.classes import read_model_tokenizer
from albertkit.engines.onnx import is_onnx_folder, load_onnx
from albertkit.errors import CheckpointError
from albertkit.files import read_json, write_json
from albertkit.model.files import HEADS, read_tensors
from albertkit.model.pretrained import PretrainedAlbert
from albertkit.model_paths import local_folder, model_kind, model_of_run_or_folder
from albertkit.output.progress import ProgressBar
from albertkit.printable import Notes
from albertkit.tasks.task import Task
from albertkit.tokenizer import AlbertTokenizer
from albertkit.training.processes import World

TASK = "task.json"  # beside the weights: how inputs are read and what the outputs mean


class TaskModel(NamedTuple):
    """Contents of a fine-tuned folder."""

    task: Task
    model: PretrainedAlbert
    tokenizer: AlbertTokenizer


def load_encoder(
    folder: str | Path, task: Task, **changes: Any
) -> tuple[PretrainedAlbert, AlbertTokenizer, Notes]:
    """Return a model for a task from any checkpoint, on the CPU, its tokenizer, and a note for each thing to know.

    The head is kept if the checkpoint has the same one (same class, same labels); otherwise it is
    initialised, as in the paper for RTE, MRPC and STS-B after MNLI.
    """
    path = local_folder(folder)
    before = AlbertConfig.from_pretrained(path)
    before.check_length(task.length, f"`{folder}`")
    tokenizer = read_model_tokenizer(path, before, folder)
    config = before.with_changes(**task.head(), **changes)
    tensors = dict(read_tensors(path))
    notes = []
    heads = {name for name in tensors if name.split(".")[0] in HEADS}
    same_class = before.foreign.get("architectures") == [task.model_class.__name__]
    if same_class and before.id2label == config.id2label:
        notes.append(f"head: that of `{folder}`, which has the same labels")
    else:
        tensors = {name: tensor for name, tensor in tensors.items() if name not in heads}
        notes.append("head: fresh")
    allowed = (*HEADS, "albert.pooler.weight", "albert.pooler.bias")
    model, matched = task.model_class.from_tensors(config, tensors, allowed, str(path))
    if any("pooler" in name for name in matched.fresh):
        notes.append(f"pooler: fresh, `{folder}` has none")
    return model, tokenizer, notes


def save_task_model(
    folder: str | Path,
    model: PretrainedAlbert,
    tokenizer: AlbertTokenizer,
    task: Task,
) -> None:
    """Write a checkpoint folder that transformers loads, with `task.json` beside the weights."""
    # The folder of a regression names the identity for sentence-transformers' `CrossEncoder`, which
    # otherwise puts a sigmoid on one output: 0.94 in place of 2.81 of 5.
    if task.head().get("problem_type") == "regression":
        model.config.foreign["sentence_transformers"] = {
            "activation_fn": "torch.nn.modules.linear.Identity"
        }
    model.save_pretrained(folder, tokenizer)
    write_json(Path(folder) / TASK, task.to_dict())


def is_task_model(folder: str | os.PathLike[str]) -> bool:
    """Return whether a folder holds a model with a task, or is the run of one."""
    return (model_of_run_or_folder(Path(folder)) / TASK).exists()


def task_folder(folder: str | Path) -> Path:
    """Return the folder that holds `task.json`: the one named, or the model of a run."""
    path = local_folder(folder)
    if not (path / TASK).exists():
        raise CheckpointError(
            "wrong-model",
            f"`{folder}` holds no fine-tuned model: there is no {TASK}",
            "name the folder that `albertkit finetune --out` made; a pretrained model is scored on a token store or TFRecords",
        )
    return path


def check_not_swapped(model: object, data: object) -> None:
    """Refuse data in the place of the model, and the model in the place of the data."""
    if not isinstance(data, str | os.PathLike) or not isinstance(model, str | os.PathLike):
        return
    if (kind := model_kind(data)) and not model_kind(model):
        raise CheckpointError(
            "doubtful",
            f"`{data}` is {kind}, and is given as data; `{model}` is given as the model",
            f"name them the other way round: {data} {model}",
        )


def check_order(name: object, model: object, data: object) -> None:
    """Refuse a model in the place of the name of a task or kind, and model and data in each other's place."""
    if isinstance(name, str) and (kind := model_kind(name)):
        raise CheckpointError(
            "doubtful",
            f"`{name}` is {kind}, and is given as the name of a task; `{model}` is given as the model",
            f"name the task first, then the model: {model} {name} {data}",
        )
    check_not_swapped(model, data)


def load_task_model(folder: str | Path) -> TaskModel:
    """Load what `save_task_model` wrote; a run stands for the model that its training recommends."""
    from albertkit.tasks.registry import task_from_dict

    path = task_folder(folder)
    task = task_from_dict(read_json(path / TASK, "task"), path / TASK)
    model = (
        load_onnx(path)
        if is_onnx_folder(path)
        else task.model_class.from_pretrained(path, strict=True)
    )
    config = model.config
    labels = getattr(task, "labels", None)
    num_labels = config.num_labels if labels is None else len(labels)
    fits = num_labels == config.num_labels or (labels == () and config.num_labels == 1)
    # Put beside the weights of another model
    if not fits or task.length > config.max_position_embeddings:
        fact = f"the task of `{path}` has {num_labels} labels and {task.length} tokens, "
        fact += (
            f"the model {config.num_labels} labels and {config.max_position_embeddings} positions"
        )
        raise CheckpointError("bad-file", fact, "restore the task.json of this model")
    return TaskModel(task, model, read_model_tokenizer(path, config))


def run_model(
    model: PretrainedAlbert,
    task: Task,
    features: Features,
    batch_tokens: int,
    world: World | None = None,
    progress: bool = False,
) -> list[Any]:
    """Return the model's output for every sequence, in the order of the features.

    Sequences are sorted by length: those of one length attend together, and a batch of short ones
    holds many.
    """
    return run_batches(
        partial(task.outputs, model),
        features,
        batch_tokens,
        model.device,
        world,
        progress,
    )


@torch.inference_mode()
def run_batches(
    outputs_of: Callable[[LabelledBatch], list[Any]],
    features: Features,
    batch_tokens: int,
    device: torch.device,
    world: World | None = None,
    progress: bool = False,
) -> list[Any]:
    """Run like `run_model`, with any function from a batch to an output a sequence; `progress` is shown on stderr."""
    outputs: list[Any] = [None] * features.num_sequences
    runs = batch_by_length(features.lengths, batch_tokens)
    rank, size = (world.rank, world.size) if world else (0, 1)
    num_done = 0
    with ProgressBar("evaluating", features.num_sequences, "sequences", progress) as bar:
        # They are sorted by length: every W-th is as much work for each process.
        for run in runs[rank::size]:
            batch = features.batch(run).to(device)
            for sequence, output in zip(run.tolist(), outputs_of(batch), strict=True):
                outputs[sequence] = output
            num_done += len(run)
            bar.update(num_done)
    if world:
        for of_process in world.gather(outputs):
            outputs = [
                theirs if output is None else output
                for output, theirs in zip(outputs, of_process, strict=True)
            ]
    return outputs
