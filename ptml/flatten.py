"""Flatten a graph: put the nested graphs of layers in the place of their calls."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from pytensor.compile.builders import OpFromGraph
from pytensor.compile.rewriting import inline_ofg_node
from pytensor.graph.basic import Apply, Constant, Variable, clone
from pytensor.graph.fg import FunctionGraph
from pytensor.graph.op import Op
from pytensor.graph.traversal import apply_ancestors, graph_inputs
from pytensor.scan.op import Scan

from ptml.bits import Keyed
from ptml.layer import LayerGradient, LayerOp
from ptml.marks import Advance, InTraining
from ptml.network import outermost, walk
from ptml.ops.recompute import Recomputed

__all__ = [
    "calls_in",
    "flatten",
    "flattened_graph",
    "is_marked",
    "is_nested",
    "outermost_calls",
    "rewritten_inside",
]

MARKS = (Advance, InTraining, Keyed, LayerOp, LayerGradient, Recomputed)


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


def is_nested(node: Apply) -> bool:
    """Say whether a node is a nested graph that flattening puts in the place of its call."""
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
        A copy, from the very same roots. A result of outermost calls has them as ``tag.calls``.
    """
    outputs = list(outputs)
    if roots is None:
        roots = [root for root in dict.fromkeys(graph_inputs(outputs)) if not isinstance(root, Constant)]
    _, copied = clone(roots, outputs, copy_inputs=False, copy_orphans=False)
    graph = FunctionGraph(list(roots), copied, clone=False)
    pending = [(node, True) for node in graph.toposort() if is_nested(node)]
    while pending:
        node, is_outermost = pending.pop()
        before = set(graph.apply_nodes)
        inlined = inline_ofg_node(node)
        graph.replace_all(zip(node.outputs, inlined, strict=True), import_missing=True, reason="flatten")
        own = (node.op,) if is_outermost and isinstance(node.op, LayerOp) else ()
        for old, result in zip(node.outputs, inlined, strict=True):
            if result.owner is not None:
                result.tag.calls = (*_calls_of(result), *_calls_of(old), *own)
        pending.extend((new, False) for new in graph.apply_nodes - before if is_nested(new))
    return graph


def _calls_of(result: Variable) -> tuple[LayerOp, ...]:
    return getattr(result.tag, "calls", ())


def flatten(outputs: Sequence[Variable]) -> list[Variable]:
    """Give outputs equal to these, computed without the nested graphs of layers.

    The roots (slots, inputs) are the very same ones, so the gradient of a flattened loss with respect to a
    slot's handle is the loss's.
    """
    return list(flattened_graph(outputs).outputs)


def calls_in(outputs: Sequence[Variable]) -> list[Any]:
    """Give the layers that a graph calls outermost, each once, in the order of their first calls.

    A layer that is called by itself too, and is part of another one that is called, is not among them.
    """
    ordered = sorted(outermost_calls(outputs), key=lambda op: op.call_ordinal)
    layers = {id(top): top for top in (outermost(op.layer) for op in ordered)}
    inside = {id(part) for layer in layers.values() for part in walk(layer) if part is not layer}
    return [layer for key, layer in layers.items() if key not in inside]


def outermost_calls(outputs: Sequence[Variable]) -> list[LayerOp]:
    """Give the outermost calls of layers in a graph, those in its loops and nested graphs among them."""
    calls: dict[int, LayerOp] = {}
    pending = list(apply_ancestors(list(outputs)))
    while pending:
        node = pending.pop()
        tagged = (op for output in node.outputs for op in _calls_of(output))
        # The loops of ptml.scan are flattened, and keep the calls that were in them.
        for op in (node.op, *tagged, *getattr(node.op, "calls", ())):
            if isinstance(op, LayerOp):
                calls[id(op)] = op
        if isinstance(node.op, OpFromGraph | Scan) and not isinstance(node.op, LayerOp | LayerGradient):
            pending.extend(node.op.fgraph.apply_nodes)
    return list(calls.values())


def rewritten_inside(node: Apply, change: Callable[[FunctionGraph], None]) -> list[Variable]:
    """Give the outputs of a loop whose inner graph is flattened and changed."""
    inner = node.op.fgraph.unfreeze()
    graph = flattened_graph(inner.outputs, inner.inputs)
    change(graph)
    return node.op.clone_with_inner_graph(graph)(*node.inputs, return_list=True)
