"""Layers that pool: the largest value, the mean or the norm of each window."""

from __future__ import annotations

from typing import Any

import attrs
import numpy as np
import pytensor.tensor as pt
from pytensor.tensor.variable import TensorVariable

from ptml.layers.spatial import Spatial
from ptml.lengths import check_length
from ptml.ops.pooling import AveragePool, MaxPool, Sliding
from ptml.ops.windows import SPATIAL, a_padding, all_of, per_axis, resolved_padding
from ptml.validate import described, flag, real

__all__ = [
    "AvgPool1D",
    "AvgPool2D",
    "AvgPool3D",
    "LpPool1D",
    "LpPool2D",
    "LpPool3D",
    "MaxPool1D",
    "MaxPool2D",
    "MaxPool3D",
]

ONLY_PADDING = (
    "{who}: padding must be less than the {span} positions that a window spans in {axis}; got {given}. "
    "A window would see nothing else."
)
SHORTER = "Make the window smaller, or pad more."

positive_sizes = all_of(1, "a positive integer")
each_axis: Any = attrs.Converter(per_axis, takes_self=True)


def along_each(n: int) -> Any:
    """Make the default of a field that has a number for each axis."""
    return attrs.Factory(lambda self: (n,) * self.n_spatial, takes_self=True)


class _Pools(Spatial):
    """What pooling layers have in common, whatever they make of a window."""

    kernel_size: Any = attrs.field(default=along_each(2), converter=each_axis, validator=positive_sizes)
    stride: Any = attrs.field(
        default=None, converter=each_axis, validator=attrs.validators.optional(positive_sizes)
    )
    dilation: Any = attrs.field(default=along_each(1), converter=each_axis, validator=positive_sizes)
    padding: Any = attrs.field(default="valid", validator=a_padding(("valid", "same")))
    ceil_mode: bool = attrs.field(default=False, validator=flag)

    def __attrs_post_init__(self) -> None:
        for axis, one in zip(SPATIAL[self.n_spatial], self.sliding(counted=True), strict=True):
            if max(one.counted) >= one.span > 1 or (one.span == 1 and any(one.counted)):
                raise ValueError(
                    ONLY_PADDING.format(who=described(self), span=one.span, axis=axis, given=self.padding)
                )

    def sliding(self, *, counted: bool) -> tuple[Sliding, ...]:
        """Give the windows of each axis, and say whether means count what padding adds."""
        sizes, strides, dilations = self.kernel_size, self.stride or self.kernel_size, self.dilation
        spans = [d * (k - 1) + 1 for k, d in zip(sizes, dilations, strict=True)]
        found = []
        for k, s, d, span, (before, after) in zip(
            sizes, strides, dilations, spans, resolved_padding(self.padding, spans), strict=True
        ):
            # A last window that is not whole begins at an element, or in the padding before them.
            more = max(min(span - 1, after + s - 1), after) if self.ceil_mode else after
            found.append(Sliding(k, s, d, before, more, (before, after) if counted else (0, 0)))
        return tuple(found)

    def windows(self, X: TensorVariable, *, counted: bool = True) -> tuple[TensorVariable, Any]:
        """Check what the layer is called on, and give it with its windows."""
        X, windows = self.checked(X), self.sliding(counted=counted)
        for axis, one in enumerate(windows, start=1):
            padded = sum(one.counted) if counted else one.before + one.after
            added = f", to which padding adds {padded}" if padded else ""
            X = check_length(
                self,
                X,
                max(one.span - one.before - one.after, 1),
                axis=axis,
                of=f"positions (its window spans {one.span} in {SPATIAL[self.n_spatial][axis - 1]}{added})",
                hint=SHORTER,
            )
        return X, windows


class _MaxPool(_Pools):
    def build(self, X: TensorVariable) -> TensorVariable:
        X, windows = self.windows(X)
        return MaxPool(windows)(X)[0]


class _AvgPool(_Pools):
    count_include_pad: bool = attrs.field(default=True, validator=flag)

    def build(self, X: TensorVariable) -> TensorVariable:
        X, windows = self.windows(X, counted=self.count_include_pad)
        return AveragePool(windows)(X)


class _LpPool(_Pools):
    p: float = attrs.field(default=2.0, validator=real(lambda p: p >= 1, "a number of 1 or more"))

    def build(self, X: TensorVariable) -> TensorVariable:
        X, windows = self.windows(X)
        dtype = X.type.dtype
        whole = tuple(attrs.evolve(one, counted=(one.before, one.after)) for one in windows)
        count = np.asarray(np.prod(self.kernel_size), dtype)
        total = count * AveragePool(whole)(pt.abs(X) ** np.asarray(self.p, dtype))
        # The root has no slope at 0; what is nowhere else than 0 has the slope 0.
        empty, one = pt.eq(total, np.zeros((), dtype)), np.ones((), dtype)
        root = pt.switch(empty, one, total) ** np.asarray(1 / self.p, dtype)
        return pt.switch(empty, np.zeros((), dtype), root)


class MaxPool1D(_MaxPool):
    """Take the largest value of each window of sequences, for X of shape ``(batch, time, channels)``.

    Windows lie side by side unless a stride is given: pooling tiles, convolution slides. Of equal values the
    first one gets the whole gradient, on every backend. A window that has a NaN gives NaN. What padding adds
    is never the largest.

    Parameters
    ----------
    name : str, optional
    kernel_size : int
        How many elements a window takes; 2 unless given.
    stride : int, optional
        How far windows are apart; `kernel_size` unless given.
    dilation : int
        How far the elements of a window are apart; 1 unless given.
    padding : str, int or pair of int
        ``"valid"``, no padding, unless given. ``"same"`` leaves ``ceil(time / stride)`` windows; where it
        needs an odd number of elements, one more is added after. A number is added on either side, a pair
        ``(before, after)`` as it says. It must be less than what a window spans.
    ceil_mode : bool
        Whether there is one more window where elements are left at the end that do not fill one; False
        unless given.

    Raises
    ------
    ValueError
        If padding is as long as a window. When called, or by the running graph where the shape is not known
        before, if the padded input is shorter than a window.
    TypeError
        When called, if the input holds integers.

    Examples
    --------
    >>> import numpy as np
    >>> import ptml
    >>> from ptml.layers import Input, MaxPool1D
    >>> X = Input("X", (None, 4, 1))
    >>> ptml.function([X], MaxPool1D()(X))(np.array([1.0, 4.0, 3.0, 2.0]).reshape(1, 4, 1)).ravel()
    array([4., 3.])
    """

    n_spatial = 1


class MaxPool2D(_MaxPool):
    """Take the largest value of each window of images, for X of shape ``(batch, height, width, channels)``.

    Parameters
    ----------
    kernel_size, stride, dilation : int or tuple of int
        As of :class:`MaxPool1D`, for all axes or for each.
    padding : str, int, pair of int or pair of pair of int
        Likewise, or ``(before, after)`` for each.
    ceil_mode : bool
        As of :class:`MaxPool1D`.

    Raises
    ------
    ValueError, TypeError
        As :class:`MaxPool1D` does.

    Examples
    --------
    >>> from ptml.layers import Input, MaxPool2D
    >>> MaxPool2D()(Input("X", (None, 28, 28, 16))).type.shape
    (None, 14, 14, 16)
    """

    n_spatial = 2


class MaxPool3D(_MaxPool):
    """Take the largest value of windows of volumes: ``(batch, depth, height, width, channels)``.

    Parameters
    ----------
    kernel_size, stride, dilation : int or tuple of int
        As of :class:`MaxPool1D`, for all axes or for each.
    padding : str, int, tuple of int or tuple of pair of int
        Likewise, or ``(before, after)`` for each.
    ceil_mode : bool
        As of :class:`MaxPool1D`.

    Raises
    ------
    ValueError, TypeError
        As :class:`MaxPool1D` does.

    Examples
    --------
    >>> from ptml.layers import Input, MaxPool3D
    >>> MaxPool3D()(Input("X", (None, 8, 16, 16, 4))).type.shape
    (None, 4, 8, 8, 4)
    """

    n_spatial = 3


class AvgPool1D(_AvgPool):
    """Average each window of sequences, for X of shape ``(batch, time, channels)``.

    Parameters
    ----------
    kernel_size, stride, dilation, padding, ceil_mode
        As of :class:`MaxPool1D`.
    count_include_pad : bool
        Whether what padding adds is averaged too, as zeros; True unless given. Elements that only
        `ceil_mode` reaches are never averaged.

    Raises
    ------
    ValueError, TypeError
        As :class:`MaxPool1D` does.

    Examples
    --------
    >>> import numpy as np
    >>> import ptml
    >>> from ptml.layers import AvgPool1D, Input
    >>> X = Input("X", (None, 4, 1))
    >>> ptml.function([X], AvgPool1D()(X))(np.array([1.0, 4.0, 3.0, 2.0]).reshape(1, 4, 1)).ravel()
    array([2.5, 2.5])
    """

    n_spatial = 1


class AvgPool2D(_AvgPool):
    """Average each window of images, for X of shape ``(batch, height, width, channels)``.

    Parameters
    ----------
    kernel_size, stride, dilation : int or tuple of int
        As of :class:`AvgPool1D`, for all axes or for each.
    padding : str, int, pair of int or pair of pair of int
        Likewise, or ``(before, after)`` for each.
    ceil_mode : bool
        As of :class:`MaxPool1D`.
    count_include_pad : bool
        Whether what padding adds is averaged too, as zeros; True unless given.

    Raises
    ------
    ValueError, TypeError
        As :class:`MaxPool1D` does.

    Examples
    --------
    >>> from ptml.layers import AvgPool2D, Input
    >>> AvgPool2D()(Input("X", (None, 28, 28, 16))).type.shape
    (None, 14, 14, 16)
    """

    n_spatial = 2


class AvgPool3D(_AvgPool):
    """Average each window of volumes, for X of shape ``(batch, depth, height, width, channels)``.

    Parameters
    ----------
    kernel_size, stride, dilation : int or tuple of int
        As of :class:`AvgPool1D`, for all axes or for each.
    padding : str, int, tuple of int or tuple of pair of int
        Likewise, or ``(before, after)`` for each.
    ceil_mode : bool
        As of :class:`MaxPool1D`.
    count_include_pad : bool
        Whether what padding adds is averaged too, as zeros; True unless given.

    Raises
    ------
    ValueError, TypeError
        As :class:`MaxPool1D` does.

    Examples
    --------
    >>> from ptml.layers import AvgPool3D, Input
    >>> AvgPool3D()(Input("X", (None, 8, 16, 16, 4))).type.shape
    (None, 4, 8, 8, 4)
    """

    n_spatial = 3


class LpPool1D(_LpPool):
    r"""Take the norm of each window of sequences, for X of shape ``(batch, time, channels)``.

    .. math:: y = \Bigl(\sum_{x \in \text{window}} |x|^p\Bigr)^{1/p}

    Where a window holds nothing but zeros, its gradient is zero.

    Parameters
    ----------
    kernel_size, stride, dilation, padding, ceil_mode
        As of :class:`MaxPool1D`.
    p : float
        The norm, at least 1; 2 unless given.

    Raises
    ------
    ValueError, TypeError
        As :class:`MaxPool1D` does.

    Examples
    --------
    >>> import numpy as np
    >>> import ptml
    >>> from ptml.layers import Input, LpPool1D
    >>> X = Input("X", (None, 2, 1))
    >>> ptml.function([X], LpPool1D()(X))(np.array([3.0, -4.0]).reshape(1, 2, 1)).ravel()
    array([5.])
    """

    n_spatial = 1


class LpPool2D(_LpPool):
    """Take the norm of each window of images, for X of shape ``(batch, height, width, channels)``.

    Parameters
    ----------
    kernel_size, stride, dilation : int or tuple of int
        As of :class:`LpPool1D`, for all axes or for each.
    padding : str, int, pair of int or pair of pair of int
        Likewise, or ``(before, after)`` for each.
    ceil_mode : bool
        As of :class:`MaxPool1D`.
    p : float
        The norm, at least 1; 2 unless given.

    Raises
    ------
    ValueError, TypeError
        As :class:`MaxPool1D` does.

    Examples
    --------
    >>> from ptml.layers import Input, LpPool2D
    >>> LpPool2D()(Input("X", (None, 28, 28, 16))).type.shape
    (None, 14, 14, 16)
    """

    n_spatial = 2


class LpPool3D(_LpPool):
    """Take the norm of each window of volumes, for X of shape ``(batch, depth, height, width, channels)``.

    Parameters
    ----------
    kernel_size, stride, dilation : int or tuple of int
        As of :class:`LpPool1D`, for all axes or for each.
    padding : str, int, tuple of int or tuple of pair of int
        Likewise, or ``(before, after)`` for each.
    ceil_mode : bool
        As of :class:`MaxPool1D`.
    p : float
        The norm, at least 1; 2 unless given.

    Raises
    ------
    ValueError, TypeError
        As :class:`MaxPool1D` does.

    Examples
    --------
    >>> from ptml.layers import Input, LpPool3D
    >>> LpPool3D()(Input("X", (None, 8, 16, 16, 4))).type.shape
    (None, 4, 8, 8, 4)
    """

    n_spatial = 3
