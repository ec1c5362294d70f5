"""Rules of resizing: for each element of the result the few that it is made of, over all that lies behind.

Which these are, and their weights, is computed when the table is built, for the lengths at hand.
"""

from __future__ import annotations

import math
from functools import cache
from typing import TYPE_CHECKING

import numpy as np
from llvmlite import ir

from ptml.backends.numba.plan.codegen.routine import Routine, in_order, same_floats
from ptml.backends.numba.plan.errors import Unsupported
from ptml.backends.numba.plan.lowering import rule
from ptml.backends.numba.plan.memory import Fixed, Value
from ptml.backends.numba.plan.runtime.sharing import share_over
from ptml.ops.resizing import Resize, ResizeGradient

if TYPE_CHECKING:
    from ptml.backends.numba.plan.planner import Planner
    from ptml.backends.numba.plan.schedule import Unit

__all__: list[str] = []


@rule(Resize, ResizeGradient, takes=same_floats)
def lower_resize(plan: Planner, unit: Unit, values: list[Value]) -> list[Value]:
    op, source = unit.node.op, in_order(plan, unit, values[-1])
    dtype, axis, back = str(source.array.dtype), op.axis, isinstance(op, ResizeGradient)
    shape = values[0].array.shape
    n, after = shape[axis], op.length(shape[axis])
    if not n or (back and source.array.shape != op.resized(shape)):
        raise Unsupported("nothing to resize, or a gradient of another shape")
    result = plan.new(shape if back else op.resized(shape), dtype, unit.node.outputs[0])
    if result.array.size:
        outer, inner = math.prod(shape[:axis]), math.prod(shape[axis + 1 :])
        pairs = op.sources(np.arange(after), n)
        places = np.stack([positions for positions, _ in pairs], axis=1).astype(np.int64)
        weights = [np.ones(after) if weight is None else weight for _, weight in pairs]
        tables = [places, np.stack(weights, axis=1).astype(dtype)]
        words = [source, result, *(Value(t, Fixed(), known=True) for t in tables), outer, n, after, inner]
        sizes = (n * inner, after * inner)
        steps = {k: size * result.array.itemsize for k, size in enumerate(sizes[::-1] if back else sizes)}
        share = share_over(outer, 3 * len(pairs) * after * inner, 4, steps)
        kernel = _gradient_kernel if back else _kernel
        plan.emit_shared(kernel(dtype, len(pairs)), words, unit, share)
    return [result]


@cache
def _kernel(dtype: str, taps: int) -> int:
    """Give the kernel of (data, result, positions, weights), and outer size, lengths and inner size."""
    routine = Routine([dtype, dtype, "int64", dtype], 4)
    builder, (data, result, places, weights) = routine.builder, routine.arrays
    outer, n, after, inner = routine.numbers

    def one(o: ir.Value, j: ir.Value) -> None:
        first = builder.mul(j, ir.IntType(64)(taps))
        at = [builder.add(first, routine.index(k)) for k in range(taps)]
        start = builder.mul(o, n)
        sources = [data.from_(builder.mul(builder.add(start, places[k]), inner)) for k in at]
        target = result.from_(builder.mul(builder.add(builder.mul(o, after), j), inner))
        if taps == 1:
            routine.each(inner, lambda i: target.put(i, sources[0][i]))
            return
        own = [weights[k] for k in at]
        zero = data.kind(0.0)
        absent = [builder.fcmp_ordered("==", weight, zero) for weight in own]

        def element(i: ir.Value) -> None:
            total = None
            for source, weight, none in zip(sources, own, absent, strict=True):
                part = builder.select(none, zero, builder.fmul(weight, source[i]))
                total = part if total is None else builder.fadd(total, part)
            target[i] = total

        routine.each(inner, element)

    routine.each(outer, lambda o: routine.each(after, lambda j: one(o, j)))
    return routine.address()


@cache
def _gradient_kernel(dtype: str, taps: int) -> int:
    """Give the kernel of (what comes back, the gradient, positions, weights), and the same numbers."""
    routine = Routine([dtype, dtype, "int64", dtype], 4)
    builder, (g, result, places, weights) = routine.builder, routine.arrays
    outer, n, after, inner = routine.numbers

    def one(o: ir.Value, j: ir.Value) -> None:
        source = g.from_(builder.mul(builder.add(builder.mul(o, after), j), inner))
        first = builder.mul(j, ir.IntType(64)(taps))
        for k in range(taps):
            at = builder.add(first, routine.index(k))
            weight = weights[at]
            target = result.from_(builder.mul(builder.add(builder.mul(o, n), places[at]), inner))

            def element(i: ir.Value, target=target, weight=weight) -> None:
                part = builder.fmul(weight, source[i])
                target[i] = builder.fadd(target[i], part)

            with builder.if_then(builder.fcmp_unordered("!=", weight, g.kind(0.0))):
                routine.each(inner, element)

    def outermost(o: ir.Value) -> None:
        size = builder.mul(n, inner)
        own = result.from_(builder.mul(o, size))
        routine.each(size, lambda i: own.put(i, own.kind(0.0)))
        routine.each(after, lambda j: one(o, j))

    routine.each(outer, outermost)
    return routine.address()
