"""Nodes that no kernel knows: they run in Python, as PyTensor's own linker would run them."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

import numpy as np
from pytensor.graph.basic import Apply
from pytensor.scalar.basic import ScalarType
from pytensor.scan.op import Scan
from pytensor.tensor.type import TensorType

from ptml.backends.numba.plan.memory import Block, Fixed, Value

__all__ = ["PythonStep", "evaluate"]


class PythonStep:
    """A node's own Python, on values wherever they lie.

    Parameters
    ----------
    node : Apply
    values : sequence of Value
        Its inputs.

    Attributes
    ----------
    node : Apply
    thunk : callable
        What runs it, on one-element lists, as PyTensor's errors describe it.
    """

    def __init__(self, node: Apply, values: Sequence[Value]) -> None:
        self.node = node
        self._fetch = [value.fetcher() for value in values]
        self._inputs: list[list[Any]] = [[None] for _ in values]
        self._outputs: list[list[Any]] = [[None] for _ in node.outputs]
        op = node.op
        self._destroyed = {i for inputs in op.destroy_map.values() for i in inputs}
        self._scalars = {i for i, v in enumerate(node.inputs) if isinstance(v.type, ScalarType)}
        # A view of planned memory would change under whoever holds it.
        self._planned = any(isinstance(value.root, Block) for value in values)
        self._views = bool(op.view_map)
        self._thunk: Any = None
        # One list serves a variable that is an input twice.
        lists = dict(zip(node.inputs, self._inputs, strict=True))
        self._storage = [lists[v] for v in node.inputs]

    @property
    def thunk(self) -> Any:
        """Made when it is first asked for: most steps are there for errors that never come."""
        if self._thunk is None:
            node, op = self.node, self.node.op
            is_loop = isinstance(op, Scan)
            storage = dict(zip([*node.outputs, *node.inputs], [*self._outputs, *self._storage], strict=True))
            computed = {**{v: [False] for v in node.outputs}, **{v: [True] for v in node.inputs}}
            runner = _on_plan(op) if is_loop else op
            self._thunk = runner.make_thunk(node, storage, computed, [], impl=None if is_loop else "py")
            self._thunk.inputs, self._thunk.outputs = self._inputs, self._outputs
        return self._thunk

    def __call__(self, live: Sequence[Any]) -> list[Any]:
        """Run the node on a call's live memory, and give its outputs, in memory of their own."""
        values = [fetch(live) for fetch in self._fetch]
        for k, (storage, value) in enumerate(zip(self._storage, values, strict=True)):
            if k in self._destroyed:
                value = copy.copy(value)
            storage[0] = value[()] if k in self._scalars else value
        for storage in self._outputs:
            storage[0] = None
        self.thunk()
        outputs = []
        for variable, storage in zip(self.node.outputs, self._outputs, strict=True):
            value, storage[0] = storage[0], None
            if isinstance(variable.type, TensorType | ScalarType):
                value = np.asarray(value, variable.type.dtype)
                shared = self._views or self._planned
                if shared and any(_overlap(value, other) for other in values):
                    value = value.copy()
            outputs.append(value)
        for storage in self._storage:
            storage[0] = None
        return outputs


def evaluate(node: Apply, arrays: Sequence[Any]) -> list[np.ndarray]:
    """Compute a node of known inputs."""
    return PythonStep(node, [Value(array, Fixed(), known=True) for array in arrays])(())


def _overlap(a: Any, b: Any) -> bool:
    return isinstance(a, np.ndarray) and isinstance(b, np.ndarray) and np.may_share_memory(a, b)


def _on_plan(op: Scan) -> Scan:
    """Let a loop's iterations run by a plan of their own."""
    from ptml.backends.numba.plan.linker import PLAN

    if op.mode is not None or any(op.mitmots_preallocated):
        return op
    planned = copy.copy(op)
    planned.mode = PLAN
    planned._fn = None
    return planned
