"""AdaGrad: the gradient, over the root of the sum of all squares so far."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any

import attrs
import pytensor.tensor as pt

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
    working_dtype,
)
from ptml.optim.ownership import counter, state_for
from ptml.optim.rules.parts import Amounts, apply_rule, descend, hypotenuse
from ptml.optim.transform import Rule
from ptml.optim.updates import Gradients, Steps, Updates
from ptml.validate import non_negative as plain_and_non_negative
from ptml_state import SlotVariable

__all__ = ["Adagrad", "adagrad", "adagrad_updates"]


class Adagrad(Rule, kw_only=False):
    r"""AdaGrad: rates of each element's own, which fall as its gradients add up.

    .. math:: s \leftarrow s + g^2, \quad p \leftarrow p - \eta \frac{g}{\sqrt{s} + \epsilon}

    What is kept is :math:`\sqrt{s}`, made from its predecessor without squares that could overflow: after one
    gradient of 1e20 in float32, the sum itself would be infinite for ever.

    Parameters
    ----------
    learning_rate : number, scalar tensor or schedule, default 0.01
        The rate :math:`\eta`. A schedule runs on the rule's own clock, ``<namespace>/step_count``.
    epsilon : number or scalar tensor, default 1e-8
        Added to the root, as in PyTorch.
    namespace : str, default "adagrad"
        The first part of the addresses of its state: ``adagrad/root_sum_of_squares/<parameter>``.
    initial_accumulator : float, default 0.0
        What :math:`s` is before the first step. By keyword; optax and Keras have 0.1.

    Raises
    ------
    ValueError
        If the rate, epsilon or the start is negative or not finite; for a symbolic one, when the graph runs.

    References
    ----------
    Duchi, Hazan and Singer, "Adaptive Subgradient Methods for Online Learning and Stochastic
    Optimization", 2011, figure 1, with diagonal matrices.

    Examples
    --------
    >>> Adagrad(0.1, initial_accumulator=0.1)
    Adagrad(0.1, initial_accumulator=0.1)
    """

    learning_rate: LearningRate = attrs.field(default=0.01, validator=a_rate)
    epsilon: Rate = attrs.field(default=1e-8, validator=non_negative)
    namespace: str = attrs.field(default="adagrad", validator=namespace)
    initial_accumulator: float = attrs.field(default=0.0, validator=plain_and_non_negative, kw_only=True)

    def decide(self, gradients: Gradients, parameters: Sequence[SlotVariable]) -> Steps:
        count = counter(f"{self.namespace}/step_count") if is_schedule(self.learning_rate) else None
        epsilon = checked(self, "epsilon")
        start = math.sqrt(self.initial_accumulator)
        directions: Amounts = {}
        state: Amounts = {}
        for parameter, gradient in gradients.amounts.items():
            dtype = working_dtype(parameter)
            root = state_for(parameter, f"{self.namespace}/root_sum_of_squares", start)
            grown = hypotenuse(pt.cast(root, dtype), gradient)
            directions[parameter] = gradient / (grown + as_scalar(epsilon, dtype))
            state[root] = pt.cast(grown, root.dtype)
        return gradients.to_steps(descend(directions, checked_rate(self, count))).with_state(state)


adagrad = Adagrad


def adagrad_updates(
    loss_gradients_or_updates: Any,
    parameters: Iterable[SlotVariable],
    learning_rate: LearningRate = 0.01,
    epsilon: Rate = 1e-8,
    namespace: str = "adagrad",
    *,
    initial_accumulator: float = 0.0,
) -> Updates:
    """Build the updates of :class:`Adagrad`, with new state at every call outside :func:`reuses_state`.

    Parameters
    ----------
    loss_gradients_or_updates : scalar tensor, sequence, mapping or Gradients
    parameters : sequence of handles
    learning_rate, epsilon, namespace, initial_accumulator
        As for :class:`Adagrad`.

    Examples
    --------
    >>> from ptml.layers import Linear
    >>> import pytensor.tensor as pt
    >>> fc = Linear("fc", n_in=2, n_out=1, bias=False)
    >>> [handle.slot.address for handle in adagrad_updates((fc(pt.matrix("X")) ** 2).mean(), [fc.W]).state]
    ['adagrad/root_sum_of_squares/fc/W']
    """
    rule = Adagrad(learning_rate, epsilon, namespace, initial_accumulator=initial_accumulator)
    return apply_rule(rule, loss_gradients_or_updates, parameters)
