"""What a graph says before any shape is known: units of work, their order, and how long values live."""

from __future__ import annotations

import heapq
import math
from collections import defaultdict
from collections.abc import Sequence

import attrs
from pytensor.compile.builders import OpFromGraph
from pytensor.compile.rewriting import inline_ofg_node
from pytensor.compile.sharedvalue import SharedVariable
from pytensor.graph.basic import Apply, Variable
from pytensor.graph.fg import FunctionGraph
from pytensor.tensor.elemwise import CAReduce, Elemwise

from ptml.backends.numba.plan.lowering import aliased_inputs, is_safe, lowered_reduction

__all__ = ["Schedule", "Unit", "inline_nested"]


def inline_nested(fgraph: FunctionGraph) -> None:
    """Put the graphs of nested ops in their places, so that the table runs across them."""
    while nested := [node for node in fgraph.apply_nodes if isinstance(node.op, OpFromGraph)]:
        for node in nested:
            if node in fgraph.apply_nodes:
                pairs = zip(node.outputs, inline_ofg_node(node), strict=True)
                fgraph.replace_all(list(pairs), reason="inline_nested", import_missing=True)


@attrs.frozen(eq=False)
class Unit:
    """A node, with the reductions of its results that are computed in its loop."""

    node: Apply
    reductions: tuple[Apply, ...] = ()

    @property
    def outputs(self) -> list[Variable]:
        return [*self.node.outputs, *(node.outputs[0] for node in self.reductions)]


class Schedule:
    """A graph in the order in which it runs.

    An update is computed after everything that reads the cell that it writes, so that it can be written in
    place; and after everything that may raise, so that an error leaves the state as it was.

    Parameters
    ----------
    fgraph : FunctionGraph
        Rewritten, without nested graphs.
    order : sequence of Apply
        Its nodes in an order that is possible.

    Attributes
    ----------
    units : list of Unit
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
    last_raising : int
        The last unit that may raise.
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
        units = _units(fgraph, order)
        self.units = self._ordered(units)
        self.last_use = self._last_uses()
        self.last_raising = max(
            (k for k, unit in enumerate(self.units) if not is_safe(unit.node)), default=-1
        )
        self.readers = self._readers(range(len(self.units)), self.units)
        self.escaping = {root for v in fgraph.outputs for root in self._roots(v)}

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

    def _readers(self, numbers: Sequence[int], units: Sequence[Unit]) -> dict[Variable, set[int]]:
        """Find the units that read each variable or a view of it."""
        readers: dict[Variable, set[int]] = defaultdict(set)
        for k, unit in zip(numbers, units, strict=True):
            for variable in unit.node.inputs:
                for root in self._roots(variable):
                    readers[root].add(k)
        return readers

    def _ordered(self, units: list[Unit]) -> list[Unit]:
        maker = {output: k for k, unit in enumerate(units) for output in unit.outputs}
        needs = [{maker[v] for v in unit.node.inputs if v in maker} for unit in units]
        readers = self._readers(range(len(units)), units)
        raising = {k for k, unit in enumerate(units) if not is_safe(unit.node)}
        wishes = [set(need) for need in needs]
        for variable, cell in self.updates:
            k = maker.get(variable)
            if k is not None:
                wishes[k] |= readers[self.fgraph.inputs[cell]] | raising
        for k, wish in enumerate(wishes):
            wish.discard(k)
        return [units[k] for k in _in_order(needs, wishes)]

    def _last_uses(self) -> dict[Variable, float]:
        last: dict[Variable, float] = {}
        for k, unit in enumerate(self.units):
            for variable in unit.outputs:
                last.setdefault(variable, k)
            for variable in unit.node.inputs:
                for root in self._roots(variable):
                    last[root] = k
        for variable in self.fgraph.outputs:
            for root in self._roots(variable):
                last[root] = math.inf
        return last

    def may_overwrite(self, variable: Variable, position: int) -> bool:
        """Say whether no unit after this one, and no result, reads an input's old value."""
        late = any(k > position for k in self.readers.get(variable, ()))
        return not late and variable not in self.escaping


def _units(fgraph: FunctionGraph, order: Sequence[Apply]) -> list[Unit]:
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
        units.append(Unit(node, tuple(reductions)))
    return units


def _in_order(needs: list[set[int]], wishes: list[set[int]]) -> list[int]:
    """Order units after what they need, and after what they wish for where that can be.

    Of those that are ready the first goes first. Where wishes go in a circle, they are given up one by one.
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
    while len(order) < len(needs):
        if not ready:
            ready = [next(k for k in range(len(needs)) if k not in done and needs[k] <= done)]
        k = heapq.heappop(ready)
        if k in done:
            continue
        done.add(k)
        order.append(k)
        for follower in followers[k]:
            waiting[follower] -= 1
            if waiting[follower] == 0 and follower not in done:
                heapq.heappush(ready, follower)
    return order
