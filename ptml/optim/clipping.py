"""Clips: they bound gradients ahead of a rule, and steps behind one. They are no guards.

One infinite coordinate makes the global norm infinite, so that everything else is multiplied by zero and
itself becomes NaN: clipping bounds a batch that is large, and cannot rescue one that has overflowed.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import attrs
import pytensor.tensor as pt
from pytensor.graph.basic import Variable
from pytensor.raise_op import CheckAndRaise
from pytensor.scalar import upcast
from pytensor.tensor.variable import TensorVariable

from ptml.optim.hyperparameters import Rate, as_scalar, checked, number, positive, working_dtype
from ptml.optim.masks import a_mask, masked
from ptml.optim.norms import relative_norm
from ptml.optim.transform import Transform
from ptml.optim.updates import Updates
from ptml_state import SlotVariable

__all__ = [
    "AdaptiveClip",
    "ClipByGlobalNorm",
    "ClipByNorm",
    "ClipByValue",
    "adaptive_clip",
    "clip_by_global_norm",
    "clip_by_norm",
    "clip_by_value",
]

BAD_BOUNDS = "ClipByValue: min_value must not be above max_value; got {low!r} and {high!r}."
BAD_COMPUTED_BOUNDS = (
    "ClipByValue: min_value must not be above max_value, and these, which the graph computes, are."
)


_a_norm = number(lambda value: value > 0, "a positive number")


def _within_norm(
    amounts: Sequence[TensorVariable], bound: TensorVariable, axes: tuple[int, ...] | None = None
) -> list[TensorVariable]:
    """Rescale tensors of one dtype by one factor, so that their joint L2 norm does not exceed a bound.

    Parameters
    ----------
    amounts : sequence of tensors
        None of them empty.
    bound : tensor
        Broadcasts against the norms.
    axes : tuple of int, optional
        What one norm is taken over, of a single tensor; everything unless given.
    """
    norm, unit, relative = relative_norm(amounts, axes)
    within = pt.le(norm, bound / unit)
    factor = bound / pt.switch(within, as_scalar(1.0, amounts[0].dtype), norm)
    return [pt.switch(within, amount, part * factor) for amount, part in zip(amounts, relative, strict=True)]


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

    max_norm: Rate = attrs.field(default=1.0, validator=_a_norm)

    def apply(self, updates: Updates, parameters: Sequence[SlotVariable]) -> Updates:
        amounts = {p: amount for p, amount in updates.amounts.items() if 0 not in p.type.shape}
        if not amounts:
            return updates
        dtype = upcast(*(amount.dtype for amount in amounts.values()))
        bound = as_scalar(checked(self, "max_norm"), dtype)
        clipped = _within_norm([pt.cast(amount, dtype) for amount in amounts.values()], bound)
        return updates.with_amounts(updates.amounts | dict(zip(amounts, clipped, strict=True)))


class ClipByNorm(Transform, kw_only=False):
    """Rescale the amount of each parameter by itself, so that its L2 norm does not exceed `max_norm`.

    One parameter with a spike leaves the others as they are, but the direction of the whole changes; where
    it should not, take :class:`ClipByGlobalNorm`. No norm overflows while the coordinates are finite.

    Parameters
    ----------
    max_norm : number or scalar tensor, default 1.0
        The bound, positive.

    Raises
    ------
    ValueError
        If the bound is not positive; for a symbolic one, when the graph runs.

    Examples
    --------
    >>> from ptml.optim import chain, sgd
    >>> chain(ClipByNorm(0.5), sgd(0.1))
    Chain(ClipByNorm(0.5), Sgd(0.1))
    """

    max_norm: Rate = attrs.field(default=1.0, validator=_a_norm)

    def apply(self, updates: Updates, parameters: Sequence[SlotVariable]) -> Updates:
        amounts = updates.amounts
        for parameter, amount in amounts.items():
            if 0 not in parameter.type.shape:
                bound = as_scalar(checked(self, "max_norm"), amount.dtype)
                [amounts[parameter]] = _within_norm([amount], bound)
        return updates.with_amounts(amounts)


class AdaptiveClip(Transform, kw_only=False):
    r"""Bound the norm of each unit's gradient by a fraction of the norm of the unit's weights.

    A unit is what feeds one output feature: a column of a weight of shape ``(n_in, n_out)``, in general the
    slice of all axes but the last, such as ``(*kernel, n_in)`` of a convolution. Vectors and scalars are one
    unit each. A unit whose gradient is longer than :math:`\lambda \max(\lVert p \rVert, \epsilon)` is
    rescaled to that length.

    Parameters
    ----------
    clipping : number or scalar tensor, default 0.01
        The fraction :math:`\lambda`, positive.
    epsilon : number or scalar tensor, default 1e-3
        The least norm :math:`\epsilon` that weights are taken to have, positive, so that those that start
        at zero move.
    mask : where, or function of a parameter, optional
        Which parameters are clipped; all unless given. The authors leave the last layer out.

    Raises
    ------
    ValueError
        If a number is not positive; for a symbolic one, when the graph runs.
    KeyError
        When it is called, if a name in `mask` matches no parameter.

    References
    ----------
    Brock, De, Smith and Simonyan, "High-Performance Large-Scale Image Recognition Without Normalization",
    2021, equation 3.

    Examples
    --------
    >>> from ptml.optim import chain, sgd
    >>> from ptml_state import where
    >>> chain(AdaptiveClip(0.02, mask=~where("head")), sgd(0.1, momentum=0.9))
    Chain(AdaptiveClip(0.02, mask=~where('head')), Sgd(0.1, 0.9))
    """

    clipping: Rate = attrs.field(default=0.01, validator=positive)
    epsilon: Rate = attrs.field(default=1e-3, validator=positive)
    mask: Any = attrs.field(default=None, validator=a_mask)

    def apply(self, updates: Updates, parameters: Sequence[SlotVariable]) -> Updates:
        amounts = updates.amounts
        for parameter in masked(self.mask, amounts):
            if 0 in parameter.type.shape:
                continue
            amount, axes = amounts[parameter], unit_axes(parameter)
            dtype = amount.dtype
            weights = pt.cast(parameter, dtype)
            norm = pt.sqrt(pt.sum(pt.sqr(weights), axis=axes, keepdims=axes is not None, acc_dtype=dtype))
            least = as_scalar(checked(self, "epsilon"), dtype)
            bound = as_scalar(checked(self, "clipping"), dtype) * pt.maximum(norm, least)
            [amounts[parameter]] = _within_norm([amount], bound, axes)
        return updates.with_amounts(amounts)


def unit_axes(parameter: SlotVariable) -> tuple[int, ...] | None:
    """Give the axes of a parameter that feed one output feature: all but the last; None for a single unit."""
    ndim = parameter.type.ndim
    return tuple(range(ndim - 1)) if ndim > 1 else None


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
clip_by_norm = ClipByNorm
adaptive_clip = AdaptiveClip
clip_by_value = ClipByValue
