"""What the endpoints take, for checking and for the documentation."""

from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Discriminator, Field, StrictInt, Tag

from albertkit.serve.bounds import MOST_CHARACTERS, MOST_CHOICES, MOST_PIECES, MOST_TEXTS, MOST_WORDS

# A list is given up at its first fault, and a value is read as the one form that it has: a body has few faults, and they are
# told of what was meant.
Text = Annotated[str, Field(max_length=MOST_CHARACTERS)]
Pair = Annotated[list[Text], Field(fail_fast=True, min_length=2, max_length=2)]
Words = Annotated[
    list[Annotated[str, Field(max_length=1000)]], Field(fail_fast=True, min_length=1, max_length=MOST_WORDS)
]
Ids = Annotated[list[StrictInt], Field(fail_fast=True, min_length=1, max_length=MOST_PIECES)]
Several = Field(fail_fast=True, min_length=1, max_length=MOST_TEXTS)


def _form(value: Any) -> str:
    return "form:list" if isinstance(value, list) else "form:text"


def _form_of_input(value: Any) -> str:
    first = value[0] if isinstance(value, list) and value else ""
    kind = "form:rows" if isinstance(first, list) else "form:ids" if isinstance(first, int) else "form:texts"
    return kind if isinstance(value, list) else "form:text"


OneText = Annotated[Text, Tag("form:text")]
Texts = Annotated[
    OneText | Annotated[list[Text], Several, Tag("form:list")],
    Discriminator(_form),
]
TextOrPair = Annotated[OneText | Annotated[Pair, Tag("form:list")], Discriminator(_form)]
TextsOrPairs = Annotated[
    OneText | Annotated[list[TextOrPair], Several, Tag("form:list")],
    Discriminator(_form),
]
TextOrWords = Annotated[OneText | Annotated[Words, Tag("form:list")], Discriminator(_form)]
TextsOrWords = Annotated[
    OneText | Annotated[list[TextOrWords], Several, Tag("form:list")],
    Discriminator(_form),
]
Input = Annotated[
    OneText
    | Annotated[list[Text], Several, Tag("form:texts")]
    | Annotated[Ids, Tag("form:ids")]
    | Annotated[list[Ids], Several, Tag("form:rows")],
    Discriminator(_form_of_input),
]
Truncate = Annotated[
    bool, Field(description="Cut a text that is longer than the model reads. Default: refuse it, with its length.")
]


class Body(BaseModel):
    """What every request may say."""

    model_config = ConfigDict(extra="forbid")

    model: Annotated[str | None, Field(max_length=500, description="Name of a model. Default: the first that can.")] = (
        None
    )


def _example(example: dict[str, Any]) -> ConfigDict:
    return ConfigDict(extra="forbid", json_schema_extra={"examples": [example]})


class FillMaskRequest(Body):
    """Texts with `[MASK]` where pieces are missing."""

    model_config = _example({"texts": ["Paris is the [MASK] of France."], "top": 3})

    texts: Texts
    top: Annotated[int, Field(ge=1, le=50, description="Guesses for each mask.")] = 5


class SentenceOrderRequest(Body):
    """Pairs of texts."""

    model_config = _example({"pairs": [["The kettle boiled.", "She poured the tea."]]})

    pairs: Annotated[list[Pair], Several]
    truncate: Truncate = False


class ClassifyRequest(Body):
    """Texts, or pairs of texts."""

    model_config = _example({"texts": ["A pleasure from the first page to the last."]})

    texts: TextsOrPairs
    truncate: Truncate = False


class TagRequest(Body):
    """Texts, or lists of words."""

    model_config = _example({"texts": ["Ada Lovelace was born in London.", ["She", "lived", "there", "."]]})

    texts: TextsOrWords


class Question(BaseModel):
    """A question, and the text in which its answer is looked for."""

    model_config = ConfigDict(extra="forbid")

    question: Text
    context: Text


class AnswerRequest(Body):
    """Questions."""

    model_config = _example(
        {"questions": [{"question": "Who wrote it?", "context": "It was written by Ada Lovelace in 1843."}], "top": 3}
    )

    questions: Annotated[list[Question], Several]
    top: Annotated[int, Field(ge=1, le=20, description="Candidates for each question.")] = 5
    truncate: Annotated[bool, Field(description="Cut a question that is too long; contexts are read to their end.")] = (
        False
    )


class Choices(BaseModel):
    """Choices, with a question or a context or both."""

    model_config = ConfigDict(extra="forbid")

    choices: Annotated[list[Text], Field(fail_fast=True, min_length=2, max_length=MOST_CHOICES)]
    question: Text = ""
    context: Text = ""


class ChooseRequest(Body):
    """Questions with choices."""

    model_config = _example(
        {
            "questions": [
                {"context": "It rained all night.", "question": "How was the street?", "choices": ["wet", "dry"]}
            ]
        }
    )

    questions: Annotated[list[Choices], Several]
    truncate: Truncate = False


class SimilarityRequest(Body):
    """Texts that are compared with others, or among themselves."""

    model_config = _example({"texts": ["A man plays the guitar.", "Someone is making music."]})

    texts: Annotated[list[Text], Several]
    others: Annotated[list[Text], Several] | None = None
    truncate: Truncate = False


class TokenizeRequest(Body):
    """Texts to split into tokens; `inputs` as text-embeddings-inference has it."""

    model_config = _example({"inputs": "A man plays the guitar."})

    inputs: Texts
    add_special_tokens: Annotated[bool, Field(description="Put [CLS] before the tokens and [SEP] after them.")] = True


class RerankRequest(Body):
    """A query and texts, as text-embeddings-inference has it; for models that give a number to a pair."""

    model_config = _example({"query": "Who plays?", "texts": ["A man plays the guitar.", "It rained all night."]})

    query: Text
    texts: Annotated[list[Text], Several]
    truncate: Truncate = False
    return_text: Annotated[bool, Field(description="Put each text into its result.")] = False


class PassesRequest(Body):
    """A text to look inside with."""

    model_config = _example({"text": "The old clock in the [MASK] has stopped again."})

    text: Annotated[str, Field(min_length=1, max_length=10_000)]


class EmbeddingsRequest(BaseModel):
    """OpenAI's, whose clients may send more than is known here."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [{"model": "NAME", "input": ["A man plays the guitar."], "encoding_format": "float"}]
        }
    )

    input: Input = Field(description="Texts; or ids of their tokens, without [CLS] and [SEP].")
    model: Annotated[str, Field(max_length=500)]
    encoding_format: Annotated[str, Field(pattern="^(float|base64)$")] = "float"
    dimensions: Annotated[int | None, Field(ge=1, le=100_000, description="Numbers kept of each vector.")] = None
    truncate: Truncate = False
    user: Annotated[str | None, Field(max_length=1000)] = None
