"""Mathematical functions in LLVM: our own, which vectorize, where there is one, else the C library's."""

from __future__ import annotations

import math

from llvmlite import ir

from ptml.backends.numba.vectormath import SUPPORTED, emit

__all__ = ["emit_math"]


def emit_math(name: str, builder: ir.IRBuilder, *operands: ir.Value) -> ir.Value:
    """Compute a function of floats.

    Parameters
    ----------
    name : str
        One of ``vectormath.SUPPORTED``, ``"log1mexp"``, or as the C library calls it.
    builder : IRBuilder
    *operands : ir.Value
        Floats or doubles, all alike.
    """
    if name in SUPPORTED:
        return emit(name, builder, *operands)
    if name == "log1mexp":
        return _log1mexp(builder, *operands)
    kind = operands[0].type
    symbol = name if isinstance(kind, ir.DoubleType) else f"{name}f"
    function = builder.module.globals.get(symbol)
    if function is None:
        function = ir.Function(builder.module, ir.FunctionType(kind, [kind] * len(operands)), symbol)
        # A function of its operands alone: what does not change in a loop is computed before it.
        function.attributes.add("nounwind")
        function.attributes.add("readnone")
    return builder.call(function, operands)


def _log1mexp(builder: ir.IRBuilder, x: ir.Value) -> ir.Value:
    # Maechler, "Accurately computing log(1 - exp(-|a|))", 2012: two forms, each right where it is used.
    far = emit_math("log1p", builder, builder.fneg(emit_math("exp", builder, x)))
    near = emit_math("log", builder, builder.fneg(emit_math("expm1", builder, x)))
    return builder.select(builder.fcmp_ordered("<", x, x.type(-math.log(2.0))), far, near)
