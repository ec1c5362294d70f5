"""PyTorch's kernel of positions: shapes are known there, but not what is computed of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from ptml.backends.native import native
from ptml.ops.pooling.windows import Numbers


@native("pytorch", Numbers)
def pytorch_numbers(op: Numbers, **kwargs: Any) -> Callable:
    return lambda x: torch.arange(x.shape[op.axis])
