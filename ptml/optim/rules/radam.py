"""RAdam: Adam that trusts the root of squares only once enough of them have been seen."""

from __future__ import annotations

import functools
import math
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
    number,
    working_dtype,
)
from ptml.optim.ownership import counter
from ptml.optim.rules.moments import moments
from ptml.optim.rules.parts import Amounts, apply_rule, bias_correction, descend, log_of
from ptml.optim.transform import Rule
from ptml.optim.updates import Gradients, Steps, Updates
from ptml_state import SlotVariable

__all__ = ["Radam", "radam", "radam_updates"]

_at_least_4 = number(lambda value: (value >= 4) & (value < math.inf), "a finite number of 4 or more")


def _langevin(y: TensorVariable) -> tuple[TensorVariable, TensorVariable]:
    """Give ``coth(y) - 1/y``, and one less it, for positive `y`, small ones too."""
    square = pt.sqr(y)
    series = (1 - square / 15 * (1 - 2 * square / 21 * (1 - square / 10))) * y / 3
    rest = 1 / y - 2 / pt.expm1(2 * y)
    small = pt.lt(10 * y, 1)
    return pt.switch(small, series, 1 - rest), pt.switch(small, 1 - series, rest)


def _lengths(beta: Rate, steps: TensorVariable, dtype: str) -> tuple[TensorVariable, TensorVariable]:
    r"""Give the lengths of the simple averages that the mean of squares is worth, after all steps and now.

    They are :math:`\rho_\infty = 2 / (1 - \beta) - 1` and
    :math:`\rho_t = \rho_\infty - 2 t \beta^t / (1 - \beta^t)`. With :math:`x = -\log \beta` they are
    :math:`\coth(x/2)`, and :math:`L(x/2) + t (1 - L(t x/2))` of Langevin's function
    :math:`L(y) = \coth(y) - 1/y`: no difference of two large numbers.
    """
    t = pt.cast(steps, dtype)
    # At a beta of zero the logarithm is infinite; from 40 on, nothing changes any more.
    half = pt.minimum(-log_of(beta, dtype) / 2, 40)
    at_once, _ = _langevin(half)
    _, later = _langevin(half * t)
    return at_once + 1 / half, at_once + t * later


class Radam(Rule, kw_only=False):
    r"""Rectified Adam: Adam times :math:`r_t`, and momentum alone while :math:`\rho_t` is below `threshold`.

    With the moments of :class:`Adam` and :math:`\rho_\infty = 2 / (1 - \beta_2) - 1`, at step :math:`t`
    counted from 1,

    .. math::

        \rho_t = \rho_\infty - \frac{2 t \beta_2^t}{1 - \beta_2^t}, \quad
        r_t = \sqrt{\frac{(\rho_t - 4)(\rho_t - 2) \rho_\infty}
        {(\rho_\infty - 4)(\rho_\infty - 2) \rho_t}}, \quad
        p \leftarrow p - \eta \frac{m}{1 - \beta_1^t}
        \begin{cases} r_t / (\sqrt{v / (1 - \beta_2^t)} + \epsilon) & \rho_t \ge \text{threshold} \\ 1
        \end{cases}

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
    threshold : number or scalar tensor, default 5.0
        From which :math:`\rho_t` on the root is trusted, 4 or more. The paper has 4, optax and PyTorch 5.
    namespace : str, default "radam"
        The first part of the addresses of its state: ``radam/first_moment/<parameter>``,
        ``radam/second_moment/<parameter>`` and the clock ``radam/step_count``.

    Raises
    ------
    ValueError
        If the rate or epsilon is negative or not finite, a beta outside [0, 1), or the threshold below 4;
        for a symbolic one, when the graph runs.

    References
    ----------
    Liu et al., "On the Variance of the Adaptive Learning Rate and Beyond", 2020, algorithm 2.

    Examples
    --------
    >>> Radam(3e-4, threshold=4.0)
    Radam(0.0003, threshold=4.0)
    """

    learning_rate: LearningRate = attrs.field(default=1e-3, validator=a_rate)
    beta1: Rate = attrs.field(default=0.9, validator=a_share)
    beta2: Rate = attrs.field(default=0.999, validator=a_share)
    epsilon: Rate = attrs.field(default=1e-8, validator=non_negative)
    threshold: Rate = attrs.field(default=5.0, validator=_at_least_4)
    namespace: str = attrs.field(default="radam", validator=namespace)

    def decide(self, gradients: Gradients, parameters: Sequence[SlotVariable]) -> Steps:
        count = counter(f"{self.namespace}/step_count")
        made = moments(self, gradients, count)
        beta1, beta2, threshold = (checked(self, name) for name in ("beta1", "beta2", "threshold"))

        @functools.cache
        def rectification(dtype: str) -> tuple[TensorVariable, ...]:
            steps = count + 1
            last, now = _lengths(beta2, steps, dtype)
            trusted = pt.ge(now, as_scalar(threshold, dtype))
            squared = (now - 4) * (now - 2) * last / ((last - 4) * (last - 2) * now)
            return trusted, pt.sqrt(pt.switch(trusted, squared, 1)), 1 / bias_correction(beta1, steps, dtype)

        directions: Amounts = {}
        for parameter, mean in made.means.items():
            trusted, rectifier, unbias = rectification(working_dtype(parameter))
            directions[parameter] = mean * unbias * pt.switch(trusted, rectifier / made.roots[parameter], 1)
        return gradients.to_steps(descend(directions, checked_rate(self, count))).with_state(made.state)


radam = Radam


def radam_updates(
    loss_gradients_or_updates: Any,
    parameters: Iterable[SlotVariable],
    learning_rate: LearningRate = 1e-3,
    beta1: Rate = 0.9,
    beta2: Rate = 0.999,
    epsilon: Rate = 1e-8,
    threshold: Rate = 5.0,
    namespace: str = "radam",
) -> Updates:
    """Build the updates of :class:`Radam`, with new state at every call outside :func:`reuses_state`.

    Parameters
    ----------
    loss_gradients_or_updates : scalar tensor, sequence, mapping or Gradients
    parameters : sequence of handles
    learning_rate, beta1, beta2, epsilon, threshold, namespace
        As for :class:`Radam`.

    Examples
    --------
    >>> from ptml.layers import Linear
    >>> import pytensor.tensor as pt
    >>> fc = Linear("fc", n_in=2, n_out=1, bias=False)
    >>> [handle.slot.address for handle in radam_updates((fc(pt.matrix("X")) ** 2).mean(), [fc.W]).state]
    ['radam/first_moment/fc/W', 'radam/second_moment/fc/W']
    """
    rule = Radam(learning_rate, beta1, beta2, epsilon, threshold, namespace)
    return apply_rule(rule, loss_gradients_or_updates, parameters)
