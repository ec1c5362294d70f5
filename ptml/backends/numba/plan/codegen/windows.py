"""The loops of kernels that walk over windows: images, windows, vectors of channels, elements of a window.

Channels are last. There are three axes of positions; those that data does not have are of length 1. What the
windows along an axis take of it is in a table: for each axis their first positions, then how many elements
they have.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from llvmlite import ir

from ptml.backends.numba.plan.codegen.dtypes import memory_type
from ptml.backends.numba.plan.codegen.routine import Array, Routine

__all__ = ["N_NUMBERS", "Sizes", "Window", "Windows", "read", "spread", "variable", "vector", "write"]

#: How many channels are taken at once: two of the vectors that most processors have.
LANES = {"float32": 16, "float64": 8}

#: How many elements windows have along each axis, where a kernel is written for that.
Sizes = tuple[int, int, int] | None

#: How many numbers a routine of windows begins with.
N_NUMBERS = 11

_I32, _I64 = ir.IntType(32), ir.IntType(64)


class Windows:
    """Writes the loops over windows.

    The numbers of the routine are those of images and channels, then the length of each axis, how many
    windows there are along each, and how far the elements of a window are apart along each.

    Parameters
    ----------
    routine : Routine
    table : Array
        Of int64.
    known : tuple of int or None
        How many elements every window has along each axis; the loops over these are then written out.
    """

    def __init__(self, routine: Routine, table: Array, known: Sizes) -> None:
        self.routine, self.builder, self.known = routine, routine.builder, known
        self.n_images, self.channels, *rest = routine.numbers[:N_NUMBERS]
        self.lengths, self.counts, steps = rest[:3], rest[3:6], rest[6:]
        builder = self.builder
        self.firsts, self.sizes = [], []
        for count in self.counts:
            self.firsts.append(table)
            self.sizes.append(table.from_(count))
            table = table.from_(builder.add(count, count))
        plane = builder.mul(self.lengths[1], self.lengths[2])
        self.n_elements = builder.mul(self.lengths[0], plane)
        self.n_windows = builder.mul(builder.mul(self.counts[0], self.counts[1]), self.counts[2])
        #: How many elements the elements of a window are apart along each axis.
        self.strides = [
            builder.mul(steps[0], plane),
            builder.mul(steps[1], self.lengths[2]),
            steps[2],
        ]

    def each(
        self, body: Callable[[Window], None], *, begin: Callable[[ir.Value], None] | None = None
    ) -> None:
        """Do something for every window of every image.

        Parameters
        ----------
        body : callable
        begin : callable, optional
            What is done before at every image, with its number.
        """
        routine, builder = self.routine, self.builder

        def image(n: ir.Value) -> None:
            if begin is not None:
                begin(n)
            start, first = builder.mul(n, self.n_elements), builder.mul(n, self.n_windows)

            def rows(i: ir.Value, j: ir.Value) -> None:
                row = builder.add(builder.mul(self.firsts[0][i], self.lengths[1]), self.firsts[1][j])
                row = builder.mul(row, self.lengths[2])
                line = builder.add(builder.mul(i, self.counts[1]), j)
                line = builder.add(first, builder.mul(line, self.counts[2]))

                def one(k: ir.Value) -> None:
                    place = builder.add(row, self.firsts[2][k])
                    body(Window(self, (i, j, k), start, place, builder.add(line, k)))

                routine.each(self.counts[2], one)

            routine.each(self.counts[0], lambda i: routine.each(self.counts[1], lambda j: rows(i, j)))

        routine.each(self.n_images, image)

    def over_elements(
        self,
        at: Sequence[ir.Value],
        first: ir.Value,
        body: Callable[[ir.Value], None],
        axis: int = 0,
    ) -> None:
        """Do something for the elements of a window, with their places in the image.

        Parameters
        ----------
        at : sequence of ir.Value
            The number of the window along each axis.
        first : ir.Value
            The place of the first element.
        body : callable
        axis : int
            The first axis along which they are taken.
        """
        if axis == len(at):
            body(first)
            return

        def one(k: ir.Value) -> None:
            there = self.builder.add(first, self.builder.mul(k, self.strides[axis]))
            self.over_elements(at, there, body, axis + 1)

        if self.known is None:
            self.routine.each(self.sizes[axis][at[axis]], one)
        else:
            for k in range(self.known[axis]):
                one(_I64(k))

    def over_channels(self, dtype: str, body: Callable[[ir.Value, int], None]) -> None:
        """Do something for all channels: from one on, for so many at once."""
        builder, done = self.builder, _I64(0)
        for lanes in (LANES[dtype], LANES[dtype] // 4, 1):
            rounds = builder.udiv(builder.sub(self.channels, done), _I64(lanes))

            def several(k: ir.Value, start: ir.Value = done, lanes: int = lanes) -> None:
                body(builder.add(start, builder.mul(k, _I64(lanes))), lanes)

            self.routine.each(rounds, several)
            done = builder.add(done, builder.mul(rounds, _I64(lanes)))


class Window:
    """One window, while a kernel is written.

    Attributes
    ----------
    first : ir.Value
        The number of its first element in the image.
    base : ir.Value
        Where its first channel is in what was pooled.
    """

    def __init__(
        self, of: Windows, at: Sequence[ir.Value], image: ir.Value, first: ir.Value, number: ir.Value
    ) -> None:
        self.of, self.at, self.image, self.first = of, at, image, first
        self.base = of.builder.mul(number, of.channels)

    def in_data(self, place: ir.Value, c: ir.Value) -> ir.Value:
        """Give where a channel of an element is in the data."""
        builder = self.of.builder
        return builder.add(builder.mul(builder.add(self.image, place), self.of.channels), c)

    def each(self, c: ir.Value, body: Callable[[ir.Value, ir.Value], None]) -> None:
        """Do something for a channel of every element: with its number in the image, and where it is."""
        self.of.over_elements(self.at, self.first, lambda place: body(place, self.in_data(place, c)))

    def divisor(self, divisors: Array) -> ir.Value:
        """Give what a mean of it is divided by, of a number for each window along each axis."""
        builder, numbers = self.of.builder, []
        for i, count in zip(self.at, self.of.counts, strict=True):
            numbers.append(divisors[i])
            divisors = divisors.from_(count)
        return builder.fmul(builder.fmul(numbers[0], numbers[1]), numbers[2])


def vector(kind: ir.Type, lanes: int) -> ir.Type:
    """Give the type of several numbers."""
    return kind if lanes == 1 else ir.VectorType(kind, lanes)


def read(array: Array, i: ir.Value, lanes: int) -> ir.Value:
    """Read several numbers, one after the other."""
    kind = vector(memory_type(array.dtype), lanes)
    return array.builder.load(array.from_(i).pointer, typ=kind, align=np.dtype(array.dtype).itemsize)


def write(array: Array, i: ir.Value, value: ir.Value) -> None:
    """Write several numbers."""
    array.builder.store(value, array.from_(i).pointer, align=np.dtype(array.dtype).itemsize)


def spread(builder: ir.IRBuilder, value: ir.Value, lanes: int) -> ir.Value:
    """Give one number several times."""
    if lanes == 1:
        return value
    kind = ir.VectorType(value.type, lanes)
    single = builder.insert_element(ir.Constant(kind, ir.Undefined), value, _I32(0))
    order = ir.Constant(ir.VectorType(_I32, lanes), [_I32(0)] * lanes)
    return builder.shuffle_vector(single, ir.Constant(kind, ir.Undefined), order)


def variable(builder: ir.IRBuilder, value: ir.Value) -> ir.Value:
    """Give a place that has a value: a register, when all is done."""
    with builder.goto_entry_block():
        place = builder.alloca(value.type)
    builder.store(value, place)
    return place
