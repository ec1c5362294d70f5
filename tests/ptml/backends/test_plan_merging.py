"""Equal nodes that PyTensor's merge forgot are merged."""

from __future__ import annotations

import pytensor.tensor as pt
from pytensor.graph.fg import FunctionGraph
from pytensor.graph.rewriting.basic import MergeOptimizer

from ptml.backends.numba.plan.merging import MergeAnew


def test_a_node_whose_partner_went_away_is_merged_with_the_next_one():
    x = pt.vector("x")
    first, second, third = pt.exp(x), pt.exp(x), pt.exp(x)
    fgraph = FunctionGraph([x], [first, second], clone=False)
    merge = MergeOptimizer()
    merge.add_requirements(fgraph)
    # One of the two has been seen, and the other waits to be merged with it.
    [seen] = fgraph.merge_feature.nodes_seen
    place = fgraph.outputs.index(seen.outputs[0])
    fgraph.replace(seen.outputs[0], x + 1)
    merge.apply(fgraph)
    fgraph.replace(fgraph.outputs[place], third)
    merge.apply(fgraph)
    assert fgraph.outputs[0] is not fgraph.outputs[1]
    MergeAnew().rewrite(fgraph)
    assert fgraph.outputs[0] is fgraph.outputs[1]


def test_a_graph_that_was_never_merged_is():
    x = pt.vector("x")
    fgraph = FunctionGraph([x], [pt.exp(x), pt.exp(x)], clone=False)
    MergeAnew().rewrite(fgraph)
    assert fgraph.outputs[0] is fgraph.outputs[1]
