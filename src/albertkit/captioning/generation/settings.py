"""Settings of caption generation."""

from dataclasses import dataclass, field
from typing import Annotated, Any, NamedTuple

from albertkit.errors import ConfigError
from albertkit.validation import NotNegative, Positive, Range, wrong_fields


class CaptionIds(NamedTuple):
    """The special tokens of a generation."""

    start: int  # [CLS]
    end: int  # [SEP]
    mask: int  # [MASK]; a captioner of the objective `mlm` predicts where it stands
    padding: int  # after the end


_LONGEST = 24


@dataclass(frozen=True, kw_only=True)
class GenerationSettings:
    """Settings of caption generation.

    Attributes:
        max_length: Maximum tokens per caption, [CLS] and [SEP] included. Default: the training length, or 24.
        num_beams: Number of beams; 1: greedy search.
        num_captions: Number of captions to return per clip, best first.
        length_penalty: Exponent of the length in a caption's score: log-probability / length^penalty.
        repetition_penalty: Divide positive logits of tokens already in the caption by this, and multiply negative ones.
        sample: Sample tokens instead of searching.
        temperature: Temperature for sampling: divides the logits.
        top_k: Sample from the k most likely tokens; 0: all.
        top_p: Sample from the most likely tokens with this total probability.
        seed: Random seed for sampling.
        bad_endings: Words that may not end a caption, except at maximum length: "a", "the", "with".
        swinbert: Use SwinBERT's search: it keeps only `num_captions` finished captions, and at maximum length [SEP] replaces the
            last word.
    """

    max_length: Annotated[int | None, Range(2)] = None
    num_beams: Positive = 4
    num_captions: Positive = 1
    length_penalty: Annotated[float, Range(above=0)] = 1.0
    repetition_penalty: Annotated[float, Range(above=0)] = 1.0
    sample: bool = False
    temperature: Annotated[float, Range(above=0)] = 1.0
    top_k: NotNegative = 0
    top_p: Annotated[float, Range(above=0, most=1)] = 1.0
    seed: NotNegative = 0
    bad_endings: tuple[str, ...] = ()
    swinbert: bool = field(default=False, repr=False)

    def __post_init__(self) -> None:
        found = wrong_fields(self)
        if not found and not self.sample and self.num_captions > self.num_beams:
            found.append(f"num_captions {self.num_captions} is more than num_beams {self.num_beams}")
        if found:
            raise ConfigError("bad-value", "; ".join(found), "change these settings of generation")

    @property
    def longest(self) -> int:
        """Return `max_length`, or 24."""
        return _LONGEST if self.max_length is None else self.max_length

    def to_dict(self) -> dict[str, Any]:
        """Return every setting that is not the default, for JSON."""
        plain = {name: field.default for name, field in self.__dataclass_fields__.items()}
        own = {name: getattr(self, name) for name in plain}
        return {name: list(v) if isinstance(v, tuple) else v for name, v in own.items() if v != plain[name]}
