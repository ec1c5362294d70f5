"""Fused ops: one node for what a small graph defines, for which a backend may have one kernel.

A softmax, a loss with its gradient, the statistics of a batch: each is a few elementwise steps and
reductions, and each can be done in one walk over memory by code that knows them all. A `Fused` op stands for
such a graph. It is differentiated, copied, pickled, put into loops and compared as any op. Where a backend
has a kernel for it, it stays one node until it becomes that kernel. Everywhere else its graph takes its place
before anything is rewritten, so that PyTensor optimizes it as if it had been written out.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache, lru_cache
from typing import Any

import pytensor
import pytensor.tensor as pt
from pytensor.compile.builders import infer_shape
from pytensor.compile.mode import Mode, optdb
from pytensor.compile.ops import view_op
from pytensor.gradient import DisconnectedType, disconnected_type, grad
from pytensor.graph.basic import Apply, Variable, clone_get_equiv
from pytensor.graph.op import Op, io_connection_pattern
from pytensor.graph.replace import _vectorize_node, vectorize_graph
from pytensor.graph.type import Type

from ptml.backends.everywhere import everywhere

__all__ = ["EXPAND", "EXPAND_POSITION", "Fused", "known_to_pytensor", "one_float_dtype"]

NO_BUILD = "{op} defines no build(self, *inputs): give there, as a list, the graphs of its outputs."

#: The name of the rewrite that puts the graphs of fused ops in their places. A mode that has kernels for some
#: excludes it, and expands the others itself, at the same position: before everything else.
EXPAND = "expand_fused"
EXPAND_POSITION = -0.02


class Fused(Op):
    """An op that a graph defines.

    A subclass names its properties in ``__props__`` (two ops are equal if those are), and says in
    ``build(*inputs)`` what it computes. That is all it needs. What makes it worth the trouble is a kernel
    (for the plan, a rule: see its README), and a hand-made gradient: override ``pullback`` to give the
    cheapest graph, other fused ops included. Gradients that are not made by hand are those of the graph, by
    `defined_pullback`; so are those of a gradient's op, and second derivatives work by themselves.

    An op of random numbers derives from :class:`ptml.bits.Numbered` as well, which comes first.

    Examples
    --------
    >>> import numpy as np
    >>> import pytensor
    >>> import pytensor.tensor as pt
    >>> from ptml.fused import Fused
    >>> class Swish(Fused):
    ...     __props__ = ()
    ...
    ...     def build(self, x):
    ...         return [x * pt.sigmoid(x)]
    >>> x = pt.vector("x")
    >>> y = Swish()(x)
    >>> y.eval({x: np.array([0.0, np.log(3.0)])}).round(4)
    array([0.   , 0.824])
    >>> pytensor.grad(y.sum(), x).eval({x: np.array([0.0])})
    array([0.5])
    """

    __props__: tuple[str, ...] = ()

    def build(self, *inputs: Any) -> list[Variable]:
        """Give the graphs that define the outputs; a subclass must define it."""
        raise TypeError(NO_BUILD.format(op=type(self).__name__))

    def output_types(self, *inputs: Any) -> Sequence[Type]:
        """Give the types of the outputs; those of the graph, unless a subclass knows without building it."""
        return [output.type for output in self.build(*inputs)]

    def make_node(self, *inputs: Any) -> Apply:
        known_to_pytensor()
        variables = [value if isinstance(value, Variable) else pt.as_tensor(value) for value in inputs]
        return Apply(self, variables, [kind() for kind in self.output_types(*variables)])

    def infer_shape(self, node: Apply, shapes: Any) -> list[Any]:
        stand_ins = _stand_ins(node.inputs)
        found = infer_shape(self.build(*stand_ins), stand_ins, shapes)
        # A shape that is a value, such as that of a draw, is computed from the values themselves.
        flat = [size for sizes in found for size in sizes]
        rest = iter(_put_in(flat, stand_ins, node.inputs, [size for sizes in shapes for size in sizes or ()]))
        return [tuple(next(rest) for _ in sizes) for sizes in found]

    def connection_pattern(self, node: Apply) -> list[list[bool]]:
        stand_ins = _stand_ins(node.inputs)
        pattern = io_connection_pattern(stand_ins, self.build(*stand_ins))
        # Nothing flows back into integers.
        return [
            row if variable.type.dtype.startswith(("float", "complex")) else [False] * len(row)
            for variable, row in zip(node.inputs, pattern, strict=True)
        ]

    def pullback(self, inputs: Any, outputs: Any, cotangents: Any) -> list[Variable]:
        return self.defined_pullback(inputs, cotangents)

    def defined_pullback(self, inputs: Sequence[Any], cotangents: Sequence[Any]) -> list[Any]:
        """Give the gradients of the graph that defines the op.

        Parameters
        ----------
        inputs : sequence of Variable
        cotangents : sequence of Variable
            One for each output; a disconnected one takes no part.
        """
        stand_ins = _stand_ins(inputs)
        # An output may be computed of another: each is seen as one by itself, so that what comes back for the
        # one adds to what comes back through the other.
        known = {
            view_op(output): cotangent
            for output, cotangent in zip(self.build(*stand_ins), cotangents, strict=True)
            if not isinstance(cotangent.type, DisconnectedType)
        }
        discrete = [not variable.type.dtype.startswith(("float", "complex")) for variable in inputs]
        wrt = [variable for variable, skip in zip(stand_ins, discrete, strict=True) if not skip]
        found = grad(
            None,
            wrt,
            known_grads=known,
            disconnected_inputs="ignore",
            return_disconnected="disconnected",
            null_gradients="return",
        )
        here = iter(_put_in(found, stand_ins, inputs, list(known.values())))
        return [disconnected_type() if skip else next(here) for skip in discrete]

    def perform(self, node: Apply, inputs: Sequence[Any], output_storage: Any) -> None:
        results = _in_python(self, tuple(variable.type for variable in node.inputs))(*inputs)
        for storage, result in zip(output_storage, results, strict=True):
            storage[0] = result


def one_float_dtype(variables: Sequence[Variable]) -> bool:
    """Say whether all floats among some variables are of one dtype, which results then have too."""
    return len({v.type.dtype for v in variables if v.type.dtype.startswith("float")}) == 1


def _stand_ins(variables: Sequence[Variable]) -> list[Any]:
    """Give roots of the same types, so that what is built of them depends on nothing else."""
    return [variable.type(name=variable.name) for variable in variables]


def _put_in(
    outputs: Sequence[Any], stand_ins: Sequence[Any], inputs: Sequence[Any], others: Sequence[Any]
) -> list[Any]:
    """Give a graph of the true inputs. What these and the other inputs are computed of is not copied."""
    memo: dict[Any, Any] = dict(zip(stand_ins, inputs, strict=True))
    kept = [*stand_ins, *(other for other in others if isinstance(other, Variable))]
    equiv = clone_get_equiv(kept, outputs, copy_inputs=False, copy_orphans=False, memo=memo)
    return [equiv.get(output, output) for output in outputs]


@lru_cache(maxsize=64)
def _in_python(op: Fused, types: tuple[Type, ...]) -> Callable[..., list[Any]]:
    """Give the graph of an op as a function: what runs where neither a kernel nor a rewrite was."""
    inputs = [kind() for kind in types]
    return pytensor.function(
        inputs, op.build(*inputs), mode=Mode("py", "fast_compile"), on_unused_input="ignore"
    )


@_vectorize_node.register(Fused)
def _vectorize_fused(op: Fused, node: Apply, *batched: Variable) -> Sequence[Variable]:
    stand_ins = _stand_ins(node.inputs)
    return vectorize_graph(op.build(*stand_ins), dict(zip(stand_ins, batched, strict=True)))


#: Puts the graphs of fused ops in their places; in loops too, since what a loop computes once is later taken
#: out of it.
expand = everywhere(Fused, lambda node: True, lambda node: node.op.build(*node.inputs))


@cache
def known_to_pytensor() -> None:
    """Let every mode of PyTensor's expand what it has no kernel for, from the first fused op on."""
    if EXPAND not in optdb.__position__:
        optdb.register(
            EXPAND, expand, "fast_run", "fast_compile", "minimum_compile", position=EXPAND_POSITION
        )
