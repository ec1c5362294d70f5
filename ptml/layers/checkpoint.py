"""Recomputation in the backward pass."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pytensor.graph.basic import Constant, Variable
from pytensor.graph.replace import clone_replace
from pytensor.graph.traversal import graph_inputs

from ptml.flatten import flattened_graph
from ptml.layer import Layer
from ptml.layers.combinators import layers_of, one_after_the_other
from ptml.marks import Advance
from ptml.ops.recompute import Recomputed

__all__ = ["Checkpoint"]


class Checkpoint(Layer):
    """Compute layers once more for their gradient, instead of keeping what they computed.

    A training step keeps what a gradient needs of the forward pass. Here that is the layers' input alone:
    when the gradient arrives, they are computed again from it, one more forward pass in time for the memory
    of everything between. The numbers are the same, but for the rounding of what a compiler rearranges where
    formulas of both passes meet; random draws are the same, and statistics advance once.

    Parameters
    ----------
    *layers : Layer
        One or more, applied one after the other.
    name : str, optional
        By keyword, since the layers are positional. It is no part of the addresses of their state.

    Raises
    ------
    TypeError
        If an argument is no layer.
    ValueError
        If there are none.

    Notes
    -----
    It saves memory where several stand one after the other, each around a part of the network: the whole of
    one part is computed at a time. The memory that a program holds is ``program.memory()``. Whether JAX and
    PyTorch save any is for their compilers to decide, which arrange a step's memory by themselves.

    References
    ----------
    Chen, Xu, Zhang and Guestrin, "Training deep nets with sublinear memory cost" (2016), section 4.

    Examples
    --------
    >>> import ptml
    >>> from ptml.activations import Tanh
    >>> from ptml.layers import Checkpoint, Input, Linear, Repeat, Sequential
    >>> block = Checkpoint(Linear("fc", n_in=8, n_out=8), Tanh(), name="block")
    >>> net = Repeat(4, block)
    >>> net(Input("X", (None, 8))).type.shape
    (None, 8)
    """

    layers: tuple[Layer, ...]

    _varargs = "layers"

    def __init__(self, *args: Layer, layers: Sequence[Layer] | None = None, name: str | None = None) -> None:
        given = args if layers is None else (*args, *layers)
        layers_of(type(self), given)
        self.__attrs_init__(name=name, layers=given)  # type: ignore[attr-defined]

    def build(self, *inputs: Any) -> Any:
        built = one_after_the_other(self.layers, inputs)
        several = isinstance(built, tuple)
        outputs = list(built) if several else [built]
        data = [value for value in inputs if not isinstance(value, Constant)]
        recomputed = _recomputed(outputs, data)
        return tuple(recomputed) if several else recomputed[0]


def _recomputed(outputs: Sequence[Variable], data: Sequence[Variable]) -> list[Variable]:
    """Give outputs whose gradient computes them once more from the data."""
    inside = set(data)
    roots = [
        root
        for root in dict.fromkeys(graph_inputs(outputs, blockers=inside))
        if not isinstance(root, Constant) and root not in inside
    ]
    read = [*data, *roots]
    graph = flattened_graph(outputs, read)
    # The first computation moves the statistics; the second reads what that one read.
    for node in graph.toposort():
        if isinstance(node.op, Advance):
            graph.replace(node.outputs[0], node.inputs[0], reason="recompute", import_missing=True)
    stand_ins = [root.type() for root in read]
    inner = clone_replace(list(graph.outputs), dict(zip(read, stand_ins, strict=True)))
    return Recomputed(stand_ins, inner, len(data))(*outputs, *read, return_list=True)
