"""Recomputation: what is needed to compute a part of a graph once more for its gradient.

`Recomputed` gives back what a part computed. No gradient flows into that: its gradient computes the part once
more, of the same inputs, and is the gradient of the second computation. `After` keeps the two apart. It gives
the inputs back, and takes the gradient that has arrived besides, so that no rewrite can see that the second
computation is the first, and nothing can start it before the gradient is there.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytensor.tensor as pt
from pytensor.gradient import DisconnectedType, disconnected_type, grad
from pytensor.graph.basic import Apply, Variable, clone_get_equiv
from pytensor.graph.op import Op, io_connection_pattern
from pytensor.graph.replace import _vectorize_node

from ptml.application import Application
from ptml_state import Role, SlotVariable

__all__ = ["After", "Recomputed"]


class After(Op):
    """Give the first inputs back, as variables that are there only after the other inputs are.

    Parameters
    ----------
    n : int
        The number of inputs that are given back.
    """

    __props__ = ("n",)

    def __init__(self, n: int) -> None:
        self.n = n
        self.view_map = {k: [k] for k in range(n)}

    def make_node(self, *inputs: Any) -> Apply:
        variables = [pt.as_tensor(value) for value in inputs]
        return Apply(self, variables, [variable.type() for variable in variables[: self.n]])

    def perform(self, node: Apply, inputs: Sequence[Any], output_storage: Any) -> None:
        for storage, value in zip(output_storage, inputs, strict=False):
            storage[0] = value

    def infer_shape(self, node: Apply, shapes: Any) -> list[Any]:
        return list(shapes[: self.n])

    def connection_pattern(self, node: Apply) -> list[list[bool]]:
        return [[j == k for k in range(self.n)] for j in range(len(node.inputs))]

    def pullback(self, inputs: Any, outputs: Any, cotangents: Any) -> list[Any]:
        return [*cotangents, *(disconnected_type() for _ in inputs[self.n :])]

    def pushforward(self, inputs: Any, outputs: Any, tangents: Any) -> list[Any]:
        return list(tangents[: self.n])


class Recomputed(Op):
    """Give the first inputs back, with the gradient of a graph that computes them once more.

    The inputs are what the graph gave, then what it was computed of.

    Parameters
    ----------
    inputs, outputs : sequence of Variable
        The graph, on roots of its own.
    n_data : int
        The number of its first inputs that are held apart. The others, parameters and generators, are the
        same in both computations.
    """

    def __init__(self, inputs: Sequence[Variable], outputs: Sequence[Variable], n_data: int) -> None:
        self.inner_inputs, self.inner_outputs, self.n_data = tuple(inputs), tuple(outputs), n_data
        self.view_map = {k: [k] for k in range(len(outputs))}

    @property
    def n(self) -> int:
        """The number of outputs."""
        return len(self.inner_outputs)

    def make_node(self, *inputs: Any) -> Apply:
        variables = [value if isinstance(value, Variable) else pt.as_tensor(value) for value in inputs]
        return Apply(self, variables, [variable.type() for variable in variables[: self.n]])

    def perform(self, node: Apply, inputs: Sequence[Any], output_storage: Any) -> None:
        for storage, value in zip(output_storage, inputs, strict=False):
            storage[0] = value

    def infer_shape(self, node: Apply, shapes: Any) -> list[Any]:
        return list(shapes[: self.n])

    def connection_pattern(self, node: Apply) -> list[list[bool]]:
        pattern = io_connection_pattern(self.inner_inputs, self.inner_outputs)
        moves = [_has_gradient(variable) for variable in node.inputs[self.n :]]
        own = [row if moved else [False] * self.n for row, moved in zip(pattern, moves, strict=True)]
        return [*([False] * self.n for _ in range(self.n)), *own]

    def pullback(self, inputs: Any, outputs: Any, cotangents: Any) -> list[Any]:
        given = [g for g in cotangents if not isinstance(g.type, DisconnectedType)]
        read = list(inputs[self.n :])
        data = read[: self.n_data]
        held = After(len(data))(*data, *given, return_list=True) if data else []
        # The gradient is built on stand-ins, so that putting the true ones in copies nothing else.
        arrived = {g: g.type() for g in given}
        known = {
            output: arrived[g]
            for output, g in zip(self.inner_outputs, cotangents, strict=True)
            if g in arrived
        }
        moving = [k for k, variable in enumerate(read) if _has_gradient(variable)]
        found = grad(
            None,
            [self.inner_inputs[k] for k in moving],
            known_grads=known,
            disconnected_inputs="ignore",
            return_disconnected="disconnected",
            null_gradients="return",
        )
        stands_for: dict[Any, Any] = dict(zip(self.inner_inputs, [*held, *read[self.n_data :]], strict=True))
        stands_for.update({stand_in: g for g, stand_in in arrived.items()})
        # `clone_replace` would copy all that the true ones are computed of as well.
        equiv = clone_get_equiv([], found, copy_inputs=False, copy_orphans=False, memo=stands_for)
        here = {k: equiv.get(g, g) for k, g in zip(moving, found, strict=True)}
        gradients = [here.get(k) for k in range(len(read))]
        none = [disconnected_type() for _ in range(self.n)]
        return [*none, *(disconnected_type() if g is None else g for g in gradients)]

    def pushforward(self, inputs: Any, outputs: Any, tangents: Any) -> list[Any]:
        return list(tangents[: self.n])


def _has_gradient(variable: Variable) -> bool:
    """Say whether a gradient flows into what a graph is computed of: not into integers and statistics."""
    if isinstance(variable, SlotVariable | Application) and variable.slot.role is Role.STATISTIC:
        return False
    return getattr(variable.type, "dtype", "").startswith(("float", "complex"))


@_vectorize_node.register(After)
def _vectorize_after(op: After, node: Apply, *batched: Variable) -> Apply:
    return op.make_node(*batched)


@_vectorize_node.register(Recomputed)
def _vectorize_recomputed(op: Recomputed, node: Apply, *batched: Variable) -> list[Variable]:
    # A stack of graphs is computed in one piece, with the gradient of what is computed there.
    return list(batched[: op.n])
