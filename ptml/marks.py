"""Marks in a graph that the compile step acts on: two identity ops.

`advance` says that a slot moves when something is computed; `in_training` says what else to compute in
prediction. Both give their first input back unchanged, so a marked graph means the same to PyTensor, and
differentiates, prints and composes like any other.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextvars import ContextVar
from typing import Any, ClassVar

import pytensor.tensor as pt
from pytensor.gradient import DisconnectedType, disconnected_type
from pytensor.graph.basic import Apply, Variable
from pytensor.graph.op import Op
from pytensor.graph.replace import _vectorize_node, clone_replace
from pytensor.tensor.variable import TensorVariable

from ptml.application import Reading
from ptml_state import Role, SlotVariable

__all__ = ["Advance", "InTraining", "advance", "in_training"]

NOT_A_STATISTIC = (
    "advance takes {{statistic: new value}}; {key} is not the handle of a statistic. Declare it under @slot "
    "with statistic(shape, initializer). Parameters move by updates, generators and clocks by themselves."
)
WRONG_TYPE = "The new value of {address} is {given}, and {wanted} is declared. Cast or reshape it."
BATCHED = (
    "vectorize_graph makes the new value of a statistic {given} where {wanted} is declared: it has one "
    "value, however many graphs are stacked. Build the network on inputs that have the batch axis already."
)


class _FirstInput(Op):
    """Give the first input back; the other inputs are for the compile step to read."""

    view_map: ClassVar[dict[int, list[int]]] = {0: [0]}
    __props__: tuple[str, ...] = ()

    def perform(self, node: Apply, inputs: list[Any], outputs: list[list[Any]]) -> None:
        outputs[0][0] = inputs[0]

    def infer_shape(self, node: Apply, shapes: list[Any]) -> list[Any]:
        return [shapes[0]]

    def connection_pattern(self, node: Apply) -> list[list[bool]]:
        return [[position == 0] for position in range(len(node.inputs))]

    def pullback(self, inputs: list[Any], outputs: list[Any], cotangents: list[Any]) -> list[Any]:
        return [cotangents[0], *(disconnected_type() for _ in inputs[1:])]


class InTraining(_FirstInput):
    """Compute the first input in training and the second, which is of the same type, in prediction.

    So does its gradient: a prediction's is that of the second input alone.
    """

    def make_node(self, training: Variable, prediction: Variable) -> Apply:
        return Apply(self, [training, training.type.filter_variable(prediction)], [training.type()])

    def connection_pattern(self, node: Apply) -> list[list[bool]]:
        return [[True], [True]]

    def pullback(self, inputs: list[Any], outputs: list[Any], cotangents: list[Any]) -> list[Any]:
        [cotangent] = cotangents
        if isinstance(cotangent.type, DisconnectedType):
            return [disconnected_type(), disconnected_type()]
        none = pt.zeros_like(cotangent)
        return [self(cotangent, none), self(none, cotangent)]


class Advance(_FirstInput):
    """Compute the first input, and move slots: the others are new values, then what each replaces."""

    def make_node(self, value: Variable, *moves: Variable) -> Apply:
        return Apply(self, [value, *moves], [value.type()])

    @staticmethod
    def moves(node: Apply) -> list[tuple[Variable, Variable]]:
        """Give (what was read, new value) for each slot that the node moves."""
        half = (len(node.inputs) - 1) // 2
        return list(zip(node.inputs[1 + half :], node.inputs[1 : 1 + half], strict=True))


@_vectorize_node.register(_FirstInput)
def _vectorize_first_input(op: _FirstInput, node: Apply, value: Variable, *rest: Variable) -> Any:
    if isinstance(op, InTraining):
        return (
            op.make_node(*pt.broadcast_arrays(value, rest[0]))
            if rest[0].ndim != value.ndim
            else op.make_node(value, *rest)
        )
    for old, new in zip(node.inputs[1:], rest, strict=True):
        if new.type.ndim != old.type.ndim:
            raise ValueError(BATCHED.format(given=new.type, wanted=old.type))
    return op.make_node(value, *rest)


def in_training(training: Any, prediction: Any) -> TensorVariable:
    """Compute one thing in training and another in prediction.

    Parameters
    ----------
    training, prediction : tensor-like
        Two values of one type. The gradient is of the one that is computed.

    Returns
    -------
    tensor
        `training`; a program that :func:`ptml.compile_predict` makes computes `prediction` instead.

    Examples
    --------
    >>> import numpy as np
    >>> import pytensor.tensor as pt
    >>> import ptml
    >>> x = pt.vector("x")
    >>> y = ptml.in_training(2 * x, x)
    >>> ptml.function([x], y)(np.array([1.0, 2.0]))
    array([2., 4.])
    >>> ptml.compile_predict(y)(np.array([1.0, 2.0]))
    array([1., 2.])
    """
    training = pt.as_tensor(training)
    return InTraining()(training, pt.as_tensor(prediction).astype(training.type.dtype))


#: The slots that the layers now being called have moved, innermost call last.
advanced_in_call: ContextVar[list[dict[SlotVariable, None]] | None] = ContextVar(
    "advanced_in_call", default=None
)


def advance(value: Any, moves: Mapping[SlotVariable, Any]) -> TensorVariable:
    """Give a value back, and say that statistics move whenever it is computed in training.

    The statistics move once in every call of a program whose loss, outputs or updates depend on the value.
    Where a layer is applied several times in a graph, the second application reads what the first wrote.

    Parameters
    ----------
    value : tensor-like
        What is given back, unchanged.
    moves : mapping
        From a statistic's handle to its new value, of the statistic's dtype and shape. The handle is
        read in both `value` and the new values as this application finds it.

    Raises
    ------
    TypeError
        If a key is no statistic's handle, or a new value has another type than its statistic.

    Examples
    --------
    >>> import pytensor.tensor as pt
    >>> import ptml
    >>> from ptml.initializers import Zeros
    >>> class Count(ptml.Layer):
    ...     @ptml.slot
    ...     def seen(self):
    ...         return ptml.statistic((), Zeros(), dtype="int64")
    ...
    ...     def build(self, X):
    ...         return ptml.advance(X, {self.seen: self.seen + X.shape[0]})
    >>> x = pt.vector("x")
    >>> program = ptml.function([x], Count("count")(x), seed=0)
    >>> _ = program([1.0, 2.0, 3.0]), program([4.0])
    >>> int(program.state["count/seen"])
    4
    """
    value = pt.as_tensor(value)
    handles = list(moves)
    new_values = []
    for handle in handles:
        if not isinstance(handle, SlotVariable) or handle.slot.role not in (Role.STATISTIC, Role.CACHE):
            raise TypeError(NOT_A_STATISTIC.format(key=handle))
        new = pt.as_tensor(moves[handle])
        same = new.type.dtype == handle.type.dtype and new.type.ndim == handle.type.ndim
        sizes = zip(new.type.shape, handle.type.shape, strict=False)
        if not same or any(given not in (None, wanted) for given, wanted in sizes):
            raise TypeError(
                WRONG_TYPE.format(address=handle.slot.address, given=new.type, wanted=handle.type)
            )
        new_values.append(pt.specify_shape(new, handle.type.shape))
    frames = advanced_in_call.get()
    marked = Advance()(value, *new_values, *handles)
    if frames is not None:  # the layer's call gives the application its own readings
        frames[-1].update(dict.fromkeys(handles))
        return marked
    return clone_replace([marked], {handle: Reading(handle.slot) for handle in handles})[0]
