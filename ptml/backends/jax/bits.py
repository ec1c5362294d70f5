"""JAX kernels of the random words."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax.extend.random import threefry_2x32
from pytensor.graph.basic import Apply
from pytensor.link.jax.dispatch import jax_funcify

from ptml.bits import Draw, FoldIn, concrete_shape

_TRACED_DIM = (
    "JAX compiles for known shapes, and dimension {axis} of a {op} is computed from values at run time "
    "({given}). Write the dimension as a constant, or from the shape of an array, as "
    "x.shape[0] * x.shape[1]; x.size and a cast dimension count as computed."
)
_NO_FLOAT64 = (
    "JAX would turn a Draw('float64') into float32, because its 64-bit types are switched off. "
    "Draw float32, or compile and call within jax.enable_x64(True)."
)


def blocks(key: jax.Array, half: int) -> jax.Array:
    """Give the ``2 * half`` words whose pairs ``i`` and ``half + i`` are the blocks of those counters."""
    return threefry_2x32(key, jnp.arange(2 * half, dtype=jnp.uint32))


def _word(value: Any) -> jax.Array:
    return jnp.asarray(value, dtype=jnp.uint32)


def _shape(op: Draw, dims: tuple[Any, ...]) -> tuple[int, ...]:
    for axis, dim in enumerate(dims):
        if isinstance(dim, jax.core.Tracer):
            raise TypeError(_TRACED_DIM.format(axis=axis, op=op, given=dim))
    return concrete_shape(dims)


@jax_funcify.register(Draw)
def jax_draw(op: Draw, **kwargs: Any) -> Callable:
    def draw(leaf, number, *dims):
        shape = _shape(op, dims)
        n = math.prod(shape)
        leaf = _word(leaf)
        root = blocks(leaf[:2], 1)
        word = blocks(root ^ jnp.stack([leaf[2], _word(number)]), 1)
        key = word ^ jnp.stack([leaf[3], _word(0)])
        if op.dtype == "float64":
            if jax.dtypes.canonicalize_dtype("float64") != jnp.float64:
                raise TypeError(_NO_FLOAT64)
            words = blocks(key, n)
            high = (words[:n] >> 5).astype("float64")
            low = (words[n:] >> 6).astype("float64")
            out = (high * 2.0**26 + low) * 2.0**-53
        else:
            out = blocks(key, (n + 1) // 2)[:n]
            if op.dtype == "float32":
                out = (out >> 8).astype("float32") * jnp.float32(2.0**-24)
        return out.reshape(shape)

    return draw


@jax_funcify.register(FoldIn)
def jax_fold_in(op: FoldIn, node: Apply, **kwargs: Any) -> Callable:
    def fold_in(leaf, data):
        leaf = _word(leaf)
        # Words 0 and 2 of two blocks are the block of counter (0, 2).
        word = blocks(leaf[:2], 2)[::2]
        return jnp.concatenate([word ^ jnp.stack([_word(data), _word(0)]), leaf[2:]])

    return fold_in
