"""JAX kernels of recomputation: XLA is told not to see through what holds the two computations apart."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
from pytensor.link.jax.dispatch import jax_funcify

from ptml.ops.recompute import After, Recomputed


@jax_funcify.register(After)
def jax_after(op: After, **kwargs: Any) -> Callable:
    def after(*inputs: Any) -> Any:
        held = jax.lax.optimization_barrier(inputs)[: op.n]
        return held if op.n > 1 else held[0]

    return after


@jax_funcify.register(Recomputed)
def jax_recomputed(op: Recomputed, **kwargs: Any) -> Callable:
    return lambda *inputs: inputs[: op.n] if op.n > 1 else inputs[0]
