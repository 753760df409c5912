"""Upload models to the Hugging Face hub; `albertkit.model_folder` downloads them."""

from tempfile import TemporaryDirectory
from typing import Any

from albertkit.model.pretrained import PretrainedAlbert
from albertkit.model_folder import explain_hub, open_hub


def push_checkpoint(
    repo_id: str, model: PretrainedAlbert, tokenizer: Any = None, private: bool | None = None, commit_message: str = ""
) -> str:
    """Upload what `save_checkpoint` writes; arguments as `PretrainedAlbert.push_to_hub`.

    Returns:
        The commit's address.

    Raises:
        DataError: not-found. MachineError: hub-unreachable. MissingExtraError: missing-extra.
    """
    hub = open_hub()
    with TemporaryDirectory() as folder:
        model.save_pretrained(folder, tokenizer)
        try:
            api = hub.HfApi()
            api.create_repo(repo_id, private=private, exist_ok=True)
            commit = api.upload_folder(repo_id=repo_id, folder_path=folder, commit_message=commit_message or None)
        except Exception as error:
            raise explain_hub(error, repo_id) from error
    return str(commit.commit_url)
