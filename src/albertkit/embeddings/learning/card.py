"""The model card of sentence embeddings: how to use them, what they learned, how well."""

import json
import math
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from albertkit.checkpoints.folder import PROVENANCE
from albertkit.embeddings.encoder import SentenceEncoder
from albertkit.files import atomic_file, read_json
from albertkit.model_folder import or_model_of_run
from albertkit.report.card import cell, yaml_of
from albertkit.report.templates import environment
from albertkit.report.versions import versions

_LONGEST = 10  # models of a lineage
_ON_HUB = re.compile(r"[\w.-]+/[\w.-]+")
_DATASETS = {  # kinds whose data lie on the hub under a name
    "stsb": "sentence-transformers/stsb", "klue-sts": "klue/klue", "klue-nli": "klue/klue", "mnli": "nyu-mll/multi_nli",
    "kornli": "kakaobrain/kor_nli",
}  # fmt: skip


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
    kind: str = "",
    language: Sequence[str] = (),
    license: str | None = None,
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
        kind: Of the data, for the hub's table of results.
        language: BCP 47 codes.
        license: SPDX identifier in lower case, as the hub has them.

    Returns:
        The file written.
    """
    pooling = encoder.pooling if isinstance(encoder.pooling, str) else " and ".join(encoder.pooling)
    text = environment().get_template("embedding_card.md.j2").render(
        front_matter=yaml_of(_front_matter(name, start, dev, kind, scores, language, license)), lineage=lineage(start),
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


def lineage(start: str) -> list[tuple[str, str]]:
    """Return what each earlier model of local folders was trained from, and on what kind of data, the latest first."""
    found: list[tuple[str, str]] = []
    while len(found) < _LONGEST and (file := _provenance_of(Path(start))) is not None:
        known = read_json(file)
        if not isinstance(known, dict) or not isinstance(known.get("model"), str):
            break
        start = known["model"]
        found.append((start, str(known.get("kind") or known.get("task") or "")))
    return found


def _provenance_of(folder: Path) -> Path | None:
    places = (folder / PROVENANCE, or_model_of_run(folder) / PROVENANCE) if folder.is_dir() else ()
    return next((place for place in places if place.exists()), None)


def _front_matter(
    name: str,
    start: str,
    dev: str,
    kind: str,
    scores: Mapping[str, float],
    language: Sequence[str],
    license: str | None,
) -> dict[str, Any]:
    """The metadata that a hub shows; what is not known is left out."""
    first = ([model for model, _ in lineage(start)] or [start])[-1]
    fields: dict[str, Any] = {"language": list(language)} if language else {}
    if license:
        fields["license"] = license
    fields |= {"library_name": "sentence-transformers", "pipeline_tag": "sentence-similarity"}
    if _ON_HUB.fullmatch(first) and not Path(first).exists():
        fields["base_model"] = first
    if kind in _DATASETS:
        fields["datasets"] = [_DATASETS[kind]]
    fields["tags"] = ["sentence-transformers", "feature-extraction", "albert", "albertkit"]
    metrics = [
        {"type": score, "value": round(value, 4), "name": score.replace("_", " ")}
        for score, value in scores.items()
        if math.isfinite(value)
    ]
    result = {
        "task": {"type": "sentence-similarity", "name": "Sentence similarity"},
        "dataset": {"type": _DATASETS.get(kind, kind or "unknown"), "name": dev}, "metrics": metrics,
    }  # fmt: skip
    return fields | {"model-index": [{"name": " ".join(name.split()), "results": [result]}]}
