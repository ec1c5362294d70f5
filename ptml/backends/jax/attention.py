"""Attention in JAX: heads that share keys and values are an axis of the products, and nothing is repeated.

JAX has a function for it too, which computes in single precision whatever it is given, and gives the mean of
all values where there is nothing to attend to.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from pytensor.graph.basic import Apply

from ptml.backends.native import native
from ptml.ops.attention.ops import Attention, AttentionGradient, AttentionMaskGradient

Arrays = tuple[jax.Array, ...]


class _Weights:
    """Weights with an axis of groups, ``(..., kv_heads, group, time_q, time_k)``."""

    def __init__(self, op: Attention, q: jax.Array, k: jax.Array, mask: jax.Array | None) -> None:
        self.scale = 1 / math.sqrt(q.shape[-1]) if op.scale is None else op.scale
        self.group = (k.shape[-3], q.shape[-3] // k.shape[-3])
        scores = self.of_keys(self.folded(q), k) * self.scale
        if mask is not None:
            heads = self.group if mask.shape[-3] != 1 else (1, 1)
            mask = mask.reshape(*mask.shape[:-3], *heads, *mask.shape[-2:])
            scores = jnp.where(mask, scores, -jnp.inf) if mask.dtype == bool else scores + mask
        if op.is_causal:
            n, m = scores.shape[-2:]
            scores = jnp.where(jnp.tri(n, m, m - n, dtype=bool), scores, -jnp.inf)
        most = scores.max(axis=-1, keepdims=True, initial=-jnp.inf)
        most = jnp.where(most == -jnp.inf, 0.0, most)
        powers = jnp.exp(scores - most)
        total = powers.sum(axis=-1, keepdims=True)
        empty = total == 0
        total = jnp.where(empty, 1.0, total)
        self.weights = powers / total
        self.log_sum = self.unfolded(jnp.where(empty, -jnp.inf, most + jnp.log(total)))[..., 0]

    def folded(self, x: jax.Array) -> jax.Array:
        return x.reshape(*x.shape[:-3], *self.group, *x.shape[-2:])

    def unfolded(self, x: jax.Array) -> jax.Array:
        return x.reshape(*x.shape[:-4], math.prod(self.group), *x.shape[-2:])

    @staticmethod
    def of_keys(x: jax.Array, y: jax.Array) -> jax.Array:
        """Multiply what queries have by what keys have."""
        return jnp.einsum("...hgqd,...hkd->...hgqk", x, y)

    @staticmethod
    def over_keys(x: jax.Array, y: jax.Array) -> jax.Array:
        """Sum over keys."""
        return jnp.einsum("...hgqk,...hkd->...hgqd", x, y)

    @staticmethod
    def over_queries(x: jax.Array, y: jax.Array) -> jax.Array:
        """Sum over queries."""
        return jnp.einsum("...hgqk,...hgqd->...hkd", x, y)

    def slopes(self, v: jax.Array, g: jax.Array) -> jax.Array:
        """Give the derivatives by the scores."""
        g = self.folded(g)
        mean = (g * self.over_keys(self.weights, v)).sum(axis=-1, keepdims=True)
        return self.weights * (self.of_keys(g, v) - mean)


@native("jax", Attention)
def jax_attention(op: Attention, node: Apply, **kwargs: Any) -> Callable[..., Arrays]:
    def attend(q: jax.Array, k: jax.Array, v: jax.Array, mask: jax.Array | None = None) -> Arrays:
        parts = _Weights(op, q, k, mask)
        return parts.unfolded(parts.over_keys(parts.weights, v)), parts.log_sum

    return attend


@native("jax", AttentionGradient)
def jax_attention_gradient(op: AttentionGradient, node: Apply, **kwargs: Any) -> Callable[..., Arrays]:
    def gradients(*inputs: jax.Array) -> Arrays:
        (q, k, v, *masks), g = inputs[:-3], inputs[-3]
        parts = _Weights(op, q, k, masks[0] if masks else None)
        slopes = parts.slopes(v, g) * parts.scale
        of_q, of_k = parts.over_keys(slopes, k), parts.over_queries(slopes, parts.folded(q))
        return parts.unfolded(of_q), of_k, parts.over_queries(parts.weights, parts.folded(g))

    return gradients


@native("jax", AttentionMaskGradient)
def jax_attention_mask_gradient(
    op: AttentionMaskGradient, node: Apply, **kwargs: Any
) -> Callable[..., jax.Array]:
    def gradient(q: jax.Array, k: jax.Array, v: jax.Array, mask: jax.Array, g: jax.Array) -> jax.Array:
        parts = _Weights(op, q, k, mask)
        slopes = parts.unfolded(parts.slopes(v, g))
        broadcast = tuple(axis for axis, size in enumerate(mask.shape) if size == 1)
        return slopes.sum(axis=broadcast, keepdims=True)

    return gradient
