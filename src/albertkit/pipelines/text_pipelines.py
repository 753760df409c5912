"""Read plain values for fine-tuned models; their tasks know features, outputs and predictions."""

import re
import unicodedata
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor

from albertkit.batches.features import Features, LabelledBatch
from albertkit.embeddings.encoder import SentenceEncoder
from albertkit.engines.engine import Engine, Precision
from albertkit.errors import CheckpointError, DataError
from albertkit.model import AlbertForMaskedLM, AlbertForPreTraining
from albertkit.model.pretrained import PretrainedAlbert
from albertkit.pipelines.pipeline import (
    Pipeline,
    Result,
    check_top,
    is_pair,
    is_text,
    text_of_value,
)
from albertkit.tasks.answers import AnswerTask
from albertkit.tasks.choices import ChoiceExample, make_choice_example
from albertkit.tasks.questions import QuestionExample
from albertkit.tasks.tagging_files import TaggedExample
from albertkit.tasks.task import Task
from albertkit.tasks.texts import TextExample, TextTask, text_features
from albertkit.tokenizer import AlbertTokenizer
from albertkit.tokenizer.texts import choose_example_texts


class Embed(Pipeline[str]):
    """Compute the vector of a text.

    Args:
        encoder: Any sentence encoder.
        precision: As `Pipeline`.
    """

    kind = "embed"
    options = ("dimension",)
    example_name = "opinion"

    def __init__(self, encoder: SentenceEncoder, precision: Precision | Engine = "auto") -> None:
        super().__init__(encoder.albert, encoder.tokenizer, precision)
        self.encoder = encoder

    def parse(self, value: Any) -> str:
        """Read a text, or an object with `text`; an empty one has a vector, too."""
        value = text_of_value(value)
        if not is_text(value):
            raise self.bad_input_error(value, "a text")
        return value

    def features(self, inputs: Sequence[str]) -> Features:
        """Tokenize each text into a sequence, cut to the encoder's length."""
        return self.encoder.features(inputs)

    def outputs(self, batch: LabelledBatch) -> list[np.ndarray]:
        """Return the whole vector fp32 [D] of each sequence."""
        return list(self.encoder.vectors(batch.packed, self.engine).cpu().numpy())

    def token_states(self, batch: LabelledBatch) -> list[np.ndarray]:
        """Return the last hidden states of each sequence, fp32 [S, H], special tokens included."""
        hidden = self.engine.encode(batch.packed).hidden.float().cpu().numpy()
        return np.split(hidden, batch.packed.offsets[1:-1].tolist())

    def results(
        self,
        inputs: Sequence[str],
        features: Features,
        outputs: Sequence[Any],
        *,
        dimension: int | None = None,
        **_: Any,
    ) -> list[Result]:
        """Return `embedding`, fp32 [D], and `tokens`, how many were read."""
        numbers = self.encoder.output_dimension(dimension)
        return [
            {"embedding": vector[:numbers], "tokens": tokens}
            for vector, tokens in zip(outputs, features.lengths.tolist(), strict=True)
        ]

    def similarity(self, first: list[str], second: list[str] | None = None) -> np.ndarray:
        """Return the cosine of every text with every other: fp32 [A, B].

        Args:
            first: A texts.
            second: B texts. Default: the first ones.
        """
        a = self._stack_vectors(first)
        return self.encoder.similarity(a, a if second is None else self._stack_vectors(second))

    def _stack_vectors(self, texts: list[str]) -> np.ndarray:
        texts = [texts] if isinstance(texts, str) else list(texts)
        vectors = [record["embedding"] for record in self(texts)]
        return np.array(vectors, np.float32).reshape(
            len(texts), self.encoder.output_dimension(None)
        )


MASK = "[MASK]"
MAX_GUESSES = 50  # for a mask


class FillMask(Pipeline[str]):
    """Guess the likeliest tokens for each `[MASK]` of a text as if the others stayed hidden."""

    kind = "fill-mask"
    options = ("top",)
    example_name = "masked"

    def parse(self, value: Any) -> str:
        """Read a text with at least one `[MASK]`, or the tokenizer's own mask; or an object with such a `text`."""
        value = text_of_value(value)
        if not is_text(value):
            raise self.bad_input_error(value, "a text")
        value = value.replace(self.tokenizer.mask_token, MASK)
        if not self.tokenizer.mask_spans(value.replace(MASK, self.tokenizer.mask_token)):
            raise DataError(
                "bad-input",
                f"there is no {MASK} in {value[:80]!r}",
                f"for example {self.example!r}",
            )
        return value

    def features(self, inputs: Sequence[str]) -> Features:
        """Tokenize each text into a sequence; `masked` says at which tokens the masks are."""
        texts = [text.replace(MASK, self.tokenizer.mask_token) for text in inputs]
        rows = [
            self.tokenizer.encode(text, special_tokens=True, mask_literal=True) for text in texts
        ]
        max_tokens = self.model.config.max_position_embeddings
        for row, text in zip(rows, inputs, strict=True):
            if len(row) > max_tokens:
                raise DataError(
                    "too-large",
                    f"{text[:60]!r} … has {len(row):,} tokens, the model reads {max_tokens}",
                    "cut the text",
                )
        features = Features.from_sequences([(row, len(row)) for row in rows], range(len(rows)))
        return replace(features, per_token={"masked": features.input_ids == self.tokenizer.mask_id})

    def outputs(self, batch: LabelledBatch) -> list[tuple[np.ndarray, np.ndarray]]:
        """Return ids int64 [P, K] and probabilities fp32 [P, K] of the P masks of each sequence."""
        assert isinstance(self.model, AlbertForPreTraining | AlbertForMaskedLM)
        masked = batch.per_token["masked"]
        positions = masked.nonzero().squeeze(1)
        heads = self.model.packed_logits(replace(batch.packed, masked_positions=positions))
        logits: Tensor = heads[0] if isinstance(heads, tuple) else heads
        # Rows that only fill up the table are no tokens.
        shares = logits.float().softmax(-1)[:, : self.tokenizer.vocab_size]
        best = shares.topk(min(MAX_GUESSES, shares.shape[1]))
        # Masks before the end of each sequence but the last: where its guesses end
        ends = torch.searchsorted(positions, batch.packed.offsets[1:-1]).cpu().numpy()
        ids, probabilities = (
            np.split(part.cpu().numpy(), ends) for part in (best.indices, best.values)
        )
        return list(zip(ids, probabilities, strict=True))

    def results(
        self,
        inputs: Sequence[str],
        features: Features,
        outputs: Sequence[Any],
        *,
        top: int = 5,
        **_: Any,
    ) -> list[Result]:
        """Return `text` and `masks`: guesses, best first, with `piece`, `word` (as read in a text), `id`, `probability`."""
        check_top(top, MAX_GUESSES)
        records: list[Result] = []
        for text, masks in zip(inputs, outputs, strict=True):
            guesses_of_masks = []
            for ids, probabilities in zip(*masks, strict=True):
                guesses = []
                for i, probability in zip(
                    ids[:top].tolist(), probabilities[:top].tolist(), strict=True
                ):
                    piece, word = self.tokenizer.id_to_piece(i), self.tokenizer.decode([i]).strip()
                    guesses.append(
                        {"piece": piece, "word": word, "id": i, "probability": probability}
                    )
                guesses_of_masks.append(guesses)
            records.append({"text": text, "masks": guesses_of_masks})
        return records


class SentenceOrder(Pipeline[tuple[str, str]]):
    """Tell whether two texts stand in their order, as ALBERT was pretrained to do."""

    kind = "sentence-order"
    example_name = "ordered"

    def parse(self, value: Any) -> tuple[str, str]:
        """Read two texts in a tuple or a list, or an object with `text` and `pair`."""
        if isinstance(value, Mapping):
            value = (value.get("text"), value.get("pair"))
        if not is_pair(value) or not all(text.strip() for text in value):
            raise self.bad_input_error(value, "two texts, the first and the second")
        return value[0], value[1]

    def features(self, inputs: Sequence[tuple[str, str]]) -> Features:
        """Tokenize each pair into a sequence, cut to what the model reads."""
        firsts, seconds = zip(*inputs, strict=True)
        return text_features(
            firsts, seconds, self.tokenizer, self.model.config.max_position_embeddings
        )

    def outputs(self, batch: LabelledBatch) -> list[np.ndarray]:
        """Return probabilities fp32 [2] of each sequence: in order, swapped."""
        if not isinstance(self.model, AlbertForPreTraining):
            raise CheckpointError(
                "wrong-model",
                "the model has no sentence-order head",
                "use one that was pretrained with sentence order",
            )
        # No masked position: the vocabulary's logits are not computed.
        nowhere = batch.packed.offsets[:0]
        _, logits = self.model.packed_logits(replace(batch.packed, masked_positions=nowhere))
        return list(logits.float().softmax(-1).cpu().numpy())

    def results(
        self,
        inputs: Sequence[tuple[str, str]],
        features: Features,
        outputs: Sequence[Any],
        **_: Any,
    ) -> list[Result]:
        """Return the probabilities `in_order` and `swapped`."""
        return [{"in_order": float(shares[0]), "swapped": float(shares[1])} for shares in outputs]


# Words as CoNLL and WNUT have them: 's apart, U.S. and Jean-Pierre and 3.5 and #tag whole, and of
# punctuation a run of the same mark. Of WNUT-17's words 3.4 % come out otherwise than they are
# there; 7.7 % where every mark is a cut.
_CLITIC = r"['’](?:s|m|d|re|ve|ll)\b"
_WORD = re.compile(
    rf"{_CLITIC}|(?:[^\W\d_]\.){{2,}}|[@#]?\w+(?:(?!{_CLITIC})[-.,'’&]\w+)*|([^\w\s])\1*",
    re.IGNORECASE,
)
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
        self,
        task: Task,
        model: PretrainedAlbert,
        tokenizer: AlbertTokenizer,
        precision: Precision | Engine = "auto",
    ) -> None:
        super().__init__(model, tokenizer, precision)
        self.task = task
        # Of the inputs; for a CrossEncoder of sentence-transformers another
        self.reader: Any = tokenizer

    def features(self, inputs: Sequence[Any]) -> Features:
        """Tokenize as the task does; texts that are too long are cut or read in windows, as in training."""
        return self.task.features(inputs, self.reader, labelled=False)

    def outputs(self, batch: LabelledBatch) -> list[Any]:
        """Run the model as `Task.outputs` does."""
        return self.task.outputs(self.model, batch)

    def results(
        self, inputs: Sequence[Any], features: Features, outputs: Sequence[Any], **_: Any
    ) -> list[Result]:
        """Return the task's predictions without their ids."""
        records = self.task.predictions(inputs, features, outputs)
        return [
            {name: value for name, value in record.items() if name != "id"} for record in records
        ]


class Classify(TaskPipeline):
    """Classify a text or a pair: `label` and `probabilities`, or `labels` where it may have several."""

    kind = "classify"
    example_name = "opinion"

    @cached_property
    def example(self) -> Any:
        """A pair of texts for a task that reads pairs, else one text."""
        # A converted model does not say what it reads.
        if self._reads_pairs is None:
            return super().example
        texts = choose_example_texts(self.tokenizer)
        return texts.alike if self._reads_pairs else texts.opinion

    @property
    def _reads_pairs(self) -> bool | None:
        return self.task.reads_pairs if isinstance(self.task, TextTask) else None

    def parse(self, value: Any) -> TextExample:
        """Read a text, a tuple or list of two texts, or an object with `text` and perhaps `pair`; a text may be empty."""
        if isinstance(value, Mapping):
            text, pair = value.get("text"), value.get("pair")
        else:
            text, pair = value if is_pair(value) else (value, None)
        if is_text(text) and (pair is None or is_text(pair)):
            return TextExample("", text, pair)
        raise self.bad_input_error(value, "a text, two texts, or an object with `text` and `pair`")

    def doubts(self, inputs: Sequence[Any]) -> tuple[str, ...]:
        """Warn about single texts for a model of pairs and pairs for one of single texts."""
        if self._reads_pairs is None:
            return ()
        count = sum((example.pair is None) == self._reads_pairs for example in inputs)
        times = "" if len(inputs) == 1 else f"{count:,} of {len(inputs):,} times "
        fact = (
            "pairs of texts, asked about one alone"
            if self._reads_pairs
            else "single texts, asked about a pair"
        )
        return (f"{times}trained on {fact}",) if count else ()


class Score(Classify):
    """Score a text or a pair: `value`."""

    kind = "score"
    example_name = "alike"


@dataclass(frozen=True)
class SentenceToTag(TaggedExample):
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
    example_name = "with_names"

    def parse(self, value: Any) -> SentenceToTag:
        """Read a text, an object with `text`, or a list of words.

        A text is cut into words and punctuation marks as the data are that taggers are trained on;
        or into its characters, where the model was trained on such. An empty text has none.
        """
        value = text_of_value(value)
        characters = getattr(self.task, "layout", "words") == "characters"
        if is_text(value):
            # Accents, vowel signs and joiners become a letter, so that they do not end a word: `\w`
            # knows none of them.
            letters = ["m" if unicodedata.category(sign) in _MARKS else sign for sign in value]
            matches = _CHARACTER.finditer(value) if characters else _WORD.finditer("".join(letters))
            spans = [match.span() for match in matches]
            words = [
                # A run of spaces is one, as the data of characters have it.
                " " if value[start:end].isspace() else value[start:end]
                for start, end in spans
            ]
            return SentenceToTag(
                "", tuple(words), spaces=not characters, source=value, spans=tuple(spans)
            )
        words = list(value) if isinstance(value, list | tuple) else []
        if not words or not all(is_text(word) and word.split() == [word] for word in words):
            raise self.bad_input_error(value, "a text, or a list of words without spaces")
        return SentenceToTag("", tuple(words), spaces=not characters)

    def results(
        self, inputs: Sequence[Any], features: Features, outputs: Sequence[Any], **_: Any
    ) -> list[Result]:
        """Return the task's predictions; entities of a text have their places in it."""
        records = super().results(inputs, features, outputs)
        for sentence, record in zip(inputs, records, strict=True):
            if not sentence.source:
                continue
            gap = int(sentence.spaces)
            position = 0  # in the words, with spaces between them
            starts: dict[int, int] = {}
            ends: dict[int, int] = {}
            for word, (start, end) in zip(sentence.words, sentence.spans, strict=True):
                starts[position] = start
                ends[position + len(word)] = end
                position += len(word) + gap
            for entity in record["entities"]:
                entity["start"] = starts[entity["start"]]
                entity["end"] = ends[entity["end"]]
                entity["text"] = sentence.source[entity["start"] : entity["end"]]
        return records


class QuestionAnsweringPipeline(TaskPipeline):
    """Answer a question with a span of a text of any length: `answer`, `start`, `end` (characters), `score`, `nbest`."""

    kind = "answer"
    options = ("top",)
    example_name = "question"

    def parse(self, value: Any) -> QuestionExample:
        """Read an object with `question` and `context`."""
        question = value.get("question") if isinstance(value, Mapping) else None
        context = value.get("context") if isinstance(value, Mapping) else None
        if not (is_text(question) and is_text(context) and question.strip() and context.strip()):
            raise self.bad_input_error(value, "an object with the texts `question` and `context`")
        return QuestionExample("", question, context)

    def results(
        self,
        inputs: Sequence[Any],
        features: Features,
        outputs: Sequence[Any],
        *,
        top: int = 5,
        **_: Any,
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
            raise self.bad_input_error(
                value, "an object with `choices`, a list of texts, and `question` or `context`"
            )
        context = value.get("context")
        question = value.get("question")
        try:
            return make_choice_example(
                "",
                "" if context is None else context,
                "" if question is None else question,
                choices,
            )
        except ValueError as error:
            raise self.bad_input_error(value, f"a question with choices: {error}") from None


BY_TASK: dict[str, type[TaskPipeline]] = {
    "classification": Classify,
    "multilabel": Classify,
    "regression": Score,
    "tagging": Tag,
    "answers": QuestionAnsweringPipeline,
    "choice": Choose,
}
