"""Tasks on texts: features against a loop, the model against transformers, every way in which data can be wrong."""

import json
from dataclasses import replace

import datasets
import numpy as np
import pytest
import torch
from record_files import write_lines, write_records
from sklearn.metrics import (
    accuracy_score,
    f1_score,
    matthews_corrcoef,
    precision_score,
    recall_score,
)
from torch.testing import assert_close
from word_tokenizer import WordTokenizer

from albertkit.errors import ConfigError, DataError
from albertkit.tables.bad_rows import BadRows
from albertkit.tables.columns import Columns
from albertkit.tables.records import as_files
from albertkit.tasks.metrics import label_set_scorer
from albertkit.tasks.texts import (
    TextClassification,
    TextExample,
    official_task,
    table_task,
    text_features,
)

from .conftest import padded_rows, read_examples, reread, text_examples, whole_batch


class Words(WordTokenizer):
    cls_id = 2
    sep_id = 3
    truncation_side = "right"


TOKENIZER = Words(90)


def task_of(kind="classification", text="text", pair=None, label="label", id=None, **settings):
    return table_task(kind, "mine", Columns(text=text, pair=pair, label=label, id=id), **settings)


def read_file(task, path, *, split="train", labelled=True, on_error="stop"):
    bad_rows = BadRows(on_error)
    examples = read_examples(task, path, split, labelled, bad_rows)
    return (
        (examples, [(row.line, row.reason) for row in bad_rows.rows])
        if on_error == "skip"
        else examples
    )


def table(path, *rows):
    """Write a table whose cells are separated by `|` here, and by tabs in the file."""
    return write_lines(path, (row.replace("|", "\t") for row in rows))


def examples_of(*labels):
    return text_examples([f"text {number}" for number in range(len(labels))], labels)


def labels_of(examples):
    return [example.label for example in examples]


def records_of(key, values):
    """Predictions as `predict` writes them."""
    return [{"id": str(number), key: value} for number, value in enumerate(values)]


# --- features -------------------------------------------------------------------------------------


def truncated(first, second, room, from_second=True):
    """`_truncate_seq_pair` of the original, a piece at a time."""
    first = list(first)
    second = list(second)
    while len(first) + len(second) > room:
        (
            first
            if len(first) > len(second) or (len(first) == len(second) and not from_second)
            else second
        ).pop()
    return first, second


def expected_pair(first, second, length, **rule):
    first, second = (
        truncated(first, second, length - 3, **rule) if second else (first[: length - 2], [])
    )
    ids = [2, *first, 3, *second, *([3] if second else [])]
    return ids, [0] * (len(first) + 2) + [1] * (len(ids) - len(first) - 2)


def test_pairs_are_cut_a_piece_at_a_time_from_the_longer():
    words = "a b c d e f g h i j k l m".split()
    pairs = [
        (" ".join(words[:n]), " ".join(words[-m:] if m else []))
        for n in range(1, 13)
        for m in range(13)
    ]
    differ = 0
    for length in range(5, 20):
        features = text_features([a for a, _ in pairs], [b for _, b in pairs], TOKENIZER, length)
        for row, (first, second) in enumerate(pairs):
            tokens = slice(features.offsets[row], features.offsets[row + 1])
            sequence = features.input_ids[tokens].tolist(), features.token_type_ids[tokens].tolist()
            first_ids = TOKENIZER.ids(first)
            second_ids = TOKENIZER.ids(second)
            assert sequence == expected_pair(first_ids, second_ids, length)
            differ += sequence != expected_pair(first_ids, second_ids, length, from_second=False)
    assert differ > 100  # the comparison notices a tie broken the other way


@pytest.mark.parametrize(
    ("size", "stride"),
    [
        (4, 1),
        (4, 2),
        (4, 4),
        (5, 3),
    ],
)
def test_windows_cover_every_piece(size, stride):
    texts = [" ".join(f"w{number}" for number in range(count)) for count in range(1, 15)]
    features = text_features(texts, None, TOKENIZER, size + 2, stride)
    windows = [[] for _ in texts]
    for row, example in enumerate(features.examples):
        ids = features.input_ids[features.offsets[row] : features.offsets[row + 1]].tolist()
        assert ids[0] == 2
        assert ids[-1] == 3
        windows[example].append(ids[1:-1])
    for text, parts in zip(texts, windows, strict=True):
        ids = TOKENIZER.ids(text)
        starts = [0]
        while starts[-1] + size < len(ids):
            starts.append(starts[-1] + stride)
        assert parts == [ids[start : start + size] for start in starts]


@pytest.mark.parametrize("with_pairs", [False, True])
def test_tokens_that_are_cut_are_counted(with_pairs):
    words = "a b c d e f g h i j k l m".split()
    texts = [" ".join(words[:n]) for n in range(1, 14) for _ in range(13)]
    pairs = [" ".join(words[:n]) for _ in range(13) for n in range(13)] if with_pairs else None
    task = TextClassification(name="mine", text_column="text", length=9, labels=("x", "y"))
    for features in (
        text_features(texts, pairs, TOKENIZER, 9),
        task.features(text_examples(texts, pairs=pairs or ()), TOKENIZER, labelled=False),
    ):
        for row, text in enumerate(texts):
            pair = pairs[row] if pairs else ""
            full_length = len(text.split()) + len(pair.split()) + (3 if pair else 2)
            assert features.left_out[row] == full_length - features.lengths[row]
    assert not text_features(texts, None, TOKENIZER, 9, stride=3).left_out.any()  # windows read all


def test_windows_with_gaps_or_without_room_are_refused():
    with pytest.raises(ConfigError, match="gaps between windows of 6 tokens"):
        text_features(["a b c"], None, TOKENIZER, 8, 7)
    with pytest.raises(ConfigError, match="no room for a token"):
        text_features(["a"], ["b"], TOKENIZER, 3)


def test_no_text_gives_no_sequence():
    assert text_features([], None, TOKENIZER, 8).num_sequences == 0


# --- the model ------------------------------------------------------------------------------------


def theirs_of(model):
    """transformers' model with the same weights."""
    from transformers import AlbertConfig, AlbertForSequenceClassification

    theirs = AlbertForSequenceClassification(AlbertConfig.from_dict(model.config.to_dict())).eval()
    theirs.load_state_dict(model.state_dict())
    return theirs


def test_losses_and_probabilities_are_those_of_transformers(tiny_model):
    texts = ["a b c", "d e f g h i j k", "l", "m n a c"]
    cases = [
        (task_of().with_changes(labels=("no", "maybe", "yes")), ["yes", "no", "maybe", "yes"]),
        (task_of("regression"), [0.5, -1.0, 3.25, 2.0]),
        (task_of("multilabel").with_changes(labels=("x", "y")), [("x",), (), ("x", "y"), ("y",)]),
    ]
    for task, labels in cases:
        examples = text_examples(texts, labels)
        task = replace(task, length=8)
        ours = tiny_model(task.model_class, vocab_size=90, **task.head())
        features = task.features(examples, TOKENIZER, labelled=True)
        batch = whole_batch(features)
        with torch.no_grad():
            output = theirs_of(ours)(
                **padded_rows(batch.packed), labels=batch.per_sequence["labels"]
            )
            loss = task.losses(ours, batch)[task.kind]
            outputs = task.outputs(ours, batch)
        assert task.count_targets(batch) == {task.kind: int(loss.label_count)}
        assert_close(loss.mean(), output.loss, atol=1e-5, rtol=1e-5)
        records = task.predictions(examples, features, outputs)
        assert [record["id"] for record in records] == ["0", "1", "2", "3"]
        if task.kind == "regression":
            values = [record["value"] for record in records]
            expected = output.logits[:, 0]
        else:
            values = [list(record["probabilities"].values()) for record in records]
            expected = (
                output.logits.softmax(-1)
                if task.kind == "classification"
                else output.logits.sigmoid()
            )
        assert_close(torch.tensor(values), expected, atol=1e-5, rtol=1e-5)
        assert not torch.allclose(
            torch.tensor(values[::-1]), expected, atol=1e-2
        )  # the comparison notices another order


def test_class_weights_multiply_each_example(tiny_model):
    task = replace(task_of().with_changes(labels=("a", "b")), length=8)
    ours = tiny_model(task.model_class, vocab_size=90, **task.head())
    features = task.features(examples_of("a", "b", "b", "a", "a"), TOKENIZER, labelled=True)
    batch = whole_batch(features)
    weights = torch.tensor([0.5, 2.0])
    with torch.no_grad():
        plain = task.losses(ours, batch)["classification"]
        weighted = task.losses(ours, batch, weights)["classification"]
        example_losses = torch.nn.functional.cross_entropy(
            ours.packed_logits(batch.packed), batch.per_sequence["labels"], reduction="none"
        )
    assert_close(weighted.loss_sum, (example_losses * torch.tensor([0.5, 2, 2, 0.5, 0.5])).sum())
    assert int(weighted.label_count) == 5
    assert plain.correct == weighted.correct
    assert not torch.isclose(plain.loss_sum, weighted.loss_sum)
    assert task.label_counts(examples_of("a", "b", "b", "a", "a")) == [3, 2]


def test_the_logits_of_windows_are_averaged():
    task = replace(task_of().with_changes(labels=("a", "b")), length=6, long_texts="windows")
    examples = [TextExample("7", "a b c d e f g", None, "a"), TextExample("8", "a", None, "b")]
    features = task.features(examples, TOKENIZER, labelled=True)
    assert features.examples.tolist() == [0, 0, 0, 1]
    assert features.per_sequence["labels"].tolist() == [0, 0, 0, 1]
    records = task.predictions(
        examples, features, np.array([[0.0, 3.0], [1.0, 0.0], [5.0, 0.0], [0.0, 1.0]], np.float32)
    )
    assert [record["label"] for record in records] == ["a", "b"]
    assert records[0]["probabilities"]["a"] == pytest.approx(1 / (1 + np.exp(-1)))


# --- labels ---------------------------------------------------------------------------------------


def test_labels_are_those_of_the_training_data():
    task = task_of()
    assert task.fitted(examples_of("pos", "neg", "pos")).labels == ("neg", "pos")
    assert task.fitted(examples_of("10", "9", "0")).labels == ("0", "9", "10")
    assert task.fitted(examples_of("10", "b")).head()["label2id"] == {"10": 0, "b": 1}
    with pytest.raises(ConfigError, match="not known yet"):
        task.head()


@pytest.mark.parametrize(
    ("task", "labels", "message"),
    [
        (task_of(), ["0", "0"], "all 2 training examples have the label `0`"),
        (official_task("sst2"), ["1", "1", "1"], "all 3 training examples have the label `1`"),
        (task_of("regression"), [2.0, 2.0], "have the number 2.0"),
        (task_of("multilabel"), [("a", "b"), ("b", "a")], "have the same labels: a, b"),
        (task_of(), [], "all 0 training examples"),
    ],
)
def test_one_class_is_refused(task, labels, message):
    with pytest.raises(DataError, match=rf"\[too-little-data\].*{message}"):
        task.fitted(examples_of(*labels))


def test_a_label_that_was_never_trained_is_named_and_counted(error_of):
    task = task_of().fitted(examples_of("pos", "neg"))
    dev = examples_of("pos", "poz", "poz", "new")
    for use in (
        lambda: task.features(dev, TOKENIZER, labelled=True),
        lambda: task.score(dev, [{"label": "pos"}] * 4),
    ):
        error = error_of(use)
        assert "not trained with: `poz` (2), `new` (1)" in error.message
        assert "did you mean `pos`?" in error.hint
    with pytest.raises(DataError, match="2 of 2 examples have no label, the first is `0`"):
        task.score(examples_of(None, None), [{"label": "pos"}] * 2)


def test_labels_of_official_tasks_are_checked_and_mapped(tmp_path):
    rows = table(
        tmp_path / "dev.tsv", "sentence1|sentence2|label",
        "a|b|0", "c|d|not_entailment", "e|f|neutral", "g|h|", "i|j|2",
    )  # fmt: skip
    examples, bad_rows = read_file(official_task("rte"), rows, on_error="skip")
    assert labels_of(examples) == ["entailment", "not_entailment"]
    assert bad_rows == [
        (4, "label `neutral` is none of entailment, not_entailment"),
        (5, "`label` is empty"),
        (6, "label `2` is none of entailment, not_entailment"),
    ]


@pytest.mark.parametrize("name", ["mnli", "kornli"])
def test_the_hub_numbers_inferences_in_its_own_order(tmp_path, name):
    rows = [
        {"premise": "p", "hypothesis": "h", "label": label, "idx": 10 + label}
        for label in (0, 1, 2, -1)
    ]
    path = write_records(tmp_path / "train.jsonl", rows)
    examples, bad_rows = read_file(official_task(name), path, on_error="skip")
    assert labels_of(examples) == ["entailment", "neutral", "contradiction"]
    if name == "mnli":
        assert [example.id for example in examples] == ["10", "11", "12"]
    [(line, reason)] = bad_rows
    assert line == 4
    assert reason.startswith("label `-1` is none of ")


@pytest.mark.parametrize("form", ["joined", "list", "columns"])
def test_several_labels(tmp_path, form):
    if form == "columns":
        path = table(
            tmp_path / "a.tsv",
            "text|x|y",
            "s|1|0",
            "t|1|1",
            "u|0|0",
            "v|2|0",
        )
        task = task_of("multilabel", label="x,y")
        bad_reason = "`x` is `2`, neither 0 nor 1"
    elif form == "list":
        path = tmp_path / "a.jsonl"
        rows = [("s", ["x"]), ("t", ["y", "x", "x"]), ("u", []), ("v", "[x")]
        path.write_text(
            "\n".join(json.dumps({"text": text, "label": label}) for text, label in rows)
        )
        task = task_of("multilabel")
        bad_reason = "`[x` is not a list of labels"
    else:
        path = table(tmp_path / "a.tsv", "text|label", "s|x", "t|y, x", "u|")
        task = task_of("multilabel")
        bad_reason = None
    examples, bad_rows = read_file(task, path, on_error="skip")
    assert [set(example.label) for example in examples] == [{"x"}, {"x", "y"}, set()]
    assert [reason for _, reason in bad_rows] == ([bad_reason] if bad_reason else [])
    task = task.fitted(examples)
    assert task.labels == ("x", "y")
    assert task.features(examples, TOKENIZER, labelled=True).per_sequence["labels"].tolist() == [
        [1, 0],
        [1, 1],
        [0, 0],
    ]
    records = task.predictions(
        examples, task.features(examples, TOKENIZER, labelled=False), [[1, -1], [2, 1], [-1, -3]]
    )
    assert [record["labels"] for record in records] == [["x"], ["x", "y"], []]
    assert task.score(examples, records)["f1_micro"] == 1
    assert reread(task) == task


@pytest.mark.parametrize(
    "label",
    [
        [0.0, 1.0, 1.0, 0.0],
        [1.0, 0.0],
        [0, 1, 1, 0],
        [True, False],
        "0,1,0",
        "True, False",
        "0 1 1 0",
        "[0 1 1 0]",
        "0.;1.;1.;0.",
        "1|0|0",
        "[0, 1, 1, 0]",
    ],
)
def test_multi_hot_labels_without_names_are_refused(tmp_path, label, error_of):
    """`[0, 1]` and `[1]` may be numbers of classes; these cannot, whatever other rows hold, and even where rows are skipped."""
    path = tmp_path / "a.jsonl"
    rows = [
        {"text": "s", "label": [1]},
        {"text": "t", "label": [0, 1]},
        {"text": "u", "label": label},
    ]
    write_records(path, rows)
    error = error_of(read_file, task_of("multilabel"), path, on_error="skip")
    assert error.slug == "bad-label"
    assert "line 3: `label` is" in error.message
    assert "--label-column toxic,insult" in error.hint
    write_records(path, rows[:2])
    assert labels_of(read_file(task_of("multilabel"), path)) == [
        ("1",),
        ("0", "1"),
    ]


def test_columns_of_labels_may_hold_booleans_or_floats(tmp_path):
    path = table(
        tmp_path / "a.tsv",
        "text|x|y",
        "s|True|false",
        "t|0.0|1.0",
        "u||0",
    )
    examples, bad_rows = read_file(task_of("multilabel", label="x,y"), path, on_error="skip")
    assert labels_of(examples) == [("x",), ("y",)]
    assert [reason for _, reason in bad_rows] == ["`x` is ``, neither 0 nor 1"]


def test_scores_of_samples_are_scikit_learns():
    random = np.random.default_rng(0)
    gold = random.integers(0, 2, (50, 4))
    predicted = random.integers(0, 2, (50, 4))
    sampled = label_set_scorer(gold, predicted)

    def theirs(rows, predicted_rows):
        pair = gold[rows], predicted[predicted_rows]
        scores = {f"f1_{kind}": f1_score(*pair, average=kind) for kind in ("micro", "macro")}
        return pytest.approx(scores | {"subset_accuracy": accuracy_score(*pair)})

    for _ in range(5):
        rows = random.integers(0, 50, 30)
        assert sampled(rows) == theirs(rows, rows)
        assert sampled(rows) != theirs(rows, rows[::-1])


# --- results --------------------------------------------------------------------------------------


def test_scores_and_details():
    task = official_task("mrpc")
    gold = list("0110111000")
    predicted = list("0100111001")
    records = records_of("label", predicted)
    scores = task.score(examples_of(*gold), records)
    assert scores["f1"] == pytest.approx(f1_score(gold, predicted, pos_label="1"))
    assert scores["accuracy_and_f1"] == pytest.approx((0.8 + scores["f1"]) / 2)
    assert scores["matthews_correlation"] == pytest.approx(matthews_corrcoef(gold, predicted))
    details = task.details(examples_of(*gold), records)
    # Though it may be the more frequent one: the benchmark's
    assert details["positive_class"] == "1"
    assert details["confusion"] == {"names": ["0", "1"], "counts": [[4, 1], [1, 4]]}
    assert [row["support"] for row in details["classes"]] == [5, 5]
    low, high = details["intervals"]["accuracy_and_f1"]
    assert low < scores["accuracy_and_f1"] < high
    json.dumps(details)


@pytest.mark.parametrize(
    ("chosen", "expected"),
    [
        ("", "fraud"),
        ("ok", "ok"),
        ("fraud", "fraud"),
    ],
)
def test_of_two_classes_the_rarer_one_is_scored_and_named(chosen, expected):
    gold = ["ok"] * 90 + ["fraud"] * 10
    predicted = ["ok"] * 88 + ["fraud"] * 5 + ["ok"] * 7
    task = task_of(positive_class=chosen).fitted(examples_of(*gold))
    records = records_of("label", predicted)
    scores = task.score(examples_of(*gold), records)
    details = task.details(examples_of(*gold), records)
    for theirs in (f1_score, precision_score, recall_score):
        name = theirs.__name__.removesuffix("_score")
        assert scores[name] == pytest.approx(theirs(gold, predicted, pos_label=expected))
    assert details["positive_class"] == expected
    low, high = details["intervals"]["f1"]
    assert low < scores["f1"] < high
    assert reread(task) == task
    assert task.with_changes(labels=("a", "b", "c")).positive_class == ""
    balanced = task_of().fitted(examples_of("a", "b"))
    assert balanced.positive_class == "b"  # as scikit-learn's labels of 0 and 1 have it
    assert "positive_class" not in task_of().fitted(examples_of("a", "b", "c")).details(
        examples_of("a", "b", "c"), [{"label": "a"}] * 3
    )


def test_scores_of_numbers():
    from scipy.stats import pearsonr

    task = official_task("stsb")
    gold = [0.0, 1.0, 2.5, 4.0]
    predicted = [0.1, 0.7, 3.0, 3.5]
    records = records_of("value", predicted)
    assert task.score(examples_of(*gold), records)["pearson"] == pytest.approx(
        pearsonr(gold, predicted)[0]
    )
    details = task.details(examples_of(*gold), records)
    assert details["pairs"][2] == [2.5, 3.0]
    assert set(details["intervals"]) >= {"pearson", "spearman", "mse"}


@pytest.mark.parametrize(
    ("task", "labels", "constant", "learned"),
    [
        (official_task("sst2"), ["0", "1"], [{"label": "1"}] * 2, [{"label": "1"}, {"label": "0"}]),
        (
            task_of("regression"),
            [0.0, 4.0],
            [{"value": 2.5}, {"value": 2.5001}],
            [{"value": 2.5}, {"value": 2.6}],
        ),
        (
            task_of("multilabel"),
            [("a",), ()],
            [{"labels": []}] * 2,
            [{"labels": []}, {"labels": ["a"]}],
        ),
    ],
)
def test_constant_predictions_are_noticed(task, labels, constant, learned):
    assert task.collapsed(examples_of(*labels), constant).startswith("all 2 predictions are")
    assert task.collapsed(examples_of(*labels), learned) is None
    assert task.collapsed(examples_of(labels[0], labels[0]), constant) is None


SUBMISSIONS = {
    ("cola", "test"): "CoLA", ("sst2", "test"): "SST-2", ("mrpc", "test"): "MRPC", ("stsb", "test"): "STS-B",
    ("qqp", "test"): "QQP", ("mnli", "test_matched"): "MNLI-m", ("mnli", "test_mismatched"): "MNLI-mm",
    ("mnli", "diagnostic"): "AX", ("qnli", "test"): "QNLI", ("rte", "test"): "RTE", ("wnli", "test"): "WNLI",
    ("ax", "test"): "AX", ("nsmc", "test"): "predictions",
}  # fmt: skip


def test_submission_files_are_gluess(tmp_path):
    for (name, split), file in SUBMISSIONS.items():
        task = official_task(name)
        answer = {"value": 2.5} if name == "stsb" else {"label": task.labels[1]}
        paths = task.write(tmp_path, [{"id": "0", **answer}], split=split)
        assert paths == [tmp_path / f"{file}.tsv"]
        head = "id" if name == "nsmc" else "index"
        prediction = "2.500000" if name == "stsb" else task.labels[1]
        assert paths[0].read_text() == f"{head}\tprediction\n0\t{prediction}\n"


# --- columns ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("make", "slug"),
    [
        (lambda: task_of(text="sentence2", pair="sentence1"), "doubtful"),
        (lambda: task_of(text="question2_text", pair="question1_text"), "doubtful"),
        (lambda: task_of(text="hypothesis", pair="premise"), "doubtful"),
        (
            lambda: official_task("qnli", Columns(text="sentence", pair="question", label="label")),
            "doubtful",
        ),
        (lambda: task_of(text="label"), "bad-value"),
        (lambda: task_of(labels=("fraud", "ok"), positive_class="frad"), "bad-value"),
        (lambda: task_of(labels=("a", "b", "c"), positive_class="a"), "bad-value"),
        (lambda: official_task("mrpc", Columns(label="y")), "bad-value"),
        (lambda: task_of(pair="other", long_texts="windows"), "bad-value"),
        (lambda: official_task("mrcp"), "unknown-name"),
    ],
)
def test_settings_that_cannot_work(make, slug):
    with pytest.raises(ConfigError, match=rf"\[{slug}\]"):
        make()


@pytest.mark.parametrize("columns", ["sentence1 sentence2", "question sentence", "s2 t1"])
def test_pairs_that_are_not_swapped(columns):
    text, pair = columns.split()
    task = task_of(text=text, pair=pair)
    assert (task.text_column, task.pair_column) == (text, pair)


# --- data that are wrong --------------------------------------------------------------------------


def test_a_missing_label_column(tmp_path):
    path = table(tmp_path / "a.tsv", "text|lable", "a|0")
    with pytest.raises(
        DataError, match=r"\[missing-column\].*no column `label` for mine, only `text`, `lable`"
    ):
        read_file(task_of(), path)
    assert labels_of(read_file(task_of(), path, labelled=False)) == [None]
    with pytest.raises(ConfigError, match="no column is named for the label"):
        read_file(task_of(label=""), path)
    with pytest.raises(DataError, match="no column `x`"):
        read_file(task_of("multilabel", label="x,lable"), path)


@pytest.mark.parametrize("label", ["[0, 1]", '["pos"]', "['pos', 'neg']", "[0. 1.]"])
def test_a_list_is_no_class(tmp_path, label):
    path = table(tmp_path / "a.tsv", "text|label", f"a|{label}", "b|[NEG]", "c|pos\u200b")
    examples, bad_rows = read_file(task_of(), path, on_error="skip")
    assert labels_of(examples) == ["[NEG]", "pos"]
    assert bad_rows == [(2, f"`{label}` is a list of labels")]


def test_rows_that_cannot_be_used(tmp_path):
    path = tmp_path / "dev.tsv"
    path.write_bytes(
        b"id\ttext\tlabel\n1\tgood\t0\n2\t \t1\n3\tno label\t\n1\tagain\t1\n4\tshort\n5\tbroken \xff\t1\n6\tlast\t1\n"
    )
    examples, bad_rows = read_file(task_of(id="id"), path, split="dev", on_error="skip")
    assert [(example.id, example.text) for example in examples] == [("1", "good"), ("6", "last")]
    assert bad_rows == [
        (3, "`text` is empty"),
        (4, "`label` is empty"),
        (5, "id `1` again, as in line 2"),
        (6, "2 fields, but the table has 3 columns"),
        (7, "bytes that are not UTF-8"),
    ]
    with pytest.raises(DataError, match="line 3: `text` is empty"):
        read_file(task_of(id="id"), path)
    # Training data may repeat an id
    assert len(read_file(task_of(id="id"), path, on_error="skip")[0]) == 3


def test_numbers_that_are_none(tmp_path):
    path = table(
        tmp_path / "a.tsv",
        "text|label",
        "a|1.5",
        "b|high",
        "c|nan",
        "d|-2e1",
    )
    examples, bad_rows = read_file(task_of("regression"), path, on_error="skip")
    assert labels_of(examples) == [1.5, -20.0]
    assert bad_rows == [
        (3, "`label` is `high`, not a number"),
        (4, "`label` is `nan`, not a number"),
    ]


@pytest.mark.parametrize(
    ("name", "header", "number"),
    [
        ("nsmc", "id|document|label", 1),
        ("kornli", "sentence1|sentence2|gold_label", 0),
        ("korsts", "sentence1|sentence2|score", 1),
    ],
)
def test_published_files_with_empty_texts_are_read_whole(tmp_path, name, header, number):
    label = {"nsmc": "1", "kornli": "neutral", "korsts": "2.5"}[name]
    empty = "2|" if number else "|a text"
    path = table(tmp_path / "train.tsv", header, f"1|a text|{label}", f"{empty}|{label}")
    bad_rows = BadRows()
    task = official_task(name)
    examples = read_examples(task, path, "train", True, bad_rows)
    assert [
        example.text if number == 0 or name == "nsmc" else example.pair for example in examples
    ] == ["1" if number == 0 else "a text", ""]
    assert bad_rows.notes == ["`train.tsv`: 1 row with an empty text, read as published"]
    assert len(read_examples(task, path, "test", False)) == 2
    assert task.features(examples, TOKENIZER, labelled=False).num_sequences == 2


def test_short_rows_of_qqp_are_passed_over_and_of_a_table_of_ones_own_refused(tmp_path):
    header = "id|qid1|qid2|question1|question2|is_duplicate"
    path = table(tmp_path / "train.tsv", header, "1|1|2|a|b|0", "2|3|4|c", "3|5|6|d|e|1")
    bad_rows = BadRows()
    examples = read_examples(official_task("qqp"), path, "train", True, bad_rows)
    assert [example.id for example in examples] == ["1", "3"]
    assert bad_rows.notes == [
        "`train.tsv`: 1 row without all fields passed over, as the original does"
    ]
    own_table = official_task(
        "qqp", Columns(text="question1", pair="question2", label="is_duplicate")
    )
    for task, labelled in (
        (own_table, True),
        (official_task("qqp"), False),
    ):  # every row of a test set has its prediction
        with pytest.raises(DataError, match="line 3: 4 fields"):
            read_file(task, path, labelled=labelled)


@pytest.mark.parametrize(
    ("name", "names"),
    [
        ("sst2", ("negative", "positive")),
        ("cola", ("unacceptable", "acceptable")),
        ("mrpc", ("not_equivalent", "equivalent")),
        ("qqp", ("not_duplicate", "duplicate")),
        ("wnli", ("not_entailment", "entailment")),
        ("nsmc", ("negative", "positive")),
    ],
)
def test_names_of_the_hubs_class_labels_are_the_layouts_numbers(name, names):
    """As `datasets` gives them: rows with numbers, and a ClassLabel with names, whatever their order is."""
    task = official_task(name)
    texts = {"sentence": "a", "document": "a", "sentence1": "a", "sentence2": "b"}
    texts |= {"question1": "a", "question2": "b", "idx": 0}
    for order in (names, names[::-1], ("0", "1")):
        class_label = datasets.ClassLabel(names=list(order))
        rows = type("Dataset", (list,), {"features": {"label": class_label}})(
            {**texts, "idx": number, "label": number} for number in (0, 1, 1)
        )
        with as_files({"train": rows}) as folder:
            examples = read_examples(task, task.files(folder)["train"], "train")
        numbers = [1, 0, 0] if order == names[::-1] else [0, 1, 1]
        assert labels_of(examples) == list(map(str, numbers))
    rows.features["label"] = datasets.ClassLabel(names=["bad", "good"])
    with (
        as_files({"train": rows}) as folder,
        pytest.raises(DataError, match=f"`bad` is none of 0, 1, {names[0]}, {names[1]}"),
    ):
        read_examples(task, task.files(folder)["train"], "train")


def test_whole_labels_that_pandas_made_floats_are_whole_again(tmp_path):
    import pandas

    frame = pandas.DataFrame({"sentence": list("abcd"), "label": [None, 1, 0, 1]})
    assert frame["label"].dtype == float
    frame.to_csv(tmp_path / "a.csv", index=False)
    for task in (
        task_of(text="sentence"),
        official_task("sst2"),
        task_of(text="sentence").with_changes(labels=("0", "1")),
    ):
        examples, _ = read_file(task, tmp_path / "a.csv", on_error="skip")
        assert labels_of(examples) == ["1", "0", "1"]
        with as_files(frame) as file:
            assert read_file(task, file, on_error="skip")[0] == examples
    # As a model may have them
    trained = task_of(text="sentence").with_changes(labels=("0.0", "1.0"))
    examples, _ = read_file(trained, tmp_path / "a.csv", on_error="skip")
    assert labels_of(examples) == ["1.0", "0.0", "1.0"]
    half = table(tmp_path / "b.tsv", "text|label", "a|1.0", "b|1.5")
    assert labels_of(read_file(task_of(), half)) == ["1.0", "1.5"]


def test_an_empty_second_text(tmp_path):
    path = table(
        tmp_path / "a.tsv",
        "question1|question2|is_duplicate|id",
        "a||0|5",
        "b|c|1|6",
    )
    examples = read_file(official_task("qqp"), path)
    features = official_task("qqp").features(examples, TOKENIZER, labelled=False)
    assert features.lengths.tolist() == [3, 5]
    assert features.token_type_ids.tolist() == [0, 0, 0, 0, 0, 0, 1, 1]
    with pytest.raises(DataError, match="`question2` is empty"):
        read_file(task_of(text="question1", pair="question2", label="is_duplicate"), path)


def test_a_text_of_fifty_thousand_words():
    examples = [TextExample("0", "word " * 50_000, None, "a"), TextExample("1", "word", None, "b")]
    task = replace(task_of().fitted(examples), length=128)
    assert task.features(examples, TOKENIZER, labelled=True).lengths.tolist() == [128, 3]
    windows = replace(task, long_texts="windows").features(examples, TOKENIZER, labelled=True)
    assert windows.num_sequences == 1 + -(-(50_000 - 126) // 63) + 1


def test_a_quoted_table_is_said(tmp_path):
    path = tmp_path / "a.tsv"
    path.write_text('text\tlabel\n"He said ""no"""\t0\n')
    with pytest.raises(DataError, match="the fields are in quotes"):
        read_file(task_of(), path)
    assert read_file(task_of(quoted=True), path)[0].text == 'He said "no"'


def test_columns_of_a_table_without_header(tmp_path):
    path = table(tmp_path / "a.tsv", "a|0", "b|1")
    with pytest.raises(DataError, match="no column `text`"):
        read_file(task_of(), path)
    examples = read_file(task_of().with_changes(columns=("text", "label")), path)
    assert [example.text for example in examples] == ["a", "b"]


def test_other_columns_for_an_official_task(tmp_path):
    path = table(tmp_path / "a.tsv", "one|two|same", "a|b|1")
    with pytest.raises(DataError, match="for mrpc, only `one`, `two`, `same`"):
        read_file(official_task("mrpc"), path)
    assert read_file(
        official_task("mrpc", Columns(text="one", pair="two", label="same")), path
    ) == [TextExample("0", "a", "b", "1")]


# --- files ----------------------------------------------------------------------------------------


def test_files_of_a_folder(tmp_path):
    for name in (
        "MRPC/train.tsv.gz",
        "MRPC/msr_paraphrase_test.txt",
        "MRPC/notes.md",
        "MNLI/dev_matched.tsv",
        "diagnostic/diagnostic.tsv",
    ):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    for data in (tmp_path, tmp_path / "MRPC"):
        files = official_task("mrpc").files(data)
        assert files == {
            "train": tmp_path / "MRPC/train.tsv.gz",
            "dev": tmp_path / "MRPC/msr_paraphrase_test.txt",
        }
    (tmp_path / "MRPC/dev.tsv").touch()
    assert official_task("mrpc").files(tmp_path)["test"].name == "msr_paraphrase_test.txt"
    assert (
        official_task("mnli").files(tmp_path)["diagnostic"]
        == tmp_path / "diagnostic/diagnostic.tsv"
    )
    assert task_of().files(tmp_path / "MRPC/dev.tsv") == {"train": tmp_path / "MRPC/dev.tsv"}


def test_a_folder_in_no_layout(tmp_path):
    (tmp_path / "phrases.tsv").touch()
    with pytest.raises(
        DataError,
        match=r"\[missing-file\].*none of the files train, training, dev, .*; it holds phrases.tsv",
    ):
        task_of().files(tmp_path)
    (tmp_path / "train.tsv").touch()
    (tmp_path / "train.csv").touch()
    with pytest.raises(DataError, match=r"`train.csv` and `train.tsv` for train"):
        task_of().files(tmp_path)
    with pytest.raises(DataError, match="no such file"):
        task_of().files(tmp_path / "nothing")
