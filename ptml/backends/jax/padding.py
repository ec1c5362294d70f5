"""JAX kernels of padding, which the graph cannot do there where sizes are symbolic."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from ptml.backends.native import native
from ptml.ops.padding import Pad

_MODES = {"reflect": "reflect", "replicate": "edge", "circular": "wrap"}


@native("jax", Pad)
def jax_pad(op: Pad, **kwargs: Any) -> Callable:
    widths = ((0, 0), *op.widths, (0, 0))
    if op.mode == "constant":
        return lambda x: jnp.pad(x, widths, constant_values=op.value)

    def padded(x: jax.Array) -> jax.Array:
        return jnp.pad(x, widths, mode=_MODES[op.mode])

    return padded
