"""What states do to give other states: select leaves, change values, rename."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Self

import attrs
import numpy as np

from ptml_state.leaf import Leaf, fit_value, frozen_array, index_leaves, is_extension, renamed_leaf
from ptml_state.tree import register_jax
from ptml_state.where import AddressError, find, nearest, split_address

__all__ = ["Editable", "meet_jax", "must_be_state", "rename_addresses"]


class Editable(Mapping[str, Any]):
    """The part of a :class:`State` that makes other states of it.

    Nothing changes in place: each method gives a new state, which shares the arrays that stay as they were.
    """

    __slots__ = ("__weakref__", "_by_address", "_by_uid")

    _by_address: dict[str, Leaf]
    _by_uid: dict[str, Leaf] | None

    @classmethod
    def _made(cls, leaves: dict[str, Leaf]) -> Self:
        """Make a state of what is known to be in order."""
        state = object.__new__(cls)
        state._fill(leaves)
        return state

    def _fill(self, leaves: dict[str, Leaf]) -> None:
        self._by_address = leaves
        self._by_uid = None
        meet_jax()

    @property
    def leaves(self) -> tuple[Leaf, ...]:
        """The leaves, in order, with all that is known of them.

        Examples
        --------
        >>> from ptml_state import State
        >>> State({"fc1/b": [0.0, 0.0]}).leaves
        (Leaf('fc1/b', Role.PARAMETER, float64[2]),)
        """
        meet_jax()
        return tuple(self._by_address.values())

    def select(self, where: Any) -> Self:
        """Give the leaves that a selector matches, under their full addresses.

        Parameters
        ----------
        where : selector
            Anything that :func:`where` takes.

        Raises
        ------
        KeyError
            When an address, pattern or slot in the selector matches nothing.

        Examples
        --------
        >>> from ptml_state import State
        >>> state = State({"fc1": {"W": [[1.0]], "b": [0.0]}, "fc2": {"W": [[2.0]], "b": [0.0]}})
        >>> list(state.select("**/W"))
        ['fc1/W', 'fc2/W']
        >>> state.select("fc3")
        Traceback (most recent call last):
            ...
        ptml_state.where.AddressError: 'fc3' matches nothing in the state. Did you mean 'fc1' or 'fc2'?
        """
        return self._made({leaf.address: leaf for leaf in find(where, self.leaves)})

    def drop(self, where: Any) -> Self:
        """Give the leaves that a selector does not match.

        Raises
        ------
        KeyError
            When an address, pattern or slot in the selector matches nothing.

        Examples
        --------
        >>> from ptml_state import State
        >>> list(State({"fc1/W": [1.0], "fc1/b": [0.0], "adam/step_count": 3}).drop("adam"))
        ['fc1/W', 'fc1/b']
        """
        dropped = {leaf.address for leaf in find(where, self.leaves)}
        return self._made({a: leaf for a, leaf in self._by_address.items() if a not in dropped})

    def partition(self, where: Any, *more: Any) -> tuple[Self, ...]:
        """Split into one state per selector, the first that matches a leaf taking it, and the rest.

        :func:`combine` puts them together again.

        Examples
        --------
        >>> from ptml_state import State
        >>> state = State({"encoder/W": [1.0], "head/W": [2.0], "head/b": [0.0]})
        >>> encoder, biases, rest = state.partition("encoder", "**/b")
        >>> list(encoder), list(biases), list(rest)
        (['encoder/W'], ['head/b'], ['head/W'])
        """
        left = dict(self._by_address)
        parts = []
        for selector in (where, *more):
            found = [leaf.address for leaf in find(selector, self.leaves)]
            parts.append(self._made({address: left.pop(address) for address in found if address in left}))
        return (*parts, self._made(left))

    def replace(self, changes: Mapping[Any, Any], *, reshape: bool = False) -> Self:
        """Give a state with other values in some leaves.

        Parameters
        ----------
        changes : mapping from selector to array-like or function
            What to change, in order. A value has its leaf's shape, or none and then fills the leaf; a
            function is given the array of each leaf matched and returns the new one. A leaf keeps its
            dtype: Python numbers are taken where it can hold them, arrays where casting them loses nothing.
        reshape : bool, default False
            Whether a value may have another shape than its leaf, as when the last layer is widened.

        Raises
        ------
        KeyError
            When an address, pattern or slot in a selector matches nothing.
        TypeError
            When a value does not cast to its leaf's dtype without loss.
        ValueError
            When a value has another shape, or is out of the dtype's range.

        Examples
        --------
        >>> from ptml_state import State
        >>> state = State({"fc1/W": [[1.0, 2.0]], "fc1/b": [3.0, 4.0]})
        >>> new = state.replace({"fc1/W": lambda W: 2 * W, "fc1/b": 0})
        >>> new["fc1/W"], new["fc1/b"]
        (array([[2., 4.]]), array([0., 0.]))
        >>> state.replace({"fc1/b": [0.0, 0.0, 0.0]}, reshape=True)
        State(2 leaves, 40 B: fc1/W float64[1,2], fc1/b float64[3])
        """
        if not isinstance(changes, Mapping):
            raise TypeError(
                f"replace takes a mapping from selectors to values; got {type(changes).__name__}. "
                'Write state.replace({"fc1/W": value}).'
            )
        leaves = dict(self._by_address)
        for selector, value in changes.items():
            chosen = (
                [selector] if selector in leaves else [leaf.address for leaf in find(selector, self.leaves)]
            )
            for address in chosen:
                leaf = leaves[address]
                leaves[address] = attrs.evolve(leaf, value=fit_value(leaf, value, reshape=reshape))
        return self._made(leaves)

    def map(self, f: Callable[[Any], Any], *, with_leaf: bool = False) -> Self:
        """Give a state whose values are a function of the old ones; dtypes and shapes stay.

        Parameters
        ----------
        f : callable
            ``f(array) -> array``.
        with_leaf : bool, default False
            Give `f` the :class:`Leaf` (its address, role and value) instead of the array.

        Raises
        ------
        TypeError, ValueError
            As :meth:`replace` does.

        Examples
        --------
        >>> from ptml_state import State
        >>> State({"fc1/W": [1.0, 2.0]}).map(lambda array: array / 2)["fc1/W"]
        array([0.5, 1. ])
        """
        return self._made(
            {
                address: attrs.evolve(
                    leaf, value=fit_value(leaf, lambda value, leaf=leaf: f(leaf if with_leaf else value))
                )
                for address, leaf in self._by_address.items()
            }
        )

    def astype(self, dtype: Any, where: Any = None) -> Self:
        """Give a state with other dtypes, where a cast is meant.

        Parameters
        ----------
        dtype : str or dtype
            The new dtype.
        where : selector, optional
            Which leaves to cast. Default: all floating-point ones; keys and step counts stay.

        Examples
        --------
        >>> from ptml_state import State
        >>> State({"fc1/W": [1.0, 2.0], "adam/step_count": 3}).astype("float32")
        State(2 leaves, 16 B: fc1/W float32[2], adam/step_count int64[])
        """
        if where is None:
            chosen = [leaf for leaf in self.leaves if leaf.dtype.kind == "f" or is_extension(leaf.dtype)]
        else:
            chosen = find(where, self.leaves)
        cast = {
            leaf.address: attrs.evolve(
                leaf, value=frozen_array(leaf.value.astype(np.dtype(dtype)), leaf.address, foreign=True)
            )
            for leaf in chosen
        }
        return self._made({**self._by_address, **cast})

    def rename(self, names: Mapping[str, str]) -> Self:
        """Give a state with other addresses, in the same order.

        Parameters
        ----------
        names : mapping from address to address
            A full address, or one with everything below it. ``*`` stands for what it matches inside a
            component and ``**`` for any number of components; the new address has the same ones, in the
            same order. All renaming happens at once; the first that matches a leaf renames it. A renamed
            leaf is no longer found by its old slot.

        Raises
        ------
        KeyError
            When a name matches nothing.
        ValueError
            When two leaves would have one address, or the wildcards of the two addresses differ.

        Examples
        --------
        >>> from ptml_state import State
        >>> state = State({"layer0/weight": [1.0], "layer1/weight": [2.0], "out/weight": [3.0]})
        >>> list(state.rename({"layer*/weight": "fc*/W", "out": "head"}))
        ['fc0/W', 'fc1/W', 'head/weight']
        """
        renamed = []
        for leaf, address in zip(self.leaves, rename_addresses(list(self), names), strict=True):
            renamed.append(leaf if address == leaf.address else renamed_leaf(leaf, address))
        return self._made(index_leaves(renamed))

    def __or__(self, other: Self) -> Self:
        must_be_state(other, "state | other takes a state on either side")
        leaves = dict(self._by_address)
        for address, leaf in other._by_address.items():
            old = leaves.get(address)
            if old is not None and leaf.owner is None:
                uid, layer = leaf.uid or old.uid, leaf.layer or old.layer
                leaf = attrs.evolve(leaf, owner=old.owner, uid=uid, uses=old.uses, layer=layer)
            leaves[address] = leaf
        return self._made(index_leaves(leaves.values()))


def must_be_state(value: Any, rule: str) -> None:
    """Refuse what is no state, saying which rule asks for one."""
    if not isinstance(value, Editable):
        made = " Write State(...) around it." if isinstance(value, Mapping) else ""
        raise TypeError(f"{rule}; got {type(value).__name__}.{made}")


def meet_jax() -> None:
    """Tell JAX of states once it is there: it may come at any time, and has no place to leave word."""
    if sys.modules.get("jax") is not None:
        register_jax()


def rename_addresses(addresses: Sequence[str], names: Mapping[str, str]) -> list[str]:
    """Rename addresses by full addresses, paths and patterns, all at once.

    Parameters
    ----------
    addresses : sequence of str
        The addresses to rename.
    names : mapping from str to str
        From old to new, as :meth:`State.rename` takes it. The first that matches an address renames it.

    Raises
    ------
    KeyError
        When a name matches nothing.
    ValueError
        When the wildcards of old and new differ.

    Examples
    --------
    >>> rename_addresses(["block0/attn/W", "block1/attn/W"], {"block*/attn": "layer*/attention"})
    ['layer0/attention/W', 'layer1/attention/W']
    """
    rules = []
    for old, new in names.items():
        wild = [re.findall(r"\*\*|\*", name) for name in (old, new)]
        if wild[0] != wild[1] and old not in addresses:
            raise ValueError(
                f"In renaming {old!r} to {new!r} both need the same wildcards in the same order, "
                "so that the new address can take over what they match."
            )
        rules.append((old, new, split_address(old), split_address(new)))
    used = set()
    renamed = []
    for address in addresses:
        for old, new, pattern, target in rules:
            found = new if address == old else _renamed(tuple(address.split("/")), pattern, target)
            if found is not None:
                used.add(old)
                renamed.append(found)
                break
        else:
            renamed.append(address)
    for old in names:
        if old not in used:
            raise AddressError(f"{old!r} matches nothing to rename. {nearest(old, addresses)}")
    return renamed


def _renamed(address: tuple[str, ...], pattern: tuple[str, ...], target: tuple[str, ...]) -> str | None:
    captured = _captured(address, pattern)
    if captured is None:
        return None
    wild, rest = captured
    taken = iter(wild)
    renamed: list[str] = []
    for component in target:
        if component == "**":
            renamed.extend(next(taken))
        else:
            renamed.append(re.sub(r"\*", lambda star: next(taken)[0], component))
    return "/".join((*renamed, *rest))


def _captured(
    address: tuple[str, ...], pattern: tuple[str, ...]
) -> tuple[list[tuple[str, ...]], tuple[str, ...]] | None:
    """Give what each wildcard of a pattern matches, and what is left of the address behind it."""
    if not pattern:
        return [], address
    if pattern[0] == "**":
        for length in range(len(address) + 1):
            behind = _captured(address[length:], pattern[1:])
            if behind is not None:
                return [address[:length], *behind[0]], behind[1]
        return None
    if not address:
        return None
    here = re.fullmatch("(.*)".join(map(re.escape, pattern[0].split("*"))), address[0])
    behind = _captured(address[1:], pattern[1:]) if here else None
    if here is None or behind is None:
        return None
    return [*((part,) for part in here.groups()), *behind[0]], behind[1]
