"""Rules of ptml's own ops: checks of shapes, made when a table is built."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from ptml.backends.numba.plan.lowering import rule
from ptml.backends.numba.plan.memory import Fixed, Value
from ptml.checks import AxisCheck, RowCount, SameSize
from ptml.labels import CheckShape

if TYPE_CHECKING:
    from ptml.backends.numba.plan.planner import Planner
    from ptml.backends.numba.plan.schedule import Unit

__all__: list[str] = []


@rule(AxisCheck, SameSize, CheckShape)
def lower_shape_check(plan: Planner, unit: Unit, values: list[Value]) -> list[Value]:
    # It looks at shapes only, and those are of this table.
    unit.node.op.perform(unit.node, [value.array for value in values], [[None]])
    return [values[0]]


@rule(RowCount)
def lower_row_count(plan: Planner, unit: Unit, values: list[Value]) -> list[Value]:
    counted: list[list[Any]] = [[None]]
    unit.node.op.perform(unit.node, [value.array for value in values], counted)
    return [Value(np.asarray(counted[0][0]), Fixed(), known=True)]
