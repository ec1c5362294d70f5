"""What a schedule is: a frozen value that maps a step count to a rate, and can be looked at.

A count is clipped while it is a whole number and cast afterwards, so that a schedule is right, and holds
its end, at counts that float32 cannot tell apart.
"""

from __future__ import annotations

import abc
import importlib.util
from collections.abc import Iterable, Mapping
from functools import partial
from typing import Any, final

import numpy as np
import pytensor.tensor as pt
from pytensor.graph.basic import Variable
from pytensor.tensor.type import integer_dtypes
from pytensor.tensor.variable import TensorVariable

from ptml.module import Module
from ptml.optim.hyperparameters import Count, as_count, checked, to_floatx, whole_count
from ptml.optim.schedules.evaluate import evaluate

__all__ = ["Schedule", "elapsed", "is_delay", "mix"]

NOT_A_COUNT = "{schedule} is read at a whole number of steps; got {got}."
NOT_A_LENGTH = "A schedule is drawn over a whole number of steps of at least 1; got total_steps={got!r}."
NO_MATPLOTLIB = "Schedule.plot draws with matplotlib, which is not installed: pip install 'ptml[examples]'."
#: A plot looks at no more steps than this; a screen shows no more.
MOST_POINTS = 2000

is_delay = partial(whole_count, least=0)


class Schedule(Module, abc.ABC):
    """A rate as a function of the number of steps made so far: zero at the first step.

    A subclass says in ``at(count)`` what the rate is. Wherever a schedule is taken, any other function
    of the count will do; a `Schedule` is one that prints, compares and is saved as a value, and can be
    looked at: `values` and `table` give its rates, `plot` draws them, and none of them compiles anything.

    Examples
    --------
    >>> from ptml.optim import Schedule
    >>> class Halving(Schedule):
    ...     start: float
    ...     every: int
    ...
    ...     def at(self, count):
    ...         return self.start * 0.5 ** (count // self.every)
    >>> Halving(start=0.1, every=100).values([0, 99, 100, 200])
    array([0.1  , 0.1  , 0.05 , 0.025])
    """

    @abc.abstractmethod
    def at(self, count: TensorVariable) -> Any:
        """Give the rate at a count, which is a tensor of int64: a scalar, or an array of counts."""

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

    @final
    def values(self, counts: Any, inputs: Mapping[Variable, Any] | None = None) -> np.ndarray:
        """Give the rates at these counts, without compiling.

        Parameters
        ----------
        counts : int, or array-like of int
            Steps made so far.
        inputs : mapping, optional
            Values of the variables that the schedule depends on, such as the batch in a horizon that is
            written in terms of it. A `scalar_state` has its first value unless it is given here.

        Returns
        -------
        array
            Of dtype ``floatX`` and the shape of `counts`.

        Raises
        ------
        TypeError
            If a count is no whole number.
        ValueError
            If the value of a variable is missing, or a symbolic count is impossible.

        Examples
        --------
        >>> from ptml.optim import cosine_schedule
        >>> cosine_schedule(0.3, 10).values([0, 5, 10, 11]).round(6)
        array([0.3 , 0.15, 0.  , 0.  ])
        """
        counts = np.asarray(counts)
        rates = self(counts)
        return np.broadcast_to(evaluate(rates, inputs or {}, repr(self)), counts.shape).copy()

    @final
    def table(self, counts: Iterable[int], inputs: Mapping[Variable, Any] | None = None) -> str:
        """Give the rates at these counts as a text of two columns, without compiling.

        Parameters
        ----------
        counts : iterable of int
        inputs : mapping, optional
            As for `values`.

        Examples
        --------
        >>> from ptml.optim import linear_schedule
        >>> print(linear_schedule(0.0, 1000, 0.1).table([0, 10, 500, 1000]))
        step   rate
           0      0
          10  0.001
         500   0.05
        1000    0.1
        """
        counts = np.asarray(list(counts))
        rates = [f"{rate:.6g}" for rate in self.values(counts, inputs)]
        rows = [("step", "rate"), *zip(map(str, counts), rates, strict=True)]
        widths = [max(len(row[column]) for row in rows) for column in (0, 1)]
        return "\n".join(f"{step:>{widths[0]}}  {rate:>{widths[1]}}" for step, rate in rows)

    @final
    def plot(self, total_steps: int, ax: Any = None, inputs: Mapping[Variable, Any] | None = None) -> Any:
        """Draw the rate from the first step on, without compiling.

        Parameters
        ----------
        total_steps : int
            The last count that is drawn.
        ax : matplotlib Axes, optional
            What to draw on; the axes of a new figure unless given.
        inputs : mapping, optional
            As for `values`.

        Returns
        -------
        matplotlib Axes

        Raises
        ------
        ImportError
            If matplotlib is not installed.
        ValueError
            If `total_steps` is no whole number of at least 1.

        Examples
        --------
        >>> from ptml.optim import warmup_cosine
        >>> axes = warmup_cosine(0.1, 1000, warmup_steps=100).plot(1200)
        >>> axes.get_xlabel(), axes.get_ylabel()
        ('step', 'rate')
        """
        if isinstance(total_steps, bool) or not isinstance(total_steps, int) or total_steps < 1:
            raise ValueError(NOT_A_LENGTH.format(got=total_steps))
        if importlib.util.find_spec("matplotlib") is None:
            raise ImportError(NO_MATPLOTLIB)
        if ax is None:
            from matplotlib import pyplot

            _, ax = pyplot.subplots()
        points = min(total_steps, MOST_POINTS) + 1
        counts = np.linspace(0, total_steps, points).round().astype("int64")
        ax.plot(counts, self.values(counts, inputs))
        ax.set_xlabel("step")
        ax.set_ylabel("rate")
        return ax


def elapsed(schedule: Any, count: TensorVariable, begin: Count = 0) -> tuple[TensorVariable, TensorVariable]:
    """Give how many of a schedule's `total_steps`, which start at `begin`, are over; and the total.

    Both are whole numbers, and no more than all steps are over.
    """
    total = as_count(schedule.total_steps, schedule, "total_steps")
    begin = as_count(begin, schedule, "transition_begin", least=0)
    return pt.minimum(pt.maximum(count - begin, 0), total), total


def mix(schedule: Any, share: TensorVariable) -> TensorVariable:
    """Weigh a schedule's `learning_rate` against its `final_learning_rate`.

    At a share of one or zero it is one of them, exactly.
    """
    start, end = (to_floatx(checked(schedule, name)) for name in ("learning_rate", "final_learning_rate"))
    return start * share + end * (1.0 - share)
