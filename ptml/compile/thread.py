"""Thread the state through a graph: what reads what, in which order, and what is written back.

Draws are numbered, statistics sequenced, clocks and generators counted on, and the marks of
:mod:`ptml.marks` resolved, for training or for prediction. What guards and windows hold back stays as it is.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import partial

import attrs
import numpy as np
import pytensor.tensor as pt
from pytensor.graph.basic import Constant, Variable
from pytensor.graph.fg import FunctionGraph
from pytensor.graph.rewriting.basic import dfs_rewriter
from pytensor.graph.traversal import ancestors, graph_inputs
from pytensor.scan.op import Scan
from pytensor.scan.rewriting.io import scan_remove_unused

from ptml.application import Application, DrawNumber, Reading
from ptml.bits import Numbered
from ptml.compile.held import hold_back
from ptml.flatten import flattened_graph, is_marked, rewritten_inside
from ptml.marks import Advance, InTraining
from ptml.ops.recompute import Recomputed
from ptml.rng import next_generators
from ptml.sequencing import sequence
from ptml_state import Role, Slot, SlotVariable

__all__ = ["Threaded", "thread"]

BARE_SCAN = (
    "{layers} would {what} inside a pytensor.scan, which carries no state from one iteration to the next. "
    "Write ptml.scan, which takes the same arguments."
)


@attrs.frozen
class Threaded:
    """A graph whose roots are its inputs, its slots' handles, and shared variables of the user's.

    Attributes
    ----------
    outputs : list of Variable
    updates : dict of Slot to Variable
        The new value of every slot that is written.
    shared_updates : dict of shared Variable to Variable
        The user's own.
    """

    outputs: list[Variable]
    updates: dict[Slot, Variable]
    shared_updates: dict[Variable, Variable]

    @property
    def everything(self) -> list[Variable]:
        return [*self.outputs, *self.updates.values(), *self.shared_updates.values()]

    @property
    def roots(self) -> list[Variable]:
        roots = dict.fromkeys(graph_inputs(self.everything))
        return [root for root in roots if not isinstance(root, Constant)]

    @property
    def slots(self) -> list[Slot]:
        """The slots that are read or written, written ones last."""
        read = [root.slot for root in self.roots if isinstance(root, SlotVariable)]
        return list(dict.fromkeys([*read, *self.updates]))


def thread(
    outputs: Sequence[Variable],
    observed: Sequence[Variable] = (),
    updates: Mapping[Variable, Variable] | None = None,
    *,
    training: bool = True,
) -> Threaded:
    """Resolve a graph for training or prediction.

    Parameters
    ----------
    outputs : sequence of Variable
        What is computed, and decides which statistics and clocks advance.
    observed : sequence of Variable
        What is computed besides, after the outputs, and moves no statistic or clock.
    updates : mapping
        New values, by slot handle or shared variable. They decide what advances as the outputs do.
    training : bool
        Whether anything advances.
    """
    updates = dict(updates or {})
    every = [*outputs, *observed, *updates.values()]
    graph = flattened_graph(every)
    driving = [*range(len(outputs)), *range(len(outputs) + len(observed), len(every))]

    written = {key.slot for key in updates if isinstance(key, SlotVariable)}
    if training:
        _refuse_bare_scans(graph, _used_outside_loops(graph))
    moved = sequence(graph, driving, {}, skip=written, training=training)
    _settle(graph, training)
    drawn = _number_draws(graph, driving)

    advanced: dict[Slot, Variable] = {slot: graph.outputs[index] for slot, index in moved.items()}
    if training:
        read = ancestors([graph.outputs[i] for i in [*driving, *moved.values()]])
        clocks = [
            v.slot for v in dict.fromkeys(read) if isinstance(v, SlotVariable) and v.slot.role is Role.CLOCK
        ]
        advanced.update({slot: _next_count(slot) for slot in clocks if slot not in written})
        advanced.update({slot: _next_call(slot) for slot in drawn if slot not in written})

    first = len(outputs) + len(observed)
    given = dict(zip(updates, graph.outputs[first : len(every)], strict=True))
    written_now = {key.slot: new for key, new in given.items() if isinstance(key, SlotVariable)}
    held = hold_back(graph, {**advanced, **written_now})
    # What is read of the graph from here on has no marks any more.
    given = dict(zip(updates, graph.outputs[first : len(every)], strict=True))
    return Threaded(
        list(graph.outputs[:first]),
        held,
        {key: new for key, new in given.items() if not isinstance(key, SlotVariable)},
    )


def _settle(graph: FunctionGraph, training: bool) -> None:
    """Resolve the marks, also in loops, and the readings of applications that move nothing."""
    _resolve_marks(graph, training)
    for root in list(graph.inputs):
        if isinstance(root, Reading):
            graph.replace(root, root.slot.handle, reason="settle", import_missing=True)
    if not training:
        dfs_rewriter(scan_remove_unused).rewrite(graph)


def _resolve_marks(graph: FunctionGraph, training: bool) -> None:
    for node in graph.toposort():
        if isinstance(node.op, Advance):
            chosen = [node.inputs[0]]
        elif isinstance(node.op, InTraining):
            chosen = [node.inputs[0 if training else 1]]
        elif isinstance(node.op, Recomputed):
            chosen = node.inputs[: node.op.n]
        elif isinstance(node.op, Scan) and is_marked(node.op):
            chosen = rewritten_inside(node, partial(_resolve_marks, training=training))
        else:
            used = [(old, new) for old, new in next_generators(node) if graph.clients[old]]
            graph.replace_all(used, reason="next generator", import_missing=True)
            continue
        graph.replace_all(zip(node.outputs, chosen, strict=True), reason="resolve", import_missing=True)


def _refuse_bare_scans(graph: FunctionGraph, outside: Iterable[Variable]) -> None:
    """Refuse what would have to advance in a loop that carries nothing.

    Parameters
    ----------
    graph : FunctionGraph
        A flattened graph.
    outside : iterable of Variable
        The uses that stand outside of any loop. A loop that has them too, such as that of a Jacobian,
        computes again what was computed there.
    """
    outside = set(outside)
    for node in graph.toposort():
        if not isinstance(node.op, Scan) or not is_marked(node.op):
            continue
        inner = node.op.fgraph.unfreeze()
        position = node.op.get_oinp_iinp_iout_oout_mappings()["outer_inp_from_inner_inp"]
        outer = {variable: node.inputs[position[i]] for i, variable in enumerate(inner.inputs)}
        body = flattened_graph(inner.outputs, inner.inputs)
        for inside in body.toposort():
            # A draw of ptml.scan's has a key of its own in every iteration.
            if isinstance(inside.op, Numbered) and inside.inputs[0].owner is None:
                uses, what = [outer[inside.inputs[1]]], "draw the same numbers in every iteration"
            elif isinstance(inside.op, Advance):
                uses, what = [outer[read] for read, _ in Advance.moves(inside)], "move no statistic"
            else:
                continue
            if not outside.issuperset(uses):
                owners = [use.slot.owner or use.slot for use in uses if isinstance(use, Application)]
                layers = ", ".join(dict.fromkeys(map(repr, owners))) or "A layer"
                raise ValueError(BARE_SCAN.format(layers=layers, what=what))
        _refuse_bare_scans(body, {variable for variable in inner.inputs if outer[variable] in outside})


def _used_outside_loops(graph: FunctionGraph) -> list[Variable]:
    return [
        root
        for root in graph.inputs
        if isinstance(root, Application) and any(not isinstance(n.op, Scan) for n, _ in graph.clients[root])
    ]


def _number_draws(graph: FunctionGraph, driving: Iterable[int]) -> list[Slot]:
    """Number the draws of each generator in the order in which they were made, those that drive first."""
    reached = set(ancestors([graph.outputs[i] for i in driving]))
    used = {root for root in graph_inputs(graph.outputs) if isinstance(root, DrawNumber)}
    count: dict[Slot, int] = {}
    for root in sorted(used, key=lambda root: (root not in reached, root.ordinal)):
        number = count.get(root.slot, 0)
        count[root.slot] = number + 1
        graph.replace(root, pt.constant(np.uint32(number)), reason="number draws", import_missing=True)
    return list(count)


def _next_count(slot: Slot) -> Variable:
    return slot.handle + np.asarray(1, slot.dtype)


def _next_call(slot: Slot) -> Variable:
    """Count one call on: words 2 and 3 of a generator are a 64-bit count, low word first."""
    key = slot.handle
    carry = pt.eq(key[2], np.uint32(0xFFFFFFFF)).astype("uint32")
    return key + np.array([0, 0, 1, 0], np.uint32) + carry * np.array([0, 0, 0, 1], np.uint32)
