"""MLX kernel of the generators for PyTensor's random variables."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import mlx.core as mx
from pytensor.link.mlx.dispatch import mlx_funcify

from ptml.backends.mlx.bits import blocks
from ptml.rng import AsGenerator


@mlx_funcify.register(AsGenerator)
def mlx_as_generator(op: AsGenerator, **kwargs: Any) -> Callable:
    def as_generator(leaf, number, position):
        root = blocks(leaf[:2], 1)
        # Words 0 and 2 of two blocks are the block of counter (0, 2).
        word = blocks(root ^ mx.stack([leaf[2], number]), 2)[::2]
        return word ^ mx.stack([leaf[3], position])

    return as_generator
