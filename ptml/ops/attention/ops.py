"""Attention and its gradients, as fused ops: a kernel of them needs no memory for scores."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pytensor.gradient import DisconnectedType, disconnected_type
from pytensor.graph.basic import Apply, Variable
from pytensor.graph.type import Type
from pytensor.tensor.variable import TensorVariable

from ptml.fused import Fused
from ptml.ops.attention.scores import Parts

__all__ = ["Attention", "AttentionGradient", "AttentionMaskGradient"]


class _Attending(Fused):
    """A fused op of queries, keys, values and possibly a mask, which are its first inputs."""

    __props__ = ("is_causal", "scale")

    def __init__(self, is_causal: bool = False, scale: float | None = None) -> None:
        self.is_causal = is_causal
        self.scale = scale

    def parts(self, q: TensorVariable, k: TensorVariable, mask: TensorVariable | None) -> Parts:
        return Parts(q, k, mask, self.is_causal, self.scale)


class Attention(_Attending):
    r"""Sums of values, weighted by how well queries and keys agree.

    The op is applied to ``(q, k, v)``, or to ``(q, k, v, mask)``, all of as many axes: ``(..., heads, time_q,
    d)``, ``(..., kv_heads, time_k, d)``, ``(..., kv_heads, time_k, d_v)``, and a mask that broadcasts to
    ``(..., heads, time_q, time_k)``: of booleans, or of numbers of the same dtype as the rest. Each of the
    `kv_heads` serves ``heads / kv_heads`` neighbouring heads of queries. It gives

    .. math:: \sum_j \frac{e^{s_{ij}}}{\sum_k e^{s_{ik}}} v_j, \quad s_{ij} = c\, q_i \cdot k_j + m_{ij}

    of shape ``(..., heads, time_q, d_v)``, and the logarithm of the sum of the exponentials, ``(..., heads,
    time_q)``. What may not be attended to has a score of minus infinity. Where a query may attend to nothing,
    its result is 0, and the logarithm minus infinity.

    Parameters
    ----------
    is_causal : bool
        Whether the last query may attend to all keys, the one before it to all but the last, and so on.
    scale : float, optional
        The factor :math:`c`; :math:`1 / \sqrt{d}` unless given.

    References
    ----------
    Vaswani et al., "Attention is all you need" (2017), equation 1. The gradient: Dao et al., "FlashAttention"
    (2022), appendix B.

    Examples
    --------
    >>> import numpy as np
    >>> import pytensor.tensor as pt
    >>> from ptml.ops.attention import Attention
    >>> q = k = pt.constant(np.zeros((1, 2, 1)))
    >>> result, log_sum = Attention()(q, k, pt.constant([[[1.0], [3.0]]]))
    >>> result.eval().ravel()
    array([2., 2.])
    """

    def output_types(self, *inputs: Any) -> Sequence[Type]:
        q, v = inputs[0], inputs[2]
        result = q.type.clone(shape=(*q.type.shape[:-1], v.type.shape[-1]))
        return [result, q.type.clone(shape=q.type.shape[:-1])]

    def infer_shape(self, node: Apply, shapes: Any) -> list[Any]:
        return [(*shapes[0][:-1], shapes[2][-1]), tuple(shapes[0][:-1])]

    def connection_pattern(self, node: Apply) -> list[list[bool]]:
        masks = [[variable.type.dtype != "bool"] * 2 for variable in node.inputs[3:]]
        return [[True, True], [True, True], [True, False], *masks]

    def build(
        self, q: TensorVariable, k: TensorVariable, v: TensorVariable, mask: TensorVariable | None = None
    ) -> list[Variable]:
        parts = self.parts(q, k, mask)
        return [parts.weighed(v), parts.log_sum]

    def pullback(self, inputs: Any, outputs: Any, cotangents: Any) -> list[Variable]:
        of_result, of_log_sum = cotangents
        if isinstance(of_result.type, DisconnectedType) or not isinstance(of_log_sum.type, DisconnectedType):
            return self.defined_pullback(inputs, cotangents)
        gradients = [*AttentionGradient(self.is_causal, self.scale)(*inputs, of_result, *outputs)]
        for mask in inputs[3:]:
            additive = mask.type.dtype != "bool"
            of_mask = AttentionMaskGradient(self.is_causal, self.scale)
            gradients.append(of_mask(*inputs, of_result) if additive else disconnected_type())
        return gradients


class AttentionGradient(_Attending):
    r"""The gradients of :class:`Attention` by queries, keys and values.

    The op is applied to what attention is applied to, to what comes back for the result, :math:`g`, and to
    the results of attention, from which a kernel computes blocks of the weights :math:`p_{ij}` again. The
    gradients are

    .. math:: \sum_j c\, d_{ij} k_j, \quad \sum_i c\, d_{ij} q_i, \quad \sum_i p_{ij} g_i, \quad
        d_{ij} = p_{ij} \Bigl(g_i \cdot v_j - \sum_k p_{ik}\, g_i \cdot v_k\Bigr).

    Parameters
    ----------
    is_causal, scale
        As of attention.

    Examples
    --------
    >>> import numpy as np
    >>> import pytensor
    >>> import pytensor.tensor as pt
    >>> from ptml.ops.attention import Attention
    >>> q = k = pt.constant(np.zeros((1, 2, 1)))
    >>> v = pt.tensor("v", shape=(1, 2, 1), dtype="float64")
    >>> of_v = pytensor.grad(Attention()(q, k, v)[0].sum(), v)
    >>> of_v.eval({v: np.ones((1, 2, 1))}).ravel()
    array([1., 1.])
    """

    def output_types(self, *inputs: Any) -> Sequence[Type]:
        return [variable.type for variable in inputs[:3]]

    def infer_shape(self, node: Apply, shapes: Any) -> list[Any]:
        return shapes[:3]

    def connection_pattern(self, node: Apply) -> list[list[bool]]:
        masks = [[variable.type.dtype != "bool"] * 3 for variable in node.inputs[3:-3]]
        results = [[False] * 3] * 2
        return [[True] * 3, [True] * 3, [True, True, False], *masks, [True] * 3, *results]

    def build(self, *inputs: Any) -> list[Variable]:
        # The weights are written as attention writes them, so that both have them together.
        (q, k, v, *masks), g = inputs[:-3], inputs[-3]
        parts = self.parts(q, k, masks[0] if masks else None)
        slopes, weights = parts.folded(parts.slopes(v, g)), parts.folded(parts.weights)
        of_q = parts.unfolded(slopes @ parts.shared(k)) * parts.scale
        of_k = parts.summed(slopes.swapaxes(-1, -2) @ parts.q)
        return [of_q, of_k, parts.summed(weights.swapaxes(-1, -2) @ parts.folded(g))]


class AttentionMaskGradient(_Attending):
    """The gradient of :class:`Attention` by an additive mask: that of the scores, summed where it broadcasts.

    The op is applied to ``(q, k, v, mask)`` and to what comes back for the result.

    Parameters
    ----------
    is_causal, scale
        As of attention.

    Examples
    --------
    >>> import numpy as np
    >>> import pytensor
    >>> import pytensor.tensor as pt
    >>> from ptml.ops.attention import Attention
    >>> q = k = pt.constant(np.zeros((1, 2, 1)))
    >>> mask = pt.tensor("mask", shape=(1, 1, 2), dtype="float64")
    >>> result, _ = Attention()(q, k, pt.constant([[[1.0], [3.0]]]), mask)
    >>> pytensor.grad(result.sum(), mask).eval({mask: np.zeros((1, 1, 2))}).ravel()
    array([-1.,  1.])
    """

    def output_types(self, *inputs: Any) -> Sequence[Type]:
        return [inputs[3].type]

    def infer_shape(self, node: Apply, shapes: Any) -> list[Any]:
        return [shapes[3]]

    def build(
        self, q: TensorVariable, k: TensorVariable, v: TensorVariable, mask: TensorVariable, g: TensorVariable
    ) -> list[Variable]:
        slopes = self.parts(q, k, mask).slopes(v, g)
        broadcast = [axis for axis, size in enumerate(mask.type.shape) if size == 1]
        return [slopes.sum(axis=broadcast, keepdims=True) if broadcast else slopes]
