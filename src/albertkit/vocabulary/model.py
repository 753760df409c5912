"""Read a checkpoint with all its heads, replace the two tables that have a row a token, and write it with its tokenizer."""

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
    """A checkpoint, and the tables of it that have a row a token."""

    checkpoint: FoundModel
    model_class: type[PretrainedAlbert]  # loads it

    @property
    def words_VE(self) -> Tensor:
        """Return the embeddings of the tokens; the masked-LM head's decoder is the same tensor."""
        return self.checkpoint.tensors[_WORDS]

    @property
    def bias_V(self) -> Tensor | None:
        """Return the biases of the masked-LM head, if it has one."""
        return self.checkpoint.tensors.get(_BIAS)

    def replace(self, words_VE: Tensor, bias_V: Tensor | None) -> None:
        """Give the model other tables, with as many rows as it shall have tokens."""
        self.checkpoint.tensors[_WORDS] = words_VE.contiguous()
        if bias_V is not None:
            self.checkpoint.tensors[_BIAS] = bias_V.contiguous()
        self.checkpoint.config = self.checkpoint.config.replace(vocab_size=len(words_VE))

    def write(self, folder: Path, name: str, tokenizer: SentencePieceTokenizer, change: str) -> None:
        """Write the checkpoint folder with the tokenizer, a card that says what changed, and read it again."""
        ids = {"pad_token_id": tokenizer.pad_id, "bos_token_id": tokenizer.cls_id, "eos_token_id": tokenizer.sep_id}
        self.checkpoint.config = self.checkpoint.config.replace(**ids)
        write_transformers(folder, self.checkpoint.tensors, self.checkpoint.config, self.model_class)
        tokenizer.save_pretrained(folder)
        card = self.checkpoint.folder / "README.md"
        text = card.read_text(encoding="utf-8", errors="replace").rstrip() if card.is_file() else f"# {name}"
        with atomic_file(folder / "README.md", "w") as stream:
            stream.write(f"{text}\n\n{_HEADING}\n\n{change}\n")
        reread(folder, self.checkpoint.tensors, self.model_class)


@contextmanager
def open_vocabulary_model(source: str | Path) -> Iterator[VocabularyModel]:
    """Read any checkpoint with all its heads."""
    with open_checkpoint(source) as checkpoint:
        head = choose_head(checkpoint, None, str(source))
        checkpoint.config = with_labels(checkpoint.config, head, checkpoint.tensors)
        fit(checkpoint, HEADS[head], (), str(source))
        yield VocabularyModel(checkpoint, HEADS[head])


@contextmanager
def new_folder(out: Path) -> Iterator[Path]:
    """Yield a temporary folder, which is renamed at the end."""
    check_new_folder(out)
    with atomic_folder(out) as folder:
        yield folder
