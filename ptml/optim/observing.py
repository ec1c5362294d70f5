"""What a training step tells of itself besides the loss: its learning rate as it was, and its norms."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytensor.tensor as pt
from pytensor.tensor.variable import TensorVariable

from ptml.optim.norms import global_norm
from ptml.optim.rates import NotedRate
from ptml.optim.updates import Steps, get_gradients
from ptml_state import SlotVariable

__all__ = ["OBSERVABLE", "observations"]

#: What may be asked for.
OBSERVABLE = ("learning_rate", "gradient_norm", "update_norm")

UNKNOWN = "observe= takes some of {known}; got {given!r}."
NO_RATE = "observe='learning_rate': this rule has none. Leave it out, or give the rate as an extra output."


def observations(
    asked: Sequence[str],
    loss: Any,
    parameters: Sequence[SlotVariable],
    steps: Steps,
    rates: Sequence[NotedRate],
) -> dict[str, TensorVariable]:
    """Give the graphs of what is to be observed of a training step, by name.

    Parameters
    ----------
    asked : sequence of str
        Of `OBSERVABLE`.
    loss : scalar tensor
    parameters : sequence of handles
    steps : Steps
        What the rule made of them.
    rates : sequence of NotedRate
        Its learning rates. One is called ``learning_rate``; several ``learning_rate/adam`` and so on, by
        the namespaces of their rules, or their classes, and numbered where those are equal.

    Raises
    ------
    ValueError
        If something else is asked for, or a learning rate where there is none.
    """
    if isinstance(asked, str):
        asked = [asked]
    found: dict[str, TensorVariable] = {}
    for name in asked:
        if name == "learning_rate":
            if not rates:
                raise ValueError(NO_RATE)
            found |= _named(rates)
        elif name == "gradient_norm":
            found[name] = global_norm(get_gradients(loss, parameters))
        elif name == "update_norm":
            found[name] = global_norm(steps.amounts.values())
        else:
            raise ValueError(UNKNOWN.format(known=", ".join(map(repr, OBSERVABLE)), given=name))
    return found


def _named(rates: Sequence[NotedRate]) -> dict[str, TensorVariable]:
    if len(rates) == 1:
        return {"learning_rate": pt.as_tensor(rates[0].value)}
    named: dict[str, TensorVariable] = {}
    for rate in rates:
        own = getattr(rate.rule, "namespace", type(rate.rule).__name__.lower())
        name, k = f"learning_rate/{own}", 2
        while name in named:
            name, k = f"learning_rate/{own}_{k}", k + 1
        named[name] = pt.as_tensor(rate.value)
    return named
