"""Any model that makes vectors of texts, to be measured, to sample with or to be drawn: ALBERTs through our encoder, others
through sentence-transformers."""

import copy
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch

from albertkit.embeddings.encoder import (
    SentenceEncoder,
    batches_of_like_length,
    choose_prompt,
    unknown_words_notes,
)
from albertkit.embeddings.folder import MODULES, check_pooling
from albertkit.embeddings.metrics import normalize_vectors
from albertkit.engines.engine import Precision
from albertkit.errors import (
    CheckpointError,
    ConfigError,
    MachineError,
    first_line,
    requires_package,
)
from albertkit.files import folder_digest, read_typed, sha256_bytes
from albertkit.model_paths import local_folder
from albertkit.output.progress import ProgressBar, quiet_transformers
from albertkit.tokenizer import AlbertTokenizer
from albertkit.tokenizer.ragged import RaggedIds, concatenate_ids

# E5 was trained with prompts that the settings of its folders do not name.
_E5 = re.compile(r"(^|[-_/])e5([-_/]|$)", re.IGNORECASE)


class Compute(Protocol):
    """Computes vectors of E texts; arguments as `SentenceEncoder.encode`, `progress` counts texts."""

    def __call__(
        self,
        texts: Sequence[str],
        *,
        dimension: int | None = None,
        normalize: bool = False,
        batch_tokens: int = 8192,
        progress: ProgressBar | None = None,
    ) -> tuple[np.ndarray, int]:
        """Return fp32 [E, dimension] and the number of texts that were truncated."""


@dataclass(frozen=True)
class EmbeddingModel:
    """Computes vectors of texts by our encoder or by sentence-transformers."""

    name: str
    description: str
    dimension: int  # D, numbers of a vector of `encode`
    full_dimension: int  # as many numbers as `compute` can return
    compute: Compute
    # Without special tokens; None without a tokenizer
    token_ids: Callable[[Sequence[str]], RaggedIds] | None
    digest: Callable[[], str]  # SHA-256 of all that decides the vectors
    precision: str = "fp32"
    # Longest text in tokens, without special tokens and the prompt; None: any
    room: int | None = None
    max_length: int = 0  # the limit to report: special tokens are included for our encoder; 0: none
    notes: tuple[str, ...] = ()  # what a user should know about how the vectors are computed
    tokenizer: AlbertTokenizer | None = None  # of a model that this package runs

    def num_truncated(self, texts: Sequence[str]) -> int:
        """Return the number of texts that are longer than the model reads."""
        if self.token_ids is None or self.room is None:
            return 0
        return int((np.diff(self.token_ids(texts).offsets) > self.room).sum())

    def truncation_and_unknown_notes(self, texts: Sequence[str]) -> list[str]:
        """Warn of texts that are truncated, and of words that the tokenizer does not know."""
        count = self.num_truncated(texts)
        cut = (
            [f"{count:,} of {len(texts):,} texts are longer than {self.room} tokens and were cut"]
            if count
            else []
        )
        return cut + (unknown_words_notes(texts, self.tokenizer) if self.tokenizer else [])

    def encode(self, texts: Sequence[str]) -> np.ndarray:
        """Return vectors of E texts, fp32 [E, D]."""
        vectors, _ = self.compute(texts)
        num_bad = int((~np.isfinite(vectors).all(1)).sum())
        if num_bad:
            raise MachineError(
                "not-finite",
                f"`{self.name}` gives {num_bad:,} of {len(texts):,} texts a vector that is not finite",
                "its weights hold NaN or infinity, or its training diverged: use an earlier checkpoint",
            )
        return vectors


def load_embedding_model(
    model: str | Path | SentenceEncoder,
    precision: Precision = "auto",
    prompt_name: str | None = None,
    prompt: str | None = None,
    device: str | None = None,
    length: int | None = None,
) -> EmbeddingModel:
    """Open a model as `EncodeOptions` name it: an ALBERT as our encoder, any other through sentence-transformers, in fp32.

    `length` is of the longest text, in tokens. By default an ALBERT runs on a GPU if there is one.
    """
    if isinstance(model, SentenceEncoder):
        encoder = copy.copy(model.with_prompt(prompt_name, prompt))
        name = "the encoder"
        unnamed = ""
    else:
        folder = find_model_in_package(str(model)) or local_folder(model)
        name = str(model)
        if not is_albert_folder(folder):
            if precision not in ("auto", "fp32"):
                raise ConfigError(
                    "unknown-name",
                    f"`{name}` is not an ALBERT: it runs in fp32",
                    f"leave out --precision {precision}",
                )
            return open_with_sentence_transformers(
                name, str(folder), prompt_name, prompt, device, length
            )
        encoder = SentenceEncoder.from_pretrained(folder).with_prompt(prompt_name, prompt)
        unnamed = "" if (folder / MODULES).exists() else ", which the checkpoint does not name"
    if length is not None:
        encoder.max_length = length
    encoder.to(device or ("cuda" if torch.cuda.is_available() else "cpu"))
    engine = encoder.engine(precision)

    def compute(texts: Sequence[str], **options: Any) -> tuple[np.ndarray, int]:
        features = encoder.features(texts)
        return encoder.vectors_of(features, engine, **options), features.num_truncated

    pooling = " and ".join(check_pooling(encoder.pooling))
    return EmbeddingModel(
        name,
        f"ALBERT of {encoder.config.num_hidden_layers} layers in {engine.precision}, {pooling} pooling{unnamed}",
        encoder.output_dimension(None),
        encoder.dimension,
        compute,
        encoder.tokenizer.encode_batch,
        encoder.digest,
        engine.precision,
        # Less [CLS] and [SEP].
        room=encoder.max_length - 2 - len(encoder.tokenizer.encode(encoder.prompt)),
        max_length=encoder.max_length,
        notes=(*engine.notes, *prompt_use_notes(name, encoder.prompts, encoder.prompt)),
        tokenizer=encoder.tokenizer,
    )


def is_albert_folder(folder: Path) -> bool:
    """Return whether a folder holds an ALBERT, by its `config.json`."""
    config = folder / "config.json"
    values = read_typed(config, dict[str, Any]) if config.exists() else {}
    return values.get("model_type") == "albert"


def find_model_in_package(name: str) -> Path | None:
    """Return the folder of sentence embeddings that an installed package carries, found by the package's own list of files."""
    try:
        files = [] if Path(name).exists() else metadata.files(name) or []
    except (metadata.PackageNotFoundError, ValueError):
        return None
    module_files = [Path(str(file.locate())) for file in files if file.name == MODULES]
    return module_files[0].parent if len(module_files) == 1 else None


def open_sentence_transformer(source: str, device: str | None) -> Any:
    """Load a model of a folder or of the hub by sentence-transformers."""
    from sentence_transformers import SentenceTransformer

    with quiet_transformers(keep_warnings=True):
        return SentenceTransformer(source, device=device)


def prompt_use_notes(name: str, prompts: Mapping[str, str], used_prompt: str) -> tuple[str, ...]:
    """Warn of a model that was trained with prompts (name to prompt) and is used without one (`used_prompt` is "")."""
    if used_prompt:
        return (f"prompt: `{used_prompt}` before every text",)
    unused = ", ".join(f"{prompt_name} `{text}`" for prompt_name, text in prompts.items() if text)
    if unused:
        return (f"the model has prompts ({unused}) and none is used: name one with --prompt-name",)
    if _E5.search(name):
        return (
            "E5 models read `query: ` or `passage: ` before every text, and no prompt is used: --prompt 'query: '",
        )
    return ()


def open_with_sentence_transformers(
    name: str,
    source: str,
    prompt_name: str | None = None,
    prompt: str | None = None,
    device: str | None = None,
    length: int | None = None,
) -> EmbeddingModel:
    """Open a folder or a model of the hub through sentence-transformers; `length` is of the longest text, in tokens."""
    with requires_package("sentence-transformers", "embed", "a model that is not an ALBERT"):
        metadata.version("sentence-transformers")
    try:
        model = open_sentence_transformer(source, device)
    except Exception as error:  # of transformers, torch or its own: they share no base class
        reason = first_line(error)
        raise CheckpointError(
            "wrong-model",
            f"sentence-transformers cannot load `{name}`: {reason}",
            "check the name and the connection; or name a sentence-transformers folder, an installed package that carries a "
            "model, an ALBERT checkpoint, or a run of `albertkit embed train`",
        ) from None
    default = model.default_prompt_name if prompt is None else None
    used = choose_prompt(model.prompts, default if prompt_name is None else prompt_name, prompt)
    if length is not None:
        model.max_seq_length = length

    def encode(texts: list[str]) -> np.ndarray:
        vectors = model.encode(
            texts,
            convert_to_numpy=True,
            show_progress_bar=False,
            prompt=used or None,
        )
        return np.asarray(vectors, np.float32)

    # A module of somebody's own need not say how many numbers it makes.
    full_dimension = encode(["a"]).shape[1]
    token_ids = _make_token_ids_function(model.tokenizer)
    room = None
    if token_ids is not None and isinstance(model.max_seq_length, int):
        specials = len(model.tokenizer("a")["input_ids"]) - len(token_ids(["a"]).ids)
        room = model.max_seq_length - specials - (len(token_ids([used]).ids) if used else 0)

    def compute(
        texts: Sequence[str],
        *,
        dimension: int | None = None,
        normalize: bool = False,
        batch_tokens: int = 8192,
        progress: ProgressBar | None = None,
    ) -> tuple[np.ndarray, int]:
        dimension = full_dimension if dimension is None else dimension
        # Where nothing counts tokens, characters do: lengths only sort the texts then.
        lengths = np.array([len(text) for text in texts], np.int64)
        if token_ids is not None:
            lengths = np.diff(token_ids(texts).offsets)
        read_lengths = lengths if room is None else np.minimum(lengths, room)
        vectors = np.empty((len(texts), dimension), np.float32)
        for run in batches_of_like_length(read_lengths + 1, batch_tokens):
            vectors[run] = encode([texts[number] for number in run.tolist()])[:, :dimension]
            if progress is not None:
                progress.update(progress.completed + len(run))
        return normalize_vectors(vectors) if normalize else vectors, int(
            (lengths > read_lengths).sum()
        )

    notes = prompt_use_notes(name, model.prompts, used)
    return EmbeddingModel(
        name,
        f"sentence-transformers: {' '.join(type(module).__name__ for module in model)}",
        full_dimension,
        full_dimension,
        compute,
        token_ids,
        lambda: sha256_bytes(f"{folder_digest(Path(source))} {notes} {room}".encode()),
        room=room,
        max_length=room or 0,
        notes=notes,
    )


def _make_token_ids_function(tokenizer: Any) -> Callable[[Sequence[str]], RaggedIds] | None:
    if not callable(tokenizer):  # static embeddings have a tokenizer of another kind
        return None

    def token_ids(texts: Sequence[str]) -> RaggedIds:
        rows = tokenizer(list(texts), add_special_tokens=False, truncation=False, verbose=False)[
            "input_ids"
        ]
        return concatenate_ids([np.asarray(row, np.int32) for row in rows])

    return token_ids
