"""Lower a threaded graph: put cells or inputs in the place of slots, and check what they are written."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import attrs
import pytensor.tensor as pt
from pytensor.graph.basic import Variable, clone_get_equiv

from ptml.backends.modes import Backend
from ptml.compile.thread import Threaded
from ptml_state import Slot
from ptml_state.typetext import type_text

__all__ = ["checked_updates", "condense", "lower"]

WRONG_UPDATE = (
    "The new value of {address!r} is {given}, and {wanted} is declared{by}. An update never changes the "
    "dtype or shape of what it writes{remedy}."
)


def checked_updates(threaded: Threaded, addresses: Mapping[Slot, str]) -> Threaded:
    """Give the graph with each update of its slot's very type.

    Raises
    ------
    TypeError
        If one has another dtype or shape than its slot.
    """
    checked: dict[Slot, Variable] = {}
    for slot, new in threaded.updates.items():
        wanted = slot.type
        fits = new.type.ndim == wanted.ndim and all(
            have is None or have == want for have, want in zip(new.type.shape, wanted.shape, strict=True)
        )
        if new.type.dtype != slot.dtype or not fits:
            remedy = f": write .astype({slot.dtype!r})" if fits else ""
            by = "" if slot.owner is None else f" by {slot.owner!r}"
            raise TypeError(
                WRONG_UPDATE.format(
                    address=addresses[slot],
                    given=type_text(new.type),
                    wanted=type_text(slot),
                    by=by,
                    remedy=remedy,
                )
            )
        checked[slot] = new if wanted.is_super(new.type) else pt.specify_shape(new, wanted.shape)
    return attrs.evolve(threaded, updates=checked)


def condense(threaded: Threaded, backend: Backend) -> Threaded:
    """Give the graph with its updates in the form that a backend compiles soonest."""
    others = [*threaded.outputs, *threaded.shared_updates.values()]
    new_values = backend.condensed(list(threaded.updates.values()), others)
    return attrs.evolve(threaded, updates=dict(zip(threaded.updates, new_values, strict=True)))


def lower(threaded: Threaded, places: Mapping[Slot, Variable]) -> Threaded:
    """Copy a graph with these variables in the place of the slots' handles."""
    memo: dict[Any, Any] = {slot.handle: variable for slot, variable in places.items()}
    every = threaded.everything
    equiv = clone_get_equiv(threaded.roots, every, copy_inputs=False, copy_orphans=False, memo=memo)
    copied = iter([equiv[variable] for variable in every])
    outputs = [next(copied) for _ in threaded.outputs]
    updates = {slot: next(copied) for slot in threaded.updates}
    return Threaded(outputs, updates, {variable: next(copied) for variable in threaded.shared_updates})
