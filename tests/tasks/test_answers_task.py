"""The task: losses of both heads, predictions whatever the batches, scores, files, the threshold."""

import json

import numpy as np
import pytest
import torch
from scipy.stats import binomtest
from small_models import tiny_config
from torch.testing import assert_close

from albertkit.batches.features import LabelledBatch
from albertkit.conversion.convert import convert
from albertkit.errors import ConfigError
from albertkit.model import AlbertForBeamQuestionAnswering, AlbertForQuestionAnswering, PackedBatch
from albertkit.tasks.answers import AnswerTask, mask_outside_text
from albertkit.tasks.metrics import squad_scores
from albertkit.tasks.models import run_model
from albertkit.tasks.questions import AnnotatedAnswer, QuestionExample

from .conftest import reread, whole_batch

HEADS = ["spans", "beam"]
PLACES = ("Rome", "Oslo", "Lima", "Bern", "Kiel")


def tiny_model(task):
    torch.manual_seed(0)
    config = tiny_config(
        vocab_size=30_000,
        hidden_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=64,
        max_position_embeddings=128,
        classifier_dropout_prob=0.0,
        initializer_range=0.1,
    )
    return task.model_class(config).eval()


def questions(version=2):
    """Twenty about five texts, of which every fourth has no answer in version 2."""
    examples = []
    for number in range(20):
        city = PLACES[number % 5]
        other_city = PLACES[(number + 2) % 5]
        context = (
            f"Anna lives in {city}. "
            + "The weather was fine. " * (number % 3 * 5)
            + f"Boris lives in {other_city}."
        )
        name = "Anna" if number % 2 else "Boris"
        answer_text = city if number % 2 else other_city
        if version == 2 and number % 4 == 0:
            examples.append(
                QuestionExample(
                    f"q{number}", "Where does Clara live?", context, (), True, f"a{number % 5}"
                )
            )
        else:
            start = context.index(answer_text)
            answer = (AnnotatedAnswer(answer_text, start),)
            examples.append(
                QuestionExample(
                    f"q{number}",
                    f"Where does {name} live?",
                    context,
                    answer,
                    False,
                    f"a{number % 5}",
                )
            )
    return examples


def task_of(head, version=2, **changes):
    settings = {"name": "squad", "length": 48, "stride": 16, "max_query_length": 16}
    return AnswerTask(head_kind=head, version=version, **{**settings, **changes})  # type: ignore[arg-type]


def predicted(task, model, tokenizer, batch_tokens=1000, version=2):
    features = task.features(questions(version), tokenizer, labelled=False)
    return task.predictions(
        questions(version), features, run_model(model, task, features, batch_tokens)
    )


# --- losses ---------------------------------------------------------------------------------------


def total(task, model, batch):
    losses = task.losses(model, batch)
    assert {name: int(loss.label_count) for name, loss in losses.items()} == task.count_targets(
        batch
    )
    return torch.stack([loss.loss_sum for loss in losses.values()]).sum()


@pytest.mark.parametrize("head", HEADS)
def test_losses_are_those_of_single_rows(tokenizer, head):
    """Of a packed batch, against the public forward pass on each row alone, which then has no padding."""
    task = task_of(head)
    model = tiny_model(task)
    features = task.features(questions(), tokenizer, labelled=True)
    assert features.num_sequences > 20
    packed = total(task, model, whole_batch(features))
    single = 0.0
    for number in range(features.num_sequences):
        batch = features.batch(np.array([number]))
        types = batch.packed.token_type_ids[None]
        inputs = {
            "input_ids": batch.packed.input_ids[None],
            "token_type_ids": types,
            "start_positions": batch.per_sequence["start_positions"],
            "end_positions": batch.per_sequence["end_positions"],
        }
        if head == "beam":
            p_mask = 1 - types
            p_mask[0, 0], p_mask[0, -1] = 0, 1
            inputs |= {"p_mask": p_mask, "is_impossible": batch.per_sequence["impossible"]}
        single += model(**inputs).loss.item()
    assert packed.item() == pytest.approx(single, rel=1e-5)
    features.per_sequence["start_positions"][5] += 1
    changed = total(task, model, whole_batch(features))
    assert changed.item() != pytest.approx(single, rel=1e-5)


@pytest.fixture(scope="module")
def converted(golden, tmp_path_factory):
    def convert_golden(name):
        target = tmp_path_factory.mktemp(name) / "model"
        convert(golden / "tf1" / name, target)
        return target

    return convert_golden


def google_batch(golden, name):
    """The inputs that Google's code was run on, packed; which of the padded places are real; what it printed."""
    folder = golden / "tf1" / name
    inputs = {key: torch.from_numpy(array) for key, array in np.load(folder / "inputs.npz").items()}
    mask = inputs["input_mask"] == 1
    packed = PackedBatch.from_padded(inputs["input_ids"].long(), mask, inputs["segment_ids"].long())
    names = {
        "start_positions": "start_positions",
        "end_positions": "end_positions",
        "is_impossible": "impossible",
    }
    labels = {ours: inputs[theirs].long() for theirs, ours in names.items() if theirs in inputs}
    rows = torch.arange(len(mask))
    per_token = {"p_mask": inputs["p_mask"][mask]} if "p_mask" in inputs else {}
    outputs = {
        key: torch.from_numpy(array) for key, array in np.load(folder / "outputs.npz").items()
    }
    return LabelledBatch(packed, rows.numpy(), rows, labels, per_token), mask, outputs


def test_googles_squad_1_model(golden, converted):
    """Its checkpoint, converted: the starts and ends that our task keeps are those of the logits that Google printed."""
    batch, mask, expected = google_batch(golden, "squad_v1")
    task = task_of("spans", version=1, n_best_size=5)
    model = AlbertForQuestionAnswering.from_pretrained(converted("squad_v1"))
    with torch.no_grad():
        outputs = task.outputs(model, batch)
        losses = task.losses(model, batch)["span"]
    expected_loss = torch.zeros(())
    for row, top in enumerate(outputs):
        for side, positions, values in (
            ("start", top.starts, top.start_scores),
            ("end", top.ends, top.end_scores),
        ):
            logits = expected[f"{side}_logits"][row][mask[row]]
            count = min(5, len(logits))
            best = logits.sort(descending=True, stable=True)
            assert positions[:count].tolist() == best.indices[:count].tolist()
            np.testing.assert_allclose(values[:count], best.values[:count], atol=1e-5, rtol=1e-5)
            position = int(batch.per_sequence[f"{side}_positions"][row])
            if position < len(logits):
                expected_loss -= logits.log_softmax(0)[position] / 2
    assert_close(losses.loss_sum, expected_loss, atol=1e-4, rtol=1e-5)


def test_googles_squad_2_model(golden, converted):
    batch, _, expected = google_batch(golden, "squad_v2")
    model = AlbertForBeamQuestionAnswering.from_pretrained(converted("squad_v2"))
    labels = [
        batch.per_sequence[name] for name in ("start_positions", "end_positions", "impossible")
    ]
    with torch.no_grad():
        parts = model.packed_losses(batch.packed, *labels, batch.per_token["p_mask"])
        unmasked = model.packed_losses(batch.packed, *labels)

    def loss(losses):
        return (losses.start.mean() + losses.end.mean() + losses.answerable.mean()) / 2

    assert_close(loss(parts), expected["total_loss"].reshape(()), atol=1e-5, rtol=0)
    assert abs(loss(unmasked) - expected["total_loss"]) > 1e-3
    beams = model.packed_beams(batch.packed, batch.per_token["p_mask"])
    assert_close(beams.cls_logits, expected["cls_logits"], atol=1e-5, rtol=1e-5)


def test_where_no_answer_may_lie(tokenizer, golden, read_golden_questions):
    """Against Google's `p_mask` of the same windows."""
    task = AnswerTask(name="squad2", version=2, length=128, stride=32)
    features = task.features(read_golden_questions("v20"), tokenizer, labelled=False)
    batch = whole_batch(features)
    expected = np.load(golden / "squad/features_v20_s128.npz")
    ours = batch.packed.unpack(mask_outside_text(batch.packed).int() + 1)  # 0 at padding
    theirs = torch.from_numpy(np.where(expected["input_mask"] == 1, expected["p_mask"] + 1, 0))
    assert torch.equal(ours, theirs[:, : ours.shape[1]].int())


# --- predictions ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("head", "version"),
    [
        ("spans", 1),
        ("spans", 2),
        ("beam", 2),
    ],
)
def test_what_is_learned_is_predicted(tokenizer, tmp_path, head, version):
    """A small model learns twenty questions by heart; then its answers are right, and so is all that is made of them."""
    task = task_of(head, version, length=128)
    model = tiny_model(task)
    examples = questions(version)
    features = task.features(examples, tokenizer, labelled=True)
    assert features.num_sequences == len(examples)
    batch = whole_batch(features)
    untrained = predicted(task, model, tokenizer, version=version)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    model.train()
    for _ in range(300):
        loss = total(task, model, batch) / batch.packed.num_sequences
        if loss < 0.03:
            break
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    model.eval()
    records = predicted(task, model, tokenizer, version=version)
    exact = "exact" if version == 2 else "exact_match"
    assert task.score(examples, untrained)[exact] < 60
    assert task.score(examples, records)[exact] == 100
    assert task.collapsed(examples, records) is None
    for example, record in zip(examples, records, strict=True):
        assert record["id"] == example.id
        if record["answer"]:
            assert example.context[record["start"] : record["end"]] == record["answer"]
            assert record["score"] > 0.4
        assert sum(entry["probability"] for entry in record["nbest"]) == pytest.approx(1)
        assert ("null_odds" in record) == (version == 2)
    details = task.details(examples, records)
    wilson = binomtest(len(examples), len(examples)).proportion_ci(method="wilson")
    assert details["intervals"]["f1"] == pytest.approx([100 * wilson.low, 100.0])
    assert ("threshold" in details) == (version == 2)

    names = [path.name for path in task.write(tmp_path, records, split="dev")]
    contents = {name: json.loads((tmp_path / name).read_text()) for name in names}
    gold = [(e.id, [a.text for a in e.answers]) for e in examples]
    assert squad_scores(contents["predictions.json"], gold, 2)["exact"] == 100
    best = contents["nbest_predictions.json"]["q1"][0]
    assert list(best) == ["text", "probability", "start_log_prob", "end_log_prob"]
    assert ("null_odds.json" in names) == (version == 2)
    if version == 2:
        assert set(contents["null_odds.json"]) == {e.id for e in examples}
        assert contents["threshold.json"] == {"threshold": 0.0, "threshold_from": "default"}


@pytest.mark.parametrize("head", HEADS)
def test_predictions_do_not_depend_on_the_batches(tokenizer, head):
    task = task_of(head)
    model = tiny_model(task)
    together, alone = (predicted(task, model, tokenizer, tokens) for tokens in (10_000, 1))
    for record_of_batch, record_alone in zip(together, alone, strict=True):
        assert [e["text"] for e in record_of_batch["nbest"]] == [
            e["text"] for e in record_alone["nbest"]
        ]
        assert record_of_batch["null_odds"] == pytest.approx(record_alone["null_odds"], abs=1e-4)


def test_little_is_kept_of_a_window(tokenizer):
    for head in HEADS:
        task = task_of(head)
        features = task.features(questions(), tokenizer, labelled=False)
        outputs = run_model(tiny_model(task), task, features, 1000)
        assert max(sum(np.asarray(part).nbytes for part in output) for output in outputs) <= 400


# --- the threshold --------------------------------------------------------------------------------


def record(name, text, odds):
    nbest = [{"text": ""}, {"text": text}]
    return {"id": name, "answer": "", "start": None, "end": None, "null_odds": odds, "nbest": nbest}


def test_the_threshold_that_is_chosen_is_the_one_that_decides(tokenizer):
    task = task_of("spans")
    model = tiny_model(task)
    features = task.features(questions(), tokenizer, labelled=False)
    outputs = run_model(model, task, features, 1000)
    before = task.predictions(questions(), features, outputs)
    chosen = task.calibrated(questions(), before, "dev")
    after = chosen.predictions(questions(), features, outputs)
    best = task.details(questions(), before)["best_on_these_questions"]["best_f1"]
    assert chosen.score(questions(), after)["f1"] == pytest.approx(best)
    assert task.score(questions(), before)["f1"] < best
    details = chosen.details(questions(), after)
    assert details["threshold"] == chosen.threshold
    assert details["threshold_from"] == "dev"
    # Whatever it was before
    assert chosen.calibrated(questions(), after, "train").threshold == chosen.threshold
    assert reread(chosen) == chosen


def test_of_questions_better_left_alone_none_is_answered():
    examples = [QuestionExample(name, "?", "Rain.", (), True) for name in "ab"]
    records = [record("a", "Rain", -1.0), record("b", "Rain", 2.0)]
    chosen = task_of("spans").calibrated(examples, records, "train")
    assert chosen.threshold is not None
    assert chosen.threshold < -1.0


def test_whole_articles_are_kept_for_the_threshold():
    task = task_of("beam")
    examples = questions()
    train, calibration = task.calibration_split(examples)
    assert {e.article for e in train}.isdisjoint({e.article for e in calibration})
    assert len({e.article for e in calibration}) == 1
    assert sorted(e.id for e in [*train, *calibration]) == sorted(e.id for e in examples)
    assert task.calibration_split(examples) == (train, calibration)
    assert task_of("beam", version=1).calibration_split(examples)[1] == []
    assert task.calibration_split([e for e in examples if not e.impossible])[1] == []
    assert task.calibration_split([e for e in examples if e.article == "a1"])[1] == []


# --- what is said ---------------------------------------------------------------------------------


def test_a_model_that_learned_nothing_is_said():
    task = task_of("spans")
    examples = questions()
    nothing = [record(example.id, "Rome", 1.0) for example in examples]
    assert task.collapsed(examples, nothing) == "all 20 answers are empty, 15 questions have one"
    assert task.collapsed([e for e in examples if e.impossible], nothing[:5]) is None
    same_span = [{**r, "answer": "Anna", "start": 0, "end": 4} for r in nothing]
    assert (
        task.collapsed(examples, same_span)
        == "all 20 answers stand at characters 0 to 4 of their texts"
    )
    same_span[3] |= {"start": 5}
    assert task.collapsed(examples, same_span) is None


def test_a_cut_question_is_counted(tokenizer):
    task = task_of("spans")
    examples = [
        QuestionExample("a", "Where, oh where, " * 20, "Here.", (AnnotatedAnswer("Here", 0),)),
        *questions(),
    ]
    features = task.features(examples, tokenizer, labelled=False)
    records = task.predictions(
        examples, features, run_model(tiny_model(task), task, features, 1000)
    )
    assert [r["id"] for r in records if r.get("question_cut")] == ["a"]
    assert task.details(examples, records)["questions_cut"] == 1


@pytest.mark.parametrize(
    "change",
    [
        {"version": 3},
        {"head_kind": "spam"},
        {"length": 10},
        {"stride": 0},
    ],
)
def test_impossible_settings(change):
    with pytest.raises(ConfigError, match="bad-value"):
        AnswerTask(name="squad", **change)


def test_features_are_flat(tokenizer):
    features = task_of("spans").features(questions(), tokenizer, labelled=True)
    sizes = {name: array.dtype.itemsize for name, array in features.per_token.items()}
    assert sizes == {"char_starts": 4, "char_ends": 4, "max_context": 1}
