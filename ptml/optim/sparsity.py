"""Sparse training: weights that are zero stay zero."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import attrs
import pytensor.tensor as pt
from pytensor.tensor.variable import TensorVariable

from ptml.optim.hyperparameters import namespace
from ptml.optim.masks import addressed, masked
from ptml.optim.ownership import state_for
from ptml.optim.transform import Transform
from ptml.optim.updates import Steps, Updates
from ptml_state import SlotVariable, where

__all__ = ["KeepZeros", "keep_zeros"]

AHEAD = (
    "{transform} holds back steps, and here nothing has decided a step yet: a momentum behind it would move "
    "what it holds. Put it behind the rule: chain(adam(1e-3), {transform})."
)
KEEPS_NONE = "{transform} matches none of the parameters that move: {moving}."


def _a_selector(module: Any, field: attrs.Attribute, value: Any) -> None:
    where(value)


class KeepZeros(Transform, kw_only=False):
    """Keep the zeros of parameters: an entry that is zero when the program is compiled stays zero.

    It stands behind the rule and all that adds to its step, so that neither momentum nor weight decay wakes
    what was pruned; ahead of an :class:`Ema`, and inside of a :class:`Lookahead`. The other entries move as
    they would, and may pass through zero.

    Parameters
    ----------
    where : where, or function of a parameter
        Whose zeros are kept. Biases start at zero, and would never move: ``"**/W"``, say, leaves them out.
    namespace : str, default "keep_zeros"
        The masks are ``<namespace>/mask/<parameter>``: True for the entries that move. They go along in the
        state, so that a run that is resumed keeps the same zeros.

    Raises
    ------
    ValueError
        When it is called, if no rule has decided a step yet, or `where` matches none of the parameters that
        move.
    KeyError
        When it is called, if a name in `where` matches no parameter.

    Examples
    --------
    >>> from ptml.optim import adam, chain
    >>> chain(adam(1e-3), KeepZeros("**/W"))
    Chain(Adam(), KeepZeros('**/W'))
    """

    where: Any = attrs.field(validator=_a_selector)
    namespace: str = attrs.field(default="keep_zeros", validator=namespace, kw_only=True)

    def apply(self, updates: Updates, parameters: Sequence[SlotVariable]) -> Updates:
        if not isinstance(updates, Steps):
            raise ValueError(AHEAD.format(transform=repr(self)))
        chosen = masked(self.where, updates.amounts)
        if not chosen:
            moving = ", ".join(one.address for one in addressed(updates.amounts))
            raise ValueError(KEEPS_NONE.format(transform=repr(self), moving=moving))
        amounts: dict[SlotVariable, TensorVariable] = dict(updates.amounts)
        for parameter in chosen:
            # A parameter's values, cast to bool, say where it is not zero.
            mask = state_for(parameter, f"{self.namespace}/mask", parameter, dtype="bool")
            amounts[parameter] = pt.switch(mask, amounts[parameter], pt.zeros_like(amounts[parameter]))
        return updates.with_amounts(amounts)


keep_zeros = KeepZeros
