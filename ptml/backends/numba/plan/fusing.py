"""Which fused ops stay one node: those that a rule takes. The others are expanded before all other rewrites.

PyTensor's own softmax and log-softmax are taken up just before elementwise nodes are fused, which would take
them apart: every rewrite that knows them has seen them by then.
"""

from __future__ import annotations

from pytensor.graph.basic import Apply, Variable
from pytensor.graph.fg import FunctionGraph
from pytensor.graph.rewriting.basic import GraphRewriter, dfs_rewriter, node_rewriter
from pytensor.tensor.special import LogSoftmax as PyTensorLogSoftmax
from pytensor.tensor.special import Softmax as PyTensorSoftmax

from ptml.backends.numba.plan.lowering import rule_for
from ptml.backends.numba.plan.merging import MergeAnew
from ptml.fused import EXPAND_POSITION, Fused
from ptml.ops.softmax import LogSoftmax, Softmax, along_axis

__all__ = ["REWRITES", "expand_others"]

#: Elementwise nodes are fused at 49.
BEFORE_FUSION = 48.9


def _expand_others(fgraph: FunctionGraph, node: Apply) -> list[Variable] | None:
    found = rule_for(node.op)
    if found is not None and found.takes(node):
        return None
    return node.op.build(*node.inputs)


def _own_softmax(fgraph: FunctionGraph, node: Apply) -> list[Variable] | None:
    [x] = node.inputs
    if len(node.op.axis) != 1 or x.type.dtype not in ("float32", "float64"):
        return None
    op = Softmax() if isinstance(node.op, PyTensorSoftmax) else (lambda x: LogSoftmax()(x)[0])
    return [along_axis(op, x, node.op.axis[0])]


# The functions keep their names to themselves, by which a mode that is pickled finds them.
_expanding = node_rewriter([Fused])(_expand_others)
_taking_over = node_rewriter([PyTensorSoftmax, PyTensorLogSoftmax])(_own_softmax)

#: Expands the fused ops that no rule takes.
expand_others: GraphRewriter = dfs_rewriter(_expanding, ignore_newtrees=False)

#: What a mode of plans registers.
REWRITES = (
    (expand_others, EXPAND_POSITION),
    (dfs_rewriter(_taking_over), BEFORE_FUSION),
    (MergeAnew(), BEFORE_FUSION + 0.05),
)
