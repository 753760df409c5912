"""Read plain values for fine-tuned models; their tasks know features, outputs and predictions."""

import re
import unicodedata
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from albertkit.data.features import Features, LabelledBatch
from albertkit.engines.engine import Engine, Precision
from albertkit.inference.pipeline import Pipeline, Result, check_top, is_pair, is_text, text_of
from albertkit.model.pretrained import PretrainedAlbert
from albertkit.tasks.answers import AnswerTask, QuestionExample
from albertkit.tasks.choices.reading import ChoiceExample, checked_example
from albertkit.tasks.early_exit import EarlyExit, ExitHeads, ExitRule
from albertkit.tasks.tagging.sentences import TaggedExample
from albertkit.tasks.task import Task
from albertkit.tasks.texts.task import TextExample, TextTask
from albertkit.tokenizer import AlbertTokenizer
from albertkit.tokenizer.example_texts import example_texts

# Words as CoNLL and WNUT have them: 's apart, U.S. and Jean-Pierre and 3.5 and #tag whole, and of punctuation a run of the same
# mark. Of WNUT-17's words 97 in 100 come out whole.
_CLITIC = r"['’](?:s|m|d|re|ve|ll)\b"
_WORD = re.compile(rf"{_CLITIC}|(?:[^\W\d_]\.){{2,}}|[@#]?\w+(?:(?!{_CLITIC})[-.,'’&]\w+)*|([^\w\s])\1*", re.IGNORECASE)
_MARKS = ("Mn", "Mc", "Me", "Cf")
_CHARACTER = re.compile(r"\S|(?<=\S)\s+(?=\S)")  # a run of spaces between two characters is one


class TaskPipeline(Pipeline[Any]):
    """Answer with a fine-tuned model.

    Args:
        task: What the outputs mean.
        model: Of the task's class.
        tokenizer: Its tokenizer.
        precision: As `Pipeline`.
    """

    def __init__(
        self, task: Task, model: PretrainedAlbert, tokenizer: AlbertTokenizer, precision: Precision | Engine = "auto"
    ) -> None:
        super().__init__(model, tokenizer, precision)
        self.task = task

    def features(self, inputs: Sequence[Any]) -> Features:
        """Tokenize as the task does; texts that are too long are cut or read in windows, as in training."""
        return self.task.features(inputs, self.tokenizer, labelled=False)

    def outputs(self, batch: LabelledBatch) -> list[Any]:
        """Run the model as `Task.outputs` does."""
        return self.task.outputs(self.model, batch)

    def results(self, inputs: Sequence[Any], features: Features, outputs: Sequence[Any], **_: Any) -> list[Result]:
        """Return the task's predictions without their ids."""
        records = self.task.predictions(inputs, features, outputs)
        return [{name: value for name, value in record.items() if name != "id"} for record in records]


class Classify(TaskPipeline):
    """Classify a text or a pair: `label` and `probabilities`, or `labels` where it may have several."""

    kind = "classify"
    example_name = "opinion"
    _early: EarlyExit | None = None

    def __init__(
        self, task: Task, model: PretrainedAlbert, tokenizer: AlbertTokenizer, precision: Precision | Engine = "auto"
    ) -> None:
        super().__init__(task, model, tokenizer, precision)
        if self._reads_pairs is not None:
            texts = example_texts(tokenizer)
            self.example = texts.alike if self._reads_pairs else texts.opinion

    @property
    def _reads_pairs(self) -> bool | None:
        return self.task.reads_pairs if isinstance(self.task, TextTask) else None

    def leave_early(self, exits: ExitHeads, rule: ExitRule) -> None:
        """Run as few layers as a rule asks for from now on.

        Args:
            exits: Of this model.
            rule: When to leave.
        """
        self._early = EarlyExit(self.model, exits, self.engine, rule)  # type: ignore[arg-type]

    def outputs(self, batch: LabelledBatch) -> list[Any]:
        """Run the model as `Task.outputs` does."""
        return super().outputs(batch) if self._early is None else list(self._early.logits(batch)[0].numpy())

    def parse(self, value: Any) -> TextExample:
        """Read a text, a tuple or list of two texts, or an object with `text` and perhaps `pair`; a text may be empty."""
        if isinstance(value, Mapping):
            text, pair = value.get("text"), value.get("pair")
        else:
            text, pair = value if is_pair(value) else (value, None)
        if is_text(text) and (pair is None or is_text(pair)):
            return TextExample("", text, pair)
        raise self.bad_input(value, "a text, two texts, or an object with `text` and `pair`")

    def doubts(self, inputs: Sequence[Any]) -> tuple[str, ...]:
        """Warn about single texts for a model of pairs and pairs for one of single texts."""
        if self._reads_pairs is None:
            return ()
        count = sum((example.pair is None) == self._reads_pairs for example in inputs)
        times = "" if len(inputs) == 1 else f"{count:,} of {len(inputs):,} times "
        fact = "pairs of texts, asked about one alone" if self._reads_pairs else "single texts, asked about a pair"
        return (f"{times}trained on {fact}",) if count else ()


class Score(Classify):
    """Score a text or a pair: `value`."""

    kind = "score"
    example_name = "alike"


@dataclass(frozen=True)
class Sentence(TaggedExample):
    """Hold a sentence to tag, and where its words stand in the text they were taken from.

    Attributes:
        source: The text; "" if the words were given one by one.
        spans: Start and end of each word in it, in characters.
    """

    source: str = ""
    spans: tuple[tuple[int, int], ...] = ()


class Tag(TaskPipeline):
    """Tag a sentence: `entities` with type, text, start, end (characters) and score; `words` and `tags`."""

    kind = "tag"
    example_name = "named"

    def parse(self, value: Any) -> Sentence:
        """Read a text, an object with `text`, or a list of words.

        A text is cut into words and punctuation marks as the data are that taggers are trained on; or into its characters,
        where the model was trained on such. An empty text has none.
        """
        value, characters = text_of(value), getattr(self.task, "layout", "words") == "characters"
        if is_text(value):
            matches = _CHARACTER.finditer(value) if characters else _WORD.finditer(_with_marks_as_letters(value))
            spans = [match.span() for match in matches]
            words = [" " if value[start:end].isspace() else value[start:end] for start, end in spans]
            return Sentence("", tuple(words), spaces=not characters, source=value, spans=tuple(spans))
        words = list(value) if isinstance(value, list | tuple) else []
        if not words or not all(is_text(word) and word.split() == [word] for word in words):
            raise self.bad_input(value, "a text, or a list of words without spaces")
        return Sentence("", tuple(words), spaces=not characters)

    def results(self, inputs: Sequence[Any], features: Features, outputs: Sequence[Any], **_: Any) -> list[Result]:
        """Return the task's predictions; entities of a text have their places in it."""
        records = super().results(inputs, features, outputs)
        for sentence, record in zip(inputs, records, strict=True):
            if sentence.source:
                _move_to_source(sentence, record["entities"])
        return records


def _with_marks_as_letters(text: str) -> str:
    """Replace accents, vowel signs and joiners by letters, so that they do not end a word: `\\w` knows none of them."""
    return "".join("m" if unicodedata.category(sign) in _MARKS else sign for sign in text)


def _move_to_source(sentence: Sentence, entities: list[dict[str, Any]]) -> None:
    """Move places from the words with single spaces between them to the text."""
    gap, start = int(sentence.spaces), 0
    starts, ends = {}, {}
    for word, (first, last) in zip(sentence.words, sentence.spans, strict=True):
        starts[start], ends[start + len(word)] = first, last
        start += len(word) + gap
    for entity in entities:
        entity["start"], entity["end"] = starts[entity["start"]], ends[entity["end"]]
        entity["text"] = sentence.source[entity["start"] : entity["end"]]


class Answer(TaskPipeline):
    """Answer a question with a span of a text of any length: `answer`, `start`, `end` (characters), `score`, `nbest`."""

    kind = "answer"
    options = ("top",)
    example_name = "question"

    def parse(self, value: Any) -> QuestionExample:
        """Read an object with `question` and `context`."""
        question, context = (
            (value.get("question"), value.get("context")) if isinstance(value, Mapping) else (None, None)
        )
        if not (is_text(question) and is_text(context) and question.strip() and context.strip()):
            raise self.bad_input(value, "an object with the texts `question` and `context`")
        return QuestionExample("", question, context)

    def results(
        self, inputs: Sequence[Any], features: Features, outputs: Sequence[Any], *, top: int = 5, **_: Any
    ) -> list[Result]:
        """Return the task's predictions with the first `top` of `nbest`."""
        assert isinstance(self.task, AnswerTask)
        check_top(top, self.task.n_best_size)
        records = super().results(inputs, features, outputs)
        return [{**record, "nbest": record["nbest"][:top]} for record in records]


class Choose(TaskPipeline):
    """Choose one of several texts: `label`, `index`, `probabilities`."""

    kind = "choose"
    example_name = "choice"

    def parse(self, value: Any) -> ChoiceExample:
        """Read an object with `choices`, two or more texts, and `question` or `context` or both."""
        choices = value.get("choices") if isinstance(value, Mapping) else None
        if not isinstance(choices, list | tuple) or not all(map(is_text, choices)):
            raise self.bad_input(value, "an object with `choices`, a list of texts, and `question` or `context`")
        context, question = ("" if value.get(name) is None else value[name] for name in ("context", "question"))
        try:
            return checked_example("", context, question, choices)
        except ValueError as error:
            raise self.bad_input(value, f"a question with choices: {error}") from None


BY_TASK: dict[str, type[TaskPipeline]] = {
    "classification": Classify, "multilabel": Classify, "regression": Score, "tagging": Tag, "answers": Answer,
    "choice": Choose,
}  # fmt: skip
