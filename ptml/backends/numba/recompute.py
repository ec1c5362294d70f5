"""Numba kernels of recomputation."""

from __future__ import annotations

from collections.abc import Callable
from hashlib import sha256
from typing import Any

from pytensor.graph.basic import Apply
from pytensor.link.numba.cache import compile_numba_function_src
from pytensor.link.numba.dispatch.basic import numba_njit, register_funcify_and_cache_key

from ptml.ops.recompute import After, Recomputed


@register_funcify_and_cache_key(After)
@register_funcify_and_cache_key(Recomputed)
def numba_first_inputs(op: After | Recomputed, node: Apply, **kwargs: Any) -> tuple[Callable, str]:
    names = [f"x{k}" for k in range(len(node.inputs))]
    source = f"def first({', '.join(names)}):\n    return {', '.join(names[: op.n])}\n"
    # ``__name__`` has to be a module that a second process can import, else what is cached cannot be loaded.
    first = compile_numba_function_src(source, "first", {"__name__": __name__})
    return numba_njit(first), sha256(f"{__name__} {source}".encode()).hexdigest()
