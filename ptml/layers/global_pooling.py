"""Layers that pool to sizes that do not depend on the input's."""

from __future__ import annotations

from typing import Any

import attrs
from pytensor.tensor.variable import TensorVariable

from ptml.layers.spatial import Spatial, check_nonempty
from ptml.ops.pooling import AveragePool, Even, MaxPool, Sliding
from ptml.ops.windows import all_of, per_axis
from ptml.validate import flag

__all__ = [
    "AdaptiveAvgPool1D",
    "AdaptiveAvgPool2D",
    "AdaptiveAvgPool3D",
    "AdaptiveMaxPool1D",
    "AdaptiveMaxPool2D",
    "AdaptiveMaxPool3D",
    "GlobalAvgPool1D",
    "GlobalAvgPool2D",
    "GlobalAvgPool3D",
    "GlobalMaxPool1D",
    "GlobalMaxPool2D",
    "GlobalMaxPool3D",
]

NOTHING = "of none there is nothing to take"


def _even(count: int, length: int | None) -> Sliding | Even:
    """Give so many windows of an axis, as sliding ones where they do not overlap and leave nothing out."""
    if length is None or length % count:
        return Even(count)
    return Sliding(length // count, length // count)


class _Adaptive(Spatial):
    """What pooling to a given size has in common."""

    output_size: Any = attrs.field(
        converter=attrs.Converter(per_axis, takes_self=True),
        validator=all_of(1, "a positive integer"),
    )

    def windows(self, X: TensorVariable) -> tuple[TensorVariable, Any]:
        """Check what the layer is called on, and give it with its windows."""
        X = check_nonempty(self, self.checked(X), NOTHING)
        return X, tuple(map(_even, self.output_size, X.type.shape[1:-1]))


class _AdaptiveMaxPool(_Adaptive):
    def build(self, X: TensorVariable) -> TensorVariable:
        X, windows = self.windows(X)
        return MaxPool(windows)(X)[0]


class _AdaptiveAvgPool(_Adaptive):
    def build(self, X: TensorVariable) -> TensorVariable:
        X, windows = self.windows(X)
        return AveragePool(windows)(X)


class _Global(Spatial):
    """What pooling over all positions has in common."""

    keepdims: bool = attrs.field(default=False, validator=flag)

    @property
    def spatial(self) -> tuple[int, ...]:
        return tuple(range(1, self.n_spatial + 1))


class _GlobalMaxPool(_Global):
    def build(self, X: TensorVariable) -> TensorVariable:
        X = check_nonempty(self, self.checked(X), NOTHING)
        largest = MaxPool(tuple(_even(1, n) for n in X.type.shape[1:-1]))(X)[0]
        return largest if self.keepdims else largest.squeeze(self.spatial)


class _GlobalAvgPool(_Global):
    def build(self, X: TensorVariable) -> TensorVariable:
        X = check_nonempty(self, self.checked(X), NOTHING)
        return X.mean(axis=self.spatial, keepdims=self.keepdims).astype(X.type.dtype)


class GlobalAvgPool1D(_GlobalAvgPool):
    """Average each channel of sequences, to ``(batch, channels)``.

    Parameters
    ----------
    name : str, optional
    keepdims : bool
        Whether the axes stay, with one position each; False unless given.

    Raises
    ------
    ValueError
        When called, or by the running graph where the shape is not known before, if there is no position.
    TypeError
        When called, if the input holds integers.

    Examples
    --------
    >>> from ptml.layers import GlobalAvgPool1D, Input
    >>> GlobalAvgPool1D()(Input("X", (None, 128, 16))).type.shape
    (None, 16)
    """

    n_spatial = 1


class GlobalAvgPool2D(_GlobalAvgPool):
    """Average each channel of images, to ``(batch, channels)``.

    Parameters
    ----------
    name : str, optional
    keepdims : bool
        Whether the axes stay, with one position each; False unless given.

    Raises
    ------
    ValueError
        When called, or by the running graph where the shape is not known before, if there is no position.
    TypeError
        When called, if the input holds integers.

    Examples
    --------
    >>> from ptml.layers import GlobalAvgPool2D, Input
    >>> GlobalAvgPool2D()(Input("X", (None, 28, 28, 16))).type.shape
    (None, 16)
    """

    n_spatial = 2


class GlobalAvgPool3D(_GlobalAvgPool):
    """Average each channel of volumes, to ``(batch, channels)``.

    Parameters
    ----------
    name : str, optional
    keepdims : bool
        Whether the axes stay, with one position each; False unless given.

    Raises
    ------
    ValueError
        When called, or by the running graph where the shape is not known before, if there is no position.
    TypeError
        When called, if the input holds integers.

    Examples
    --------
    >>> from ptml.layers import GlobalAvgPool3D, Input
    >>> GlobalAvgPool3D()(Input("X", (None, 8, 16, 16, 4))).type.shape
    (None, 4)
    """

    n_spatial = 3


class GlobalMaxPool1D(_GlobalMaxPool):
    """Take the largest value of each channel of sequences, to ``(batch, channels)``.

    Of equal values the first one gets the whole gradient. A channel that has a NaN gives NaN.

    Parameters
    ----------
    name : str, optional
    keepdims : bool
        Whether the axes stay, with one position each; False unless given.

    Raises
    ------
    ValueError
        When called, or by the running graph where the shape is not known before, if there is no position.
    TypeError
        When called, if the input holds integers.

    Examples
    --------
    >>> from ptml.layers import GlobalMaxPool1D, Input
    >>> GlobalMaxPool1D()(Input("X", (None, 128, 16))).type.shape
    (None, 16)
    """

    n_spatial = 1


class GlobalMaxPool2D(_GlobalMaxPool):
    """Take the largest value of each channel of images, to ``(batch, channels)``.

    Parameters
    ----------
    name : str, optional
    keepdims : bool
        Whether the axes stay, with one position each; False unless given.

    Raises
    ------
    ValueError
        When called, or by the running graph where the shape is not known before, if there is no position.
    TypeError
        When called, if the input holds integers.

    Examples
    --------
    >>> from ptml.layers import GlobalMaxPool2D, Input
    >>> GlobalMaxPool2D()(Input("X", (None, 28, 28, 16))).type.shape
    (None, 16)
    """

    n_spatial = 2


class GlobalMaxPool3D(_GlobalMaxPool):
    """Take the largest value of each channel of volumes, to ``(batch, channels)``.

    Parameters
    ----------
    name : str, optional
    keepdims : bool
        Whether the axes stay, with one position each; False unless given.

    Raises
    ------
    ValueError
        When called, or by the running graph where the shape is not known before, if there is no position.
    TypeError
        When called, if the input holds integers.

    Examples
    --------
    >>> from ptml.layers import GlobalMaxPool3D, Input
    >>> GlobalMaxPool3D()(Input("X", (None, 8, 16, 16, 4))).type.shape
    (None, 4)
    """

    n_spatial = 3


class AdaptiveAvgPool1D(_AdaptiveAvgPool):
    """Average each of some windows, for X of shape ``(batch, time, channels)``.

    Window i of n takes the positions from ``floor(i time / n)`` up to ``ceil((i + 1) time / n)``. Where time
    is no multiple of n, they overlap.

    Parameters
    ----------
    name : str, optional
    output_size : int
        How many windows there are.

    Raises
    ------
    ValueError
        When called, or by the running graph where the shape is not known before, if there is no position.
    TypeError
        When called, if the input holds integers.

    Examples
    --------
    >>> from ptml.layers import AdaptiveAvgPool1D, Input
    >>> AdaptiveAvgPool1D(output_size=7)(Input("X", (None, None, 16))).type.shape
    (None, 7, 16)
    """

    n_spatial = 1


class AdaptiveAvgPool2D(_AdaptiveAvgPool):
    """Average each of some windows, for X of shape ``(batch, height, width, channels)``.

    Along each axis as in :class:`AdaptiveAvgPool1D`.

    Parameters
    ----------
    name : str, optional
    output_size : int or tuple of int
        How many windows there are along all axes, or along each.

    Raises
    ------
    ValueError
        When called, or by the running graph where the shape is not known before, if there is no position.
    TypeError
        When called, if the input holds integers.

    Examples
    --------
    >>> from ptml.layers import AdaptiveAvgPool2D, Input
    >>> AdaptiveAvgPool2D(output_size=7)(Input("X", (None, None, None, 16))).type.shape
    (None, 7, 7, 16)
    """

    n_spatial = 2


class AdaptiveAvgPool3D(_AdaptiveAvgPool):
    """Average each of some windows, for X of shape ``(batch, depth, height, width, channels)``.

    Along each axis as in :class:`AdaptiveAvgPool1D`.

    Parameters
    ----------
    name : str, optional
    output_size : int or tuple of int
        How many windows there are along all axes, or along each.

    Raises
    ------
    ValueError
        When called, or by the running graph where the shape is not known before, if there is no position.
    TypeError
        When called, if the input holds integers.

    Examples
    --------
    >>> from ptml.layers import AdaptiveAvgPool3D, Input
    >>> AdaptiveAvgPool3D(output_size=(2, 7, 7))(Input("X", (None, 8, 16, 16, 4))).type.shape
    (None, 2, 7, 7, 4)
    """

    n_spatial = 3


class AdaptiveMaxPool1D(_AdaptiveMaxPool):
    """Take the largest value of each of some windows, for X of shape ``(batch, time, channels)``.

    Window i of n takes the positions from ``floor(i time / n)`` up to ``ceil((i + 1) time / n)``. Where time
    is no multiple of n, they overlap.

    Parameters
    ----------
    name : str, optional
    output_size : int
        How many windows there are.

    Raises
    ------
    ValueError
        When called, or by the running graph where the shape is not known before, if there is no position.
    TypeError
        When called, if the input holds integers.

    Examples
    --------
    >>> from ptml.layers import AdaptiveMaxPool1D, Input
    >>> AdaptiveMaxPool1D(output_size=7)(Input("X", (None, None, 16))).type.shape
    (None, 7, 16)
    """

    n_spatial = 1


class AdaptiveMaxPool2D(_AdaptiveMaxPool):
    """Take the largest value of each of some windows, for X of shape ``(batch, height, width, channels)``.

    Along each axis as in :class:`AdaptiveMaxPool1D`.

    Parameters
    ----------
    name : str, optional
    output_size : int or tuple of int
        How many windows there are along all axes, or along each.

    Raises
    ------
    ValueError
        When called, or by the running graph where the shape is not known before, if there is no position.
    TypeError
        When called, if the input holds integers.

    Examples
    --------
    >>> from ptml.layers import AdaptiveMaxPool2D, Input
    >>> AdaptiveMaxPool2D(output_size=7)(Input("X", (None, None, None, 16))).type.shape
    (None, 7, 7, 16)
    """

    n_spatial = 2


class AdaptiveMaxPool3D(_AdaptiveMaxPool):
    """Take the largest value of some windows, for X of shape ``(batch, depth, height, width, channels)``.

    Along each axis as in :class:`AdaptiveMaxPool1D`.

    Parameters
    ----------
    name : str, optional
    output_size : int or tuple of int
        How many windows there are along all axes, or along each.

    Raises
    ------
    ValueError
        When called, or by the running graph where the shape is not known before, if there is no position.
    TypeError
        When called, if the input holds integers.

    Examples
    --------
    >>> from ptml.layers import AdaptiveMaxPool3D, Input
    >>> AdaptiveMaxPool3D(output_size=(2, 7, 7))(Input("X", (None, 8, 16, 16, 4))).type.shape
    (None, 2, 7, 7, 4)
    """

    n_spatial = 3
