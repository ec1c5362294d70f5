"""Rules of softmax and its kin: fused ops that map rows to rows.

Wide rows are taken one by one: the largest number, then exponentials and their sum, then what is made of
them. Narrow ones are taken in blocks that stay in the first-level cache: a walk from row to row subtracts the
largest numbers, then the exponentials of the whole block are taken in one loop, which vectorizes however
short the rows are, and another walk sums and finishes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import cache
from typing import TYPE_CHECKING

from llvmlite import ir

from ptml.backends.numba.plan.codegen.mathematics import emit_math
from ptml.backends.numba.plan.codegen.routine import Array, Routine, in_order, same_floats
from ptml.backends.numba.plan.lowering import rule
from ptml.backends.numba.plan.memory import Value
from ptml.backends.numba.plan.runtime.pool import Share
from ptml.backends.numba.plan.runtime.sharing import share_over
from ptml.backends.numba.vectormath import exponential, lane
from ptml.ops.softmax import LogSoftmax, LogSoftmaxGradient, Softmax, SoftmaxGradient

if TYPE_CHECKING:
    from ptml.backends.numba.plan.planner import Planner
    from ptml.backends.numba.plan.schedule import Unit

__all__ = ["Rows", "over_softmax"]

#: How many numbers a block of narrow rows holds.
BLOCK = 2048
#: From which width on rows are wide.
WIDE = 512
#: Rows that are shared out are cut into no more parts than this.
PARTS = 16

_I64, _DOUBLE = ir.IntType(64), ir.DoubleType()

Number = Callable[[ir.Value], ir.Value]


class Rows:
    """How an array divides into rows, rows into blocks, and all of them among threads.

    Parameters
    ----------
    shape : tuple of int
    work : int
        What a number costs, as `share_over` counts; 0 for what is not shared out.

    Attributes
    ----------
    count, width, per_block : int
    wide : bool
    parts : int
        How many parts all rows are cut into; each has memory for blocks of its own.
    """

    def __init__(self, shape: tuple[int, ...], work: int = 0) -> None:
        self.width = shape[-1]
        self.count = math.prod(shape[:-1])
        self.wide = self.width >= WIDE
        self.per_block = 1 if self.wide else max(min(BLOCK // max(self.width, 1), self.count), 1)
        self._grain, self.parts = self.count, 1
        found = share_over(self.count, work * self.width, 0, {})
        if found is not None:
            self._grain = max(found.grain, -(-self.count // PARTS))
            self.parts = -(-self.count // self._grain)

    @property
    def words(self) -> tuple[int, int, int]:
        return self.count, self.width, self.per_block

    def block_memory(self, plan: Planner, dtype: str) -> Value:
        """Take memory for the numbers of a block of each part."""
        return plan.temporary((self.parts, self.per_block, self.width), dtype)

    def sums(self, plan: Planner, dtype: str) -> Value:
        """Take memory for two numbers for each row of a block of each part."""
        return plan.temporary((self.parts, 2, self.per_block), dtype)

    def share(
        self, arrays: Sequence[Value], of_rows: Sequence[Value], of_blocks: Sequence[Value]
    ) -> Share | None:
        """Say how a kernel of arrays, and then `words`, is shared out, or give None where it is not.

        Parameters
        ----------
        arrays : sequence of Value
        of_rows : sequence of Value
            Those that have as many numbers for every row.
        of_blocks : sequence of Value
            Those that are memory for the blocks of parts.
        """
        if self.parts == 1:
            return None
        place = {id(value): word for word, value in enumerate(arrays)}
        steps = {place[id(value)]: value.array.nbytes // self.count for value in of_rows}
        apart = {place[id(value)]: value.array.nbytes // self.parts for value in of_blocks}
        return Share(len(arrays), self.count, steps, self._grain, 0, apart)


@rule(Softmax, takes=same_floats)
def lower_softmax(plan: Planner, unit: Unit, values: list[Value]) -> list[Value]:
    x = in_order(plan, unit, values[0])
    shape, dtype = x.array.shape, str(x.array.dtype)
    result = plan.new(shape, dtype, unit.node.outputs[0])
    if result.array.size:
        rows = Rows(shape)
        plan.emit(_softmax_kernel(dtype, rows.wide), [x, result, rows.sums(plan, dtype), *rows.words], unit)
    return [result]


@rule(LogSoftmax, takes=same_floats)
def lower_log_softmax(plan: Planner, unit: Unit, values: list[Value]) -> list[Value]:
    x = in_order(plan, unit, values[0])
    shape, dtype = x.array.shape, str(x.array.dtype)
    logarithms, probabilities = unit.node.outputs
    rows, both = Rows(shape), plan.is_used(probabilities, set())
    result = plan.new(shape, dtype, logarithms)
    powers = plan.new(shape, dtype, probabilities) if both else rows.block_memory(plan, dtype)
    if result.array.size:
        words: list[int | Value] = [x, result, powers, rows.sums(plan, dtype), *rows.words]
        plan.emit(_log_softmax_kernel(dtype, rows.wide, both), words, unit)
    return [result, powers]


@rule(SoftmaxGradient, LogSoftmaxGradient, takes=same_floats)
def lower_softmax_gradient(plan: Planner, unit: Unit, values: list[Value]) -> list[Value]:
    p, g = (in_order(plan, unit, value) for value in values)
    shape, dtype = p.array.shape, str(p.array.dtype)
    result = plan.new(shape, dtype, unit.node.outputs[0])
    if result.array.size:
        rows = Rows(shape)
        kernel = _gradient_kernel(dtype, isinstance(unit.node.op, LogSoftmaxGradient))
        plan.emit(kernel, [p, g, result, rows.count, rows.width], unit)
    return [result]


def over_softmax(
    routine: Routine,
    logits: Array,
    powers: Array,
    sums: Array,
    *,
    wide: bool,
    whole: bool,
    finish: Callable[[ir.Value, Array, ir.Value, ir.Value], None],
    begin: Callable[[ir.Value, Number], None] = lambda row, shifted: None,
    shift: Callable[[ir.Value, ir.Value, ir.Value], ir.Value] | None = None,
    kept: Array | None = None,
) -> None:
    """Write the loops around a softmax; the routine's last numbers are those of `Rows.words`.

    Parameters
    ----------
    routine : Routine
    logits, powers : Array
        What is read, and where exponentials go: as many rows, where `whole`, else one block.
    sums : Array
        Memory for two numbers for each row of a block.
    wide, whole : bool
    finish : callable
        Takes the number of a row, its exponentials, their sum and its logarithm.
    begin : callable
        Takes the number of a row, and what gives its logits with the largest one subtracted.
    shift : callable, optional
        From the number of a row, a logit and the largest one to their difference, where that is not all.
    kept : Array, optional
        Where the differences go, all rows of them.
    """
    builder, dtype = routine.builder, logits.dtype
    n_rows, width, per_block = routine.numbers[-3:]

    def power(x: ir.Value) -> ir.Value:
        function = lane.function(routine.module, "exp_below_zero", 1, x.type, exponential.exp_below_zero)
        return builder.call(function, [x])

    def summed(own: Array) -> ir.Value:
        total = routine.reduced("add", "float64", width, lambda c: routine.cast(own[c], dtype, "float64"))
        return routine.cast(total, "float64", dtype)

    def own_powers(row: ir.Value, in_block: ir.Value) -> Array:
        return powers.from_(builder.mul(row if whole else in_block, width))

    def one_row(row: ir.Value, in_block: ir.Value) -> None:
        z, own = logits.from_(builder.mul(row, width)), own_powers(row, in_block)
        differences = own if kept is None else kept.from_(builder.mul(row, width))
        most = routine.reduced("maximum", dtype, width, lambda c: z[c])

        def shifted(c: ir.Value) -> ir.Value:
            return builder.fsub(z[c], most) if shift is None else shift(row, z[c], most)

        begin(row, shifted)
        if not wide:
            routine.each(width, lambda c: differences.put(c, shifted(c)))
            return

        def take(c: ir.Value) -> ir.Value:
            difference = shifted(c)
            if kept is not None:
                differences[c] = difference
            own[c] = value = power(difference)
            return value

        if dtype == "float64":
            total = routine.reduced("add", dtype, width, take)
        else:
            # Sums in another dtype would halve the lanes of this loop.
            routine.each(width, lambda c: own.put(c, take(c)))
            total = summed(own)
        finish(row, own, total, emit_math("log", builder, total))

    def one_block(k: ir.Value) -> None:
        first = builder.mul(k, per_block)
        rest = builder.sub(n_rows, first)
        count = builder.select(builder.icmp_signed("<", rest, per_block), rest, per_block)
        routine.each(count, lambda r: one_row(builder.add(first, r), r))
        block = own_powers(first, _I64(0))
        source = block if kept is None else kept.from_(builder.mul(first, width))
        routine.each(builder.mul(count, width), lambda i: block.put(i, power(source[i])))
        logarithms = sums.from_(per_block)
        routine.each(count, lambda r: sums.put(r, summed(own_powers(builder.add(first, r), r))))
        routine.each(count, lambda r: logarithms.put(r, emit_math("log", builder, sums[r])))

        def end(r: ir.Value) -> None:
            row = builder.add(first, r)
            finish(row, own_powers(row, r), sums[r], logarithms[r])

        routine.each(count, end)

    if wide:
        routine.each(n_rows, lambda row: one_row(row, _I64(0)))
    else:
        one_more = builder.add(n_rows, builder.sub(per_block, _I64(1)))
        routine.each(builder.sdiv(one_more, per_block), one_block)


def scaled(routine: Routine, own: Array, total: ir.Value) -> None:
    """Divide a row of exponentials by their sum."""
    builder = routine.builder
    factor = builder.fdiv(own.kind(1.0), total)
    routine.each(routine.numbers[-2], lambda c: own.put(c, builder.fmul(own[c], factor)))


@cache
def _softmax_kernel(dtype: str, wide: bool) -> int:
    """Give the kernel of (logits, result, sums), and the words of rows."""
    routine = Routine([dtype] * 3, 3)
    logits, result, sums = routine.arrays

    def finish(row: ir.Value, own: Array, total: ir.Value, logarithm: ir.Value) -> None:
        scaled(routine, own, total)

    over_softmax(routine, logits, result, sums, wide=wide, whole=True, finish=finish)
    return routine.address()


@cache
def _log_softmax_kernel(dtype: str, wide: bool, both: bool) -> int:
    """Give the kernel of (logits, logarithms, softmax or memory for a block, sums), and the words of rows."""
    routine = Routine([dtype] * 4, 3)
    builder = routine.builder
    logits, logarithms, powers, sums = routine.arrays
    width = routine.numbers[-2]

    def finish(row: ir.Value, own: Array, total: ir.Value, logarithm: ir.Value) -> None:
        out = logarithms.from_(builder.mul(row, width))
        routine.each(width, lambda c: out.put(c, builder.fsub(out[c], logarithm)))
        if both:
            scaled(routine, own, total)

    over_softmax(routine, logits, powers, sums, wide=wide, whole=both, finish=finish, kept=logarithms)
    return routine.address()


@cache
def _gradient_kernel(dtype: str, logarithm: bool) -> int:
    """Give the kernel of (probabilities, what comes back, the gradient, rows, width)."""
    routine = Routine([dtype] * 3, 2)
    builder = routine.builder
    n_rows, width = routine.numbers

    def one_row(row: ir.Value) -> None:
        p, g, out = (array.from_(builder.mul(row, width)) for array in routine.arrays)

        def term(c: ir.Value) -> ir.Value:
            return routine.cast(g[c] if logarithm else builder.fmul(p[c], g[c]), dtype, "float64")

        total = routine.cast(routine.reduced("add", "float64", width, term), "float64", dtype)

        def gradient(c: ir.Value) -> ir.Value:
            if logarithm:
                return builder.fsub(g[c], builder.fmul(p[c], total))
            return builder.fmul(p[c], builder.fsub(g[c], total))

        routine.each(width, lambda c: out.put(c, gradient(c)))

    routine.each(n_rows, one_row)
    return routine.address()
