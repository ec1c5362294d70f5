"""Schedules: frozen values that map a step count to a rate.

A count is clipped while it is a whole number and cast afterwards, so that a schedule is right, and holds
its end, at counts that float32 cannot tell apart.
"""

from __future__ import annotations

import abc
import math
from typing import Any, final

import attrs
import pytensor.tensor as pt
from pytensor.graph.basic import Variable
from pytensor.tensor.type import integer_dtypes
from pytensor.tensor.variable import TensorVariable

from ptml.module import Module
from ptml.optim.hyperparameters import Count, Rate, as_count, number, to_floatx, whole_count

__all__ = [
    "ConstantSchedule",
    "CosineSchedule",
    "LinearSchedule",
    "Schedule",
    "constant_schedule",
    "cosine_schedule",
    "linear_schedule",
]

NOT_A_COUNT = "{schedule} is read at a whole number of steps; got {got}."
RISES = (
    "{schedule}({start!r}, {steps!r}, {end!r}) ends above its start. The third argument is the rate that the "
    "schedule arrives at; optax's third, alpha, is a fraction of the start. Write "
    "cosine_schedule({start!r}, {steps!r}, final_learning_rate={fraction!r}) for what alpha={end!r} means "
    "there, or final_learning_rate={end!r} by keyword for a rise."
)

_rate = number(lambda rate: 0 <= rate < math.inf, "a finite number of 0 or more")


class Schedule(Module, abc.ABC):
    """A rate as a function of the number of steps made so far: zero at the first step.

    A subclass says in ``at(count)`` what the rate is. Wherever a schedule is taken, any other function
    of the count will do; a `Schedule` is one that prints, compares and is saved as a value.

    Examples
    --------
    >>> from ptml.optim import Schedule
    >>> class InverseSqrt(Schedule):
    ...     peak: float
    ...
    ...     def at(self, count):
    ...         return self.peak / (count + 1.0) ** 0.5
    >>> float(InverseSqrt(peak=0.1)(3).eval())
    0.05
    """

    @abc.abstractmethod
    def at(self, count: TensorVariable) -> Any:
        """Give the rate at a count, which is a tensor of int64."""

    @final
    def __call__(self, count: Any) -> TensorVariable:
        """Give the rate at a step count.

        Parameters
        ----------
        count : int, array of int, or symbolic
            Steps made so far.

        Returns
        -------
        tensor
            Of dtype ``floatX`` and the shape of `count`: a scalar for a scalar.

        Raises
        ------
        TypeError
            If the count is no whole number.
        """
        steps = pt.as_tensor(count)
        if steps.type.dtype not in integer_dtypes:
            got = steps.type if isinstance(count, Variable) else repr(count)
            raise TypeError(NOT_A_COUNT.format(schedule=repr(self), got=got))
        return to_floatx(self.at(pt.cast(steps, "int64")))


class ConstantSchedule(Schedule, kw_only=False):
    """Hold the rate at `learning_rate` forever.

    Parameters
    ----------
    learning_rate : number or scalar tensor

    Examples
    --------
    >>> float(ConstantSchedule(0.1)(10**9).eval())
    0.1
    """

    learning_rate: Rate = attrs.field(validator=_rate)

    def at(self, count: TensorVariable) -> TensorVariable:
        return pt.zeros_like(count, dtype=to_floatx(0.0).dtype) + to_floatx(self.learning_rate)


def _mixed(schedule: Any, count: TensorVariable, weight: Any) -> TensorVariable:
    """Weigh a schedule's start against its end; at a weight of one or zero it is one of them, exactly."""
    total = as_count(schedule.total_steps, schedule, "total_steps")
    # Equal counts cast alike, so the end is reached to the last bit.
    progress = to_floatx(pt.minimum(count, total)) / to_floatx(total)
    share = weight(progress)
    return to_floatx(schedule.learning_rate) * share + to_floatx(schedule.final_learning_rate) * (1.0 - share)


class LinearSchedule(Schedule, kw_only=False):
    """Move the rate from `learning_rate` to `final_learning_rate` by the same amount each step, and hold it.

    Parameters
    ----------
    learning_rate : number or scalar tensor
        The rate at count 0.
    total_steps : int or symbolic integer
        The count at which the end is reached, at least 1.
    final_learning_rate : number or scalar tensor, default 0.0
        The rate at the end; one above the start is a warm-up.

    Raises
    ------
    ValueError
        If a rate is negative or not finite, or `total_steps` no whole number of at least 1; for a
        symbolic `total_steps`, when the graph runs.

    Examples
    --------
    >>> warmup = LinearSchedule(0.0, 100, 0.1)
    >>> [round(float(warmup(count).eval()), 3) for count in (0, 50, 100, 101)]
    [0.0, 0.05, 0.1, 0.1]
    """

    learning_rate: Rate = attrs.field(validator=_rate)
    total_steps: Count = attrs.field(validator=whole_count)
    final_learning_rate: Rate = attrs.field(default=0.0, validator=_rate)

    def at(self, count: TensorVariable) -> TensorVariable:
        return _mixed(self, count, lambda progress: 1.0 - progress)


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
    >>> schedule = CosineSchedule(0.3, 10)
    >>> [round(float(schedule(count).eval()), 3) for count in (0, 5, 10, 11)]
    [0.3, 0.15, 0.0, 0.0]
    """

    learning_rate: Rate = attrs.field(validator=_rate)
    total_steps: Count = attrs.field(validator=whole_count)
    final_learning_rate: Rate = attrs.field(default=0.0, validator=_rate)

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
        return _mixed(self, count, lambda progress: 0.5 * (1.0 + pt.cos(math.pi * progress)))


constant_schedule = ConstantSchedule
cosine_schedule = CosineSchedule
linear_schedule = LinearSchedule
