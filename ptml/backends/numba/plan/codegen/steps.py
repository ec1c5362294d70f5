"""Kernels of sequence ops in the writing: arrays by their names, the walk over the steps, and products.

The arrays of a sequence are ``(batch, time, ...)``, those of a state ``(batch, ...)``; letters say which, as
the ops have them (`ptml.ops.recurrence.sequence`). A kernel does all steps for the rows of the batch that it
is given, so that threads that share the batch need not wait for each other between steps.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import attrs
import numpy as np
from llvmlite import ir

from ptml.backends.numba.plan.codegen.mathematics import emit_math
from ptml.backends.numba.plan.codegen.products import Products
from ptml.backends.numba.plan.codegen.routine import Array, Routine
from ptml.backends.numba.plan.codegen.scalars import intrinsic

__all__ = ["NUMBERS", "Layout", "Steps"]

_I64 = ir.IntType(64)

#: The numbers of a kernel, before those of BLAS: rows, steps, the step to begin with, the way (1 or -1),
#: hidden units, and the size of the state that is passed on.
NUMBERS = ("B", "T", "first", "way", "H", "P")


@attrs.frozen
class Layout:
    """What a kernel depends on.

    Attributes
    ----------
    dtype : {"float32", "float64"}
    gates : int
        How many numbers each hidden unit has.
    arrays : tuple of pairs of str
        The arrays, each by its name and the letters of its axes. One named ``mask`` holds booleans.
    alone : bool
        Whether BLAS is held to one thread.
    """

    dtype: str
    gates: int
    arrays: tuple[tuple[str, str], ...]
    alone: bool


class Steps:
    """A kernel in the writing.

    Parameters
    ----------
    layout : Layout

    Attributes
    ----------
    builder : IRBuilder
    """

    def __init__(self, layout: Layout) -> None:
        dtypes = ["bool" if name == "mask" else layout.dtype for name, _ in layout.arrays]
        self._routine = Routine(dtypes, len(NUMBERS) + Products.COUNT)
        self.builder = self._routine.builder
        self._letters = dict(layout.arrays)
        self._arrays = dict(zip(self._letters, self._routine.arrays, strict=True))
        numbers = self._routine.numbers
        self._sizes = dict(zip(NUMBERS, numbers, strict=False))
        self._sizes["G"] = self.builder.mul(self._sizes["H"], _I64(layout.gates))
        self._products = Products(self._routine, layout.dtype, numbers[len(NUMBERS) :], layout.alone)
        self._real = next(array.kind for array in self._routine.arrays if array.dtype != "bool")
        # Far enough from denormal numbers for products with weights and with slopes of gates.
        self._least = float(np.finfo(layout.dtype).tiny / np.finfo(layout.dtype).eps)

    def __contains__(self, name: str) -> bool:
        return name in self._arrays

    # What arrays have.

    def whole(self, name: str) -> Array:
        """Give an array that has nothing of rows."""
        return self._arrays[name]

    def row(self, name: str, b: ir.Value, t: ir.Value) -> Array:
        """Give what an array has for a row, at a step if it is a sequence's."""
        letters = self._letters[name]
        return self._arrays[name].from_(self.builder.mul(self._place(name, b, t), self._sizes[letters[-1]]))

    def parts(self, name: str, b: ir.Value, t: ir.Value, count: int) -> list[Array]:
        """Give what an array has for a row, one part for each gate."""
        own = self.row(name, b, t)
        return [own.from_(self.builder.mul(self._sizes["H"], _I64(k))) for k in range(count)]

    def counts(self, b: ir.Value, t: ir.Value) -> ir.Value:
        """Say whether a step counts in a row."""
        return self._arrays["mask"][self._place("mask", b, t)]

    def _place(self, name: str, b: ir.Value, t: ir.Value) -> ir.Value:
        if self._letters[name][1] != "T":
            return b
        return self.builder.add(self.builder.mul(b, self._sizes["T"]), t)

    # What is done.

    def address(self, step: Callable[[ir.Value], None]) -> int:
        """Do something at every step, end the kernel, and give its address."""
        builder, sizes = self.builder, self._sizes
        self._products.begin()
        self._routine.each(
            sizes["T"], lambda k: step(builder.add(sizes["first"], builder.mul(sizes["way"], k)))
        )
        self._products.end()
        return self._routine.address()

    def each(self, letter: str, body: Callable[[ir.Value], None]) -> None:
        """Do something for every number below a size."""
        self._routine.each(self._sizes[letter], body)

    def each_row(
        self, t: ir.Value, take: Callable[[ir.Value], None], leave: Callable[[ir.Value], None]
    ) -> None:
        """Do one thing for every row where a step counts, and another where it does not."""

        def one(b: ir.Value) -> None:
            if "mask" not in self:
                take(b)
                return
            with self.builder.if_else(self.counts(b, t)) as (then, otherwise):
                with then:
                    take(b)
                with otherwise:
                    leave(b)

        self.each("B", one)

    def fill(self, names: Sequence[str], b: ir.Value, t: ir.Value) -> None:
        """Write zeros for a row, in those arrays that there are."""
        for name in filter(self.__contains__, names):
            self._fill(self.row(name, b, t), self._letters[name][-1])

    def _fill(self, own: Array, letter: str) -> None:
        self.each(letter, lambda i: own.put(i, self.zero()))

    def product(self, out: str, left: str, right: str, t: ir.Value, *, add: bool = False) -> None:
        """Write, or add, what each row of an array has times the whole of another."""
        n, k = (self._sizes[self._letters[name][-1]] for name in (out, left))
        arrays = (self.row(out, _I64(0), t), self.row(left, _I64(0), t), self._arrays[right])
        self._products.product(*arrays, (self._sizes["B"], n, k), (self._lead(out), self._lead(left), n), add)

    def _lead(self, name: str) -> ir.Value:
        size = self._sizes[self._letters[name][-1]]
        return self.builder.mul(self._sizes["T"], size) if self._letters[name][1] == "T" else size

    # Arithmetic.

    def sigmoid(self, x: ir.Value) -> ir.Value:
        return emit_math("sigmoid", self.builder, x)

    def tanh(self, x: ir.Value) -> ir.Value:
        return emit_math("tanh", self.builder, x)

    def sum(self, first: ir.Value, *rest: ir.Value) -> ir.Value:
        for term in rest:
            first = self.builder.fadd(first, term, flags=("contract",))
        return first

    def times(self, first: ir.Value, *rest: ir.Value) -> ir.Value:
        for factor in rest:
            first = self.builder.fmul(first, factor, flags=("contract",))
        return first

    def less(self, x: ir.Value, y: ir.Value) -> ir.Value:
        return self.builder.fsub(x, y, flags=("contract",))

    def one_less(self, x: ir.Value) -> ir.Value:
        """Subtract a number from one."""
        return self.less(self._real(1.0), x)

    def sizable(self, x: ir.Value) -> ir.Value:
        """Give a number, or 0 where it is next to nothing; NaN stays.

        What fades over many steps would be a denormal number on its way to 0, and so would what is made of
        it: those take processors a hundred times longer.
        """
        size = intrinsic(self.builder, "fabs", x)
        small = self.builder.fcmp_ordered("<", size, self._real(self._least))
        return self.builder.select(small, self.zero(), x)

    def zero(self) -> ir.Constant:
        return self._real(0.0)
