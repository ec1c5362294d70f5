"""Flatten a graph: put the nested graphs of layers in the place of their calls."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from pytensor.compile.builders import OpFromGraph
from pytensor.compile.rewriting import inline_ofg_node
from pytensor.graph.basic import Apply, Constant, Variable, clone
from pytensor.graph.fg import FunctionGraph
from pytensor.graph.op import Op
from pytensor.graph.traversal import graph_inputs
from pytensor.scan.op import Scan

from ptml.bits import Keyed
from ptml.layer import LayerGradient, LayerOp
from ptml.marks import Advance, InTraining

__all__ = ["calls_in", "flatten", "flattened_graph", "is_marked", "rewritten_inside"]

MARKS = (Advance, InTraining, Keyed, LayerOp, LayerGradient)


def is_marked(op: Op) -> bool:
    """Say whether a nested graph or loop holds anything that the compile step acts on."""
    known = vars(op).get("_holds_marks")
    if known is None:
        known = any(
            isinstance(node.op, MARKS) or (isinstance(node.op, OpFromGraph | Scan) and is_marked(node.op))
            for node in op.fgraph.apply_nodes
        )
        op._holds_marks = known
    return known


def _is_nested(node: Apply) -> bool:
    return isinstance(node.op, LayerOp | LayerGradient) or (
        isinstance(node.op, OpFromGraph) and is_marked(node.op)
    )


def flattened_graph(outputs: Sequence[Variable], roots: Sequence[Variable] | None = None) -> FunctionGraph:
    """Copy a graph, with the nested graphs of layers (and of what uses layers) in the place of their calls.

    Parameters
    ----------
    outputs : sequence of Variable
        The graph's outputs.
    roots : sequence of Variable, optional
        The copy's inputs, in order; all roots that are not constants unless given.

    Returns
    -------
    FunctionGraph
        A copy, from the very same roots. A result of an outermost call has it as ``tag.call``.
    """
    outputs = list(outputs)
    if roots is None:
        roots = [root for root in dict.fromkeys(graph_inputs(outputs)) if not isinstance(root, Constant)]
    _, copied = clone(roots, outputs, copy_inputs=False, copy_orphans=False)
    # A root that is itself an output is no part of the copy's own; keep the root.
    graph = FunctionGraph(list(roots), copied, clone=False)
    pending = [(node, True) for node in graph.toposort() if _is_nested(node)]
    while pending:
        node, outermost = pending.pop()
        before = set(graph.apply_nodes)
        inlined = inline_ofg_node(node)
        graph.replace_all(zip(node.outputs, inlined, strict=True), import_missing=True, reason="flatten")
        if outermost and isinstance(node.op, LayerOp):
            for result in inlined:
                if result.owner is not None:
                    result.tag.call = (node.op.call_ordinal, node.op.layer)
        pending.extend((new, False) for new in graph.apply_nodes - before if _is_nested(new))
    return graph


def flatten(outputs: Sequence[Variable]) -> list[Variable]:
    """Give outputs equal to these, computed without the nested graphs of layers.

    The roots (slots, inputs) are the very same ones, so the gradient of a flattened loss with respect to a
    slot's handle is the loss's.
    """
    return list(flattened_graph(outputs).outputs)


def calls_in(outputs: Sequence[Variable]) -> list[Any]:
    """Give the layers that a graph calls outermost, each once, in the order of their first calls."""
    from pytensor.graph.traversal import apply_ancestors

    calls: dict[int, Any] = {}
    for node in apply_ancestors(list(outputs)):
        if isinstance(node.op, LayerOp):
            calls[node.op.call_ordinal] = node.op.layer
        for output in node.outputs:
            if (call := getattr(output.tag, "call", None)) is not None:
                calls[call[0]] = call[1]
    ordered = {id(calls[ordinal]): calls[ordinal] for ordinal in sorted(calls)}
    return list(ordered.values())


def rewritten_inside(node: Apply, change: Callable[[FunctionGraph], None]) -> list[Variable]:
    """Give the outputs of a loop whose inner graph is flattened and changed."""
    inner = node.op.fgraph.unfreeze()
    graph = flattened_graph(inner.outputs, inner.inputs)
    change(graph)
    return node.op.clone_with_inner_graph(graph)(*node.inputs, return_list=True)
