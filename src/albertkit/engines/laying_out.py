"""Lay keys and values out as tiles read them: 16 numbers at a time, in the processor's registers.

A loop that stored one word after the other took 7 microseconds for the keys of a head of 384 tokens, transposing squares in
registers takes 1.
"""

from typing import Any

from llvmlite import ir
from numba.core import types
from numba.extending import intrinsic

from albertkit.engines.tiles import VECTOR, load, store
from albertkit.jit import call_shared

_I64, _WORD, _HALF = ir.IntType(64), ir.IntType(32), ir.IntType(16)
_BYTES = ir.IntType(8).as_pointer()
_WORDS, _HALVES = ir.VectorType(_WORD, VECTOR), ir.VectorType(_HALF, VECTOR)


@intrinsic
def transpose(context, given, holders, first, last, column, words, out, at, between):
    """Write words of 16 tokens, from `column` on, as columns: out[at + w * between + t] is word w of token first + t.

    Args:
        given: uint32 [M, T, 3H' in words], the members' copies.
        holders: int64 [T], the member in whose copy a token's words are.
        first: The first token, int64.
        last: The last there is, int64: it is read for those beyond it, too.
        column: int64.
        words: How many, int64: 1 to 16 are written.
        out: uint32, one-dimensional.
        at: int64.
        between: int64.
    """
    whole = types.int64
    signature = types.void(given, holders, whole, whole, whole, whole, out, whole, whole)

    def generate(context, builder, signature, arguments):
        copies, members, target = (
            context.make_array(signature.args[position])(context, builder, arguments[position])
            for position in (0, 1, 6)
        )
        strides = [builder.extract_value(copies.strides, axis) for axis in range(2)]
        start = builder.gep(builder.bitcast(copies.data, _BYTES), [builder.shl(arguments[4], ir.Constant(_I64, 2))])
        corner = builder.bitcast(builder.gep(target.data, [arguments[7]]), _BYTES)
        step = builder.shl(arguments[8], ir.Constant(_I64, 2))
        values = [start, *strides, members.data, *(arguments[n] for n in (2, 3, 5)), corner, step]
        call_shared(builder, "albertkit_transpose", _emit_transposed, values)
        return context.get_dummy_value()

    return signature, generate


def _emit_transposed(
    builder: Any,
    start: Any,
    copy: Any,
    row: Any,
    holders: Any,
    first: Any,
    last: Any,
    words: Any,
    out: Any,
    between: Any,
) -> None:
    """Emit `transpose`: squares of 8, 4, 2 and 1 change places, as in a transposition by hand."""
    registers = []
    for t in range(VECTOR):
        token = builder.add(first, ir.Constant(_I64, t))
        token = builder.select(builder.icmp_signed("<", token, last), token, last)
        holder = builder.load(builder.gep(holders, [token]))
        at = builder.add(builder.mul(holder, copy), builder.mul(token, row))
        registers.append(load(builder, builder.gep(start, [at]), _WORDS))
    for size in (8, 4, 2, 1):
        for n in (n for n in range(VECTOR) if not n & size):
            upper, lower = registers[n], registers[n + size]
            left = [lane if not lane & size else VECTOR + lane - size for lane in range(VECTOR)]
            right = [lane + size if not lane & size else VECTOR + lane for lane in range(VECTOR)]
            registers[n], registers[n + size] = (
                builder.shuffle_vector(upper, lower, ir.Constant(_WORDS, lanes)) for lanes in (left, right)
            )
    for w, register in enumerate(registers):
        with builder.if_then(builder.icmp_signed("<", ir.Constant(_I64, w), words), likely=True):
            store(builder, register, builder.gep(out, [builder.mul(between, ir.Constant(_I64, w))]))


@intrinsic
def pair_up(context, first, second, begin, out, at):
    """Write 16 numbers of two tokens from `begin` on, uint16, as words out[at : at + 16], uint32: the first one's is lower."""
    signature = types.void(first, second, types.int64, out, types.int64)

    def generate(context, builder, signature, arguments):
        def there(position: int, place: int) -> Any:
            array = context.make_array(signature.args[position])(context, builder, arguments[position])
            return builder.bitcast(builder.gep(array.data, [arguments[place]]), _BYTES)

        lower, upper = (builder.zext(load(builder, there(n, 2), _HALVES), _WORDS) for n in (0, 1))
        sixteen = ir.Constant(_WORDS, [16] * VECTOR)
        store(builder, builder.or_(lower, builder.shl(upper, sixteen)), there(3, 4))
        return context.get_dummy_value()

    return signature, generate
