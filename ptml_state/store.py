"""The store: where state lives while programs run."""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Protocol

import numpy as np
import pytensor

from ptml_state.leaf import Leaf, Numbered
from ptml_state.order import in_another_order
from ptml_state.slot import Copied, Derived, Role, Slot, Stacked
from ptml_state.state import State
from ptml_state.typetext import type_text

__all__ = ["Store", "first_value", "first_values", "fresh_seed"]

RENUMBERED = (
    "This store knows {slot!r} at {old!r}, and here it would be at {new!r}, since other layers share its "
    "name. Give a name to each of the layers called {name!r}, or compile on a store of its own: "
    "state=store.state."
)
OTHER_OBJECT = (
    "{address!r} of this store belongs to another object than the one compiled now: {old!r}, not {new!r}. A "
    "live store knows layers and transforms by identity. Compile with the object that it knows, or take the "
    "values over into a new store: state=store.state."
)
WRONG_TYPE = "The state's {address!r} is {given}, where {owner} declares {wanted}. {remedy}"
OTHER_NETWORK = (
    "This state belongs to another network: it lacks the {role} leaves {missing} that this program reads, "
    "and has {unread} that it does not. Rename them with state.rename({{old: new}}), or leave them out with "
    "state.drop(...) to have the missing ones drawn afresh."
)
LACKS = (
    "The state lacks {missing}, without which a prediction means nothing. Give the trained state: "
    "state=program, state=program.store or state=program.state."
)
MOVED = (
    "The state has the value of {slot!r} at {old!r}, and here its address is {new!r}: layers without a name "
    "are numbered by their positions, which differ. Give a name to each of the layers called {name!r}, or "
    "move the values with state.rename({{old: new}})."
)
NOTHING_TO_COPY = (
    "{address!r} starts at the value of the slot that it accompanies, and the program does not read that one."
)
ANOTHER_ORDER = "The state does not fit: its {difference}"
UNKNOWN = "The store has no {unknown}. Its leaves are {known}."
INCOMPLETE = (
    "A state to load has a value for every leaf of the store; this one lacks {missing}. To write some leaves "
    "use store.set({{where: value}})."
)


class Place(Protocol):
    """A slot at its address in one collection."""

    @property
    def slot(self) -> Slot: ...
    @property
    def address(self) -> str: ...
    @property
    def uses(self) -> int: ...
    @property
    def owner(self) -> str | None: ...
    @property
    def uid(self) -> str | None: ...
    @property
    def layer(self) -> Numbered | None: ...


def fresh_seed() -> int:
    """Draw a seed from the operating system."""
    return secrets.randbits(63)


def first_value(slot: Slot, address: str, seed: int) -> np.ndarray:
    """Draw a slot's first value from the stream that belongs to a seed and an address.

    Other leaves have no influence, so adding, removing or reordering layers leaves a named leaf's first value
    as it was.
    """
    if isinstance(slot.initializer, Stacked):
        copies = slot.initializer.addresses(address)
        return np.stack([first_value(slot.initializer.slot, copy, seed) for copy in copies])
    digest = hashlib.sha256(f"{seed}/{address}".encode()).digest()
    rng = np.random.Generator(np.random.Philox(key=np.frombuffer(digest[:16], np.uint64)))
    value = np.asarray(slot.initializer(rng, slot.shape, slot.dtype))
    if value.shape != slot.shape or str(value.dtype) != slot.dtype:
        raise ValueError(
            f"The initializer of {address!r} gave {type_text(value)}, where {type_text(slot)} is declared."
        )
    return value


def _starts_from_another(slot: Slot) -> bool:
    return isinstance(slot.initializer, Copied | Derived)


def first_values(places: Sequence[Place], seed: int) -> dict[Slot, np.ndarray]:
    """Draw the first values of slots, and give those that start from others' theirs."""
    address_of = {place.slot: place.address for place in places}
    values: dict[Slot, np.ndarray] = {}
    for slot in sorted(address_of, key=_starts_from_another):
        origin = slot.starts_from
        if origin is None:
            values[slot] = first_value(slot, address_of[slot], seed)
        else:
            known = values.get(origin)
            values[slot] = slot.started(first_value(origin, origin.address, seed) if known is None else known)
    return {place.slot: values[place.slot] for place in places}


def _listed(addresses: Iterable[str]) -> str:
    addresses = list(addresses)
    shown = ", ".join(addresses[:8])
    return shown if len(addresses) <= 8 else f"{shown} and {len(addresses) - 8} more"


class Store:
    """The living values of slots: one cell, at a fixed address, for each.

    The only thing here that changes. Programs compiled over one store share its memory: a training step and
    a predictor, the two training steps of a GAN. Leaves that no program reads ride along.

    Parameters
    ----------
    state : State, optional
        First values, taken by address. Leaves that it lacks are drawn.
    seed : int, optional
        Decides what is drawn; a random seed unless given.

    Examples
    --------
    >>> import ptml
    >>> from ptml.layers import Input, Linear
    >>> from ptml_state import Store
    >>> X, fc = Input("X", shape=(None, 2)), Linear("fc", n_in=2, n_out=1)
    >>> store = Store(ptml.init(fc, seed=0))
    >>> predict = ptml.compile_predict(fc(X), state=store)
    >>> store.set({"fc/W": 0.0})
    >>> predict([[1.0, 2.0]])
    array([[0.]])
    """

    def __init__(self, state: State | None = None, *, seed: int | None = None) -> None:
        if state is not None and not isinstance(state, State):
            raise TypeError(f"A Store is made from a State; got {type(state).__name__}.")
        self.seed = fresh_seed() if seed is None else int(seed)
        #: The kind of arrays that the cells hold: "numpy", "jax", ..., or "mixed".
        self.residence = "numpy"
        self._places: dict[str, Place] = {}
        self._cells: dict[Slot, Any] = {}
        self._unread: dict[str, Leaf] = {} if state is None else {leaf.address: leaf for leaf in state.leaves}
        self._order: dict[str, None] = dict.fromkeys(self._unread)

    def cells_for(self, places: Sequence[Place], *, draw: bool = True) -> dict[Slot, Any]:
        """Give a cell for each slot, making those that are missing, but do not take them in yet.

        Parameters
        ----------
        places : sequence
            Slots at their addresses.
        draw : bool
            Whether parameters and statistics that have no value may be drawn.

        Raises
        ------
        ValueError
            If a slot would move, if its address belongs to another slot, if its value has another type, or if
            the store's values belong to another network.
        """
        at = {slot: address for address, place in self._places.items() for slot in (place.slot,)}
        # A value that is known to be another slot's is never taken for this one's.
        owned = {leaf.uid: leaf.address for leaf in self._unread.values() if leaf.uid is not None}
        cells: dict[Slot, Any] = {}
        missing: list[Place] = []
        for place in places:
            slot, address = place.slot, place.address
            if slot in self._cells:
                if at[slot] != address:
                    name = address.split("/")[0].rsplit("_", 1)[0]
                    raise ValueError(RENUMBERED.format(slot=slot, old=at[slot], new=address, name=name))
                cells[slot] = self._cells[slot]
            elif address in self._places:
                old = self._places[address].slot
                raise ValueError(
                    OTHER_OBJECT.format(address=address, old=old.owner or old, new=slot.owner or slot)
                )
            elif owned.get(slot.uid, address) != address:
                name = address.split("/")[0].rsplit("_", 1)[0]
                raise ValueError(MOVED.format(slot=slot, old=owned[slot.uid], new=address, name=name))
            elif address in self._unread:
                cells[slot] = _cell(slot, address, _checked(slot, address, self._unread[address].value))
            else:
                missing.append(place)
        _refuse_another_order(self._unread.values(), [p for p in places if p.slot not in self._cells])
        self._refuse_other_network(places, missing, draw)
        for place in sorted(missing, key=lambda place: _starts_from_another(place.slot)):
            cells[place.slot] = _cell(place.slot, place.address, self._first(place, cells))
        return cells

    def _first(self, place: Place, cells: Mapping[Slot, Any]) -> np.ndarray:
        slot = place.slot
        if not _starts_from_another(slot):
            return first_value(slot, place.address, self.seed)
        origin = slot.starts_from
        cell = None if origin is None else cells.get(origin, self._cells.get(origin))
        if cell is None:
            raise ValueError(NOTHING_TO_COPY.format(address=place.address))
        return slot.started(np.asarray(cell.get_value(borrow=True)))

    def _refuse_other_network(self, places: Sequence[Place], missing: Sequence[Place], draw: bool) -> None:
        read = {place.address for place in places}
        for role in Role:
            lacking = [place.address for place in missing if place.slot.role is role]
            unread = [
                leaf.address
                for leaf in self._unread.values()
                if leaf.role is role and leaf.address not in read
            ]
            if lacking and unread:
                raise ValueError(
                    OTHER_NETWORK.format(role=role, missing=_listed(lacking), unread=_listed(unread))
                )
        if not draw:
            without = {place.slot for place in missing}
            lacking = [
                place.address
                for place in missing
                if place.slot.role in (Role.PARAMETER, Role.STATISTIC)
                and (place.slot.starts_from is None or place.slot.starts_from in without)
            ]
            if lacking:
                raise ValueError(LACKS.format(missing=_listed(lacking)))

    def adopt(self, places: Sequence[Place], cells: Mapping[Slot, Any]) -> None:
        """Take cells in for good, at these addresses."""
        for place in places:
            if place.slot not in self._cells:
                self._cells[place.slot] = cells[place.slot]
                self._places[place.address] = place
                self._unread.pop(place.address, None)
                self._order[place.address] = None
                if self.residence != "numpy":
                    self.residence = "mixed"

    @property
    def places(self) -> tuple[Place, ...]:
        """The slots that programs read and write, at their addresses."""
        return tuple(self._places.values())

    def _leaf(self, address: str) -> Leaf:
        if address in self._unread:
            return self._unread[address]
        place = self._places[address]
        slot = place.slot
        return Leaf(
            address,
            self._read(slot),
            slot.role,
            owner=place.owner,
            uid=slot.uid,
            uses=place.uses,
            layer=place.layer,
        )

    def _read(self, slot: Slot) -> np.ndarray:
        value = self._cells[slot].get_value(borrow=True)
        array = np.array(value, dtype=slot.dtype, order="C")  # a copy, whatever a backend left there
        array.flags.writeable = False
        return array

    @property
    def state(self) -> State:
        """A snapshot of every leaf."""
        return State.of(self._leaf(address) for address in self._order)

    def snapshot(self, slots: Iterable[Slot]) -> State:
        """Give a snapshot of some slots' leaves, in the store's order."""
        wanted = set(slots)
        return State.of(
            self._leaf(address)
            for address in self._order
            if address in self._places and self._places[address].slot in wanted
        )

    def load(self, state: State) -> None:
        """Write a state that has a value for every leaf.

        Raises
        ------
        ValueError
            If a leaf is missing, unknown, or of another dtype or shape; nothing is written then.
        """
        missing = [address for address in self._order if address not in state]
        if missing:
            raise ValueError(INCOMPLETE.format(missing=_listed(missing)))
        self._write({leaf.address: leaf for leaf in state.leaves})

    def set(self, changes: Mapping[Any, Any]) -> None:
        """Write some leaves, for the programs to go on from.

        Parameters
        ----------
        changes : mapping
            From a selector to a value or a function of the old value, as for ``State.replace``.
        """
        before = self.state
        after = before.replace(changes)
        self._write(
            {
                new.address: new
                for old, new in zip(before.leaves, after.leaves, strict=True)
                if old.value is not new.value
            }
        )

    def _write(self, leaves: Mapping[str, Leaf]) -> None:
        unknown = [address for address in leaves if address not in self._order]
        if unknown:
            raise ValueError(UNKNOWN.format(unknown=_listed(unknown), known=_listed(self._order)))
        _refuse_another_order(leaves.values(), [*self._places.values(), *self._unread.values()])
        values = {}
        for address, leaf in leaves.items():
            if address in self._places:
                values[address] = _checked(self._places[address].slot, address, leaf.value)
        for address, leaf in leaves.items():
            if address in values:
                self._cells[self._places[address].slot].set_value(np.array(values[address]), borrow=True)
            else:
                self._unread[address] = leaf
        if self.residence != "numpy":
            self.residence = "mixed"

    def move(self, residence: str, convert: Any) -> None:
        """Keep the cells' values as the arrays that a backend works with.

        Parameters
        ----------
        residence : str
            The name of that kind of arrays.
        convert : callable
            From a numpy array to the backend's array.
        """
        for slot, cell in self._cells.items():
            cell.container.storage[0] = convert(self._read(slot).copy())
        self.residence = residence

    def __repr__(self) -> str:
        return f"<Store of {len(self._order)} leaves, {self.residence} arrays>"


def _refuse_another_order(leaves: Iterable[Leaf], places: Iterable[Place | Leaf]) -> None:
    difference = in_another_order(leaves, places)
    if difference is not None:
        raise ValueError(ANOTHER_ORDER.format(difference=difference))


def _cell(slot: Slot, address: str, value: np.ndarray) -> Any:
    return pytensor.shared(np.array(value, order="C"), name=address, shape=slot.shape, borrow=True)


def _checked(slot: Slot, address: str, value: Any) -> np.ndarray:
    value = np.asarray(value)
    wanted = type_text(slot)
    owner = "the program" if slot.owner is None else repr(slot.owner)
    if value.shape != slot.shape:
        remedy = "Give a value of that shape, or drop the leaf to have it drawn: state.drop(...)."
        raise ValueError(
            WRONG_TYPE.format(
                address=address, given=type_text(value), owner=owner, wanted=wanted, remedy=remedy
            )
        )
    if str(value.dtype) != slot.dtype:
        remedy = f"Cast it: value.astype({slot.dtype!r})."
        raise ValueError(
            WRONG_TYPE.format(
                address=address, given=type_text(value), owner=owner, wanted=wanted, remedy=remedy
            )
        )
    return value
