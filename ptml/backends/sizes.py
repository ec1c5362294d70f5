"""Arithmetic of sizes for a backend that traces programs, done with numbers that are known.

Under ``jax.jit`` the size of an axis is a number, but what a function of JAX makes of it is not: it is
traced, and no array can have such a size. A rewrite that runs last makes whole numbers by themselves computed
by ops of subclasses, for which JAX has kernels of ours.
"""

from __future__ import annotations

from pytensor.graph.basic import Apply, Variable
from pytensor.graph.rewriting.basic import GraphRewriter
from pytensor.tensor.basic import ScalarFromTensor
from pytensor.tensor.elemwise import Elemwise

from ptml.backends.everywhere import everywhere

__all__ = ["Size", "SizeArithmetic", "size_arithmetic", "sizes_of_tensors"]


class SizeArithmetic(Elemwise):
    """An elementwise op of whole numbers, each by itself."""


class Size(ScalarFromTensor):
    """A whole number out of a tensor."""


def _is_of_sizes(node: Apply) -> bool:
    return type(node.op) is Elemwise and all(
        variable.type.ndim == 0 and variable.type.dtype.startswith(("int", "uint", "bool"))
        for variable in (*node.inputs, *node.outputs)
    )


def _as_sizes(node: Apply) -> list[Variable]:
    return SizeArithmetic(node.op.scalar_op, name=node.op.name)(*node.inputs, return_list=True)


#: Puts ops of sizes in the places of elementwise ops.
size_arithmetic: GraphRewriter = everywhere(Elemwise, _is_of_sizes, _as_sizes)

#: Puts ops that give sizes in the places of those that take numbers out of tensors.
sizes_of_tensors: GraphRewriter = everywhere(
    ScalarFromTensor,
    lambda node: type(node.op) is ScalarFromTensor and node.outputs[0].type.dtype.startswith(("int", "uint")),
    lambda node: [Size()(node.inputs[0])],
)
