"""Masks: which parameters a transform acts on, by the selector language."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import attrs
import numpy as np

from ptml.network import lay_out
from ptml_state import Role, SlotVariable, where
from ptml_state.where import find

__all__ = ["MaskedParameter", "a_mask", "masked"]


@attrs.frozen
class MaskedParameter:
    """A parameter as masks see it: selectors match it, and functions are given it.

    Parameters
    ----------
    value : handle
    address : str
    """

    value: SlotVariable
    address: str

    @property
    def role(self) -> Role:
        """What it is for."""
        return self.value.slot.role

    @property
    def uid(self) -> str:
        """The identity of its slot."""
        return self.value.slot.uid

    @property
    def kind(self) -> type | None:
        """The class of the layer that declares it."""
        return None if self.value.slot.owner is None else type(self.value.slot.owner)

    @property
    def owner(self) -> str | None:
        """The name of that class."""
        return None if self.kind is None else self.kind.__name__

    @property
    def name(self) -> str:
        """The last component of the address."""
        return self.address.rpartition("/")[2]

    @property
    def shape(self) -> tuple[int, ...]:
        """Its shape."""
        return self.value.slot.shape

    @property
    def ndim(self) -> int:
        """Its number of axes."""
        return len(self.shape)

    @property
    def size(self) -> int:
        """How many numbers it holds."""
        return int(np.prod(self.shape, dtype=np.int64))

    @property
    def dtype(self) -> str:
        """Its dtype."""
        return self.value.slot.dtype


def a_mask(module: Any, field: attrs.Attribute, value: Any) -> None:
    """Validate a selector of parameters, or None."""
    if value is not None:
        where(value)


def masked(mask: Any, parameters: Iterable[SlotVariable]) -> list[SlotVariable]:
    """Give the parameters that a mask selects, in order; all of them where it is None.

    Raises
    ------
    KeyError
        If a name in the mask matches none of them.
    """
    handles = list(parameters)
    if mask is None:
        return handles
    placed = {place.slot: place.address for place in lay_out((), [handle.slot for handle in handles])}
    items = [MaskedParameter(handle, placed[handle.slot]) for handle in handles]
    return [item.value for item in find(mask, items, what="the parameters")]
