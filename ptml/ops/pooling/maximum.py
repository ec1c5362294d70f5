"""The largest number in each window, its gradient, and the gradient of that."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytensor.tensor as pt
from pytensor.gradient import DisconnectedType, disconnected_type, grad
from pytensor.graph.basic import Apply, Variable
from pytensor.graph.type import Type
from pytensor.tensor.variable import TensorVariable

from ptml.ops.pooling.base import Pools, PoolsBack
from ptml.ops.pooling.windows import numbered

__all__ = ["MaxPool", "MaxPoolGradient", "MaxPoolPick"]


def _chosen(op: Pools, x: TensorVariable, others: list[Any], fills: Sequence[float]) -> list[Any]:
    """Choose the largest number in each window, and what goes with it, along one axis after the other."""
    for axis in reversed(op.axes):
        x, *others = op.windows[axis - 1].chosen(x, others, fills, axis)
    return [x, *others]


def _places(op: Pools, x: TensorVariable) -> TensorVariable:
    """Number the elements of an image in their order, for all images and channels."""
    places: Any = np.int32(0)
    for axis in op.axes:
        known = x.type.shape[axis]
        n = x.shape[axis] if known is None else np.int64(known)
        own = pt.as_tensor(numbered(x, axis)).dimshuffle(*"x" * axis, 0, *"x" * (x.type.ndim - axis - 1))
        places = places * n.astype("int32") + own.astype("int32")
    return places


class MaxPool(Pools):
    """The largest number in each window, and where it stands.

    Of equal numbers, it is the first. Where there is one that is no number, it is NaN, and stands at the
    first of these. What padding adds is never the largest.

    The op is applied to floats, ``(batch, *spatial, channels)``, and gives the largest numbers, and for each
    how many positions come before it in its image, as int32.

    Examples
    --------
    >>> import numpy as np
    >>> import pytensor.tensor as pt
    >>> from ptml.ops.pooling import MaxPool, Sliding
    >>> x = pt.constant(np.array([1.0, 4.0, 3.0, 3.0]).reshape(1, 4, 1))
    >>> largest, places = MaxPool((Sliding(2, 2),))(x)
    >>> largest.eval().ravel(), places.eval().ravel()
    (array([4., 3.]), array([1, 2], dtype=int32))
    """

    def output_types(self, x: TensorVariable) -> Sequence[Type]:
        [kind] = super().output_types(x)
        return [kind, kind.clone(dtype="int32")]

    def build(self, x: TensorVariable) -> list[Variable]:
        largest, places = _chosen(self, x, [_places(self, x)], [-1.0])
        return [largest, pt.zeros_like(largest, dtype="int32") + places]

    def connection_pattern(self, node: Apply) -> list[list[bool]]:
        return [[True, False]]

    def pullback(self, inputs: Any, outputs: Any, cotangents: Any) -> list[Variable]:
        if isinstance(cotangents[0].type, DisconnectedType):
            return [disconnected_type()]
        return [MaxPoolGradient(self.windows)(inputs[0], outputs[1], cotangents[0])]


class MaxPoolGradient(PoolsBack):
    """The gradient through a `MaxPool`: what comes back for each window goes where its largest number stands.

    The op is applied to what was pooled, to the places, and to what comes back.

    Examples
    --------
    >>> import numpy as np
    >>> import pytensor.tensor as pt
    >>> from ptml.ops.pooling import MaxPool, MaxPoolGradient, Sliding
    >>> x = pt.constant(np.zeros((1, 4, 1)))
    >>> windows = (Sliding(2, 2),)
    >>> MaxPoolGradient(windows)(x, MaxPool(windows)(x)[1], np.ones((1, 2, 1))).eval().ravel()
    array([1., 0., 1., 0.])
    """

    def build(self, x: TensorVariable, places: TensorVariable, g: TensorVariable) -> list[Variable]:
        # The same graph as that of the largest numbers, so that a backend without kernels computes it once.
        largest = _chosen(self, x, [], [])[0]
        return [grad(None, x, known_grads={largest: g})]

    def connection_pattern(self, node: Apply) -> list[list[bool]]:
        return [[True], [False], [True]]

    def pullback(self, inputs: Any, outputs: Any, cotangents: Any) -> list[Variable]:
        x, places, _ = inputs
        return [
            x.zeros_like(),
            disconnected_type(),
            MaxPoolPick(self.windows)(x, places, cotangents[0]),
        ]


class MaxPoolPick(Pools):
    """What stands in a tensor where the largest number in each window stands in another.

    The op is applied to what was pooled, to the places, and to the tensor that is read.

    Examples
    --------
    >>> import numpy as np
    >>> import pytensor.tensor as pt
    >>> from ptml.ops.pooling import MaxPool, MaxPoolPick, Sliding
    >>> x = pt.constant(np.array([1.0, 4.0, 3.0, 3.0]).reshape(1, 4, 1))
    >>> windows = (Sliding(2, 2),)
    >>> MaxPoolPick(windows)(x, MaxPool(windows)(x)[1], 10 * x).eval().ravel()
    array([40., 30.])
    """

    def build(self, x: TensorVariable, places: TensorVariable, v: TensorVariable) -> list[Variable]:
        return [_chosen(self, x, [v], [0.0])[1]]

    def connection_pattern(self, node: Apply) -> list[list[bool]]:
        return [[True], [False], [True]]

    def pullback(self, inputs: Any, outputs: Any, cotangents: Any) -> list[Variable]:
        x, places, _ = inputs
        return [
            x.zeros_like(),
            disconnected_type(),
            MaxPoolGradient(self.windows)(x, places, cotangents[0]),
        ]
