"""Lion: the sign of a mean of gradients."""

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
    non_negative,
    working_dtype,
)
from ptml.optim.masks import a_mask
from ptml.optim.ownership import counter, state_for
from ptml.optim.rules.parts import Amounts, apply_rule, descend, faded, sign, with_decay
from ptml.optim.transform import Rule
from ptml.optim.updates import Gradients, Steps, Updates
from ptml_state import SlotVariable

__all__ = ["Lion", "lion", "lion_updates"]


class Lion(Rule, kw_only=False):
    r"""Lion: every element moves by the rate, in the direction of a mean of gradients.

    .. math::

        p \leftarrow p - \eta \left( \operatorname{sign}(\beta_1 m + (1 - \beta_1) g) + \lambda p \right),
        \quad m \leftarrow \beta_2 m + (1 - \beta_2) g

    Parameters
    ----------
    learning_rate : number, scalar tensor or schedule, default 1e-4
        The rate :math:`\eta`, three to ten times smaller than Adam's. A schedule runs on the rule's own
        clock, ``<namespace>/step_count``.
    weight_decay : number or scalar tensor, default 0.0
        The coefficient :math:`\lambda` of decoupled decay, three to ten times larger than AdamW's.
    beta1 : number or scalar tensor, default 0.9
        The share of the mean in the direction, in [0, 1).
    beta2 : number or scalar tensor, default 0.99
        The decay of the mean, in [0, 1).
    mask : where, or function of a parameter, optional
        Which parameters decay; all unless given.
    namespace : str, default "lion"
        The first part of the addresses of its state: ``lion/first_moment/<parameter>``.

    Raises
    ------
    ValueError
        If the rate or the decay is negative or not finite, or a beta outside [0, 1); for a symbolic one,
        when the graph runs.
    KeyError
        When it is called, if a name in `mask` matches no parameter.

    References
    ----------
    Chen et al., "Symbolic Discovery of Optimization Algorithms", 2023, algorithm 2.

    Examples
    --------
    >>> Lion(3e-5, weight_decay=0.1)
    Lion(3e-05, 0.1)
    """

    learning_rate: LearningRate = attrs.field(default=1e-4, validator=a_rate)
    weight_decay: Rate = attrs.field(default=0.0, validator=non_negative)
    beta1: Rate = attrs.field(default=0.9, validator=a_share)
    beta2: Rate = attrs.field(default=0.99, validator=a_share)
    mask: Any = attrs.field(default=None, validator=a_mask)
    namespace: str = attrs.field(default="lion", validator=namespace)

    def decide(self, gradients: Gradients, parameters: Sequence[SlotVariable]) -> Steps:
        count = counter(f"{self.namespace}/step_count") if is_schedule(self.learning_rate) else None
        beta1, beta2 = checked(self, "beta1"), checked(self, "beta2")

        @functools.cache
        def coefficients(dtype: str) -> tuple[TensorVariable, ...]:
            return tuple(as_scalar(number, dtype) for number in (beta1, 1 - beta1, beta2, 1 - beta2))

        directions: Amounts = {}
        state: Amounts = {}
        for parameter, gradient in gradients.amounts.items():
            dtype = working_dtype(parameter)
            share1, rest1, keep2, take2 = coefficients(dtype)
            first = state_for(parameter, f"{self.namespace}/first_moment")
            mean = pt.cast(first, dtype)
            directions[parameter] = sign(share1 * mean + rest1 * gradient)
            state[first] = pt.cast(faded(keep2, mean) + take2 * gradient, first.dtype)
        decayed = with_decay(directions, checked(self, "weight_decay"), self.mask)
        return gradients.to_steps(descend(decayed, checked_rate(self, count))).with_state(state)


lion = Lion


def lion_updates(
    loss_gradients_or_updates: Any,
    parameters: Iterable[SlotVariable],
    learning_rate: LearningRate = 1e-4,
    weight_decay: Rate = 0.0,
    beta1: Rate = 0.9,
    beta2: Rate = 0.99,
    mask: Any = None,
    namespace: str = "lion",
) -> Updates:
    """Build the updates of :class:`Lion`, with new state at every call outside :func:`reuses_state`.

    Parameters
    ----------
    loss_gradients_or_updates : scalar tensor, sequence, mapping or Gradients
    parameters : sequence of handles
    learning_rate, weight_decay, beta1, beta2, mask, namespace
        As for :class:`Lion`.

    Examples
    --------
    >>> from ptml.layers import Linear
    >>> import pytensor.tensor as pt
    >>> fc = Linear("fc", n_in=2, n_out=1, bias=False)
    >>> [handle.slot.address for handle in lion_updates((fc(pt.matrix("X")) ** 2).mean(), [fc.W]).state]
    ['lion/first_moment/fc/W']
    """
    rule = Lion(learning_rate, weight_decay, beta1, beta2, mask, namespace)
    return apply_rule(rule, loss_gradients_or_updates, parameters)
