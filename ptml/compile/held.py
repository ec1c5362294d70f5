"""Hold back: apply the holds that mark a graph to all that the program writes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import pytensor.tensor as pt
from pytensor.graph.basic import Variable
from pytensor.graph.fg import FunctionGraph
from pytensor.graph.traversal import graph_inputs, io_toposort

from ptml.holds import Held, Hold, Written
from ptml_state import Slot

__all__ = ["hold_back"]


def hold_back(graph: FunctionGraph, written: Mapping[Slot, Variable]) -> dict[Slot, Variable]:
    """Let each hold keep what it covers, and take its marks out of the graph.

    Parameters
    ----------
    graph : FunctionGraph
        A flattened graph; it is changed.
    written : mapping
        The new value of every slot that the program writes, what advances by itself included.

    Returns
    -------
    dict
        The new values under all holds. Those of inner guards come first: an outer one sees what they leave.
    """
    marks = [node for node in graph.toposort() if isinstance(node.op, Held)]
    verdicts: dict[Hold, Variable] = {}
    for node in marks:
        verdicts.setdefault(node.op.hold, node.inputs[2])
    proposed, marked_by = {}, {}
    for slot, new in written.items():
        proposed[slot], marked_by[slot] = _unmarked(slot, new)
    plain: dict[Variable, Variable] = {}
    for node in marks:
        new, old, when = node.inputs
        plain[node.outputs[0]] = pt.switch(when, old, new)
        graph.replace(node.outputs[0], plain[node.outputs[0]], reason="hold back", import_missing=True)

    now = {slot: plain.get(new, new) for slot, new in proposed.items()}
    spared = {slot for hold in verdicts for slot in hold.spared}
    for hold in sorted(verdicts, key=lambda hold: hold.ordinal):
        verdict = _answered(graph, plain.get(verdicts[hold], verdicts[hold]), now)
        for slot in now:
            if slot not in spared and hold.covers(slot, marked_by[slot]):
                now[slot] = pt.switch(verdict, slot.handle, now[slot])
    for root in list(graph.inputs):
        if isinstance(root, Written) and graph.clients[root]:
            _answered(graph, root, now)
    return now


def _unmarked(slot: Slot, new: Variable) -> tuple[Variable, list[Hold]]:
    """Give a slot's new value without its marks, and the holds that they were of."""
    holds = []
    while new.owner is not None and isinstance(new.owner.op, Held) and new.owner.inputs[1] is slot.handle:
        holds.append(new.owner.op.hold)
        new = new.owner.inputs[0]
    return new, holds


def _answered(graph: FunctionGraph, verdict: Variable, now: Mapping[Slot, Variable]) -> Variable:
    """Put the answers about what is written in the place of the roots that stand for them in a verdict."""
    for root in [root for root in graph_inputs([verdict]) if isinstance(root, Written)]:
        behind = _behind(root, now.values())
        answer = root.ask({slot: new for slot, new in now.items() if new not in behind})
        graph.replace(root, answer, reason="answer", import_missing=True)
        verdict = answer if verdict is root else verdict
    return verdict


def _behind(root: Variable, values: Iterable[Variable]) -> set[Variable]:
    """Give the variables that depend on a root, among those that these values depend on."""
    found = {root}
    for node in io_toposort([], list(values)):
        if not found.isdisjoint(node.inputs):
            found.update(node.outputs)
    return found
