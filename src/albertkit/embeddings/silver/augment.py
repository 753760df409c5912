"""`augment`: silver pairs, found among unlabelled texts and scored by a cross-encoder, for training beside gold ones.

Source: Thakur et al. 2021, "Augmented SBERT".
"""

import shutil
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from sklearn.linear_model import LinearRegression

from albertkit.data.bad_rows import BadRows, counted
from albertkit.data.columns import Columns
from albertkit.embeddings.data import pair_task, read_texts, score_range
from albertkit.embeddings.encoder import state_digest
from albertkit.embeddings.evaluation.evaluate import LAYOUTS
from albertkit.embeddings.metrics import row_cosines
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
from albertkit.engines.engine import Precision
from albertkit.errors import CheckpointError, ConfigError, DataError, near_miss
from albertkit.files import atomic_file, sha256_bytes, write_json
from albertkit.frame.command import takes
from albertkit.frame.job import Job
from albertkit.frame.result import Result
from albertkit.frame.section import Section, Table, Text
from albertkit.frame.values import plain, value_text
from albertkit.normalization import normalize
from albertkit.tasks.data import read_data, read_split
from albertkit.tasks.loading import load_task_model
from albertkit.tasks.metrics.regression import regression_scores
from albertkit.tasks.prediction import run_model
from albertkit.tasks.task import Task
from albertkit.tasks.texts import TextExample, TextRegression
from albertkit.tokenizer.ragged import RaggedIds
from albertkit.training.distributed import join_world
from albertkit.training.hardware import choose_precision


class CrossEncoder:
    """A model of `finetune`, in the folder of its run, that gives pairs a score.

    Attributes:
        name: As it was given.
        digest: SHA-256 of all that decides the scores.
        token_ids: Texts to the ids of their tokens, without special tokens.
        notes: What a user should know about how the scores are computed.
    """

    def __init__(self, folder: str | Path, batch_tokens: int, precision: str = "auto", device: str = "auto") -> None:
        try:
            loaded = load_task_model(folder)
        except CheckpointError as error:
            if error.slug != "wrong-model":
                raise
            raise CheckpointError(
                "wrong-model",
                f"`{folder}` is not fine-tuned: {error.message}",
                f"fine-tune it on the gold pairs: albertkit finetune korsts {folder} DATA --out RUN; or score by the cosine of "
                "vectors: --bi-encoder MODEL",
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
        self._loaded, self._batch_tokens = loaded, batch_tokens
        self.name = str(folder)
        self.token_ids: Callable[[Sequence[str]], RaggedIds] = loaded.tokenizer.encode_batch
        self.notes: list[str] = []
        computed = f"{loaded.model.compute_dtype} {batch_tokens} {loaded.tokenizer.fingerprint} {loaded.task!r}"
        self.digest = sha256_bytes(f"{computed} {state_digest(loaded.model.state_dict())}".encode())

    def scores(self, texts: Sequence[str], pairs: Sequence[str]) -> np.ndarray:
        """Return the score of each pair, on the scale that it was trained on: fp64 [C]."""
        task, model, tokenizer = self._loaded
        examples = [TextExample("", *pair) for pair in zip(texts, pairs, strict=True)]
        features = task.features(examples, tokenizer, labelled=False)
        outputs = run_model(model, task, features, self._batch_tokens)
        return np.array(
            [prediction["value"] for prediction in task.predictions(examples, features, outputs)], np.float64
        )


class CosineScorer:
    """The cosine of a model's vectors, on the line that fits the scores of gold training pairs best.

    Attributes as of `CrossEncoder`.
    """

    def __init__(
        self, model: str | Path, gold: Sequence[TextExample], precision: Precision = "auto", device: str | None = None
    ) -> None:
        self._model = load_embedding_model(model, precision, device=device)
        if self._model.token_ids is None:
            raise CheckpointError(
                "wrong-model",
                f"`{model}` has no tokenizer whose tokens BM25 could count",
                "use another model",
            )
        self.name, self.token_ids = str(model), self._model.token_ids
        labels = np.array([example.label for example in gold], np.float64)
        cosines = self._cosines([example.text for example in gold], [example.pair or "" for example in gold])
        self._line = LinearRegression().fit(cosines[:, None], labels)
        slope, start = float(self._line.coef_[0]), float(self._line.intercept_)
        self.notes = [
            *self._model.notes,
            f"score: {start:.3f} + {slope:.3f} x cosine, fitted to {len(gold):,} gold training pairs",
        ]
        self.digest = sha256_bytes(f"{self._model.description} {slope!r} {start!r}".encode())

    def scores(self, texts: Sequence[str], pairs: Sequence[str]) -> np.ndarray:
        """Return the score of each pair: fp64 [C]."""
        return self._line.predict(self._cosines(texts, pairs)[:, None])

    def _cosines(self, texts: Sequence[str], pairs: Sequence[str]) -> np.ndarray:
        different = list(dict.fromkeys([*texts, *pairs]))
        place = {text: number for number, text in enumerate(different)}
        vectors = self._model.encode(different)
        a, b = (vectors[[place[text] for text in side]] for side in (texts, pairs))
        return row_cosines(a, b).astype(np.float64)


Scorer = CrossEncoder | CosineScorer
LEAST_SPEARMAN = 0.5  # on gold dev pairs; what a weaker one says of pairs is mostly noise
CHUNK = 1024  # pairs whose scores are computed and kept at once: 20 s of a small model on one core


class KeptScores:
    """Scores of pairs, in chunks in a folder that a killed call leaves for the next one."""

    def __init__(self, scorer: Scorer, folder: Path, progress: bool) -> None:
        self._scorer, self._folder, self._progress = scorer, folder, progress
        self.resumed = 0

    def of(self, name: str, texts: Sequence[str], pairs: Sequence[str]) -> np.ndarray:
        """Return the scores of C pairs, fp64 [C]; the name is for the folder and the progress."""
        folder = self._folder / name.replace(" ", "-")
        listed = "\0".join((*texts, *pairs)).encode("utf-8", "surrogatepass")
        key = {"scorer": self._scorer.digest, "pairs": sha256_bytes(listed), "chunk": CHUNK}
        with Job(
            folder, key, overwrite=True, title=name, total=len(texts), unit="pairs", progress=self._progress
        ) as job:
            done = job.facts.get("done", 0)
            self.resumed += done
            job.progress.resume(done)
            for start in range(done, len(texts), CHUNK):
                rows = slice(start, start + CHUNK)
                scores = np.asarray(self._scorer.scores(texts[rows], pairs[rows]), np.float64)
                job.write("scores.bin", scores.tobytes())
                job.commit(done=start + len(scores))
                job.progress.update(start + len(scores))
            return np.fromfile(folder / "scores.bin") if texts else np.zeros(0)

    def clear(self) -> None:
        """Remove what was kept."""
        shutil.rmtree(self._folder, ignore_errors=True)


def check_scorer(
    name: str, dev: Sequence[TextExample], predicted: np.ndarray, force: bool
) -> tuple[dict[str, float], list[str]]:
    """Refuse a scorer that agrees too little with gold scores to stand in for them, unless `force`.

    Returns pairs, pearson, spearman, mse of its scores of the gold dev pairs, and what a user should know about them.
    """
    labels = np.array([example.label for example in dev], np.float64)
    scores = regression_scores(labels, predicted)
    if not force and not scores["spearman"] >= LEAST_SPEARMAN:
        figure = "undefined: its scores are constant" if np.isnan(scores["spearman"]) else f"{scores['spearman']:.3f}"
        raise CheckpointError(
            "doubtful",
            f"`{name}` agrees too little with {len(dev):,} gold dev pairs: the Spearman correlation, which must be "
            f"{LEAST_SPEARMAN} at least, is {figure}",
            "score by the cosine of a sentence encoder in place of it: --bi-encoder RUN (tiny models learn to compare two texts "
            "in one sequence hardly at all, however long they are fine-tuned); or use it as it is with --force",
        )
    notes = []
    if scores["mse"] > labels.var():  # correlations do not show another scale
        notes.append(
            f"the cross-encoder's scores may be on another scale: their mean squared error on the dev pairs is "
            f"{scores['mse']:.3f}, and that of saying the mean each time {labels.var():.3f}"
        )
    return {"pairs": len(dev), **{name: scores[name] for name in ("pearson", "spearman", "mse")}}, notes


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
    if options.kind not in KINDS:
        raise ConfigError(
            "unknown-name", f"there is no kind of gold pairs `{options.kind}`", near_miss(options.kind, KINDS)
        )
    task = pair_task(options.kind, options.columns)
    dev = None if options.dev is None else Path(options.dev)
    data = read_data(task, Path(options.gold), dev, _HELD_OUT, False, bad_rows)
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
    low, high = score_range(labels, options.kind in LAYOUTS)
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
        raise CheckpointError("exists", f"`{path}` exists", "choose another --out, or replace it with --overwrite")
    return path


def _scorer(options: AugmentOptions, gold: Sequence[TextExample]) -> Scorer:
    """Load the model that scores pairs."""
    if options.cross_encoder is not None:
        return CrossEncoder(options.cross_encoder, options.batch_tokens, options.precision, options.device)
    assert options.bi_encoder is not None
    return CosineScorer(
        options.bi_encoder, gold, options.precision, None if options.device == "auto" else options.device
    )


def _texts(options: AugmentOptions, gold: Sequence[TextExample], bad_rows: BadRows) -> list[str]:
    """Return the different texts to find pairs among."""
    rows = read_texts(Path(options.texts), Columns(), 1, bad_rows) if options.texts else zip(*_sides(gold), strict=True)
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
    return " ".join(normalize("NFC", text).split())
