"""PyTorch kernels of the random words: NumPy's, handed over.

PyTorch's uint32 has no arithmetic, and its compiler takes ten seconds and more for the rounds of each draw,
so the words are made on the host, outside ``torch.compile``, and moved to the device of the leaf.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from pytensor.graph.basic import Apply
from pytensor.link.pytorch.dispatch import pytorch_funcify

from ptml.bits import Draw, FoldIn, concrete_shape, folded_key, numbers


@pytorch_funcify.register(Draw)
def pytorch_draw(op: Draw, **kwargs: Any) -> Callable:
    @torch.compiler.disable
    def draw(leaf, number, *dims):
        shape = concrete_shape(dims)
        drawn = numbers(leaf.tolist(), int(number), math.prod(shape), op.dtype)
        return torch.from_numpy(drawn).reshape(shape).to(leaf.device)

    return draw


@pytorch_funcify.register(FoldIn)
def pytorch_fold_in(op: FoldIn, node: Apply, **kwargs: Any) -> Callable:
    @torch.compiler.disable
    def fold_in(leaf, data):
        before = leaf.tolist()
        folded = [*folded_key(before, int(data)), *before[2:]]
        return torch.tensor(folded, dtype=torch.uint32, device=leaf.device)

    return fold_in
