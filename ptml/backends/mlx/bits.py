"""MLX kernels of the random words.

``mx.random.split(key, half)`` is one kernel of MLX's own, and its words are the Threefry blocks of the
counters (i, half + i). Rounds written out would take ten seconds of C++ compilation on the CPU.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import mlx.core as mx
from pytensor.graph.basic import Apply
from pytensor.link.mlx.dispatch import mlx_funcify

from ptml.bits import Draw, FoldIn, concrete_shape

_NO_FLOAT64 = (
    "MLX has no Draw('float64'): its GPU has no float64. Draw 'float32', or convert the network to float32 "
    "before compiling it with this backend."
)
_TRACED_DIM = (
    "MLX compiles for known shapes, and dimension {axis} of a {op} is computed from values at run time. "
    "Write the dimension as a constant, or take it from the shape of an array, as x.shape[0]."
)


def blocks(key: mx.array, half: int) -> mx.array:
    """Give the ``2 * half`` words whose pairs ``i`` and ``half + i`` are the blocks of those counters."""
    return mx.random.split(key, half).reshape(-1)


def _shape(op: Draw, dims: tuple[Any, ...]) -> tuple[int, ...]:
    known = []
    for axis, dim in enumerate(dims):
        try:
            known.append(int(dim))
        except ValueError as error:
            raise TypeError(_TRACED_DIM.format(axis=axis, op=op)) from error
    return concrete_shape(known)


@mlx_funcify.register(Draw)
def mlx_draw(op: Draw, **kwargs: Any) -> Callable:
    if op.dtype == "float64":
        raise TypeError(_NO_FLOAT64)

    def draw(leaf, number, *dims):
        shape = _shape(op, dims)
        n = math.prod(shape)
        root = blocks(leaf[:2], 1)
        word = blocks(root ^ mx.stack([leaf[2], number]), 1)
        key = word ^ mx.stack([leaf[3], mx.array(0, dtype=mx.uint32)])
        out = blocks(key, (n + 1) // 2)[:n]
        if op.dtype == "float32":
            out = (out >> 8).astype(mx.float32) * mx.array(2.0**-24, dtype=mx.float32)
        return out.reshape(shape)

    return draw


@mlx_funcify.register(FoldIn)
def mlx_fold_in(op: FoldIn, node: Apply, **kwargs: Any) -> Callable:
    def fold_in(leaf, data):
        # Words 0 and 2 of two blocks are the block of counter (0, 2).
        word = blocks(leaf[:2], 2)[::2]
        return mx.concatenate([word ^ mx.stack([data, mx.array(0, dtype=mx.uint32)]), leaf[2:]])

    return fold_in
