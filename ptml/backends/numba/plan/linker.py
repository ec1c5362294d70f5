"""The linker: PyTensor's door to plans, for any graph."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
from pytensor.compile.mode import Mode
from pytensor.graph.basic import Apply
from pytensor.graph.fg import FunctionGraph
from pytensor.graph.rewriting.db import RewriteDatabaseQuery
from pytensor.link.basic import Container, PerformLinker
from pytensor.link.utils import map_storage
from pytensor.scalar.basic import ScalarType

from ptml.backends.numba.plan.errors import Unsupported, raise_at
from ptml.backends.numba.plan.fallback import PythonStep
from ptml.backends.numba.plan.fusing import REWRITES, expand_others
from ptml.backends.numba.plan.literals import WriteLiterals
from ptml.backends.numba.plan.memory import Live, Value
from ptml.backends.numba.plan.planner import Planner, Start, layout
from ptml.backends.numba.plan.runtime.executor import Cells
from ptml.backends.numba.plan.runtime.table import KernelError, Table
from ptml.backends.numba.plan.schedule import Schedule, inline_nested
from ptml.fused import EXPAND, known_to_pytensor

__all__ = ["PLAN", "QUERY", "PlanLinker", "PlanVM"]

DISAGREE = (
    "The kernel of {op} found something wrong, and its Python does not. This is a bug of ptml: please report "
    "it with the inputs. Until then compile with backend='c'."
)

#: How many layouts of its inputs a program keeps tables for.
MAX_TABLES = 16


class PlanLinker(PerformLinker):
    """Links a graph as tables of kernels over planned memory.

    Use it through the mode ``PLAN``, which leaves out the rewrites that plans make superfluous.

    Examples
    --------
    >>> import numpy as np
    >>> import pytensor
    >>> import pytensor.tensor as pt
    >>> from ptml.backends.numba.plan import PLAN
    >>> x = pt.vector("x", dtype="float64")
    >>> f = pytensor.function([x], (x**2).sum(), mode=PLAN)
    >>> f(np.arange(4.0))
    array(14.)
    """

    required_rewrites = ("minimum_compile", "scan_save_mem_no_prealloc")
    # In-place writing is the planner's own; so are BLAS calls and the fusion of reductions. Preallocated
    # traces of loops want PyTensor's own VM.
    incompatible_rewrites = (
        "cxx_only",
        "BlasOpt",
        "local_careduce_fusion",
        "scan_reduce_trace_prealloc",
        "inplace",
        EXPAND,
    )

    def make_all(
        self, input_storage: Any = None, output_storage: Any = None, storage_map: Any = None
    ) -> tuple[PlanVM, list[Container], list[Container], list[Any], list[Apply]]:
        """Link the accepted graph; tables are planned at the first call with inputs of a layout."""
        fgraph = self.fgraph
        inline_nested(fgraph)
        expand_others.rewrite(fgraph)
        order = self.schedule(fgraph)
        input_storage, output_storage, storage_map = map_storage(
            fgraph, order, input_storage, output_storage, storage_map
        )
        vm = PlanVM(Schedule(fgraph, order), input_storage, output_storage)
        vm.storage_map = storage_map
        inputs = [Container(v, s) for v, s in zip(fgraph.inputs, input_storage, strict=True)]
        outputs = [
            Container(v, s, readonly=True) for v, s in zip(fgraph.outputs, output_storage, strict=True)
        ]
        return vm, inputs, outputs, [vm], order


class PlanVM:
    """Runs a graph by tables, which it plans when it meets a new layout of inputs.

    Parameters
    ----------
    schedule : Schedule
    input_storage, output_storage : sequence of list
        PyTensor's one-element lists, where inputs are found, cells among them, and results left.
    """

    #: Cells are written here, and nothing has to be cleared: PyTensor then does nothing for each leaf.
    need_update_inputs = False
    allow_gc = False
    #: What copying a function asks for.
    storage_map: Any = None

    def __init__(
        self, schedule: Schedule, input_storage: Sequence[list], output_storage: Sequence[list]
    ) -> None:
        self.schedule = schedule
        self.fgraph: FunctionGraph = schedule.fgraph
        self.tables: dict[Any, Table] = {}
        self._cells = Cells([input_storage[k] for k in schedule.cells])
        self._inputs = [input_storage[k] for k in schedule.inputs]
        # A result that is an input as it stands has its list too, which is not ours to write.
        taken = {id(storage) for storage in input_storage}
        self._results = [
            [None] if id(storage) in taken else storage for storage in output_storage[: len(schedule.results)]
        ]
        self._scalar_results = [isinstance(v.type, ScalarType) for v in schedule.results]
        self._variables = [self.fgraph.inputs[k] for k in (*schedule.cells, *schedule.inputs)]
        self._layouts: dict[Any, int] = {}
        self._cell_layout = -1
        # What owns the memory of the cells: an input that is part of it would change while it is read.
        self._owners: set[int] = set()

    def __call__(self) -> list[Any]:
        cells = self._cells
        if self._cell_layout < 0 or not cells.unchanged():
            # A number for how the cells lie, so that they are not compared at every call.
            laid_out = tuple(map(_cell_layout, cells.look()))
            if len(self._layouts) >= MAX_TABLES and laid_out not in self._layouts:
                self._layouts.clear()
                self.tables.clear()
            self._cell_layout = self._layouts.setdefault(laid_out, len(self._layouts))
            self._owners = {id(_owner(value)) for value in cells.values} if self.schedule.updates else set()
        held = cells.values
        inputs = [storage[0] for storage in self._inputs]
        if self._owners:
            inputs = [np.copy(x) if id(_owner(x)) in self._owners else x for x in inputs]
        live = held + inputs
        key = (self._cell_layout, *map(layout, inputs))
        table = self.tables.get(key)
        if table is None:
            table = self._first_table(key, live)
        while True:
            try:
                table.run(live, held)
            except KernelError as error:
                self._raise(error.step, live)
            step = table.step
            if step is None:
                break
            try:
                made = step(live)
            except Exception:
                raise_at(self.fgraph, step.node, step.thunk)
            live += made
            key = tuple(map(layout, made))
            following = table.following.get(key)
            if following is None:
                planned = _planned(partial(table.resume, live))
                following = self._keep(table.following, key, planned)
            table = following
        return self._finish(table.finish, live)

    @property
    def planned_bytes(self) -> int:
        """What the buffers of all tables take."""
        return sum(_bytes_from(table, 0) for table in self.tables.values())

    @property
    def has_python_steps(self) -> bool:
        """Whether any table ends in a step in Python."""
        return any(table.step is not None for table in self.tables.values())

    def _first_table(self, key: Any, live: list[Any]) -> Table:
        starting = {
            v: Value(value, Live(k)) for k, (v, value) in enumerate(zip(self._variables, live, strict=True))
        }
        table = _planned(lambda in_place: Planner(self.schedule, live, Start(0, starting), in_place))
        return self._keep(self.tables, key, table)

    @staticmethod
    def _keep(tables: dict[Any, Table], key: Any, table: Table) -> Table:
        """Keep a table, and forget the oldest one where there are too many."""
        if len(tables) >= MAX_TABLES:
            del tables[next(iter(tables))]
        tables[key] = table
        return table

    def _raise(self, step: PythonStep, live: list[Any]) -> None:
        """Let a node say in Python what its kernel found wrong."""
        try:
            step(live)
            raise RuntimeError(DISAGREE.format(op=step.node.op))
        except Exception:
            raise_at(self.fgraph, step.node, step.thunk)

    def _finish(self, finish: Any, live: list[Any]) -> list[Any]:
        results = []
        for find, storage, scalar in zip(finish.results, self._results, self._scalar_results, strict=True):
            value = find(live)
            if isinstance(value, np.ndarray):
                value = value[()] if scalar else value.copy()
            storage[0] = value
            results.append(value)
        if not finish.commits:
            return results
        new = [
            (self._cells.storages[k], value.copy() if from_cell and isinstance(value, np.ndarray) else value)
            for k, find, from_cell in finish.commits
            for value in (find(live),)
        ]
        for storage, value in new:
            _write(storage, value)
        return results


def _bytes_from(table: Table, before: int) -> int:
    """Give what a table and those that follow it add to what was planned before."""
    after = table.planned_bytes
    return after - before + sum(_bytes_from(following, after) for following in table.following.values())


def _owner(value: Any) -> Any:
    """Give the array whose memory a value is, or the value itself."""
    base = getattr(value, "base", None)
    return value if base is None else base


def _cell_layout(value: Any) -> Any:
    return (layout(value), value.flags.writeable) if isinstance(value, np.ndarray) else None


def _planned(planner: Callable[[bool], Planner]) -> Table:
    """Plan with updates in place where that can be, else without."""
    try:
        return planner(True).plan()
    except Unsupported:
        return planner(False).plan()


def _write(storage: list[Any], value: Any) -> None:
    """Give a cell a new value, in the array that it has where that fits."""
    old = storage[0]
    if not isinstance(value, np.ndarray):
        storage[0] = value
    elif (
        isinstance(old, np.ndarray)
        and old.shape == value.shape
        and old.dtype == value.dtype
        and old.flags.writeable
    ):
        np.copyto(old, value)
    else:
        storage[0] = value.copy()


#: The position of one that runs once fusion is done.
FUSED = 49.1

#: Rewrites that take a third of the time for a network, and find nothing there: products with diagonal,
#: symmetric, orthogonal and zero matrices, and factors that sums have in common.
UNPROFITABLE = (
    "dot_diag_to_elemwise",
    "selection_dot_to_indexing",
    "useless_symmetric_transpose",
    "orthogonal_dot_transpose_to_eye",
    "local_0_dot_x",
    "local_greedy_distributor",
    "extract_diag_lift_pass",
)

#: Rewrites of ours stand in their place, or the planner does what they would.
REPLACED = ("local_inline_composite_constants", "local_useless_composite_outputs")

QUERY = RewriteDatabaseQuery(include=["fast_run", *PlanLinker.required_rewrites]).excluding(
    *PlanLinker.incompatible_rewrites, *UNPROFITABLE, *REPLACED
)

# A query that leaves out a name claims it: PyTensor would take no rewrite of that name afterwards.
known_to_pytensor()

#: The mode that compiles to plans: ``pytensor.function(..., mode=PLAN)``.
PLAN = Mode(PlanLinker(), QUERY).register(
    (WriteLiterals(), FUSED),
    *REWRITES,
)
