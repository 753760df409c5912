"""Distributions of segments and masks against those of the original script, over tens of thousands of sequences.

Deviations are counted in standard errors of the difference between two runs, the original's and
ours; four are allowed. The same comparison is shown to fail for other settings.
"""

import json
from types import SimpleNamespace

import numpy as np
import pytest

from albertkit.pretraining.batches import Assembler
from albertkit.pretraining.examples import RANDOM, SWAPPED, ExampleSettings, plan_epoch
from albertkit.pretraining.masking import COVERED, OVER_BUDGET, MaskSettings

RUNS = {  # golden name: max_length, max_predictions, our epochs for masks, our epochs for segments
    "seq128_cap20": (128, 20, 12, 120),
    "seq512_cap77": (512, 77, 8, 300),
}
ALLOWED = 4.0
GOOGLE = dict(sop_pairs="google", short_seq_prob=0.1)


@pytest.fixture(scope="module")
def statistics(golden):
    return json.loads((golden / "masking/statistics.json").read_text())


def deviations(ours, theirs):
    """For each name the difference in standard errors."""
    assert set(ours) == set(theirs)
    return {name: (ours[name] - value) / error for name, (value, error) in theirs.items()}


def outside(statistics):
    return {name: round(z, 1) for name, z in statistics.items() if not abs(z) <= ALLOWED}


# --- segments -------------------------------------------------------------------------------------


def our_segments(store, length, epochs, **changes):
    """The quantities of `structure` over some epochs."""
    settings = ExampleSettings(max_length=length, **{**GOOGLE, **changes})
    plans = [
        plan_epoch(store, store.all_documents(), settings, seed=11, epoch=e, shuffle=False)
        for e in range(epochs)
    ]
    examples = np.concatenate([plan.examples for plan in plans])
    a, b = examples["a_length"].astype(float), examples["b_length"].astype(float)
    kind = examples["kind"]
    short = examples["short_target"] == 1
    total = a + b + 3
    label = (kind == SWAPPED) | (kind == RANDOM)
    random = kind == RANDOM
    share = a / (a + b)
    tenth = np.minimum((10 * share).astype(int), 9)
    statistics = {
        "instances_per_pass": len(examples) / epochs,
        "instances_with_short_target": short.mean(),
        "padding_share": 1 - total.sum() / (len(total) * length),
        "length_mean": total.mean(),
        "label_1_share": label.mean(),
        "random_document_share_of_all": random.mean(),
        "random_document_share_of_label_1": random.sum() / label.sum(),
        "swapped_share_of_pairs_from_one_document": (kind == SWAPPED).sum() / (~random).sum(),
        "segment_a_length": a.mean(),
        "segment_b_length": b.mean(),
        "segment_a_share": share.mean(),
        "segment_a_share_same_document_full": share[~random & ~short].mean(),
    }
    for name, chosen in (("full_target", ~short), ("short_target", short)):
        statistics |= {
            f"{name} label_1_share": label[chosen].mean(),
            f"{name} random_document_share": random[chosen].mean(),
            f"{name} mean_length": total[chosen].mean(),
            f"{name} full_length_share": (total[chosen] == length).mean(),
        }
    for k in range(10):
        statistics[f"segment_a_share tenth {k}"] = (tenth == k).mean()
        statistics[f"segment_a_share tenth {k} same_document_full"] = (
            tenth[~random & ~short] == k
        ).mean()
    return statistics | {
        f"length {low}-{high}": ((low <= total) & (total <= high)).mean()
        for low, high in buckets(length)
    }


def buckets(length):
    starts = [5, 16, 32, 48, 64, 80, 96, 112, 120, 124, 127, 128]
    if length == 512:
        starts = [5, 32, 64, 128, 192, 256, 320, 384, 448, 480, 500, 508, 511, 512]
    return [(low, high - 1) for low, high in zip(starts, [*starts[1:], length + 1], strict=True)]


def their_segments(golden, epochs, length):
    """The same from `structure`, with the standard error of the difference to a run of `epochs` passes."""
    widening = np.sqrt(1 + golden["passes"] / epochs)

    def of(entry):
        return entry["value"], entry["se_same_corpus"] * widening

    per_pass = golden["instances_per_pass"]
    statistics = {"instances_per_pass": (per_pass["mean"], per_pass["se"] * widening)}
    for name in (
        "instances_with_short_target",
        "padding_share",
        "length_mean",
        "label_1_share",
        "random_document_share_of_all",
        "random_document_share_of_label_1",
        "swapped_share_of_pairs_from_one_document",
        "segment_a_length",
        "segment_b_length",
    ):
        statistics[name] = of(golden[name])
    shares = golden["segment_a_share"]
    share = golden["segment_a_share"]["same_document_full_target"]
    statistics["segment_a_share"] = of(shares["mean"])
    statistics["segment_a_share_same_document_full"] = of(share["mean"])
    for name in ("full_target", "short_target"):
        statistics |= {
            f"{name} {key}": of(value)
            for key, value in golden["by_target"][name].items()
            if key != "instances"
        }
    for k in range(10):
        statistics[f"segment_a_share tenth {k}"] = of(shares["tenths"][k])
        statistics[f"segment_a_share tenth {k} same_document_full"] = of(share["tenths"][k])
    values = {
        tuple(map(int, f"{name}-{name}".split("-")[:2])): value
        for name, value in golden["length_buckets"].items()
    }
    return statistics | {
        f"length {low}-{high}": of(values[low, high]) for low, high in buckets(length)
    }


@pytest.mark.parametrize("run", RUNS)
def test_segments_follow_the_original(run, novels, statistics):
    length, _, _, epochs = RUNS[run]
    theirs = their_segments(statistics["structure"][run.split("_")[0]], epochs, length)
    assert outside(deviations(our_segments(novels, length, epochs), theirs)) == {}


@pytest.mark.parametrize(
    "changes",
    [
        dict(sop_pairs="pure"),
        dict(short_seq_prob=0.2),
        dict(pair_task="nsp"),
    ],
)
def test_other_segments_are_told_apart(changes, novels, statistics):
    length, _, _, epochs = RUNS["seq128_cap20"]
    theirs = their_segments(statistics["structure"]["seq128"], epochs, length)
    assert len(outside(deviations(our_segments(novels, length, epochs, **changes), theirs))) > 3


def test_next_sentence_pairs_follow_the_original(novels, statistics):
    """One pass of the original only: a looser check, of what differs most from sentence order."""
    theirs = statistics["variants"]["seq128_cap20_next_sentence"]
    ours = our_segments(novels, 128, 200, pair_task="nsp")
    for name, found in (
        ("label_1_share", ours["label_1_share"]),
        ("segment_a_length", ours["segment_a_length"]),
        ("segment_b_length", ours["segment_b_length"]),
        ("random_document_share_of_label_1", 1.0),
    ):
        assert abs(found - theirs[name]["value"]) <= ALLOWED * max(theirs[name]["se"], 1e-12), name
    assert ours["swapped_share_of_pairs_from_one_document"] == 0


# --- masks ----------------------------------------------------------------------------------------


def masked_epochs(store, length, cap, epochs, **changes):
    """Everything about the masks of some epochs, one row a token, a prediction or an n-gram, concatenated."""
    settings = ExampleSettings(max_length=length, **GOOGLE)
    masks = MaskSettings(**{"max_predictions": cap, "random_specials": True, **changes})
    assembler = Assembler(store, masks, seed=23)
    starts = np.asarray(store.model.word_starts())
    parts = []
    for epoch in range(epochs):
        plan = plan_epoch(
            store, store.all_documents(), settings, seed=23, epoch=epoch, shuffle=False
        )
        assembled = assembler.batch_with_drawn_masks(plan, np.arange(len(plan.examples)), epoch)
        batch, lengths = assembled.batch, np.array(assembled.batch.lengths)
        sequence = np.repeat(np.arange(len(lengths)), lengths)
        positions = batch.position_ids.numpy()
        special = (positions == 0) | (positions == lengths[sequence] - 1)
        special |= positions == plan.examples["a_length"][sequence].astype(np.int64) + 1
        masked = np.zeros(len(positions), bool)
        masked[batch.masked_positions.numpy()] = True
        rows = SimpleNamespace(
            position=positions,
            length=lengths[sequence],
            special=special,
            masked=masked,
            original=assembled.original_ids,
            shown=batch.input_ids.numpy(),
            start=starts[assembled.original_ids],
            ngrams=assembled.ngrams,
            missing=masks.num_predictions_of(lengths)
            - np.bincount(sequence[masked], minlength=len(lengths)),
        )
        parts.append(rows)
    return SimpleNamespace(
        **{name: np.concatenate([getattr(p, name) for p in parts]) for name in vars(parts[0])}
    )


def shares_of(counts):
    return counts / counts.sum()


def run_lengths(flags):
    """Lengths of the maximal runs of True."""
    edges = np.flatnonzero(np.diff(np.concatenate([[0], flags.astype(np.int8), [0]])))
    return edges[1::2] - edges[::2]


def our_masks(masks):
    """The quantities of `main`."""
    content = ~masks.special
    masked = masks.masked[content]
    start = masks.start[content]
    visible = masks.shown[masks.masked]
    original = masks.original[masks.masked]
    unchanged = visible == original
    hidden = visible == 4
    first = masks.position == 0
    unit = content & (masks.start | (masks.position == 1))  # does a unit start here?
    ngrams, accepted, units, tokens, across = (masks.ngrams[:, i] for i in (1, 2, 3, 4, 5))
    is_accepted = accepted > 0
    statistics = {
        "masked_share_of_non_special": masked.mean(),
        "masked_share_of_all_tokens": masks.masked.mean(),
        "share_mask_token": (hidden & ~unchanged).mean(),
        "share_kept": unchanged.mean(),
        "share_random": (~hidden & ~unchanged).mean(),
        "continuation_share_of_non_special": (~start).mean(),
        "continuation_share_of_masked": (~start[masked]).mean(),
        "continuation_pieces_masked": masked[~start].mean(),
        "start_pieces_masked": masked[start].mean(),
        "rejected over_budget": (accepted == OVER_BUDGET).mean(),
        "rejected already_covered": (accepted == COVERED).mean(),
        "ngrams_across_sep": across[is_accepted].mean(),
    }
    histograms = {
        "ngram_drawn": ngrams,
        "ngram_accepted_after_shortening": accepted[is_accepted],
        "ngram_accepted_units_in_slice": units[is_accepted],
        "ngram_accepted_tokens": tokens[is_accepted],
        "masked_runs_tokens": run_lengths(masks.masked),
        "masked_runs_units": run_lengths(
            masks.masked[unit | first]
        ),  # [CLS], never masked, parts the sequences
        "unit_length_tokens": np.diff(np.flatnonzero(np.append(unit[content], True))),
    }
    for name, values in histograms.items():
        shares = shares_of(np.bincount(values, minlength=7))
        statistics |= {
            f"{name} {n}": shares[n] for n in range(1, (6 if "tokens" in name else 3) + 1)
        }
    tenth = 10 * masks.position // masks.length
    for k in range(10):
        statistics[f"masked_share tenth {k}"] = masks.masked[content & (tenth == k)].mean()
    return statistics


def their_masks(golden, epochs):
    """The same from `main`, with the standard error of the difference to a run of `epochs` passes."""
    widening = np.sqrt(1 + golden["passes"] / epochs)
    statistics = {}
    for name in (
        "masked_share_of_non_special",
        "masked_share_of_all_tokens",
        "share_mask_token",
        "share_kept",
        "share_random",
        "continuation_share_of_non_special",
        "continuation_share_of_masked",
        "continuation_pieces_masked",
        "start_pieces_masked",
    ):
        statistics[name] = golden[name]["value"], golden[name]["se_same_corpus"] * widening
    for name in (
        "ngram_drawn", "ngram_accepted_after_shortening", "ngram_accepted_units_in_slice", "ngram_accepted_tokens",
        "masked_runs_tokens", "masked_runs_units", "unit_length_tokens",
    ):  # fmt: skip
        for n in range(1, (6 if "tokens" in name else 3) + 1):
            statistics[f"{name} {n}"] = (
                golden[name]["shares"][str(n)],
                golden[name]["se"][str(n)] * widening,
            )
    rejected = golden["ngrams_rejected"]
    total = sum(rejected.values())

    def binomial(share, count):
        return share, np.sqrt(share * (1 - share) / count) * widening

    for name in ("over_budget", "already_covered"):
        statistics[f"rejected {name}"] = binomial(rejected[name] / total, total)
    statistics["ngrams_across_sep"] = binomial(
        golden["ngrams_across_sep"]["share"], rejected["accepted"]
    )
    content = golden["masked_share_of_non_special"]["denominator"]
    # Tokens are masked in runs, not one by one: the variance is that of as many runs, E[k²]/E[k]
    # times the binomial one.
    runs = {int(k): count for k, count in golden["masked_runs_tokens"]["counts"].items()}
    clustering = sum(c * k * k for k, c in runs.items()) / sum(c * k for k, c in runs.items())
    for k, share in enumerate(golden["masked_share_by_tenth_of_sequence"]):
        statistics[f"masked_share tenth {k}"] = binomial(share, content / 10 / clustering)
    return statistics


@pytest.fixture(scope="module")
def default_masks(novels):
    """Our masks at length 128: about 66,000 sequences."""
    length, cap, epochs, _ = RUNS["seq128_cap20"]
    return masked_epochs(novels, length, cap, epochs)


@pytest.mark.parametrize("run", RUNS)
def test_masks_follow_the_original(run, novels, statistics, request):
    length, cap, epochs, _ = RUNS[run]
    masks = (
        request.getfixturevalue("default_masks")
        if length == 128
        else masked_epochs(novels, length, cap, epochs)
    )
    assert len(masks.missing) > (60_000 if length == 128 else 12_000)
    assert masks.missing.max() == 0  # every budget is used exactly, as there
    assert outside(deviations(our_masks(masks), their_masks(statistics["main"][run], epochs))) == {}


@pytest.mark.parametrize(
    "changes",
    [
        dict(favor_shorter_ngram=False),
        dict(whole_word=False),
        dict(max_ngram=2),
        dict(masked_lm_prob=0.155),
    ],
    ids=lambda changes: next(iter(changes)),
)
def test_other_masks_are_told_apart(changes, novels, statistics):
    length, cap, epochs, _ = RUNS["seq128_cap20"]
    masks = masked_epochs(novels, length, cap, epochs // 4, **changes)
    assert (
        len(
            outside(
                deviations(
                    our_masks(masks), their_masks(statistics["main"]["seq128_cap20"], epochs // 4)
                )
            )
        )
        > 3
    )


@pytest.mark.parametrize(
    ("variant", "changes"),
    [
        ("seq128_cap20_ngram1", dict(max_ngram=1)),
        ("seq128_cap20_ngram5", dict(max_ngram=5)),
        ("seq128_cap20_favor_longer", dict(favor_shorter_ngram=False)),
        ("seq128_cap20_no_whole_word", dict(whole_word=False)),
    ],
)
def test_variants_follow_the_original(variant, changes, novels, statistics):
    """One pass of the original each."""
    theirs = statistics["variants"][variant]
    masks = masked_epochs(novels, 128, 20, 6, **changes)
    accepted = masks.ngrams[masks.ngrams[:, 2] > 0]
    for name, values in (
        ("ngram_drawn", masks.ngrams[:, 1]),
        ("ngram_accepted_after_shortening", accepted[:, 2]),
        ("masked_runs_tokens", run_lengths(masks.masked)),
    ):
        shares = shares_of(np.bincount(values, minlength=9))
        for n, share in theirs[name]["shares"].items():
            if int(n) < 9:
                error = max(theirs[name]["se"][n], 1e-9) * np.sqrt(1 + 1 / 6)
                assert abs(shares[int(n)] - share) <= ALLOWED * error, (name, n)


def test_random_pieces_are_special_only_on_request(default_masks, novels):
    def specials(masks):
        random = masks.masked & (masks.shown != masks.original) & (masks.shown != 4)
        return np.isin(masks.shown[random], [0, 1, 2, 3]).sum(), random.sum()

    num_special, num_random = specials(default_masks)
    expected = num_random * 4 / novels.vocab_size
    assert abs(num_special - expected) < 4 * np.sqrt(expected)
    num_special, num_random = specials(masked_epochs(novels, 128, 20, 3, random_specials=False))
    assert num_special == 0
    assert num_random > 20_000
