"""Adam, and Adam with decoupled weight decay."""

from __future__ import annotations

import functools
import math
from collections.abc import Iterable, Sequence
from typing import Any

import attrs
import pytensor.tensor as pt
from pytensor.graph.basic import Variable
from pytensor.tensor.variable import TensorVariable

from ptml.optim.hyperparameters import (
    LearningRate,
    Rate,
    as_scalar,
    namespace,
    number,
    rate_at,
    working_dtype,
)
from ptml.optim.masks import a_mask, masked
from ptml.optim.ownership import counter, state_for
from ptml.optim.transform import Rule
from ptml.optim.updates import Gradients, Steps, Updates, as_parameters, to_updates
from ptml_state import SlotVariable

__all__ = ["Adam", "AdamW", "adam", "adam_updates", "adamw", "adamw_updates"]

_rate = number(lambda rate: 0 <= rate < math.inf, "a finite number of 0 or more", schedule=True)
_beta = number(lambda beta: 0 <= beta < 1, "a number in [0, 1)")
_non_negative = number(lambda value: 0 <= value < math.inf, "a finite number of 0 or more")


def _correction(beta: Rate, steps: TensorVariable, dtype: str) -> TensorVariable:
    """Give ``1 - beta**steps``; in float32 the difference itself would lose five digits at the first step."""
    if isinstance(beta, Variable):
        log = pt.log(pt.cast(beta, dtype))
    else:
        log = as_scalar(math.log(beta) if beta > 0 else -math.inf, dtype)
    return -pt.expm1(pt.cast(steps, dtype) * log)


def _directions(
    rule: Adam | AdamW, gradients: Gradients, count: SlotVariable
) -> tuple[dict[SlotVariable, TensorVariable], dict[SlotVariable, TensorVariable]]:
    """Give the direction that each parameter descends in, at a rate of one, and the new moments."""

    @functools.cache
    def coefficients(dtype: str) -> tuple[TensorVariable, ...]:
        numbers = (rule.beta1, 1 - rule.beta1, rule.beta2, (1 - rule.beta2) ** 0.5, rule.epsilon)
        unbias_mean = 1 / _correction(rule.beta1, count + 1, dtype)
        unbias_root = 1 / pt.sqrt(_correction(rule.beta2, count + 1, dtype))
        return (*(as_scalar(number, dtype) for number in numbers), unbias_mean, unbias_root)

    directions: dict[SlotVariable, TensorVariable] = {}
    state: dict[SlotVariable, TensorVariable] = {}
    for parameter, gradient in gradients.amounts.items():
        dtype = working_dtype(parameter)
        keep1, take1, keep2, root_of_take2, epsilon, unbias_mean, unbias_root = coefficients(dtype)
        first = state_for(parameter, f"{rule.namespace}/first_moment")
        second = state_for(parameter, f"{rule.namespace}/second_moment")
        mean = keep1 * pt.cast(first, dtype) + take1 * gradient
        # The weight goes inside the square, and the correction outside the root: the square of a gradient of
        # 1e20 is no float32, a thousandth of it is.
        square = keep2 * pt.cast(second, dtype) + pt.sqr(root_of_take2 * gradient)
        directions[parameter] = mean * unbias_mean / (pt.sqrt(square) * unbias_root + epsilon)
        state[first] = pt.cast(mean, first.dtype)
        state[second] = pt.cast(square, second.dtype)
    return directions, state


class Adam(Rule, kw_only=False):
    r"""Adam: the mean of recent gradients, over the root of the mean of their squares.

    At step :math:`t`, counted from 1,

    .. math::

        m \leftarrow \beta_1 m + (1 - \beta_1) g, \quad v \leftarrow \beta_2 v + (1 - \beta_2) g^2, \quad
        p \leftarrow p - \eta \frac{m / (1 - \beta_1^t)}{\sqrt{v / (1 - \beta_2^t)} + \epsilon}

    Parameters
    ----------
    learning_rate : number, scalar tensor or schedule, default 1e-3
        The rate :math:`\eta`. A schedule runs on the rule's own clock.
    beta1 : number or scalar tensor, default 0.9
        The decay of the mean of gradients, in [0, 1).
    beta2 : number or scalar tensor, default 0.999
        The decay of the mean of squares, in [0, 1).
    epsilon : number or scalar tensor, default 1e-8
        Added to the corrected root. Half-precision parameters are moved in float32, where it is not lost.
    namespace : str, default "adam"
        The first part of the addresses of its state: ``adam/first_moment/<parameter>``,
        ``adam/second_moment/<parameter>`` and the clock ``adam/step_count``.

    Raises
    ------
    ValueError
        If the rate or epsilon is negative or not finite, or a beta outside [0, 1).

    References
    ----------
    Kingma and Ba, "Adam: A Method for Stochastic Optimization", 2015, algorithm 1.

    Examples
    --------
    >>> from ptml.optim import cosine_schedule
    >>> Adam(cosine_schedule(1e-3, 10_000), beta2=0.99)
    Adam(CosineSchedule(0.001, 10000), beta2=0.99)
    """

    learning_rate: LearningRate = attrs.field(default=1e-3, validator=_rate)
    beta1: Rate = attrs.field(default=0.9, validator=_beta)
    beta2: Rate = attrs.field(default=0.999, validator=_beta)
    epsilon: Rate = attrs.field(default=1e-8, validator=_non_negative)
    namespace: str = attrs.field(default="adam", validator=namespace)

    def decide(self, gradients: Gradients, parameters: Sequence[SlotVariable]) -> Steps:
        count = counter(f"{self.namespace}/step_count")
        rate = rate_at(self.learning_rate, count)
        directions, state = _directions(self, gradients, count)
        steps = {p: -as_scalar(rate, working_dtype(p)) * direction for p, direction in directions.items()}
        return gradients.to_steps(steps).with_state(state)


class AdamW(Rule, kw_only=False):
    r"""Adam with weight decay that the moments do not see: :math:`p \leftarrow p - \eta (d + \lambda p)`.

    :math:`d` is the direction of :class:`Adam`. As in PyTorch and optax the decay is multiplied by the rate.

    Parameters
    ----------
    learning_rate : number, scalar tensor or schedule, default 1e-3
        The rate :math:`\eta`. A schedule runs on the rule's own clock.
    weight_decay : number or scalar tensor, default 0.01
        The coefficient :math:`\lambda`.
    beta1, beta2, epsilon
        As for :class:`Adam`.
    mask : where, or function of a parameter, optional
        Which parameters decay; all unless given. ``~where("**/b")`` spares biases.
    namespace : str, default "adamw"
        The first part of the addresses of its state, as for :class:`Adam`.

    Raises
    ------
    ValueError
        If the rate, the decay or epsilon is negative or not finite, or a beta outside [0, 1).
    KeyError
        When it is called, if a name in `mask` matches no parameter.

    References
    ----------
    Loshchilov and Hutter, "Decoupled Weight Decay Regularization", 2019, algorithm 2.

    Examples
    --------
    >>> AdamW(3e-4, weight_decay=0.1)
    AdamW(0.0003, 0.1)
    """

    learning_rate: LearningRate = attrs.field(default=1e-3, validator=_rate)
    weight_decay: Rate = attrs.field(default=0.01, validator=_non_negative)
    beta1: Rate = attrs.field(default=0.9, validator=_beta)
    beta2: Rate = attrs.field(default=0.999, validator=_beta)
    epsilon: Rate = attrs.field(default=1e-8, validator=_non_negative)
    mask: Any = attrs.field(default=None, validator=a_mask)
    namespace: str = attrs.field(default="adamw", validator=namespace)

    def decide(self, gradients: Gradients, parameters: Sequence[SlotVariable]) -> Steps:
        count = counter(f"{self.namespace}/step_count")
        rate = rate_at(self.learning_rate, count)
        directions, state = _directions(self, gradients, count)
        decaying = masked(self.mask, directions)
        steps = {}
        for parameter, direction in directions.items():
            dtype = working_dtype(parameter)
            if parameter in decaying:
                direction = direction + as_scalar(self.weight_decay, dtype) * pt.cast(parameter, dtype)
            steps[parameter] = -as_scalar(rate, dtype) * direction
        return gradients.to_steps(steps).with_state(state)


adam = Adam
adamw = AdamW


def adam_updates(
    loss_gradients_or_updates: Any,
    parameters: Iterable[SlotVariable],
    learning_rate: LearningRate = 1e-3,
    beta1: Rate = 0.9,
    beta2: Rate = 0.999,
    epsilon: Rate = 1e-8,
    namespace: str = "adam",
) -> Updates:
    """Build the updates of :class:`Adam`, with new state at every call outside :func:`reuses_state`.

    Parameters
    ----------
    loss_gradients_or_updates : scalar tensor, sequence, mapping or Gradients
    parameters : sequence of handles
    learning_rate, beta1, beta2, epsilon, namespace
        As for :class:`Adam`.

    Examples
    --------
    >>> from ptml.layers import Linear
    >>> import pytensor.tensor as pt
    >>> fc = Linear("fc", n_in=2, n_out=1, bias=False)
    >>> [handle.slot.address for handle in adam_updates((fc(pt.matrix("X")) ** 2).mean(), [fc.W]).state]
    ['adam/first_moment/fc/W', 'adam/second_moment/fc/W']
    """
    rule = Adam(learning_rate, beta1, beta2, epsilon, namespace)
    handles = as_parameters(parameters)
    return rule.apply(to_updates(loss_gradients_or_updates, handles), handles)


def adamw_updates(
    loss_gradients_or_updates: Any,
    parameters: Iterable[SlotVariable],
    learning_rate: LearningRate = 1e-3,
    weight_decay: Rate = 0.01,
    beta1: Rate = 0.9,
    beta2: Rate = 0.999,
    epsilon: Rate = 1e-8,
    mask: Any = None,
    namespace: str = "adamw",
) -> Updates:
    """Build the updates of :class:`AdamW`, with new state at every call outside :func:`reuses_state`.

    Parameters
    ----------
    loss_gradients_or_updates : scalar tensor, sequence, mapping or Gradients
    parameters : sequence of handles
    learning_rate, weight_decay, beta1, beta2, epsilon, mask, namespace
        As for :class:`AdamW`.

    Examples
    --------
    >>> from ptml.layers import Linear
    >>> import pytensor.tensor as pt
    >>> fc = Linear("fc", n_in=2, n_out=1, bias=False)
    >>> [
    ...     handle.slot.address
    ...     for handle in adamw_updates((fc(pt.matrix("X")) ** 2).mean(), [fc.W], namespace="slow").state
    ... ]
    ['slow/first_moment/fc/W', 'slow/second_moment/fc/W']
    """
    rule = AdamW(learning_rate, weight_decay, beta1, beta2, epsilon, mask, namespace)
    handles = as_parameters(parameters)
    return rule.apply(to_updates(loss_gradients_or_updates, handles), handles)
