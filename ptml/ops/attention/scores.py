"""The graph of attention, in parts: scores, what may be attended to, weights, and their sums.

Where several heads of queries share one of keys and values, there is an axis of groups, along which those are
broadcast: no key or value is repeated.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytensor.tensor as pt
from pytensor.gradient import disconnected_grad
from pytensor.tensor.variable import TensorVariable

__all__ = ["Parts", "number", "sizes_of"]


def number(value: float, like: TensorVariable) -> TensorVariable:
    """Give a constant of another tensor's dtype."""
    return pt.constant(value, dtype=like.type.dtype)


def sizes_of(x: TensorVariable) -> list[Any]:
    """Give a tensor's sizes: numbers where they are known, which some backends need."""
    return [x.shape[axis] if size is None else size for axis, size in enumerate(x.type.shape)]


def _positions(n: Any) -> TensorVariable:
    """Number so many positions."""
    if isinstance(n, int):
        return pt.constant(np.arange(n, dtype="int64"))
    return pt.cumsum(pt.ones((n,), dtype="int64")) - np.int64(1)


def _transposed(x: TensorVariable) -> TensorVariable:
    return x.swapaxes(-1, -2)


class Parts:
    """Scores and weights of queries and keys, as graphs.

    Parameters
    ----------
    q, k : tensor, (..., heads, time_q, d) and (..., kv_heads, time_k, d)
    mask : tensor or None
        As many axes as the scores have.
    is_causal : bool
    scale : float or None

    Attributes
    ----------
    q : tensor
        The queries, grouped and scaled.
    scale : tensor
    weights : tensor, (..., heads, time_q, time_k)
        Each row sums to 1, or to 0 where there is nothing to attend to.
    log_sum : tensor, (..., heads, time_q)
        The logarithm of the sum of a row's exponentials.
    """

    def __init__(
        self,
        q: TensorVariable,
        k: TensorVariable,
        mask: TensorVariable | None,
        is_causal: bool,
        scale: float | None,
    ) -> None:
        self._sizes, self._others = sizes_of(q), sizes_of(k)
        #: Whether several heads of queries share one of keys, or may.
        self._grouped = q.type.shape[-3] is None or q.type.shape[-3] != k.type.shape[-3]
        self.scale = self._scale_of(q, scale)
        self.q = self.folded(q * self.scale)
        scores = self.unfolded(self.q @ _transposed(self.shared(k)))
        scores = self._masked(scores, mask, is_causal)
        most = disconnected_grad(scores.max(axis=-1, keepdims=True))
        nothing = number(-np.inf, q)
        zero, one = number(0.0, q), number(1.0, q)
        if mask is not None or is_causal:
            most = pt.switch(pt.eq(most, nothing), zero, most)
        powers = pt.exp(scores - most)
        total = powers.sum(axis=-1, keepdims=True)
        empty = pt.eq(total, zero)
        total = pt.switch(empty, one, total)
        self.weights = powers / total
        self.log_sum = pt.switch(empty, nothing, most + pt.log(total))[..., 0]

    def _scale_of(self, q: TensorVariable, scale: float | None) -> TensorVariable:
        width = self._sizes[-1]
        if scale is not None:
            return number(scale, q)
        if isinstance(width, int):
            return number(1 / np.sqrt(max(width, 1)), q)
        return number(1.0, q) / pt.sqrt(width.astype(q.type.dtype))

    def _masked(self, scores: TensorVariable, mask: TensorVariable | None, is_causal: bool) -> TensorVariable:
        nothing = number(-np.inf, scores)
        if mask is not None:
            additive = mask.type.dtype != "bool"
            scores = scores + mask if additive else pt.switch(mask, scores, nothing)
        if is_causal:
            time_q, time_k = self._sizes[-2], self._others[-2]
            last = _positions(time_q) + (time_k - time_q)
            allowed = pt.le(_positions(time_k)[None, :], last[:, None])
            scores = pt.switch(pt.shape_padleft(allowed, scores.type.ndim - 2), scores, nothing)
        return scores

    def folded(self, x: TensorVariable) -> TensorVariable:
        """Take what is ``(..., heads, time_q, n)`` as ``(..., kv_heads, group, time_q, n)``."""
        if not self._grouped:
            return x
        heads, groups = self._sizes[-3], self._others[-3]
        return x.reshape((*self._sizes[:-3], groups, heads // groups, self._sizes[-2], sizes_of(x)[-1]))

    def unfolded(self, x: TensorVariable) -> TensorVariable:
        """Take what is ``(..., kv_heads, group, time_q, n)`` as ``(..., heads, time_q, n)``."""
        if not self._grouped:
            return x
        return x.reshape((*self._sizes[:-1], sizes_of(x)[-1]))

    def shared(self, x: TensorVariable) -> TensorVariable:
        """Take what is ``(..., kv_heads, time_k, n)`` beside what is folded."""
        return pt.expand_dims(x, -3) if self._grouped else x

    def summed(self, x: TensorVariable) -> TensorVariable:
        """Sum what comes back for keys or values over the queries of a group."""
        return x.sum(axis=-3) if self._grouped else x

    def weighed(self, v: TensorVariable) -> TensorVariable:
        """Sum values by their weights, ``(..., heads, time_q, d_v)``."""
        return self.unfolded(self.folded(self.weights) @ self.shared(v))

    def slopes(self, v: TensorVariable, g: TensorVariable) -> TensorVariable:
        """Give the derivatives by the scores, of what comes back for the result."""
        of_weights = self.unfolded(self.folded(g) @ _transposed(self.shared(v)))
        mean = (g * self.weighed(v)).sum(axis=-1, keepdims=True)
        return self.weights * (of_weights - mean)
