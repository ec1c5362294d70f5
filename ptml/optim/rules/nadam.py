"""Nadam: Adam with Nesterov momentum."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Sequence
from typing import Any

import attrs
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
from ptml.optim.ownership import counter
from ptml.optim.rules.moments import moments
from ptml.optim.rules.parts import Amounts, apply_rule, bias_correction, descend
from ptml.optim.transform import Rule
from ptml.optim.updates import Gradients, Steps, Updates
from ptml_state import SlotVariable

__all__ = ["Nadam", "nadam", "nadam_updates"]


class Nadam(Rule, kw_only=False):
    r"""Adam that looks ahead along its mean, as Nesterov momentum does.

    With the moments of :class:`Adam`, at step :math:`t`, counted from 1,

    .. math::

        p \leftarrow p - \eta \left( \frac{\beta_1 m}{1 - \beta_1^{t+1}}
        + \frac{(1 - \beta_1) g}{1 - \beta_1^t} \right) \Big/
        \left( \sqrt{v / (1 - \beta_2^t)} + \epsilon \right)

    Here :math:`\beta_1` is constant, as in optax; PyTorch and Keras let it grow with the steps.

    Parameters
    ----------
    learning_rate : number, scalar tensor or schedule, default 1e-3
        The rate :math:`\eta`. A schedule runs on the rule's own clock.
    beta1 : number or scalar tensor, default 0.9
        The decay of the mean of gradients, in [0, 1).
    beta2 : number or scalar tensor, default 0.999
        The decay of the mean of squares, in [0, 1).
    epsilon : number or scalar tensor, default 1e-8
        Added to the corrected root.
    namespace : str, default "nadam"
        The first part of the addresses of its state: ``nadam/first_moment/<parameter>``,
        ``nadam/second_moment/<parameter>`` and the clock ``nadam/step_count``.

    Raises
    ------
    ValueError
        If the rate or epsilon is negative or not finite, or a beta outside [0, 1); for a symbolic one, when
        the graph runs.

    References
    ----------
    Dozat, "Incorporating Nesterov Momentum into Adam", 2016, algorithm 2.

    Examples
    --------
    >>> Nadam(0.002, epsilon=1e-7)
    Nadam(0.002, epsilon=1e-07)
    """

    learning_rate: LearningRate = attrs.field(default=1e-3, validator=a_rate)
    beta1: Rate = attrs.field(default=0.9, validator=a_share)
    beta2: Rate = attrs.field(default=0.999, validator=a_share)
    epsilon: Rate = attrs.field(default=1e-8, validator=non_negative)
    namespace: str = attrs.field(default="nadam", validator=namespace)

    def decide(self, gradients: Gradients, parameters: Sequence[SlotVariable]) -> Steps:
        count = counter(f"{self.namespace}/step_count")
        made = moments(self, gradients, count)
        beta1 = checked(self, "beta1")

        @functools.cache
        def weights(dtype: str) -> tuple[TensorVariable, TensorVariable]:
            next_, this = (bias_correction(beta1, count + ahead, dtype) for ahead in (2, 1))
            return as_scalar(beta1, dtype) / next_, as_scalar(1 - beta1, dtype) / this

        directions: Amounts = {}
        for parameter, gradient in gradients.amounts.items():
            of_mean, of_gradient = weights(working_dtype(parameter))
            ahead = of_mean * made.means[parameter] + of_gradient * gradient
            directions[parameter] = ahead / made.roots[parameter]
        return gradients.to_steps(descend(directions, checked_rate(self, count))).with_state(made.state)


nadam = Nadam


def nadam_updates(
    loss_gradients_or_updates: Any,
    parameters: Iterable[SlotVariable],
    learning_rate: LearningRate = 1e-3,
    beta1: Rate = 0.9,
    beta2: Rate = 0.999,
    epsilon: Rate = 1e-8,
    namespace: str = "nadam",
) -> Updates:
    """Build the updates of :class:`Nadam`, with new state at every call outside :func:`reuses_state`.

    Parameters
    ----------
    loss_gradients_or_updates : scalar tensor, sequence, mapping or Gradients
    parameters : sequence of handles
    learning_rate, beta1, beta2, epsilon, namespace
        As for :class:`Nadam`.

    Examples
    --------
    >>> from ptml.layers import Linear
    >>> import pytensor.tensor as pt
    >>> fc = Linear("fc", n_in=2, n_out=1, bias=False)
    >>> [handle.slot.address for handle in nadam_updates((fc(pt.matrix("X")) ** 2).mean(), [fc.W]).state]
    ['nadam/first_moment/fc/W', 'nadam/second_moment/fc/W']
    """
    rule = Nadam(learning_rate, beta1, beta2, epsilon, namespace)
    return apply_rule(rule, loss_gradients_or_updates, parameters)
