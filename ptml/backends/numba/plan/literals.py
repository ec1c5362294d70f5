"""Numbers in kernels: what is written into their source, and what is an operand.

Whole numbers such as 0, 1 and 2 belong to a computation, and are written into it. Any other number is an
operand, which a kernel reads once: so a kernel is the same for every learning rate.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytensor.scalar as ps
from pytensor.graph.basic import Apply, Constant, Variable
from pytensor.graph.features import ReplaceValidate
from pytensor.graph.fg import FunctionGraph
from pytensor.graph.rewriting.basic import GraphRewriter
from pytensor.scalar.basic import Composite
from pytensor.tensor.elemwise import DimShuffle, Elemwise
from pytensor.tensor.type import TensorType

__all__ = ["WriteLiterals", "literal_of", "number_of"]

#: Numbers that are written into a computation, and their negatives.
LITERALS = frozenset([0.0, 0.5, 1.0, 2.0, 3.0, 4.0, np.inf])


def number_of(variable: Variable) -> np.ndarray | None:
    """Give the number that a constant of one element is, stretched or not, and None for anything else."""
    while variable.owner is not None and isinstance(variable.owner.op, DimShuffle):
        variable = variable.owner.inputs[0]
    if isinstance(variable, Constant) and isinstance(variable.type, TensorType) and variable.data.size == 1:
        return np.asarray(variable.data, variable.type.dtype).reshape(())
    return None


def literal_of(variable: Variable) -> np.ndarray | None:
    """Give the number that is written into the computation for a variable; None where it is an operand."""
    number = number_of(variable)
    is_literal = number is not None and number.dtype.kind != "c" and abs(float(number)) in LITERALS
    return number if is_literal else None


class WriteLiterals(GraphRewriter):
    """Writes literals into the fused computations that take them as operands."""

    def add_requirements(self, fgraph: FunctionGraph) -> None:
        fgraph.attach_feature(ReplaceValidate())

    def apply(self, fgraph: FunctionGraph) -> None:
        known: dict[Any, Elemwise] = {}
        for node in fgraph.toposort():
            if not isinstance(node.op, Elemwise) or not isinstance(node.op.scalar_op, Composite):
                continue
            literals = [literal_of(v) for v in node.inputs]
            kept = [v for v, number in zip(node.inputs, literals, strict=True) if number is None]
            if len(kept) in (0, len(literals)):
                continue
            key = node.op, tuple(None if number is None else number.tobytes() for number in literals)
            if key not in known:
                known[key] = Elemwise(_written(node, literals))
            new = known[key].make_node(*kept).outputs
            fgraph.replace_all_validate(list(zip(node.outputs, new, strict=True)), reason="literals")


def _written(node: Apply, literals: list[np.ndarray | None]) -> Composite:
    inner = node.op.scalar_op.fgraph
    values: dict[Variable, Variable] = {
        v: v if number is None else ps.constant(number[()], dtype=v.type.dtype)
        for v, number in zip(inner.inputs, literals, strict=True)
    }
    kept = [v for v, number in zip(inner.inputs, literals, strict=True) if number is None]
    return Composite(kept, inner.bind(values))
