"""JAX kernels of the shape checks: shapes are known while a program is traced, so that is when they raise."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
from pytensor.link.jax.dispatch import jax_funcify

from ptml.checks import AxisCheck, RowCount, SameSize, axis_checker, row_counter, size_comparer
from ptml.lengths import LengthCheck, length_checker


@jax_funcify.register(AxisCheck)
def jax_axis_check(op: AxisCheck, **kwargs: Any) -> Callable:
    return axis_checker(op)


@jax_funcify.register(LengthCheck)
def jax_length_check(op: LengthCheck, **kwargs: Any) -> Callable:
    return length_checker(op)


@jax_funcify.register(SameSize)
def jax_same_size(op: SameSize, **kwargs: Any) -> Callable:
    return size_comparer(op)


@jax_funcify.register(RowCount)
def jax_row_count(op: RowCount, **kwargs: Any) -> Callable:
    count = row_counter(op)
    return lambda x: jnp.asarray(count(x))
