"""Slices that go backwards, for a backend whose arrays have none."""

from __future__ import annotations

from pytensor.graph.basic import Apply, Constant, Variable
from pytensor.graph.rewriting.basic import GraphRewriter
from pytensor.tensor.subtensor import IncSubtensor, Subtensor

from ptml.backends.everywhere import everywhere

__all__ = ["TurnedIncSubtensor", "TurnedSubtensor", "turned_reads", "turned_writes"]


class TurnedSubtensor(Subtensor):
    """A basic index in which a slice goes backwards."""


class TurnedIncSubtensor(IncSubtensor):
    """What is added, or written, at a basic index in which a slice goes backwards."""


def _goes_back(node: Apply) -> bool:
    op = node.op
    if type(op) not in (Subtensor, IncSubtensor):
        return False
    numbers = node.inputs[1 if isinstance(op, Subtensor) else 2 :]
    slices = [entry for entry in op.idx_list if isinstance(entry, slice)]
    steps = [numbers[entry.step] for entry in slices if entry.step is not None]
    return any(not isinstance(step, Constant) or step.data < 0 for step in steps)


def _read(node: Apply) -> list[Variable]:
    return [TurnedSubtensor(node.op.idx_list).make_node(*node.inputs).outputs[0]]


def _written(node: Apply) -> list[Variable]:
    op = node.op
    turned = TurnedIncSubtensor(op.idx_list, set_instead_of_inc=op.set_instead_of_inc)
    return [turned.make_node(*node.inputs).outputs[0]]


#: Put ops of the subclasses in the places of such indices.
turned_reads: GraphRewriter = everywhere(Subtensor, _goes_back, _read)
turned_writes: GraphRewriter = everywhere(IncSubtensor, _goes_back, _written)
