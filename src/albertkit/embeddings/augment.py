"""`augment`: silver pairs, found among unlabelled texts and scored by a cross-encoder, for training beside gold ones.

Source: Thakur et al. 2021, "Augmented SBERT".
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from albertkit.command import takes
from albertkit.embeddings.data import find_pair_task, read_texts, score_scale
from albertkit.embeddings.evaluate import LAYOUTS
from albertkit.embeddings.metrics import normalize_vectors
from albertkit.embeddings.models import load_embedding_model
from albertkit.embeddings.options import AugmentOptions
from albertkit.encodings import normalize
from albertkit.errors import CheckpointError, ConfigError, DataError, requires_package, suggest_name
from albertkit.files import atomic_file, write_json
from albertkit.output.progress import ProgressBar
from albertkit.output.sections import (
    Paragraph,
    Result,
    Section,
    TableSection,
    format_value,
    to_json_value,
)
from albertkit.printable import Notes, print_note
from albertkit.tables.bad_rows import BadRows, pluralize
from albertkit.tables.columns import Columns
from albertkit.tasks.data import read_data, read_split
from albertkit.tasks.evaluate import predict_examples
from albertkit.tasks.metrics import regression_scores
from albertkit.tasks.models import load_task_model
from albertkit.tasks.texts import TextExample, TextRegression
from albertkit.tokenizer.ragged import RaggedIds
from albertkit.training.processes import choose_precision, join_world

NO_NEIGHBOUR = -1  # where a text has fewer than k neighbours
# From here on bm25s' compiled search is the faster one: 8,000 texts of 12 tokens take 2 s, but
# compiling takes 15 to 40; the plain one takes 51.
_MIN_COMPILED_TEXTS = 8_000


class Candidates(NamedTuple):
    """C different pairs of texts, whichever is first; int64 [C] each."""

    first: np.ndarray  # number of the first text
    second: np.ndarray
    rank: np.ndarray  # among the neighbours of the first text, from 1

    def take(self, rows: np.ndarray) -> "Candidates":
        """Return some of them, by numbers or by a mask."""
        return Candidates(*(values[rows] for values in self))

    def keys(self, num_texts: int) -> np.ndarray:
        """Return a number for each pair, the same whichever text is first: int64 [C]."""
        return pair_keys(self.first, self.second, num_texts)


def pair_keys(first: np.ndarray, second: np.ndarray, num_texts: int) -> np.ndarray:
    """Return a number for each pair of numbers below `num_texts`, the same in either order."""
    return np.minimum(first, second) * num_texts + np.maximum(first, second)


def bm25_neighbours(ids: RaggedIds, k: int) -> np.ndarray:
    """Return for each of E texts the k with the highest BM25 score of its tokens, best first, int64 [E, k].

    `NO_NEIGHBOUR` stands where no further text shares a token.
    """
    with requires_package("bm25s", "embed", "sampling by BM25"):
        from bm25s import BM25
    # Lucene's form with k1 1.5 and b 0.75. Tokens do for Korean what words do for English:
    # particles and endings are tokens of their own.
    tokens, indices = np.unique(ids.ids, return_inverse=True)
    rows = [row.tolist() for row in np.split(indices, ids.offsets[1:-1])]
    with_tokens = [number for number, row in enumerate(rows) if row]
    nearest = np.full((len(rows), k), NO_NEIGHBOUR, np.int64)
    if not with_tokens:
        return nearest
    index = BM25(backend="numba" if len(rows) > _MIN_COMPILED_TEXTS else "numpy")
    index.index((rows, {str(number): number for number in range(len(tokens))}), show_progress=False)
    queries = [rows[number] for number in with_tokens]
    # One more: the text itself
    documents, scores = index.retrieve(queries, k=k + 1, show_progress=False, n_threads=-1)
    nearest[with_tokens] = neighbours_without_itself(
        np.where(scores > 0, documents, NO_NEIGHBOUR),
        np.array(with_tokens),
        k,
    )
    return nearest


def semantic_neighbours(vectors: np.ndarray, k: int) -> np.ndarray:
    """Return for each text the k with the highest cosine of vectors [E, D], best first, int64 [E, k].

    scikit-learn compares block by block and keeps only the k.
    """
    from sklearn.neighbors import NearestNeighbors

    # The nearest of unit vectors by Euclidean distance are the nearest by cosine. Without an
    # argument a text is not its own.
    nearest = (
        NearestNeighbors(n_neighbors=k, algorithm="brute")
        .fit(normalize_vectors(vectors))
        .kneighbors()[1]
    )
    return nearest.astype(np.int64)


def random_neighbours(num_texts: int, k: int, seed: int) -> np.ndarray:
    """Draw k neighbours for each text, never itself; one may come twice: int64 [E, k]."""
    neighbours = np.random.default_rng(seed).integers(0, num_texts - 1, (num_texts, k))
    # Numbers from the text itself on move up by one: all others are equally likely.
    return neighbours + (neighbours >= np.arange(num_texts)[:, None])


def pair_neighbours(nearest: np.ndarray) -> Candidates:
    """Return the pairs of texts and their neighbours, int64 [E, k], in the order of first texts and ranks.

    The same two texts are one pair, under the lowest rank that found them.
    """
    first, rank = np.indices(nearest.shape)
    pairs = Candidates(first.ravel(), nearest.ravel(), rank.ravel() + 1)
    pairs = pairs.take((pairs.second != NO_NEIGHBOUR) & (pairs.first != pairs.second))
    # Of equal keys `unique` returns the first, which is then the one of the lowest rank.
    best_first = pairs.take(np.lexsort((pairs.first, pairs.rank)))
    unique = best_first.take(np.unique(best_first.keys(len(nearest)), return_index=True)[1])
    return unique.take(np.lexsort((unique.rank, unique.first)))


def neighbours_without_itself(neighbours: np.ndarray, texts: np.ndarray, k: int) -> np.ndarray:
    """Return those k of k + 1 neighbours each that are not the text itself, in their order."""
    # A text is mostly its own nearest neighbour, but not if another one is equal to it.
    is_itself = neighbours == texts[:, None]
    # A text that is not among its own neighbours loses the last
    is_itself[~is_itself.any(1), -1] = True
    return neighbours[~is_itself].reshape(len(neighbours), k)


class CrossEncoder:
    """A model of `finetune`, in the folder of its run, that gives pairs a score.

    Attributes:
        token_ids: Texts to the ids of their tokens, without special tokens.
    """

    def __init__(
        self,
        folder: str | Path,
        batch_tokens: int,
        precision: str = "auto",
        device: str = "auto",
    ) -> None:
        try:
            loaded = load_task_model(folder)
        except CheckpointError as error:
            if error.slug != "wrong-model":
                raise
            raise CheckpointError(
                "wrong-model",
                f"`{folder}` is not fine-tuned: {error.message}",
                f"fine-tune it on the gold pairs: albertkit finetune korsts {folder} DATA --out RUN",
            ) from None
        if not isinstance(loaded.task, TextRegression):
            raise CheckpointError(
                "wrong-model",
                f"`{folder}` was fine-tuned on `{loaded.task.name}`, which gives pairs no score",
                "fine-tune one: albertkit finetune korsts MODEL DATA --out RUN (or stsb, klue-sts, regress)",
            )
        world = join_world(device)
        loaded.model.to(world.device)
        loaded.model.compute_dtype = choose_precision(precision, world.device)
        self._loaded = loaded
        self._batch_tokens = batch_tokens
        self.token_ids: Callable[[Sequence[str]], RaggedIds] = loaded.tokenizer.encode_batch

    def scores(
        self,
        texts: Sequence[str],
        pairs: Sequence[str],
        title: str = "",
        show_progress: bool = False,
    ) -> np.ndarray:
        """Return the score of each pair, on the scale that it was trained on: fp64 [C]. The title is for the progress."""
        scores: list[float] = []
        with ProgressBar(title, len(texts), "pairs", show_progress) as progress:
            for start in range(0, len(texts), CHUNK):
                sides = texts[start : start + CHUNK], pairs[start : start + CHUNK]
                examples = [TextExample("", *pair) for pair in zip(*sides, strict=True)]
                predictions = predict_examples(self._loaded, examples, self._batch_tokens)
                scores += [prediction["value"] for prediction in predictions]
                progress.update(len(scores))
        return np.array(scores, np.float64)


# On gold dev pairs; what a weaker one says of pairs is mostly noise. With silver pairs of a
# cross-encoder that had learned from 1,000 pairs a student fell from Spearman 56.3 to 41.9.
MIN_SPEARMAN = 0.5
CHUNK = 1024  # pairs whose scores are computed at once: 20 s of a small model on one core


def score_or_refuse_cross_encoder(
    name: str, dev: Sequence[TextExample], predicted_scores: np.ndarray, force: bool
) -> tuple[dict[str, float], Notes]:
    """Refuse a cross-encoder that agrees too little with gold scores to stand in for them, unless `force`.

    Returns pairs, pearson, spearman, mse of its scores of the gold dev pairs, and what a user
    should know about them.
    """
    labels = np.array([example.label for example in dev], np.float64)
    scores = regression_scores(labels, predicted_scores)
    if not force and not scores["spearman"] >= MIN_SPEARMAN:
        figure = (
            "undefined: its scores are constant"
            if np.isnan(scores["spearman"])
            else f"{scores['spearman']:.3f}"
        )
        raise CheckpointError(
            "doubtful",
            f"`{name}` agrees too little with {len(dev):,} gold dev pairs: the Spearman correlation, which must be "
            f"{MIN_SPEARMAN} at least, is {figure}",
            "fine-tune a larger model (tiny ones learn to compare two texts in one sequence hardly at all, however long they "
            "are fine-tuned); or use it as it is with --force",
        )
    notes = []
    if scores["mse"] > labels.var():  # correlations do not show another scale
        notes.append(
            f"the cross-encoder's scores may be on another scale: their mean squared error on the dev pairs is "
            f"{scores['mse']:.3f}, and that of saying the mean each time {labels.var():.3f}"
        )
    return {
        "pairs": len(dev),
        **{name: scores[name] for name in ("pearson", "spearman", "mse")},
    }, notes


KINDS = (*LAYOUTS, "scores")
BANDS = 5
_HELD_OUT = 0.1  # of gold without a dev file, as in fine-tuning, so that they are the same pairs
_MADE_WITH = (
    "kind",
    "gold",
    "cross_encoder",
    "encoder",
    "texts",
    "sampler",
    "top_k",
    "balance",
    "seed",
)


@dataclass(frozen=True)
class AugmentReport(Result):
    """Result of `augment`.

    Attributes:
        written: The table and its report.
        pairs: Silver pairs.
        texts: Different texts they were found among.
        candidates: Sampler to the number of different pairs it found.
        gold_removed: Candidates that are gold pairs, in either order.
        bands: From, to, before and after balancing, of each band of scores.
        clipped: Scores beyond the gold scale, set to its end.
        dev: Of the cross-encoder on gold dev pairs: pairs, pearson, spearman, mse.
        made_with: kind, gold, cross_encoder, encoder, texts, sampler, top_k, balance, seed.
        notes: A line for each thing that the user should know.
    """

    written: tuple[Path, ...]
    pairs: int
    texts: int
    candidates: dict[str, int]
    gold_removed: int
    bands: list[dict[str, float]]
    clipped: int
    dev: dict[str, float]
    made_with: dict[str, Any]
    notes: list[str]

    def sections(self) -> list[Section]:
        """Return how the scores compare with gold, what was found, and the scores by band before and after balancing."""
        spearman = format_value(self.dev["spearman"])
        pearson = format_value(self.dev["pearson"])
        candidates = ", ".join(f"{name} {count:,}" for name, count in self.candidates.items())
        bands = [
            [f"{band['from']:g} to {band['to']:g}", band["before"], band["after"]]
            for band in self.bands
        ]
        clipped = (
            f"scores beyond the gold scale, set to its end: {self.clipped:,}"
            if self.clipped
            else ""
        )
        return [
            Paragraph(
                f"scores compared with gold: Spearman {spearman}, Pearson {pearson} on {self.dev['pairs']:,} gold dev pairs"
            ),
            Paragraph(
                f"different pairs of {self.texts:,} texts: {candidates}; {self.gold_removed:,} of them gold, removed"
            ),
            TableSection(["score", "found", "kept"], bands, note=clipped),
            *(Paragraph(note, tone="muted") for note in self.notes),
            Paragraph(f"{self.pairs:,} silver pairs: {self.written[0]}"),
        ]


@takes(AugmentOptions)
def augment(options: AugmentOptions) -> AugmentReport:
    """Find pairs, score them, balance them, write them; see `AugmentOptions`."""
    options.check()
    path = Path(options.out)
    if path.suffix != ".tsv":
        raise ConfigError(
            "bad-value",
            f"`{path}` does not end in .tsv",
            f"--out {path.with_suffix('.tsv')}",
        )
    if path.exists() and not options.overwrite:
        raise CheckpointError(
            "exists",
            f"`{path}` exists",
            "choose another --out, or replace it with --overwrite",
        )
    bad_rows = BadRows(options.on_error)
    if options.kind not in KINDS:
        raise ConfigError(
            "unknown-name",
            f"there is no kind of gold pairs `{options.kind}`",
            suggest_name(options.kind, KINDS),
        )
    task = find_pair_task(options.kind, options.columns)
    dev = None if options.dev is None else Path(options.dev)
    data = read_data(task, Path(options.gold), dev, _HELD_OUT, False, bad_rows)
    cross_encoder = CrossEncoder(
        options.cross_encoder,
        options.batch_tokens,
        options.precision,
        options.device,
    )
    dev_predictions = cross_encoder.scores(*_split_pairs(data.dev), "gold dev", options.progress)
    dev_scores, notes = score_or_refuse_cross_encoder(
        str(options.cross_encoder),
        data.dev,
        dev_predictions,
        options.force,
    )
    texts = _read_candidate_texts(options, data.train, bad_rows)
    candidates = _sample_candidate_pairs(options, texts, cross_encoder.token_ids)
    gold = [*data.train, *data.dev]
    gold_files = task.files(Path(options.gold))
    if "test" in gold_files:  # they are gold, too
        gold += read_split(task, gold_files["test"], "test", bad_rows, labelled=False)
    # Gold pairs have a score already, and a better one.
    fresh = candidates.take(~np.isin(candidates.keys(len(texts)), _gold_pair_keys(texts, gold)))
    if options.progress:
        print_note(f"{len(fresh.first):,} candidates of {len(texts):,} texts")
    sides = [texts[number] for number in fresh.first], [texts[number] for number in fresh.second]
    scores = cross_encoder.scores(*sides, "candidates", options.progress)
    labels = [example.label for example in data.train]
    low, high = score_scale(labels, options.kind in LAYOUTS)
    # A regression may leave the scale that it has learned.
    clipped = np.clip(scores, low, high)
    kept_rows, bands = balance_score_bands(clipped, low, high, options.balance, options.seed)
    report = AugmentReport(
        written=(path, path.with_suffix(".json")),
        pairs=len(kept_rows),
        texts=len(texts),
        candidates={options.sampler: len(candidates.first)},
        gold_removed=len(candidates.first) - len(fresh.first),
        bands=bands,
        clipped=int((scores != clipped).sum()),
        dev=dev_scores,
        made_with={name: to_json_value(getattr(options, name)) for name in _MADE_WITH},
        notes=[*data.notes, *notes],
    )
    with atomic_file(path, "w") as stream:
        stream.write("score\ttext\tpair\tsampler\trank\n")
        for score, first, second, rank in zip(
            clipped[kept_rows].tolist(), *fresh.take(kept_rows), strict=True
        ):
            stream.write(
                f"{score:.4f}\t{texts[first]}\t{texts[second]}\t{options.sampler}\t{rank}\n"
            )
    write_json(report.written[1], report.to_dict())
    return report


def balance_score_bands(
    scores: np.ndarray, low: float, high: float, balance: float, seed: int
) -> tuple[np.ndarray, list[dict[str, float]]]:
    """Return the rows to keep so that no band of scores is crowded, int64, ascending; and of each band from, to, before, after.

    Silver pairs of near neighbours alone teach nothing about far ones. Scores [C] go from low to
    high, cut into `BANDS` equal bands; the most rows of a band are a multiple of the median of the
    bands that have any (0: no limit), drawn by the seed.
    """
    band = np.clip(((scores - low) / (high - low) * BANDS).astype(np.int64), 0, BANDS - 1)
    counts = np.bincount(band, minlength=BANDS)
    max_rows = len(scores)
    if balance and len(scores):
        max_rows = max(1, round(balance * float(np.median(counts[counts > 0]))))
    random = np.random.default_rng(seed)
    kept_rows = []
    bands = []
    edges = np.linspace(low, high, BANDS + 1).tolist()
    for number in range(BANDS):
        rows = np.flatnonzero(band == number)
        band_rows = random.choice(rows, max_rows, replace=False) if len(rows) > max_rows else rows
        kept_rows.append(band_rows)
        bands.append(
            {
                "from": edges[number],
                "to": edges[number + 1],
                "before": len(rows),
                "after": len(band_rows),
            }
        )
    return np.sort(np.concatenate(kept_rows)), bands


def _read_candidate_texts(
    options: AugmentOptions, gold: Sequence[TextExample], bad_rows: BadRows
) -> list[str]:
    """Return the different texts to find pairs among."""
    rows: Iterable[tuple[str, ...]] = zip(*_split_pairs(gold), strict=True)
    if options.texts:
        rows = read_texts(Path(options.texts), Columns(), 1, bad_rows)
    texts = list(dict.fromkeys(_normalize_text(text) for row in rows for text in row))
    if len(texts) < 2:
        raise DataError(
            "too-little-data",
            f"{pluralize(len(texts), 'different text')}: there is nothing to pair",
            "add some",
        )
    return texts


def _sample_candidate_pairs(
    options: AugmentOptions, texts: list[str], token_ids: Callable[[Sequence[str]], RaggedIds]
) -> Candidates:
    """Return the pairs that the sampler finds."""
    k = min(options.top_k, len(texts) - 1)
    if options.encoder is not None:
        nearest = semantic_neighbours(load_embedding_model(options.encoder).encode(texts), k)
    elif options.sampler == "bm25":
        nearest = bm25_neighbours(token_ids(texts), k)
    else:
        nearest = random_neighbours(len(texts), k, options.seed)
    return pair_neighbours(nearest)


def _split_pairs(pairs: Sequence[TextExample]) -> tuple[list[str], list[str]]:
    """Return the first and the second texts of pairs."""
    return [pair.text for pair in pairs], [pair.pair or "" for pair in pairs]


def _gold_pair_keys(texts: Sequence[str], gold: Iterable[TextExample]) -> np.ndarray:
    """Return `pair_keys` of the gold pairs both texts of which are among the texts."""
    index_of = {text: index for index, text in enumerate(texts)}
    first, second = (
        np.array([index_of.get(_normalize_text(text), -1) for text in side], np.int64)
        for side in _split_pairs(list(gold))
    )
    are_known = (first >= 0) & (second >= 0)
    return pair_keys(first[are_known], second[are_known], len(texts))


def _normalize_text(text: str) -> str:
    """Return a text as it is compared and written: composed, on one line, one space between words."""
    return " ".join(normalize("NFC", text).split())
