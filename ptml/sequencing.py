"""Sequencing: which application of a layer reads what another one wrote."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from pytensor.graph.basic import Variable, equal_computations
from pytensor.graph.fg import FunctionGraph
from pytensor.graph.traversal import ancestors

from ptml.application import Reading
from ptml.marks import Advance
from ptml_state import Role, Slot

__all__ = ["sequence"]

COPIED = (
    "One call of {owner} stands in this graph twice, on different inputs: a part of the graph was copied by "
    "clone_replace, vectorize_graph or givens, and the two would move one statistic at the same moment. Call "
    "the layer on the other input as well, instead of copying what a call gave."
)
OUT_OF_ORDER = (
    "{owner} is called several times in this graph, and what an earlier call reads depends on a later one, "
    "through givens or clone_replace. Its statistics go from call to call in the order of the calls: call "
    "the layers anew, in the order in which the data flow."
)


def sequence(
    graph: FunctionGraph,
    driving: Iterable[int],
    start: Mapping[Slot, Variable],
    *,
    skip: Iterable[Slot] = (),
    training: bool = True,
) -> dict[Slot, int]:
    """Let each application of a layer read what the one before it wrote.

    Parameters
    ----------
    graph : FunctionGraph
        A flattened graph; it is changed.
    driving : iterable of int
        The outputs that statistics advance for.
    start : mapping
        What the first application of a slot reads; its handle unless given.
    skip : iterable of Slot
        Slots that do not advance.
    training : bool
        Whether statistics advance; caches always do.

    Returns
    -------
    dict
        For each slot that moves, the index among the graph's outputs of the value it ends with.

    Raises
    ------
    ValueError
        If one application stands in the graph on two inputs, or one depends on a later one.
    """
    skip = set(skip)

    def moves(read: Variable) -> bool:
        if not isinstance(read, Reading) or read.slot in skip:
            return False
        return training or read.slot.role is Role.CACHE

    reached = set(ancestors([graph.outputs[i] for i in driving]))
    new_values: dict[Reading, Variable] = {}
    for node in graph.toposort():
        if isinstance(node.op, Advance) and node.outputs[0] in reached:
            for read, new in Advance.moves(node):
                if moves(read):
                    first = new_values.setdefault(read, new)
                    # Gradients compute what they need once more, and that is the same application.
                    if first is not new and not equal_computations([first], [new]):
                        raise ValueError(COPIED.format(owner=repr(read.slot.owner or read.slot)))
    ordered = sorted(new_values, key=lambda read: read.ordinal)
    position: dict[Reading, int] = {}
    for read in ordered:
        position[read] = len(graph.outputs)
        graph.add_output(new_values[read], reason="sequence", import_missing=True)
    last: dict[Slot, int] = {}
    for read in ordered:
        slot = read.slot
        before = graph.outputs[last[slot]] if slot in last else start.get(slot, slot.handle)
        if slot in last and read in ancestors([before]):
            raise ValueError(OUT_OF_ORDER.format(owner=repr(slot.owner or slot)))
        graph.replace(read, before, reason="sequence", import_missing=True)
        last[slot] = position[read]
    return last
