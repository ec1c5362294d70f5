"""MLX kernels of resizing: lengths are known while a program is traced, and positions constants."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import mlx.core as mx
import numpy as np

from ptml.backends.native import native
from ptml.ops.resizing import Resize, ResizeGradient


@native("mlx", Resize)
def mlx_resize(op: Resize, **kwargs: Any) -> Callable:
    def resized(x: mx.array) -> mx.array:
        n, shape = x.shape[op.axis], [-1 if axis == op.axis else 1 for axis in range(x.ndim)]
        zero, parts = mx.zeros((), dtype=x.dtype), []
        for positions, weights in op.sources(np.arange(op.length(n)), n):
            part = mx.take(x, mx.array(positions), axis=op.axis)
            if weights is not None:
                column = mx.array(weights.astype("float32")).astype(x.dtype).reshape(shape)
                part = mx.where(column == zero, zero, column * part)
            parts.append(part)
        return sum(parts[1:], parts[0])

    return resized


@native("mlx", ResizeGradient)
def mlx_resize_gradient(op: ResizeGradient, **kwargs: Any) -> Callable:
    resized = mlx_resize(Resize(*(getattr(op, name) for name in op.__props__)))

    def back(x: mx.array, g: mx.array) -> mx.array:
        return mx.vjp(resized, [mx.zeros_like(x)], [g])[1][0]

    return back
