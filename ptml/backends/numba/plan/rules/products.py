"""Rules of matrix products."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np
from pytensor.graph.basic import Apply
from pytensor.tensor.blas import BatchedDot
from pytensor.tensor.blockwise import Blockwise
from pytensor.tensor.math import Dot

from ptml.backends.numba.plan.errors import Unsupported
from ptml.backends.numba.plan.lowering import rule
from ptml.backends.numba.plan.memory import Fixed, Value
from ptml.backends.numba.plan.rules.elementwise import copy_into
from ptml.backends.numba.plan.runtime.blas import LARGE, Gemm, Operand
from ptml.backends.numba.plan.runtime.pool import shares

if TYPE_CHECKING:
    from ptml.backends.numba.plan.planner import Planner
    from ptml.backends.numba.plan.schedule import Unit

__all__: list[str] = []


@rule(Dot, BatchedDot)
def lower_dot(plan: Planner, unit: Unit, values: list[Value]) -> list[Value]:
    return [_product(plan, unit, *values)]


@rule(Blockwise)
def lower_blockwise(plan: Planner, unit: Unit, values: list[Value]) -> list[Value]:
    if not isinstance(unit.node.op.core_op, Dot):
        raise Unsupported("this batched op")
    return [_product(plan, unit, *values)]


def _product(plan: Planner, unit: Unit, left: Value, right: Value) -> Value:
    output = unit.node.outputs[0]
    dtype = output.type.dtype
    a, b = left.array, right.array
    if dtype not in ("float32", "float64") or a.shape[-1] != b.shape[-2]:
        raise Unsupported("a product of these types or sizes")
    batch = _batch(unit.node, a.shape[:-2], b.shape[:-2])
    m, k, n = a.shape[-2], a.shape[-1], b.shape[-1]
    if max(m, k, n) >= 2**31:
        raise Unsupported("a matrix too large for BLAS")
    product = plan.new([*batch, m, n], dtype, output)
    if not product.array.size:
        return product
    if not k:
        copy_into(plan, unit, product, Value(np.zeros((), dtype), Fixed(), known=True))
        return product
    left, left_lies = _readable(plan, unit, left, dtype)
    right, right_lies = _readable(plan, unit, right, dtype)
    lefts = np.broadcast_to(left.array, (*batch, m, k))
    rights = np.broadcast_to(right.array, (*batch, k, n))
    places = [
        (left.seen_as(lefts[index]), right.seen_as(rights[index]), product.seen_as(product.array[index]))
        for index in np.ndindex(*batch)
    ]
    _emit(plan, unit, (left_lies, right_lies, m, n, k, dtype), places)
    return product


def _emit(
    plan: Planner, unit: Unit, product: tuple[Operand, Operand, int, int, int, str], places: list[tuple]
) -> None:
    """Emit products of one kind: on several threads where they are large together."""
    _, _, m, n, k, _ = product
    large = m * k * n * len(places) >= LARGE
    gemm = Gemm(*product, alone=shares() or m * k * n < LARGE)
    words = gemm.words(places)
    if not large or not gemm.alone or not shares():
        plan.emit(gemm.kernel, words, unit)
        return
    share = gemm.by_block() if len(places) == 1 else gemm.by_product(len(places))
    plan.emit_shared(gemm.kernel, words, unit, share)


def _batch(node: Apply, left: tuple[int, ...], right: tuple[int, ...]) -> tuple[int, ...]:
    """Give the shape that the batch axes of both have together; only what is declared so is broadcast."""
    batch = []
    n_axes = max(len(left), len(right))
    for axis in range(-n_axes, 0):
        sizes = {
            shape[axis]
            for variable, shape in zip(node.inputs, (left, right), strict=True)
            if len(shape) >= -axis and variable.type.shape[axis - 2] != 1
        }
        if len(sizes) > 1:
            raise Unsupported("batches of different sizes")
        batch.append(sizes.pop() if sizes else 1)
    return tuple(batch)


def _readable(plan: Planner, unit: Unit, value: Value, dtype: str) -> tuple[Value, Operand]:
    """Give matrices that BLAS can read: as they lie, or copied."""
    array = value.array
    if array.dtype == dtype:
        lies = Operand.of(array[(0,) * (array.ndim - 2)])
        if lies is not None:
            return value, lies
    copied = plan.temporary(array.shape, dtype)
    copy_into(plan, unit, copied, value)
    return copied, Operand(False, max(math.prod(array.shape[-1:]), 1))
