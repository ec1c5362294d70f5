"""Rules of what goes along an axis in its order: sorting, the place of the largest, running sums."""

from __future__ import annotations

import math
from functools import cache
from typing import TYPE_CHECKING

from llvmlite import ir
from pytensor.tensor.extra_ops import CumOp
from pytensor.tensor.math import Argmax
from pytensor.tensor.sort import ArgSortOp, SortOp

from ptml.backends.numba.plan.codegen.dtypes import is_float, is_signed
from ptml.backends.numba.plan.codegen.routine import Array, Routine, in_order
from ptml.backends.numba.plan.codegen.scalars import combine
from ptml.backends.numba.plan.errors import Unsupported
from ptml.backends.numba.plan.lowering import rule
from ptml.backends.numba.plan.memory import Value
from ptml.backends.numba.plan.rules.elementwise import copy_into
from ptml.backends.numba.plan.runtime.sharing import share_over

if TYPE_CHECKING:
    from ptml.backends.numba.plan.planner import Planner
    from ptml.backends.numba.plan.schedule import Unit

__all__: list[str] = []

#: Sorts of more comparisons are NumPy's, whose vectors make up for a step in Python by then.
LONG = 2**11


@rule(CumOp)
def lower_running(plan: Planner, unit: Unit, values: list[Value]) -> list[Value]:
    op, output = unit.node.op, unit.node.outputs[0]
    x = in_order(plan, unit, values[0])
    shape, dtype = x.array.shape, output.type.dtype
    made = plan.new(shape, dtype, output)
    outer, n, inner = math.prod(shape[: op.axis]), shape[op.axis], math.prod(shape[op.axis + 1 :])
    if x.array.size:
        itemsize = x.array.dtype.itemsize
        share = share_over(outer, 4 * n * inner, 2, dict.fromkeys((0, 1), n * inner * itemsize))
        plan.emit_shared(_running_kernel(dtype, op.mode), [x, made, outer, n, inner], unit, share)
    return [made]


@cache
def _running_kernel(dtype: str, mode: str) -> int:
    routine = Routine([dtype, dtype], 3)
    (x, out), (outer, n, inner), builder = routine.arrays, routine.numbers, routine.builder
    one = routine.index(1)

    def following(total: ir.Value, number: ir.Value) -> ir.Value:
        if is_float(dtype):
            return (builder.fadd if mode == "add" else builder.fmul)(total, number)
        return combine(builder, mode, total, number, dtype)

    def line(start: ir.Value, step: ir.Value) -> None:
        at = builder.add(start, builder.mul(builder.add(step, one), inner))

        def element(k: ir.Value) -> None:
            here = builder.add(at, k)
            out[here] = following(out[builder.sub(here, inner)], x[here])

        routine.each(inner, element)

    def part(o: ir.Value) -> None:
        start = builder.mul(o, builder.mul(n, inner))
        routine.each(inner, lambda k: out.put(builder.add(start, k), x[builder.add(start, k)]))
        routine.each(builder.sub(n, one), lambda step: line(start, step))

    routine.each(outer, part)
    return routine.address()


@rule(Argmax)
def lower_argmax(plan: Planner, unit: Unit, values: list[Value]) -> list[Value]:
    [value], axes, output = values, unit.node.op.axis, unit.node.outputs[0]
    array = value.array
    axes = tuple(range(array.ndim)) if axes is None else axes
    kept = [axis for axis in range(array.ndim) if axis not in axes]
    x = in_order(plan, unit, value.seen_as(array.transpose([*kept, *axes])))
    rows, n = math.prod(array.shape[axis] for axis in kept), math.prod(array.shape[axis] for axis in axes)
    if not n:
        raise Unsupported("the largest of nothing")
    made = plan.new([array.shape[axis] for axis in kept], "int64", output)
    share = share_over(rows, 3 * n, 2, {0: n * array.dtype.itemsize, 1: 8})
    plan.emit_shared(_argmax_kernel(str(array.dtype)), [x, made, rows, n], unit, share)
    return [made]


@cache
def _argmax_kernel(dtype: str) -> int:
    routine = Routine([dtype, "int64"], 2)
    (x, out), (rows, n), builder = routine.arrays, routine.numbers, routine.builder

    def row(r: ir.Value) -> None:
        numbers = x.from_(builder.mul(r, n))
        largest = routine.reduced("maximum", dtype, n, lambda i: numbers[i])

        def found(i: ir.Value) -> ir.Value:
            equal = (builder.fcmp_ordered if is_float(dtype) else builder.icmp_unsigned)(
                "==", numbers[i], largest
            )
            if is_float(dtype):
                # Where there is any NaN, it is the largest.
                equal = builder.or_(equal, builder.fcmp_unordered("uno", numbers[i], numbers[i]))
            return builder.select(equal, i, n)

        out[r] = routine.reduced("minimum", "int64", n, found)

    routine.each(rows, row)
    return routine.address()


def _smaller(builder: ir.IRBuilder, a: ir.Value, b: ir.Value, dtype: str) -> ir.Value:
    """Say whether a number goes before another: NaN goes last, as for NumPy."""
    if not is_float(dtype):
        return (builder.icmp_signed if is_signed(dtype) else builder.icmp_unsigned)("<", a, b)
    last = builder.and_(builder.fcmp_unordered("uno", b, b), builder.fcmp_ordered("ord", a, a))
    return builder.or_(builder.fcmp_ordered("<", a, b), last)


@rule(SortOp, ArgSortOp)
def lower_sort(plan: Planner, unit: Unit, values: list[Value]) -> list[Value]:
    op, output = unit.node.op, unit.node.outputs[0]
    [value], axis = values, unit.node.op.axis
    array, dtype = value.array, output.type.dtype
    order = [k for k in range(array.ndim) if k != axis] + [axis]
    x = in_order(plan, unit, value.seen_as(array.transpose(order)))
    made = plan.new(array.shape, dtype, output)
    if not array.size:
        return [made]
    place = made.seen_as(made.array.transpose(order))
    rows = place if place.array.flags.c_contiguous else plan.temporary(x.array.shape, dtype)
    n = array.shape[axis]
    passes = (n - 1).bit_length()
    if array.size * passes > LONG:
        raise Unsupported("a sort that NumPy does faster")
    spare = [plan.temporary((n,), "int64") for _ in range(2)]
    kernel = _sort_kernel(str(array.dtype), isinstance(op, ArgSortOp))
    plan.emit(kernel, [x, rows, *spare, array.size // n, n, passes], unit)
    if rows is not place:
        copy_into(plan, unit, place, rows)
    return [made]


@cache
def _sort_kernel(dtype: str, gives_places: bool) -> int:
    """Give the kernel that merges ever longer runs of the places of a row's numbers, so that equal ones keep
    their order."""
    routine = Routine([dtype, "int64" if gives_places else dtype, "int64", "int64"], 3)
    x, out, first, second = routine.arrays
    n_rows, n, passes = routine.numbers
    builder, one = routine.builder, routine.index(1)
    with builder.goto_entry_block():
        left_at, right_at = builder.alloca(one.type), builder.alloca(one.type)

    def least(a: ir.Value, b: ir.Value) -> ir.Value:
        return builder.select(builder.icmp_signed("<", a, b), a, b)

    def swapped(odd: ir.Value) -> tuple[Array, Array]:
        a = builder.select(odd, second.pointer, first.pointer)
        b = builder.select(odd, first.pointer, second.pointer)
        return Array(builder, a, "int64"), Array(builder, b, "int64")

    def merge(numbers: Array, source: Array, target: Array, width: ir.Value, block: ir.Value) -> None:
        start = builder.mul(block, builder.shl(width, one))
        middle = least(builder.add(start, width), n)
        end = least(builder.add(middle, width), n)
        builder.store(start, left_at)
        builder.store(middle, right_at)

        def element(p: ir.Value) -> None:
            left, right = (builder.load(at, typ=one.type) for at in (left_at, right_at))
            a = source[least(left, builder.sub(middle, one))]
            b = source[least(right, builder.sub(end, one))]
            no_left = builder.icmp_signed(">=", left, middle)
            takes = builder.or_(no_left, _smaller(builder, numbers[b], numbers[a], dtype))
            takes = builder.and_(takes, builder.icmp_signed("<", right, end))
            target[builder.add(start, p)] = builder.select(takes, b, a)
            moved = builder.zext(takes, one.type)
            builder.store(builder.add(right, moved), right_at)
            builder.store(builder.add(left, builder.sub(one, moved)), left_at)

        routine.each(builder.sub(end, start), element)

    def row(r: ir.Value) -> None:
        at = builder.mul(r, n)
        numbers, result = x.from_(at), out.from_(at)
        routine.each(n, lambda i: first.put(i, i))

        def run(k: ir.Value) -> None:
            width = builder.shl(one, k)
            source, target = swapped(builder.trunc(k, ir.IntType(1)))
            twice = builder.shl(width, one)
            blocks = builder.sdiv(builder.add(n, builder.sub(twice, one)), twice)
            routine.each(blocks, lambda block: merge(numbers, source, target, width, block))

        routine.each(passes, run)
        places, _ = swapped(builder.trunc(passes, ir.IntType(1)))
        routine.each(n, lambda i: result.put(i, places[i] if gives_places else numbers[places[i]]))

    routine.each(n_rows, row)
    return routine.address()
