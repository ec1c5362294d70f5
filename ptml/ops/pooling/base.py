"""What the ops of pooling have in common: the windows of each spatial axis, and the shapes that they make."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pytensor.graph.basic import Apply
from pytensor.graph.type import Type
from pytensor.tensor.variable import TensorVariable

from ptml.fused import Fused
from ptml.ops.pooling.windows import Even, Sliding, Windows

__all__ = ["Pools", "PoolsBack"]

NO_WINDOWS = "windows must be a tuple of Sliding and Even, one for each spatial axis; got {given!r}."


class Pools(Fused):
    """An op from data, ``(batch, *spatial, channels)``, to one value of each channel for each window.

    Parameters
    ----------
    windows : tuple of Sliding or Even
        One for each spatial axis.
    """

    __props__ = ("windows",)

    def __init__(self, windows: Windows) -> None:
        if not isinstance(windows, tuple) or not all(isinstance(one, Sliding | Even) for one in windows):
            raise TypeError(NO_WINDOWS.format(given=windows))
        self.windows = windows

    @property
    def axes(self) -> range:
        """The spatial axes."""
        return range(1, 1 + len(self.windows))

    def pooled_shape(self, shape: Sequence[Any]) -> tuple[Any, ...]:
        """Give the shape of the result, of numbers, symbols, or None where nothing is known."""
        batch, *lengths, channels = shape
        pooled = [one.length(n) for one, n in zip(self.windows, lengths, strict=True)]
        return (batch, *pooled, channels)

    def output_types(self, x: TensorVariable, *rest: Any) -> Sequence[Type]:
        return [x.type.clone(shape=self.pooled_shape(x.type.shape))]

    def infer_shape(self, node: Apply, shapes: Any) -> list[Any]:
        return [self.pooled_shape(shapes[0])] * len(node.outputs)


class PoolsBack(Pools):
    """An op from what was pooled back to data, whose shape its first input has."""

    def output_types(self, x: TensorVariable, *rest: Any) -> Sequence[Type]:
        return [x.type]

    def infer_shape(self, node: Apply, shapes: Any) -> list[Any]:
        return [shapes[0]]
