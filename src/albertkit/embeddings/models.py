"""Any model that makes vectors of texts, to be measured, to sample with or to be drawn: ALBERTs through our encoder, others
through sentence-transformers."""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np
import torch

from albertkit.embeddings.encoder import SentenceEncoder
from albertkit.embeddings.folder import MODULES
from albertkit.embeddings.metrics import unit_vectors
from albertkit.embeddings.pooling import check_pooling
from albertkit.embeddings.unknown_words import unknown_note
from albertkit.engines.engine import Precision
from albertkit.errors import CheckpointError, ConfigError, DataError, MissingExtraError, near_miss
from albertkit.files import read_json, sha256_bytes, sha256_file
from albertkit.model_folder import local_folder
from albertkit.tokenizer import AlbertTokenizer
from albertkit.tokenizer.ragged import RaggedIds, ragged

_E5 = re.compile(r"(^|[-_/])e5([-_/]|$)", re.IGNORECASE)


@dataclass(frozen=True, eq=False)
class TextsOfLengths:
    """E texts, as a model that sentence-transformers runs is given them.

    Attributes:
        texts: Themselves.
        lengths: int64 [E], their tokens; of a model without a tokenizer their characters.
        num_truncated: Number of texts that are longer than the model reads.
    """

    texts: Sequence[str]
    lengths: np.ndarray
    num_truncated: int


@dataclass(frozen=True)
class EmbeddingModel:
    """Texts to vectors, whoever computes them.

    Attributes:
        name: As it was given.
        description: What it is, in words.
        dimension: D.
        compute: E texts to fp32 [E, D]; `encode` also looks at what comes out.
        token_ids: E texts to the ids of their tokens, without special tokens; None for a model without a tokenizer.
        room: Tokens of a text that the model reads, without special tokens and the prompt; longer texts are cut. None: all.
        notes: What a user should know about how the vectors are computed.
        tokenizer: Of a model that this package runs.
        source: Folder or name of a model that sentence-transformers runs.
    """

    name: str
    description: str
    dimension: int
    compute: Callable[[Sequence[str]], np.ndarray]
    token_ids: Callable[[Sequence[str]], RaggedIds] | None
    room: int | None = None
    notes: tuple[str, ...] = ()
    tokenizer: AlbertTokenizer | None = None
    source: str = ""

    def num_truncated(self, texts: Sequence[str]) -> int:
        """Number of texts that are longer than the model reads."""
        if self.token_ids is None or self.room is None:
            return 0
        return int((np.diff(self.token_ids(texts).offsets) > self.room).sum())

    def reading_notes(self, texts: Sequence[str]) -> list[str]:
        """Warn of texts that are cut, and of words that the tokenizer does not know."""
        count = self.num_truncated(texts)
        cut = [f"{count:,} of {len(texts):,} texts are longer than {self.room} tokens and were cut"] if count else []
        return cut + (unknown_note(texts, self.tokenizer) if self.tokenizer else [])

    def encode(self, texts: Sequence[str]) -> np.ndarray:
        """Vectors of E texts, fp32 [E, D]."""
        vectors = self.compute(texts)
        if bad := int((~np.isfinite(vectors).all(1)).sum()):
            raise CheckpointError(
                "not-finite",
                f"`{self.name}` gives {bad:,} of {len(texts):,} texts a vector that is not finite",
                "its weights hold NaN or infinity, or its training diverged: use an earlier checkpoint",
            )
        return vectors

    # --- what the encoding of files asks of an encoder that sentence-transformers runs -------------------------------------

    @property
    def max_length(self) -> int:
        """Tokens that the model reads, without special tokens and the prompt; 0 if it reads all."""
        return self.room or 0

    def features(self, texts: Sequence[str]) -> TextsOfLengths:
        """Return texts with their lengths."""
        lengths = np.array([len(text) for text in texts], np.int64)
        if self.token_ids is not None:
            lengths = np.diff(self.token_ids(texts).offsets)
        cut = 0 if self.room is None else int((lengths > self.room).sum())
        return TextsOfLengths(texts, lengths + 1 if self.room is None else np.minimum(lengths, self.room) + 1, cut)

    def kept(self, dimension: int | None) -> int:
        """Return how many numbers of a vector are written."""
        kept = self.dimension if dimension is None else dimension
        if not 0 < kept <= self.dimension:
            fact = f"{kept} numbers of vectors that have {self.dimension}"
            raise ConfigError("bad-value", fact, f"use 1 to {self.dimension}")
        return kept

    def encode_run(self, features: TextsOfLengths, run: np.ndarray, dimension: int, normalize: bool) -> np.ndarray:
        """Return vectors of some texts, computed at once: fp32 [N, dimension]."""
        vectors = self.compute([features.texts[n] for n in run.tolist()])[:, :dimension]
        return np.ascontiguousarray(unit_vectors(vectors) if normalize else vectors)

    def digest(self) -> str:
        """Return the SHA-256 of all that decides the vectors."""
        return sha256_bytes(f"{folder_digest(Path(self.source))} {self.notes} {self.room}".encode())


def folder_digest(folder: Path) -> str:
    """SHA-256 of all files of a model."""
    files = sorted(
        p for p in folder.rglob("*") if p.is_file() and p.suffix in (".json", ".safetensors", ".bin", ".txt", ".model")
    )
    return sha256_bytes("".join(f"{p.relative_to(folder)} {sha256_file(p)}\n" for p in files).encode())


def load_embedding_model(
    model: str | Path,
    precision: Precision = "auto",
    prompt_name: str | None = None,
    prompt: str | None = None,
    device: str | None = None,
) -> EmbeddingModel:
    """Open a model; on a GPU if there is one.

    Args:
        model: A sentence-transformers folder, a run of `embed train`, a plain ALBERT checkpoint, which then has mean pooling,
            `org/name` of the hub, or the name of an installed package that carries a model. What is no ALBERT is run by
            sentence-transformers.
        precision: Of an ALBERT: fp32, bf16, int8, or auto: bf16 where the hardware multiplies it faster. Others have fp32.
        prompt_name: Name of the prompt, of those that the model has, that is put before every text. Default: the model's own
            default.
        prompt: The prompt itself, in place of a named one.
        device: Of the model. Default: a GPU if there is one.
    """
    folder = embedding_folder(model)
    if is_albert(folder):
        return _albert(str(model), folder, precision, prompt_name, prompt, device)
    check_other_precision(model, precision)
    return open_other(str(model), str(folder), prompt_name, prompt, device)


def check_other_precision(model: object, precision: str) -> None:
    """Refuse a precision for a model that is no ALBERT."""
    if precision not in ("auto", "fp32"):
        raise ConfigError(
            "unknown-name", f"`{model}` is no ALBERT: it runs in fp32", f"leave out --precision {precision}"
        )


def embedding_folder(model: str | Path) -> Path:
    """Return the folder of a model: as named, the model of a run, of an installed package, or brought from the hub."""
    return model_in_package(str(model)) or local_folder(model)


def is_albert(folder: Path) -> bool:
    """Return whether a folder holds an ALBERT, by its `config.json`."""
    config = folder / "config.json"
    values = read_json(config) if config.exists() else {}
    if not isinstance(values, dict):
        raise DataError("bad-file", f"`{config}` holds no names and values", "copy it again")
    return values.get("model_type") == "albert"


def model_in_package(name: str) -> Path | None:
    """The folder of sentence embeddings that an installed package carries, found by the package's own list of files."""
    try:
        files = [] if Path(name).exists() else metadata.files(name) or []
    except (metadata.PackageNotFoundError, ValueError):
        return None
    found = [Path(str(file.locate())) for file in files if file.name == MODULES]
    return found[0].parent if len(found) == 1 else None


def open_sentence_transformer(source: str, device: str | None = None) -> Any:
    """sentence-transformers' model of a folder or of the hub, without transformers' progress bar of a fraction of a second."""
    from sentence_transformers import SentenceTransformer
    from transformers.utils import logging

    shown = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        return SentenceTransformer(source, device=device)
    finally:
        if shown:
            logging.enable_progress_bar()


def _albert(
    name: str, folder: Path, precision: Precision, prompt_name: str | None, prompt: str | None, device: str | None
) -> EmbeddingModel:
    encoder = SentenceEncoder.from_pretrained(folder).with_prompt(prompt_name, prompt)
    encoder.to(device or ("cuda" if torch.cuda.is_available() else "cpu"))
    pooling = " and ".join(check_pooling(encoder.pooling))
    named = "" if (folder / "modules.json").exists() else ", which the checkpoint does not name"
    engine = encoder.engine(precision)
    description = f"ALBERT of {encoder.config.num_hidden_layers} layers in {engine.precision}, {pooling} pooling{named}"

    def encode(texts: Sequence[str]) -> np.ndarray:
        return encoder.vectors_of(encoder.features(texts), engine)

    room = encoder.max_length - 2 - len(encoder.tokenizer.encode(encoder.prompt))
    notes = (*engine.notes, *prompt_notes(name, encoder.settings.get("prompts") or {}, encoder.prompt))
    tokenizer = encoder.tokenizer
    return EmbeddingModel(name, description, encoder.kept(None), encode, tokenizer.encode_batch, room, notes, tokenizer)


def prompt_notes(name: str, prompts: Mapping[str, str], used: str) -> tuple[str, ...]:
    """Warn of a model that was trained with prompts (name to prompt) and is used without one (`used` is "")."""
    if used:
        return (f"prompt: `{used}` before every text",)
    if known := [f"{prompt_name} `{text}`" for prompt_name, text in prompts.items() if text]:
        return (f"the model has prompts ({', '.join(known)}) and none is used: name one with --prompt-name",)
    if _E5.search(name):
        return ("E5 models read `query: ` or `passage: ` before every text, and no prompt is used: --prompt 'query: '",)
    return ()


def open_other(
    name: str,
    source: str,
    prompt_name: str | None = None,
    prompt: str | None = None,
    device: str | None = None,
    length: int | None = None,
) -> EmbeddingModel:
    """Open a folder or a model of the hub through sentence-transformers; `length` is of the longest text, in tokens."""
    try:
        metadata.version("sentence-transformers")
    except metadata.PackageNotFoundError:
        raise MissingExtraError.of("sentence-transformers", "embed", "a model that is no ALBERT") from None
    try:
        model = open_sentence_transformer(source, device)
    except Exception as error:  # of transformers, torch or its own: they share no base class
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise CheckpointError(
            "wrong-model",
            f"sentence-transformers cannot load `{name}`: {reason}",
            "name a sentence-transformers folder, an ALBERT checkpoint, or a run of `albertkit embed train`",
        ) from None
    used = _prompt_of(model, prompt_name, prompt)
    if length is not None:
        model.max_seq_length = length

    def encode(texts: Sequence[str]) -> np.ndarray:
        vectors = model.encode(list(texts), convert_to_numpy=True, show_progress_bar=False, prompt=used or None)
        return np.asarray(vectors, np.float32)

    kinds = " ".join(type(module).__name__ for module in model)
    dimension = encode(["a"]).shape[1]
    token_ids = _token_ids(model.tokenizer)
    room = None
    if token_ids is not None and isinstance(model.max_seq_length, int):
        specials = len(model.tokenizer("a")["input_ids"]) - len(token_ids(["a"]).ids)
        room = model.max_seq_length - specials - (len(token_ids([used]).ids) if used else 0)
    notes = prompt_notes(name, model.prompts, used)
    description = f"sentence-transformers: {kinds}"
    return EmbeddingModel(name, description, dimension, encode, token_ids, room, notes, source=source)


def _prompt_of(model: Any, prompt_name: str | None, prompt: str | None) -> str:
    """The prompt that a model of sentence-transformers is used with."""
    if prompt_name is not None and prompt is not None:
        raise ConfigError("conflicting-options", "both a prompt and the name of one are given", "give one of them")
    name = model.default_prompt_name if prompt_name is None else prompt_name
    if prompt is not None or name is None:
        return prompt or ""
    if name not in model.prompts:
        hint = near_miss(name, model.prompts) if model.prompts else "leave it out: the model has no prompts"
        raise ConfigError("bad-value", f"there is no prompt `{name}`", hint)
    return model.prompts[name]


def _token_ids(tokenizer: Any) -> Callable[[Sequence[str]], RaggedIds] | None:
    if not callable(tokenizer):  # static embeddings have a tokenizer of another kind
        return None

    def token_ids(texts: Sequence[str]) -> RaggedIds:
        found = tokenizer(list(texts), add_special_tokens=False, truncation=False, verbose=False)["input_ids"]
        return ragged([np.asarray(row, np.int32) for row in found])

    return token_ids
