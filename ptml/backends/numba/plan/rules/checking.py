"""Rules of checks: those of shapes are made when a table is built, those of numbers by a kernel.

A kernel only finds out whether something is wrong. The node itself, run in Python then, says what.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np
from llvmlite import ir
from pytensor.raise_op import CheckAndRaise

from ptml.backends.numba.plan.codegen.dtypes import constant, is_float, is_signed, load, memory_type
from ptml.backends.numba.plan.codegen.loops import loop
from ptml.backends.numba.plan.errors import Unsupported
from ptml.backends.numba.plan.lowering import rule
from ptml.backends.numba.plan.memory import Fixed, Value
from ptml.backends.numba.plan.rules.elementwise import copy_into
from ptml.backends.numba.plan.runtime.cache import kernels
from ptml.checks import AxisCheck, RowCount, SameSize
from ptml.labels import CheckLabels, CheckProbabilities, CheckShape
from ptml.lengths import LengthCheck

if TYPE_CHECKING:
    from ptml.backends.numba.plan.planner import Planner
    from ptml.backends.numba.plan.schedule import Unit

__all__: list[str] = []

_I32, _I64, _POINTER = ir.IntType(32), ir.IntType(64), ir.PointerType()


@rule(AxisCheck, LengthCheck, SameSize, CheckShape)
def lower_shape_check(plan: Planner, unit: Unit, values: list[Value]) -> list[Value]:
    # The op looks at shapes only, and those are of this table; it raises by itself.
    unit.node.op.perform(unit.node, [value.array for value in values], [[None]])
    return [values[0]]


@rule(RowCount)
def lower_row_count(plan: Planner, unit: Unit, values: list[Value]) -> list[Value]:
    counted: list[list[Any]] = [[None]]
    unit.node.op.perform(unit.node, [value.array for value in values], counted)
    return [Value(np.asarray(counted[0][0]), Fixed(), known=True)]


@rule(CheckAndRaise, raises=True)
def lower_assert(plan: Planner, unit: Unit, values: list[Value]) -> list[Value]:
    for condition in values[1:]:
        dtype = str(condition.array.dtype)
        plan.emit(_scan_kernel(dtype, "false"), [condition, 1], unit, raises=True)
    return [values[0]]


@rule(CheckLabels, raises=True)
def lower_check_labels(plan: Planner, unit: Unit, values: list[Value]) -> list[Value]:
    labels, n_classes = values
    ignored = unit.node.op.ignore
    dtype = str(labels.array.dtype)
    if ignored is not None and not np.iinfo(dtype).min <= ignored <= np.iinfo(dtype).max:
        ignored = None
    kernel = _scan_kernel(dtype, "no label", ignored)
    plan.emit(kernel, [*_in_a_row(plan, unit, labels), n_classes], unit, raises=True)
    return [labels]


@rule(CheckProbabilities, raises=True)
def lower_check_probabilities(plan: Planner, unit: Unit, values: list[Value]) -> list[Value]:
    kernel = _scan_kernel(str(values[0].array.dtype), "no probability")
    plan.emit(kernel, _in_a_row(plan, unit, values[0]), unit, raises=True)
    return [values[0]]


def _in_a_row(plan: Planner, unit: Unit, value: Value) -> list[int | Value]:
    """Give an array whose elements lie one after the other, copied if they do not, and their number."""
    array = value.array
    if not array.flags.c_contiguous:
        copied = plan.temporary(array.shape, str(array.dtype))
        copy_into(plan, unit, copied, value)
        value = copied
    return [value, array.size]


@cache
def _scan_kernel(dtype: str, wrong: str, ignored: int | None = None) -> int:
    """Give the kernel that looks for something wrong among numbers: where, how many, further words."""
    if wrong == "no label" and is_float(dtype):
        raise Unsupported("labels that are no integers")
    module = ir.Module("check")
    kernel = ir.Function(module, ir.FunctionType(_I32, [_POINTER]), "kernel")
    builder = ir.IRBuilder(kernel.append_basic_block("entry"))

    def word(k: int, kind: ir.Type = _POINTER) -> ir.Value:
        return builder.load(builder.gep(kernel.args[0], [_I64(k)], source_etype=_I64), typ=kind)

    numbers, count = word(0), word(1, _I64)
    n_classes = load(builder, word(2), "int64") if wrong == "no label" else None
    found = builder.alloca(_I32)
    builder.store(_I32(0), found)
    with loop(builder, count) as i:
        number = load(builder, builder.gep(numbers, [i], source_etype=memory_type(dtype)), dtype)
        if wrong == "false":
            compare = builder.fcmp_ordered if is_float(dtype) else builder.icmp_unsigned
            bad = compare("==", number, constant(0, dtype))
        elif wrong == "no probability":
            below = builder.fcmp_ordered("<", number, constant(0, dtype))
            bad = builder.or_(below, builder.fcmp_ordered(">", number, constant(1, dtype)))
        else:
            bad = _no_label(builder, number, dtype, n_classes, ignored)
        builder.store(builder.or_(builder.load(found, typ=_I32), builder.zext(bad, _I32)), found)
    builder.ret(builder.load(found, typ=_I32))
    return kernels.address(str(module))


def _no_label(
    builder: ir.IRBuilder, label: ir.Value, dtype: str, n_classes: ir.Value | None, ignored: int | None
) -> ir.Value:
    wide = label
    if label.type.width < 64:
        wide = (builder.sext if is_signed(dtype) else builder.zext)(label, _I64)
    # As an unsigned number, one below zero is above every count.
    outside = builder.icmp_unsigned(">=", wide, n_classes)
    if ignored is None:
        return outside
    return builder.and_(outside, builder.icmp_unsigned("!=", label, constant(ignored, dtype)))
