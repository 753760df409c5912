"""Everything that decides a pretraining run, in one flat place."""

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Literal

from albertkit.config import AlbertConfig
from albertkit.errors import CheckpointError, ConfigError
from albertkit.training.settings import MOST_STEPS, ComputeOptions, LoopOptions, Settings

PAPER_STEPS = 125_000
WARMUP_SHARE = 0.025  # of the updates, or of the time
LATEST_WARMUP = 0.1  # share of the time in which `warmup_steps` updates are cut short

_LEAST_ONE = "batch_tokens batch_size accumulation processes steps log_every keep new_rows_from start_layers".split()
_LEAST_ZERO = ("warmup_steps", "eval_every", "save_every", "clip_norm")

Size = Literal["tiny", "small", "base", "large", "xlarge", "xxlarge", "base-v1", "large-v1", "xlarge-v1"]


@dataclass(frozen=True, kw_only=True)
class MaskingOptions(Settings):
    """Options by which documents of a store become masked examples, in a training and in exported records.

    Attributes:
        length: Longest sequence, in tokens, special tokens included (`max_seq_length` of records).
        pair_task: What the two segments are for: sop (sentence order), nsp (next sentence) or none (MLM only).
        sop_pairs: pure, or google for the original's pairs with a random document where a chunk has one sentence.
        masked_lm_prob: Share of tokens to predict; 0 to learn the sentence order only.
        max_predictions: Most predictions a sequence (`max_predictions_per_seq` of records; the paper's code used 20); 0 for as
            many as `masked_lm_prob` asks for, 77 of 512.
        max_ngram: Longest masked span, in words.
        favor_shorter_ngram: Spans of n words with probability in proportion to 1/n; otherwise the longer the likelier.
        mask_units: words: all tokens of a word are masked together; or pieces, one by one, as transformers' collator does.
        short_seq_prob: Share of documents cut into shorter sequences, drawn again in each epoch.
        held_out: Share of documents kept for evaluation.
    """

    length: int = 512
    pair_task: Literal["sop", "nsp", "none"] = "sop"
    sop_pairs: Literal["pure", "google"] = "pure"
    masked_lm_prob: float = 0.15
    max_predictions: int = 0
    max_ngram: int = 3
    favor_shorter_ngram: bool = True
    mask_units: Literal["words", "pieces"] = "words"
    short_seq_prob: float = 0.1
    held_out: float = 0.01

    def problems(self) -> list[str]:
        """List what is impossible."""
        return [
            *super().problems(),
            *self.out_of_range({"max_ngram": 1, "max_predictions": 0}, ("masked_lm_prob", "held_out")),
        ]


@dataclass(frozen=True, kw_only=True)
class PretrainSettings(MaskingOptions, LoopOptions, ComputeOptions):
    """Settings of a pretraining run. The defaults are the paper's, except for the batch, which suits one machine.

    Attributes:
        size: tiny, small, base, large, xlarge or xxlarge, without dropout as in version 2; or version 1 with dropout 0.1:
            base-v1, large-v1, xlarge-v1. Default: base, or the model that is continued.
        config: A `config.json` to use in place of a size.
        initial_weights: random, as the original's; or text: embeddings from co-occurrences in the store, an output bias from
            frequencies, and heads that look at neighbours, so that the model predicts from them before the first update. Of
            more than 500 million tokens a part is counted.
        start_layers: Layers at first, fewer than the model's, which share one set of weights: cheaper updates that teach it most
            of what more layers would. Evaluations and checkpoints always have all layers. Default: all from the start.
        start_share: Share of the updates after which the number of layers doubles, until all are used, each number for an equal
            part of the rest.
        train_only: all; or new-rows: the embeddings of the tokens that the continued model did not have and their biases in
            the prediction, while everything else keeps its bits.
        new_rows_from: First id of the new rows. Default: what `albertkit tokenizer extend` has noted beside the model, else the
            number of its tokens.
        batch_tokens: Most tokens of a micro-batch on each device, padding not counted.
        batch_size: Sequences of a micro-batch on each device, in place of `batch_tokens`.
        accumulation: Micro-batches an update, on each of the processes.
        processes: Number of processes that defines the batch: batch_tokens x accumulation x processes tokens an update.
            Default: the number at the start of the run. On fewer processes the same micro-batches are computed in turns.
        steps: Updates. Default: the paper's 125,000; with `minutes`, as many as fit.
        lr: Peak learning rate. Default: the paper's 0.00176, scaled by the root of the batch size over its 4096 x 512 tokens.
        pair_lr_factor: Factor of the learning rate for the pooler and the classifier of two segments. Where the rate is high for
            a small model, they follow noise until it has fallen.
        warmup_steps: Linear warm-up. Default: 2.5 % of the steps, as the paper's 3,125 of 125,000. With `minutes` it ends after a
            tenth of the time at the latest.
        eval_every: Updates between two evaluations; 0 for one at the end. Default: a twentieth of the run, at least 50 updates
            without `minutes`.
        compile: Fuse the operations between matrix products with `torch.compile`: on, off, or auto (on for CUDA).
    """

    free: ClassVar[frozenset[str]] = frozenset({"eval_every", "save_every", "keep", "device", "log_every", "processes"})

    size: Size | None = None
    config: Path | None = None
    initial_weights: Literal["random", "text"] = "random"
    start_layers: int | None = None
    start_share: float = 0.7
    train_only: Literal["all", "new-rows"] = "all"
    new_rows_from: int | None = None
    batch_tokens: int = 16_384
    batch_size: int | None = None
    accumulation: int = 1
    processes: int | None = None
    pair_lr_factor: float = 1.0
    compile: Literal["auto", "on", "off"] = "auto"

    def problems(self) -> list[str]:
        """List what is impossible."""
        from albertkit.training.optimizers import known_optimizers  # loads torch, which a help page does without

        at_least = {"length": 8} | dict.fromkeys(_LEAST_ONE, 1) | dict.fromkeys(_LEAST_ZERO, 0)
        above_zero = {"steps": MOST_STEPS, "lr": 10, "poly_power": math.inf, "minutes": math.inf, "pair_lr_factor": 10}
        shares = ("short_seq_prob", "ema_decay", "start_share")
        found = [*super().problems(), *self.out_of_range(at_least, shares, above_zero)]
        if self.optimizer not in (known := known_optimizers()):
            found.append(f"optimizer must be one of {', '.join(known)}, it is {self.optimizer}")
        if self.masked_lm_prob == 0 and self.pair_task == "none":
            found.append("masked_lm_prob 0 and pair_task none leave nothing to learn")
        if self.train_only == "new-rows" and self.masked_lm_prob == 0:
            found.append("train_only new-rows needs masked tokens, masked_lm_prob is 0")
        if self.new_rows_from is not None and self.train_only == "all":
            found.append("new_rows_from means something with train_only new-rows only")
        if not 0 <= self.end_lr <= (self.lr or 10):
            found.append(f"end_lr must be at least 0 and at most lr, it is {self.end_lr}")
        if self.plan is not None and (self.minutes is not None or self.steps is not None):
            found.append("a plan decides how many updates there are: leave out steps and minutes")
        if self.batch_size is not None and self.batch_tokens != PretrainSettings.batch_tokens:
            found.append("batch_size and batch_tokens are both given; one follows from the other")
        if self.most_tokens < self.length:
            found.append(f"batch_tokens {self.batch_tokens} cannot hold one sequence of length {self.length}")
        return found

    def as_started(self, run: Path) -> "PretrainSettings":
        """Fill in what these settings leave open from those that the run in a folder was started with.

        These are its number of processes, its extent, and the length of its warm-up, which a run that is lengthened keeps.
        """
        if not (run / "run.toml").exists():
            return self
        before = self.read(run / "run.toml")
        kept: dict[str, Any] = {n: before.get(n) for n in ("processes", "warmup_steps") if getattr(self, n) is None}
        if self.steps is None and self.minutes is None and self.plan is None:
            kept |= {name: before.get(name) for name in ("steps", "minutes", "plan")}
        return dataclasses.replace(self, **kept)

    def check_same(self, path: Path) -> None:
        """Compare as `Settings.check_same`; a run whose learning rate does not decay may be given more updates.

        Raises:
            CheckpointError: changed, naming what differs.
        """
        before, now = self.read(path).get("steps"), self.steps
        if before is None or now is None or before == now:
            super().check_same(path)
            return
        dataclasses.replace(self, steps=before).check_same(path)
        run = path.parent
        if now < before:
            fact = f"cannot be shortened to {now}"
            hint = f"resume it with --steps {before}, or start a new run with another --out"
        elif self.schedule != "constant" or self.start_layers is not None:
            depends = "learning rate schedule" if self.schedule != "constant" else "number of layers in use"
            fact = f"cannot be lengthened to {now}: its {depends} depends on the number of steps"
            hint = (
                f"train its model further in a new run: albertkit pretrain STORE --continue {run / 'final'} --out NEW "
                f"--steps {now - before}; only a run with --schedule constant and without --start-layers can be lengthened"
            )
        else:
            return
        raise CheckpointError("changed", f"`{run}` was started with --steps {before} and {fact}", hint)

    def resolve(self, world_size: int = 1, continued: bool = False) -> tuple["PretrainSettings", list[str]]:
        """Fill in what was left open.

        Args:
            world_size: Number of processes.
            continued: The run continues a model, which decides the size.

        Returns:
            The settings with every default a number, and a line for each derived value that says why.

        Raises:
            ConfigError: bad-value.
        """
        self.check()
        if continued and (given := [name for name in ("size", "config") if getattr(self, name) is not None]):
            raise ConfigError(
                "bad-value",
                f"{' and '.join(given)} cannot be set: the model that is continued decides",
                f"leave out {' and '.join(f'--{name}' for name in given)}, also in a --config-file",
            )
        if self.initial_weights == "text" and continued:
            raise ConfigError(
                "bad-value",
                "initial_weights text is for a new model, the model that is continued has weights",
                "leave --initial-weights out, also in a --config-file",
            )
        if self.train_only == "new-rows" and not continued:
            raise ConfigError(
                "bad-value", "train_only new-rows needs a model that is continued", "name it with --continue MODEL"
            )
        processes = self.processes or world_size
        tokens = self.most_tokens * self.accumulation * processes
        changes: dict[str, Any] = {"processes": processes} | ({} if continued else {"size": self.size or "base"})
        reasons = [
            f"batch: up to {tokens:,} tokens an update ({self.most_tokens:,} x {self.accumulation} x {processes})"
        ]
        if left := (shared := self.accumulation * processes) % world_size:
            idle = "1 process is" if world_size - left == 1 else f"{world_size - left} processes are"
            reasons.append(
                f"{shared} micro-batches an update on {world_size} processes: {idle} idle in the last turn; "
                f"none is if the number of processes divides {shared}"
            )
        if self.lr is None:
            changes["lr"] = float(f"{0.00176 * math.sqrt(tokens / (4096 * 512)):.3g}")
            reasons.append(
                f"lr: {changes['lr']:g} = 0.00176 x sqrt({tokens:,} / 2,097,152), the paper's rate at this batch"
            )
        if self.minutes is not None or self.plan is not None:  # how many updates there will be is not known
            return dataclasses.replace(self, **changes), reasons
        steps = changes["steps"] = self.steps or PAPER_STEPS
        if self.warmup_steps is None:
            changes["warmup_steps"] = round(WARMUP_SHARE * steps)
            reasons.append(f"warmup_steps: {changes['warmup_steps']:,} = 2.5 % of {steps:,} steps, as in the paper")
        if self.eval_every is None:
            changes["eval_every"] = max(min(steps, 50), steps // 20)
        if self.save_every is None:
            changes["save_every"] = changes.get("eval_every", self.eval_every)
        return dataclasses.replace(self, **changes), reasons

    @property
    def most_tokens(self) -> int:
        """Tokens of a micro-batch at most."""
        return self.batch_tokens if self.batch_size is None else self.batch_size * self.length

    @property
    def warmup_share(self) -> float:
        """Share of a run by the clock in which its warm-up ends; 0 for a run of a known number of updates."""
        if self.minutes is None and self.plan is None:
            return 0.0
        return WARMUP_SHARE if self.warmup_steps is None else LATEST_WARMUP * bool(self.warmup_steps)

    def model_config(self, vocab_size: int, ids: Mapping[str, int] | None = None) -> AlbertConfig:
        """Return the configuration that these settings ask for.

        Args:
            vocab_size: Of the data's tokenizer.
            ids: Its special ids, as the configuration names them. Default: the usual ones.

        Raises:
            ConfigError: wrong-tokenizer or wrong-tokenizer if `config` names others, bad-value if it is too short.
        """
        ids = ids or {}
        if self.config is None:
            longest = max(512, self.length)
            size, dropout, _ = (self.size or "base").partition("-v1")
            version = 1 if dropout else 2
            return AlbertConfig.from_size(size, version, vocab_size=vocab_size, max_position_embeddings=longest, **ids)
        from albertkit.conversion.initial import config_for  # loads torch, which a help page does without

        config = config_for(self.config, vocab_size, ids)
        if config.max_position_embeddings < self.length:
            raise ConfigError(
                "bad-value",
                f"length {self.length} exceeds max_position_embeddings {config.max_position_embeddings}",
                f"use --length {config.max_position_embeddings}",
            )
        return config
