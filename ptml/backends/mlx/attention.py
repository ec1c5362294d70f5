"""Attention by MLX's own function, where every query has a key to attend to."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import mlx.core as mx
from pytensor.graph.basic import Apply

from ptml.backends.native import native
from ptml.ops.attention.ops import Attention, AttentionGradient

Arrays = tuple[mx.array, ...]


def _takes(node: Apply) -> bool:
    """Leave masks alone: what MLX gives where all keys are masked is NaN."""
    q, k = node.inputs[:2]
    if len(node.inputs) != (3 if isinstance(node.op, Attention) else 6) or q.type.ndim != 4:
        return False
    lengths = q.type.shape[-2], k.type.shape[-2]
    every = not node.op.is_causal or (None not in lengths and lengths[0] <= lengths[1])
    return every and q.type.dtype == "float32"


def _attending(op: Any) -> Callable[[mx.array, mx.array, mx.array], mx.array]:
    def attend(q: mx.array, k: mx.array, v: mx.array) -> mx.array:
        return mx.fast.scaled_dot_product_attention(
            q, k, v, scale=_scale(op, q), mask="causal" if op.is_causal else None
        )

    return attend


def _scale(op: Any, q: mx.array) -> float:
    return 1 / math.sqrt(q.shape[-1]) if op.scale is None else op.scale


def _log_sums(op: Any, q: mx.array, k: mx.array) -> mx.array:
    """Give the logarithms of the sums of exponentials; nothing is computed unless something reads them."""
    batch, heads, time, width = q.shape
    grouped = mx.reshape(q, (batch, k.shape[1], heads // k.shape[1], time, width))
    scores = _scale(op, q) * (grouped @ mx.swapaxes(mx.expand_dims(k, 2), -1, -2))
    if op.is_causal:
        scores = mx.where(mx.tri(time, k.shape[2], k.shape[2] - time) > 0, scores, -math.inf)
    return mx.reshape(mx.logsumexp(scores, axis=-1), (batch, heads, time))


@native("mlx", Attention, takes=_takes)
def mlx_attention(op: Attention, node: Apply, **kwargs: Any) -> Callable[..., Arrays]:
    attend = _attending(op)
    return lambda q, k, v: (attend(q, k, v), _log_sums(op, q, k))


@native("mlx", AttentionGradient, takes=_takes)
def mlx_attention_gradient(op: AttentionGradient, node: Apply, **kwargs: Any) -> Callable[..., Arrays]:
    attend = _attending(op)

    def gradients(q: mx.array, k: mx.array, v: mx.array, g: mx.array, *results: mx.array) -> Arrays:
        return tuple(mx.vjp(attend, [q, k, v], [g])[1])

    return gradients
