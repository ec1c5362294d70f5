"""PyTensor's JAX mode, with reductions that give the dtype that they declare."""

from __future__ import annotations

from pytensor.compile.builders import OpFromGraph
from pytensor.compile.mode import JAX as PYTENSOR_JAX
from pytensor.compile.mode import Mode
from pytensor.graph.basic import Apply, Variable
from pytensor.graph.fg import FunctionGraph
from pytensor.graph.rewriting.basic import dfs_rewriter, node_rewriter
from pytensor.scan.op import Scan
from pytensor.tensor.elemwise import CAReduce

__all__ = ["JAX"]


def _is_wide(node: Apply) -> bool:
    """Say whether a reduction accumulates in another float dtype than its result's."""
    if not isinstance(node.op, CAReduce):
        return False
    wanted = node.outputs[0].type.dtype
    return wanted.startswith("float") and node.op.acc_dtype not in (None, wanted)


def _holds_wide(graph: FunctionGraph) -> bool:
    return any(
        _is_wide(node) or (isinstance(node.op, Scan | OpFromGraph) and _holds_wide(node.op.fgraph))
        for node in graph.apply_nodes
    )


@node_rewriter([CAReduce, Scan, OpFromGraph])
def narrow_accumulators(fgraph: FunctionGraph, node: Apply) -> list[Variable] | None:
    """Accumulate in the dtype of the result, in loops and nested graphs too.

    PyTensor accumulates float32 in float64, and its JAX conversion then gives the result as float64
    wherever JAX keeps 64-bit numbers: every cell behind it would change dtype, and be compiled again.
    """
    if isinstance(node.op, CAReduce):
        if not _is_wide(node):
            return None
        return node.op.clone(acc_dtype=node.outputs[0].type.dtype)(*node.inputs, return_list=True)
    if not _holds_wide(node.op.fgraph):
        return None
    inner = node.op.fgraph.unfreeze()
    _narrow.rewrite(inner)
    return node.op.clone_with_inner_graph(inner)(*node.inputs, return_list=True)


_narrow = dfs_rewriter(narrow_accumulators)

#: It runs after every rewrite of PyTensor's.
_LAST = 1000

JAX: Mode = PYTENSOR_JAX.register((_narrow, _LAST))
