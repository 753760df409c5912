"""`augment`: silver pairs, found among unlabelled texts and scored by a cross-encoder, for training beside gold ones.

Source: Thakur et al. 2021, "Augmented SBERT".
"""

import sys
import unicodedata
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np

from albertkit.embeddings.evaluation.files import LAYOUTS, check_columns
from albertkit.embeddings.learning.texts import read_texts
from albertkit.embeddings.models import load_embedding_model
from albertkit.embeddings.silver.sampling import (
    Candidates,
    bm25_neighbours,
    pair_keys,
    pair_up,
    random_neighbours,
    semantic_neighbours,
)
from albertkit.embeddings.silver.scorers import CosineScorer, CrossEncoder, Scorer
from albertkit.embeddings.silver.scoring import KeptScores, check_scorer
from albertkit.errors import CheckpointError, ConfigError, DataError, near_miss
from albertkit.files import atomic_file, write_json
from albertkit.tasks.columns import Columns
from albertkit.tasks.data import read_data, read_split
from albertkit.tasks.faults import Faults, counted
from albertkit.tasks.registry import find_task
from albertkit.tasks.task import Task
from albertkit.tasks.texts import TextExample
from albertkit.tokenizer.ragged import RaggedIds

Sampler = Literal["bm25", "semantic", "random", "mixed"]

KINDS = (*LAYOUTS, "scores")
BANDS = 5
_HELD_OUT = 0.1  # of gold without a dev file, as in fine-tuning, so that they are the same pairs
_HIGHEST = 5.0  # of the official scores; the lowest is 0


@dataclass(frozen=True)
class AugmentReport:
    """What `augment` made, and how.

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

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return {**vars(self), "written": [str(path) for path in self.written]}


def augment(
    kind: str,
    gold: str | Path,
    cross_encoder: str | Path | None,
    out: str | Path,
    *,
    bi_encoder: str | Path | None = None,
    columns: Columns | None = None,
    dev: Path | None = None,
    texts: Path | None = None,
    sampler: Sampler = "bm25",
    encoder: str | Path | None = None,
    top_k: int = 3,
    balance: float = 2.0,
    force: bool = False,
    on_error: Literal["stop", "skip"] = "stop",
    seed: int = 0,
    batch_tokens: int = 8192,
    precision: str = "auto",
    device: str = "auto",
    overwrite: bool = False,
    progress: bool = False,
) -> AugmentReport:
    """Find pairs, score them, balance them, write them.

    Scores are kept beside `out` in `.NAME.scoring/` while they are computed: the same call after a kill goes on from there and
    ends with the same bytes.

    Args:
        kind: Of the gold pairs: stsb, korsts, klue-sts, or scores: a table.
        gold: Folder in the kind's layout, or the training file.
        cross_encoder: Run of `finetune` on such pairs; or None with a bi_encoder.
        bi_encoder: Anything that makes vectors: their cosine, on a line fitted to the gold training pairs, is the score.
        out: The table to write: score, text, pair, sampler, rank. Its report comes beside it, as .json.
        columns: Of a table.
        dev: Gold pairs to check the cross-encoder on. Default: those of the folder, else a tenth of the training pairs, the same
            that `finetune` holds out.
        texts: One a line, to find pairs among. Default: the texts of the gold training pairs.
        sampler: bm25, semantic (needs an encoder), random, or mixed: all three.
        encoder: Model whose vectors say what is near.
        top_k: Neighbours of each text, of each sampler.
        balance: Most pairs of a band of scores, as a multiple of the median of the bands that have any; 0: no limit.
        force: Go on though the cross-encoder agrees too little with the dev pairs.
        on_error: Gold rows that cannot be used: stop, or skip and count them.
        seed: Of what is drawn.
        batch_tokens, precision, device: Of the cross-encoder, as for `predict`.
        overwrite: Replace a table that exists.
        progress: Show progress on stderr.

    Raises:
        CheckpointError: weak-cross-encoder, not-a-cross-encoder, no-task, and what loading raises.
        ConfigError: bad-argument, unknown-kind, missing-column. DataError: no-examples, output-exists, and what
        reading raises. MissingExtraError: missing-extra.
    """
    _check(sampler, encoder, top_k, balance)
    path = _target(Path(out), overwrite)
    faults = Faults(on_error)
    task = _task(kind, columns)
    data = read_data(task, Path(gold), dev, _HELD_OUT, False, faults)
    scorer = _scorer(cross_encoder, bi_encoder, data.train, batch_tokens, precision, device)
    kept_scores = KeptScores(scorer, path.with_name(f".{path.name}.scoring"), progress)
    dev_predictions = kept_scores.of("gold dev", [e.text for e in data.dev], [e.pair or "" for e in data.dev])
    try:
        dev_scores, notes = check_scorer(scorer.name, data.dev, dev_predictions, force)
    except CheckpointError:
        kept_scores.clear()
        raise
    labels = [example.label for example in data.train]
    low, high = (0.0, _HIGHEST) if kind in LAYOUTS else (min(labels), max(labels))

    sources = read_texts(texts, Columns(), 1, faults) if texts else [(e.text, e.pair) for e in data.train]
    found = list(dict.fromkeys(_plain(text) for row in sources for text in row))
    if len(found) < 2:
        raise DataError("no-examples", f"{counted(len(found), 'different text')}: there is nothing to pair", "add some")
    candidates, names = _candidates(found, scorer.token_ids, sampler, encoder, min(top_k, len(found) - 1), seed)
    gold_pairs = [*data.train, *data.dev, *_test_pairs(task, Path(gold), faults)]
    fresh = candidates.take(~np.isin(candidates.keys(len(found)), _gold_keys(found, gold_pairs)))
    if progress:
        print(f"{len(fresh.first):,} candidates of {len(found):,} texts", file=sys.stderr, flush=True)
    scores = kept_scores.of("candidates", [found[n] for n in fresh.first], [found[n] for n in fresh.second])
    clipped = np.clip(scores, low, high)
    kept, bands = balanced(clipped, low, high, balance, seed)

    report = AugmentReport(
        (path, path.with_suffix(".json")), len(kept), len(found),
        {name: int((candidates.sampler == place).sum()) for place, name in enumerate(names)},
        len(candidates.first) - len(fresh.first), bands, int((scores != clipped).sum()), dev_scores, kept_scores.resumed,
        {
            "kind": kind, "gold": str(gold), "cross_encoder": cross_encoder and str(cross_encoder),
            "bi_encoder": bi_encoder and str(bi_encoder), "encoder": encoder and str(encoder),
            "texts": texts and str(texts), "sampler": sampler, "top_k": top_k, "balance": balance, "seed": seed,
        },
        [*data.notes, *scorer.notes, *notes],
    )  # fmt: skip
    _write(path, found, fresh.take(kept), clipped[kept], names)
    # The file says nothing of interruptions: it has the same bytes as that of an uninterrupted call.
    write_json(report.written[1], {name: value for name, value in report.to_dict().items() if name != "resumed"})
    kept_scores.clear()
    return report


def balanced(
    scores: np.ndarray, low: float, high: float, balance: float, seed: int
) -> tuple[np.ndarray, list[dict[str, float]]]:
    """Rows to keep so that no band of scores is crowded: silver pairs of near neighbours alone teach nothing about far ones.

    Args:
        scores: [C], from low to high.
        low, high: The scale, cut into `BANDS` equal bands.
        balance: Most rows of a band, as a multiple of the median of the bands that have any; 0: no limit.
        seed: Draws which rows stay.

    Returns:
        int64 [kept], ascending; and of each band from, to, before, after.
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


def _check(sampler: str, encoder: str | Path | None, top_k: int, balance: float) -> None:
    if encoder is None and sampler in ("semantic", "mixed"):
        raise ConfigError(
            "bad-argument", f"--sampler {sampler} needs a model that says what is near, and there is no --encoder",
            "name one: --encoder RUN (of `albertkit embed train`, or any sentence-transformers folder)",
        )  # fmt: skip
    if encoder is not None and sampler in ("bm25", "random"):
        raise ConfigError("bad-argument", f"--sampler {sampler} uses no encoder", "leave --encoder out")
    if top_k < 1:
        raise ConfigError("bad-argument", f"--top-k {top_k}", "use 1 or more")
    if balance < 0:
        raise ConfigError("bad-argument", f"--balance {balance}", "use 0 for no limit, or a number above it")


def _target(path: Path, overwrite: bool) -> Path:
    """The table to write, if it can be.

    Raises:
        ConfigError: bad-argument. DataError: output-exists.
    """
    if path.suffix != ".tsv":
        raise ConfigError("bad-argument", f"`{path}` does not end in .tsv", f"--out {path.with_suffix('.tsv')}")
    if path.exists() and not overwrite:
        raise DataError("output-exists", f"`{path}` exists", "choose another --out, or replace it with --overwrite")
    return path


def _scorer(
    cross_encoder: str | Path | None,
    bi_encoder: str | Path | None,
    gold: Sequence[TextExample],
    batch_tokens: int,
    precision: str,
    device: str,
) -> Scorer:
    """The model that scores pairs.

    Raises:
        ConfigError: bad-argument if none or two are named.
    """
    if (cross_encoder is None) == (bi_encoder is None):
        raise ConfigError(
            "bad-argument", f"{'no' if cross_encoder is None else 'two'} models are named to score pairs",
            "name a cross-encoder (--cross-encoder RUN of finetune) or a sentence encoder (--bi-encoder MODEL)",
        )  # fmt: skip
    if bi_encoder is not None:
        return CosineScorer(bi_encoder, gold, precision, None if device == "auto" else device)  # type: ignore[arg-type]
    assert cross_encoder is not None
    return CrossEncoder(cross_encoder, batch_tokens, precision, device)


def _task(kind: str, columns: Columns | None) -> Task:
    if kind not in KINDS:
        raise ConfigError("unknown-kind", f"there is no kind of gold pairs `{kind}`", near_miss(kind, KINDS))
    if kind == "scores":
        check_columns(kind, columns or Columns())
        return find_task("regress", columns)
    return find_task(kind, columns)


def _candidates(
    texts: list[str],
    token_ids: Callable[[Sequence[str]], RaggedIds],
    sampler: str,
    encoder: str | Path | None,
    k: int,
    seed: int,
) -> tuple[Candidates, list[str]]:
    """The pairs that samplers find, and the samplers' names."""
    neighbours = {}
    if sampler in ("bm25", "mixed"):
        neighbours["bm25"] = bm25_neighbours(token_ids(texts), k)
    if encoder is not None:
        neighbours["semantic"] = semantic_neighbours(load_embedding_model(encoder).encode(texts), k)
    if sampler in ("random", "mixed"):
        neighbours["random"] = random_neighbours(len(texts), k, seed)
    return pair_up(neighbours), list(neighbours)


def _test_pairs(task: Task, gold: Path, faults: Faults) -> list[TextExample]:
    """The test pairs of a folder: they are gold, too."""
    files = task.files(gold)
    return read_split(task, files["test"], "test", faults, labelled=False) if "test" in files else []


def _gold_keys(texts: Sequence[str], gold: Iterable[TextExample]) -> np.ndarray:
    """`pair_keys` of the gold pairs, both texts of which are among the texts."""
    place = {text: number for number, text in enumerate(texts)}
    pairs = [(place.get(_plain(e.text), -1), place.get(_plain(e.pair or ""), -1)) for e in gold]
    known = np.array([pair for pair in pairs if min(pair) >= 0], np.int64).reshape(-1, 2)
    return pair_keys(known[:, 0], known[:, 1], len(texts))


def _write(path: Path, texts: Sequence[str], pairs: Candidates, scores: np.ndarray, names: Sequence[str]) -> None:
    with atomic_file(path, "w") as stream:
        stream.write("score\ttext\tpair\tsampler\trank\n")
        for score, first, second, sampler, rank in zip(scores.tolist(), *map(np.ndarray.tolist, pairs), strict=True):
            stream.write(f"{score:.4f}\t{texts[first]}\t{texts[second]}\t{names[sampler]}\t{rank}\n")


def _plain(text: str) -> str:
    """A text as it is compared and written: composed, on one line, one space between words."""
    return " ".join(unicodedata.normalize("NFC", text).split())
