"""Centering: gradients of weights without their mean."""

from __future__ import annotations

from collections.abc import Sequence

import pytensor.tensor as pt

from ptml.optim.clipping import unit_axes
from ptml.optim.transform import Transform
from ptml.optim.updates import Updates
from ptml_state import SlotVariable

__all__ = ["Centralize", "centralize"]


class Centralize(Transform):
    """Subtract, from the gradient of each unit's weights, their mean: gradient centralization.

    A unit is what feeds one output feature, as for :class:`ptml.optim.AdaptiveClip`: a column of a weight of
    shape ``(n_in, n_out)``, the ``(*kernel, n_in)`` slice of a convolution's. Vectors and scalars, such as
    biases, stay as they are.

    References
    ----------
    Yong, Huang, Hua and Zhang, "Gradient Centralization: A New Optimization Technique for Deep Neural
    Networks", 2020, equation 1.

    Examples
    --------
    >>> from ptml.optim import chain, sgd
    >>> chain(Centralize(), sgd(0.1))
    Chain(Centralize(), Sgd(0.1))
    """

    def apply(self, updates: Updates, parameters: Sequence[SlotVariable]) -> Updates:
        amounts = updates.amounts
        for parameter, amount in amounts.items():
            axes = unit_axes(parameter)
            if axes is not None and 0 not in parameter.type.shape:
                amounts[parameter] = amount - pt.mean(amount, axis=axes, keepdims=True)
        return updates.with_amounts(amounts)


centralize = Centralize
