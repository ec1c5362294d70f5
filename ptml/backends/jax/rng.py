"""JAX kernel of the generators for PyTensor's random variables."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
from pytensor.link.jax.dispatch import jax_funcify

from ptml.backends.jax.bits import blocks
from ptml.rng import AsGenerator


class _Generator(dict):
    """A generator in the form of PyTensor's JAX conversion, which stays as it is.

    That conversion writes the next state into the dict that it reads. A second random variable that reads the
    same generator would draw from another state, depending on which one comes first. What a random variable
    leaves behind, nobody reads (see ``ptml.rng.next_generators``).
    """

    def __setitem__(self, name: str, value: Any) -> None:
        pass


@jax_funcify.register(AsGenerator)
def jax_as_generator(op: AsGenerator, **kwargs: Any) -> Callable:
    def as_generator(leaf, number, position):
        leaf, number, position = (jnp.asarray(words, dtype=jnp.uint32) for words in (leaf, number, position))
        root = blocks(leaf[:2], 1)
        # Words 0 and 2 of two blocks are the block of counter (0, 2).
        word = blocks(root ^ jnp.stack([leaf[2], number]), 2)[::2]
        key = word ^ jnp.stack([leaf[3], position])
        # What PyTensor makes of a NumPy generator for JAX. Its random variables read "jax_state" alone.
        return _Generator(
            bit_generator=1,
            state={"state": 0, "inc": 0},
            has_uint32=0,
            uinteger=0,
            jax_state=key,
        )

    return as_generator
