"""The engine of processors with AMX: a layer as four of oneDNN's matrix products and what is compiled between them.

A batch is cut into pieces of whole sequences, and a piece runs through all passes before the next one begins, so that its
activations stay in the cache. Threads take pieces, not shares of each product: nobody waits within a layer, and the
compiled loops need no thread pool of their own beside OpenMP's.

T tokens of N sequences, H hidden, I feed-forward, A heads of width D.
"""

from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from albertkit.engines import loops
from albertkit.engines.engine import Precision, on_threads
from albertkit.engines.operators import Bf16FeedForward, Bf16Linear, Int8FeedForward, Int8Linear, Product, bits
from albertkit.engines.packed import PIECE, PackedEngine, cut, queries_keys_values
from albertkit.model.albert import AlbertModel
from albertkit.model.encoder import AlbertLayer
from albertkit.model.packing import PackedBatch

_SMALLEST_PIECE = 64  # below it the products run at less than their full rate
_VECTOR = 16  # floats of a 512-bit register: sequences that attend together are laid out in a multiple of it
_PADDING = 1.5  # sequences attend together while so many places (squared) a token (squared) are not exceeded


class Norm(NamedTuple):
    """A layer norm's parameters as the compiled loop takes them."""

    weight: np.ndarray
    shift: np.ndarray
    eps: np.float32

    def add(self, update: Product, hidden: Tensor) -> None:
        """hidden [T, H] becomes norm(hidden + update)."""
        values, scale, bias = update
        loops.add_norm(bits(values), scale.numpy(), bias.numpy(), hidden.numpy(), self.weight, self.shift, self.eps)


class Block:
    """One block's weights, packed.

    Args:
        layer: The block, its parameters fp32 on the CPU.
        activation: transformers' name.
        precision: "bf16" or "int8".
    """

    def __init__(self, layer: AlbertLayer, activation: str, precision: str) -> None:
        attention = layer.attention
        linear = Int8Linear if precision == "int8" else Bf16Linear
        feed_forward = Int8FeedForward if precision == "int8" else Bf16FeedForward
        weight, bias = queries_keys_values(attention, layer.num_heads)
        self.num_heads = layer.num_heads
        self.qkv = linear(weight, bias)
        self.attention_output = linear(attention.dense.weight, attention.dense.bias)
        self.attention_norm = _norm(attention.LayerNorm)
        self.feed_forward = feed_forward(
            layer.ffn.weight, layer.ffn.bias, layer.ffn_output.weight, layer.ffn_output.bias, activation
        )
        self.ffn_norm = _norm(layer.full_layer_layer_norm)

    def __call__(self, hidden: Tensor, groups: list["Group"], wanted: Tensor | None) -> Tensor:
        """One pass: fp32 [T, H], which is overwritten, to [T, H], or to [Q, H] at the wanted rows."""
        product = self.qkv(hidden)
        context = torch.empty_like(hidden)
        for group in groups:
            group.attend(product, self.num_heads, context)
        if wanted is not None:
            context, hidden = context.index_select(0, wanted), hidden.index_select(0, wanted)
        self.attention_norm.add(self.attention_output(context), hidden)
        self.ffn_norm.add(self.feed_forward(hidden), hidden)
        return hidden


class Group(NamedTuple):
    """Sequences of about one length, which attend together."""

    starts: np.ndarray  # int64 [N], into the piece
    lengths: np.ndarray  # int64 [N]
    places: int  # of a sequence: the longest, rounded up

    def attend(self, product: Product, num_heads: int, context: Tensor) -> None:
        """Write the sequences' rows of context [T, H], given queries, keys and values side by side."""
        size = product.values.shape[1] // (3 * num_heads)
        heads = torch.empty(3, len(self.lengths), num_heads, self.places, size, dtype=torch.bfloat16)
        loops.to_heads(
            bits(product.values), product.scale.numpy(), product.bias.numpy(), self.starts, self.lengths, bits(heads)
        )
        query, key, value = heads.flatten(1, 2)
        scores = query @ key.transpose(1, 2)
        loops.softmax(bits(scores).reshape(-1, num_heads, self.places, self.places), self.lengths)
        weighted = bits(scores @ value).reshape(heads.shape[1:])
        loops.from_heads(weighted, self.starts, self.lengths, context.numpy())


def group_by_length(lengths: np.ndarray) -> list[Group]:
    """Sequences of a piece by length, those together that waste little: each is in one group."""
    starts = np.append(0, np.cumsum(lengths)[:-1])
    order = np.argsort(lengths, kind="stable")[::-1]
    groups: list[Group] = []
    first, real = 0, 0
    for place, number in enumerate(order):
        longest, own = int(lengths[order[first]]), int(lengths[number])
        if (place - first + 1) * longest**2 > _PADDING * (real + own**2):
            groups.append(_group(starts, lengths, order[first:place]))
            first, real = place, 0
        real += own**2
    return [*groups, _group(starts, lengths, order[first:])]


def _group(starts: np.ndarray, lengths: np.ndarray, chosen: np.ndarray) -> Group:
    places = -(-int(lengths[chosen].max()) // _VECTOR) * _VECTOR
    return Group(starts[chosen], lengths[chosen], places)


def _norm(norm: nn.LayerNorm) -> Norm:
    return Norm(norm.weight.numpy(), norm.bias.numpy(), np.float32(norm.eps))


class ProductEngine(PackedEngine):
    """A layer as four of oneDNN's products, in bf16 or int8, and compiled loops between them.

    What is between the products (residuals, layer norms, softmax, activations of int8) is computed in fp32.
    """

    @torch.no_grad()
    def __init__(self, model: AlbertModel, precision: Precision, notes: tuple[str, ...] = ()) -> None:
        super().__init__(model, precision, notes)
        layers = self._layers()
        ready = {layer: Block(layer, model.config.hidden_act, precision) for layer in dict.fromkeys(layers)}
        self._passes = [ready[layer] for layer in layers]

    @torch.inference_mode()
    def step(self, hidden: Tensor, lengths: np.ndarray) -> Tensor:
        """As `Engine.step`."""
        return self._passes[0](hidden, group_by_length(np.asarray(lengths, dtype=np.int64)), None)

    def _run(self, batch: PackedBatch, rows: Tensor | None) -> Tensor:
        hidden = self.begin(batch)
        output = torch.empty_like(hidden) if rows is None else hidden.new_empty(len(rows), hidden.shape[1])
        threads = torch.get_num_threads()
        most = min(PIECE, max(_SMALLEST_PIECE, -(-batch.num_tokens // threads)))  # fewer if threads would have no work
        pieces = list(cut(batch.lengths, most))

        @torch.inference_mode()
        def run(piece: tuple[int, int, np.ndarray]) -> None:
            start, end, own = piece
            chosen = None if rows is None else ((rows >= start) & (rows < end)).nonzero().squeeze(1)
            wanted = None if rows is None else rows[chosen] - start
            state, groups = hidden[start:end].clone(), group_by_length(own)
            for number, block in enumerate(self._passes, start=1):
                state = block(state, groups, wanted if number == len(self._passes) else None)
            output[slice(start, end) if chosen is None else chosen] = state

        on_threads(run, pieces, threads)
        return output
