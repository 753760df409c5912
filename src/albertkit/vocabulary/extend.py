"""`albertkit tokenizer extend`: more tokens for a tokenizer, and in the same step the rows that its model needs for them.

`VocabularyModel` is a checkpoint whose two tables with a row a token are replaced; `repair` and
`trim` use it, too.
"""

import logging
import os
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from albertkit.command import takes
from albertkit.conversion.checkpoints import open_checkpoint
from albertkit.conversion.classes import (
    HEADS,
    SourceModel,
    check_vocabulary,
    fit_tensors_and_list_missing,
    named_or_guessed_head,
    with_labels,
)
from albertkit.conversion.convert import read_written_checkpoint, write_transformers
from albertkit.conversion.initial import special_ids
from albertkit.corpus.cooccurrence import Documents, cooccurrence_vectors
from albertkit.errors import CheckpointError, ConfigError, DataError, format_list
from albertkit.files import StrPath, new_folder, write_file, write_json
from albertkit.folder_facts import FolderFacts
from albertkit.model import AlbertModel
from albertkit.model.files import NEW_ROWS_FROM, PROVENANCE, read_provenance
from albertkit.model.pretrained import PretrainedAlbert
from albertkit.model_paths import local_folder
from albertkit.output.sections import Paragraph, Result, Section
from albertkit.printable import join_lines
from albertkit.tokenizer import AlbertTokenizer
from albertkit.tokenizer.check import compare_json
from albertkit.tokenizer.extend import Extension, UnigramPieces, extend_tokenizer
from albertkit.tokenizer.files import find_sentencepiece_model
from albertkit.tokenizer.options import ExtendOptions
from albertkit.tokenizer.sentencepiece import SentencePieceTokenizer
from albertkit.tokenizer.sentencepiece_model import SPACE, read_facts
from albertkit.tokenizer.texts import draw_texts, read_lines
from albertkit.tokenizer.train import (
    TextFit,
    fit_sections,
    measure_tokenizer_fit,
    tokenizer_json_section,
)
from albertkit.vocabulary.train import HoldingOut, read_text_lines

logger = logging.getLogger("albertkit")

# Of the old rows' standard deviation: rows that are exactly the mean would all be the same
_NOISE = 0.1
_FREQUENT = 20  # occurrences of an old token that vectors are turned by
_WORDS, _BIAS = "albert.embeddings.word_embeddings.weight", "predictions.bias"


@dataclass
class VocabularyModel:
    """A checkpoint, and the tables of it that have a row a token."""

    checkpoint: SourceModel
    model_class: type[PretrainedAlbert]  # loads it

    @property
    def words_VE(self) -> Tensor:
        """Return the embeddings of the tokens; the masked-LM head's decoder is the same tensor."""
        return self.checkpoint.tensors[_WORDS]

    @property
    def bias_V(self) -> Tensor | None:
        """Return the biases of the masked-LM head, if it has one."""
        return self.checkpoint.tensors.get(_BIAS)

    def select_rows(self, ids: Tensor) -> None:
        """Give the model the rows of these tokens, int64 [new V], in their order."""
        self.replace(self.words_VE[ids], None if self.bias_V is None else self.bias_V[ids])

    def replace(self, words_VE: Tensor, bias_V: Tensor | None) -> None:
        """Give the model other tables, with as many rows as it shall have tokens."""
        tensors = self.checkpoint.tensors
        tensors[_WORDS] = words_VE.contiguous()
        if bias_V is not None:
            tensors[_BIAS] = bias_V.contiguous()
        self.checkpoint.config = self.checkpoint.config.replace(vocab_size=len(words_VE))

    def write(
        self,
        folder: Path,
        name: str,
        tokenizer: AlbertTokenizer,
        change: str,
        new_rows_from: int | None = None,
    ) -> None:
        """Write the checkpoint folder with the tokenizer, a card that says what changed, and read it again.

        How a sentence encoder makes vectors of its states, and which heads were trained, does not
        depend on the vocabulary; `new_rows_from` is the first untrained row.
        """
        checkpoint = self.checkpoint
        facts = FolderFacts.from_folder(checkpoint.folder)
        sentence_encoder_files = facts.sentence_encoder_files()
        if facts.module_types() and not sentence_encoder_files:
            logger.warning("how `%s` makes sentence vectors is left out", checkpoint.folder)
        for file in sentence_encoder_files:
            copy = shutil.copytree if file.is_dir() else shutil.copy
            copy(file, folder / file.name)
        foreign = dict(checkpoint.config.foreign)
        foreign.pop("tokenizer_class", None)  # names the one before
        checkpoint.config = checkpoint.config.replace(foreign=foreign, **special_ids(tokenizer))
        write_transformers(folder, checkpoint.tensors, checkpoint.config, self.model_class)
        tokenizer.save_pretrained(folder)
        text = f"# {name}"
        card = checkpoint.folder / "README.md"
        if card.is_file():
            text = card.read_text(encoding="utf-8", errors="replace").rstrip()
        write_file(folder / "README.md", f"{text}\n\n## Vocabulary\n\n{change}\n")
        provenance = read_provenance(checkpoint.folder)
        provenance.pop(NEW_ROWS_FROM, None)  # of the numbers before
        if new_rows_from is not None:
            provenance[NEW_ROWS_FROM] = new_rows_from
        if provenance:
            write_json(folder / PROVENANCE, provenance)
        read_written_checkpoint(folder, checkpoint.tensors, self.model_class)


@contextmanager
def open_vocabulary_model(source: str | Path) -> Iterator[VocabularyModel]:
    """Read any checkpoint with all its heads; an encoder of sentences may have no pooler."""
    with open_checkpoint(source) as checkpoint:
        head = named_or_guessed_head(checkpoint, None, str(source))
        checkpoint.config = with_labels(checkpoint.config, head, checkpoint.tensors)
        optional_parts = ("pooler",) if HEADS[head] is AlbertModel else ()
        if fit_tensors_and_list_missing(checkpoint, HEADS[head], optional_parts, str(source)):
            logger.warning("`%s` has no pooler: its weights are drawn at random (seed 0)", source)
        yield VocabularyModel(checkpoint, HEADS[head])


class RowMaker:
    """Makes embeddings for the tokens that `new` has after those of `old`; `old_VE` float32 are those of the old ones."""

    def __init__(
        self,
        old_VE: Tensor,
        old: SentencePieceTokenizer,
        new: SentencePieceTokenizer,
        generator: torch.Generator,
    ) -> None:
        self._old_VE = old_VE
        self._pieces = UnigramPieces(read_facts(old.model), old.unk_id)
        self._unknown_id = old.unk_id
        self._tokenizer = new
        self._new_pieces = [
            new.id_to_piece(number) for number in range(old.vocab_size, new.vocab_size)
        ]
        self._generator = generator

    def make_rows(self, how: str, std: float, texts: Sequence[str] = ()) -> Tensor:
        """Return rows for the new tokens, float32 [new tokens, E].

        "subword-mean": the mean of the rows of the tokens that the old vocabulary cut it into,
        unknown ones left out; where only unknown ones are left, as "mean". "mean": the mean of all
        old tokens and a tenth of their standard deviation in noise. "normal": as at the start of a
        training, of standard deviation `std`. "zero". "cooccurrence": from the tokens that stand
        beside it in `texts`; where there are none, as "subword-mean".
        """
        shape = (len(self._new_pieces), self._old_VE.shape[1])
        if how == "zero":
            return torch.zeros(shape)
        noise = torch.randn(shape, generator=self._generator)
        # No number beyond two standard deviations, as in Google's truncated normal
        if how == "normal":
            return noise.clamp_(-2, 2) * std
        ordinary_VE = self._old_VE[list(self._pieces.ids.values())]
        # Without the noise all of them would be one row, and get one gradient.
        rows = ordinary_VE.mean(0) + noise * (_NOISE * ordinary_VE.std(0))
        if how in ("subword-mean", "cooccurrence"):
            space_alone = [self._pieces.ids.get(SPACE)]
            for index, piece in enumerate(self._new_pieces):
                _, ids = self._pieces.best_segmentation(piece)
                known_ids = [token_id for token_id in ids if token_id != self._unknown_id]
                # Beside an unknown token, the space before it says nothing of the new one.
                if known_ids and (known_ids == ids or known_ids != space_alone):
                    rows[index] = self._old_VE[known_ids].mean(0)
        # English model, 8,000 Korean tokens, masked-LM loss before any update (frequencies alone
        # 7.56): subword mean 8.065, co-occurrence in Korean text 7.615, in Korean and English text
        # 7.521.
        if how == "cooccurrence":
            width = self._old_VE.shape[1]
            encoded = self._tokenizer.encode_batch(texts)
            counts = np.bincount(encoded.ids, minlength=self._tokenizer.vocab_size)
            shared = [number for number in self._pieces.ids.values() if counts[number] >= _FREQUENT]
            if len(shared) < width:
                raise DataError(
                    "too-little-data",
                    f"only {len(shared):,} of the old tokens occur {_FREQUENT} times in the text: too few to "
                    f"align {width} numbers",
                    "add text in the language of the old tokens to the files, or use --rows subword-mean",
                )
            documents = Documents(encoded.ids, encoded.offsets[:-1], encoded.offsets[1:])
            seed = int(torch.randint(2**31, (), generator=self._generator))
            vectors = cooccurrence_vectors([documents], counts, width, seed)
            # Both sets of vectors are known up to a rotation only: the one used brings the old
            # tokens of the text nearest to their rows (Schönemann 1966), after which their lengths
            # are made the same, too. In vain: shorter rows by how well the turn fits (loss 7.726),
            # ridge regression in place of a turn (7.584).
            vector_mean = vectors[shared].mean(0)
            row_mean = self._old_VE[shared].mean(0)
            centred_vectors = vectors[shared] - vector_mean
            centred_rows = self._old_VE[shared] - row_mean
            u, _, vh = torch.linalg.svd(centred_vectors.T @ centred_rows)
            scale = centred_rows.norm() / centred_vectors.norm()
            new = vectors[len(vectors) - len(self._new_pieces) :]
            turned = scale * (new - vector_mean) @ u @ vh + row_mean
            has_neighbour = new.any(1)
            rows[has_neighbour] = turned[has_neighbour]
        return rows

    def copy_and_count_donor_rows(
        self, rows: Tensor, donor_VE: Tensor, donor: SentencePieceTokenizer
    ) -> int:
        """Replace the rows of tokens that another model has by that model's; return their number."""
        num_copied = 0
        for index, piece in enumerate(self._new_pieces):
            donor_id = donor.piece_to_id(piece)
            if donor_id != donor.unk_id:
                rows[index] = donor_VE[donor_id]
                num_copied += 1
        return num_copied


def biases_for_new_tokens(
    bias_V: Tensor,
    scores: Sequence[float],
    ordinary: list[int],
    frequencies: np.ndarray,
) -> Tensor:
    """Return biases of the masked-LM head for new tokens, float32 [new tokens], within the range of the old ones.

    `ordinary` are the ids of the old tokens that are no special ones, `frequencies` the share of
    each new token in its text.
    """
    old = bias_V[ordinary].double().numpy()
    # A trained bias goes with the logarithm of a token's frequency, but neither its slope nor its
    # level is that of the logarithm itself, which lies far below any of them. The old tokens'
    # scores are such logarithms: a line through their biases says both.
    slope, level = np.polyfit(np.array(scores)[ordinary], old, 1)
    biases = level + slope * np.log(frequencies)
    return torch.tensor(np.clip(biases, old.min(), old.max()), dtype=torch.float32)


@dataclass(frozen=True)
class ExtensionReport(Result):
    """Result of `extend_vocabulary`.

    Attributes:
        out: The folder.
        old_size, vocab_size: Tokens before and after.
        characters, words, found, unused, left_out: See `Extension`.
        requested_words: Words that were given, those of files included.
        fingerprint: Of the new tokenizer.
        before, after: How the two fit held-out lines; None if the text was too short to hold any
            out.
        compared, differing: Of those lines (of others, if there are none), how many were compared
            with `tokenizer.json`, and how many differ.
        model_class: The class of the model; None without one.
        rows: How its new rows were made.
        taken_over: Number of rows from another model.
    """

    out: str
    old_size: int
    vocab_size: int
    characters: int
    words: int
    found: int
    unused: int
    left_out: dict[str, list[str]]
    requested_words: list[str]
    fingerprint: str
    before: TextFit | None
    after: TextFit | None
    compared: int
    differing: int
    model_class: str | None
    rows: str | None
    taken_over: int

    def sections(self) -> list[Section]:
        """Return the new tokens, the words left out, the rows of the model, and the fit of both vocabularies."""
        counts = f"{self.characters:,} characters, {self.words:,} given, {self.found:,} found, {self.unused:,} unused"
        lines = [
            f"{self.vocab_size:,} tokens in {self.out}, {self.old_size:,} of them as before",
            f"new: {counts}",
        ]
        if self.requested_words:
            lines.append(f"given: {format_list(self.requested_words)}")
        lines += [
            f"left out, {reason}: {' '.join(words)}" for reason, words in self.left_out.items()
        ]
        if self.model_class:
            donor_note = f", {self.taken_over:,} from another model" if self.taken_over else ""
            lines.append(
                f"{self.model_class} with rows for them ({self.rows}{donor_note}); old rows are the same bit for bit"
            )
        return [
            Paragraph(join_lines(lines), form="code"),
            *fit_sections({"before": self.before, "after": self.after}),
            tokenizer_json_section(self.compared, self.differing),
        ]


@takes(ExtendOptions)
def extend_vocabulary(options: ExtendOptions) -> ExtensionReport:
    """Add tokens to a tokenizer, grow its model with it, and write both as one folder; see `ExtendOptions`.

    Old tokens keep their ids, old rows their bits.

    Raises:
        CheckpointError: unsupported, wrong-tokenizer, exists, corrupt, and what opening a
            checkpoint raises.
        ConfigError: bad-value, unknown-name. DataError: empty, and what reading the files raises.
        MachineError: internal-error.
    """
    out = Path(options.out)
    tokenizer = require_sentencepiece_tokenizer(options.tokenizer)
    model = None if options.model is None else Path(options.model)
    if model is None and (options.rows_from is not None or options.rows != ExtendOptions.rows):
        raise ConfigError(
            "conflicting-options",
            "rows and rows_from are for the embeddings of a model, and none is given",
            "name it with --model, or leave --rows and --rows-from out",
        )
    if model is not None:
        model = local_folder(model) if model.is_dir() else model
        file = find_sentencepiece_model(model)
        # The rows of a model with another vocabulary mean other tokens.
        if (
            file is not None
            and read_facts(file.read_bytes()).pieces != read_facts(tokenizer.model).pieces
        ):
            raise CheckpointError(
                "wrong-tokenizer",
                f"the model in `{model}` has other tokens, in `{file.name}`, than those to extend",
                f"extend its own: `albertkit tokenizer extend {model} TEXT --model {model} --out DIR`",
            )
    words = _read_words(options.words)
    # What is measured must have no part in choosing the tokens.
    reading = HoldingOut(read_text_lines(options.files, options), options.seed)
    with new_folder(out) as folder:
        sample = draw_texts(reading, options.max_lines, options.seed)
        extension = extend_tokenizer(tokenizer, sample, options, words)
        extended = extension.tokenizer
        lines = reading.held_out
        model_class = None
        num_donor_rows = 0
        if model is None:
            extended.save_pretrained(folder)
        else:
            with open_vocabulary_model(model) as grown:
                num_donor_rows = _add_rows_and_count_donated(
                    grown, tokenizer, extension, options, sample
                )
                model_class = grown.model_class.__name__
                change = (
                    f"{extended.vocab_size - extension.first_id:,} tokens were added to {extension.first_id:,} by "
                    f"`albertkit tokenizer extend` (rows: {options.rows}); those before keep their ids and rows. "
                    "The new rows must be trained."
                )
                # From where on `pretrain --train-only new-rows` trains.
                grown.write(folder, out.name, extended, change, extension.first_id)
        extended.write_piece_listing(folder)
        # A text of less than a hundred lines may hold none of them out.
        comparison = compare_json(folder, extended, lines or sample[:1000])
    return ExtensionReport(
        out=str(out),
        old_size=tokenizer.vocab_size,
        vocab_size=extended.vocab_size,
        characters=extension.characters,
        words=extension.words,
        found=extension.found,
        unused=extension.unused,
        left_out=extension.left_out,
        requested_words=words,
        fingerprint=extended.fingerprint,
        before=measure_tokenizer_fit(tokenizer, lines),
        after=measure_tokenizer_fit(extended, lines),
        compared=comparison.compared,
        differing=comparison.differing,
        model_class=model_class,
        rows=options.rows if model_class else None,
        taken_over=num_donor_rows,
    )


def require_sentencepiece_tokenizer(folder: StrPath) -> SentencePieceTokenizer:
    """Return the tokenizer of a folder, if it is a SentencePiece model."""
    tokenizer = AlbertTokenizer.from_pretrained(folder)
    if not isinstance(tokenizer, SentencePieceTokenizer):
        raise CheckpointError(
            "unsupported",
            f"`{folder}` holds a {type(tokenizer).__name__}; only SentencePiece models can get more tokens",
            "use a folder with a spiece.model",
        )
    return tokenizer


def _add_rows_and_count_donated(
    model: VocabularyModel,
    old: SentencePieceTokenizer,
    extension: Extension,
    options: ExtendOptions,
    texts: Sequence[str],
) -> int:
    """Put rows for the new tokens after the old ones, and return the number that came from another model."""
    words_VE = model.words_VE
    bias_V = model.bias_V
    size = old.vocab_size
    check_vocabulary(size, len(words_VE))
    # One NaN would be in the mean of all rows, and so in every new one.
    if not words_VE.isfinite().all():
        raise CheckpointError(
            "corrupt",
            "the model's word embeddings are not finite",
            "its weights are broken: copy them again",
        )
    maker = RowMaker(
        words_VE,
        old,
        extension.tokenizer,
        torch.Generator().manual_seed(options.seed),
    )
    new = maker.make_rows(options.rows, model.checkpoint.config.initializer_range, texts)
    num_donor_rows = 0
    if options.rows_from is not None:
        with open_vocabulary_model(Path(options.rows_from)) as donor:
            if donor.words_VE.shape[1] != words_VE.shape[1]:
                raise CheckpointError(
                    "wrong-tokenizer",
                    f"rows in `{options.rows_from}` are {donor.words_VE.shape[1]} wide, the model's {words_VE.shape[1]}",
                    "take rows from a model of the same embedding_size",
                )
            num_donor_rows = maker.copy_and_count_donor_rows(
                new,
                donor.words_VE,
                require_sentencepiece_tokenizer(options.rows_from),
            )
    if bias_V is not None:
        facts = read_facts(old.model)
        ordinary = list(UnigramPieces(facts, old.unk_id).ids.values())
        added = biases_for_new_tokens(
            bias_V,
            [score for _, score, _ in facts.pieces],
            ordinary,
            extension.frequencies,
        )
        bias_V = torch.cat([bias_V[:size], added])
    # Rows that the model has beyond its tokenizer's tokens were never used; new tokens take their
    # places.
    model.replace(torch.cat([words_VE[:size], new]), bias_V)
    return num_donor_rows


def _read_words(words: str | Path | Sequence[str | Path] | None) -> list[str]:
    """Return the words of a list, in which a file stands for its lines and a comma separates words."""
    # A `Path`, an address and a name in a folder that exists are files, too: misspelt, they are no
    # words.
    word_list: list[str] = []
    if isinstance(words, str | Path):
        words = [words]
    for word in words or ():
        in_a_folder = os.path.isdir(os.path.dirname(word))
        if isinstance(word, Path) or os.path.isfile(word) or in_a_folder or "://" in word:
            word_list += [line.strip() for line in read_lines(Path(word)) if line.strip()]
        else:
            word_list += map(str.strip, word.split(","))
    return word_list
