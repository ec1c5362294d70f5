"""Rules of pooling: loops over windows, in each over vectors of channels, in each over the window's elements.

What the windows along an axis take of it is computed when the table is built, for the lengths at hand, and
the kernel reads it: so sliding windows with stride, dilation and padding, and windows that divide an axis
evenly, of one to three axes, share their kernels. Channels are last, and a vector of them stays in registers
while a window is walked through.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import cache
from typing import TYPE_CHECKING

import numpy as np
from llvmlite import ir

from ptml.backends.numba.plan.codegen.routine import Array, Routine, in_order, same_floats
from ptml.backends.numba.plan.codegen.windows import (
    N_NUMBERS,
    Sizes,
    Window,
    Windows,
    read,
    spread,
    variable,
    vector,
    write,
)
from ptml.backends.numba.plan.errors import Unsupported
from ptml.backends.numba.plan.lowering import rule
from ptml.backends.numba.plan.memory import Fixed, Value
from ptml.backends.numba.plan.runtime.sharing import share_over
from ptml.ops.pooling import AveragePool, AveragePoolGradient, MaxPool, MaxPoolGradient, MaxPoolPick
from ptml.ops.pooling.windows import Taps, taps_of

if TYPE_CHECKING:
    from ptml.backends.numba.plan.planner import Planner
    from ptml.backends.numba.plan.schedule import Unit
    from ptml.ops.pooling.base import Pools

__all__: list[str] = []

#: Up to how many elements the loops of a window are written out.
MOST = 9

_I32, _I64 = ir.IntType(32), ir.IntType(64)


class _Layout:
    """How data and what was pooled of it lie, for the windows of an op, as three axes: the first of length 1.

    Attributes
    ----------
    n_images, channels : int
    lengths, counts : list of int
        Of the axes, and how many windows there are along each.
    apart, whole : bool
        Whether no two windows meet, and whether every element is in one.
    alike : tuple of int or None
        How many elements every window has along each axis, if all have as many, and few.
    """

    def __init__(self, op: Pools, shape: Sequence[int]) -> None:
        self.n_images, *lengths, self.channels = shape
        taps = taps_of(op.windows, lengths)
        if any((one.number < 1).any() for one in taps) or math.prod(lengths) >= 2**31:
            raise Unsupported("windows of nothing but padding, or an image of too many elements")
        one = np.ones(1, np.int64)
        missing = 3 - len(taps)
        self.taps = [Taps(0 * one, one, one, 1)] * missing + taps
        self.lengths = [1] * missing + lengths
        self.counts = [len(axis.first) for axis in self.taps]
        self.n_elements, self.n_windows = math.prod(self.lengths), math.prod(self.counts)
        ends = [axis.first + (axis.number - 1) * axis.step for axis in self.taps]
        self.apart = all((axis.first[1:] > end[:-1]).all() for axis, end in zip(self.taps, ends, strict=True))
        self.alike = _alike(self.taps)
        covered = (int(axis.number.sum()) for axis in self.taps)
        self.whole = self.apart and all(n == k for n, k in zip(self.lengths, covered, strict=True))

    def table(self) -> Value:
        """Give what windows take: for each axis their first positions, and then how many."""
        rows = [row for axis in self.taps for row in (axis.first, axis.number)]
        return Value(np.concatenate(rows).astype(np.int64), Fixed(), known=True)

    def divisors(self, dtype: str) -> Value:
        """Give what means are divided by along each axis."""
        rows = [axis.divisor for axis in self.taps]
        return Value(np.concatenate(rows).astype(dtype), Fixed(), known=True)

    @property
    def words(self) -> list[int]:
        """The numbers that kernels of windows take: see `Windows`."""
        return [self.n_images, self.channels, *self.lengths, *self.counts, *(t.step for t in self.taps)]

    @property
    def size(self) -> int:
        """How many numbers an image has."""
        return self.n_elements * self.channels

    @property
    def pooled_size(self) -> int:
        """How many numbers are pooled of an image."""
        return self.n_windows * self.channels

    def work(self) -> int:
        """Estimate what the windows of an image cost."""
        return 4 * self.channels * math.prod(int(axis.number.sum()) for axis in self.taps)


def _alike(taps: Sequence[Taps]) -> tuple[int, int, int] | None:
    """Give how many elements windows have along each axis, if all have as many, and few."""
    first, *rest = ({int(n) for n in axis.number} for axis in taps)
    sizes = [first, *rest]
    if any(len(found) != 1 for found in sizes):
        return None
    depth, height, width = (found.pop() for found in sizes)
    return (depth, height, width) if depth * height * width <= MOST else None


def _emit(
    plan: Planner,
    unit: Unit,
    kernel: int,
    layout: _Layout,
    arrays: Sequence[tuple[Value, int]],
    fixed: Sequence[Value] = (),
    numbers: Sequence[int] = (),
) -> None:
    """Emit a kernel of images: arrays, how many numbers of each an image has, and what all images share."""
    words: list[int | Value] = [*(value for value, _ in arrays), *fixed]
    steps = {k: size * value.array.itemsize for k, (value, size) in enumerate(arrays)}
    share = share_over(layout.n_images, layout.work(), len(words), steps)
    plan.emit_shared(kernel, [*words, *numbers], unit, share)


@rule(MaxPool, takes=same_floats)
def lower_max_pool(plan: Planner, unit: Unit, values: list[Value]) -> list[Value]:
    x = in_order(plan, unit, values[0])
    op, dtype = unit.node.op, str(x.array.dtype)
    layout, shape = _Layout(op, x.array.shape), op.pooled_shape(x.array.shape)
    largest, places = unit.node.outputs
    kept = plan.is_used(places, set())
    results = [plan.new(shape, dtype, largest)]
    results += [plan.new(shape, "int32", places)] if kept else []
    if results[0].array.size:
        arrays = [(x, layout.size), *((result, layout.pooled_size) for result in results)]
        _emit(
            plan, unit, _max_kernel(dtype, kept, layout.alike), layout, arrays, [layout.table()], layout.words
        )
    return results if kept else [results[0], plan.temporary((0,), "int32")]


@rule(MaxPoolGradient, takes=same_floats)
def lower_max_pool_gradient(plan: Planner, unit: Unit, values: list[Value]) -> list[Value]:
    shape = values[0].array.shape
    places, g = (in_order(plan, unit, value) for value in values[1:])
    op, dtype = unit.node.op, str(g.array.dtype)
    layout = _Layout(op, shape)
    result = plan.new(shape, dtype, unit.node.outputs[0])
    if result.array.size:
        arrays = [(places, layout.pooled_size), (g, layout.pooled_size), (result, layout.size)]
        if layout.apart:
            numbers = [*layout.words, 0 if layout.whole else layout.size]
            _emit(plan, unit, _apart_kernel(dtype, layout.alike), layout, arrays, [layout.table()], numbers)
        else:
            numbers = [layout.n_images, layout.channels, layout.n_windows, layout.size]
            _emit(plan, unit, _scatter_kernel(dtype), layout, arrays, (), numbers)
    return [result]


@rule(MaxPoolPick, takes=same_floats)
def lower_max_pool_pick(plan: Planner, unit: Unit, values: list[Value]) -> list[Value]:
    places, v = (in_order(plan, unit, value) for value in values[1:])
    op, dtype = unit.node.op, str(v.array.dtype)
    layout, shape = _Layout(op, v.array.shape), op.pooled_shape(v.array.shape)
    result = plan.new(shape, dtype, unit.node.outputs[0])
    if result.array.size:
        arrays = [(places, layout.pooled_size), (v, layout.size), (result, layout.pooled_size)]
        numbers = [layout.n_images, layout.channels, layout.n_windows, layout.size]
        _emit(plan, unit, _pick_kernel(dtype), layout, arrays, (), numbers)
    return [result]


@rule(AveragePool, takes=same_floats)
def lower_average_pool(plan: Planner, unit: Unit, values: list[Value]) -> list[Value]:
    x = in_order(plan, unit, values[0])
    op, dtype = unit.node.op, str(x.array.dtype)
    layout = _Layout(op, x.array.shape)
    result = plan.new(op.pooled_shape(x.array.shape), dtype, unit.node.outputs[0])
    if result.array.size:
        arrays = [(x, layout.size), (result, layout.pooled_size)]
        fixed = [layout.table(), layout.divisors(dtype)]
        _emit(plan, unit, _average_kernel(dtype, layout.alike), layout, arrays, fixed, layout.words)
    return [result]


@rule(AveragePoolGradient, takes=same_floats)
def lower_average_pool_gradient(plan: Planner, unit: Unit, values: list[Value]) -> list[Value]:
    shape, g = values[0].array.shape, in_order(plan, unit, values[1])
    dtype = str(g.array.dtype)
    layout = _Layout(unit.node.op, shape)
    result = plan.new(shape, dtype, unit.node.outputs[0])
    if result.array.size:
        arrays = [(g, layout.pooled_size), (result, layout.size)]
        fixed = [layout.table(), layout.divisors(dtype)]
        numbers = [*layout.words, 0 if layout.whole else layout.size]
        _emit(plan, unit, _spread_kernel(dtype, layout.apart, layout.alike), layout, arrays, fixed, numbers)
    return [result]


def _zeros(routine: Routine, array: Array, size: ir.Value) -> Callable[[ir.Value], None]:
    """Give what sets the numbers of an image to zero."""
    builder = routine.builder

    def fill(n: ir.Value) -> None:
        own = array.from_(builder.mul(n, size))
        routine.each(size, lambda i: own.put(i, own.kind(0.0)))

    return fill


@cache
def _max_kernel(dtype: str, kept: bool, sizes: Sizes) -> int:
    """Give the kernel of (data, largest numbers, their places if they are kept, table)."""
    places = ["int32"] if kept else []
    routine = Routine([dtype, dtype, *places, "int64"], N_NUMBERS)
    builder, (data, largest, *_) = routine.builder, routine.arrays
    windows = Windows(routine, routine.arrays[-1], sizes)

    def one(window: Window) -> None:
        def channels(c: ir.Value, lanes: int) -> None:
            kind = vector(data.kind, lanes)
            best = variable(builder, read(data, window.in_data(window.first, c), lanes))
            place = variable(builder, spread(builder, builder.trunc(window.first, _I32), lanes))

            def element(number: ir.Value, at: ir.Value) -> None:
                value = read(data, at, lanes)
                most = builder.load(best, typ=kind)
                # Larger, or no number, while the largest so far is one.
                larger = builder.fcmp_unordered(">", value, most)
                takes = builder.and_(larger, builder.fcmp_ordered("ord", most, most))
                builder.store(builder.select(takes, value, most), best)
                if kept:
                    here = spread(builder, builder.trunc(number, _I32), lanes)
                    there = builder.load(place, typ=vector(_I32, lanes))
                    builder.store(builder.select(takes, here, there), place)

            window.each(c, element)
            at = builder.add(window.base, c)
            write(largest, at, builder.load(best, typ=kind))
            if kept:
                write(routine.arrays[2], at, builder.load(place, typ=vector(_I32, lanes)))

        windows.over_channels(dtype, channels)

    windows.each(one)
    return routine.address()


@cache
def _apart_kernel(dtype: str, sizes: Sizes) -> int:
    """Give the kernel of (places, what comes back, the gradient, table), where no two windows meet.

    Its last number is the size of an image where windows leave elements out, else 0.
    """
    routine = Routine(["int32", dtype, dtype, "int64"], N_NUMBERS + 1)
    builder, (places, g, result, table) = routine.builder, routine.arrays
    windows = Windows(routine, table, sizes)

    def one(window: Window) -> None:
        def channels(c: ir.Value, lanes: int) -> None:
            at = builder.add(window.base, c)
            place, back = read(places, at, lanes), read(g, at, lanes)
            zero = spread(builder, g.kind(0.0), lanes)

            def element(number: ir.Value, at: ir.Value) -> None:
                own = spread(builder, builder.trunc(number, _I32), lanes)
                value = builder.select(builder.icmp_signed("==", place, own), back, zero)
                write(result, at, value)

            window.each(c, element)

        windows.over_channels(dtype, channels)

    windows.each(one, begin=_zeros(routine, result, routine.numbers[-1]))
    return routine.address()


def _over_places(routine: Routine, body: Callable[[ir.Value, ir.Value], None], begin: Callable) -> None:
    """Write the loops of a kernel whose first array has places: give where pooled numbers are, and came from.

    Its numbers are those of images, channels and windows, and how many an image has.
    """
    builder, places = routine.builder, routine.arrays[0]
    n_images, n_channels, n_windows, size = routine.numbers

    def image(n: ir.Value) -> None:
        begin(n)
        data = builder.mul(n, size)

        def window(k: ir.Value) -> None:
            base = builder.mul(builder.add(builder.mul(n, n_windows), k), n_channels)

            def channel(c: ir.Value) -> None:
                at = builder.add(base, c)
                place = builder.mul(builder.sext(places[at], _I64), n_channels)
                body(at, builder.add(data, builder.add(place, c)))

            routine.each(n_channels, channel)

        routine.each(n_windows, window)

    routine.each(n_images, image)


@cache
def _scatter_kernel(dtype: str) -> int:
    """Give the kernel of (places, what comes back, the gradient), where windows may meet."""
    routine = Routine(["int32", dtype, dtype], 4)
    builder, (_, g, result) = routine.builder, routine.arrays

    def add(at: ir.Value, place: ir.Value) -> None:
        result[place] = builder.fadd(result[place], g[at])

    _over_places(routine, add, _zeros(routine, result, routine.numbers[-1]))
    return routine.address()


@cache
def _pick_kernel(dtype: str) -> int:
    """Give the kernel of (places, data, what stands there)."""
    routine = Routine(["int32", dtype, dtype], 4)
    _, data, result = routine.arrays
    _over_places(routine, lambda at, place: result.put(at, data[place]), lambda n: None)
    return routine.address()


@cache
def _average_kernel(dtype: str, sizes: Sizes) -> int:
    """Give the kernel of (data, means, table, divisors)."""
    routine = Routine([dtype, dtype, "int64", dtype], N_NUMBERS)
    builder, (data, means, table, divisors) = routine.builder, routine.arrays
    windows = Windows(routine, table, sizes)

    def one(window: Window) -> None:
        divisor = window.divisor(divisors)

        def channels(c: ir.Value, lanes: int) -> None:
            kind = vector(data.kind, lanes)
            total = variable(builder, spread(builder, data.kind(0.0), lanes))

            def element(number: ir.Value, at: ir.Value) -> None:
                sum_ = builder.fadd(builder.load(total, typ=kind), read(data, at, lanes))
                builder.store(sum_, total)

            window.each(c, element)
            mean = builder.fdiv(builder.load(total, typ=kind), spread(builder, divisor, lanes))
            write(means, builder.add(window.base, c), mean)

        windows.over_channels(dtype, channels)

    windows.each(one)
    return routine.address()


@cache
def _spread_kernel(dtype: str, apart: bool, sizes: Sizes) -> int:
    """Give the kernel of (what comes back, the gradient, table, divisors), the adjoint of means.

    Its last number is the size of an image where windows meet or leave elements out, else 0.
    """
    routine = Routine([dtype, dtype, "int64", dtype], N_NUMBERS + 1)
    builder, (g, result, table, divisors) = routine.builder, routine.arrays
    windows = Windows(routine, table, sizes)

    def one(window: Window) -> None:
        divisor = window.divisor(divisors)

        def channels(c: ir.Value, lanes: int) -> None:
            back = read(g, builder.add(window.base, c), lanes)
            part = builder.fdiv(back, spread(builder, divisor, lanes))

            def element(number: ir.Value, at: ir.Value) -> None:
                value = part if apart else builder.fadd(read(result, at, lanes), part)
                write(result, at, value)

            window.each(c, element)

        windows.over_channels(dtype, channels)

    windows.each(one, begin=_zeros(routine, result, routine.numbers[-1]))
    return routine.address()
