"""The protocol of mteb's encoders: with it a `SentenceEncoder` goes into `mteb.evaluate` as it is."""

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from albertkit.embeddings.metrics import unit_vectors

_OF_DOCUMENTS = ("document", "passage", "corpus")  # names of prompts that sentence-transformers takes for documents


class MtebEncoder:
    """mteb's protocol of encoders, but for `encode` and `similarity`, which are the encoder's own."""

    @staticmethod
    def similarity_pairwise(a: Any, b: Any) -> np.ndarray:
        """Return the cosine of each vector of a, [N, D], with that of b in the same row: fp32 [N]."""
        return (unit_vectors(np.asarray(a, np.float32)) * unit_vectors(np.asarray(b, np.float32))).sum(1)

    @property
    def mteb_model_meta(self) -> Any:
        """Return mteb's record of this model; its revision names the weights, by which mteb keeps results."""
        from mteb.models import ModelMeta
        from mteb.models.model_meta import ScoringFunction

        encoder: Any = self
        known = {
            "name": "albertkit/sentence-encoder",
            "revision": encoder.digest()[:16],
            "n_parameters": sum(parameter.numel() for parameter in encoder.parameters()),
            "embed_dim": encoder.kept(None),
            "max_tokens": encoder.max_length,
            "similarity_fn_name": ScoringFunction.COSINE,
            "framework": ["PyTorch"],
        }
        return ModelMeta.create_empty(known)


OF_MTEB = {"task_metadata", "prompt_type", "hf_split", "hf_subset"}  # what mteb gives to an encoder beside the texts


def asked_by_mteb(
    batches: Iterable[Mapping[str, Any]],
    prompts: Mapping[str, str],
    *,
    task_metadata: Any,
    prompt_type: Any = None,
    hf_split: str | None = None,
    hf_subset: str | None = None,
) -> tuple[list[str], str | None]:
    """Return the texts of mteb's batches and the name of their prompt: the first that the encoder has of a task and a role,
    the task, a type of task and a role, the type, the role; as for a SentenceTransformer. None: its default.

    Args:
        batches: Each with a list `text`.
        prompts: Of the encoder, by name.
        task_metadata: With the `name` and the `type` of the task.
        prompt_type: Role of the texts, "query" or "document", or None.
        hf_split: Not used; as `hf_subset`.
        hf_subset: Not used.
    """
    task, kind = task_metadata.name, task_metadata.type
    role = getattr(prompt_type, "value", prompt_type)
    roles = _OF_DOCUMENTS if role == "document" else (role,) if role else ()
    names = [f"{task}-{role}", task, f"{kind}-{role}", kind, *roles]
    texts = [text for batch in batches for text in batch["text"]]
    return texts, next((name for name in names if name in prompts), None)
