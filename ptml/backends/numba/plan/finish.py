"""The end of a program: where its results are, and how the cells get their new values."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import attrs
import numpy as np
from pytensor.graph.basic import Variable

from ptml.backends.numba.plan.memory import Live, Value
from ptml.backends.numba.plan.rules.elementwise import copy_all
from ptml.backends.numba.plan.schedule import Unit

if TYPE_CHECKING:
    from ptml.backends.numba.plan.planner import Planner

__all__ = ["Finish", "finish"]

Fetch = Callable[[Sequence[Any]], Any]


@attrs.frozen(eq=False)
class Finish:
    """What is left to do in Python after the last table.

    Attributes
    ----------
    results : list of callable
        How each result is found among a call's live memory.
    commits : list of (int, callable, bool)
        The cells that are still to be written: which, where the value is, and whether it is itself a cell's.
    """

    results: list[Fetch]
    commits: list[tuple[int, Fetch, bool]]


def finish(plan: Planner) -> Finish:
    """Emit the copies that give cells their new values, and say what no kernel can do."""
    schedule = plan.schedule
    commits, copies = [], []
    for variable, cell in schedule.updates:
        value, k = plan.value(variable), plan.cells[cell]
        index = value.root.index if isinstance(value.root, Live) else None
        if value.whole and index == k:
            continue
        among_cells = index is not None and index < len(plan.cells)
        if among_cells or not _is_copied(plan, variable, cell, value):
            commits.append((k, value.fetcher(), among_cells))
        else:
            copies.append((plan.value(schedule.fgraph.inputs[cell]), value))
            unit = Unit(variable.owner)
    if copies:
        copy_all(plan, unit, copies)
    return Finish([plan.value(v).fetcher() for v in schedule.results], commits)


def _is_copied(plan: Planner, variable: Variable, cell: int, value: Value) -> bool:
    """Say whether a kernel can copy a new value into its cell: if nothing needs the old one any more."""
    old, array = plan.schedule.fgraph.inputs[cell], value.array
    return (
        variable.owner is not None
        and old not in plan.schedule.escaping
        and isinstance(array, np.ndarray)
        and plan.fits(cell, array.shape, str(array.dtype))
    )
