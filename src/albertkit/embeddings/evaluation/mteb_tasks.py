"""Scores of mteb's tasks, by mteb's own runner."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from albertkit.embeddings.encoder import SentenceEncoder
from albertkit.embeddings.models import embedding_folder, is_albert, open_sentence_transformer
from albertkit.engines.engine import Precision
from albertkit.errors import ConfigError, MachineError, MissingExtraError, near_miss


def find_tasks(names: Sequence[str]) -> list[Any]:
    """Return mteb's tasks by name.

    Raises:
        MissingExtraError: not-installed. ConfigError: unknown-name.
    """
    try:
        import mteb
    except ImportError:
        raise MissingExtraError.of("mteb", "mteb", "--mteb") from None
    known = {task.metadata.name for task in mteb.get_tasks()}
    if unknown := [name for name in names if name not in known]:
        raise ConfigError("unknown-name", f"mteb has no task `{unknown[0]}`", near_miss(unknown[0], known))
    return list(mteb.get_tasks(tasks=list(names)))


def mteb_scores(model: str | Path, tasks: Sequence[Any], precision: Precision) -> dict[str, dict[str, Any]]:
    """Return for each task its `metric` and its `score`, and the scores of its parts by "split, subset".

    An ALBERT runs as our encoder, any other model as a SentenceTransformer.

    Raises:
        MachineError: unreachable if the data of a task are neither at hand nor to be had.
    """
    import mteb

    folder = embedding_folder(model)
    if is_albert(folder):
        subject: Any = SentenceEncoder.from_pretrained(folder)
        subject.precision = precision
    else:
        subject = open_sentence_transformer(str(folder))
    found = {}
    for task in tasks:
        name = task.metadata.name
        try:
            if not task.data_loaded:
                task.load_data()
        except Exception as error:  # of datasets and the network: they share no base class
            reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
            hint = f"where there is a network, once: python -c \"import mteb; mteb.get_task('{name}').load_data()\""
            raise MachineError("unreachable", f"mteb cannot load the data of `{name}`: {reason}", hint) from None
        result = mteb.evaluate(subject, task, cache=None, show_progress_bar=False)[0]
        parts = {
            f"{split}, {part['hf_subset']}": part["main_score"]
            for split, rows in result.scores.items()
            for part in rows
        }
        found[name] = {"metric": task.metadata.main_score, "score": result.get_score(), "parts": parts}
    return found
