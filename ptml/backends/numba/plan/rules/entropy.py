"""Rules of cross entropies: the losses of rows and their slopes from one walk over the logits."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING

import numpy as np
from llvmlite import ir

from ptml.backends.numba.plan.codegen.dtypes import is_signed
from ptml.backends.numba.plan.codegen.routine import Array, Routine, in_order, same_floats
from ptml.backends.numba.plan.errors import Unsupported
from ptml.backends.numba.plan.lowering import rule
from ptml.backends.numba.plan.memory import Value
from ptml.backends.numba.plan.rules.rows import Number, Rows, over_softmax
from ptml.backends.numba.plan.runtime.pool import Share
from ptml.loss.entropy import LabelEntropy, TargetEntropy

if TYPE_CHECKING:
    from ptml.backends.numba.plan.planner import Planner
    from ptml.backends.numba.plan.schedule import Unit

__all__: list[str] = []

#: What a logit costs, as `share_over` counts.
_WORK = 14

_I64, _DOUBLE = ir.IntType(64), ir.DoubleType()


@rule(TargetEntropy, takes=same_floats)
def lower_target_entropy(plan: Planner, unit: Unit, values: list[Value]) -> list[Value]:
    logits, weights = (in_order(plan, unit, value) for value in values)
    if weights.array.shape != logits.array.shape:
        raise Unsupported("weights of another shape")
    losses, slopes, with_slopes, rows = _outputs(plan, unit, logits)
    if losses.array.size:
        dtype = str(logits.array.dtype)
        kernel, sums = _target_kernel(dtype, rows.wide, with_slopes), rows.sums(plan, dtype)
        arrays = [logits, weights, losses, slopes, sums]
        share = _share(rows, arrays, [logits, weights, losses], slopes, sums, with_slopes)
        plan.emit_shared(kernel, [*arrays, *rows.words], unit, share)
    return [losses, slopes]


@rule(LabelEntropy, takes=same_floats)
def lower_label_entropy(plan: Planner, unit: Unit, values: list[Value]) -> list[Value]:
    op, dtype = unit.node.op, unit.node.inputs[0].type.dtype
    logits, labels, *weights = (in_order(plan, unit, value) for value in values)
    if labels.array.shape != logits.array.shape[:-1]:
        raise Unsupported("labels of another shape")
    losses, slopes, with_slopes, rows = _outputs(plan, unit, logits)
    picked = [plan.new(losses.array.shape, dtype, v) for v in unit.node.outputs[2:]]
    if losses.array.size:
        kernel = _label_kernel(
            dtype, str(labels.array.dtype), op.smoothing, op.ignore, op.weighted, rows.wide, with_slopes
        )
        sums = rows.sums(plan, dtype)
        arrays = [logits, labels, losses, slopes, sums, *weights, *picked]
        share = _share(rows, arrays, [logits, labels, losses, *picked], slopes, sums, with_slopes)
        plan.emit_shared(kernel, [*arrays, *rows.words], unit, share)
    return [losses, slopes, *picked]


def _outputs(plan: Planner, unit: Unit, logits: Value) -> tuple[Value, Value, bool, Rows]:
    """Take memory for losses and slopes; where nobody wants these, for the exponentials of a block."""
    shape, dtype = logits.array.shape, str(logits.array.dtype)
    losses, slopes = unit.node.outputs[:2]
    if not shape[-1]:
        raise Unsupported("no classes")
    rows, wanted = Rows(shape, _WORK), plan.is_used(slopes, set())
    memory = plan.new(shape, dtype, slopes) if wanted else rows.block_memory(plan, dtype)
    return plan.new(shape[:-1], dtype, losses), memory, wanted, rows


def _share(
    rows: Rows, arrays: list[Value], of_rows: list[Value], slopes: Value, sums: Value, with_slopes: bool
) -> Share | None:
    """Say how the rows are shared out; where nobody wants slopes, their memory is that of blocks."""
    if with_slopes:
        return rows.share(arrays, [*of_rows, slopes], [sums])
    return rows.share(arrays, of_rows, [sums, slopes])


class _Entropy:
    """Writes what both kernels have: logits with their limits, and the end of a row.

    Between the two walks over a block, the place of a row's loss holds the sum of its weights times its
    shifted logits.
    """

    def __init__(self, routine: Routine, logits: Array, losses: Array, slopes: Array) -> None:
        self.routine, self.builder = routine, routine.builder
        self.logits, self.losses, self.slopes = logits, losses, slopes
        self.dtype = logits.dtype
        self.kind = logits.kind
        self.width = routine.numbers[-2]

    def shift(self, row: ir.Value, logit: ir.Value, most: ir.Value) -> ir.Value:
        """Subtract the largest logit; infinite ones share the probability."""
        builder = self.builder
        infinite = builder.fcmp_ordered("==", logit, self.kind(np.inf))
        return builder.select(infinite, self.kind(0.0), builder.fsub(logit, most))

    def term(self, weight: ir.Value, shifted: ir.Value) -> ir.Value:
        """Multiply, leaving out what has no weight."""
        builder = self.builder
        absent = builder.fcmp_ordered("==", weight, self.kind(0.0))
        return builder.select(absent, self.kind(0.0), builder.fmul(weight, shifted))

    def loss(self, row: ir.Value, whole: ir.Value, total: ir.Value, logarithm: ir.Value) -> ir.Value:
        """Write the loss of a row whose weights sum to `whole`; give the factor of its exponentials."""
        self.losses[row] = self.builder.fsub(self.term(whole, logarithm), self.losses[row])
        return self.builder.fdiv(whole, total)


@cache
def _target_kernel(dtype: str, wide: bool, with_slopes: bool) -> int:
    """Give the kernel of (logits, weights, losses, slopes or memory, sums), and the words of rows."""
    routine = Routine([dtype] * 5, 3)
    builder = routine.builder
    logits, weights, losses, slopes, sums = routine.arrays
    width = routine.numbers[-2]
    entropy = _Entropy(routine, logits, losses, slopes)

    def begin(row: ir.Value, shifted: Number) -> None:
        own = weights.from_(builder.mul(row, width))

        def term(c: ir.Value) -> ir.Value:
            return routine.cast(entropy.term(own[c], shifted(c)), dtype, "float64")

        losses[row] = routine.cast(routine.reduced("add", "float64", width, term), "float64", dtype)

    def finish(row: ir.Value, powers: Array, total: ir.Value, logarithm: ir.Value) -> None:
        own = weights.from_(builder.mul(row, width))
        whole = routine.reduced("add", "float64", width, lambda c: routine.cast(own[c], dtype, "float64"))
        factor = entropy.loss(row, routine.cast(whole, "float64", dtype), total, logarithm)
        if with_slopes:
            routine.each(
                width, lambda c: powers.put(c, builder.fsub(builder.fmul(powers[c], factor), own[c]))
            )

    over_softmax(
        routine,
        logits,
        slopes,
        sums,
        wide=wide,
        whole=with_slopes,
        finish=finish,
        begin=begin,
        shift=entropy.shift,
    )
    return routine.address()


@cache
def _label_kernel(
    dtype: str,
    label_dtype: str,
    smoothing: float,
    ignore: int | None,
    weighted: bool,
    wide: bool,
    with_slopes: bool,
) -> int:
    """Give the kernel of (logits, labels, losses, slopes or memory, sums[, weights, picked]), and of rows."""
    routine = Routine([dtype, label_dtype, *[dtype] * (5 if weighted else 3)], 3)
    builder = routine.builder
    logits, labels, losses, slopes, sums, *weighing = routine.arrays
    width = routine.numbers[-2]
    entropy = _Entropy(routine, logits, losses, slopes)
    kind, number = entropy.kind, logits.kind
    zero, nan = kind(0.0), kind(np.nan)
    limits = np.iinfo(label_dtype)
    may_ignore = ignore is not None and limits.min <= ignore <= limits.max

    #: What each class has of a label that is spread, before class weights.
    share = zero
    every = kind(smoothing)
    if smoothing:
        share = builder.fdiv(number(smoothing), builder.sitofp(width, kind))
        if weighted:
            total = routine.reduced(
                "add", "float64", width, lambda c: routine.cast(weighing[0][c], dtype, "float64")
            )
            every = builder.fmul(share, routine.cast(total, "float64", dtype))

    def is_kept(row: ir.Value) -> ir.Value:
        if not may_ignore:
            return ir.IntType(1)(1)
        return builder.icmp_signed("!=", labels[row], labels.kind(ignore))

    def right(row: ir.Value) -> tuple[ir.Value, ir.Value, ir.Value]:
        """Give a row's class (0 where there is none), its weight in the loss, and its class weight."""
        label = labels[row]
        if label.type.width < 64:
            label = (builder.sext if is_signed(label_dtype) else builder.zext)(label, _I64)
        # As an unsigned number, one below zero is above every count.
        possible = builder.icmp_unsigned("<", label, width)
        place = builder.select(possible, label, _I64(0))
        weight = weighing[0][place] if weighted else kind(1.0)
        kept = is_kept(row)
        own = builder.fmul(kind(1 - smoothing), weight) if smoothing else weight
        own = builder.select(kept, builder.select(possible, own, nan), zero)
        counted = builder.select(builder.and_(kept, possible), weight, zero)
        return place, own, counted

    def spread(c: ir.Value) -> ir.Value:
        return builder.fmul(share, weighing[0][c]) if weighted else share

    def shift(row: ir.Value, logit: ir.Value, most: ir.Value) -> ir.Value:
        difference = entropy.shift(row, logit, most)
        return builder.select(is_kept(row), difference, zero) if may_ignore else difference

    def begin(row: ir.Value, shifted: Number) -> None:
        place, own, counted = right(row)
        part = entropy.term(own, shifted(place))
        if smoothing:

            def term(c: ir.Value) -> ir.Value:
                return routine.cast(entropy.term(spread(c), shifted(c)), dtype, "float64")

            rest = routine.cast(routine.reduced("add", "float64", width, term), "float64", dtype)
            part = builder.fadd(part, builder.select(is_kept(row), rest, zero))
        losses[row] = part
        if weighted:
            weighing[1][row] = counted

    def finish(row: ir.Value, powers: Array, total: ir.Value, logarithm: ir.Value) -> None:
        place, own, _ = right(row)
        whole = own
        if smoothing:
            whole = builder.fadd(own, builder.select(is_kept(row), every, zero))
        factor = entropy.loss(row, whole, total, logarithm)
        if not with_slopes:
            return
        kept = is_kept(row)

        def slope(c: ir.Value) -> ir.Value:
            value = builder.fmul(powers[c], factor)
            if not smoothing:
                return value
            return builder.fsub(value, builder.select(kept, spread(c), zero))

        routine.each(width, lambda c: powers.put(c, slope(c)))
        powers[place] = builder.fsub(powers[place], own)

    over_softmax(
        routine,
        logits,
        slopes,
        sums,
        wide=wide,
        whole=with_slopes,
        finish=finish,
        begin=begin,
        shift=shift,
    )
    return routine.address()
