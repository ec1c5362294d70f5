"""Mean and variance of every feature, as a fused op: one walk over the batch gives both."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytensor.tensor as pt
from pytensor.gradient import DisconnectedType, disconnected_type
from pytensor.graph.basic import Apply, Variable
from pytensor.graph.type import Type
from pytensor.tensor.variable import TensorVariable

from ptml.fused import Fused

__all__ = ["Moments"]


class Moments(Fused):
    r"""The mean and the biased variance over all axes but the last.

    The op is applied to ``(X, n)``: floats of shape ``(..., features)``, and the number of values that each
    feature has, as an integer scalar. It gives two vectors, in X's dtype. With what comes back for them,
    :math:`g^\mu` and :math:`g^{\sigma^2}`, the gradient is

    .. math:: \frac{1}{n} \bigl(g^\mu_c + 2\, (x_{ic} - \mu_c)\, g^{\sigma^2}_c\bigr).

    Examples
    --------
    >>> import pytensor.tensor as pt
    >>> from ptml.ops.moments import Moments
    >>> mean, variance = Moments()(pt.constant([[0.0, 1.0], [2.0, 1.0]]), 2)
    >>> mean.eval(), variance.eval()
    (array([1., 1.]), array([1., 0.]))
    """

    def output_types(self, X: TensorVariable, n: TensorVariable) -> Sequence[Type]:
        kind = X.type.clone(shape=X.type.shape[-1:])
        return [kind, kind]

    def infer_shape(self, node: Apply, shapes: Any) -> list[Any]:
        return [tuple(shapes[0][-1:])] * 2

    def connection_pattern(self, node: Apply) -> list[list[bool]]:
        return [[True, True], [False, False]]

    def build(self, X: TensorVariable, n: TensorVariable) -> list[Variable]:
        axes, n = tuple(range(X.type.ndim - 1)), n.astype(X.type.dtype)
        mean = X.sum(axis=axes) / n
        return [mean, pt.sqr(X - mean).sum(axis=axes) / n]

    def pullback(self, inputs: Any, outputs: Any, cotangents: Any) -> list[Variable]:
        X, n = inputs[0], inputs[1].astype(inputs[0].type.dtype)
        of_mean, of_variance = cotangents
        terms = []
        if not isinstance(of_variance.type, DisconnectedType):
            terms.append((X - outputs[0]) * (np.asarray(2, X.type.dtype) * of_variance / n))
        if not isinstance(of_mean.type, DisconnectedType):
            terms.append(of_mean / n if terms else pt.broadcast_to(of_mean / n, X.shape))
        return [sum(terms[1:], terms[0]), disconnected_type()]
