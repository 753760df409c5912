"""What a run must find again to be continued, and how its folder begins."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from albertkit.checkpoints.folder import PROVENANCE
from albertkit.errors import CheckpointError, ConfigError
from albertkit.files import read_json, remove_leftovers
from albertkit.training.distributed import World
from albertkit.training.settings import Settings
from albertkit.training.state import newest_checkpoint


def check_made_from(run: Path, provenance: Mapping[str, Any]) -> None:
    """Compare what a run learns from now with what its newest checkpoint was made from.

    Args:
        run: Its folder; nothing is compared before there is a checkpoint.
        provenance: Name to value; names that the checkpoint knows beside these are not compared.

    Raises:
        CheckpointError: resume-mismatch, naming all that differs.
    """
    checkpoint = newest_checkpoint(run)
    if checkpoint is None:
        return
    before = read_json(checkpoint / PROVENANCE)
    differing = [
        _difference(name, before.get(name), now) for name, now in provenance.items() if before.get(name) != now
    ]
    if differing:
        raise CheckpointError(
            "resume-mismatch", f"`{run}` was trained on {'; '.join(differing)}",
            "resume with what the run was started with, or start a new run with another --out",
        )  # fmt: skip


def _difference(name: str, before: object, now: object) -> str:
    fingerprint = isinstance(now, str) and len(now) == 64  # SHA-256: says nothing to a person
    return f"other {name} than now" if fingerprint else f"{before}, not on {now}"


def check_same_stream(saved: Mapping[str, Any], own: Mapping[str, Any]) -> None:
    """Compare what a saved stream was made of with what this one is made of.

    Raises:
        ConfigError: resume-mismatch.
    """
    for name, value in own.items():
        if saved.get(name) != value:
            raise ConfigError(
                "resume-mismatch", f"{name} of the saved stream: {saved.get(name)}; of this one: {value}",
                "resume with the data and the settings that the run was started with",
            )  # fmt: skip


def begin_folder(
    run: Path, settings: Settings, world: World, before_settings: Callable[[], None] | None = None
) -> None:
    """Make the folder of a run, or tidy that of a run that was killed, and record the settings.

    Every process of `world` calls it once it has checked the folder: none may find a run that another has just made.

    Args:
        run: The folder.
        settings: Of the run; once they are recorded, there is a run.
        world: The processes.
        before_settings: Writes what must lie there before there is a run.
    """
    world.barrier()
    if world.is_main:
        run.mkdir(parents=True, exist_ok=True)
        remove_leftovers(run)
        if before_settings is not None:
            before_settings()
        settings.save(run / "run.toml")
