"""Arithmetic of states: average them, go from one to another, take and add their differences.

All of it moves floating-point leaves. What cannot be averaged (random keys, step counts, other integers) is
the first state's. So are addresses, order, roles and dtypes; numbers are computed in float64 and rounded
once.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import attrs
import numpy as np

from ptml_state.edit import must_be_state
from ptml_state.leaf import Leaf, is_extension
from ptml_state.state import State
from ptml_state.typetext import type_text
from ptml_state.where import find
from ptml_state.where import where as selector

__all__ = ["add", "average", "cosines", "difference", "floating", "interpolate", "map_states", "norms"]

DIFFERENT_LEAVES = """\
{rule} takes states of the same leaves, and state {number} differs from the first:
{differences}
Rename or leave out what differs (state.rename, state.drop), or say by where= which leaves are meant."""
NOT_ADDED = """\
add: the state does not have what difference {number} holds:
{differences}
Take the difference of states of this network, difference(end, start), or say by where= what to add of it."""
NO_DIFFERENCE = (
    "add: {address!r} of difference {number} is {given}, and a difference holds floating-point leaves only. "
    "Make it by difference(end, start)."
)
NO_STATES = "{rule} takes one state or more; got none."
ONE_STATE = "{rule} takes several states in a list, as [one, other]; got {given}."
WEIGHTS = (
    "average: weights are one number of 0 or more for each state, and not all are 0; got {given} for {count} "
    "states."
)
GAVE_ANOTHER = (
    "map_states: the function gave {new} for {address!r}, which is {old}. It keeps the shape{real}."
)
NOT_A_NUMBER = "{rule}: {argument} must be a finite number; got {given!r}."


def floating(state: State, where: Any = None) -> dict[str, Leaf]:
    """Give the floating-point leaves of a state that a selector matches, by address.

    Parameters
    ----------
    state : State
    where : selector, optional
        All unless given. Leaves of other dtypes that it matches are left out.

    Raises
    ------
    KeyError
        If a name in the selector matches nothing.

    Examples
    --------
    >>> list(floating(State({"fc/W": [1.0], "adam/step_count": 3})))
    ['fc/W']
    """
    chosen = state.leaves if where is None else find(where, state.leaves)
    return {leaf.address: leaf for leaf in chosen if _is_floating(leaf)}


def _is_floating(leaf: Leaf) -> bool:
    return leaf.dtype.kind in "fc" or is_extension(leaf.dtype)


def _wide(leaf: Leaf) -> np.ndarray:
    return np.asarray(leaf.value).astype(np.complex128 if leaf.dtype.kind == "c" else np.float64, copy=False)


def _with_value(leaf: Leaf, value: Any) -> Leaf:
    array = np.array(value, dtype=leaf.dtype, order="C")
    array.flags.writeable = False
    return attrs.evolve(leaf, value=array)


def _number(value: Any, rule: str, argument: str) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float | np.integer | np.floating):
        raise TypeError(NOT_A_NUMBER.format(rule=rule, argument=argument, given=value))
    if not math.isfinite(value):
        raise ValueError(NOT_A_NUMBER.format(rule=rule, argument=argument, given=value))
    return float(value)


def _matched(states: Sequence[State], where: Any, rule: str) -> list[dict[str, Leaf]]:
    """Give the leaves meant of each state, the same addresses and shapes in all, in the first one's order."""
    if not states:
        raise ValueError(NO_STATES.format(rule=rule))
    for state in states:
        must_be_state(state, f"{rule} takes states")
    first = floating(states[0], where)
    meant = None if where is None else selector(where)
    matched = [first]
    for number, state in enumerate(states[1:], 2):
        # What the selector finds by an owner or a role in the first is meant by its address in the others.
        other = {
            address: leaf
            for address, leaf in floating(state).items()
            if address in first or meant is None or meant.matches(leaf)
        }
        differences = _differences(first, other, "the first", f"state {number}")
        if differences:
            raise ValueError(
                DIFFERENT_LEAVES.format(rule=rule, number=number, differences="\n".join(differences))
            )
        matched.append({address: other[address] for address in first})
    return matched


def _differences(one: Mapping[str, Leaf], other: Mapping[str, Leaf], name: str, other_name: str) -> list[str]:
    lines = [f"  only in {name}: {address}" for address in one if address not in other]
    lines += [f"  only in {other_name}: {address}" for address in other if address not in one]
    lines += [
        f"  {address}: {type_text(leaf.value)} and {type_text(other[address].value)}"
        for address, leaf in one.items()
        if address in other and leaf.shape != other[address].shape
    ]
    return lines


def _applied(f: Callable[..., Any], states: Sequence[State], where: Any, rule: str) -> dict[str, Leaf]:
    matched = _matched(states, where, rule)
    made = {}
    for address, leaf in matched[0].items():
        value = np.asarray(f(*(_wide(leaves[address]) for leaves in matched)))
        if value.shape != leaf.shape or value.dtype.kind not in (
            "biufc" if leaf.dtype.kind == "c" else "biuf"
        ):
            real = "" if leaf.dtype.kind == "c" else ", and gives real numbers"
            raise ValueError(
                GAVE_ANOTHER.format(
                    new=type_text(value), address=address, old=type_text(leaf.value), real=real
                )
            )
        made[address] = _with_value(leaf, value)
    return made


def _put(state: State, leaves: Mapping[str, Leaf]) -> State:
    return State.of(leaves.get(leaf.address, leaf) for leaf in state.leaves)


def map_states(f: Callable[..., Any], *states: State, where: Any = None) -> State:
    """Give the first state, its floating-point leaves a function of those of all states.

    Parameters
    ----------
    f : callable
        ``f(array, array, ...) -> array``, given a leaf's value in each state, in float64 whatever its dtype,
        read-only. The result has the shape of the leaf, and is rounded to its dtype.
    *states : State
        They have the same leaves, as far as `where` goes; dtypes may differ.
    where : selector, optional
        Which floating-point leaves; all unless given. Those that it leaves out are not compared.

    Returns
    -------
    State
        The first state's addresses, roles and dtypes; the leaves that are left out as they are there.

    Raises
    ------
    ValueError
        If the states have different leaves or shapes, listing all differences; if the function gives another
        shape.
    KeyError
        If a name in `where` matches nothing.

    Examples
    --------
    >>> import numpy as np
    >>> one, other = State({"fc/W": [1.0, -3.0]}), State({"fc/W": [2.0, 2.0]})
    >>> map_states(lambda a, b: np.where(abs(a) > abs(b), a, b), one, other)["fc/W"]
    array([ 2., -3.])
    """
    made = _applied(_reading(f), states, where, "map_states")
    return _put(states[0], made)


def _reading(f: Callable[..., Any]) -> Callable[..., Any]:
    """Give a function of arrays that cannot be written to."""

    def read(*arrays: np.ndarray) -> Any:
        views = [array.view() for array in arrays]
        for view in views:
            view.flags.writeable = False
        return f(*views)

    return read


def average(states: Iterable[State], weights: Iterable[float] | None = None, *, where: Any = None) -> State:
    """Average states leaf by leaf: checkpoints of one run, or runs that began at one state.

    Parameters
    ----------
    states : iterable of State
        One or more, of the same leaves.
    weights : iterable of float, optional
        One for each state, of 0 or more; only their proportions count. All alike unless given.
    where : selector, optional
        Which floating-point leaves are averaged; all unless given, an optimizer's moments among them.

    Returns
    -------
    State
        The first state's roles and dtypes, and its leaves where there is nothing to average: keys, step
        counts, whatever `where` leaves out.

    Raises
    ------
    ValueError
        If the states have different leaves or shapes, listing all differences, or the weights make no
        average.
    KeyError
        If a name in `where` matches nothing.

    References
    ----------
    Izmailov and others, "Averaging Weights Leads to Wider Optima and Better Generalization", 2018. Wortsman
    and others, "Model soups", 2022.

    Examples
    --------
    >>> one, other = State({"fc/W": [1.0], "step_count": 10}), State({"fc/W": [4.0], "step_count": 20})
    >>> average([one, other])["fc/W"], int(average([one, other])["step_count"])
    (array([2.5]), 10)
    >>> average([one, other], [2, 1])["fc/W"]
    array([2.])
    """
    if isinstance(states, Mapping):
        raise TypeError(ONE_STATE.format(rule="average", given=type(states).__name__))
    several = list(states)
    shares = [1.0] * len(several) if weights is None else list(weights)
    shares = [_number(share, "average", "a weight") for share in shares]
    if len(shares) != len(several) or any(share < 0 for share in shares) or (several and not sum(shares)):
        raise ValueError(WEIGHTS.format(given=shares, count=len(several)))
    total = math.fsum(shares)

    def weighted(*arrays: np.ndarray) -> Any:
        # One that counts for nothing adds nothing, not even where it is infinite.
        terms = [share * array for share, array in zip(shares, arrays, strict=True) if share]
        return sum(terms[1:], start=terms[0]) / total

    made = _applied(weighted, several, where, "average")
    return _put(several[0], made)


def interpolate(start: State, end: State, share: float, *, where: Any = None) -> State:
    """Go part of the way from one state to another: ``start + share * (end - start)``.

    Parameters
    ----------
    start, end : State
        They have the same leaves.
    share : float
        How far: 0 is the start, 1 the end, exactly. Below 0 and above 1 it leads beyond them.
    where : selector, optional
        Which floating-point leaves move; all unless given. The others are the start's.

    Raises
    ------
    ValueError
        If the states have different leaves or shapes, listing all differences, or the share is not finite.
    KeyError
        If a name in `where` matches nothing.

    Notes
    -----
    ``kept = interpolate(kept, state, 1 - decay)``, time and again, is an exponential moving average.

    Examples
    --------
    >>> interpolate(State({"fc/W": [1.0]}), State({"fc/W": [5.0]}), 0.25)["fc/W"]
    array([2.])
    """
    part = _number(share, "interpolate", "share")

    def between(a: np.ndarray, b: np.ndarray) -> Any:
        return b if part == 1 else a if part == 0 else a + part * (b - a)

    return _put(start, _applied(between, (start, end), where, "interpolate"))


def difference(end: State, start: State, *, where: Any = None) -> State:
    """Take the difference of two states: what training added to where it began.

    Parameters
    ----------
    end, start : State
        They have the same leaves.
    where : selector, optional
        Which floating-point leaves; all unless given.

    Returns
    -------
    State
        Those leaves alone, each ``end - start`` rounded to the dtype of `end`, for :func:`add`. Of
        ``end.astype("float64")`` it is kept in float64.

    Raises
    ------
    ValueError
        If the states have different leaves or shapes, listing all differences.
    KeyError
        If a name in `where` matches nothing.

    References
    ----------
    Ilharco and others, "Editing Models with Task Arithmetic", 2022.

    Examples
    --------
    >>> begun, tuned = State({"fc/W": [1.0], "step_count": 0}), State({"fc/W": [1.5], "step_count": 9})
    >>> difference(tuned, begun)
    State(1 leaf, 8 B: fc/W float64[1])
    """
    return State.of(_applied(np.subtract, (end, start), where, "difference").values())


def add(state: State, *differences: State, scale: float = 1.0, where: Any = None) -> State:
    """Add differences to a state: ``state + scale * (d1 + d2 + ...)``.

    Parameters
    ----------
    state : State
    *differences : State
        From :func:`difference`. Each may have some of the state's leaves; what none has stays as it is.
    scale : float, default 1.0
        A factor; a negative one takes the differences away.
    where : selector, optional
        Which leaves of the differences are added; all unless given.

    Raises
    ------
    ValueError
        If the state lacks leaves of a difference, or has them in another shape, listing all; if the scale is
        not finite.
    TypeError
        If a difference holds a leaf that is no floating-point one.
    KeyError
        If a name in `where` matches nothing in a difference.

    Examples
    --------
    >>> base, tuned = State({"fc/W": [1.0], "step_count": 0}), State({"fc/W": [1.5], "step_count": 9})
    >>> task = difference(tuned, base)
    >>> add(base, task)["fc/W"], add(base, task, scale=-1)["fc/W"]
    (array([1.5]), array([0.5]))
    """
    must_be_state(state, "add takes states")
    factor = _number(scale, "add", "scale")
    own = floating(state)
    sums: dict[str, np.ndarray] = {}
    for number, change in enumerate(differences, 1):
        must_be_state(change, "add takes states")
        given = change if where is None else change.select(where)
        odd = next((leaf for leaf in given.leaves if not _is_floating(leaf)), None)
        if odd is not None:
            raise TypeError(
                NO_DIFFERENCE.format(address=odd.address, number=number, given=type_text(odd.value))
            )
        moves = {leaf.address: leaf for leaf in given.leaves}
        lines = _differences(
            {address: leaf for address, leaf in own.items() if address in moves},
            moves,
            "the state",
            f"difference {number}",
        )
        if lines:
            raise ValueError(NOT_ADDED.format(number=number, differences="\n".join(lines)))
        for address, leaf in moves.items():
            sums[address] = sums[address] + _wide(leaf) if address in sums else _wide(leaf)
    return _put(
        state,
        {
            address: _with_value(own[address], _wide(own[address]) + factor * sums[address])
            for address in sums
        },
    )


def norms(state: State, *, where: Any = None) -> dict[str, float]:
    """Give the Euclidean norm of each floating-point leaf.

    Parameters
    ----------
    state : State
    where : selector, optional
        Which floating-point leaves; all unless given.

    Returns
    -------
    dict from address to float
        ``math.hypot(*norms(state).values())`` is the norm of all together.

    Raises
    ------
    KeyError
        If a name in `where` matches nothing.

    Examples
    --------
    >>> one, other = State({"fc/W": [3.0, 4.0]}), State({"fc/W": [3.0, 5.0]})
    >>> norms(one), norms(difference(other, one))
    ({'fc/W': 5.0}, {'fc/W': 1.0})
    """
    must_be_state(state, "norms takes a state")
    return {address: _norm(_wide(leaf)) for address, leaf in floating(state, where).items()}


def _norm(array: np.ndarray) -> float:
    return float(np.linalg.norm(array.ravel()))


def cosines(one: State, other: State, *, where: Any = None) -> dict[str, float]:
    """Give the cosine of the angle between each floating-point leaf of two states.

    Parameters
    ----------
    one, other : State
        They have the same leaves.
    where : selector, optional
        Which floating-point leaves; all unless given.

    Returns
    -------
    dict from address to float
        From -1 to 1; NaN where a leaf is all zeros and so has no direction. Of complex leaves the real part.

    Raises
    ------
    ValueError
        If the states have different leaves or shapes, listing all differences.
    KeyError
        If a name in `where` matches nothing.

    Examples
    --------
    >>> cosines(State({"fc/W": [1.0, 0.0]}), State({"fc/W": [0.0, 2.0]}))
    {'fc/W': 0.0}
    """
    first, second = _matched((one, other), where, "cosines")
    found = {}
    for address, leaf in first.items():
        a, b = _wide(leaf).ravel(), _wide(second[address]).ravel()
        lengths = _norm(a) * _norm(b)
        found[address] = float(np.vdot(a, b).real) / lengths if lengths else math.nan
    return found
