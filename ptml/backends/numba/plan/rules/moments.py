"""The rule of means and variances: sums of differences from the first row, and of their squares, in one walk.

The first row is one of those that are averaged: its distance from their mean is at most ``sqrt(n)`` standard
deviations, so that little is lost where the two sums are taken from one another, and nothing where a feature
is constant.
"""

from __future__ import annotations

import math
from functools import cache
from typing import TYPE_CHECKING

import numpy as np
from llvmlite import ir

from ptml.backends.numba.plan.codegen.routine import Routine, in_order, same_floats
from ptml.backends.numba.plan.codegen.scalars import intrinsic
from ptml.backends.numba.plan.errors import Unsupported
from ptml.backends.numba.plan.lowering import rule
from ptml.backends.numba.plan.memory import Value
from ptml.ops.moments import Moments

if TYPE_CHECKING:
    from ptml.backends.numba.plan.planner import Planner
    from ptml.backends.numba.plan.schedule import Unit

__all__: list[str] = []

_I64, _DOUBLE = ir.IntType(64), ir.DoubleType()


@rule(Moments, takes=same_floats)
def lower_moments(plan: Planner, unit: Unit, values: list[Value]) -> list[Value]:
    X, n = in_order(plan, unit, values[0]), values[1]
    shape, dtype = X.array.shape, str(X.array.dtype)
    n_rows, width = math.prod(shape[:-1]), shape[-1]
    if not n.known or int(n.array) != n_rows or not n_rows:
        raise Unsupported("another number of values")
    mean, variance = (plan.new((width,), dtype, v) for v in unit.node.outputs)
    if width:
        sums = plan.temporary((2, width), "float64")
        plan.emit(_kernel(dtype), [X, mean, variance, sums, n_rows, width], unit)
    return [mean, variance]


@cache
def _kernel(dtype: str) -> int:
    """Give the kernel of (X, mean, variance, memory for two numbers for each feature, rows, features)."""
    routine = Routine([dtype, dtype, dtype, "float64"], 2)
    builder = routine.builder
    X, mean, variance, sums = routine.arrays
    n_rows, width = routine.numbers
    squares = sums.from_(width)
    zero = _DOUBLE(0.0)

    def wide(value: ir.Value) -> ir.Value:
        return routine.cast(value, dtype, "float64")

    def start(c: ir.Value) -> None:
        # An infinite one would make NaN of a mean that is infinite.
        finite = builder.fcmp_ordered("<", intrinsic(builder, "fabs", X[c]), X.kind(np.inf))
        mean[c] = builder.select(finite, X[c], X.kind(0.0))
        sums[c] = squares[c] = zero

    routine.each(width, start)

    def add(row: ir.Value) -> None:
        x = X.from_(builder.mul(row, width))

        def one(c: ir.Value) -> None:
            difference = builder.fsub(wide(x[c]), wide(mean[c]))
            sums[c] = builder.fadd(sums[c], difference)
            square = builder.fmul(difference, difference, flags=("contract",))
            squares[c] = builder.fadd(squares[c], square, flags=("contract",))

        routine.each(width, one)

    routine.each(n_rows, add)
    count = builder.sitofp(n_rows, _DOUBLE)

    def end(c: ir.Value) -> None:
        off = builder.fdiv(sums[c], count)
        spread = builder.fsub(builder.fdiv(squares[c], count), builder.fmul(off, off))
        positive = builder.select(builder.fcmp_ordered("<", spread, zero), zero, spread)
        variance[c] = routine.cast(positive, "float64", dtype)
        mean[c] = routine.cast(builder.fadd(wide(mean[c]), off), "float64", dtype)

    routine.each(width, end)
    return routine.address()
