"""Teachers of any tokenizer against transformers' own forward passes, their labels, and runs that learn from them."""

import json
import shutil
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import tokenizers
import torch
import transformers
from numpy.testing import assert_allclose
from record_files import read_records, write_json, write_lines
from torch.testing import assert_close

from albertkit.errors import CheckpointError, ConfigError, DataError
from albertkit.tables.bad_rows import BadRows
from albertkit.tables.columns import Columns
from albertkit.tasks.check import check_task
from albertkit.tasks.choices import ChoiceExample
from albertkit.tasks.data import TaskData, has_labelled_example, read_data, read_split
from albertkit.tasks.distillation import DistillationLosses
from albertkit.tasks.finetune import finetune
from albertkit.tasks.questions import AnnotatedAnswer, QuestionExample
from albertkit.tasks.registry import find_task
from albertkit.tasks.settings import FinetuneSettings
from albertkit.tasks.tagging_files import TaggedExample
from albertkit.tasks.teacher import (
    EncoderReader,
    TextEditor,
    TransformersReader,
    match_labels,
    open_reader,
    open_teacher,
    with_teacher_logits,
    with_unlabelled,
)
from albertkit.tasks.texts import TextExample
from albertkit.tokenizer import AlbertTokenizer
from albertkit.training.processes import World

from .conftest import COLUMNS, WORDS, text_examples, whole_batch, write_table

ALONE = World(0, 1, torch.device("cpu"))
LABELS = ("magic", "perhaps", "plain")
TEXTS = [
    "the quick brown fox",
    "seven old wizards brew strong potions near calm rivers",
    "a lazy dog",
    "unknown wizards",
]
TEXT_TASK = find_task("classify", COLUMNS).with_changes(labels=LABELS)
SETTINGS = FinetuneSettings(
    precision="fp32", lr=3e-3, epochs=2, batch_size=16, length=32, batch_tokens=512
)

TAGS = ("O", "B-PS", "I-PS")
NER = find_task("ner").with_changes(labels=TAGS)
SENTENCES = [
    TaggedExample(id=str(n), words=tuple(text.split()), tags=(), spaces=True)
    for n, text in enumerate(TEXTS)
]


def label_names(labels):
    if not labels:
        return {}
    return {
        "id2label": dict(enumerate(labels)),
        "label2id": {label: n for n, label in enumerate(labels)},
    }


@pytest.fixture(scope="module")
def make_bert(tmp_path_factory):
    """`make_bert(class, labels, **configuration)`: the folder of a random BERT in whose vocabulary words have parts."""

    def make(name, labels=(), **changes):
        folder = tmp_path_factory.mktemp("bert")
        pieces = [word[:4] for word in WORDS] + [f"##{word[4:]}" for word in WORDS if len(word) > 4]
        vocabulary = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *dict.fromkeys(pieces)]
        write_lines(folder / "vocab.txt", vocabulary)
        transformers.BertTokenizer(str(folder / "vocab.txt")).save_pretrained(folder)
        config = transformers.BertConfig(
            vocab_size=len(vocabulary),
            hidden_size=64,
            num_hidden_layers=2,
            num_attention_heads=2,
            intermediate_size=96,
            max_position_embeddings=64,
            initializer_range=0.3,
            **label_names(labels),
            **changes,
        )
        torch.manual_seed(0)
        getattr(transformers, name)(config).eval().save_pretrained(folder)
        return folder

    return make


@pytest.fixture
def read_by(tiny_tokenizer, tmp_path_factory):
    """`read_by(folder, task, examples, **settings)`: the teacher in a folder, after it has read examples for a student."""

    def open_and_read(folder, task, examples, tokenizer=tiny_tokenizer, out=None, **changes):
        settings = replace(SETTINGS, teacher=folder, **changes)
        student = tmp_path_factory.mktemp("student")
        tokenizer.save_pretrained(student)
        data = TaskData(task, examples, [], [], [])
        teacher, _ = open_teacher(settings, task, data, student, ALONE)
        return teacher.with_own_logits_of(examples, out or student / "teacher", ALONE)

    return open_and_read


def transformers_logits(folder, *texts, **options):
    """The logits of transformers' class for each text, or pair, run by itself."""
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    model = transformers.AutoModelForSequenceClassification.from_pretrained(folder).eval()
    with torch.no_grad():
        return np.concatenate(
            [
                model(**tokenizer(*row, return_tensors="pt", **options)).logits
                for row in zip(*texts, strict=True)
            ]
        )


@pytest.mark.parametrize("pairs", [None, TEXTS[::-1]], ids=["texts", "pairs"])
@pytest.mark.parametrize("order", [(0, 1, 2), (2, 0, 1)], ids=["in order", "permuted"])
def test_a_bert_reads_the_texts_as_transformers_does(make_bert, pairs, order, read_by):
    folder = make_bert("BertForSequenceClassification", tuple(LABELS[n] for n in order))
    examples = text_examples(TEXTS, pairs=pairs or [])
    teacher = read_by(folder, TEXT_TASK, examples)
    expected = transformers_logits(folder, TEXTS, *([pairs] if pairs else []))
    assert np.ptp(expected) > 0.5
    assert_allclose(teacher.logits, expected[:, [order.index(n) for n in range(3)]], atol=2e-5)
    assert teacher.model is None
    assert any("by its own tokenizer" in note for note in teacher.notes)


def edit(file, **values):
    """Change values of a JSON file."""
    write_json(file, json.loads(file.read_text()) | values)


def test_labels_may_be_listed_in_any_order_and_a_tokenizer_be_read_by_transformers(
    make_bert, read_by
):
    folder = make_bert("BertForSequenceClassification", num_labels=3)
    edit(folder / "config.json", id2label={str(n): LABELS[n] for n in (2, 0, 1)})
    examples = text_examples(TEXTS)
    expected = transformers_logits(folder, TEXTS)
    ours = read_by(folder, TEXT_TASK, examples)
    edit(folder / "tokenizer_config.json", never_split=["wizards"])
    theirs = read_by(folder, TEXT_TASK, examples)
    assert_allclose(ours.logits, expected, atol=2e-5)
    assert_allclose(theirs.logits, expected, atol=2e-5)


def test_a_bert_with_the_students_tokenizer_runs_beside_it(make_bert, tmp_path, read_by):
    folder = make_bert("BertForSequenceClassification", LABELS[::-1])
    tokenizer = AlbertTokenizer.from_pretrained(folder)
    examples = text_examples(TEXTS)
    teacher = read_by(folder, TEXT_TASK, examples, tokenizer, tmp_path, teacher_hidden=1.0)
    assert teacher.model is not None
    batch = whole_batch(TEXT_TASK.features(examples, tokenizer, labelled=False))
    with torch.no_grad():
        logits = teacher.model.packed_logits(batch.packed)
    assert_allclose(logits, transformers_logits(folder, TEXTS)[:, ::-1], atol=2e-5)
    assert not (tmp_path / "logits.npy").exists()


def first_token_logits(folder):
    """The logits that transformers has for the first token of each word, sentence by sentence."""
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    model = transformers.AutoModelForTokenClassification.from_pretrained(folder).eval()
    rows = []
    for sentence in SENTENCES:
        encoded = tokenizer(list(sentence.words), is_split_into_words=True, return_tensors="pt")
        owners = encoded.word_ids()
        with torch.no_grad():
            logits = model(**encoded).logits[0]
        rows += [logits[owners.index(word)] for word in range(len(sentence.words))]
    return torch.stack(rows)


def test_words_have_the_logits_of_their_first_tokens(make_bert, read_by):
    folder = make_bert("BertForTokenClassification", TAGS)
    teacher = read_by(folder, NER, SENTENCES)
    assert_allclose(teacher.logits, first_token_logits(folder), atol=2e-5)


@pytest.fixture
def bert(make_bert):
    """A BERT that classifies the sentences of `table`."""
    return make_bert("BertForSequenceClassification", ("plain", "magic"))


@pytest.fixture(scope="module")
def make_other(make_bert, tmp_path_factory):
    """`make_other(kind, head, labels, **configuration)`: the folder of a random DistilBERT, ELECTRA or RoBERTa."""

    def make(kind, head, labels, **changes):
        folder = tmp_path_factory.mktemp(kind)
        if kind == "Roberta":
            trained = tokenizers.ByteLevelBPETokenizer()
            trained.train_from_iterator(
                TEXTS * 5, 300, special_tokens="<s> <pad> </s> <unk> <mask>".split()
            )
            trained.save_model(str(folder))
            tokenizer = transformers.RobertaTokenizerFast.from_pretrained(
                folder, add_prefix_space=True
            )
            changes |= {"pad_token_id": 1}
        else:
            tokenizer = transformers.AutoTokenizer.from_pretrained(make_bert("BertForMaskedLM"))
        sizes = dict(
            hidden_size=64,
            num_hidden_layers=2,
            num_attention_heads=2,
            intermediate_size=96,
            embedding_size=64,
        )
        if kind == "DistilBert":
            sizes = dict(dim=64, n_layers=2, n_heads=2, hidden_dim=96)
        config = getattr(transformers, f"{kind}Config")(
            vocab_size=len(tokenizer),
            max_position_embeddings=66,
            initializer_range=0.3,
            **sizes,
            **label_names(labels),
            **changes,
        )
        torch.manual_seed(0)
        getattr(transformers, f"{kind}{head}")(config).eval().save_pretrained(folder)
        tokenizer.save_pretrained(folder)
        return folder

    return make


@pytest.mark.parametrize("kind", ["DistilBert", "Electra", "Roberta"])
def test_what_transformers_opens_teaches(make_other, kind, slug_of, read_by):
    folder = make_other(kind, "ForSequenceClassification", LABELS[::-1])
    pairs = [TEXTS[n - 1] for n in range(len(TEXTS))]
    teacher = read_by(folder, TEXT_TASK, text_examples(TEXTS, pairs=pairs), batch_tokens=40)
    expected = transformers_logits(folder, TEXTS, pairs)
    assert_allclose(teacher.logits, expected[:, ::-1], atol=2e-5)
    long = " ".join(TEXTS * 20)
    teacher = read_by(folder, TEXT_TASK, text_examples([long]))
    assert any("1 of 1 example" in note for note in teacher.notes)
    # RoBERTa's first two rows are of no position
    room = {"truncation": True, "max_length": 64 if kind == "Roberta" else 66}
    expected = transformers_logits(folder, [long], **room)
    assert_allclose(teacher.logits, expected[:, ::-1], atol=2e-5)
    assert slug_of(read_by, folder, find_task("arc"), []) == "unsupported"
    assert slug_of(read_by, folder, NER, []) == "wrong-model"

    folder = make_other(kind, "ForTokenClassification", TAGS)
    teacher = read_by(folder, NER, SENTENCES, batch_tokens=40)
    assert_allclose(teacher.logits, first_token_logits(folder), atol=2e-5)


def test_characters_have_the_logits_of_the_tokens_that_begin_there(make_bert):
    folder = make_bert("BertForTokenClassification", TAGS)
    sentences = [
        TaggedExample(id=str(n), words=tuple(text), spaces=False) for n, text in enumerate(TEXTS)
    ]
    ours = open_reader(folder, folder, NER, SETTINGS, ALONE.device).logits(sentences)
    theirs = TransformersReader(folder, folder, NER, 40, ALONE.device).logits(sentences)
    assert np.array_equal(np.isnan(ours), np.isnan(theirs))
    assert 0.1 < np.isnan(ours).mean() < 0.9
    assert_allclose(ours, theirs, atol=2e-5)


@pytest.mark.parametrize("order", [(0, 1, 2), (1, 2, 0)], ids=["in order", "in another"])
def test_outputs_without_names_are_tried_on_labelled_examples(make_bert, order, read_by):
    folder = make_bert("BertForSequenceClassification", num_labels=3)
    outputs = transformers_logits(folder, TEXTS).argmax(1)
    examples = text_examples(TEXTS, [LABELS[order[output]] for output in outputs])
    examples.append(TextExample("unlabelled", TEXTS[0]))
    assert len(set(outputs)) > 1
    if order == (0, 1, 2):
        assert "LABEL_0 is `magic`" in read_by(folder, TEXT_TASK, examples).notes[0]
        return
    with pytest.raises(
        CheckpointError, match=r"\[doubtful\].* 0 of 4 training labels are right, in another 4"
    ) as caught:
        read_by(folder, TEXT_TASK, examples)
    named_output = outputs[0]
    assert f'"{named_output}": "{LABELS[order[named_output]]}"' in caught.value.hint


@pytest.mark.parametrize(
    ("labels", "outputs", "expected", "noted"),
    [
        (("no", "yes"), ("no", "yes"), ([], True), ""),
        (("no", "yes"), ("yes", "no"), ([1, 0], True), "no is `no`, yes is `yes`"),
        (("no", "yes"), ("YES", "NO"), ([1, 0], True), "NO is `no`"),
        (("no", "yes"), ("LABEL_0", "LABEL_1"), ([], False), "LABEL_0 is `no`, LABEL_1 is `yes`"),
        (("LABEL_0", "LABEL_1"), ("LABEL_1", "LABEL_0"), ([1, 0], True), "LABEL_0 is `LABEL_0`"),
        (("O", "o"), ("o", "O"), ([1, 0], True), "O is `O`"),
    ],
    ids=["same", "permuted", "upper case", "unnamed", "named so", "case decides"],
)
def test_labels_are_matched_by_name(labels, outputs, expected, noted):
    notes = []
    assert (
        match_labels(TEXT_TASK.with_changes(labels=labels), outputs, Path("t"), notes) == expected
    )
    assert noted in " ".join(notes)
    assert bool(noted) == bool(notes)


def test_an_official_tasks_other_names_are_known():
    notes = []
    assert match_labels(find_task("sst2"), ("POSITIVE", "NEGATIVE"), Path("t"), notes) == (
        [1, 0],
        True,
    )
    assert "NEGATIVE is `0`" in notes[0]


@pytest.mark.parametrize(
    ("name", "changes", "reason"),
    [
        ("BertForSequenceClassification", dict(labels=("a", "b")), "2 outputs, the task 3"),
        (
            "BertForSequenceClassification",
            dict(labels=("magic", "perhaps", "dull")),
            "its labels are magic, perhaps, dull",
        ),
        (
            "BertForSequenceClassification",
            dict(labels=LABELS, problem_type="regression"),
            "was trained for regression",
        ),
        ("BertForTokenClassification", dict(labels=LABELS), "not fine-tuned on this kind of task"),
        ("BertForMaskedLM", {}, "not fine-tuned on this kind of task"),
    ],
    ids="number names problem tokens pretrained".split(),
)
def test_a_teacher_of_something_else_is_refused(make_bert, name, changes, reason, read_by):
    with pytest.raises(CheckpointError, match=rf"\[wrong-model\].*{reason}"):
        read_by(
            make_bert(name, **changes),
            TEXT_TASK,
            text_examples(["a fox"]),
        )


def test_an_unfinished_folder_of_another_class_is_refused(make_other, tmp_path, slug_of, read_by):
    folder = make_other("Electra", "ForSequenceClassification", LABELS)

    def slug(file, **values):
        copy = tmp_path / str(len(list(tmp_path.iterdir())))
        shutil.copytree(folder, copy)
        edit(copy / file, **values)
        return slug_of(read_by, copy, TEXT_TASK, [])

    assert slug("config.json", id2label={"1": "magic", "2": "perhaps", "3": "plain"}) == "bad-value"
    assert slug("config.json", num_hidden_layers=1) == "weights-mismatch"
    assert slug("config.json", pad_token_id=None) == "unsupported"


def test_what_tokens_decide_needs_one_tokenizer(make_bert, slug_of, read_by):
    answers = find_task("squad1")
    folder = make_bert("BertForQuestionAnswering")
    assert slug_of(read_by, folder, answers, []) == "conflicting-options"
    assert read_by(folder, answers, [], AlbertTokenizer.from_pretrained(folder)).model is not None
    folder = make_bert("BertForSequenceClassification", LABELS)
    with pytest.raises(ConfigError, match="hidden states are of tokens"):
        read_by(folder, TEXT_TASK, [], teacher_hidden=1.0)
    assert slug_of(read_by, folder, find_task("squad2"), []) == "bad-value"


def test_numbers_of_another_scale_are_refused(make_bert, slug_of, read_by):
    folder = make_bert("BertForSequenceClassification", num_labels=1)
    task = find_task("regress")
    numbers = transformers_logits(folder, TEXTS)[:, 0]
    examples = text_examples(TEXTS, (numbers + 0.1).tolist())
    teacher = read_by(folder, task, examples)
    assert_allclose(teacher.logits[:, 0], numbers, atol=2e-5)
    shifted = [replace(example, label=example.label + 10) for example in examples]
    assert slug_of(read_by, folder, task, shifted) == "doubtful"


# --- unlabelled examples --------------------------------------------------------------------------


def choices(number, label):
    return ChoiceExample(
        str(number),
        "",
        TEXTS[number],
        ("a fox", "a dog", "wizards")[: 2 + number % 2],
        label,
        ("A", "B", "C"),
    )


def question(number, labelled):
    word = TEXTS[number].split()[1]
    answer = AnnotatedAnswer(word, TEXTS[number].index(word), word)
    return QuestionExample(
        str(number), "the lazy fox", TEXTS[number], (answer,) if labelled else ()
    )


TAGGED = [
    replace(sentence, tags=("B-PS", *["O"] * (len(sentence.words) - 1))) for sentence in SENTENCES
]
LABELLED = text_examples(TEXTS, [*LABELS, LABELS[0]])
MIXED = {
    "classify": (TEXT_TASK, LABELLED),
    "windows": (TEXT_TASK.with_changes(long_texts="windows", length=8), LABELLED),
    "regress": (
        find_task("regress"),
        text_examples(TEXTS, [0.0, 1.0, 2.0, 3.0], ["a fox"] * 4),
    ),
    "multilabel": (
        find_task("multilabel").with_changes(labels=("a", "b")),
        text_examples(TEXTS, [("a", "b"), ("b",)] * 2),
    ),
    "ner": (NER, TAGGED),
    "arc": (find_task("arc"), [choices(n, n % 2) for n in range(4)]),
    "squad1": (find_task("squad1"), [question(n, True) for n in range(4)]),
}


@pytest.mark.parametrize("kind", MIXED)
def test_labels_count_for_the_labelled_alone_and_the_teacher_for_all(
    tiny_model, tiny_tokenizer, kind
):
    task, examples = MIXED[kind]
    task = task.with_changes(length=min(task.length, 32))
    stripped = [
        replace(e, **{"tags": ()} if kind == "ner" else {} if kind == "squad1" else {"label": None})
        for e in examples
    ]
    unlabelled = stripped[2:] if kind != "squad1" else [question(n, False) for n in (2, 3)]
    student = tiny_model(task.model_class, **task.head())
    teacher = tiny_model(task.model_class, initializer_range=0.3, **task.head())
    with torch.no_grad():
        for parameter in teacher.parameters():
            parameter *= 1.5
    features = task.features(examples[:2], tiny_tokenizer, labelled=True)
    all_features = task.features(examples, tiny_tokenizer, labelled=True)
    mixed = with_unlabelled(features, task.features(unlabelled, tiny_tokenizer, labelled=False))
    losses = DistillationLosses(student, teacher, task, weight=0.25)
    batch = whole_batch(mixed)
    parts = losses.losses(batch)
    alone = losses.losses(whole_batch(features))
    everywhere = losses.losses(whole_batch(all_features))
    assert losses.count_targets(batch) == {name: part.count for name, part in parts.items()}
    for name, part in parts.items():
        expected = everywhere[name] if name == "distillation" else alone[name]
        assert part.count == expected.count
        assert float(expected.total.detach()) > 1e-3
        assert_close(part.total, expected.total, atol=1e-4, rtol=1e-4)

    only_unlabelled = mixed.batch(np.arange(features.num_sequences, mixed.num_sequences))
    parts = losses.losses(only_unlabelled)
    assert [float(part.total) for name, part in parts.items() if name != "distillation"] == [0.0]
    assert parts["distillation"].total.requires_grad


@pytest.mark.parametrize("kind", "classify regress multilabel ner arc".split())
def test_logits_that_were_kept_teach_what_the_teacher_beside_teaches(
    tiny_model, tiny_tokenizer, kind
):
    task, examples = MIXED[kind]
    task = task.with_changes(length=32)
    student = tiny_model(task.model_class, **task.head())
    teacher = tiny_model(task.model_class, initializer_range=0.3, **task.head())
    logits = EncoderReader(teacher, tiny_tokenizer, task, 64).logits(examples)
    features = task.features(examples, tiny_tokenizer, labelled=True)
    order = (
        np.random.default_rng(0).permutation(features.num_sequences)
        if kind != "arc"
        else np.arange(10)
    )
    online = DistillationLosses(student, teacher, task).losses(features.batch(order))
    batch = with_teacher_logits(features, task, examples, logits).batch(order)
    losses = DistillationLosses(student, None, task)
    stored = losses.losses(batch)
    assert stored.keys() == online.keys()
    for name, part in stored.items():
        assert part.count == online[name].count
        assert_close(part.total, online[name].total, atol=1e-5, rtol=1e-5)
    if kind == "ner":
        logits[3] = np.nan  # a word that is no token of the teacher's
        batch = with_teacher_logits(features, task, examples, logits).batch(order)
        assert (
            losses.count_targets(batch)["distillation"]
            == len(logits) - 1
            == losses.count_targets(batch)["tagging"] - 1
        )
        assert losses.losses(batch)["distillation"].total.isfinite()


def test_texts_of_dev_and_test_are_left_out(tmp_path):
    header = "sentence\tsentence2\tlabel\n"
    (tmp_path / "train.tsv").write_text(header + "a fox\ta dog\tyes\na cat\ta rat\tno\n")
    (tmp_path / "dev.tsv").write_text(header + "Seven wizards!\tthe potions\tyes\n")
    (tmp_path / "test.tsv").write_text("sentence\tsentence2\nthe rivers\tcalm\n")
    more_rows = [
        "a new text\ta fox\t",
        "SEVEN  wizards\tother\tno",
        "other\tThe potions.\tno",
        "calm\tother\t",
        "so\tnew\tno",
    ]
    (tmp_path / "more.tsv").write_text(header + "\n".join(more_rows) + "\n")
    columns = Columns(text="sentence", pair="sentence2", label="label")
    data = read_data(
        find_task("classify", columns), tmp_path, None, 0.1, False, BadRows(), tmp_path / "more.tsv"
    )
    assert [(example.text, example.pair, example.label) for example in data.unlabelled] == [
        ("a new text", "a fox", None),
        ("so", "new", None),
    ]
    notes = "\n".join(data.notes)
    assert "more.tsv`; 3 left out, whose text stands in dev or test" in notes
    assert "more.tsv` has labels: they are not read" in notes
    lines = tmp_path / "lines.txt"
    lines.write_text("a text\nseven wizards\n")
    single = find_task("classify", COLUMNS)
    data = read_data(single, tmp_path, None, 0.1, False, BadRows(), lines)
    assert [example.text for example in data.unlabelled] == ["a text"]
    assert not any("has labels" in note for note in data.notes)
    lines.write_text("seven wizards\n")
    with pytest.raises(DataError, match=r"\[too-little-data\]"):
        read_data(single, tmp_path, None, 0.1, False, BadRows(), lines)


@pytest.mark.parametrize(
    ("task", "name", "content", "has_labels"),
    [
        ("ner", "tags.conll", "EU B-ORG\nrejects O\n\nPeter B-PER\n", True),
        ("ner", "words.conll", "EU\nrejects\n\nPeter\n", False),
        ("ner", "tags.jsonl", '{"tokens": ["EU"], "tags": ["B-ORG"]}\n', True),
        ("ner", "words.jsonl", '{"tokens": ["EU"]}\n', False),
        ("choice", "right.jsonl", '{"question": "q", "choices": ["a", "b"], "label": 1}\n', True),
        ("choice", "open.jsonl", '{"question": "q", "choices": ["a", "b"]}\n', False),
        ("regress", "numbers.tsv", "text\tlabel\nx\t1.5\n", True),
        ("regress", "empty.tsv", "text\tlabel\nx\t\n", False),
        ("sst2", "texts.tsv", "index\tsentence\n0\tx y\n0\tz\n", False),
    ],
)
def test_labels_that_are_not_read_are_noticed(tmp_path, task, name, content, has_labels):
    file = tmp_path / name
    file.write_text(content)
    reader = find_task(task)
    assert has_labelled_example(reader, file) == has_labels
    assert read_split(reader, file, "train", BadRows(), labelled=False)


def test_unlabelled_examples_need_a_teacher_and_are_checked(start, table, tmp_path, slug_of, bert):
    more_rows = write_table(tmp_path / "more.tsv", 20, 3)
    arguments = ("classify", start, table)
    options = dict(columns=COLUMNS, unlabelled=more_rows)
    assert (
        slug_of(finetune, *arguments, tmp_path / "run", SETTINGS, **options)
        == "conflicting-options"
    )
    assert slug_of(check_task, *arguments, SETTINGS, **options) == "conflicting-options"
    report = check_task(*arguments, replace(SETTINGS, teacher=start), **options)
    assert report.splits["unlabelled"].examples == 20
    assert report.splits["unlabelled"].labels == {}
    assert any("has labels: they are not read" in finding for finding in report.findings)
    assert not any("unlabelled that train lacks" in finding for finding in report.findings)
    assert any(
        "finetune will stop" in finding and "not fine-tuned" in finding
        for finding in report.findings
    )
    taught = replace(SETTINGS, teacher=bert)
    findings = check_task(*arguments, taught, **options).findings
    assert any("reads the texts by its own tokenizer" in finding for finding in findings)
    # `--text-column` would be for the labelled examples, too
    (tmp_path / "others.csv").write_text("text\nthe quick brown fox\n", encoding="utf-8")
    options["unlabelled"] = tmp_path / "others.csv"
    with pytest.raises(DataError) as caught:
        check_task(*arguments, taught, **options)
    assert "that they have in DATA" in caught.value.hint


@pytest.fixture(scope="module")
def make_editor(tmp_path_factory):
    """`make_editor(texts)`: a TextEditor whose words have vectors of growing angles in the order of their pieces here."""
    pieces = (
        "[PAD] [UNK] [CLS] [SEP] [MASK] red green blue ##ish 학교 ##에서 집 我 们 , . !".split()
    )
    file = tmp_path_factory.mktemp("pieces") / "vocab.txt"
    write_lines(file, pieces)
    write_json(file.with_name("tokenizer_config.json"), {"do_lower_case": False})
    angles = np.linspace(0, np.pi / 2, len(pieces))
    vectors = np.stack([np.cos(angles), np.sin(angles)], 1).astype(np.float32)

    def make(texts, seed=0):
        return TextEditor(texts, AlbertTokenizer.from_pretrained(file.parent), vectors, seed)

    return make


def edits(editor, text):
    return {editor.edit(text) for _ in range(400)}


@pytest.mark.parametrize(
    ("texts", "expected", "left_out"),
    [
        # Similar, left out, twice, swapped; all of these at once, too
        (
            ["red green", "blue"],
            {"blue green", "red blue", "red", "green", "red red green", "green red"},
            "ish",
        ),
        (["redish, blue", "green"], {"greenish, blue", ", blue", "redish redish, blue"}, "ish ish"),
        (
            ["학교에서 red", "집"],
            {"집에서 red", "red", "red 학교에서", "학교에서 학교에서 red"},
            "에서에서",
        ),
        (["我们", "red"], {"们我", "们", "我", "red们", "我我们"}, "  "),
        (["我red", "blue"], {"red我", "我", "red", "我我red"}, "  "),
        (
            ["red's 3.5 red-green", "blue"],
            {"blue's 3.5 red-green", "3.5 red-green", "red's 3.5", "3.5 red's red-green"},
            "'s 's",
        ),
    ],
    ids=["English", "parts", "Korean", "no spaces", "two scripts", "signs"],
)
def test_words_are_edited_where_they_stand(make_editor, texts, expected, left_out):
    edited = edits(make_editor(texts), texts[0])
    assert expected <= edited
    assert not any(left_out in text or text != text.strip() for text in edited)


def test_white_space_of_a_piece_alone_goes_with_the_word_after_it(tiny_tokenizer):
    text = "the quick 학교 fox"
    assert "▁" in tiny_tokenizer.pieces(text)
    vectors = np.eye(tiny_tokenizer.vocab_size, dtype=np.float32)
    edited = edits(TextEditor([text], tiny_tokenizer, vectors, 0), text)
    assert {"the quick fox", "the 학교 quick fox"} <= edited
    assert not any("  " in text for text in edited)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("cafe\u0301 est ferme\u0301", ["cafe\u0301", "est", "ferme\u0301"]),
        ("اليَوْمَ الوَلَدُ إِلَى", ["اليَوْمَ", "الوَلَدُ", "إِلَى"]),
        ("मैं स्कूल में हूँ", ["मैं", "स्कूल", "में", "हूँ"]),
        ("fox\x01 the\x7f dog\u200b is\ufeff now", ["fox\x01", "the\x7f", "dog\u200b", "is\ufeff", "now"]),
        ("3 ☀️ here", ["3", "☀️", "here"]),
    ],
    ids=["accents", "Arabic", "Hindi", "unseen", "emoji"],
)  # fmt: skip
@pytest.mark.parametrize("lower_case", [True, False])
def test_marks_and_unseen_characters_stay_with_their_words(
    tmp_path, monkeypatch, text, words, lower_case
):
    # Of single characters, as for a language that a vocabulary hardly knows
    characters = sorted({character for character in text if not character.isspace()})
    pieces = "[PAD] [UNK] [CLS] [SEP] [MASK]".split()
    pieces += characters + [f"##{character}" for character in characters]
    write_lines(tmp_path / "vocab.txt", pieces)
    write_json(tmp_path / "tokenizer_config.json", {"do_lower_case": lower_case})
    tokenizer = AlbertTokenizer.from_pretrained(tmp_path)
    vectors = np.eye(len(pieces), dtype=np.float32)
    monkeypatch.setattr("albertkit.tasks.teacher._NUM_SIMILAR", 0)
    edited = edits(TextEditor([text], tokenizer, vectors, 0), text)
    assert len(edited) > 3
    assert {word for text in edited for word in text.split()} == set(words)


def test_the_nearest_vectors_are_similar(make_editor, monkeypatch):
    monkeypatch.setattr("albertkit.tasks.teacher._NUM_SIMILAR", 1)
    edited = edits(make_editor(["red", "blue", "green", "집"]), "blue")
    assert {"green", "집"} & edited == {"green"}
    assert edits(make_editor(["red"]), "red") == {"red", "red red"}
    assert edits(make_editor(["!", "unknown"]), "!") == {"!"}


def test_edited_copies_are_examples_without_labels(start, table, tmp_path, slug_of, bert):
    settings = replace(SETTINGS, teacher=bert, epochs=0.5, teacher_weight=0.9)
    copying = replace(settings, edited_copies=2)
    arguments = ("classify", start, table)
    task = find_task("classify", COLUMNS)
    data = read_data(task, table, None, 0.1, False, BadRows())

    def copies_of(data, settings):
        return open_teacher(settings, data.task, data, start, ALONE)[1].unlabelled

    copies = copies_of(data, copying)
    # The student reads 64 tokens, no length is asked for, and each seed has the same copies.
    assert copies_of(data, replace(copying, length=None, seed=5)) == copies
    with_dev = copies_of(replace(data, dev=[copies[7]]), copying)
    assert [copy for copy in copies if copy.text != copies[7].text] == with_dev
    dev_texts = {example.text for example in data.dev}
    assert 590 < len(copies) == len({example.text for example in copies})
    assert not dev_texts & {example.text for example in copies}
    file = tmp_path / "copies.tsv"
    write_lines(file, ["sentence", *(example.text for example in copies)])
    finetune(*arguments, tmp_path / "copies", copying, columns=COLUMNS)
    finetune(*arguments, tmp_path / "file", settings, columns=COLUMNS, unlabelled=file)
    weights = [
        (tmp_path / run / "best/model.safetensors").read_bytes() for run in ("copies", "file")
    ]
    assert weights[0] == weights[1]
    report = check_task(*arguments, copying, columns=COLUMNS)
    assert report.splits["unlabelled"].examples == len(copies)
    assert (
        slug_of(finetune, *arguments, tmp_path / "no", replace(copying, teacher=None))
        == "bad-value"
    )


def test_tags_have_no_edited_copies(start, tmp_path, slug_of):
    write_lines(tmp_path / "train.conll", ["EU B-ORG", "rejects O", "", "Peter B-PER"] * 12)
    settings = replace(SETTINGS, teacher=start, edited_copies=1)
    arguments = ("ner", start, tmp_path / "train.conll")
    assert slug_of(finetune, *arguments, tmp_path / "run", settings) == "conflicting-options"
    assert "edited copies are made of texts" in check_task(*arguments, settings).findings[0]


def test_a_run_learns_from_a_bert_and_resumes_to_the_same_bits(
    start, table, tmp_path, bert, stop_at
):
    settings = replace(SETTINGS, teacher=bert, teacher_weight=1.0, eval_every=10, epochs=1)
    more_rows = write_table(tmp_path / "more.tsv", 60, 3)
    learn = partial(
        finetune, "classify", start, table, settings=settings, columns=COLUMNS, unlabelled=more_rows
    )
    learn(out=tmp_path / "whole")
    events = read_records(tmp_path / "whole/metrics.jsonl")
    assert any("distillation_loss" in event for event in events)
    assert (
        "300 training examples and 60 without labels"
        in (tmp_path / "whole/best/README.md").read_text()
    )
    logits = np.load(tmp_path / "whole/teacher/logits.npy")
    lines = (table / "train.tsv").read_text().splitlines()[1:] + more_rows.read_text().splitlines()[
        1:
    ]
    rows = [line.split("\t")[0] for line in lines]
    assert len(rows) == 360
    assert_allclose(logits, transformers_logits(bert, rows)[:, ::-1], atol=5e-5)

    stop_at(1)
    assert learn(out=tmp_path / "cut").model is None
    shutil.copytree(tmp_path / "cut", tmp_path / "other")
    learn(out=tmp_path / "cut", resume=True)
    weights = [(tmp_path / run / "best/model.safetensors").read_bytes() for run in ("whole", "cut")]
    assert weights[0] == weights[1]
    with open(bert / "config.json", "a") as stream:
        stream.write("\n")
    with pytest.raises(CheckpointError, match="other teacher than now"):
        learn(out=tmp_path / "other", resume=True)
    write_table(more_rows, 60, 4)
    with pytest.raises(CheckpointError, match="other data than now; other teacher"):
        learn(out=tmp_path / "other", resume=True)
