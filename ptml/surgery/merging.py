"""Take weight and spectral normalization out of a network: compute the weights, once and for all."""

from __future__ import annotations

from typing import Any

import attrs
import numpy as np

from ptml.layers.weight_norm import SpectralNorm, WeightNorm
from ptml.network import lay_out, replace, walk
from ptml_state import State
from ptml_state.edit import must_be_state

__all__ = ["merge_norms"]

NO_NORMS = "merge_norms: the network has no WeightNorm or SpectralNorm layer."
LACKS = "merge_norms: the state lacks {missing!r}, which the weight {weight!r} is computed of."
TWICE = (
    "merge_norms: {weight!r} is normalized by several layers, or used without its own too, so that merging "
    "would change what the others give."
)


def merge_norms(network: Any, state: State) -> tuple[Any, State]:
    """Put plain layers in the place of all weight and spectral normalization.

    Parameters
    ----------
    network : module, or tuple, list or dict of modules
        With :class:`ptml.layers.WeightNorm` or :class:`ptml.layers.SpectralNorm`. It stays as it is.
    state : State
        Its state.

    Returns
    -------
    network
        With the layers that were normalized in the place of what normalizes them.
    state : State
        The leaves of that network, their weights those that a prediction computes, in float64 and rounded
        once. An optimizer's state, which belongs to other weights, is left out.

    Raises
    ------
    ValueError
        If nothing in the network is normalized so, if the state lacks a leaf, or if a weight is used with
        and without its normalization.

    Examples
    --------
    >>> import ptml
    >>> from ptml.layers import Linear, Sequential, WeightNorm
    >>> net = ptml.replace(Sequential(Linear("fc", n_in=4, n_out=3)), Linear, WeightNorm)
    >>> plain, state = merge_norms(net, ptml.init(net, seed=0))
    >>> plain, list(state)
    (Sequential(Linear('fc', n_in=4, n_out=3)), ['fc/W', 'fc/b'])
    """
    must_be_state(state, "merge_norms takes a network and a state")
    kinds = WeightNorm | SpectralNorm
    layers = {id(layer): layer for layer in walk(network) if isinstance(layer, kinds)}
    if not layers:
        raise ValueError(NO_NORMS)
    uses = [id(layer) for layer in walk(network)]
    at = {place.slot: place.address for place in lay_out([network])}
    merged: dict[str, np.ndarray] = {}
    for layer in layers.values():
        weight = at[layer.weight_slot.slot]
        if weight in merged or uses.count(id(layer)) != uses.count(id(layer.layer)):
            raise ValueError(TWICE.format(weight=weight))

        def value(handle: Any, weight: str = weight) -> np.ndarray:
            address = at[handle.slot]
            if address not in state:
                raise ValueError(LACKS.format(missing=address, weight=weight))
            return np.asarray(state[address], "float64")

        merged[weight] = _weight(layer, value)
    plain = network
    while any(isinstance(layer, kinds) for layer in walk(plain)):
        plain = (
            plain.layer
            if isinstance(plain, kinds)
            else replace(plain, lambda part: isinstance(part.value, kinds), lambda part: part.layer)
        )
    kept = {place.address for place in lay_out([plain])}
    return plain, State.of(
        attrs.evolve(leaf, value=merged[leaf.address].astype(leaf.dtype)) if leaf.address in merged else leaf
        for leaf in state.leaves
        if leaf.address in kept
    )


def _weight(layer: Any, value: Any) -> np.ndarray:
    """Compute the weight that a prediction has."""
    W = value(layer.weight_slot)
    if isinstance(layer, WeightNorm):
        square = np.square(W).sum(axis=layer._others, keepdims=True)
        g = value(layer.g)
        g = g if layer.axis is None else np.expand_dims(g, layer._others)
        return W * (g / np.sqrt(np.where(square > 0, square, 1.0)))
    matrix = np.moveaxis(W, layer.axis, 0).reshape(W.shape[layer.axis], -1)
    sigma = value(layer.u) @ matrix @ value(layer.v)
    return W / sigma if sigma > layer.epsilon else W
