"""Checks of what a layer is called on: at once where its type tells, in the running graph where it does not.

Three ops carry the checks that wait. `AxisCheck` and `SameSize` give an input back, and `RowCount` gives a
count that the layer then computes with, so that no rewrite can drop one while what it guards is computed.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import numpy as np
import pytensor.tensor as pt
from pytensor.gradient import disconnected_type
from pytensor.graph.basic import Apply, Variable
from pytensor.graph.op import Op
from pytensor.graph.replace import _vectorize_node
from pytensor.tensor.type import TensorType
from pytensor.tensor.variable import TensorVariable

from ptml.validate import described

__all__ = [
    "AxisCheck",
    "RowCount",
    "SameSize",
    "check_axis",
    "check_floating",
    "check_ndim",
    "check_same_size",
    "row_count",
]

WRONG_SIZE = "{who} takes {wants}; got {shape}: axis {axis} is {given}, where {size} is declared.{hint}"
CHANNELS_FIRST = " Axis {axis} has {size}: move it to the end, the layout is channels last."
DIFFERENT_SIZES = "{who} takes {wants}; got {shape} and {other}, which differ along axis {axis}."
TOO_FEW = "{who} takes at least {minimum} {wants}; got shape {shape}.{hint}"
NOT_FLOATING = (
    "{who} computes with floating-point numbers; got {given}. Write X.astype({floating!r}), or declare the "
    "input with that dtype."
)
TOO_WIDE = (
    "{who} has {dtype} parameters; got {given}, which would make everything after it {wide}. Write "
    "X.astype({dtype!r}), or build the network with floatX={wide!r}."
)
WRONG_NDIM = "{who} takes {wants}; got {ndim} axes: {shape}."


def _shown(shape: Sequence[Any]) -> str:
    """Write a shape as a tuple, whose items may be placeholders."""
    return f"({shape[0]},)" if len(shape) == 1 else f"({', '.join(map(str, shape))})"


def _template(text: str) -> str:
    """Escape what a later `str.format` would read as a placeholder."""
    return text.replace("{", "{{").replace("}", "}}")


def size_message(op: AxisCheck, ndim: int) -> str:
    """Give the message of a failed `AxisCheck`, with one placeholder for each of the shape's sizes."""
    shape = [f"{{{k}}}" for k in range(ndim)]
    return WRONG_SIZE.format(
        who=_template(op.layer),
        wants=_template(op.wants),
        shape=_shown(shape),
        axis=op.axis,
        given=shape[op.axis],
        size=op.size,
        hint="",
    )


def sizes_message(op: SameSize, ndim: int, other_ndim: int) -> str:
    """Give the message of a failed `SameSize`, with one placeholder for each size of the two shapes."""
    shape = [f"{{{k}}}" for k in range(ndim + other_ndim)]
    return DIFFERENT_SIZES.format(
        who=_template(op.layer),
        wants=_template(op.wants),
        shape=_shown(shape[:ndim]),
        other=_shown(shape[ndim:]),
        axis=op.axis,
    )


def count_message(op: RowCount, ndim: int) -> str:
    """Give the message of a failed `RowCount`, with one placeholder for each of the shape's sizes."""
    return TOO_FEW.format(
        who=_template(op.layer),
        minimum=op.minimum,
        wants=_template(op.wants),
        shape=_shown([f"{{{k}}}" for k in range(ndim)]),
        hint=_template(op.hint),
    )


def axis_checker(op: AxisCheck) -> Callable[[Any], Any]:
    """Make a function that checks an array of any library whose shape is known when it is called."""

    def check(x: Any) -> Any:
        if x.shape[op.axis] != op.size:
            raise ValueError(size_message(op, x.ndim).format(*x.shape))
        return x

    return check


def size_comparer(op: SameSize) -> Callable[[Any, Any], Any]:
    """Make a function that compares two arrays, as `axis_checker` checks one."""

    def compare(x: Any, other: Any) -> Any:
        if x.shape[op.axis] != other.shape[op.axis]:
            raise ValueError(sizes_message(op, x.ndim, other.ndim).format(*x.shape, *other.shape))
        return x

    return compare


def row_counter(op: RowCount) -> Callable[[Any], int]:
    """Make a function that counts along axes, as `axis_checker` checks one."""

    def count(x: Any) -> int:
        n = math.prod(x.shape[axis] for axis in op.axes)
        if n < op.minimum:
            raise ValueError(count_message(op, x.ndim).format(*x.shape))
        return n

    return count


class AxisCheck(Op):
    """Give a tensor back if an axis has the size that a layer declares, and raise otherwise.

    Parameters
    ----------
    layer : str
        What the error names.
    axis : int
        The axis, counted from the end: -1 is the last.
    size : int
        Its size.
    wants : str
        What the layer takes, such as ``"(..., 64 features)"``.
    """

    __props__ = ("layer", "axis", "size", "wants")
    view_map: ClassVar[dict[int, list[int]]] = {0: [0]}

    def __init__(self, layer: str, axis: int, size: int, wants: str) -> None:
        self.layer, self.axis, self.size, self.wants = layer, axis, size, wants

    def make_node(self, x: Any) -> Apply:
        x = pt.as_tensor(x)
        shape = list(x.type.shape)
        shape[self.axis] = self.size
        return Apply(self, [x], [TensorType(x.type.dtype, shape=tuple(shape))()])

    def perform(self, node: Apply, inputs: Sequence[Any], output_storage: Any) -> None:
        output_storage[0][0] = axis_checker(self)(inputs[0])

    def infer_shape(self, node: Apply, shapes: Any) -> list[Any]:
        return [shapes[0]]

    def pullback(self, inputs: Any, outputs: Any, cotangents: Any) -> list[Variable]:
        return [cotangents[0]]

    def pushforward(self, inputs: Any, outputs: Any, tangents: Any) -> list[Variable]:
        return [tangents[0]]

    def __str__(self) -> str:
        return f"AxisCheck{{{self.layer}, axis={self.axis}, size={self.size}}}"


class SameSize(Op):
    """Give a tensor back if an axis has the size that it has in another, and raise otherwise.

    Parameters
    ----------
    layer : str
        What the error names.
    axis : int
        The axis of both, counted from the end.
    wants : str
        What the layer takes.
    """

    __props__ = ("layer", "axis", "wants")
    view_map: ClassVar[dict[int, list[int]]] = {0: [0]}

    def __init__(self, layer: str, axis: int, wants: str) -> None:
        self.layer, self.axis, self.wants = layer, axis, wants

    def make_node(self, x: Any, other: Any) -> Apply:
        x, other = pt.as_tensor(x), pt.as_tensor(other)
        return Apply(self, [x, other], [x.type()])

    def perform(self, node: Apply, inputs: Sequence[Any], output_storage: Any) -> None:
        output_storage[0][0] = size_comparer(self)(*inputs)

    def infer_shape(self, node: Apply, shapes: Any) -> list[Any]:
        # The other's size, so that loops over both need not compare the two.
        size = shapes[1][len(shapes[1]) + self.axis]
        return [tuple(size if k == len(shapes[0]) + self.axis else s for k, s in enumerate(shapes[0]))]

    def connection_pattern(self, node: Apply) -> list[list[bool]]:
        return [[True], [False]]

    def pullback(self, inputs: Any, outputs: Any, cotangents: Any) -> list[Variable]:
        return [cotangents[0], disconnected_type()]

    def pushforward(self, inputs: Any, outputs: Any, tangents: Any) -> list[Variable]:
        return [tangents[0]]

    def __str__(self) -> str:
        return f"SameSize{{{self.layer}, axis={self.axis}}}"


class RowCount(Op):
    """Count the elements along some axes, and raise if they are too few for what a layer computes.

    Parameters
    ----------
    layer : str
        What the error names.
    axes : tuple of int
        The axes, counted from the end.
    minimum : int
        The fewest elements that will do.
    wants : str
        What they are, such as ``"values per channel in training"``.
    hint : str
        What to do instead.
    """

    __props__ = ("layer", "axes", "minimum", "wants", "hint")

    def __init__(self, layer: str, axes: tuple[int, ...], minimum: int, wants: str, hint: str = "") -> None:
        self.layer, self.axes, self.minimum, self.wants, self.hint = layer, axes, minimum, wants, hint

    def make_node(self, x: Any) -> Apply:
        return Apply(self, [pt.as_tensor(x)], [TensorType("int64", shape=())()])

    def perform(self, node: Apply, inputs: Sequence[Any], output_storage: Any) -> None:
        output_storage[0][0] = np.asarray(row_counter(self)(inputs[0]), dtype="int64")

    def infer_shape(self, node: Apply, shapes: Any) -> list[Any]:
        return [()]

    def connection_pattern(self, node: Apply) -> list[list[bool]]:
        return [[False]]

    def pullback(self, inputs: Any, outputs: Any, cotangents: Any) -> list[Variable]:
        return [disconnected_type()]

    def pushforward(self, inputs: Any, outputs: Any, tangents: Any) -> list[Variable]:
        return [disconnected_type()]

    def __str__(self) -> str:
        return f"RowCount{{{self.layer}, at least {self.minimum}}}"


@_vectorize_node.register(AxisCheck)
@_vectorize_node.register(RowCount)
@_vectorize_node.register(SameSize)
def _vectorize_check(op: AxisCheck | RowCount | SameSize, node: Apply, *batched: Variable) -> Apply:
    # Axes count from the end, so a batch in front leaves them where they are.
    return op.make_node(*batched)


def check_axis(layer: Any, X: TensorVariable, size: int, *, axis: int = -1, wants: str) -> TensorVariable:
    """Check that an axis of a layer's input has the size that the layer declares.

    Parameters
    ----------
    layer : Layer
        What errors name.
    X : tensor
        The input.
    size : int
        The size that the axis must have.
    axis : int
        The axis.
    wants : str
        What the layer takes, such as ``"(..., 64 features)"``.

    Returns
    -------
    tensor
        `X` itself where its static shape tells; one whose axis is checked in the running graph otherwise.

    Raises
    ------
    ValueError
        If the static size is another one.

    Examples
    --------
    >>> import pytensor.tensor as pt
    >>> from ptml.layers import Linear
    >>> X = pt.tensor("X", shape=(None, 63))
    >>> check_axis(Linear("fc", n_in=64, n_out=2), X, 64, wants="(..., 64 features)")
    Traceback (most recent call last):
        ...
    ValueError: fc (Linear) takes (..., 64 features); got (None, 63): axis -1 is 63, where 64 is declared.
    """
    shape = X.type.shape
    axis = axis if axis < 0 else axis - X.type.ndim
    given = shape[axis]
    if given is None:
        return AxisCheck(described(layer), axis, size, wants)(X)
    if given == size:
        return X
    hint = ""
    if axis == -1 and len(shape) > 2 and size in shape[1:-1]:
        hint = CHANNELS_FIRST.format(axis=1 + shape[1:-1].index(size), size=size)
    raise ValueError(
        WRONG_SIZE.format(
            who=described(layer),
            wants=wants,
            shape=_shown(shape),
            axis=axis,
            given=given,
            size=size,
            hint=hint,
        )
    )


def check_same_size(
    layer: Any, X: TensorVariable, other: TensorVariable, *, axis: int, wants: str
) -> TensorVariable:
    """Check that an axis has one size in two of a layer's inputs of as many axes.

    Parameters
    ----------
    layer : Layer
        What errors name.
    X, other : tensor
        The inputs.
    axis : int
        The axis.
    wants : str
        What the layer takes.

    Returns
    -------
    tensor
        `X` itself where the static shapes tell; one that is checked in the running graph otherwise.

    Raises
    ------
    ValueError
        If the static sizes differ.
    """
    axis = axis if axis < 0 else axis - X.type.ndim
    sizes = X.type.shape[axis], other.type.shape[axis]
    if None in sizes:
        return SameSize(described(layer), axis, wants)(X, other)
    if sizes[0] == sizes[1]:
        return X
    shape, beside = _shown(X.type.shape), _shown(other.type.shape)
    raise ValueError(
        DIFFERENT_SIZES.format(who=described(layer), wants=wants, shape=shape, other=beside, axis=axis)
    )


def check_ndim(
    layer: Any, X: TensorVariable, *, minimum: int, maximum: int | None = None, wants: str
) -> None:
    """Check that a layer's input has at least so many axes, and no more than a maximum, if one is given.

    Raises
    ------
    ValueError
        If it has fewer or more.
    """
    if X.type.ndim < minimum or (maximum is not None and X.type.ndim > maximum):
        raise ValueError(
            WRONG_NDIM.format(who=described(layer), wants=wants, ndim=X.type.ndim, shape=X.type.shape)
        )


def check_floating(layer: Any, X: TensorVariable, *, dtype: str | None = None) -> None:
    """Check that a layer's input holds floating-point numbers, no wider than the layer's parameters.

    Parameters
    ----------
    layer : Layer
        What errors name.
    X : tensor
        The input.
    dtype : str, optional
        The dtype of the parameters, if the layer has any.

    Raises
    ------
    TypeError
        If the input holds anything else, or if results would be wider than the parameters.
    """
    given = X.type.dtype
    if np.dtype(given).kind != "f":
        floating = dtype or "float32"
        raise TypeError(NOT_FLOATING.format(who=described(layer), given=X.type, floating=floating))
    if dtype is not None and (wide := np.promote_types(given, dtype)) != dtype:
        raise TypeError(TOO_WIDE.format(who=described(layer), dtype=dtype, given=X.type, wide=str(wide)))


def row_count(
    layer: Any, X: TensorVariable, axes: Sequence[int], *, minimum: int, wants: str, hint: str = ""
) -> TensorVariable:
    """Count the elements of a layer's input along axes, and see to it that they are enough.

    Too few are an error of the running graph also where the static shape tells, because another branch, such
    as that of prediction, may have use for them.

    Parameters
    ----------
    layer, X
        As for `check_axis`.
    axes : sequence of int
        The axes.
    minimum, wants, hint
        As for `RowCount`.

    Returns
    -------
    tensor, int64 scalar
    """
    shape = X.type.shape
    known = [shape[axis] for axis in axes]
    if None not in known and (n := math.prod(known)) >= minimum:
        return pt.constant(n, dtype="int64")
    counted = tuple(axis if axis < 0 else axis - X.type.ndim for axis in axes)
    return RowCount(described(layer), counted, minimum, wants, hint and f" {hint}")(X)
