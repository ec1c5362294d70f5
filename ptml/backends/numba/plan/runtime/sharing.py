"""Whether a nest is worth sharing out among threads, along which of its axes, and what its parts reduce to.

Along an axis that nothing is reduced along, any cut gives the same numbers: there are as many parts as there
are threads for. Where something is reduced along it, the cuts depend on the sizes alone: every part reduces
to a number of its own, and those are reduced in their order afterwards. So no result depends on how many
threads there were.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import attrs
import numpy as np
import pytensor.scalar as ps

from ptml.backends.numba.plan.memory import Value
from ptml.backends.numba.plan.runtime.pool import Share, shares

if TYPE_CHECKING:
    from ptml.backends.numba.plan.planner import Planner

__all__ = ["Cut", "cut_of", "in_parts", "is_large", "share_of", "share_over", "work_of"]

#: What is worth waking a thread for, and the least that a part should be: some 50 and 5 microseconds.
#: Reading or writing a number counts 1, as does an operation.
LARGE = 2**20
PART = 2**17

#: Enough elements for any processor's vectors, several at once: parts that are cut so leave a remainder only
#: where the whole has it, and every element is computed by the instructions that it would be computed by.
VECTORS = 256

#: Axes of fewer parts leave threads without work; more parts than this only cost.
LONG = 16
MOST = 32

#: Where a part reduces its rows to one, it has so many.
ROWS = 16

# What functions cost, and functions of one argument that are no more than an operation.
_FUNCTION = 8
_CHEAP = (ps.Abs, ps.Cast, ps.Identity, ps.Neg, ps.Reciprocal, ps.Sign, ps.Sqr, ps.Invert)


@attrs.frozen
class Cut:
    """Where a nest is cut.

    Attributes
    ----------
    axis : int
    grain : int
        The length of parts is a multiple of it.
    parts : int
        How many there are, each of one grain, where they reduce to numbers of their own; else 0.
    """

    axis: int
    grain: int
    parts: int = 0


def work_of(op: ps.ScalarOp, n_operands: int, n_elements: int) -> int:
    """Estimate what a nest costs."""
    return n_elements * (n_operands + _cost(op))


def is_large(op: ps.ScalarOp, n_operands: int, n_elements: int) -> bool:
    """Say whether a nest is worth sharing out, on a system where that can be done."""
    return work_of(op, n_operands, n_elements) >= LARGE and shares()


def cut_of(op: ps.ScalarOp, n_operands: int, sizes: Sequence[int], reduced: Collection[int]) -> Cut | None:
    """Say where a nest is cut, or give None where it is too small, or too short.

    Parameters
    ----------
    op : ScalarOp
    n_operands : int
        How many arrays it reads and writes.
    sizes : sequence of int
        Of its axes.
    reduced : collection of int
        The axes along which any result is reduced.
    """
    n_elements = math.prod(sizes)
    if not is_large(op, n_operands, n_elements):
        return None
    work = work_of(op, n_operands, n_elements)
    best, most = None, 1.0
    for axis, size in enumerate(sizes):
        least = ROWS if axis in reduced else 1
        unit = VECTORS if axis == len(sizes) - 1 else 1
        grain = unit * max(math.ceil(max(PART * size / work, least) / unit), 1)
        if size / grain > most:
            best, most = Cut(axis, grain), size / grain
        if most >= LONG:
            break
    if best is None or best.axis not in reduced:
        return best
    size, grain = sizes[best.axis], best.grain
    grain *= math.ceil(size / grain / MOST)
    return Cut(best.axis, grain, math.ceil(size / grain))


def share_over(n: int, work: int, word: int, steps: Mapping[int, int]) -> Share | None:
    """Say how a kernel's work is shared out, or give None where it is too small.

    Parameters
    ----------
    n : int
        How many units of work there are: rows, say, none of which depends on another.
    work : int
        What one costs: reading or writing a number of it counts 1, as does an operation, and a function 8.
    word : int
        Which of the kernel's words says how many units there are.
    steps : mapping
        The words that say where they begin, and how much each grows by with a unit.
    """
    if n * work < LARGE or not shares():
        return None
    return Share(word, n, steps, max(math.ceil(PART / work), 1))


def in_parts(plan: Planner, output: Any, cut: Cut, axis: int) -> tuple[Any, Value]:
    """Give a reduced output its place in the first of some parts, and the array of all.

    Parameters
    ----------
    plan : Planner
    output
        An output of a nest that is reduced along the axis that is cut.
    cut : Cut
    axis : int
        That axis, among the output's.
    """
    array = output.value.array
    dtype = np.dtype(output.accumulator)
    # Whole cache lines, so that no two threads write in one.
    apart = -(-array.size * dtype.itemsize // 64) * 64
    block = plan.scratch(cut.parts * apart)
    rest = np.zeros(array.shape, dtype).strides
    every: np.ndarray = np.ndarray(
        (cut.parts, *array.shape), dtype, block.memory[: cut.parts * apart], strides=(apart, *rest)
    )
    own = iter(rest)
    strides = tuple(0 if k in output.reduced else next(own) for k in range(len(output.strides)))
    first = Value(every[0, ...], block)
    return attrs.evolve(output, value=first, dtype=str(dtype), strides=strides), Value(every, block)


def share_of(cut: Cut, size: int, word: int, steps: Sequence[int], apart: dict[int, int]) -> Share:
    """Say how the kernel of a nest is shared out.

    Parameters
    ----------
    cut : Cut
    size : int
        Of the axis.
    word : int
        Which of the kernel's words says so.
    steps : sequence of int
        The bytes from one element to the next along the axis, for each operand.
    apart : dict
        The bytes from one part's numbers to the next's, for the operands that have them.
    """
    moved = {k: step for k, step in enumerate(steps) if step}
    return Share(word, size, moved, cut.grain, 0 if cut.parts else 4, apart)


def _cost(op: ps.ScalarOp) -> int:
    if isinstance(op, ps.Composite):
        return sum(_cost(node.op) for node in op.fgraph.apply_nodes)
    if isinstance(op, ps.Pow):
        return 2 * _FUNCTION
    return _FUNCTION if isinstance(op, ps.UnaryScalarOp) and not isinstance(op, _CHEAP) else 1
