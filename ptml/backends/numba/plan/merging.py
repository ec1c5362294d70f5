"""Merge equal nodes once more, just before elementwise nodes are fused.

PyTensor's merge remembers from pass to pass which nodes it has compared. A node that was to be merged with
another, which went away in the meantime, is not among them: nothing is merged with it any more. So a copy
that a gradient has of the forward pass can stay, with all that follows from it.
"""

from __future__ import annotations

from pytensor.graph.fg import FunctionGraph
from pytensor.graph.rewriting.basic import GraphRewriter, MergeOptimizer

__all__ = ["MergeAnew"]


class MergeAnew(GraphRewriter):
    """PyTensor's merge, with nothing remembered."""

    def apply(self, fgraph: FunctionGraph) -> None:
        remembered = getattr(fgraph, "merge_feature", None)
        if remembered is not None:
            fgraph.remove_feature(remembered)
            del fgraph.merge_feature
        MergeOptimizer().rewrite(fgraph)
