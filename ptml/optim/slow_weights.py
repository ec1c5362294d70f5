"""Lookahead: slow weights that follow, every few steps, where a rule has taken the fast ones."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import attrs
import pytensor.tensor as pt
from pytensor.tensor.variable import TensorVariable

from ptml.optim.hyperparameters import (
    Count,
    Rate,
    as_count,
    as_scalar,
    checked,
    namespace,
    number,
    whole_count,
    working_dtype,
)
from ptml.optim.ownership import counter, state_for
from ptml.optim.transform import Rule, a_rule, decided
from ptml.optim.updates import Gradients, Steps
from ptml_state import SlotVariable

__all__ = ["Lookahead", "lookahead"]


class Lookahead(Rule, kw_only=False):
    r"""Let a rule run ahead for some steps, then go part of the way: k steps forward, one step back.

    The parameters are the fast weights. At every `sync_period`-th step, after the rule's own step, the slow
    weights :math:`s` move to :math:`s + \alpha (p - s)`, and the parameters are set to them. Slow weights
    start at the values that the parameters have when the program is compiled. The rule's own state (momentum)
    goes on through a synchronization. In a chain it stands last, or ahead of an :class:`Ema`.

    Parameters
    ----------
    rule : transform, or function of ``(loss_gradients_or_updates, parameters)``
        What moves the fast weights; a chain with a rule in it will do.
    sync_period : int or symbolic integer, default 6
        The number of steps from one synchronization to the next.
    slow_step_size : number or scalar tensor, default 0.5
        The share :math:`\alpha` of the way, in (0, 1].
    namespace : str, default "lookahead"
        Its state is ``<namespace>/slow/<parameter>`` and the clock ``<namespace>/step_count``.

    Raises
    ------
    ValueError
        If the period is no whole number of at least 1, or the share outside (0, 1]; when it is called, if
        `rule` decides no step.

    Notes
    -----
    Between synchronizations the slow weights are the better ones to evaluate:
    ``averaged(step, "lookahead/slow")``.

    References
    ----------
    Zhang, Lucas, Hinton and Ba, "Lookahead Optimizer: k steps forward, 1 step back", 2019, algorithm 1.

    Examples
    --------
    >>> from ptml.optim import adam, chain, clip_by_global_norm
    >>> Lookahead(chain(clip_by_global_norm(1.0), adam(1e-3)), sync_period=5)
    Lookahead(Chain(ClipByGlobalNorm(), Adam()), 5)
    """

    rule: Callable[..., Any] = attrs.field(validator=a_rule)
    sync_period: Count = attrs.field(default=6, validator=whole_count)
    slow_step_size: Rate = attrs.field(
        default=0.5,
        validator=number(lambda share: (share > 0) & (share <= 1), "a number above 0 and at most 1"),
    )
    namespace: str = attrs.field(default="lookahead", validator=namespace, kw_only=True)
    _last: ClassVar[str | None] = (
        "it brings parameters and slow weights together, which a later move would part"
    )

    def decide(self, gradients: Gradients, parameters: Sequence[SlotVariable]) -> Steps:
        fast = decided(self.rule, gradients, parameters)
        count = counter(f"{self.namespace}/step_count")
        synchronize = pt.eq(pt.mod(count + 1, as_count(self.sync_period, self, "sync_period")), 0)
        amounts: dict[SlotVariable, TensorVariable] = {}
        slow: dict[SlotVariable, SlotVariable] = {}
        for parameter, step in fast.amounts.items():
            dtype = working_dtype(parameter)
            slow[parameter] = state_for(parameter, f"{self.namespace}/slow", parameter)
            ahead = (pt.cast(parameter, dtype) - pt.cast(slow[parameter], dtype)) + step
            back = as_scalar(1 - checked(self, "slow_step_size"), dtype) * ahead
            amounts[parameter] = pt.switch(synchronize, step - back, step)
        steps = fast.with_amounts(amounts)
        # What the parameters are set to is what is kept, to the last bit.
        return steps.with_state({s: pt.switch(synchronize, steps[p], s) for p, s in slow.items()})


lookahead = Lookahead
