"""Schedules made of schedules: one after another, in cycles, and behind a warm-up."""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from itertools import pairwise
from typing import Any

import attrs
import pytensor.tensor as pt
from pytensor.graph.basic import Variable
from pytensor.raise_op import CheckAndRaise
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
from ptml.optim.schedules.base import Schedule
from ptml.optim.schedules.decay import CosineSchedule, InverseSqrtSchedule, LinearSchedule

__all__ = [
    "JoinedSchedules",
    "LinearOnecycleSchedule",
    "inverse_sqrt",
    "join_schedules",
    "linear_onecycle_schedule",
    "warmup_cosine",
]

NOTHING = "join_schedules: give at least one schedule."
NOT_A_LIST = "join_schedules takes a list of {what}; got {got!r}."
NOT_A_SCHEDULE = "join_schedules: {got!r} at position {position} is no schedule: no function of a step count."
WRONG_NUMBER = (
    "join_schedules: {schedules} schedules meet at {wanted} boundaries; got {given}. A boundary is the count "
    "at which the next schedule starts from zero."
)
NOT_RISING = "join_schedules: each boundary is above the one before it; got {boundaries!r}."
COMPUTED_NOT_RISING = (
    "join_schedules: each boundary is above the one before it, and these, which the graph computes, are not."
)
OUT_OF_ORDER = "LinearOnecycleSchedule: pct_start must be below pct_final; got {start!r} and {final!r}."
TOO_SHORT = (
    "LinearOnecycleSchedule: each of the three phases needs a step, and total_steps={total}, "
    "pct_start={start} and pct_final={final} give them {phases}."
)
COMPUTED_TOO_SHORT = (
    "LinearOnecycleSchedule: each of the three phases needs a step, and total_steps, which the graph "
    "computes, is too small to give them one."
)
NO_DECAY = (
    "warmup_cosine: the decay follows the warm-up within total_steps={total!r}; got warmup_steps={warmup!r}."
)

_share = number(lambda share: (share > 0) & (share < 1), "a number in (0, 1)")


def _several(what: str) -> Callable[[Any, attrs.Attribute, Any], None]:
    def validate(module: Any, field: attrs.Attribute, value: Any) -> None:
        if not isinstance(value, tuple):
            raise TypeError(NOT_A_LIST.format(what=what, got=value))

    return validate


class JoinedSchedules(Schedule, kw_only=False):
    """Run schedules one after another; each starts from its own count zero.

    Parameters
    ----------
    schedules : sequence of schedules
        Any functions of a step count, in order. All are computed at every step, and one is chosen.
    boundaries : sequence of int or symbolic integers
        The counts at which the second, third, ... takes over: positive, each above the one before it.

    Raises
    ------
    TypeError
        If an item of `schedules` is no function.
    ValueError
        If there are no schedules, if there is not one boundary fewer than schedules, or the boundaries do
        not rise from at least 1; for symbolic ones, when the graph runs.

    Examples
    --------
    >>> from ptml.optim import constant_schedule, linear_schedule
    >>> warmed = JoinedSchedules([linear_schedule(0.0, 10, 0.1), constant_schedule(0.1)], [10])
    >>> warmed.values([0, 5, 10, 1000])
    array([0.  , 0.05, 0.1 , 0.1 ])
    """

    schedules: tuple[Callable[[Any], Any], ...] = attrs.field(validator=_several("schedules"))
    boundaries: tuple[Count, ...] = attrs.field(validator=_several("counts"))

    def __attrs_post_init__(self) -> None:
        if not self.schedules:
            raise ValueError(NOTHING)
        for position, schedule in enumerate(self.schedules):
            if not callable(schedule) or isinstance(schedule, type):
                raise TypeError(NOT_A_SCHEDULE.format(got=schedule, position=position))
        wanted = len(self.schedules) - 1
        if len(self.boundaries) != wanted:
            raise ValueError(
                WRONG_NUMBER.format(schedules=len(self.schedules), wanted=wanted, given=len(self.boundaries))
            )
        field = attrs.fields(type(self)).boundaries
        for boundary in self.boundaries:
            whole_count(self, field, boundary)
        for before, after in pairwise(self.boundaries):
            if not isinstance(before, Variable) and not isinstance(after, Variable) and after <= before:
                raise ValueError(NOT_RISING.format(boundaries=list(self.boundaries)))

    def _starts(self) -> list[TensorVariable]:
        starts: list[TensorVariable] = []
        for boundary in self.boundaries:
            start = as_count(boundary, self, "each of boundaries")
            if starts and isinstance(boundary, Variable):
                start = CheckAndRaise(ValueError, COMPUTED_NOT_RISING)(start, pt.gt(start, starts[-1]))
            starts.append(start)
        return starts

    def at(self, count: TensorVariable) -> TensorVariable:
        rate = to_floatx(self.schedules[0](count))
        for start, schedule in zip(self._starts(), self.schedules[1:], strict=True):
            # Ahead of its start a schedule is asked for its first rate, which is not used.
            later = to_floatx(schedule(pt.maximum(count - start, 0)))
            rate = pt.switch(pt.lt(count, start), rate, later)
        return rate


class LinearOnecycleSchedule(Schedule, kw_only=False):
    r"""Move the rate through three linear phases of one cycle: up to the peak, back, and down to an end.

    It starts from :math:`\eta_0 =` `peak_value` / `div_factor`, is at its peak after the fraction
    `pct_start` of the steps, back at :math:`\eta_0` after `pct_final`, and ends at
    :math:`\eta_0 /` `final_div_factor`. Where a phase ends is rounded down to a whole step.

    Parameters
    ----------
    peak_value : number or scalar tensor
        The highest rate.
    total_steps : int or symbolic integer
        The steps of the cycle, enough to give each phase one.
    pct_start : number or scalar tensor, default 0.3
        The fraction of the steps after which the peak is reached, in (0, `pct_final`).
    pct_final : number or scalar tensor, default 0.85
        The fraction of the steps after which the rate is back, in (`pct_start`, 1).
    div_factor : number or scalar tensor, default 25.0
        What the peak is divided by at the start.
    final_div_factor : number or scalar tensor, default 1e4
        What the start is divided by at the end.

    Raises
    ------
    ValueError
        If a number is outside its range, or `total_steps` too small for three phases; for symbolic ones,
        when the graph runs.

    References
    ----------
    Smith and Topin, "Super-Convergence: Very Fast Training of Neural Networks Using Large Learning Rates",
    2017.

    Examples
    --------
    >>> LinearOnecycleSchedule(1.0, 20).values([0, 3, 6, 17, 20]).round(6)
    array([4.0e-02, 5.2e-01, 1.0e+00, 4.0e-02, 4.0e-06])
    """

    peak_value: Rate = attrs.field(validator=non_negative)
    total_steps: Count = attrs.field(validator=whole_count)
    pct_start: Rate = attrs.field(default=0.3, validator=_share)
    pct_final: Rate = attrs.field(default=0.85, validator=_share)
    div_factor: Rate = attrs.field(default=25.0, validator=positive)
    final_div_factor: Rate = attrs.field(default=1e4, validator=positive)

    def __attrs_post_init__(self) -> None:
        start, final, total = self.pct_start, self.pct_final, self.total_steps
        if isinstance(start, Variable) or isinstance(final, Variable):
            return
        if start >= final:
            raise ValueError(OUT_OF_ORDER.format(start=start, final=final))
        if not isinstance(total, Variable):
            peak, back = _part(start, int(total)), _part(final, int(total))
            phases = (peak, back - peak, int(total) - back)
            if min(phases) < 1:
                raise ValueError(TOO_SHORT.format(total=total, start=start, final=final, phases=phases))

    def at(self, count: TensorVariable) -> TensorVariable:
        total = self.total_steps
        if isinstance(total, Variable):
            total = as_count(total, self, "total_steps")
        peak, back = _part(checked(self, "pct_start"), total), _part(checked(self, "pct_final"), total)
        if any(isinstance(v, Variable) for v in (self.total_steps, self.pct_start, self.pct_final)):
            fits = pt.all(pt.stack([pt.ge(peak, 1), pt.gt(back, peak), pt.gt(total, back)]))
            peak = CheckAndRaise(ValueError, COMPUTED_TOO_SHORT)(pt.as_tensor(peak), fits)
        top = checked(self, "peak_value")
        low = top / checked(self, "div_factor")
        phases = (
            LinearSchedule(low, peak, top),
            LinearSchedule(top, back - peak, low),
            LinearSchedule(low, total - back, low / checked(self, "final_div_factor")),
        )
        return JoinedSchedules(phases, (peak, back)).at(count)


def _part(share: Any, total: Any) -> Any:
    """Give a fraction of a number of steps, rounded down.

    A fraction that is written out is taken as the decimal that it was written as, in whole numbers: 0.29 of
    100 are 29 steps, and the float nearest to it would give 28.
    """
    if isinstance(share, Variable):
        return pt.cast(pt.floor(to_floatx(share) * to_floatx(total)), "int64")
    exact = Fraction(str(share)).limit_denominator(10**6)
    return total * exact.numerator // exact.denominator


def warmup_cosine(
    peak_value: Rate,
    total_steps: Count,
    *,
    warmup_steps: Count,
    final_learning_rate: Rate = 0.0,
    initial_learning_rate: Rate = 0.0,
) -> JoinedSchedules:
    """Join a linear warm-up and a cosine that decays.

    Parameters
    ----------
    peak_value : number or scalar tensor
        The rate at the end of the warm-up.
    total_steps : int or symbolic integer
        The steps of both together.
    warmup_steps : int or symbolic integer
        The steps of the warm-up, fewer than `total_steps`.
    final_learning_rate : number or scalar tensor, default 0.0
        The rate at the end, which is held.
    initial_learning_rate : number or scalar tensor, default 0.0
        The rate at count 0.

    Returns
    -------
    JoinedSchedules

    Raises
    ------
    ValueError
        If the warm-up leaves no step to the decay; for symbolic counts, when the graph runs.

    Examples
    --------
    >>> schedule = warmup_cosine(0.1, 100, warmup_steps=20)
    >>> schedule
    JoinedSchedules((LinearSchedule(0.0, 20, 0.1), CosineSchedule(0.1, 80)), (20,))
    >>> schedule.values([0, 10, 20, 60, 100]).round(6)
    array([0.  , 0.05, 0.1 , 0.05, 0.  ])
    """
    symbolic = isinstance(total_steps, Variable) or isinstance(warmup_steps, Variable)
    if not symbolic and warmup_steps >= total_steps:
        raise ValueError(NO_DECAY.format(total=total_steps, warmup=warmup_steps))
    decay = CosineSchedule(peak_value, total_steps - warmup_steps, final_learning_rate=final_learning_rate)
    return JoinedSchedules(
        (LinearSchedule(initial_learning_rate, warmup_steps, peak_value), decay), (warmup_steps,)
    )


def inverse_sqrt(
    peak_value: Rate, *, warmup_steps: Count, initial_learning_rate: Rate = 0.0
) -> JoinedSchedules:
    """Join a linear warm-up and a decay by one over the root of the number of steps, which has no end.

    Parameters
    ----------
    peak_value : number or scalar tensor
        The rate at the end of the warm-up.
    warmup_steps : int or symbolic integer
        The steps of the warm-up. At four times as many the rate is half of its peak.
    initial_learning_rate : number or scalar tensor, default 0.0
        The rate at count 0.

    Returns
    -------
    JoinedSchedules

    References
    ----------
    Vaswani et al., "Attention Is All You Need", 2017, section 5.3; there the peak is one over the root of
    the model's width times `warmup_steps`.

    Examples
    --------
    >>> inverse_sqrt(0.1, warmup_steps=100).values([0, 50, 100, 400, 10_000])
    array([0.  , 0.05, 0.1 , 0.05, 0.01])
    """
    return JoinedSchedules(
        (
            LinearSchedule(initial_learning_rate, warmup_steps, peak_value),
            InverseSqrtSchedule(peak_value, warmup_steps),
        ),
        (warmup_steps,),
    )


join_schedules = JoinedSchedules
linear_onecycle_schedule = LinearOnecycleSchedule
