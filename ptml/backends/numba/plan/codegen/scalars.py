"""PyTensor's scalar ops as LLVM instructions.

``OPS`` holds a function for each: it is given the builder, the operands, their dtypes and the dtype of the
result. What is not there is `Unsupported`, and the node that holds it runs in Python.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import pytensor.scalar as ps
from llvmlite import ir
from pytensor.graph.basic import Constant
from pytensor.scalar import math as psm

from ptml.backends.numba.plan.codegen.dtypes import constant, convert, is_float, is_signed, register_type
from ptml.backends.numba.plan.codegen.mathematics import emit_math
from ptml.backends.numba.plan.errors import Unsupported

__all__ = ["combine", "emit_scalar", "identity", "intrinsic"]

Emitter = Callable[[ir.IRBuilder, Sequence[ir.Value], Sequence[str], str], ir.Value]

_FLOAT = {"add": "fadd", "sub": "fsub", "mul": "fmul"}

# What C compilers do too: a product and a sum may be rounded once, and a division by what stays the same in a
# loop may become a product with its inverse.
_FUSED = ("contract",)
_INVERTED = ("arcp", "contract")


def intrinsic(builder: ir.IRBuilder, name: str, *operands: ir.Value) -> ir.Value:
    """Call an LLVM intrinsic of operands of one type, such as ``llvm.sqrt``."""
    kind = operands[0].type
    signature = ir.FunctionType(kind, [kind] * len(operands))
    return builder.call(builder.module.declare_intrinsic(f"llvm.{name}", [kind], signature), operands)


def emit_scalar(
    builder: ir.IRBuilder,
    op: ps.ScalarOp,
    operands: Sequence[ir.Value],
    dtypes: Sequence[str],
    out: list[str],
) -> list[ir.Value]:
    """Compute a scalar op, or a whole graph of them.

    Parameters
    ----------
    builder : IRBuilder
    op : ScalarOp
        A ``Composite`` among others.
    operands : sequence of ir.Value
    dtypes : sequence of str
        Theirs.
    out : list of str
        Those of the results.

    Raises
    ------
    Unsupported
        If an op has no instructions here.
    """
    if not isinstance(op, ps.Composite):
        emitter = OPS.get(type(op))
        if emitter is None:
            raise Unsupported(f"scalar op {op}")
        return [emitter(builder, operands, dtypes, out[0])]
    graph = op.fgraph
    known = dict(zip(graph.inputs, zip(operands, dtypes, strict=True), strict=True))

    def value(variable: object) -> tuple[ir.Value, str]:
        if isinstance(variable, Constant):
            return constant(variable.data, variable.type.dtype), variable.type.dtype
        return known[variable]

    for node in graph.toposort():
        values, kinds = zip(*map(value, node.inputs), strict=True)
        wanted = [output.type.dtype for output in node.outputs]
        results = emit_scalar(builder, node.op, values, kinds, wanted)
        known.update(zip(node.outputs, zip(results, wanted, strict=True), strict=True))
    return [convert(builder, *value(output), dtype) for output, dtype in zip(graph.outputs, out, strict=True)]


def identity(kind: str, dtype: str) -> ir.Constant:
    """Give the number that a reduction starts from."""
    if kind in ("maximum", "minimum"):
        if dtype == "bool":
            return constant(kind == "minimum", dtype)
        if is_float(dtype):
            return constant(-np.inf if kind == "maximum" else np.inf, dtype)
        limits = np.iinfo(dtype)
        return constant(limits.min if kind == "maximum" else limits.max, dtype)
    if kind == "and":
        return register_type(dtype)(-1)
    return constant(1 if kind == "mul" else 0, dtype)


def combine(builder: ir.IRBuilder, kind: str, a: ir.Value, b: ir.Value, dtype: str) -> ir.Value:
    """Combine two numbers of one dtype; the order of additions and products is left to LLVM."""
    if kind in _FLOAT and is_float(dtype):
        return getattr(builder, _FLOAT[kind])(a, b, flags=("reassoc", "nsz"))
    if kind in ("maximum", "minimum"):
        return _extreme(kind)(builder, (a, b), (dtype, dtype), dtype)
    if kind == "add" and dtype == "bool":
        return builder.or_(a, b)
    name = {
        "add": "add",
        "mul": "and_" if dtype == "bool" else "mul",
        "and": "and_",
        "or": "or_",
        "xor": "xor",
    }
    return getattr(builder, name[kind])(a, b)


def _cast(builder: ir.IRBuilder, operands: Sequence, dtypes: Sequence[str], out: str) -> list[ir.Value]:
    return [convert(builder, x, dtype, out) for x, dtype in zip(operands, dtypes, strict=True)]


def _chain(kind: str) -> Emitter:
    def emit(builder, operands, dtypes, out):
        total, *rest = _cast(builder, operands, dtypes, out)
        for x in rest:
            if is_float(out):
                total = getattr(builder, _FLOAT[kind])(total, x, flags=_FUSED)
            else:
                total = combine(builder, kind, total, x, out)
        return total

    return emit


def _sub(builder, operands, dtypes, out):
    a, b = _cast(builder, operands, dtypes, out)
    return builder.fsub(a, b, flags=_FUSED) if is_float(out) else builder.sub(a, b)


def _true_div(builder, operands, dtypes, out):
    return builder.fdiv(*_cast(builder, operands, dtypes, out), flags=_INVERTED)


def _divisor(builder: ir.IRBuilder, b: ir.Value, signed: bool) -> tuple[ir.Value, ir.Value]:
    """Make a divisor that the processor can divide by, and say where it is another than the one given."""
    bad = builder.icmp_signed("==", b, b.type(0))
    if signed:
        bad = builder.or_(bad, builder.icmp_signed("==", b, b.type(-1)))
    return builder.select(bad, b.type(1), b), bad


def _int_div(builder, operands, dtypes, out):
    a, b = _cast(builder, operands, dtypes, out)
    if is_float(out):
        return intrinsic(builder, "floor", builder.fdiv(a, b))
    if out == "bool":
        raise Unsupported("integer division of truth values")
    zero = a.type(0)
    safe, _ = _divisor(builder, b, is_signed(out))
    by_zero = builder.icmp_signed("==", b, zero)
    if not is_signed(out):
        return builder.select(by_zero, zero, builder.udiv(a, safe))
    quotient = builder.sdiv(a, safe)
    rest = builder.sub(a, builder.mul(quotient, safe))
    apart = builder.icmp_signed("<", builder.xor(rest, safe), zero)
    down = builder.and_(builder.icmp_signed("!=", rest, zero), apart)
    floored = builder.select(down, builder.sub(quotient, a.type(1)), quotient)
    negated = builder.select(builder.icmp_signed("==", b, a.type(-1)), builder.neg(a), floored)
    return builder.select(by_zero, zero, negated)


def _mod(builder, operands, dtypes, out):
    a, b = _cast(builder, operands, dtypes, out)
    zero = constant(0, out)
    if is_float(out):
        rest = builder.frem(a, b)
        apart = builder.xor(builder.fcmp_ordered("<", rest, zero), builder.fcmp_ordered("<", b, zero))
        wrong = builder.and_(builder.fcmp_unordered("!=", rest, zero), apart)
        return builder.select(wrong, builder.fadd(rest, b), rest)
    if out == "bool":
        raise Unsupported("remainder of truth values")
    safe, bad = _divisor(builder, b, is_signed(out))
    if not is_signed(out):
        return builder.select(bad, zero, builder.urem(a, safe))
    rest = builder.srem(a, safe)
    apart = builder.icmp_signed("<", builder.xor(rest, safe), zero)
    wrong = builder.and_(builder.icmp_signed("!=", rest, zero), apart)
    return builder.select(bad, zero, builder.select(wrong, builder.add(rest, safe), rest))


def _pow(builder, operands, dtypes, out):
    if not is_float(out):
        raise Unsupported("a power of integers")
    return emit_math("pow", builder, *_cast(builder, operands, dtypes, out))


def _neg(builder, operands, dtypes, out):
    (x,) = _cast(builder, operands, dtypes, out)
    return builder.fneg(x) if is_float(out) else builder.neg(x)


def _abs(builder, operands, dtypes, out):
    (x,) = _cast(builder, operands, dtypes, out)
    if is_float(out):
        return intrinsic(builder, "fabs", x)
    if not is_signed(out):
        return x
    return builder.select(builder.icmp_signed("<", x, x.type(0)), builder.neg(x), x)


def _sign(builder, operands, dtypes, out):
    (x,) = _cast(builder, operands, dtypes, out)
    zero, one = constant(0, out), constant(1, out)
    if is_float(out):
        signed = builder.select(builder.fcmp_ordered(">", x, zero), one, constant(-1, out))
        # Neither above nor below zero: zero, or no number at all.
        apart = builder.fcmp_ordered("!=", x, zero)
        return builder.select(apart, signed, builder.select(builder.fcmp_unordered("uno", x, x), x, zero))
    if not is_signed(out):
        return builder.select(builder.icmp_unsigned("!=", x, zero), one, zero)
    signed = builder.select(builder.icmp_signed(">", x, zero), one, x.type(-1))
    return builder.select(builder.icmp_signed("==", x, zero), zero, signed)


def _sqr(builder, operands, dtypes, out):
    (x,) = _cast(builder, operands, dtypes, out)
    return builder.fmul(x, x, flags=_FUSED) if is_float(out) else combine(builder, "mul", x, x, out)


def _reciprocal(builder, operands, dtypes, out):
    (x,) = _cast(builder, operands, dtypes, out)
    return builder.fdiv(constant(1, out), x)


def _compared(sign: str) -> Emitter:
    def emit(builder, operands, dtypes, out):
        common = str(np.promote_types(*dtypes))
        a, b = _cast(builder, operands, dtypes, common)
        if is_float(common):
            return (builder.fcmp_unordered if sign == "!=" else builder.fcmp_ordered)(sign, a, b)
        return (builder.icmp_signed if is_signed(common) else builder.icmp_unsigned)(sign, a, b)

    return emit


def _extreme(kind: str) -> Emitter:
    def emit(builder, operands, dtypes, out):
        a, b = _cast(builder, operands, dtypes, out)
        if is_float(out):
            return intrinsic(builder, kind, a, b)
        sign = ">" if kind == "maximum" else "<"
        compare = builder.icmp_signed if is_signed(out) else builder.icmp_unsigned
        return builder.select(compare(sign, a, b), a, b)

    return emit


def _switch(builder, operands, dtypes, out):
    chosen = convert(builder, operands[0], dtypes[0], "bool")
    return builder.select(chosen, *_cast(builder, operands[1:], dtypes[1:], out))


def _clip(builder, operands, dtypes, out):
    x, low, high = _cast(builder, operands, dtypes, out)
    compare = (
        builder.fcmp_ordered
        if is_float(out)
        else (builder.icmp_signed if is_signed(out) else builder.icmp_unsigned)
    )
    return builder.select(compare("<", x, low), low, builder.select(compare(">", x, high), high, x))


def _bits(kind: str) -> Emitter:
    def emit(builder, operands, dtypes, out):
        first, *rest = _cast(builder, operands, dtypes, out)
        for x in rest:
            first = combine(builder, kind, first, x, out)
        return first

    return emit


def _invert(builder, operands, dtypes, out):
    return builder.not_(_cast(builder, operands, dtypes, out)[0])


def _is_nan(builder, operands, dtypes, out):
    return (
        builder.fcmp_unordered("uno", operands[0], operands[0]) if is_float(dtypes[0]) else constant(0, out)
    )


def _is_inf(builder, operands, dtypes, out):
    if not is_float(dtypes[0]):
        return constant(0, out)
    return builder.fcmp_ordered("==", intrinsic(builder, "fabs", operands[0]), constant(np.inf, dtypes[0]))


def _last(builder, operands, dtypes, out):
    return convert(builder, operands[-1], dtypes[-1], out)


def _rounding(name: str) -> Emitter:
    def emit(builder, operands, dtypes, out):
        (x,) = _cast(builder, operands, dtypes, out)
        return intrinsic(builder, name, x) if is_float(out) else x

    return emit


def _mathematics(name: str) -> Emitter:
    def emit(builder, operands, dtypes, out):
        if not is_float(out):
            raise Unsupported(f"{name} to {out}")
        return emit_math(name, builder, *_cast(builder, operands, dtypes, out))

    return emit


#: The instructions of each scalar op.
OPS: dict[type, Emitter] = {
    ps.Add: _chain("add"),
    ps.Mul: _chain("mul"),
    ps.Sub: _sub,
    ps.TrueDiv: _true_div,
    ps.IntDiv: _int_div,
    ps.Mod: _mod,
    ps.Pow: _pow,
    ps.Neg: _neg,
    ps.Abs: _abs,
    ps.Sign: _sign,
    ps.Sqr: _sqr,
    ps.Reciprocal: _reciprocal,
    ps.LT: _compared("<"),
    ps.GT: _compared(">"),
    ps.LE: _compared("<="),
    ps.GE: _compared(">="),
    ps.EQ: _compared("=="),
    ps.NEQ: _compared("!="),
    ps.Maximum: _extreme("maximum"),
    ps.Minimum: _extreme("minimum"),
    ps.Switch: _switch,
    ps.Clip: _clip,
    ps.AND: _bits("and"),
    ps.OR: _bits("or"),
    ps.XOR: _bits("xor"),
    ps.Invert: _invert,
    ps.IsNan: _is_nan,
    ps.IsInf: _is_inf,
    ps.Second: _last,
    ps.Cast: _last,
    ps.Identity: _last,
    ps.Ceil: _rounding("ceil"),
    ps.Floor: _rounding("floor"),
    ps.Trunc: _rounding("trunc"),
    ps.RoundHalfToEven: _rounding("rint"),
    ps.RoundHalfAwayFromZero: _rounding("round"),
    ps.Sqrt: _mathematics("sqrt"),
    **{
        op: _mathematics(name)
        for op, name in {
            ps.Exp: "exp",
            ps.Exp2: "exp2",
            ps.Expm1: "expm1",
            ps.Log: "log",
            ps.Log2: "log2",
            ps.Log10: "log10",
            ps.Log1p: "log1p",
            ps.Sin: "sin",
            ps.Cos: "cos",
            ps.Tan: "tan",
            ps.ArcSin: "asin",
            ps.ArcCos: "acos",
            ps.ArcTan: "atan",
            ps.ArcTan2: "atan2",
            ps.Sinh: "sinh",
            ps.Cosh: "cosh",
            ps.Tanh: "tanh",
            ps.ArcSinh: "asinh",
            ps.ArcCosh: "acosh",
            ps.ArcTanh: "atanh",
            psm.Erf: "erf",
            psm.Erfc: "erfc",
            psm.Sigmoid: "sigmoid",
            psm.Softplus: "softplus",
            psm.Log1mexp: "log1mexp",
        }.items()
    },
}
