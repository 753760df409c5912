"""`augment`: silver pairs, found among unlabelled texts and scored by a cross-encoder, for training beside gold ones.

Source: Thakur et al. 2021, "Augmented SBERT".
"""

import sys
import unicodedata
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from albertkit.data.bad_rows import BadRows, counted
from albertkit.data.columns import Columns
from albertkit.embeddings.data import HIGHEST, pair_task, read_texts
from albertkit.embeddings.evaluation.files import LAYOUTS
from albertkit.embeddings.models import load_embedding_model
from albertkit.embeddings.options import AugmentOptions
from albertkit.embeddings.silver.sampling import (
    Candidates,
    bm25_neighbours,
    pair_keys,
    pair_up,
    random_neighbours,
    semantic_neighbours,
)
from albertkit.embeddings.silver.scorers import CosineScorer, CrossEncoder, KeptScores, Scorer, check_scorer
from albertkit.errors import CheckpointError, ConfigError, DataError, near_miss
from albertkit.files import atomic_file, write_json
from albertkit.frame.command import takes
from albertkit.frame.result import Result
from albertkit.frame.section import Section, Table, Text
from albertkit.frame.values import plain, value_text
from albertkit.tasks.data import read_data, read_split
from albertkit.tasks.task import Task
from albertkit.tasks.texts import TextExample
from albertkit.tokenizer.ragged import RaggedIds

KINDS = (*LAYOUTS, "scores")
BANDS = 5
_HELD_OUT = 0.1  # of gold without a dev file, as in fine-tuning, so that they are the same pairs
_MADE_WITH = ("kind", "gold", "cross_encoder", "bi_encoder", "encoder", "texts", "sampler", "top_k", "balance", "seed")


@dataclass(frozen=True)
class AugmentReport(Result):
    """Result of `augment`.

    Attributes:
        written: The table and its report.
        pairs: Silver pairs.
        texts: Different texts they were found among.
        candidates: Sampler to pairs it found first or nearest.
        gold_removed: Candidates that are gold pairs, in either order.
        bands: From, to, before and after balancing, of each band of scores.
        clipped: Scores beyond the gold scale, set to its end.
        dev: Of the cross-encoder on gold dev pairs: pairs, pearson, spearman, mse.
        resumed: Pairs that an earlier, killed call had scored.
        made_with: kind, gold, cross_encoder, bi_encoder, encoder, texts, sampler, top_k, balance, seed.
        notes: A line for each thing that a person should know.
    """

    written: tuple[Path, ...]
    pairs: int
    texts: int
    candidates: dict[str, int]
    gold_removed: int
    bands: list[dict[str, float]]
    clipped: int
    dev: dict[str, float]
    resumed: int
    made_with: dict[str, Any]
    notes: list[str]

    def sections(self) -> list[Section]:
        """Return how the scores compare with gold, what was found, and the scores by band before and after balancing."""
        spearman, pearson = value_text(self.dev["spearman"]), value_text(self.dev["pearson"])
        found = ", ".join(f"{name} {count:,}" for name, count in self.candidates.items())
        bands = [[f"{band['from']:g} to {band['to']:g}", band["before"], band["after"]] for band in self.bands]
        clipped = f"scores beyond the gold scale, set to its end: {self.clipped:,}" if self.clipped else ""
        return [
            Text(
                f"scores compared with gold: Spearman {spearman}, Pearson {pearson} on {self.dev['pairs']:,} gold dev pairs"
            ),
            Text(f"different pairs of {self.texts:,} texts: {found}; {self.gold_removed:,} of them gold, removed"),
            Table(["score", "found", "kept"], bands, note=clipped),
            *(Text(note, tone="muted") for note in self.notes),
            Text(f"{self.pairs:,} silver pairs: {self.written[0]}"),
        ]


@takes(AugmentOptions)
def augment(options: AugmentOptions) -> AugmentReport:
    """Find pairs, score them, balance them, write them; see `AugmentOptions`.

    Scores are kept beside `out` in `.NAME.scoring/` while they are computed: the same call after a kill goes on from there and
    ends with the same bytes.
    """
    options.check()
    path = _target(Path(options.out), options.overwrite)
    bad_rows = BadRows(options.on_error)
    task = _task(options.kind, options.columns)
    data = read_data(task, Path(options.gold), options.dev, _HELD_OUT, False, bad_rows)
    scorer = _scorer(options, data.train)
    kept_scores = KeptScores(scorer, path.with_name(f".{path.name}.scoring"), options.progress)
    dev_predictions = kept_scores.of("gold dev", *_sides(data.dev))
    try:
        dev_scores, notes = check_scorer(scorer.name, data.dev, dev_predictions, options.force)
    except CheckpointError:
        kept_scores.clear()
        raise
    texts = _texts(options, data.train, bad_rows)
    candidates, names = _candidates(options, texts, scorer.token_ids)
    gold = [*data.train, *data.dev, *_test_pairs(task, Path(options.gold), bad_rows)]
    fresh = candidates.take(~np.isin(candidates.keys(len(texts)), _gold_keys(texts, gold)))
    if options.progress:
        print(f"{len(fresh.first):,} candidates of {len(texts):,} texts", file=sys.stderr, flush=True)
    scores = kept_scores.of("candidates", [texts[n] for n in fresh.first], [texts[n] for n in fresh.second])
    labels = [example.label for example in data.train]
    low, high = (0.0, HIGHEST) if options.kind in LAYOUTS else (min(labels), max(labels))
    clipped = np.clip(scores, low, high)
    kept, bands = balanced(clipped, low, high, options.balance, options.seed)
    report = AugmentReport(
        written=(path, path.with_suffix(".json")),
        pairs=len(kept),
        texts=len(texts),
        candidates={name: int((candidates.sampler == place).sum()) for place, name in enumerate(names)},
        gold_removed=len(candidates.first) - len(fresh.first),
        bands=bands,
        clipped=int((scores != clipped).sum()),
        dev=dev_scores,
        resumed=kept_scores.resumed,
        made_with={name: plain(getattr(options, name)) for name in _MADE_WITH},
        notes=[*data.notes, *scorer.notes, *notes],
    )
    _write(path, texts, fresh.take(kept), clipped[kept], names)
    # The file says nothing of interruptions: it has the same bytes as that of an uninterrupted call.
    write_json(report.written[1], {name: value for name, value in report.to_dict().items() if name != "resumed"})
    kept_scores.clear()
    return report


def balanced(
    scores: np.ndarray, low: float, high: float, balance: float, seed: int
) -> tuple[np.ndarray, list[dict[str, float]]]:
    """Return the rows to keep so that no band of scores is crowded, int64, ascending; and of each band from, to, before, after.

    Silver pairs of near neighbours alone teach nothing about far ones. Scores [C] go from low to high, cut into `BANDS` equal
    bands; the most rows of a band are a multiple of the median of the bands that have any (0: no limit), drawn by the seed.
    """
    band = np.clip(((scores - low) / (high - low) * BANDS).astype(np.int64), 0, BANDS - 1)
    counts = np.bincount(band, minlength=BANDS)
    most = max(1, round(balance * float(np.median(counts[counts > 0])))) if balance and len(scores) else len(scores)
    random = np.random.default_rng(seed)
    kept, bands = [], []
    edges = np.linspace(low, high, BANDS + 1).tolist()
    for number in range(BANDS):
        rows = np.flatnonzero(band == number)
        stay = random.choice(rows, most, replace=False) if len(rows) > most else rows
        kept.append(stay)
        bands.append({"from": edges[number], "to": edges[number + 1], "before": len(rows), "after": len(stay)})
    return np.sort(np.concatenate(kept)), bands


def _target(path: Path, overwrite: bool) -> Path:
    """Return the table to write, if it can be."""
    if path.suffix != ".tsv":
        raise ConfigError("bad-value", f"`{path}` does not end in .tsv", f"--out {path.with_suffix('.tsv')}")
    if path.exists() and not overwrite:
        raise DataError("exists", f"`{path}` exists", "choose another --out, or replace it with --overwrite")
    return path


def _scorer(options: AugmentOptions, gold: Sequence[TextExample]) -> Scorer:
    """Load the model that scores pairs."""
    if options.cross_encoder is not None:
        return CrossEncoder(options.cross_encoder, options.batch_tokens, options.precision, options.device)
    assert options.bi_encoder is not None
    return CosineScorer(
        options.bi_encoder, gold, options.precision, None if options.device == "auto" else options.device
    )


def _task(kind: str, columns: Columns) -> Task:
    if kind not in KINDS:
        raise ConfigError("unknown-name", f"there is no kind of gold pairs `{kind}`", near_miss(kind, KINDS))
    return pair_task(kind, columns)


def _texts(options: AugmentOptions, gold: Sequence[TextExample], bad_rows: BadRows) -> list[str]:
    """Return the different texts to find pairs among."""
    rows = read_texts(options.texts, Columns(), 1, bad_rows) if options.texts else zip(*_sides(gold), strict=True)
    found = list(dict.fromkeys(_plain(text) for row in rows for text in row))
    if len(found) < 2:
        fact = f"{counted(len(found), 'different text')}: there is nothing to pair"
        raise DataError("too-little-data", fact, "add some")
    return found


def _candidates(
    options: AugmentOptions, texts: list[str], token_ids: Callable[[Sequence[str]], RaggedIds]
) -> tuple[Candidates, list[str]]:
    """Return the pairs that samplers find, and the samplers' names."""
    k, neighbours = min(options.top_k, len(texts) - 1), {}
    if options.sampler in ("bm25", "mixed"):
        neighbours["bm25"] = bm25_neighbours(token_ids(texts), k)
    if options.encoder is not None:
        neighbours["semantic"] = semantic_neighbours(load_embedding_model(options.encoder).encode(texts), k)
    if options.sampler in ("random", "mixed"):
        neighbours["random"] = random_neighbours(len(texts), k, options.seed)
    return pair_up(neighbours), list(neighbours)


def _sides(pairs: Sequence[TextExample]) -> tuple[list[str], list[str]]:
    """Return the first and the second texts of pairs."""
    return [pair.text for pair in pairs], [pair.pair or "" for pair in pairs]


def _test_pairs(task: Task, gold: Path, bad_rows: BadRows) -> list[TextExample]:
    """Read the test pairs of a folder: they are gold, too."""
    files = task.files(gold)
    return read_split(task, files["test"], "test", bad_rows, labelled=False) if "test" in files else []


def _gold_keys(texts: Sequence[str], gold: Iterable[TextExample]) -> np.ndarray:
    """Return `pair_keys` of the gold pairs both texts of which are among the texts."""
    place = {text: number for number, text in enumerate(texts)}
    pairs = [[place.get(_plain(text), -1) for text in pair] for pair in zip(*_sides(list(gold)), strict=True)]
    known = np.array([pair for pair in pairs if min(pair) >= 0], np.int64).reshape(-1, 2)
    return pair_keys(known[:, 0], known[:, 1], len(texts))


def _write(path: Path, texts: Sequence[str], pairs: Candidates, scores: np.ndarray, names: Sequence[str]) -> None:
    with atomic_file(path, "w") as stream:
        stream.write("score\ttext\tpair\tsampler\trank\n")
        for score, first, second, sampler, rank in zip(scores.tolist(), *map(np.ndarray.tolist, pairs), strict=True):
            stream.write(f"{score:.4f}\t{texts[first]}\t{texts[second]}\t{names[sampler]}\t{rank}\n")


def _plain(text: str) -> str:
    """Return a text as it is compared and written: composed, on one line, one space between words."""
    return " ".join(unicodedata.normalize("NFC", text).split())
