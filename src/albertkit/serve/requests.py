"""What the endpoints take, for checking and for the documentation."""

from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field

MOST_TEXTS = 2048  # of a request, as OpenAI's
MOST_CHARACTERS = 100_000  # of a text: 20,000 words
MOST_PIECES = 8192  # tokens of a text that is given as ids; what the model does not read is cut

Text = Annotated[str, Field(max_length=MOST_CHARACTERS)]
Pair = Annotated[list[Text], Field(min_length=2, max_length=2)]
Words = Annotated[list[Annotated[str, Field(max_length=1000)]], Field(min_length=1, max_length=MOST_CHARACTERS // 10)]
Several = Field(min_length=1, max_length=MOST_TEXTS)


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

    texts: Text | Annotated[list[Text], Several]
    top: Annotated[int, Field(ge=1, le=50, description="Guesses for each mask.")] = 5


class SentenceOrderRequest(Body):
    """Pairs of texts."""

    model_config = _example({"pairs": [["The kettle boiled.", "She poured the tea."]]})

    pairs: Annotated[list[Pair], Several]


class ClassifyRequest(Body):
    """Texts, or pairs of texts."""

    model_config = _example({"texts": ["A pleasure from the first page to the last."]})

    texts: Text | Annotated[list[Text | Pair], Several]


class TagRequest(Body):
    """Texts, or lists of words."""

    model_config = _example({"texts": ["Ada Lovelace was born in London.", ["She", "lived", "there", "."]]})

    texts: Text | Annotated[list[Text | Words], Several]


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


class Choices(BaseModel):
    """Choices, with a question or a context or both."""

    model_config = ConfigDict(extra="forbid")

    choices: Annotated[list[Text], Field(min_length=2, max_length=26)]
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


class SimilarityRequest(Body):
    """Texts that are compared with others, or among themselves."""

    model_config = _example({"texts": ["A man plays the guitar.", "Someone is making music."]})

    texts: Annotated[list[Text], Several]
    others: Annotated[list[Text], Several] | None = None


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

    input: (
        Text
        | Annotated[list[Text], Several]
        | Annotated[list[int], Field(min_length=1, max_length=MOST_PIECES)]
        | Annotated[list[Annotated[list[int], Field(min_length=1, max_length=MOST_PIECES)]], Several]
    ) = Field(
        description="Texts; or ids of their pieces, without [CLS] and [SEP]. A text beyond the model's length is cut."
    )
    model: Annotated[str, Field(max_length=500)]
    encoding_format: Annotated[str, Field(pattern="^(float|base64)$")] = "float"
    dimensions: Annotated[int | None, Field(ge=1, le=100_000, description="Numbers kept of each vector.")] = None
    user: str | None = None
