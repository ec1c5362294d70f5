"""PyTensor's JAX mode, with the state donated, and reductions that give the dtype that they declare."""

from __future__ import annotations

from pytensor.compile.mode import JAX as PYTENSOR_JAX
from pytensor.compile.mode import Mode
from pytensor.graph.basic import Apply, Variable
from pytensor.tensor.elemwise import CAReduce

from ptml.backends.everywhere import LAST, everywhere, unchecked
from ptml.backends.jax.linker import DonatingJAXLinker
from ptml.backends.loops import EndingScan, in_place_of_scans, keeps_a_trace
from ptml.backends.native import keeping_native
from ptml.backends.sizes import size_arithmetic, sizes_of_tensors

__all__ = ["JAX"]


def _is_wide(node: Apply) -> bool:
    """Say whether a reduction accumulates in another float dtype than its result's."""
    wanted = node.outputs[0].type.dtype
    return wanted.startswith("float") and node.op.acc_dtype not in (None, wanted)


def _narrowed(node: Apply) -> list[Variable]:
    return node.op.clone(acc_dtype=node.outputs[0].type.dtype)(*node.inputs, return_list=True)


# PyTensor accumulates float32 in float64, and its JAX conversion then gives the result as float64 wherever
# JAX keeps 64-bit numbers: every cell behind it would change dtype, and be compiled again.
JAX: Mode = keeping_native(Mode(DonatingJAXLinker(), PYTENSOR_JAX.provided_optimizer), "jax").register(
    (everywhere(CAReduce, _is_wide, _narrowed), LAST),
    (unchecked, LAST + 1),
    (in_place_of_scans(EndingScan, lambda op: op.info.as_while and not keeps_a_trace(op)), LAST + 2),
    (size_arithmetic, LAST + 3),
    (sizes_of_tensors, LAST + 4),
)
