"""`albertkit tokenizer repair`: special ids that are not ALBERT's are put right, in the tokenizer and in its model at once.

Every row goes where its token goes, so the model computes for a text what it computed before.
"""

import re
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from albertkit.config import AlbertConfig
from albertkit.conversion.own_tokenizer import check_vocabulary
from albertkit.errors import ConfigError, MachineError
from albertkit.frame.command import takes
from albertkit.frame.result import Result
from albertkit.frame.section import Section, Table, Text
from albertkit.model import AlbertModel
from albertkit.model_folder import local_folder
from albertkit.tokenizer.hard_sentences import HARD_SENTENCES
from albertkit.tokenizer.renumbering import Renumbering, renumbered
from albertkit.vocabulary.model import VocabularyModel, new_folder, open_model
from albertkit.vocabulary.options import RepairOptions

_SEQUENCES = 16
# What the two tokenizers treat differently on purpose: names of special tokens, and numbers before a comma.
_ON_PURPOSE = re.compile(r"\d[,，٫]|\[\w+\]|<\w+>")


@dataclass(frozen=True)
class RepairReport(Result):
    """Result of `repair_vocabulary`.

    Attributes:
        out: Its folder.
        moved: Special tokens: name to old and new id.
        vocab_size: Tokens.
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

    def sections(self) -> list[Section]:
        """Return which ids moved, and that the model computes the same."""
        moved = [[name, f"{old:,}", new] for name, (old, new) in self.moved.items()]
        lines = [f"ids of {self.compared} texts are the same up to the renumbering"]
        if self.model_class:
            lines.append(f"{self.model_class}: hidden states of {self.hidden_states} texts are the same bit for bit")
        title = f"{self.vocab_size:,} tokens in {self.out}"
        return [Table(["token", "old id", "new id"], moved, title), Text("\n".join(lines))]


@takes(RepairOptions)
def repair_vocabulary(options: RepairOptions) -> RepairReport:
    """Renumber a model to ALBERT's ids: padding 0, unknown 1, start 2, separation 3, mask 4; see `RepairOptions`.

    Raises:
        ConfigError: bad-value if nothing is wrong. CheckpointError: exists, wrong-tokenizer, and what `renumbered`
        and opening a checkpoint raise. MachineError: internal-error.
    """
    folder, out = local_folder(options.model), Path(options.out)
    change = renumbered(folder)
    if not (folder / "config.json").exists():
        if change.old_ids == sorted(change.old_ids):
            raise _nothing_wrong(folder)
        with new_folder(out) as target:
            change.tokenizer.save_pretrained(target)
            return _report(out, change, None, 0)
    with open_model(folder) as model, new_folder(out) as target:
        before = model.found.config
        if change.old_ids == sorted(change.old_ids) and before.pad_token_id == change.tokenizer.pad_id:
            raise _nothing_wrong(folder)
        tensors = dict(model.found.tensors)
        _move_rows(model, change, folder)
        moves = ", ".join(f"{name} {old} to {new}" for name, (old, new) in change.moved.items())
        model.write(target, out.name, change.tokenizer, f"Renumbered to ALBERT's special ids: {moves}.")
        checked = _compare_hidden_states(tensors, before, model, change)
        return _report(out, change, model.model_class.__name__, checked)


def _move_rows(model: VocabularyModel, change: Renumbering, folder: Path) -> None:
    words_VE, bias_V = model.words_VE, model.bias_V
    check_vocabulary(len(change.old_ids), len(words_VE), folder)
    order = torch.tensor([*change.old_ids, *range(len(change.old_ids), len(words_VE))])
    model.replace(words_VE[order], None if bias_V is None else bias_V[order])


def _compare_hidden_states(
    tensors: dict[str, Tensor], config: AlbertConfig, model: VocabularyModel, change: Renumbering
) -> int:
    """Run the encoder as it was and as it is on the same texts, and return how many."""
    old, new = _encoder(config, tensors), _encoder(model.found.config, model.found.tensors)
    tokenizer, limit = change.tokenizer, config.max_position_embeddings
    rows = [tokenizer.encode(text, special_tokens=True)[:limit] for text in _texts()[:_SEQUENCES]]
    for ids in rows:
        with torch.no_grad():
            here = new(torch.tensor([ids]), return_dict=True).last_hidden_state
            there = old(torch.tensor([[change.old_ids[i] for i in ids]]), return_dict=True).last_hidden_state
        if not torch.equal(here, there):
            raise MachineError(
                "internal-error",
                f"the renumbered model's hidden states differ by {float((here - there).abs().max()):.2g}",
                "please report this with the model's configuration",
            )
    return len(rows)


def _encoder(config: AlbertConfig, tensors: dict[str, Tensor]) -> AlbertModel:
    own = {name: tensor for name, tensor in tensors.items() if name.startswith("albert.")}
    return AlbertModel.from_tensors(config, own, ("pooler",), "the model")[0]


def _texts() -> list[str]:
    return [text for _, text in HARD_SENTENCES if text and not _ON_PURPOSE.search(text)]


def _report(out: Path, change: Renumbering, model_class: str | None, hidden_states: int) -> RepairReport:
    """Compare the ids of both tokenizers before anything gets its name."""
    import sentencepiece

    old, texts = sentencepiece.SentencePieceProcessor(model_proto=change.old_model), _texts()
    for text in texts:
        if [change.old_ids[i] for i in change.tokenizer.encode(text)] != old.encode(change.tokenizer.prepared(text)):
            raise MachineError(
                "internal-error", f"the renumbered tokenizer reads {text[:60]!r} otherwise", "please report this"
            )
    size = change.tokenizer.vocab_size
    return RepairReport(str(out), change.moved, size, model_class, len(texts), hidden_states)


def _nothing_wrong(folder: Path) -> ConfigError:
    return ConfigError("bad-value", f"the special ids in `{folder}` are ALBERT's already", "use it as it is")
