"""Pruning: set the least of a state's weights to zero."""

from __future__ import annotations

import math
from typing import Any

import attrs
import numpy as np

from ptml_state.arithmetic import floating
from ptml_state.edit import must_be_state
from ptml_state.leaf import Leaf
from ptml_state.slot import Role
from ptml_state.state import State

__all__ = ["prune"]

BAD_SHARE = "prune: share is the part of the weights to set to zero, from 0 to 1; got {given!r}."
NOT_FINITE = "prune compares magnitudes, and {address!r} holds {count} numbers that are not finite."
NO_WEIGHTS = (
    "prune finds no weights: {what}. Say by where= which floating-point leaves to prune; the state has "
    "{known}."
)


def prune(state: State, share: float, *, where: Any = None, per_leaf: bool = False) -> State:
    """Set the weights of least magnitude to zero.

    Parameters
    ----------
    state : State
    share : float
        The part of the chosen weights that is zero afterwards, from 0 to 1, rounded to a whole number of
        them. Weights that are zero already count, so that a state may be pruned further and further.
    where : selector, optional
        Which floating-point leaves; the parameters of two axes or more unless given: no biases, no scales.
    per_leaf : bool, default False
        Whether each leaf loses this part of its own weights. Otherwise the least of all leaves together go,
        and some leaves lose more than others.

    Returns
    -------
    State
        Training moves the zeros again, unless ``ptml.optim.keep_zeros`` stands behind the rule.

    Raises
    ------
    ValueError
        If the share is outside [0, 1], no leaf is chosen, or one holds NaN or infinities.
    KeyError
        If a name in `where` matches nothing.

    References
    ----------
    Han and others, "Learning both Weights and Connections for Efficient Neural Networks", 2015.

    Examples
    --------
    >>> state = State({"fc1/W": [[1.0, -2.0]], "fc2/W": [[0.1, 0.2]], "fc2/b": [0.0]})
    >>> pruned = prune(state, 0.5)
    >>> pruned["fc1/W"], pruned["fc2/W"]
    (array([[ 1., -2.]]), array([[0., 0.]]))
    >>> prune(state, 0.5, per_leaf=True)["fc1/W"]
    array([[ 0., -2.]])
    """
    must_be_state(state, "prune takes a state")
    if isinstance(share, bool) or not isinstance(share, int | float | np.floating):
        raise TypeError(BAD_SHARE.format(given=share))
    if not 0 <= share <= 1:
        raise ValueError(BAD_SHARE.format(given=share))
    leaves = list(floating(state, where).values())
    if where is None:
        leaves = [leaf for leaf in leaves if leaf.role is Role.PARAMETER and len(leaf.shape) > 1]
    if not leaves:
        what = (
            "no parameter has two axes or more"
            if where is None
            else f"{where!r} matches no floating-point leaf"
        )
        raise ValueError(NO_WEIGHTS.format(what=what, known=", ".join(list(state)[:8]) or "no leaves"))
    groups = [[leaf] for leaf in leaves] if per_leaf else [leaves]
    made = {leaf.address: leaf for group in groups for leaf in _pruned(group, share)}
    return State.of(made.get(leaf.address, leaf) for leaf in state.leaves)


def _pruned(leaves: list[Leaf], share: float) -> list[Leaf]:
    """Set the least of several leaves together to zero; of equal ones the first."""
    sizes = np.concatenate([_magnitudes(leaf) for leaf in leaves])
    goes = np.zeros(sizes.size, bool)
    count = round(share * sizes.size)
    if count:
        bound = np.partition(sizes, count - 1)[count - 1]
        goes = sizes < bound
        goes[np.flatnonzero(sizes == bound)[: count - np.count_nonzero(goes)]] = True
    made = []
    ends = np.cumsum([math.prod(leaf.shape) for leaf in leaves])
    for leaf, part in zip(leaves, np.split(goes, ends[:-1]), strict=True):
        value = np.array(leaf.value)
        value[part.reshape(leaf.shape)] = 0
        value.flags.writeable = False
        made.append(attrs.evolve(leaf, value=value))
    return made


def _magnitudes(leaf: Leaf) -> np.ndarray:
    value = np.asarray(leaf.value)
    sizes = np.abs(value.astype("complex128" if value.dtype.kind == "c" else "float64")).ravel()
    bad = sizes.size - np.count_nonzero(np.isfinite(sizes))
    if bad:
        raise ValueError(NOT_FINITE.format(address=leaf.address, count=bad))
    return sizes
