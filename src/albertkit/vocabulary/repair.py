"""`albertkit tokenizer repair`: special ids that are not ALBERT's are put right, in the tokenizer and in its model at once.

Every row goes where its piece goes, so the model computes for a text what it computed before.
"""

import os
import re
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from albertkit.checkpoints.folder import fill
from albertkit.config import AlbertConfig
from albertkit.errors import CheckpointError, ConfigError, MachineError
from albertkit.model import AlbertModel
from albertkit.model_folder import local_folder
from albertkit.tokenizer.hard_sentences import HARD_SENTENCES
from albertkit.tokenizer.renumbering import Renumbering, renumbered
from albertkit.vocabulary.agreement import check_agreement
from albertkit.vocabulary.model import VocabularyModel, new_folder, open_model

_SEQUENCES = 16
# What the two tokenizers treat differently on purpose: names of special pieces, and numbers before a comma.
_ON_PURPOSE = re.compile(r"\d[,，٫]|\[\w+\]|<\w+>")


@dataclass(frozen=True)
class RepairReport:
    """A renumbered model.

    Attributes:
        out: Its folder.
        moved: Special pieces: name to old and new id.
        vocab_size: Pieces.
        model_class: The class of the model; None where there was a tokenizer alone.
        compared: Texts whose ids were compared, up to the renumbering, and found equal.
        hidden_states: Sequences whose hidden states were compared and found equal, bit for bit.
    """

    out: str
    moved: dict[str, tuple[int, int]]
    vocab_size: int
    model_class: str | None
    compared: int
    hidden_states: int

    def to_dict(self) -> dict[str, Any]:
        """All fields, for JSON."""
        return asdict(self)


def repair_vocabulary(source: str | os.PathLike[str], out: str | os.PathLike[str]) -> RepairReport:
    """Renumber a model to ALBERT's ids: padding 0, unknown 1, start 2, separation 3, mask 4.

    Args:
        source: A checkpoint folder with a SentencePiece model, or the folder of a tokenizer alone.
        out: Folder to write; it must not exist, or be empty.

    Returns:
        The report.

    Raises:
        ConfigError: bad-argument if nothing is wrong. CheckpointError: folder-not-empty, vocab-mismatch, and what `renumbered`
        and opening a checkpoint raise. MachineError: verification-failed.
    """
    folder = local_folder(source)
    change = renumbered(folder)
    if not (folder / "config.json").exists():
        if change.old_ids == sorted(change.old_ids):
            raise _nothing_wrong(folder)
        with new_folder(Path(out)) as target:
            change.tokenizer.save_pretrained(target)
            return _report(out, change, None, target, 0)
    with open_model(folder) as model, new_folder(Path(out)) as target:
        before = model.found.config
        if change.old_ids == sorted(change.old_ids) and before.pad_token_id == change.tokenizer.pad_id:
            raise _nothing_wrong(folder)
        tensors = dict(model.found.tensors)
        _move_rows(model, change, folder)
        model.write(target, Path(out).name, change.tokenizer, f"Renumbered to ALBERT's special ids: {_moves(change)}.")
        checked = _compare_hidden_states(tensors, before, model, change)
        return _report(out, change, model.model_class.__name__, target, checked)


def _move_rows(model: VocabularyModel, change: Renumbering, folder: Path) -> None:
    words_VE, bias_V = model.words_VE, model.bias_V
    if len(words_VE) < len(change.old_ids):
        raise CheckpointError(
            "vocab-mismatch",
            f"the tokenizer in `{folder}` has {len(change.old_ids):,} pieces, the model rows for {len(words_VE):,}",
            "use the tokenizer that the model was trained with",
        )
    order = torch.tensor([*change.old_ids, *range(len(change.old_ids), len(words_VE))])
    model.replace(words_VE[order], None if bias_V is None else bias_V[order])


def _compare_hidden_states(
    tensors: dict[str, Tensor], config: AlbertConfig, model: VocabularyModel, change: Renumbering
) -> int:
    """Run the encoder as it was and as it is on the same texts. Returns how many."""
    old, _ = fill(AlbertModel, config, _encoder(tensors), ("pooler",), "the model")
    new, _ = fill(AlbertModel, model.found.config, _encoder(model.found.tensors), ("pooler",), "the renumbered model")
    tokenizer, limit = change.tokenizer, config.max_position_embeddings
    rows = [tokenizer.encode(text, special_tokens=True)[:limit] for text in _texts()[:_SEQUENCES]]
    for ids in rows:
        with torch.no_grad():
            here = new(torch.tensor([ids])).last_hidden_state
            there = old(torch.tensor([[change.old_ids[i] for i in ids]])).last_hidden_state
        if not torch.equal(here, there):
            raise MachineError(
                "verification-failed",
                f"the renumbered model's hidden states differ by {float((here - there).abs().max()):.2g}",
                "please report this with the model's configuration",
            )
    return len(rows)


def _encoder(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    return {name: tensor for name, tensor in tensors.items() if name.startswith("albert.")}


def _texts() -> list[str]:
    return [text for _, text in HARD_SENTENCES if text and not _ON_PURPOSE.search(text)]


def _report(
    out: str | os.PathLike[str], change: Renumbering, model_class: str | None, folder: Path, hidden_states: int
) -> RepairReport:
    """Compare the ids of both tokenizers, and those of `tokenizer.json`, before anything gets its name."""
    import sentencepiece

    old, texts = sentencepiece.SentencePieceProcessor(model_proto=change.old_model), _texts()
    for text in texts:
        if [change.old_ids[i] for i in change.tokenizer.encode(text)] != old.encode(change.tokenizer.prepared(text)):
            raise MachineError(
                "verification-failed", f"the renumbered tokenizer reads {text[:60]!r} otherwise", "please report this"
            )
    check_agreement(folder, change.tokenizer, texts)
    return RepairReport(
        str(out), change.moved, change.tokenizer.vocab_size, model_class, len(texts), hidden_states
    )  # fmt: skip


def _moves(change: Renumbering) -> str:
    return ", ".join(f"{name} {old} to {new}" for name, (old, new) in change.moved.items())


def _nothing_wrong(folder: Path) -> ConfigError:
    return ConfigError("bad-argument", f"the special ids in `{folder}` are ALBERT's already", "use it as it is")
