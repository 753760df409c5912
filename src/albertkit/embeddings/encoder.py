"""`SentenceEncoder`: texts to vectors, through packed batches."""

import copy
import hashlib
import json
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields
from numbers import Integral
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from albertkit.batches.features import Features, cut_into_batches
from albertkit.config import AlbertConfig
from albertkit.embeddings.folder import (
    SENTENCE_EMBEDDING,
    SPECIAL_NAMES,
    EncoderParts,
    Poolings,
    Projection,
    check_pooling,
    exports_sentence_vectors,
    pool_hidden_states,
    pooled_positions,
    read_encoder,
    similarity_matrix,
    write_encoder,
)
from albertkit.engines import Engine, load_engine
from albertkit.engines.engine import Precision, reason_not_to_pack
from albertkit.engines.onnx import OnnxModel
from albertkit.errors import ConfigError, DataError, suggest_name
from albertkit.model import AlbertModel, PackedBatch
from albertkit.output.progress import ProgressBar
from albertkit.printable import Notes
from albertkit.tables.columns import Columns
from albertkit.tasks.texts import text_features
from albertkit.tokenizer import AlbertTokenizer
from albertkit.tokenizer.inputs import NamedSpecials, lower_each_character
from albertkit.training.processes import find_device

MOST_UNKNOWN = 0.2  # of the words of a column, for a student to learn anything from them
LOOKED_AT = 10_000  # texts of a column


def unknown_word_and_token_shares(
    texts: Sequence[str], tokenizer: AlbertTokenizer
) -> tuple[float, float]:
    """Return the share of the words with an unknown token, and of the unknown tokens, in up to 10,000 texts from all over."""
    sample = texts[:: max(1, len(texts) // LOOKED_AT)]
    words = [word for text in sample for word in text.split()]
    if not words:
        return 0.0, 0.0
    # Word by word: an unknown token of a whole text would not say which words it stands for.
    ids, offsets = tokenizer.encode_batch(words)
    before = np.concatenate([[0], np.cumsum(ids == tokenizer.unk_id)])
    unknown = np.diff(before[offsets])
    return float(np.mean(unknown > 0)), float(before[-1] / max(len(ids), 1))


def unknown_words_notes(texts: Sequence[str], tokenizer: AlbertTokenizer) -> Notes:
    """Warn of texts of which the tokenizer does not know more than `MOST_UNKNOWN` of the words; nothing otherwise."""
    words, _ = unknown_word_and_token_shares(texts, tokenizer)
    if words <= MOST_UNKNOWN:
        return []
    return [
        f"the tokenizer does not know {words:.0%} of the words: their vectors say little",
        "`albertkit tokenizer extend` adds the tokens of another language",
    ]


def describe_columns(columns: Columns | None, count: int) -> list[str]:
    """Return the names of the columns of texts: as they were given, or by their places."""
    names = [name for name in (columns.text, columns.pair) if name is not None] if columns else []
    return [f"column `{name}`" for name in names] or [f"column {n}" for n in range(1, count + 1)]


def describe_or_refuse_unknown_words(
    rows: Sequence[tuple[str, ...]],
    tokenizer: AlbertTokenizer,
    student: str | Path,
    force: bool,
    names: Sequence[str] | None = None,
) -> str:
    """Say how much of each of K columns the student's tokenizer does not know; refuse too much, unless `force`."""
    shares = [
        unknown_word_and_token_shares([row[k] for row in rows], tokenizer)
        for k in range(len(rows[0]))
    ]
    summary = "; ".join(
        f"{name}: {words:.1%} of words, {tokens:.1%} of tokens"
        for name, (words, tokens) in zip(
            names or describe_columns(None, len(shares)), shares, strict=True
        )
    )
    if max(words for words, _ in shares) > MOST_UNKNOWN and not force:
        raise DataError(
            "doubtful",
            f"too much is unknown to the tokenizer of `{student}`, more than {MOST_UNKNOWN:.0%} of words: {summary}",
            "add tokens with `albertkit tokenizer extend --model`, choose another student, or train anyway with --force",
        )
    return f"unknown to the tokenizer: {summary}"


class SentenceEncoder(nn.Module):
    """Makes vectors of texts: an ALBERT, a pooling, perhaps a projection, perhaps length 1.

    Args:
        albert: The encoder. Its pooler is not used.
        tokenizer: Its tokenizer.
        pooling: How states of tokens become one vector; of several poolings the vectors are put one
            after the other.
        max_length: Longest sequence, special tokens included; longer texts are cut.
        projection: What follows the pooling.
        normalize: Whether vectors are divided by their length.
        include_prompt: Whether the tokens of a prompt are pooled, too.
        lower_case: Whether texts are lower-cased before the tokenizer sees them.
        settings: What `config_sentence_transformers.json` says. `prompts` with
            `default_prompt_name` (put before every text), `truncate_dim` and `similarity_fn_name`
            are applied; with `special_names` "tokens", the name of a special token in a text is
            that token, as SentenceTransformer reads it (its folders), with "text" (default, ours)
            plain text. Whatever else there is, is kept.

    Raises:
        ConfigError: unknown-name; bad-value if the projection does not fit.
    """

    def __init__(
        self,
        albert: AlbertModel,
        tokenizer: AlbertTokenizer,
        pooling: Poolings = "mean",
        max_length: int = 128,
        projection: Projection | None = None,
        normalize: bool = False,
        *,
        include_prompt: bool = True,
        lower_case: bool = False,
        settings: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__()
        self.albert = albert
        self.projection = projection
        self.tokenizer = tokenizer
        self.pooling = pooling
        self.max_length = max_length
        self.normalize = normalize
        self.include_prompt = include_prompt
        self.lower_case = lower_case
        self.settings = dict(settings or {})
        # An engine packs the weights: it is kept until they change.
        self._engine: tuple[object, Engine] | None = None
        self._prompt: str | None = None
        self._named_specials: NamedSpecials | None = None
        pooled = self.config.hidden_size * len(check_pooling(pooling))
        if projection is not None and projection.linear.in_features != pooled:
            raise ConfigError(
                "bad-value",
                f"the projection takes {projection.linear.in_features} numbers, the pooling gives {pooled}",
                f"make it with {pooled} inputs",
            )

    @property
    def config(self) -> AlbertConfig:
        """Return the configuration of the ALBERT."""
        return self.albert.config

    @property
    def dimension(self) -> int:
        """Return D, the numbers of a vector, before `truncate_dim`."""
        if self.projection is not None:
            return self.projection.linear.out_features
        return self.config.hidden_size * len(check_pooling(self.pooling))

    @property
    def prompt(self) -> str:
        """Return the text that is put before every text: the default prompt of the settings, "" if there is none.

        Raises:
            ConfigError: bad-value if the settings have no prompt of that name.
        """
        if self._prompt is not None:
            return self._prompt
        return choose_prompt(self.prompts, self.settings.get("default_prompt_name"))

    @property
    def prompts(self) -> dict[str, str]:
        """Return the prompts of the settings by name."""
        return self.settings.get("prompts") or {}

    def with_prompt(self, name: str | None = None, prompt: str | None = None) -> "SentenceEncoder":
        """Return an encoder of the same weights that puts another prompt before every text.

        Args:
            name: Name of a prompt of the settings. Default: the settings' `default_prompt_name`.
            prompt: The prompt itself, in place of a named one.

        Raises:
            ConfigError: bad-value if there is no such prompt; conflicting-options if both are
                given.
        """
        if name is None and prompt is None:
            return self
        # Shares the weights, and the engine that has packed them.
        encoder = copy.copy(self)
        encoder._prompt = choose_prompt(self.prompts, name, prompt)
        return encoder

    def features(self, texts: Sequence[str]) -> Features:
        """Return what the model sees of texts: a sequence each, in their order.

        Raises:
            ConfigError: bad-value if `max_length` exceeds the model's positions.
        """
        self.config.check_length(self.max_length)
        if self.prompt:
            texts = [self.prompt + text for text in texts]
        if self.settings.get(SPECIAL_NAMES) == "tokens":
            # Kept: to read a `tokenizer.json` of 30,000 tokens takes 55 to 85 ms.
            reader = self._named_specials
            if (
                reader is None
                or reader.tokenizer != self.tokenizer
                or reader.lower_case != self.lower_case
            ):
                reader = self._named_specials = NamedSpecials(self.tokenizer, self.lower_case)
            return text_features(texts, None, reader, self.max_length)
        if self.lower_case:
            texts = list(map(lower_each_character, texts))
        return text_features(texts, None, self.tokenizer, self.max_length)

    def forward(self, batch: PackedBatch) -> Tensor:
        """Return the vectors of a packed batch, with gradient.

        Args:
            batch: N sequences, on the model's device.

        Returns:
            fp32 [N, D].
        """
        return self._encode_and_pool(batch, self.albert.encode)

    def _encode_and_pool(self, batch: PackedBatch, encode: Callable[..., Any]) -> Tensor:
        # With [CLS], as sentence-transformers counts the length of a prompt.
        prompt_tokens = (
            0
            if self.include_prompt or not self.prompt
            else 1 + len(self.tokenizer.encode(self.prompt))
        )
        positions = pooled_positions(batch, self.pooling, prompt_tokens)
        # With positions, the last layer is computed there alone.
        hidden = encode(batch, positions=positions).hidden
        vectors = (
            pool_hidden_states(hidden, batch, self.pooling, prompt_tokens)
            if positions is None
            else hidden.float()
        )
        if self.projection is not None:
            vectors = self.projection(vectors)
        return F.normalize(vectors, dim=1) if self.normalize else vectors

    # --- inference --------------------------------------------------------------------------------

    def encode(
        self,
        texts: str | Sequence[str],
        batch_tokens: int = 8192,
        precision: Precision = "fp32",
        *,
        dimension: int | None = None,
        normalize: bool = False,
        show_progress: bool = False,
        prompt_name: str | None = None,
        prompt: str | None = None,
        batch_size: int | None = None,
        normalize_embeddings: bool = False,
        truncate_dim: int | None = None,
        convert_to_numpy: bool = True,
        convert_to_tensor: bool = False,
        show_progress_bar: bool | None = None,
        device: str | torch.device | None = None,
    ) -> Any:
        """Return vectors of texts, computed through an engine, texts of like length together.

        Keywords of `SentenceTransformer.encode` have the same meaning, except `precision`;
        `output_value`, `pool` and `chunk_size` are not supported. Texts longer than `max_length`
        are cut, and a warning counts them.

        Args:
            texts: E texts, or one. An empty one is `[CLS] [SEP]`.
            batch_tokens: Most tokens computed at once.
            precision: fp32, whose vectors are sentence-transformers' own; bf16; int8; or auto: bf16
                where the hardware multiplies it faster, else fp32. `engine("auto").precision` says
                which. bf16 differs as torch's own does, by about 0.6 % of the largest component.
            dimension: Keep only so many numbers at the start of each vector: for models trained
                with Matryoshka's loss. Default: `truncate_dim` of the settings, or all.
            normalize: Divide what is kept by its length. A model that normalises does so before
                anything is cut off.
            show_progress: Show a bar on stderr.
            prompt_name: Name of the prompt that is put before every text. Default: the settings'
                `default_prompt_name`.
            prompt: The prompt itself, in place of a named one.
            batch_size: Most texts computed at once. Default: as many as `batch_tokens` allows.
            normalize_embeddings: As `normalize`.
            truncate_dim: As `dimension`; one of the full width or more keeps all, as in
                sentence-transformers.
            convert_to_numpy: Return an array; if False, a list of tensors.
            convert_to_tensor: Return one tensor on the model's device.
            show_progress_bar: As `show_progress`.
            device: Device that the model is moved to first.

        Returns:
            fp32 [E, dimension], in the order of the texts; of one text [dimension].

        Raises:
            ConfigError: bad-value if these are no texts, bad-value, unknown-name,
                conflicting-options.
        """
        # sentence-transformers' `precision` is the type of the vectors, ours that of the
        # arithmetic.
        if precision == "int8":
            warnings.warn(
                'precision="int8" computes in int8 and returns fp32 vectors; '
                'for int8 vectors: sentence_transformers.quantize_embeddings(vectors, "int8")',
                stacklevel=2,
            )
        listed = [texts] if isinstance(texts, str) else _check_texts(texts)
        if batch_size is not None and (not isinstance(batch_size, Integral) or batch_size < 1):
            raise ConfigError(
                "bad-value",
                f"batch_size is {batch_size!r}, it must be at least 1",
                "leave it out",
            )
        # One of the full width or more keeps all, as in sentence-transformers.
        if isinstance(truncate_dim, Integral):
            truncate_dim = min(int(truncate_dim), self.dimension)
        if device is not None:
            self.to(find_device(str(device)))
        engine = self.engine(precision)
        for note in engine.notes:
            warnings.warn(note, stacklevel=2)
        encoder = self.with_prompt(prompt_name, prompt)
        features = encoder.features(listed)
        if features.num_truncated:
            warnings.warn(
                f"{features.num_truncated:,} of {len(listed):,} texts are longer than {self.max_length} tokens and were cut",
                stacklevel=2,
            )
        with ProgressBar(
            "encoding", len(listed), "texts", show_progress or bool(show_progress_bar)
        ) as progress:
            vectors: Any = encoder.vectors_of(
                features,
                engine,
                batch_tokens,
                dimension if truncate_dim is None else truncate_dim,
                normalize or normalize_embeddings,
                batch_size=batch_size,
                progress=progress,
            )
        if isinstance(texts, str):
            vectors = vectors[0]
        if convert_to_numpy and not convert_to_tensor:
            return vectors
        tensor = torch.from_numpy(vectors).to(self.albert.device)
        return tensor if convert_to_tensor or isinstance(texts, str) else list(tensor)

    # mteb opens a folder through sentence-transformers: these methods do not speak its protocol.
    def encode_query(self, texts: str | Sequence[str], **options: Any) -> Any:
        """Return vectors of queries: `encode` with the prompt "query" of the settings, or with none.

        Args:
            texts: As `encode`.
            **options: As `encode`; `prompt_name` or `prompt` replaces the prompt "query".
        """
        return self._encode_as("query", texts, options)

    def encode_document(self, texts: str | Sequence[str], **options: Any) -> Any:
        """Return vectors of documents: `encode` with the prompt "document" of the settings, or with none.

        Args:
            texts: As `encode`.
            **options: As `encode`; `prompt_name` or `prompt` replaces the prompt "document".
        """
        return self._encode_as("document", texts, options)

    def _encode_as(self, role: str, texts: str | Sequence[str], options: dict[str, Any]) -> Any:
        """Encode with the prompt of a role, never with the settings' default prompt, as sentence-transformers does."""
        if options.get("prompt_name") is None and options.get("prompt") is None:
            options = {**options, "prompt_name": None, "prompt": self.prompts.get(role, "")}
        return self.encode(texts, **options)

    @property
    def max_seq_length(self) -> int:
        """Return `max_length`, by sentence-transformers' name."""
        return self.max_length

    @max_seq_length.setter
    def max_seq_length(self, length: int) -> None:
        self.max_length = length

    def vectors_of(
        self,
        features: Features,
        engine: Engine,
        batch_tokens: int = 8192,
        dimension: int | None = None,
        normalize: bool = False,
        *,
        batch_size: int | None = None,
        progress: ProgressBar | None = None,
    ) -> np.ndarray:
        """Return the vectors of E sequences, fp32 [E, dimension]. Arguments as `encode`; `progress` counts texts."""
        vectors = np.empty((features.num_sequences, self.output_dimension(dimension)), np.float32)
        runs = batches_of_like_length(features.lengths, batch_tokens)
        if batch_size is not None:
            runs = [
                part
                for run in runs
                for part in np.split(run, range(batch_size, len(run), batch_size))
            ]
        for run in runs:
            vectors[run] = self.encode_batch_of_features(
                features, run, engine, dimension, normalize
            )
            if progress is not None:
                progress.update(progress.completed + len(run))
        return vectors

    def output_dimension(self, dimension: int | None) -> int:
        """Return the number of leading numbers of a vector that `encode` returns.

        Raises:
            ConfigError: bad-value.
        """
        default = min(self.settings.get("truncate_dim") or self.dimension, self.dimension)
        return check_dimension(default if dimension is None else dimension, self.dimension)

    def engine(self, precision: Precision) -> Engine:
        """Return the engine for the weights as they are now."""
        key = (precision, self.albert.device, reason_not_to_pack(self.albert))
        if self._engine is None or self._engine[0] != key:
            self._engine = key, load_engine(self.albert, precision)
        return self._engine[1]

    def vectors(self, batch: PackedBatch, engine: Engine) -> Tensor:
        """Return whole vectors of a packed batch through an engine of this encoder: fp32 [N, D]."""
        return self._encode_and_pool(batch, engine.encode)

    @torch.inference_mode()
    def encode_batch_of_features(
        self,
        features: Features,
        run: np.ndarray,
        engine: Engine,
        dimension: int | None,
        normalize: bool,
    ) -> np.ndarray:
        """Return vectors of some sequences, computed at once: fp32 [N, dimension]. Arguments as `encode`."""
        batch = features.batch(run).packed.to(self.albert.device)
        vectors = self.vectors(batch, engine)[:, : self.output_dimension(dimension)]
        return (F.normalize(vectors, dim=1) if normalize else vectors).cpu().numpy()

    def similarity(self, a: np.ndarray, b: np.ndarray) -> np.ndarray:
        """Return the similarity of every vector with every other: the settings' `similarity_fn_name`, default cosine.

        The result is an array, as that of `encode`; `SentenceTransformer.similarity` returns a
        tensor.

        Args:
            a: [A, D], or [D].
            b: [B, D], or [D].

        Returns:
            fp32 [A, B]; see `similarities`.
        """
        return similarity_matrix(a, b, self.settings.get("similarity_fn_name") or "cosine")

    def digest(self) -> str:
        """Return the SHA-256 of all that decides the vectors: weights, tokenizer and settings."""
        weights = hashlib.sha256()
        for name, tensor in self.state_dict().items():
            weights.update(name.encode())
            # numpy has no bfloat16.
            weights.update(tensor.detach().cpu().contiguous().float().numpy().tobytes())
        sha256 = hashlib.sha256(f"{self.tokenizer.fingerprint} {weights.hexdigest()}".encode())
        activation = None if self.projection is None else self.projection.activation_name
        facts = [self.pooling, activation, self.max_length, self.normalize]
        facts += [self.include_prompt, self.lower_case, self.prompt]
        sha256.update(
            json.dumps([*facts, self.settings, self.config.to_dict()], sort_keys=True).encode()
        )
        return sha256.hexdigest()

    # --- files ------------------------------------------------------------------------------------

    @classmethod
    def from_pretrained(
        cls,
        folder: str | Path,
        pooling: Poolings | None = None,
    ) -> "SentenceEncoder":
        """Read a sentence-transformers folder of an ALBERT, or any ALBERT checkpoint, which then gets a pooling.

        Args:
            folder: The folder, a run that `embed train` left, or `org/name` of the hub.
            pooling: For a checkpoint that has none. Default: mean.

        Returns:
            The model in fp32 on the CPU, in evaluation mode.

        Raises:
            CheckpointError: bad-file, unsupported, wrong-tokenizer; missing-file, weights-mismatch,
                no-tokenizer and what else loading raises.
            ConfigError: unknown-name, bad-value; conflicting-options if the folder has another
                pooling.
            DataError: not-found, bad-file. MachineError: unreachable.
        """
        parts = read_encoder(folder, pooling)
        kind = ExportedEncoder if exports_sentence_vectors(parts.albert) else SentenceEncoder
        return kind(**vars(parts)).eval()

    def save_pretrained(self, folder: str | Path) -> None:
        """Write a checkpoint folder that sentence-transformers loads; each file whole or not at all.

        Args:
            folder: Made if missing. Modules that an encoder of another shape left there are
                removed, other files stay.
        """
        write_encoder(
            folder,
            EncoderParts(
                **{field.name: getattr(self, field.name) for field in fields(EncoderParts)}
            ),
        )


class ExportedEncoder(SentenceEncoder):
    """Runs an encoder by ONNX Runtime whose graph holds pooling, projection and length 1."""

    @property
    def dimension(self) -> int:
        """Return D, the numbers of a vector."""
        model: OnnxModel = self.albert  # type: ignore[assignment]
        return next(
            output.shape[1]
            for output in model.session.get_outputs()
            if output.name == SENTENCE_EMBEDDING
        )

    def _encode_and_pool(self, batch: PackedBatch, encode: Callable[..., Any]) -> Tensor:
        model: OnnxModel = self.albert  # type: ignore[assignment]
        return model.run(batch)[SENTENCE_EMBEDDING]


def choose_prompt(prompts: Mapping[str, str], name: str | None, prompt: str | None = None) -> str:
    """Return the prompt of a name, or the one that is given itself; "" for neither."""
    if name is not None and prompt is not None:
        raise ConfigError(
            "conflicting-options",
            "both a prompt and the name of one are given",
            "give one of them",
        )
    for value in (name, prompt):
        if value is not None and not isinstance(value, str):
            raise ConfigError(
                "bad-value",
                f"{value!r} is no prompt, and no name of one",
                "give a text",
            )
    if name is None:
        return prompt or ""
    if name not in prompts:
        raise ConfigError(
            "bad-value",
            f"there is no prompt `{name}`",
            suggest_name(name, prompts)
            if prompts
            else "leave the name out: the model has no prompts",
        )
    return prompts[name]


def check_dimension(requested: int, dimension: int) -> int:
    """Return the requested number of leading numbers of a vector, if it has as many."""
    if not isinstance(requested, Integral) or not 0 < requested <= dimension:
        raise ConfigError(
            "bad-value",
            f"the dimension is {requested!r}, but the vectors have {dimension} numbers",
            f"use 1 to {dimension}",
        )
    return int(requested)


def batches_of_like_length(lengths: np.ndarray, batch_tokens: int) -> list[np.ndarray]:
    """Return numbers of sequences, cut into batches of at most so many tokens, the longest first: what needs most memory."""
    order = np.argsort(-lengths, kind="stable")
    return cut_into_batches(lengths[order], batch_tokens, order)


def _check_texts(texts: Sequence[str]) -> list[str]:
    """Return the texts, if they are texts and can be counted."""
    # A frame counts its rows, but yields the names of its columns.
    is_frame = hasattr(texts, "columns")
    is_scalar = getattr(texts, "ndim", 1) == 0
    if (
        isinstance(texts, Mapping | set | frozenset | bytes)
        or is_frame
        or is_scalar
        or not hasattr(texts, "__len__")
    ):
        raise ConfigError(
            "bad-value",
            f"a list of texts is expected, this is of the type {type(texts).__name__}",
            "give a list, of a frame one column; for texts that do not fit into memory there is `encode_file`",
        )
    listed = list(texts)
    for number, text in enumerate(listed):
        if not isinstance(text, str):
            raise ConfigError(
                "bad-value",
                f"text {number} is a {type(text).__name__}, not a str",
                "leave it out, or use an empty text",
            )
    return listed
