"""Rules of normalization: a row is read from memory once, forward and back, then it is in the cache."""

from __future__ import annotations

import math
from functools import cache
from typing import TYPE_CHECKING

from llvmlite import ir

from ptml.backends.numba.plan.codegen.routine import Array, Routine, in_order, same_floats
from ptml.backends.numba.plan.codegen.scalars import intrinsic
from ptml.backends.numba.plan.errors import Unsupported
from ptml.backends.numba.plan.lowering import rule
from ptml.backends.numba.plan.memory import Value
from ptml.backends.numba.plan.runtime.pool import Share
from ptml.backends.numba.plan.runtime.sharing import share_over
from ptml.ops.normalization import Normalize, NormalizeGradient

if TYPE_CHECKING:
    from ptml.backends.numba.plan.planner import Planner
    from ptml.backends.numba.plan.schedule import Unit

__all__: list[str] = []

#: What a number costs, as `share_over` counts.
_WORK = 20

#: Rows are cut into no more parts than this: each has sums of its own for the scale and the shift.
PARTS = 16

_DOUBLE = ir.DoubleType()


@rule(Normalize, takes=same_floats)
def lower_normalize(plan: Planner, unit: Unit, values: list[Value]) -> list[Value]:
    op, (X, *affine) = unit.node.op, (in_order(plan, unit, value) for value in values)
    shape, dtype = X.array.shape, str(X.array.dtype)
    _check(X, affine)
    rows, *of_row = (
        plan.new(shape if k == 0 else shape[:-1], dtype, v) for k, v in enumerate(unit.node.outputs)
    )
    if X.array.size:
        n, width, size = math.prod(shape[:-1]), shape[-1], X.array.itemsize
        arrays = [X, rows, *of_row, *affine]
        steps = dict.fromkeys((0, 1), width * size) | {2 + k: size for k in range(len(of_row))}
        share = share_over(n, width * _WORK, len(arrays), steps)
        kernel = _forward_kernel(dtype, op.epsilon, op.centred, len(affine))
        plan.emit_shared(kernel, [*arrays, n, width], unit, share)
    return [rows, *of_row]


@rule(NormalizeGradient, takes=same_floats)
def lower_normalize_gradient(plan: Planner, unit: Unit, values: list[Value]) -> list[Value]:
    op, affine = unit.node.op, len(unit.node.outputs) > 1
    X, *rest = (in_order(plan, unit, value) for value in values)
    scale = [rest.pop(0)] if affine else []
    g, *of_row = rest
    shape, dtype = X.array.shape, str(X.array.dtype)
    _check(X, scale)
    if g.array.shape != shape or any(value.array.shape != shape[:-1] for value in of_row):
        raise Unsupported("what comes back has another shape")
    of_X = plan.new(shape, dtype, unit.node.outputs[0])
    of_affine = [plan.new(shape[-1:], dtype, variable) for variable in unit.node.outputs[1:]]
    n, width, size = math.prod(shape[:-1]), shape[-1], X.array.itemsize
    arrays = [X, g, of_X, *of_row, *scale]
    count = len(arrays) + affine
    steps = dict.fromkeys((0, 1, 2), width * size) | {3 + k: size for k in range(len(of_row))}
    share, parts = share_over(n, width * _WORK, count, steps), 1
    if share is not None:
        grain = max(share.grain, -(-n // PARTS))
        parts = -(-n // grain)
        share = Share(count, n, steps, grain, 0, {len(arrays): 2 * width * 8} if affine else {})
    sums = [plan.temporary((parts, 2, width), "float64")] if affine else []
    kernel = _backward_kernel(dtype, op.centred, affine)
    plan.emit_shared(kernel, [*arrays, *sums, n, width], unit, share)
    if affine:
        plan.emit(_adding_kernel(dtype), [*sums, *of_affine, parts, width], unit)
    return [of_X, *of_affine]


def _check(X: Value, affine: list[Value]) -> None:
    if not X.array.ndim or not X.array.shape[-1]:
        raise Unsupported("nothing in a row")
    if any(value.array.shape != X.array.shape[-1:] for value in affine):
        raise Unsupported("a scale or shift of another size")


class _Rows:
    """Kernels of rows in the writing: sums over a row, in double precision."""

    def __init__(self, routine: Routine, dtype: str) -> None:
        self.routine, self.builder, self.dtype = routine, routine.builder, dtype
        self.n, self.width = routine.numbers
        self.kind = routine.arrays[0].kind
        self.count = self.builder.sitofp(self.width, _DOUBLE)

    def wide(self, x: ir.Value) -> ir.Value:
        return self.routine.cast(x, self.dtype, "float64")

    def narrow(self, x: ir.Value) -> ir.Value:
        return self.routine.cast(x, "float64", self.dtype)

    def mean(self, *of: ir.Value) -> list[ir.Value]:
        """Divide sums by the width."""
        return [self.narrow(self.builder.fdiv(x, self.count)) for x in of]

    def row(self, array: Array, i: ir.Value) -> Array:
        return array.from_(self.builder.mul(i, self.width))


@cache
def _forward_kernel(dtype: str, epsilon: float, centred: bool, n_affine: int) -> int:
    """Give the kernel of (X, rows, inverse[, mean][, scale][, b]), and of how many rows, and how wide."""
    routine = Routine([dtype] * (3 + centred + n_affine), 2)
    builder, code = routine.builder, _Rows(routine, dtype)
    X, rows, inverses, *more = routine.arrays
    means, affine = (more[0], more[1:]) if centred else (None, more)

    def one_row(i: ir.Value) -> None:
        x, out = code.row(X, i), code.row(rows, i)
        mean = None
        if means is not None:
            total = routine.reduced("add", "float64", code.width, lambda c: code.wide(x[c]))
            [mean] = code.mean(total)
            means[i] = mean

        def rest(c: ir.Value) -> ir.Value:
            return x[c] if mean is None else builder.fsub(x[c], mean)

        def square(c: ir.Value) -> ir.Value:
            difference = code.wide(rest(c))
            return builder.fmul(difference, difference, flags=("contract",))

        [variance] = code.mean(routine.reduced("add", "float64", code.width, square))
        root = intrinsic(builder, "sqrt", builder.fadd(variance, code.kind(epsilon)))
        inverses[i] = inverse = builder.fdiv(code.kind(1.0), root)

        def put(c: ir.Value) -> None:
            value = builder.fmul(rest(c), inverse)
            if affine:
                value = builder.fmul(value, affine[0][c])
            if affine[1:]:
                value = builder.fadd(value, affine[1][c], flags=("contract",))
            out[c] = value

        routine.each(code.width, put)

    routine.each(code.n, one_row)
    return routine.address()


@cache
def _backward_kernel(dtype: str, centred: bool, affine: bool) -> int:
    """Give the kernel of (X, g, of_X, inverse[, mean][, scale, sums]), and of how many rows, and how wide.

    The sums are those of a part: what the scale gets, and what the shift gets.
    """
    dtypes = [dtype] * (4 + centred) + ([dtype, "float64"] if affine else [])
    routine = Routine(dtypes, 2)
    builder, code = routine.builder, _Rows(routine, dtype)
    X, G, of_X, inverses, *more = routine.arrays
    means, more = (more[0], more[1:]) if centred else (None, more)
    if affine:
        scale, of_scale = more
        of_b = of_scale.from_(code.width)

        def clear(c: ir.Value) -> None:
            of_scale[c] = of_b[c] = _DOUBLE(0.0)

        routine.each(code.width, clear)

    def one_row(i: ir.Value) -> None:
        x, g, out = (code.row(array, i) for array in (X, G, of_X))
        inverse = inverses[i]
        mean = None if means is None else means[i]

        def standard(c: ir.Value) -> ir.Value:
            return builder.fmul(x[c] if mean is None else builder.fsub(x[c], mean), inverse)

        def back(c: ir.Value) -> ir.Value:
            return builder.fmul(g[c], scale[c]) if affine else g[c]

        def terms(c: ir.Value) -> list[ir.Value]:
            one, other = code.wide(back(c)), code.wide(standard(c))
            product = builder.fmul(one, other, flags=("contract",))
            if affine:
                of_b[c] = builder.fadd(of_b[c], code.wide(g[c]))
                own = builder.fmul(code.wide(g[c]), other, flags=("contract",))
                of_scale[c] = builder.fadd(of_scale[c], own, flags=("contract",))
            return [one, product]

        sums = routine.all_reduced([("add", "float64")] * 2, code.width, terms)
        of_mean, of_rows = code.mean(*sums)

        def put(c: ir.Value) -> None:
            value = builder.fmul(standard(c), of_rows)
            if mean is not None:
                value = builder.fadd(value, of_mean)
            out[c] = builder.fmul(builder.fsub(back(c), value), inverse)

        routine.each(code.width, put)

    routine.each(code.n, one_row)
    return routine.address()


@cache
def _adding_kernel(dtype: str) -> int:
    """Give the kernel of (sums, of_scale, of_b), and of how many parts there are, and how wide they are."""
    routine = Routine(["float64", dtype, dtype], 2)
    builder, (sums, of_scale, of_b) = routine.builder, routine.arrays
    parts, width = routine.numbers

    def add(part: ir.Value) -> None:
        own = sums.from_(builder.mul(part, builder.mul(width, routine.index(2))))
        routine.each(
            builder.mul(width, routine.index(2)), lambda c: sums.put(c, builder.fadd(sums[c], own[c]))
        )

    # The first part is where the others are added.
    others = builder.sub(parts, routine.index(1))
    routine.each(others, lambda k: add(builder.add(k, routine.index(1))))
    shift = sums.from_(width)

    def put(c: ir.Value) -> None:
        of_scale[c] = routine.cast(sums[c], "float64", dtype)
        of_b[c] = routine.cast(shift[c], "float64", dtype)

    routine.each(width, put)
    return routine.address()
