"""A line search for the strong Wolfe conditions: one loop, which looks at one trial point an iteration."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import attrs
import numpy as np
import pytensor
import pytensor.tensor as pt
from pytensor.scan.utils import until
from pytensor.tensor.variable import TensorVariable

__all__ = ["Found", "wolfe_search"]

#: An interval's next trial stays this share of its length away from its ends.
_MARGIN = 0.1
#: A trial beyond the last one lies between these multiples of the last move further.
_LEAST_GROWTH, _MOST_GROWTH = 1.1, 4.0


@attrs.frozen
class _Point:
    """A trial point: the length of the step to it, and the loss and slope there."""

    length: TensorVariable
    loss: TensorVariable
    slope: TensorVariable

    def unless(self, condition: TensorVariable, other: _Point) -> _Point:
        """Give the other point where the condition holds."""
        pairs = zip(attrs.astuple(self, recurse=False), attrs.astuple(other, recurse=False), strict=True)
        return _Point(*(pt.switch(condition, new, old) for old, new in pairs))


@attrs.frozen
class Found:
    """What a line search ends with.

    Attributes
    ----------
    length : scalar tensor
        The length of the step; zero where no trial lessened the loss enough.
    gradients : list of tensors
        The gradient of each parameter there.
    """

    length: TensorVariable
    gradients: list[TensorVariable]


def wolfe_search(
    look: Callable[[TensorVariable, Sequence[TensorVariable]], tuple],
    given: Sequence[TensorVariable],
    *,
    loss: TensorVariable,
    slope: TensorVariable,
    gradients: Sequence[TensorVariable],
    first: TensorVariable,
    decrease: TensorVariable,
    curvature: TensorVariable,
    max_steps: int,
) -> Found:
    r"""Search along a line for a point that satisfies the strong Wolfe conditions.

    With :math:`\phi(\alpha)` the loss at a step of length :math:`\alpha`, they are

    .. math::

        \phi(\alpha) \le \phi(0) + c_1 \alpha \phi'(0), \qquad |\phi'(\alpha)| \le c_2 |\phi'(0)|

    Trials go further until they enclose such a point, and then into the enclosed interval, by cubic
    interpolation. Where losses differ by no more than rounding, slopes decide: a point passes as lower whose
    loss is the same up to rounding and whose slope is at most :math:`(2 c_1 - 1) \phi'(0)`.

    Parameters
    ----------
    look : function
        ``look(length, given) -> (loss, slope, gradients)``: the graph of one trial. What is drawn in it is
        drawn outside of the loop too, and so the same at every trial.
    given : sequence of tensors
        What it needs that is computed before the loop.
    loss, slope : scalar tensors
        At a length of zero. The slope is negative, or zero where there is nowhere to go.
    gradients : sequence of tensors
        At a length of zero, of static shapes.
    first : scalar tensor
        The first length that is tried.
    decrease, curvature : scalar tensors
        The constants :math:`c_1` and :math:`c_2`.
    max_steps : int
        The most trials.

    Returns
    -------
    Found
        The point that satisfies both conditions; else, after the last trial, the lowest that satisfies the
        first.

    References
    ----------
    Nocedal and Wright, "Numerical Optimization", 2006, algorithms 3.5 and 3.6. The way to tell points apart
    where losses are the same is Hager and Zhang's, "A new conjugate gradient method with guaranteed descent
    and an efficient line search", 2005.
    """
    epsilon = np.finfo(loss.type.dtype).eps
    origin = _Point(pt.zeros_like(loss), loss, slope)
    ahead = [loss, slope, decrease, curvature]

    def iterate(*arguments: TensorVariable) -> tuple:
        length, enclosed, *rest = arguments
        low, high = _Point(*rest[:3]), _Point(*rest[3:6])
        best, others = rest[6 : 6 + len(gradients)], rest[6 + len(gradients) :]
        first_loss, first_slope, c1, c2 = others[: len(ahead)]
        trial_loss, trial_slope, here = look(length, others[len(ahead) :])
        trial = _Point(length, trial_loss, trial_slope)

        rounding = _like(loss, 16 * epsilon) * pt.abs(first_loss)
        lower = pt.le(trial.loss, first_loss + c1 * length * first_slope) | (
            pt.le(trial.loss, first_loss + rounding) & pt.le(trial.slope, (2 * c1 - 1) * first_slope)
        )
        good = lower & pt.le(pt.abs(trial.slope), -c2 * first_slope)
        # Of a loss that is no number, nothing is true: it lies too far.
        too_far = ~lower | pt.gt(trial.loss, low.loss + rounding)
        towards = pt.switch(enclosed, pt.sign(high.length - low.length), _like(loss, 1.0))
        turned = pt.ge(trial.slope * towards, 0)

        better = good | ~too_far
        next_high = high.unless(turned, low).unless(too_far, trial)
        next_low = low.unless(better, trial)
        now_enclosed = enclosed | too_far | turned
        inside = _between(next_low, next_high, rounding)
        next_length = pt.switch(now_enclosed, inside, _beyond(low, trial))
        kept = [pt.switch(better, new, old) for new, old in zip(here, best, strict=True)]
        width = pt.abs(next_high.length - next_low.length)
        longest = pt.maximum(next_low.length, next_high.length)
        narrow = now_enclosed & pt.le(width, _like(loss, 4 * epsilon) * longest)
        states = [next_length, now_enclosed, *attrs.astuple(next_low), *attrs.astuple(next_high), *kept]
        return states, until(good | narrow)

    start = [
        first,
        pt.constant(np.asarray(False)),
        *attrs.astuple(origin),
        *attrs.astuple(origin),
        *gradients,
    ]
    traces = pytensor.scan(
        iterate,
        outputs_info=start,
        non_sequences=[*ahead, *given],
        n_steps=max_steps,
        return_list=True,
        return_updates=False,
        name="line search",
    )
    last = [trace[-1] for trace in traces]
    low = _Point(*last[2:5])
    # A point that is as low as the origin, up to rounding, and no less steep has led nowhere.
    passes = pt.lt(low.loss, loss) | pt.le(pt.abs(low.slope), -curvature * slope)
    return Found(pt.switch(passes, low.length, pt.zeros_like(low.length)), last[8:])


def _between(low: _Point, high: _Point, rounding: TensorVariable) -> TensorVariable:
    """Give the length at which the cubic through two points is lowest; halfway where there is none."""
    width = high.length - low.length
    sum_of_slopes = low.slope + high.slope - 3 * (high.loss - low.loss) / width
    root = pt.sqrt(pt.maximum(pt.sqr(sum_of_slopes) - low.slope * high.slope, 0))
    root = pt.sign(width) * root
    cubic = 1 - (high.slope + root - sum_of_slopes) / (high.slope - low.slope + 2 * root)
    secant = -low.slope / (high.slope - low.slope)
    share = pt.switch(pt.le(pt.abs(high.loss - low.loss), rounding), secant, cubic)
    usable = pt.gt(share, 0) & pt.lt(share, 1)
    least, most, half = (_like(width, value) for value in (_MARGIN, 1 - _MARGIN, 0.5))
    return low.length + pt.switch(usable, pt.clip(share, least, most), half) * width


def _beyond(low: _Point, trial: _Point) -> TensorVariable:
    """Give the length at which the slope would be zero if it went on changing as it does, within bounds."""
    move = trial.length - low.length
    growth = -trial.slope / (trial.slope - low.slope)
    least, most = _like(move, _LEAST_GROWTH), _like(move, _MOST_GROWTH)
    growth = pt.switch(pt.gt(trial.slope, low.slope), pt.clip(growth, least, most), most)
    return trial.length + growth * move


def _like(tensor: TensorVariable, value: float) -> TensorVariable:
    return pt.constant(np.asarray(value, tensor.type.dtype))
