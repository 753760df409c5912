"""Early exits of a classifier: a head after every pass, learned with the model, and when to believe it.

L passes, N sequences, C classes, H hidden. Sources: Zhou et al. 2020, PABEE, section 3 (patience, the weighted loss);
Xin et al. 2020, DeeBERT, section 3 (entropy).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn

from albertkit.data.features import LabelledBatch
from albertkit.engines.early_exit import encode_until
from albertkit.engines.engine import Engine
from albertkit.errors import CheckpointError, ConfigError
from albertkit.files import plain_file
from albertkit.model import AlbertForSequenceClassification
from albertkit.model.folder import write_tensors
from albertkit.model.padded import Trace
from albertkit.tasks.distillation import answered
from albertkit.tasks.task import Task
from albertkit.training.loop import LossPart

EXITS = "exits.safetensors"  # beside the weights


class ExitHeads(nn.Module):
    """A linear layer after each pass but the last, on the pooler's output there; the last has the model's own head.

    Args:
        num_layers: L.
        hidden_size: H.
        num_labels: C.

    Attributes:
        weight: [L-1, C, H].
        bias: [L-1, C].
    """

    def __init__(self, num_layers: int, hidden_size: int, num_labels: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(num_layers - 1, num_labels, hidden_size) * 0.02)
        self.bias = nn.Parameter(torch.zeros(num_layers - 1, num_labels))

    @property
    def num_layers(self) -> int:
        """L."""
        return len(self.bias) + 1

    def forward(self, pooled: Tensor, passes: Tensor) -> Tensor:
        """Logits [N, C] of pooled states [N, H] after 1 to L-1 passes each, int64 [N]."""
        heads = passes - 1
        return (self.weight[heads] @ pooled[:, :, None].float()).squeeze(2) + self.bias[heads]

    def save(self, folder: Path) -> None:
        """Write them beside the weights."""
        tensors = {name: tensor.detach().cpu().contiguous() for name, tensor in self.named_parameters()}
        write_tensors(folder / EXITS, tensors)

    @classmethod
    def load(cls, folder: Path, model: AlbertForSequenceClassification) -> "ExitHeads":
        """Those beside the weights of a model."""
        if not (folder / EXITS).exists():
            raise CheckpointError(
                "wrong-model", f"the model in `{folder}` was trained without exits", "fine-tune it with --exits"
            )
        try:
            tensors = load_file(plain_file(folder / EXITS))
        except SafetensorError as error:
            raise CheckpointError("corrupt", f"`{folder / EXITS}`: {error}", "copy it again") from None
        made = cls(num_layers(model), model.config.hidden_size, model.config.num_labels)
        wanted = {name: tuple(parameter.shape) for name, parameter in made.named_parameters()}
        found = {name: tuple(tensor.shape) for name, tensor in tensors.items()}
        if wanted != found:
            raise CheckpointError(
                "weights-mismatch",
                f"`{folder / EXITS}` holds {found}, the model wants {wanted}",
                "copy the folder again",
            )
        made.load_state_dict(tensors)
        return made.eval()


def num_layers(model: AlbertForSequenceClassification) -> int:
    """L."""
    config = model.config
    if config.num_hidden_groups * config.inner_group_num != 1 or config.num_hidden_layers < 2:
        raise ConfigError(
            "bad-value",
            f"{config.num_hidden_layers} passes through {config.num_hidden_groups} groups of {config.inner_group_num} layers "
            "have no early exits",
            "they are for one layer run at least twice",
        )
    return config.num_hidden_layers


class ExitLosses(nn.Module):
    """The loss of a classifier with exits: the mean over the passes, the j-th weighing j.

    Give this module to the training loop as the model: its parameters are the model's and the exits'.

    Args:
        model: The classifier.
        task: Its task.
        class_weights: As in `Task.losses`.
    """

    def __init__(self, model: Any, task: Task, class_weights: Tensor | None = None) -> None:
        super().__init__()
        if task.kind != "classification":
            raise ConfigError("bad-value", f"a {task.kind} has no early exits", "they are for one class a text")
        self.model, self.task, self.class_weights = model, task, class_weights
        self.exits = ExitHeads(num_layers(model), model.config.hidden_size, model.config.num_labels).to(model.device)

    def counts(self, batch: LabelledBatch) -> dict[str, int]:
        """Targets of the task's loss."""
        return self.task.counts(batch)

    def losses(self, batch: LabelledBatch) -> dict[str, LossPart]:
        """Return the weighted loss of a batch; `correct` counts the last layer's."""
        counts, trace = self.counts(batch), Trace(True, False)
        last = self.model.packed_logits(batch.packed, trace)
        states = trace.hidden_states
        assert states is not None
        total = len(states) * (len(states) - 1) / 2
        sums: dict[str, Tensor] = {}
        for number, hidden in enumerate(states[1:], start=1):
            logits = last if number == len(states) - 1 else self._logits(hidden[batch.packed.starts], number)
            found = self.task.losses(answered(self.model, logits), batch, self.class_weights)
            for name, loss in found.items():
                sums[name] = sums.get(name, 0) + loss.loss_sum * (number / total)
        return {name: LossPart(sums[name], counts[name], loss.correct) for name, loss in found.items()}

    def _logits(self, first: Tensor, number: int) -> Tensor:
        pooled = pool(self.model, first)
        passes = torch.full((len(first),), number, device=first.device)
        return self.exits(self.model.dropout(pooled), passes)


def pool(model: AlbertForSequenceClassification, first: Tensor) -> Tensor:
    """Return the pooler's output for states of first tokens, [N, H], in fp32."""
    pooler = model.albert.pooler
    assert pooler is not None
    return torch.tanh(nn.functional.linear(first.float(), pooler.weight.float(), pooler.bias.float()))


@dataclass(frozen=True)
class ExitRule:
    """When to leave.

    Attributes:
        by: patience: after `threshold` passes in a row that said the same as the one before; entropy: as soon as the
            entropy of the probabilities, in shares of its maximum, is below `threshold`.
        threshold: Passes, or a share.
    """

    by: Literal["patience", "entropy"]
    threshold: float

    @classmethod
    def parse(cls, text: str) -> "ExitRule":
        """`patience:3` or `entropy:0.2`."""
        by, _, number = text.partition(":")
        try:
            threshold = float(number)
        except ValueError:
            threshold = -1.0
        if by == "patience" and threshold >= 1 and threshold == int(threshold):
            return cls("patience", threshold)
        if by == "entropy" and 0 < threshold < 1:
            return cls("entropy", threshold)
        raise ConfigError("bad-value", f"`{text}` is no rule for leaving", "for example patience:3 or entropy:0.2")

    def __str__(self) -> str:
        return f"{self.by}:{self.threshold:g}"


class EarlyExit:
    """Classifies with as few passes as a rule asks for.

    Args:
        model: The classifier.
        exits: Its exits.
        engine: Of its encoder.
        rule: When to leave.
    """

    def __init__(
        self, model: AlbertForSequenceClassification, exits: ExitHeads, engine: Engine, rule: ExitRule
    ) -> None:
        self.model, self.exits, self.engine, self.rule = model, exits, engine, rule

    @torch.inference_mode()
    def logits(self, batch: LabelledBatch) -> tuple[Tensor, Tensor]:
        """Logits fp32 [N, C], and passes int64 [N], of a batch on the model's device."""
        count, packed = batch.packed.num_sequences, batch.packed
        said = torch.full((count,), -1)
        agreed = torch.zeros(count, dtype=torch.int64)
        found = torch.empty(count, self.model.config.num_labels)

        def decide(passes: Tensor, numbers: Tensor, first: Tensor) -> Tensor:
            own = passes < self.exits.num_layers
            leaving = torch.zeros(len(passes), dtype=torch.bool)
            if not own.any():
                return leaving
            logits = self.exits(pool(self.model, first[own]), passes[own].to(first.device)).cpu()
            here = numbers[own]
            found[here] = logits
            if self.rule.by == "entropy":
                leaving[own] = entropy_share(logits) < self.rule.threshold
                return leaving
            label = logits.argmax(1)
            agreed[here] = torch.where(label == said[here], agreed[here] + 1, 0)
            said[here] = label
            leaving[own] = agreed[here] >= self.rule.threshold
            return leaving

        exited = encode_until(self.engine, packed, self.exits.num_layers, decide)
        whole = (exited.layers == self.exits.num_layers).nonzero().squeeze(1)
        found[whole.cpu()] = self.model.classifier(pool(self.model, exited.states[whole])).cpu()
        return found, exited.layers.cpu()


def entropy_share(logits: Tensor) -> Tensor:
    """Entropy of softmax(logits [N, C]) as a share of its maximum, log C: [N]."""
    log_shares = logits.log_softmax(1)
    return -(log_shares.exp() * log_shares).sum(1) / torch.log(torch.tensor(float(logits.shape[1])))


def default_rules(passes: int) -> Sequence[ExitRule]:
    """Rules worth trying on a model of L passes."""
    patience = [ExitRule("patience", float(n)) for n in range(1, passes - 1)]
    return [*patience, *(ExitRule("entropy", share) for share in (0.01, 0.03, 0.1, 0.2, 0.3, 0.5, 0.7))]
