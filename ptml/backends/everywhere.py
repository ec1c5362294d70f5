"""Rewrites that reach into loops and nested graphs."""

from __future__ import annotations

from collections.abc import Callable

from pytensor.compile.builders import OpFromGraph
from pytensor.graph.basic import Apply, Variable
from pytensor.graph.fg import FunctionGraph
from pytensor.graph.op import Op
from pytensor.graph.rewriting.basic import GraphRewriter, dfs_rewriter, node_rewriter
from pytensor.raise_op import CheckAndRaise
from pytensor.scan.op import Scan

__all__ = ["LAST", "everywhere", "unchecked"]

#: The position of a rewrite that runs after all of PyTensor's.
LAST = 1000


def everywhere(
    kind: type[Op], applies: Callable[[Apply], bool], change: Callable[[Apply], list[Variable]]
) -> GraphRewriter:
    """Make a rewrite of one kind of op, wherever in a graph it stands.

    Parameters
    ----------
    kind : type of Op
    applies : callable
        Whether a node of that kind is to change.
    change : callable
        From such a node to what replaces its outputs.
    """

    def holds(graph: FunctionGraph) -> bool:
        return any(
            (isinstance(node.op, kind) and applies(node))
            or (isinstance(node.op, Scan | OpFromGraph) and holds(node.op.fgraph))
            for node in graph.apply_nodes
        )

    @node_rewriter([kind, Scan, OpFromGraph])
    def rewrite(fgraph: FunctionGraph, node: Apply) -> list[Variable] | None:
        if isinstance(node.op, kind):
            return change(node) if applies(node) else None
        if not holds(node.op.fgraph):
            return None
        inner = node.op.fgraph.unfreeze()
        rewriter.rewrite(inner)
        return node.op.clone_with_inner_graph(inner)(*node.inputs, return_list=True)

    rewriter = dfs_rewriter(rewrite)
    return rewriter


#: Drop the checks that PyTensor's rewrites add. A backend that cannot raise would warn of each; those that
#: are in the graph from the start, the compile step has turned into outputs.
unchecked = everywhere(CheckAndRaise, lambda node: True, lambda node: [node.inputs[0]])
