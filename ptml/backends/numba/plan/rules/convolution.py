"""Rules of convolutions: which kernel, over which tables, with the weights in which order."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from ptml.backends.numba.plan.codegen.convolving import Form, kernel_gradient, sliding, summing
from ptml.backends.numba.plan.codegen.routine import in_order, same_floats
from ptml.backends.numba.plan.codegen.vectors import registers, vector_length
from ptml.backends.numba.plan.errors import Unsupported
from ptml.backends.numba.plan.lowering import rule
from ptml.backends.numba.plan.memory import Fixed, Value
from ptml.backends.numba.plan.rules.elementwise import copy_into
from ptml.backends.numba.plan.rules.sliding import Tables, axis_of, axis_of_adjoint, tables_of
from ptml.backends.numba.plan.runtime.pool import Share, shares
from ptml.backends.numba.plan.runtime.sharing import LARGE
from ptml.ops.convolution import Convolve, ConvolveKernel, ConvolveTransposed

if TYPE_CHECKING:
    from ptml.backends.numba.plan.planner import Planner
    from ptml.backends.numba.plan.schedule import Unit

__all__: list[str] = []

#: The most windows, or taps' channels, that are in registers at once: each has an address of its own, which
#: wants a register too.
MOST_ROWS = 14
#: The cycles until a product has been added, and how many products, and reads, are begun in one.
LATENCY, AT_ONCE = 4, 2
#: Into how many parts work is cut, and how many numbers the buffers and sums of all parts may have.
PARTS, KEPT = 32, 2**22


@rule(Convolve, takes=same_floats)
def lower_convolve(plan: Planner, unit: Unit, values: list[Value]) -> list[Value]:
    op, (X, W, *b) = unit.node.op, [in_order(plan, unit, value) for value in values]
    form = op.sliding
    batch, *sizes, channels = X.array.shape
    *kernel, each, out = W.array.shape
    counts = form.output_sizes(sizes)
    if (
        tuple(kernel) != form.kernel_size
        or each * form.groups != channels
        or out % form.groups
        or min(counts) < 0
        or any(bias.array.shape != (out,) for bias in b)
    ):
        raise Unsupported("sizes that do not go together")
    result = plan.new((batch, *counts, out), str(X.array.dtype), unit.node.outputs[0])
    if not result.array.size:
        return [result]
    if not W.array.size or not X.array.size:
        raise Unsupported("nothing to sum")
    axes = [axis_of(form, axis, size) for axis, size in enumerate(sizes)]
    tables = tables_of(axes, kernel, sizes, channels, counts, out, batch)
    weights = W.array.reshape(form.n_taps, each, form.groups, out // form.groups).transpose(2, 0, 1, 3)
    _slide(plan, unit, tables, X, W.seen_as(weights), b[0] if b else None, result)
    return [result]


@rule(ConvolveTransposed, takes=lambda node: same_floats(node) and node.inputs[0].type.ndim <= 5)
def lower_transposed(plan: Planner, unit: Unit, values: list[Value]) -> list[Value]:
    op = unit.node.op
    Y, W = (in_order(plan, unit, value) for value in values[:2])
    form = op.sliding
    batch, *counts, out = Y.array.shape
    *kernel, each, last = W.array.shape
    sizes = op.data_sizes(counts, values[2].array.shape[1:-1] if op.extra is None else None)
    if (
        tuple(kernel) != form.kernel_size
        or last != out
        or out % form.groups
        or min(sizes) < 0
        or form.output_sizes(sizes) != counts
    ):
        raise Unsupported("sizes that do not go together")
    channels = each * form.groups
    result = plan.new((batch, *sizes, channels), str(Y.array.dtype), unit.node.outputs[0])
    if not result.array.size:
        return [result]
    if not Y.array.size or not W.array.size:
        raise Unsupported("nothing to sum")
    axes = [axis_of_adjoint(form, axis, size) for axis, size in enumerate(sizes)]
    tables = tables_of(axes, kernel, counts, out, sizes, channels, batch)
    weights = W.array.reshape(form.n_taps, each, form.groups, out // form.groups).transpose(2, 0, 3, 1)
    _slide(plan, unit, tables, Y, W.seen_as(weights), None, result)
    return [result]


@rule(ConvolveKernel, takes=same_floats)
def lower_kernel(plan: Planner, unit: Unit, values: list[Value]) -> list[Value]:
    op, (X, Y) = unit.node.op, [in_order(plan, unit, value) for value in values]
    form = op.sliding
    batch, *sizes, channels = X.array.shape
    also, *counts, out = Y.array.shape
    if also != batch or counts != form.output_sizes(sizes) or channels % form.groups or out % form.groups:
        raise Unsupported("sizes that do not go together")
    each = channels // form.groups
    dtype = str(X.array.dtype)
    shapes = [(*form.kernel_size, each, out), (out,)]
    used = [plan.is_used(v, set()) for v in unit.node.outputs]
    results = [
        plan.new(shape, dtype, v) if wanted else plan.temporary(shape, dtype)
        for shape, v, wanted in zip(shapes, unit.node.outputs, used, strict=False)
    ]
    if not X.array.size or not Y.array.size:
        for result in results:
            copy_into(plan, unit, result, Value(np.zeros((), dtype), Fixed(), known=True))
        return results
    axes = [axis_of(form, axis, size) for axis, size in enumerate(sizes)]
    tables = tables_of(axes, form.kernel_size, sizes, channels, counts, out, batch)
    apart = each == 1 == out // form.groups
    blocks, vectors, part = _blocks(1 if apart else form.groups, out, each, dtype, apart)
    away = np.add.outer([a for _, a in tables.taps], np.arange(each)).ravel()
    rows = _least_waste(len(away), _most_rows(vectors))
    tiles = -(-len(away) // rows)
    away = np.concatenate([away, np.zeros(tiles * rows - len(away), np.int64)])
    of_block = tiles * rows * vectors * vector_length(dtype)
    row, of_bias = vectors * vector_length(dtype), len(blocks) * of_block
    size = of_bias + len(blocks) * row
    work = 2 * len(away) * len(blocks) * vectors * int(tables.counts.sum()) * batch
    n_units = batch * tables.n_bands
    grain, n_parts = _cut(n_units, work, tables.buffer + size)
    sums = plan.temporary((n_parts, size), dtype)
    kernel = kernel_gradient(
        Form(dtype, rows, vectors, part, apart, bool(tables.buffer)), used[-1] and op.bias
    )
    arrays = [Y, sums.seen_as(sums.array[0])]
    numbers, steps = [tiles, size, of_bias], {3: sums.array.strides[0]}
    _emit(plan, unit, kernel, tables, X, arrays, away, blocks, numbers, grain, n_parts, steps)
    for result, wanted, first, apart_by, n_rows in zip(
        results, used, (0, of_bias), (of_block, row), (len(tables.taps) * each, 1), strict=False
    ):
        if not wanted:
            continue
        words: list[Any] = [sums.seen_as(sums.array[0, first:]), result, _table(blocks)]
        words += [n_parts, size, len(blocks), apart_by, n_rows, out]
        plan.emit(summing(dtype, vectors), words, unit)
    return results


def _slide(
    plan: Planner, unit: Unit, tables: Tables, data: Value, weights: Value, bias: Value | None, result: Value
) -> None:
    """Emit the products of windows; the weights are ``(groups, taps, channels read, channels written)``."""
    dtype = str(data.array.dtype)
    groups, taps, channels, each = weights.array.shape
    apart = channels == 1 == each
    if apart:
        weights = weights.seen_as(weights.array.transpose(3, 1, 2, 0))
        groups, each = 1, groups
    blocks, vectors, part = _blocks(groups, groups * each, channels, dtype, apart)
    row = vectors * vector_length(dtype)
    packed = _packed(plan, unit, weights, row)
    table = [(away, number * channels * row) for number, away in tables.taps]
    rows = _best_rows(tables.counts, vectors)
    form = Form(dtype, rows, vectors, part, apart, bool(tables.buffer))
    work = 2 * taps * channels * len(blocks) * vectors * int(tables.counts.sum()) * data.array.shape[0]
    n_units = data.array.shape[0] * tables.n_bands
    grain, n_parts = _cut(n_units, work, tables.buffer)
    arrays = [packed, packed if bias is None else bias, result]
    numbers = [channels, taps * channels * row]
    kernel = sliding(form, bias is not None)
    _emit(plan, unit, kernel, tables, data, arrays, np.array(table), blocks, numbers, grain, n_parts, {})


def _cut(n_units: int, work: int, kept: int) -> tuple[int, int]:
    """Say how many bands a part has, and how many parts there are, by sizes alone: sums are theirs."""
    n_parts = 1
    if work >= LARGE and shares():
        n_parts = min(PARTS, n_units, max(KEPT // max(kept, 1), 2))
    grain = -(-n_units // n_parts)
    return grain, -(-n_units // grain)


def _emit(
    plan: Planner,
    unit: Unit,
    kernel: int,
    tables: Tables,
    data: Value,
    arrays: Sequence[Value],
    taps: np.ndarray,
    blocks: list[tuple[int, int, int]],
    numbers: Sequence[int],
    grain: int,
    n_parts: int,
    part_steps: dict[int, int],
) -> None:
    """Emit a kernel over the bands of images, in parts that have buffers of their own."""
    dtype = data.array.dtype
    apart = -(-tables.buffer * dtype.itemsize // 64) * 64
    buffer = plan.temporary((n_parts * apart // dtype.itemsize,), str(dtype)) if apart else data
    images = data.array.shape[0]
    result = arrays[0] if part_steps else arrays[-1]
    words: list[Any] = [data, buffer, *arrays]
    words += [_table(part) for part in (tables.rows, taps, tables.lines, tables.bands, blocks)]
    units = len(words)
    words += [images * tables.n_bands, 0, tables.n_bands, data.array.size // images]
    words += [result.array.size // images, len(blocks), tables.step_in, tables.step_out]
    words += [tables.before, tables.inside, tables.after, *numbers]
    share = None
    if n_parts > 1:
        moved = {**part_steps, **({1: apart} if apart else {})}
        share = Share(units, images * tables.n_bands, {units + 1: 1}, grain, 0, moved)
    plan.emit_shared(kernel, words, unit, share)


def _table(numbers: Any) -> Value:
    return Value(np.ascontiguousarray(numbers, np.int64), Fixed(), known=True)


def _blocks(
    groups: int, written: int, read: int, dtype: str, apart: bool
) -> tuple[list[tuple[int, int, int]], int, bool]:
    """Divide the channels that are written into blocks: the first that is read and written, and how many.

    Also gives how many vectors a block has, and whether any is not full.
    """
    each, length = written // groups, vector_length(dtype)
    vectors = 1 if each <= length or -(-each // length) in (3, 5) else 2
    row = vectors * length
    blocks = [
        (first if apart else group * read, group * each + first, min(row, each - first))
        for group in range(groups)
        for first in range(0, each, row)
    ]
    return blocks, vectors, any(width < row for *_, width in blocks)


def _packed(plan: Planner, unit: Unit, weights: Value, row: int) -> Value:
    """Give weights in the order of blocks, as rows of so many numbers, of which the last may be zeros."""
    array = weights.array
    groups, taps, channels, each = array.shape
    n = -(-each // row)
    if groups == n == 1 and each == row and array.flags.c_contiguous:
        return weights
    packed = plan.temporary((groups, n, taps, channels, row), str(array.dtype))
    whole = each // row
    if whole:
        parts = array[..., : whole * row].reshape(groups, taps, channels, whole, row).transpose(0, 3, 1, 2, 4)
        copy_into(plan, unit, packed.seen_as(packed.array[:, :whole]), weights.seen_as(parts))
    if whole < n:
        rest = packed.array[:, whole]
        zero = Value(np.zeros((), array.dtype), Fixed(), known=True)
        copy_into(plan, unit, packed.seen_as(rest[..., each - whole * row :]), zero)
        left = weights.seen_as(array[..., whole * row :])
        copy_into(plan, unit, packed.seen_as(rest[..., : each - whole * row]), left)
    return packed


def _most_rows(vectors: int) -> int:
    """Say how many rows of vectors there are registers for, besides those of what is multiplied."""
    return min(MOST_ROWS, (registers()[1] - vectors - 1) // vectors)


def _best_rows(counts: np.ndarray, vectors: int) -> int:
    """Choose how many windows to take at once: those at the end of a row are taken twice where too many."""
    most = min(_most_rows(vectors), int(counts.min()))

    def cycles(n: int) -> float:
        each = max(LATENCY, n * vectors / AT_ONCE, (n + vectors) / AT_ONCE)
        return float((-(-counts // n)).sum() * each)

    return min(range(max(most, 1), 0, -1), key=cycles)


def _least_waste(n: int, most: int) -> int:
    """Choose how many of a number of things to take at once, so that few are taken for nothing."""
    return min(range(min(most, n), 0, -1), key=lambda k: -(-n // k) * max(k, LATENCY))
