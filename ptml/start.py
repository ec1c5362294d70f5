"""First values of a network's state."""

from __future__ import annotations

from typing import Any

from pytensor.graph.basic import Variable
from pytensor.graph.traversal import graph_inputs

from ptml.application import Application
from ptml.flatten import calls_in
from ptml.module import Module
from ptml.network import Placed, lay_out
from ptml_state import Leaf, SlotVariable, State
from ptml_state.archives import Wanted, wanted_by, wanted_places
from ptml_state.store import first_values, fresh_seed
from ptml_state.where import find

__all__ = ["init", "slots"]


def _placed(network: Any) -> list[Placed]:
    parts = network if isinstance(network, tuple | list) else [network]
    graphs = [part for part in parts if isinstance(part, Variable)]
    if not graphs:
        return lay_out([network])
    if len(graphs) != len(parts):
        raise TypeError("Give networks or graphs, not some of each.")
    used = [
        root.slot
        for root in dict.fromkeys(graph_inputs(graphs))
        if isinstance(root, SlotVariable | Application)
    ]
    return lay_out(calls_in(graphs), used)


@wanted_by.register(Module)
@wanted_by.register(Variable)
@wanted_by.register(tuple)
@wanted_by.register(list)
@wanted_by.register(dict)
def _(like: Any, seed: int | None) -> list[Wanted]:
    return wanted_places(_placed(like), seed)


def slots(network: Any, where: Any = None) -> tuple[SlotVariable, ...]:
    """Give the handles of the slots of a network or graph, in the order of their leaves.

    Parameters
    ----------
    network : module, or tensor, or a tuple, list or dict of modules, or a list of tensors
        A module's slots are known from its fields alone, without building a graph.
    where : selector, optional
        Which slots: an address glob, a role, a type of layer, a predicate, or a combination of them.

    Raises
    ------
    KeyError
        If an address in the selector matches nothing.

    Examples
    --------
    >>> from ptml.layers import Linear, Sequential
    >>> from ptml_state import Role
    >>> net = Sequential(Linear("a", n_in=2, n_out=3), Linear("b", n_in=3, n_out=1, bias=False))
    >>> [handle.slot.address for handle in slots(net, Role.PARAMETER)]
    ['a/W', 'a/b', 'b/W']
    """
    placed = _placed(network)
    chosen = placed if where is None else find(where, placed, what="the network")
    return tuple(place.slot.handle for place in chosen)


def init(network: Any, seed: int | None = None) -> State:
    """Draw the first value of every leaf of a network or graph.

    Each leaf comes from a stream of its own, decided by the seed and the leaf's address: adding, removing or
    reordering layers leaves every other named leaf's value as it was.

    Parameters
    ----------
    network : module, or tensor, or a tuple, list or dict of modules, or a list of tensors
    seed : int, optional
        A random seed unless given.

    Returns
    -------
    State

    Examples
    --------
    >>> from ptml.layers import Linear
    >>> init(Linear("fc", n_in=2, n_out=3), seed=0)["fc/b"]
    array([0., 0., 0.])
    """
    seed = fresh_seed() if seed is None else int(seed)
    placed = _placed(network)
    values = first_values(placed, seed)
    return State.of(
        Leaf(
            place.address,
            values[place.slot],
            place.role,
            owner=place.owner,
            uid=place.uid,
            uses=place.uses,
            layer=place.layer,
        )
        for place in placed
    )
