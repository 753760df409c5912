"""Settings of caption generation."""

from dataclasses import dataclass, field
from typing import Any, NamedTuple

from albertkit.errors import ConfigError


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

    max_length: int | None = None
    num_beams: int = 4
    num_captions: int = 1
    length_penalty: float = 1.0
    repetition_penalty: float = 1.0
    sample: bool = False
    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    seed: int = 0
    bad_endings: tuple[str, ...] = ()
    swinbert: bool = field(default=False, repr=False)

    def __post_init__(self) -> None:
        found = []
        for name, least in {"max_length": 2, "num_beams": 1, "num_captions": 1, "top_k": 0, "seed": 0}.items():
            if (value := getattr(self, name)) is not None and value < least:
                found.append(f"{name} is {value}, it must be at least {least}")
        for name in ("length_penalty", "repetition_penalty", "temperature", "top_p"):
            if not getattr(self, name) > 0:
                found.append(f"{name} is {getattr(self, name)}, it must be above 0")
        if self.top_p > 1:
            found.append(f"top_p is {self.top_p}, it must be at most 1")
        if not self.sample and self.num_captions > self.num_beams:
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
