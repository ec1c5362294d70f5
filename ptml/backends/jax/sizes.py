"""JAX kernels of the arithmetic of sizes: Python's own, where all numbers are known."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import numpy as np
from pytensor.graph.basic import Apply
from pytensor.link.jax.dispatch import jax_funcify
from pytensor.tensor.basic import ScalarFromTensor
from pytensor.tensor.elemwise import Elemwise

from ptml.backends.sizes import Size, SizeArithmetic


@jax_funcify.register(SizeArithmetic)
def jax_size_arithmetic(op: SizeArithmetic, node: Apply, **kwargs: Any) -> Callable:
    compute = jax_funcify.dispatch(Elemwise)(op, node=node, **kwargs)
    dtypes = [variable.type.dtype for variable in node.outputs]

    def run(*numbers: Any) -> Any:
        if any(isinstance(number, jax.Array) for number in numbers):
            return compute(*numbers)
        results = op.scalar_op.impl(*(np.asarray(number)[()] for number in numbers))
        several = results if len(dtypes) > 1 else [results]
        known = tuple(np.dtype(dtype).type(n).item() for n, dtype in zip(several, dtypes, strict=True))
        return known if len(known) > 1 else known[0]

    return run


@jax_funcify.register(Size)
def jax_size(op: Size, **kwargs: Any) -> Callable:
    take = jax_funcify.dispatch(ScalarFromTensor)(op, **kwargs)
    return lambda x: take(x) if isinstance(x, jax.Array) else np.asarray(x).item()
