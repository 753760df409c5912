"""`train_captioner`: prepared clips and any ALBERT to a captioner; puts rows, model, objective and loop together."""

import math
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch

from albertkit.captioning.captioner import VideoCaptioner
from albertkit.captioning.data import PreparedClips
from albertkit.captioning.generation import GenerationSettings
from albertkit.captioning.swinbert.arguments import SWINBERT_ARGS, kept_arguments
from albertkit.captioning.training.card import write_caption_card
from albertkit.captioning.training.dev import CaptionJudge, caption_scores
from albertkit.captioning.training.objective import CaptionObjective
from albertkit.captioning.training.rows import CaptionRows
from albertkit.captioning.training.settings import CaptionSettings
from albertkit.captioning.training.start import start_captioner
from albertkit.captioning.training.stream import CaptionStream
from albertkit.checkpoints.folder import PROVENANCE
from albertkit.errors import DataError
from albertkit.files import sha256_bytes, write_json
from albertkit.model_folder import local_folder
from albertkit.report.task_results import save_results
from albertkit.tasks.faults import counted
from albertkit.training.display import Display
from albertkit.training.distributed import World, join_world
from albertkit.training.hardware import choose_precision
from albertkit.training.launch import resumes
from albertkit.training.loop import LoopSettings, train
from albertkit.training.resuming import begin_folder, check_made_from
from albertkit.training.run_folder import alone_in_run
from albertkit.training.state import check_model


@dataclass(frozen=True)
class CaptionResult:
    """What a training left.

    Attributes:
        model: Folder of the best captioner; None if a signal stopped the run before its end.
        metric: The score that chose it.
        value: Its value on dev.
        scores: All scores on dev.
        examples: Key, caption and references of some dev clips.
        steps: Updates made or skipped.
        seconds: Time spent in updates.
    """

    model: Path | None
    metric: str
    value: float
    scores: dict[str, float] = field(default_factory=dict)
    examples: list[dict[str, Any]] = field(default_factory=list)
    steps: int = 0
    seconds: float = 0.0

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        own = {"model": self.model and str(self.model), "metric": self.metric, "value": self.value}
        return {**own, **self.scores, "steps": self.steps, "seconds_of_updates": round(self.seconds, 1)}


@alone_in_run
def train_captioner(
    model: str | Path,
    data: str | Path,
    out: str | Path,
    settings: CaptionSettings | None = None,
    *,
    train_split: str = "train",
    dev_split: str = "dev",
    backbone: str | None = None,
    resume: bool = False,
) -> CaptionResult:
    """Train a captioner.

    Args:
        model: ALBERT to start from: checkpoint folder, or `org/name` of the hub.
        data: Folder that `prepare` wrote.
        out: Folder of the run; the captioner to use is OUT/best.
        settings: How to train.
        train_split: Clips to learn from.
        dev_split: Clips whose captions choose the best model.
        backbone: Where the frozen backbone of the clips lies now. Default: where it lay when they were prepared.
        resume: Continue the run in OUT from its newest checkpoint, to the same bits.

    Raises:
        CheckpointError: run-exists, no-run, other-settings, resume-mismatch and what loading raises.
        ConfigError: bad-settings, bad-device. DataError: no-examples, no-references for a clip of dev without a caption, and
            what `PreparedClips` raises.
        MachineError: loss-not-finite.
    """
    settings, run = settings or CaptionSettings(), Path(out)
    settings.check()
    world = join_world(settings.device)
    resume = resumes(run, resume)
    clips = PreparedClips.open(data)
    for split in (train_split, dev_split):
        if not any(clip.captions for clip in clips.clips(split)):
            raise DataError(
                "no-examples", f"no clip of {split} in `{data}` has a caption", "prepare clips with captions"
            )
    torch.manual_seed(settings.seed)  # of fresh layers
    most_tokens = _most_tokens(clips, (train_split, dev_split))
    captioner, notes = start_captioner(model, clips, settings, most_tokens, backbone)
    caption = captioner.model.caption
    settings = replace(settings, objective=caption.objective, video_attention=caption.video_attention)
    rows = CaptionRows(
        [clip.captions for clip in clips.clips(train_split)],
        lambda number: clips.visual(train_split, number),
        None if clips.kind == "frames" else lambda number: clips.grid_of(train_split, number),
        captioner.tokenizer, settings,
    )  # fmt: skip
    settings, reasons = settings.resolve(len(rows))
    provenance: dict[str, Any] = {
        "model": str(model), "captions": rows.fingerprint(), "backbone": clips.backbone_fingerprint or clips.backbone,
        "clips": sha256_bytes("".join(clip.item for clip in clips.clips(train_split)).encode()),
    }  # fmt: skip
    if settings.continues(run, resume):
        check_made_from(run, provenance)
    if kept := kept_arguments(local_folder(model)):
        provenance[SWINBERT_ARGS] = kept  # a captioner from SwinBERT can go back there
    captioner.to(world.device)
    trained = captioner.backbone if clips.kind == "frames" else None
    captioner.model.compute_dtype = choose_precision(settings.precision, world.device)
    captioner.model.gradient_checkpointing = settings.gradient_checkpointing
    objective = CaptionObjective(captioner.model, trained, settings.sparsity_weight)
    stream = CaptionStream(rows, settings.batch_size, settings.micro_batch, settings.seed, world.rank, world.size)
    judge = CaptionJudge(captioner, clips, dev_split, _dev_generation(settings), world)
    captioner.generation = GenerationSettings(max_length=settings.length)

    def save_model(folder: Path) -> None:
        captioner.save_pretrained(folder)
        write_json(folder / PROVENANCE, provenance)

    begin_folder(run, settings, world)
    display = Display(run if world.is_main else None, "captioning", silent=not world.is_main)
    for line in (*_data_notes(rows, clips, train_split), *notes, *reasons, *_part_sizes(captioner, world)):
        display.note(line)

    def evaluate() -> dict[str, float]:
        captioner.model.eval()
        scores = judge.scores()
        if scores["empty_captions"] == 1:
            display.note("every caption of dev is empty: the model has learned nothing, or a lower --lr is needed")
        return {settings.metric: scores[settings.metric], **scores}

    factors = {} if trained is None or trained.trained_from_scratch else {"backbone.": settings.backbone_lr_factor}
    loop_settings = LoopSettings.over_epochs(settings, weight_decay=settings.weight_decay, lr_factors=factors)
    result = train(
        objective, objective, stream, loop_settings, run=run, world=world, display=display,
        save_model=save_model, evaluate=evaluate, select=settings.metric, resume=resume,
    )  # fmt: skip
    state = result.state
    if not result.finished:
        return CaptionResult(None, settings.metric, math.nan, steps=state.step, seconds=state.seconds)
    world.barrier()
    return _finished(run, judge, settings, world, provenance, state.step, state.seconds)


def _finished(
    run: Path,
    judge: CaptionJudge,
    settings: CaptionSettings,
    world: World,
    provenance: dict[str, Any],
    steps: int,
    seconds: float,
) -> CaptionResult:
    """Score the best model as it is loaded from its folder, and write what a person looks at."""
    dtype = judge.captioner.model.compute_dtype
    check_model(run / "best")
    best = VideoCaptioner.from_pretrained(run / "best").to(world.device)
    best.model.compute_dtype = dtype
    judge.captioner = best
    captions = {key: caption.text for key, caption in judge.captions().items()}
    scores, full = caption_scores(judge.references, captions)
    examples = [
        {"key": key, "caption": captions[key], "references": list(judge.references[key])} for key in list(captions)[:8]
    ]
    result = CaptionResult(run / "best", settings.metric, scores[settings.metric], scores, examples, steps, seconds)
    if world.is_main:
        save_results({**result.to_dict(), **full.to_dict()}, run, title="captions of dev")
        write_caption_card(run / "best", run.resolve().name, best, settings, provenance["model"], scores, examples)
    world.barrier()
    return result


def _most_tokens(clips: PreparedClips, splits: tuple[str, ...]) -> int:
    if clips.grid is not None:
        return clips.grid.num_tokens
    return max(clips.grid_of(split, number).num_tokens for split in splits for number in range(len(clips.clips(split))))


def _data_notes(rows: CaptionRows, clips: PreparedClips, split: str) -> list[str]:
    notes = [f"{counted(len(rows), 'caption')} of {counted(len(clips.clips(split)), 'clip')}"]
    if rows.num_cut:
        notes.append(f"{counted(rows.num_cut, 'caption')} cut: longer than --length")
    if rows.num_unknown:
        notes.append(f"{rows.num_unknown / rows.num_pieces:.1%} of the pieces are unknown to the tokenizer")
    return notes


def _part_sizes(captioner: VideoCaptioner, world: World) -> list[str]:
    """Parameters by part, and what is computed how."""
    parts = {"ALBERT": captioner.model, "backbone": captioner.backbone}
    lines = []
    for name, part in parts.items():
        if part is not None:
            total = sum(p.numel() for p in part.parameters())
            trained = sum(p.numel() for p in part.parameters() if p.requires_grad)
            lines.append(f"{name}: {total:,} parameters, {trained:,} trained")
    return [*lines, f"precision: {str(captioner.model.compute_dtype).removeprefix('torch.')} on {world.device}"]


def _dev_generation(settings: CaptionSettings) -> GenerationSettings:
    return GenerationSettings(max_length=settings.length, num_beams=settings.num_beams)
