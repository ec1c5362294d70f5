"""RMSProp, centered or not, with or without momentum."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Sequence
from typing import Any

import attrs
import pytensor.tensor as pt
from pytensor.graph.basic import Variable
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
from ptml.optim.ownership import counter, state_for
from ptml.optim.rules.parts import Amounts, apply_rule, descend, faded, hypotenuse
from ptml.optim.transform import Rule
from ptml.optim.updates import Gradients, Steps, Updates
from ptml.validate import flag
from ptml_state import SlotVariable

__all__ = ["Rmsprop", "rmsprop", "rmsprop_updates"]


class Rmsprop(Rule, kw_only=False):
    r"""RMSProp: the gradient, over the root of the mean of recent squares.

    .. math::

        s \leftarrow \rho s + (1 - \rho) g^2, \quad p \leftarrow p - \eta \frac{g}{\sqrt{s} + \epsilon}

    With momentum the quotient is accumulated, :math:`b \leftarrow \mu b + g / (\sqrt{s} + \epsilon)`, and
    :math:`p \leftarrow p - \eta b`. Centered, :math:`s - m^2` stands for :math:`s`, where
    :math:`m \leftarrow \rho m + (1 - \rho) g`.

    What is kept is :math:`\sqrt{s}`, and centered :math:`\sqrt{s - m^2}`, each made from its predecessor
    without a difference of squares: neither overflows while gradients do not, and no variance is negative.

    Parameters
    ----------
    learning_rate : number, scalar tensor or schedule, default 0.01
        The rate :math:`\eta`. A schedule runs on the rule's own clock, ``<namespace>/step_count``.
    rho : number or scalar tensor, default 0.9
        The decay :math:`\rho` of the means, in [0, 1).
    momentum : number or scalar tensor, default 0.0
        The decay :math:`\mu` of the velocity, in [0, 1). At 0 no velocity is kept.
    epsilon : number or scalar tensor, default 1e-8
        Added to the root, as in PyTorch.
    centered : bool, default False
        Whether to divide by the deviation of recent gradients, and not by their size.
    namespace : str, default "rmsprop"
        The first part of the addresses of its state: ``rmsprop/root_mean_square/<parameter>``; centered,
        ``rmsprop/first_moment/<parameter>`` and ``rmsprop/deviation/<parameter>``; with momentum
        ``rmsprop/velocity/<parameter>``.

    Raises
    ------
    ValueError
        If the rate or epsilon is negative or not finite, or rho or the momentum outside [0, 1); for a
        symbolic one, when the graph runs.

    References
    ----------
    Tieleman and Hinton, "Lecture 6.5: RMSProp", 2012; centered: Graves, "Generating Sequences With
    Recurrent Neural Networks", 2013, equations 38 to 45.

    Examples
    --------
    >>> Rmsprop(1e-3, momentum=0.9, centered=True)
    Rmsprop(0.001, momentum=0.9, centered=True)
    """

    learning_rate: LearningRate = attrs.field(default=0.01, validator=a_rate)
    rho: Rate = attrs.field(default=0.9, validator=a_share)
    momentum: Rate = attrs.field(default=0.0, validator=a_share)
    epsilon: Rate = attrs.field(default=1e-8, validator=non_negative)
    centered: bool = attrs.field(default=False, validator=flag)
    namespace: str = attrs.field(default="rmsprop", validator=namespace)

    @property
    def _has_momentum(self) -> bool:
        return isinstance(self.momentum, Variable) or self.momentum > 0

    def decide(self, gradients: Gradients, parameters: Sequence[SlotVariable]) -> Steps:
        count = counter(f"{self.namespace}/step_count") if is_schedule(self.learning_rate) else None
        rho, momentum, epsilon = (checked(self, name) for name in ("rho", "momentum", "epsilon"))

        @functools.cache
        def coefficients(dtype: str) -> tuple[TensorVariable, ...]:
            numbers = (rho, rho**0.5, 1 - rho, (1 - rho) ** 0.5, momentum, epsilon)
            return tuple(as_scalar(number, dtype) for number in numbers)

        directions: Amounts = {}
        state: Amounts = {}
        for parameter, gradient in gradients.amounts.items():
            dtype = working_dtype(parameter)
            keep, root_of_keep, take, root_of_take, decay, epsilon_ = coefficients(dtype)
            if self.centered:
                first = state_for(parameter, f"{self.namespace}/first_moment")
                root = state_for(parameter, f"{self.namespace}/deviation")
                mean = pt.cast(first, dtype)
                moved = faded(keep, mean) + take * gradient
                state[first] = pt.cast(moved, first.dtype)
                # The variance grows by the product of the gradient's distances from the old and the new mean.
                new = root_of_take * pt.sqrt(pt.abs(gradient - mean)) * pt.sqrt(pt.abs(gradient - moved))
            else:
                root = state_for(parameter, f"{self.namespace}/root_mean_square")
                new = root_of_take * gradient
            rooted = hypotenuse(faded(root_of_keep, pt.cast(root, dtype)), new)
            state[root] = pt.cast(rooted, root.dtype)
            directions[parameter] = gradient / (rooted + epsilon_)
            if self._has_momentum:
                velocity = state_for(parameter, f"{self.namespace}/velocity")
                directions[parameter] = faded(decay, pt.cast(velocity, dtype)) + directions[parameter]
                state[velocity] = pt.cast(directions[parameter], velocity.dtype)
        return gradients.to_steps(descend(directions, checked_rate(self, count))).with_state(state)


rmsprop = Rmsprop


def rmsprop_updates(
    loss_gradients_or_updates: Any,
    parameters: Iterable[SlotVariable],
    learning_rate: LearningRate = 0.01,
    rho: Rate = 0.9,
    momentum: Rate = 0.0,
    epsilon: Rate = 1e-8,
    centered: bool = False,
    namespace: str = "rmsprop",
) -> Updates:
    """Build the updates of :class:`Rmsprop`, with new state at every call outside :func:`reuses_state`.

    Parameters
    ----------
    loss_gradients_or_updates : scalar tensor, sequence, mapping or Gradients
    parameters : sequence of handles
    learning_rate, rho, momentum, epsilon, centered, namespace
        As for :class:`Rmsprop`.

    Examples
    --------
    >>> from ptml.layers import Linear
    >>> import pytensor.tensor as pt
    >>> fc = Linear("fc", n_in=2, n_out=1, bias=False)
    >>> [handle.slot.address for handle in rmsprop_updates((fc(pt.matrix("X")) ** 2).mean(), [fc.W]).state]
    ['rmsprop/root_mean_square/fc/W']
    """
    rule = Rmsprop(learning_rate, rho, momentum, epsilon, centered, namespace)
    return apply_rule(rule, loss_gradients_or_updates, parameters)
