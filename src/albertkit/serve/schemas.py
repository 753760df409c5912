"""Define requests and answers of the endpoints, for checking and for the documentation."""

from typing import Annotated, Any, Generic, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Discriminator, Field, RootModel, StrictInt, Tag

from albertkit.serve.refusals import MAX_CHARACTERS, MAX_CHOICES, MAX_IDS, MAX_TEXTS, MAX_WORDS

ResultT = TypeVar("ResultT")
TextT = TypeVar("TextT")
ListT = TypeVar("ListT")

# --- requests -------------------------------------------------------------------------------------

# A list is given up at its first error, and a value is read as the one form that it has: an answer
# then has few errors, and they name the form that was meant.
Text = Annotated[str, Field(max_length=MAX_CHARACTERS)]
# Patterns only describe: the pipelines check them, and their errors show an example.
FilledText = Annotated[str, Field(max_length=MAX_CHARACTERS, json_schema_extra={"pattern": r"\S"})]
MaskedText = Annotated[
    str, Field(max_length=MAX_CHARACTERS, json_schema_extra={"pattern": r"\[MASK\]"})
]
Pair = Annotated[list[Text], Field(fail_fast=True, min_length=2, max_length=2)]
FilledPair = Annotated[list[FilledText], Field(fail_fast=True, min_length=2, max_length=2)]
Word = Annotated[str, Field(max_length=1000, json_schema_extra={"pattern": r"^\S+$"})]
Words = Annotated[list[Word], Field(fail_fast=True, min_length=1, max_length=MAX_WORDS)]
Ids = Annotated[
    list[Annotated[StrictInt, Field(ge=0)]], Field(fail_fast=True, min_length=1, max_length=MAX_IDS)
]
Several = Field(fail_fast=True, min_length=1, max_length=MAX_TEXTS)


def _form_tag_of_text(value: Any) -> str:
    return "form:list" if isinstance(value, list) else "form:text"


def _holds_lists(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and isinstance(value[0], list)


def _form_tag_of_input(value: Any) -> str:
    if _holds_lists(value):
        return "form:rows"
    if not isinstance(value, list):
        return "form:text"
    return "form:ids" if value and isinstance(value[0], int) else "form:texts"


OneText = Annotated[Text, Tag("form:text")]
TextOrList = Annotated[
    Annotated[TextT, Tag("form:text")] | Annotated[ListT, Tag("form:list")],
    Discriminator(_form_tag_of_text),
]
Texts = TextOrList[Text, Annotated[list[Text], Several]]
TextOrPair = TextOrList[Text, Pair]
TextsOrPairs = TextOrList[Text, Annotated[list[TextOrPair], Several]]
MaskedTexts = TextOrList[MaskedText, Annotated[list[MaskedText], Several]]
TextOrWords = TextOrList[Text, Words]
TextsOrWords = TextOrList[Text, Annotated[list[TextOrWords], Several]]
# One or several texts, or the ids of their tokens.
Input = Annotated[
    OneText
    | Annotated[list[Text], Several, Tag("form:texts")]
    | Annotated[Ids, Tag("form:ids")]
    | Annotated[list[Ids], Several, Tag("form:rows")],
    Discriminator(_form_tag_of_input),
]
_CUT = "Cut a text that is longer than the model reads. Default: refuse it, with its length."
Truncate = Annotated[bool, Field(description=_CUT)]
Dimensions = Annotated[
    int | None, Field(ge=1, le=100_000, description="Numbers kept of each vector.")
]


class Strict(BaseModel):
    """A part of a request, which has no other fields."""

    model_config = ConfigDict(extra="forbid")


class RequestBody(Strict):
    """Fields of every request."""

    model: str | None = Field(
        None, max_length=500, description="Name of a model. Default: the first that can."
    )


def _config_with_example(example: dict[str, Any]) -> ConfigDict:
    return ConfigDict(json_schema_extra={"examples": [example]})


class FillMaskRequest(RequestBody):
    """Texts with `[MASK]` where tokens are missing."""

    model_config = _config_with_example(
        {"texts": ["The following example shows how to use the [MASK]."], "top": 3}
    )

    texts: MaskedTexts
    top: int = Field(5, ge=1, le=50, description="Guesses for each mask.")


class SentenceOrderRequest(RequestBody):
    """Pairs of texts."""

    model_config = _config_with_example({"pairs": [["The kettle boiled.", "She poured the tea."]]})

    pairs: list[FilledPair] = Several
    truncate: Truncate = False


class ClassifyRequest(RequestBody):
    """Texts, or pairs of texts."""

    model_config = _config_with_example({"texts": ["A pleasure from the first page to the last."]})

    texts: TextsOrPairs
    truncate: Truncate = False


class TagRequest(RequestBody):
    """Texts, or lists of words."""

    model_config = _config_with_example(
        {"texts": ["Ada Lovelace was born in London.", ["She", "lived", "there", "."]]}
    )

    texts: TextsOrWords


class Question(Strict):
    """Question, and the text in which its answer is looked for."""

    question: FilledText
    context: FilledText


class AnswerRequest(RequestBody):
    """Questions."""

    model_config = _config_with_example(
        {
            "questions": [
                {"question": "Who wrote it?", "context": "It was written by Ada Lovelace in 1843."}
            ],
            "top": 3,
        }
    )

    questions: list[Question] = Several
    top: int = Field(5, ge=1, le=20, description="Candidates for each question.")
    truncate: bool = Field(
        False, description="Cut a question that is too long; contexts are read to their end."
    )


class Choices(Strict):
    """Choices, with a question or a context or both."""

    choices: list[FilledText] = Field(fail_fast=True, min_length=2, max_length=MAX_CHOICES)
    question: Text = ""
    context: Text = ""


class ChooseRequest(RequestBody):
    """Questions with choices."""

    model_config = _config_with_example(
        {
            "questions": [
                {
                    "context": "It rained all night.",
                    "question": "How was the street?",
                    "choices": ["wet", "dry"],
                }
            ]
        }
    )

    questions: list[Choices] = Several
    truncate: Truncate = False


class CompareRequest(RequestBody):
    """Texts that are compared with others, or among themselves."""

    model_config = _config_with_example(
        {"texts": ["A man plays the guitar.", "Someone is making music."]}
    )

    texts: list[Text] = Several
    others: Annotated[list[Text], Several] | None = None
    truncate: Truncate = False


class PassesRequest(RequestBody):
    """A text to look inside with."""

    model_config = _config_with_example({"text": "The old clock in the [MASK] has stopped again."})

    text: str = Field(min_length=1, max_length=10_000)


# --- requests of text-embeddings-inference --------------------------------------------------------


class CuttingRequest(RequestBody):
    """Fields of every request whose texts may be cut."""

    truncate: Truncate | None = None
    truncation_direction: Literal["right", "Right"] = Field(
        "right", description="Texts are cut at their end; no other direction is computed."
    )


class Options(CuttingRequest):
    """Fields of every request for vectors. The names, here and below, are those of text-embeddings-inference."""

    prompt_name: str | None = Field(
        None, max_length=500, description="A prompt of the model, put before each text."
    )


class EmbedAllRequest(Options):
    """Texts whose tokens get a vector each."""

    model_config = _config_with_example({"inputs": ["A man plays the guitar."]})

    inputs: Input


class EmbedRequest(EmbedAllRequest):
    """Texts for vectors."""

    normalize: bool = Field(True, description="Divide each vector by its length.")
    dimensions: Dimensions = None
    encoding_format: Literal["float"] = "float"


class Sentences(Strict):
    """A sentence, and those that are compared with it."""

    source_sentence: Text
    sentences: list[Text] = Several


class SentenceSimilarityRequest(RequestBody):
    """A sentence and others for their cosines."""

    model_config = _config_with_example(
        {
            "inputs": {
                "source_sentence": "A man plays the guitar.",
                "sentences": ["Someone is making music."],
            }
        }
    )

    inputs: Sentences
    parameters: Options | None = None


class SimilarityRequest(RootModel):
    """Texts to compare: `texts`, among themselves or with `others`; or one with several, as text-embeddings-inference."""

    root: Annotated[
        Annotated[CompareRequest, Tag("form:texts")]
        | Annotated[SentenceSimilarityRequest, Tag("form:inputs")],
        Discriminator(
            lambda body: (
                "form:inputs" if isinstance(body, dict) and "inputs" in body else "form:texts"
            )
        ),
    ]


OneOrTwo = Annotated[list[Text], Field(fail_fast=True, min_length=1, max_length=2)]


class AnyRequest(RootModel):
    """A request whose form follows from the model that answers it."""

    root: dict[str, Any]


class PredictParameters(Strict):
    """What huggingface_hub's client sends beside its inputs."""

    function_to_apply: Literal["sigmoid", "softmax", "none"] | None = None
    top_k: int | None = Field(None, ge=1, description="Labels that are answered.")


class PredictRequest(CuttingRequest):
    """A text, a pair as a list of two, or a list of lists of one or two texts."""

    model_config = _config_with_example(
        {"inputs": [["A pleasure from the first page to the last."], ["Dull.", "Never again."]]}
    )

    inputs: Annotated[
        OneText
        | Annotated[OneOrTwo, Tag("form:list")]
        | Annotated[list[OneOrTwo], Several, Tag("form:batch")],
        Discriminator(
            lambda value: "form:batch" if _holds_lists(value) else _form_tag_of_text(value)
        ),
    ]
    raw_scores: bool = Field(
        False, description="Answer the model's outputs before softmax or sigmoid."
    )
    parameters: PredictParameters | None = None


class RerankRequest(CuttingRequest):
    """A query and texts; for models that give a number to a pair."""

    model_config = _config_with_example(
        {"query": "Who plays?", "texts": ["A man plays the guitar.", "It rained all night."]}
    )

    query: Text
    texts: list[Text] = Several
    raw_scores: bool = Field(
        False, description="Answer the model's number in place of its sigmoid."
    )
    return_text: bool = Field(False, description="Put each text into its result.")


class TokenizeRequest(RequestBody):
    """Texts to split into tokens."""

    model_config = _config_with_example({"inputs": "A man plays the guitar."})

    inputs: Texts
    add_special_tokens: bool = Field(
        True, description="Put [CLS] before the tokens and [SEP] after them."
    )
    prompt_name: None = Field(None, description="Not read: put the prompt before the text.")


class DecodeRequest(RequestBody):
    """Ids to put into text."""

    model_config = _config_with_example({"ids": [[5, 6, 7]]})

    ids: Annotated[
        Annotated[Ids, Tag("form:ids")] | Annotated[list[Ids], Several, Tag("form:rows")],
        Discriminator(lambda value: "form:rows" if _holds_lists(value) else "form:ids"),
    ]
    skip_special_tokens: bool = True


# --- requests of OpenAI ---------------------------------------------------------------------------


class EmbeddingsRequest(BaseModel):
    """Texts for vectors, as OpenAI's clients send them; fields that are unknown here are ignored."""

    model_config = _config_with_example(
        {"model": "NAME", "input": ["A man plays the guitar."], "encoding_format": "float"}
    )

    input: Input = Field(description="Texts; or ids of their tokens, without [CLS] and [SEP].")
    model: str = Field(max_length=500)
    encoding_format: str = Field("float", pattern="^(float|base64)$")
    dimensions: Dimensions = None
    truncate: Truncate = False
    user: str | None = Field(None, max_length=1000)


# --- answers --------------------------------------------------------------------------------------


class _Read(BaseModel):
    tokens: int = Field(description="Tokens that were read.")
    truncated: int = Field(description="Tokens that were cut: 0 unless `truncate` is true.")


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
    """Probabilities of the two orders."""

    in_order: float
    swapped: float


class Class(_Read):
    """The class (`label`, `index`), or where a text may have several, its `labels`."""

    label: str | None = None
    labels: list[str] | None = None
    probabilities: dict[str, float]


class Number(_Read):
    """The number that a model of regression gives."""

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


class AnswerSpan(BaseModel):
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
    nbest: list[AnswerSpan]


class Chosen(_Read):
    """The choice: its letter, its place, and the probability of each letter."""

    label: str
    index: int
    probabilities: dict[str, float]


class CaptionResponse(BaseModel):
    """A caption."""

    text: str
    score: float
    log_probability: float


class Captioned(BaseModel):
    """Captions of a video, best first."""

    captions: list[CaptionResponse]
    sheet: str | None = Field(None, description="PNG in base64: the frames and the caption.")


class AnswerResponse(BaseModel, Generic[ResultT]):
    """One result for each text, pair or question, in their order; of similarities a row for each text."""

    model: str
    results: list[ResultT]


class PassesAnswer(BaseModel):
    """Answer of `albertkit.pipelines.layers.trace_layers`: L layers of A heads over S tokens."""

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
    """State of the service."""

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


class Scored(BaseModel):
    """A label and its score."""

    score: float
    label: str


class Info(BaseModel):
    """Version, models and limits of this service; the names are those of text-embeddings-inference.

    `model_id`, `model_type` and `max_input_length` describe the first model, which answers where
    none is named.
    """

    version: str
    models: list[str]
    model_id: str
    model_type: dict[str, dict[str, Any]]
    model_dtype: str | None = Field(description="Precision; null while the model is loaded.")
    max_input_length: int | None = Field(
        description="Tokens that are read of a text; null for captioners."
    )
    auto_truncate: bool = Field(
        description="Whether texts are cut where `truncate` is not sent: they are refused."
    )
    max_client_batch_size: int
    max_batch_tokens: int
    max_concurrent_requests: int
    max_payload_bytes: int


class Error(BaseModel):
    """Fact that is wrong, and a hint what to do. `slug` is a heading of the errors' documentation."""

    slug: str
    message: str
    hint: str


class Refusal(BaseModel, Generic[ResultT]):
    """Every answer but 200."""

    error: ResultT


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
    """Vectors as OpenAI's service answers them."""

    object: str
    data: list[Embedding]
    model: str
    usage: Usage


class ModelObject(BaseModel):
    """A model as OpenAI's service lists it."""

    id: str
    object: str
    created: int
    owned_by: str


class ModelList(BaseModel):
    """Models as OpenAI's service lists them."""

    object: str
    data: list[ModelObject]


class OpenAIError(BaseModel):
    """An error as OpenAI's service writes it."""

    message: str
    type: str
    param: str | None
    code: str | None


_REASONS = {
    400: "The body cannot be read",
    401: "The API key is missing or wrong",
    404: "No such model",
    413: "The body is too large",
    415: "The body is compressed",
    422: "The input does not fit",
    429: "Too much waits already",
    503: "The models are not ready",
    504: "It took too long",
    507: "There is no space for uploads",
}


def refusals(error: type[BaseModel] = Error) -> dict[int | str, dict[str, Any]]:
    """Return what every status but 200 means, for the documentation."""
    answer = Refusal[error]  # type: ignore[valid-type]
    return {code: {"model": answer, "description": why} for code, why in _REASONS.items()}
