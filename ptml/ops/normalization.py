"""Normalization of rows, each by itself, as fused ops: one walk over memory forward, and one back."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytensor.tensor as pt
from pytensor.gradient import DisconnectedType
from pytensor.graph.basic import Apply, Variable
from pytensor.graph.type import Type
from pytensor.tensor.variable import TensorVariable

from ptml.fused import Fused

__all__ = ["Normalize", "NormalizeGradient"]


class _OfRows(Fused):
    """A fused op of rows that are normalized."""

    __props__ = ("epsilon", "centred")

    def __init__(self, epsilon: float, centred: bool = True) -> None:
        self.epsilon = epsilon
        self.centred = centred

    def standardized(self, X: TensorVariable) -> tuple[TensorVariable, TensorVariable, TensorVariable | None]:
        """Give rows of mean square 1, one over what they were divided by, and the mean."""
        mean = X.mean(axis=-1, keepdims=True) if self.centred else None
        rest = X if mean is None else X - mean
        inverse = pt.reciprocal(pt.sqrt(_mean(pt.sqr(rest)) + np.asarray(self.epsilon, X.type.dtype)))
        return rest * inverse, inverse, mean


def _mean(x: TensorVariable) -> TensorVariable:
    return x.mean(axis=-1, keepdims=True)


def _over_rows(x: TensorVariable) -> TensorVariable:
    return x.sum(axis=tuple(range(x.type.ndim - 1)))


class Normalize(_OfRows):
    r"""Rows divided by the root of their mean square, with or without their mean; then scaled and shifted.

    The op is applied to ``(X,)``, ``(X, scale)`` or ``(X, scale, b)``: floats of shape ``(..., features)``,
    and vectors of as many. With :math:`d_c = x_c - \mu`, where the mean of the row is subtracted, else
    :math:`d_c = x_c`, it gives

    .. math:: \frac{d_c}{\sqrt{\frac{1}{n} \sum_k d_k^2 + \epsilon}}\, s_c + b_c,

    of shape ``(..., features)``; and for each row one over that root, and the mean if it is subtracted.

    Parameters
    ----------
    epsilon : float
    centred : bool
        Whether the mean is subtracted. Default True.

    References
    ----------
    Ba, Kiros and Hinton, "Layer normalization" (2016). Zhang and Sennrich, "Root mean square layer
    normalization" (2019).

    Examples
    --------
    >>> import pytensor.tensor as pt
    >>> from ptml.ops.normalization import Normalize
    >>> rows, inverse, mean = Normalize(0.0)(pt.constant([[1.0, 5.0]]))
    >>> rows.eval(), inverse.eval(), mean.eval()
    (array([[-1.,  1.]]), array([0.5]), array([3.]))
    """

    def output_types(self, *inputs: Any) -> Sequence[Type]:
        X = inputs[0].type
        of_row = X.clone(shape=X.shape[:-1])
        return [X, of_row, of_row] if self.centred else [X, of_row]

    def infer_shape(self, node: Apply, shapes: Any) -> list[Any]:
        return [shapes[0], *[tuple(shapes[0][:-1])] * (len(node.outputs) - 1)]

    def connection_pattern(self, node: Apply) -> list[list[bool]]:
        rest = len(node.outputs) - 1
        return [[True] * (rest + 1), *[[True] + [False] * rest] * (len(node.inputs) - 1)]

    def build(self, X: TensorVariable, *affine: TensorVariable) -> list[Variable]:
        rows, *of_row = self.standardized(X)
        if affine:
            rows = rows * affine[0]
        if affine[1:]:
            rows = rows + affine[1]
        return [rows, *(value[..., 0] for value in of_row if value is not None)]

    def pullback(self, inputs: Any, outputs: Any, cotangents: Any) -> list[Variable]:
        of_rows, *rest = cotangents
        only = all(isinstance(cotangent.type, DisconnectedType) for cotangent in rest)
        if not only or isinstance(of_rows.type, DisconnectedType):
            return self.defined_pullback(inputs, cotangents)
        op = NormalizeGradient(self.epsilon, self.centred)
        gradients = op(*inputs[:2], of_rows, *outputs[1:], return_list=True)
        return gradients[: len(inputs)]


class NormalizeGradient(_OfRows):
    r"""The gradients of :class:`Normalize` by rows, and by the scale and the shift if there are any.

    The op is applied to ``(X,)`` or ``(X, scale)``, to what comes back, :math:`g`, and to what normalization
    gives besides rows, with which a kernel need not compute it again. With :math:`y` the rows before they are
    scaled, and :math:`r` one over what they were divided by, the gradients are, where the mean is subtracted
    (else without the second term),

    .. math:: r \Bigl(s_c g_c - \frac{1}{n} \sum_k s_k g_k - \frac{y_c}{n} \sum_k s_k g_k y_k\Bigr), \quad
        \sum y_c g_c, \quad \sum g_c,

    the last two summed over rows.

    Parameters
    ----------
    epsilon, centred
        As of the op whose gradient it is.

    Examples
    --------
    >>> import pytensor
    >>> import pytensor.tensor as pt
    >>> from ptml.ops.normalization import Normalize
    >>> X, scale = pt.matrix("X", dtype="float64"), pt.vector("scale", dtype="float64")
    >>> rows = Normalize(0.0)(X, scale)[0]
    >>> pytensor.grad(rows[0, 1], scale).eval({X: [[1.0, 5.0]], scale: [1.0, 1.0]})
    array([0., 1.])
    """

    @staticmethod
    def _is_affine(n_inputs: int, centred: bool) -> bool:
        return n_inputs == (5 if centred else 4)

    def output_types(self, *inputs: Any) -> Sequence[Type]:
        affine = self._is_affine(len(inputs), self.centred)
        return [inputs[0].type, *[inputs[1].type] * (2 if affine else 0)]

    def infer_shape(self, node: Apply, shapes: Any) -> list[Any]:
        return [shapes[0], *[shapes[1]] * (len(node.outputs) - 1)]

    def connection_pattern(self, node: Apply) -> list[list[bool]]:
        if len(node.outputs) == 1:
            return [[True], [True], *[[False]] * (len(node.inputs) - 2)]
        return [
            [True, True, False],
            [True, False, False],
            [True] * 3,
            *[[False] * 3] * (len(node.inputs) - 3),
        ]

    def build(self, *inputs: Any) -> list[Variable]:
        affine = self._is_affine(len(inputs), self.centred)
        X, g = inputs[0], inputs[2 if affine else 1]
        rows, inverse, _ = self.standardized(X)
        back = g * inputs[1] if affine else g
        rest = back - rows * _mean(back * rows)
        of_X = inverse * (rest - _mean(back) if self.centred else rest)
        return [of_X, _over_rows(g * rows), _over_rows(g)] if affine else [of_X]
