"""`train_captioner`: prepared clips and any ALBERT to a captioner; puts rows, model, objective and run together."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence

from albertkit.batches import MovableBatch
from albertkit.batches.features import EpochOrder, OrderedStream
from albertkit.captioning.backbone import Backbone, TokenGrid
from albertkit.captioning.captioner import VideoCaptioner, load_saved_backbone, reload_backbone
from albertkit.captioning.evaluate import CaptionEvaluator, score_caption_mappings
from albertkit.captioning.layers import CaptionConfig, interpolate_times
from albertkit.captioning.model import AlbertForImageCaptioning, num_kept_predictions
from albertkit.captioning.prepared import PreparedClips, stack_visual
from albertkit.captioning.settings import CaptionSettings, GenerationSettings, TrainCaptionerOptions
from albertkit.command import takes
from albertkit.config import AlbertConfig
from albertkit.conversion.classes import read_model_tokenizer
from albertkit.errors import ConfigError, DataError
from albertkit.files import sha256_bytes
from albertkit.model.files import HEADS, read_tensors
from albertkit.model_paths import local_folder
from albertkit.output.render import (
    Card,
    code_block,
    escape_markdown,
    package_versions,
    python_literal,
    settings_sections,
)
from albertkit.output.sections import FactList, Paragraph, Section, TableSection
from albertkit.printable import Notes, join_lines
from albertkit.tables.bad_rows import pluralize
from albertkit.tokenizer import AlbertTokenizer
from albertkit.training.checkpoints import TrainingState
from albertkit.training.loop import LoopSettings, LossPart, TrainingRecipe, zero_losses
from albertkit.training.processes import World, describe_precision
from albertkit.training.results import score_table
from albertkit.training.run import Best, Run, RunResult, open_run


@dataclass(frozen=True, eq=False)
class CaptionBatch(MovableBatch):
    """B rows, each a clip and a caption of S places, of which P are predicted."""

    # Features fp16 or fp32 [B, M, D], or frames uint8 [B, T, S, S, 3] for a backbone that is
    # trained along
    visual: Tensor
    visual_mask: Tensor | None  # bool [B, M], False at padding
    # Of the visual tokens, in all rows or in each; frames have the backbone's
    grid: TokenGrid | Sequence[TokenGrid] | None
    input_ids: Tensor  # int64 [B, S], as the model reads them
    positions: Tensor  # int64 [P] into B * S, where tokens are predicted
    labels: Tensor  # int64 [P], the tokens
    num_tokens: int  # visual tokens, or frames, and tokens; without padding
    update: int  # number of updates before this one

    @classmethod
    def empty(cls, update: int) -> "CaptionBatch":
        """Return a batch without rows."""
        none = torch.zeros(0, dtype=torch.int64)
        return cls(torch.zeros(0, 0, 0), None, None, none.view(0, 0), none, none, 0, update)


class CaptionObjective(nn.Module):
    """The caption loss, and the sparsity of a learned gate."""

    def __init__(
        self,
        model: AlbertForImageCaptioning,
        backbone: Backbone | None,
        sparsity_weight: float,
    ) -> None:
        super().__init__()
        self.model = model
        self.backbone = backbone
        self.sparsity_weight = sparsity_weight
        self._sparse = model.caption.has_learned_gate and sparsity_weight > 0

    def count_targets(self, batch: CaptionBatch) -> dict[str, int]:
        """Count the predictions; the loss of the gate is one for each micro-batch, so accumulated it is their mean."""
        counts = {"caption": self._num_counted_predictions(batch)}
        return counts | {"sparsity": min(1, batch.num_tokens)} if self._sparse else counts

    def losses(self, batch: CaptionBatch) -> dict[str, LossPart]:
        """Return the losses of a batch as sums."""
        if not batch.num_tokens:
            return zero_losses(self.count_targets(batch), batch.input_ids.device)
        visual = batch.visual
        grid = batch.grid
        if visual.dim() > 3:  # frames
            assert self.backbone is not None
            grid = self.backbone.grid(visual.shape[1], visual.shape[2])
            visual = self.backbone(visual)
        context = self.model.albert.encode_context(
            self.model.albert.project(visual, grid),
            batch.visual_mask,
        )
        hidden, _ = self.model.albert.read_caption(
            self.model.albert.embed(batch.input_ids),
            context,
        )
        hidden = hidden.flatten(0, 1)[batch.positions]
        caption = self.model.caption
        if caption.label_smoothing or caption.drop_worst_ratio:
            logits = self.model.predictions(hidden)
            total, _ = self.model.caption_loss(logits, batch.labels, batch.update)
            correct = (logits.argmax(-1) == batch.labels).sum()
        else:
            # Never holds all logits
            loss = self.model.predictions.summed_loss(hidden, batch.labels)
            total, correct = loss.loss_sum, loss.correct
        parts = {"caption": LossPart(total, self._num_counted_predictions(batch), correct)}
        if self._sparse:
            parts["sparsity"] = LossPart(
                self.sparsity_weight * self.model.albert.sparsity_loss(),
                1,
            )
        return parts

    def flops(self, batch: CaptionBatch) -> float:
        """Estimate the floating-point operations of a training step in ALBERT's layers, without backbone and head."""
        tokens = batch.num_tokens
        return tokens * self.model.config.train_flops_per_token(tokens / len(batch.input_ids), 0.0)

    def _num_counted_predictions(self, batch: CaptionBatch) -> int:
        caption = self.model.caption
        predictions = len(batch.labels)
        dropping = caption.drop_worst_ratio and batch.update >= caption.drop_worst_after
        return (
            num_kept_predictions(predictions, caption.drop_worst_ratio) if dropping else predictions
        )


_MASKED, _RANDOM = 0.8, 0.1  # of the predicted tokens; the rest stays as it is


def num_masked(num_tokens: int, mask_prob: float, max_masked: int) -> int:
    """Return how many of the tokens, [CLS] among them, are predicted: round(mask_prob * num_tokens), from 1 to `max_masked`.

    Halves are rounded to even; [CLS] never is one.
    """
    return min(max(round(mask_prob * num_tokens), 1), max_masked, num_tokens - 1)


def mask_caption(
    ids: Sequence[int] | np.ndarray,
    mask_id: int,
    replacements: np.ndarray,
    mask_prob: float,
    max_masked: int,
    generator: np.random.Generator,
) -> tuple[np.ndarray, np.ndarray]:
    """Replace tokens of a caption from [CLS] to [SEP]; [SEP] may be predicted, because it ends a caption, [CLS] may not.

    SwinBERT draws replacements from all tokens and one beyond the last.

    Returns:
        int64 [L] with the replacements; int64 [P] rising, the places to predict.
    """
    masked = np.array(ids, np.int64)
    count = num_masked(len(masked), mask_prob, max_masked)
    positions = np.sort(1 + generator.permutation(len(masked) - 1)[:count])
    fate = generator.random(count)
    masked[positions[fate < _MASKED]] = mask_id
    random = positions[(fate >= _MASKED) & (fate < _MASKED + _RANDOM)]
    masked[random] = generator.choice(replacements, len(random))
    return masked, positions


class CaptionRows:
    """R rows, the captions of a split, and how a batch is made of some of them."""

    def __init__(
        self,
        clips: PreparedClips,
        split: str,
        tokenizer: AlbertTokenizer,
        settings: CaptionSettings,
    ) -> None:
        captions = [clip.captions for clip in clips.clips(split)]
        self.clips = np.repeat(np.arange(len(captions)), [len(of_clip) for of_clip in captions])
        if not len(self.clips):
            raise DataError(
                "too-little-data",
                "no clip has a caption",
                "add captions to the manifest",
            )
        texts = [text for of_clip in captions for text in of_clip]
        encoded = tokenizer.encode_batch(texts)
        # [CLS] and [SEP] belong to the length.
        max_tokens = settings.length - 2
        self.ids = [
            [tokenizer.cls_id, *ids[:max_tokens].tolist(), tokenizer.sep_id]
            for ids in encoded.texts()
        ]
        self.num_cut = int((np.diff(encoded.offsets) > max_tokens).sum())
        self.num_unknown = int((encoded.ids == tokenizer.unk_id).sum())
        self.num_tokens = len(encoded.ids)
        self._prepared = clips
        self._split = split
        self._settings = settings
        self._mask_id = tokenizer.mask_id
        self._padding = tokenizer.pad_id
        self._replacements = np.setdiff1d(np.arange(tokenizer.vocab_size), tokenizer.special_ids())

    def __len__(self) -> int:
        return len(self.ids)

    def fingerprint(self) -> str:
        """Return Sha256 of the captions as they are read."""
        content = (
            np.concatenate([np.array(ids, np.int32) for ids in self.ids]).tobytes()
            + self.clips.tobytes()
        )
        return sha256_bytes(content)

    def batch(self, rows: np.ndarray, epoch: int, update: int) -> CaptionBatch:
        """Collate rows int64 [B]; masks and shifts depend on (seed, epoch, row) alone."""
        if not len(rows):
            return CaptionBatch.empty(update)
        settings = self._settings
        prepared = self._prepared
        input_rows = list[np.ndarray]()
        predicted_positions = list[np.ndarray]()
        labels = list[np.ndarray]()
        items = list[np.ndarray]()
        grids = list[TokenGrid]()
        for row in rows.tolist():
            generator = np.random.default_rng([settings.seed, epoch, row])
            ids = np.array(self.ids[row], np.int64)
            if settings.objective == "causal":
                inputs = ids[:-1]
                positions = np.arange(len(ids) - 1)
                targets = ids[1:]
            else:
                masking = (
                    self._mask_id,
                    self._replacements,
                    settings.mask_prob,
                    settings.max_masked,
                )
                inputs, positions = mask_caption(ids, *masking, generator)
                targets = ids[positions]
            input_rows.append(inputs)
            predicted_positions.append(positions)
            labels.append(targets)
            clip = int(self.clips[row])
            item = prepared.visual(self._split, clip)
            if prepared.kind == "features":
                grids.append(prepared.grid_of(self._split, clip))
            elif settings.shift:
                item = shift_frames(item, settings.shift, generator)
            items.append(item)
        input_ids = pad_sequence([torch.from_numpy(ids) for ids in input_rows], True, self._padding)
        width = input_ids.shape[1]
        positions_in_batch = [
            positions + row * width for row, positions in enumerate(predicted_positions)
        ]
        visual, mask = stack_visual(items)
        return CaptionBatch(
            visual,
            mask,
            grids or None,
            input_ids,
            torch.from_numpy(np.concatenate(positions_in_batch)),
            torch.from_numpy(np.concatenate(labels)),
            sum(map(len, [*items, *input_rows])),
            update,
        )


def shift_frames(frames: np.ndarray, max_shift: int, generator: np.random.Generator) -> np.ndarray:
    """Return frames uint8 [T, S, S, 3] moved by up to `max_shift` pixels along both sides, all alike; edges are repeated."""
    down, right = generator.integers(0, 2 * max_shift + 1, 2)
    size = frames.shape[1]
    padded = np.pad(
        frames,
        ((0, 0), (max_shift, max_shift), (max_shift, max_shift), (0, 0)),
        mode="edge",
    )
    return padded[:, down : down + size, right : right + size]


class CaptionStream(OrderedStream):
    """Endless updates of `batch_size` rows, dealt to the processes in micro-batches; a process may get an empty one."""

    def __init__(
        self,
        rows: CaptionRows,
        batch_size: int,
        micro_batch: int,
        seed: int,
        rank: int = 0,
        world_size: int = 1,
    ) -> None:
        self._rows = rows
        self._micro_batch = micro_batch
        self._rank = rank
        self._world_size = world_size
        # No `ExampleStream`, which sorts an update by length: the bits would not be SwinBERT's.
        super().__init__(EpochOrder("captions", len(rows), batch_size, seed, world_size))

    def __next__(self) -> list[CaptionBatch]:
        update = self._order.update
        rows = next(self._order)[self._rank :: self._world_size]
        chunks = [
            rows[start : start + self._micro_batch]
            for start in range(0, len(rows), self._micro_batch)
        ]
        return [self._rows.batch(chunk, self._order.epoch, update) for chunk in chunks or [rows]]


_PROJECTION, _GATE = "albert.img_embedding.", "albert.video_gate"
_TIMES = f"{_PROJECTION}time_embeddings"


def start_captioner(
    model: str | Path,
    clips: PreparedClips,
    settings: CaptionSettings,
    max_tokens: int,
    backbone: str | None = None,
) -> tuple[VideoCaptioner, Notes]:
    """Return a captioner for prepared clips."""
    path = local_folder(model)
    albert_config = AlbertConfig.from_pretrained(path)
    albert_config.check_length(settings.length, f"`{model}`")
    tokenizer = read_model_tokenizer(path, albert_config, model)
    caption = CaptionConfig.of(albert_config)
    objective = settings.objective or caption.objective
    attention = settings.video_attention or caption.video_attention
    notes = []
    if "captioning" in albert_config.foreign:
        pairs = {
            "objective": (caption.objective, objective),
            "video_attention": (caption.video_attention, attention),
        }
        for name, (was, now) in pairs.items():
            origin = f", as the captioner in `{path}` was trained"
            if was != now:
                origin = f" as asked; the captioner in `{path}` was trained with {was}"
            notes.append(f"{name}: {now}{origin}")
    backbone_of_clips = _find_backbone(path, clips, backbone, notes)
    width = (
        backbone_of_clips.out_dim if backbone_of_clips and clips.kind == "frames" else clips.width
    )
    grid = clips.grid or TokenGrid(max_tokens, 1, 1)
    # Made for another width, or for none, the visual side begins afresh; whether words are tied
    # stays.
    if "captioning" not in albert_config.foreign or caption.visual_width != width:
        caption = replace(
            CaptionConfig(img_feature_dim=width),
            tie_weights=caption.tie_weights,
            grid=grid,
        )
    config = replace(
        caption,
        grid=None if caption.grid is None else grid,  # SwinBERT's have no places
        video_attention=attention,
        num_visual_tokens=grid.num_tokens if attention in ("log", "legacy") else 0,
        objective=objective,
        label_smoothing=settings.label_smoothing,
        drop_worst_ratio=settings.drop_worst_ratio,
        drop_worst_after=settings.drop_worst_after,
    ).stored_in(albert_config)
    if settings.dropout is not None:
        config = config.with_changes(
            hidden_dropout_prob=settings.dropout, attention_probs_dropout_prob=settings.dropout
        )
    captioning_model = _initial_model(path, config, grid, notes)
    captioner = VideoCaptioner(
        captioning_model,
        tokenizer,
        backbone_of_clips,
        clips.sampling,
        clips.grid,
    )
    return captioner, notes


def _initial_model(
    path: Path,
    config: AlbertConfig,
    grid: TokenGrid,
    notes: list[str],
) -> AlbertForImageCaptioning:
    shapes = {
        name: tensor.shape for name, tensor in AlbertForImageCaptioning(config).state_dict().items()
    }
    tensors = dict(read_tensors(path))
    # What depends on the number of frames is interpolated along time.
    times = tensors.get(_TIMES)
    if (
        times is not None
        and _TIMES in shapes
        and times.shape != shapes[_TIMES]
        and times.shape[1] == shapes[_TIMES][1]
    ):
        frames = shapes[_TIMES][0]
        tensors[_TIMES] = interpolate_times(times, frames)
        notes.append(f"places in time: {len(times)} interpolated to {frames}")
    gate = tensors.get(_GATE)
    if gate is not None and _GATE in shapes and gate.shape != shapes[_GATE]:
        # The gate has M x M numbers for M = frames x tokens of a frame, which must be as many.
        tokens_per_frame = grid.height * grid.width
        before, remainder = divmod(round(len(gate) ** 0.5), tokens_per_frame)
        if not remainder and before:
            pairs = gate.view(before, tokens_per_frame, before, tokens_per_frame)
            interpolated = F.interpolate(
                pairs.permute(1, 3, 0, 2),
                size=(grid.frames, grid.frames),
                mode="bilinear",
                align_corners=False,
            )
            tensors[_GATE] = interpolated.permute(2, 0, 3, 1).reshape(-1, 1).contiguous()
            notes.append(f"learned gate: {before} frames interpolated to {grid.frames}")
    for start, part in ((_PROJECTION, "visual side"), (_GATE, "learned gate")):
        stored_names = [name for name in tensors if name.startswith(start)]
        model_names = [name for name in shapes if name.startswith(start)]
        fits = {name: tensors[name].shape for name in stored_names} == {
            name: shapes[name] for name in model_names
        }
        if not fits:
            tensors = {name: tensor for name, tensor in tensors.items() if name not in stored_names}
        if model_names:
            notes.append(f"{part}: that of `{path}`" if fits else f"{part}: fresh")
    visual = (_PROJECTION, _GATE)
    allowed = {name for name in shapes if name.startswith((*visual, "albert.pooler.", *HEADS))}
    model, matched = AlbertForImageCaptioning.from_tensors(config, tensors, allowed, str(path))
    if any(name.startswith("predictions.") for name in matched.fresh):
        notes.append(f"prediction head: fresh, `{path}` has none")
    model.albert.pooler.requires_grad_(False)  # no caption goes through it
    return model


def _find_backbone(
    path: Path,
    clips: PreparedClips,
    backbone_name: str | None,
    notes: list[str],
) -> Backbone | None:
    """Return what the clips were prepared for: frozen where they hold features, trained along where they hold frames."""
    trained = clips.kind == "frames"
    if clips.backbone == "features":
        if backbone_name is not None:
            raise ConfigError(
                "bad-value",
                f"the clips in `{clips.folder}` are features of no known backbone",
                "leave --backbone out",
            )
        return None
    state = "trained along" if trained else "frozen"
    saved = load_saved_backbone(path) if backbone_name is None else None
    # Frames are the same whatever the weights, features are not: hence settings there, weights
    # here.
    if saved is not None and (
        saved.settings() == clips.backbone_settings
        if trained
        else saved.fingerprint() == clips.backbone_fingerprint
    ):
        notes.append(f"backbone: {clips.backbone} with the weights in `{path}`, {state}")
        return saved.requires_grad_(trained)
    fingerprint = None if trained else clips.backbone_fingerprint
    user = f"the preparation of the clips in `{clips.folder}`"
    backbone = reload_backbone(
        backbone_name or clips.backbone,
        clips.backbone_settings,
        fingerprint,
        user,
    )
    fresh = ", fresh" if backbone.trained_from_scratch else ""
    notes.append(f"backbone: {backbone.name}{fresh}, {state}")
    return backbone.requires_grad_(trained)


_ON_CARD = (
    "objective",
    "video_attention",
    "length",
    "steps",
    "batch_size",
    "lr",
    "warmup",
    "weight_decay",
    "seed",
)
_EMPTY = "every caption of dev is empty"


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

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for JSON."""
        return {**super().to_dict(), "examples": self.examples}

    def saved(self) -> dict[str, Any]:
        """Return the content of `results.json`."""
        return {**super().to_dict(), **self.full}

    def sections(self) -> list[Section]:
        """Return the scores, and three captions with what people say of the clip."""
        lines = [
            f"{example['key']}: {example['caption']}  (people: {example['references'][0]})"
            for example in self.examples[:3]
        ]
        return [
            FactList(super().to_dict()),
            Paragraph(join_lines(lines), form="code"),
            *(Paragraph(note, tone="warning") for note in self.notes()),
        ]


@takes(TrainCaptionerOptions)
def train_captioner(options: TrainCaptionerOptions) -> CaptionResult:
    """Train a captioner.

    Raises:
        CheckpointError: exists, missing-file, changed and what loading raises.
        ConfigError: bad-value, no-device.
        DataError: too-little-data, bad-label for a clip of dev without a caption, and what
            `PreparedClips` raises.
        MachineError: not-finite.
    """
    with open_run(options.out, options.settings, "captioning", options.resume) as run:
        clips = PreparedClips.open(options.data)
        for split in (options.train_split, options.dev_split):
            if not any(clip.captions for clip in clips.clips(split)):
                raise DataError(
                    "too-little-data",
                    f"no clip of {split} in `{options.data}` has a caption",
                    "prepare clips with captions",
                )
        return run.of_seeds(lambda seed_run: _train_once(seed_run, options, clips))


def _train_once(
    run: Run[CaptionSettings], options: TrainCaptionerOptions, clips: PreparedClips
) -> CaptionResult:
    """Train with one seed."""
    train_split = options.train_split
    dev_split = options.dev_split
    model = str(options.model)
    world = run.world
    torch.manual_seed(run.settings.seed)  # of fresh layers
    max_tokens = 0  # where each clip has its own grid
    if clips.grid is None:
        numbers = [
            (split, number)
            for split in (train_split, dev_split)
            for number in range(len(clips.clips(split)))
        ]
        max_tokens = max(clips.grid_of(split, number).num_tokens for split, number in numbers)
    captioner, notes = start_captioner(model, clips, run.settings, max_tokens, options.backbone)
    caption = captioner.model.caption
    settings = replace(
        run.settings,
        objective=caption.objective,
        video_attention=caption.video_attention,
    )
    rows = CaptionRows(clips, train_split, captioner.tokenizer, settings)
    settings, reasons = settings.resolve(len(rows))
    run = run.resolved(settings)
    settings, metric = run.settings, settings.metric
    items = "".join(clip.item for clip in clips.clips(train_split))
    provenance = {
        "model": model,
        "captions": rows.fingerprint(),
        "backbone": clips.backbone_fingerprint or clips.backbone,
        "clips": sha256_bytes(items.encode()),
    }
    run.check_made_from(provenance)
    captioner.to(world.device)
    run.place_model(captioner.model)
    trained = captioner.backbone if clips.kind == "frames" else None
    objective = CaptionObjective(captioner.model, trained, settings.sparsity_weight)
    generation = GenerationSettings(max_length=settings.length, num_beams=settings.num_beams)
    evaluator = CaptionEvaluator(clips, dev_split, generation, world)
    # Stored with the model: beams are the default, not those that the evaluations take.
    captioner.generation = GenerationSettings(max_length=settings.length)
    remedy = settings.remedy(captioner.model.config.hidden_size)
    unfinished = CaptionResult(metric=metric, remedy=remedy)

    def load(folder: Path) -> VideoCaptioner:
        best = VideoCaptioner.from_pretrained(folder).to(world.device)
        best.model.compute_dtype = captioner.model.compute_dtype
        return best

    def score(best: VideoCaptioner, state: TrainingState) -> CaptionResult:
        captions = evaluator.best_captions(best)
        scores, full = score_caption_mappings(evaluator.references, captions)
        keys = list(captions)[:8]
        examples = [
            {"key": k, "caption": captions[k], "references": list(evaluator.references[k])}
            for k in keys
        ]
        nothing = _EMPTY if scores["empty_captions"] == 1 else None
        result = replace(unfinished, value=scores[metric], scores=scores, collapsed=nothing)
        return replace(result, examples=examples, full=full.to_dict())

    def write(best: VideoCaptioner, result: CaptionResult) -> None:
        _model_card(best, settings, model, result, f"{run.name}/best").write(run.folder / "best")

    factors = (
        {}
        if trained is None or trained.trained_from_scratch
        else {"backbone.": settings.backbone_lr_factor}
    )
    recipe = TrainingRecipe(
        model=objective,
        objective=objective,
        stream=CaptionStream(
            rows, settings.batch_size, settings.micro_batch, settings.seed, world.rank, world.size
        ),
        loop=LoopSettings.over_epochs(
            settings, weight_decay=settings.weight_decay, lr_factors=factors
        ),
        evaluate=partial(evaluator.scores, captioner),
        select=metric,
        save=captioner.save_pretrained,
        provenance=provenance,
        doubts=lambda step, metrics: (
            [f"{_EMPTY}; {remedy}"] if metrics["empty_captions"] == 1 else []
        ),
        notes=[
            *_caption_data_notes(rows, clips, train_split),
            *notes,
            *reasons,
            *_parameter_notes(captioner, world),
        ],
        repeatable=False,  # see docs/gpu.md
    )
    return run.fit(recipe, Best(unfinished, load, score, write))


def _model_card(
    captioner: VideoCaptioner,
    settings: CaptionSettings,
    start: str,
    result: CaptionResult,
    model_path: str,
) -> Card:
    """Describe how to use a captioner, what it learned from and how well; `start` is the ALBERT that it began with."""
    sampling = captioner.sampling
    backbone = captioner.backbone
    frames = f", {sampling.num_frames} frames of {sampling.size} pixels" if sampling else ""
    source = (
        "features computed elsewhere"
        if backbone is None
        else f"the backbone `{escape_markdown(backbone.name)}`"
    )
    parameters = f"{captioner.model.num_parameters():,} parameters"
    sections: list[Section] = [
        Paragraph(
            f"Captions of videos by ALBERT: {parameters}, and {source}{frames}.\n"
            f"Trained with albertkit from `{escape_markdown(start)}`.",
            form="markdown",
        ),
        code_block(
            "from albertkit import VideoCaptioner\n"
            f"captioner = VideoCaptioner.from_pretrained({python_literal(model_path)})\n"
            'print(captioner.caption("clip.mp4")[0][0].text)',
            title="Using it",
        ),
        Paragraph("On the dev clips, which also chose the best of the run's models.", "Results"),
        score_table(result.scores, {}),
        TableSection(
            ("caption", "references"),
            [[example["caption"], example["references"][0]] for example in result.examples[:5]],
        ),
        *settings_sections({key: getattr(settings, key) for key in _ON_CARD}, package_versions()),
    ]
    tags = ["albert", "video-captioning", "albertkit"]
    fields = {"library_name": "albertkit", "pipeline_tag": "video-text-to-text", "tags": tags}
    return Card(model_path.partition("/")[0], fields, sections)


def _caption_data_notes(rows: CaptionRows, clips: PreparedClips, split: str) -> list[str]:
    notes = [f"{pluralize(len(rows), 'caption')} of {pluralize(len(clips.clips(split)), 'clip')}"]
    if rows.num_cut:
        notes.append(f"{pluralize(rows.num_cut, 'caption')} cut: longer than --length")
    if rows.num_unknown:
        notes.append(
            f"{rows.num_unknown / rows.num_tokens:.1%} of the tokens are unknown to the tokenizer"
        )
    return notes


def _parameter_notes(captioner: VideoCaptioner, world: World) -> list[str]:
    """Describe the parameters of each part, and how it is computed."""
    parts = {"ALBERT": captioner.model, "backbone": captioner.backbone}
    lines = []
    for name, part in parts.items():
        if part is not None:
            total = sum(p.numel() for p in part.parameters())
            trained = sum(p.numel() for p in part.parameters() if p.requires_grad)
            lines.append(f"{name}: {total:,} parameters, {trained:,} trained")
    return [*lines, describe_precision(captioner.model, world.device)]
