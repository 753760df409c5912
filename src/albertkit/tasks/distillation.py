"""The losses of a student that learns from a model that was fine-tuned on the same task: its logits, and its hidden states.

T tokens of N sequences, C labels, H hidden size of the student, K of the teacher. Sources: Hinton
et al. 2015, section 2 (temperature, T² on the soft loss); Sun et al. 2019, PKD, and Jiao et al.
2020, TinyBERT, equations 8 and 10 (hidden states, uniform map of layers, learned projection).
"""

import copy
from dataclasses import replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from albertkit.batches.features import LabelledBatch
from albertkit.model import (
    AlbertForMultipleChoice,
    AlbertForQuestionAnswering,
    AlbertForTokenClassification,
)
from albertkit.model.heads import at_least_fp32, ragged_log_softmax
from albertkit.model.layers import layer_at_same_depth, linear_function
from albertkit.model.padded import Trace
from albertkit.model.pretrained import PretrainedAlbert
from albertkit.tables import IGNORED
from albertkit.tasks.task import Task
from albertkit.tasks.teacher import IS_LABELLED, TEACHER_LOGITS
from albertkit.training.loop import LossPart, zero_losses


class DistillationLosses(nn.Module):
    """The losses of a student: (1 - weight) of the task's, `weight` of the teacher's, and that of the hidden states.

    What the teacher's loss is depends on the head, with t the temperature (higher shows more of
    unlikely classes):

    - classes of sequences and of labelled tokens, the choices of an example, the places where an answer starts and ends (the
      mean of both): t² times the Kullback-Leibler divergence of the student's softmax(logits / t)
      from the teacher's;
    - several labels: t² times the binary cross-entropy with the teacher's sigmoid(logits / t) for targets;
    - numbers: the squared error against the teacher's.

    `hidden_weight` weighs the mean squared error between the student's states after each layer and
    the teacher's at the same share of its depth, over all tokens. As the loop's model this module
    has the student's parameters and, where hidden sizes differ, those of a projection, which is
    saved with the state but belongs to no model. The teacher is none of its parts; without one its
    logits are in the batches.
    """

    def __init__(
        self,
        student: PretrainedAlbert,
        teacher: PretrainedAlbert | None,
        task: Task,
        *,
        weight: float = 0.5,
        temperature: float = 2.0,
        hidden_weight: float = 0.0,
        class_weights: Tensor | None = None,
    ) -> None:
        super().__init__()
        self.student = student
        self.task = task
        self.class_weights = class_weights
        self.weight = weight
        self.temperature = temperature
        self.hidden_weight = hidden_weight
        # A tuple: no part, so `train()` leaves it alone.
        self._teacher = (teacher and teacher.eval().requires_grad_(False),)
        self._num_layers = student.config.num_hidden_layers * student.config.inner_group_num
        self.projection: nn.Linear | None = None
        if hidden_weight and teacher and student.config.hidden_size != teacher.config.hidden_size:
            widths = student.config.hidden_size, teacher.config.hidden_size
            self.projection = nn.Linear(*widths, bias=False, device=student.device)

    def count_targets(self, batch: LabelledBatch) -> dict[str, int]:
        """Count the targets: the task's, as many of distillation, and of hidden states tokens times layers."""
        if isinstance(self.student, AlbertForTokenClassification):
            num_imitated = int(_imitated_tokens(batch).sum())
        elif isinstance(self.student, AlbertForMultipleChoice):
            num_imitated = len(batch.examples.unique_consecutive())
        elif self.student.config.problem_type in ("regression", "multi_label_classification"):
            num_imitated = batch.packed.num_sequences * self.student.config.num_labels
        else:
            num_imitated = batch.packed.num_sequences
        counts = self.task.count_targets(select_labelled(batch)[0]) | {"distillation": num_imitated}
        if self.hidden_weight:
            counts["hidden_states"] = batch.num_tokens * self._num_layers
        return counts

    def losses(self, batch: LabelledBatch) -> dict[str, LossPart]:
        """Return the weighted losses of a batch as sums; the student runs once."""
        counts = self.count_targets(batch)
        trace = Trace(True, False) if self.hidden_weight else None
        teacher_trace = Trace(True, False) if self.hidden_weight else None
        teacher = self._teacher[0]
        if teacher is not None:
            with torch.no_grad():
                teacher_logits = teacher.packed_logits(batch.packed, teacher_trace)  # type: ignore[operator]
        else:
            stored = batch.per_token if TEACHER_LOGITS in batch.per_token else batch.per_sequence
            teacher_logits = stored[TEACHER_LOGITS]
        logits = self.student.packed_logits(batch.packed, trace)  # type: ignore[operator]
        labelled, labelled_logits = select_labelled(batch, logits)
        if len(labelled.examples):
            task_losses = self.task.losses(
                copy_with_packed_logits(self.student, labelled_logits),
                labelled,
                self.class_weights,
            )
            parts = {
                name: LossPart(loss.loss_sum * (1 - self.weight), counts[name], loss.correct)
                for name, loss in task_losses.items()
            }
        else:
            parts = zero_losses(self.task.count_targets(labelled), batch.examples.device)
        imitation = self._imitation_loss(logits, teacher_logits, batch) * self.weight
        parts["distillation"] = LossPart(imitation, counts["distillation"])
        if trace and teacher_trace:
            assert trace.hidden_states is not None
            assert teacher_trace.hidden_states is not None
            num_teacher_layers = len(teacher_trace.hidden_states) - 1
            distances = []  # the mean over the width, summed over tokens and layers
            for number, states in enumerate(trace.hidden_states[1:], start=1):
                # A teacher of fewer layers has none but its embeddings at the share of the first.
                layer = max(1, layer_at_same_depth(number, self._num_layers, num_teacher_layers))
                teacher_states = teacher_trace.hidden_states[layer]
                if self.projection is not None:
                    states = linear_function(states.dtype, self.projection)(states)
                distance = F.mse_loss(
                    at_least_fp32(states),
                    at_least_fp32(teacher_states),
                    reduction="sum",
                )
                distances.append(distance / teacher_states.shape[1])
            total = torch.stack(distances).sum()
            parts["hidden_states"] = LossPart(total * self.hidden_weight, counts["hidden_states"])
        return parts

    def _imitation_loss(self, logits: Any, teacher_logits: Any, batch: LabelledBatch) -> Tensor:
        problem = self.student.config.problem_type
        # Times t^2 the gradients keep their size, whatever the temperature.
        t = self.temperature
        if isinstance(self.student, AlbertForQuestionAnswering):
            # Log-probabilities are over the places of each sequence
            positions = batch.packed.padded_positions()
            log_probs = []
            for values in (*logits, *teacher_logits):
                real = at_least_fp32(values).flatten().index_select(0, positions)
                log_probs.append(ragged_log_softmax(real / t, positions // batch.packed.longest))
            starts, ends, teacher_starts, teacher_ends = log_probs
            return (
                (
                    _summed_divergence(starts, teacher_starts)
                    + _summed_divergence(ends, teacher_ends)
                )
                * t**2
                / 2
            )
        logits = at_least_fp32(logits)
        teacher_logits = at_least_fp32(teacher_logits)
        if isinstance(self.student, AlbertForMultipleChoice):
            groups = F.pad((batch.examples.diff() != 0).cumsum(0), (1, 0))
            soft = [
                ragged_log_softmax(values.squeeze(1) / t, groups)
                for values in (logits, teacher_logits)
            ]
            return _summed_divergence(*soft) * t**2
        if isinstance(self.student, AlbertForTokenClassification):
            is_imitated = _imitated_tokens(batch)
            logits = logits[is_imitated]
            teacher_logits = teacher_logits[is_imitated]
        elif problem == "regression":
            return F.mse_loss(logits, teacher_logits, reduction="sum")
        elif problem == "multi_label_classification":
            return (
                F.binary_cross_entropy_with_logits(
                    logits / t, (teacher_logits / t).sigmoid(), reduction="sum"
                )
                * t**2
            )
        return (
            _summed_divergence((logits / t).log_softmax(-1), (teacher_logits / t).log_softmax(-1))
            * t**2
        )


def _imitated_tokens(batch: LabelledBatch) -> Tensor:
    """Return which tokens stand for a word, bool [T], and for one that the teacher has logits of."""
    is_imitated = batch.per_token["labels"] != IGNORED
    if TEACHER_LOGITS in batch.per_token:
        is_imitated = is_imitated & batch.per_token[TEACHER_LOGITS][:, 0].isfinite()
    return is_imitated


def select_labelled(batch: LabelledBatch, logits: Any = ()) -> tuple[LabelledBatch, Any]:
    """Return what belongs to the labelled sequences of a batch, whose tokens stay all, and their logits."""
    if IS_LABELLED not in batch.per_sequence:
        return batch, logits
    is_labelled = batch.per_sequence[IS_LABELLED]
    # As the size is known, the host does not wait for the device.
    has_label = is_labelled.repeat_interleave(
        batch.packed.offsets.diff(),
        output_size=batch.num_tokens,
    )
    part = replace(
        batch,
        examples=batch.examples[is_labelled],
        per_sequence={name: values[is_labelled] for name, values in batch.per_sequence.items()},
        per_token={name: values[has_label] for name, values in batch.per_token.items()},
    )
    if isinstance(logits, tuple):
        return part, tuple(values[is_labelled] for values in logits)
    return part, logits[has_label if len(logits) == len(has_label) else is_labelled]


def _summed_divergence(log_probs: Tensor, teacher_log_probs: Tensor) -> Tensor:
    return F.kl_div(log_probs, teacher_log_probs, reduction="sum", log_target=True)


def copy_with_packed_logits(model: PretrainedAlbert, packed_logits: Any) -> PretrainedAlbert:
    """Return the model, whose logits are already known: a task that asks for them runs nothing."""
    copied = copy.copy(model)
    copied.packed_logits = lambda batch: packed_logits  # type: ignore[assignment]
    return copied
