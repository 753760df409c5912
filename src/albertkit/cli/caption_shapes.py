"""albertkit caption shapes"""

from pathlib import Path
from typing import Literal


def shapes(
    out: Path,
    *,
    clips: int = 2000,
    objective: Literal["mlm", "causal", "both"] = "both",
    video_attention: Literal["full", "diagonal", "log", "legacy", "both"] = "both",
    steps: int | None = None,
    seed: int = 0,
    json: bool = False,
) -> None:
    """Learn to caption moving shapes from nothing, and score combinations that were never seen. Goes on where it was stopped.

    Args:
        out: Folder for clips, models and results.
        clips: How many.
        objective: What is learned; both, one after the other.
        video_attention: What visual tokens see of each other; both: full and diagonal.
        steps: Updates of each training. Default: 4,000.
        seed: Of clips and trainings.
        json: Print one JSON object a training.
    """
    from albertkit.captioning.synthetic.learn import learn_shapes
    from albertkit.cli.printing import print_result

    results = learn_shapes(
        out, num_clips=clips, objectives=("causal", "mlm") if objective == "both" else (objective,),
        attentions=("full", "diagonal") if video_attention == "both" else (video_attention,), steps=steps, seed=seed,
    )  # fmt: skip
    for number, result in enumerate(results):
        if number and not json:
            print()
        print_result(result.to_dict(), json)
