"""Softmax and what is made of it, over the last axis, as fused ops with gradients made by hand."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytensor.tensor as pt
from pytensor.gradient import DisconnectedType
from pytensor.graph.basic import Apply, Variable
from pytensor.graph.replace import _vectorize_node
from pytensor.graph.type import Type
from pytensor.tensor.variable import TensorVariable

from ptml.fused import Fused, one_float_dtype

__all__ = ["LogSoftmax", "LogSoftmaxGradient", "Softmax", "SoftmaxGradient", "along_axis"]


class _OfRows(Fused):
    """A fused op that maps rows to rows, each by itself; its first input says how many there are."""

    def output_types(self, *inputs: Any) -> Sequence[Type]:
        return [inputs[0].type] if one_float_dtype(inputs) else super().output_types(*inputs)

    def infer_shape(self, node: Apply, shapes: Any) -> list[Any]:
        return [shapes[0]]


class Softmax(_OfRows):
    r"""Exponentials that sum to one along the last axis: :math:`e^{x_c - m} / \sum_k e^{x_k - m}`.

    Examples
    --------
    >>> import numpy as np
    >>> import pytensor.tensor as pt
    >>> from ptml.ops.softmax import Softmax
    >>> Softmax()(pt.constant([0.0, np.log(3.0)])).eval()
    array([0.25, 0.75])
    """

    def build(self, x: TensorVariable) -> list[Variable]:
        exponentials = pt.exp(x - x.max(axis=-1, keepdims=True))
        return [exponentials / exponentials.sum(axis=-1, keepdims=True)]

    def pullback(self, inputs: Any, outputs: Any, cotangents: Any) -> list[Variable]:
        return [SoftmaxGradient()(outputs[0], cotangents[0])]


class SoftmaxGradient(_OfRows):
    r"""The gradient through a softmax, of its result :math:`p` and what comes back, :math:`g`.

    .. math:: p_c \Bigl(g_c - \sum_k p_k g_k\Bigr)

    Examples
    --------
    >>> import pytensor.tensor as pt
    >>> from ptml.ops.softmax import SoftmaxGradient
    >>> SoftmaxGradient()(pt.constant([0.25, 0.75]), pt.constant([1.0, 0.0])).eval()
    array([ 0.1875, -0.1875])
    """

    def build(self, p: TensorVariable, g: TensorVariable) -> list[Variable]:
        weighted = p * g
        return [weighted - p * weighted.sum(axis=-1, keepdims=True)]


class LogSoftmax(Fused):
    r"""The logarithm of the softmax along the last axis, :math:`x_c - m - \log \sum_k e^{x_k - m}`.

    Its second output is the softmax, which the gradient needs.

    Examples
    --------
    >>> import pytensor.tensor as pt
    >>> from ptml.ops.softmax import LogSoftmax
    >>> log_p, p = LogSoftmax()(pt.constant([0.0, 0.0]))
    >>> log_p.eval().round(4)
    array([-0.6931, -0.6931])
    """

    def output_types(self, *inputs: Any) -> Sequence[Type]:
        return [inputs[0].type, inputs[0].type]

    def infer_shape(self, node: Apply, shapes: Any) -> list[Any]:
        return [shapes[0], shapes[0]]

    def build(self, x: TensorVariable) -> list[Variable]:
        shifted = x - x.max(axis=-1, keepdims=True)
        exponentials = pt.exp(shifted)
        total = exponentials.sum(axis=-1, keepdims=True)
        return [shifted - pt.log(total), exponentials / total]

    def pullback(self, inputs: Any, outputs: Any, cotangents: Any) -> list[Variable]:
        gradients = (LogSoftmaxGradient(), SoftmaxGradient())
        terms = [
            gradient(outputs[1], g)
            for gradient, g in zip(gradients, cotangents, strict=True)
            if not isinstance(g.type, DisconnectedType)
        ]
        return [sum(terms[1:], terms[0])]


class LogSoftmaxGradient(_OfRows):
    r"""The gradient through a log-softmax, of the softmax :math:`p` and what comes back, :math:`g`.

    .. math:: g_c - p_c \sum_k g_k

    Examples
    --------
    >>> import pytensor.tensor as pt
    >>> from ptml.ops.softmax import LogSoftmaxGradient
    >>> LogSoftmaxGradient()(pt.constant([0.25, 0.75]), pt.constant([1.0, 0.0])).eval()
    array([ 0.75, -0.75])
    """

    def build(self, p: TensorVariable, g: TensorVariable) -> list[Variable]:
        return [g - p * g.sum(axis=-1, keepdims=True)]


@_vectorize_node.register(Softmax)
@_vectorize_node.register(LogSoftmax)
def _vectorize_rows(op: Fused, node: Apply, x: Variable) -> Apply:
    return op.make_node(x)


def along_axis(op: Callable[[Any], Any], x: TensorVariable, axis: int) -> TensorVariable:
    """Apply an op of the last axis along another one.

    Parameters
    ----------
    op : callable
        From a tensor to a tensor, such as ``Softmax()``.
    x : tensor
    axis : int

    Examples
    --------
    >>> import pytensor.tensor as pt
    >>> from ptml.ops.softmax import Softmax, along_axis
    >>> along_axis(Softmax(), pt.constant([[0.0, 1.0], [0.0, 1.0]]), 0).eval()
    array([[0.5, 0.5],
           [0.5, 0.5]])
    """
    if axis in (-1, x.type.ndim - 1):
        return op(x)
    return pt.moveaxis(op(pt.moveaxis(x, axis, -1)), -1, axis)
