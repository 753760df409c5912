"""Everything that decides a pretraining run, in one flat place."""

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

from albertkit.config import AlbertConfig
from albertkit.errors import CheckpointError, ConfigError
from albertkit.printable import Notes
from albertkit.training.settings import ComputeOptions, LoopOptions, Settings
from albertkit.validation import NotNegative, Positive, Range, Share

# Of version 1 (Lan et al. 2020). Google trained version 2 of base for 10 million updates, of the
# other sizes for 3.
PAPER_STEPS = 125_000
WARMUP_SHARE = 0.025  # of the updates, or of the time
LATEST_WARMUP = 0.1  # share of the time in which `warmup_steps` updates are cut short

Size = Literal[
    "tiny", "small", "base", "large", "xlarge", "xxlarge", "base-v1", "large-v1", "xlarge-v1"
]


@dataclass(frozen=True, kw_only=True)
class MaskingOptions(Settings):
    """Options that turn documents of a store into masked examples, for training and for exported records.

    Attributes:
        length: Maximum sequence length in tokens, special tokens included (`max_seq_length` of
            records).
        pair_task: Task of the two segments: sop (sentence order), nsp (next sentence) or none (MLM
            only).
        sop_pairs: Sentence-order pairs: pure, or google, which pairs a chunk of one sentence with a
            random document, as the original does.
        masked_lm_prob: Share of tokens to predict; 0: train sentence order only.
        max_predictions: Maximum predictions per sequence (`max_predictions_per_seq` of records; 20
            in the paper's code). 0: as many as `masked_lm_prob` gives, 77 of 512.
        max_ngram: Maximum length of a masked span, in words.
        favor_shorter_ngram: Choose spans of n words with probability proportional to 1/n; otherwise
            longer spans are likelier.
        mask_units: Masking unit: words (all tokens of a word together), or pieces (single tokens,
            as in transformers' collator).
        short_seq_prob: Share of documents cut into shorter sequences, sampled again in each epoch.
        held_out: Share of documents held out for evaluation.
    """

    length: Annotated[int, Range(8)] = 512
    pair_task: Literal["sop", "nsp", "none"] = "sop"
    sop_pairs: Literal["pure", "google"] = "pure"
    masked_lm_prob: Share = 0.15
    max_predictions: NotNegative = 0
    max_ngram: Positive = 3
    favor_shorter_ngram: bool = True
    mask_units: Literal["words", "pieces"] = "words"
    short_seq_prob: Share = 0.1
    held_out: Share = 0.01


@dataclass(frozen=True, kw_only=True)
class PretrainSettings(MaskingOptions, LoopOptions, ComputeOptions):
    """Settings of a pretraining run. Defaults are the paper's, except for a batch size that suits one machine.

    Attributes:
        size: Model size: tiny, small, base, large, xlarge or xxlarge (version 2, no dropout);
            base-v1, large-v1 or xlarge-v1 (version 1, dropout 0.1). Default: base, or that of the
            continued model.
        config: A `config.json`, in place of a size.
        initial_weights: Weight initialisation: random, as in the original; text: embeddings from
            co-occurrences in the store, output bias from token frequencies, and attention heads on
            neighbouring tokens, from which the model then predicts before the first update (counts
            at most about 500 million tokens); or teacher: its embeddings, compressed, and the mean
            of its layers. Default: random; teacher for a new model that has one.
        teacher: Larger encoder to learn from, whose tokenizer, or a part of it (`tokenizer trim`),
            made the store: a checkpoint folder of a BERT or an ALBERT of any class, or of another
            encoder that transformers runs, or org/name of the hub. The model learns its states
            after each layer beside masked tokens and sentence order, and where the ALBERT or BERT
            reads the data's tokens and has a masked-LM head what this makes of the masked tokens; with `--masked-lm-prob 0
            --pair-task none` the states alone. Without `size` and `config` the new model has its
            shape, with one layer in the place of all.
        teacher_relations: Weight of the divergence between the teacher's and the model's relations of
            queries, of keys and of values in the last layer, as in MiniLMv2. 0: not computed.
        start_layers: Number of layers at the start, fewer than the model's, which share one set of
            weights: cheaper updates that teach most of what more layers would. Evaluations and
            checkpoints always use all layers. Default: all layers.
        start_share: Share of the updates with `start_layers` layers. Then the number of layers
            doubles until all are used, each number for an equal part of the remaining updates.
        train_only: Parameters to train: all, or new-rows (embeddings and prediction biases of
            tokens added to the continued model; all other weights stay bit-identical).
        new_rows_from: First token id of the new rows. Default: as saved by `albertkit tokenizer
            extend`, else the model's vocabulary size.
        batch_tokens: Maximum tokens per micro-batch on each device, without padding.
        batch_size: Sequences per micro-batch on each device, in place of `batch_tokens`.
        accumulation: Micro-batches per update on each process (gradient accumulation).
        processes: Number of processes that defines the batch: batch_tokens x accumulation x
            processes tokens per update. Default: the number at the start of the run. Fewer
            processes compute the same micro-batches in turns.
        steps: Number of updates. Default: the paper's 125,000; with `minutes`, as many as fit.
        lr: Peak learning rate. Default: the paper's 0.00176, scaled by the square root of the batch
            size over its 4096 x 512 tokens.
        pair_lr_factor: Learning rate factor for the pooler and the sentence-pair classifier. At a
            rate that is high for a small model they fit noise until it has decayed.
        warmup_steps: Number of linear warm-up updates. Default: 2.5 % of the steps, as the paper's
            3,125 of 125,000. With `minutes`, warm-up takes at most a tenth of the time.
        eval_every: Updates between evaluations; 0: only at the end. Default: a twentieth of the
            run, at least 50 updates without `minutes`.
        compile: Fuse operations between matrix products with `torch.compile`: on, off, or auto (on
            for CUDA).
    """

    free: ClassVar[frozenset[str]] = frozenset(
        {"eval_every", "save_every", "keep", "device", "log_every", "processes"}
    )

    size: Size | None = None
    config: Path | None = None
    initial_weights: Literal["random", "text", "teacher"] | None = None
    teacher: Path | None = None
    teacher_relations: Annotated[float, Range(0)] = 0.0
    start_layers: Positive | None = None
    start_share: Share = 0.7
    train_only: Literal["all", "new-rows"] = "all"
    new_rows_from: Positive | None = None
    batch_tokens: Positive = 16_384
    batch_size: Positive | None = None
    accumulation: Positive = 1
    processes: Positive | None = None
    pair_lr_factor: Annotated[float, Range(above=0, below=10)] = 1.0
    compile: Literal["auto", "on", "off"] = "auto"

    def problems(self) -> list[str]:
        """List what is impossible."""
        problems = super().problems()
        if self.masked_lm_prob == 0 and self.pair_task == "none" and self.teacher is None:
            problems.append("masked_lm_prob 0 and pair_task none leave nothing to learn")
        if self.initial_weights == "teacher" and self.teacher is None:
            problems.append("initial_weights teacher needs a teacher")
        if self.teacher_relations and self.teacher is None:
            problems.append("teacher_relations needs a teacher")
        if self.teacher is not None and (self.start_layers is not None or self.train_only != "all"):
            problems.append(
                "a teacher teaches all layers and all parameters: leave start_layers and train_only out"
            )
        if self.train_only == "new-rows" and self.masked_lm_prob == 0:
            problems.append("train_only new-rows needs masked tokens, masked_lm_prob is 0")
        if self.new_rows_from is not None and self.train_only == "all":
            problems.append("new_rows_from means something with train_only new-rows only")
        if not 0 <= self.end_lr <= (highest := self.lr or 10):
            problems.append(
                f"end_lr is {self.end_lr}, it must be at least 0 and at most lr, {highest:g}"
            )
        if self.batch_size is not None and self.batch_tokens != PretrainSettings.batch_tokens:
            problems.append(
                "batch_size and batch_tokens are both given; one follows from the other"
            )
        if self.max_micro_batch_tokens < self.length:
            problems.append(
                f"batch_tokens {self.batch_tokens} cannot hold one sequence of length {self.length}"
            )
        return problems

    def resolve_from_run(self, run: Path) -> "PretrainSettings":
        """Fill in processes, warm-up and extent, where these settings leave them open, from the run that they resume.

        These are its number of processes, its extent, and the length of its warm-up, which a run
        that is lengthened keeps.
        """
        if not (run / "run.toml").exists():
            return self
        before = self.read(run / "run.toml")
        open_names = [name for name in ("processes", "warmup_steps") if getattr(self, name) is None]
        if self.steps is None and self.minutes is None:
            open_names += ["steps", "minutes"]
        saved: dict[str, Any] = {name: before.get(name) for name in open_names}
        return dataclasses.replace(self, **saved)

    def check_same(self, path: Path) -> None:
        """Compare as `Settings.check_same`; a run whose learning rate does not decay may be given more updates.

        Raises:
            CheckpointError: changed, naming what differs.
        """
        saved = self.read(path)
        if self.config is not None and self.size is None and saved.get("size") is not None:
            # Runs of an older version name a size beside their configuration
            dataclasses.replace(self, size=saved["size"]).check_same(path)
            return
        before = saved.get("steps")
        now = self.steps
        if before is None or now is None or before == now:
            super().check_same(path)
            return
        dataclasses.replace(self, steps=before).check_same(path)
        run = path.parent
        if now < before:
            fact = f"cannot be shortened to {now}"
            hint = f"resume it with --steps {before}, or start a new run with another --out"
        elif self.schedule != "constant" or self.start_layers is not None:
            depends = (
                "learning rate schedule"
                if self.schedule != "constant"
                else "number of layers in use"
            )
            fact = f"cannot be lengthened to {now}: its {depends} depends on the number of steps"
            hint = (
                f"train its model further in a new run: albertkit pretrain STORE --continue {run / 'final'} --out NEW "
                f"--steps {now - before}; only a run with --schedule constant and without --start-layers can be lengthened"
            )
        else:
            return
        raise CheckpointError(
            "changed",
            f"`{run}` was started with {before} steps and {fact}",
            hint,
        )

    def resolve(
        self,
        world_size: int = 1,
        continued: bool = False,
    ) -> tuple["PretrainSettings", Notes]:
        """Fill in what was left open.

        Args:
            world_size: Number of processes.
            continued: The run continues a model, which decides the size.

        Returns:
            The settings with every default a number, and a line for each derived value that says
            why.

        Raises:
            ConfigError: bad-value.
        """
        self.check()
        if continued and (
            conflicting := [name for name in ("size", "config") if getattr(self, name) is not None]
        ):
            raise ConfigError(
                "bad-value",
                f"{' and '.join(conflicting)} cannot be set: the model that is continued decides",
                f"leave out {' and '.join(f'--{name}' for name in conflicting)}, also in a --config-file",
            )
        if self.initial_weights not in (None, "random") and continued:
            raise ConfigError(
                "bad-value",
                f"initial_weights {self.initial_weights} is for a new model, the model that is continued has weights",
                "leave --initial-weights out, also in a --config-file",
            )
        if self.train_only == "new-rows" and not continued:
            raise ConfigError(
                "bad-value",
                "train_only new-rows needs a model that is continued",
                "name it with --continue MODEL",
            )
        processes = self.processes or world_size
        tokens = self.max_micro_batch_tokens * self.accumulation * processes
        changes: dict[str, Any] = {"processes": processes}
        if not continued and self.teacher is None and self.config is None:
            changes["size"] = self.size or "base"
        if self.initial_weights is None:
            changes["initial_weights"] = (
                "random" if continued or self.teacher is None else "teacher"
            )
        reasons = [
            f"batch: up to {tokens:,} tokens an update ({self.max_micro_batch_tokens:,} x {self.accumulation} x {processes})"
        ]
        if num_busy := (shared := self.accumulation * processes) % world_size:
            idle = (
                "1 process is"
                if world_size - num_busy == 1
                else f"{world_size - num_busy} processes are"
            )
            reasons.append(
                f"{shared} micro-batches an update on {world_size} processes: {idle} idle in the last turn; "
                f"none is if the number of processes divides {shared}"
            )
        # LAMB's rate grows with the root of the batch (You et al. 2020).
        if self.lr is None:
            changes["lr"] = float(f"{0.00176 * math.sqrt(tokens / (4096 * 512)):.3g}")
            reasons.append(
                f"lr: {changes['lr']:g} = 0.00176 x sqrt({tokens:,} / 2,097,152), the paper's rate at this batch"
            )
            dataclasses.replace(self, lr=changes["lr"]).check()  # end_lr may be above it
        # Said and not refused: they may stand in the settings file of another run.
        idle_options = {
            "size": self.config is not None and "config",
            "poly_power": self.schedule != "polynomial" and f"schedule {self.schedule}",
            "end_lr": self.schedule == "constant" and "schedule constant",
            "sop_pairs": self.pair_task != "sop" and f"pair_task {self.pair_task}",
            "pair_lr_factor": self.pair_task == "none" and "pair_task none",
            "start_share": self.start_layers is None and "all layers from the start",
        }
        masking = ("max_predictions", "max_ngram", "favor_shorter_ngram", "mask_units")
        idle_options |= dict.fromkeys(masking, self.masked_lm_prob == 0 and "masked_lm_prob 0")
        for name, reason in idle_options.items():
            if reason and getattr(self, name) != getattr(PretrainSettings, name):
                reasons.append(f"{name} has no effect with {reason}")
        if self.minutes is not None:  # how many updates there will be is not known
            return dataclasses.replace(self, **changes), reasons
        steps = changes["steps"] = self.steps or PAPER_STEPS
        if self.warmup_steps is None:
            changes["warmup_steps"] = round(WARMUP_SHARE * steps)
            reasons.append(
                f"warmup_steps: {changes['warmup_steps']:,} = 2.5 % of {steps:,} steps, as in the paper"
            )
        if self.eval_every is None:
            changes["eval_every"] = max(min(steps, 50), steps // 20)
        if self.save_every is None:
            changes["save_every"] = changes.get("eval_every", self.eval_every)
        return dataclasses.replace(self, **changes), reasons

    @property
    def max_micro_batch_tokens(self) -> int:
        """Tokens of a micro-batch at most."""
        return self.batch_tokens if self.batch_size is None else self.batch_size * self.length

    @property
    def warmup_time_share(self) -> float:
        """Share of a run by the clock in which its warm-up ends; 0 for a run of a known number of updates."""
        if self.minutes is None:
            return 0.0
        if self.warmup_steps is None:
            return WARMUP_SHARE
        return LATEST_WARMUP if self.warmup_steps else 0.0

    def model_config(self, vocab_size: int, ids: Mapping[str, int] | None = None) -> AlbertConfig:
        """Return the configuration that these settings ask for.

        Args:
            vocab_size: Of the data's tokenizer.
            ids: Its special ids, as the configuration names them. Default: the usual ones.

        Raises:
            ConfigError: wrong-tokenizer if `config` names others, bad-value if it is too short.
        """
        ids = ids or {}
        if self.config is None:
            # At least the positions of the published sizes: it may be fine-tuned on longer texts.
            longest = max(512, self.length)
            size, dropout, _ = (self.size or "base").partition("-v1")
            version = 1 if dropout else 2
            return AlbertConfig.from_size(
                size,
                version,
                vocab_size=vocab_size,
                max_position_embeddings=longest,
                **ids,
            )
        # Loads torch, which a help page does without
        from albertkit.conversion.initial import read_config_for_tokenizer

        config = read_config_for_tokenizer(self.config, vocab_size, ids)
        config.check_length(self.length, f"`{self.config}`")
        return config
