"""Between the two forms of a repeated layer: states of copies, and states of stacks."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from itertools import groupby
from typing import Any

import attrs
import numpy as np

from ptml.bits import folded_key
from ptml.layers.scanned import Scanned
from ptml.network import _Naming
from ptml_state import Leaf, Role, State
from ptml_state.edit import must_be_state
from ptml_state.typetext import type_text

__all__ = ["stack", "unstack"]

NO_SCANNED = "{what}: the network has no Scanned layer, which Repeat(n, layer, scan=True) gives."
LACKS = "stack: a stack of {n} is made of {some}, ...; the state lacks {missing}."
UNEQUAL = "stack: the state's {first!r} and {other!r} differ: {given} and {wanted}."
NO_STACK = "unstack: the state's {address!r} is of shape {shape}; a stack of {n} has a first axis of {n}."


@attrs.frozen
class _Stack:
    """A layer that loops over stacks, under the name that it has in a network."""

    name: str
    layer: Scanned

    @property
    def n(self) -> int:
        return self.layer.n

    def copy(self, k: int) -> str:
        return f"{self.name}{k}"


def _stacks(network: Any, what: str) -> list[_Stack]:
    naming = _Naming([network])
    found = [
        _Stack(naming.name(module), module)
        for key, module in naming.modules.items()
        if isinstance(module, Scanned) and key not in naming.patterns
    ]
    if not found:
        raise ValueError(NO_SCANNED.format(what=what))
    return found


def _end(address: str, ends: Iterable[str]) -> str | None:
    """Find the address that stands at the end of another, such as one below an optimizer's namespace."""
    return next((end for end in ends if f"/{address}".endswith(f"/{end}")), None)


def _is_among(ends: Sequence[str], leaf: Leaf) -> bool:
    return _end(leaf.address, ends) is not None


def unstack(state: State, network: Any) -> State:
    """Give the state of ``Repeat(n, layer)``, from that of ``Repeat(n, layer, scan=True)``.

    Parameters
    ----------
    state : State
        An optimizer's leaves too are taken apart, as far as they are stacks as the parameters are; the others
        of stacked parameters are left out.
    network : module, or tuple, list or dict of modules
        The one with the :class:`ptml.layers.Scanned` layers.

    Returns
    -------
    State
        ``block/fc/W`` has become ``block0/fc/W``, ``block1/fc/W``, ... Each copy's generator is the one that
        its iteration drew from, so that the copies draw the numbers that the loop would have drawn.

    Raises
    ------
    ValueError
        If the network has no such layer, or a leaf of one is no stack of as many.

    Examples
    --------
    >>> import ptml
    >>> from ptml.layers import Linear, Repeat
    >>> looped = Repeat(2, Linear("fc", n_in=3, n_out=3, bias=False), scan=True)
    >>> apart = unstack(ptml.init(looped, seed=0), looped)
    >>> list(apart), list(stack(apart, looped))
    (['fc0/W', 'fc1/W'], ['fc/W'])
    """
    must_be_state(state, "unstack takes a state and a network")
    for one in _stacks(network, "unstack"):
        ends = [f"{one.name}/{place}" for place in one.layer.stacked]
        leaves: list[Leaf] = []
        # Neighbours come apart together, so that the leaves of a copy stay beside each other.
        for among, group in groupby(state.leaves, partial(_is_among, ends)):
            run = list(group)
            leaves.extend(_apart(one, ends, run) if among else run)
        state = State.of(leaves)
    return state


def stack(state: State, network: Any) -> State:
    """Give the state of ``Repeat(n, layer, scan=True)``, from that of ``Repeat(n, layer)``.

    Parameters
    ----------
    state : State
        An optimizer's leaves too are stacked.
    network : module, or tuple, list or dict of modules
        The one with the :class:`ptml.layers.Scanned` layers.

    Returns
    -------
    State
        ``block0/fc/W``, ``block1/fc/W``, ... have become ``block/fc/W``. The loop's generator is the first
        copy's, from which each iteration derives one of its own: draws are others than the copies'.

    Raises
    ------
    ValueError
        If the network has no such layer, or the state lacks a copy or has unequal ones.

    Examples
    --------
    >>> import ptml
    >>> from ptml.layers import Linear, Repeat
    >>> layer = Linear("fc", n_in=3, n_out=3)
    >>> state = stack(ptml.init(Repeat(4, layer), seed=0), Repeat(4, layer, scan=True))
    >>> state["fc/W"].shape
    (4, 3, 3)
    """
    must_be_state(state, "stack takes a state and a network")
    for one in _stacks(network, "stack"):
        state = State.of(_together(one, state))
    return state


def _made(leaf: Leaf, address: str, value: np.ndarray) -> Leaf:
    """Give a leaf of the same kind, which belongs to no slot yet."""
    return Leaf(address, value, leaf.role, owner=leaf.owner)


def _apart(one: _Stack, ends: Sequence[str], leaves: Sequence[Leaf]) -> Iterator[Leaf]:
    for k in range(one.n):
        for leaf in leaves:
            end = _end(leaf.address, ends)
            before = leaf.address.removesuffix(str(end))
            address = f"{before}{one.copy(k)}{str(end).removeprefix(one.name)}"
            if leaf.role is Role.GENERATOR:
                value = np.array(leaf.value)
                value[:2] = folded_key(leaf.value.tolist(), k)
                yield _made(leaf, address, value)
            elif leaf.shape[:1] == (one.n,):
                yield _made(leaf, address, leaf.value[k])
            elif not before:
                raise ValueError(NO_STACK.format(address=leaf.address, shape=leaf.shape, n=one.n))


def _together(one: _Stack, state: State) -> Iterator[Leaf]:
    known = {leaf.address: leaf for leaf in state.leaves}
    ends = {f"{one.copy(k)}/{place}": place for place in one.layer.stacked for k in range(one.n)}
    done: set[str] = set()
    for leaf in state.leaves:
        end = _end(leaf.address, ends)
        if end is None:
            yield leaf
        elif leaf.address not in done:
            before, place = leaf.address.removesuffix(end), ends[end]
            names = [f"{before}{one.copy(k)}/{place}" for k in range(one.n)]
            done.update(names)
            missing = ", ".join([name for name in names if name not in known][:8])
            if missing:
                raise ValueError(LACKS.format(n=one.n, some=", ".join(names[:3]), missing=missing))
            yield _stacked(f"{before}{one.name}/{place}", [known[name] for name in names])


def _stacked(address: str, copies: Sequence[Leaf]) -> Leaf:
    first = copies[0]
    if first.role is Role.GENERATOR:
        return _made(first, address, first.value)
    for other in copies:
        if (other.dtype, other.shape) != (first.dtype, first.shape):
            given, wanted = (type_text(leaf.value) for leaf in (first, other))
            raise ValueError(
                UNEQUAL.format(first=first.address, other=other.address, given=given, wanted=wanted)
            )
    return _made(first, address, np.stack([leaf.value for leaf in copies]))
