"""Sentence embeddings: texts to vectors; training, distillation, silver data, evaluation and files of any size."""

from albertkit import lazy_names

_WHERE = {
    "SentenceEncoder": "albertkit.embeddings.encoder",
    "augment": "albertkit.embeddings.augment",
    "distill_embeddings": "albertkit.embeddings.distill",
    "encode_file": "albertkit.embeddings.encode",
    "evaluate_embeddings": "albertkit.embeddings.evaluate",
    "train_embeddings": "albertkit.embeddings.train",
}

__all__ = list(_WHERE)

__getattr__ = lazy_names(__name__, _WHERE)
