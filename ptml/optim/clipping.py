"""Clips: they bound gradients ahead of a rule, and steps behind one. They are no guards.

One infinite coordinate makes the global norm infinite, so that everything else is multiplied by zero and
itself becomes NaN: clipping bounds a batch that is large, and cannot rescue one that has overflowed.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import attrs
import pytensor.tensor as pt
from pytensor.graph.basic import Variable
from pytensor.raise_op import CheckAndRaise
from pytensor.scalar import upcast
from pytensor.tensor.variable import TensorVariable

from ptml.optim.hyperparameters import Rate, as_scalar, number, working_dtype
from ptml.optim.transform import Transform
from ptml.optim.updates import Updates
from ptml_state import SlotVariable

__all__ = ["ClipByGlobalNorm", "ClipByValue", "clip_by_global_norm", "clip_by_value"]

BAD_NORM = (
    "ClipByGlobalNorm: max_norm must be a positive number, and this one, which the graph computes, is not."
)
BAD_BOUNDS = "ClipByValue: min_value must not be above max_value; got {low!r} and {high!r}."
BAD_COMPUTED_BOUNDS = (
    "ClipByValue: min_value must not be above max_value, and these, which the graph computes, are."
)


class ClipByGlobalNorm(Transform, kw_only=False):
    """Rescale everything by one factor, so that its global L2 norm does not exceed `max_norm`.

    The norm is computed relative to the largest coordinate, so neither it nor the factor overflows while
    the coordinates are finite. What is within the bound comes out bit for bit as it was.

    Parameters
    ----------
    max_norm : number or scalar tensor, default 1.0
        The bound, positive.

    Raises
    ------
    ValueError
        If the bound is not positive; for a symbolic one, when the graph runs.

    References
    ----------
    Pascanu, Mikolov and Bengio, "On the difficulty of training recurrent neural networks", 2013,
    algorithm 1, over all parameters together.

    Examples
    --------
    >>> from ptml.optim import adam, chain
    >>> chain(ClipByGlobalNorm(0.5), adam(1e-3))
    Chain(ClipByGlobalNorm(0.5), Adam())
    """

    max_norm: Rate = attrs.field(default=1.0, validator=number(lambda norm: norm > 0, "a positive number"))

    def apply(self, updates: Updates, parameters: Sequence[SlotVariable]) -> Updates:
        amounts = {p: amount for p, amount in updates.amounts.items() if 0 not in p.type.shape}
        if not amounts:
            return updates
        dtype = upcast(*(amount.dtype for amount in amounts.values()))
        bound = as_scalar(self.max_norm, dtype)
        if isinstance(self.max_norm, Variable):
            bound = CheckAndRaise(ValueError, BAD_NORM)(bound, pt.gt(bound, 0))
        wide = {p: pt.cast(amount, dtype) for p, amount in amounts.items()}
        largest = pt.max(pt.stack([pt.max(pt.abs(amount)) for amount in wide.values()]))
        finite = pt.lt(largest, math.inf)
        unit = pt.switch(pt.gt(largest, 0) & finite, largest, as_scalar(1.0, dtype))
        # The switch also keeps rewrites from joining the unit with the norm into a product that overflows.
        relative = {p: pt.switch(finite, amount / unit, amount) for p, amount in wide.items()}
        squares = pt.stack([pt.sum(pt.sqr(amount)) for amount in relative.values()])
        # By default PyTensor would add float32 up in float64, which JAX has only where it is told to.
        norm = pt.sqrt(pt.sum(squares, acc_dtype=dtype))
        within = pt.le(norm, bound / unit)
        factor = bound / pt.switch(within, as_scalar(1.0, dtype), norm)
        return updates.with_amounts(
            updates.amounts | {p: pt.switch(within, wide[p], relative[p] * factor) for p in amounts}
        )


def _bound(default: float) -> Any:
    return attrs.field(default=default, validator=number(lambda value: True, "a number"))


class ClipByValue(Transform, kw_only=False):
    """Clamp every value into [`min_value`, `max_value`].

    Parameters
    ----------
    min_value : number or scalar tensor, default -1.0
    max_value : number or scalar tensor, default 1.0

    Raises
    ------
    ValueError
        If `min_value` is above `max_value`; for symbolic ones, when the graph runs.

    Examples
    --------
    >>> from ptml.optim import chain, sgd
    >>> chain(ClipByValue(-0.5, 0.5), sgd(0.1))
    Chain(ClipByValue(-0.5, 0.5), Sgd(0.1))
    """

    min_value: Rate = _bound(-1.0)
    max_value: Rate = _bound(1.0)

    def __attrs_post_init__(self) -> None:
        low, high = self.min_value, self.max_value
        if not isinstance(low, Variable) and not isinstance(high, Variable) and low > high:
            raise ValueError(BAD_BOUNDS.format(low=low, high=high))

    def apply(self, updates: Updates, parameters: Sequence[SlotVariable]) -> Updates:
        symbolic = isinstance(self.min_value, Variable) or isinstance(self.max_value, Variable)

        def clamped(parameter: SlotVariable, amount: TensorVariable) -> TensorVariable:
            dtype = working_dtype(parameter)
            low, high = as_scalar(self.min_value, dtype), as_scalar(self.max_value, dtype)
            if symbolic:
                low = CheckAndRaise(ValueError, BAD_COMPUTED_BOUNDS)(low, pt.le(low, high))
            return pt.clip(amount, low, high)

        return updates.with_amounts({p: clamped(p, amount) for p, amount in updates.amounts.items()})


clip_by_global_norm = ClipByGlobalNorm
clip_by_value = ClipByValue
