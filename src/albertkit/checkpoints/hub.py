"""Models of the Hugging Face hub: downloaded when somebody names one, uploaded when somebody asks.

The package `huggingface_hub` does the work: its cache, `HF_HOME`, `HF_HUB_OFFLINE`, `HF_TOKEN` and `hf auth login` hold here.
"""

import re
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from albertkit.errors import AlbertKitError, DataError, MachineError, MissingExtraError
from albertkit.model.pretrained import PretrainedAlbert

# A model's name: organisation and name, as the hub allows them. A path with more parts, or a leading dot or slash, is none.
_HUB_NAME = re.compile(r"\w[\w.-]*/[\w.-]+")
_WANTED = ["*.json", "model.safetensors", "*_Dense/*", "*.model", "vocab.txt"]


def local_folder(source: str | Path, revision: str | None = None) -> Path:
    """The folder itself, or the local copy of a model of the hub, downloaded if it is not there yet.

    Configuration, weights (safetensors, or else `pytorch_model.bin`) and tokenizer are taken, nothing else.

    Args:
        source: A folder, or `org/name`. A folder that exists is always meant first.
        revision: Branch, tag or commit of a model of the hub. Default: its main branch.

    Raises:
        DataError: not-found. MachineError: hub-unreachable. MissingExtraError: missing-extra.
    """
    path = Path(source)
    if path.is_dir():
        return path
    if path.exists() or not _HUB_NAME.fullmatch(str(source)):
        raise DataError(
            "not-found",
            f"no checkpoint folder at `{source}`",
            "give the path of a folder with a config.json, or a model of the hub with its organisation: "
            "albert/albert-base-v2",
        )
    folder = _download(str(source), revision, _WANTED)
    if not (folder / "model.safetensors").exists():
        folder = _download(str(source), revision, [*_WANTED, "pytorch_model.bin"])
    return folder


def push_checkpoint(
    repo_id: str, model: PretrainedAlbert, tokenizer: Any = None, private: bool | None = None, commit_message: str = ""
) -> str:
    """Upload what `save_checkpoint` writes; arguments as `PretrainedAlbert.push_to_hub`.

    Returns:
        The commit's address.

    Raises:
        DataError: not-found. MachineError: hub-unreachable. MissingExtraError: missing-extra.
    """
    hub = _hub()
    with TemporaryDirectory() as folder:
        model.save_pretrained(folder, tokenizer)
        try:
            api = hub.HfApi()
            api.create_repo(repo_id, private=private, exist_ok=True)
            commit = api.upload_folder(repo_id=repo_id, folder_path=folder, commit_message=commit_message or None)
        except Exception as error:
            raise _explained(error, repo_id) from error
    return str(commit.commit_url)


def _download(repo_id: str, revision: str | None, patterns: list[str]) -> Path:
    hub = _hub()
    try:
        return Path(hub.snapshot_download(repo_id, revision=revision, allow_patterns=patterns))
    except Exception as error:
        raise _explained(error, repo_id, revision) from error


def _hub() -> Any:
    try:
        import huggingface_hub
    except ImportError:
        raise MissingExtraError(
            "missing-extra",
            "models of the hub need the package `huggingface_hub`, which is not installed",
            "pip install -c constraints.txt huggingface_hub",
        ) from None
    return huggingface_hub


def _explained(error: Exception, repo_id: str, revision: str | None = None) -> AlbertKitError:
    """What the hub, or the network library below it, has to say; its errors have no base class in common."""
    from huggingface_hub.errors import HFValidationError, RepositoryNotFoundError, RevisionNotFoundError

    if isinstance(error, RevisionNotFoundError):
        return DataError(
            "not-found", f"the hub's `{repo_id}` has no revision `{revision}`", "look at its branches and tags"
        )
    if isinstance(error, RepositoryNotFoundError | HFValidationError):
        return DataError(
            "not-found",
            f"there is no folder `{repo_id}`, and on the hub no model of that name that you may use",
            "check the name; for a private or gated model first run `hf auth login`",
        )
    reason = (str(error).splitlines() or [""])[0]
    return MachineError(
        "hub-unreachable",
        f"`{repo_id}`: the hub cannot be used, and there is no folder of that name and no copy in the local cache: "
        f"{type(error).__name__}: {reason}",
        "check the connection, and HF_HUB_OFFLINE and HF_ENDPOINT if they are set; or use a folder",
    )
