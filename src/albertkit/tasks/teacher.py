"""A model that was fine-tuned on a task, to learn from: it reads the student's tokens, or the texts by a tokenizer of its own.

E examples with R rows of logits: one for each text, word or choice. C labels. A teacher that reads
the student's tokens runs beside the student and is an ALBERT or a BERT, which is opened as the
ALBERT that it is, with a group for every layer. Any other reads the texts once, before the
training, and its logits are kept in the run.
"""

from __future__ import annotations

import hashlib
import json
import unicodedata
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from operator import itemgetter
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch

from albertkit.batches.features import Features, LabelledBatch, batch_by_length
from albertkit.config import AlbertConfig
from albertkit.conversion.checkpoints import (
    OUR_TYPES,
    TransformersFolder,
    max_positions_of_network,
    open_checkpoint,
)
from albertkit.conversion.classes import HEADS, named_or_guessed_head, read_model_tokenizer
from albertkit.errors import CheckpointError, ConfigError, format_list
from albertkit.files import folder_digest, read_typed
from albertkit.model import AlbertForBeamQuestionAnswering, AlbertModel
from albertkit.model.pretrained import PretrainedAlbert
from albertkit.model_paths import local_folder
from albertkit.output.progress import ProgressBar
from albertkit.tables import IGNORED
from albertkit.tables.bad_rows import pluralize
from albertkit.tables.layouts import OFFICIAL
from albertkit.tasks.data import TaskData, keys_of_texts_and_article, plain_text
from albertkit.tasks.models import run_batches
from albertkit.tasks.settings import FinetuneSettings
from albertkit.tasks.tagging import find_tagged_words, word_index_of_token
from albertkit.tasks.task import Task, label_indices
from albertkit.tasks.texts import TextExample
from albertkit.tokenizer import AlbertTokenizer
from albertkit.training.processes import World, choose_precision, compute_rows

IS_LABELLED = "is_labelled"  # in features: [M], where there are unlabelled examples
# In features: [M, C], of tagging [T, C], NaN where the teacher has none
TEACHER_LOGITS = "teacher_logits"
_MAX_LENGTH = 512  # tokens that a teacher of another tokenizer reads of a text
_NUM_TRIED = 256  # training examples that outputs without names are tried on
_CLEAR_DIFFERENCE = 1.5  # in those that are right, times the root of their number: 24 of 256
_FAR = 2.0  # times the variance of the labels: the mean is nearer
_EDIT_SEED = 0  # whatever the training's, so that all seeds have the same examples
_NUM_SIMILAR = 10
# The first words of their characters' names in Unicode
_SCRIPTS_WITHOUT_SPACES = {"CJK", "HIRAGANA", "KATAKANA", "THAI", "LAO", "KHMER", "MYANMAR"}
# Of a changed word; one without similar words or without a next word is doubled
_KINDS_OF_EDITS = ("replaced", "left out", "swapped", "doubled")
_SHARES_OF_KINDS = (0.55, 0.2, 0.15, 0.1)
_INNER_SIGNS = set("'’-.,")  # between letters or digits without spaces: don't, well-known, 3.5
_EDITED_SHARES = (0.05, 0.1, 0.2, 0.3)  # of a text's words
_HINT = "name a model that was fine-tuned on the same task, with the same labels"
_SAME_TOKENIZER = (
    "train a student on a store that was built with the teacher's tokenizer: "
    "albertkit pretrain STORE --teacher TEACHER --out RUN"
)


class Reader(Protocol):
    """A fine-tuned model that reads examples by its own tokenizer.

    Attributes:
        labels: Names of its outputs.
        problem_type: transformers' name of what it was trained for, if its configuration says it.
        length: Tokens that it reads of a text.
    """

    labels: list[str]
    problem_type: str | None
    length: int

    def logits(self, examples: Sequence[Any]) -> np.ndarray:
        """Return fp32 [R, C]; NaN for a word that no token stands for."""

    def num_truncated(self, examples: Sequence[Any]) -> int:
        """Return how many examples are longer."""


@dataclass(frozen=True)
class TaskTeacher:
    """A model to learn from.

    Attributes:
        source: As the user named it.
        digest: SHA-256 of its folder.
        model: On its device, where it reads the student's tokens.
        reader: Reads the texts, where it does not.
        order: Its output for each label of the task; [] for all in their order.
        logits: fp32 [R, C] of the examples that it has read, a memory map.
        notes: Lines for the user.
    """

    source: Path
    digest: str
    model: PretrainedAlbert | None = None
    reader: Reader | None = None
    order: list[int] = field(default_factory=list)
    logits: np.ndarray | None = None
    notes: list[str] = field(default_factory=list)

    def with_own_logits_of(
        self, examples: Sequence[Any], folder: Path, world: World
    ) -> TaskTeacher:
        """Return a teacher of another tokenizer with its logits of examples, which are kept in a folder; else this one."""
        reader = self.reader
        if reader is None:
            return self
        sha256 = hashlib.sha256()
        for example in examples:
            sha256.update(repr(example).encode("utf-8", "surrogatepass"))
        key = {"teacher": self.digest, "order": self.order, "examples": sha256.hexdigest()}

        def logits_of(start: int, end: int) -> np.ndarray:
            logits = reader.logits(examples[start:end])
            return np.ascontiguousarray(logits[:, self.order], np.float32) if self.order else logits

        logits = compute_rows(
            folder / "logits.npy",
            key,
            len(examples),
            logits_of,
            world,
            "the teacher's logits",
        )
        return replace(self, reader=None, logits=logits)


def open_teacher(
    settings: FinetuneSettings,
    task: Task,
    data: TaskData,
    start: str | Path,
    world: World,
) -> tuple[TaskTeacher, TaskData]:
    """Open the teacher of the settings and make sure that its outputs mean what the labels do.

    The data that are returned have the edited copies, whose only labels are the teacher's.

    Args:
        settings: They name the teacher.
        task: Fitted to the training examples.
        data: Labelled and unlabelled examples.
        start: The student: a model's folder.
        world: Its device is where the teacher computes.

    Raises:
        CheckpointError: wrong-model, doubtful. ConfigError: bad-value, conflicting-options.
            MissingExtraError: not-installed.
    """
    assert settings.teacher is not None
    if task.model_class is AlbertForBeamQuestionAnswering:
        raise ConfigError(
            "bad-value",
            f"a teacher cannot teach {task.model_class.__name__}",
            "use the head with start and end logits: --qa-head spans",
        )
    if settings.edited_copies and not isinstance(data.train[0], TextExample):
        raise ConfigError(
            "conflicting-options",
            f"edited copies are made of texts and pairs of texts, which `{task.name}` does not have",
            "leave --edited-copies out; texts without labels can be given with --unlabelled",
        )
    source = settings.teacher
    path = local_folder(source)
    reader = open_reader(source, path, task, settings, world.device)
    problem_type = task.head().get("problem_type")
    if reader.problem_type and problem_type and reader.problem_type != problem_type:
        raise CheckpointError(
            "wrong-model",
            f"the teacher `{source}` was trained for {reader.problem_type}, the task is {problem_type}",
            _HINT,
        )
    notes: list[str] = []
    order, are_named = match_labels(task, reader.labels, source, notes)
    if not are_named or task.kind == "regression":
        check_outputs_fit_labels(task, data.train, reader, source)
    tokenizer = AlbertTokenizer.from_pretrained(local_folder(start))
    if settings.edited_copies:
        data = with_edited_copies(data, settings.edited_copies, start, tokenizer, world, notes)
    teacher = TaskTeacher(source, folder_digest(path), order=order, notes=notes)
    if isinstance(reader, EncoderReader) and reader.tokenizer.fingerprint == tokenizer.fingerprint:
        classifier = getattr(reader.model, "classifier", None)
        for parameter in classifier.parameters() if order and classifier else ():
            # Once, in place of the outputs of every batch
            parameter.data = parameter.data[order]
        notes.append(f"teacher: `{source}` runs beside the student, on its tokens")
        return replace(teacher, model=reader.model), data
    if task.kind == "answers" or settings.teacher_hidden:
        reason = (
            "answers start and end at tokens"
            if task.kind == "answers"
            else "hidden states are of tokens"
        )
        raise ConfigError(
            "conflicting-options",
            f"the teacher `{source}` has another tokenizer, and {reason}",
            _SAME_TOKENIZER
            if task.kind == "answers"
            else f"leave --teacher-hidden out; or {_SAME_TOKENIZER}",
        )
    notes.append(
        f"teacher: `{source}` reads the texts by its own tokenizer, {reader.length} tokens at most"
    )
    examples = [*data.train, *data.unlabelled]
    if num_cut := reader.num_truncated(examples):
        num_examples = pluralize(len(examples), "example")
        notes.append(f"teacher: {num_cut:,} of {num_examples} are longer, and it reads their start")
    return replace(teacher, reader=reader), data


def open_reader(
    source: Path,
    path: Path,
    task: Task,
    settings: FinetuneSettings,
    device: torch.device,
) -> Reader:
    """Open a folder of a fine-tuned model: an ALBERT or a BERT as ours, any other through transformers."""
    values = read_typed(path / "config.json", dict[str, Any], "model configuration")
    if values.get("model_type", "albert") not in OUR_TYPES:
        return TransformersReader(source, path, task, settings.batch_tokens, device)
    class_name = task.model_class.__name__
    with open_checkpoint(path) as checkpoint:
        if HEADS[named_or_guessed_head(checkpoint, None, str(source))] is not task.model_class:
            raise _wrong_class_error(source, class_name)
        if checkpoint.unknown:
            raise CheckpointError(
                "wrong-model",
                f"`{source}` has parameters that {class_name} has not: {format_list(checkpoint.unknown, 5)}",
                _HINT,
            )
        config = checkpoint.config
        model, _ = task.model_class.from_tensors(config, checkpoint.tensors, (), str(source))
        try:
            tokenizer = read_model_tokenizer(path, config, source)
        except CheckpointError as error:
            # A BERT with the tokenizer of XLM-R
            if error.slug != "unsupported":
                raise
            return TransformersReader(source, path, task, settings.batch_tokens, device)
    model.compute_dtype = choose_precision(settings.precision, device)
    model.to(device).requires_grad_(False)
    return EncoderReader(model, tokenizer, task, settings.batch_tokens)


def _wrong_class_error(source: Path, class_name: str) -> CheckpointError:
    return CheckpointError(
        "wrong-model",
        f"`{source}` holds no {class_name}: it was not fine-tuned on this kind of task",
        _HINT,
    )


class EncoderReader:
    """An ALBERT, or a BERT as one."""

    def __init__(
        self,
        model: PretrainedAlbert,
        tokenizer: AlbertTokenizer,
        task: Task,
        batch_tokens: int,
    ) -> None:
        self.model = model
        self.tokenizer = tokenizer
        self.labels = list(model.config.id2label.values())
        self.problem_type = model.config.problem_type
        self.length = min(_MAX_LENGTH, model.config.max_position_embeddings)
        self._task = task.with_changes(length=self.length)
        self._batch_tokens = batch_tokens

    def num_truncated(self, examples: Sequence[Any]) -> int:
        return self._task.features(examples, self.tokenizer, labelled=False).num_truncated

    def logits(self, examples: Sequence[Any]) -> np.ndarray:
        """Return fp32 [R, C]: of a text in windows their mean, as in prediction; of a word those of its first token."""
        features = self._task.features(examples, self.tokenizer, labelled=False)
        outputs = run_batches(self._outputs, features, self._batch_tokens, self.model.device)
        if self._task.kind == "choice":
            return np.array(outputs)
        if self._task.kind != "tagging":
            return self._task.logits(examples, features, outputs).astype(np.float32)  # type: ignore[attr-defined]
        logits = _missing_logits(examples, len(self.labels))
        logits[word_index_of_token(features, examples)[features.per_token["words"] >= 0]] = (
            np.concatenate(outputs)
        )
        return logits

    def _outputs(self, batch: LabelledBatch) -> list[Any]:
        """Return the logits of each sequence, or of its words."""
        logits = self.model.packed_logits(batch.packed).float()  # type: ignore[operator]
        if self._task.kind != "tagging":
            return list(logits.cpu().numpy())
        has_word = batch.per_token["words"] >= 0
        counts = [int(part.sum()) for part in has_word.split(batch.packed.lengths)]
        return [part.cpu().numpy() for part in logits[has_word].split(counts)]


class TransformersReader:
    """A model that transformers opens: DistilBERT, RoBERTa, ELECTRA, …; in fp32."""

    def __init__(
        self,
        source: Path,
        path: Path,
        task: Task,
        batch_tokens: int,
        device: torch.device,
    ) -> None:
        class_name = task.model_class.__name__.removeprefix("Albert")
        if class_name not in ("ForSequenceClassification", "ForTokenClassification"):
            raise CheckpointError(
                "unsupported",
                f"the teacher `{source}` is run by transformers, and the task is one of {task.kind}",
                "for classes, numbers and tags any model teaches; else name an ALBERT, or a BERT with its own tokenizer",
            )
        # A RoBERTa refuses words without it, and examples of transformers train it so.
        prefix = {"add_prefix_space": True} if task.kind == "tagging" else {}
        stored = TransformersFolder(path, f"the teacher `{source}`")
        self._tokenizer = stored.load("AutoTokenizer", **prefix)
        self._model, missing = stored.load_network_and_missing_names(f"AutoModel{class_name}")
        config = self._model.config
        architecture = next(iter(config.architectures or ()), "")
        # transformers initialises a head that the folder lacks.
        if missing or not architecture.endswith(class_name):
            raise _wrong_class_error(source, f"model {class_name}")
        if self._tokenizer.pad_token_id is None or config.pad_token_id is None:
            raise CheckpointError(
                "unsupported",
                f"the teacher `{source}` names no padding, and texts are read in batches",
                "name its pad_token in tokenizer_config.json, and pad_token_id in config.json",
            )
        self._model.requires_grad_(False).to(device)
        # Checked as those of an ALBERT
        labels = AlbertConfig(foreign={"id2label": config.id2label})
        self.labels = list(labels.id2label.values())
        self.problem_type = config.problem_type
        # A tokenizer without a limit says 10^30.
        self.length = min(
            _MAX_LENGTH, self._tokenizer.model_max_length, max_positions_of_network(self._model)
        )
        self._kind = task.kind
        self._batch_tokens = batch_tokens

    def num_truncated(self, examples: Sequence[Any]) -> int:
        return sum(
            len(ids) > self.length for ids in self._encoded(examples, truncated=False)["input_ids"]
        )

    @torch.inference_mode()
    def logits(self, examples: Sequence[Any]) -> np.ndarray:
        """Return fp32 [R, C]: of a word those of its first token."""
        encoding = self._encoded(examples, truncated=True)
        encoded = dict(encoding)
        offsets = encoded.pop("offset_mapping", None)
        lengths = np.array([len(ids) for ids in encoded["input_ids"]])
        outputs: list[Any] = [None] * len(examples)
        for run in batch_by_length(lengths, self._batch_tokens):
            rows = [
                {name: values[number] for name, values in encoded.items()}
                for number in run.tolist()
            ]
            batch = self._tokenizer.pad(rows, padding_side="right", return_tensors="pt").to(
                self._model.device
            )
            for number, logits in zip(
                run.tolist(), self._model(**batch).logits.cpu().numpy(), strict=True
            ):
                outputs[number] = logits
        if self._kind != "tagging":
            return np.array(outputs)
        word_logits = _missing_logits(examples, len(self.labels))
        first_row = 0
        for number, (example, logits) in enumerate(zip(examples, outputs, strict=True)):
            if offsets is None:
                owners = np.array(
                    [-1 if word is None else word for word in encoding.word_ids(number)]
                )
                # The first token of each word
                words, tokens = np.unique(owners, return_index=True)
                words, tokens = words[words >= 0], tokens[words >= 0]
            else:
                tagged = find_tagged_words(example.words, example.spaces, offsets[number])
                words = tagged.words
                tokens = tagged.tokens
            word_logits[first_row + words] = logits[tokens]
            first_row += len(example.words)
        return word_logits

    def _encoded(self, examples: Sequence[Any], truncated: bool) -> Any:
        options: dict[str, Any] = (
            # (It would warn of the first text that is too long for the model.)
            {"truncation": True, "max_length": self.length} if truncated else {"verbose": False}
        )
        texts = [example.text for example in examples]
        pairs = None
        if self._kind == "tagging" and all(example.spaces for example in examples):
            texts = [list(example.words) for example in examples]
            options["is_split_into_words"] = True
        elif self._kind == "tagging":
            options["return_offsets_mapping"] = truncated
        elif any(example.pair is not None for example in examples):
            pairs = [example.pair or "" for example in examples]
        return self._tokenizer(texts, pairs, **options)


def match_labels(
    task: Task,
    teacher_labels: Sequence[str],
    source: Path,
    notes: list[str],
) -> tuple[list[int], bool]:
    """Return the teacher's output for each label of a task ([] where they stand in one order), and whether both have names.

    Names are equal, or but for upper case, or the others that an official task has for its labels.
    Outputs without names are taken in the order of the labels; `notes` takes what is not plain.
    """
    head = task.head()
    labels = list(head.get("id2label", {}).values())
    if head and len(teacher_labels) != head["num_labels"]:
        fact = f"it has {pluralize(len(teacher_labels), 'output')}, the task {head['num_labels']}"
        raise CheckpointError(
            "wrong-model",
            f"the teacher `{source}` cannot teach this task: {fact}",
            _HINT,
        )
    if not labels:
        return [], True
    official = OFFICIAL.get(getattr(task, "layout", ""))
    official_names = official.label_names if official else ()
    plain_labels = list(map(plain_text, teacher_labels))
    spellings = (
        (labels, list(teacher_labels)),
        (list(map(plain_text, labels)), plain_labels),
        (list(map(plain_text, official_names)), plain_labels),
    )
    order = list(range(len(labels)))
    has_names = list(teacher_labels) != [f"LABEL_{number}" for number in order] or labels == list(
        teacher_labels
    )
    for names, teacher_names in spellings:
        # Labels that differ in upper case alone must stay two.
        if len(set(names)) == len(labels) and set(names) == set(teacher_names):
            order = [teacher_names.index(name) for name in names]
            break
    else:
        if has_names:
            fact = f"its labels are {format_list(teacher_labels, 12)}; those of the task {format_list(labels, 12)}"
            raise CheckpointError(
                "wrong-model",
                f"the teacher `{source}` cannot teach this task: {fact}",
                _HINT,
            )
    pairs = format_list(
        [f"{teacher_labels[output]} is `{labels[n]}`" for n, output in enumerate(order)],
        12,
    )
    if not has_names:
        pairs = f"its outputs have no names and are taken in the order of the labels: {pairs}"
    if labels != list(teacher_labels):
        notes.append(f"teacher: {pairs}")
    return ([] if order == sorted(order) else order), has_names


def check_outputs_fit_labels(
    task: Task, examples: Sequence[Any], teacher: Reader, teacher_path: Path
) -> None:
    """Refuse outputs that fit the labels of examples clearly better in another order, and numbers that are far from them."""
    if task.kind not in ("classification", "tagging", "regression"):
        return
    name = "tags" if task.kind == "tagging" else "label"
    labelled = [example for example in examples if getattr(example, name) not in (None, ())]
    examples = labelled[:: len(labelled) // _NUM_TRIED + 1]  # from all of a file that may be sorted
    logits = teacher.logits(examples)
    if task.kind == "regression":
        numbers = np.array([example.label for example in examples])
        distance = np.square(logits[:, 0] - numbers).mean()
        if distance > _FAR * numbers.var() > 0:
            raise CheckpointError(
                "doubtful",
                f"the numbers of the teacher `{teacher_path}` are {distance**0.5:.3g} away from the labels of "
                f"{pluralize(len(examples), 'training example')}, their mean is {numbers.std():.3g} away",
                "name a model that was trained on numbers of the same scale",
            )
        return
    labels = list(task.head()["id2label"].values())
    is_compared = np.isfinite(logits[:, 0])
    if task.kind == "tagging":
        gold = [tag for example in examples for tag in example.tags]
        is_compared &= np.array(gold) != "O"
    else:
        gold = [example.label for example in examples]
    counts = np.zeros((len(labels), len(labels)), np.int64)
    np.add.at(counts, (label_indices(gold, labels)[is_compared], logits[is_compared].argmax(1)), 1)
    # 0.3 s of import, a seventh of the start of a worker of `serve`
    from scipy.optimize import linear_sum_assignment

    outputs = linear_sum_assignment(counts, maximize=True)[1]
    total = int(counts.sum())
    num_right = int(counts.trace())
    num_best = int(counts[range(len(labels)), outputs].sum())
    # By chance alone another order is better by some roots of the number of labels.
    if num_best - num_right > _CLEAR_DIFFERENCE * total**0.5:
        names = {
            str(output): labels[label]
            for label, output in sorted(enumerate(outputs.tolist()), key=itemgetter(1))
        }
        raise CheckpointError(
            "doubtful",
            f"the outputs of the teacher `{teacher_path}` have no names; in the order of the labels {num_right:,} of "
            f"{total:,} training labels are right, in another {num_best:,}",
            f'name them in its config.json: "id2label": {json.dumps(names)}',
        )


def _missing_logits(examples: Sequence[Any], num_labels: int) -> np.ndarray:
    return np.full(
        (sum(len(example.words) for example in examples), num_labels),
        np.nan,
        np.float32,
    )


def _is_spaced(token: str) -> bool:
    """Return whether the script of a token has spaces between words."""
    return unicodedata.name(token[0], "").split(" ")[0] not in _SCRIPTS_WITHOUT_SPACES


@dataclass
class EditedWord:
    """A word, or what stands between words."""

    space: str  # before it
    token: str  # the first
    token_id: int | None  # None where it is no word
    continuation: str = ""  # the tokens that follow it in the same word

    def is_sign_after(self, word: EditedWord) -> bool:
        """Return whether this is a sign of which words have some inside, right after a word."""
        return self.token in _INNER_SIGNS and not self.space and word.token_id is not None


class TextEditor:
    """Changes words of texts: a similar one in their place, left out, twice, or after the next one.

    After Jiao et al. 2020, TinyBERT, whose similar words are those of a masked LM and of GloVe.
    Here they are the `_NUM_SIMILAR` tokens, among those that begin a word of the texts, whose
    vectors have the highest cosine; the tokens that continue the word stay.

    Args:
        texts: All texts that may be edited, and whose words take the places of others.
        tokenizer: That of the token vectors.
        token_vectors: fp32 [V, E].
        seed: Of the words that are changed.
    """

    def __init__(
        self, texts: Iterable[str], tokenizer: AlbertTokenizer, token_vectors: np.ndarray, seed: int
    ) -> None:
        from sklearn.neighbors import NearestNeighbors

        self._generator = np.random.default_rng(seed)
        self._tokenizer = tokenizer
        spellings: dict[int, Counter[str]] = defaultdict(Counter)
        for text in texts:
            for word in self._split(text):
                if word.token_id not in (None, tokenizer.unk_token_id):
                    spellings[word.token_id][word.token] += 1
        words = {token_id: counts.most_common(1)[0][0] for token_id, counts in spellings.items()}
        self._words = list(words.values())
        vectors = token_vectors[list(words)]
        vectors /= np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-12)
        num_similar = min(_NUM_SIMILAR, len(words) - 1)
        self._similar: dict[int, np.ndarray] = {}  # by token id: rows of `_words`
        if num_similar > 0:
            # Without an argument a word is not its own neighbour
            nearest = NearestNeighbors(n_neighbors=num_similar, algorithm="brute").fit(vectors)
            self._similar = dict(zip(words, nearest.kneighbors(return_distance=False), strict=True))

    def _split(self, text: str) -> list[EditedWord]:
        """Return the words of a text and what stands between them."""
        ids, spans = self._tokenizer.encode_with_offsets(text)
        words: list[EditedWord] = []
        before = 0
        for token_id, (_, end) in zip(ids, spans, strict=True):
            characters = text[before:end]
            if characters[-1:].strip() == "":
                continue  # SentencePiece's ▁ alone: white space of the word after it
            token = characters.split()[-1]
            prefix = characters.removesuffix(token)
            # Characters that no token stands for, such as accents, belong to the word before them.
            unread = prefix.rstrip() if words else ""
            space = prefix.removeprefix(unread)
            if unread:
                words[-1].continuation += unread
            is_word = any(map(str.isalnum, token))
            continues = False
            if words and not space:
                is_parted = is_word and len(words) > 1 and words[-1].is_sign_after(words[-2])
                word = words[-2] if is_parted else words[-1]
                follows_word = is_word and word.token_id is not None
                is_mark = unicodedata.category(token[0]).startswith("M")
                is_spaced = _is_spaced(word.token) and _is_spaced(token)
                continues = is_mark or (follows_word and is_spaced)
                if continues and is_parted:
                    sign = words.pop()
                    word.continuation += sign.token + sign.continuation
            if continues:
                words[-1].continuation += token
            else:
                words.append(EditedWord(space, token, token_id if is_word else None))
            before = end
        if words:
            words[-1].continuation += text[before:]
        return words

    def edit(self, text: str) -> str:
        """Return a text with one word or more changed: the share of words is drawn from `_EDITED_SHARES`.

        A text of which nothing would be left stays.
        """
        parts = self._split(text)
        words = [index for index, part in enumerate(parts) if part.token_id is not None]
        if not words:
            return text
        share = self._generator.choice(_EDITED_SHARES)
        is_changed = self._generator.random(len(words)) < share
        is_changed[self._generator.integers(len(words))] = True
        for index in np.array(words)[is_changed]:
            word = parts[index]
            kind = self._generator.choice(_KINDS_OF_EDITS, p=_SHARES_OF_KINDS)
            is_before_word = index + 1 < len(parts) and parts[index + 1].token_id is not None
            similar = self._similar.get(word.token_id)
            if kind == "replaced" and similar is not None:
                word.token = self._words[self._generator.choice(similar)]
            elif kind == "left out":
                parts[index] = EditedWord("", "", None)
            elif kind == "swapped" and is_before_word:
                # White space stays in its place
                next_word = parts[index + 1]
                parts[index] = replace(next_word, space=word.space)
                parts[index + 1] = replace(word, space=next_word.space)
            else:
                space = " " if _is_spaced(word.token) else ""
                word.continuation += f"{space}{word.token}{word.continuation}"
        edited = "".join(part.space + part.token + part.continuation for part in parts).strip()
        return edited or text


def with_edited_copies(
    data: TaskData,
    num_copies: int,
    start: str | Path,
    tokenizer: AlbertTokenizer,
    world: World,
    notes: list[str],
) -> TaskData:
    """Return data with `num_copies` of every training example among those without labels.

    Copies that equal the example or another copy, and those with a text of dev, are left out.

    Args:
        data: Of a task whose examples are texts or pairs of texts.
        num_copies: At most, of each example.
        start: The model that is trained: words that its token vectors tell little apart replace
            each other.
        tokenizer: That of `start`.
        world: Its main process shows how far it is.
        notes: Take a line with the counts.
    """
    weight = AlbertModel.from_pretrained(local_folder(start)).get_input_embeddings().weight
    texts = [text for example in data.train for text in (example.text, example.pair) if text]
    editor = TextEditor(texts, tokenizer, weight.detach().float().numpy(), _EDIT_SEED)
    kind = data.task.kind
    held_out_keys = {
        key
        for example in (*data.dev, *data.calibration)
        for key in keys_of_texts_and_article(kind, example)
    }
    known_texts = {(example.text, example.pair) for example in data.train}
    copies: list[TextExample] = []
    total = num_copies * len(data.train)
    with ProgressBar("editing copies", total, "copies", world.is_main) as progress:
        for number in range(1, num_copies + 1):
            for example in data.train:
                copy = TextExample(
                    f"{example.id}-copy-{number}",
                    editor.edit(example.text),
                    editor.edit(example.pair) if example.pair else example.pair,
                )
                texts_of_copy = (copy.text, copy.pair)
                if texts_of_copy not in known_texts and held_out_keys.isdisjoint(
                    keys_of_texts_and_article(kind, copy)
                ):
                    copies.append(copy)
                known_texts.add(texts_of_copy)
                progress.update(progress.completed + 1)
    notes.append(
        f"edited copies: {len(copies):,} of {pluralize(len(data.train), 'training example')}; "
        f"{total - len(copies):,} more equal another text or have one of dev"
    )
    return replace(data, unlabelled=[*data.unlabelled, *copies])


def with_unlabelled(features: Features, unlabelled: Features) -> Features:
    """Return features with those of unlabelled examples after them, whose labels are 0; IS_LABELLED tells them apart."""
    labels = {
        name: np.zeros((unlabelled.num_sequences, *values.shape[1:]), values.dtype)
        for name, values in features.per_sequence.items()
    }
    labels |= unlabelled.per_sequence
    per_token = dict(unlabelled.per_token)
    if "labels" in features.per_token:
        per_token["labels"] = np.where(per_token["words"] >= 0, 0, IGNORED)
    is_labelled = np.ones(features.num_sequences, bool)
    labelled = replace(features, per_sequence={**features.per_sequence, IS_LABELLED: is_labelled})
    labels[IS_LABELLED] = np.zeros(unlabelled.num_sequences, bool)
    return Features.concatenated(
        [labelled, replace(unlabelled, per_sequence=labels, per_token=per_token)]
    )


def with_teacher_logits(
    features: Features,
    task: Task,
    examples: Sequence[Any],
    logits: np.ndarray,
) -> Features:
    """Return the student's features of examples with the logits of a teacher that has read their texts."""
    if task.kind == "tagging":
        rows = np.where(
            features.per_token["words"] >= 0, word_index_of_token(features, examples), 0
        )
        return replace(features, per_token={**features.per_token, TEACHER_LOGITS: logits[rows]})
    rows = np.arange(features.num_sequences) if task.kind == "choice" else features.examples
    return replace(features, per_sequence={**features.per_sequence, TEACHER_LOGITS: logits[rows]})
