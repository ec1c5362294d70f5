"""The surprisal of a softmax, exact also where logits are infinite."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytensor.tensor as pt
from pytensor.gradient import DisconnectedType, disconnected_type
from pytensor.graph.basic import Apply, Variable
from pytensor.graph.op import Op
from pytensor.graph.replace import _vectorize_node
from pytensor.tensor.symbolic import FusibleSymbolicOp
from pytensor.tensor.variable import TensorVariable

__all__ = ["Surprisal", "surprisal"]


class Surprisal(FusibleSymbolicOp):
    r"""Compute ``-log(softmax(logits))`` over the last axis, and the softmax.

    With :math:`m = \max_c z_c`,

    .. math:: -\log p_c = \log \sum_k e^{z_k - m} - (z_c - m)

    for finite logits. Infinite ones have their limit: a logit of :math:`-\infty` has probability 0, and those
    of :math:`+\infty` share all of it. Where all are :math:`-\infty` there is no limit, and the result is
    NaN.

    A gradient :math:`g` of the surprisals gives :math:`p_c \sum_k g_k - g_c` for the logits. No infinity
    takes part in that, so it is finite wherever the limit exists.
    """

    __props__ = ()

    # What nothing inlines (under PyTensor's fast_compile) runs `perform`; the base class would compile.
    make_thunk = Op.make_thunk

    def build_inner_graph(self, logits: TensorVariable) -> list[Variable]:
        dtype = logits.type.dtype
        at_infinity = pt.eq(logits, pt.constant(np.inf, dtype=dtype))
        shifted = logits - logits.max(axis=-1, keepdims=True)
        shifted = pt.switch(at_infinity, pt.constant(0.0, dtype=dtype), shifted)
        exponentials = pt.exp(shifted)
        total = exponentials.sum(axis=-1, keepdims=True)
        return [pt.log(total) - shifted, exponentials / total]

    def perform(self, node: Apply, inputs: Sequence[Any], output_storage: Any) -> None:
        (logits,) = inputs
        with np.errstate(invalid="ignore"):
            shifted = logits - logits.max(axis=-1, keepdims=True)
            shifted[logits == np.inf] = 0.0
            exponentials = np.exp(shifted)
            total = exponentials.sum(axis=-1, keepdims=True)
            output_storage[0][0] = np.log(total) - shifted
            output_storage[1][0] = exponentials / total

    def pullback(self, inputs: Any, outputs: Any, cotangents: Any) -> list[Variable]:
        probabilities = outputs[1]
        of_surprisals, of_probabilities = cotangents
        terms = []
        if not isinstance(of_surprisals.type, DisconnectedType):
            terms.append(probabilities * of_surprisals.sum(axis=-1, keepdims=True) - of_surprisals)
        if not isinstance(of_probabilities.type, DisconnectedType):
            weighted = probabilities * of_probabilities
            terms.append(weighted - probabilities * weighted.sum(axis=-1, keepdims=True))
        return [sum(terms[1:], terms[0])] if terms else [disconnected_type()]


@_vectorize_node.register(Surprisal)
def _vectorize_surprisal(op: Surprisal, node: Apply, logits: Variable) -> list[Variable]:
    return Surprisal()(logits)


def surprisal(logits: TensorVariable) -> TensorVariable:
    """Compute the surprisal, minus the logarithm of the softmax, over the last axis.

    Parameters
    ----------
    logits : float tensor, (..., classes)

    Returns
    -------
    float tensor, (..., classes)

    Examples
    --------
    >>> import numpy as np
    >>> import pytensor.tensor as pt
    >>> from ptml.loss.softmax import surprisal
    >>> z = pt.vector("z")
    >>> surprisal(z).eval({z: np.array([3.0, -np.inf, -np.inf])})
    array([ 0., inf, inf])
    """
    return Surprisal()(logits)[0]
