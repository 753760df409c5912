"""Untrained checkpoints: an ALBERT of any size or configuration with both pretraining heads, initialised from a seed."""

import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from albertkit.command import takes
from albertkit.config import AlbertConfig
from albertkit.conversion.options import InitOptions
from albertkit.errors import ConfigError
from albertkit.files import atomic_folder, check_new_folder, read_typed, write_file, write_json
from albertkit.model import AlbertForPreTraining
from albertkit.model.files import PROVENANCE
from albertkit.output.sections import FactList, Result, Section
from albertkit.tokenizer import AlbertTokenizer
from albertkit.weights_file import count_parts

# What the configuration calls the tokenizer's ids.
SPECIAL_IDS = {"pad_token_id": "pad_id", "bos_token_id": "cls_id", "eos_token_id": "sep_id"}

_CARD = """---
library_name: transformers
tags:
- albert
- albertkit
---

# {name}

An untrained ALBERT: its weights are initialised from the seed {seed}. Train it:

```
albertkit pretrain STORE --continue {name} --out RUN
```
"""


@dataclass(frozen=True)
class InitReport(Result):
    """An untrained checkpoint.

    Attributes:
        model: Its folder.
        vocab_size: Tokens of the tokenizer, and rows of the embeddings.
        parts: Part of the model to parameters, in the order they run; what is shared is counted
            once.
        total: All of them; the decoder is the embeddings again and adds its bias only.
        encoder: Without the two heads: what `AlbertModel` has.
        masked_lm: What `AlbertForMaskedLM` has: no pooler, no sentence-order head.
        warnings: Advice on the configuration.
    """

    model: Path
    vocab_size: int
    parts: dict[str, int]
    total: int
    encoder: int
    masked_lm: int
    warnings: tuple[str, ...] = ()

    def sections(self) -> list[Section]:
        """Return the parameters of each part and of what is loaded."""
        loaded = {
            "of these, encoder alone": self.encoder,
            "of these, masked LM alone": self.masked_lm,
        }
        return [
            FactList(
                {
                    "model": self.model,
                    "tokens": self.vocab_size,
                    **self.parts,
                    "total": self.total,
                    **loaded,
                }
            )
        ]


@takes(InitOptions)
def init(options: InitOptions) -> InitReport:
    """Run `albertkit init`; see `init_model`."""
    return init_model(
        options.out,
        options.tokenizer,
        size=options.size,
        config=options.config,
        seed=options.seed,
    )


def init_model(
    out: str | Path,
    tokenizer: str | Path,
    *,
    size: str | None = None,
    config: str | Path | None = None,
    seed: int = 0,
    **changes: Any,
) -> InitReport:
    """Create an untrained checkpoint: both pretraining heads, weights initialised from the seed, and the tokenizer.

    `pretrain` with `start=out` and the same seed computes the bits that it would compute from the
    size itself.

    Args:
        out: Folder to create.
        tokenizer: Folder of the tokenizer; it decides the size of the vocabulary and the special
            ids.
        size: tiny, small, base, large, xlarge or xxlarge, without dropout as in version 2. Default:
            base.
        config: A `config.json` in place of a size. What it says of vocabulary and special ids must
            be the tokenizer's.
        seed: Initialises the weights.
        **changes: Fields to set otherwise, for example `num_hidden_layers=2`.

    Returns:
        The report, with the number of parameters of each part.

    Raises:
        DataError: not-found, bad-file.
        ConfigError: conflicting-options, unknown-name, bad-value for what cannot be (a width that
            the heads do not divide); wrong-tokenizer.
        CheckpointError: exists; no-tokenizer and what else reading a tokenizer raises.
    """
    out = Path(out)
    check_new_folder(out)
    loaded = AlbertTokenizer.from_pretrained(tokenizer)
    # Advice on the configuration belongs to the report.
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        ids = special_ids(loaded)
        if config is None:
            values = {"vocab_size": loaded.vocab_size, **ids, **changes}
            albert_config = AlbertConfig.from_size(size or "base", **values)
        elif size is None:
            albert_config = read_config_for_tokenizer(config, loaded.vocab_size, ids).with_changes(
                **changes
            )
        else:
            raise ConfigError(
                "conflicting-options",
                f"both a size ({size}) and a configuration (`{config}`)",
                "give one of them",
            )
        torch.manual_seed(seed)
        model = AlbertForPreTraining(albert_config)
        with atomic_folder(out) as folder:
            model.save_pretrained(folder, loaded)
            heads = ["predictions", "sop_classifier"]
            write_json(folder / PROVENANCE, {"initialised": heads})
            write_file(folder / "README.md", _CARD.format(name=out.resolve().name, seed=seed))
    shapes = {name: (list(tensor.shape), "F32") for name, tensor in model.state_dict().items()}
    parts, _ = count_parts(shapes, albert_config)
    order = parts["sentence-order head"]
    total = model.num_parameters()
    advice = dict.fromkeys(str(warning.message) for warning in caught)
    without_pooler = total - order - parts["pooler"]
    return InitReport(
        out,
        albert_config.vocab_size,
        parts,
        total,
        albert_config.num_parameters(),
        without_pooler,
        tuple(advice),
    )


def special_ids(tokenizer: AlbertTokenizer) -> dict[str, int]:
    """Return the ids of a tokenizer that a configuration names."""
    return {name: int(getattr(tokenizer, special)) for name, special in SPECIAL_IDS.items()}


def read_config_for_tokenizer(
    file: str | Path, vocab_size: int, ids: Mapping[str, int]
) -> AlbertConfig:
    """Read a configuration, a file or its folder, with a tokenizer's vocabulary and special ids, which the file may leave out."""
    path = Path(file) / "config.json" if Path(file).is_dir() else Path(file)
    config = AlbertConfig.from_pretrained(path)  # first: it says what is wrong with the file
    stated = read_typed(path, dict[str, Any], "model configuration")
    if stated.get("vocab_size", vocab_size) != vocab_size:
        raise ConfigError(
            "wrong-tokenizer",
            f"the tokenizer has {vocab_size:,} tokens, `{path}` says {stated['vocab_size']:,}",
            f"set vocab_size to {vocab_size} in `{path}`, or leave it out",
        )
    for name, token_id in ids.items():
        if stated.get(name) not in (None, token_id):
            raise ConfigError(
                "wrong-tokenizer",
                f"`{path}` says {name} {stated[name]}, the tokenizer's {SPECIAL_IDS[name]} is {token_id}",
                f"leave {name} out: the tokenizer decides it",
            )
    return config.with_changes(vocab_size=vocab_size, **ids)
