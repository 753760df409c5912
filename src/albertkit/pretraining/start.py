"""Start of a run: weights initialised from the seed, a model to continue, or what the run itself has saved."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from albertkit.config import AlbertConfig
from albertkit.conversion.initial import special_ids
from albertkit.conversion.own_tokenizer import own_tokenizer
from albertkit.errors import CheckpointError
from albertkit.files import load, sha256_file
from albertkit.model import AlbertForPreTraining
from albertkit.model.folder import NEW_ROWS_FROM, OLD_WEIGHTS, PROVENANCE, WEIGHTS, read_tensors
from albertkit.model_folder import local_folder
from albertkit.pretraining.settings import PretrainSettings
from albertkit.tokenizer import AlbertTokenizer

START = "start"  # in the folder of a run that continues a model: that model, with what was added to it

_NOISE = 0.1  # of the old rows' standard deviation
# What a checkpoint may lack: a base encoder has no heads, a masked-LM model no pooler.
_MAY_BE_FRESH = ("predictions", "sop_classifier", "albert.pooler.weight", "albert.pooler.bias")
# What configurations of fine-tuned models say of their task.
_TASK_KEYS = frozenset(
    ["id2label", "label2id", "num_labels", "problem_type", "finetuning_task", "task_specific_params"]
)


@dataclass(frozen=True)
class Start:
    """A model to train.

    Attributes:
        model: On the CPU.
        continued: What `provenance.json` says of the model that is continued; empty for initialised weights.
        notes: Lines for the user.
    """

    model: AlbertForPreTraining
    continued: dict[str, Any] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)


def initialise(settings: PretrainSettings, vocab_size: int, ids: Mapping[str, int] | None = None) -> Start:
    """Initialise a model from the seed alone, the same in every process."""
    config = settings.model_config(vocab_size, ids)
    torch.manual_seed(settings.seed)
    return Start(AlbertForPreTraining(config))


def resume_start(folder: Path) -> Start:
    """Return the model that a run which continues another saved at its beginning."""
    continued = load(folder / PROVENANCE, dict[str, Any])["continued"]
    return Start(AlbertForPreTraining.from_pretrained(folder, strict=True), continued)


def begin_run(
    run: Path | None, tokenizer: AlbertTokenizer, settings: PretrainSettings, start: str | Path | None, resume: bool
) -> Start:
    """Return the model that a run begins with; the loop puts what is trained of a resumed run back to its checkpoint.

    A resumed run has its own copy of the model that it continues, and needs no `start`.
    """
    if run is not None and resume and (run / START).exists():
        return resume_start(run / START)
    if start is not None:
        return continue_model(start, tokenizer, settings)
    return initialise(settings, tokenizer.vocab_size, special_ids(tokenizer))


def continue_model(source: str | Path, tokenizer: AlbertTokenizer, settings: PretrainSettings) -> Start:
    """Return a checkpoint of any class to train further: heads that it lacks are initialised, rows for new tokens are added.

    The tokenizer is that of the data; its first tokens must be those of the model, at the same ids. A new row is the mean of
    the old ones and noise, since equal rows would differ by training only; its bias in the prediction is the least of
    the old ones. `albertkit tokenizer extend --model` makes better rows, each of the tokens that the old vocabulary writes it
    with.
    """
    path = local_folder(source)
    config = AlbertConfig.from_pretrained(path)
    config.check_length(settings.length, f"`{source}`")
    before = own_tokenizer(path, config, source)
    notes = _check_vocabulary(source, before, tokenizer)
    own = {key: value for key, value in config.foreign.items() if key not in _TASK_KEYS}
    torch.manual_seed(settings.seed)
    model, matched = AlbertForPreTraining.from_tensors(
        config.replace(foreign=own), read_tensors(path), _MAY_BE_FRESH, str(path)
    )
    fresh = sorted({_part(name) for name in matched.fresh})
    if fresh:
        notes.append(f"not in `{source}`, initialised: {', '.join(fresh)}")
    if matched.left_out:
        notes.append(f"in `{source}`, of no use here: {', '.join(sorted({_part(name) for name in matched.left_out}))}")
    if tokenizer.vocab_size > before.vocab_size:
        _add_rows(model, before.vocab_size, tokenizer.vocab_size)
    facts = _facts(path)
    grown_before = facts.get("provenance", {}).get(NEW_ROWS_FROM, before.vocab_size)
    continued = {
        "model": str(source),
        "class": next(iter(config.foreign.get("architectures") or []), None),
        "tokens": before.vocab_size,
        NEW_ROWS_FROM: before.vocab_size if tokenizer.vocab_size > before.vocab_size else grown_before,
        "initialised": fresh,
        **facts,
    }
    return Start(model, continued, notes)


def seen_before(continued: dict[str, Any], store: str, settings: PretrainSettings) -> list[str]:
    """Say whether the model that is continued was trained on documents that are held out now; `store` is a fingerprint."""
    before = continued.get("provenance", {})
    same = (before.get("held_out"), before.get("seed")) == (settings.held_out, settings.seed)
    if before.get("store") != store or same:
        return []
    return [
        f"`{continued['model']}` was trained on documents of this very store that are held out now, so evaluations flatter: "
        f"use --held-out {before['held_out']} --seed {before['seed']}"
    ]


def _check_vocabulary(source: str | Path, before: AlbertTokenizer, now: AlbertTokenizer) -> list[str]:
    """Refuse data in which an id of the model means something else; return notes about what else differs."""
    if before.fingerprint == now.fingerprint:
        return []
    remedy = (
        f"build the store with a tokenizer made by `albertkit tokenizer extend {source}`, or with that in `{source}`"
    )
    if now.vocab_size < before.vocab_size:
        raise CheckpointError(
            "wrong-tokenizer",
            f"the data's tokenizer has {now.vocab_size:,} tokens, `{source}` {before.vocab_size:,}",
            remedy,
        )
    for number in range(before.vocab_size):
        if before.id_to_piece(number) != now.id_to_piece(number):
            raise CheckpointError(
                "wrong-tokenizer",
                f"id {number} is `{before.id_to_piece(number)}` in `{source}` and `{now.id_to_piece(number)}` in the data's "
                "tokenizer",
                remedy,
            )
    notes = []
    if before.text_rules != now.text_rules:
        notes.append(f"text rules: {before.text_rules} in `{source}`, {now.text_rules} in the data")
    if now.vocab_size > before.vocab_size:
        notes.append(
            f"new tokens: {now.vocab_size - before.vocab_size:,}, each begins as the mean of the {before.vocab_size:,} old rows "
            "and noise; `albertkit tokenizer extend --model` makes better ones"
        )
    return notes


@torch.no_grad()
def _add_rows(model: AlbertForPreTraining, before: int, now: int) -> None:
    """Add rows for the ids from `before` up to `now`; spare ones that the model had are replaced, too."""
    if now > model.config.vocab_size:
        model.resize_token_embeddings(now)
    words = model.get_input_embeddings().weight
    old = words[:before]
    words[before:now] = old.mean(0) + _NOISE * old.std(0) * torch.randn_like(words[before:now])
    model.predictions.bias[before:now] = model.predictions.bias[:before].min()


def _part(name: str) -> str:
    """Return the head or part that a parameter belongs to."""
    return name.removeprefix("albert.").split(".")[0]


def _facts(path: Path) -> dict[str, Any]:
    """Return the checksum of the weights, and the provenance that the model has."""
    facts: dict[str, Any] = {}
    for name in (WEIGHTS, OLD_WEIGHTS):
        if (path / name).exists():
            facts["weights_sha256"] = sha256_file(path / name)
            break
    if (path / PROVENANCE).exists():
        facts["provenance"] = load(path / PROVENANCE, dict[str, Any])
    return facts
