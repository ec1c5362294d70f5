"""What a loss weighs: over how much it averages, so that means of unequal batches can be joined."""

from __future__ import annotations

from pytensor.compile.sharedvalue import SharedVariable
from pytensor.graph.basic import Constant, Variable
from pytensor.graph.traversal import graph_inputs
from pytensor.scalar.basic import Add, Cast, Identity, Mul, Neg, Sub, TrueDiv
from pytensor.tensor.elemwise import DimShuffle, Elemwise
from pytensor.tensor.variable import TensorVariable

from ptml_state import SlotVariable

__all__ = ["averages_over", "weight_of"]

NO_MEAN = "the loss is not the mean of a loss of ptml.loss"
SUMMED = "a loss of reduction='sum' is in it, and gradients of sums do not average; write reduction='mean'"
SEVERAL = "the loss joins several means, which may be over different numbers of rows"
COPIED = "the loss is a copy, by givens or clone_replace, of the graph that ptml.loss made"


def averages_over(result: TensorVariable, weight: TensorVariable | None) -> TensorVariable:
    """Note with a reduced loss the total weight that it averages over, None where it is a sum."""
    result.tag.averages_over = (weight,)
    return result


def weight_of(loss: TensorVariable) -> TensorVariable | str:
    """Find the total weight that a loss averages over.

    A mean may be scaled, and have terms added that depend on no data, such as a penalty on the weights.

    Parameters
    ----------
    loss : scalar tensor

    Returns
    -------
    scalar tensor or str
        The weight; or why it cannot be known.

    Examples
    --------
    >>> import pytensor.tensor as pt
    >>> from ptml.loss import SquaredError
    >>> y, t = pt.vector("y"), pt.vector("t")
    >>> int(weight_of(0.5 * SquaredError()(y, t) + 3.0).eval({y: [1, 2, 3], t: [1, 2, 3]}))
    3
    >>> weight_of(((y - t) ** 2).mean())
    'the loss is not the mean of a loss of ptml.loss'
    """
    terms = _terms(loss)
    if not terms or any(term is None for term in terms):
        return NO_MEAN
    if len({id(term) for term in terms}) > 1:
        return SEVERAL
    [weight] = terms[0].tag.averages_over  # type: ignore[union-attr]
    if weight is None:
        return SUMMED
    return weight if set(_data(weight)) <= set(_data(loss)) else COPIED


def _data(variable: Variable) -> list[Variable]:
    """Give the roots that bring data, or chance, into a graph."""
    return [
        root
        for root in graph_inputs([variable])
        if not isinstance(root, Constant | SlotVariable | SharedVariable)
    ]


def _terms(variable: Variable) -> list[Variable | None]:
    """Give the reduced losses that a graph is a sum of, None where one of its terms is something else."""
    if hasattr(variable.tag, "averages_over"):
        return [variable]
    if not _data(variable):
        return []
    node = variable.owner
    if node is None or not isinstance(node.op, Elemwise | DimShuffle):
        return [None]
    kind = None if isinstance(node.op, DimShuffle) else node.op.scalar_op
    of_data = [parent for parent in node.inputs if _data(parent)]
    linear = kind is None or isinstance(kind, Add | Sub | Neg | Cast | Identity)
    linear |= isinstance(kind, Mul) and len(of_data) == 1
    linear |= isinstance(kind, TrueDiv) and of_data == [node.inputs[0]]
    return [term for parent in of_data for term in _terms(parent)] if linear else [None]
