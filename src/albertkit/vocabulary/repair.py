"""`albertkit tokenizer repair`: special ids that are not ALBERT's are put right, in the tokenizer and in its model at once.

Every row goes where its token goes, so the model computes for a text what it computed before.
"""

import re
from dataclasses import dataclass
from pathlib import Path

import torch

from albertkit.conversion.own_tokenizer import check_vocabulary
from albertkit.errors import ConfigError, MachineError
from albertkit.frame.command import takes
from albertkit.frame.result import Result
from albertkit.frame.section import Section, Table, Text
from albertkit.model_folder import local_folder
from albertkit.tokenizer.hard_sentences import HARD_SENTENCES
from albertkit.tokenizer.renumbering import Renumbering, renumbered
from albertkit.vocabulary.model import new_folder, open_model
from albertkit.vocabulary.options import RepairOptions

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
    """

    out: str
    moved: dict[str, tuple[int, int]]
    vocab_size: int
    model_class: str | None
    compared: int

    def sections(self) -> list[Section]:
        """Return which ids moved, and how many texts were compared."""
        moved = [[name, f"{old:,}", new] for name, (old, new) in self.moved.items()]
        lines = [f"ids of {self.compared} texts are the same up to the renumbering"]
        if self.model_class:
            lines.append(f"{self.model_class}: its rows moved with their tokens")
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
            return _report(out, change, None)
    with open_model(folder) as model, new_folder(out) as target:
        pad_id = model.found.config.pad_token_id
        if change.old_ids == sorted(change.old_ids) and pad_id == change.tokenizer.pad_id:
            raise _nothing_wrong(folder)
        words_VE, bias_V = model.words_VE, model.bias_V
        check_vocabulary(len(change.old_ids), len(words_VE), folder)
        order = torch.tensor([*change.old_ids, *range(len(change.old_ids), len(words_VE))])
        model.replace(words_VE[order], None if bias_V is None else bias_V[order])
        moves = ", ".join(f"{name} {old} to {new}" for name, (old, new) in change.moved.items())
        model.write(target, out.name, change.tokenizer, f"Renumbered to ALBERT's special ids: {moves}.")
        return _report(out, change, model.model_class.__name__)


def _report(out: Path, change: Renumbering, model_class: str | None) -> RepairReport:
    """Compare the ids of both tokenizers before anything gets its name."""
    import sentencepiece

    old = sentencepiece.SentencePieceProcessor(model_proto=change.old_model)
    texts = [text for _, text in HARD_SENTENCES if text and not _ON_PURPOSE.search(text)]
    for text in texts:
        if [change.old_ids[i] for i in change.tokenizer.encode(text)] != old.encode(change.tokenizer.prepared(text)):
            raise MachineError(
                "internal-error", f"the renumbered tokenizer reads {text[:60]!r} otherwise", "please report this"
            )
    size = change.tokenizer.vocab_size
    return RepairReport(str(out), change.moved, size, model_class, len(texts))


def _nothing_wrong(folder: Path) -> ConfigError:
    return ConfigError("bad-value", f"the special ids in `{folder}` are ALBERT's already", "use it as it is")
