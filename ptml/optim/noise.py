"""Noise: gradients with annealed Gaussian noise on top."""

from __future__ import annotations

from collections.abc import Sequence

import attrs
import pytensor.tensor as pt

from ptml.optim.hyperparameters import Rate, as_scalar, checked, namespace, non_negative, working_dtype
from ptml.optim.ownership import counter, key_for_draws
from ptml.optim.transform import Transform
from ptml.optim.updates import Updates
from ptml.random import normal
from ptml_state import SlotVariable

__all__ = ["AddNoise", "add_noise"]


class AddNoise(Transform, kw_only=False):
    r"""Add normal noise whose variance falls with the number of steps: :math:`\eta / (1 + t)^\gamma`.

    :math:`t` is zero at the first step. The draws come from a leaf of the state, so that they resume exactly
    and every backend sees the same ones; the program's seed decides what it starts from.

    Parameters
    ----------
    eta : number or scalar tensor, default 0.01
        The variance :math:`\eta` at the first step.
    gamma : number or scalar tensor, default 0.55
        The exponent :math:`\gamma`; at 0 the variance stays.
    namespace : str, default "add_noise"
        Its state is ``<namespace>/key`` and the clock ``<namespace>/step_count``.

    Raises
    ------
    ValueError
        If a number is negative or not finite.

    References
    ----------
    Neelakantan and others, "Adding Gradient Noise Improves Learning for Very Deep Networks", 2015,
    section 3.

    Examples
    --------
    >>> from ptml.optim import chain, clip_by_global_norm, sgd
    >>> chain(clip_by_global_norm(1.0), AddNoise(0.3), sgd(0.1))
    Chain(ClipByGlobalNorm(), AddNoise(0.3), Sgd(0.1))
    """

    eta: Rate = attrs.field(default=0.01, validator=non_negative)
    gamma: Rate = attrs.field(default=0.55, validator=non_negative)
    namespace: str = attrs.field(default="add_noise", validator=namespace, kw_only=True)

    def apply(self, updates: Updates, parameters: Sequence[SlotVariable]) -> Updates:
        key, count = key_for_draws(f"{self.namespace}/key"), counter(f"{self.namespace}/step_count")
        amounts = updates.amounts
        for parameter, amount in amounts.items():
            dtype = working_dtype(parameter)
            steps = pt.cast(count + 1, dtype)
            eta, gamma = (as_scalar(checked(self, name), dtype) for name in ("eta", "gamma"))
            deviation = pt.sqrt(eta / steps**gamma)
            amounts[parameter] = amount + deviation * normal(key, parameter.type.shape, dtype=dtype)
        return updates.with_amounts(amounts)


add_noise = AddNoise
