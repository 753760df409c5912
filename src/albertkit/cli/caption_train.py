"""albertkit caption train"""

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from albertkit.captioning.training.settings import CaptionSettings
from albertkit.training.stopping import exit_status


def train(
    model: str,
    data: Path,
    *,
    out: Path,
    train_split: str = "train",
    dev_split: str = "dev",
    backbone: str | None = None,
    resume: bool = False,
    config_file: Path | None = None,
    json: bool = False,
    settings: Annotated[
        CaptionSettings, Parameter(name="*", group="Settings", negative_bool="no-")
    ] = CaptionSettings(),  # noqa: B008
) -> int:
    """Train a captioner on prepared clips.

    Args:
        model: ALBERT to start from: checkpoint folder, run, or `org/name` of the hub. `albertkit init` makes an empty one.
        data: Folder that `albertkit caption prepare` wrote.
        out: Folder of the run. The captioner to use comes to stand in OUT/best.
        train_split: Clips to learn from.
        dev_split: Clips whose captions choose the best model.
        backbone: Where the frozen backbone of the clips lies now, for example hf:FOLDER. Default: where it lay when they were
            prepared.
        resume: Continue the run in OUT from its newest checkpoint, to the same bits.
        config_file: TOML file of settings, for example the run.toml of another run. Flags win over it.
        json: Print the result as one JSON object.
    """
    from albertkit.captioning.training import train_captioner
    from albertkit.cli.printing import print_result

    result = train_captioner(
        model, data, out, settings, train_split=train_split, dev_split=dev_split, backbone=backbone, resume=resume
    )
    print_result(result.to_dict() | ({"examples": result.examples} if json else {}), json)
    for example in [] if json else result.examples[:3]:
        print(f"{example['key']}: {example['caption']}  (people: {example['references'][0]})")
    return 0 if result.model else exit_status()
