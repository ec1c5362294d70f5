"""Rules of what puts arrays together: joined, stacked, allocated; and the writing of one into another."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import pytensor.scalar as ps
from pytensor.conditional.op import IfElse
from pytensor.tensor.basic import Alloc, AllocEmpty, Join, MakeVector

from ptml.backends.numba.plan.errors import Unsupported
from ptml.backends.numba.plan.lowering import rule
from ptml.backends.numba.plan.memory import Value
from ptml.backends.numba.plan.rules.elementwise import compute_into, copy_all, copy_into

if TYPE_CHECKING:
    from ptml.backends.numba.plan.planner import Planner
    from ptml.backends.numba.plan.schedule import Unit

__all__ = ["WITHOUT_MEMORY", "base_to_write", "write_part"]

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
    copy_all(plan, unit, [(made.seen_as(made.array[k, ...]), value) for k, value in enumerate(values)])
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
    start, parts = 0, []
    for value, size in zip(values, sizes, strict=True):
        part = (slice(None),) * axis + (slice(start, start + size),)
        parts.append((joined.seen_as(joined.array[part]), value))
        start += size
    copy_all(plan, unit, parts)
    return [joined]


@rule(IfElse)
def lower_branches(plan: Planner, unit: Unit, values: list[Value]) -> list[Value]:
    condition, *branches = values
    outputs = unit.node.outputs
    chosen = []
    for output, yes, no in zip(outputs, branches[: len(outputs)], branches[len(outputs) :], strict=True):
        if yes.array.shape != no.array.shape:
            raise Unsupported("branches of different sizes")
        if yes.known and no.known and np.array_equal(yes.array, no.array):
            # So are the sizes of branches, on which more may depend.
            chosen.append(yes)
        else:
            chosen.append(plan.new(yes.array.shape, output.type.dtype, output))
            compute_into(plan, unit, chosen[-1], ps.switch, [condition, yes, no])
    return chosen


def base_to_write(plan: Planner, unit: Unit, base: Value, others: Sequence[Value]) -> Value:
    """Give memory that holds what an array does, to be written into.

    That is the cell that the node's result is for, where the array is what it holds; or the array's own
    memory, where nothing reads it any more; else a copy.

    Parameters
    ----------
    plan : Planner
    unit : Unit
    base : Value
        The array.
    others : sequence of Value
        What is read while it is written.
    """
    output = unit.node.outputs[0]
    shape, dtype = base.array.shape, output.type.dtype
    if all(other.root is not base.root for other in others):
        cell = plan.cell_to_write(output, shape, dtype)
        if cell is not None and cell.root is base.root and base.whole:
            plan.write_cell(cell)
            return cell
        if plan.dies_whole(base, shape, dtype):
            return plan.take_over(base, output)
    written = plan.new(shape, dtype, output)
    copy_into(plan, unit, written, base)
    return written


def write_part(plan: Planner, unit: Unit, base: Value, change: Value, index: tuple[Any, ...]) -> Value:
    """Write into a part of an array that is known, or add to it."""
    region = base.array[index].shape
    missing = len(region) - change.array.ndim
    own = zip(change.array.shape, region[max(missing, 0) :], strict=False)
    if missing < 0 or any(have not in (1, want) for have, want in own):
        raise Unsupported("a change of another shape")
    written = base_to_write(plan, unit, base, [change])
    target = written.seen_as(written.array[index])
    if unit.node.op.set_instead_of_inc:
        copy_into(plan, unit, target, change)
    else:
        copy_into(plan, unit, target, change, ps.add)
    return written
