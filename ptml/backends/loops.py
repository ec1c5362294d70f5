"""Loops that we compile otherwise than PyTensor: scans of our own kinds, put in the place of its own.

PyTensor's JAX backend has no loop that ends when a condition holds, and its MLX backend has no loops at all.
A rewrite that runs last makes such loops scans of a subclass, for which that backend has a kernel of ours.
"""

from __future__ import annotations

from collections.abc import Callable

from pytensor.compile.builders import OpFromGraph
from pytensor.graph.basic import Apply, Variable
from pytensor.graph.fg import FunctionGraph
from pytensor.graph.rewriting.basic import GraphRewriter, dfs_rewriter, node_rewriter
from pytensor.scan.op import Scan

__all__ = ["EndingScan", "UnrolledScan", "holds_ending_loops", "in_place_of_scans", "keeps_a_trace"]


class EndingScan(Scan):
    """A loop that ends when its condition holds, of which only the last values are used."""


class UnrolledScan(Scan):
    """A loop that Python runs, as a rule while the program is traced: its iterations are then written out."""


def keeps_a_trace(op: Scan) -> bool:
    """Say whether more than the last values of a loop are kept."""
    info = op.info
    return bool(info.n_mit_mot or info.n_mit_sot or info.n_sit_sot or info.n_nit_sot)


def holds_ending_loops(graph: FunctionGraph) -> bool:
    """Say whether a graph has a loop that ends when its condition holds, also within others."""
    return any(
        (isinstance(node.op, Scan) and node.op.info.as_while)
        or (isinstance(node.op, Scan | OpFromGraph) and holds_ending_loops(node.op.fgraph))
        for node in graph.apply_nodes
    )


def in_place_of_scans(kind: type[Scan], applies: Callable[[Scan], bool]) -> GraphRewriter:
    """Make a rewrite that puts scans of another kind in the place of PyTensor's, also within each other.

    Parameters
    ----------
    kind : subclass of Scan
    applies : callable
        Whether a scan is to change.
    """

    def changes(op: Scan) -> bool:
        return type(op) is Scan and applies(op)

    def holds(graph: FunctionGraph) -> bool:
        return any(
            (isinstance(node.op, Scan) and changes(node.op))
            or (isinstance(node.op, Scan | OpFromGraph) and holds(node.op.fgraph))
            for node in graph.apply_nodes
        )

    @node_rewriter([Scan, OpFromGraph])
    def rewrite(fgraph: FunctionGraph, node: Apply) -> list[Variable] | None:
        op = node.op
        itself, inside = isinstance(op, Scan) and changes(op), holds(op.fgraph)
        if not itself and not inside:
            return None
        inner = op.fgraph.unfreeze()
        if inside:
            rewriter.rewrite(inner)
        new = kind(inner.inputs, inner.outputs, op.info, name=op.name) if itself else None
        return (new or op.clone_with_inner_graph(inner))(*node.inputs, return_list=True)

    rewriter = dfs_rewriter(rewrite)
    return rewriter
