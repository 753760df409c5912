"""Pretraining from a store or records to a model folder: puts stream, model, objective and loop together."""

import shutil
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from albertkit.checkpoints import save_checkpoint
from albertkit.checkpoints.folder import PROVENANCE
from albertkit.checkpoints.own_tokenizer import own_tokenizer
from albertkit.config import AlbertConfig
from albertkit.corpus import TokenStore
from albertkit.errors import CheckpointError, ConfigError, MissingExtraError
from albertkit.files import atomic_folder, read_json, write_checksums, write_json
from albertkit.model import AlbertForMaskedLM, AlbertForPreTraining
from albertkit.model_folder import describe_model, local_folder, or_model_of_run, write_selected
from albertkit.pretraining.depth import passes_at, set_depth
from albertkit.pretraining.epoch_stream import check_budget
from albertkit.pretraining.evaluation import Evaluation, Unigram, evaluate_batches
from albertkit.pretraining.guard import GuardedDisplay
from albertkit.pretraining.objective import PretrainingObjective
from albertkit.pretraining.preparation import loop_settings, prepare_run
from albertkit.pretraining.record_stream import RecordEvaluation
from albertkit.pretraining.records import TrainingRecords
from albertkit.pretraining.settings import PretrainSettings
from albertkit.pretraining.sources import held_out_stream, is_records
from albertkit.pretraining.start import START
from albertkit.report import plot_run, write_card
from albertkit.report.versions import versions
from albertkit.training.display import Display
from albertkit.training.distributed import World, join_world
from albertkit.training.hardware import choose_precision, describe, repeatable
from albertkit.training.loop import TrainingResult, train
from albertkit.training.resuming import begin_folder
from albertkit.training.run_folder import alone_in_run

_REMEMBERED = ("held_out", "seed", "length", "pair_task", "masked_lm_prob")


@dataclass(frozen=True)
class PretrainResult:
    """What a pretraining left.

    Attributes:
        model: Folder of the final model; None if a signal stopped the run before its end.
        steps: Updates made or skipped.
        seconds: Time spent in updates.
        evaluation: The last evaluation.
        skipped: Updates skipped for a gradient that was not finite.
        minutes_used: With a time budget: what was used of it.
        planned: With a time budget: least and most updates that were planned on the way.
        replanned: With a time budget: how often.
    """

    model: Path | None
    steps: int
    seconds: float
    evaluation: dict[str, float]
    skipped: int
    minutes_used: float | None = None
    planned: tuple[int, int] | None = None
    replanned: int | None = None

    def extent(self) -> dict[str, Any]:
        """How much was trained, as plain values; what there was none of is left out."""
        used = None if self.minutes_used is None else round(self.minutes_used, 3)
        values = {
            "steps": self.steps, "seconds": round(self.seconds, 1), "minutes_used": used, "planned": self.planned,
            "replanned": self.replanned, "skipped": self.skipped,
        }  # fmt: skip
        return {name: value for name, value in values.items() if value is not None}

    def to_dict(self) -> dict[str, Any]:
        """Flat plain values for JSON."""
        return {"model": self.model and str(self.model), **self.extent(), **self.evaluation}


@alone_in_run
def pretrain(
    store: str | Path | TokenStore,
    out: str | Path,
    settings: PretrainSettings | None = None,
    *,
    start: str | Path | None = None,
    tokenizer: str | Path | None = None,
    resume: bool = False,
    title: str = "pretraining",
) -> PretrainResult:
    """Train an ALBERT on masked pieces and sentence order, from scratch or from a checkpoint.

    Under `torchrun` every process takes its share of the examples and gradients are summed.

    Args:
        store: A token store or its folder; or masked records (TFRecords of create_pretraining_data.py or of
            `albertkit corpus export`): a file, a folder of them, or a glob.
        out: Folder of the run: `run.toml`, `metrics.jsonl`, `checkpoints/`, `best/`, `final/` and `loss.png`.
        settings: See `PretrainSettings`.
        start: Checkpoint to continue: a folder or `org/name` of the hub, of any class. Heads that it lacks are drawn, and rows
            for pieces that only the store's tokenizer has are added: see `albertkit.pretraining.start.continue_model`. The
            run keeps a copy in `start/`.
        tokenizer: Folder of the tokenizer that records were made with. Default: `tokenizer/` beside them. A store has its
            own.
        resume: Continue the run in `out` from its newest checkpoint, to the same bits.
        title: Shown beside the progress bar.

    Raises:
        CheckpointError: run-exists if `out` holds a run and `resume` is not set; no-run if it holds none to resume;
            other-settings or resume-mismatch if it was started with other settings or other data; what `continue_model` raises.
        ConfigError: bad-settings, bad-device, and what `open_source` and `AlbertConfig.from_pretrained` raise.
        DataError: what `open_source` and the streams raise.
        MachineError: loss-not-finite, lost-process.
    """
    run = Path(out)
    made = prepare_run(store, run, settings or PretrainSettings(), start=start, tokenizer=tokenizer, resume=resume)
    settings, world, source, model, began = made.settings, made.world, made.source, made.model, made.began
    continued, reasons, resume = made.continued, made.reasons, made.resume

    def save_model(folder: Path) -> None:
        save_checkpoint(folder, model, source.tokenizer)
        facts: dict[str, Any] = {"store": source.fingerprint, **{k: getattr(settings, k) for k in _REMEMBERED}}
        write_json(folder / PROVENANCE, facts | ({"continued": began.continued} if continued else {}))

    def grow(progress: float) -> None:
        set_depth(model, passes_at(progress, settings, model.config.num_hidden_layers))

    def evaluate() -> dict[str, float]:
        set_depth(model, None)
        return evaluate_batches(model, made.held_out, made.unigram, world).numbers()

    def write_card_of(name: str, folder: Path, evaluation: dict[str, float], **extent: Any) -> None:
        write_card(
            folder,
            run.resolve().name,
            place=f"{run.resolve().name}/{name}",
            config=model.config.to_dict(),
            parameters=sum(p.numel() for p in model.parameters()),
            corpus=source.facts() | ({"continued": str(began.continued["model"])} if continued else {}),
            settings=settings.to_dict() | extent,
            results=evaluation,
            baselines=evaluation,
            versions=versions(),
        )

    def save_start() -> None:
        shutil.rmtree(run / START, ignore_errors=True)  # of an earlier attempt that ended before there was a run
        if continued:
            with atomic_folder(run / START) as folder:
                save_model(folder)
                write_checksums(folder)

    begin_folder(run, settings, world, before_settings=None if resume else save_start)
    display = GuardedDisplay(
        run if world.is_main else None, title, silent=not world.is_main, warmup_steps=settings.warmup_steps or 0
    )
    reasons.append(describe(model, world.device))
    for line in reasons:
        display.note(line)
    metric = "masked_lm_loss" if settings.masked_lm_prob else "sentence_order_loss"
    with repeatable(world.device):
        result = train(
            made.trained, PretrainingObjective(model), made.stream, loop_settings(settings), run=run, world=world,
            display=display, save_model=save_model, describe=partial(write_card_of, "best"), evaluate=evaluate, resume=resume,
            before_update=grow,
            select=metric, smaller=True,
        )  # fmt: skip
    if not result.finished:
        return _result(None, result)
    final = run / "final"
    if world.is_main:
        extent = {"tokens_seen": result.state.tokens, "seconds": round(result.state.seconds, 1)}
        with atomic_folder(final) as folder:
            save_model(folder)
            write_card_of("final", folder, result.evaluation, **extent)
            write_selected(folder, result.state.step, metric, result.evaluation.get(metric))
            write_checksums(folder)
        _plot(run, result, display)
    world.barrier()
    return _result(final, result)


def _result(model: Path | None, result: TrainingResult) -> PretrainResult:
    state = result.state
    planned = [plan["total_steps"] for plan in state.plans]
    budget = (state.clock / 60, (min(planned), max(planned)), len(planned) - 1) if planned else (None, None, None)
    return PretrainResult(model, state.step, state.seconds, result.evaluation, state.skipped, *budget)


def next_commands(store: str | Path, run: Path) -> list[tuple[str, str]]:
    """Return commands to try with a finished run, whose model is the one that it recommends, and what each does."""
    return [
        (f"albertkit evaluate {run} {store}", f"score {describe_model(or_model_of_run(run))}"),
        (f"albertkit predict {run} --text 'The [MASK] is red.' --kind fill-mask", "fill in a mask"),
        (f"albertkit finetune sst2 {run} DATA --out RUN", "fine-tune it; other tasks: albertkit finetune --help"),
        (f"albertkit report {run}", "losses, settings and results as a page"),
    ]


def _plot(run: Path, result: TrainingResult, display: Display) -> None:
    """Draw the losses, if there is something to draw with."""
    try:
        plot_run(run, run / "loss.png", baseline=result.evaluation, title=run.resolve().name)
    except MissingExtraError as error:
        display.note(f"no plot: {error.message} ({error.hint})")


def evaluate(
    model: str | Path,
    store: str | Path | TokenStore,
    *,
    length: int | None = None,
    batch_tokens: int = 16_384,
    held_out: float | None = None,
    seed: int | None = None,
    precision: str = "fp32",
    device: str = "auto",
) -> Evaluation:
    """Google's four numbers of a model on the held-out documents of a store, or on records, beside two baselines.

    In a store 15 % of the tokens are masked, in spans of up to three words, whatever was masked in training: numbers of
    different models compare. Records are masked as they were written.

    Args:
        model: A checkpoint folder with pretraining heads, or a run. A masked-LM model without a sentence-order head gets the
            masked-LM numbers alone.
        store: A token store made with the model's tokenizer, or its folder; or TFRecords of masked examples: a file, a folder of
            them, or a glob.
        length: Longest sequence. Default: the length it was trained with, else what the model allows, at most 512.
        batch_tokens: Tokens computed at once.
        held_out: Share of documents to evaluate on. Default: those held out when the model was trained on this very store;
            all documents of any other store.
        seed: Draws segments and masks, and the documents of another store. Default: the seed of the training, else 0.
        precision: fp32, bf16 or auto.
        device: auto, cpu, cuda or cuda:N.

    Raises:
        DataError: wrong-tokenizer if the store was made with another tokenizer; nothing-to-evaluate.
        CheckpointError: what `from_pretrained` raises; wrong-tokenizer if only the vocabulary's size can tell.
        ConfigError: bad-settings, bad-device; bad-value if a share or a length is impossible.
    """
    if held_out is not None and not 0 < held_out <= 1:
        raise ConfigError("bad-value", f"held_out is {held_out}", "use a share above 0 and at most 1")
    world = join_world(device)
    folder = local_folder(model)
    without_order = AlbertConfig.from_pretrained(folder).foreign.get("architectures") == [AlbertForMaskedLM.__name__]
    missing = ("sop_classifier", "albert") if without_order else ()  # the pooler is of the encoder
    loaded = AlbertForPreTraining.from_pretrained(folder, strict=True, allow_missing=missing).to(world.device)
    loaded.compute_dtype = choose_precision(precision, world.device)
    trained = read_json(folder / PROVENANCE) if (folder / PROVENANCE).exists() else {}
    if without_order:
        trained["pair_task"] = "none"
    if not isinstance(store, TokenStore) and is_records(store):
        if length is not None or seed is not None:
            raise ConfigError(
                "conflicting-options", f"`{store}` holds records, whose length and masks are fixed",
                "leave --length and --seed out",
            )  # fmt: skip
        return _evaluate_records(loaded, folder, Path(store), trained, held_out, batch_tokens, world)
    store = store if isinstance(store, TokenStore) else TokenStore.open(store)
    _check_tokenizer(folder, loaded, store)
    same_store = trained.get("store") == store.fingerprint
    if held_out is None:
        held_out = trained["held_out"] if same_store else 1.0
    settings = PretrainSettings(
        length=length or trained.get("length") or min(512, loaded.config.max_position_embeddings),
        seed=trained.get("seed", 0) if seed is None else seed,
        pair_task=trained.get("pair_task", "sop"),
        masked_lm_prob=trained.get("masked_lm_prob", 0.15),
        batch_tokens=batch_tokens,
    )
    settings.check()
    if settings.length > (longest := loaded.config.max_position_embeddings):
        raise ConfigError(
            "bad-value", f"length {settings.length} exceeds the model's {longest}", f"use --length {longest}"
        )
    # Another seed must not choose other documents of this store: the model was trained on those.
    documents = store.held_out(held_out, trained["seed"] if same_store else settings.seed)
    batches = held_out_stream(store, settings, documents, world)
    # With no document left to count, the frequencies are those of the evaluated text itself: a harder baseline.
    unigram = Unigram(store, documents if held_out < 1 else None, world)
    return evaluate_batches(loaded, batches, unigram, world)


def _evaluate_records(
    model: AlbertForPreTraining,
    folder: Path,
    path: Path,
    trained: dict[str, Any],
    held_out: float | None,
    batch_tokens: int,
    world: World,
) -> Evaluation:
    """As `evaluate`, on records; all of them but those that the model was trained on."""
    pairs = trained.get("pair_task", "sop") != "none"
    records = TrainingRecords(path, own_tokenizer(folder, model.config), pairs=pairs)
    if records.length > (longest := model.config.max_position_embeddings):
        raise ConfigError(
            "bad-value", f"the records `{path}` have {records.length} tokens, the model {longest} positions",
            f"export them again with --length {longest}",
        )  # fmt: skip
    if held_out is None:
        held_out = trained["held_out"] if trained.get("store") == records.fingerprint else 1.0
    numbers = records.held_out(held_out, trained.get("seed", 0))
    check_budget(batch_tokens, records.length)
    batches = RecordEvaluation(records, numbers, batch_tokens=batch_tokens, rank=world.rank, world_size=world.size)
    unigram = Unigram.of_counts(records.count_pieces(numbers if numbers.all() else ~numbers))
    return evaluate_batches(model, batches, unigram, world)


def _check_tokenizer(folder: Path, model: AlbertForPreTraining, store: TokenStore) -> None:
    """A store's ids mean something only to the tokenizer that made them."""
    if (folder / "spiece.model").exists():
        store.check_tokenizer(own_tokenizer(folder, model.config))
    elif model.config.vocab_size != store.vocab_size:
        raise CheckpointError(
            "wrong-tokenizer", f"`{folder}` has {model.config.vocab_size:,} pieces, the store {store.vocab_size:,}",
            "build the store with the model's tokenizer: albertkit corpus build FILES --tokenizer MODEL --out STORE",
        )  # fmt: skip
