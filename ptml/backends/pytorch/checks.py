"""PyTorch kernels of the shape checks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from pytensor.link.pytorch.dispatch import pytorch_funcify

from ptml.checks import AxisCheck, RowCount, SameSize, axis_checker, row_counter, size_comparer
from ptml.lengths import LengthCheck, length_checker


@pytorch_funcify.register(AxisCheck)
def pytorch_axis_check(op: AxisCheck, **kwargs: Any) -> Callable:
    return axis_checker(op)


@pytorch_funcify.register(LengthCheck)
def pytorch_length_check(op: LengthCheck, **kwargs: Any) -> Callable:
    return length_checker(op)


@pytorch_funcify.register(SameSize)
def pytorch_same_size(op: SameSize, **kwargs: Any) -> Callable:
    return size_comparer(op)


@pytorch_funcify.register(RowCount)
def pytorch_row_count(op: RowCount, **kwargs: Any) -> Callable:
    count = row_counter(op)
    return lambda x: torch.as_tensor(count(x), dtype=torch.int64)
