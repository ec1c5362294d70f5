"""Layers that rearrange axes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import attrs
import pytensor.tensor as pt
from pytensor.tensor.variable import TensorVariable

from ptml.checks import check_axis, check_same_size
from ptml.layer import Layer
from ptml.validate import an_axis, axes_or_none, described

__all__ = ["Concatenate", "Flatten", "Squeeze", "joined"]

NO_SUCH_AXIS = "{who} has {argument}={axis}; got a tensor of {ndim} axes, {shape}."
NOTHING_TO_CONCATENATE = "{who} takes one tensor or more; got none."
DIFFERENT_NDIM = "{who} takes tensors of as many axes each; got {shapes}."


def _positive_axis(layer: Layer, argument: str, axis: int, X: TensorVariable) -> int:
    """Count an axis of a tensor from the front."""
    ndim = X.type.ndim
    if not -ndim <= axis < ndim:
        raise ValueError(
            NO_SUCH_AXIS.format(
                who=described(layer), argument=argument, axis=axis, ndim=ndim, shape=X.type.shape
            )
        )
    return axis % ndim


class Flatten(Layer):
    """Take the axes from one on together: ``(batch, height, width, channels)`` to ``(batch, features)``.

    Parameters
    ----------
    name : str, optional
    start_axis : int
        The first of them; 1, which leaves the batch, unless given.

    Raises
    ------
    ValueError
        When called, if the input has no such axis.

    Examples
    --------
    >>> from ptml.layers import Flatten, Input
    >>> Flatten()(Input("X", (None, 8, 8, 3))).type.shape
    (None, 192)
    """

    start_axis: int = attrs.field(default=1, validator=an_axis)

    n_inputs = 1

    def build(self, X: TensorVariable) -> TensorVariable:
        start = _positive_axis(self, "start_axis", self.start_axis, X)
        # The size written out, rather than -1: an empty batch leaves -1 undetermined.
        sizes = [X.shape[axis] if n is None else n for axis, n in enumerate(X.type.shape)]
        features: Any = 1
        for size in sizes[start:]:
            features = features * size
        return X.reshape((*sizes[:start], features))


class Squeeze(Layer):
    """Drop axes of size 1.

    Parameters
    ----------
    name : str, optional
    axis : int or tuple of int, optional
        The axes to drop; all that are known to have size 1 when the layer is called, unless given.

    Raises
    ------
    ValueError
        When called, or by the running graph where the shape is not known before, if an axis is not there
        or has another size.

    Examples
    --------
    >>> from ptml.layers import Input, Squeeze
    >>> Squeeze(axis=-1)(Input("X", (None, 1))).type.shape
    (None,)
    """

    axis: int | tuple[int, ...] | None = attrs.field(default=None, validator=axes_or_none)

    n_inputs = 1

    def build(self, X: TensorVariable) -> TensorVariable:
        if self.axis is None:
            return pt.squeeze(X)
        given = self.axis if isinstance(self.axis, tuple) else (self.axis,)
        axes = sorted({_positive_axis(self, "axis", axis, X) for axis in given})
        for axis in axes:
            X = check_axis(self, X, 1, axis=axis, wants=f"a tensor whose axis {axis} has size 1")
        return pt.squeeze(X, axis=tuple(axes))


def joined(layer: Layer, inputs: Sequence[TensorVariable], axis: int) -> TensorVariable:
    """Join tensors that differ along an axis alone, which is checked in the name of a layer."""
    who = described(layer)
    if not inputs:
        raise ValueError(NOTHING_TO_CONCATENATE.format(who=who))
    shapes = [X.type.shape for X in inputs]
    if len({len(shape) for shape in shapes}) > 1:
        raise ValueError(DIFFERENT_NDIM.format(who=who, shapes=", ".join(map(str, shapes))))
    axis = _positive_axis(layer, "axis", axis, inputs[0])
    wants = f"tensors that differ along axis {axis} alone"
    first, *rest = inputs
    for other in range(first.type.ndim):
        if other != axis:
            rest = [check_same_size(layer, X, first, axis=other, wants=wants) for X in rest]
    return pt.concatenate([first, *rest], axis=axis)


class Concatenate(Layer):
    """Join tensors along an axis; called on several.

    Parameters
    ----------
    name : str, optional
    axis : int
        The axis, the last unless given.

    Raises
    ------
    ValueError
        When called, if the tensors have unequal numbers of axes or lack the axis; when called, or by the
        running graph where the shapes are not known before, if they differ along another.

    Examples
    --------
    >>> from ptml.layers import Concatenate, Input
    >>> Concatenate()(Input("a", (None, 3)), Input("b", (None, 2))).type.shape
    (None, 5)
    """

    axis: int = attrs.field(default=-1, validator=an_axis)

    def build(self, *inputs: TensorVariable) -> TensorVariable:
        return joined(self, inputs, self.axis)
