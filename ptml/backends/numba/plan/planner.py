"""The planner: from the shapes of a call to a table of kernels over planned memory.

It walks over the schedule once for each layout of the inputs. Shapes, views of arrays and whatever else is
known then are evaluated at once; every other unit becomes kernels, by its rule. A node without a rule ends
the table: it runs in Python, and what it gives decides which table comes next.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import attrs
import numpy as np
from pytensor.graph.basic import Apply, Constant, Variable
from pytensor.scalar.basic import ScalarType
from pytensor.tensor.type import TensorType

from ptml.backends.numba.plan import assembling, checking, drawing, elementwise, products, views
from ptml.backends.numba.plan.errors import Unsupported, raise_at
from ptml.backends.numba.plan.fallback import PythonStep, evaluate
from ptml.backends.numba.plan.finish import finish
from ptml.backends.numba.plan.lowering import rule_for
from ptml.backends.numba.plan.memory import Block, Fixed, Live, Pool, Value, address_of
from ptml.backends.numba.plan.schedule import Schedule, Unit
from ptml.backends.numba.plan.table import Table

__all__ = ["Planner", "Start", "layout"]

#: The rooms whose rules there are.
ROOMS = (assembling, checking, drawing, elementwise, products, views)


def layout(value: Any) -> Any:
    """Give what a table depends on: how an array lies, not what is in it."""
    return (value.shape, value.strides) if type(value) is np.ndarray else None


@attrs.frozen(eq=False)
class Start:
    """Where the planning of a table begins.

    Attributes
    ----------
    position : int
        The unit.
    values : dict
        What every variable is by then.
    free : list of Block
        Memory to take.
    ends : dict
        The last units that read each block that is taken.
    written : frozenset of int
        The cells that have their new values already.
    loose : tuple of Apply
        What is left of a unit that runs node by node.
    planned_bytes : int
        What the tables before have taken.
    """

    position: int
    values: dict[Variable, Value]
    free: list[Block] = attrs.field(factory=list)
    ends: dict[Block, float] = attrs.field(factory=dict)
    written: frozenset[int] = frozenset()
    loose: tuple[Apply, ...] = ()
    planned_bytes: int = 0


class Planner:
    """Plans one table.

    Parameters
    ----------
    schedule : Schedule
    live : list
        The live memory of the call at hand: cells, inputs, what Python steps gave.
    start : Start
    in_place : bool
        Whether updates may be written in their cells by the kernels that compute them.
    """

    def __init__(self, schedule: Schedule, live: list[Any], start: Start, in_place: bool) -> None:
        self.schedule = schedule
        self.live = live
        self.in_place = in_place
        self.position = start.position
        self.values = dict(start.values)
        self.pool = Pool(start.free)
        self.ends = dict(start.ends)
        self.written = set(start.written)
        self._loose = list(start.loose)
        self._scratch: list[Block] = []
        self._targets = dict(reversed(schedule.updates))
        self.cells = {cell: k for k, cell in enumerate(schedule.cells)}
        self.table = Table()
        self._planned_before = start.planned_bytes

    def plan(self) -> Table:
        """Plan up to the first node that runs in Python, or to the end.

        Raises
        ------
        Unsupported
            If a node turns out to run in Python after an update was written in place: plan again without.
        """
        units = self.schedule.units
        while self.position < len(units):
            if not self._loose:
                unit = units[self.position]
                if not self._plan_unit(unit):
                    self._loose = [unit.node, *unit.reductions]
            if self._loose:
                # A unit of which some part has no kernel runs node by node.
                node = self._loose.pop(0)
                if self._loose_step(node):
                    return self.table
            if not self._loose:
                self._end_unit()
        self._close(finish=finish(self))
        return self.table

    def _loose_step(self, node: Apply) -> bool:
        """Plan a node by itself; say whether it ended the table."""
        if self._plan_unit(Unit(node)):
            return False
        if self.written:
            raise Unsupported("a Python step after an update in place")
        step = PythonStep(node, [self.value(v) for v in node.inputs])
        self._close(step=step, resume=self._resume(node))
        return True

    def _close(self, **after: Any) -> None:
        self.table.planned_bytes = self._planned_before + self.pool.allocated
        self.table.close(**after)

    def _resume(self, node: Apply) -> Any:
        """Give what plans the table that follows a Python step."""
        position, loose = self.position, tuple(self._loose)
        values, free, ends = self.values, list(self.pool.free), dict(self.ends)
        first = len(self.live)
        if not loose:
            free += [block for block, last in ends.items() if last == position]
            ends = {block: last for block, last in ends.items() if last != position}
            position += 1

        def resume(live: list[Any], in_place: bool) -> Planner:
            made = {v: Value(live[first + k], Live(first + k)) for k, v in enumerate(node.outputs)}
            start = Start(
                position,
                {**values, **made},
                free,
                ends,
                loose=loose,
                planned_bytes=self.table.planned_bytes,
            )
            return Planner(self.schedule, live, start, in_place)

        return resume

    def _plan_unit(self, unit: Unit) -> bool:
        """Plan a unit, and say whether it could be."""
        values = [self.value(v) for v in unit.node.inputs]
        if self._plan_known(unit, values):
            return True
        found = rule_for(unit.node.op)
        if found is None or any(not isinstance(value.array, np.ndarray) for value in values):
            return False
        before = dict(self.ends), set(self.written), list(self.pool.free), self.table.mark()
        try:
            results = found.lower(self, unit, values)
        except Unsupported:
            self.ends, self.written, self.pool.free = before[:3]
            self.table.rewind(before[3])
            self._scratch.clear()
            return False
        except Exception:
            raise_at(self.schedule.fgraph, unit.node)
        self.values.update(zip(unit.outputs, results, strict=True))
        return True

    def _plan_known(self, unit: Unit, values: Sequence[Value]) -> bool:
        node = unit.node
        foldable = all(value.known for value in values) and node.op.do_constant_folding(
            self.schedule.fgraph, node
        )
        if not foldable or unit.reductions or not all(map(_is_numeric, node.outputs)):
            return False
        if rule_for(node.op) in _BY_RULE:
            return False
        try:
            arrays = evaluate(node, [value.array for value in values])
        except Exception:
            raise_at(self.schedule.fgraph, node)
        for variable, array in zip(node.outputs, arrays, strict=True):
            self.values[variable] = Value(array, Fixed(), known=True)
        return True

    def _end_unit(self) -> None:
        """Give back what nothing reads any more."""
        for block in self._scratch:
            self.pool.give_back(block)
        self._scratch.clear()
        for block in [block for block, last in self.ends.items() if last == self.position]:
            del self.ends[block]
            self.pool.give_back(block)
        self.position += 1

    # What rules use.

    def value(self, variable: Variable) -> Value:
        """Give the value of a variable that was planned, or of a constant."""
        value = self.values.get(variable)
        if value is None and isinstance(variable, Constant):
            data = variable.data
            if _is_numeric(variable):
                data = np.asarray(data, variable.type.dtype)
            value = self.values[variable] = Value(data, Fixed(), known=True)
        if value is None:
            raise Unsupported(f"{variable} has no value yet")
        return value

    def new(self, shape: Sequence[int], dtype: str, variable: Variable) -> Value:
        """Take memory for a variable, in C order, until its last use."""
        block = self.pool.take(math.prod(shape) * np.dtype(dtype).itemsize)
        self.ends[block] = self.schedule.last_use[variable]
        return Value(Pool.array(block, shape, dtype), block)

    def temporary(self, shape: Sequence[int], dtype: str) -> Value:
        """Take memory that is free again after the unit."""
        block = self.scratch(math.prod(shape) * np.dtype(dtype).itemsize)
        return Value(Pool.array(block, shape, dtype), block)

    def scratch(self, nbytes: int) -> Block:
        """Take bytes that are free again after the unit."""
        block = self.pool.take(nbytes)
        self._scratch.append(block)
        return block

    def dies_whole(self, value: Value, shape: Sequence[int], dtype: str) -> bool:
        """Say whether a value fills a block that nothing reads after this unit, and lies like a new one."""
        root, array = value.root, value.array
        return (
            isinstance(root, Block)
            and self.ends.get(root) == self.position
            and not self._loose
            and array.shape == tuple(shape)
            and array.dtype == dtype
            and array.flags.c_contiguous
            and address_of(array) == address_of(root.memory)
        )

    def take_over(self, value: Value, variable: Variable) -> Value:
        """Let a variable have the memory of a value that dies."""
        assert isinstance(value.root, Block)
        self.ends[value.root] = self.schedule.last_use[variable]
        return Value(value.array, value.root)

    def cell_to_write(self, variable: Variable, shape: Sequence[int], dtype: str) -> Value | None:
        """Give the cell that a variable is the new value of, if it can be written there by now."""
        schedule, cell = self.schedule, self._targets.get(variable)
        if cell is None or not self.in_place or self.position <= schedule.last_raising or self._loose:
            return None
        old = schedule.fgraph.inputs[cell]
        if not schedule.may_overwrite(old, self.position) or not self.fits(cell, shape, dtype):
            return None
        return self.value(old)

    def fits(self, cell: int, shape: Sequence[int], dtype: str) -> bool:
        """Say whether a cell can take such a value in the array that it holds."""
        array = self.live[self.cells[cell]]
        return (
            type(array) is np.ndarray
            and array.shape == tuple(shape)
            and array.dtype == dtype
            and array.flags.c_contiguous
            and array.flags.writeable
        )

    def write_cell(self, cell: Value) -> None:
        """Note that a cell has its new value."""
        assert isinstance(cell.root, Live)
        self.written.add(cell.root.index)

    def is_used(self, variable: Variable, but_for: set[Apply]) -> bool:
        """Say whether anything reads a variable, but for some nodes."""
        return any(client not in but_for for client, _ in self.schedule.fgraph.clients[variable])

    def emit(self, kernel: int, words: Sequence[int | Value], unit: Unit, *, raises: bool = False) -> None:
        """Add a kernel to the table.

        Parameters
        ----------
        kernel : int
            Its address.
        words : sequence
            What it reads: numbers, and values for their addresses.
        unit : Unit
            Whose it is.
        raises : bool
            Whether it can meet an error; the node, run in Python, then says which.
        """
        failure = PythonStep(unit.node, [self.value(v) for v in unit.node.inputs]) if raises else None
        self.table.add(kernel, words, unit.node, failure)


def _is_numeric(variable: Variable) -> bool:
    return isinstance(variable.type, TensorType | ScalarType)


#: Rules that know better than to compute what is known: they give it without memory of its own.
_BY_RULE = tuple(found for found in map(rule_for, assembling.WITHOUT_MEMORY) if found is not None)
