"""LAMB: Adam's direction, at a rate in proportion to the size of the parameter that it moves."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import attrs
import pytensor.tensor as pt

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
from ptml.optim.rules.parts import (
    Amounts,
    apply_rule,
    bias_correction,
    descend,
    root_mean_square,
    with_decay,
)
from ptml.optim.transform import Rule
from ptml.optim.updates import Gradients, Steps, Updates
from ptml_state import SlotVariable

__all__ = ["Lamb", "lamb", "lamb_updates"]


class Lamb(Rule, kw_only=False):
    r"""LAMB: each parameter moves by its own norm times the rate, for large batches.

    With the direction :math:`d` of :class:`AdamW`, the decay :math:`\lambda p` included,

    .. math:: p \leftarrow p - \eta \frac{\lVert p \rVert}{\lVert d \rVert} d

    where a norm of zero makes the quotient 1. A parameter is one array: its norm is taken over all of it.

    Parameters
    ----------
    learning_rate : number, scalar tensor or schedule, default 1e-3
        The rate :math:`\eta`. A schedule runs on the rule's own clock.
    weight_decay : number or scalar tensor, default 0.0
        The coefficient :math:`\lambda`.
    beta1 : number or scalar tensor, default 0.9
        The decay of the mean of gradients, in [0, 1).
    beta2 : number or scalar tensor, default 0.999
        The decay of the mean of squares, in [0, 1).
    epsilon : number or scalar tensor, default 1e-6
        Added to the corrected root.
    mask : where, or function of a parameter, optional
        Which parameters decay; all unless given.
    namespace : str, default "lamb"
        The first part of the addresses of its state: ``lamb/first_moment/<parameter>``,
        ``lamb/second_moment/<parameter>`` and the clock ``lamb/step_count``.

    Raises
    ------
    ValueError
        If the rate, the decay or epsilon is negative or not finite, or a beta outside [0, 1); for a symbolic
        one, when the graph runs.
    KeyError
        When it is called, if a name in `mask` matches no parameter.

    References
    ----------
    You et al., "Large Batch Optimization for Deep Learning: Training BERT in 76 minutes", 2020,
    algorithm 2, with the identity as scaling function.

    Examples
    --------
    >>> Lamb(2e-3, weight_decay=0.01)
    Lamb(0.002, 0.01)
    """

    learning_rate: LearningRate = attrs.field(default=1e-3, validator=a_rate)
    weight_decay: Rate = attrs.field(default=0.0, validator=non_negative)
    beta1: Rate = attrs.field(default=0.9, validator=a_share)
    beta2: Rate = attrs.field(default=0.999, validator=a_share)
    epsilon: Rate = attrs.field(default=1e-6, validator=non_negative)
    mask: Any = attrs.field(default=None, validator=a_mask)
    namespace: str = attrs.field(default="lamb", validator=namespace)

    def decide(self, gradients: Gradients, parameters: Sequence[SlotVariable]) -> Steps:
        count = counter(f"{self.namespace}/step_count")
        made = moments(self, gradients, count)
        beta1 = checked(self, "beta1")
        unbias = {d: 1 / bias_correction(beta1, count + 1, d) for d in set(map(working_dtype, made.means))}
        directions = {p: mean * unbias[working_dtype(p)] / made.roots[p] for p, mean in made.means.items()}
        decayed = with_decay(directions, checked(self, "weight_decay"), self.mask)
        scaled: Amounts = {}
        for parameter, direction in decayed.items():
            shape = parameter.type.shape
            # Both have one number of elements, so the norms are to each other as the means are.
            size = root_mean_square(pt.cast(parameter, working_dtype(parameter)), shape)
            length = root_mean_square(direction, shape)
            unknown = pt.eq(size, 0) | pt.eq(length, 0)
            scaled[parameter] = pt.switch(unknown, 1, size / pt.switch(unknown, 1, length)) * direction
        return gradients.to_steps(descend(scaled, checked_rate(self, count))).with_state(made.state)


lamb = Lamb


def lamb_updates(
    loss_gradients_or_updates: Any,
    parameters: Iterable[SlotVariable],
    learning_rate: LearningRate = 1e-3,
    weight_decay: Rate = 0.0,
    beta1: Rate = 0.9,
    beta2: Rate = 0.999,
    epsilon: Rate = 1e-6,
    mask: Any = None,
    namespace: str = "lamb",
) -> Updates:
    """Build the updates of :class:`Lamb`, with new state at every call outside :func:`reuses_state`.

    Parameters
    ----------
    loss_gradients_or_updates : scalar tensor, sequence, mapping or Gradients
    parameters : sequence of handles
    learning_rate, weight_decay, beta1, beta2, epsilon, mask, namespace
        As for :class:`Lamb`.

    Examples
    --------
    >>> from ptml.layers import Linear
    >>> import pytensor.tensor as pt
    >>> fc = Linear("fc", n_in=2, n_out=1, bias=False)
    >>> [handle.slot.address for handle in lamb_updates((fc(pt.matrix("X")) ** 2).mean(), [fc.W]).state]
    ['lamb/first_moment/fc/W', 'lamb/second_moment/fc/W']
    """
    rule = Lamb(learning_rate, weight_decay, beta1, beta2, epsilon, mask, namespace)
    return apply_rule(rule, loss_gradients_or_updates, parameters)
