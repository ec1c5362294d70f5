"""AdaDelta: steps of the size of recent steps, over the size of recent gradients."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Sequence
from typing import Any

import attrs
import pytensor.tensor as pt
from pytensor.tensor.variable import TensorVariable

from ptml.optim.hyperparameters import (
    LearningRate,
    Rate,
    a_rate,
    a_share,
    as_scalar,
    checked,
    checked_rate,
    is_schedule,
    namespace,
    positive,
    working_dtype,
)
from ptml.optim.ownership import counter, state_for
from ptml.optim.rules.parts import Amounts, apply_rule, descend, faded, hypotenuse
from ptml.optim.transform import Rule
from ptml.optim.updates import Gradients, Steps, Updates
from ptml_state import SlotVariable

__all__ = ["Adadelta", "adadelta", "adadelta_updates"]


class Adadelta(Rule, kw_only=False):
    r"""AdaDelta: AdaGrad with a window of squares, and with steps in the parameter's own units.

    .. math::

        s \leftarrow \rho s + (1 - \rho) g^2, \quad d = \sqrt{\frac{u + \epsilon}{s + \epsilon}}\, g, \quad
        u \leftarrow \rho u + (1 - \rho) d^2, \quad p \leftarrow p - \eta d

    What is kept is :math:`\sqrt{s}` and :math:`\sqrt{u}`, made from their predecessors without squares that
    could overflow.

    Parameters
    ----------
    learning_rate : number, scalar tensor or schedule, default 1.0
        The rate :math:`\eta`; the paper has none. A schedule runs on the rule's own clock,
        ``<namespace>/step_count``.
    rho : number or scalar tensor, default 0.9
        The decay :math:`\rho` of both means, in [0, 1).
    epsilon : number or scalar tensor, default 1e-6
        Added inside both roots; above 0, since the first step is proportional to its root.
    namespace : str, default "adadelta"
        The first part of the addresses of its state: ``adadelta/root_mean_square/<parameter>`` of gradients,
        and ``adadelta/root_mean_square_step/<parameter>``.

    Raises
    ------
    ValueError
        If the rate is negative or not finite, rho outside [0, 1), or epsilon not above 0; for a symbolic
        one, when the graph runs.

    References
    ----------
    Zeiler, "ADADELTA: An Adaptive Learning Rate Method", 2012, algorithm 1.

    Examples
    --------
    >>> Adadelta(rho=0.95)
    Adadelta(rho=0.95)
    """

    learning_rate: LearningRate = attrs.field(default=1.0, validator=a_rate)
    rho: Rate = attrs.field(default=0.9, validator=a_share)
    epsilon: Rate = attrs.field(default=1e-6, validator=positive)
    namespace: str = attrs.field(default="adadelta", validator=namespace)

    def decide(self, gradients: Gradients, parameters: Sequence[SlotVariable]) -> Steps:
        count = counter(f"{self.namespace}/step_count") if is_schedule(self.learning_rate) else None
        rho, epsilon = checked(self, "rho"), checked(self, "epsilon")

        @functools.cache
        def coefficients(dtype: str) -> tuple[TensorVariable, ...]:
            return tuple(as_scalar(root, dtype) for root in (rho**0.5, (1 - rho) ** 0.5, epsilon**0.5))

        directions: Amounts = {}
        state: Amounts = {}
        for parameter, gradient in gradients.amounts.items():
            dtype = working_dtype(parameter)
            keep, take, floor = coefficients(dtype)
            root = state_for(parameter, f"{self.namespace}/root_mean_square")
            steps = state_for(parameter, f"{self.namespace}/root_mean_square_step")
            before = pt.cast(steps, dtype)
            of_gradients = hypotenuse(faded(keep, pt.cast(root, dtype)), take * gradient)
            step = gradient * (hypotenuse(before, floor) / hypotenuse(of_gradients, floor))
            directions[parameter] = step
            state[root] = pt.cast(of_gradients, root.dtype)
            state[steps] = pt.cast(hypotenuse(faded(keep, before), take * step), steps.dtype)
        return gradients.to_steps(descend(directions, checked_rate(self, count))).with_state(state)


adadelta = Adadelta


def adadelta_updates(
    loss_gradients_or_updates: Any,
    parameters: Iterable[SlotVariable],
    learning_rate: LearningRate = 1.0,
    rho: Rate = 0.9,
    epsilon: Rate = 1e-6,
    namespace: str = "adadelta",
) -> Updates:
    """Build the updates of :class:`Adadelta`, with new state at every call outside :func:`reuses_state`.

    Parameters
    ----------
    loss_gradients_or_updates : scalar tensor, sequence, mapping or Gradients
    parameters : sequence of handles
    learning_rate, rho, epsilon, namespace
        As for :class:`Adadelta`.

    Examples
    --------
    >>> from ptml.layers import Linear
    >>> import pytensor.tensor as pt
    >>> fc = Linear("fc", n_in=2, n_out=1, bias=False)
    >>> [handle.slot.address for handle in adadelta_updates((fc(pt.matrix("X")) ** 2).mean(), [fc.W]).state]
    ['adadelta/root_mean_square/fc/W', 'adadelta/root_mean_square_step/fc/W']
    """
    rule = Adadelta(learning_rate, rho, epsilon, namespace)
    return apply_rule(rule, loss_gradients_or_updates, parameters)
