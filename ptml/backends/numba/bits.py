"""Numba kernels of the random words."""

from __future__ import annotations

from collections.abc import Callable
from hashlib import sha256
from typing import Any

import numpy as np
from llvmlite import ir
from numba import types
from numba.extending import intrinsic
from pytensor.graph.basic import Apply
from pytensor.link.numba.cache import compile_numba_function_src
from pytensor.link.numba.dispatch.basic import numba_njit, register_funcify_and_cache_key

from ptml.backends.numba.threefry import encrypt
from ptml.bits import Draw, FoldIn

# Part of the cache keys: a kernel's source does not show what the intrinsic emits.
_VERSION = 1


@intrinsic
def threefry_block(typing_context: Any, key0: Any, key1: Any, counter0: Any, counter1: Any) -> Any:
    """Encrypt one counter, as ``ptml.bits.threefry`` does.

    The rounds are emitted as LLVM instructions at once: typing a hundred lines of Python would take longer
    than all the rest of a kernel's compilation. A loop over this block vectorizes.
    """
    word = types.uint32
    signature = types.UniTuple(word, 2)(word, word, word, word)

    def emit(context: Any, builder: ir.IRBuilder, signature: Any, args: Any) -> Any:
        key0, key1, x0, x1 = args
        words = encrypt(builder, (key0, key1), x0, x1)
        return context.make_tuple(builder, signature.return_type, words)

    return signature, emit


_FILL = {
    "uint32": """\
    half = (n + 1) // 2
    out = np.empty(2 * half, np.uint32)
    for i in range(half):
        word0, word1 = threefry_block(key0, key1, np.uint32(i), np.uint32(half + i))
        out[i] = word0
        out[half + i] = word1
    out = out[:n]
""",
    "float32": """\
    half = (n + 1) // 2
    out = np.empty(2 * half, np.float32)
    for i in range(half):
        word0, word1 = threefry_block(key0, key1, np.uint32(i), np.uint32(half + i))
        out[i] = np.float32(word0 >> np.uint32(8)) * np.float32(2.0**-24)
        out[half + i] = np.float32(word1 >> np.uint32(8)) * np.float32(2.0**-24)
    out = out[:n]
""",
    "float64": """\
    out = np.empty(n, np.float64)
    for i in range(n):
        word0, word1 = threefry_block(key0, key1, np.uint32(i), np.uint32(n + i))
        high = np.float64(word0 >> np.uint32(5)) * 2.0**26
        out[i] = (high + np.float64(word1 >> np.uint32(6))) * 2.0**-53
""",
}


_FOLD_IN = """\
def fold_in(leaf, data):
    word0, word1 = threefry_block(leaf[0], leaf[1], np.uint32(0), np.uint32(2))
    out = np.empty(4, np.uint32)
    out[0] = word0 ^ data.item()
    out[1] = word1
    out[2] = leaf[2]
    out[3] = leaf[3]
    return out
"""


def _draw_source(dtype: str, ndim: int) -> str:
    dims = [f"dim{axis}" for axis in range(ndim)]
    parameters = ", ".join(["leaf", "number", *(f"{dim}_" for dim in dims)])
    source = f"def draw({parameters}):\n"
    for dim in dims:
        source += f"    {dim} = {dim}_.item()\n"
    if dims:
        negative = " or ".join(f"{dim} < 0" for dim in dims)
        source += f"    if {negative}:\n"
        source += "        raise ValueError('A draw has a negative dimension; each must be 0 or more.')\n"
    source += f"    n = {' * '.join(dims) or '1'}\n"
    source += """\
    root0, root1 = threefry_block(leaf[0], leaf[1], np.uint32(0), np.uint32(1))
    key0, key1 = threefry_block(root0 ^ leaf[2], root1 ^ number.item(), np.uint32(0), np.uint32(1))
    key0 = np.uint32(key0 ^ leaf[3])
"""
    source += _FILL[dtype]
    shape = f"({', '.join(dims)},)" if dims else "()"
    source += "    return out\n" if ndim == 1 else f"    return out.reshape({shape})\n"
    return source


@register_funcify_and_cache_key(Draw)
def numba_draw(op: Draw, node: Apply, **kwargs: Any) -> tuple[Callable, str]:
    return _kernel("draw", _draw_source(op.dtype, node.outputs[0].type.ndim))


@register_funcify_and_cache_key(FoldIn)
def numba_fold_in(op: FoldIn, node: Apply, **kwargs: Any) -> tuple[Callable, str]:
    return _kernel("fold_in", _FOLD_IN)


def _kernel(name: str, source: str) -> tuple[Callable, str]:
    # ``__name__`` has to be a module that a second process can import, else what is cached cannot be loaded.
    names = {"np": np, "threefry_block": threefry_block, "__name__": __name__}
    key = sha256(f"{__name__} {_VERSION} {source}".encode()).hexdigest()
    return numba_njit(compile_numba_function_src(source, name, names)), key
