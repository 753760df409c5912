"""What the endpoints answer, for the documentation."""

from typing import Any, Generic, TypeVar

from pydantic import BaseModel, Field

ResultT = TypeVar("ResultT")


class _Read(BaseModel):
    tokens: int = Field(description="Tokens that were read.")
    truncated: int = Field(description="Tokens that were cut: 0 unless `truncate` was said.")


class Guess(BaseModel):
    """A token for a mask."""

    piece: str
    word: str
    id: int
    probability: float


class Filled(BaseModel):
    """A text, and the guesses for each of its masks, best first."""

    text: str
    masks: list[list[Guess]]


class Order(_Read):
    """Probabilities."""

    in_order: float
    swapped: float


class Class(_Read):
    """The class (`label`, `index`), or where a text may have several, its `labels`."""

    label: str | None = None
    labels: list[str] | None = None
    probabilities: dict[str, float]


class Number(_Read):
    """A number."""

    value: float


class Entity(BaseModel):
    """An entity; `start` and `end` in characters."""

    type: str
    text: str
    start: int
    end: int
    score: float


class Tagged(BaseModel):
    """Words with a tag each, and the entities they make."""

    words: list[str]
    tags: list[str]
    entities: list[Entity]


class Span(BaseModel):
    """A candidate; `start` and `end` in characters, null for "no answer"."""

    text: str
    probability: float
    start: int | None = None
    end: int | None = None


class Answered(_Read):
    """The answer, "" if there is none, and the candidates, best first."""

    answer: str
    score: float
    start: int | None = None
    end: int | None = None
    nbest: list[Span]


class Chosen(_Read):
    """The choice: its letter, its place, and the probability of each letter."""

    label: str
    index: int
    probabilities: dict[str, float]


class Caption(BaseModel):
    """A caption."""

    text: str
    score: float
    log_probability: float


class Captioned(BaseModel):
    """Captions of a video, best first."""

    captions: list[Caption]


class Answer(BaseModel, Generic[ResultT]):
    """One result for each text, pair or question, in their order; of similarities a row for each text."""

    model: str
    results: list[ResultT]


class PassesAnswer(BaseModel):
    """Answer of `albertkit.inference.layers.look_inside`: L layers of A heads over S tokens."""

    model: str
    tokens: list[str]
    left_out: int
    passes: int
    attention: list[list[list[list[float]]]] = Field(description="[L][A][S][S]")
    similarity: list[list[float]] = Field(description="[S][L]")
    step: list[list[float]] = Field(description="[S][L]")
    states_2d: list[list[list[float]]] = Field(description="[S][L+1][2]")
    variance: list[float]
    predictions: list[dict[str, Any]] | None


class Listed(BaseModel):
    """A model that is served; `precision` is null while it is loaded."""

    name: str
    kinds: list[str]
    precision: str | None
    notes: list[str]
    examples: dict[str, Any]


class Listing(BaseModel):
    """All models."""

    models: list[Listed]


class Status(BaseModel):
    """Whether the service can answer."""

    status: str


class Token(BaseModel):
    """A token; `start` and `stop` in characters, null for special ones."""

    id: int
    text: str
    special: bool
    start: int | None
    stop: int | None


class Rank(BaseModel):
    """A text: its place in the request, and its score."""

    index: int
    score: float
    text: str | None = None


class Info(BaseModel):
    """What this service is, and its limits; the names are those of text-embeddings-inference."""

    version: str
    models: list[str]
    max_client_batch_size: int
    max_batch_tokens: int
    max_concurrent_requests: int
    max_payload_bytes: int


class Fault(BaseModel):
    """What is wrong, and what to do. `slug` is a heading of the errors' documentation."""

    slug: str
    message: str
    hint: str


class FaultAnswer(BaseModel):
    """Every answer but 200."""

    error: Fault


# --- OpenAI's ---------------------------------------------------------------------------------------------------------


class Embedding(BaseModel):
    """A vector: numbers, or float32 little-endian in base64."""

    object: str
    index: int
    embedding: list[float] | str


class Usage(BaseModel):
    """Tokens that were read."""

    prompt_tokens: int
    total_tokens: int


class EmbeddingsAnswer(BaseModel):
    """As OpenAI's."""

    object: str
    data: list[Embedding]
    model: str
    usage: Usage


class ModelObject(BaseModel):
    """As OpenAI's."""

    id: str
    object: str
    created: int
    owned_by: str


class ModelList(BaseModel):
    """As OpenAI's."""

    object: str
    data: list[ModelObject]


class OpenAIFault(BaseModel):
    """As OpenAI's."""

    message: str
    type: str
    param: str | None
    code: str | None


class OpenAIFaultAnswer(BaseModel):
    """As OpenAI's."""

    error: OpenAIFault
