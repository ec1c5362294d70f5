"""Ensembles: one program that runs many networks of one kind at once, their states stacked leaf by leaf."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import attrs
import numpy as np
from pytensor.graph.basic import Variable
from pytensor.graph.replace import vectorize_graph

from ptml.compile.function import compiled
from ptml.compile.lower import checked_updates
from ptml.compile.program import Program
from ptml.network import Placed
from ptml_state import Leaf, Slot, State, Store
from ptml_state.store import first_values

__all__ = ["stack_members", "unstack_members", "vectorize"]

NO_SEEDS = "vectorize(program, seeds): give one seed for each member, such as range(16), or their states."
NOT_AN_INPUT = "vectorize: batched= names inputs of the program, which are {known}; got {given!r}."
SHARED = "vectorize: the program writes shared variables of PyTensor's own, {names}; declare slots instead."
CANNOT = (
    "vectorize cannot give {op} a member axis: {reason}. Networks with loops run one by one, by "
    "`program.store.load(state)`."
)
DIFFERENT = "Members have the same leaves; {address!r} is {one} in the first, and {other} in member {k}."
NO_MEMBERS = "There are no states to stack."
NOT_STACKED = "{address!r} has {given} members along its first axis, where {first!r} has {wanted}."


def vectorize(
    program: Program,
    seeds: Iterable[int | State],
    *,
    batched: Sequence[str | Variable] = (),
    backend: str | None = None,
) -> Program:
    """Compile a program that runs many members at once: what one computes, with an axis of members ahead.

    Every leaf of the state gets an axis of members, and so does every result; a member's numbers are those
    that it has by itself. Small networks are limited by what a call costs, not by what it computes, and that
    is paid once here.

    Parameters
    ----------
    program : Program
        A training step or a prediction. It, and its store, stay as they are.
    seeds : iterable of int or State
        One for each member: what decides its first values, as ``seed=`` does when one is compiled, or a state
        that has them all.
    batched : sequence of input or name, optional
        Inputs of which each member gets its own, with an axis of members ahead. All others are shared.
    backend : {"numba", "c", "jax", "mlx", "pytorch"}, optional
        The program's own unless given.

    Returns
    -------
    Program
        Over a store of its own. :func:`unstack_members` takes its state apart.

    Raises
    ------
    ValueError
        If there are no seeds, or an input is none.
    TypeError
        If something in the graph cannot have an axis more, such as a loop.

    Examples
    --------
    >>> import numpy as np
    >>> import ptml
    >>> from ptml.layers import Input, Linear
    >>> from ptml.loss import SquaredError, supervised_loss
    >>> from ptml.optim import adam, compile_train
    >>> X, fc = Input("X", shape=(None, 2)), Linear("fc", n_in=2, n_out=1)
    >>> loss, y = supervised_loss(fc(X), SquaredError())
    >>> step = compile_train(loss, adam(1e-2), seed=0)
    >>> ensemble = ptml.vectorize(step, seeds=range(4))
    >>> ensemble(np.ones((8, 2)), np.zeros((8, 1))).shape
    (4,)
    >>> first, *others = ptml.unstack_members(ensemble.state)
    >>> first["fc/W"].shape, ensemble.state["fc/W"].shape
    ((2, 1), (4, 2, 1))
    """
    states = [_first(program, seed) for seed in seeds]
    if not states:
        raise ValueError(NO_SEEDS)
    n = len(states)
    own = _inputs_of_members(program, batched)
    if program._threaded.shared_updates:
        raise TypeError(SHARED.format(names=", ".join(map(str, program._threaded.shared_updates))))
    placed = [_stacked_place(place, n) for place in program._placed]
    handles = {old.slot.handle: new.slot.handle for old, new in zip(program._placed, placed, strict=True)}
    inputs = {variable: _with_members(variable, n) for variable in program.inputs if variable in own}
    threaded = program._threaded
    kept = len(threaded.outputs) - len(program._verdicts)
    graphs = [*threaded.outputs[:kept], *threaded.updates.values()]
    try:
        made = vectorize_graph(graphs, {**handles, **inputs})
    except NotImplementedError as error:
        raise TypeError(CANNOT.format(op="a part of the graph", reason=error)) from error
    stacked = {old.slot: new.slot for old, new in zip(program._placed, placed, strict=True)}
    updates = {stacked[slot]: new for slot, new in zip(threaded.updates, made[kept:], strict=True)}
    whole = attrs.evolve(threaded, outputs=list(made[:kept]), updates=updates)
    whole = checked_updates(whole, {place.slot: place.address for place in placed})
    return compiled(
        program,
        threaded=whole,
        placed=placed,
        inputs=[inputs.get(variable, variable) for variable in program.inputs],
        store=Store(stack_members(states)),
        backend=backend,
    )


def _first(program: Program, seed: int | State) -> State:
    """Give a member's first state."""
    if isinstance(seed, State):
        return seed
    values = first_values(program._placed, int(seed))
    return State.of(
        Leaf(place.address, values[place.slot], place.role, owner=place.owner) for place in program._placed
    )


def _inputs_of_members(program: Program, batched: Sequence[str | Variable]) -> set[Variable]:
    names = {variable.name: variable for variable in program.inputs}
    own = set()
    for given in batched:
        variable = names.get(given) if isinstance(given, str) else given
        if variable not in program.inputs:
            raise ValueError(NOT_AN_INPUT.format(known=", ".join(map(str, names)), given=given))
        own.add(variable)
    return own


def _stacked_place(place: Placed, n: int) -> Placed:
    slot = place.slot
    stacked = Slot(place.address, slot.role, slot.dtype, (n, *slot.shape), slot.initializer)
    return Placed(stacked, place.address)


def _with_members(variable: Any, n: int) -> Variable:
    return variable.type.clone(shape=(n, *variable.type.shape))(name=variable.name)


def stack_members(states: Iterable[State]) -> State:
    """Join the states of members to one, with an axis of members ahead in each leaf.

    Parameters
    ----------
    states : iterable of State
        Of the same leaves.

    Raises
    ------
    ValueError
        If leaves differ, or there are no states.

    Examples
    --------
    >>> import ptml
    >>> from ptml_state import State
    >>> ptml.stack_members([State({"fc/b": [1.0]}), State({"fc/b": [2.0]})])["fc/b"].tolist()
    [[1.0], [2.0]]
    """
    members = list(states)
    if not members:
        raise ValueError(NO_MEMBERS)
    first = members[0]
    for k, member in enumerate(members[1:], 1):
        for address in dict.fromkeys([*first, *member]):
            one, other = (_kind(state, address) for state in (first, member))
            if one != other:
                raise ValueError(DIFFERENT.format(address=address, one=one, other=other, k=k))
    return State.of(
        attrs.evolve(leaf, value=np.stack([member[leaf.address] for member in members]), uid=None)
        for leaf in first.leaves
    )


def _kind(state: State, address: str) -> str:
    return f"{state[address].dtype}{list(state[address].shape)}" if address in state else "absent"


def unstack_members(state: State) -> list[State]:
    """Take the state of an ensemble apart: one state for each member, as a program of its own has it.

    Parameters
    ----------
    state : State

    Raises
    ------
    ValueError
        If leaves have another number of members.

    Examples
    --------
    >>> import ptml
    >>> from ptml_state import State
    >>> [member["fc/b"].tolist() for member in ptml.unstack_members(State({"fc/b": [[1.0], [2.0]]}))]
    [[1.0], [2.0]]
    """
    leaves = state.leaves
    sizes = {leaf.address: leaf.value.shape[0] if leaf.value.ndim else 0 for leaf in leaves}
    for address, size in sizes.items():
        if size != (wanted := sizes[leaves[0].address]):
            raise ValueError(
                NOT_STACKED.format(address=address, given=size, first=leaves[0].address, wanted=wanted)
            )
    n = sizes[leaves[0].address] if leaves else 0
    return [State.of(attrs.evolve(leaf, value=leaf.value[k], uid=None) for leaf in leaves) for k in range(n)]
