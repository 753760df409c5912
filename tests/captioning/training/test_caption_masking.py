"""SwinBERT's masks: how many exactly, which and by what within four standard errors of 20,000 draws of the original."""

import numpy as np
import pytest

from albertkit.captioning.train import mask_caption, num_masked
from albertkit.files import read_json

MASK, FIRST, LAST = 4, 5, 57  # [MASK] and the pieces of the original's vocabulary


def test_number_of_predicted_pieces(golden):
    cases = read_json(golden / "captioning/masked_counts.json")
    for case in cases:
        ours = [
            num_masked(length, case["mask_prob"], case["max_masked_tokens"])
            for length in range(2, 51)
        ]
        assert ours == case["number_masked_for_seq_a_len_2_to_50"]
    assert num_masked(5, 0.5, 45) == 2  # half to even


def shares_of_draws(case, draws):
    """Times each position was masked, and shares of [MASK], kept and other pieces."""
    length = case["seq_a_len"]
    ids = np.array([2, *(FIRST + np.arange(length - 2) % (LAST - FIRST)), 3])
    generator = np.random.default_rng(0)
    times = np.zeros(length)
    fates = np.zeros(3)
    for _ in range(draws):
        masked, positions = mask_caption(
            ids,
            MASK,
            np.arange(58),
            case["mask_prob"],
            case["max_masked_tokens"],
            generator,
        )
        times[positions] += 1
        new = masked[positions]
        fates += [
            (new == MASK).sum(),
            (new == ids[positions]).sum(),
            ((new != MASK) & (new != ids[positions])).sum(),
        ]
    return times / draws, fates / fates.sum(), fates.sum()


def _four_errors(p, draws):
    return 4 * np.sqrt(np.maximum(p * (1 - p), 1e-9) / draws)


def test_draws(golden):
    cases = read_json(golden / "captioning/masking_stats.json")
    assert len(cases) >= 3
    for case in cases:
        theirs = np.array(case["times_masked_by_position"][: case["seq_a_len"]]) / case["draws"]
        ours, fates, count = shares_of_draws(case, 4000)
        assert ours[0] == theirs[0] == 0  # [CLS]
        assert ours[-1] > 0  # [SEP]
        error = _four_errors(theirs, 4000) + _four_errors(theirs, case["draws"])
        assert (abs(ours - theirs) <= error).all()
        fate_names = ("fraction_replaced_by_mask", "fraction_kept_or_same", "fraction_other_token")
        shares = np.array([case[name] for name in fate_names])
        assert (
            abs(fates - shares) <= _four_errors(shares, count) + _four_errors(shares, count)
        ).all()


@pytest.mark.parametrize("ids", [[2, 3], [2, 9, 3]])
def test_shortest_captions(ids):
    for seed in range(20):
        masked, positions = mask_caption(
            ids, MASK, np.arange(5, 58), 0.9, 45, np.random.default_rng(seed)
        )
        assert positions.tolist() == list(range(1, len(ids)))  # all but [CLS]
        assert masked[0] == ids[0]
