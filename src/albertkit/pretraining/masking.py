"""Masking: whole-word n-grams, drawn as `create_masked_lm_predictions` of google-research/albert draws them.

1. Units. [CLS] and [SEP] are left out. A piece that starts a word starts a unit, any other joins the unit before it.
   (So B's first piece, if truncation cut a word, joins A's last word across [SEP]; n-grams may lie
   across [SEP] too.)
2. Budget: round(masked_lm_prob · length), half to even, at least 1, at most `max_predictions`.
3. The units are visited in random order. At each, n is drawn from 1..max_ngram with probability proportional to 1/n,
   and the n units from there on are masked if they fit in the budget; if not, n - 1 of them, and so
   on; if not even one does, the unit is passed over. It is passed over, too, if any token of the
   n-gram is masked already. Until the budget is used.
4. Each chosen token becomes [MASK] with probability 0.8, stays with 0.1, becomes a random piece with 0.1.

Two things are done otherwise, with the same distribution: only as much of the random order is drawn
as is visited, and the fate of the tokens is drawn in order of position, which leaves the output
sorted. One thing differs by default: a random piece is never a special one (Google draws from the
whole vocabulary: `random_specials=True`).

Legend: T tokens of N sequences, P predictions, V vocabulary, C content tokens (no specials) of one
sequence.
"""

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from albertkit.jit import compiled
from albertkit.pretraining.examples import SINGLE
from albertkit.pretraining.randomness import random_below, random_bits, random_uniform, subkey
from albertkit.validation import Positive, Share, check_fields

# Columns of the n-gram log: sequence, drawn, accepted, units, tokens, across_sep. `accepted` is the
# n used after shortening, or one of two reasons for none:
OVER_BUDGET, COVERED = 0, -1


@dataclass(frozen=True, kw_only=True)
class MaskSettings:
    """Rules of masking.

    Attributes:
        masked_lm_prob: Share of the tokens of a sequence, specials counted, that are predicted; 0
            masks nothing.
        max_predictions: Most predictions a sequence; None for no limit. (Google: 20, which is 3.9 %
            of 512.)
        max_ngram: Longest n-gram, in units.
        favor_shorter_ngram: n with probability proportional to 1/n; otherwise these probabilities
            in reverse.
        whole_word: Units are words; otherwise each piece is one.
        random_specials: Random pieces may be [CLS], <pad> and their like, as in Google's code.
    """

    masked_lm_prob: Share = 0.15
    max_predictions: Positive | None = None
    max_ngram: Positive = 3
    favor_shorter_ngram: bool = True
    whole_word: bool = True
    random_specials: bool = False

    def __post_init__(self) -> None:
        check_fields(self)

    def ngram_probabilities(self) -> np.ndarray:
        """Return the probability of n = 1, 2, ... max_ngram: float64 [max_ngram]."""
        inverse = 1.0 / np.arange(1, self.max_ngram + 1)
        shares = inverse / inverse.sum()
        return shares if self.favor_shorter_ngram else shares[::-1].copy()

    def num_predictions_of(self, lengths: np.ndarray) -> np.ndarray:
        """Return the number of predictions asked of sequences of these lengths (specials counted): int64, same shape."""
        shares = np.asarray(lengths, np.float64) * self.masked_lm_prob
        counts = np.rint(shares).astype(np.int64)  # half to even, as Python
        return np.clip(counts, 1, self.max_predictions) if self.masked_lm_prob else counts


class MaskTables(NamedTuple):
    """Tables that the compiled loops look up."""

    starts: np.ndarray  # bool [V]: does the piece start a unit?
    replacements: np.ndarray  # int64 [R]: pieces to draw random ones from
    ngrams: np.ndarray  # float64 [max_ngram]: cumulative probabilities of n
    mask_id: int


def mask_tables(tokenizer: Any, settings: MaskSettings) -> MaskTables:
    """Return the tables of an `AlbertTokenizer` under some settings."""
    size = tokenizer.vocab_size
    starts = (
        np.array(tokenizer.word_starts(), np.bool_)
        if settings.whole_word
        else np.ones(size, np.bool_)
    )
    ordinary = np.ones(size, np.bool_)
    if not settings.random_specials:
        ordinary[list(tokenizer.special_ids())] = False
    ngrams = np.cumsum(settings.ngram_probabilities())
    return MaskTables(
        starts,
        np.flatnonzero(ordinary).astype(np.int64),
        ngrams,
        int(tokenizer.mask_id),
    )


@compiled
def find_units(
    input_ids: np.ndarray,  # int64, of the sequence
    a_length: int,  # content tokens of A
    length: int,  # content tokens of A and B
    starts: np.ndarray,  # bool [V]
    units: np.ndarray,  # int32 [>= length + 1], to fill
) -> int:
    """Find where the units of one sequence start, in content tokens; return their number, `units[number]` is their end."""
    units[0] = 0
    number = 1
    for i in range(1, a_length):
        units[number] = i
        number += starts[input_ids[i + 1]]
    for i in range(a_length, length):
        units[number] = i
        number += starts[input_ids[i + 2]]
    units[number] = length
    return number


@compiled
def _choose_units(
    units: np.ndarray,  # int32 [number + 1], starts of the units in content tokens
    number: int,
    budget: int,  # tokens to choose
    ngrams: np.ndarray,  # float64, cumulative probabilities of n
    key: np.uint64,
    order: np.ndarray,  # int32 [>= number], scratch
    covered: np.ndarray,  # uint8 [C], zeros; set to 1 at the tokens chosen
    log: np.ndarray,  # int32 [rows, 6] to note every n-gram in, or no rows
    sequence: int,  # for the log
    a_length: int,
    logged: int,  # rows of the log in use
) -> int:
    """Choose n-grams until the budget is used or no unit is left; return the rows of the log in use afterwards."""
    for i in range(number):
        order[i] = i
    num_chosen = 0
    for visit in range(number):
        if num_chosen >= budget:
            break
        swap = visit + random_below(key, 2 * visit, number - visit)
        unit = order[swap]
        order[swap] = order[visit]
        share = random_uniform(key, 2 * visit + 1)
        drawn_n = 1
        while drawn_n < len(ngrams) and share >= ngrams[drawn_n - 1]:
            drawn_n += 1
        used_n = drawn_n
        first = units[unit]
        last = units[min(unit + used_n, number)]
        while used_n > 0 and num_chosen + last - first > budget:
            used_n -= 1
            last = units[min(unit + used_n, number)]
        outcome = used_n
        if used_n == 0:
            outcome = OVER_BUDGET
        else:
            for i in range(first, last):
                if covered[i]:
                    outcome = COVERED
            if outcome != COVERED:
                for i in range(first, last):
                    covered[i] = 1
                num_chosen += last - first
        if logged < len(log):
            row = log[logged]
            row[0] = sequence
            row[1] = drawn_n
            row[2] = outcome
            row[3], row[4] = min(unit + used_n, number) - unit, last - first
            row[5] = first < a_length < last
            logged += 1
    return logged


@compiled
def _replace_masked_tokens(
    input_ids: np.ndarray,  # int64 [T], changed
    base: int,  # where the sequence starts
    a_length: int,  # content tokens of A
    length: int,  # content tokens of A and B
    covered: np.ndarray,  # uint8 [C], 1 where chosen
    tables: MaskTables,
    key: np.uint64,  # of the replacements
    positions: np.ndarray,  # int64 [> P], to fill from `count` on
    labels: np.ndarray,  # the same
    count: int,  # predictions of the sequences before
) -> int:
    """Note the chosen tokens of one sequence, in order, and replace them; return the predictions so far."""
    first = count
    for i in range(length):  # no branch: a token that is not chosen is overwritten by the next
        positions[count] = base + 1 + i + (i >= a_length)
        count += covered[i]
    for k in range(first, count):
        position = positions[k]
        labels[k] = input_ids[position]
        fate = random_below(key, 2 * (k - first), 10)
        if fate < 8:
            input_ids[position] = tables.mask_id
        elif fate == 8:
            input_ids[position] = tables.replacements[
                random_below(key, 2 * (k - first) + 1, len(tables.replacements))
            ]
    return count


@compiled
def mask_sequences(
    input_ids: np.ndarray,  # int64 [T], changed
    offsets: np.ndarray,  # int64 [N + 1]
    examples: np.ndarray,  # [N] of EXAMPLE
    indices: np.ndarray,  # int64 [N], number of each example in its epoch, which decides its masks
    budgets: np.ndarray,  # int64 [N], predictions asked of each sequence
    tables: MaskTables,
    key: np.uint64,  # of the epoch's masks
    positions: np.ndarray,  # int64 [sum of budgets + 1], filled with positions into the T tokens, ascending
    labels: np.ndarray,  # int64 [sum of budgets + 1], filled with the ids that stood there
    drawn_ngrams_log: np.ndarray,  # int32 [rows, 6] to note the n-grams in, for study; no rows otherwise
) -> tuple[int, int]:
    """Mask packed sequences in place; return the numbers of predictions and of log rows.

    There are fewer predictions than asked for only where a single unit exceeds what is left of the
    budget.
    """
    longest = 1
    for n in range(len(examples)):
        longest = max(longest, offsets[n + 1] - offsets[n])
    units = np.empty(longest + 1, np.int32)
    order = np.empty(longest, np.int32)
    covered = np.empty(longest, np.uint8)
    count = logged = 0
    for n in range(len(examples)):
        base = offsets[n]
        a_length = np.int64(examples[n].a_length)
        length = offsets[n + 1] - base - (2 if examples[n].kind == SINGLE else 3)
        number = find_units(input_ids[base:], a_length, length, tables.starts, units)
        covered[:length] = 0
        draws = subkey(key, indices[n])
        logged = _choose_units(
            units,
            number,
            budgets[n],
            tables.ngrams,
            random_bits(draws, 0),
            order,
            covered,
            drawn_ngrams_log,
            n,
            a_length,
            logged,
        )
        count = _replace_masked_tokens(
            input_ids,
            base,
            a_length,
            length,
            covered,
            tables,
            random_bits(draws, 1),
            positions,
            labels,
            count,
        )
    return count, logged
