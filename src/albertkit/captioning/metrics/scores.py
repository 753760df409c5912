"""`score_captions`: all caption metrics of a set of clips."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

import numpy as np

from albertkit.captioning.metrics.ngrams import NgramCounts, bleu, cider, rouge_l
from albertkit.captioning.metrics.ptb import tokenize_captions
from albertkit.data.bad_rows import counted
from albertkit.errors import DataError
from albertkit.frame.result import Result
from albertkit.frame.section import Facts, Section


@dataclass(frozen=True)
class CaptionScores(Result, Mapping[str, float]):
    """Scores of captions; as a mapping, those of the corpus: `scores["CIDEr"]`.

    Names and scale are the COCO caption scorer's: `Bleu_1` to `Bleu_4` and `ROUGE_L` from 0 to 1, `CIDEr` from 0 to 10.
    Papers print 100 times that.

    Attributes:
        corpus: Score by name.
        each: Key of a clip to its scores by name, in the order of the candidates.
        diversity: What shows a captioner that has collapsed: `distinct_captions` and `empty_captions`, shares of the
            candidates after tokenising, and `mean_length`, words of a candidate.
        num_captions: Candidates.
        num_references: References of all of them.
        empty_references: How many of these have no word. They are scored, as the original does.
    """

    corpus: dict[str, float]
    each: dict[str, dict[str, float]]
    diversity: dict[str, float]
    num_captions: int
    num_references: int
    empty_references: int = 0

    def __getitem__(self, name: str) -> float:
        return self.corpus[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self.corpus)

    def __len__(self) -> int:
        return len(self.corpus)

    def sections(self) -> list[Section]:
        """Return the scores and counts."""
        return [Facts(self.to_dict())]

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for JSON, without the scores of single clips."""
        counts = {"captions": self.num_captions, "references": self.num_references}
        if self.empty_references:
            counts["empty_references"] = self.empty_references
        return {**self.corpus, **self.diversity, **counts}


def score_captions(
    references: Mapping[str, Sequence[str]], candidates: Mapping[str, str], tokenize: bool = True
) -> CaptionScores:
    """Score one caption a clip against its references, as pycocoevalcap does.

    Empty captions are scored and counted. CIDEr weighs words by how few of these clips have them: scores of different sets
    of clips do not compare, and that of a single clip is 0.

    Args:
        references: Key of a clip to what people say of it, at least one caption.
        candidates: Key of a clip to the caption that is scored; the same keys.
        tokenize: Tokenise as the scorer's Java tokenizer does (`tokenize_captions`). Without it captions are tokenised
            already, words with one blank between them.

    Raises:
        DataError: bad-label, predictions-mismatch, bad-row.
    """
    _check(references, candidates)
    texts = list(candidates.values())
    flat = [reference for key in candidates for reference in references[key]]
    if tokenize:
        texts, flat = tokenize_captions(texts), tokenize_captions(flat)
    taken = iter(flat)
    groups = [list(islice(taken, len(references[key]))) for key in candidates]
    counts = NgramCounts.of(texts, groups)
    bleu_corpus, bleu_each = bleu(counts)
    each = {f"Bleu_{size}": values.tolist() for size, values in enumerate(bleu_each, start=1)}
    each["ROUGE_L"] = [rouge_l(text, group) for text, group in zip(texts, groups, strict=True)]
    each["CIDEr"] = cider(counts).tolist()
    corpus = {name: float(np.mean(values)) for name, values in each.items()}
    corpus |= {f"Bleu_{size}": value for size, value in enumerate(bleu_corpus.tolist(), start=1)}
    lengths = counts.lengths
    return CaptionScores(
        corpus=corpus,
        each={key: {name: values[place] for name, values in each.items()} for place, key in enumerate(candidates)},
        diversity={
            "distinct_captions": len(set(texts)) / len(texts),
            "empty_captions": float(np.mean(lengths[: len(texts)] == 0)),
            "mean_length": float(np.mean(lengths[: len(texts)])),
        },
        num_captions=len(texts),
        num_references=len(lengths) - len(texts),
        empty_references=int(np.sum(lengths[len(texts) :] == 0)),
    )


def _check(references: Mapping[str, Sequence[str]], candidates: Mapping[str, str]) -> None:
    """Make sure that every clip has one candidate and at least one reference, and that all are texts."""
    if not candidates or not references:
        lacking = "references" if candidates else "captions"
        raise DataError("bad-label", f"there are no {lacking} to score", f"name a file that holds {lacking}")
    missing = [key for key in references if key not in candidates]
    strange = [key for key in candidates if key not in references]
    if missing or strange:
        parts = [
            f"{counted(len(keys), thing)} {what}, for example `{keys[0]}`"
            for keys, thing, what in (
                (missing, "clip", "without a caption"),
                (strange, "caption", "without a reference"),
            )
            if keys
        ]
        hint = "caption the very clips that are scored"
        if strange and len(strange) == len(candidates):
            hint = f"no key is the same on both sides; the references have, for example, `{next(iter(references))}`"
        raise DataError("predictions-mismatch", "; ".join(parts), hint)
    for key, caption in candidates.items():
        group = references[key]
        if not isinstance(caption, str):
            raise DataError("bad-row", f"the caption of `{key}` is a {type(caption).__name__}", "give one text a clip")
        if isinstance(group, str) or not all(isinstance(reference, str) for reference in group):
            raise DataError(
                "bad-row", f"the references of `{key}` are not a list of texts", "give a list of texts a clip"
            )
        if not group:
            raise DataError("bad-label", f"clip `{key}` has no reference", "leave it out on both sides")
