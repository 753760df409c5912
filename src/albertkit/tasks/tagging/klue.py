"""KLUE-NER's own scores, as its baseline computes them."""

from collections.abc import Sequence
from math import nan

from albertkit.tasks.metrics.tagging import span_table
from albertkit.tasks.tagging.files import TaggedExample

TYPES = ("PS", "LC", "OG", "DT", "TI", "QT")
LABELS = ("O", *(f"{prefix}-{kind}" for kind in TYPES for prefix in "BI"))


def klue_scores(examples: Sequence[TaggedExample], predicted: Sequence[Sequence[str]]) -> dict[str, float]:
    """Entity and character macro F1.

    Spaces are left out first. Entities are read strictly: an `I-` that continues no entity is none. The mean over characters
    is over all 13 tags, `O` included; a tag that nobody uses counts 1. The baseline also counts its [CLS] and [SEP] as two
    characters a sentence, which only moves the F1 of `O`.

    Args:
        examples: Characters with their tags.
        predicted: As many tags.

    Returns:
        entity_macro_f1, NaN if there is no entity, and character_macro_f1.

    Source: Park et al. 2021, "KLUE", section 4.4; KLUE-baseline, `metrics/functional.py`.
    """
    from sklearn.metrics import f1_score

    gold_rows, predicted_rows = [], []
    for example, tags in zip(examples, predicted, strict=True):
        seen = [place for place, character in enumerate(example.words) if character != " "]
        gold_rows.append([example.tags[place] for place in seen])
        predicted_rows.append([tags[place] for place in seen])
    table = span_table([_strict(row) for row in gold_rows], [_strict(row) for row in predicted_rows])
    flat = [[tag for row in rows for tag in row] for rows in (gold_rows, predicted_rows)]
    return {
        "entity_macro_f1": sum(row["f1"] for row in table) / len(table) if table else nan,
        "character_macro_f1": float(f1_score(*flat, labels=LABELS, average="macro", zero_division=1)),
    }


def _strict(tags: Sequence[str]) -> list[str]:
    kept: list[str] = []
    for tag in tags:
        continues = bool(kept) and kept[-1][2:] == tag[2:]
        kept.append("O" if tag[0] == "I" and not continues else tag)
    return kept
