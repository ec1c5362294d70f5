"""PyTorch kernel of loops: Python's own, over iterations that PyTorch computes as they come."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from pytensor.link.pytorch.dispatch import pytorch_funcify

from ptml.backends.loops import UnrolledScan
from ptml.backends.unrolled import unrolled


def _one(array: torch.Tensor) -> torch.Tensor:
    return torch.zeros(array.shape[1:], dtype=array.dtype)


@pytorch_funcify.register(UnrolledScan)
def pytorch_unrolled_scan(op: UnrolledScan, **kwargs: Any) -> Callable:
    iterate = pytorch_funcify(op.fgraph, **kwargs)
    return unrolled(op, iterate, length=int, stack=torch.stack, one=_one)
