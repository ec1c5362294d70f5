"""The two moments that Adam and its kin keep: means of gradients and of their squares."""

from __future__ import annotations

import functools
from typing import Any

import attrs
import pytensor.tensor as pt
from pytensor.tensor.variable import TensorVariable

from ptml.optim.hyperparameters import as_scalar, checked, working_dtype
from ptml.optim.ownership import state_for
from ptml.optim.rules.parts import Amounts, bias_correction, faded
from ptml.optim.updates import Gradients
from ptml_state import SlotVariable

__all__ = ["Moments", "moments"]


@attrs.frozen(eq=False)
class Moments:
    """New moments, and what a rule makes of them.

    Attributes
    ----------
    means : dict
        From each parameter to the mean of its gradients, not corrected for its start at zero.
    roots : dict
        From each parameter to the corrected root of the mean of squares, with epsilon added.
    state : dict
        The new values of the state.
    """

    means: Amounts
    roots: Amounts
    state: Amounts


def moments(rule: Any, gradients: Gradients, count: SlotVariable, *, amsgrad: bool = False) -> Moments:
    """Give the new moments of a rule that keeps two.

    Parameters
    ----------
    rule : rule with beta1, beta2, epsilon and namespace
    gradients : Gradients
    count : handle
        Its clock.
    amsgrad : bool, default False
        Whether the root is that of the largest mean of squares so far.
    """
    beta1, beta2, epsilon = (checked(rule, name) for name in ("beta1", "beta2", "epsilon"))

    @functools.cache
    def coefficients(dtype: str) -> tuple[TensorVariable, ...]:
        numbers = (beta1, 1 - beta1, beta2, (1 - beta2) ** 0.5, epsilon)
        unbias_root = 1 / pt.sqrt(bias_correction(beta2, count + 1, dtype))
        return (*(as_scalar(number, dtype) for number in numbers), unbias_root)

    made = Moments({}, {}, {})
    for parameter, gradient in gradients.amounts.items():
        dtype = working_dtype(parameter)
        keep1, take1, keep2, root_of_take2, epsilon_, unbias_root = coefficients(dtype)
        first = state_for(parameter, f"{rule.namespace}/first_moment")
        second = state_for(parameter, f"{rule.namespace}/second_moment")
        mean = faded(keep1, pt.cast(first, dtype)) + take1 * gradient
        # The weight goes inside the square, and the correction outside the root: the square of a gradient of
        # 1e20 is no float32, a thousandth of it is.
        square = faded(keep2, pt.cast(second, dtype)) + pt.sqr(root_of_take2 * gradient)
        made.state[first] = pt.cast(mean, first.dtype)
        made.state[second] = pt.cast(square, second.dtype)
        if amsgrad:
            largest = state_for(parameter, f"{rule.namespace}/max_second_moment")
            square = pt.maximum(pt.cast(largest, dtype), square)
            made.state[largest] = pt.cast(square, largest.dtype)
        made.means[parameter] = mean
        made.roots[parameter] = pt.sqrt(square) * unbias_root + epsilon_
    return made
