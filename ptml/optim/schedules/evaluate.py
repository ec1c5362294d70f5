"""The value of an expression, worked out node by node in NumPy: nothing is compiled."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytensor.tensor as pt
from pytensor.compile.sharedvalue import SharedVariable
from pytensor.graph.basic import Constant, Variable
from pytensor.graph.replace import clone_replace
from pytensor.graph.traversal import graph_inputs, toposort
from pytensor.tensor.type import TensorType
from pytensor.tensor.variable import TensorVariable

from ptml.initializers import Constant as Fill
from ptml_state import SlotVariable

__all__ = ["evaluate"]

NEEDS_VALUES = "{what} depends on {missing}, whose values it needs here: give inputs={{{example}: value}}."
NOT_AN_INPUT = "inputs maps variables to values; got the key {key!r}."


def _known(root: Variable) -> Any:
    """Give the value that a root has by itself, or None."""
    if isinstance(root, Constant):
        return root.data
    if isinstance(root, SharedVariable):
        return root.get_value()
    if isinstance(root, SlotVariable) and isinstance(root.slot.initializer, Fill):
        slot = root.slot
        return slot.initializer(np.random.default_rng(0), slot.shape, slot.dtype)
    return None


def evaluate(expression: TensorVariable, inputs: Mapping[Any, Any], what: str) -> np.ndarray:
    """Work out an expression.

    Parameters
    ----------
    expression : tensor
    inputs : mapping
        Values of the variables that it depends on. A piece of state that starts from a constant has that
        value unless it is given here.
    what : str
        What the expression is, for the error's text.

    Raises
    ------
    ValueError
        If the value of a variable is missing.
    TypeError
        If a key of `inputs` is no variable.

    Examples
    --------
    >>> import pytensor.tensor as pt
    >>> n = pt.lscalar("n")
    >>> evaluate(10 * n + 1, {n: 4}, "a horizon")
    array(41)
    """
    for key in inputs:
        if not isinstance(key, Variable):
            raise TypeError(NOT_AN_INPUT.format(key=key))
    constants = {key: pt.constant(np.asarray(value, key.type.dtype)) for key, value in inputs.items()}
    [settled] = clone_replace([expression], constants)
    found = {root: _known(root) for root in graph_inputs([settled])}
    if missing := [str(root) for root, value in found.items() if value is None]:
        raise ValueError(NEEDS_VALUES.format(what=what, missing=", ".join(missing), example=missing[0]))
    for node in toposort([settled]):
        node.op.prepare_node(node, None, None, "py")
        results: list[list[Any]] = [[None] for _ in node.outputs]
        node.op.perform(node, [found[variable] for variable in node.inputs], results)
        for variable, [value] in zip(node.outputs, results, strict=True):
            found[variable] = np.asarray(value) if isinstance(variable.type, TensorType) else value
    return np.asarray(found[settled])
