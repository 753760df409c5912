"""Pretraining from a store or records to a model folder: puts stream, model, objective and loop together."""

import math
import shlex
import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal

from albertkit.command import takes
from albertkit.config import AlbertConfig
from albertkit.conversion.classes import has_tokenizer, read_model_tokenizer
from albertkit.corpus import TokenStore
from albertkit.errors import CheckpointError, ConfigError, MissingExtraError
from albertkit.files import atomic_folder, read_typed, write_checksums
from albertkit.model import AlbertForMaskedLM, AlbertForPreTraining, PackedBatch
from albertkit.model.files import PROVENANCE, untrained_heads
from albertkit.model_paths import (
    describe_selected_model,
    local_folder,
    model_of_run_or_folder,
    record_selected_model,
)
from albertkit.output.progress import ProgressBar
from albertkit.output.render import package_versions
from albertkit.output.sections import Commands, FactList, Section
from albertkit.pretraining.batches import check_longest_fits
from albertkit.pretraining.card import PretrainingFacts, model_card
from albertkit.pretraining.objective import (
    Evaluation,
    Unigram,
    evaluate_batches,
    num_layers_at,
    set_num_layers,
)
from albertkit.pretraining.options import EvaluatePretrainedOptions, PretrainOptions
from albertkit.pretraining.preparation import START, PreparedRun, prepare_run
from albertkit.pretraining.records import RecordEvaluation, TrainingRecords
from albertkit.pretraining.settings import PretrainSettings
from albertkit.pretraining.sources import held_out_stream, is_records
from albertkit.pretraining.teacher import TEACHER_LOSS, TaughtStudent, evaluate_states
from albertkit.tokenizer import AlbertTokenizer
from albertkit.tokenizer.texts import KOREAN, choose_example_texts
from albertkit.training.loop import TrainingRecipe
from albertkit.training.monitor import plot_run, read_metrics
from albertkit.training.processes import World, choose_precision, describe_precision, join_world
from albertkit.training.run import Run, RunResult, open_run

_CONSTANT = 0.99  # share of equal guesses from which the outputs are called constant
# Settings that a later evaluation of the model follows, see `_Trained`.
_REMEMBERED = ("held_out", "seed", "length", "pair_task", "masked_lm_prob")


@dataclass(frozen=True, kw_only=True)
class PretrainResult(RunResult):
    """Result of a pretraining; its model is in `final/`.

    Attributes:
        skipped: Updates skipped for a gradient that was not finite.
        minutes_used: With a time budget: what was used of it.
        planned: With a time budget: least and most updates that were planned on the way.
        replanned: With a time budget: how often.
        next: Commands to try, and what each does.
    """

    skipped: int = 0
    minutes_used: float | None = None
    planned: tuple[int, int] | None = None
    replanned: int | None = None
    next: tuple[tuple[str, str], ...] = ()

    def extent(self) -> dict[str, Any]:
        """Return how much was trained, as plain values; without what there was none of."""
        values = {
            "steps": self.steps,
            "seconds": round(self.seconds, 1),
            "minutes_used": None if self.minutes_used is None else round(self.minutes_used, 3),
            "planned": self.planned,
            "replanned": self.replanned,
            "skipped": self.skipped,
        }
        return {name: value for name, value in values.items() if value is not None}

    def to_dict(self) -> dict[str, Any]:
        """Return flat plain values for JSON."""
        return {"model": self.model and str(self.model), **self.extent(), **self.scores}

    def sections(self) -> list[Section]:
        """Return what was trained and scored, and what to try next."""
        return [FactList(self.to_dict()), *([Commands(self.next)] if self.next else [])]


@takes(PretrainOptions)
def pretrain(options: PretrainOptions) -> PretrainResult:
    """Train an ALBERT on masked tokens and sentence order, from scratch or from a checkpoint; see `PretrainOptions`.

    Under `torchrun` every process takes its share of the examples and gradients are summed. The
    folder gets `run.toml`, `metrics.jsonl`, `checkpoints/`, `best/`, `final/` and `loss.png`. In
    Python `store` may also be a `TokenStore`.

    Raises:
        CheckpointError: exists if `out` holds a run and `resume` is not set; missing-file if it
            holds none to resume; changed if it was started with other settings or other data; what
            `initialise_from_checkpoint` raises.
        ConfigError: bad-value, no-device, and what `prepare_run` and `AlbertConfig.from_pretrained`
            raise.
        DataError: what `prepare_run` and the streams raise.
        MachineError: not-finite, worker-died.
    """
    with open_run(
        options.out, options.settings, "pretraining", options.resume, check_settings_now=False
    ) as run:
        prepared = prepare_run(options, run.world, run)
        run = run.resolved(prepared.settings)
        recipe = _make_recipe(run, prepared)

        def save_start() -> None:
            # An attempt that ended before there was a run may have left one.
            shutil.rmtree(run.folder / START, ignore_errors=True)
            if prepared.continued:
                with atomic_folder(run.folder / START) as folder:
                    recipe.save_with_provenance(folder)
                    write_checksums(folder)

        trained = run.train(recipe, None if run.resume else save_start)
        state = trained.state
        evaluation = trained.evaluation
        result = PretrainResult(
            metric=recipe.select,
            scores=evaluation,
            steps=state.step,
            seconds=state.seconds,
            skipped=state.skipped,
        )
        if state.plans:
            planned = [plan["total_steps"] for plan in state.plans]
            result = replace(
                result,
                minutes_used=state.clock / 60,
                planned=(min(planned), max(planned)),
                replanned=len(planned) - 1,
            )
        if not trained.finished:
            return result
        final = run.folder / "final"
        if run.world.is_main:
            extent = {"tokens_seen": state.tokens, "seconds": round(state.seconds, 1)}
            with atomic_folder(final) as folder:
                recipe.save_with_provenance(folder)
                _write_card(run, prepared, "final", folder, evaluation, extent)
                record_selected_model(
                    folder, state.step, recipe.select, evaluation.get(recipe.select)
                )
                write_checksums(folder)
            try:
                plot_run(
                    read_metrics(run.folder),
                    run.folder / "loss.png",
                    baseline=evaluation,
                    title=run.name,
                )
            except MissingExtraError as error:
                run.display.note(f"no plot: {error.message} ({error.hint})")
        # No process returns before the model is there.
        run.world.barrier()
        commands = next_commands(
            options.store, options.out, prepared.source.tokenizer, untrained_heads(final)
        )
        return replace(result, model=final, next=commands)


def _make_recipe(run: Run[PretrainSettings], prepared: PreparedRun) -> TrainingRecipe[PackedBatch]:
    settings = prepared.settings
    model = prepared.model
    recorded = [name for name in _REMEMBERED if name not in prepared.source.unknown]
    provenance = prepared.made_from | {name: getattr(settings, name) for name in recorded}

    def set_layers(progress: float) -> None:
        set_num_layers(model, num_layers_at(progress, settings, model.config.num_hidden_layers))

    def evaluate() -> dict[str, float]:
        set_num_layers(model, None)
        numbers: dict[str, float] = {}
        if settings.masked_lm_prob or settings.pair_task != "none":
            numbers |= evaluate_batches(
                model, prepared.held_out, prepared.unigram, run.world
            ).scalar_metrics()
        if isinstance(prepared.trained, TaughtStudent):
            numbers |= evaluate_states(prepared.trained, prepared.held_out, run.world)
        return numbers

    selection = "masked_lm_loss" if settings.masked_lm_prob else "sentence_order_loss"
    return TrainingRecipe(
        model=prepared.trained,
        objective=prepared.objective,
        stream=prepared.stream,
        loop=prepared.loop,
        evaluate=evaluate,
        select=selection if settings.teacher is None else f"{TEACHER_LOSS}_loss",
        smaller=True,
        save=lambda folder: model.save_pretrained(folder, prepared.source.tokenizer),
        provenance=provenance | ({"continued": prepared.continued} if prepared.continued else {}),
        describe=partial(_write_card, run, prepared, "best"),
        before_update=set_layers,
        doubts=lambda step, metrics: doubts(step, metrics, settings.warmup_steps or 0),
        notes=[*prepared.notes, describe_precision(model, run.world.device)],
        seconds_before=prepared.seconds,
    )


def _write_card(
    run: Run[PretrainSettings],
    prepared: PreparedRun,
    name: str,
    folder: Path,
    evaluation: dict[str, float],
    extent: Mapping[str, Any] = MappingProxyType({}),
) -> None:
    continued = {"continued": str(prepared.continued["model"])} if prepared.continued else {}
    settings = prepared.settings.to_dict() | dict(extent)
    facts = PretrainingFacts(
        folder=f"{run.name}/{name}",
        config=prepared.model.config.to_dict(),
        parameters=prepared.parameters,
        corpus=prepared.source.facts() | continued,
        settings={name: settings[name] for name in settings if name not in prepared.source.unknown},
        results=evaluation,
        versions=package_versions(),
        example=choose_example_texts(prepared.source.tokenizer).masked,
    )
    model_card(run.name, facts).write(folder)


def doubts(step: int, metrics: Mapping[str, float], warmup_steps: int) -> list[str]:
    """Return what is wrong with a model of these metrics, in words.

    A model that is worse than token frequencies, or guesses the same token everywhere, is normal
    while the learning rate still rises, so nothing is reported before.
    """
    # A weak baseline: all but a tenth of what a small model gains on it is copying of tokens in
    # plain view.
    lines = []
    loss = metrics.get("masked_lm_loss", 0.0)
    baseline = metrics.get("unigram_loss", math.inf)
    if not loss < baseline:
        lines.append(
            f"worse than guessing by frequency ({loss:.4g} nats, {baseline:.4g}): lower --lr or train longer"
        )
    constant_share = metrics.get("most_guessed", 0.0)
    if constant_share >= _CONSTANT:
        lines.append(
            f"outputs are constant: {constant_share:.0%} of the guesses are the same token; "
            "if that stays, lower --lr or lengthen --warmup-steps"
        )
    unexplained = metrics.get("unexplained", 0.0)
    if not unexplained < 1:
        lines.append(
            f"nothing of the teacher's last states is explained (unexplained {unexplained:.4g}): "
            "lower --lr or lengthen --warmup-steps"
        )
    return [f"step {step}: {line}" for line in lines] if step > warmup_steps else []


def next_commands(
    store: Any, run: str | Path, tokenizer: AlbertTokenizer, untrained: Sequence[str] = ()
) -> tuple[tuple[str, str], ...]:
    """Return commands to try with a finished run, whose model is the one that it recommends, and what each does."""
    data = shlex.quote(str(store.folder if isinstance(store, TokenStore) else store))
    model = describe_selected_model(model_of_run_or_folder(Path(run)))
    run = shlex.quote(str(run))
    texts = choose_example_texts(tokenizer)
    task = "nsmc" if texts is KOREAN else "sst2"
    commands = []
    if len(untrained) < 2:
        commands.append((f"albertkit evaluate {run} {data}", f"score {model}"))
    if "predictions" not in untrained:
        commands.append(
            (
                f"albertkit predict {run} --text {shlex.quote(texts.masked)} --kind fill-mask",
                "fill in a mask",
            )
        )
    return (
        *commands,
        (
            f"albertkit finetune {task} {run} DATA --out FINETUNED",
            "fine-tune it; other tasks: albertkit finetune --help",
        ),
        (f"albertkit report {run}", "losses, settings and results as a page"),
    )


@takes(EvaluatePretrainedOptions)
def evaluate(options: EvaluatePretrainedOptions) -> Evaluation:
    """Score a model on the held-out documents of a store, or on records, compared with two baselines.

    The four numbers are Google's. In a store 15 % of the tokens are masked, in spans of up to three
    words, whatever was masked in training: numbers of different models compare. Records are masked
    as they were written. Arguments: `EvaluatePretrainedOptions`.

    Raises:
        DataError: wrong-tokenizer if the store was made with another tokenizer; too-little-data.
        CheckpointError: what `from_pretrained` raises; wrong-tokenizer if only the vocabulary's
            size can tell.
        ConfigError: bad-value, no-device; bad-value if a share or a length is impossible.
    """
    world = join_world(options.device)
    folder = local_folder(options.model)
    without_order = AlbertConfig.from_pretrained(folder).foreign.get("architectures") == [
        AlbertForMaskedLM.__name__
    ]
    missing = ("sop_classifier", "albert") if without_order else ()  # the pooler is of the encoder
    model = AlbertForPreTraining.from_pretrained(folder, strict=True, allow_missing=missing).to(
        world.device
    )
    model.compute_dtype = choose_precision(options.precision, world.device)
    trained = (
        # Google's and transformers' folders have none.
        read_typed(folder / PROVENANCE, _Trained) if (folder / PROVENANCE).exists() else _Trained()
    )
    if without_order:
        trained = replace(trained, pair_task="none")
    if not trained.masked_lm_prob and trained.pair_task == "none":
        raise CheckpointError(
            "wrong-model",
            f"`{folder}` learned a teacher's states and neither masked tokens nor sentence order: there is nothing to score",
            "fine-tune it: albertkit finetune --help; its run's metrics.jsonl has the share of the states that it explains",
        )
    if not isinstance(options.store, TokenStore) and is_records(options.store):
        return _evaluate_records(options, model, folder, trained, world)
    store = (
        options.store if isinstance(options.store, TokenStore) else TokenStore.open(options.store)
    )
    if has_tokenizer(folder):
        store.check_tokenizer(read_model_tokenizer(folder, model.config))
    elif model.config.vocab_size != store.vocab_size:
        raise CheckpointError(
            "wrong-tokenizer",
            f"`{folder}` has {model.config.vocab_size:,} tokens, the store {store.vocab_size:,}",
            "build the store with the model's tokenizer: albertkit corpus build FILES --tokenizer MODEL --out STORE",
        )
    settings = PretrainSettings(
        length=options.length or trained.length or min(512, model.config.max_position_embeddings),
        seed=trained.seed if options.seed is None else options.seed,
        pair_task=trained.pair_task,
        masked_lm_prob=trained.masked_lm_prob,
        batch_tokens=options.batch_tokens,
    )
    settings.check()
    model.config.check_length(settings.length)
    # Another seed must not choose other documents of this store: the model was trained on those.
    seed = trained.seed if trained.store == store.fingerprint else settings.seed
    share = trained.share(store.fingerprint, options)
    documents = store.held_out(share, seed)
    batches = held_out_stream(store, settings, documents, world)
    # With no document left to count, the frequencies are those of the evaluated text itself: a
    # harder baseline.
    unigram = Unigram.of_store(store, documents if share < 1 else None, world)
    with ProgressBar("evaluating", 0, "sequences", options.progress and not world.rank) as progress:
        return evaluate_batches(model, _count_scored(batches, progress), unigram, world)


@dataclass(frozen=True)
class _Trained:
    """Facts of a training in the provenance of its model that an evaluation follows."""

    store: str | None = None
    held_out: float = 1.0
    seed: int = 0
    length: int | None = None
    pair_task: Literal["sop", "nsp", "none"] = "sop"
    masked_lm_prob: float = 0.15

    def share(self, data: str, options: EvaluatePretrainedOptions) -> float:
        """Return the share of documents or records to evaluate on: of the data of the training, those it held out."""
        if options.held_out is not None:
            return options.held_out
        return self.held_out if self.store == data else 1.0


def _evaluate_records(
    options: EvaluatePretrainedOptions,
    model: AlbertForPreTraining,
    folder: Path,
    trained: _Trained,
    world: World,
) -> Evaluation:
    """Evaluate on records; all of them but those that the model was trained on."""
    path = Path(options.store)
    if options.length is not None or options.seed is not None:
        raise ConfigError(
            "conflicting-options",
            f"`{path}` holds records, whose length and masks are fixed",
            "leave --length and --seed out",
        )
    records = TrainingRecords(
        path,
        read_model_tokenizer(folder, model.config),
        pairs=trained.pair_task != "none",
    )
    if records.length > (longest := model.config.max_position_embeddings):
        raise ConfigError(
            "bad-value",
            f"the records `{path}` have {records.length} tokens, the model {longest} positions",
            f"export them again with --length {longest}",
        )
    numbers = records.held_out(trained.share(records.fingerprint, options), trained.seed)
    check_longest_fits(options.batch_tokens, records.length)
    batches = RecordEvaluation(records, numbers, options.batch_tokens, world)
    unigram = Unigram(records.count_tokens(numbers if numbers.all() else ~numbers))
    total = -(-int(numbers.sum()) // world.size)
    with ProgressBar(
        "evaluating", total, "records", options.progress and not world.rank
    ) as progress:
        return evaluate_batches(model, _count_scored(batches, progress), unigram, world)


def _count_scored(batches: Iterable[PackedBatch], progress: ProgressBar) -> Iterator[PackedBatch]:
    """Yield batches, and show how many sequences of them were scored."""
    num_scored = 0
    for batch in batches:
        yield batch
        num_scored += batch.num_sequences
        progress.update(num_scored)
