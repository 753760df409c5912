"""The four numbers of ALBERT's pretraining, and the card of a pretrained model: only what was configured or measured."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from albertkit.output.render import (
    Card,
    code_block,
    hub_metadata,
    python_literal,
    settings_sections,
)
from albertkit.output.sections import (
    FactList,
    Paragraph,
    Section,
    TableSection,
    format_loss,
    format_percent,
)
from albertkit.tokenizer.texts import ENGLISH
from albertkit.training.monitor import number_or_nan, wilson_interval


@dataclass(frozen=True)
class Measure:
    """One of the four numbers, as text ready to be shown and as a number.

    Attributes:
        key: The name in `metrics.jsonl`.
        name: For people.
        number: Nats, or a share.
        baseline: The same for a model without learning; NaN where none is known.
        baseline_name: Which one that is.
        interval: 95 % interval of a share; None for losses and where the number of predictions is
            not known.
    """

    key: str
    name: str
    number: float
    baseline: float
    baseline_name: str
    interval: tuple[float, float] | None = None

    @property
    def value_text(self) -> str:
        """The number: nats with three decimals, a share in per cent with one."""
        return self._format_number(self.number)

    @property
    def baseline_text(self) -> str:
        """The baseline, likewise; empty where none is known."""
        return self._format_number(self.baseline)

    @property
    def interval_text(self) -> str:
        """Low to high; empty without an interval."""
        return (
            f"{format_percent(self.interval[0])} to {format_percent(self.interval[1])}"
            if self.interval
            else ""
        )

    def _format_number(self, number: float) -> str:
        return format_loss(number) if self.key.endswith("_loss") else format_percent(number)


# (task, kind, name for people, key and name of the baseline)
_MEASURES = (
    ("masked_lm", "loss", "Masked-LM loss", "unigram_loss", "unigram"),
    (
        "masked_lm",
        "accuracy",
        "Masked-LM accuracy",
        "most_frequent_accuracy",
        "most frequent token",
    ),
    ("sentence_order", "loss", "Sentence-order loss", "coin_loss", "coin toss"),
    ("sentence_order", "accuracy", "Sentence-order accuracy", "coin_accuracy", "coin toss"),
)
_COIN = {"coin_loss": math.log(2), "coin_accuracy": 0.5}


def list_measures(
    results: Mapping[str, Any], baselines: Mapping[str, Any] | None = None
) -> list[Measure]:
    """Return rows for the numbers that were measured.

    `results` and `baselines` are named as in `Evaluation`; any may be absent. Accuracies get their
    95 % interval where the counts of predictions are known. A coin's baselines are known anyway.
    """
    baselines = {**_COIN, **(baselines or {})}
    rows = []
    for task, kind, name, baseline_key, baseline_name in _MEASURES:
        number = number_or_nan(results.get(f"{task}_{kind}"))
        if not math.isfinite(number):
            continue
        interval = None
        total = results.get(f"{task}_count")
        if kind == "accuracy" and total:
            interval = wilson_interval(round(number * total), int(total))
        baseline = number_or_nan(baselines.get(baseline_key))
        rows.append(Measure(f"{task}_{kind}", name, number, baseline, baseline_name, interval))
    return rows


def times_more_probable(masked_lm_loss: Any, unigram_loss: Any) -> float | None:
    """Return how many times more probable the model makes a hidden token than its bare frequency does (geometric mean).

    Both are nats on the same tokens. It is below 1 if the model is worse, None if either is not
    known.
    """
    gain = number_or_nan(unigram_loss) - number_or_nan(masked_lm_loss)
    # exp(709.8) is the largest that a float64 holds.
    return math.exp(min(gain, 700.0)) if math.isfinite(gain) else None


TASKS = {"masked_lm": "hidden tokens", "sentence_order": "pairs of segments"}

# What makes one ALBERT differ from another; the rest is in config.json.
ARCHITECTURE = (
    "vocab_size embedding_size hidden_size num_hidden_layers num_hidden_groups inner_group_num num_attention_heads "
    "intermediate_size hidden_act max_position_embeddings parameter_sharing hidden_dropout_prob attention_probs_dropout_prob"
).split()

_ALBERTKIT = """import torch
from albertkit import AlbertForMaskedLM, AlbertTokenizer

tokenizer = AlbertTokenizer.from_pretrained({folder})
model = AlbertForMaskedLM.from_pretrained({folder}).eval()
ids = tokenizer.encode({example}, special_tokens=True, mask_literal=True)
with torch.inference_mode():
    logits = model(input_ids=torch.tensor([ids]), return_dict=True).logits[0, ids.index(tokenizer.mask_id)]
print([tokenizer.id_to_piece(i) for i in logits.topk(5).indices.tolist()])"""
_TRANSFORMERS = """from transformers import AutoTokenizer, pipeline

tokenizer = AutoTokenizer.from_pretrained({folder})
fill_mask = pipeline("fill-mask", model={folder}, tokenizer=tokenizer)
print(fill_mask({example}))"""
_SHARED = """The layers share their {part}. transformers cannot express that, so the weights file holds it once for each of the
{layers} layers: transformers computes the same, but would train the copies apart. albertkit shares them again."""


@dataclass(frozen=True, kw_only=True)
class PretrainingFacts:
    """Facts of a pretrained model, for its card.

    Attributes:
        config: `AlbertConfig.to_dict()`.
        folder: Folder in the loading examples.
        parameters: Number of parameters, heads included.
        corpus: Counts of the token store and the `tokenizer_fingerprint`, as they are to be named.
        settings: Settings of the run; may be nested.
        results: The four numbers, their counts and baselines, as for `list_measures`.
        versions: Package to version.
        example: A text with a `[MASK]`, in the language of the model.
    """

    config: Mapping[str, Any]
    folder: str = "model"
    parameters: int | None = None
    corpus: Mapping[str, Any] = field(default_factory=dict)
    settings: Mapping[str, Any] = field(default_factory=dict)
    results: Mapping[str, Any] = field(default_factory=dict)
    versions: Mapping[str, str] = field(default_factory=dict)
    example: str = ENGLISH.masked


def model_card(name: str, facts: PretrainingFacts) -> Card:
    """Return the card of a pretrained model; sections without numbers are left out."""
    rows = list_measures(facts.results, facts.results)
    teacher = facts.settings.get("teacher")
    measured = {row.key for row in rows}
    fills_masks = "masked_lm_loss" in measured or (not rows and teacher is None)
    tasks = ["masked language modelling"] if fills_masks else []
    if "sentence_order_loss" in measured:
        tasks.append("sentence order")
    learned = f" on {' and '.join(tasks)}" if tasks else ""
    if teacher is not None:
        learned = f"{learned} to have the states of {Path(teacher).name}"
    # The text is not escaped: Korean is to be read.
    placeholders = {"folder": python_literal(facts.folder), "example": f'"{facts.example}"'}
    loading = [
        code_block(_ALBERTKIT.format_map(placeholders), title="Loading it"),
        code_block(_TRANSFORMERS.format_map(placeholders)),
        Paragraph("Use the path of this folder, or the model's name once it is on a hub."),
    ]
    architecture = {key: facts.config[key] for key in ARCHITECTURE if key in facts.config}
    about_parameters = (
        [f"{facts.parameters:,} parameters, heads included."] if facts.parameters else []
    )
    part = {"attention": "attention", "ffn": "feed-forward"}.get(
        facts.config.get("parameter_sharing", "all")
    )
    if part:
        about_parameters.append(_SHARED.format(part=part, layers=facts.config["num_hidden_layers"]))
    heading = "Architecture"
    paragraphs = []
    if about_parameters:
        paragraphs.append(Paragraph(" ".join(about_parameters), heading))
        heading = ""
    sections: list[Section] = [Paragraph(f"An ALBERT model, pretrained with albertkit{learned}.")]
    if rows:
        counts = [(facts.results.get(f"{task}_count"), subject) for task, subject in TASKS.items()]
        listing = ", ".join(f"{int(count):,} {subject}" for count, subject in counts if count)
        on = f"On held-out documents ({listing})." if listing else "On held-out documents."
        note = (
            "Losses are in nats; an interval is Wilson's at 95%, predictions taken as independent."
        )
        sections += [Paragraph(f"{on} {note}", "Results"), table_of_measures(rows)]
        times = times_more_probable(
            facts.results.get("masked_lm_loss"),
            facts.results.get("unigram_loss"),
        )
        if times is not None:
            factor = f"{times:.1f}" if times >= 1 else f"{times:.3f}"
            probability = f"A hidden token is on average {factor} times as probable to the model as by its bare frequency."
            sections.append(Paragraph(probability))
    sections += [
        *(loading if fills_masks else []),
        *paragraphs,
        FactList(architecture, heading, exact=True),
        FactList(facts.corpus, "Training data"),
        *settings_sections(facts.settings, facts.versions),
    ]
    return Card(name, hub_metadata("fill-mask" if fills_masks else "feature-extraction"), sections)


def table_of_measures(rows: Sequence[Measure], title: str = "") -> TableSection:
    """Return the four numbers, their intervals, and what a model without learning would score."""
    cells = []
    for row in rows:
        baseline = f"{row.baseline_text} ({row.baseline_name})" if row.baseline_text else None
        cells.append([row.name, row.value_text, row.interval_text, baseline])
    return TableSection(["", "this model", "95% interval", "without learning"], cells, title)
