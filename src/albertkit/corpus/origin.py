"""What a store is made from: by it a build knows whether a folder holds the same store, the same unfinished build, or another."""

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from albertkit.corpus.inputs import InputFile
from albertkit.corpus.settings import BuildSettings
from albertkit.errors import DataError
from albertkit.files import sha256_bytes


@dataclass(frozen=True)
class Origin:
    """Inputs, tokenizer and settings of a build.

    Attributes:
        files: In the order of reading.
        tokenizer_fingerprint: Of the tokenizer.
        settings: What decides the bytes.
        engine: "local" or "ray".
    """

    files: list[InputFile]
    tokenizer_fingerprint: str
    settings: BuildSettings
    engine: str

    def of_store(self) -> dict[str, Any]:
        """By names and sizes: copies of the inputs elsewhere give the same manifest."""
        listing = json.dumps([[file.name, file.size] for file in self.files])
        settings = asdict(self.settings)
        if self.settings.format != "pairs":
            del settings["separator"]  # decides nothing
        return {
            "input_files": len(self.files),
            "input_bytes": sum(file.size for file in self.files),
            "first_input": self.files[0].name,
            "last_input": self.files[-1].name,
            "inputs_sha256": sha256_bytes(listing.encode()),
            "tokenizer_fingerprint": self.tokenizer_fingerprint,
            **settings,
        }

    def of_build(self) -> dict[str, Any]:
        """What decides whether a build is taken up: the very files, too, as they are now."""
        listing = json.dumps([[file.path, file.size, file.modified] for file in self.files])
        identity = {**self.of_store(), "paths_sha256": sha256_bytes(listing.encode())}
        if self.engine != "local":  # engines count places in the inputs differently
            identity["engine"] = self.engine
        return identity

    def changed_since(self, manifest: Path) -> list[str]:
        """A warning where an input has a later date than the store: sizes and names alone do not show another text."""
        made = manifest.stat().st_mtime_ns
        later = [file.path for file in self.files if file.modified > made]
        if not later:
            return []
        return [
            f"nothing was built, but {len(later):,} inputs have changed since, or were copied (the first: {later[0]}); if "
            "their text is another, add --overwrite"
        ]


def other_build(place: Path, before: dict[str, Any], now: dict[str, Any]) -> DataError:
    """An unfinished build lies where another is to be made."""
    differing = {name for name in before | now if before.get(name) != now.get(name)}
    plain = {"tokenizer" if "tokenizer" in n else "inputs" if "input" in n or "paths" in n else n for n in differing}
    return DataError(
        "other-build",
        f"`{place}` holds an unfinished build that began otherwise (differing: {', '.join(sorted(plain))})",
        "run the command that began it, choose another --out, or start anew with --overwrite",
    )


def other_store(place: object) -> DataError:
    """A store lies where another is to be made."""
    return DataError(
        "other-store",
        f"`{place}` holds a store made from other inputs or settings",
        "choose another --out, or --overwrite to replace it",
    )
