"""What values are loaded into: the leaves that a state, a store, a program or a network wants."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import attrs
import numpy as np

from ptml_state.leaf import Leaf
from ptml_state.slot import Copied, Derived
from ptml_state.state import State
from ptml_state.store import Place, Store, first_value, fresh_seed

__all__ = ["Shaped", "Wanted", "wanted_by", "wanted_places"]


@attrs.frozen
class Shaped:
    """The dtype and shape that a value has to have.

    Parameters
    ----------
    dtype : numpy.dtype
    shape : tuple of int
    """

    dtype: np.dtype = attrs.field(converter=np.dtype)
    shape: tuple[int, ...]


@attrs.frozen
class Wanted:
    """A leaf that something wants a value for.

    Parameters
    ----------
    leaf : Leaf
        What is known of it; of its value, dtype and shape count.
    first : callable
        Gives its first value, from those of the other leaves by address.
    after : str, optional
        The address of the leaf whose value the first one is a copy or function of.
    """

    leaf: Leaf
    first: Callable[[Mapping[str, Any]], Any]
    after: str | None = None


@functools.singledispatch
def wanted_by(like: Any, seed: int | None) -> list[Wanted]:
    """List the leaves that something wants values for, in order.

    Other classes register how to; ``ptml`` does for programs, networks and graphs.

    Parameters
    ----------
    like : State, Store, or anything registered
        What the values are for.
    seed : int, optional
        Decides what is drawn.

    Examples
    --------
    >>> [wanted.leaf.address for wanted in wanted_by(State({"fc/b": [0.0]}), None)]
    ['fc/b']
    """
    raise TypeError(
        f"like= takes a State, a Store, a program or a network; got {type(like).__name__}. "
        "Write like=program, or like=net."
    )


@wanted_by.register
def _(like: State, seed: int | None) -> list[Wanted]:
    return [_held(leaf) for leaf in like.leaves]


@wanted_by.register
def _(like: Store, seed: int | None) -> list[Wanted]:
    placed = {
        wanted.leaf.address: wanted
        for wanted in wanted_places(like.places, like.seed if seed is None else seed)
    }
    return [placed.get(leaf.address) or _held(leaf) for leaf in like.state.leaves]


def _held(leaf: Leaf) -> Wanted:
    return Wanted(leaf, lambda values: leaf.value)


def wanted_places(places: Iterable[Place], seed: int | None) -> list[Wanted]:
    """List what slots at their addresses want; their first values are those that ``ptml.init`` draws.

    Parameters
    ----------
    places : iterable
        Slots at their addresses.
    seed : int, optional
        Decides what is drawn; a random seed unless given.
    """
    places = list(places)
    seed = fresh_seed() if seed is None else int(seed)
    at = {place.slot: place.address for place in places}
    return [_wanted_place(place, at, seed) for place in places]


def _wanted_place(place: Place, at: Mapping[Any, str], seed: int) -> Wanted:
    slot, address = place.slot, place.address
    leaf = Leaf(
        address,
        Shaped(slot.dtype, slot.shape),
        slot.role,
        owner=place.owner,
        uid=slot.uid,
        uses=place.uses,
        layer=place.layer,
    )
    if not isinstance(slot.initializer, Copied | Derived):
        return Wanted(leaf, lambda values: first_value(slot, address, seed))
    origin = None if slot.starts_from is None else at.get(slot.starts_from)
    return Wanted(leaf, lambda values: slot.started(np.asarray(values[origin or ""])), after=origin or "")
