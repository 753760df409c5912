"""`train_captioner`: prepared clips and any ALBERT to a captioner; puts rows, model, objective and run together."""

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch

from albertkit.captioning.captioner import VideoCaptioner
from albertkit.captioning.data import PreparedClips
from albertkit.captioning.evaluate import CaptionEvaluator, caption_scores
from albertkit.captioning.generation import GenerationSettings
from albertkit.captioning.training.objective import CaptionObjective
from albertkit.captioning.training.rows import CaptionRows, CaptionStream
from albertkit.captioning.training.settings import CaptionSettings, TrainCaptionerOptions
from albertkit.captioning.training.start import start_captioner
from albertkit.data.bad_rows import counted
from albertkit.errors import DataError
from albertkit.files import sha256_bytes
from albertkit.frame.card import Card, code, literal, settings_sections, versions
from albertkit.frame.command import takes
from albertkit.frame.rendering import cell
from albertkit.frame.section import Facts, Section, Table, Text
from albertkit.tokenizer import AlbertTokenizer
from albertkit.training.distributed import World
from albertkit.training.hardware import describe
from albertkit.training.loop import LoopSettings, Recipe
from albertkit.training.results import score_table
from albertkit.training.run import Best, Run, RunResult, open_run
from albertkit.training.state import TrainingState
from albertkit.training.stopping import exit_status

_ON_CARD = ("objective", "video_attention", "length", "steps", "batch_size", "lr", "warmup", "weight_decay", "seed")
_EMPTY = "every caption of dev is empty"
_NOTHING_LEARNED = f"{_EMPTY}: the model has learned nothing, or a lower --lr is needed"


@dataclass(frozen=True, kw_only=True)
class CaptionResult(RunResult):
    """Result of a training.

    Attributes:
        examples: Key, caption and references of some dev clips.
        full: All metrics, as `score_captions` has them.
    """

    examples: list[dict[str, Any]] = field(default_factory=list)
    full: dict[str, Any] = field(default_factory=dict)

    @property
    def title(self) -> str:
        """Title of the pictures of the results."""
        return "captions of dev"

    @property
    def exit_status(self) -> int:
        """Return how a command ends whose training a signal stopped."""
        return 0 if self.model else exit_status()

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for JSON."""
        return {**super().to_dict(), "examples": self.examples}

    def saved(self) -> dict[str, Any]:
        """Return the content of `results.json`."""
        return {**super().to_dict(), **self.full}

    def sections(self) -> list[Section]:
        """Return the scores, and three captions with what people say of the clip."""
        lines = [f"{one['key']}: {one['caption']}  (people: {one['references'][0]})" for one in self.examples[:3]]
        return [Facts(super().to_dict()), Text("\n".join(lines), form="code")]


@takes(TrainCaptionerOptions)
def train_captioner(options: TrainCaptionerOptions) -> CaptionResult:
    """Train a captioner.

    Raises:
        CheckpointError: exists, missing-file, changed and what loading raises.
        ConfigError: bad-value, no-device.
        DataError: too-little-data, bad-label for a clip of dev without a caption, and what `PreparedClips` raises.
        MachineError: not-finite.
    """
    train_split, dev_split = options.train_split, options.dev_split
    with open_run(options.out, options.settings, "captioning", options.resume) as run:
        clips = PreparedClips.open(options.data)
        for split in (train_split, dev_split):
            if not any(clip.captions for clip in clips.clips(split)):
                fact = f"no clip of {split} in `{options.data}` has a caption"
                raise DataError("too-little-data", fact, "prepare clips with captions")
        source = CaptionData(str(options.model), clips, train_split, dev_split, options.backbone)
        return run.of_seeds(lambda one: _train_once(one, source))


@dataclass(frozen=True)
class CaptionData:
    """Sources of a captioner."""

    model: str  # ALBERT to start from, as it was given
    clips: PreparedClips
    train: str  # split to learn from
    dev: str  # split that chooses the best model
    backbone: str | None  # where the backbone of the clips lies now

    def rows(self, tokenizer: AlbertTokenizer, settings: CaptionSettings) -> CaptionRows:
        """Return the captions to learn from."""
        clips, split = self.clips, self.train
        grid_of = None if clips.kind == "frames" else lambda number: clips.grid_of(split, number)
        captions = [clip.captions for clip in clips.clips(split)]
        return CaptionRows(captions, lambda number: clips.visual(split, number), grid_of, tokenizer, settings)

    def provenance(self, rows: CaptionRows) -> dict[str, Any]:
        """Return what a captioner of these rows is made from."""
        return {
            "model": self.model,
            "captions": rows.fingerprint(),
            "backbone": self.clips.backbone_fingerprint or self.clips.backbone,
            "clips": sha256_bytes("".join(clip.item for clip in self.clips.clips(self.train)).encode()),
        }


def _train_once(run: Run[CaptionSettings], data: CaptionData) -> CaptionResult:
    """Train with one seed."""
    clips, world = data.clips, run.world
    torch.manual_seed(run.settings.seed)  # of fresh layers
    most_tokens = _most_tokens(clips, (data.train, data.dev))
    captioner, notes = start_captioner(data.model, clips, run.settings, most_tokens, data.backbone)
    caption = captioner.model.caption
    settings = replace(run.settings, objective=caption.objective, video_attention=caption.video_attention)
    rows = data.rows(captioner.tokenizer, settings)
    settings, reasons = settings.resolve(len(rows))
    run = run.resolved(settings)
    settings, metric = run.settings, settings.metric
    provenance = data.provenance(rows)
    run.check_made_from(provenance)
    captioner.to(world.device)
    run.place(captioner.model)
    trained = captioner.backbone if clips.kind == "frames" else None
    objective = CaptionObjective(captioner.model, trained, settings.sparsity_weight)
    generation = GenerationSettings(max_length=settings.length, num_beams=settings.num_beams)
    evaluator = CaptionEvaluator(clips, data.dev, generation, world)
    captioner.generation = GenerationSettings(max_length=settings.length)
    unfinished = CaptionResult(metric=metric)

    def evaluate() -> dict[str, float]:
        captioner.model.eval()
        scores = evaluator.scores(captioner)
        return {metric: scores[metric], **scores}

    def load(folder: Path) -> VideoCaptioner:
        best = VideoCaptioner.from_pretrained(folder).to(world.device)
        best.model.compute_dtype = captioner.model.compute_dtype
        return best

    def score(best: VideoCaptioner, state: TrainingState) -> CaptionResult:
        captions = evaluator.captions(best)
        scores, full = caption_scores(evaluator.references, captions)
        shown = list(captions)[:8]
        examples = [{"key": k, "caption": captions[k], "references": list(evaluator.references[k])} for k in shown]
        nothing = _EMPTY if scores["empty_captions"] == 1 else None
        result = replace(unfinished, value=scores[metric], scores=scores, collapsed=nothing)
        return replace(result, examples=examples, full=full.to_dict())

    def write(best: VideoCaptioner, result: CaptionResult) -> None:
        _card(best, settings, data.model, result, f"{run.name}/best").write(run.folder / "best")

    factors = {} if trained is None or trained.trained_from_scratch else {"backbone.": settings.backbone_lr_factor}
    recipe = Recipe(
        model=objective,
        objective=objective,
        stream=CaptionStream(rows, settings.batch_size, settings.micro_batch, settings.seed, world.rank, world.size),
        loop=LoopSettings.over_epochs(settings, weight_decay=settings.weight_decay, lr_factors=factors),
        evaluate=evaluate,
        select=metric,
        save=captioner.save_pretrained,
        provenance=provenance,
        doubts=lambda step, metrics: [_NOTHING_LEARNED] if metrics["empty_captions"] == 1 else [],
        notes=[*_data_notes(rows, clips, data.train), *notes, *reasons, *_part_sizes(captioner, world)],
        repeatable=False,  # see docs/gpu.md
    )
    return run.fit(recipe, Best(unfinished, load, score, write))


def _card(captioner: VideoCaptioner, settings: CaptionSettings, start: str, result: CaptionResult, place: str) -> Card:
    """Describe how to use a captioner, what it learned from and how well; `start` is the ALBERT that it began with."""
    sampling, backbone = captioner.sampling, captioner.backbone
    frames = f", {sampling.num_frames} frames of {sampling.size} pixels" if sampling else ""
    source = "features computed elsewhere" if backbone is None else f"the backbone `{cell(backbone.name)}`"
    parameters = f"{captioner.model.num_parameters():,} parameters"
    sections: list[Section] = [
        Text(
            f"Captions of videos by ALBERT: {parameters}, and {source}{frames}.\n"
            f"Trained with albertkit from `{cell(start)}`.",
            form="markdown",
        ),
        code(
            "from albertkit import VideoCaptioner\n"
            f"captioner = VideoCaptioner.from_pretrained({literal(place)})\n"
            'print(captioner.caption("clip.mp4")[0][0].text)',
            title="Using it",
        ),
        Text("On the dev clips, which also chose the best of the run's models.", "Results"),
        score_table(result.scores, {}),
        Table(("caption", "references"), [[one["caption"], one["references"][0]] for one in result.examples[:5]]),
        *settings_sections({key: getattr(settings, key) for key in _ON_CARD}, versions()),
    ]
    tags = ["albert", "video-captioning", "albertkit"]
    fields = {"library_name": "albertkit", "pipeline_tag": "video-text-to-text", "tags": tags}
    return Card(place.partition("/")[0], fields, sections)


def _most_tokens(clips: PreparedClips, splits: tuple[str, ...]) -> int:
    if clips.grid is not None:
        return clips.grid.num_tokens
    return max(clips.grid_of(split, number).num_tokens for split in splits for number in range(len(clips.clips(split))))


def _data_notes(rows: CaptionRows, clips: PreparedClips, split: str) -> list[str]:
    notes = [f"{counted(len(rows), 'caption')} of {counted(len(clips.clips(split)), 'clip')}"]
    if rows.num_cut:
        notes.append(f"{counted(rows.num_cut, 'caption')} cut: longer than --length")
    if rows.num_unknown:
        notes.append(f"{rows.num_unknown / rows.num_tokens:.1%} of the tokens are unknown to the tokenizer")
    return notes


def _part_sizes(captioner: VideoCaptioner, world: World) -> list[str]:
    """Describe the parameters of each part, and how it is computed."""
    parts = {"ALBERT": captioner.model, "backbone": captioner.backbone}
    lines = []
    for name, part in parts.items():
        if part is not None:
            total = sum(p.numel() for p in part.parameters())
            trained = sum(p.numel() for p in part.parameters() if p.requires_grad)
            lines.append(f"{name}: {total:,} parameters, {trained:,} trained")
    return [*lines, describe(captioner.model, world.device)]
