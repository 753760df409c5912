"""The encoder that a pretraining learns from: opened, its vocabulary matched with that of the data, run on packed batches.

An ALBERT runs as it is, a BERT as the ALBERT with a group for every layer, any other by
transformers on padded rows.
"""

import hashlib
import re
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import groupby
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from albertkit.config import ACTIVATIONS, AlbertConfig
from albertkit.conversion import bert
from albertkit.conversion.checkpoints import (
    OUR_TYPES,
    TransformersFolder,
    max_positions_of_network,
    open_checkpoint,
)
from albertkit.conversion.classes import check_vocabulary, read_model_tokenizer
from albertkit.errors import CheckpointError, ConfigError, first_line, format_list
from albertkit.folder_facts import FolderFacts
from albertkit.model import AlbertForMaskedLM, AlbertModel, PackedBatch
from albertkit.model.files import PREFIX
from albertkit.model.heads import MaskedLMHead
from albertkit.model.padded import Trace
from albertkit.model_paths import is_remote, local_folder
from albertkit.pretraining.settings import PretrainSettings
from albertkit.tokenizer import AlbertTokenizer
from albertkit.tokenizer.files import SPECIAL_ROLES
from albertkit.tokenizer.sentencepiece_model import SPACE
from albertkit.training.processes import choose_precision

_BYTE = re.compile("<0x([0-9A-F]{2})>")
_WORDS = f"{PREFIX}embeddings.word_embeddings.weight"
_HEAD = {
    "predictions.bias",
    *(
        f"predictions.{part}.{kind}"
        for part in ("dense", "LayerNorm")
        for kind in ("weight", "bias")
    ),
}
NUM_GUESSES = 32  # at a masked token
_OTHER_CLASS = "name an encoder of another class, such as a BERT, a RoBERTa or an ELECTRA"
_MOST_TOKENS = 1 << 30  # that `tokenizers` counts, where nothing limits them
_LOGITS = 1 << 24  # at once: 64 MB in fp32
# DistilBERT's modules of a layer, and what BERT calls them.
_DISTILBERT = {
    "attention.q_lin": "attention.self.query",
    "attention.k_lin": "attention.self.key",
    "attention.v_lin": "attention.self.value",
    "attention.out_lin": "attention.output.dense",
    "sa_layer_norm": "attention.output.LayerNorm",
    "ffn.lin1": "intermediate.dense",
    "ffn.lin2": "output.dense",
    "output_layer_norm": "output.LayerNorm",
}


class EmbeddingTables(NamedTuple):
    """Embeddings of an encoder before their layer norm.

    Attributes:
        words: [V, E], a row for each token of the data.
        positions: [P, E]; no row where they are not added to the words.
        types: [segments, E]; the same.
        scale: [E], of the layer norm.
    """

    words: Tensor
    positions: Tensor
    types: Tensor
    scale: Tensor


class Guesses(NamedTuple):
    """The likeliest tokens at P masked positions.

    Attributes:
        ids: int64 [P, K].
        shares: fp32 [P, K], their probabilities, scaled to a sum of 1.
    """

    ids: Tensor
    shares: Tensor


@dataclass(frozen=True, kw_only=True)
class TeacherEncoder(ABC):
    """An encoder to learn from.

    Attributes:
        source: As the user named it.
        network: On its device, frozen.
        config: Its shape as that of an ALBERT with a group for every layer.
        compute_dtype: Of its products.
        digest: SHA-256 of its weights.
        notes: Lines for the user.
        head: Its masked-LM head, frozen, if it has one for the data's tokens.
    """

    source: Path
    network: nn.Module
    config: AlbertConfig
    compute_dtype: torch.dtype
    digest: str
    notes: tuple[str, ...] = ()
    head: MaskedLMHead | None = None

    @property
    def num_layers(self) -> int:
        """Number of layers, which is one less than that of the states."""
        return self.config.num_hidden_layers * self.config.inner_group_num

    @property
    def num_parameters(self) -> int:
        """Number of parameters, none of which is trained."""
        of_head = [] if self.head is None else self.head.parameters()  # some are the network's
        return sum(p.numel() for p in {*self.network.parameters(), *of_head})

    @abstractmethod
    def states(self, batch: PackedBatch) -> list[Tensor]:
        """Return the projected embedding and the output of every layer, [T, K] each."""

    @torch.no_grad()
    def guess(self, hidden: Tensor, num_tokens: int) -> Guesses:
        """Return the likeliest of the first so many tokens by the masked-LM head, for last states [P, H]."""
        assert self.head is not None
        parts = []
        for chunk in hidden.split(max(1, _LOGITS // self.config.vocab_size)):
            # Without the rows that fill a vocabulary up
            logits = self.head(chunk)[:, :num_tokens]
            parts.append(logits.float().softmax(1).topk(min(NUM_GUESSES, num_tokens)))
        shares = torch.cat([part.values for part in parts])
        return Guesses(torch.cat([part.indices for part in parts]), shares / shares.sum(1, True))

    def refuse_unreadable_tokens(self, token_counts: np.ndarray) -> None:  # noqa: B027
        """Refuse data that holds tokens, counted in `token_counts` [V], that the teacher cannot read."""

    @abstractmethod
    def tables(self) -> EmbeddingTables:
        """Return the embeddings."""

    @abstractmethod
    def layers(self) -> list[dict[str, Tensor]]:
        """Return the parameters of each layer under the names of ALBERT's block, and others under their own."""


@dataclass(frozen=True, kw_only=True)
class AlbertTeacher(TeacherEncoder):
    """An ALBERT, or a BERT as one, whose vocabulary is that of the data."""

    network: AlbertModel

    @torch.no_grad()
    def states(self, batch: PackedBatch) -> list[Tensor]:
        """See `TeacherEncoder.states`."""
        trace = Trace(True, False)
        self.network.encode(batch, trace)
        assert trace.hidden_states is not None
        return trace.hidden_states

    def tables(self) -> EmbeddingTables:
        """See `TeacherEncoder.tables`."""
        embeddings = self.network.embeddings
        return EmbeddingTables(
            embeddings.word_embeddings.weight,
            embeddings.position_embeddings.weight,
            embeddings.token_type_embeddings.weight,
            embeddings.LayerNorm.weight,
        )

    def layers(self) -> list[dict[str, Tensor]]:
        """See `TeacherEncoder.layers`."""
        return [
            dict(block.named_parameters())
            for block, _ in self.network.encoder.layers(torch.float32)
        ]


@dataclass(frozen=True, kw_only=True)
class TransformersTeacher(TeacherEncoder):
    """An encoder that transformers runs.

    Attributes:
        ids: int64 [V], for each id of the data that of the teacher.
        pad_id: The teacher's padding.
    """

    ids: Tensor
    pad_id: int

    def states(self, batch: PackedBatch) -> list[Tensor]:
        """See `TeacherEncoder.states`."""
        return self.run(replace(batch, input_ids=self.ids[batch.input_ids]))

    @torch.no_grad()
    def run(self, batch: PackedBatch) -> list[Tensor]:
        """Return the states of the teacher's own ids, the sequences padded to the longest."""
        inputs = {
            # `unpack` fills with 0: ids are shifted, so that this is the teacher's padding.
            "input_ids": batch.unpack(batch.input_ids - self.pad_id) + self.pad_id,
            "attention_mask": batch.padding_mask().long(),
        }
        if self.config.type_vocab_size > 1:
            inputs["token_type_ids"] = batch.unpack(batch.token_type_ids)
        with torch.autocast(
            batch.device.type, self.compute_dtype, self.compute_dtype != torch.float32
        ):
            layers = self.network(**inputs, output_hidden_states=True).hidden_states
        positions = batch.padded_positions()
        return [states.flatten(0, 1)[positions] for states in layers]

    def check_padding(self, device: torch.device) -> None:
        """Refuse an encoder that does not run, or takes no notice of its attention mask, such as an FNet or a ConvBERT."""
        ids = [number for number in range(13) if number != self.pad_id]
        try:
            alone, padded = (
                self.run(PackedBatch.from_sequences(sequences).to(device))[-1][:3].float()
                for sequences in ([ids[:3]], [ids[:3], ids])
            )
        except Exception as error:  # of transformers or torch: they share no base class
            raise CheckpointError(
                "unsupported",
                f"the teacher `{self.source}` does not run in {self.compute_dtype}: "
                f"{type(error).__name__}: {first_line(error)}",
                _OTHER_CLASS,
            ) from None
        if (alone - padded).abs().max() > 0.1 * alone.std():
            raise CheckpointError(
                "wrong-model",
                f"the states of the teacher `{self.source}` depend on padding: its class ignores the attention mask",
                _OTHER_CLASS,
            )

    def tables(self) -> EmbeddingTables:
        """See `TeacherEncoder.tables`."""
        embeddings = getattr(self.network, "embeddings", None)
        words = self.network.get_input_embeddings().weight  # type: ignore[operator]
        norms = (
            [module for module in embeddings.children() if "Norm" in type(module).__name__]
            if embeddings
            else []
        )
        scale = torch.ones_like(words[0])
        if norms and len(norms[0].weight) == words.shape[1]:
            scale = norms[0].weight
        return EmbeddingTables(
            words[self.ids],
            _embedding_table(embeddings, "position", words),
            _embedding_table(embeddings, "token_type", words),
            scale,
        )

    def layers(self) -> list[dict[str, Tensor]]:
        """See `TeacherEncoder.layers`."""
        layers: list[dict[str, Tensor]] = [{} for _ in range(self.num_layers)]
        for name, parameter in self.network.named_parameters():
            # DistilBERT's name of it
            bert_name = name.replace("transformer.layer.", "encoder.layer.", 1)
            if not bert.is_transformers_bert_layer(bert_name):
                continue
            number, parameter_name = bert_name.removeprefix("encoder.layer.").split(".", 1)
            module, kind = parameter_name.rsplit(".", 1)
            full_name = bert.grouped_albert_name(
                f"encoder.layer.{number}.{_DISTILBERT.get(module, module)}.{kind}"
            )
            layers[int(number)][full_name.split(".", 5)[5]] = parameter
        return layers


@dataclass(frozen=True, kw_only=True)
class AlignedTeacher(TransformersTeacher):
    """An encoder with another tokenizer: a token has the mean of the states of those that share characters with it.

    The text is what the data's tokens spell; a token that spells none has the state before it.

    Attributes:
        ids: Of the special tokens alone.
        tokenizer: Of the data.
        reader: The teacher's tokenizer.
        spellings: Text of each token of the data; a space before it begins a word; none of a byte.
        bytes_by_id: Value of the tokens that are bytes.
    """

    tokenizer: AlbertTokenizer
    reader: Any
    spellings: list[str]
    bytes_by_id: dict[int, int]

    def states(self, batch: PackedBatch) -> list[Tensor]:
        """See `TeacherEncoder.states`.

        Raises:
            CheckpointError: wrong-tokenizer for an unknown token, whose text is lost.
        """
        if bool((batch.input_ids == self.tokenizer.unk_id).any()):
            raise self._unknown_tokens_error()
        texts = []
        spans = []
        for ids in batch.input_ids.cpu().split(batch.lengths):
            text, text_spans = self._text_and_spans_of_ids(ids[1:-1].tolist())
            texts.append(text)
            spans.append(text_spans)
        encoded = self.reader(
            texts,
            return_offsets_mapping=True,
            return_special_tokens_mask=True,
            # A text that is longer than the teacher reads has several windows.
            return_overflowing_tokens=True,
            truncation=True,
            max_length=min(self.config.max_position_embeddings, _MOST_TOKENS),
            verbose=False,
        )
        windows_of_texts: list[list[int]] = [[] for _ in texts]
        for window, number in enumerate(encoded["overflow_to_sample_mapping"]):
            windows_of_texts[number].append(window)
        rows = []
        start = 0
        for windows, text_spans in zip(windows_of_texts, spans, strict=True):
            is_special = np.concatenate([encoded["special_tokens_mask"][n] for n in windows])
            offsets = np.concatenate([encoded["offset_mapping"][n] for n in windows])
            is_text = is_special == 0
            offsets = offsets[is_text]
            # The teacher's tokens that share characters with each token; where there is none, the
            # token before. Between two windows the special tokens there count, too.
            span_starts, span_ends = np.array(text_spans).reshape(-1, 2).T
            first = np.searchsorted(offsets[:, 1], span_starts, "right")
            last = np.searchsorted(offsets[:, 0], span_ends, "left")
            is_empty = last <= first
            row_of_token = np.append(0, np.flatnonzero(is_text)) + start
            tokens = np.stack(
                [
                    row_of_token[first + ~is_empty],
                    row_of_token[np.where(is_empty, first, last)] + 1,
                ],
                1,
            )
            rows += [
                [start, start + 1],
                *tokens.tolist(),
                [start + len(is_text) - 1, start + len(is_text)],
            ]
            start += len(is_text)
        layers = self.run(PackedBatch.from_sequences(encoded["input_ids"]).to(batch.device))
        ranges = torch.tensor(rows, device=batch.device)
        counts = ranges[:, 1] - ranges[:, 0]
        steps = torch.arange(int(counts.max()), device=batch.device)
        is_inside = steps < counts[:, None]
        indices = torch.where(is_inside, ranges[:, :1] + steps, ranges[:, :1])
        # Means in an order that does not change, unlike `index_add_` on a GPU.
        return [
            (states[indices].float() * is_inside[..., None]).sum(1) / counts[:, None]
            for states in layers
        ]

    def tables(self) -> EmbeddingTables:
        """See `TeacherEncoder.tables`; a token's row is the mean of those that the teacher spells it with."""
        tables = super().tables()
        words = self.network.get_input_embeddings().weight  # type: ignore[operator]
        rows = words[self.ids]
        encoded = self.reader(self.spellings, add_special_tokens=False)["input_ids"]
        special_ids = {getattr(self.tokenizer, f"{role}_id") for role in SPECIAL_ROLES}
        for number, ids in enumerate(encoded):
            if ids and number not in special_ids:
                rows[number] = words[ids].mean(0)
        return tables._replace(words=rows)

    def refuse_unreadable_tokens(self, token_counts: np.ndarray) -> None:
        """See `TeacherEncoder.refuse_unreadable_tokens`."""
        if token_counts[self.tokenizer.unk_id]:
            raise self._unknown_tokens_error()

    def _text_and_spans_of_ids(self, ids: list[int]) -> tuple[str, list[tuple[int, int]]]:
        """Return the text of some tokens, and where the letters of each are in it."""
        text = ""
        spans = []
        for is_byte, run in groupby(ids, self.bytes_by_id.__contains__):
            if is_byte:
                values = [self.bytes_by_id[token_id] for token_id in run]
                characters = bytes(values).decode(errors="replace")
                spans += [(len(text), len(text) + len(characters))] * len(values)
                text += characters
                continue
            for token_id in run:
                spelling = self.spellings[token_id]
                end = len(text) + len(spelling)
                spans.append((end - len(spelling.lstrip(" ")), end))
                text += spelling
        return text, spans

    def _unknown_tokens_error(self) -> CheckpointError:
        return CheckpointError(
            "wrong-tokenizer",
            f"the data hold unknown tokens, whose text the teacher `{self.source}` cannot read",
            "build the store with a tokenizer that knows all its characters: albertkit tokenizer train FILES --byte-fallback "
            "--out TOKENIZER",
        )


def _embedding_table(embeddings: nn.Module | None, kind: str, words: Tensor) -> Tensor:
    """Return the embeddings of positions or segments; RoBERTa's first rows are of no position."""
    table = getattr(embeddings, f"{kind}_embeddings", None)
    if table is None or table.weight.shape[1] != words.shape[1]:
        return words[:0]
    first = 0 if table.padding_idx is None else table.padding_idx + 1
    return table.weight[first:]


# --- opening --------------------------------------------------------------------------------------


def open_teacher_encoder(
    source: Path, tokenizer: AlbertTokenizer, settings: PretrainSettings, device: torch.device
) -> TeacherEncoder:
    """Open an encoder, of any class, that knows the tokens of the data and computes in the precision of the run.

    Raises:
        CheckpointError: wrong-tokenizer if it lacks a token of the data; wrong-model for a decoder;
            unsupported, weights-mismatch, and what `open_checkpoint` raises.
        ConfigError: bad-value if it reads fewer tokens or segments than an example may have.
    """
    teacher = _open_encoder(source, tokenizer, settings, device)
    teacher.config.check_length(settings.length, f"`{source}`")
    if teacher.config.type_vocab_size < 2 and settings.pair_task != "none":
        raise ConfigError(
            "bad-value",
            f"the teacher `{source}` knows no second segment, pair_task is {settings.pair_task}",
            "learn from single segments: --pair-task none",
        )
    for module in filter(None, (teacher.network, teacher.head)):
        module.to(device).requires_grad_(False).eval()
    if isinstance(teacher, TransformersTeacher):
        try:
            teacher.check_padding(device)
        except CheckpointError as error:
            if error.slug != "unsupported" or teacher.compute_dtype == torch.float32:
                raise
            # transformers' DeBERTa masks with a number that bf16 lacks. The first lines of a run
            # name the type.
            teacher = replace(teacher, compute_dtype=torch.float32)
            teacher.check_padding(device)
    return teacher


def _find_folder_of_other_encoder(source: Path) -> Path | None:
    """Return the folder of an encoder that is neither an ALBERT nor a BERT; None of any other source."""
    if not source.is_dir() and (is_remote(source) or source.parent.is_dir()):
        return None  # an archive, or a checkpoint that is named by its prefix
    folder = source if source.is_dir() else local_folder(source)
    facts = FolderFacts.from_folder(folder)
    if facts.model.get("model_type", "albert") in OUR_TYPES:
        return None
    facts.check_model()
    return folder


def _open_encoder(
    source: Path, tokenizer: AlbertTokenizer, settings: PretrainSettings, device: torch.device
) -> TeacherEncoder:
    folder = _find_folder_of_other_encoder(source)
    if folder is not None:
        return _open_transformers_teacher(folder, source, tokenizer, settings, device)
    with open_checkpoint(source) as checkpoint:
        config = checkpoint.config
        tensors = {
            name: tensor for name, tensor in checkpoint.tensors.items() if name.startswith(PREFIX)
        }
        head = {name: checkpoint.tensors[name] for name in _HEAD if name in checkpoint.tensors}
        has_head = settings.masked_lm_prob > 0 and head.keys() == _HEAD
        if has_head:
            tensors |= head
        try:
            teacher_tokenizer = read_model_tokenizer(checkpoint.folder, config, source)
        except CheckpointError as error:
            # A BERT with the tokenizer of XLM-R, such as multilingual-e5-small
            if error.slug != "unsupported":
                raise
            return _open_transformers_teacher(
                checkpoint.folder, source, tokenizer, settings, device
            )
    digest = _tensors_digest(tensors)
    notes = []
    if teacher_tokenizer.fingerprint != tokenizer.fingerprint:
        special_ids = {role: getattr(teacher_tokenizer, f"{role}_id") for role in SPECIAL_ROLES}
        ids = _match_tokens(tokenizer, teacher_tokenizer.get_vocab(), special_ids)
        if ids is None:
            return _open_transformers_teacher(
                checkpoint.folder, source, tokenizer, settings, device
            )
        for name in {_WORDS, "predictions.bias"} & tensors.keys():
            tensors[name] = tensors[name][ids]
        config = config.replace(vocab_size=len(ids), pad_token_id=tokenizer.pad_id)
        notes.append(
            f"teacher: {len(ids):,} of its {teacher_tokenizer.vocab_size:,} tokens are the data's"
        )
        if teacher_tokenizer.text_rules != tokenizer.text_rules:
            notes.append(
                f"text rules: {teacher_tokenizer.text_rules} in `{source}`, {tokenizer.text_rules} in the data"
            )
    head_module = None
    if has_head:
        masked_lm, _ = AlbertForMaskedLM.from_tensors(config, tensors, (), str(source))
        network, head_module = masked_lm.albert, masked_lm.predictions
        notes.append(f"masked tokens: their labels, and the {NUM_GUESSES} likeliest to the teacher")
    else:
        network, _ = AlbertModel.from_tensors(config, tensors, ("pooler",), str(source))
    network.compute_dtype = dtype = choose_precision(settings.precision, device)
    return AlbertTeacher(
        source=source,
        network=network,
        config=config,
        compute_dtype=dtype,
        digest=digest,
        notes=tuple(notes),
        head=head_module,
    )


def _open_transformers_teacher(
    folder: Path,
    source: Path,
    tokenizer: AlbertTokenizer,
    settings: PretrainSettings,
    device: torch.device,
) -> TeacherEncoder:
    """Open an encoder by transformers' `AutoModel`."""
    subject = f"the teacher `{source}`"
    stored = TransformersFolder(folder, subject)
    their_config = stored.load("AutoConfig")
    from transformers.models.auto.modeling_auto import MODEL_FOR_MASKED_LM_MAPPING_NAMES

    kind = their_config.model_type
    is_decoder = their_config.is_encoder_decoder or getattr(their_config, "is_decoder", False)
    if is_decoder or kind not in MODEL_FOR_MASKED_LM_MAPPING_NAMES:
        raise CheckpointError(
            "wrong-model",
            f"{subject} is a {kind}, not an encoder whose states see the tokens on both sides",
            _OTHER_CLASS,
        )
    network, fresh = stored.load_network_and_missing_names("AutoModel", config=their_config)
    their_tokenizer = stored.load("AutoTokenizer")
    missing = sorted(name for name in fresh if "pooler" not in name)
    if missing:
        raise CheckpointError(
            "weights-mismatch",
            f"`{source}` lacks weights of a {type(network).__name__}: {format_list(missing, 5)}",
            "fetch it again, or save the whole model",
        )
    special_ids = {role: getattr(their_tokenizer, f"{role}_token_id") for role in SPECIAL_ROLES}
    ids = _match_tokens(tokenizer, their_tokenizer.get_vocab(), special_ids)
    try:
        shape = _albert_shape(their_config, network, tokenizer.vocab_size)
    except (AttributeError, NotImplementedError) as error:
        raise CheckpointError(
            "unsupported", f"{subject} is a {kind}, not a BERT's kind: {error}", _OTHER_CLASS
        ) from None
    parts: dict[str, Any] = dict(
        source=source,
        network=network,
        config=shape,
        compute_dtype=choose_precision(settings.precision, device),
        digest=_tensors_digest(
            {name: tensor for name, tensor in network.state_dict().items() if name not in fresh}
        ),
        pad_id=special_ids["pad"]
        if their_config.pad_token_id is None
        else their_config.pad_token_id,
    )
    if ids is not None:
        check_vocabulary(int(ids.max()) + 1, len(network.get_input_embeddings().weight), source)
        note = f"teacher: {len(ids):,} of its {len(their_tokenizer):,} tokens are the data's"
        return TransformersTeacher(**parts, ids=ids.to(device), notes=(note,))
    if settings.masked_lm_prob or settings.pair_task != "none" or not their_tokenizer.is_fast:
        raise CheckpointError(
            "wrong-tokenizer",
            f"tokens of the data are no tokens of {subject}",
            "learn its states alone, aligned by characters: --masked-lm-prob 0 --pair-task none"
            if their_tokenizer.is_fast
            else "name a teacher with a fast tokenizer: its states can be aligned by characters",
        )
    ids = torch.full((tokenizer.vocab_size,), special_ids["unk"] or 0)
    for role, number in special_ids.items():
        ids[getattr(tokenizer, f"{role}_id")] = number or 0
    note = (
        "teacher: its tokenizer is another one, states are aligned by characters; "
        f"texts of more than its {shape.max_position_embeddings:,} tokens are read in parts"
    )
    spellings = []
    bytes_by_id = {}
    for number in range(tokenizer.vocab_size):
        token = tokenizer.id_to_piece(number)
        if value := _BYTE.fullmatch(token):
            bytes_by_id[number] = int(value[1], 16)
            token = ""
        elif tokenizer.text_rules.startswith("bert"):
            token = token[2:] if token.startswith("##") else f" {token}"
        spellings.append(token.replace(SPACE, " "))
    return AlignedTeacher(
        **parts,
        ids=ids.to(device),
        notes=(note,),
        tokenizer=tokenizer,
        reader=their_tokenizer,
        spellings=spellings,
        bytes_by_id=bytes_by_id,
    )


def _tensors_digest(tensors: Mapping[str, Tensor]) -> str:
    digest = hashlib.sha256()
    # Files of one model may list its tensors in another order.
    for name, tensor in sorted(tensors.items()):
        digest.update(name.encode())
        digest.update(tensor.numpy().tobytes())
    return digest.hexdigest()


def _match_tokens(
    tokenizer: AlbertTokenizer, vocabulary: Mapping[str, int], special_ids: Mapping[str, int | None]
) -> Tensor | None:
    """Return the teacher's id of each token of the data, int64 [V]: special ones by their role, others by their name.

    Args:
        tokenizer: Of the data.
        vocabulary: Of the teacher.
        special_ids: Of the teacher, by role.

    Returns:
        None if the teacher lacks a token.
    """
    ids_by_token = dict(vocabulary)
    for role, number in special_ids.items():
        token = tokenizer.id_to_piece(getattr(tokenizer, f"{role}_id"))
        # Another token of the teacher may be called so.
        ids_by_token.pop(token, None)
        if number is not None:
            ids_by_token[token] = number
    tokens = [tokenizer.id_to_piece(number) for number in range(tokenizer.vocab_size)]
    if not ids_by_token.keys() >= set(tokens):
        return None
    return torch.tensor([ids_by_token[token] for token in tokens])


def _albert_shape(config: Any, network: nn.Module, vocab_size: int) -> AlbertConfig:
    """Return the shape of an encoder of transformers as that of an ALBERT."""
    embeddings = getattr(network, "embeddings", None)
    words = network.get_input_embeddings().weight  # type: ignore[operator]
    # BERT's name of it, DistilBERT's and ModernBERT's.
    activation = next(
        (
            getattr(config, name)
            for name in ("hidden_act", "activation", "hidden_activation")
            if hasattr(config, name)
        ),
        "",
    )
    return AlbertConfig(
        vocab_size=vocab_size,
        embedding_size=words.shape[1],
        hidden_size=config.hidden_size,
        num_hidden_layers=config.num_hidden_layers,
        num_hidden_groups=config.num_hidden_layers,
        num_attention_heads=config.num_attention_heads,
        intermediate_size=getattr(
            config, "intermediate_size", getattr(config, "hidden_dim", 4 * config.hidden_size)
        ),
        hidden_act=activation if activation in ACTIVATIONS else "gelu",
        max_position_embeddings=max_positions_of_network(network),
        type_vocab_size=max(1, len(_embedding_table(embeddings, "token_type", words))),
        layer_norm_eps=getattr(config, "layer_norm_eps", 1e-12),
    )


def describe_teacher(teacher: TeacherEncoder) -> list[str]:
    """Return lines about a teacher."""
    config = teacher.config
    return [
        f"teacher: `{teacher.source}`, {teacher.num_parameters / 1e6:.1f} M parameters, {config.num_hidden_layers} layers of "
        f"{config.hidden_size}, in {str(teacher.compute_dtype).removeprefix('torch.')}",
        *teacher.notes,
    ]
