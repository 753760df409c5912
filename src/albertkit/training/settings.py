"""What all dataclasses of settings can do: say what is impossible, be written as TOML, be compared with what a run began with."""

import dataclasses
import json
import reprlib
import tomllib
from collections.abc import Mapping
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, ClassVar, Literal, Union, get_args, get_origin, get_type_hints

import tomli_w
import yaml

from albertkit.errors import CheckpointError, ConfigError, near_miss
from albertkit.files import atomic_file, plain_file
from albertkit.training.run_folder import check_no_stranger

_YAML = (".yaml", ".yml")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Settings:
    """Base of the settings of a run.

    Attributes:
        free: Those that may change when a run is resumed: they touch neither the weights nor their order.
    """

    free: ClassVar[frozenset[str]] = frozenset()

    def problems(self, at_least: Mapping[str, float], below_one: tuple[str, ...] = ()) -> list[str]:
        """What is impossible: a choice that does not exist, a number out of its range.

        Args:
            at_least: Name to least value; None is always right.
            below_one: Names of shares, at least 0 and below 1.
        """
        found = []
        for name, kind in get_type_hints(type(self)).items():  # the command line checks them itself; Python does not
            kinds = get_args(kind) if get_origin(kind) in (Union, UnionType) else (kind,)
            value = getattr(self, name)
            if any(get_origin(one) is not Literal and one is not NoneType for one in kinds):
                continue
            choices = [choice for one in kinds for choice in get_args(one)]
            if value not in choices and (value is not None or NoneType not in kinds):
                found.append(f"{name} must be one of {', '.join(map(str, choices))}, it is {value}")
        for name, least in at_least.items():
            if getattr(self, name) is not None and not getattr(self, name) >= least:
                found.append(f"{name} must be at least {least:g}, it is {getattr(self, name)}")
        for name in below_one:
            if getattr(self, name) is not None and not 0 <= getattr(self, name) < 1:
                found.append(f"{name} must be at least 0 and below 1, it is {getattr(self, name)}")
        return found

    def to_dict(self) -> dict[str, Any]:
        """Plain values, None left out."""
        values = {f.name: getattr(self, f.name) for f in dataclasses.fields(self)}
        return {k: str(v) if isinstance(v, Path) else v for k, v in values.items() if v is not None}

    def save(self, path: Path) -> None:
        """Write `run.toml`."""
        with atomic_file(path, "w") as stream:
            stream.write(tomli_w.dumps(self.to_dict()))

    def continues(self, run: Path, resume: bool) -> bool:
        """Whether a folder holds a run of these settings, which is to be resumed.

        Raises:
            CheckpointError: run-exists if it is not to be resumed; folder-not-empty if it holds something else; other-settings.
        """
        recorded = run / "run.toml"
        if not recorded.exists():
            check_no_stranger(run)
        if recorded.exists() and not resume:
            raise CheckpointError(
                "run-exists", f"`{run}` already holds a run", "add --resume to continue it, or choose another --out"
            )
        if recorded.exists():
            self.check_same(recorded)
        return recorded.exists()

    def check_same(self, path: Path) -> None:
        """Compare with the settings a run was started with.

        Raises:
            CheckpointError: other-settings, naming what differs.
        """
        before = type(self)().to_dict() | type(self).read(path)  # a run may be older than a setting
        now = self.to_dict()
        keys = sorted((before.keys() | now.keys()) - self.free)
        differing = [f"{k} was {before.get(k)}, now {now.get(k)}" for k in keys if before.get(k) != now.get(k)]
        if differing:
            raise CheckpointError(
                "other-settings", f"`{path.parent}` was started with other settings: {'; '.join(differing)}",
                f"resume it with `--config-file {path}`, or start a new run with another --out",
            )  # fmt: skip

    @classmethod
    def read(cls, path: Path, pipe: bool = False) -> dict[str, Any]:
        """Read a flat file of settings: TOML; JSON or YAML by its suffix.

        Args:
            path: The file.
            pipe: It may be a pipe, which a person names; a run's own file may not.

        Raises:
            DataError: not-found, wrong-kind.
            ConfigError: bad-settings-file, or unknown-key with the nearest known name.
        """
        values = _read_values(path, pipe)
        known = {f.name for f in dataclasses.fields(cls)}
        for key in values:
            if key not in known:
                raise ConfigError("unknown-key", f"`{key}` in `{path}`{cls._owner_of(values)}", near_miss(key, known))
        return values

    @classmethod
    def _owner_of(cls, values: dict[str, Any]) -> str:
        """Name the training whose settings these are, if another's."""
        for other in Settings.__subclasses__():
            if other is not cls and values.keys() <= {f.name for f in dataclasses.fields(other)}:
                return f": the file holds {other.__name__}, `{cls.__name__}` are expected"
        return ""


_LARGEST_FILE = 1_000_000  # bytes; the longest run.toml has under 2,000


def _read_values(path: Path, pipe: bool) -> dict[str, Any]:
    """Read the keys and values of a settings file."""
    if pipe and (path.is_fifo() or path.is_char_device()):  # `--config-file <(…)`
        with open(path, "rb") as stream:
            content = stream.read(_LARGEST_FILE + 1)
    else:
        content = plain_file(path, "settings file").read_bytes()
    suffix = path.suffix.lower()
    try:
        if len(content) > _LARGEST_FILE:
            raise ValueError(f"it is longer than {_LARGEST_FILE:,} bytes")
        text = content.decode("utf-8")
        if suffix == ".json" or (suffix not in _YAML and text.lstrip().startswith("{")):
            values = json.loads(text)
        elif suffix in _YAML:
            values = yaml.safe_load(text)
        else:
            values = tomllib.loads(text)
        if not isinstance(values, dict):
            raise ValueError("it holds no keys with values")
        for key, value in values.items():
            items = value if isinstance(value, list) else [value]
            if not isinstance(key, str) or not all(isinstance(item, str | int | float) for item in items):
                raise ValueError(
                    f"`{reprlib.repr(key)}` is neither a number, a text, true or false, nor a list of these"
                )
        return values
    except (ValueError, RecursionError, yaml.YAMLError) as error:
        said = " ".join(str(error).split())
        raise ConfigError("bad-settings-file", f"`{path}`: {said}", "see the files in recipes/ for the form") from None
