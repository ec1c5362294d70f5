"""MLX's kernel of positions: shapes are known there, but not what is computed of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import mlx.core as mx

from ptml.backends.native import native
from ptml.ops.pooling.windows import Numbers


@native("mlx", Numbers)
def mlx_numbers(op: Numbers, **kwargs: Any) -> Callable:
    return lambda x: mx.arange(x.shape[op.axis], dtype=mx.int64)
