"""A teacher's losses against torch's own on padded rows."""

import pytest
import torch
import torch.nn.functional as F
from small_models import gradients, tiny_config
from torch.testing import assert_close

from albertkit.batches.features import Features
from albertkit.errors import ConfigError
from albertkit.model import (
    AlbertForMultipleChoice,
    AlbertForQuestionAnswering,
    AlbertForSequenceClassification,
    AlbertForTokenClassification,
)
from albertkit.model.heads import class_loss, multi_label_loss, regression_loss, span_loss
from albertkit.model.layers import layer_at_same_depth
from albertkit.model.pretrained import PretrainedAlbert
from albertkit.tables import IGNORED
from albertkit.tasks.distillation import DistillationLosses
from albertkit.tasks.settings import FinetuneSettings

from .conftest import BatchObjective, padded_rows, train_on_batch, whole_batch

T = 3.0  # temperature
LENGTHS = (4, 3, 6, 2, 5)
EXAMPLES = (0, 0, 1, 1, 1)  # two choices, then three


def model_of(model_class, seed, **changes):
    torch.manual_seed(seed)
    values = {"num_hidden_layers": 2, "initializer_range": 0.3, "num_labels": 3, **changes}
    model = model_class(tiny_config(**values)).eval()
    with torch.no_grad():  # logits as decided as after training
        for name, parameter in model.named_parameters():
            parameter *= 1 if name.startswith("albert.") else 4
    return model


def labelled(**labels):
    generator = torch.Generator().manual_seed(5)
    rows = [torch.randint(5, 90, (n,), generator=generator).tolist() for n in LENGTHS]
    per_token = {name: v.numpy() for name, v in labels.items() if len(v) == sum(LENGTHS)}
    per_sequence = {name: v.numpy() for name, v in labels.items() if len(v) == len(LENGTHS)}
    return whole_batch(
        Features.from_sequences(
            [(row, len(row)) for row in rows], EXAMPLES, per_sequence, per_token
        )
    )


class HeadTask:
    """The loss of a head, as the tasks compute it; counts under every name."""

    def losses(self, model, batch, class_weights=None):  # type: ignore[no-untyped-def]
        logits = model.packed_logits(batch.packed)
        assert isinstance(model, PretrainedAlbert)
        if isinstance(model, AlbertForQuestionAnswering):
            return {"spans": span_loss(logits[0], batch.per_sequence["labels"])}
        if isinstance(model, AlbertForMultipleChoice):
            return {
                "choice": class_loss(
                    torch.stack([logits[:2, 0], logits[2:4, 0]]), torch.tensor([1, 0])
                )
            }
        if isinstance(model, AlbertForTokenClassification):
            return {"tagging": class_loss(logits, batch.per_token["labels"])}
        kind = {"regression": regression_loss, "multi_label_classification": multi_label_loss}
        return {
            "text": kind.get(model.config.problem_type, class_loss)(
                logits, batch.per_sequence["labels"]
            )
        }

    def count_targets(self, batch):  # type: ignore[no-untyped-def]
        return dict.fromkeys(("text", "spans", "choice", "tagging"), 1)


CLASSES = torch.tensor([0, 2, 1, 1, 0])
TAGS = torch.tensor([IGNORED, 1, 2, IGNORED, 0, IGNORED, 1, 1, IGNORED, 2] * 2)
CASES = {
    "classification": (
        AlbertForSequenceClassification,
        {"problem_type": "single_label_classification"},
        CLASSES,
    ),
    "regression": (
        AlbertForSequenceClassification,
        {"problem_type": "regression", "num_labels": 1},
        CLASSES.float(),
    ),
    "multilabel": (
        AlbertForSequenceClassification,
        {"problem_type": "multi_label_classification"},
        torch.tensor([[1.0, 0, 1], [0, 0, 1], [1, 1, 0], [0, 0, 0], [1, 0, 0]]),
    ),
    "tagging": (AlbertForTokenClassification, {}, TAGS),
    "choice": (AlbertForMultipleChoice, {}, CLASSES),
    "spans": (AlbertForQuestionAnswering, {}, CLASSES),
}


def pair(kind, **settings):
    model_class, changes, labels = CASES[kind]
    student = model_of(model_class, 0, **changes)
    teacher = model_of(model_class, 1, hidden_size=128, num_hidden_layers=4, **changes)
    return (
        DistillationLosses(student, teacher, HeadTask(), temperature=T, **settings),
        student,
        teacher,
        labelled(labels=labels),
    )  # type: ignore[arg-type]


def padded_kl(student, teacher, dim=-1):
    """Summed over rows, with torch's own function on probabilities."""
    return (
        F.kl_div((student / T).log_softmax(dim), (teacher / T).softmax(dim), reduction="none").sum()
        * T**2
    )


def expected_and_count(kind, student, teacher, batch):
    """The teacher's loss by padded forward passes, as one writes it with transformers."""
    padded = padded_rows(batch.packed)
    # 2 x 3 rows, the missing third choice of the first example at minus infinity
    if kind == "choice":
        logits = [model.packed_logits(batch.packed)[:, 0] for model in (student, teacher)]
        tables = [torch.cat([v[:2], v.new_tensor([-torch.inf]), v[2:]]).view(2, 3) for v in logits]
        probabilities = (tables[1] / T).softmax(-1)
        terms = probabilities * (probabilities.log() - (tables[0] / T).log_softmax(-1))
        return terms.nansum() * T**2, 2
    outputs = [model(**padded) for model in (student, teacher)]
    if kind == "spans":
        floor = torch.finfo(torch.float32).min
        hidden = padded["attention_mask"] == 0
        tables = [
            (o.start_logits.masked_fill(hidden, floor), o.end_logits.masked_fill(hidden, floor))
            for o in outputs
        ]
        return (
            padded_kl(tables[0][0], tables[1][0]) + padded_kl(tables[0][1], tables[1][1])
        ) / 2, 5
    student_logits, teacher_logits = (output.logits for output in outputs)
    if kind == "regression":
        return ((student_logits - teacher_logits) ** 2).sum(), 5
    if kind == "multilabel":
        soft = (teacher_logits / T).sigmoid()
        log = F.logsigmoid(student_logits / T), F.logsigmoid(-student_logits / T)
        return -(soft * log[0] + (1 - soft) * log[1]).sum() * T**2, 15
    if kind == "tagging":
        is_labelled = batch.packed.unpack((batch.per_token["labels"] != IGNORED).long()) == 1
        return padded_kl(student_logits[is_labelled], teacher_logits[is_labelled]), int(
            is_labelled.sum()
        )
    return padded_kl(student_logits, teacher_logits), 5


@pytest.mark.parametrize("kind", CASES)
def test_teacher_losses_are_torchs_on_padded_rows(kind):
    losses, student, teacher, batch = pair(kind, weight=0.3)
    parts = losses.losses(batch)
    expected, count = expected_and_count(kind, student, teacher, batch)
    assert parts["distillation"].count == losses.count_targets(batch)["distillation"] == count
    assert expected > 1e-2
    assert_close(parts["distillation"].total, 0.3 * expected, atol=1e-5, rtol=1e-5)
    (name,) = set(parts) - {"distillation"}
    alone = HeadTask().losses(student, batch)[name]
    assert_close(parts[name].total, 0.7 * alone.loss_sum, atol=1e-5, rtol=1e-5)

    actual = gradients(student, parts["distillation"].total)
    theirs = gradients(student, 0.3 * expected_and_count(kind, student, teacher, batch)[0])
    assert_close(actual, theirs, atol=1e-4, rtol=1e-4)
    assert all(p.grad is None for p in teacher.parameters())


@pytest.mark.parametrize("same_width", [True, False])
def test_hidden_states_at_the_same_share_of_depth(same_width):
    width = {} if same_width else {"hidden_size": 128}
    student = model_of(AlbertForSequenceClassification, 0)
    teacher = model_of(AlbertForSequenceClassification, 1, num_hidden_layers=6, **width)
    losses = DistillationLosses(student, teacher, HeadTask(), hidden_weight=2.0)  # type: ignore[arg-type]
    batch = labelled(labels=CLASSES)
    assert (losses.projection is None) == same_width
    padded = padded_rows(batch.packed)
    student_states, teacher_states = (
        model(**padded, output_hidden_states=True).hidden_states for model in (student, teacher)
    )
    real = padded["attention_mask"] == 1

    def distance(passes):
        states = [student_states[1][real], student_states[2][real]]
        if losses.projection is not None:
            states = [s @ losses.projection.weight.T for s in states]
        pairs = zip(states, passes, strict=True)
        return torch.stack(
            [F.mse_loss(mine, teacher_states[at][real]) for mine, at in pairs]
        ).mean()

    part = losses.losses(batch)["hidden_states"]
    assert part.count == losses.count_targets(batch)["hidden_states"] == sum(LENGTHS) * 2
    assert_close(part.total / part.count, 2 * distance((3, 6)), atol=1e-5, rtol=1e-5)
    # Another map would be noticed
    assert (part.total / part.count - 2 * distance((2, 6))).abs() > 1e-3


def test_map_of_layers():
    # TinyBERT's g(m) = 3m
    assert [layer_at_same_depth(k, 4, 12) for k in (1, 2, 3, 4)] == [3, 6, 9, 12]
    assert [layer_at_same_depth(k, 12, 12) for k in range(13)] == list(range(13))
    assert [layer_at_same_depth(k, 5, 12) for k in range(1, 6)] == [2, 5, 7, 10, 12]
    assert [layer_at_same_depth(k, 6, 2) for k in range(1, 7)] == [0, 1, 1, 1, 2, 2]


def test_the_student_runs_once_and_the_teacher_stays_in_evaluation_mode():
    losses, student, teacher, batch = pair("classification", hidden_weight=1.0)
    runs = []
    for name, model in (("student", student), ("teacher", teacher)):
        model.albert.embeddings.register_forward_hook(lambda *_, name=name: runs.append(name))
    losses.train()
    assert student.training
    assert not teacher.training
    losses.losses(batch)
    assert sorted(runs) == ["student", "teacher"]
    names = {name for name, p in losses.named_parameters() if p.requires_grad}
    assert {name.split(".")[0] for name in names} == {"student", "projection"}
    assert "packed_logits" not in vars(student)  # the answer known to the task stayed in its copy


def test_it_trains_with_its_projection_and_resumes_to_the_same_bits(tmp_path):
    def run(folder, steps, resume=False):
        losses, student, _, batch = pair("classification", hidden_weight=1.0)
        objective = BatchObjective(losses.losses, losses.count_targets)
        train_on_batch(losses, objective, batch, folder, steps, student.save_pretrained, resume)
        return losses, student

    before = pair("classification", hidden_weight=1.0)[0]
    uninterrupted, _ = run(tmp_path / "whole", 4)
    run(tmp_path / "halves", 2)
    halves, student = run(tmp_path / "halves", 4, resume=True)
    assert all(
        torch.equal(a, b)
        for a, b in zip(uninterrupted.parameters(), halves.parameters(), strict=True)
    )
    assert not torch.equal(uninterrupted.projection.weight, before.projection.weight)
    saved = AlbertForSequenceClassification.from_pretrained(tmp_path / "halves/best")
    assert set(saved.state_dict()) == set(student.state_dict())  # without the projection


@pytest.mark.parametrize(
    "settings",
    [
        {"teacher_weight": 1.5},
        {"teacher_hidden": -1.0},
    ],
    ids=str,
)
def test_numbers_out_of_range_are_refused(settings):
    with pytest.raises(ConfigError, match=r"\[bad-value\]"):
        FinetuneSettings(**settings).check()  # type: ignore[arg-type]
