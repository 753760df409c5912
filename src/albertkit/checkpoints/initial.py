"""Empty shells: an ALBERT of any size or configuration with both pretraining heads, its weights drawn and not yet trained."""

import warnings
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch

from albertkit.checkpoints.folder import save_checkpoint
from albertkit.config import AlbertConfig
from albertkit.errors import CheckpointError, ConfigError
from albertkit.files import atomic_file, atomic_folder, read_json
from albertkit.model import AlbertForPreTraining
from albertkit.report.inspect import count_parts
from albertkit.tokenizer import AlbertTokenizer

# What the configuration calls the tokenizer's ids.
SPECIAL_IDS = {"pad_token_id": "pad_id", "bos_token_id": "cls_id", "eos_token_id": "sep_id"}


@dataclass(frozen=True)
class InitReport:
    """A shell that was made.

    Attributes:
        model: Its folder.
        vocab_size: Pieces of the tokenizer, and rows of the embeddings.
        parts: Part of the model to parameters, in the order they run; what is shared is counted once.
        total: All of them; the decoder is the embeddings again and adds its bias only.
        encoder: Without the two heads: what `AlbertModel` has.
        masked_lm: What `AlbertForMaskedLM` has: no pooler, no sentence-order head.
        warnings: What a person should know.
    """

    model: Path
    vocab_size: int
    parts: dict[str, int]
    total: int
    encoder: int
    masked_lm: int
    warnings: list[str] = field(default_factory=list)

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return asdict(self) | {"model": str(self.model)}


def init_model(
    out: str | Path,
    tokenizer: str | Path,
    *,
    size: str | None = None,
    config: str | Path | None = None,
    seed: int = 0,
    **changes: Any,
) -> InitReport:
    """Make a model that knows nothing yet: both pretraining heads, weights from the seed, the tokenizer beside them.

    `pretrain` with `start=out` and the same seed computes the bits that it would compute from the size itself.

    Args:
        out: Folder to make.
        tokenizer: Folder of the tokenizer; it decides the size of the vocabulary and the special ids.
        size: tiny, small, base, large, xlarge or xxlarge, without dropout as in version 2. Default: base.
        config: A `config.json` in place of a size. What it says of vocabulary and special ids must be the tokenizer's.
        seed: Draws the weights.
        **changes: Fields to set otherwise, for example `num_hidden_layers=2`.

    Returns:
        The report, with the number of parameters of each part.

    Raises:
        DataError: not-found, broken-json.
        ConfigError: size-and-config, bad-size, unknown-key, bad-config for what cannot be (a width that the heads do not
            divide); vocab-mismatch, special-ids.
        CheckpointError: folder-not-empty; no-tokenizer and what else reading a tokenizer raises.
    """
    out = Path(out)
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise CheckpointError("folder-not-empty", f"`{out}` is there and not empty", "choose another --out")
    loaded = AlbertTokenizer.from_pretrained(tokenizer)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        made = _configuration(size, config, loaded, changes)
        torch.manual_seed(seed)
        model = AlbertForPreTraining(made)
        with atomic_folder(out) as folder:
            save_checkpoint(folder, model, loaded)
            with atomic_file(folder / "README.md", "w") as card:
                card.write(_card(out.resolve().name, seed))
    shapes = {name: (list(tensor.shape), "F32") for name, tensor in model.state_dict().items()}
    parts, _ = count_parts(shapes, made)
    order = parts["sentence-order head"]
    return InitReport(
        out, made.vocab_size, parts, model.num_parameters(),
        encoder=made.num_parameters(), masked_lm=model.num_parameters() - order - parts["pooler"],
        warnings=list(dict.fromkeys(str(w.message) for w in caught)),
    )  # fmt: skip


def _configuration(
    size: str | None, file: str | Path | None, tokenizer: AlbertTokenizer, changes: dict[str, Any]
) -> AlbertConfig:
    """The configuration asked for, with the tokenizer's vocabulary and special ids."""
    ids = special_ids(tokenizer)
    if file is None:
        return AlbertConfig.from_size(size or "base", **{"vocab_size": tokenizer.vocab_size, **ids, **changes})
    if size is not None:
        raise ConfigError("size-and-config", f"both a size ({size}) and a configuration (`{file}`)", "give one of them")
    return config_for(file, tokenizer.vocab_size, ids).with_changes(**changes)


def special_ids(tokenizer: AlbertTokenizer) -> dict[str, int]:
    """The ids of a tokenizer that a configuration names."""
    return {name: int(getattr(tokenizer, special)) for name, special in SPECIAL_IDS.items()}


def config_for(file: str | Path, vocab_size: int, ids: Mapping[str, int]) -> AlbertConfig:
    """A configuration from a file, with the vocabulary and the special ids of a tokenizer, which the file may leave out.

    Args:
        file: A `config.json`, or a folder that holds one.
        vocab_size: Of the tokenizer.
        ids: As `special_ids`.

    Raises:
        DataError, ConfigError: What `AlbertConfig.from_pretrained` raises; vocab-mismatch, special-ids.
    """
    path = Path(file) / "config.json" if Path(file).is_dir() else Path(file)
    made = AlbertConfig.from_pretrained(path)  # first: it says what is wrong with the file
    stated = read_json(path, "model configuration")
    if stated.get("vocab_size", vocab_size) != vocab_size:
        raise ConfigError(
            "vocab-mismatch",
            f"the tokenizer has {vocab_size:,} pieces, `{path}` says {stated['vocab_size']:,}",
            f"set vocab_size to {vocab_size} in `{path}`, or leave it out",
        )
    for name, wanted in ids.items():
        if stated.get(name) not in (None, wanted):
            raise ConfigError(
                "special-ids", f"`{path}` says {name} {stated[name]}, the tokenizer's {SPECIAL_IDS[name]} is {wanted}",
                f"leave {name} out: the tokenizer decides it",
            )  # fmt: skip
    return made.with_changes(vocab_size=vocab_size, **ids)


def _card(name: str, seed: int) -> str:
    return (
        "---\nlibrary_name: transformers\ntags:\n- albert\n- albertkit\n---\n\n"
        f"# {name}\n\nAn empty ALBERT: its weights are drawn from the seed {seed} and have seen no text. Train it:\n\n"
        f"```\nalbertkit pretrain STORE --continue {name} --out RUN\n```\n"
    )
