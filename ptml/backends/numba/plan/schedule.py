"""What a graph says before any shape is known: units of work, their order, and how long values live."""

from __future__ import annotations

import heapq
import math
from collections import defaultdict
from collections.abc import Sequence
from typing import Any

import attrs
from pytensor.compile.builders import OpFromGraph
from pytensor.compile.rewriting import inline_ofg_node
from pytensor.compile.sharedvalue import SharedVariable
from pytensor.graph.basic import Apply, Variable
from pytensor.graph.fg import FunctionGraph
from pytensor.scalar.basic import ScalarOp
from pytensor.tensor.basic import Alloc, Join, MakeVector
from pytensor.tensor.elemwise import CAReduce, DimShuffle, Elemwise
from pytensor.tensor.shape import Reshape, Shape_i

from ptml.backends.numba.plan.forms import Fit, Forms
from ptml.backends.numba.plan.lowering import aliased_inputs, is_safe, lowered_reduction

__all__ = ["Schedule", "Unit", "inline_nested"]


def inline_nested(fgraph: FunctionGraph) -> None:
    """Put the graphs of nested ops in their places, so that the table runs across them."""
    while nested := [node for node in fgraph.apply_nodes if isinstance(node.op, OpFromGraph)]:
        for node in nested:
            if node in fgraph.apply_nodes:
                pairs = zip(node.outputs, inline_ofg_node(node), strict=True)
                fgraph.replace_all(list(pairs), reason="inline_nested", import_missing=True)


#: Ops that cost next to nothing, and what is done to numbers one by one.
LIGHT = (Elemwise, CAReduce, ScalarOp, MakeVector, Join, Alloc, DimShuffle, Reshape, Shape_i)


@attrs.frozen(eq=False)
class Unit:
    """A node, with the reductions of its results that are computed in its loop.

    Attributes
    ----------
    node : Apply
    reductions : tuple of Apply
    fit : Fit or None
        What it computes, where it may be a segment.
    """

    node: Apply
    reductions: tuple[Apply, ...] = ()
    fit: Fit | None = None

    @property
    def outputs(self) -> list[Variable]:
        return [*self.node.outputs, *(node.outputs[0] for node in self.reductions)]


class Schedule:
    """A graph in the order in which it runs.

    An update is computed after everything that reads the cell that it writes, so that it can be written in
    place; and after everything else that may raise, so that an error leaves the state as it was: a kernel
    finds what is wrong before it writes. Units that do alike to many leaves stand side by side, as a *group*:
    their kernel is called once. What a group reads and makes is kept until its end, so that its units may run
    in any order.

    Parameters
    ----------
    fgraph : FunctionGraph
        Rewritten, without nested graphs.
    order : sequence of Apply
        Its nodes in an order that is possible.

    Attributes
    ----------
    units : list of Unit
    group_start, group_end : list of int
        The first and the last unit of the group that each unit belongs to; most stand alone.
    forms : Forms
        What its elementwise units compute.
    cells : list of int
        The inputs whose values outlive a call.
    inputs : list of int
        The others: what a call brings.
    updates : list of (Variable, int)
        New values, and the inputs that they are for.
    results : list of Variable
        What a call gives.
    last_use : dict
        The last unit that reads a variable, or a view of it; ``math.inf`` where it outlives all.
    escaping : set
        What results and new values are, or are views of.
    in_place : dict
        The new values that the units that make them may write in the cells that they are for.
    loops : dict
        The schedules of what loops repeat, once they were planned.
    """

    def __init__(self, fgraph: FunctionGraph, order: Sequence[Apply]) -> None:
        self.fgraph = fgraph
        mapping = fgraph.update_mapping or {}
        n_results = len(fgraph.outputs) - len(mapping)
        updated = set(mapping.values())
        kept = [k in updated or isinstance(v, SharedVariable) for k, v in enumerate(fgraph.inputs)]
        self.cells = [k for k, keep in enumerate(kept) if keep]
        self.inputs = [k for k, keep in enumerate(kept) if not keep]
        self.results = list(fgraph.outputs[:n_results])
        self.updates = [(fgraph.outputs[output], k) for output, k in mapping.items()]
        self._aliases = self._alias_roots(order)
        self.forms = Forms()
        self.units: list[Unit] = []
        self.group_start: list[int] = []
        self.group_end: list[int] = []
        for group in self._ordered(_units(fgraph, order, self.forms)):
            first = len(self.units)
            self.group_start += [first] * len(group)
            self.units += group
            self.group_end += [len(self.units) - 1] * len(group)
        self.last_use = self._last_uses()
        self.escaping = {root for v in fgraph.outputs for root in self._roots(v)}
        self.in_place = self._in_place()
        self.loops: dict[Any, Schedule] = {}

    @staticmethod
    def _alias_roots(order: Sequence[Apply]) -> dict[Variable, frozenset[Variable]]:
        """Find whose memory each variable may be a view of: itself, unless its node gives views."""
        roots: dict[Variable, frozenset[Variable]] = {}
        for node in order:
            seen = aliased_inputs(node)
            for k, output in enumerate(node.outputs):
                over = [roots.get(node.inputs[i], frozenset([node.inputs[i]])) for i in seen.get(k, ())]
                roots[output] = frozenset([output]).union(*over)
        return roots

    def _roots(self, variable: Variable) -> frozenset[Variable]:
        return self._aliases.get(variable, frozenset([variable]))

    def _readers(self, units: Sequence[Unit]) -> dict[Variable, set[int]]:
        """Find the units that read each variable or a view of it."""
        readers: dict[Variable, set[int]] = defaultdict(set)
        for k, unit in enumerate(units):
            for variable in unit.node.inputs:
                for root in self._aliases.get(variable, (variable,)):
                    readers[root].add(k)
        return readers

    def _ordered(self, units: list[Unit]) -> list[list[Unit]]:
        maker = {output: k for k, unit in enumerate(units) for output in unit.outputs}
        needs = [{maker[v] for v in unit.node.inputs if v in maker} for unit in units]
        readers = self._readers(units)
        raising = {k for k, unit in enumerate(units) if not is_safe(unit.node)}
        wishes = [set(need) for need in needs]
        writing = set()
        for variable, cell in self.updates:
            k = maker.get(variable)
            if k is not None:
                writing.add(k)
                wishes[k] |= readers[self.fgraph.inputs[cell]] | raising
        groups = []
        for group in _groups(units, needs, writing):
            # One that reads what another writes goes before it: they stay in a row.
            members = set(group)
            apart = any((wishes[k] & members) - {k} for k in group)
            groups += [[k] for k in group] if apart else [group]
        order, granted = _in_order(*_joined(groups, needs, wishes))
        if not granted and len(groups) < len(units):
            # Together they cannot all write in place: one by one, if they can so.
            alone = [[k] for k in range(len(units))]
            order_alone, granted = _in_order(needs, [wish - {k} for k, wish in enumerate(wishes)])
            if granted:
                groups, order = alone, order_alone
        return [[units[k] for k in groups[g]] for g in order]

    def _last_uses(self) -> dict[Variable, float]:
        last: dict[Variable, float] = {}
        for k, unit in enumerate(self.units):
            for variable in unit.outputs:
                last.setdefault(variable, k)
            for variable in unit.node.inputs:
                for root in self._aliases.get(variable, (variable,)):
                    before = last.get(root, -1)
                    # What several units of a group read dies with none of them, but after the last.
                    shared = self.group_start[k] <= before != k
                    last[root] = self.group_end[k] + 0.5 if shared else k
        for variable in self.fgraph.outputs:
            for root in self._roots(variable):
                last[root] = math.inf
        return last

    def _in_place(self) -> dict[Variable, int]:
        """Find the updates that no unit after them or beside them, and no result, needs the old value of."""
        raising = max((k for k, unit in enumerate(self.units) if not is_safe(unit.node)), default=-1)
        readers = self._readers(self.units)
        maker = {output: k for k, unit in enumerate(self.units) for output in unit.outputs}
        found: dict[Variable, int] = {}
        for variable, cell in self.updates:
            position, old = maker.get(variable, -1), self.fgraph.inputs[cell]
            if position >= raising and variable not in found and old not in self.escaping:
                first = self.group_start[position]
                if not any(k >= first and k != position for k in readers.get(old, ())):
                    found[variable] = cell
        return found


def _units(fgraph: FunctionGraph, order: Sequence[Apply], forms: Forms) -> list[Unit]:
    """Join reductions to the elementwise nodes whose results they reduce."""
    joined: set[Apply] = set()
    units = []
    for node in order:
        if node in joined:
            continue
        reductions = []
        if isinstance(node.op, Elemwise):
            for output in node.outputs:
                for client, _ in fgraph.clients[output]:
                    if (
                        isinstance(client.op, CAReduce)
                        and client not in joined
                        and lowered_reduction(client.op) is not None
                    ):
                        reductions.append(client)
                        joined.add(client)
        units.append(Unit(node, tuple(reductions), forms.fit(fgraph, node, reductions)))
    return units


def _groups(units: list[Unit], needs: list[set[int]], writing: set[int]) -> list[list[int]]:
    """Group units that compute alike and do not need one another; most are alone in theirs.

    Those that write cells are grouped, and those that nothing heavy follows: what stands between two layers
    of a network keeps its place, next to what reads it.
    """
    height, late = [0] * len(units), [True] * len(units)
    for k in range(len(units) - 1, -1, -1):
        op = units[k].node.op
        step = 0 if isinstance(op, DimShuffle | Reshape) else 1
        for need in needs[k]:
            height[need] = max(height[need], height[k] + step)
            late[need] = late[need] and late[k] and isinstance(op, LIGHT)
    # What needs another has less below it, so that units of one height do not need one another; nor do
    # groups in a circle.
    found: dict[object, list[int]] = defaultdict(list)
    single = []
    for k, unit in enumerate(units):
        fit = unit.fit
        key = (fit.form, height[k]) if fit is not None and (k in writing or late[k]) else k
        found[key].append(k)
        single.append(fit is not None and "c" not in fit.steps)
    # Single numbers last: they are read as the arrays before them are.
    return [sorted(group, key=single.__getitem__) for group in found.values()]


def _joined(
    groups: list[list[int]], needs: list[set[int]], wishes: list[set[int]]
) -> tuple[list[set[int]], list[set[int]]]:
    """Give what groups need and wish for, as groups."""
    group_of = {k: g for g, group in enumerate(groups) for k in group}

    def joined(wanted: list[set[int]]) -> list[set[int]]:
        return [
            {group_of[other] for k in group for other in wanted[k]} - {g} for g, group in enumerate(groups)
        ]

    return joined(needs), joined(wishes)


def _in_order(needs: list[set[int]], wishes: list[set[int]]) -> tuple[list[int], bool]:
    """Order units after what they need, and after what they wish for where that can be.

    Of those that are ready the first goes first. Where wishes go in a circle, they are given up one by one.

    Returns
    -------
    list of int
    bool
        Whether every wish was granted.
    """
    followers: dict[int, list[int]] = defaultdict(list)
    waiting = [len(wish) for wish in wishes]
    for k, wish in enumerate(wishes):
        for other in wish:
            followers[other].append(k)
    ready = [k for k, count in enumerate(waiting) if count == 0]
    heapq.heapify(ready)
    done: set[int] = set()
    order: list[int] = []
    granted = True
    while len(order) < len(needs):
        if not ready:
            ready = [next(k for k in range(len(needs)) if k not in done and needs[k] <= done)]
            granted = False
        k = heapq.heappop(ready)
        if k in done:
            continue
        done.add(k)
        order.append(k)
        for follower in followers[k]:
            waiting[follower] -= 1
            if waiting[follower] == 0 and follower not in done:
                heapq.heappush(ready, follower)
    return order, granted
