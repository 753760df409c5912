"""Turn the sums of a tile into outputs, and scores into shares: 16 numbers at a time, in the processor's registers.

A loop in compiled Python did it in 20 cycles for 16 outputs, gelu not counted: for each row LLVM
checks anew whether five arrays overlap. Here nothing is checked, the columns' scales and biases
stay in registers for all rows of a tile, and LLVM has less to optimise. `Lanes` lets formulas be
read as such.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
from llvmlite import ir
from numba.core import cgutils, types
from numba.extending import intrinsic

from albertkit.engines.cpu.tiles import VECTOR, VECTORS, fill_register, load_register, store
from albertkit.jit import call_llvm, call_once_emitted, int64_constant


@intrinsic
def transpose(context, source, holders, first, last, column, words, out, at, stride):
    """Write words of 16 tokens, from `column` on, as columns: out[at + w * stride + t] is word w of token first + t.

    Args:
        source: uint32 [M, T, 3H' in words], the members' copies.
        holders: int64 [T], the member in whose copy a token's words are.
        first: The first token, int64.
        last: The last there is, int64: it is read for those beyond it, too.
        column: int64.
        words: How many, int64: 1 to 16 are written.
        out: uint32, one-dimensional.
        at: int64.
        stride: int64.
    """
    int64 = types.int64
    signature = types.void(source, holders, int64, int64, int64, int64, out, int64, int64)

    def generate(context, builder, signature, arguments):
        copies, members, target = (
            context.make_array(signature.args[position])(context, builder, arguments[position])
            for position in (0, 1, 6)
        )
        strides = [builder.extract_value(copies.strides, axis) for axis in range(2)]
        start = builder.gep(
            builder.bitcast(copies.data, _BYTES), [builder.shl(arguments[4], int64_constant(2))]
        )
        corner = builder.bitcast(builder.gep(target.data, [arguments[7]]), _BYTES)
        step = builder.shl(arguments[8], int64_constant(2))
        values = [start, *strides, members.data, *(arguments[n] for n in (2, 3, 5)), corner, step]
        call_once_emitted(builder, "albertkit_transpose", _emit_transposed, values)
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
    stride: Any,
) -> None:
    """Emit `transpose`: squares of 8, 4, 2 and 1 change places, as in a transposition by hand."""
    registers = []
    for t in range(VECTOR):
        token = builder.add(first, int64_constant(t))
        token = builder.select(builder.icmp_signed("<", token, last), token, last)
        holder = builder.load(builder.gep(holders, [token]))
        at = builder.add(builder.mul(holder, copy), builder.mul(token, row))
        registers.append(load_register(builder, builder.gep(start, [at]), _WORDS))
    for size in (8, 4, 2, 1):
        for n in (n for n in range(VECTOR) if not n & size):
            upper, lower = registers[n], registers[n + size]
            upper_lanes = [
                lane if not lane & size else VECTOR + lane - size for lane in range(VECTOR)
            ]
            lower_lanes = [
                lane + size if not lane & size else VECTOR + lane for lane in range(VECTOR)
            ]
            registers[n], registers[n + size] = (
                builder.shuffle_vector(upper, lower, ir.Constant(_WORDS, lanes))
                for lanes in (upper_lanes, lower_lanes)
            )
    for w, register in enumerate(registers):
        with builder.if_then(builder.icmp_signed("<", int64_constant(w), words), likely=True):
            store(builder, register, builder.gep(out, [builder.mul(stride, int64_constant(w))]))


@intrinsic
def interleave_tokens(context, first, second, begin, out, at):
    """Write 16 numbers of two tokens from `begin` on, uint16, as words out[at : at + 16], uint32: the first one's is lower."""
    signature = types.void(first, second, types.int64, out, types.int64)

    def generate(context, builder, signature, arguments):
        def pointer(array_argument: int, index_argument: int) -> Any:
            array = context.make_array(signature.args[array_argument])(
                context, builder, arguments[array_argument]
            )
            return builder.bitcast(builder.gep(array.data, [arguments[index_argument]]), _BYTES)

        lower, upper = (
            builder.zext(load_register(builder, pointer(n, 2), _HALVES), _WORDS) for n in (0, 1)
        )
        sixteen = ir.Constant(_WORDS, [16] * VECTOR)
        store(builder, builder.or_(lower, builder.shl(upper, sixteen)), pointer(3, 4))
        return context.get_dummy_value()

    return signature, generate


GELU_TANH, GELU_ERF, RELU, STORE, ADD, TANH = range(6)  # how a linear layer's output is finished

_WORD, _HALF, _FLOAT = ir.IntType(32), ir.IntType(16), ir.FloatType()
_BYTES = ir.IntType(8).as_pointer()
_WORDS, _HALVES, _FLOATS = (ir.VectorType(kind, VECTOR) for kind in (_WORD, _HALF, _FLOAT))
_FAST = ("contract", "nsz", "nnan")
_ALL = ir.Constant(_HALF, -1)  # a mask that leaves no lane out
_LOG2_E = 1.442695040888963
# Two to the x for 0 <= x < 1, from the highest power down: relative error 7.5e-8, and 7.5e-5 for
# what is rounded to 8 bits later.
_EXACT = (0.00187757667, 0.00898934009, 0.0558263181, 0.240153617, 0.693153073, 0.999999925)
_ROUGH = (0.0780245227, 0.226067155, 0.695833541, 0.999925219)
# Powers of two below minus this count as it: products with numbers below 2^-126 are ten times as
# slow
_MAX_POWER = 100.0
# Rounding: towards minus infinity without exceptions; as the processor is set
_WHOLE_DOWN, _AS_IT_IS = 9, 4


class Lanes:
    """Sixteen fp32 numbers in a register; operators emit the instructions."""

    __array_ufunc__ = None  # numpy's numbers leave operators to this class

    def __init__(self, builder: ir.IRBuilder, value: Any) -> None:
        self.builder, self.value = builder, value

    def __add__(self, operand: "Number") -> "Lanes":
        return self._of(self.builder.fadd(self.value, self._lanes(operand), flags=_FAST))

    def __sub__(self, operand: "Number") -> "Lanes":
        return self._of(self.builder.fsub(self.value, self._lanes(operand), flags=_FAST))

    def __mul__(self, operand: "Number") -> "Lanes":
        return self._of(self.builder.fmul(self.value, self._lanes(operand), flags=_FAST))

    def __rsub__(self, operand: "Number") -> "Lanes":
        return self._of(self.builder.fsub(self._lanes(operand), self.value, flags=_FAST))

    __radd__, __rmul__ = __add__, __mul__

    @classmethod
    def of(cls, builder: ir.IRBuilder, number: float) -> "Lanes":
        """Return one number in all lanes."""
        return cls(builder, ir.Constant(_FLOATS, [float(np.float32(number))] * VECTOR))

    def call(self, name: str, *operands: "Number") -> "Lanes":
        """Emit a function of LLVM that takes and returns such registers.

        Without the flags a maximum looks for NaN each time: three instructions in place of one, and
        one lane after another.
        """
        arguments = [self.value, *map(self._lanes, operands)]
        return self._of(call_llvm(self.builder, name, arguments, _FLOATS, fastmath=_FAST))

    def special(self, name: str, *operands: Any) -> "Lanes":
        """Emit one of AVX-512's own, which take a result for lanes that a mask leaves out, here none, the mask, and more."""
        return self._of(
            call_llvm(
                self.builder, f"llvm.x86.avx512.{name}.ps.512", [self.value, *operands], _FLOATS
            )
        )

    def _of(self, value: Any) -> "Lanes":
        return Lanes(self.builder, value)

    def _lanes(self, number: "Number") -> Any:
        return number.value if isinstance(number, Lanes) else Lanes.of(self.builder, number).value


Number = Lanes | float


# --- formulas -------------------------------------------------------------------------------------


def _minimum(x: Lanes, y: Number) -> Lanes:
    return x.call("llvm.minnum.v16f32", y)


def _maximum(x: Lanes, y: Number) -> Lanes:
    return x.call("llvm.maxnum.v16f32", y)


def _exp2(x: Lanes, exact: bool) -> Lanes:
    """Two to the x: a polynomial of what is above the whole number below."""
    powers, rounding = _EXACT if exact else _ROUGH, ir.Constant(_WORD, _AS_IT_IS)
    above = x.special("mask.reduce", ir.Constant(_WORD, _WHOLE_DOWN), x.value, _ALL, rounding)
    p = Lanes.of(x.builder, powers[0])
    for coefficient in powers[1:]:
        p = p * above + coefficient
    return p.special("mask.scalef", x.value, p.value, _ALL, rounding)


def _reciprocal(x: Lanes, exact: bool) -> Lanes:
    """One over x: an estimate of 14 bits, for exactness a step of Newton's (2e-7). A division takes three times as long."""
    estimate = x.special("rcp14", x.value, _ALL)
    return estimate * (2.0 - x * estimate) if exact else estimate


def _gelu_tanh(x: Lanes, exact: bool) -> Lanes:
    """Gelu by tanh, as Google does."""
    # -2·sqrt(2/pi)·(x + 0.044715·x³)
    z = x * (_LOG2_E * -1.5957691216 + _LOG2_E * -0.0713548162 * x * x)
    return x * _reciprocal(
        1.0 + _exp2(_minimum(_maximum(z, -_MAX_POWER), _MAX_POWER), exact), exact
    )


def _gelu_erf(x: Lanes, exact: bool) -> Lanes:
    """Gelu by erf: Abramowitz and Stegun 7.1.26, error 2e-7."""
    y = x.call("llvm.fabs.v16f32")
    r = _reciprocal(1.0 + 0.23164189 * y, exact)  # 0.3275911 / sqrt(2)
    p = 0.5307027 * r - 0.72657603  # their coefficients, halved
    p = (p * r + 0.71070687) * r - 0.14224837
    p = (p * r + 0.12741479) * r
    return _maximum(x, 0.0) - y * p * _exp2(_maximum(x * x * (_LOG2_E * -0.5), -_MAX_POWER), exact)


def _tanh(x: Lanes, exact: bool) -> Lanes:
    """Tanh, error 2e-7."""
    z = _minimum(_maximum(x * (2 * _LOG2_E), -_MAX_POWER), _MAX_POWER)
    return 1.0 - 2.0 * _reciprocal(1.0 + _exp2(z, exact), exact)


_FINISH: dict[int, Callable[[Lanes, bool], Lanes]] = {
    GELU_TANH: _gelu_tanh,
    GELU_ERF: _gelu_erf,
    RELU: lambda x, exact: _maximum(x, 0.0),
    STORE: lambda x, exact: x,
    ADD: lambda x, exact: x,
    TANH: _tanh,
}


# --- the function ---------------------------------------------------------------------------------


@intrinsic
def finish_rows(context, sums, count, columns, first_column, vectors, scale, top, how, out):
    """Write row scale · (column scale · (sums - shift)) + bias, finished, into out[top:, first_column:].

    Args:
        sums: int32 or float32 [count or more, at least 16·vectors].
        count: How many rows, int64.
        columns: Scale fp32, shift as sums, and bias fp32 of each output: a tuple of arrays [O'].
        first_column: The first output, int64.
        vectors: Registers of outputs, int64.
        scale: Of rows, fp32 [t].
        top: The first row, int64.
        how: One of the constants above, int64.
        out: float32, or uint16 (bfloat16's bits), [t, O'].
    """
    signature = types.void(
        sums, types.int64, columns, types.int64, types.int64, scale, types.int64, types.int64, out
    )
    is_int8, out_dtype = sums.dtype == types.int32, out.dtype

    def generate(context, builder, signature, arguments):
        def data(position: int) -> tuple[Any, Any]:
            array = context.make_array(signature.args[position])(
                context, builder, arguments[position]
            )
            return builder.bitcast(array.data, _BYTES), builder.extract_value(array.strides, 0)

        def of_column(position: int) -> Any:
            array = builder.extract_value(arguments[2], position)
            start = context.make_array(signature.args[2][position])(context, builder, array).data
            return builder.bitcast(builder.gep(start, [arguments[3]]), _BYTES)

        (sums_data, sums_stride), (scales, step), (target, stride) = data(0), data(5), data(8)
        size = int64_constant(4 if out_dtype == types.float32 else 2)
        start = builder.add(builder.mul(arguments[6], stride), builder.mul(arguments[3], size))
        values = [
            *(sums_data, sums_stride, *(of_column(position) for position in range(3))),
            *(
                builder.gep(scales, [builder.mul(arguments[6], step)]),
                builder.gep(target, [start]),
                stride,
            ),
            *(arguments[1], arguments[4], arguments[7]),
        ]
        name = f"albertkit_finish_{'int32' if is_int8 else 'fp32'}_{out_dtype}"
        call_once_emitted(builder, name, partial(_emit_kinds, is_int8, out_dtype), values)
        return context.get_dummy_value()

    return signature, generate


def _emit_kinds(is_int8: bool, out_dtype: types.Type, builder: Any, *arguments: Any) -> None:
    """Emit `finish_rows` for every way to finish and every count of registers."""
    for argument in arguments:
        if argument.type == _BYTES:
            argument.add_attribute("noalias")
    count, vectors, how = arguments[8:]
    after = builder.append_basic_block("finished")
    kinds = builder.switch(builder.add(builder.mul(how, int64_constant(VECTORS)), vectors), after)
    for finish in _FINISH:
        for registers in range(1, VECTORS + 1):
            block = builder.append_basic_block(f"finish_{finish}_{registers}")
            kinds.add_case(int64_constant(finish * VECTORS + registers), block)
            builder.position_at_end(block)
            columns = [
                _SixteenColumns(builder, arguments, register, is_int8)
                for register in range(registers)
            ]
            with cgutils.for_range(builder, count) as loop:
                _emit_row(builder, arguments, loop.index, columns, finish, out_dtype)
            builder.branch(after)
    builder.position_at_end(after)


class _SixteenColumns:
    """Sixteen columns' scales, shifts and biases, which stay in registers for all rows of a tile."""

    def __init__(self, builder: Any, arguments: Any, register: int, is_int8: bool) -> None:
        def of(pointer: Any, kind: Any = _FLOATS) -> Any:
            return load_register(
                builder, _register_at(builder, pointer, int64_constant(register), 4), kind
            )

        _, _, scales, shifts, biases = arguments[:5]
        self.at, self.is_int8 = int64_constant(register), is_int8
        self.scale, self.bias = Lanes(builder, of(scales)), Lanes(builder, of(biases))
        self.shift = of(shifts, _WORDS) if is_int8 else None

    def value(self, builder: Any, row_pointer: Any, row_scale: Lanes) -> Lanes:
        """Emit the outputs of a row's sums, before they are finished."""
        sums = load_register(
            builder,
            _register_at(builder, row_pointer, self.at, 4),
            _WORDS if self.is_int8 else _FLOATS,
        )
        if self.is_int8:
            sums = builder.sitofp(builder.sub(sums, self.shift), _FLOATS)
        return Lanes(builder, sums) * (self.scale * row_scale) + self.bias


def _emit_row(
    builder: Any,
    arguments: Any,
    row_index: Any,
    columns: list[_SixteenColumns],
    finish: int,
    out_dtype: types.Type,
) -> None:
    """Emit the outputs of one row of sums, finished in one of the ways of `_FINISH`."""
    sums, sums_stride, _, _, _, row_scales, out, stride = arguments[:8]
    row_sums = builder.gep(sums, [builder.mul(row_index, sums_stride)])
    target = builder.gep(out, [builder.mul(row_index, stride)])
    scale = load_register(
        builder, builder.gep(row_scales, [builder.shl(row_index, int64_constant(2))]), _FLOAT
    )
    row_scale = Lanes(builder, fill_register(builder, scale))
    size = 4 if out_dtype == types.float32 else 2
    for column in columns:
        value, pointer = (
            column.value(builder, row_sums, row_scale),
            _register_at(builder, target, column.at, size),
        )
        if finish == ADD:
            before = load_register(
                builder, pointer, _FLOATS if out_dtype == types.float32 else _HALVES
            )
            if before.type != _FLOATS:  # bfloat16's bits are the upper half
                sixteen = ir.Constant(_WORDS, [16] * VECTOR)
                words = builder.shl(builder.zext(before, _WORDS), sixteen)
                before = builder.bitcast(words, _FLOATS)
            value += Lanes(builder, before)
        exact = not column.is_int8 and out_dtype == types.float32
        store(builder, _cast_to(builder, _FINISH[finish](value, exact).value, out_dtype), pointer)


def _register_at(builder: Any, pointer: Any, register: Any, size: int) -> Any:
    """Return where a register of a row begins, of numbers of so many bytes."""
    return builder.gep(pointer, [builder.mul(register, int64_constant(VECTOR * size))])


def _cast_to(builder: Any, value: Any, dtype: types.Type) -> Any:
    """Convert like `arithmetic.cast_like`."""
    if dtype == types.float32:
        return value
    return call_llvm(builder, "llvm.x86.avx512bf16.cvtneps2bf16.512", [value], _HALVES)


# --- attention ------------------------------------------------------------------------------------


@intrinsic
def exponentials(context, scores, row, length, shares):
    """Write exp(score - largest score) of scores[row, :length] into `shares`, zeros up to a whole register; return their sum.

    Args:
        scores: float32 [t, at least as wide as whole registers]. Beyond the length they are
            overwritten.
        row: int64.
        length: int64, at least 1.
        shares: float32, or uint16 (bfloat16's bits), as wide.
    """
    signature = types.float32(scores, types.int64, types.int64, shares)
    share_dtype = shares.dtype

    def generate(context, builder, signature, arguments):
        def row_of(position: int) -> Any:
            array = context.make_array(signature.args[position])(
                context, builder, arguments[position]
            )
            start = builder.mul(arguments[1], builder.extract_value(array.strides, 0))
            return builder.gep(builder.bitcast(array.data, _BYTES), [start])

        values = [row_of(0), arguments[2], row_of(3)]
        return call_once_emitted(
            builder,
            f"albertkit_exponentials_{share_dtype}",
            partial(_emit_exponentials, share_dtype),
            values,
            ir.FloatType,
        )

    return signature, generate


def _emit_exponentials(
    share_dtype: types.Type, builder: Any, scores: Any, length: Any, shares: Any
) -> Any:
    """Emit `exponentials`; return the sum."""
    lowest, nothing = (ir.Constant(_FLOATS, [number] * VECTOR) for number in (float("-inf"), 0.0))
    total = cgutils.alloca_once_value(builder, nothing)
    size = 4 if share_dtype == types.float32 else 2
    registers = builder.udiv(
        builder.add(length, int64_constant(VECTOR - 1)), int64_constant(VECTOR)
    )
    last = builder.sub(registers, int64_constant(1))
    filled = builder.trunc(builder.sub(length, builder.shl(last, int64_constant(4))), _WORD)
    is_valid = builder.icmp_signed(
        "<", ir.Constant(_WORDS, list(range(VECTOR))), fill_register(builder, filled)
    )

    end = _register_at(builder, scores, last, 4)  # numbers beyond the length come from earlier rows
    store(builder, builder.select(is_valid, load_register(builder, end, _FLOATS), lowest), end)
    highest = _largest(builder, scores, registers)
    with cgutils.for_range(builder, registers) as loop:
        score = Lanes(
            builder, load_register(builder, _register_at(builder, scores, loop.index, 4), _FLOATS)
        )
        value = _exp2(
            _maximum((score - highest) * _LOG2_E, -_MAX_POWER), share_dtype == types.float32
        )
        builder.store((Lanes(builder, builder.load(total)) + value).value, total)
        store(
            builder,
            _cast_to(builder, value.value, share_dtype),
            _register_at(builder, shares, loop.index, size),
        )
    end = _register_at(builder, shares, last, size)
    share = load_register(builder, end, _FLOATS if share_dtype == types.float32 else _HALVES)
    store(builder, builder.select(is_valid, share, ir.Constant(share.type, None)), end)
    arguments = [ir.Constant(_FLOAT, 0.0), builder.load(total)]
    return call_llvm(
        builder, "llvm.vector.reduce.fadd.v16f32", arguments, _FLOAT, fastmath=("reassoc",)
    )


def _largest(builder: Any, scores: Any, registers: Any) -> Lanes:
    """Emit the largest of a row of registers, in all lanes: four at a time, since one maximum waits for the one before."""
    lowest, four = ir.Constant(_FLOATS, [float("-inf")] * VECTOR), int64_constant(4)
    tops = [cgutils.alloca_once_value(builder, lowest) for _ in range(4)]

    def note(register: Any, top: Any) -> None:
        score = Lanes(
            builder, load_register(builder, _register_at(builder, scores, register, 4), _FLOATS)
        )
        builder.store(_maximum(score, Lanes(builder, builder.load(top))).value, top)

    fours = builder.udiv(registers, four)
    with builder.if_then(builder.icmp_signed(">", fours, int64_constant(0))):
        with cgutils.for_range(builder, fours) as loop:
            first = builder.mul(loop.index, four)
            for number, top in enumerate(tops):
                note(builder.add(first, int64_constant(number)), top)
        lanes = [Lanes(builder, builder.load(top)) for top in tops]
        largest = _maximum(_maximum(lanes[0], lanes[1]), _maximum(lanes[2], lanes[3]))
        builder.store(largest.value, tops[0])
    with cgutils.for_range_slice(
        builder, builder.mul(fours, four), registers, int64_constant(1)
    ) as (register, _):
        note(register, tops[0])
    maxima = builder.load(tops[0])
    number = call_llvm(builder, "llvm.vector.reduce.fmax.v16f32", [maxima], _FLOAT, fastmath=_FAST)
    return Lanes(builder, fill_register(builder, number))


@intrinsic
def write_scaled(context, sums, count, factors, columns, out, top, first_column):
    """Write sums[i, :columns] times factors[i] into out[top + i, first_column :] for `count` rows, all fp32."""
    signature = types.void(sums, types.int64, factors, types.int64, out, types.int64, types.int64)

    def generate(context, builder, signature, arguments):
        def data(position: int) -> tuple[Any, Any]:
            values = context.make_array(signature.args[position])(
                context, builder, arguments[position]
            )
            return builder.bitcast(values.data, _BYTES), builder.extract_value(values.strides, 0)

        (rows, sums_stride), (scales, _), (target, stride) = data(0), data(2), data(4)
        start = builder.add(
            builder.mul(arguments[5], stride), builder.shl(arguments[6], int64_constant(2))
        )
        addresses = [
            rows,
            sums_stride,
            scales,
            arguments[1],
            arguments[3],
            builder.gep(target, [start]),
            stride,
        ]
        call_once_emitted(builder, "albertkit_write_scaled", _emit_scaled, addresses)
        return context.get_dummy_value()

    return signature, generate


def _emit_scaled(
    builder: Any,
    sums: Any,
    sums_stride: Any,
    factors: Any,
    count: Any,
    columns: Any,
    out: Any,
    stride: Any,
) -> None:
    """Emit `write_scaled`, register by register: of the last one a mask stores the part that belongs to the row."""
    lanes, sixteen = ir.Constant(_WORDS, list(range(VECTOR))), int64_constant(VECTOR)
    registers = builder.udiv(builder.add(columns, int64_constant(VECTOR - 1)), sixteen)
    with cgutils.for_range(builder, count) as row:
        source = builder.gep(sums, [builder.mul(row.index, sums_stride)])
        target = builder.gep(out, [builder.mul(row.index, stride)])
        factor = load_register(
            builder, builder.gep(factors, [builder.shl(row.index, int64_constant(2))]), _FLOAT
        )
        with cgutils.for_range(builder, registers) as loop:
            value = load_register(builder, _register_at(builder, source, loop.index, 4), _FLOATS)
            scaled = builder.fmul(value, fill_register(builder, factor))
            num_remaining = builder.trunc(
                builder.sub(columns, builder.mul(loop.index, sixteen)), _WORD
            )
            is_valid = builder.icmp_signed("<", lanes, fill_register(builder, num_remaining))
            arguments = [
                scaled,
                _register_at(builder, target, loop.index, 4),
                ir.Constant(_WORD, 1),
                is_valid,
            ]
            call_llvm(builder, "llvm.masked.store.v16f32.p0", arguments)
