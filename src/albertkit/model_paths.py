"""Find the folder that is meant by MODEL: a folder, a run, or a model of the Hugging Face hub.

A run as MODEL means the model that its training recommends: `best/`, chosen on held-out data, or
`final/` where there is no `best/`. Every command and every `from_pretrained` comes here, so that a
run is the same model everywhere.
"""

import errno
import logging
import os
import re
import reprlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from fnmatch import fnmatch
from math import isfinite
from pathlib import Path
from typing import Any

from albertkit.errors import (
    AlbertKitError,
    CheckpointError,
    ConfigError,
    DataError,
    MachineError,
    MissingExtraError,
    closest_name,
    first_line,
    format_list,
    restore_url,
)
from albertkit.files import StrPath, read_typed, sha256_bytes, sha256_file, write_json
from albertkit.folder_facts import FolderFacts

_PACKAGES = {  # that fsspec needs: its name, and the protocols it is for
    protocol: package
    for package, protocols in {
        "s3fs": "s3 s3a",
        "gcsfs": "gs gcs",
        "adlfs": "az abfs abfss",
        "aiohttp": "http https",
        "paramiko": "sftp ssh",
        "smbprotocol": "smb",
    }.items()
    for protocol in protocols.split()
}


def is_remote(location: StrPath) -> bool:
    """Return whether a location is an address (`s3://…`) and not a path."""
    return "://" in os.fspath(location)


@contextmanager
def network_errors_as_ours(url: str) -> Iterator[None]:
    """State what goes wrong with an address as one of our errors."""
    try:
        yield
    except FileNotFoundError as error:
        # fsspec says "not found" of a server that cannot be reached, or refuses, too
        cause = error.__cause__
        if isinstance(cause, OSError) or getattr(cause, "status", 404) not in (404, 410):
            raise _unreachable_error(url, cause) from None
        raise DataError(
            "not-found",
            f"no such file or folder: `{url}`",
            "check the address",
        ) from None
    except ImportError as error:
        package = _PACKAGES.get(url.split("://")[0])
        raise MissingExtraError(
            "not-installed",
            f"`{url}` cannot be opened: {error}",
            f"pip install {package}" if package else "install the package it names",
        ) from None
    except ValueError as error:
        if isinstance(error, AlbertKitError):
            raise
        raise DataError(
            "bad-value",
            f"`{url}` cannot be opened: {error}",
            "known: s3://, gs://, https://, …",
        ) from None
    except Exception as error:  # every protocol has errors of its own
        if isinstance(error, AlbertKitError) or getattr(error, "errno", None) in (
            errno.ENOSPC,
            errno.EDQUOT,
        ):
            raise  # the disk here
        raise _unreachable_error(url, error) from None


def _unreachable_error(url: str, error: BaseException | None) -> MachineError:
    return MachineError(
        "unreachable",
        f"`{url}`: {type(error).__name__}: {error}",
        "check address, network and rights, then run it again",
    )


def file_system_and_path(url: str) -> tuple[Any, str]:
    """Return fsspec's file system of an address, and the path in it."""
    import fsspec  # a fifth of the time of `--help`

    with network_errors_as_ours(url):
        system, path = fsspec.core.url_to_fs(url)
        return system, path.rstrip("/")


MODELS = ("best", "final")  # of a run: the one to use first
SELECTED = "selected.json"  # in each of them: its step, and its value of the metric that selects
CONFIG_FILE = "config.json"
CAPTIONER_FILE = "captioner.json"  # of a model that captions videos
WEIGHTS_FILE, OLD_WEIGHTS = "model.safetensors", "pytorch_model.bin"
# As transformers looks for them, the first is read: one file, or the index of several.
WEIGHTS_FILES = (
    WEIGHTS_FILE,
    f"{WEIGHTS_FILE}.index.json",
    OLD_WEIGHTS,
    f"{OLD_WEIGHTS}.index.json",
)

# A model's name: organisation and name, as the hub allows them. A path with more parts, or a
# leading dot or slash, is none.
_HUB_NAME = re.compile(r"\w[\w.-]*/[\w.-]+")
# Until 2023 Google's models had no organisation on the hub; transformers redirects the old names.
_OLD_NAME = re.compile(r"albert-(base|large|xlarge|xxlarge)-v[12]")
_TOKENIZER_FILES = ["*.json", "*.model", "vocab*.txt"]
# Patterns of files of a model or a tokenizer, of any origin: a folder with one of them is not
# refused as data.
_MODEL_FILES = (
    "*config.json", "*.model", "*vocab*", "tokenizer*.json", "*.safetensors", "*.bin", "*.pt", "*.pth", "*.onnx", "*.h5",
    "*.index", "*.meta", "*.data-*", "*.pb", "checkpoint", "modules.json", CAPTIONER_FILE,
)  # fmt: skip
_DATA_FILES = ("*.tsv", "*.csv", "*.txt", "*.jsonl", "*.parquet", "train*", "dev*")
_OF_A_RUN = ("run.toml", *(f"{name}/{CONFIG_FILE}" for name in MODELS))
_ANY_MODEL = (
    "give the path of a folder with a config.json, a run, or a model of the hub with its organisation: "
    "albert/albert-base-v2"
)
_FILES = [
    *_TOKENIZER_FILES,
    WEIGHTS_FILE,
    "model-*-of-*.safetensors",
    "backbone.safetensors",
    "*_Dense/*",
]
_OLD_FILES = [OLD_WEIGHTS, "pytorch_model-*-of-*.bin"]

logger = logging.getLogger(__name__)


def find_weights(folder: Path, use_safetensors: bool | None = None) -> Path | None:
    """Return the file of a folder's weights that is read, or their index; None without one.

    Args:
        folder: A checkpoint folder.
        use_safetensors: True for safetensors alone, False for `pytorch_model.bin` alone. Default:
            safetensors first.
    """
    names = {None: WEIGHTS_FILES, True: WEIGHTS_FILES[:2], False: WEIGHTS_FILES[2:]}[
        use_safetensors
    ]
    return next((folder / name for name in names if (folder / name).is_file()), None)


def inner_model_hint(folder: Path) -> str:
    """Return a hint that names the last model inside a folder; empty if there is none."""
    models = [
        file.parent
        for file in sorted(folder.glob(f"*/**/{CONFIG_FILE}"))
        # A `Dense` of sentence-transformers has weights, too
        if find_weights(file.parent) and b'"model_type"' in file.read_bytes()
    ]
    models = [model for model in models if model.parent.name != "checkpoints"]
    return f"name a folder inside it: {models[-1]}" if models else ""


def local_folder(
    source: StrPath,
    revision: str | None = None,
    *,
    weights: bool = True,
    use_safetensors: bool | None = None,
) -> Path:
    """Return the folder of a model: the folder itself, the model of a run, or the downloaded copy of a model of the hub.

    The model that a run stands for is logged (level INFO), with its step and its value of the
    metric that selects; the command line prints that line.

    Args:
        source: A checkpoint folder; a run; or `org/name` of the hub, also one of Google's old names
            (`albert-base-v2`). A folder that exists is always meant first.
        revision: Branch, tag or commit of a model of the hub. Default: its main branch.
        weights: False to download the tokenizer's files alone.
        use_safetensors: As `find_weights`.
    """
    if not isinstance(source, str | os.PathLike):
        raise ConfigError(
            "bad-value",
            f"the model is {reprlib.repr(source)}, not a folder",
            "name its folder",
        )
    path = Path(source)
    if not str(source):
        raise DataError(
            "not-found",
            "the path of a model is empty",
            "name a folder; . is the current one",
        )
    if address := restore_url(source):
        raise DataError(
            "not-found",
            f"`{address}` is an address; models are read from folders and from the hub",
            f"copy it here first, or a pretrained one: albertkit convert '{address}' FOLDER",
        )
    if path.is_dir():
        of_run = model_of_run(path)
        if of_run is None:
            if weights:
                _refuse_data_folder(path)
                FolderFacts.from_folder(path).check_model()
            return path
        logger.info("model  %s", describe_selected_model(of_run))
        return of_run
    if path.is_file():
        raise DataError(
            "wrong-kind",
            f"`{source}` is a file, a model is a folder",
            f"name its folder: {path.parent}"
            if (path.parent / CONFIG_FILE).exists()
            else _ANY_MODEL,
        )
    name = f"albert/{source}" if _OLD_NAME.fullmatch(str(source)) else str(source)
    # `run3/fianl` beside a folder `run3` is a misspelt path and no name of the hub.
    begins_here = len(path.parts) > 1 and Path(path.parts[0]).is_dir()
    if path.exists() or begins_here or not _HUB_NAME.fullmatch(name):
        raise DataError("not-found", f"no checkpoint folder at `{source}`", _suggest_folder(path))
    if not weights:
        return _download(name, revision, _TOKENIZER_FILES)
    folder = _download(name, revision, _FILES)
    if use_safetensors is False or (use_safetensors is None and find_weights(folder, True) is None):
        folder = _download(name, revision, [*_FILES, *_OLD_FILES])
    FolderFacts.from_folder(folder).check_model()
    return folder


def model_of_run(folder: str | Path) -> Path | None:
    """Return the model that a run's training recommends: `best/`, or `final/` where there is no `best/`.

    Returns:
        None for a folder that is no run, such as a checkpoint folder.
    """
    path = Path(folder)
    if (path / CONFIG_FILE).exists() or not path.is_dir():
        return None
    for name in MODELS:
        if (path / name / CONFIG_FILE).exists():
            return path / name
    begun = [run for run in (path, *numbered_folders(path, "seed")) if (run / "run.toml").exists()]
    if not begun:
        return None
    seeds = [run / "best" for run in begun if (run / "best" / CONFIG_FILE).exists()]
    steps = [
        step
        for step in numbered_folders(begun[-1] / "checkpoints", "step")
        if (step / CONFIG_FILE).exists()
    ]
    hint = (
        f"look at its newest checkpoint: {steps[-1]}" if steps else "wait for its first evaluation"
    )
    hint = f"name the model of one of its seeds: {seeds[0]}" if seeds else hint
    raise DataError(
        "not-found",
        f"the run `{path}` has no model yet, neither best/ nor final/",
        hint,
    )


def model_kind(folder: StrPath) -> str:
    """Return "a model", "a run" or "": what lies in a folder."""
    path = Path(folder)
    if (path / CONFIG_FILE).is_file():
        return "a model"
    return "a run" if any((path / name).is_file() for name in _OF_A_RUN) else ""


def _refuse_data_folder(folder: Path) -> None:
    """Refuse a token store, and a folder of data in which no file is one of a model or a tokenizer."""
    names = sorted(file.name for file in folder.iterdir() if file.is_file())
    if "manifest.json" in names:
        with open(folder / "manifest.json", "rb") as stream:
            head = stream.read(4096)  # says whose it is: another program's may be of any size
        if b'"albertkit_store"' in head:
            raise DataError(
                "wrong-kind",
                f"`{folder}` is a token store, not a model",
                f"train a model on it: albertkit pretrain {folder} --out RUN",
            )
    if any(fnmatch(name, pattern) for name in names for pattern in _MODEL_FILES):
        return
    if data := [name for name in names if any(fnmatch(name, pattern) for pattern in _DATA_FILES)]:
        raise DataError(
            "wrong-kind",
            f"`{folder}` holds data ({format_list(data, 4)}), not a model",
            _ANY_MODEL,
        )


def model_of_run_or_folder(folder: str | Path) -> Path:
    """Return the model of a run, or the folder itself if it is none; nothing is downloaded or logged."""
    return model_of_run(folder) or Path(folder)


def is_captioner_folder(folder: str | Path) -> bool:
    """Return whether a folder is a captioner's, or a run that left one."""
    return (model_of_run_or_folder(folder) / CAPTIONER_FILE).exists()


def captioner_error(folder: str | Path) -> CheckpointError:
    """Return the error for a captioner where a model of texts is needed."""
    return CheckpointError(
        "wrong-model",
        f"`{folder}` is a captioner: it reads a video, not a text alone",
        f"ask it for captions: albertkit caption predict {folder} VIDEO",
    )


@dataclass(frozen=True)
class Selected:
    """Origin of a model of a run.

    Attributes:
        step: Updates made.
        metric: Name of the metric that selects.
        value: Its value; None if it was not measured or is not finite.
    """

    step: int
    metric: str
    value: float | None


@contextmanager
def digest_while_loading(folder: StrPath) -> Iterator[str]:
    """Yield the SHA-256 of a model's files while they are loaded: equal digests mean the same model.

    Its own files and those of sentence-transformers' modules count; 47 MB take 0.05 s.

    Raises:
        CheckpointError: changed, if a file was replaced meanwhile.
    """
    path = Path(folder)
    folders = {path, *(path / module for module in FolderFacts.from_folder(path).module_paths())}

    def versions() -> list[tuple[Path, int, int]]:
        files = sorted(file for parent in folders for file in parent.glob("*") if file.is_file())
        return [
            (file, file.stat().st_size, file.stat().st_mtime_ns)
            for file in files
            # A card may be edited meanwhile.
            if file.suffix != ".md"
        ]

    before = versions()
    yield sha256_bytes(
        "".join(
            f"{os.path.relpath(file, path)} {sha256_file(file)}\n" for file, *_ in before
        ).encode()
    )
    if versions() != before:
        raise CheckpointError(
            "changed",
            f"`{folder}` was changed while it was loaded",
            "load it again",
        )


def describe_selected_model(model_folder: Path) -> str:
    """Return one line about a model of a run: its folder, step, and value of the metric that selects, as far as recorded."""
    try:
        selected = read_typed(model_folder / SELECTED, Selected)
    except DataError:  # missing, or changed by hand
        return str(model_folder)
    description = f"{model_folder}, step {selected.step:,}"
    return (
        description
        if selected.value is None
        else f"{description}, {selected.metric.replace('_', ' ')} {selected.value:.4g}"
    )


def record_selected_model(folder: Path, step: int, metric: str, value: float | None) -> None:
    """Record in the folder of a run's model which step it is of, and its value of the metric that selects.

    Args:
        folder: `best/` or `final/`, while it is written.
        step: Updates made.
        metric: Name of the metric.
        value: Of this model, None if it was not measured; NaN and infinity are stored as null.
    """
    finite = None if value is None or not isfinite(value) else value
    write_json(folder / SELECTED, asdict(Selected(step, metric, finite)))


def numbered_folders(folder: Path, name: str) -> list[Path]:
    """Return folders such as seed-3 or step-000100, in the order of their numbers."""
    folders = [
        p
        for p in folder.glob(f"{name}-*")
        if re.fullmatch(rf"{name}-\d{{1,12}}", p.name) and p.is_dir()
    ]
    return sorted(folders, key=lambda p: int(p.name.rpartition("-")[2]))


def find_runs(folder: Path) -> list[Path]:
    """Return the runs that lie in a folder, such as that of a quickstart."""
    return sorted(file.parent for file in folder.glob("*/run.toml"))


def _suggest_folder(path: Path) -> str:
    """Return a hint for a path where nothing is: the nearest name that exists, from the part where the path goes wrong."""
    parent = next((ancestor for ancestor in path.parents if ancestor.is_dir()), Path("."))
    try:
        wrong = path.relative_to(parent).parts[0] if path.parts else ""
        names = (
            sorted(entry.name for entry in parent.iterdir() if entry.is_dir())
            if parent != Path("/")
            else []
        )
    except (OSError, ValueError):
        wrong = path.name
        names = []
    if close := closest_name(wrong, names):
        return f"did you mean `{parent / close}`?"
    if names and parent != Path("."):
        folders = f"the folders in `{parent}`: {format_list(names, 12)}"
        if path.is_absolute() or len(path.parts) != 2:
            return folders
        return f"{folders}; names of the hub are not looked up where there is a folder `{path.parts[0]}`"
    return _ANY_MODEL


# --- the hub --------------------------------------------------------------------------------------
# The package `huggingface_hub` does the work: its cache, `HF_HOME`, `HF_HUB_OFFLINE`, `HF_TOKEN` and `hf auth login` hold.


def _download(repo_id: str, revision: str | None, patterns: Sequence[str]) -> Path:
    hub = import_huggingface_hub()
    try:
        return Path(
            hub.snapshot_download(repo_id, revision=revision, allow_patterns=list(patterns))
        )
    except Exception as error:
        raise explain_hub_error(error, repo_id, revision) from error


def import_huggingface_hub() -> Any:
    """Return the package `huggingface_hub`."""
    try:
        import huggingface_hub
    except ImportError:
        raise MissingExtraError(
            "not-installed",
            "models of the hub need the package `huggingface_hub`, which is not installed",
            "pip install -c constraints.txt huggingface_hub",
        ) from None
    return huggingface_hub


def explain_hub_error(
    error: Exception, repo_id: str, revision: str | None = None
) -> AlbertKitError:
    """Return an error of the hub, or of the network library below it, as one of ours; they have no base class in common."""
    from huggingface_hub.errors import (
        HFValidationError,
        RepositoryNotFoundError,
        RevisionNotFoundError,
    )

    if isinstance(error, RevisionNotFoundError):
        return DataError(
            "not-found",
            f"the hub's `{repo_id}` has no revision `{revision}`",
            "look at its branches and tags",
        )
    if isinstance(error, RepositoryNotFoundError | HFValidationError):
        return DataError(
            "not-found",
            f"there is no folder `{repo_id}`, and on the hub no model of that name that you may use",
            "check the name; for a private or gated model first run `hf auth login`",
        )
    reason = first_line(error)
    return MachineError(
        "unreachable",
        f"`{repo_id}`: the hub cannot be used, and there is no folder of that name and no copy in the local cache: "
        f"{type(error).__name__}: {reason}",
        "check the connection, and HF_HUB_OFFLINE and HF_ENDPOINT if they are set; or use a folder",
    )
