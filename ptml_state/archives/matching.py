"""Fitting the leaves of a file to those that are wanted: names, axes, and all that differs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import attrs
import numpy as np

from ptml_state.edit import rename_addresses
from ptml_state.leaf import Leaf, frozen_array, is_extension, renamed_leaf
from ptml_state.order import in_another_order
from ptml_state.typetext import type_text
from ptml_state.where import find, where

__all__ = ["Axes", "Comparison", "compare", "known_as", "laid_out", "renamed_by", "settled"]

#: From a selector to the axes, in their new order, of what it matches.
Axes = Mapping[Any, Sequence[int]]


def renamed_by(leaves: Sequence[Leaf], names: Mapping[str, str]) -> list[Leaf]:
    """Rename leaves, saying which two of them would have one address.

    Raises
    ------
    KeyError
        When a name matches nothing; with the nearest addresses.
    ValueError
        When two leaves would have one address.

    Examples
    --------
    >>> renamed_by([Leaf("encoder/W", 1.0)], {"encoder": "backbone"})
    [Leaf('backbone/W', Role.PARAMETER, 1.0)]
    """
    made: dict[str, Leaf] = {}
    taken: dict[str, str] = {}
    for leaf, address in zip(leaves, rename_addresses([leaf.address for leaf in leaves], names), strict=True):
        if address in made:
            raise ValueError(
                f"The rename gives {taken[address]!r} and {leaf.address!r} one address, {address!r}. "
                "Rename one of them to something else, or leave it out with where=."
            )
        taken[address] = leaf.address
        made[address] = leaf if address == leaf.address else renamed_leaf(leaf, address)
    return list(made.values())


def known_as(leaf: Leaf, wanted: Mapping[str, Leaf]) -> Leaf:
    """Give a leaf of a file what is known of the leaf of its address that is wanted, but for the value."""
    known = wanted.get(leaf.address)
    if known is None:
        return leaf
    return attrs.evolve(known, value=leaf.value)


def laid_out(leaves: Sequence[Leaf], axes: Axes) -> tuple[list[Leaf], dict[str, tuple[int, ...]]]:
    """Give leaves with the axes of some of them in another order, and say which those are.

    Parameters
    ----------
    leaves : sequence of Leaf
        The leaves.
    axes : mapping from selector to sequence of int
        The old axes in their new order, as ``numpy.transpose`` takes them, for leaves of that many axes. The
        first selector that matches a leaf counts.

    Raises
    ------
    KeyError
        When a selector that names addresses matches nothing.
    ValueError
        When the axes are no order of axes.

    Examples
    --------
    >>> import numpy as np
    >>> leaves, orders = laid_out([Leaf("fc/W", np.zeros((4, 3))), Leaf("fc/b", np.zeros(4))], {"fc": (1, 0)})
    >>> leaves[0].shape, orders
    ((3, 4), {'fc/W': (1, 0)})
    """
    orders: dict[str, tuple[int, ...]] = {}
    for selector, order in axes.items():
        order = tuple(order)
        if sorted(order) != list(range(len(order))):
            raise ValueError(
                f"transpose takes for {selector!r} the old axes in their new order, such as (1, 0); "
                f"got {order}."
            )
        for leaf in find(selector, leaves, what="the file"):
            if len(leaf.shape) == len(order):
                orders.setdefault(leaf.address, order)
    made = [
        attrs.evolve(leaf, value=leaf.value.transpose(orders[leaf.address]))
        if leaf.address in orders
        else leaf
        for leaf in leaves
    ]
    return made, {address: order for address, order in orders.items() if order != tuple(range(len(order)))}


@attrs.frozen
class Comparison:
    """What differs between the leaves of a file and those wanted; the fields are the report's."""

    loaded: tuple[str, ...]
    missing: tuple[str, ...] = ()
    unexpected: tuple[str, ...] = ()
    retyped: dict[str, tuple[str, str]] = attrs.field(factory=dict)
    reshaped: dict[str, tuple[str, str]] = attrs.field(factory=dict)
    #: Those of `retyped` that no cast is for.
    uncastable: tuple[str, ...] = ()
    another_order: str | None = None


def compare(leaves: Sequence[Leaf], wanted: Sequence[Leaf], selector: Any) -> Comparison:
    """Compare leaves of a file with those wanted.

    Parameters
    ----------
    leaves : sequence of Leaf
        The file's, under the addresses that are wanted.
    wanted : sequence of Leaf
        What has to have a value.
    selector : where, optional
        To which of both to keep.

    Raises
    ------
    KeyError
        When the selector names what is not wanted.
    """
    another_order = in_another_order(leaves, wanted, there="the file")
    known = {leaf.address: leaf for leaf in wanted}
    adopted: Iterable[Leaf] = [known_as(leaf, known) for leaf in leaves]
    if selector is not None:
        wanted = find(selector, wanted, what="what is loaded into")
        known = {leaf.address: leaf for leaf in wanted}
        chosen = where(selector)
        adopted = [leaf for leaf in adopted if chosen.matches(leaf)]
    given = {leaf.address: leaf for leaf in adopted}
    retyped: dict[str, tuple[str, str]] = {}
    reshaped: dict[str, tuple[str, str]] = {}
    uncastable = []
    for address, leaf in known.items():
        if address not in given:
            continue
        types = (type_text(given[address].value), type_text(leaf.value))
        if given[address].shape != leaf.shape:
            reshaped[address] = types
        elif types[0] != types[1]:
            retyped[address] = types
            if not (_floats(given[address].dtype) and _floats(leaf.dtype)):
                uncastable.append(address)
    return Comparison(
        loaded=tuple(address for address in known if address in given),
        missing=tuple(address for address in known if address not in given),
        unexpected=tuple(address for address in given if address not in known),
        retyped=retyped,
        reshaped=reshaped,
        uncastable=tuple(uncastable),
        another_order=another_order,
    )


def _floats(dtype: Any) -> bool:
    return np.dtype(dtype).kind == "f" or is_extension(np.dtype(dtype))


def settled(array: np.ndarray, address: str, dtype: Any, *, mapped: bool) -> np.ndarray:
    """Make an array of a file one that a state holds: of this dtype, in C order, aligned; a copy if asked."""
    if not mapped:
        array = array.copy()
        array.flags.writeable = False
    if array.dtype != dtype:
        with np.errstate(over="ignore"):
            array = array.astype(dtype)
    return frozen_array(array, address)
