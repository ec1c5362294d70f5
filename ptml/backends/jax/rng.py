"""JAX kernel of the generators for PyTensor's random variables."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
from pytensor.link.jax.dispatch import jax_funcify

from ptml.backends.jax.bits import blocks
from ptml.rng import AsGenerator


@jax_funcify.register(AsGenerator)
def jax_as_generator(op: AsGenerator, **kwargs: Any) -> Callable:
    def as_generator(leaf, number):
        leaf = jnp.asarray(leaf, dtype=jnp.uint32)
        number = jnp.asarray(number, dtype=jnp.uint32)
        root = blocks(leaf[:2], 1)
        # Words 0 and 2 of two blocks are the block of counter (0, 2).
        word = blocks(root ^ jnp.stack([leaf[2], number]), 2)[::2]
        key = word ^ jnp.stack([leaf[3], jnp.uint32(0)])
        # What PyTensor makes of a NumPy generator for JAX. Its random variables read "jax_state" alone.
        return {
            "bit_generator": 1,
            "state": {"state": 0, "inc": 0},
            "has_uint32": 0,
            "uinteger": 0,
            "jax_state": key,
        }

    return as_generator
