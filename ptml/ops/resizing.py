"""Resizing along an axis, by the nearest element or the line or cubic through its neighbours: a fused op."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import numpy as np
import pytensor.tensor as pt
from pytensor.gradient import grad
from pytensor.graph.basic import Apply, Variable
from pytensor.graph.type import Type
from pytensor.tensor.variable import TensorVariable

from ptml.fused import Fused
from ptml.ops.pooling.windows import numbered

__all__ = ["CUBIC", "Resize", "ResizeGradient", "Resizing"]

Resizing = Literal["nearest", "linear", "cubic"]

#: The parameter of cubic convolution, as PyTorch and most libraries for images have it.
CUBIC = -0.75

BAD_SIZE = "Give either a size or a factor, of 1 or more; got size={size} and factor={factor}."


class _Resizes(Fused):
    """What both ops have in common.

    Parameters
    ----------
    axis : int
    mode : {"nearest", "linear", "cubic"}
    size, factor : int
        The length of the axis afterwards, or by what it is multiplied; the other one is 0.
    align_corners : bool
        Whether the first and last elements stay at the ends. Else each element is the middle of an interval,
        and all of these together keep their ends. Of no meaning for ``"nearest"``.
    """

    __props__ = ("axis", "mode", "size", "factor", "align_corners")

    def __init__(
        self, axis: int, mode: Resizing, size: int = 0, factor: int = 0, align_corners: bool = False
    ) -> None:
        if (size > 0) == (factor > 0) or min(size, factor) < 0:
            raise ValueError(BAD_SIZE.format(size=size, factor=factor))
        self.axis, self.mode, self.size, self.factor = axis, mode, size, factor
        self.align_corners = align_corners

    def length(self, n: Any) -> Any:
        """Give the length of the axis afterwards."""
        if self.size:
            return self.size
        return None if n is None else n * self.factor

    def resized(self, shape: Sequence[Any]) -> tuple[Any, ...]:
        """Give the shape afterwards."""
        return (*shape[: self.axis], self.length(shape[self.axis]), *shape[self.axis + 1 :])

    def sources(self, j: Any, n: Any, dtype: str = "float64") -> list[tuple[Any, Any]]:
        """Give what elements of the result are made of: pairs of positions and weights, None for 1.

        Parameters
        ----------
        j : array or tensor of int64
            The positions in the result.
        n : int or scalar
            The length of the axis before.
        dtype : str
            Of the weights.
        """
        library: Any = pt if isinstance(j, Variable) else np
        one, two, last = np.int64(1), np.int64(2), n - np.int64(1)
        after = np.int64(self.length(n)) if isinstance(n, int) else self.length(n)
        if self.mode == "nearest":
            return [(j * n // after if self.size else j // np.int64(self.factor), None)]
        # Whole numbers until the end: no rounding can put an element on the wrong side of a neighbour.
        if self.align_corners:
            above, below = j * last, library.maximum(after - one, one)
        else:
            above, below = (two * j + one) * n - after, two * after
        if self.mode == "linear":
            above = library.maximum(above, np.int64(0))
        low = above // below
        part = (above - low * below).astype(dtype) / below.astype(dtype)

        def within(i: Any) -> Any:
            return library.clip(i, np.int64(0), last)

        if self.mode == "linear":
            return [(within(low), 1 - part), (within(low + one), part)]
        weights = (_far(part + 1), _near(part), _near(1 - part), _far(2 - part))
        return [(within(low + np.int64(k - 1)), weight) for k, weight in enumerate(weights)]


def _near(t: Any) -> Any:
    """Give the weight of an element at a distance of at most 1."""
    return ((CUBIC + 2) * t - (CUBIC + 3)) * t * t + 1


def _far(t: Any) -> Any:
    """Give the weight of an element at a distance between 1 and 2."""
    return ((t - 5) * t + 8) * (CUBIC * t) - 4 * CUBIC


class Resize(_Resizes):
    """A tensor with another length along an axis.

    Examples
    --------
    >>> import numpy as np
    >>> import pytensor.tensor as pt
    >>> from ptml.ops.resizing import Resize
    >>> Resize(0, "linear", factor=2)(pt.constant(np.array([0.0, 1.0]))).eval()
    array([0.  , 0.25, 0.75, 1.  ])
    """

    def output_types(self, x: TensorVariable) -> Sequence[Type]:
        return [x.type.clone(shape=self.resized(x.type.shape))]

    def infer_shape(self, node: Apply, shapes: Any) -> list[Any]:
        return [self.resized(shapes[0])]

    def build(self, x: TensorVariable) -> list[Variable]:
        n, dtype = x.type.shape[self.axis], x.type.dtype
        length: Any = x.shape[self.axis] if n is None else n
        if self.size:
            j: Any = np.arange(self.size)
        else:
            j = numbered(x, self.axis)[:, None] * np.int64(self.factor) + np.arange(self.factor)
            j = j.reshape((-1,))
        if n is None:
            j = pt.as_tensor(j)
        # Backends add up what is read twice only along the first axis.
        first = pt.moveaxis(x, self.axis, 0)
        zero, total = np.zeros((), dtype), None
        for positions, weights in self.sources(j, length, dtype if n is None else "float64"):
            part = first[positions]
            if weights is not None:
                # What has no weight has no part, though it may be no number.
                column = pt.as_tensor(weights).astype(dtype).dimshuffle(0, *"x" * (x.type.ndim - 1))
                part = pt.switch(pt.eq(column, zero), zero, column * part)
            total = part if total is None else total + part
        return [pt.moveaxis(total, 0, self.axis)]

    def connection_pattern(self, node: Apply) -> list[list[bool]]:
        return [[True]]

    def pullback(self, inputs: Any, outputs: Any, cotangents: Any) -> list[Variable]:
        return [ResizeGradient(*(getattr(self, p) for p in self.__props__))(inputs[0], cotangents[0])]


class ResizeGradient(_Resizes):
    """The adjoint of a `Resize`, of what was resized, whose length alone matters, and what comes back.

    Examples
    --------
    >>> import numpy as np
    >>> import pytensor.tensor as pt
    >>> from ptml.ops.resizing import ResizeGradient
    >>> ResizeGradient(0, "nearest", factor=2)(pt.zeros(2), pt.constant([1.0, 2.0, 3.0, 4.0])).eval()
    array([3., 7.])
    """

    def output_types(self, x: TensorVariable, g: TensorVariable) -> Sequence[Type]:
        return [x.type]

    def infer_shape(self, node: Apply, shapes: Any) -> list[Any]:
        return [shapes[0]]

    def _forward(self) -> Resize:
        return Resize(*(getattr(self, p) for p in self.__props__))

    def build(self, x: TensorVariable, g: TensorVariable) -> list[Variable]:
        return [grad(None, x, known_grads={self._forward().build(x)[0]: g})]

    def connection_pattern(self, node: Apply) -> list[list[bool]]:
        return [[True], [True]]

    def pullback(self, inputs: Any, outputs: Any, cotangents: Any) -> list[Variable]:
        return [inputs[0].zeros_like(), self._forward()(cotangents[0])]
