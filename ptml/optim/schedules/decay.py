"""Schedules that go from one rate to another, hold one, or step down."""

from __future__ import annotations

import math
from typing import Any

import attrs
import numpy as np
import pytensor
import pytensor.tensor as pt
from pytensor.graph.basic import Variable
from pytensor.tensor.variable import TensorVariable

from ptml.optim.hyperparameters import (
    Count,
    Rate,
    as_count,
    checked,
    non_negative,
    number,
    positive,
    to_floatx,
    whole_count,
)
from ptml.optim.schedules.base import Schedule, elapsed, is_delay, mix

__all__ = [
    "ConstantSchedule",
    "CosineSchedule",
    "ExponentialSchedule",
    "InverseSqrtSchedule",
    "LinearSchedule",
    "PolynomialSchedule",
    "StepDecay",
    "constant_schedule",
    "cosine_schedule",
    "exponential_schedule",
    "linear_schedule",
    "polynomial_schedule",
    "step_decay",
]

RISES = (
    "{schedule}({start!r}, {steps!r}, {end!r}) ends above its start. The third argument is the rate that the "
    "schedule arrives at; optax's third, alpha, is a fraction of the start. Write "
    "cosine_schedule({start!r}, {steps!r}, final_learning_rate={fraction!r}) for what alpha={end!r} means "
    "there, or final_learning_rate={end!r} by keyword for a rise."
)

_factor = number(lambda factor: (factor > 0) & (factor <= 1), "a number above 0 and at most 1")


class ConstantSchedule(Schedule, kw_only=False):
    """Hold the rate at `learning_rate` forever.

    Parameters
    ----------
    learning_rate : number or scalar tensor

    Raises
    ------
    ValueError
        If the rate is negative or not finite.

    Examples
    --------
    >>> ConstantSchedule(0.1).values([0, 10**9])
    array([0.1, 0.1])
    """

    learning_rate: Rate = attrs.field(validator=non_negative)

    def at(self, count: TensorVariable) -> TensorVariable:
        return pt.zeros_like(count, dtype=to_floatx(0.0).dtype) + to_floatx(checked(self, "learning_rate"))


class LinearSchedule(Schedule, kw_only=False):
    """Move the rate from `learning_rate` to `final_learning_rate` by the same amount each step, and hold it.

    Parameters
    ----------
    learning_rate : number or scalar tensor
        The rate at the start.
    total_steps : int or symbolic integer
        How many steps it moves for, at least 1.
    final_learning_rate : number or scalar tensor, default 0.0
        The rate at the end; one above the start is a warm-up.
    transition_begin : int or symbolic integer, default 0
        How many steps the start is held before.

    Raises
    ------
    ValueError
        If a rate is negative or not finite, or a count too small or no whole number; for a symbolic count,
        when the graph runs.

    Examples
    --------
    >>> LinearSchedule(0.0, 100, 0.1).values([0, 50, 100, 101])
    array([0.  , 0.05, 0.1 , 0.1 ])
    """

    learning_rate: Rate = attrs.field(validator=non_negative)
    total_steps: Count = attrs.field(validator=whole_count)
    final_learning_rate: Rate = attrs.field(default=0.0, validator=non_negative)
    transition_begin: Count = attrs.field(default=0, validator=is_delay)

    def at(self, count: TensorVariable) -> TensorVariable:
        done, total = elapsed(self, count, self.transition_begin)
        # Equal counts cast alike, so the end is reached to the last bit.
        return mix(self, 1.0 - to_floatx(done) / to_floatx(total))


class CosineSchedule(Schedule, kw_only=False):
    r"""Move the rate from `learning_rate` to `final_learning_rate` along half a cosine, and hold it.

    .. math:: \eta_k = \eta_T + (\eta_0 - \eta_T) \frac{1 + \cos(\pi \min(k, T) / T)}{2}

    Parameters
    ----------
    learning_rate : number or scalar tensor
        The rate at count 0.
    total_steps : int or symbolic integer
        The count T at which the end is reached, at least 1.
    final_learning_rate : number or scalar tensor, default 0.0
        The rate at the end. Above the start, so that the rate rises, it is given by keyword: by position
        it is more likely the fraction that optax takes there.

    Raises
    ------
    ValueError
        If the third positional argument is above the first; if a rate is negative or not finite, or
        `total_steps` no whole number of at least 1; for a symbolic `total_steps`, when the graph runs.

    References
    ----------
    Loshchilov and Hutter, "SGDR: Stochastic Gradient Descent with Warm Restarts", 2017, equation 5.

    Examples
    --------
    >>> CosineSchedule(0.3, 10).values([0, 5, 10, 11]).round(6)
    array([0.3 , 0.15, 0.  , 0.  ])
    """

    learning_rate: Rate = attrs.field(validator=non_negative)
    total_steps: Count = attrs.field(validator=whole_count)
    final_learning_rate: Rate = attrs.field(default=0.0, validator=non_negative)

    def __new__(cls, *args: Any, **kwargs: Any) -> Any:
        if len(args) == 3 and all(isinstance(rate, int | float) for rate in (args[0], args[2])):
            start, steps, end = args
            if end > start:
                raise ValueError(
                    RISES.format(
                        schedule=cls.__name__,
                        start=start,
                        steps=steps,
                        end=end,
                        fraction=float(f"{start * end:.6g}"),
                    )
                )
        return super().__new__(cls, *args, **kwargs)

    def _shown_fields(self) -> tuple[list[Any], dict[str, Any]]:
        positional, keywords = super()._shown_fields()
        if len(positional) == 3:
            keywords["final_learning_rate"] = positional.pop()
        return positional, keywords

    def at(self, count: TensorVariable) -> TensorVariable:
        done, total = elapsed(self, count)
        angle = math.pi * (to_floatx(done) / to_floatx(total))
        return mix(self, 0.5 * (1.0 + pt.cos(angle)))


class ExponentialSchedule(Schedule, kw_only=False):
    r"""Move the rate from `learning_rate` to `final_learning_rate` by the same factor each step, and hold it.

    .. math:: \eta_k = \eta_0 (\eta_T / \eta_0)^{\min(\max(k - B, 0), T) / T}

    Parameters
    ----------
    learning_rate : number or scalar tensor
        The rate :math:`\eta_0` at the start, above 0.
    total_steps : int or symbolic integer
        How many steps T it moves for, at least 1.
    final_learning_rate : number or scalar tensor
        The rate :math:`\eta_T` at the end. Above 0: no number of factors leads to zero.
    transition_begin : int or symbolic integer, default 0
        How many steps B the start is held before.

    Raises
    ------
    ValueError
        If a rate is not above 0 or not finite, or a count too small or no whole number; for a symbolic
        count, when the graph runs.

    Examples
    --------
    >>> ExponentialSchedule(0.1, 2, 0.001).values([0, 1, 2, 3]).round(6)
    array([0.1  , 0.01 , 0.001, 0.001])
    """

    learning_rate: Rate = attrs.field(validator=positive)
    total_steps: Count = attrs.field(validator=whole_count)
    final_learning_rate: Rate = attrs.field(validator=positive)
    transition_begin: Count = attrs.field(default=0, validator=is_delay)

    def at(self, count: TensorVariable) -> TensorVariable:
        start, end = checked(self, "learning_rate"), checked(self, "final_learning_rate")
        if isinstance(start, Variable) or isinstance(end, Variable):
            log_ratio = pt.log(to_floatx(end) / to_floatx(start))
        else:
            log_ratio = to_floatx(math.log(end) - math.log(start))
        done, total = elapsed(self, count, self.transition_begin)
        moved = to_floatx(start) * pt.exp(log_ratio * (to_floatx(done) / to_floatx(total)))
        return pt.switch(pt.lt(done, total), moved, to_floatx(end))


class PolynomialSchedule(Schedule, kw_only=False):
    r"""Move the rate from `learning_rate` to `final_learning_rate` along a power, and hold it.

    .. math:: \eta_k = \eta_T + (\eta_0 - \eta_T) \left(1 - \min(\max(k - B, 0), T) / T\right)^\gamma

    Parameters
    ----------
    learning_rate : number or scalar tensor
        The rate :math:`\eta_0` at the start.
    total_steps : int or symbolic integer
        How many steps T it moves for, at least 1.
    final_learning_rate : number or scalar tensor, default 0.0
        The rate :math:`\eta_T` at the end.
    transition_begin : int or symbolic integer, default 0
        How many steps B the start is held before.
    power : number or scalar tensor, default 1.0
        The power :math:`\gamma`, above 0: 1 is a line; a greater one moves fast first, a smaller one last.

    Raises
    ------
    ValueError
        If a rate is negative or not finite, the power not above 0, or a count too small or no whole number;
        for a symbolic count, when the graph runs.

    Examples
    --------
    >>> PolynomialSchedule(1.0, 4, power=2).values([0, 1, 2, 3, 4])
    array([1.    , 0.5625, 0.25  , 0.0625, 0.    ])
    """

    learning_rate: Rate = attrs.field(validator=non_negative)
    total_steps: Count = attrs.field(validator=whole_count)
    final_learning_rate: Rate = attrs.field(default=0.0, validator=non_negative)
    transition_begin: Count = attrs.field(default=0, validator=is_delay)
    power: Rate = attrs.field(default=1.0, validator=positive)

    def at(self, count: TensorVariable) -> TensorVariable:
        done, total = elapsed(self, count, self.transition_begin)
        left = to_floatx(total - done) / to_floatx(total)
        return mix(self, left ** to_floatx(checked(self, "power")))


class StepDecay(Schedule, kw_only=False):
    r"""Multiply the rate by `decay_factor` every `decay_every` steps.

    .. math:: \eta_k = \max(\eta_0 \gamma^{\lfloor \max(k - B, 0) / E \rfloor}, \eta_{\min})

    Parameters
    ----------
    learning_rate : number or scalar tensor
        The rate :math:`\eta_0` at the start.
    decay_every : int or symbolic integer
        How many steps E each rate is kept for, at least 1.
    decay_factor : number or scalar tensor, default 0.1
        The factor :math:`\gamma`, above 0 and at most 1.
    min_learning_rate : number or scalar tensor, default 0.0
        The rate below which it does not go.
    transition_begin : int or symbolic integer, default 0
        How many steps B are not counted at the start.

    Raises
    ------
    ValueError
        If a rate is negative or not finite, the factor outside (0, 1], or a count too small or no whole
        number; for a symbolic count, when the graph runs.

    Examples
    --------
    >>> StepDecay(0.1, decay_every=30).values([0, 29, 30, 60]).round(6)
    array([0.1  , 0.1  , 0.01 , 0.001])
    """

    learning_rate: Rate = attrs.field(validator=non_negative)
    decay_every: Count = attrs.field(validator=whole_count, kw_only=True)
    decay_factor: Rate = attrs.field(default=0.1, validator=_factor, kw_only=True)
    min_learning_rate: Rate = attrs.field(default=0.0, validator=non_negative, kw_only=True)
    transition_begin: Count = attrs.field(default=0, validator=is_delay, kw_only=True)

    def at(self, count: TensorVariable) -> TensorVariable:
        begin = as_count(self.transition_begin, self, "transition_begin", least=0)
        drops = to_floatx(pt.maximum(count - begin, 0) // as_count(self.decay_every, self, "decay_every"))
        rate = to_floatx(checked(self, "learning_rate")) * to_floatx(checked(self, "decay_factor")) ** drops
        if not isinstance(self.decay_factor, Variable):
            # A power of the rounded factor would be off by as many roundings as there are drops.
            rounded = float(np.asarray(self.decay_factor, pytensor.config.floatX))
            if lost := math.log(self.decay_factor) - math.log(rounded):
                rate = rate * pt.exp(drops * to_floatx(lost))
        return pt.maximum(rate, to_floatx(checked(self, "min_learning_rate")))


class InverseSqrtSchedule(Schedule, kw_only=False):
    r"""Let the rate fall as one over the root of the number of steps, without end.

    .. math:: \eta_k = \eta_0 \sqrt{\tau / (\tau + k)}

    :func:`inverse_sqrt` puts a warm-up ahead of it.

    Parameters
    ----------
    learning_rate : number or scalar tensor
        The rate :math:`\eta_0` at count 0.
    timescale : int or symbolic integer
        The number of steps :math:`\tau`, at least 1; the rate is halved after three times as many.

    Raises
    ------
    ValueError
        If the rate is negative or not finite, or `timescale` no whole number of at least 1; for a symbolic
        one, when the graph runs.

    Examples
    --------
    >>> InverseSqrtSchedule(0.1, 100).values([0, 300, 9_900])
    array([0.1 , 0.05, 0.01])
    """

    learning_rate: Rate = attrs.field(validator=non_negative)
    timescale: Count = attrs.field(validator=whole_count)

    def at(self, count: TensorVariable) -> TensorVariable:
        scale = as_count(self.timescale, self, "timescale")
        return to_floatx(checked(self, "learning_rate")) * pt.sqrt(
            to_floatx(scale) / to_floatx(scale + pt.maximum(count, 0))
        )


constant_schedule = ConstantSchedule
cosine_schedule = CosineSchedule
exponential_schedule = ExponentialSchedule
linear_schedule = LinearSchedule
polynomial_schedule = PolynomialSchedule
step_decay = StepDecay
