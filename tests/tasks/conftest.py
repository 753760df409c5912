"""A start to fine-tune from, a table to learn, models with random heads: all small enough for seconds."""

import itertools
import json
import os
import signal

import numpy as np
import pytest
import torch

from albertkit.model import AlbertForPreTraining
from albertkit.tables.bad_rows import BadRows
from albertkit.tables.columns import Columns
from albertkit.tasks.finetune import TaskEvaluator
from albertkit.tasks.models import load_encoder, save_task_model
from albertkit.tasks.questions import read_questions
from albertkit.tasks.registry import find_task
from albertkit.tasks.texts import TextExample
from albertkit.tokenizer import AlbertTokenizer
from albertkit.training.loop import LoopSettings, TrainingRecipe, train
from albertkit.training.monitor import Display
from albertkit.training.processes import World

COLUMNS = Columns(text="sentence", label="label")
WORDS = "the quick brown fox jumps over a lazy dog while seven old wizards brew strong potions near calm rivers".split()
# The golden metrics' names, and ours.
THEIR_NAMES = {
    "accuracy": "accuracy",
    "matthews_corrcoef": "matthews_correlation",
    "f1_macro": "f1_macro",
    "f1_label_1": "f1",
    "precision_label_1": "precision",
    "recall_label_1": "recall",
    "mean_of_accuracy_and_f1": "accuracy_and_f1",
    "pearson": "pearson",
    "spearman": "spearman",
    "mse": "mse",
    "mean_of_pearson_and_spearman": "pearson_and_spearman",
}


def write_table(path, rows, seed):
    """Sentences of WORDS; the label says whether a wizard is in it."""
    rng = np.random.default_rng(seed)
    lines = ["sentence\tlabel"]
    for number in range(rows):
        words = list(rng.choice([w for w in WORDS if w != "wizards"], rng.integers(4, 12)))
        if number % 2:
            words.insert(int(rng.integers(len(words))), "wizards")
        lines.append(f"{' '.join(words)}\t{'magic' if number % 2 else 'plain'}")
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


def read_examples(task, file, split="dev", labelled=True, bad_rows=None):
    """The examples of a file; a bad row is an error unless `bad_rows` collects it."""
    return list(task.examples(file, split=split, labelled=labelled, bad_rows=bad_rows or BadRows()))


def text_examples(texts, labels=(), pairs=()):
    """Examples of these texts, numbered from 0."""
    rows = itertools.zip_longest(texts, pairs, labels)
    return [TextExample(str(number), *row) for number, row in enumerate(rows)]


def reread(task):
    """The task, from the JSON that a folder keeps of it."""
    return type(task).from_dict(json.loads(json.dumps(task.to_dict())))


def whole_batch(features):
    """All sequences in one batch."""
    return features.batch(np.arange(features.num_sequences))


def padded_rows(packed):
    """The inputs of a packed batch as transformers takes them."""
    return {
        "input_ids": packed.unpack(packed.input_ids),
        "attention_mask": packed.padding_mask().long(),
        "token_type_ids": packed.unpack(packed.token_type_ids),
    }


class OneBatch:
    """A stream of the same batch again and again."""

    def __init__(self, batch):
        self.batch = batch
        self.cursor = 0

    def __next__(self):
        self.cursor += 1
        return [self.batch]

    def state(self):
        return {"cursor": self.cursor}

    def restore(self, state):
        self.cursor = state["cursor"]


class BatchObjective:
    """An objective by what it computes of a batch, and the targets of one."""

    def __init__(self, losses, count_targets):
        self.losses = losses
        self.count_targets = count_targets

    def flops(self, batch):
        return 1.0


def train_on_batch(model, objective, batch, run, steps, save, resume=False):
    """Updates with one batch, and a checkpoint every second one."""
    recipe = TrainingRecipe(
        model=model,
        objective=objective,
        stream=OneBatch(batch),
        loop=LoopSettings(
            steps=steps, lr=0.01, optimizer="adamw", schedule="constant", save_every=2
        ),
        evaluate=lambda: {"score": 0.0},
        select="score",
        save=save,
    )
    train(recipe, run, World(0, 1, torch.device("cpu")), Display(run, silent=True), resume=resume)


def save_untrained(start, folder, name, columns=None, **changes):
    """A folder with a model of a task whose head has random weights."""
    task = find_task(name, columns).with_changes(**changes)
    torch.manual_seed(5)
    model, tokenizer, _ = load_encoder(start, task)
    save_task_model(folder, model, tokenizer, task)
    return folder


GOLDEN_QUESTIONS = {"v11": "v11_dev60.json", "v20": "v20_dev60.json", "edge": "edge_cases.json"}


@pytest.fixture(scope="session")
def read_golden_questions(golden):
    """`read_golden_questions("v20")`: the questions of the golden numbers of SQuAD."""

    def questions_of(kind):
        file = golden / "squad" / GOLDEN_QUESTIONS[kind]
        return list(read_questions(file, version=2, labelled=True, bad_rows=BadRows()))

    return questions_of


@pytest.fixture(scope="session")
def tokenizer(data):
    """The 30,000 English tokens of the published models."""
    return AlbertTokenizer.from_pretrained(data / "albert")


@pytest.fixture(scope="session")
def start(tiny_tokenizer, tiny_model, tmp_path_factory):
    """A pretraining checkpoint with random weights."""
    sizes = dict(hidden_size=32, num_hidden_layers=2, num_attention_heads=1, intermediate_size=64)
    model = tiny_model(
        AlbertForPreTraining, **sizes, initializer_range=0.1, classifier_dropout_prob=0.0
    )
    folder = tmp_path_factory.mktemp("start") / "model"
    model.save_pretrained(folder, tiny_tokenizer)
    return folder


@pytest.fixture(scope="session")
def table(tmp_path_factory):
    """A folder with train.tsv (300 rows) and dev.tsv (100)."""
    folder = tmp_path_factory.mktemp("table")
    write_table(folder / "train.tsv", 300, 1)
    write_table(folder / "dev.tsv", 100, 2)
    return folder


@pytest.fixture(scope="session")
def untrained(start, tmp_path_factory):
    """A classifier of `table` whose head has random weights."""
    folder = tmp_path_factory.mktemp("untrained") / "model"
    return save_untrained(start, folder, "classify", COLUMNS, labels=("magic", "plain"), length=32)


@pytest.fixture
def stop_at(monkeypatch):
    """`stop_at(1, 4)`: at these evaluations, counted from 1, a run is told to stop."""
    score = TaskEvaluator.calibrate_task_and_score_dev

    def stop(*numbers):
        evaluations = itertools.count(1)

        def stopping(evaluator, model):
            if next(evaluations) in numbers:
                os.kill(os.getpid(), signal.SIGTERM)
            return score(evaluator, model)

        monkeypatch.setattr(TaskEvaluator, "calibrate_task_and_score_dev", stopping)

    return stop
