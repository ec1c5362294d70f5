"""LLVM values that are written with Python's operators, and the functions made of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from llvmlite import ir

__all__ = ["Integer", "Real", "constant", "function", "maximum", "polynomial", "select"]

_INTEGERS = {"float": ir.IntType(32), "double": ir.IntType(64)}

# Bits of the fraction, and the exponent of 1.0, by the name of the type.
FRACTION = {"float": 23, "double": 52}
BIAS = {"float": 127, "double": 1023}


class _Value:
    """A value and the builder that writes what is made of it."""

    __slots__ = ("builder", "value")

    def __init__(self, builder: ir.IRBuilder, value: ir.Value) -> None:
        self.builder = builder
        self.value = value

    @property
    def type(self) -> ir.Type:
        return self.value.type


class Integer(_Value):
    """A signed integer, or a truth value."""

    __slots__ = ()

    def _write(self, instruction: str, other: Integer | int) -> Integer:
        right = other.value if isinstance(other, Integer) else ir.Constant(self.type, other)
        return Integer(self.builder, getattr(self.builder, instruction)(self.value, right))

    def __add__(self, other: Integer | int) -> Integer:
        return self._write("add", other)

    def __sub__(self, other: Integer | int) -> Integer:
        return self._write("sub", other)

    def __and__(self, other: Integer | int) -> Integer:
        return self._write("and_", other)

    def __or__(self, other: Integer | int) -> Integer:
        return self._write("or_", other)

    def __lshift__(self, other: int) -> Integer:
        return self._write("shl", other)

    def __rshift__(self, other: int) -> Integer:
        return self._write("ashr", other)

    def equals(self, other: Integer | int) -> Integer:
        right = other.value if isinstance(other, Integer) else ir.Constant(self.type, other)
        return Integer(self.builder, self.builder.icmp_signed("==", self.value, right))

    def __xor__(self, other: Integer | int) -> Integer:
        return self._write("xor", other)

    def __invert__(self) -> Integer:
        return Integer(self.builder, self.builder.not_(self.value))

    def __lt__(self, other: int) -> Integer:
        condition = self.builder.icmp_signed("<", self.value, ir.Constant(self.type, other))
        return Integer(self.builder, condition)

    def __neg__(self) -> Integer:
        return Integer(self.builder, self.builder.neg(self.value))

    def to_real(self, kind: ir.Type) -> Real:
        """Convert a number that 32 bits hold; few processors convert vectors of 64-bit integers."""
        value = self.value
        if self.type.width > 32:
            value = self.builder.trunc(value, ir.IntType(32))
        return Real(self.builder, self.builder.sitofp(value, kind))

    def as_real(self) -> Real:
        """Read the bits as a floating-point number."""
        kind = ir.FloatType() if self.type.width == 32 else ir.DoubleType()
        return Real(self.builder, self.builder.bitcast(self.value, kind))


class Real(_Value):
    """A floating-point number. Its operations carry no fast-math flags: they do what IEEE 754 says."""

    __slots__ = ()

    def _other(self, other: Real | float) -> ir.Value:
        return other.value if isinstance(other, Real) else ir.Constant(self.type, other)

    def _write(self, instruction: str, other: Real | float, swapped: bool = False) -> Real:
        operands = (self.value, self._other(other))
        return Real(self.builder, getattr(self.builder, instruction)(*operands[:: -1 if swapped else 1]))

    def __add__(self, other: Real | float) -> Real:
        return self._write("fadd", other)

    def __radd__(self, other: float) -> Real:
        return self._write("fadd", other, swapped=True)

    def __sub__(self, other: Real | float) -> Real:
        return self._write("fsub", other)

    def __rsub__(self, other: float) -> Real:
        return self._write("fsub", other, swapped=True)

    def __mul__(self, other: Real | float) -> Real:
        return self._write("fmul", other)

    def __rmul__(self, other: float) -> Real:
        return self._write("fmul", other, swapped=True)

    def __truediv__(self, other: Real | float) -> Real:
        return self._write("fdiv", other)

    def __rtruediv__(self, other: float) -> Real:
        return self._write("fdiv", other, swapped=True)

    def __neg__(self) -> Real:
        return Real(self.builder, self.builder.fneg(self.value))

    def _compare(self, sign: str, other: Real | float) -> Integer:
        return Integer(self.builder, self.builder.fcmp_ordered(sign, self.value, self._other(other)))

    def __lt__(self, other: Real | float) -> Integer:
        return self._compare("<", other)

    def __le__(self, other: Real | float) -> Integer:
        return self._compare("<=", other)

    def __gt__(self, other: Real | float) -> Integer:
        return self._compare(">", other)

    def __ge__(self, other: Real | float) -> Integer:
        return self._compare(">=", other)

    def equals(self, other: Real | float) -> Integer:
        return self._compare("==", other)

    def unordered(self, other: Real | float) -> Integer:
        """Say whether either is NaN."""
        return Integer(self.builder, self.builder.fcmp_unordered("uno", self.value, self._other(other)))

    def call(self, intrinsic: str, *others: Real | float) -> Real:
        """Call an LLVM intrinsic whose arguments and result have this type."""
        arguments = [self.value, *map(self._other, others)]
        kind = ir.FunctionType(self.type, [self.type] * len(arguments))
        callee = self.builder.module.declare_intrinsic(intrinsic, [self.type], kind)
        return Real(self.builder, self.builder.call(callee, arguments))

    def times_plus(self, factor: Real | float, term: Real | float) -> Real:
        """Multiply and add: with one rounding where the processor has that instruction, else with two."""
        return self.call("llvm.fmuladd", factor, term)

    def times_plus_exactly(self, factor: Real | float, term: Real | float) -> Real:
        """Multiply and add with one rounding, at the price of a call where the processor cannot."""
        return self.call("llvm.fma", factor, term)

    def absolute(self) -> Real:
        return self.call("llvm.fabs")

    def signed_like(self, other: Real) -> Real:
        return self.call("llvm.copysign", other)

    def within(self, low: float, high: float) -> Real:
        """Clip; NaN stays."""
        return select(self > high, high, select(self < low, low, self))

    def bits(self) -> Integer:
        return Integer(self.builder, self.builder.bitcast(self.value, _INTEGERS[str(self.type)]))

    def cast(self, kind: ir.Type) -> Real:
        """Convert to the other width."""
        if kind == self.type:
            return self
        widen = isinstance(kind, ir.DoubleType)
        convert = self.builder.fpext if widen else self.builder.fptrunc
        return Real(self.builder, convert(self.value, kind))

    def rounded(self) -> tuple[Real, Integer]:
        """Round to the nearest whole number, as a real and as an integer; below 2^22 (or 2^51) in size.

        Adding and subtracting a large number rounds on every processor, and leaves the integer in the low
        bits of the sum.
        """
        shifter = 1.5 * 2.0 ** FRACTION[str(self.type)]
        shifted = self + shifter
        return shifted - shifter, shifted.bits() - constant(self, shifter).bits()


def constant(like: Real, number: float) -> Real:
    """Write a constant of another value's type."""
    return Real(like.builder, ir.Constant(like.type, number))


def select(condition: Integer, first: Real | float, second: Real | float) -> Real:
    """Choose; both are computed."""
    model = first if isinstance(first, Real) else second
    assert isinstance(model, Real)
    chosen = condition.builder.select(condition.value, model._other(first), model._other(second))
    return Real(condition.builder, chosen)


def maximum(first: Real, second: float) -> Real:
    """Give the larger; NaN stays."""
    return select(first < second, second, first)


def power_of_two(exponent: Integer) -> Real:
    """Give 2**exponent, for exponents of normal numbers."""
    name = "float" if exponent.type.width == 32 else "double"
    return ((exponent + BIAS[name]) << FRACTION[name]).as_real()


def polynomial(x: Real, coefficients: Sequence[float]) -> Real:
    """Evaluate by Horner's rule; the constant term comes first."""
    *rest, last = coefficients
    total = constant(x, last)
    for coefficient in reversed(rest):
        total = total.times_plus(x, coefficient)
    return total


def function(
    module: ir.Module, name: str, arity: int, kind: ir.Type, body: Callable[..., Real]
) -> ir.Function:
    """Find or write a private function of a module that is inlined wherever it is called.

    Parameters
    ----------
    module : ir.Module
    name : str
        What it computes.
    arity : int
        Its number of arguments.
    kind : ir.Type
        The type of its arguments and its result.
    body : callable
        Writes it: takes the arguments as `Real`, gives the result.
    """
    full = f"ptml.{name}.{kind}"
    if full in module.globals:
        return module.globals[full]
    written = ir.Function(module, ir.FunctionType(kind, [kind] * arity), full)
    written.linkage = "internal"
    for attribute in ("alwaysinline", "nounwind"):
        written.attributes.add(attribute)
    builder = ir.IRBuilder(written.append_basic_block("entry"))
    arguments: list[Any] = [Real(builder, argument) for argument in written.args]
    builder.ret(body(*arguments).value)
    return written
