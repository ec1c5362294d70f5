"""Rules of attention: how its operands lie, and where its results go."""

from __future__ import annotations

import math
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np

from ptml.backends.numba.plan.codegen.attending import (
    BLOCK,
    LANES,
    NUMBERS,
    STRIDED,
    backward_kernel,
    forward_kernel,
)
from ptml.backends.numba.plan.codegen.products import Products
from ptml.backends.numba.plan.codegen.routine import in_order, same_floats
from ptml.backends.numba.plan.errors import Unsupported
from ptml.backends.numba.plan.lowering import rule
from ptml.backends.numba.plan.memory import Fixed, Value
from ptml.backends.numba.plan.rules.elementwise import copy_into
from ptml.backends.numba.plan.runtime.pool import Share
from ptml.backends.numba.plan.runtime.sharing import share_over
from ptml.ops.attention.ops import Attention, AttentionGradient

if TYPE_CHECKING:
    from ptml.backends.numba.plan.planner import Planner
    from ptml.backends.numba.plan.schedule import Unit

__all__: list[str] = []

#: Work is cut into no more parts than this: each has scratch memory of its own.
PARTS = 16

#: What is done with a score besides products, where reading a number counts 1.
_SCORE = 20


@rule(Attention, takes=same_floats)
def lower_attention(plan: Planner, unit: Unit, values: list[Value]) -> list[Value]:
    sizes, rows, mask = _operands(plan, unit, values)
    dtype, (result, log_sum) = str(rows["q"].array.dtype), unit.node.outputs
    rows["out"] = _like(plan, rows["q"], sizes["d_v"], result)
    log_sums = plan.new(rows["out"].array.shape[:-1], dtype, log_sum)
    if log_sums.array.size:
        units = math.prod(log_sums.array.shape[:-1]) * -(-sizes["time_q"] // BLOCK)
        work = BLOCK * sizes["time_k"] * ((sizes["d"] + sizes["d_v"]) // 2 + _SCORE)
        arrays = [rows["q"], rows["k"], rows["v"], rows["out"], log_sums]
        _emit(plan, unit, forward_kernel, arrays, sizes, rows, mask, units, work)
    return [rows["out"], log_sums]


@rule(AttentionGradient, takes=same_floats)
def lower_attention_gradient(plan: Planner, unit: Unit, values: list[Value]) -> list[Value]:
    *operands, g, result, log_sums = values
    sizes, rows, mask = _operands(plan, unit, operands)
    wanted = (*rows["q"].array.shape[:-1], sizes["d_v"])
    if g.array.shape != wanted or result.array.shape != wanted or log_sums.array.shape != wanted[:-1]:
        raise Unsupported("what comes back has another shape")
    rows["out"], rows["g"] = (_readable(plan, unit, value) for value in (result, g))
    for name, variable in zip(("q", "k", "v"), unit.node.outputs, strict=True):
        rows[f"of_{name}"] = _like(plan, rows[name], rows[name].array.shape[-1], variable)
    gradients = [rows[f"of_{name}"] for name in ("q", "k", "v")]
    units = math.prod(rows["k"].array.shape[:-2])
    if units:
        served = sizes["time_q"] * sizes["heads"] // sizes["kv_heads"]
        work = served * sizes["time_k"] * ((3 * sizes["d"] + 2 * sizes["d_v"]) // 2 + _SCORE)
        arrays = [rows["q"], rows["k"], rows["v"], rows["out"], in_order(plan, unit, log_sums), rows["g"]]
        _emit(plan, unit, backward_kernel, [*arrays, *gradients], sizes, rows, mask, units, work)
    return gradients


def _operands(
    plan: Planner, unit: Unit, values: list[Value]
) -> tuple[dict[str, int], dict[str, Value], Value | None]:
    """Give the sizes of queries, keys, values and possibly a mask, and those as the kernels read them."""
    q, k, v = (value.array for value in values[:3])
    sizes = {
        "heads": q.shape[-3],
        "kv_heads": k.shape[-3],
        "time_q": q.shape[-2],
        "time_k": k.shape[-2],
        "d": q.shape[-1],
        "d_v": v.shape[-1],
    }
    fit = q.shape[-1] == k.shape[-1] and k.shape[:-1] == v.shape[:-1] and q.shape[:-3] == k.shape[:-3]
    if not fit or not math.prod(sizes.values()) or sizes["heads"] % sizes["kv_heads"]:
        raise Unsupported("sizes that do not go together")
    if max(sizes.values()) >= 2**31:
        raise Unsupported("sizes too large for BLAS")
    rows = {name: _readable(plan, unit, value) for name, value in zip("qkv", values[:3], strict=True)}
    mask = None
    if len(values) > 3:
        mask = _mask(plan, unit, values[3], (*q.shape[:-1], k.shape[-2]))
    return sizes, rows, mask


def _mask(plan: Planner, unit: Unit, mask: Value, scores: tuple[int, ...]) -> Value:
    """Give a mask as the kernels read it: keys are its rows, with whole vectors of queries, or with one.

    Parameters
    ----------
    plan, unit
    mask : Value
    scores : tuple of int
        The shape of the scores, where the mask has 1 along what it is broadcast along.

    Returns
    -------
    Value
        Of the shape of the scores but for its last axes, ``(time_k, time_q)`` and more, or ``(time_k, 1)``.
    """
    array, declared = mask.array, unit.node.inputs[3].type.shape
    for have, want, static in zip(array.shape, scores, declared, strict=True):
        if have != want and not (have == 1 and static == 1):
            raise Unsupported("a mask of another shape")
    time_q = 1 if array.shape[-2] == 1 else -(-scores[-2] // LANES) * LANES
    shape = (*array.shape[:-2], scores[-1], time_q)
    if _batch_step(np.broadcast_to(array, (*scores[:-3], *array.shape[-3:]))) is None:
        shape = (*scores[:-3], *shape[-3:])
    written = plan.temporary(shape, str(array.dtype))
    if written.array.size:
        laid = written.array[..., : array.shape[-2]]
        copy_into(plan, unit, written.seen_as(laid), mask.seen_as(array.swapaxes(-1, -2)))
    return written.seen_as(np.broadcast_to(written.array, (*scores[:-2], *shape[-2:])))


def _readable(plan: Planner, unit: Unit, value: Value) -> Value:
    """Give heads of rows that BLAS can read: as they lie, or copied."""
    array = value.array
    down, across = array.strides[-2:]
    size, width = array.itemsize, array.shape[-1]
    as_it_is = (width <= 1 or across == size) and all(step % size == 0 for step in array.strides)
    if as_it_is and (array.shape[-2] <= 1 or down >= width * size) and _batch_step(array) is not None:
        return value
    return in_order(plan, unit, value)


def _batch_step(array: np.ndarray) -> int | None:
    """Give the bytes from one example to the next, or None where the axes before the heads are not one."""
    shape, strides = array.shape[:-3], array.strides[:-3]
    longer = [(n, step) for n, step in zip(shape, strides, strict=True) if n != 1]
    for (_, step), (n, following) in pairwise(longer):
        if step != n * following:
            return None
    return longer[-1][1] if longer else 0


def _like(plan: Planner, value: Value, width: int, variable: Any) -> Value:
    """Take memory for a result whose heads lie apart, or one after the other, as those of an operand do."""
    *batch, heads, time, _ = value.array.shape
    dtype = str(value.array.dtype)
    if value.array.strides[-2] <= value.array.strides[-3]:
        return plan.new((*batch, heads, time, width), dtype, variable)
    made = plan.new((*batch, time, heads, width), dtype, variable)
    return made.seen_as(made.array.swapaxes(-3, -2))


def _emit(
    plan: Planner,
    unit: Unit,
    kernel: Any,
    arrays: list[Value],
    sizes: dict[str, int],
    rows: dict[str, Value],
    mask: Value | None,
    units: int,
    work: int,
) -> None:
    """Emit a kernel, shared out among threads where that is worth it."""
    op, dtype, backward = unit.node.op, str(arrays[0].array.dtype), kernel is backward_kernel
    blas, alone = Products.words(dtype)
    factor = 1 / math.sqrt(sizes["d"]) if op.scale is None else op.scale
    scale = Value(np.asarray([factor], dtype), Fixed(), known=True)
    scores, count = len(arrays) + 1, len(arrays) + 3 + (mask is not None)
    needed = ((2 if backward else 1) * BLOCK * BLOCK, 3 * BLOCK)
    share, parts = None, 1
    found = share_over(units, work, count, {count + 1: 1}) if alone else None
    if found is not None:
        grain = max(found.grain, -(-units // PARTS))
        parts = -(-units // grain)
        apart = {scores + k: n * scale.array.itemsize for k, n in enumerate(needed)}
        share = Share(count, units, {count + 1: 1}, grain, 0, apart)
    scratch = [plan.temporary((parts, n), dtype) for n in needed]
    numbers = [units, 0, *(sizes[name] for name in NUMBERS[2:8])]
    for name in STRIDED:
        value = mask if name == "mask" else rows.get(name)
        numbers += (0, 0, 0) if value is None else _steps(value.array)
    masks, kind = [], None
    if mask is not None:
        masks, kind = [mask], (str(mask.array.dtype), mask.array.shape[-1] == 1)
    address = kernel(dtype, kind, op.is_causal, share is not None)
    plan.emit_shared(address, [*arrays, scale, *scratch, *masks, *numbers, *blas], unit, share)


def _steps(array: np.ndarray) -> tuple[int, int, int]:
    """Say how many numbers lie between examples, heads and steps in time; BLAS wants no less than a row."""
    size = array.itemsize
    down = array.strides[-2] // size if array.shape[-2] > 1 else max(array.shape[-1], 1)
    return (_batch_step(array) or 0) // size, array.strides[-3] // size, down
