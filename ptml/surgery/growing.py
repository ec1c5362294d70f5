"""Growing: take a state over into a network whose layers have become larger."""

from __future__ import annotations

from typing import Any

import attrs
import numpy as np

from ptml.network import Placed, lay_out
from ptml_state import Leaf, Role, State
from ptml_state.edit import must_be_state
from ptml_state.store import first_value, fresh_seed
from ptml_state.typetext import type_text

__all__ = ["grow"]

NOTHING_SHARED = (
    "grow: the state has none of the network's leaves. The state has {given}; the network has {wanted}. "
    "Rename them: state.rename({{old: new}})."
)
NOT_LARGER = """\
grow: leaves only grow, and keep their number of axes; these do not:
{leaves}
Leave them out to have them drawn afresh: state.drop(...)."""


def grow(state: State, network: Any, *, seed: int | None = None) -> State:
    """Take a state over into a network of larger layers.

    A leaf that has grown keeps its values at the beginning of each axis: the first rows of an embedding, the
    first rows and columns of a weight. What is new is drawn as the network declares. Layers without a name
    are found by their numbers.

    Parameters
    ----------
    state : State
        Of the network as it was.
    network : module, or tuple, list or dict of modules
        The network as it is now: some layers replaced by larger ones under the same names.
    seed : int, optional
        Decides what is drawn; a random seed unless given.

    Returns
    -------
    State
        The state's leaves. An optimizer's moments of a parameter that has grown are left out, and begin anew
        when a program is compiled; so do leaves that the state lacks.

    Raises
    ------
    ValueError
        If the state has none of the network's leaves; if leaves would lose values or axes, listing all.

    Examples
    --------
    >>> import attrs, ptml
    >>> from ptml.layers import Linear, Sequential
    >>> net = Sequential(Linear("fc", n_in=2, n_out=3), Linear("head", n_in=3, n_out=1))
    >>> state = ptml.init(net, seed=0)
    >>> wider = ptml.replace(net, "head", lambda head: attrs.evolve(head, n_out=2))
    >>> grown = grow(state, wider, seed=1)
    >>> grown["head/W"].shape, bool((grown["head/W"][:, :1] == state["head/W"]).all())
    ((3, 2), True)
    """
    must_be_state(state, "grow takes a state and a network")
    seed = fresh_seed() if seed is None else int(seed)
    places = {place.address: place for place in lay_out([network])}
    if not any(address in places for address in state):
        given, wanted = (", ".join(list(names)[:8]) or "none" for names in (state, places))
        raise ValueError(NOTHING_SHARED.format(given=given, wanted=wanted))
    changed = [
        (leaf, places[leaf.address].slot)
        for leaf in state.leaves
        if leaf.address in places and leaf.shape != places[leaf.address].slot.shape
    ]
    smaller = [
        f"  {leaf.address}: {type_text(leaf.value)} in the state, {type_text(slot)} in the network"
        for leaf, slot in changed
        if not _may_grow(leaf.shape, slot.shape)
    ]
    if smaller:
        raise ValueError(NOT_LARGER.format(leaves="\n".join(smaller)))
    at = {place.slot: address for address, place in places.items()}
    grown: dict[str, Leaf] = {}
    for leaf, slot in sorted(changed, key=lambda pair: pair[1].starts_from is not None):
        origin = None if slot.starts_from is None else at.get(slot.starts_from)
        if origin is None or origin not in state:
            grown[leaf.address] = _grown(leaf, first_value(slot, leaf.address, seed))
        else:
            started = slot.started(grown[origin].value if origin in grown else state[origin])
            # A statistic belongs to all of what it is taken of; of a parameter the trained part stays.
            grown[leaf.address] = _grown(leaf, started, keep=leaf.role is not Role.STATISTIC)
    behind = tuple(f"/{address}" for address in grown)
    return State.of(
        _of_network(grown.get(leaf.address, leaf), places.get(leaf.address))
        for leaf in state.leaves
        if leaf.address in places or not leaf.address.endswith(behind)
    )


def _may_grow(old: tuple[int, ...], new: tuple[int, ...]) -> bool:
    return len(old) == len(new) and all(n <= m for n, m in zip(old, new, strict=True))


def _grown(leaf: Leaf, first: np.ndarray, *, keep: bool = True) -> Leaf:
    value = np.array(first, dtype=leaf.dtype)
    if keep:
        value[tuple(slice(size) for size in leaf.shape)] = leaf.value
    value.flags.writeable = False
    return attrs.evolve(leaf, value=value)


def _of_network(leaf: Leaf, place: Placed | None) -> Leaf:
    """Let a leaf belong to the slot that it is now for."""
    if place is None:
        return leaf
    return attrs.evolve(leaf, owner=place.owner, uid=place.uid, uses=place.uses, layer=place.layer)
