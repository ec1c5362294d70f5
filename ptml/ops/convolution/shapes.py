"""How a kernel slides over data: which sizes go together, and graphs that gather and scatter windows."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from typing import Any

import attrs
import numpy as np
import pytensor.tensor as pt
from pytensor.tensor.variable import TensorVariable

__all__ = ["Sliding", "sizes_of"]

Pairs = tuple[tuple[int, int], ...]


def sizes_of(x: TensorVariable) -> list[Any]:
    """Give the sizes of a tensor: numbers where its type knows them."""
    return [x.shape[axis] if size is None else size for axis, size in enumerate(x.type.shape)]


@attrs.frozen
class Sliding:
    """How a kernel slides over the spatial axes of data, which lie between the batch and the channels.

    Parameters
    ----------
    kernel_size, stride, dilation : tuple of int
        One for each spatial axis.
    padding : tuple of pair of int
        The zeros before and after each.
    groups : int
        In how many groups the channels are convolved, each by itself; 1 unless given.

    Examples
    --------
    >>> from ptml.ops.convolution import Sliding
    >>> same = Sliding((3, 3), (1, 1), (1, 1), ((1, 1), (1, 1)))
    >>> same.output_sizes((28, 28))
    [28, 28]
    """

    kernel_size: tuple[int, ...]
    stride: tuple[int, ...]
    dilation: tuple[int, ...]
    padding: Pairs
    groups: int = 1

    @property
    def n_spatial(self) -> int:
        """How many spatial axes there are."""
        return len(self.kernel_size)

    @property
    def spans(self) -> tuple[int, ...]:
        """How far a window reaches along each axis."""
        return tuple(d * (k - 1) + 1 for k, d in zip(self.kernel_size, self.dilation, strict=True))

    @property
    def n_taps(self) -> int:
        """How many elements a window has."""
        return math.prod(self.kernel_size)

    def taps(self) -> Iterator[tuple[int, ...]]:
        """Give how far the taps of a window are from its beginning, in the order of the kernel's elements."""
        return itertools.product(
            *([d * k for k in range(n)] for n, d in zip(self.kernel_size, self.dilation, strict=True))
        )

    def output_sizes(self, sizes: Sequence[Any]) -> list[Any]:
        """Give how many windows fit along each axis; of symbolic sizes too, and None of None."""
        return [
            None if n is None else (n + (a + b - span)) // s + 1
            for n, (a, b), span, s in zip(sizes, self.padding, self.spans, self.stride, strict=True)
        ]

    def least_input_sizes(self, sizes: Sequence[Any]) -> list[Any]:
        """Give the sizes of the smallest data in which so many windows fit; None of None."""
        return [
            None if n is None else (n - 1) * s + (span - a - b)
            for n, (a, b), span, s in zip(sizes, self.padding, self.spans, self.stride, strict=True)
        ]

    def windows(self, x: TensorVariable, counts: Sequence[Any]) -> TensorVariable:
        """Gather windows: of shape ``(batch, *counts, taps, channels)``.

        Parameters
        ----------
        x : tensor
            The data, without padding.
        counts : sequence of int or scalar
            How many windows there are along each axis.
        """
        batch, *sizes, channels = sizes_of(x)
        if any(any(pair) for pair in self.padding):
            padded = [n + (a + b) for n, (a, b) in zip(sizes, self.padding, strict=True)]
            inside = [slice(a, a + n) for n, (a, _) in zip(sizes, self.padding, strict=True)]
            x = _zeros((batch, *padded, channels), x)[(slice(None), *inside)].set(x)
        return pt.stack([x[self._reads(tap, counts)] for tap in self.taps()], axis=-2)

    def scattered(self, windows: TensorVariable, sizes: Sequence[Any]) -> TensorVariable:
        """Add up windows where they were gathered: the adjoint of `windows`.

        Parameters
        ----------
        windows : tensor
            Shape ``(batch, *counts, taps, channels)``.
        sizes : sequence of int or scalar
            Those of the data's spatial axes.
        """
        batch, *counts, _, channels = sizes_of(windows)
        padded = [n + (a + b) for n, (a, b) in zip(sizes, self.padding, strict=True)]
        total = _zeros((batch, *padded, channels), windows)
        for k, tap in enumerate(self.taps()):
            total = total[self._reads(tap, counts)].inc(windows[..., k, :])
        if not any(any(pair) for pair in self.padding):
            return total
        return total[(slice(None), *(slice(a, a + n) for n, (a, _) in zip(sizes, self.padding, strict=True)))]

    def _reads(self, tap: tuple[int, ...], counts: Sequence[Any]) -> tuple[slice, ...]:
        return (
            slice(None),
            *(slice(t, t + (n - 1) * s + 1, s) for t, n, s in zip(tap, counts, self.stride, strict=True)),
        )


def _zeros(shape: Sequence[Any], like: TensorVariable) -> TensorVariable:
    return pt.alloc(np.zeros((), like.type.dtype), *shape)
