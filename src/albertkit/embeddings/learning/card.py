"""The model card of sentence embeddings: how to use them, what they learned, how well."""

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from albertkit.embeddings.encoder import SentenceEncoder
from albertkit.files import read_json
from albertkit.frame.card import Card, code, literal, settings_sections, versions
from albertkit.frame.rendering import cell
from albertkit.frame.section import Section, Text
from albertkit.model.folder import PROVENANCE
from albertkit.model_folder import or_model_of_run
from albertkit.training.results import score_table

_LONGEST = 10  # models of a lineage
_ON_HUB = re.compile(r"[\w.-]+/[\w.-]+")
_DATASETS = {  # kinds whose data lie on the hub under a name
    "stsb": "sentence-transformers/stsb", "klue-sts": "klue/klue", "klue-nli": "klue/klue", "mnli": "nyu-mll/multi_nli",
    "kornli": "kakaobrain/kor_nli",
}  # fmt: skip

_SENTENCE_TRANSFORMERS = """from sentence_transformers import SentenceTransformer
model = SentenceTransformer({place})
vectors = model.encode(["A text.", "Another one."])"""
_ALBERTKIT = """from albertkit.embeddings import SentenceEncoder
model = SentenceEncoder.from_pretrained({place})
vectors = model.encode(["A text.", "Another one."])"""


@dataclass(frozen=True, kw_only=True)
class EncoderFacts:
    """Holds facts of the training of an encoder, for its card."""

    start: str  # the checkpoint that it was trained from
    data: str  # the training examples in words
    dev: str  # the dev examples in words
    loss: str
    dims: tuple[int, ...]  # shorter lengths of a vector that were trained, too
    kind: str  # kind of the data, for the hub's table of results
    language: Sequence[str]  # BCP 47 codes
    license: str | None  # SPDX identifier in lower case, as the hub has them


def write_embedding_card(
    folder: str | Path,
    name: str,
    encoder: SentenceEncoder,
    facts: EncoderFacts,
    scores: Mapping[str, float],
    intervals: Mapping[str, tuple[float, float]],
    settings: Mapping[str, Any],
) -> Path:
    """Write `README.md` into the folder of an encoder, under a name, with scores on dev, their intervals and settings."""
    place = {"place": literal(f"{name}/{Path(folder).name}")}
    compared = "Texts are compared by the cosine of their vectors."
    if facts.dims:
        compared += (
            f" The first {', '.join(map(str, facts.dims))} numbers of a vector were trained to be one by themselves: "
            "`truncate_dim` of sentence-transformers, `dimension` of albertkit's `encode`."
        )
    sections: list[Section] = [
        Text(_summary(encoder, facts), form="markdown"),
        code(_SENTENCE_TRANSFORMERS.format_map(place), title="Using it"),
        code(_ALBERTKIT.format_map(place)),
        Text(compared, form="markdown"),
        Text(
            f"On {facts.dev}, which also chose the best of the run's models. Intervals are 95%.",
            "Results",
            form="markdown",
        ),
        score_table(scores, intervals),
        *settings_sections(settings, versions()),
    ]
    return Card(name, _fields(" ".join(name.split()), facts, scores), sections).write(folder)


def _summary(encoder: SentenceEncoder, facts: EncoderFacts) -> str:
    """Return what the model is and where it comes from, in two sentences."""
    pooling = encoder.pooling if isinstance(encoder.pooling, str) else " and ".join(encoder.pooling)
    parameters = sum(p.numel() for p in encoder.parameters())
    said = (
        f"Sentence embeddings by ALBERT: vectors of {encoder.dimension:,} numbers, {parameters:,} parameters, {pooling} "
        f"pooling, texts of at most\n{encoder.max_length:,} tokens. Trained with albertkit from `{cell(facts.start)}` on "
        f"{facts.data}, with the loss `{facts.loss}`."
    )
    before = [f"from `{cell(model)}`{f' on `{cell(kind)}`' if kind else ''}" for model, kind in lineage(facts.start)]
    return f"{said}\nBefore that: {', '.join(before)}." if before else said


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


def _fields(name: str, facts: EncoderFacts, scores: Mapping[str, float]) -> dict[str, Any]:
    """Return the metadata that a hub shows; what is not known is left out."""
    first = ([model for model, _ in lineage(facts.start)] or [facts.start])[-1]
    fields: dict[str, Any] = {"language": list(facts.language)} if facts.language else {}
    if facts.license:
        fields["license"] = facts.license
    fields |= {"library_name": "sentence-transformers", "pipeline_tag": "sentence-similarity"}
    if _ON_HUB.fullmatch(first) and not Path(first).exists():
        fields["base_model"] = first
    if facts.kind in _DATASETS:
        fields["datasets"] = [_DATASETS[facts.kind]]
    fields["tags"] = ["sentence-transformers", "feature-extraction", "albert", "albertkit"]
    metrics = [
        {"type": score, "value": round(value, 4), "name": score.replace("_", " ")}
        for score, value in scores.items()
        if math.isfinite(value)
    ]
    result = {
        "task": {"type": "sentence-similarity", "name": "Sentence similarity"},
        "dataset": {"type": _DATASETS.get(facts.kind, facts.kind or "unknown"), "name": facts.dev},
        "metrics": metrics,
    }
    return fields | {"model-index": [{"name": name, "results": [result]}]}
