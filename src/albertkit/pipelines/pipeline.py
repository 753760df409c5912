"""Base class of pipelines: plain values to model inputs, model outputs to plain values."""

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from numbers import Integral
from reprlib import Repr
from typing import Any, ClassVar, Generic, TypeGuard, TypeVar

import numpy as np

from albertkit.batches.features import Features, LabelledBatch, truncated_examples
from albertkit.engines import Engine, load_engine, model_on_engine
from albertkit.engines.engine import Precision
from albertkit.errors import ConfigError, DataError, MachineError
from albertkit.model.pretrained import PretrainedAlbert
from albertkit.tables.text_lines import has_half_characters
from albertkit.tasks.models import run_batches
from albertkit.tokenizer import AlbertTokenizer
from albertkit.tokenizer.texts import choose_example_texts
from albertkit.validation import check_options

Input = TypeVar("Input")
Result = dict[str, Any]
BATCH_TOKENS = 8192

# Of values in errors: a few levels, a few items, so that nothing is too deep or too long to be
# shown
_short = Repr()
_short.maxstring = _short.maxother = 76


class Pipeline(ABC, Generic[Input]):
    """Answer plain values with plain values by a model.

    `features`, `outputs` and `results` are apart so that a server can tokenize in one process, run
    the model in another, and put the sequences of many requests into one batch. Only `outputs` runs
    the model.

    Args:
        model: In evaluation mode, on its device; runs on an engine.
        tokenizer: Its tokenizer.
        precision: As `load_engine`; or an engine of this model's encoder, where several pipelines
            share one.

    Attributes:
        kind: What it does; one of `KINDS`.
        options: Names of the options of `results`.
        model: The heads over the engine.
        precision: What is computed in.
        notes: What the engine fell back from, and why.
    """

    kind: ClassVar[str]
    options: ClassVar[tuple[str, ...]] = ()
    example_name: ClassVar[str]  # which of `ExampleTexts`

    def __init__(
        self,
        model: PretrainedAlbert,
        tokenizer: AlbertTokenizer,
        precision: Precision | Engine = "auto",
    ) -> None:
        self.tokenizer = tokenizer
        self.engine = precision if isinstance(precision, Engine) else load_engine(model, precision)
        self.model = model_on_engine(model, self.engine)
        self.device = model.device

    @cached_property
    def example(self) -> Any:
        """A value it takes, in the model's language: shown in errors and on the service's page."""
        return getattr(choose_example_texts(self.tokenizer), self.example_name)

    @property
    def precision(self) -> str:
        """Return the precision that is computed in."""
        return self.engine.precision

    @property
    def notes(self) -> tuple[str, ...]:
        """Return what the engine fell back from, and why."""
        return self.engine.notes

    @abstractmethod
    def parse(self, value: Any) -> Input:
        """Read a plain value as this kind's input."""

    @abstractmethod
    def features(self, inputs: Sequence[Input]) -> Features:
        """Tokenize E inputs into M sequences."""

    @abstractmethod
    def outputs(self, batch: LabelledBatch) -> list[Any]:
        """Run the model on a batch on its device; return a small output on the host for each of its N sequences."""

    @abstractmethod
    def results(
        self, inputs: Sequence[Input], features: Features, outputs: Sequence[Any], **options: Any
    ) -> list[Result]:
        """Return one record of plain values for each input.

        Args:
            inputs: E of them.
            features: Of these inputs.
            outputs: M, one a sequence of the features.
            **options: Some of `self.options`, such as `top`.
        """

    def __call__(self, inputs: Any, batch_tokens: int = BATCH_TOKENS, **options: Any) -> Any:
        """Answer one value, or a list of them in its order; see `parse` for what a value is.

        Args:
            inputs: One value, or several: a list, a NumPy array, a Series, a generator. A list of
                two texts is two texts, a tuple of two is a pair.
            batch_tokens: Most tokens computed at once.
            **options: As `results`.
        """
        if is_one_value(inputs):
            return self.answer([self.parse(inputs)], batch_tokens, **options)[0]
        return self.answer(self.parse_all(inputs), batch_tokens, **options)

    def parse_all(self, values: Iterable[Any]) -> list[Input]:
        """Read several values; an error names the position of the wrong one, from 0."""
        inputs = []
        for position, value in enumerate(values):
            try:
                inputs.append(self.parse(value))
            except DataError as error:
                raise DataError(
                    error.slug, f"input {position:,}: {error.message}", error.hint
                ) from None
        return inputs

    def answer(
        self,
        inputs: Sequence[Input],
        batch_tokens: int = BATCH_TOKENS,
        counts: Counter[str] | None = None,
        **options: Any,
    ) -> list[Result]:
        """Answer parsed inputs, computed in batches of like length. Arguments as `__call__`.

        `counts` gets the number of all `tokens`, and of those that are `unknown`, added.
        """
        check_options(self.kind, options, self.options)
        if not inputs:
            return []
        features = self.features(inputs)
        outputs = run_batches(self.outputs, features, batch_tokens, self.device)
        check_finite(outputs)
        results = self.results(inputs, features, outputs, **options)
        for number, tokens in truncated_examples(features):
            results[number].setdefault("truncated", tokens)
        if counts is not None:
            unknown = features.num_unknown(self.tokenizer.unk_id)
            counts.update(tokens=len(features.input_ids), unknown=unknown)
        return results

    def doubts(self, inputs: Sequence[Input]) -> tuple[str, ...]:
        """Warn about inputs unlike the training data."""
        return ()

    def bad_input_error(self, value: Any, expected: str) -> DataError:
        """Return the error for a value that is no input."""
        return DataError(
            "bad-input", f"{_short.repr(value)} is not {expected}", f"for example {self.example!r}"
        )


def check_finite(outputs: Iterable[Any]) -> None:
    """Refuse outputs, an array or a tuple of arrays for each sequence, that are not finite numbers."""
    for output in outputs:
        parts = output if isinstance(output, tuple) else (output,)
        # The largest of NaN is the first: it would be an answer like any other.
        if not all(np.isfinite(part).all() for part in parts):
            raise MachineError(
                "not-finite",
                "the model's outputs are not finite numbers",
                "its weights are broken: copy them again",
            )


def is_one_value(inputs: Any) -> bool:
    """Return whether inputs are one value. A DataFrame or a set counts as one, so that it is refused."""
    if isinstance(inputs, str | bytes | tuple | Mapping | set | frozenset) or hasattr(
        inputs, "columns"
    ):
        return True
    # An array of NumPy without dimensions is one value, and has `__iter__`.
    return not hasattr(inputs, "__iter__") or getattr(inputs, "ndim", 1) == 0


def is_text(value: Any) -> TypeGuard[str]:
    """Return whether a value is a text that can be tokenized; half a surrogate pair, which JSON can spell, cannot."""
    # Tokenizers fail on half a pair, as UTF-8 cannot spell it.
    return isinstance(value, str) and not has_half_characters(value)


def is_pair(value: Any) -> bool:
    """Return whether a value is two texts."""
    return isinstance(value, list | tuple) and len(value) == 2 and all(map(is_text, value))


def text_of_value(value: Any) -> Any:
    """Return the text of an object that has one, as rows of JSON lines mostly do; else the value itself."""
    return value.get("text", value) if isinstance(value, Mapping) else value


def check_top(top: int, max_top: int) -> None:
    """Refuse a number of guesses that is not from 1 to `max_top`."""
    if not isinstance(top, Integral) or not 1 <= top <= max_top:
        raise ConfigError(
            "bad-value", f"top is {top!r}, it must be from 1 to {max_top}", "leave it out for 5"
        )
