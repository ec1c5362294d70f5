"""Transforms that scale, decay and accumulate: of gradients ahead of a rule, of steps behind one."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import attrs
import pytensor.tensor as pt
from pytensor.tensor.variable import TensorVariable

from ptml.optim.hyperparameters import (
    Rate,
    a_function,
    a_share,
    as_scalar,
    checked,
    namespace,
    non_negative,
    number,
    working_dtype,
)
from ptml.optim.masks import a_mask, masked
from ptml.optim.ownership import counter, state_for
from ptml.optim.rules.parts import faded
from ptml.optim.transform import Transform
from ptml.optim.updates import Gradients, Updates
from ptml.validate import flag
from ptml_state import SlotVariable

__all__ = [
    "AddWeightDecay",
    "Scale",
    "ScaleBySchedule",
    "Trace",
    "add_weight_decay",
    "scale",
    "scale_by_schedule",
    "trace",
]


class Scale(Transform, kw_only=False):
    """Scale each amount by a constant factor.

    Parameters
    ----------
    factor : number or scalar tensor
        A negative one turns descent into ascent.

    Raises
    ------
    ValueError
        If the factor is not finite.

    Examples
    --------
    >>> from ptml.optim import adam, chain, clip_by_global_norm
    >>> chain(clip_by_global_norm(1.0), adam(1.0), Scale(1e-3))
    Chain(ClipByGlobalNorm(), Adam(1.0), Scale(0.001))
    """

    factor: Rate = attrs.field(validator=number(lambda factor: abs(factor) < math.inf, "a finite number"))

    def apply(self, updates: Updates, parameters: Sequence[SlotVariable]) -> Updates:
        return _scaled(updates, checked(self, "factor"))


class ScaleBySchedule(Transform, kw_only=False):
    """Scale each amount by a schedule, read off a clock of its own.

    Parameters
    ----------
    schedule : Schedule, or function of a step count
    namespace : str, default "scale_by_schedule"
        The clock is ``<namespace>/step_count``.

    Examples
    --------
    >>> from ptml.optim import cosine_schedule
    >>> ScaleBySchedule(cosine_schedule(1.0, 1000))
    ScaleBySchedule(CosineSchedule(1.0, 1000))
    """

    schedule: Callable[[Any], Any] = attrs.field(validator=a_function)
    namespace: str = attrs.field(default="scale_by_schedule", validator=namespace, kw_only=True)

    def apply(self, updates: Updates, parameters: Sequence[SlotVariable]) -> Updates:
        return _scaled(updates, self.schedule(counter(f"{self.namespace}/step_count")))


def _scaled(updates: Updates, factor: Rate) -> Updates:
    return updates.with_amounts(
        {p: as_scalar(factor, working_dtype(p)) * amount for p, amount in updates.amounts.items()}
    )


class AddWeightDecay(Transform, kw_only=False):
    r"""Add the pull of weight decay, :math:`\lambda p`, towards zero.

    Ahead of the rule it is added to the gradient, which is an L2 penalty on the loss; behind the rule it
    is subtracted from the step, which is decoupled decay. Behind `adam(1e-3)` a step decays by the full
    coefficient; ``chain(adam(1.0), add_weight_decay(0.01), scale(1e-3))`` decays by a thousandth of it.

    Parameters
    ----------
    weight_decay : number or scalar tensor, default 0.01
        The coefficient :math:`\lambda`.
    mask : where, or function of a parameter, optional
        Which parameters decay; all unless given. A function is given a :class:`ptml.optim.MaskedParameter`.

    Raises
    ------
    ValueError
        If the coefficient is negative or not finite.
    KeyError
        When it is called, if a name in `mask` matches no parameter.

    Examples
    --------
    >>> from ptml_state import where
    >>> AddWeightDecay(0.1, mask=~where("**/b"))
    AddWeightDecay(0.1, ~where('**/b'))
    """

    weight_decay: Rate = attrs.field(default=0.01, validator=non_negative)
    mask: Any = attrs.field(default=None, validator=a_mask)

    def apply(self, updates: Updates, parameters: Sequence[SlotVariable]) -> Updates:
        amounts = updates.amounts
        for parameter in masked(self.mask, amounts):
            dtype = working_dtype(parameter)
            pull = as_scalar(checked(self, "weight_decay"), dtype) * pt.cast(parameter, dtype)
            amount = amounts[parameter]
            amounts[parameter] = amount + pull if isinstance(updates, Gradients) else amount - pull
        return updates.with_amounts(amounts)


class Trace(Transform, kw_only=False):
    r"""Accumulate into a velocity: :math:`v \leftarrow \mu v + a`, and :math:`v` comes out.

    In Nesterov's form :math:`a + \mu v` comes out, with the new :math:`v`.

    Parameters
    ----------
    decay : number or scalar tensor, default 0.9
        The decay :math:`\mu`, in [0, 1).
    nesterov : bool, default False
        Whether to look ahead along the velocity.
    namespace : str, default "trace"
        The velocities are ``<namespace>/velocity/<parameter>``. Two traces on one parameter need two.

    Raises
    ------
    ValueError
        If the decay is outside [0, 1).

    Examples
    --------
    >>> from ptml.optim import chain, sgd
    >>> chain(Trace(0.9, namespace="fast"), Trace(0.5, namespace="slow"), sgd(0.1))
    Chain(Trace(namespace='fast'), Trace(0.5, namespace='slow'), Sgd(0.1))
    """

    decay: Rate = attrs.field(default=0.9, validator=a_share)
    nesterov: bool = attrs.field(default=False, validator=flag)
    namespace: str = attrs.field(default="trace", validator=namespace)

    def apply(self, updates: Updates, parameters: Sequence[SlotVariable]) -> Updates:
        amounts: dict[SlotVariable, TensorVariable] = {}
        state: dict[SlotVariable, TensorVariable] = {}
        for parameter, amount in updates.amounts.items():
            dtype = working_dtype(parameter)
            velocity = state_for(parameter, f"{self.namespace}/velocity")
            decay = as_scalar(checked(self, "decay"), dtype)
            moved = faded(decay, pt.cast(velocity, dtype)) + amount
            state[velocity] = pt.cast(moved, velocity.dtype)
            amounts[parameter] = amount + decay * moved if self.nesterov else moved
        return updates.with_amounts(amounts).with_state(state)


scale = Scale
scale_by_schedule = ScaleBySchedule
add_weight_decay = AddWeightDecay
trace = Trace
