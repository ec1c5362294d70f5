"""Stochastic gradient descent, with classical or Nesterov momentum."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import attrs
import pytensor.tensor as pt
from pytensor.graph.basic import Variable

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
    working_dtype,
)
from ptml.optim.ownership import counter, state_for
from ptml.optim.rules.parts import Amounts, apply_rule, descend, faded
from ptml.optim.transform import Rule
from ptml.optim.updates import Gradients, Steps, Updates
from ptml.validate import flag
from ptml_state import SlotVariable

__all__ = ["Sgd", "sgd", "sgd_updates"]

NESTEROV_ALONE = "Sgd: nesterov=True looks ahead along the momentum, and momentum is 0. Write momentum=0.9."


class Sgd(Rule, kw_only=False):
    r"""Stochastic gradient descent, optionally with momentum.

    Without momentum :math:`p \leftarrow p - \eta g`. With it, :math:`v \leftarrow \mu v + g` and
    :math:`p \leftarrow p - \eta v`; in Nesterov's form :math:`p \leftarrow p - \eta (g + \mu v)`.

    Parameters
    ----------
    learning_rate : number, scalar tensor or schedule, default 0.01
        The rate :math:`\eta`. A schedule runs on the rule's own clock, ``<namespace>/step_count``.
    momentum : number or scalar tensor, default 0.0
        The decay :math:`\mu` of the velocity, in [0, 1). At 0 no velocity is kept.
    nesterov : bool, default False
        Whether to look ahead along the velocity.
    namespace : str, default "sgd"
        The first part of the addresses of its state: ``sgd/velocity/<parameter>``.

    Raises
    ------
    ValueError
        If the rate is negative or not finite, the momentum outside [0, 1), or Nesterov's form asked for
        without momentum.

    References
    ----------
    Sutskever, Martens, Dahl and Hinton, "On the importance of initialization and momentum in deep
    learning", 2013; here the velocity holds gradients, so that a change of rate acts at once.

    Examples
    --------
    >>> Sgd(0.1, momentum=0.9)
    Sgd(0.1, 0.9)
    """

    learning_rate: LearningRate = attrs.field(default=0.01, validator=a_rate)
    momentum: Rate = attrs.field(default=0.0, validator=a_share)
    nesterov: bool = attrs.field(default=False, validator=flag)
    namespace: str = attrs.field(default="sgd", validator=namespace)

    def __attrs_post_init__(self) -> None:
        if self.nesterov and not self._has_momentum:
            raise ValueError(NESTEROV_ALONE)

    @property
    def _has_momentum(self) -> bool:
        return isinstance(self.momentum, Variable) or self.momentum > 0

    def decide(self, gradients: Gradients, parameters: Sequence[SlotVariable]) -> Steps:
        count = counter(f"{self.namespace}/step_count") if is_schedule(self.learning_rate) else None
        directions: Amounts = {}
        state: Amounts = {}
        for parameter, gradient in gradients.amounts.items():
            dtype = working_dtype(parameter)
            directions[parameter] = gradient
            if self._has_momentum:
                velocity = state_for(parameter, f"{self.namespace}/velocity")
                momentum = as_scalar(checked(self, "momentum"), dtype)
                moved = faded(momentum, pt.cast(velocity, dtype)) + gradient
                state[velocity] = pt.cast(moved, velocity.dtype)
                directions[parameter] = gradient + momentum * moved if self.nesterov else moved
        return gradients.to_steps(descend(directions, checked_rate(self, count))).with_state(state)


sgd = Sgd


def sgd_updates(
    loss_gradients_or_updates: Any,
    parameters: Iterable[SlotVariable],
    learning_rate: LearningRate = 0.01,
    momentum: Rate = 0.0,
    nesterov: bool = False,
    namespace: str = "sgd",
) -> Updates:
    """Build the updates of :class:`Sgd`, with new state at every call outside :func:`reuses_state`.

    Parameters
    ----------
    loss_gradients_or_updates : scalar tensor, sequence, mapping or Gradients
    parameters : sequence of handles
    learning_rate, momentum, nesterov, namespace
        As for :class:`Sgd`.

    Examples
    --------
    >>> from ptml.layers import Linear
    >>> import pytensor.tensor as pt
    >>> fc = Linear("fc", n_in=2, n_out=1, bias=False)
    >>> sgd_updates((fc(pt.matrix("X")) ** 2).mean(), [fc.W], learning_rate=0.1)
    Steps({fc/W: float64[2,1]})
    """
    rule = Sgd(learning_rate, momentum, nesterov, namespace)
    return apply_rule(rule, loss_gradients_or_updates, parameters)
