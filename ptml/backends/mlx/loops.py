"""MLX kernel of loops: Python's own, over iterations that MLX computes.

MLX compiles what a Python function does, once for given shapes, and knows no loop. Where the whole program is
compiled, its iterations are written out while it is traced; a length that is a constant, or follows from
shapes, is known then. When a loop ends with a condition is known only as it runs: then one iteration is
compiled, and the rest of the program is not.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import mlx.core as mx
from pytensor.link.mlx.dispatch import mlx_funcify

from ptml.backends.loops import UnrolledScan
from ptml.backends.unrolled import unrolled

#: An unrolled loop is compiled iteration by iteration, and past this many nodes that takes minutes.
MOST_NODES = 20_000

_TRACED_LENGTH = (
    "MLX writes a loop's iterations out when it compiles, and the number of steps of {loop} is computed from "
    "values at run time. Write it as a constant, or take it from the shape of an array, as x.shape[0]."
)
_TOO_LONG = (
    "MLX writes a loop's iterations out when it compiles, and {steps} steps of {nodes} operations in {loop} "
    "are more than the {most} that it is given. Use another backend, or shorter sequences."
)


def _shown(op: UnrolledScan) -> str:
    return f"the loop {op.name!r}" if op.name else "a loop"


def _length(op: UnrolledScan, steps: Any) -> int:
    try:
        known = int(steps)
    except ValueError as error:
        raise TypeError(_TRACED_LENGTH.format(loop=_shown(op))) from error
    nodes = len(op.fgraph.apply_nodes)
    if not op.info.as_while and known * nodes > MOST_NODES:
        raise ValueError(_TOO_LONG.format(loop=_shown(op), steps=known, nodes=nodes, most=MOST_NODES))
    return known


def _one(array: mx.array) -> mx.array:
    return mx.zeros(array.shape[1:], array.dtype)


@mlx_funcify.register(UnrolledScan)
def mlx_unrolled_scan(op: UnrolledScan, **kwargs: Any) -> Callable:
    iterate = mlx_funcify(op.fgraph, **kwargs)
    if op.info.as_while:
        iterate = mx.compile(iterate)
    return unrolled(op, iterate, length=partial(_length, op), stack=mx.stack, one=_one)
