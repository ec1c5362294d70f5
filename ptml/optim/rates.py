"""The learning rates of the rules that make a training step, as they enter its graph."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import attrs
from pytensor.compile.sharedvalue import SharedVariable
from pytensor.graph.basic import Constant, Variable
from pytensor.graph.traversal import graph_inputs

from ptml_state import SlotVariable

__all__ = ["NotedRate", "note_rate", "noting_rates", "set_by_data"]


@attrs.frozen(eq=False)
class NotedRate:
    """A learning rate that a rule multiplied into its steps.

    Attributes
    ----------
    rule : Module
    value : number or scalar tensor
    """

    rule: Any
    value: Any


_rates: ContextVar[dict[int, NotedRate] | None] = ContextVar("rates_of_a_step", default=None)


@contextmanager
def noting_rates() -> Iterator[dict[int, NotedRate]]:
    """Collect the rates of the rules that are called within, by the rules' identity."""
    found: dict[int, NotedRate] = {}
    token = _rates.set(found)
    try:
        yield found
    finally:
        _rates.reset(token)


def note_rate(rule: Any, value: Any) -> None:
    """Note a rule's rate, where somebody collects them."""
    found = _rates.get()
    if found is not None:
        found[id(rule)] = NotedRate(rule, value)


def set_by_data(rates: Sequence[NotedRate]) -> tuple[str, ...]:
    """Name the rules whose rate depends on the batch, such as on its size by a symbolic horizon."""

    def is_data(root: Variable) -> bool:
        return not isinstance(root, Constant | SlotVariable | SharedVariable)

    return tuple(
        type(rate.rule).__name__
        for rate in rates
        if isinstance(rate.value, Variable) and any(map(is_data, graph_inputs([rate.value])))
    )
