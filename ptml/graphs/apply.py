"""Applying an op that a text names to inputs that it names, and trusting nothing that it says of the result.

An op decides by itself what it takes and what it gives. It is asked on stand-ins for its inputs, so that
nothing that leads to them is looked at: some ops would compute a constant shape, however large. What the text
says of the results is held against that. A size that the op does not know, and the text does, is found from
shapes and constants alone or, failing that, checked when the graph runs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytensor.tensor as pt
from pytensor.graph.basic import Apply, Constant, Variable
from pytensor.graph.op import Op
from pytensor.graph.type import Type
from pytensor.scalar.basic import ScalarInnerGraphOp, ScalarOp, ScalarType
from pytensor.tensor.basic import Join, MakeVector, ScalarFromTensor, TensorFromScalar
from pytensor.tensor.elemwise import CAReduce, DimShuffle, Elemwise
from pytensor.tensor.shape import Shape, Shape_i
from pytensor.tensor.subtensor import Subtensor
from pytensor.tensor.type import TensorType

from ptml.graphs.errors import GraphError
from ptml.graphs.types import write_type

__all__ = ["applied", "sizes_alone"]

REFUSES = "{op} does not take {types}: {error}"
OTHER_OP = "{op} of {types} is another op with more properties than are said: {other}"
CONVERTS = "{op} does not take {types} as they are"
WRONG_COUNT = "{op} gives {given} results here, and {wanted} are named"
WRONG_TYPE = "{op} gives {given} here, and {wanted} is said"


def applied(op: Op, inputs: Sequence[Variable], types: Sequence[Type], where: str) -> list[Variable]:
    """Apply an op.

    Parameters
    ----------
    op : Op
    inputs : sequence of Variable
    types : sequence of Type
        What the results are said to be.
    where : str
        The place in the JSON.

    Returns
    -------
    list of Variable
        Of these very types.

    Raises
    ------
    GraphError
        If the op does not take the inputs, or gives something else.

    Examples
    --------
    >>> import pytensor.tensor as pt
    >>> x = pt.vector("x", shape=(3,))
    >>> applied((x + x).owner.op, [x, x], [pt.vector(shape=(4,)).type], "graph.nodes[0]")
    Traceback (most recent call last):
        ...
    ptml.graphs.errors.GraphError: graph.nodes[0]: Add gives float64[3] here, and float64[4] is said
    """
    made = _asked(op, inputs, where, lambda variable: variable.type())
    if len(made.outputs) != len(types):
        raise GraphError(WRONG_COUNT.format(op=op, given=len(made.outputs), wanted=len(types)), where)
    found = [output.type for output in made.outputs]
    if not all(map(_knows, found, types)):
        found = [output.type for output in _asked(op, inputs, where, sizes_alone).outputs]
    for given, said in zip(found, types, strict=True):
        if not _agree(given, said):
            text = WRONG_TYPE.format(op=op, given=write_type(given), wanted=write_type(said))
            raise GraphError(text, where)
    certain = [said if _knows(given, said) else given for given, said in zip(found, types, strict=True)]
    node = Apply(op, list(inputs), [kind() for kind in certain])
    return [
        output if output.type == said else pt.specify_shape(output, said.shape)
        for output, said in zip(node.outputs, types, strict=True)
    ]


def _asked(op: Op, inputs: Sequence[Variable], where: str, stand_in: Callable[[Variable], Variable]) -> Apply:
    """Let an op make its node, of stand-ins for what is computed."""
    made: dict[Variable, Variable] = {}
    for variable in inputs:
        if variable not in made:
            made[variable] = variable if variable.owner is None else stand_in(variable)
    given = [made[variable] for variable in inputs]
    types = ", ".join(str(variable.type) for variable in inputs) or "no input"
    try:
        node = op.make_node(*given)
    except Exception as error:
        raise GraphError(REFUSES.format(op=op, types=types, error=_first_line(error)), where) from None
    if node.op != op:
        raise GraphError(OTHER_OP.format(op=op, types=types, other=node.op), where)
    if len(node.inputs) != len(given) or not all(map(_same, node.inputs, given)):
        raise GraphError(CONVERTS.format(op=op, types=types), where)
    return node


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0][:300]


def _same(used: Variable, given: Variable) -> bool:
    if used is given:
        return True
    return isinstance(used, Constant) and isinstance(given, Constant) and bool(used.equals(given))


def _knows(given: Type, said: Type) -> bool:
    """Say whether all that is said of a result is known."""
    if not isinstance(given, TensorType) or not isinstance(said, TensorType):
        return True
    return given.ndim != said.ndim or all(
        size is not None or claim is None for size, claim in zip(given.shape, said.shape, strict=True)
    )


def _agree(given: Type, said: Type) -> bool:
    if not isinstance(given, TensorType) or not isinstance(said, TensorType):
        return given == said
    return (given.dtype, given.ndim) == (said.dtype, said.ndim) and all(
        None in (size, claim) or size == claim for size, claim in zip(given.shape, said.shape, strict=True)
    )


#: How far back what a size is computed from is followed, by how many ops, and how many sizes there may be.
_FARTHEST, _MOST_COPIED, _MOST_SIZES = 20, 500, 64

#: The ops that sizes are computed with. None takes long on a few numbers.
_OF_SIZES = (
    CAReduce,
    DimShuffle,
    Elemwise,
    Join,
    MakeVector,
    ScalarFromTensor,
    ScalarOp,
    Shape,
    Shape_i,
    Subtensor,
    TensorFromScalar,
)


def sizes_alone(variable: Variable) -> Variable:
    """Copy what a size, or a vector of sizes, is computed from, as far as that is sizes and shapes alone.

    Parameters
    ----------
    variable : Variable

    Returns
    -------
    Variable
        Of a graph in which arrays are roots of the same types. A new root for what is no size.

    Examples
    --------
    >>> import pytensor
    >>> import pytensor.tensor as pt
    >>> x = pt.tensor("x", shape=(None, 3))
    >>> pytensor.dprint(sizes_alone(pt.exp(x).shape[1] + 1), file="str").count("Exp")
    0
    """
    return _sizes_alone(variable, _FARTHEST, {})


def _sizes_alone(variable: Variable, steps: int, copied: dict[Variable, Variable]) -> Variable:
    if variable not in copied:
        copied[variable] = _copied(variable, steps, copied)
    return copied[variable]


def _copied(variable: Variable, steps: int, copied: dict[Variable, Variable]) -> Variable:
    node = variable.owner
    if node is None:
        return variable
    op = node.op
    if len(copied) > _MOST_COPIED:
        return variable.type()
    if not steps or not isinstance(op, _OF_SIZES) or not _is_few(variable.type) or _is_long(op):
        return variable.type()
    if isinstance(op, Shape | Shape_i):
        inputs = [node.inputs[0].type()]
    else:
        inputs = [_sizes_alone(each, steps - 1, copied) for each in node.inputs]
    try:
        made = op.make_node(*inputs)
    except Exception:  # what is copied knows less of its types, which some ops do not take
        return variable.type()
    return made.outputs[0]


def _is_few(kind: Any) -> bool:
    """Say whether a type is of a few whole numbers."""
    if not isinstance(kind, TensorType | ScalarType) or np.dtype(kind.dtype).kind not in "biu":
        return False
    shape = getattr(kind, "shape", ())
    return len(shape) < 2 and all(size is not None and size <= _MOST_SIZES for size in shape)


def _is_long(op: Any) -> bool:
    """Say whether an op of numbers is a loop or graph of others."""
    kind = getattr(op, "scalar_op", op)
    return isinstance(kind, ScalarInnerGraphOp) or (isinstance(kind, ScalarOp) and kind.nout != 1)
