"""Low-rank adapters: put them into a network beside its dense layers, and merge them into those again."""

from __future__ import annotations

from collections import Counter
from typing import Any

import attrs
import numpy as np

from ptml.layers.linear import Linear
from ptml.layers.low_rank import LowRank
from ptml.network import lay_out, replace, select, walk
from ptml_state import State
from ptml_state.edit import must_be_state

__all__ = ["low_rank", "merge_low_rank"]

NO_LINEAR = "low_rank: {where!r} matches no Linear layer of the network, which has {known}."
ADAPTED = (
    "low_rank: in the network these have an adapter already: {addresses}. Merge it with merge_low_rank, or "
    "leave them out: low_rank(network, 'other/layer', ...)."
)
NO_ADAPTERS = "merge_low_rank: the network has no LowRank layer."
USED_PLAIN = (
    "merge_low_rank: {address!r} stands in the network outside of its adapter {adapter!r} too, or has "
    "several, so that merging would change what the others give."
)
LACKS = "merge_low_rank: the state lacks {missing}, which the network's adapters are made of."
MISFIT = "merge_low_rank: the state's {address!r} is of shape {given}, and the network's of {wanted}."


def low_rank(network: Any, where: Any = Linear, *, rank: int, alpha: float | None = None) -> Any:
    """Give a network whose dense layers have low-rank adapters.

    Each is replaced by a :class:`ptml.layers.LowRank` of the same outputs, named after it: ``fc`` is the base
    of ``fc/low_rank``. The bases are the same objects at the same addresses: the network's state loads.

    Parameters
    ----------
    network : module, or tuple, list or dict of modules
        It stays as it is.
    where : selector, default Linear
        Which layers, as for :func:`ptml.select`; what it matches besides dense layers stays as it is.
    rank : int
    alpha : float, optional
        As for :class:`ptml.layers.LowRank`.

    Raises
    ------
    KeyError
        If a name in `where` matches no layer.
    ValueError
        If no dense layer is matched, or one has an adapter already; if the rank is more than a layer's.

    Examples
    --------
    >>> from ptml.activations import ReLU
    >>> from ptml.layers import Linear, LowRank, Sequential
    >>> from ptml.optim import adam, chain, freeze
    >>> from ptml_state import where
    >>> net = Sequential(Linear("fc1", n_in=8, n_out=8), ReLU(), Linear("fc2", n_in=8, n_out=4))
    >>> adapted = low_rank(net, "fc1", rank=2)
    >>> adapted[0]
    LowRank('fc1/low_rank', base=Linear('fc1', n_in=8, n_out=8), rank=2)
    >>> adapters_alone = chain(freeze(~where(LowRank)), adam(1e-3))
    """
    at = _addresses(network)
    chosen = {id(layer): layer for layer in select(network, where) if isinstance(layer, Linear)}
    if not chosen:
        known = ", ".join(dict.fromkeys(at.values())) or "no layer with state"
        raise ValueError(NO_LINEAR.format(where=where, known=known))
    bases = {id(layer.base) for layer in walk(network) if isinstance(layer, LowRank)}
    if adapted := [at[key] for key in chosen if key in bases]:
        raise ValueError(ADAPTED.format(addresses=", ".join(adapted)))
    made = {
        key: LowRank(f"{at[key]}/low_rank", base=layer, rank=rank, alpha=alpha)
        for key, layer in chosen.items()
    }
    return replace(network, lambda part: id(part.value) in made, lambda layer: made[id(layer)])


def _addresses(network: Any) -> dict[int, str]:
    """Give the address of each layer that has state, by the layer's identity."""
    return {id(place.slot.owner): place.address.rpartition("/")[0] for place in lay_out([network])}


def merge_low_rank(network: Any, state: State) -> tuple[Any, State]:
    """Merge all low-rank adapters of a network into the dense layers that they adapt.

    Parameters
    ----------
    network : module, or tuple, list or dict of modules
        With :class:`ptml.layers.LowRank` layers, from :func:`low_rank`. It stays as it is.
    state : State
        Its state.

    Returns
    -------
    network
        With the dense layers in the place of their adapters: what :func:`low_rank` was given.
    state : State
        The leaves of that network. A merged weight is ``W + alpha / rank * A @ B``, computed in float64 and
        rounded once. An optimizer's state, which belongs to the adapters, is left out.

    Raises
    ------
    ValueError
        If there are no adapters, if the state lacks some or has them in other shapes, or if a layer is used
        both with and without its adapter.

    Examples
    --------
    >>> import ptml
    >>> from ptml.layers import Linear, Sequential
    >>> net = Sequential(Linear("fc", n_in=4, n_out=3))
    >>> adapted = low_rank(net, rank=1)
    >>> plain, state = merge_low_rank(adapted, ptml.init(adapted, seed=0))
    >>> plain == net, list(state)
    (True, ['fc/W', 'fc/b'])
    """
    must_be_state(state, "merge_low_rank takes a network and a state")
    uses = Counter(map(id, walk(network)))
    layers = {id(layer): layer for layer in walk(network) if isinstance(layer, LowRank)}
    if not layers:
        raise ValueError(NO_ADAPTERS)
    places = {place.slot: place.address for place in lay_out([network])}
    merged: dict[str, np.ndarray] = {}
    for layer in layers.values():
        address = places[layer.base.W.slot]
        if uses[id(layer)] != uses[id(layer.base)]:
            raise ValueError(USED_PLAIN.format(address=address.rpartition("/")[0], adapter=layer.name))
        W, A, B = (_value(state, places[handle.slot], handle) for handle in (layer.base.W, layer.A, layer.B))
        merged[address] = W + layer.scale * (A @ B)
    plain = (
        network.base if isinstance(network, LowRank) else replace(network, LowRank, lambda part: part.base)
    )
    kept = {place.address for place in lay_out([plain])}
    leaves = [leaf for leaf in state.leaves if leaf.address in kept]
    return plain, State.of(
        attrs.evolve(leaf, value=merged[leaf.address].astype(leaf.dtype)) if leaf.address in merged else leaf
        for leaf in leaves
    )


def _value(state: State, address: str, handle: Any) -> np.ndarray:
    if address not in state:
        raise ValueError(LACKS.format(missing=repr(address)))
    value = state[address]
    if value.shape != handle.slot.shape:
        raise ValueError(MISFIT.format(address=address, given=value.shape, wanted=handle.slot.shape))
    return np.asarray(value, "float64")
