"""MLX kernels of the shape checks: shapes are known while a program is traced, so that is when they raise."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import mlx.core as mx
from pytensor.link.mlx.dispatch import mlx_funcify

from ptml.checks import AxisCheck, RowCount, SameSize, axis_checker, row_counter, size_comparer
from ptml.lengths import LengthCheck, length_checker


@mlx_funcify.register(AxisCheck)
def mlx_axis_check(op: AxisCheck, **kwargs: Any) -> Callable:
    return axis_checker(op)


@mlx_funcify.register(LengthCheck)
def mlx_length_check(op: LengthCheck, **kwargs: Any) -> Callable:
    return length_checker(op)


@mlx_funcify.register(SameSize)
def mlx_same_size(op: SameSize, **kwargs: Any) -> Callable:
    return size_comparer(op)


@mlx_funcify.register(RowCount)
def mlx_row_count(op: RowCount, **kwargs: Any) -> Callable:
    count = row_counter(op)
    return lambda x: mx.array(count(x), dtype=mx.int64)
