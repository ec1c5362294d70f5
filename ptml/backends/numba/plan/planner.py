"""The planner: from the shapes of a call to a table of kernels over planned memory.

It walks over the schedule once for each layout of the inputs. Shapes, views of arrays and whatever else is
known then are evaluated at once; every other unit becomes kernels, by its rule. A node without a rule ends
the table: it runs in Python, and what it gives decides which table comes next.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import Any

import attrs
import numpy as np
from pytensor.graph.basic import Apply, Constant, Variable
from pytensor.scalar.basic import ScalarType
from pytensor.tensor.type import TensorType

from ptml.backends.numba.plan.errors import Unsupported, raise_at
from ptml.backends.numba.plan.fallback import PythonStep, evaluate
from ptml.backends.numba.plan.finish import finish
from ptml.backends.numba.plan.lowering import rule_for
from ptml.backends.numba.plan.memory import Block, Fixed, Live, Pool, Value
from ptml.backends.numba.plan.rules import (
    assembling,
    attention,
    checking,
    convolution,
    drawing,
    elementwise,
    entropy,
    gru,
    indexing,
    lstm,
    moments,
    normalization,
    pooling,
    products,
    recurrence,
    resizing,
    rows,
    scanning,
    sorting,
    views,
)
from ptml.backends.numba.plan.runtime.pool import Share, shared
from ptml.backends.numba.plan.runtime.table import Ahead, Table
from ptml.backends.numba.plan.schedule import Schedule, Unit
from ptml.backends.numba.plan.segments import Segments

__all__ = ["Planner", "Start", "layout"]

#: The rooms whose rules there are.
ROOMS = (
    *(assembling, attention, checking, convolution, drawing, elementwise, entropy, gru, indexing),
    *(lstm, moments, normalization, pooling, products, recurrence, resizing, rows, scanning, sorting, views),
)


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
    loose : tuple of Apply
        What is left of a unit that runs node by node.
    planned_bytes : int
        What the tables before have taken.
    """

    position: int
    values: dict[Variable, Value]
    free: list[Block] = attrs.field(factory=list)
    ends: dict[Block, float] = attrs.field(factory=dict)
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

    Attributes
    ----------
    segments : Segments
        What the kernels of the group at hand are to run on.
    """

    def __init__(self, schedule: Schedule, live: list[Any], start: Start, in_place: bool) -> None:
        self.schedule = schedule
        self.live = live
        self.in_place = in_place
        self.position = start.position
        self.values = dict(start.values)
        self.pool = Pool(start.free)
        self.segments = Segments()
        self._ends: dict[Block, float] = {}
        self._ending: dict[int, list[Block]] = defaultdict(list)
        for block, last in start.ends.items():
            self._end(block, last)
        self.written: list[int] = []
        self._loose = list(start.loose)
        self._scratch: list[Block] = []
        self._undo: list[tuple[Block, float | None]] = []
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
        loose = tuple(self._loose)
        self._run_segments()
        if not loose:
            self._end_unit()
        # What is in live memory is another array in each call; nothing of the call at hand is kept.
        found = {variable: _finder(value) for variable, value in self.values.items()}
        schedule, position = self.schedule, self.position
        free, ends, planned_bytes = list(self.pool.free), dict(self._ends), self.table.planned_bytes
        first = len(self.live)

        def resume(live: list[Any], in_place: bool) -> Planner:
            values = {variable: find(live) for variable, find in found.items()}
            values |= {v: Value(live[first + k], Live(first + k)) for k, v in enumerate(node.outputs)}
            start = Start(position, values, free, ends, loose=loose, planned_bytes=planned_bytes)
            return Planner(schedule, live, start, in_place)

        return resume

    def _plan_unit(self, unit: Unit) -> bool:
        """Plan a unit, and say whether it could be."""
        known = self.values.get
        values = [known(v) or self.value(v) for v in unit.node.inputs]
        if self._plan_known(unit, values):
            return True
        found = rule_for(unit.node.op)
        if found is None or not all(
            isinstance(value.array, np.ndarray) or (value.known and value.array is None) for value in values
        ):
            return False
        mark = self.table.mark(), len(self.written), len(self._scratch)
        self._undo.clear()
        try:
            results = found.lower(self, unit, values)
        except Unsupported:
            self._take_back(*mark)
            return False
        except Exception:
            raise_at(self.schedule.fgraph, unit.node)
        self.values.update(zip(unit.outputs, results, strict=True))
        return True

    def _take_back(self, table: Any, written: int, scratch: int) -> None:
        """Forget what a unit did that turned out to have no kernel."""
        self.table.rewind(table)
        del self.written[written:]
        for block in self._scratch[scratch:]:
            self.pool.give_back(block)
        del self._scratch[scratch:]
        for block, last in reversed(self._undo):
            if last is None:
                del self._ends[block]
                self.pool.give_back(block)
            else:
                self._end(block, last)

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
        """Give back what nothing reads any more, at the end of a group."""
        position, schedule = self.position, self.schedule
        if position == schedule.group_end[position]:
            self._run_segments()
            for k in range(schedule.group_start[position], position + 1):
                for block in self._ending.pop(k, ()):
                    # It may have been taken over since, for longer.
                    if self._ends.get(block, math.inf) < position + 1:
                        del self._ends[block]
                        self.pool.give_back(block)
        self.position += 1

    def _run_segments(self) -> None:
        self.segments.emit(self)
        for block in self._scratch:
            self.pool.give_back(block)
        self._scratch.clear()

    def _end(self, block: Block, last: float) -> None:
        """Keep a block until the end of the group of a unit."""
        self._ends[block] = last
        if last != math.inf:
            self._ending[int(last)].append(block)

    # What rules use.

    def nested(self, schedule: Schedule, live: list[Any], values: dict[Variable, Value]) -> Planner:
        """Give a planner for a graph that is run within this one.

        Parameters
        ----------
        schedule : Schedule
        live : list
            Arrays that lie like its inputs.
        values : dict
            What its inputs are.
        """
        return Planner(schedule, live, Start(0, values), True)

    @property
    def in_group(self) -> bool:
        """Whether other units of the one at hand's form stand beside it."""
        return self.schedule.group_start[self.position] != self.schedule.group_end[self.position]

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
        self._undo.append((block, None))
        self._end(block, self.schedule.last_use[variable])
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
            and self._ends.get(root) == self.position
            and not self._loose
            and array.shape == tuple(shape)
            and array.dtype == dtype
            and array.flags.c_contiguous
            and value.address == root.address
        )

    def take_over(self, value: Value, variable: Variable) -> Value:
        """Let a variable have the memory of a value that dies."""
        assert isinstance(value.root, Block)
        self._undo.append((value.root, self._ends[value.root]))
        self._end(value.root, self.schedule.last_use[variable])
        return Value(value.array, value.root)

    def cell_to_write(self, variable: Variable, shape: Sequence[int], dtype: str) -> Value | None:
        """Give the cell that a variable is the new value of, if it can be written there by now."""
        cell = self.schedule.in_place.get(variable)
        if cell is None or not self.in_place or self._loose or not self.fits(cell, shape, dtype):
            return None
        return self.value(self.schedule.fgraph.inputs[cell])

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
        self.written.append(cell.root.index)

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

    def emit_shared(
        self,
        kernel: int,
        words: Sequence[int | Value],
        unit: Unit,
        share: Share | None,
        *,
        raises: bool = False,
    ) -> None:
        """Add a kernel whose work is shared out among the threads of the pool, when it runs.

        Parameters
        ----------
        kernel, words, unit, raises
            As of `emit`.
        share : Share or None
            Which words say where a part of the work begins and how long it is; None for small work.
        """
        if share is not None:
            kernel, words = shared(kernel, words, share)
        self.emit(kernel, words, unit, raises=raises)

    def emit_listed(
        self, kernel: int, n: int, words: Sequence[int | Value], unit: Unit, share: Share | None
    ) -> None:
        """Add a kernel that takes the address of a list and the number of its items.

        Parameters
        ----------
        kernel : int
            Its address.
        n : int
            The number of items.
        words : sequence
            Those of the items, one after the other.
        unit : Unit
            Whose it is.
        share : Share or None
            How the list is shared out among threads.
        """
        head: Sequence[Any] = [Ahead(2), n]
        if share is not None:
            kernel, head = shared(kernel, head, share)
        self.emit(kernel, [*head, *words], unit)


def _finder(value: Value) -> Callable[[list[Any]], Value]:
    """Give what finds a value in another call's live memory."""
    root, known, offset, whole = value.root, value.known, value.offset, value.whole
    if not isinstance(root, Live) or value.array is None:
        return lambda live: value
    fetch = value.fetcher()
    return lambda live: Value(fetch(live), root, known, offset, whole)


def _is_numeric(variable: Variable) -> bool:
    return isinstance(variable.type, TensorType | ScalarType)


#: Rules that know better than to compute what is known: they give it without memory of its own.
_BY_RULE = tuple(found for found in map(rule_for, assembling.WITHOUT_MEMORY) if found is not None)
