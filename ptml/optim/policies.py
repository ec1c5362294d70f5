"""Policies: they watch the loss from inside the training step, and steer a number that the rule reads."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from typing import Any, ClassVar

import attrs
import numpy as np
import pytensor.tensor as pt
from pytensor.graph.traversal import ancestors
from pytensor.tensor.type import float_dtypes

from ptml.optim.hyperparameters import (
    Count,
    Rate,
    as_count,
    as_scalar,
    checked,
    namespace,
    non_negative,
    number,
    whole_count,
)
from ptml.optim.ownership import scalar_state
from ptml.optim.transform import Transform, a_rule, decided
from ptml.optim.updates import Steps, Updates
from ptml_state import Role, SlotVariable

__all__ = ["ReduceOnPlateau", "reduce_on_plateau"]

NOT_A_SCALE = (
    "ReduceOnPlateau: scale is a scalar of state that you have made, scale = scalar_state('scale', 1.0), and "
    "that the rule's rate is built from, adam(1e-3 * scale); got {got!r}."
)
NO_LOSS = (
    "{policy} decides from the loss, and it was given gradients or updates. Give it the loss: "
    "compile_train(loss, rule), or rule(loss, parameters)."
)
NOT_READ = (
    "{policy} cuts {address!r}, and nothing that {rule} writes depends on it. Build the rate from it: "
    "scale = scalar_state({address!r}, 1.0); reduce_on_plateau(adam(1e-3 * scale), scale)."
)
WRITTEN_TWICE = "{policy} writes {address!r}, and so does {rule}. Give each policy a scale of its own."
IN_A_CHAIN = "a policy decides from the loss, and steers the rate of the whole"


def _a_scale(module: Any, field: attrs.Attribute, value: Any) -> None:
    good = isinstance(value, SlotVariable) and value.ndim == 0 and value.type.dtype in float_dtypes
    if not good or value.slot.role is not Role.OPTIMIZER:
        raise TypeError(NOT_A_SCALE.format(got=value))


class ReduceOnPlateau(Transform, kw_only=False):
    r"""Cut `scale` by `factor` once the loss has stopped to improve.

    The loss is averaged over a window of `accumulation_size` calls, and nothing is decided until a window is
    full. A mean :math:`m` that is finite improves on the best :math:`b` where

    .. math:: m < b - \mathrm{rtol} \, |b| - \mathrm{atol}

    which asks as much of a negative loss as of a positive one. NaN never improves. After `patience` windows
    in a row without improvement the scale is cut, and `cooldown` windows are let pass before any counts
    again. The cut holds from the next call on.

    Everything is counted in calls and windows: the graph knows no epochs. PyTorch's patience of 10 epochs is
    ``patience=10, accumulation_size=steps_per_epoch`` here.

    Parameters
    ----------
    rule : transform, or function of ``(updates, parameters)`` that returns Steps
        A rule or a chain whose rate is built from `scale`; or a guard around one. Inside of a guard, or
        around one, the policy does not see a step that is thrown away: its loss counts for nothing.
    scale : handle
        The scalar state that it cuts; you make it, and may change it in between.
    factor : number or scalar tensor, default 0.1
        What a cut multiplies the scale by, between 0 and 1.
    patience : int or symbolic integer, default 10
        Windows without improvement until a cut.
    cooldown : int or symbolic integer, default 0
        Windows after a cut that do not count.
    rtol, atol : number or scalar tensor, default 1e-4 and 0.0
        By how much the loss must be less than the best to improve, relative to the best and absolutely.
    min_scale : number or scalar tensor, default 0.0
        A cut goes no lower.
    accumulation_size : int or symbolic integer, default 1
        The calls in a window.
    namespace : str, default "plateau"
        The first part of the addresses of its state: ``best_loss``, infinite until a window is full,
        ``wait``, ``cooldown``, and ``mean_loss`` and ``observed`` of the window so far.

    Raises
    ------
    TypeError
        If `scale` is no scalar state.
    ValueError
        If `factor` is not between 0 and 1, a tolerance or `min_scale` is negative, or a count no whole number
        of at least 1 (0 for `cooldown`); for symbolic ones, when the graph runs. When it is called, if it
        stands in a chain, is given no loss, or the rule does not read `scale`.

    Examples
    --------
    >>> from ptml.optim import adam, scalar_state
    >>> scale = scalar_state("scale", 1.0)
    >>> ReduceOnPlateau(adam(1e-3 * scale), scale, patience=5, accumulation_size=50).patience
    5
    """

    _wraps: ClassVar[str | None] = IN_A_CHAIN

    rule: Any = attrs.field(validator=a_rule)
    scale: SlotVariable = attrs.field(validator=_a_scale)
    factor: Rate = attrs.field(
        default=0.1,
        validator=number(lambda factor: (factor > 0) & (factor < 1), "a number between 0 and 1"),
        kw_only=True,
    )
    patience: Count = attrs.field(default=10, validator=whole_count, kw_only=True)
    cooldown: Count = attrs.field(default=0, validator=partial(whole_count, least=0), kw_only=True)
    rtol: Rate = attrs.field(
        default=1e-4,
        validator=number(lambda rtol: (rtol >= 0) & (rtol <= 1), "a number in [0, 1]"),
        kw_only=True,
    )
    atol: Rate = attrs.field(default=0.0, validator=non_negative, kw_only=True)
    min_scale: Rate = attrs.field(default=0.0, validator=non_negative, kw_only=True)
    accumulation_size: Count = attrs.field(default=1, validator=whole_count, kw_only=True)
    namespace: str = attrs.field(default="plateau", validator=namespace, kw_only=True)

    def apply(self, updates: Updates, parameters: Sequence[SlotVariable]) -> Updates:
        if updates.loss is None:
            raise ValueError(NO_LOSS.format(policy=repr(self)))
        steps = decided(self.rule, updates, parameters)
        self._check_scale(steps)
        dtype = "float32" if updates.loss.dtype == "float16" else updates.loss.dtype
        best = scalar_state(f"{self.namespace}/best_loss", math.inf, dtype=dtype)
        wait = scalar_state(f"{self.namespace}/wait", dtype="int64")
        cooling = scalar_state(f"{self.namespace}/cooldown", dtype="int64")
        observed = scalar_state(f"{self.namespace}/observed", dtype="int64")
        mean = scalar_state(f"{self.namespace}/mean_loss", dtype=dtype)
        none, one = as_scalar(0, "int64"), as_scalar(1, "int64")

        seen = observed + one
        loss = pt.cast(updates.loss, dtype)
        mean_now = mean + (loss - mean) / pt.cast(seen, dtype)
        decides = pt.ge(seen, as_count(self.accumulation_size, self, "accumulation_size"))
        rtol, atol = (as_scalar(checked(self, name), dtype) for name in ("rtol", "atol"))
        needed = rtol * pt.abs(best) + atol
        # The best is infinite at first, and to be less than infinity is then enough.
        least = pt.switch(pt.isinf(best), best, best - needed)
        improves = pt.lt(mean_now, least) & pt.lt(pt.abs(mean_now), np.asarray(math.inf, dtype))

        cools = pt.gt(cooling, none)
        waited = pt.switch(improves | cools, none, wait + one)
        cuts = decides & pt.ge(waited, as_count(self.patience, self, "patience"))
        pause = as_count(self.cooldown, self, "cooldown", least=0)
        cooled = pt.switch(cuts, pause, pt.maximum(cooling - one, none))
        return steps.with_state(
            {
                self.scale: pt.switch(cuts, self._cut(), self.scale),
                best: pt.switch(decides & improves, mean_now, best),
                wait: pt.switch(decides, pt.switch(cuts, none, waited), wait),
                cooling: pt.switch(decides, cooled, cooling),
                observed: pt.switch(decides, none, seen),
                mean: pt.switch(decides, as_scalar(0, dtype), mean_now),
            },
            free=True,
        )

    def _cut(self) -> Any:
        dtype = self.scale.type.dtype
        factor, floor = (as_scalar(checked(self, name), dtype) for name in ("factor", "min_scale"))
        # A scale that is below the floor already was set there, and is not raised.
        return pt.maximum(factor * self.scale, pt.minimum(self.scale, floor))

    def _check_scale(self, steps: Steps) -> None:
        shown = {
            "policy": type(self).__name__,
            "address": self.scale.slot.address,
            "rule": repr(self.rule),
        }
        if self.scale in steps.state:
            raise ValueError(WRITTEN_TWICE.format(**shown))
        if self.scale not in ancestors([*steps.amounts.values(), *steps.state.values()]):
            raise ValueError(NOT_READ.format(**shown))


reduce_on_plateau = ReduceOnPlateau
