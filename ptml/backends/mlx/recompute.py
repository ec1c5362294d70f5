"""MLX kernels of recomputation."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import mlx.core as mx
from pytensor.link.mlx.dispatch import mlx_funcify

from ptml.ops.recompute import After, Recomputed


@mlx_funcify.register(After)
def mlx_after(op: After, **kwargs: Any) -> Callable:
    def after(*inputs: Any) -> Any:
        held = mx.depends(list(inputs[: op.n]), list(inputs[op.n :])) if len(inputs) > op.n else inputs
        return tuple(held) if op.n > 1 else held[0]

    return after


@mlx_funcify.register(Recomputed)
def mlx_recomputed(op: Recomputed, **kwargs: Any) -> Callable:
    return lambda *inputs: inputs[: op.n] if op.n > 1 else inputs[0]
