"""Adam, and Adam with decoupled weight decay."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import attrs

from ptml.optim.hyperparameters import (
    LearningRate,
    Rate,
    a_rate,
    a_share,
    checked,
    checked_rate,
    namespace,
    non_negative,
    working_dtype,
)
from ptml.optim.masks import a_mask
from ptml.optim.ownership import counter
from ptml.optim.rules.moments import moments
from ptml.optim.rules.parts import Amounts, apply_rule, bias_correction, descend, with_decay
from ptml.optim.transform import Rule
from ptml.optim.updates import Gradients, Steps, Updates
from ptml.validate import flag
from ptml_state import SlotVariable

__all__ = ["Adam", "AdamW", "adam", "adam_updates", "adamw", "adamw_updates"]


def _directions(rule: Any, gradients: Gradients, count: SlotVariable) -> tuple[Amounts, Amounts]:
    """Give the direction that each parameter descends in, at a rate of one, and the new moments."""
    made = moments(rule, gradients, count, amsgrad=rule.amsgrad)
    beta1 = checked(rule, "beta1")
    unbias = {d: 1 / bias_correction(beta1, count + 1, d) for d in set(map(working_dtype, made.means))}
    directions = {p: mean * unbias[working_dtype(p)] / made.roots[p] for p, mean in made.means.items()}
    return directions, made.state


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
    amsgrad : bool, default False
        Whether to divide by the root of the largest :math:`v` so far, kept in
        ``adam/max_second_moment/<parameter>``. By keyword. As in PyTorch the largest is taken before the
        correction.

    Raises
    ------
    ValueError
        If the rate or epsilon is negative or not finite, or a beta outside [0, 1).

    References
    ----------
    Kingma and Ba, "Adam: A Method for Stochastic Optimization", 2015, algorithm 1. Reddi, Kale and Kumar,
    "On the Convergence of Adam and Beyond", 2018, algorithm 2.

    Examples
    --------
    >>> from ptml.optim import cosine_schedule
    >>> Adam(cosine_schedule(1e-3, 10_000), beta2=0.99)
    Adam(CosineSchedule(0.001, 10000), beta2=0.99)
    """

    learning_rate: LearningRate = attrs.field(default=1e-3, validator=a_rate)
    beta1: Rate = attrs.field(default=0.9, validator=a_share)
    beta2: Rate = attrs.field(default=0.999, validator=a_share)
    epsilon: Rate = attrs.field(default=1e-8, validator=non_negative)
    namespace: str = attrs.field(default="adam", validator=namespace)
    amsgrad: bool = attrs.field(default=False, validator=flag, kw_only=True)

    def decide(self, gradients: Gradients, parameters: Sequence[SlotVariable]) -> Steps:
        count = counter(f"{self.namespace}/step_count")
        directions, state = _directions(self, gradients, count)
        steps = descend(directions, checked_rate(self, count))
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
    amsgrad : bool, default False
        As for :class:`Adam`.

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

    learning_rate: LearningRate = attrs.field(default=1e-3, validator=a_rate)
    weight_decay: Rate = attrs.field(default=0.01, validator=non_negative)
    beta1: Rate = attrs.field(default=0.9, validator=a_share)
    beta2: Rate = attrs.field(default=0.999, validator=a_share)
    epsilon: Rate = attrs.field(default=1e-8, validator=non_negative)
    mask: Any = attrs.field(default=None, validator=a_mask)
    namespace: str = attrs.field(default="adamw", validator=namespace)
    amsgrad: bool = attrs.field(default=False, validator=flag, kw_only=True)

    def decide(self, gradients: Gradients, parameters: Sequence[SlotVariable]) -> Steps:
        count = counter(f"{self.namespace}/step_count")
        directions, state = _directions(self, gradients, count)
        decayed = with_decay(directions, checked(self, "weight_decay"), self.mask)
        steps = descend(decayed, checked_rate(self, count))
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
    *,
    amsgrad: bool = False,
) -> Updates:
    """Build the updates of :class:`Adam`, with new state at every call outside :func:`reuses_state`.

    Parameters
    ----------
    loss_gradients_or_updates : scalar tensor, sequence, mapping or Gradients
    parameters : sequence of handles
    learning_rate, beta1, beta2, epsilon, namespace, amsgrad
        As for :class:`Adam`.

    Examples
    --------
    >>> from ptml.layers import Linear
    >>> import pytensor.tensor as pt
    >>> fc = Linear("fc", n_in=2, n_out=1, bias=False)
    >>> [handle.slot.address for handle in adam_updates((fc(pt.matrix("X")) ** 2).mean(), [fc.W]).state]
    ['adam/first_moment/fc/W', 'adam/second_moment/fc/W']
    """
    rule = Adam(learning_rate, beta1, beta2, epsilon, namespace, amsgrad=amsgrad)
    return apply_rule(rule, loss_gradients_or_updates, parameters)


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
    *,
    amsgrad: bool = False,
) -> Updates:
    """Build the updates of :class:`AdamW`, with new state at every call outside :func:`reuses_state`.

    Parameters
    ----------
    loss_gradients_or_updates : scalar tensor, sequence, mapping or Gradients
    parameters : sequence of handles
    learning_rate, weight_decay, beta1, beta2, epsilon, mask, namespace, amsgrad
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
    rule = AdamW(learning_rate, weight_decay, beta1, beta2, epsilon, mask, namespace, amsgrad=amsgrad)
    return apply_rule(rule, loss_gradients_or_updates, parameters)
