"""What decides an export of records; apart from the export itself, so that the command line shows it without loading torch."""

from dataclasses import dataclass
from typing import Literal

from albertkit.errors import ConfigError


@dataclass(frozen=True, kw_only=True)
class ExportSettings:
    """What is exported; the names and meanings are those of `PretrainSettings` where it has them.

    Attributes:
        length: Longest sequence, in tokens, special tokens included (`max_seq_length`).
        dupe_factor: How often every document is cut and masked (Google's default: 40, the Model Garden's: 10).
        files: Files that the records are dealt to in turn.
        pair_task: sop (sentence order) or nsp (next sentence).
        sop_pairs: pure, or google for the original's pairs with a random document where a chunk has one sentence.
        masked_lm_prob: Share of tokens to predict.
        max_predictions: Most predictions a sequence (`max_predictions_per_seq`; the original's default is 20); 0 for as many
            as `masked_lm_prob` asks for, 77 of 512.
        max_ngram: Longest masked span, in whole words.
        favor_shorter_ngram: Spans of n words with probability in proportion to 1/n; otherwise the longer the likelier.
        mask_units: words: all pieces of a word are masked together; or pieces, one by one.
        short_seq_prob: Share of documents cut into shorter sequences, in each duplicate anew.
        held_out: Share of documents left out: those that training on the store with this share and seed would hold out.
        seed: Start of everything random.
    """

    length: int = 512
    dupe_factor: int = 10
    files: int = 1
    pair_task: Literal["sop", "nsp"] = "sop"
    sop_pairs: Literal["pure", "google"] = "pure"
    masked_lm_prob: float = 0.15
    max_predictions: int = 0
    max_ngram: int = 3
    favor_shorter_ngram: bool = True
    mask_units: Literal["words", "pieces"] = "words"
    short_seq_prob: float = 0.1
    held_out: float = 0.0
    seed: int = 0

    def __post_init__(self) -> None:
        for name in ("dupe_factor", "files"):
            if getattr(self, name) < 1:
                raise ConfigError("bad-value", f"{name} is {getattr(self, name)}", "use a whole number of at least 1")
        if not 0 < self.masked_lm_prob < 1:
            raise ConfigError(
                "bad-value", f"masked_lm_prob is {self.masked_lm_prob}", "use a share above 0 and below 1"
            )
        if not 0 <= self.held_out < 1:
            raise ConfigError("bad-value", f"held_out is {self.held_out}", "use a share of at least 0 and below 1")
        if self.mask_units not in ("words", "pieces"):
            raise ConfigError("bad-value", f"mask_units is {self.mask_units!r}", "use words or pieces")
        if self.pair_task not in ("sop", "nsp"):
            raise ConfigError(
                "bad-value", f"pair_task is {self.pair_task!r}", "Google's records hold pairs: use sop or nsp"
            )
