"""Learning from a larger encoder: a student whose states after each layer are mapped onto the teacher's.

T tokens, H the student's hidden size, K the teacher's. Sources: Jiao et al. 2020, TinyBERT,
equation 8 (hidden states, uniform map of layers, learned projection); the teacher's states are
standardised, so that the loss is the share of their variance that the student does not explain.
Wang et al. 2021, MiniLMv2, equations 3 to 5 (relations between tokens, of the last layer).
"""

import math
from collections.abc import Iterable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from albertkit.config import AlbertConfig
from albertkit.errors import ConfigError
from albertkit.model import AlbertForPreTraining, AlbertModel, PackedBatch
from albertkit.model.cpu_loops import differentiable_once
from albertkit.model.layers import AlbertLayer, layer_at_same_depth, linear_function
from albertkit.model.padded import Trace
from albertkit.pretraining.objective import PretrainingObjective
from albertkit.pretraining.teacher_encoder import EmbeddingTables, TeacherEncoder
from albertkit.training.loop import LossPart, zero_losses
from albertkit.training.processes import World

EMBEDDING_SIZE = 128  # of a student, as in every published ALBERT
TEACHER_LOSS = "teacher_states"
RELATIONS_LOSS = "teacher_relations"
GUESSES_LOSS = "teacher_guesses"
_INNER_WEIGHT = 0.2  # of the states before the last ones; those are what a task is fine-tuned on
# Tokens that the teacher's states are standardised with, and the projection is fitted to
_SAMPLE = 16_384
_RELATIONS = ("query", "key", "value")
_LEAST_VARIANCE = 1e-3  # of a dimension, as a share of the mean of its layer
# Of the mean square of the inputs, added to the normal equations of the projection and the maps.
# With 1e-6 a weight of the first map was 25, and 5 updates later it explained nothing.
_RIDGE = 1e-3


def student_config(teacher: AlbertConfig, length: int) -> AlbertConfig:
    """Return the teacher's shape with one layer in the place of all, and factorised embeddings."""
    return teacher.replace(
        num_hidden_groups=1,
        inner_group_num=1,
        num_hidden_layers=teacher.num_hidden_layers * teacher.inner_group_num,
        embedding_size=min(EMBEDDING_SIZE, teacher.embedding_size),
        type_vocab_size=2,
        max_position_embeddings=max(length, min(512, teacher.max_position_embeddings)),
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
        foreign={},
    )


def check_student(student: AlbertConfig, teacher: TeacherEncoder, length: int) -> None:
    """Refuse a teacher that computes less than the model that is to learn from it."""
    shapes = (teacher.config, student)
    teacher_flops, student_flops = (config.train_flops_per_token(length, 0.0) for config in shapes)
    if teacher_flops < student_flops:
        sizes = [f"{config.num_hidden_layers} layers of {config.hidden_size}" for config in shapes]
        raise ConfigError(
            "bad-value",
            f"the teacher `{teacher.source}` is smaller than the model that learns from it: {sizes[0]}, not {sizes[1]}",
            "leave --size and --config out for a model of its shape, or name a larger one",
        )


# --- the start ------------------------------------------------------------------------------------


@torch.no_grad()
def start_from_teacher(
    model: AlbertForPreTraining, teacher: TeacherEncoder, counts: Tensor, sample: PackedBatch
) -> list[str]:
    """Give a model that was just initialised the teacher's embeddings, compressed, and the mean of its layers.

    Args:
        model: The student, on the teacher's device.
        teacher: The teacher.
        counts: [V], how often each token occurs in the data: rare tokens may be represented worse.
        sample: Tokens that the projection to the hidden size is fitted to.

    Returns:
        Lines about the share of the teacher's variance that each step keeps.
    """
    # From drawn weights the states collapse at a rate of 1e-3: 1.01 of the teacher's variance is
    # not explained, from these 0.32.
    share = _compress_embeddings(model.albert, teacher.tables(), counts)
    size = model.config.embedding_size
    notes = [
        f"initial weights: the teacher's embeddings in {size} dimensions keep {share:.1%} of their squares"
    ]
    student = model.config
    original = teacher.config
    if student.hidden_size == original.hidden_size:
        projection = _LinearRegression(model.albert.encoder.embedding_hidden_mapping_in)
        projection.add(model.albert.embeddings(sample), teacher.states(sample)[0])
        notes.append(
            f"initial weights: projected to {student.hidden_size}, they explain {projection.fit():.1%} of the first states"
        )
    else:
        notes.append(
            f"initial weights: the projection is drawn, the teacher's hidden size is {original.hidden_size}"
        )
    shapes = [(c.num_attention_heads, c.hidden_act) for c in (student, original)]
    if shapes[0] == shapes[1] and _try_to_average_layers(model.albert, teacher.layers()):
        notes.append("initial weights: each layer is the mean of the teacher's layers in its place")
    else:
        notes.append("initial weights: layers are drawn, the teacher's have another shape")
    return notes


def _compress_embeddings(student: AlbertModel, source: EmbeddingTables, counts: Tensor) -> float:
    """Project the teacher's tables onto their largest components, tokens weighted by frequency; return the share kept.

    The components are those of the normalised embedding: each dimension is scaled as the teacher's
    layer norm scales it.
    """
    target = student.embeddings
    scale = source.scale
    words = source.words[: len(counts)] * scale  # without the rows that fill a vocabulary up
    types = source.types * scale
    frequencies = (counts.to(words) + 1) / (counts.sum() + len(counts))
    used = source.positions[: len(target.position_embeddings.weight)] * scale
    covariance = (words.T * frequencies) @ words + used.T @ used / max(len(used), 1)
    values, vectors = torch.linalg.eigh(covariance.double())
    # A wider student keeps drawn values beside them
    size = min(target.word_embeddings.weight.shape[1], len(scale))
    basis = vectors[:, -size:].to(words)
    target.word_embeddings.weight[:, :size] = words @ basis
    target.position_embeddings.weight[: len(used), :size] = used @ basis
    num_types = min(len(types), len(target.token_type_embeddings.weight))
    target.token_type_embeddings.weight[:num_types, :size] = types[:num_types] @ basis
    return float(values[-size:].sum() / values.sum())


class _LinearRegression:
    """Sums of inputs x and outputs y for a linear map by least squares, in double: those of [x 1]ᵀ[x 1], [x 1]ᵀy and y²."""

    def __init__(self, layer: nn.Linear) -> None:
        self.layer = layer
        size = layer.in_features + 1
        device = layer.weight.device
        self._inputs = torch.zeros(size, size, dtype=torch.float64, device=device)
        self._products = self._inputs.new_zeros(size, layer.out_features)
        self._squares = self._inputs.new_zeros(layer.out_features)

    def add(self, inputs: Tensor, outputs: Tensor) -> None:
        """Add the values at T tokens, [T, inputs] and [T, outputs]."""
        with_one = F.pad(inputs.double(), (0, 1), value=1.0)
        self._inputs += with_one.T @ with_one
        self._products += with_one.T @ outputs.double()
        self._squares += outputs.double().square().sum(0)

    @property
    def count(self) -> float:
        """Number of tokens."""
        return self._inputs[-1, -1].item()

    def moments(self) -> tuple[Tensor, Tensor]:
        """Return mean and variance of each output."""
        means = self._products[-1] / self.count
        return means, self._squares / self.count - means.square()

    def fit(self) -> float:
        """Set the layer to the map; return the share of the outputs' variance that it explains."""
        penalised = self._inputs.clone()
        penalised.diagonal()[:-1] += _RIDGE * penalised.diagonal()[:-1].mean()
        solution = torch.linalg.solve(penalised, self._products)
        self.layer.weight.copy_(solution[:-1].T)
        self.layer.bias.copy_(solution[-1])
        _, variances = self.moments()
        errors = (
            self._squares
            - 2 * (solution * self._products).sum(0)
            + (solution * (self._inputs @ solution)).sum(0)
        )
        return 1 - (errors.sum() / (self.count * variances.sum())).item()


def _try_to_average_layers(student: AlbertModel, layers: list[dict[str, Tensor]]) -> bool:
    """Let each block be the mean of the teacher's layers at the same share of the depth, if they are such blocks."""
    blocks = [block for block, _ in student.encoder.layers(torch.float32)]
    shapes = {name: parameter.shape for name, parameter in blocks[0].named_parameters()}
    if any(
        {name: parameter.shape for name, parameter in layer.items()} != shapes for layer in layers
    ):
        return False
    for block in dict.fromkeys(blocks):
        depths = [depth for depth, applied_block in enumerate(blocks) if applied_block is block]
        members = [
            layer for n, layer in enumerate(layers) if n * len(blocks) // len(layers) in depths
        ] or layers
        for name, parameter in block.named_parameters():
            parameter.copy_(torch.stack([member[name] for member in members]).mean(0))
    return True


# --- the loss -------------------------------------------------------------------------------------


class _RelationDivergence(torch.autograd.Function):
    """The divergence of the student's relations from the teacher's, summed over tokens, the mean of R heads.

    A relation is what attention would look at if queries asked queries, keys keys, values values.
    """

    @staticmethod
    def forward(
        ctx: Any, values: Tensor, teacher_values: Tensor, lengths: list[int], num_heads: int
    ) -> Tensor:
        # The gradient is computed here, a sequence at a time: probabilities kept for later would
        # take 2·R·S numbers a token, 37,000 of base at 512.
        gradients = torch.empty_like(values)
        total = values.new_zeros((), dtype=torch.float32)
        start = 0
        for length in lengths:
            rows = slice(start, start + length)
            start += length
            heads, scores = _log_relations(values[rows], num_heads)
            _, teacher_scores = _log_relations(teacher_values[rows], num_heads)
            shares = teacher_scores.exp()
            total += (shares * (teacher_scores - scores)).sum()
            surplus = scores.exp() - shares
            surplus = (surplus + surplus.transpose(1, 2)).to(values.dtype)
            scale = heads.shape[2] ** -0.5 / num_heads
            gradients[rows] = (surplus @ heads * scale).transpose(0, 1).flatten(1)
        ctx.save_for_backward(gradients)
        return total / num_heads

    @staticmethod
    @differentiable_once
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        (gradients,) = ctx.saved_tensors
        return gradients * grad.to(gradients.dtype), None, None, None


def _log_relations(values: Tensor, num_heads: int) -> tuple[Tensor, Tensor]:
    """Split [S, R·D] into heads [R, S, D]; return them and the log of each token's relations to all, fp32 [R, S, S]."""
    heads = values.unflatten(1, (num_heads, -1)).transpose(0, 1)
    scores = (heads @ heads.transpose(1, 2)).float() * heads.shape[2] ** -0.5
    return heads, scores.log_softmax(2)


class TaughtStudent(nn.Module):
    """A student, and the maps of its states onto the teacher's, which are trained with it and belong to no model.

    Args:
        student: On its device.
        teacher: On the same.
        sample: Batches that the teacher's states are standardised with and the maps are fitted to, the
            same in every process.
        relations_weight: Weight of the loss of relations.

    Attributes:
        explained: Share of the variance of the teacher's states after each layer that the maps
            explain at the start.
    """

    def __init__(
        self,
        student: AlbertForPreTraining,
        teacher: TeacherEncoder,
        sample: Iterable[PackedBatch],
        relations_weight: float = 0.0,
    ) -> None:
        super().__init__()
        self.student = student
        self.teacher = teacher  # no module: its parameters are not this module's
        layers = student.config.num_hidden_layers * student.config.inner_group_num
        self._layers = [
            layer_at_same_depth(number, layers, teacher.num_layers) for number in range(layers + 1)
        ]
        sizes = student.config.hidden_size, teacher.config.hidden_size
        maps = [nn.Linear(*sizes, device=student.device) for _ in self._layers]
        self.maps = nn.ModuleList(maps)
        # Maps that were not fitted began with gradients at which the states collapsed, if the
        # warm-up was 40 updates: 1.05 of the variance not explained after 220, of fitted ones 0.66
        # after 91.
        with torch.no_grad():
            self._means, self._deviations, self.explained = self._fit_maps_and_moments(maps, sample)
        self.relations_weight = relations_weight
        last_layer = teacher.layers()[-1]
        # Any other does not begin with a product of the state before it.
        if (
            relations_weight
            and last_layer.keys() != dict(self._last_block().named_parameters()).keys()
        ):
            raise ConfigError(
                "bad-value",
                f"the last layer of the teacher `{teacher.source}` is not built as ALBERT's: its relations cannot be learned",
                "leave --teacher-relations out",
            )
        self._teacher_projection = [
            torch.cat([last_layer[f"attention.{name}.{kind}"] for name in _RELATIONS])
            for kind in ("weight", "bias")
            if relations_weight
        ]
        self._num_relation_heads = math.gcd(
            student.config.hidden_size, teacher.config.num_attention_heads
        )

    def _fit_maps_and_moments(
        self, maps: list[nn.Linear], sample: Iterable[PackedBatch]
    ) -> tuple[Tensor, Tensor, list[float]]:
        """Fit the maps; return means and deviations of the teacher's states, [L + 1, K] each, and the shares explained."""
        regressions = [_LinearRegression(linear_map) for linear_map in maps]
        was_training = self.student.training
        self.student.eval()  # no dropout
        for batch in sample:
            on_device = batch.to(self.student.device)
            trace = Trace(True, False)
            self.student.albert.encode(on_device, trace)
            assert trace.hidden_states is not None
            teacher_states = self.teacher.states(on_device)
            for number, layer in enumerate(self._layers):
                regressions[number].add(trace.hidden_states[number], teacher_states[layer])
            if regressions[0].count >= _SAMPLE:
                break
        self.student.train(was_training)
        moments = [regression.moments() for regression in regressions]
        means = torch.stack([mean for mean, _ in moments]).float()
        variances = torch.stack([variance for _, variance in moments])
        # A dimension may be constant: all-MiniLM-L6-v2's last layer norm has three weights of 0.
        # Divided by their deviation the loss was 5e8.
        variances = variances.maximum(_LEAST_VARIANCE * variances.mean(1, keepdim=True))
        deviations = variances.sqrt().float()
        explained = [regression.fit() for regression in regressions]
        for number, regression in enumerate(regressions):
            linear_map = regression.layer
            linear_map.weight /= deviations[number, :, None]
            linear_map.bias.copy_((linear_map.bias - means[number]) / deviations[number])
        return means, deviations, explained

    def distances(self, states: list[Tensor], teacher_states: list[Tensor]) -> Tensor:
        """Return the squared distance of the student's mapped states from the teacher's: [L + 1], summed over tokens.

        In units of the variance of the teacher's states after each layer.
        """
        distances = []
        for number, layer in enumerate(self._layers):
            target = (teacher_states[layer].float() - self._means[number]) / self._deviations[
                number
            ]
            mapped = linear_function(states[number].dtype, self.maps[number])(
                states[number]
            ).float()
            distances.append((mapped - target).square().mean(1).sum())
        return torch.stack(distances)

    def divergence(
        self, batch: PackedBatch, states: list[Tensor], teacher_states: list[Tensor]
    ) -> Tensor:
        """Return how far the relations between tokens in the last layer are from the teacher's: 0-d, summed over tokens.

        In nats, the mean over heads of queries, keys and values.
        """
        hidden, teacher_hidden = states[-2], teacher_states[-2]
        projection = self._last_block().weights(hidden.dtype).qkv
        with torch.no_grad():
            weight, bias = (part.to(teacher_hidden.dtype) for part in self._teacher_projection)
            teacher_values = F.linear(teacher_hidden, weight, bias)
        divergence: Tensor = _RelationDivergence.apply(
            projection(hidden), teacher_values, batch.lengths, 3 * self._num_relation_heads
        )
        return divergence

    def _last_block(self) -> AlbertLayer:
        return self.student.albert.encoder.layers(torch.float32)[-1][0]


class TeacherObjective(PretrainingObjective):
    """The teacher's states and guesses, and what else the settings learn: masked tokens, sentence order."""

    def __init__(self, taught: TaughtStudent) -> None:
        super().__init__(taught.student)
        self._taught = taught

    def count_targets(self, batch: PackedBatch) -> dict[str, int]:
        """Count the predictions of each kind, and the tokens whose states are learned."""
        counts = super().count_targets(batch) | {TEACHER_LOSS: batch.num_tokens}
        if self._taught.relations_weight:
            counts[RELATIONS_LOSS] = batch.num_tokens
        if "masked_lm" in counts and self._taught.teacher.head is not None:
            counts[GUESSES_LOSS] = counts["masked_lm"]
        return counts

    def losses(self, batch: PackedBatch) -> dict[str, LossPart]:
        """Return the losses as sums; the student runs once."""
        counts = self.count_targets(batch)
        if not batch.num_tokens:
            return zero_losses(counts, batch.input_ids.device)
        trace = Trace(True, False)
        parts = self.predictions(batch, trace)
        assert trace.hidden_states is not None
        taught = self._taught
        teacher_states = taught.teacher.states(batch)
        distances = taught.distances(trace.hidden_states, teacher_states)
        total = distances[-1] + _INNER_WEIGHT * distances[:-1].sum()
        parts[TEACHER_LOSS] = LossPart(total, batch.num_tokens)
        if RELATIONS_LOSS in counts:
            divergence = taught.divergence(batch, trace.hidden_states, teacher_states)
            parts[RELATIONS_LOSS] = LossPart(taught.relations_weight * divergence, batch.num_tokens)
        if GUESSES_LOSS in counts:
            positions, labels = batch.masked_targets()
            guesses = taught.teacher.guess(
                teacher_states[-1][positions], self.model.config.vocab_size
            )
            # The cross-entropy of the labels, whose normaliser is known, its targets moved to the
            # guesses: the logits of the labels, less those of the guesses by their shares.
            head = self.model.predictions
            ids = torch.cat([labels[:, None], guesses.ids], 1)
            signs = torch.cat([torch.ones_like(guesses.shares[:, :1]), -guesses.shares], 1)
            inner = head.transform(trace.hidden_states[-1][positions])
            rows = F.embedding(ids, head.decoder.weight).to(inner.dtype)
            logits = torch.bmm(rows, inner[..., None]).squeeze(2).float() + head.bias[ids]
            total = parts["masked_lm"].total + (logits * signs).sum()
            parts[GUESSES_LOSS] = LossPart(total, counts[GUESSES_LOSS])
        return parts

    def flops(self, batch: PackedBatch) -> float:
        """Return the floating-point operations of a training step, the teacher's forward pass among them."""
        config = self._taught.teacher.config
        return (
            super().flops(batch)
            + batch.num_tokens * config.train_flops_per_token(batch.mean_length, 0.0) / 3
        )


@torch.inference_mode()
def evaluate_states(
    taught: TaughtStudent,
    batches: Iterable[PackedBatch],
    world: World,
) -> dict[str, float]:
    """Return the shares of the teacher's variance in its states that the student does not explain, on held-out text.

    With relations also their divergence, in nats a token.
    """
    sums = torch.zeros(len(taught.maps) + 2, dtype=torch.float64, device=world.device)
    for batch in batches:
        on_device = batch.to(world.device)
        trace = Trace(True, False)
        taught.student.albert.encode(on_device, trace)
        assert trace.hidden_states is not None
        states = trace.hidden_states, taught.teacher.states(on_device)
        distances = taught.distances(*states)
        sums[:-2] += distances
        if taught.relations_weight:
            sums[-2] += taught.divergence(on_device, *states)
        sums[-1] += batch.num_tokens
    *totals, num_tokens = world.sum(sums).tolist()
    *shares, divergence_per_token = [total / num_tokens for total in totals]
    relations = {"relations": divergence_per_token} if taught.relations_weight else {}
    return {
        f"{TEACHER_LOSS}_loss": shares[-1] + _INNER_WEIGHT * sum(shares[:-1]),
        "unexplained": shares[-1],
        **relations,
    } | {f"unexplained_{number}": share for number, share in enumerate(shares[:-1])}
