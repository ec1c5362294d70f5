"""Numba kernels of the shape checks."""

from __future__ import annotations

from collections.abc import Callable
from hashlib import sha256
from typing import Any

import numpy as np
from pytensor.graph.basic import Apply
from pytensor.link.numba.cache import compile_numba_function_src
from pytensor.link.numba.dispatch.basic import numba_njit, register_funcify_and_cache_key

from ptml.checks import AxisCheck, RowCount, SameSize, count_message, size_message, sizes_message
from ptml.lengths import LengthCheck, length_message

# Formatting inside a kernel takes seconds to compile, so the error holds the text and the sizes apart.
_CHECK = """\
def check({parameters}):
    if {bad}:
        raise ValueError({message!r}, {sizes})
    return {result}
"""


def _compiled(bad: str, message: str, result: str, **ndims: int) -> tuple[Callable, str]:
    """Compile a check of the parameters named, which have so many axes."""
    sizes = ", ".join(f"{name}.shape[{axis}]" for name, ndim in ndims.items() for axis in range(ndim))
    source = _CHECK.format(parameters=", ".join(ndims), bad=bad, message=message, sizes=sizes, result=result)
    # ``__name__`` has to be a module that a second process can import, else what is cached cannot be loaded.
    check = compile_numba_function_src(source, "check", {"np": np, "__name__": __name__})
    return numba_njit(check), sha256(f"{__name__} {source}".encode()).hexdigest()


@register_funcify_and_cache_key(AxisCheck)
def numba_axis_check(op: AxisCheck, node: Apply, **kwargs: Any) -> tuple[Callable, str]:
    ndim = node.inputs[0].type.ndim
    return _compiled(f"x.shape[{ndim + op.axis}] != {op.size}", size_message(op, ndim), "x", x=ndim)


@register_funcify_and_cache_key(LengthCheck)
def numba_length_check(op: LengthCheck, node: Apply, **kwargs: Any) -> tuple[Callable, str]:
    ndim = node.inputs[0].type.ndim
    return _compiled(f"x.shape[{ndim + op.axis}] < {op.minimum}", length_message(op, ndim), "x", x=ndim)


@register_funcify_and_cache_key(SameSize)
def numba_same_size(op: SameSize, node: Apply, **kwargs: Any) -> tuple[Callable, str]:
    ndim, other = (variable.type.ndim for variable in node.inputs)
    bad = f"x.shape[{ndim + op.axis}] != other.shape[{other + op.axis}]"
    return _compiled(bad, sizes_message(op, ndim, other), "x", x=ndim, other=other)


@register_funcify_and_cache_key(RowCount)
def numba_row_count(op: RowCount, node: Apply, **kwargs: Any) -> tuple[Callable, str]:
    ndim = node.inputs[0].type.ndim
    count = " * ".join(f"x.shape[{ndim + axis}]" for axis in op.axes) or "1"
    return _compiled(f"{count} < {op.minimum}", count_message(op, ndim), f"np.asarray({count})", x=ndim)
