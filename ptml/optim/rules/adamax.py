"""AdaMax: Adam with an infinity norm in the place of the root of squares."""

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
    namespace,
    non_negative,
    working_dtype,
)
from ptml.optim.ownership import counter, state_for
from ptml.optim.rules.parts import Amounts, apply_rule, bias_correction, descend, faded
from ptml.optim.transform import Rule
from ptml.optim.updates import Gradients, Steps, Updates
from ptml_state import SlotVariable

__all__ = ["Adamax", "adamax", "adamax_updates"]


class Adamax(Rule, kw_only=False):
    r"""AdaMax: the mean of recent gradients, over the largest of them, old ones fading.

    At step :math:`t`, counted from 1,

    .. math::

        m \leftarrow \beta_1 m + (1 - \beta_1) g, \quad u \leftarrow \max(\beta_2 u, |g| + \epsilon), \quad
        p \leftarrow p - \eta \frac{m / (1 - \beta_1^t)}{u}

    Parameters
    ----------
    learning_rate : number, scalar tensor or schedule, default 1e-3
        The rate :math:`\eta`. A schedule runs on the rule's own clock.
    beta1 : number or scalar tensor, default 0.9
        The decay of the mean of gradients, in [0, 1).
    beta2 : number or scalar tensor, default 0.999
        The decay of the norm, in [0, 1).
    epsilon : number or scalar tensor, default 1e-8
        Added to the size of a gradient before it enters the norm, as in PyTorch and optax.
    namespace : str, default "adamax"
        The first part of the addresses of its state: ``adamax/first_moment/<parameter>``,
        ``adamax/infinity_norm/<parameter>`` and the clock ``adamax/step_count``.

    Raises
    ------
    ValueError
        If the rate or epsilon is negative or not finite, or a beta outside [0, 1); for a symbolic one, when
        the graph runs.

    References
    ----------
    Kingma and Ba, "Adam: A Method for Stochastic Optimization", 2015, algorithm 2.

    Examples
    --------
    >>> Adamax(0.002)
    Adamax(0.002)
    """

    learning_rate: LearningRate = attrs.field(default=1e-3, validator=a_rate)
    beta1: Rate = attrs.field(default=0.9, validator=a_share)
    beta2: Rate = attrs.field(default=0.999, validator=a_share)
    epsilon: Rate = attrs.field(default=1e-8, validator=non_negative)
    namespace: str = attrs.field(default="adamax", validator=namespace)

    def decide(self, gradients: Gradients, parameters: Sequence[SlotVariable]) -> Steps:
        count = counter(f"{self.namespace}/step_count")
        beta1, beta2, epsilon = (checked(self, name) for name in ("beta1", "beta2", "epsilon"))

        @functools.cache
        def coefficients(dtype: str) -> tuple[TensorVariable, ...]:
            numbers = (as_scalar(number, dtype) for number in (beta1, 1 - beta1, beta2, epsilon))
            return (*numbers, 1 / bias_correction(beta1, count + 1, dtype))

        directions: Amounts = {}
        state: Amounts = {}
        for parameter, gradient in gradients.amounts.items():
            dtype = working_dtype(parameter)
            keep1, take1, keep2, epsilon_, unbias = coefficients(dtype)
            first = state_for(parameter, f"{self.namespace}/first_moment")
            largest = state_for(parameter, f"{self.namespace}/infinity_norm")
            mean = faded(keep1, pt.cast(first, dtype)) + take1 * gradient
            norm = pt.maximum(faded(keep2, pt.cast(largest, dtype)), pt.abs(gradient) + epsilon_)
            directions[parameter] = mean * unbias / norm
            state[first] = pt.cast(mean, first.dtype)
            state[largest] = pt.cast(norm, largest.dtype)
        return gradients.to_steps(descend(directions, checked_rate(self, count))).with_state(state)


adamax = Adamax


def adamax_updates(
    loss_gradients_or_updates: Any,
    parameters: Iterable[SlotVariable],
    learning_rate: LearningRate = 1e-3,
    beta1: Rate = 0.9,
    beta2: Rate = 0.999,
    epsilon: Rate = 1e-8,
    namespace: str = "adamax",
) -> Updates:
    """Build the updates of :class:`Adamax`, with new state at every call outside :func:`reuses_state`.

    Parameters
    ----------
    loss_gradients_or_updates : scalar tensor, sequence, mapping or Gradients
    parameters : sequence of handles
    learning_rate, beta1, beta2, epsilon, namespace
        As for :class:`Adamax`.

    Examples
    --------
    >>> from ptml.layers import Linear
    >>> import pytensor.tensor as pt
    >>> fc = Linear("fc", n_in=2, n_out=1, bias=False)
    >>> [handle.slot.address for handle in adamax_updates((fc(pt.matrix("X")) ** 2).mean(), [fc.W]).state]
    ['adamax/first_moment/fc/W', 'adamax/infinity_norm/fc/W']
    """
    rule = Adamax(learning_rate, beta1, beta2, epsilon, namespace)
    return apply_rule(rule, loss_gradients_or_updates, parameters)
