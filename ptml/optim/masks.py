"""Masks: which parameters a transform acts on, by the selector language.

Addresses are those that the state has. Where layers without a name are numbered, the network decides, and it
is known to a transform that is called with the loss. One that is called with gradients sees ``Linear_?/W``.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Sequence
from contextvars import ContextVar
from typing import Any

import attrs
import numpy as np
from pytensor.graph.basic import Variable
from pytensor.graph.traversal import graph_inputs

from ptml.application import Application
from ptml.flatten import calls_in
from ptml.network import Placed, lay_out
from ptml_state import Role, Slot, SlotVariable, where
from ptml_state.where import AddressError, find

__all__ = ["MaskedParameter", "a_mask", "addressed", "building_for", "masked"]

NO_NUMBERS = (
    "{error} Layers without a name are numbered by their place in the network, which gradients do not tell: "
    "call the rule with the loss, or name the layers."
)


@attrs.frozen(eq=False)
class _Program:
    """What updates are being built for.

    Attributes
    ----------
    parts : sequence or None
        Its networks, or else its graphs; None where they are not known.
    parameters : tuple of handles
        Its parameters, those that do not move among them.
    """

    parts: Sequence[Any] | None = None
    parameters: tuple[SlotVariable, ...] = ()


_program: ContextVar[_Program | None] = ContextVar("program_of_updates", default=None)


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
        return None if self.value.slot.declarer is None else type(self.value.slot.declarer)

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


@contextlib.contextmanager
def building_for(parts: Sequence[Any] | None, parameters: Iterable[SlotVariable]) -> Iterator[None]:
    """Let masks see the addresses that a program has, and all of its parameters; the outermost one decides.

    Parameters
    ----------
    parts : sequence of modules, sequence of tensors, or None
        The networks, or the graphs, that the program computes; None where they are not known.
    parameters : iterable of handles
        Those that transforms are called with.
    """
    if _program.get() is not None:
        yield
        return
    token = _program.set(_Program(parts, tuple(parameters)))
    try:
        yield
    finally:
        _program.reset(token)


def _placed(slots: Sequence[Slot]) -> list[Placed]:
    parts = (_program.get() or _Program()).parts
    if parts is None:
        return [_unnumbered(place) for place in lay_out((), slots)]
    graphs = [part for part in parts if isinstance(part, Variable)]
    if not graphs:
        return lay_out(parts, slots)
    roots = dict.fromkeys(graph_inputs(graphs))
    used = [root.slot for root in roots if isinstance(root, SlotVariable | Application)]
    return lay_out(calls_in(graphs), [*used, *slots])


def _unnumbered(place: Placed) -> Placed:
    plain = place.slot.address
    if place.address == plain:
        return place
    name, slash, below = plain.partition("/")
    return attrs.evolve(place, address=f"{name}_?{slash}{below}")


def addressed(parameters: Iterable[SlotVariable]) -> list[MaskedParameter]:
    """Give parameters as masks see them, in order."""
    handles = list(parameters)
    at = {place.slot: place.address for place in _placed([handle.slot for handle in handles])}
    return [MaskedParameter(handle, at[handle.slot]) for handle in handles]


def masked(mask: Any, parameters: Iterable[SlotVariable]) -> list[SlotVariable]:
    """Give the parameters that a mask selects, in order; all of them where it is None.

    A mask may name parameters of the program that are not among these: frozen ones, or another group's.

    Parameters
    ----------
    mask : where, function of a parameter, or None
    parameters : iterable of handles

    Raises
    ------
    KeyError
        If a name in the mask matches none of them.
    """
    handles = list(parameters)
    if mask is None:
        return handles
    known = (_program.get() or _Program()).parameters
    items = addressed(dict.fromkeys([*handles, *known]))
    try:
        chosen = {item.value for item in find(mask, items, what="the parameters")}
    except AddressError as error:
        if any("_?" in item.address for item in items):
            raise AddressError(NO_NUMBERS.format(error=error)) from error
        raise
    return [handle for handle in handles if handle in chosen]
