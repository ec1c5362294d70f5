"""The check that an axis is long enough for a window, or for what is mirrored."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import pytensor.tensor as pt
from pytensor.graph.basic import Apply, Variable
from pytensor.graph.op import Op
from pytensor.graph.replace import _vectorize_node
from pytensor.tensor.variable import TensorVariable

from ptml.validate import described

__all__ = ["LengthCheck", "check_length", "length_checker", "length_message"]

TOO_SHORT = "{who} needs at least {minimum} {of} along axis {axis}; got {given}, in shape {shape}.{hint}"


def _filled(op: LengthCheck, shape: Sequence[Any]) -> str:
    shown = f"({shape[0]},)" if len(shape) == 1 else f"({', '.join(map(str, shape))})"
    return TOO_SHORT.format(
        who=op.layer,
        minimum=op.minimum,
        of=op.of,
        axis=op.axis,
        given=shape[op.axis],
        shape=shown,
        hint=op.hint and f" {op.hint}",
    )


def length_message(op: LengthCheck, ndim: int) -> str:
    """Give the message of a failed check, with one placeholder for each of the shape's sizes."""
    places = [f"\0{k}\1" for k in range(ndim)]
    text = _filled(op, places).replace("{", "{{").replace("}", "}}")
    return text.replace("\0", "{").replace("\1", "}")


def length_checker(op: LengthCheck) -> Callable[[Any], Any]:
    """Make a function that checks an array of any library whose shape is known when it is called."""

    def check(x: Any) -> Any:
        if x.shape[op.axis] < op.minimum:
            raise ValueError(_filled(op, tuple(x.shape)))
        return x

    return check


class LengthCheck(Op):
    """Give a tensor back if an axis has at least some length, and raise otherwise.

    Parameters
    ----------
    layer : str
        What the error names.
    axis : int
        The axis, counted from the end: -1 is the last.
    minimum : int
        The shortest that will do.
    of : str
        What there must be so many of, and why, such as ``"positions (its window spans 3)"``.
    hint : str
        What to do instead.
    """

    __props__ = ("layer", "axis", "minimum", "of", "hint")
    view_map: ClassVar[dict[int, list[int]]] = {0: [0]}

    def __init__(self, layer: str, axis: int, minimum: int, of: str, hint: str = "") -> None:
        self.layer, self.axis, self.minimum, self.of, self.hint = layer, axis, minimum, of, hint

    def make_node(self, x: Any) -> Apply:
        x = pt.as_tensor(x)
        return Apply(self, [x], [x.type()])

    def perform(self, node: Apply, inputs: Sequence[Any], output_storage: Any) -> None:
        output_storage[0][0] = length_checker(self)(inputs[0])

    def infer_shape(self, node: Apply, shapes: Any) -> list[Any]:
        return [shapes[0]]

    def pullback(self, inputs: Any, outputs: Any, cotangents: Any) -> list[Variable]:
        return [cotangents[0]]

    def pushforward(self, inputs: Any, outputs: Any, tangents: Any) -> list[Variable]:
        return [tangents[0]]

    def __str__(self) -> str:
        return f"LengthCheck{{{self.layer}, axis={self.axis}, at least {self.minimum}}}"


@_vectorize_node.register(LengthCheck)
def _vectorize_length(op: LengthCheck, node: Apply, x: Variable) -> Apply:
    # The axis counts from the end, so a batch in front leaves it where it is.
    return op.make_node(x)


def check_length(
    layer: Any, X: TensorVariable, minimum: int, *, axis: int, of: str, hint: str = ""
) -> TensorVariable:
    """Check that an axis of a layer's input has at least some length.

    Parameters
    ----------
    layer : Layer or str
        What errors name.
    X : tensor
        The input.
    minimum : int
        The shortest that will do.
    axis : int
        The axis.
    of : str
        What there must be so many of, and why, such as ``"positions (its window spans 3)"``.
    hint : str
        What to do instead, as a sentence.

    Returns
    -------
    tensor
        `X` itself where its static shape tells; one whose axis is checked in the running graph otherwise.

    Raises
    ------
    ValueError
        If the static length is shorter.

    Examples
    --------
    >>> import pytensor.tensor as pt
    >>> from ptml.lengths import check_length
    >>> X = pt.tensor("X", shape=(None, 1, 2))
    >>> check_length("pool", X, 3, axis=1, of="positions (it spans 3)")
    Traceback (most recent call last):
        ...
    ValueError: pool needs at least 3 positions (it spans 3) along axis -2; got 1, in shape (None, 1, 2).
    """
    shape = X.type.shape
    axis = axis if axis < 0 else axis - X.type.ndim
    who = layer if isinstance(layer, str) else described(layer)
    op = LengthCheck(who, axis, minimum, of, hint)
    if minimum <= 0:
        return X
    if shape[axis] is None:
        return op(X)
    if shape[axis] < minimum:
        raise ValueError(_filled(op, shape))
    return X
