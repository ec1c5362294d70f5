"""Rules of what costs nothing when a program runs: shapes, and other ways of looking at the same memory."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np
from pytensor.compile.ops import DeepCopyOp, TypeCastingOp
from pytensor.tensor.basic import Alloc, ExtractDiag, ScalarFromTensor, Split, TensorFromScalar
from pytensor.tensor.elemwise import DimShuffle
from pytensor.tensor.shape import Reshape, Shape, Shape_i, SpecifyShape
from pytensor.tensor.subtensor import indices_from_subtensor

from ptml.backends.numba.plan.errors import Unsupported
from ptml.backends.numba.plan.lowering import rule
from ptml.backends.numba.plan.memory import Fixed, Value
from ptml.backends.numba.plan.rules.elementwise import copy_into
from ptml.ops.recompute import After

if TYPE_CHECKING:
    from ptml.backends.numba.plan.planner import Planner
    from ptml.backends.numba.plan.schedule import Unit

__all__ = ["known_index"]


@rule(Shape_i)
def lower_size(plan: Planner, unit: Unit, values: list[Value]) -> list[Value]:
    return [Value(np.asarray(values[0].array.shape[unit.node.op.i], np.int64), Fixed(), known=True)]


@rule(Shape)
def lower_shape(plan: Planner, unit: Unit, values: list[Value]) -> list[Value]:
    return [Value(np.asarray(values[0].array.shape, np.int64), Fixed(), known=True)]


# A result is copied when it is handed out, so that a copy on the way there is none.
@rule(TypeCastingOp, DeepCopyOp, ScalarFromTensor, TensorFromScalar, views={0: [0]})
def lower_same(plan: Planner, unit: Unit, values: list[Value]) -> list[Value]:
    return [values[0]]


# Its operands decide when it comes in the schedule, and so when what is computed of it starts.
@rule(After)
def lower_after(plan: Planner, unit: Unit, values: list[Value]) -> list[Value]:
    return values[: unit.node.op.n]


@rule(SpecifyShape)
def lower_specified(plan: Planner, unit: Unit, values: list[Value]) -> list[Value]:
    value, *sizes = values
    if not all(size.known for size in sizes if size.array is not None):
        raise Unsupported("a shape that is not known")
    # The op compares, and raises.
    unit.node.op.perform(unit.node, [value.array, *(_number(size) for size in sizes)], [[None]])
    return [value]


def _number(size: Value) -> Any:
    return None if size.array is None else size.array[()]


@rule(DimShuffle, views={0: [0]})
def lower_dimshuffle(plan: Planner, unit: Unit, values: list[Value]) -> list[Value]:
    op, array = unit.node.op, values[0].array
    kept = [axis for axis in op.new_order if axis != "x"]
    dropped = [axis for axis in range(array.ndim) if axis not in kept]
    if any(array.shape[axis] != 1 for axis in dropped):
        raise Unsupported("dropping an axis of another size than 1")
    seen = array.transpose([*kept, *dropped])[(..., *[0] * len(dropped))]
    # Without the ellipsis NumPy would give a number of its own instead of a view of no axes.
    axes = [None if axis == "x" else slice(None) for axis in op.new_order]
    return [values[0].seen_as(seen[(*axes, ...)])]


@rule(Reshape)
def lower_reshape(plan: Planner, unit: Unit, values: list[Value]) -> list[Value]:
    value, shape = values
    if not shape.known:
        raise Unsupported("a shape that is not known")
    wanted = tuple(int(size) for size in shape.array)
    open_axes = wanted.count(-1)
    if open_axes > 1 or (not open_axes and math.prod(wanted) != value.array.size):
        raise Unsupported("a shape of another size")
    try:
        return [value.seen_as(np.reshape(value.array, wanted, copy=False))]
    except ValueError:
        flat = plan.new(value.array.shape, unit.node.outputs[0].type.dtype, unit.node.outputs[0])
        copy_into(plan, unit, flat, value)
        return [flat.seen_as(flat.array.reshape(wanted))]


def known_index(unit: Unit, values: list[Value]) -> tuple[Any, ...]:
    """Give the index of a subtensor op, if it is known.

    Raises
    ------
    Unsupported
        If it is computed when the program runs.
    """
    if not all(value.known for value in values):
        raise Unsupported("an index that is not known")
    numbers = [int(value.array) for value in values]
    return (*indices_from_subtensor(numbers, unit.node.op.idx_list), ...)


@rule(ExtractDiag, views={0: [0]})
def lower_diagonal(plan: Planner, unit: Unit, values: list[Value]) -> list[Value]:
    op = unit.node.op
    return [values[0].seen_as(values[0].array.diagonal(op.offset, op.axis1, op.axis2))]


@rule(Split)
def lower_split(plan: Planner, unit: Unit, values: list[Value]) -> list[Value]:
    value, *rest = values
    if not all(other.known for other in rest):
        raise Unsupported("sizes that are not known")
    parts: list[list[Any]] = [[None] for _ in unit.node.outputs]
    unit.node.op.perform(unit.node, [value.array, *(other.array for other in rest)], parts)
    return [value.seen_as(part[0]) for part in parts]


@rule(Alloc, views={0: [0]})
def lower_alloc(plan: Planner, unit: Unit, values: list[Value]) -> list[Value]:
    value, *sizes = values
    if not all(size.known for size in sizes):
        raise Unsupported("a shape that is not known")
    shape = tuple(int(size.array) for size in sizes)
    missing = len(shape) - value.array.ndim
    own = zip(unit.node.inputs[0].type.shape, value.array.shape, shape[missing:], strict=True)
    if any(size < 0 for size in shape) or any(static != 1 and have != want for static, have, want in own):
        raise Unsupported("a value of another shape")
    return [value.seen_as(np.broadcast_to(value.array, shape))]
