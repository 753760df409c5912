"""What follows a tile of a matrix product: its sums become outputs, 16 at a time, in the processor's registers.

A loop in compiled Python did it in 20 cycles for 16 outputs, gelu not counted: for each row LLVM checks anew whether five
arrays overlap. Here nothing is checked, the columns' scales and biases stay in registers for all rows of a tile, and LLVM has
less to optimise. `Lanes` lets formulas be read as such.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
from llvmlite import ir
from numba.core import cgutils, types
from numba.extending import intrinsic

from albertkit.engines.tiles import VECTOR

GELU_TANH, GELU_ERF, RELU, STORE, ADD = range(5)  # how a linear layer's output is finished

_I64, _WORD, _HALF, _FLOAT = ir.IntType(64), ir.IntType(32), ir.IntType(16), ir.FloatType()
_BYTES = ir.IntType(8).as_pointer()
_WORDS, _HALVES, _FLOATS = (ir.VectorType(kind, VECTOR) for kind in (_WORD, _HALF, _FLOAT))
_FAST = ("contract", "nsz", "nnan")
_LOG2_E = 1.442695040888963
# Two to the x for 0 <= x < 1, from the highest power down: relative error 7.5e-8, and 7.5e-5 for what is rounded to 8 bits later.
_EXACT = (0.00187757667, 0.00898934009, 0.0558263181, 0.240153617, 0.693153073, 0.999999925)
_ROUGH = (0.0780245227, 0.226067155, 0.695833541, 0.999925219)
_LEAST = 100.0  # powers of two below minus this count as it: products with numbers below 2^-126 take 150 cycles
_WHOLE_DOWN, _AS_IT_IS = 9, 4  # rounding: towards minus infinity without exceptions; as the processor is set


class Lanes:
    """Sixteen fp32 numbers in a register; operators emit the instructions."""

    __array_ufunc__ = None  # numpy's numbers leave operators to this class

    def __init__(self, builder: ir.IRBuilder, value: Any) -> None:
        self.builder, self.value = builder, value

    def __add__(self, other: "Number") -> "Lanes":
        return self._of(self.builder.fadd(self.value, self._lanes(other), flags=_FAST))

    def __sub__(self, other: "Number") -> "Lanes":
        return self._of(self.builder.fsub(self.value, self._lanes(other), flags=_FAST))

    def __mul__(self, other: "Number") -> "Lanes":
        return self._of(self.builder.fmul(self.value, self._lanes(other), flags=_FAST))

    def __rsub__(self, other: "Number") -> "Lanes":
        return self._of(self.builder.fsub(self._lanes(other), self.value, flags=_FAST))

    __radd__, __rmul__ = __add__, __mul__

    def call(self, name: str, *others: "Number") -> "Lanes":
        """Emit a function of LLVM that takes and returns such registers."""
        kind = ir.FunctionType(_FLOATS, [_FLOATS] * (1 + len(others)))
        function = cgutils.get_or_insert_function(self.builder.module, kind, name)
        return self._of(self.builder.call(function, [self.value, *map(self._lanes, others)]))

    def special(self, name: str, *others: Any) -> "Lanes":
        """Emit an AVX-512 function of two registers or one, whose mask is full."""
        everywhere, rounding = ir.Constant(_HALF, -1), ir.Constant(_WORD, _AS_IT_IS)
        given = [self.value, *others, self.value, everywhere, rounding]
        kind = ir.FunctionType(_FLOATS, [argument.type for argument in given])
        name = f"llvm.x86.avx512.mask.{name}.ps.512"
        return self._of(self.builder.call(cgutils.get_or_insert_function(self.builder.module, kind, name), given))

    def _of(self, value: Any) -> "Lanes":
        return Lanes(self.builder, value)

    def _lanes(self, number: "Number") -> Any:
        return number.value if isinstance(number, Lanes) else Lanes.of(self.builder, number).value

    @classmethod
    def of(cls, builder: ir.IRBuilder, number: float) -> "Lanes":
        """Return one number in all lanes."""
        return cls(builder, ir.Constant(_FLOATS, [float(np.float32(number))] * VECTOR))


Number = Lanes | float


# --- formulas ---------------------------------------------------------------------------------------------------------


def _least(x: Lanes, y: Number) -> Lanes:
    return x.call("llvm.minnum.v16f32", y)


def _most(x: Lanes, y: Number) -> Lanes:
    return x.call("llvm.maxnum.v16f32", y)


def _exp2(x: Lanes, exact: bool) -> Lanes:
    """Two to the x: a polynomial of what is above the whole number below."""
    powers = _EXACT if exact else _ROUGH
    above, p = x.special("reduce", ir.Constant(_WORD, _WHOLE_DOWN)), Lanes.of(x.builder, powers[0])
    for coefficient in powers[1:]:
        p = p * above + coefficient
    return p.special("scalef", x.value)


def _reciprocal(x: Lanes, exact: bool) -> Lanes:
    """One over x: an estimate of 14 bits, for exactness a step of Newton's (2e-7). A division takes three times as long."""
    kind = ir.FunctionType(_FLOATS, [_FLOATS, _FLOATS, _HALF])
    function = cgutils.get_or_insert_function(x.builder.module, kind, "llvm.x86.avx512.rcp14.ps.512")
    estimate = Lanes(x.builder, x.builder.call(function, [x.value, x.value, ir.Constant(_HALF, -1)]))
    return estimate * (2.0 - x * estimate) if exact else estimate


def _gelu_tanh(x: Lanes, exact: bool) -> Lanes:
    """Gelu by tanh, as Google does."""
    z = x * (_LOG2_E * -1.5957691216 + _LOG2_E * -0.0713548162 * x * x)  # -2·sqrt(2/pi)·(x + 0.044715·x³)
    return x * _reciprocal(1.0 + _exp2(_least(_most(z, -_LEAST), _LEAST), exact), exact)


def _gelu_erf(x: Lanes, exact: bool) -> Lanes:
    """Gelu by erf: Abramowitz and Stegun 7.1.26, error 2e-7."""
    y = x.call("llvm.fabs.v16f32")
    r = _reciprocal(1.0 + 0.23164189 * y, exact)  # 0.3275911 / sqrt(2)
    p = 0.5307027 * r - 0.72657603  # their coefficients, halved
    p = (p * r + 0.71070687) * r - 0.14224837
    p = (p * r + 0.12741479) * r
    return _most(x, 0.0) - y * p * _exp2(_most(x * x * (_LOG2_E * -0.5), -_LEAST), exact)


_FINISH: dict[int, Callable[[Lanes, bool], Lanes]] = {
    GELU_TANH: _gelu_tanh,
    GELU_ERF: _gelu_erf,
    RELU: lambda x, exact: _most(x, 0.0),
    STORE: lambda x, exact: x,
    ADD: lambda x, exact: x,
}


# --- the function -----------------------------------------------------------------------------------------------------


@intrinsic
def finish_rows(context, sums, count, columns, left, vectors, scale, top, how, out):
    """Write row scale · (column scale · (sums - shift)) + bias, finished, into out[top : top + count, left : left + 16·vectors].

    Args:
        sums: int32 or float32 [count or more, at least 16·vectors].
        count: How many rows, int64.
        columns: Scale fp32, shift as sums, and bias fp32 of each output: a tuple of arrays [O'].
        left: The first output, int64.
        vectors: Registers of outputs, int64.
        scale: Of rows, fp32 [t].
        top: The first row, int64.
        how: One of the constants above, int64.
        out: float32, or uint16 (bfloat16's bits), [t, O'].
    """
    signature = types.void(sums, types.int64, columns, types.int64, types.int64, scale, types.int64, types.int64, out)
    is_int8, held = sums.dtype == types.int32, out.dtype

    def generate(context, builder, signature, arguments):
        def data(position: int) -> tuple[Any, Any]:
            array = context.make_array(signature.args[position])(context, builder, arguments[position])
            return builder.bitcast(array.data, _BYTES), builder.extract_value(array.strides, 0)

        def of_column(position: int) -> Any:
            array = builder.extract_value(arguments[2], position)
            start = context.make_array(signature.args[2][position])(context, builder, array).data
            return builder.bitcast(builder.gep(start, [arguments[3]]), _BYTES)

        (found, between), (scales, step), (target, stride) = data(0), data(5), data(8)
        size = ir.Constant(_I64, 4 if held == types.float32 else 2)
        start = builder.add(builder.mul(arguments[6], stride), builder.mul(arguments[3], size))
        given = [
            *(found, between, *(of_column(position) for position in range(3))),
            *(builder.gep(scales, [builder.mul(arguments[6], step)]), builder.gep(target, [start]), stride),
            *(arguments[1], arguments[4], arguments[7]),
        ]
        builder.call(_function(builder.module, is_int8, held), given)
        return context.get_dummy_value()

    return signature, generate


def _function(module: Any, is_int8: bool, held: types.Type) -> Any:
    name = f"albertkit_finish_{'int32' if is_int8 else 'fp32'}_{held}"
    if name in module.globals:
        return module.globals[name]
    kind = ir.FunctionType(ir.VoidType(), [_BYTES, _I64, *[_BYTES] * 5, *[_I64] * 4])
    function = ir.Function(module, kind, name)
    function.linkage = "linkonce_odr"
    function.attributes.add("noinline")
    for argument in function.args:
        if argument.type == _BYTES:
            argument.add_attribute("noalias")
    count, vectors, how = function.args[8:]
    builder = ir.IRBuilder(function.append_basic_block("entry"))
    after = builder.append_basic_block("finished")
    kinds = builder.switch(how, after)
    for number in _FINISH:
        block = builder.append_basic_block(f"finish_{number}")
        kinds.add_case(ir.Constant(_I64, number), block)
        builder.position_at_end(block)
        with cgutils.for_range(builder, count) as loop:
            _emit_row(builder, function.args, loop.index, vectors, number, is_int8, held)
        builder.branch(after)
    builder.position_at_end(after)
    builder.ret_void()
    return function


def _emit_row(builder: Any, given: Any, row: Any, vectors: Any, number: int, is_int8: bool, held: types.Type) -> None:
    """Emit what makes outputs of one row of sums."""
    sums, between, scales, shifts, biases, row_scales, out, stride = given[:8]

    def place(pointer: Any, register: Any, size: int) -> Any:
        return builder.gep(pointer, [builder.mul(register, ir.Constant(_I64, VECTOR * size))])

    row_sums = builder.gep(sums, [builder.mul(row, between)])
    target = builder.gep(out, [builder.mul(row, stride)])
    row_scale = _everywhere(
        builder, _load(builder, builder.gep(row_scales, [builder.shl(row, ir.Constant(_I64, 2))]), _FLOAT)
    )
    with cgutils.for_range(builder, vectors) as loop:
        register = loop.index
        if is_int8:
            words = builder.sub(
                _load(builder, place(row_sums, register, 4), _WORDS), _load(builder, place(shifts, register, 4), _WORDS)
            )
            value = Lanes(builder, builder.sitofp(words, _FLOATS))
        else:
            value = Lanes(builder, _load(builder, place(row_sums, register, 4), _FLOATS))
        scale = Lanes(builder, _load(builder, place(scales, register, 4), _FLOATS)) * Lanes(builder, row_scale)
        value = value * scale + Lanes(builder, _load(builder, place(biases, register, 4), _FLOATS))
        here = place(target, register, 4 if held == types.float32 else 2)
        if number == ADD:
            value += Lanes(
                builder, _as_floats(builder, _load(builder, here, _FLOATS if held == types.float32 else _HALVES))
            )
        exact = not is_int8 and held == types.float32
        finished = _as_held(builder, _FINISH[number](value, exact).value, held)
        _store(builder, finished, here)


def _as_floats(builder: Any, value: Any) -> Any:
    if value.type == _FLOATS:
        return value
    sixteen = ir.Constant(_WORDS, [16] * VECTOR)
    return builder.bitcast(builder.shl(builder.zext(value, _WORDS), sixteen), _FLOATS)


def _as_held(builder: Any, value: Any, held: types.Type) -> Any:
    """As `arithmetic.as_held`, but that a number in the middle between two goes to the larger: three instructions fewer."""
    if held == types.float32:
        return value
    half, sixteen = (ir.Constant(_WORDS, [number] * VECTOR) for number in (0x8000, 16))
    return builder.trunc(builder.lshr(builder.add(builder.bitcast(value, _WORDS), half), sixteen), _HALVES)


# --- attention --------------------------------------------------------------------------------------------------------


@intrinsic
def exponentials(context, scores, row, length, shares):
    """Write exp(score - largest score) of scores[row, :length] into `shares`, zeros up to a whole register; return their sum.

    Args:
        scores: float32 [t, at least as wide as whole registers]. Beyond the length they are overwritten.
        row: int64.
        length: int64, at least 1.
        shares: float32, or uint16 (bfloat16's bits), as wide.
    """
    signature = types.float32(scores, types.int64, types.int64, shares)
    held = shares.dtype

    def generate(context, builder, signature, arguments):
        def row_of(position: int) -> Any:
            array = context.make_array(signature.args[position])(context, builder, arguments[position])
            start = builder.mul(arguments[1], builder.extract_value(array.strides, 0))
            return builder.gep(builder.bitcast(array.data, _BYTES), [start])

        return builder.call(_exponentials(builder.module, held), [row_of(0), arguments[2], row_of(3)])

    return signature, generate


def _exponentials(module: Any, held: types.Type) -> Any:
    name = f"albertkit_exponentials_{held}"
    if name in module.globals:
        return module.globals[name]
    function = ir.Function(module, ir.FunctionType(_FLOAT, [_BYTES, _I64, _BYTES]), name)
    function.linkage = "linkonce_odr"
    function.attributes.add("noinline")
    scores, length, shares = function.args
    builder = ir.IRBuilder(function.append_basic_block("entry"))
    lowest, nothing = (ir.Constant(_FLOATS, [number] * VECTOR) for number in (float("-inf"), 0.0))
    top, total = (cgutils.alloca_once_value(builder, first) for first in (lowest, nothing))
    size, one = 4 if held == types.float32 else 2, ir.Constant(_I64, 1)
    registers = builder.udiv(builder.add(length, ir.Constant(_I64, VECTOR - 1)), ir.Constant(_I64, VECTOR))
    last = builder.sub(registers, one)
    filled = builder.trunc(builder.sub(length, builder.shl(last, ir.Constant(_I64, 4))), _WORD)
    there = builder.icmp_signed("<", ir.Constant(_WORDS, list(range(VECTOR))), _everywhere(builder, filled))

    def place(pointer: Any, register: Any, size: int) -> Any:
        return builder.gep(pointer, [builder.mul(register, ir.Constant(_I64, VECTOR * size))])

    end = place(scores, last, 4)  # what is beyond the length is left there by others
    _store(builder, builder.select(there, _load(builder, end, _FLOATS), lowest), end)
    with cgutils.for_range(builder, registers) as loop:
        score = Lanes(builder, _load(builder, place(scores, loop.index, 4), _FLOATS))
        builder.store(_most(score, Lanes(builder, builder.load(top))).value, top)
    largest = cgutils.get_or_insert_function(
        module, ir.FunctionType(_FLOAT, [_FLOATS]), "llvm.vector.reduce.fmax.v16f32"
    )
    highest = Lanes(builder, _everywhere(builder, builder.call(largest, [builder.load(top)])))
    with cgutils.for_range(builder, registers) as loop:
        score = Lanes(builder, _load(builder, place(scores, loop.index, 4), _FLOATS))
        value = _exp2(_most((score - highest) * _LOG2_E, -_LEAST), held == types.float32)
        builder.store((Lanes(builder, builder.load(total)) + value).value, total)
        _store(builder, _as_held(builder, value.value, held), place(shares, loop.index, size))
    end = place(shares, last, size)
    share = _load(builder, end, _FLOATS if held == types.float32 else _HALVES)
    _store(builder, builder.select(there, share, ir.Constant(share.type, None)), end)
    add = ir.FunctionType(_FLOAT, [_FLOAT, _FLOATS])
    reduce = cgutils.get_or_insert_function(module, add, "llvm.vector.reduce.fadd.v16f32")
    builder.ret(builder.call(reduce, [ir.Constant(_FLOAT, 0.0), builder.load(total)], fastmath=("reassoc",)))
    return function


def _everywhere(builder: Any, number: Any) -> Any:
    """Return a number in all lanes."""
    nothing = ir.Constant(ir.VectorType(number.type, VECTOR), ir.Undefined)
    return builder.shuffle_vector(
        builder.insert_element(nothing, number, ir.Constant(_WORD, 0)), nothing, ir.Constant(_WORDS, [0] * VECTOR)
    )


def _load(builder: Any, pointer: Any, kind: Any) -> Any:
    found = builder.load(builder.bitcast(pointer, kind.as_pointer()))
    found.align = 2
    return found


def _store(builder: Any, value: Any, pointer: Any) -> None:
    builder.store(value, builder.bitcast(pointer, value.type.as_pointer())).align = 2


@intrinsic
def pair_up(context, first, second, begin, out, at):
    """Write 16 numbers of two tokens from `begin` on, uint16, as words out[at : at + 16], uint32: the first one's is lower."""
    signature = types.void(first, second, types.int64, out, types.int64)

    def generate(context, builder, signature, arguments):
        def there(position: int, place: int) -> Any:
            array = context.make_array(signature.args[position])(context, builder, arguments[position])
            return builder.bitcast(builder.gep(array.data, [arguments[place]]), _BYTES)

        lower, upper = (builder.zext(_load(builder, there(n, 2), _HALVES), _WORDS) for n in (0, 1))
        sixteen = ir.Constant(_WORDS, [16] * VECTOR)
        _store(builder, builder.or_(lower, builder.shl(upper, sixteen)), there(3, 4))
        return context.get_dummy_value()

    return signature, generate
