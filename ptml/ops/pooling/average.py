"""The mean of each window, and its adjoint."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytensor.tensor as pt
from pytensor.gradient import disconnected_grad, grad
from pytensor.graph.basic import Apply, Variable
from pytensor.tensor.variable import TensorVariable

from ptml.ops.pooling.base import Pools, PoolsBack

__all__ = ["AveragePool", "AveragePoolGradient"]


def _averaged(op: Pools, x: TensorVariable) -> TensorVariable:
    divisor: Any = np.ones((), x.type.dtype)
    for axis in reversed(op.axes):
        divisor = divisor * op.windows[axis - 1].divisor(x, axis)
        x = op.windows[axis - 1].total(x, axis)
    # It depends on the shape alone.
    return x / disconnected_grad(pt.as_tensor(divisor))


class AveragePool(Pools):
    """The mean of each window.

    Examples
    --------
    >>> import numpy as np
    >>> import pytensor.tensor as pt
    >>> from ptml.ops.pooling import AveragePool, Sliding
    >>> x = pt.constant(np.array([1.0, 4.0, 3.0, 3.0]).reshape(1, 4, 1))
    >>> AveragePool((Sliding(2, 2),))(x).eval().ravel()
    array([2.5, 3. ])
    """

    def build(self, x: TensorVariable) -> list[Variable]:
        return [_averaged(self, x)]

    def connection_pattern(self, node: Apply) -> list[list[bool]]:
        return [[True]]

    def pullback(self, inputs: Any, outputs: Any, cotangents: Any) -> list[Variable]:
        return [AveragePoolGradient(self.windows)(inputs[0], cotangents[0])]


class AveragePoolGradient(PoolsBack):
    """The adjoint of an `AveragePool`: what comes back for each window is divided among its elements.

    The op is applied to what was pooled, of which only the shape matters, and to what comes back.

    Examples
    --------
    >>> import numpy as np
    >>> import pytensor.tensor as pt
    >>> from ptml.ops.pooling import AveragePoolGradient, Sliding
    >>> x = pt.constant(np.zeros((1, 4, 1)))
    >>> AveragePoolGradient((Sliding(2, 2),))(x, np.ones((1, 2, 1))).eval().ravel()
    array([0.5, 0.5, 0.5, 0.5])
    """

    def build(self, x: TensorVariable, g: TensorVariable) -> list[Variable]:
        return [grad(None, x, known_grads={_averaged(self, x): g})]

    def connection_pattern(self, node: Apply) -> list[list[bool]]:
        return [[True], [True]]

    def pullback(self, inputs: Any, outputs: Any, cotangents: Any) -> list[Variable]:
        return [inputs[0].zeros_like(), AveragePool(self.windows)(cotangents[0])]
