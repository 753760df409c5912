"""The model card: `README.md` of a checkpoint folder, written on save. Only what was configured or measured."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from albertkit.errors import ConfigError
from albertkit.files import atomic_file
from albertkit.report.results import flatten, measures, times_more_probable, value_text
from albertkit.report.templates import environment

TASKS = ("masked_lm", "sentence_order")

# What makes one ALBERT differ from another; the rest is in config.json.
ARCHITECTURE = (
    "vocab_size", "embedding_size", "hidden_size", "num_hidden_layers", "num_hidden_groups", "inner_group_num",
    "num_attention_heads", "intermediate_size", "hidden_act", "max_position_embeddings", "parameter_sharing",
    "hidden_dropout_prob", "attention_probs_dropout_prob",
)  # fmt: skip


def model_card(
    name: str,
    *,
    config: Mapping[str, Any],
    place: str | None = None,
    parameters: int | None = None,
    corpus: Mapping[str, Any] | None = None,
    settings: Mapping[str, Any] | None = None,
    results: Mapping[str, Any] | None = None,
    baselines: Mapping[str, Any] | None = None,
    versions: Mapping[str, str] | None = None,
    language: str | Sequence[str] | None = None,
    license: str | None = None,
) -> str:
    """A model card in Hugging Face's format: YAML front matter, then Markdown. Sections without numbers are left out.

    Args:
        name: Heading.
        config: `AlbertConfig.to_dict()`.
        place: Folder in the loading examples. Default: `name`.
        parameters: Number of parameters, heads included.
        corpus: Counts of the token store and the `tokenizer_fingerprint`, as they are to be named.
        settings: Settings of the run; may be nested.
        results: The four numbers and their counts, as for `albertkit.report.results.measures`.
        baselines: `unigram_loss` and `most_frequent_accuracy`, if known.
        versions: Package to version.
        language: One or several BCP 47 codes; left out unless given.
        license: SPDX identifier in lower case, as the hub has them; left out unless given.

    Returns:
        The text of `README.md`.

    Raises:
        ConfigError: bad-counts for impossible counts in `results`, bad-name for an empty name.
    """
    if not name.strip():
        raise ConfigError("bad-name", "the model card has an empty name", "give the model a name")
    results = results or {}
    return environment().get_template("card.md.j2").render(
        name=" ".join(name.split()),
        place=place or " ".join(name.split()),
        front_matter=front_matter(language, license, "fill-mask"),
        architecture={key: config[key] for key in ARCHITECTURE if key in config},
        parameters=parameters,
        corpus=flatten(corpus),
        settings=flatten(settings),
        measures=(rows := measures(results, baselines)),
        sentence_order=any(row.key.startswith("sentence_order") for row in rows),
        counts={task: int(results[f"{task}_count"]) for task in TASKS if results.get(f"{task}_count")},
        times=times_more_probable(results.get("masked_lm_loss"), (baselines or {}).get("unigram_loss")),
        versions=versions or {},
        cell=cell,
        literal=json.dumps,
    )  # fmt: skip


def write_card(folder: str | Path, name: str, **facts: Any) -> Path:
    """Write `README.md` into a checkpoint folder; arguments are `model_card`'s.

    Returns:
        The file written.
    """
    text = model_card(name, **facts)
    path = Path(folder) / "README.md"
    with atomic_file(path, "w") as stream:
        stream.write(text)
    return path


def front_matter(language: str | Sequence[str] | None, license: str | None, pipeline: str) -> str:
    """The metadata, every text in JSON's quotes: YAML reads JSON, and `no` must stay Norwegian."""
    fields: dict[str, Any] = {}
    if language:
        fields["language"] = [language] if isinstance(language, str) else list(language)
    if license:
        fields["license"] = license
    fields["library_name"] = "transformers"  # the hub then shows how to load it; transformers' classes do
    fields["pipeline_tag"] = pipeline
    fields["tags"] = ["albert", "albertkit", pipeline]
    return yaml_of(fields)


def yaml_of(fields: Mapping[str, Any]) -> str:
    """Return YAML of plain values: one line a field, lists and objects as JSON, which YAML reads."""
    lines = []
    for key, value in fields.items():
        if isinstance(value, list) and all(isinstance(item, str) for item in value):
            lines += [f"{key}:", *(f"- {json.dumps(item)}" for item in value)]
        else:
            lines.append(f"{key}: {json.dumps(value, ensure_ascii=False)}")
    return "\n".join(lines)


def cell(value: Any) -> str:
    """A value inside a Markdown table: one line, and nothing in it ends the cell or starts HTML."""
    text = f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else value_text(value)
    text = " ".join(text.split()).replace("&", "&amp;").replace("<", "&lt;")
    return "".join("\\" + letter if letter in "\\`*_[]|" else letter for letter in text)
