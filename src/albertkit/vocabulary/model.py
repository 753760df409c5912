"""A checkpoint whose vocabulary changes: read with all its heads, its two tables replaced, written beside its tokenizer."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from torch import Tensor

from albertkit.conversion.checkpoints import open_checkpoint
from albertkit.conversion.classes import HEADS, FoundModel, choose_head, fit, with_labels
from albertkit.conversion.convert import reread, write_transformers
from albertkit.files import atomic_file, atomic_folder, check_new_folder
from albertkit.model.pretrained import PretrainedAlbert
from albertkit.tokenizer.sentencepiece import SentencePieceTokenizer

_WORDS, _BIAS = "albert.embeddings.word_embeddings.weight", "predictions.bias"
_HEADING = "## Vocabulary"


@dataclass
class VocabularyModel:
    """Holds a model; gives and replaces the tables that have a row a token."""

    found: FoundModel
    model_class: type[PretrainedAlbert]  # loads it

    @property
    def words_VE(self) -> Tensor:
        """Return the embeddings of the tokens; the masked-LM head's decoder is the same tensor."""
        return self.found.tensors[_WORDS]

    @property
    def bias_V(self) -> Tensor | None:
        """Return the biases of the masked-LM head, if it has one."""
        return self.found.tensors.get(_BIAS)

    def replace(self, words_VE: Tensor, bias_V: Tensor | None) -> None:
        """Give the model other tables, with as many rows as it shall have tokens."""
        self.found.tensors[_WORDS] = words_VE.contiguous()
        if bias_V is not None:
            self.found.tensors[_BIAS] = bias_V.contiguous()
        self.found.config = self.found.config.replace(vocab_size=len(words_VE))

    def write(self, folder: Path, name: str, tokenizer: SentencePieceTokenizer, change: str) -> None:
        """Write the checkpoint folder with the tokenizer, a card that says what changed, and read it again."""
        ids = {"pad_token_id": tokenizer.pad_id, "bos_token_id": tokenizer.cls_id, "eos_token_id": tokenizer.sep_id}
        self.found.config = self.found.config.replace(**ids)
        write_transformers(folder, self.found.tensors, self.found.config, self.model_class)
        tokenizer.save_pretrained(folder)
        card = self.found.folder / "README.md"
        text = card.read_text(encoding="utf-8", errors="replace").rstrip() if card.is_file() else f"# {name}"
        with atomic_file(folder / "README.md", "w") as stream:
            stream.write(f"{text}\n\n{_HEADING}\n\n{change}\n")
        reread(folder, self.found.tensors, self.model_class)


@contextmanager
def open_vocabulary_model(source: str | Path) -> Iterator[VocabularyModel]:
    """Read any checkpoint with all its heads."""
    with open_checkpoint(source) as found:
        head = choose_head(found, None, str(source))
        found.config = with_labels(found.config, head, found.tensors)
        fit(found, HEADS[head], (), str(source))
        yield VocabularyModel(found, HEADS[head])


@contextmanager
def new_folder(out: Path) -> Iterator[Path]:
    """Make a folder to fill, which takes its name at the end."""
    check_new_folder(out)
    with atomic_folder(out) as folder:
        yield folder
