"""The joint L2 norm of tensors, which neither overflows nor vanishes while their coordinates do not."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any

import pytensor.tensor as pt
from pytensor.scalar import upcast
from pytensor.tensor.variable import TensorVariable

from ptml.optim.hyperparameters import as_scalar

__all__ = ["global_norm", "relative_norm"]


def _joined(reduced: Sequence[TensorVariable], join: Any) -> TensorVariable:
    return reduced[0] if len(reduced) == 1 else join(pt.stack(reduced))


def relative_norm(
    amounts: Sequence[TensorVariable], axes: tuple[int, ...] | None = None
) -> tuple[TensorVariable, TensorVariable, list[TensorVariable]]:
    """Give the L2 norm of tensors, relative to their largest coordinate.

    Parameters
    ----------
    amounts : sequence of tensors
        Of one dtype, none of them empty.
    axes : tuple of int, optional
        What one norm is taken over, of a single tensor; everything unless given.

    Returns
    -------
    norm, unit : tensor
        The norm is their product. The unit is 1 where all is zero, or something is not finite.
    relative : list of tensors
        The tensors, divided by the unit.
    """
    dtype, kept = amounts[0].dtype, axes is not None
    one = as_scalar(1.0, dtype)
    largest = _joined([pt.max(pt.abs(amount), axis=axes, keepdims=kept) for amount in amounts], pt.max)
    finite = pt.lt(largest, math.inf)
    unit = pt.switch(pt.gt(largest, 0) & finite, largest, one)
    # The switch also keeps rewrites from joining the unit with the norm into a product that overflows.
    relative = [pt.switch(finite, amount / unit, amount) for amount in amounts]
    squares = [pt.sum(pt.sqr(amount), axis=axes, keepdims=kept) for amount in relative]
    # By default PyTensor would add float32 up in float64, which JAX has only where it is told to.
    norm = pt.sqrt(_joined(squares, lambda parts: pt.sum(parts, acc_dtype=dtype)))
    return norm, unit, relative


def global_norm(tensors: Iterable[TensorVariable]) -> TensorVariable:
    """Give the joint L2 norm of tensors: of gradients, steps or parameters.

    Parameters
    ----------
    tensors : iterable of tensors
        Of any shapes; in the widest of their dtypes the norm is computed.

    Returns
    -------
    scalar tensor
        0 of none.

    Examples
    --------
    >>> import pytensor.tensor as pt
    >>> from ptml.optim import global_norm
    >>> global_norm([pt.constant([3.0, 0.0]), pt.constant([[4.0]])]).eval()
    array(5.)
    """
    amounts = [tensor for tensor in map(pt.as_tensor, tensors) if 0 not in tensor.type.shape]
    if not amounts:
        return pt.constant(0.0)
    dtype = upcast(*(amount.dtype for amount in amounts))
    norm, unit, _ = relative_norm([pt.cast(amount, dtype) for amount in amounts])
    return norm * unit
