"""The model card of sentence embeddings: how to use them, what they learned, how well."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from albertkit.embeddings.encoder import SentenceEncoder
from albertkit.files import atomic_file
from albertkit.report.card import cell
from albertkit.report.templates import environment
from albertkit.report.versions import versions


def write_embedding_card(
    folder: str | Path,
    name: str,
    encoder: SentenceEncoder,
    *,
    start: str,
    data: str,
    dev: str,
    loss: str,
    scores: Mapping[str, float],
    intervals: Mapping[str, tuple[float, float]],
    settings: Mapping[str, Any],
    dims: tuple[int, ...] = (),
) -> Path:
    """Write `README.md` into the folder of an encoder.

    Args:
        folder: The folder.
        name: Heading, and the folder that `folder` lies in.
        encoder: That lies there.
        start: The checkpoint that it was trained from.
        data: What it was trained on, in words.
        dev: What it was scored on, in words.
        loss: Its name.
        scores: On dev; NaN where not defined.
        intervals: Score to low and high, 95 %.
        settings: Of the run.
        dims: Of Matryoshka.

    Returns:
        The file written.
    """
    pooling = encoder.pooling if isinstance(encoder.pooling, str) else " and ".join(encoder.pooling)
    text = environment().get_template("embedding_card.md.j2").render(
        name=" ".join(name.split()), place=f"{name}/{Path(folder).name}",
        dimension=encoder.dimension, length=encoder.max_length, pooling=pooling,
        parameters=sum(p.numel() for p in encoder.parameters()), start=start, data=data, dev=dev, loss=loss,
        scores=scores, intervals=intervals, settings=settings, dims=dims, versions=versions(), cell=cell,
        literal=json.dumps,
    )  # fmt: skip
    path = Path(folder) / "README.md"
    with atomic_file(path, "w") as stream:
        stream.write(text)
    return path
