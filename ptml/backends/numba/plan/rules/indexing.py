"""Rules of arrays as indices: rows gathered, such as those of an embedding, and written or added back.

Every index is checked before anything is written, so that a wrong one leaves all memory as it was, even where
the rows are written into the cell itself.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cache, partial
from typing import TYPE_CHECKING, Any

import attrs
import numpy as np
import pytensor.scalar as ps
from llvmlite import ir
from pytensor.graph.basic import Apply, Constant
from pytensor.tensor.extra_ops import Repeat
from pytensor.tensor.subtensor import (
    AdvancedIncSubtensor,
    AdvancedSubtensor,
    IncSubtensor,
    Subtensor,
    unflatten_index_variables,
)

from ptml.backends.numba.plan.codegen.routine import Routine
from ptml.backends.numba.plan.codegen.scalars import combine
from ptml.backends.numba.plan.errors import Unsupported
from ptml.backends.numba.plan.lowering import rule
from ptml.backends.numba.plan.memory import Fixed, Value
from ptml.backends.numba.plan.rules.assembling import base_to_write, write_part
from ptml.backends.numba.plan.rules.elementwise import compute_into, copy_into
from ptml.backends.numba.plan.rules.views import known_index
from ptml.backends.numba.plan.runtime.sharing import share_over

if TYPE_CHECKING:
    from ptml.backends.numba.plan.planner import Planner
    from ptml.backends.numba.plan.schedule import Unit

__all__: list[str] = []


@attrs.frozen(eq=False)
class _Places:
    """Where in an array the indices point to.

    Attributes
    ----------
    view : Value
        The array, once its slices are taken.
    axes : list of int
        The axes of it that are indexed.
    indices : list of Value
        One for each, of one shape, in C order.
    common : tuple of int
        That shape.
    first : int
        The axis of the result where that shape stands.
    """

    view: Value
    axes: list[int]
    indices: list[Value]
    common: tuple[int, ...]
    first: int

    @property
    def kept(self) -> list[int]:
        """The axes that are not indexed."""
        return [axis for axis in range(self.view.array.ndim) if axis not in self.axes]

    @property
    def result_shape(self) -> tuple[int, ...]:
        sizes = [self.view.array.shape[axis] for axis in self.kept]
        return (*sizes[: self.first], *self.common, *sizes[self.first :])

    def in_front(self, array: np.ndarray) -> np.ndarray:
        """Give a view of an array of the result's shape, with the axes of the indices in front."""
        moved = range(self.first, self.first + len(self.common))
        return array.transpose([*moved, *(axis for axis in range(array.ndim) if axis not in moved)])


def _runs(node: Apply, first: int) -> bool:
    """Say whether an axis is indexed by a number that may be computed when the program runs."""
    numbers = [node.inputs[first + k] for k in node.op.idx_list if isinstance(k, int)]
    return not all(isinstance(number, Constant) for number in numbers)


@rule(Subtensor, raises=lambda node: _runs(node, 1))
def lower_subtensor(plan: Planner, unit: Unit, values: list[Value]) -> list[Value]:
    value, *indices = values
    if all(index.known for index in indices):
        return [value.seen_as(value.array[known_index(unit, indices)])]
    return [_gather(plan, unit, value, _entries(unit, indices))]


@rule(AdvancedSubtensor, raises=True)
def lower_gather(plan: Planner, unit: Unit, values: list[Value]) -> list[Value]:
    value, *indices = values
    return [_gather(plan, unit, value, _entries(unit, indices))]


@rule(Repeat)
def lower_repeat(plan: Planner, unit: Unit, values: list[Value]) -> list[Value]:
    value, repeats = values
    axis = unit.node.op.axis
    if (
        not repeats.known
        or len(repeats.array) not in (1, value.array.shape[axis])
        or (repeats.array < 0).any()
    ):
        raise Unsupported("repeats that are not known")
    places = Value(np.repeat(np.arange(value.array.shape[axis]), repeats.array), Fixed(), known=True)
    return [_gather(plan, unit, value, [slice(None)] * axis + [places])]


@rule(IncSubtensor, raises=lambda node: _runs(node, 2))
def lower_inc_subtensor(plan: Planner, unit: Unit, values: list[Value]) -> list[Value]:
    base, change, *indices = values
    if all(index.known for index in indices):
        return [write_part(plan, unit, base, change, known_index(unit, indices))]
    return [_scatter(plan, unit, base, change, _entries(unit, indices))]


@rule(AdvancedIncSubtensor, raises=True)
def lower_scatter(plan: Planner, unit: Unit, values: list[Value]) -> list[Value]:
    base, change, *indices = values
    op, node = unit.node.op, unit.node
    if op.ignore_duplicates and not op.set_instead_of_inc:
        raise Unsupported("duplicates that count once")
    if [value.array.dtype for value in indices] == [np.dtype(bool)]:
        return [_where(plan, unit, base, change, indices[0])]
    try:
        # Only sizes are looked at.
        op._check_runtime_broadcast_of_vector_index(node, base.array, change.array, indices[0].array)
    except ValueError as error:
        raise Unsupported("a change that is broadcast") from error
    return [_scatter(plan, unit, base, change, _entries(unit, indices))]


def _entries(unit: Unit, values: Sequence[Value]) -> list[Any]:
    """Give an index with slices of known numbers, and values for what is indexed by numbers."""
    entries = unflatten_index_variables(values, unit.node.op.idx_list)
    return [_known_slice(entry) if isinstance(entry, slice) else entry for entry in entries]


def _known_slice(entry: slice) -> slice:
    bounds = [entry.start, entry.stop, entry.step]
    if not all(bound is None or bound.known for bound in bounds):
        raise Unsupported("a slice that is not known")
    return slice(*(None if bound is None else int(bound.array) for bound in bounds))


def _find(plan: Planner, unit: Unit, value: Value, entries: list[Any]) -> _Places:
    slices = tuple(entry if isinstance(entry, slice) else slice(None) for entry in entries)
    view = value.seen_as(value.array[(*slices, ...)])
    axes = [axis for axis, entry in enumerate(entries) if not isinstance(entry, slice)]
    indices = [entries[axis] for axis in axes]
    if not all(index.array.dtype.kind in "iu" and index.array.dtype != np.uint64 for index in indices):
        raise Unsupported("indices that are no whole numbers")
    try:
        common = np.broadcast_shapes(*(index.array.shape for index in indices))
    except ValueError as error:
        raise Unsupported("indices of different shapes") from error
    in_a_row = axes == list(range(axes[0], axes[0] + len(axes)))
    first = axes[0] if in_a_row else 0
    return _Places(view, axes, [_spread(plan, unit, index, common) for index in indices], common, first)


def _spread(plan: Planner, unit: Unit, index: Value, shape: tuple[int, ...]) -> Value:
    if index.array.shape == shape and index.array.flags.c_contiguous:
        return index
    spread = plan.temporary(shape, str(index.array.dtype))
    copy_into(plan, unit, spread, index)
    return spread


def _gather(plan: Planner, unit: Unit, value: Value, entries: list[Any]) -> Value:
    places = _find(plan, unit, value, entries)
    output = unit.node.outputs[0]
    dtype = output.type.dtype
    made = plan.new(places.result_shape, dtype, output)
    _emit(plan, unit, places, made, dtype, None)
    return made


def _scatter(plan: Planner, unit: Unit, base: Value, change: Value, entries: list[Any]) -> Value:
    op, output = unit.node.op, unit.node.outputs[0]
    dtype, old = output.type.dtype, str(change.array.dtype)
    adds = not op.set_instead_of_inc
    if base.array.dtype != dtype or (adds and not np.can_cast(old, dtype, "same_kind")):
        raise Unsupported("a change of another kind")
    written = base_to_write(plan, unit, base, [change, *(e for e in entries if not isinstance(e, slice))])
    places = _find(plan, unit, written, entries)
    region = places.result_shape
    try:
        if np.broadcast_shapes(change.array.shape, region) != region:
            raise Unsupported("a change of another shape")
    except ValueError as error:
        raise Unsupported("a change of another shape") from error
    rows = change
    if old != dtype or change.array.shape != region or not change.array.flags.c_contiguous:
        rows = plan.temporary(region, dtype)
        copy_into(plan, unit, rows, change)
    _emit(plan, unit, places, rows, dtype, "add" if adds else "set")
    return written


def _where(plan: Planner, unit: Unit, base: Value, change: Value, mask: Value) -> Value:
    """Write where a mask is true: one number for all those places, or for each of their rows."""
    op, output = unit.node.op, unit.node.outputs[0]
    shape, n_axes = base.array.shape, mask.array.ndim
    rest = shape[n_axes:]
    array = change.array
    if array.ndim == len(rest) + 1 and unit.node.inputs[1].type.shape[0] == 1:
        array = array[0, ...]
    if op.idx_list != (0,) or mask.array.shape != shape[:n_axes] or array.ndim > len(rest):
        raise Unsupported("a mask of this kind")
    if any(have not in (1, want) for have, want in zip(array.shape[::-1], rest[::-1], strict=False)):
        raise Unsupported("a change of another shape")
    dtype, old = output.type.dtype, str(array.dtype)
    if not op.set_instead_of_inc and not np.can_cast(old, dtype, "same_kind"):
        raise Unsupported("a change of another kind")
    spread = mask.seen_as(mask.array.reshape(*mask.array.shape, *[1] * len(rest), copy=False))
    written = plan.new(shape, dtype, output)
    sources = [spread, change.seen_as(array), base]
    compute_into(plan, unit, written, _masked(old, dtype, op.set_instead_of_inc), sources)
    return written


@cache
def _masked(change: str, dtype: str, sets: bool) -> ps.Composite:
    mask, new, old = ps.bool(), ps.get_scalar_type(change)(), ps.get_scalar_type(dtype)()
    moved = ps.cast(new, dtype)
    return ps.Composite([mask, new, old], [ps.switch(mask, moved if sets else old + moved, old)])


def _emit(plan: Planner, unit: Unit, places: _Places, rows: Value, dtype: str, written: str | None) -> None:
    """Emit what moves rows out of an array, or into it."""
    array = places.view.array
    front = places.in_front(rows.array)
    n_common = len(places.common)
    n, itemsize = math.prod(places.common), array.dtype.itemsize
    kept = _collapsed(
        [
            (array.shape[axis], array.strides[axis], front.strides[n_common + k])
            for k, axis in enumerate(places.kept)
        ]
    )
    # The rows are in C order, so that they follow one another evenly along the common axes.
    steps = zip(reversed(front.strides[:n_common]), reversed(places.common), strict=True)
    step = next((stride for stride, size in steps if size > 1), 0)
    numbers = [step, *(array.strides[axis] for axis in places.axes), *(s for _, *ss in kept for s in ss)]
    if any(number % itemsize for number in numbers):
        raise Unsupported("elements that lie askew")
    flat = bool(kept) and kept[-1][1:] == (itemsize, itemsize)
    kinds = tuple(str(index.array.dtype) for index in places.indices)
    words: list[int | Value] = [places.view, rows, *places.indices, n, step // itemsize]
    for axis in places.axes:
        words += [array.shape[axis], array.strides[axis] // itemsize]
    for size, *strides in kept:
        words += [size, *(stride // itemsize for stride in strides)]
    size = math.prod(size for size, *_ in kept)
    share = None
    if written is None:
        moving = {1: step, **{2 + k: index.array.dtype.itemsize for k, index in enumerate(places.indices)}}
        share = share_over(n, 2 * size + 4 * len(kinds), 2 + len(kinds), moving)
    kernel = _kernel(dtype, kinds, len(kept), flat, written)
    plan.emit_shared(kernel, words, unit, share, raises=not _fits(places))


def _fits(places: _Places) -> bool:
    """Say whether the indices are known, and point into the array."""
    sizes = [places.view.array.shape[axis] for axis in places.axes]
    return all(
        index.known and (not index.array.size or (index.array.min() >= -size and index.array.max() < size))
        for index, size in zip(places.indices, sizes, strict=True)
    )


def _collapsed(axes: list[tuple[int, int, int]]) -> list[tuple[int, ...]]:
    """Join axes along which both arrays go on as if they were one, and leave out those of one element."""
    joined: list[tuple[int, ...]] = []
    for size, *strides in axes:
        if size == 1:
            continue
        if joined and all(b == s * size for b, s in zip(joined[-1][1:], strides, strict=True)):
            joined[-1] = (joined[-1][0] * size, *strides)
        else:
            joined.append((size, *strides))
    return joined


@cache
def _kernel(dtype: str, kinds: tuple[str, ...], n_kept: int, flat: bool, written: str | None) -> int:
    """Give the kernel that moves rows: out of an array, where nothing is written in it, or into it."""
    routine = Routine([dtype, dtype, *kinds], 2 + 2 * len(kinds) + 3 * n_kept)
    array, rows, *indices = routine.arrays
    n, step, *numbers = routine.numbers
    builder = routine.builder
    sizes, strides = numbers[: 2 * len(kinds) : 2], numbers[1 : 2 * len(kinds) : 2]
    kept = [numbers[k : k + 3] for k in range(2 * len(kinds), len(numbers), 3)]
    zero = routine.index(0)

    def place(k: int, i: ir.Value) -> ir.Value:
        number = routine.cast(indices[k][i], kinds[k], "int64")
        below = builder.icmp_signed("<", number, zero)
        return builder.select(below, builder.add(number, sizes[k]), number)

    def outside(k: int, i: ir.Value) -> ir.Value:
        # As an unsigned number, one below zero is above every size.
        return builder.icmp_unsigned(">=", place(k, i), sizes[k])

    for k in range(len(kinds)):
        routine.refuse(routine.reduced("or", "bool", n, partial(outside, k)))

    def along(rest: Sequence[Any], here: ir.Value, there: ir.Value) -> None:
        if not rest:
            move(here, there)
            return
        size, own, other = rest[0]
        if flat and len(rest) == 1:
            own = other = routine.index(1)
        routine.each(
            size,
            lambda i: along(
                rest[1:],
                builder.add(here, builder.mul(i, own)),
                builder.add(there, builder.mul(i, other)),
            ),
        )

    def move(here: ir.Value, there: ir.Value) -> None:
        if written is None:
            rows[there] = array[here]
        elif written == "set":
            array[here] = rows[there]
        else:
            array[here] = combine(builder, "add", array[here], rows[there], dtype)

    def row(i: ir.Value) -> None:
        here = zero
        for k, stride in enumerate(strides):
            here = builder.add(here, builder.mul(place(k, i), stride))
        along(kept, here, builder.mul(i, step))

    routine.each(n, row)
    return routine.address()
