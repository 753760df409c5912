"""Moving shapes from nothing to captions: clips, tokenizer, an empty ALBERT, training, and the score on held-out combinations."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from albertkit.captioning.backbones import load_backbone
from albertkit.captioning.captioner import VideoCaptioner
from albertkit.captioning.evaluate import evaluate_captioner
from albertkit.captioning.prepare import prepare_clips
from albertkit.captioning.settings import CaptionSettings, GenerationSettings
from albertkit.captioning.sources import read_splits
from albertkit.captioning.train import train_captioner
from albertkit.captioning.video import FrameSampling
from albertkit.conversion.initial import init_model
from albertkit.files import atomic_file, read_typed, write_json
from albertkit.output.sections import Result
from benchmarks.moving_shapes import WORDS, check_clips, make_clips

# A narrow ALBERT. Weights drawn from 0.02 leave attention a few percent of the residual at this
# width, and the loss on its plateau for 1,000 updates; from 0.06 it leaves it after 100
# (docs/log.md).
SHELL: dict[str, Any] = dict(
    hidden_size=128,
    embedding_size=64,
    num_hidden_layers=2,
    num_attention_heads=4,
    intermediate_size=512,
    max_position_embeddings=64,
    initializer_range=0.06,
)
SAMPLING = FrameSampling(num_frames=8, size=64)
RECIPE: dict[str, Any] = dict(
    length=16,
    lr=1e-3,
    batch_size=32,
    steps=4000,
    eval_every=500,
    metric="exact_match",
    precision="fp32",
    shift=6,
)


@dataclass(frozen=True)
class ShapesResult(Result):
    """One way to train, and what came of it.

    Attributes:
        objective: mlm or causal.
        video_attention: What visual tokens saw of each other.
        exact_match: Share of the test clips, of held-out combinations, whose caption is right in
            every word.
        dev_exact_match: The same of dev clips, of combinations that were trained on.
        steps: Updates.
        seconds: Time spent in updates.
        model: The captioner.
    """

    objective: str
    video_attention: str
    exact_match: float
    dev_exact_match: float
    steps: int
    seconds: float
    model: Path


def learn_shapes(
    out: str | Path,
    *,
    num_clips: int = 2000,
    objectives: Sequence[Literal["mlm", "causal"]] = ("causal", "mlm"),
    attentions: Sequence[Literal["full", "diagonal", "log", "legacy"]] = ("full", "diagonal"),
    steps: int | None = None,
    seed: int = 0,
) -> list[ShapesResult]:
    """Train a captioner on moving shapes in each of several ways. Interrupted, the same call goes on where it was."""
    folder = Path(out)
    if (folder / "clips").exists():
        check_clips(folder / "clips", num_clips, seed)
    else:
        make_clips(folder / "clips", num_clips, seed)
    if not (folder / "shell" / "config.json").exists():
        _make_shell(folder / "shell", seed)
    clips = read_splits(folder / "clips")
    prepare_clips(clips, folder / "prepared", load_backbone("conv3d", {"width": 128}), SAMPLING)
    results = []
    for objective in objectives:
        for attention in attentions:
            run = folder / f"{objective}-{attention}"
            settings = CaptionSettings(
                objective=objective,
                video_attention=attention,
                seed=seed,
                **{**RECIPE, "steps": steps or RECIPE["steps"]},
            )
            results.append(_learn(folder, run, settings))
    return results


def _make_shell(folder: Path, seed: int) -> None:
    tokenizer = folder.with_name("tokenizer")
    # A piece a word, as SwinBERT's vocabulary has it
    with atomic_file(tokenizer / "vocab.txt", "w") as stream:
        stream.write(
            "".join(
                f"{piece}\n" for piece in ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *WORDS)
            )
        )
    init_model(folder, tokenizer, size="tiny", seed=seed, **SHELL)


def _learn(folder: Path, run: Path, settings: CaptionSettings) -> ShapesResult:
    finished = run / "shapes.json"
    if finished.exists():
        settings.check_same(run / "run.toml")
        values = read_typed(finished, dict[str, Any], "result")
        return ShapesResult(**{**values, "model": Path(values["model"])})
    trained = train_captioner(
        folder / "shell", folder / "prepared", run, settings, resume=(run / "run.toml").exists()
    )
    if trained.model is None:
        raise KeyboardInterrupt  # a signal stopped it; everything is saved
    captioner = VideoCaptioner.from_pretrained(run)
    greedy = GenerationSettings(max_length=settings.length, num_beams=1)
    test = evaluate_captioner(
        captioner, folder / "prepared", split="test", out=run / "test.jsonl", generation=greedy
    )
    result = ShapesResult(
        str(settings.objective),
        str(settings.video_attention),
        test.scores["exact_match"],
        trained.scores["exact_match"],
        trained.steps,
        round(trained.seconds, 1),
        run / "best",
    )
    write_json(finished, result.to_dict())
    return result


def shapes(
    out: Path,
    *,
    clips: int = 2000,
    objective: Literal["mlm", "causal", "both"] = "both",
    video_attention: Literal["full", "diagonal", "log", "legacy", "both"] = "both",
    steps: int | None = None,
    seed: int = 0,
) -> list[ShapesResult]:
    """Learn to caption moving shapes from nothing, and score combinations that were never seen. Goes on where it was stopped.

    Args:
        out: Folder for clips, models and results.
        clips: How many.
        objective: What is learned; both, one after the other.
        video_attention: What visual tokens see of each other; both: full and diagonal.
        steps: Updates of each training. Default: 4,000.
        seed: Of clips and trainings.
    """
    objectives: tuple[Any, ...] = ("causal", "mlm") if objective == "both" else (objective,)
    attentions: tuple[Any, ...] = (
        ("full", "diagonal") if video_attention == "both" else (video_attention,)
    )
    return learn_shapes(
        out, num_clips=clips, objectives=objectives, attentions=attentions, steps=steps, seed=seed
    )
