"""Everything that decides a pretraining run, in one flat place."""

import dataclasses
import math
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args, get_origin, get_type_hints

import tomli_w

from albertkit.config import AlbertConfig
from albertkit.errors import CheckpointError, ConfigError, near_miss
from albertkit.files import atomic_file

# Settings that may change when a run is resumed: they touch neither the weights nor their order.
_FREE = {"eval_every", "save_every", "keep", "device", "log_every"}


@dataclass(frozen=True, kw_only=True)
class PretrainSettings:
    """Settings of a pretraining run. The defaults are the paper's, except for the batch, which suits one machine.

    Attributes:
        size: tiny, small, base, large, xlarge or xxlarge.
        version: 2 has no dropout; 1 has dropout 0.1 except for xxlarge.
        config: A `config.json` to use in place of a size.
        length: Longest sequence, in tokens, special tokens included.
        batch_tokens: Real tokens of a micro-batch on each device, at most.
        accumulation: Micro-batches an update.
        pair_task: What the two segments are for: sop (sentence order), nsp (next sentence) or none.
        sop_pairs: pure, or google for the original's pairs with a random document where a chunk has one sentence.
        masked_lm_prob: Share of tokens to predict.
        max_predictions: Most predictions a sequence; 0 for no cap (the paper's code used 20).
        max_ngram: Longest masked span, in whole words.
        favor_shorter_ngram: Spans of n words with probability in proportion to 1/n; otherwise the longer the likelier.
        short_seq_prob: Share of documents cut into shorter sequences, each epoch anew.
        held_out: Share of documents kept for evaluation.
        steps: Updates.
        lr: Peak learning rate. Default: the paper's 0.00176, scaled by the root of the batch size over its 4096 x 512 tokens.
        optimizer: lamb or adamw, with decay 0.01.
        bias_correction: Correct the moments' bias, as Model Garden's LAMB and AdamW; Google's first code does not.
        clip_norm: Gradients of a larger norm are scaled down to it; 0 for no clipping, as Model Garden's LAMB.
        warmup_steps: Linear warm-up. Default: 2.5 % of the steps, as the paper's 3,125 of 125,000.
        schedule: polynomial, cosine or constant.
        end_lr: Learning rate that a polynomial or cosine schedule ends at.
        ema_decay: Keep a moving average of the weights and evaluate and export it; 0 for none.
        precision: fp32, bf16, or auto: bf16 where the hardware multiplies it natively.
        gradient_checkpointing: Recompute activations in the backward pass: slower, far less memory.
        seed: Start of everything random.
        log_every: Updates between two reports.
        eval_every: Updates between two evaluations; 0 for one at the end. Default: a twentieth of the run, at least 50.
        save_every: Updates between two checkpoints; 0 for one at the end. Default: as eval_every.
        keep: Checkpoints kept.
        device: auto, cpu, cuda or cuda:N.
    """

    size: Literal["tiny", "small", "base", "large", "xlarge", "xxlarge"] = "base"
    version: Literal[1, 2] = 2
    config: Path | None = None
    length: int = 512
    batch_tokens: int = 16_384
    accumulation: int = 1
    pair_task: Literal["sop", "nsp", "none"] = "sop"
    sop_pairs: Literal["pure", "google"] = "pure"
    masked_lm_prob: float = 0.15
    max_predictions: int = 0
    max_ngram: int = 3
    favor_shorter_ngram: bool = True
    short_seq_prob: float = 0.1
    held_out: float = 0.01
    steps: int = 125_000
    lr: float | None = None
    optimizer: Literal["lamb", "adamw"] = "lamb"
    bias_correction: bool = False
    clip_norm: float = 1.0
    warmup_steps: int | None = None
    schedule: Literal["polynomial", "cosine", "constant"] = "polynomial"
    end_lr: float = 0.0
    ema_decay: float = 0.0
    precision: Literal["auto", "fp32", "bf16"] = "auto"
    gradient_checkpointing: bool = False
    seed: int = 0
    log_every: int = 10
    eval_every: int | None = None
    save_every: int | None = None
    keep: int = 2
    device: str = "auto"

    def check(self) -> None:
        """Raise one error that lists everything impossible.

        Raises:
            ConfigError: bad-settings.
        """
        found = []
        for name, kind in get_type_hints(type(self)).items():  # the command line checks them itself; Python does not
            if get_origin(kind) is Literal and getattr(self, name) not in get_args(kind):
                known = ", ".join(map(str, get_args(kind)))
                found.append(f"{name} must be one of {known}, it is {getattr(self, name)}")
        at_least = dict(
            length=8, batch_tokens=1, accumulation=1, max_predictions=0, max_ngram=1, steps=1, log_every=1, keep=1,
            warmup_steps=0, eval_every=0, save_every=0, clip_norm=0,
        )  # fmt: skip
        for name, least in at_least.items():
            if getattr(self, name) is not None and getattr(self, name) < least:
                found.append(f"{name} must be at least {least}, it is {getattr(self, name)}")
        for name in ("short_seq_prob", "held_out", "ema_decay"):
            if not 0 <= getattr(self, name) < 1:
                found.append(f"{name} must be at least 0 and below 1, it is {getattr(self, name)}")
        if not 0 < self.masked_lm_prob < 1:
            found.append(f"masked_lm_prob must be above 0 and below 1, it is {self.masked_lm_prob}")
        if self.lr is not None and not 0 < self.lr < 10:
            found.append(f"lr must be above 0 and below 10, it is {self.lr}")
        if not 0 <= self.end_lr <= (self.lr or 10):
            found.append(f"end_lr must be at least 0 and at most lr, it is {self.end_lr}")
        if self.batch_tokens < self.length:
            found.append(f"batch_tokens {self.batch_tokens} cannot hold one sequence of length {self.length}")
        if found:
            raise ConfigError("bad-settings", "; ".join(found), "change these settings")

    def resolve(self, world_size: int = 1) -> tuple["PretrainSettings", list[str]]:
        """Fill in what was left open.

        Returns:
            The settings with every default a number, and a line for each derived value that says why.
        """
        self.check()
        tokens = self.batch_tokens * self.accumulation * world_size
        changes: dict[str, Any] = {}
        reasons = [
            f"batch: up to {tokens:,} tokens an update ({self.batch_tokens:,} x {self.accumulation} x {world_size})"
        ]
        if self.lr is None:
            changes["lr"] = float(f"{0.00176 * math.sqrt(tokens / (4096 * 512)):.3g}")
            reasons.append(
                f"lr: {changes['lr']:g} = 0.00176 x sqrt({tokens:,} / 2,097,152), the paper's rate at this batch"
            )
        if self.warmup_steps is None:
            changes["warmup_steps"] = round(0.025 * self.steps)
            reasons.append(
                f"warmup_steps: {changes['warmup_steps']:,} = 2.5 % of {self.steps:,} steps, as in the paper"
            )
        if self.eval_every is None:
            changes["eval_every"] = max(min(self.steps, 50), self.steps // 20)
        if self.save_every is None:
            changes["save_every"] = changes.get("eval_every", self.eval_every)
        return dataclasses.replace(self, **changes), reasons

    def model_config(self, vocab_size: int) -> AlbertConfig:
        """The model these settings ask for.

        Raises:
            ConfigError: vocab-mismatch if `config` names another vocabulary size, bad-settings if it is too short.
        """
        if self.config is None:
            longest = max(512, self.length)
            return AlbertConfig.from_size(
                self.size, self.version, vocab_size=vocab_size, max_position_embeddings=longest
            )
        config = AlbertConfig.from_pretrained(self.config)
        if config.vocab_size != vocab_size:
            raise ConfigError(
                "vocab-mismatch", f"the store's tokenizer has {vocab_size:,} pieces, `{self.config}` says {config.vocab_size:,}",
                f"set vocab_size to {vocab_size} in `{self.config}`",
            )  # fmt: skip
        if config.max_position_embeddings < self.length:
            raise ConfigError(
                "bad-settings", f"length {self.length} exceeds max_position_embeddings {config.max_position_embeddings}",
                f"use --length {config.max_position_embeddings}",
            )  # fmt: skip
        return config

    # --- files --------------------------------------------------------------------------------------------------------

    def to_dict(self) -> dict[str, Any]:
        """Plain values, None left out."""
        values = {f.name: getattr(self, f.name) for f in dataclasses.fields(self)}
        return {k: str(v) if isinstance(v, Path) else v for k, v in values.items() if v is not None}

    def save(self, path: Path) -> None:
        """Write `run.toml`."""
        with atomic_file(path, "w") as stream:
            stream.write(tomli_w.dumps(self.to_dict()))

    def check_same(self, path: Path) -> None:
        """Compare with the settings a run was started with.

        Raises:
            CheckpointError: other-settings, naming what differs.
        """
        before = PretrainSettings().to_dict() | read_settings(path)  # a run may be older than a setting
        now = self.to_dict()
        keys = sorted((before.keys() | now.keys()) - _FREE)
        differing = [f"{k} was {before.get(k)}, now {now.get(k)}" for k in keys if before.get(k) != now.get(k)]
        if differing:
            raise CheckpointError(
                "other-settings", f"`{path.parent}` was started with other settings: {'; '.join(differing)}",
                f"resume it with `--config-file {path}`, or start a new run with another --out",
            )  # fmt: skip


def read_settings(path: Path) -> dict[str, Any]:
    """Read a flat TOML file of settings.

    Raises:
        ConfigError: not-found, bad-toml, or unknown-key with the nearest known name.
    """
    try:
        values = tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ConfigError("not-found", f"no settings file at `{path}`", "check the path") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError("bad-toml", f"`{path}`: {error}", "see the files in recipes/ for the form") from None
    known = {f.name for f in dataclasses.fields(PretrainSettings)}
    for key in values:
        if key not in known:
            raise ConfigError("unknown-key", f"`{key}` in `{path}`", near_miss(key, known))
    return values
