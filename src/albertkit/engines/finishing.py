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

from albertkit.engines.arithmetic import EXP
from albertkit.engines.tiles import VECTOR, VECTORS

GELU_TANH, GELU_ERF, RELU, STORE, ADD = range(5)  # how a linear layer's output is finished

_I64, _WORD, _HALF, _FLOAT = ir.IntType(64), ir.IntType(32), ir.IntType(16), ir.FloatType()
_BYTES = ir.IntType(8).as_pointer()
_WORDS, _HALVES, _FLOATS = (ir.VectorType(kind, VECTOR) for kind in (_WORD, _HALF, _FLOAT))
_FAST = ("contract", "nsz", "nnan")


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

    def whole(self) -> Any:
        """Round towards 0: words."""
        return self.builder.fptosi(self.value, _WORDS)

    def _of(self, value: Any) -> "Lanes":
        return Lanes(self.builder, value)

    def _lanes(self, number: "Number") -> Any:
        return number.value if isinstance(number, Lanes) else ir.Constant(_FLOATS, [float(np.float32(number))] * VECTOR)


Number = Lanes | float


# --- formulas ---------------------------------------------------------------------------------------------------------


def _least(x: Lanes, y: Number) -> Lanes:
    return x.call("llvm.minnum.v16f32", y)


def _most(x: Lanes, y: Number) -> Lanes:
    return x.call("llvm.maxnum.v16f32", y)


def _exp(x: Lanes) -> Lanes:
    """As `arithmetic.exp`."""
    builder, shifted = x.builder, x * EXP[0] + 160.0
    whole = (shifted + 0.5).whole()
    f = shifted - Lanes(builder, builder.sitofp(whole, _FLOATS))
    p = EXP[1] * f + EXP[2]
    for coefficient in EXP[3:]:
        p = p * f + coefficient
    shift, bits = (ir.Constant(_WORDS, [number] * VECTOR) for number in (33, 23))
    return p * Lanes(builder, builder.bitcast(builder.shl(builder.sub(whole, shift), bits), _FLOATS))


def _reciprocal(x: Lanes) -> Lanes:
    """One over x: an estimate of 14 bits and a step of Newton's, 2e-7; a division takes three times as long."""
    kind = ir.FunctionType(_FLOATS, [_FLOATS, _FLOATS, _HALF])
    function = cgutils.get_or_insert_function(x.builder.module, kind, "llvm.x86.avx512.rcp14.ps.512")
    estimate = Lanes(x.builder, x.builder.call(function, [x.value, x.value, ir.Constant(_HALF, -1)]))
    return estimate * (2.0 - x * estimate)


def _gelu_tanh(x: Lanes) -> Lanes:
    """Gelu by tanh, as Google does."""
    z = x * (-1.5957691216 + -0.0713548162 * x * x)  # -2·sqrt(2/pi)·(x + 0.044715·x³)
    return x * _reciprocal(1.0 + _exp(_least(_most(z, -80.0), 80.0)))


def _gelu_erf(x: Lanes) -> Lanes:
    """Gelu by erf: Abramowitz and Stegun 7.1.26, error 2e-7."""
    y = x.call("llvm.fabs.v16f32")
    r = _reciprocal(1.0 + 0.23164189 * y)  # 0.3275911 / sqrt(2)
    p = 0.5307027 * r - 0.72657603  # their coefficients, halved
    p = (p * r + 0.71070687) * r - 0.14224837
    p = (p * r + 0.12741479) * r
    return _most(x, 0.0) - y * p * _exp(_most(x * x * -0.5, -80.0))


_FINISH: dict[int, Callable[[Lanes], Lanes]] = {
    GELU_TANH: _gelu_tanh,
    GELU_ERF: _gelu_erf,
    RELU: lambda x: _most(x, 0.0),
    STORE: lambda x: x,
    ADD: lambda x: x,
}


# --- the function -----------------------------------------------------------------------------------------------------


@intrinsic
def finish_rows(context, sums, count, columns, left, scale, top, how, out):
    """Write row scale · (column scale · (sums - shift)) + bias, finished, into out[top : top + count, left : left + 64].

    Args:
        sums: int32 or float32 [6, 64].
        count: How many rows, int64, 1 to 6.
        columns: Scale fp32, shift as sums, and bias fp32 of each output: a tuple of arrays [O'].
        left: The first output, int64.
        scale: Of rows, fp32 [t].
        top: The first row, int64.
        how: One of the constants above, int64.
        out: float32, or uint16 (bfloat16's bits), [t, O'].
    """
    signature = types.void(sums, types.int64, columns, types.int64, scale, types.int64, types.int64, out)
    is_int8, held = sums.dtype == types.int32, out.dtype

    def generate(context, builder, signature, arguments):
        def data(position: int) -> tuple[Any, Any]:
            array = context.make_array(signature.args[position])(context, builder, arguments[position])
            return builder.bitcast(array.data, _BYTES), builder.extract_value(array.strides, 0)

        def of_column(position: int) -> Any:
            array = builder.extract_value(arguments[2], position)
            start = context.make_array(signature.args[2][position])(context, builder, array).data
            return builder.bitcast(builder.gep(start, [arguments[3]]), _BYTES)

        (found, between), (scales, step), (target, stride) = data(0), data(4), data(7)
        size = ir.Constant(_I64, 4 if held == types.float32 else 2)
        start = builder.add(builder.mul(arguments[5], stride), builder.mul(arguments[3], size))
        given = [
            *(found, between, *(of_column(position) for position in range(3))),
            *(builder.gep(scales, [builder.mul(arguments[5], step)]), builder.gep(target, [start]), stride),
            *(arguments[1], arguments[6]),
        ]
        builder.call(_function(builder.module, is_int8, held), given)
        return context.get_dummy_value()

    return signature, generate


def _function(module: Any, is_int8: bool, held: types.Type) -> Any:
    name = f"albertkit_finish_{'int32' if is_int8 else 'fp32'}_{held}"
    if name in module.globals:
        return module.globals[name]
    kind = ir.FunctionType(ir.VoidType(), [_BYTES, _I64, *[_BYTES] * 5, _I64, _I64, _I64])
    function = ir.Function(module, kind, name)
    function.linkage = "linkonce_odr"
    function.attributes.add("noinline")
    for argument in function.args:
        if argument.type == _BYTES:
            argument.add_attribute("noalias")
    count, how = function.args[8:]
    builder = ir.IRBuilder(function.append_basic_block("entry"))
    after = builder.append_basic_block("finished")
    kinds = builder.switch(how, after)
    for number in _FINISH:
        block = builder.append_basic_block(f"finish_{number}")
        kinds.add_case(ir.Constant(_I64, number), block)
        builder.position_at_end(block)
        with cgutils.for_range(builder, count) as loop:
            _emit_row(builder, function.args, loop.index, number, is_int8, held)
        builder.branch(after)
    builder.position_at_end(after)
    builder.ret_void()
    return function


def _emit_row(builder: Any, given: Any, row: Any, number: int, is_int8: bool, held: types.Type) -> None:
    """Emit what makes outputs of one row of sums."""
    sums, between, scales, shifts, biases, row_scales, out, stride = given[:8]

    def load(pointer: Any, kind: Any) -> Any:
        found = builder.load(builder.bitcast(pointer, kind.as_pointer()))
        found.align = 2
        return found

    def place(pointer: Any, register: int, size: int) -> Any:
        return builder.gep(pointer, [ir.Constant(_I64, register * VECTOR * size)])

    row_sums = builder.gep(sums, [builder.mul(row, between)])
    target = builder.gep(out, [builder.mul(row, stride)])
    one = load(builder.gep(row_scales, [builder.shl(row, ir.Constant(_I64, 2))]), _FLOAT)
    nothing, everywhere = ir.Constant(_FLOATS, ir.Undefined), ir.Constant(_WORDS, [0] * VECTOR)
    row_scale = builder.shuffle_vector(builder.insert_element(nothing, one, ir.Constant(_WORD, 0)), nothing, everywhere)
    for register in range(VECTORS):
        if is_int8:
            words = builder.sub(load(place(row_sums, register, 4), _WORDS), load(place(shifts, register, 4), _WORDS))
            value = Lanes(builder, builder.sitofp(words, _FLOATS))
        else:
            value = Lanes(builder, load(place(row_sums, register, 4), _FLOATS))
        scale = Lanes(builder, load(place(scales, register, 4), _FLOATS)) * Lanes(builder, row_scale)
        value = value * scale + Lanes(builder, load(place(biases, register, 4), _FLOATS))
        here = place(target, register, 4 if held == types.float32 else 2)
        if number == ADD:
            value += Lanes(builder, _as_floats(builder, load(here, _FLOATS if held == types.float32 else _HALVES)))
        finished = _as_held(builder, _FINISH[number](value).value, held)
        builder.store(finished, builder.bitcast(here, finished.type.as_pointer())).align = 2


def _as_floats(builder: Any, value: Any) -> Any:
    if value.type == _FLOATS:
        return value
    sixteen = ir.Constant(_WORDS, [16] * VECTOR)
    return builder.bitcast(builder.shl(builder.zext(value, _WORDS), sixteen), _FLOATS)


def _as_held(builder: Any, value: Any, held: types.Type) -> Any:
    """As `arithmetic.as_held`."""
    if held == types.float32:
        return value

    def words(number: int) -> Any:
        return ir.Constant(_WORDS, [number] * VECTOR)

    word = builder.bitcast(value, _WORDS)
    odd = builder.and_(builder.lshr(word, words(16)), words(1))
    rounded = builder.add(builder.add(word, words(0x7FFF)), odd)
    return builder.trunc(builder.lshr(rounded, words(16)), _HALVES)
