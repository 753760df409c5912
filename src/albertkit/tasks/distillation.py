"""Learning from a larger model that was fine-tuned on the same task: its logits, and its hidden states.

T tokens of N sequences, C labels, H hidden size of the student, K of the teacher. Sources: Hinton et al. 2015, section 2
(temperature, T² on the soft loss); Sun et al. 2019, PKD, and Jiao et al. 2020, TinyBERT, equations 8 and 10 (hidden states,
uniform map of layers, learned projection).
"""

import copy
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from albertkit.batches.features import LabelledBatch
from albertkit.config import AlbertConfig
from albertkit.errors import CheckpointError, ConfigError
from albertkit.model import (
    AlbertForBeamQuestionAnswering,
    AlbertForMultipleChoice,
    AlbertForQuestionAnswering,
    AlbertForSequenceClassification,
    AlbertForTokenClassification,
)
from albertkit.model.heads import ragged_log_softmax
from albertkit.model.layers import linear
from albertkit.model.padded import Trace
from albertkit.model.pretrained import PretrainedAlbert
from albertkit.model_paths import local_folder
from albertkit.tables import IGNORED
from albertkit.tasks.task import Task
from albertkit.tokenizer import AlbertTokenizer
from albertkit.training.loop import LossPart


def load_teacher(
    folder: str | Path, student: PretrainedAlbert, tokenizer: AlbertTokenizer, length: int
) -> PretrainedAlbert:
    """Return a teacher that reads the student's ids and means the same by each output."""
    path = local_folder(folder)
    hint = "fine-tune a teacher on the same data, from a model with the student's tokenizer"
    try:
        teacher = type(student).from_pretrained(path, strict=True)
    except CheckpointError as error:
        if error.slug != "weights-mismatch":
            raise
        fact = f"`{folder}` holds no {type(student).__name__}: it was not fine-tuned on this kind of task"
        raise CheckpointError("wrong-model", fact, hint) from None
    teacher_tokenizer = AlbertTokenizer.from_pretrained(path)
    differences = []
    if teacher_tokenizer.fingerprint != tokenizer.fingerprint:
        differences.append(
            f"its tokenizer is another: {teacher_tokenizer.vocab_size:,} tokens, "
            f"fingerprint {teacher_tokenizer.fingerprint[:12]}; "
            f"the student's has {tokenizer.vocab_size:,} tokens, {tokenizer.fingerprint[:12]}"
        )
    if teacher.config.max_position_embeddings < length:
        differences.append(f"it reads {teacher.config.max_position_embeddings} tokens at most, the task has {length}")
    if isinstance(student, AlbertForSequenceClassification | AlbertForTokenClassification):
        differences += _output_differences(student.config, teacher.config)
    if differences:
        fact = f"the teacher `{folder}` cannot teach this student: {'; '.join(differences)}"
        raise CheckpointError("wrong-model", fact, hint)
    teacher.compute_dtype = student.compute_dtype
    return teacher.to(student.device)


def _output_differences(student: AlbertConfig, teacher: AlbertConfig) -> list[str]:
    if student.problem_type and teacher.problem_type and student.problem_type != teacher.problem_type:
        return [f"it was trained for {teacher.problem_type}, the student for {student.problem_type}"]
    if student.num_labels != teacher.num_labels:
        return [f"it has {teacher.num_labels} outputs, the student {student.num_labels}"]
    have_names = student.foreign.get("id2label") and teacher.foreign.get("id2label")
    if have_names and student.id2label != teacher.id2label:
        names = [", ".join(config.id2label[i] for i in range(config.num_labels)) for config in (teacher, student)]
        return [f"its labels are {names[0]}; the student's {names[1]}"]
    return []


class DistillationLosses(nn.Module):
    """The losses of a student: (1 - weight) of the task's, `weight` of the teacher's, and that of the hidden states.

    What the teacher's loss is depends on the head, with t the temperature (higher shows more of unlikely classes):

    - classes of sequences and of labelled tokens, the choices of an example, the places where an answer starts and ends (the
      mean of both): t² times the Kullback-Leibler divergence of the student's softmax(logits / t) from the teacher's;
    - several labels: t² times the binary cross-entropy with the teacher's sigmoid(logits / t) for targets;
    - numbers: the squared error against the teacher's.

    `hidden_weight` weighs the mean squared error between the student's states after each layer and the teacher's at the same
    share of its depth, over all tokens. As the loop's model this module has the student's parameters and, where hidden sizes
    differ, those of a projection, which is saved with the state but belongs to no model. The teacher is none of its parts.
    """

    def __init__(
        self,
        student: PretrainedAlbert,
        teacher: PretrainedAlbert,
        task: Task,
        *,
        weight: float = 0.5,
        temperature: float = 2.0,
        hidden_weight: float = 0.0,
        class_weights: Tensor | None = None,
    ) -> None:
        super().__init__()
        if isinstance(student, AlbertForBeamQuestionAnswering):
            fact = f"a teacher cannot teach {type(student).__name__}"
            raise ConfigError("bad-value", fact, "use the head with start and end logits: --qa-head spans")
        self.student = student
        self.task = task
        self.class_weights = class_weights
        self.weight = weight
        self.temperature = temperature
        self.hidden_weight = hidden_weight
        self._teacher = (teacher.eval().requires_grad_(False),)  # a tuple: no part, so `train()` leaves it alone
        self._num_layers = student.config.num_hidden_layers * student.config.inner_group_num
        widths = student.config.hidden_size, teacher.config.hidden_size
        self.projection: nn.Linear | None = None
        if hidden_weight and widths[0] != widths[1]:
            self.projection = nn.Linear(*widths, bias=False, device=student.device)

    def counts(self, batch: LabelledBatch) -> dict[str, int]:
        """Count the targets: the task's, as many of distillation, and of hidden states tokens times layers."""
        if isinstance(self.student, AlbertForTokenClassification):
            num_imitated = int((batch.per_token["labels"] != IGNORED).sum())
        elif isinstance(self.student, AlbertForMultipleChoice):
            num_imitated = len(batch.examples.unique_consecutive())
        elif self.student.config.problem_type in ("regression", "multi_label_classification"):
            num_imitated = batch.packed.num_sequences * self.student.config.num_labels
        else:
            num_imitated = batch.packed.num_sequences
        counts = self.task.counts(batch) | {"distillation": num_imitated}
        if self.hidden_weight:
            counts["hidden_states"] = batch.num_tokens * self._num_layers
        return counts

    def losses(self, batch: LabelledBatch) -> dict[str, LossPart]:
        """Return the weighted losses of a batch as sums; the student runs once."""
        counts = self.counts(batch)
        trace = Trace(True, False) if self.hidden_weight else None
        teacher_trace = Trace(True, False) if self.hidden_weight else None
        with torch.no_grad():
            teacher_logits = self._teacher[0].packed_logits(batch.packed, teacher_trace)  # type: ignore[operator]
        logits = self.student.packed_logits(batch.packed, trace)  # type: ignore[operator]
        task_losses = self.task.losses(answered(self.student, logits), batch, self.class_weights)
        parts = {
            name: LossPart(loss.loss_sum * (1 - self.weight), counts[name], loss.correct)
            for name, loss in task_losses.items()
        }
        imitation = self._imitation_loss(logits, teacher_logits, batch) * self.weight
        parts["distillation"] = LossPart(imitation, counts["distillation"])
        if trace and teacher_trace:
            assert trace.hidden_states is not None
            assert teacher_trace.hidden_states is not None
            num_teacher_layers = len(teacher_trace.hidden_states) - 1
            distances = []  # the mean over the width, summed over tokens and layers
            for number, states in enumerate(trace.hidden_states[1:], start=1):
                teacher_states = teacher_trace.hidden_states[
                    teacher_layer(number, self._num_layers, num_teacher_layers)
                ]
                if self.projection is not None:
                    states = linear(states.dtype, self.projection)(states)
                distance = F.mse_loss(_at_least_fp32(states), _at_least_fp32(teacher_states), reduction="sum")
                distances.append(distance / teacher_states.shape[1])
            total = torch.stack(distances).sum()
            parts["hidden_states"] = LossPart(total * self.hidden_weight, counts["hidden_states"])
        return parts

    # --- logits -------------------------------------------------------------------------------------------------------

    def _imitation_loss(self, logits: Any, teacher_logits: Any, batch: LabelledBatch) -> Tensor:
        problem, t = self.student.config.problem_type, self.temperature
        if isinstance(self.student, AlbertForQuestionAnswering):
            positions = batch.packed.padded_positions()  # log-probabilities are over the places of each sequence
            log_probs = []
            for values in (*logits, *teacher_logits):
                real = _at_least_fp32(values).flatten().index_select(0, positions)
                log_probs.append(ragged_log_softmax(real / t, positions // batch.packed.longest))
            starts, ends, teacher_starts, teacher_ends = log_probs
            return (_divergence(starts, teacher_starts) + _divergence(ends, teacher_ends)) * t**2 / 2
        logits, teacher_logits = _at_least_fp32(logits), _at_least_fp32(teacher_logits)
        if isinstance(self.student, AlbertForMultipleChoice):
            groups = F.pad((batch.examples.diff() != 0).cumsum(0), (1, 0))
            soft = [ragged_log_softmax(values.squeeze(1) / t, groups) for values in (logits, teacher_logits)]
            return _divergence(*soft) * t**2
        if isinstance(self.student, AlbertForTokenClassification):
            is_labelled = batch.per_token["labels"] != IGNORED
            logits, teacher_logits = logits[is_labelled], teacher_logits[is_labelled]
        elif problem == "regression":
            return F.mse_loss(logits, teacher_logits, reduction="sum")
        elif problem == "multi_label_classification":
            return (
                F.binary_cross_entropy_with_logits(logits / t, (teacher_logits / t).sigmoid(), reduction="sum") * t**2
            )
        return _divergence((logits / t).log_softmax(-1), (teacher_logits / t).log_softmax(-1)) * t**2


def teacher_layer(number: int, layers: int, teacher_layers: int) -> int:
    """Return the teacher's layer at the same share of its depth as the student's layer `number`, both counted from 1."""
    return max(1, (2 * number * teacher_layers + layers) // (2 * layers))


def _divergence(log_probs: Tensor, teacher_log_probs: Tensor) -> Tensor:
    return F.kl_div(log_probs, teacher_log_probs, reduction="sum", log_target=True)


def _at_least_fp32(values: Tensor) -> Tensor:
    return values.to(torch.promote_types(values.dtype, torch.float32))


def answered(model: PretrainedAlbert, logits: Any) -> PretrainedAlbert:
    """Return the model, whose logits are already known: a task that asks for them runs nothing."""
    answered = copy.copy(model)
    answered.packed_logits = lambda batch: logits  # type: ignore[assignment]
    return answered
