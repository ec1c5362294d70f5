"""Rules of what puts arrays together: joined, stacked, written into one another, allocated."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytensor.scalar as ps
from pytensor.tensor.basic import Alloc, AllocEmpty, Join, MakeVector
from pytensor.tensor.subtensor import IncSubtensor

from ptml.backends.numba.plan.elementwise import copy_into
from ptml.backends.numba.plan.errors import Unsupported
from ptml.backends.numba.plan.lowering import rule
from ptml.backends.numba.plan.memory import Value
from ptml.backends.numba.plan.views import known_index

if TYPE_CHECKING:
    from ptml.backends.numba.plan.planner import Planner
    from ptml.backends.numba.plan.schedule import Unit

#: Ops whose rules need no memory where their inputs are known.
WITHOUT_MEMORY = (Alloc(), AllocEmpty("float64"))


@rule(AllocEmpty)
def lower_alloc_empty(plan: Planner, unit: Unit, values: list[Value]) -> list[Value]:
    if not all(value.known for value in values):
        raise Unsupported("a shape that is not known")
    shape = [int(value.array) for value in values]
    if any(size < 0 for size in shape):
        raise Unsupported("a negative size")
    output = unit.node.outputs[0]
    return [plan.new(shape, output.type.dtype, output)]


@rule(MakeVector)
def lower_make_vector(plan: Planner, unit: Unit, values: list[Value]) -> list[Value]:
    output = unit.node.outputs[0]
    made = plan.new([len(values)], output.type.dtype, output)
    for k, value in enumerate(values):
        copy_into(plan, unit, made.seen_as(made.array[k, ...]), value)
    return [made]


@rule(Join)
def lower_join(plan: Planner, unit: Unit, values: list[Value]) -> list[Value]:
    axis, output = unit.node.op.axis, unit.node.outputs[0]
    shapes = [list(value.array.shape) for value in values]
    others = {tuple(shape[:axis] + shape[axis + 1 :]) for shape in shapes}
    if len(others) > 1:
        raise Unsupported("parts of different sizes")
    sizes = [shape[axis] for shape in shapes]
    joined = plan.new([*shapes[0][:axis], sum(sizes), *shapes[0][axis + 1 :]], output.type.dtype, output)
    start = 0
    for value, size in zip(values, sizes, strict=True):
        part = (slice(None),) * axis + (slice(start, start + size),)
        copy_into(plan, unit, joined.seen_as(joined.array[part]), value)
        start += size
    return [joined]


@rule(IncSubtensor)
def lower_inc_subtensor(plan: Planner, unit: Unit, values: list[Value]) -> list[Value]:
    base, change, *indices = values
    index = known_index(unit, indices)
    op, output = unit.node.op, unit.node.outputs[0]
    shape, dtype = base.array.shape, output.type.dtype
    region = base.array[index].shape
    missing = len(region) - change.array.ndim
    own = zip(change.array.shape, region[max(missing, 0) :], strict=False)
    if missing < 0 or any(have not in (1, want) for have, want in own):
        raise Unsupported("a change of another shape")
    if plan.dies_whole(base, shape, dtype) and change.root is not base.root:
        written = plan.take_over(base, output)
    else:
        written = plan.new(shape, dtype, output)
        copy_into(plan, unit, written, base)
    target = written.seen_as(written.array[index])
    if op.set_instead_of_inc:
        copy_into(plan, unit, target, change)
    else:
        copy_into(plan, unit, target, change, ps.add)
    return [written]
