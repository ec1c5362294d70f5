"""Numba kernel of the generators for PyTensor's random variables."""

from __future__ import annotations

from collections.abc import Callable
from hashlib import sha256
from typing import Any

import numba
import numpy as np
from numba import types
from pytensor.graph.basic import Apply
from pytensor.link.numba.cache import compile_numba_function_src
from pytensor.link.numba.dispatch.basic import numba_njit, register_funcify_and_cache_key

from ptml.backends.numba.bits import threefry_block
from ptml.rng import AsGenerator, seeded

# Part of the cache key: the source does not show what it calls.
_VERSION = 1

# Only Python can make a generator; Numba's compiled draws then move it on without Python.
_AS_GENERATOR = """\
def as_generator(leaf, number, position):
    root0, root1 = threefry_block(leaf[0], leaf[1], np.uint32(0), np.uint32(1))
    word0, word1 = threefry_block(root0 ^ leaf[2], root1 ^ number.item(), np.uint32(0), np.uint32(2))
    word0 = np.uint32(word0 ^ leaf[3])
    word1 = np.uint32(word1 ^ position.item())
    with numba.objmode(rng=types.npy_rng):
        rng = seeded(word0, word1)
    return rng
"""


@register_funcify_and_cache_key(AsGenerator)
def numba_as_generator(op: AsGenerator, node: Apply, **kwargs: Any) -> tuple[Callable, str]:
    names = {
        "np": np,
        "numba": numba,
        "types": types,
        "threefry_block": threefry_block,
        "seeded": seeded,
        # It has to be a module that a second process can import, else what is cached cannot be loaded.
        "__name__": __name__,
    }
    key = sha256(f"{__name__} {_VERSION} {_AS_GENERATOR}".encode()).hexdigest()
    return numba_njit(compile_numba_function_src(_AS_GENERATOR, "as_generator", names)), key
