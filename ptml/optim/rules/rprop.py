"""Rprop: steps of a size of their own for each element, which looks at signs only."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Sequence
from typing import Any

import attrs
import pytensor.tensor as pt
from pytensor.graph.basic import Variable
from pytensor.raise_op import CheckAndRaise
from pytensor.tensor.variable import TensorVariable

from ptml.optim.hyperparameters import (
    LearningRate,
    Rate,
    a_rate,
    as_scalar,
    checked,
    checked_rate,
    is_schedule,
    namespace,
    non_negative,
    number,
    positive,
    working_dtype,
)
from ptml.optim.ownership import counter, state_for
from ptml.optim.rules.parts import Amounts, apply_rule, sign
from ptml.optim.transform import Rule
from ptml.optim.updates import Gradients, Steps, Updates
from ptml_state import SlotVariable

__all__ = ["Rprop", "rprop", "rprop_updates"]

BAD_BOUNDS = "Rprop: min_step must not be above max_step; got {low!r} and {high!r}."
BAD_COMPUTED_BOUNDS = "Rprop: min_step must not be above max_step, and these, which the graph computes, are."

_shrinks = number(lambda eta: (eta > 0) & (eta < 1), "a number between 0 and 1")
_grows = number(lambda eta: (eta > 1) & (eta < float("inf")), "a finite number above 1")


class Rprop(Rule, kw_only=False):
    r"""Resilient backpropagation: each element has a step size, and only the signs of gradients count.

    Where a gradient has the sign that it had before, the size grows by :math:`\eta^+`; where the sign has
    turned, it shrinks by :math:`\eta^-`, no step is made, and the turn is forgotten. A step is
    :math:`p \leftarrow p - \Delta \operatorname{sign}(g)`.

    It is for gradients of all the data: the signs of small batches are mostly noise.

    Parameters
    ----------
    learning_rate : number, scalar tensor or schedule, default 0.01
        The first step size. A rate that changes scales all sizes with it; a schedule runs on the rule's own
        clock, ``<namespace>/step_count``.
    eta_minus : number or scalar tensor, default 0.5
        The factor by which a size shrinks, between 0 and 1.
    eta_plus : number or scalar tensor, default 1.2
        The factor by which a size grows, above 1.
    min_step, max_step : number or scalar tensor, defaults 1e-6 and 50.0
        The bounds of step sizes.
    namespace : str, default "rprop"
        The first part of the addresses of its state: ``rprop/relative_step/<parameter>``, which are the
        step sizes over the rate, 1 at first, and ``rprop/previous_gradient/<parameter>``.

    Raises
    ------
    ValueError
        If the rate is negative or not finite, a factor on the wrong side of 1, or the bounds crossed; for
        symbolic ones, when the graph runs.

    References
    ----------
    Igel and Huesken, "Improving the Rprop Learning Algorithm", 2000: there called iRprop-, as in PyTorch.

    Examples
    --------
    >>> Rprop(0.1, max_step=1.0)
    Rprop(0.1, max_step=1.0)
    """

    learning_rate: LearningRate = attrs.field(default=0.01, validator=a_rate)
    eta_minus: Rate = attrs.field(default=0.5, validator=_shrinks)
    eta_plus: Rate = attrs.field(default=1.2, validator=_grows)
    min_step: Rate = attrs.field(default=1e-6, validator=non_negative)
    max_step: Rate = attrs.field(default=50.0, validator=positive)
    namespace: str = attrs.field(default="rprop", validator=namespace)

    def __attrs_post_init__(self) -> None:
        if not self._symbolic_bounds and self.min_step > self.max_step:
            raise ValueError(BAD_BOUNDS.format(low=self.min_step, high=self.max_step))

    @property
    def _symbolic_bounds(self) -> bool:
        return isinstance(self.min_step, Variable) or isinstance(self.max_step, Variable)

    def decide(self, gradients: Gradients, parameters: Sequence[SlotVariable]) -> Steps:
        count = counter(f"{self.namespace}/step_count") if is_schedule(self.learning_rate) else None
        rate = checked_rate(self, count)
        minus, plus, low, high = (
            checked(self, name) for name in ("eta_minus", "eta_plus", "min_step", "max_step")
        )
        if self._symbolic_bounds:
            low = CheckAndRaise(ValueError, BAD_COMPUTED_BOUNDS)(pt.as_tensor(low), pt.le(low, high))

        @functools.cache
        def coefficients(dtype: str) -> tuple[TensorVariable, ...]:
            scalars = tuple(as_scalar(number, dtype) for number in (rate, minus, plus, low, high))
            # At a rate of zero nothing moves, and the relative steps are kept for when it rises.
            unit = pt.switch(pt.gt(scalars[0], 0), scalars[0], as_scalar(1.0, dtype))
            return (*scalars[:3], scalars[3] / unit, scalars[4] / unit)

        steps: Amounts = {}
        state: Amounts = {}
        for parameter, gradient in gradients.amounts.items():
            dtype = working_dtype(parameter)
            rate_, minus_, plus_, least, most = coefficients(dtype)
            relative = state_for(parameter, f"{self.namespace}/relative_step", 1.0)
            previous = state_for(parameter, f"{self.namespace}/previous_gradient")
            agreement = pt.sign(gradient) * pt.sign(pt.cast(previous, dtype))
            turned = pt.lt(agreement, 0)
            factor = pt.switch(turned, minus_, pt.switch(pt.gt(agreement, 0), plus_, 1))
            size = pt.clip(pt.cast(relative, dtype) * factor, least, most)
            heeded = pt.switch(turned, 0, gradient)
            steps[parameter] = -rate_ * size * sign(heeded)
            state[relative] = pt.cast(size, relative.dtype)
            state[previous] = pt.cast(heeded, previous.dtype)
        return gradients.to_steps(steps).with_state(state)


rprop = Rprop


def rprop_updates(
    loss_gradients_or_updates: Any,
    parameters: Iterable[SlotVariable],
    learning_rate: LearningRate = 0.01,
    eta_minus: Rate = 0.5,
    eta_plus: Rate = 1.2,
    min_step: Rate = 1e-6,
    max_step: Rate = 50.0,
    namespace: str = "rprop",
) -> Updates:
    """Build the updates of :class:`Rprop`, with new state at every call outside :func:`reuses_state`.

    Parameters
    ----------
    loss_gradients_or_updates : scalar tensor, sequence, mapping or Gradients
    parameters : sequence of handles
    learning_rate, eta_minus, eta_plus, min_step, max_step, namespace
        As for :class:`Rprop`.

    Examples
    --------
    >>> from ptml.layers import Linear
    >>> import pytensor.tensor as pt
    >>> fc = Linear("fc", n_in=2, n_out=1, bias=False)
    >>> [handle.slot.address for handle in rprop_updates((fc(pt.matrix("X")) ** 2).mean(), [fc.W]).state]
    ['rprop/relative_step/fc/W', 'rprop/previous_gradient/fc/W']
    """
    rule = Rprop(learning_rate, eta_minus, eta_plus, min_step, max_step, namespace)
    return apply_rule(rule, loss_gradients_or_updates, parameters)
