"""Rules of elementwise nodes and reductions: how operands lie, where results go, and the nest between."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

import attrs
import numpy as np
import pytensor.scalar as ps
from pytensor.graph.basic import Variable
from pytensor.tensor.elemwise import CAReduce, Elemwise

from ptml.backends.numba.plan.codegen.loops import Access, Nest, Result, nest_kernel
from ptml.backends.numba.plan.errors import Unsupported
from ptml.backends.numba.plan.lowering import lowered_reduction, rule
from ptml.backends.numba.plan.memory import Pool, Value
from ptml.backends.numba.plan.runtime.sharing import Cut, cut_of, in_parts, share_of
from ptml.backends.numba.plan.segments import UNUSED, copy_each, lay_flat

if TYPE_CHECKING:
    from ptml.backends.numba.plan.planner import Planner
    from ptml.backends.numba.plan.schedule import Unit

__all__ = ["compute_into", "copy_all", "copy_into", "emit_nest"]


@attrs.define(eq=False)
class _Operand:
    """An array along the axes of a nest: the bytes from one element to the next, 0 where it stays."""

    value: Value
    dtype: str
    strides: tuple[int, ...]

    def lies_like(self, other: _Operand) -> bool:
        return (
            self.value.place == other.value.place
            and self.strides == other.strides
            and self.dtype == other.dtype
        )


@attrs.define(eq=False)
class _Output(_Operand):
    """An operand that is written."""

    source: int
    source_dtype: str
    reduction: str | None = None
    reduced: tuple[int, ...] = ()
    accumulator: str = ""
    alias: int | None = None


def _operand(value: Value, shape: Sequence[int], dtype: str | None = None) -> _Operand:
    """Lay an array along axes to which its own last ones belong."""
    array = value.array
    missing = len(shape) - array.ndim
    strides = [0] * missing + [
        0 if have == 1 else step for have, step in zip(array.shape, array.strides, strict=True)
    ]
    return _Operand(value, dtype or str(array.dtype), tuple(strides))


@rule(Elemwise, ps.ScalarOp)
def lower_elementwise(plan: Planner, unit: Unit, values: list[Value]) -> list[Value]:
    if unit.fit is not None and (made := lay_flat(plan, unit, values)) is not None:
        return made
    node = unit.node
    op = node.op.scalar_op if isinstance(node.op, Elemwise) else node.op
    shape = _common_shape(node.inputs, values)
    inputs = [_operand(value, shape, x.type.dtype) for x, value in zip(node.inputs, values, strict=True)]
    outputs: list[_Output] = []
    joined = set(unit.reductions)
    for k, variable in enumerate(node.outputs):
        if plan.is_used(variable, joined):
            outputs.append(_elementwise_output(plan, k, variable, shape, inputs, outputs))
    for reduction in unit.reductions:
        source = node.outputs.index(reduction.inputs[0])
        outputs.append(_reduced_output(plan, reduction, source, shape))
    emit_nest(plan, unit, op, shape, inputs, outputs)
    whole = {output.source: output.value for output in outputs if output.reduction is None}
    reduced = [output.value for output in outputs if output.reduction is not None]
    return [*(whole.get(k, UNUSED) for k in range(len(node.outputs))), *reduced]


@rule(CAReduce)
def lower_reduction(plan: Planner, unit: Unit, values: list[Value]) -> list[Value]:
    if lowered_reduction(unit.node.op) is None:
        raise Unsupported("this reduction")
    if unit.fit is not None and (made := lay_flat(plan, unit, values)) is not None:
        return made
    shape = values[0].array.shape
    output = _reduced_output(plan, unit.node, 0, shape)
    emit_nest(plan, unit, ps.identity, shape, [_operand(values[0], shape)], [output])
    return [output.value]


def copy_into(plan: Planner, unit: Unit, target: Value, source: Value, op: ps.ScalarOp = ps.identity) -> None:
    """Emit what writes an array into another, broadcast and cast to it; or adds it there, by ``ps.add``."""
    shape = target.array.shape
    place = _operand(target, shape)
    inputs = [_operand(source, shape)]
    alias = None
    if op.nin != 1:
        inputs.insert(0, place)
        alias = 0
    dtype = place.dtype if op.nin != 1 else inputs[0].dtype
    output = _Output(target, place.dtype, place.strides, 0, dtype, alias=alias)
    emit_nest(plan, unit, op, shape, inputs, [output])


def compute_into(plan: Planner, unit: Unit, target: Value, op: ps.ScalarOp, sources: Sequence[Value]) -> None:
    """Emit what computes an op of arrays that are broadcast to the target, and overlap it nowhere."""
    shape = target.array.shape
    place = _operand(target, shape)
    output = _Output(target, place.dtype, place.strides, 0, place.dtype)
    emit_nest(plan, unit, op, shape, [_operand(source, shape) for source in sources], [output])


def copy_all(plan: Planner, unit: Unit, pairs: Sequence[tuple[Value, Value]]) -> None:
    """Emit what writes arrays into others, where no target overlaps a source or another target."""
    for target, source in copy_each(plan, unit, pairs) if len(pairs) > 1 else pairs:
        copy_into(plan, unit, target, source)


def _common_shape(variables: Sequence[Variable], values: Sequence[Value]) -> tuple[int, ...]:
    arrays = [value.array for value in values]
    shape = list(max((array.shape for array in arrays), key=len, default=()))
    for axis in range(len(shape)):
        sizes = {
            array.shape[axis]
            for variable, array in zip(variables, arrays, strict=True)
            if variable.type.shape[axis] != 1
        }
        if len(sizes) > 1:
            raise Unsupported("operands of different sizes")
        shape[axis] = sizes.pop() if sizes else 1
    return tuple(shape)


def _elementwise_output(
    plan: Planner,
    k: int,
    variable: Variable,
    shape: tuple[int, ...],
    inputs: list[_Operand],
    others: list[_Output],
) -> _Output:
    dtype = variable.type.dtype
    taken = {output.alias for output in others}
    if (cell := plan.cell_to_write(variable, shape, dtype)) is not None:
        output = _Output(cell, dtype, _operand(cell, shape).strides, k, dtype)
        same_memory = [i for i, operand in enumerate(inputs) if operand.value.root is cell.root]
        if all(inputs[i].lies_like(output) for i in same_memory):
            plan.write_cell(cell)
            output.alias = same_memory[0] if same_memory else None
            return output
    for i, operand in enumerate(inputs):
        if i in taken or not plan.dies_whole(operand.value, shape, dtype):
            continue
        shared = [other for other in inputs if other.value.root is operand.value.root]
        if all(other.lies_like(operand) for other in shared):
            value = plan.take_over(operand.value, variable)
            return _Output(value, dtype, operand.strides, k, dtype, alias=i)
    value = plan.new(shape, dtype, variable)
    return _Output(value, dtype, _operand(value, shape).strides, k, dtype)


def _reduced_output(plan: Planner, node, source: int, shape: tuple[int, ...]) -> _Output:
    op = node.op
    variable = node.outputs[0]
    axes = tuple(range(len(shape))) if op.axis is None else tuple(sorted(a % len(shape) for a in op.axis))
    kept = tuple(size for axis, size in enumerate(shape) if axis not in axes)
    kind = lowered_reduction(op)
    if kind in ("maximum", "minimum") and 0 in shape and 0 not in kept:
        raise Unsupported("an extreme of nothing")
    dtype = variable.type.dtype
    accumulator = getattr(op, "acc_dtype", None) or dtype
    value = plan.new(kept, dtype, variable)
    own = iter(value.array.strides)
    strides = tuple(0 if axis in axes else next(own) for axis in range(len(shape)))
    return _Output(
        value, dtype, strides, source, node.inputs[0].type.dtype, kind, axes, str(np.dtype(accumulator))
    )


def emit_nest(
    plan: Planner,
    unit: Unit,
    op: ps.ScalarOp,
    shape: tuple[int, ...],
    inputs: Sequence[_Operand],
    outputs: Sequence[_Output],
) -> None:
    """Emit the kernel of a nest over a shape, with as few loops as the operands allow."""
    if not outputs or (not math.prod(shape) and all(output.reduction is None for output in outputs)):
        return
    inputs, reads = _distinct(inputs)
    for output in outputs:
        if output.alias is not None:
            output.alias = reads[output.alias]
    groups = _collapsed(shape, inputs, outputs)
    last = [group[-1] for group in groups]
    sizes = [math.prod(shape[axis] for axis in group) for group in groups]
    reduced = {k for k, axis in enumerate(last) if any(axis in x.reduced for x in outputs)}
    cut = cut_of(op, len(inputs) + len(outputs), sizes, reduced)
    outputs, unfinished = _cut_outputs(plan, outputs, cut, last)
    accesses = tuple(Access(x.dtype, _steps(x, last, ())) for x in inputs)
    results = tuple(
        Result(
            x.dtype, _steps(x, last, x.reduced), x.source, x.source_dtype, x.reduction, x.accumulator, x.alias
        )
        for x in outputs
    )
    nest = Nest(op, len(groups), accesses, tuple(reads), results)
    operands: list[_Operand] = [*inputs, *outputs]
    for output, result in zip(outputs, results, strict=True):
        if result.has_scratch:
            operands.append(_scratch(plan, output))
    words: list[int | Value] = [operand.value for operand in operands]
    words += sizes
    for operand, access in zip(operands, nest.accesses, strict=True):
        words += [operand.strides[last[k]] for k, step in enumerate(access.steps) if step == "s"]
    share = None
    if cut is not None:
        steps = [operand.strides[last[cut.axis]] for operand in operands]
        apart = {len(inputs) + k: every.array.strides[0] for k, (_, every) in unfinished.items()}
        share = share_of(cut, sizes[cut.axis], len(operands) + cut.axis, steps, apart)
    plan.emit_shared(nest_kernel(nest), words, unit, share)
    for whole, every in unfinished.values():
        finished = _finishing(whole)
        parts = _operand(every, every.array.shape)
        emit_nest(plan, unit, ps.identity, every.array.shape, [parts], [finished])


def _cut_outputs(
    plan: Planner, outputs: Sequence[_Output], cut: Cut | None, axes: Sequence[int]
) -> tuple[list[_Output], dict[int, tuple[_Output, Value]]]:
    """Give the outputs of a nest that is cut, and what is to be reduced once more afterwards: by its number,
    the output and the array of what the parts came to."""
    cut_outputs, unfinished = list(outputs), {}
    for k, output in enumerate(outputs):
        if cut is not None and axes[cut.axis] in output.reduced:
            cut_outputs[k], every = in_parts(plan, output, cut, axes[cut.axis])
            unfinished[k] = output, every
    return cut_outputs, unfinished


def _finishing(output: _Output) -> _Output:
    """Give an output as the reduction of what parts came to, along their axis."""
    strides = (0, *output.value.array.strides)
    return attrs.evolve(
        output, strides=strides, source=0, source_dtype=output.accumulator, reduced=(0,), alias=None
    )


def _distinct(inputs: Sequence[_Operand]) -> tuple[list[_Operand], list[int]]:
    """Name each array once, however often the op takes it: what is written over must have one name."""
    found: list[_Operand] = []
    reads = []
    for operand in inputs:
        place = next((k for k, other in enumerate(found) if other.lies_like(operand)), len(found))
        if place == len(found):
            found.append(operand)
        reads.append(place)
    return found, reads


def _scratch(plan: Planner, output: _Output) -> _Operand:
    """Lay out memory for unfinished numbers, which is free again after the unit."""
    array = output.value.array
    block = plan.scratch(array.size * np.dtype(output.accumulator).itemsize)
    value = Value(Pool.array(block, array.shape, output.accumulator), block)
    own = iter(value.array.strides)
    strides = tuple(0 if axis in output.reduced else next(own) for axis in range(len(output.strides)))
    return _Operand(value, output.accumulator, strides)


def _collapsed(
    shape: tuple[int, ...], inputs: Sequence[_Operand], outputs: Sequence[_Output]
) -> list[list[int]]:
    """Join neighbouring axes along which every operand goes on as if they were one."""
    operands: list[_Operand] = [*inputs, *outputs]
    groups: list[list[int]] = []
    for axis, size in enumerate(shape):
        if size == 1:
            continue
        if groups:
            before = groups[-1][-1]
            even = all(x.strides[before] == x.strides[axis] * size for x in operands)
            alike = all((before in x.reduced) == (axis in x.reduced) for x in outputs)
            if even and alike:
                groups[-1].append(axis)
                continue
        groups.append([axis])
    return groups


def _steps(operand: _Operand, axes: Sequence[int], reduced: Sequence[int]) -> str:
    itemsize = np.dtype(operand.dtype).itemsize
    letters = []
    for axis in axes:
        step = operand.strides[axis]
        letters.append("r" if axis in reduced else "b" if step == 0 else "c" if step == itemsize else "s")
    return "".join(letters)
