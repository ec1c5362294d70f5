"""The calls of layers in a graph, the nested ones too, and what each gave."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import attrs
from pytensor.compile.rewriting import inline_ofg_node
from pytensor.graph.basic import Apply, Constant, Variable, clone
from pytensor.graph.fg import FunctionGraph
from pytensor.graph.traversal import graph_inputs

from ptml.flatten import calls_in, is_nested
from ptml.layer import Layer, LayerOp
from ptml.network import _Naming

__all__ = ["Call", "calls_of"]


@attrs.define(eq=False)
class Call:
    """One call of a layer.

    Attributes
    ----------
    layer : Layer
    name : str
        Its name, numbered as in addresses; of calls after the first, ``name#2`` and so on.
    depth : int
        How many calls it is made within.
    path : tuple of int
        Sorts calls as they were made, each ahead of those within it.
    inputs, outputs : list of Variable
        In the flat graph.
    """

    layer: Layer
    name: str
    depth: int
    path: tuple[int, ...]
    inputs: list[Variable]
    outputs: list[Variable]


def calls_of(outputs: Sequence[Variable]) -> tuple[list[Variable], list[Call]]:
    """Flatten a graph, and keep what each call of a layer was given and gave.

    Parameters
    ----------
    outputs : sequence of Variable

    Returns
    -------
    outputs : list of Variable
        The same, in a graph without nested ones; its roots are the very same.
    calls : list of Call
        In the order in which they were made, outer ones ahead of those within. Calls in loops are not among
        them.
    """
    roots = [root for root in dict.fromkeys(graph_inputs(list(outputs))) if not isinstance(root, Constant)]
    _, copied = clone(roots, list(outputs), copy_inputs=False, copy_orphans=False)
    graph = FunctionGraph(roots, copied, clone=False)
    naming = _Naming(calls_in(outputs))
    calls: list[Call] = []
    pending: list[tuple[Apply, tuple[int, ...]]] = [(n, ()) for n in graph.apply_nodes if is_nested(n)]
    while pending:
        node, path = pending.pop()
        inlined = inline_ofg_node(node)
        if isinstance(node.op, LayerOp):
            layer, depth, path = node.op.layer, len(path), (*path, node.op.call_ordinal)
            call = Call(layer, naming.name(layer), depth, path, list(node.inputs), list(node.outputs))
            calls.append(call)
        before = set(graph.apply_nodes)
        graph.replace_all(zip(node.outputs, inlined, strict=True), import_missing=True, reason="flatten")
        now = dict(zip(node.outputs, inlined, strict=True))
        for call in calls:
            call.inputs = [now.get(variable, variable) for variable in call.inputs]
            call.outputs = [now.get(variable, variable) for variable in call.outputs]
        pending.extend((new, path) for new in graph.apply_nodes - before if is_nested(new))
    seen: Counter[str] = Counter()
    ordered = sorted(calls, key=lambda call: call.path)
    for call in ordered:
        seen[call.name] += 1
        if seen[call.name] > 1:
            call.name = f"{call.name}#{seen[call.name]}"
    return list(graph.outputs), ordered
