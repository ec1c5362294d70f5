"""How windows lie along an axis, and the graphs of what is made of them.

A window of several axes is the product of one of each: it is reduced along the last axis first, and then
along those before. The first of equal numbers is so the first in the order of the elements.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import attrs
import numpy as np
import pytensor.tensor as pt
from pytensor.gradient import disconnected_grad, disconnected_type
from pytensor.graph.basic import Apply, Variable
from pytensor.tensor.variable import TensorVariable

from ptml.fused import Fused
from ptml.ops.padding import Pad

__all__ = ["Even", "Numbers", "Sliding", "Taps", "Windows", "numbered", "taps_of"]


class Taps(NamedTuple):
    """What the windows along an axis of known length take of it.

    Attributes
    ----------
    first : ndarray of int64
        The position of each window's first element.
    number : ndarray of int64
        How many elements it has; those of padding are none.
    divisor : ndarray of int64
        By what a sum of them is divided for a mean.
    step : int
        How far elements are apart.
    """

    first: np.ndarray
    number: np.ndarray
    divisor: np.ndarray
    step: int


def _at_least(n: int) -> Any:
    return attrs.validators.and_(attrs.validators.instance_of(int), attrs.validators.ge(n))


@attrs.frozen
class Sliding:
    """Windows of one size, as many as fit.

    Parameters
    ----------
    size : int
        How many elements a window has.
    stride : int
        How far windows are apart.
    dilation : int
        How far the elements of a window are apart.
    before, after : int
        How many elements of padding there are.
    counted : pair of int, optional
        How many of these a mean counts, as zeros; all unless given.

    Examples
    --------
    >>> from ptml.ops.pooling import Sliding
    >>> Sliding(3, 2).length(9)
    4
    >>> Sliding(3, 2, before=1).taps(5).first
    array([0, 1])
    """

    size: int = attrs.field(validator=_at_least(1))
    stride: int = attrs.field(default=1, validator=_at_least(1))
    dilation: int = attrs.field(default=1, validator=_at_least(1))
    before: int = attrs.field(default=0, validator=_at_least(0))
    after: int = attrs.field(default=0, validator=_at_least(0))
    counted: tuple[int, int] = attrs.field(
        default=attrs.Factory(lambda self: (self.before, self.after), takes_self=True),
        validator=attrs.validators.deep_iterable(_at_least(0), attrs.validators.instance_of(tuple)),
    )

    @property
    def span(self) -> int:
        """How far a window reaches."""
        return self.dilation * (self.size - 1) + 1

    def length(self, n: Any) -> Any:
        """Give how many windows fit; of a symbolic length too, and None where nothing is known of it."""
        return None if n is None else (n + (self.before + self.after - self.span)) // self.stride + 1

    def taps(self, n: int) -> Taps:
        """Give what the windows take of an axis of a length."""
        start = np.arange(max(self.length(n), 0)) * self.stride - self.before
        first = -(np.minimum(start, 0) // self.dilation)
        last = np.minimum((n - 1 - start) // self.dilation, self.size - 1)
        low = -((start + self.counted[0]) // self.dilation)
        high = (n + self.counted[1] - 1 - start) // self.dilation
        divisor = np.minimum(high, self.size - 1) - np.maximum(low, 0) + 1
        return Taps(start + first * self.dilation, last - first + 1, divisor, self.dilation)

    def padded(self, x: TensorVariable, axis: int, value: float) -> TensorVariable:
        """Put a value before and after an axis."""
        ends = (self.before, self.after)
        if not any(ends):
            return x
        spatial = range(1, x.type.ndim - 1)
        return Pad(tuple(ends if k == axis else (0, 0) for k in spatial), "constant", value)(x)

    def chosen(self, key: TensorVariable, others: list[Any], fills: Sequence[float], axis: int) -> list[Any]:
        """Choose the first largest key in each window, and what goes with it.

        Parameters
        ----------
        key : tensor
        others : list of tensor
            Which broadcast against it.
        fills : sequence of float
            What the padding of each of the others is.
        axis : int

        Returns
        -------
        list of tensor
            The key, and the others.
        """
        run = [self.padded(key, axis, -np.inf)]
        run += [self.padded(other, axis, fill) for other, fill in zip(others, fills, strict=True)]
        if self.before or self.after:
            # Numbers of minus infinity are as small as the padding, but they are there.
            run.append(self.padded(_ones(key, axis), axis, 0.0))
        # A run of windows, twice as long with each round. Where two overlap, nothing changes: what is later
        # is taken only if it is larger.
        width = 1
        while width < self.size:
            added = min(width, self.size - width)
            width += added
            step = self.stride if width == self.size else 1
            shift = added * self.dilation
            earlier, later = slice(None, -shift, step), slice(shift, None, step)
            left, right = ([part[_at(axis, entry)] for part in run] for entry in (earlier, later))
            run = _better(left, right, len(others))
        if self.size == 1:
            run = [part[_at(axis, slice(None, None, self.stride))] for part in run]
        return run[: 1 + len(others)]

    def total(self, x: TensorVariable, axis: int) -> TensorVariable:
        """Sum what is in each window."""
        x = self.padded(x, axis, 0.0)
        shifts = [k * self.dilation for k in range(self.size)]
        taps = [x[_at(axis, slice(k, (k - self.span + 1) or None, self.stride))] for k in shifts]
        return taps[0] if len(taps) == 1 else pt.add(*taps)

    def divisor(self, x: TensorVariable, axis: int) -> Any:
        """Give by what the sums are divided: a number, or one for each window, along the axis."""
        if self.counted == (self.before, self.after):
            return np.asarray(self.size, x.type.dtype)
        (before, after), ones = self.counted, _ones(x, axis)
        own = attrs.evolve(self, before=before, after=after).padded(ones, axis, 1.0)
        return attrs.evolve(self, before=self.before - before, after=self.after - after).total(own, axis)


@attrs.frozen
class Even:
    """As many windows as are asked for, which divide an axis as evenly as they can.

    Window i of n reaches from ``floor(i L / n)`` up to ``ceil((i + 1) L / n)``.

    Parameters
    ----------
    count : int

    Examples
    --------
    >>> from ptml.ops.pooling import Even
    >>> Even(3).taps(7)[:2]
    (array([0, 2, 4]), array([3, 3, 3]))
    """

    count: int = attrs.field(validator=_at_least(1))

    def length(self, n: Any) -> Any:
        """Give how many windows there are."""
        return self.count

    def taps(self, n: int) -> Taps:
        """Give what the windows take of an axis of a length."""
        i = np.arange(self.count)
        first, end = i * n // self.count, -(-(i + 1) * n // self.count)
        return Taps(first, end - first, end - first, 1)

    def _inside(self, x: TensorVariable, axis: int) -> TensorVariable:
        """Say which positions are in which window: before all other axes, windows and positions."""
        known = x.type.shape[axis]
        n = x.shape[axis] if known is None else np.int64(known)
        i, p = np.arange(self.count)[:, None], numbered(x, axis)
        first, end = i * n // np.int64(self.count), -(-(i + 1) * n // np.int64(self.count))
        inside = pt.as_tensor((p >= first) & (p < end))
        return inside.dimshuffle(*"x" * axis, 0, 1, *"x" * (x.type.ndim - axis - 1))

    def chosen(self, key: TensorVariable, others: list[Any], fills: Sequence[float], axis: int) -> list[Any]:
        """Choose as `Sliding.chosen` does."""
        inside = self._inside(key, axis)
        spread = [pt.expand_dims(part, axis) for part in (key, *others)]
        x, along = spread[0], axis + 1
        unknown = pt.isnan(x)
        lost = (inside & unknown).any(axis=along, keepdims=True)
        least = np.asarray(-np.inf, key.type.dtype)
        most = pt.switch(inside & ~unknown, x, least).max(axis=along, keepdims=True)
        hits = inside & pt.switch(lost, unknown, pt.eq(x, most))
        first = disconnected_grad(hits & pt.eq(pt.cumsum(hits.astype("int32"), axis=along), np.int32(1)))
        return [
            pt.switch(first, part, np.zeros((), part.type.dtype)).sum(axis=along, dtype=part.type.dtype)
            for part in spread
        ]

    def total(self, x: TensorVariable, axis: int) -> TensorVariable:
        """Sum what is in each window."""
        zero = np.zeros((), x.type.dtype)
        return pt.switch(self._inside(x, axis), pt.expand_dims(x, axis), zero).sum(axis=axis + 1)

    def divisor(self, x: TensorVariable, axis: int) -> Any:
        """Give by what the sums are divided."""
        return self._inside(x, axis).sum(axis=axis + 1).astype(x.type.dtype)


#: The windows of each spatial axis.
Windows = tuple[Sliding | Even, ...]


class Numbers(Fused):
    """The numbers of the positions along an axis, as int64.

    A graph of shapes alone does on most backends; those that compile for shapes have kernels, since they know
    the shape of an array, but not always what is computed of it.

    Parameters
    ----------
    axis : int

    Examples
    --------
    >>> import pytensor.tensor as pt
    >>> from ptml.ops.pooling.windows import Numbers
    >>> Numbers(1)(pt.zeros((2, 3))).eval()
    array([0, 1, 2])
    """

    __props__ = ("axis",)

    def __init__(self, axis: int) -> None:
        self.axis = axis

    def build(self, x: TensorVariable) -> list[Variable]:
        return [pt.arange(x.shape[self.axis], dtype="int64")]

    def connection_pattern(self, node: Apply) -> list[list[bool]]:
        return [[False]]

    def pullback(self, inputs: Any, outputs: Any, cotangents: Any) -> list[Variable]:
        return [disconnected_type()]


def numbered(x: TensorVariable, axis: int) -> Any:
    """Number the positions along an axis, by a constant where their count is known."""
    n = x.type.shape[axis]
    return Numbers(axis)(x) if n is None else np.arange(n)


def _ones(x: TensorVariable, axis: int) -> TensorVariable:
    """Give a one for every position along an axis; the other axes have one position."""
    ones = pt.as_tensor((numbered(x, axis) >= 0).astype(x.type.dtype))
    return ones.dimshuffle(*"x" * axis, 0, *"x" * (x.type.ndim - axis - 1))


def taps_of(windows: Windows, lengths: Sequence[int]) -> list[Taps]:
    """Give what windows take of axes of these lengths."""
    return [one.taps(n) for one, n in zip(windows, lengths, strict=True)]


def _at(axis: int, entry: slice) -> tuple[slice, ...]:
    return (*(slice(None),) * axis, entry)


def _better(left: list[Any], right: list[Any], n_others: int) -> list[Any]:
    """Take what is on the right where its key is larger, or the first that is no number."""
    takes = (right[0] > left[0]) | (pt.isnan(right[0]) & ~pt.isnan(left[0]))
    here = left[1 + n_others :]
    if here:
        takes = takes | (right[-1] > left[-1])
    takes = disconnected_grad(takes)
    both = [pt.switch(takes, b, a) for a, b in zip(left[: 1 + n_others], right, strict=False)]
    return [*both, *(pt.maximum(a, b) for a, b in zip(here, right[1 + n_others :], strict=True))]
