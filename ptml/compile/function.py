"""The door to compiling: ``function``, and ``compile_predict`` on top of it."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from copy import copy
from functools import partial
from typing import Any

import attrs
import numpy as np
import pytensor
from pytensor.compile.io import In, Out, SymbolicInput, SymbolicOutput
from pytensor.compile.sharedvalue import SharedVariable
from pytensor.graph.basic import Constant, Variable
from pytensor.graph.replace import clone_replace

from ptml.application import Application
from ptml.backends.modes import Backend, backend_for
from ptml.compile.collector import collector_paused
from ptml.compile.hoist import Verdict, hoist_checks
from ptml.compile.lower import checked_updates, condense, lower
from ptml.compile.program import Program, Timings
from ptml.compile.thread import Threaded, thread
from ptml.flatten import calls_in
from ptml.network import Placed, lay_out
from ptml_state import Role, SlotVariable, State, Store

__all__ = ["compile_predict", "compiled", "function", "on_backend"]

NO_STATE = (
    "This prediction reads {addresses}, and random weights are nobody's wish. Give the trained state: "
    "state=program, state=program.store, or a State."
)
NOT_A_STATE = "state takes a State, a Store or a Program; got {given}. {remedy}"
SEED_OF_STORE = (
    "A store's seed was given when it was made: leave seed= out where state= is a Store or a Program."
)
NOT_AN_UPDATE_KEY = "updates takes {{handle: new value}}; {key!r} is no slot's handle and no shared variable."
GRADIENTS = (
    "updates are Gradients: nothing has decided a step, and to add gradients to the parameters would climb. "
    "Put a rule behind them, such as sgd(0.1)."
)
TWICE = "{key} has two updates."


def function(
    inputs: Sequence[Any] | None = None,
    outputs: Any = None,
    *,
    updates: Any = None,
    givens: Any = None,
    state: State | Store | Program | None = None,
    seed: int | None = None,
    backend: str | None = None,
    compile_kwargs: Mapping[str, Any] | None = None,
    **options: Any,
) -> Program:
    """Compile a graph with slots into a program.

    What the graph's layers remember is threaded through it: draws are numbered, statistics sequenced, clocks
    and generators advanced, and all of it written back at every call.

    Parameters
    ----------
    inputs : sequence of Variable or In, optional
        What a call takes. The graph's roots, in the order in which they were made, unless given.
    outputs : Variable, Out, or a sequence of them, optional
        What a call gives: an array for one, a list for a sequence.
    updates : Updates, mapping or pairs, optional
        New values of slots (by handle) or of shared variables.
    givens : mapping or pairs, optional
        Variables to put in the place of others.
    state : State, Store or Program, optional
        Where the program's state comes from: a new store is made from a `State`; a `Store`, or another
        program's, is shared. Leaves that it lacks are drawn.
    seed : int, optional
        Decides what is drawn; a random seed unless given.
    backend : {"numba", "c", "jax", "mlx", "pytorch"}, optional
        Where it runs; PyTensor's default mode decides unless given.
    compile_kwargs : mapping, optional
        Further arguments of ``pytensor.function``, such as ``{"mode": ...}``.
    **options
        The same, as keywords: ``mode``, ``name``, ``profile``, ``on_unused_input``, ...

    Returns
    -------
    Program

    Raises
    ------
    ValueError
        If two pieces of state have one address, or the state given belongs to another network.
    TypeError
        If an update has another dtype or shape than what it writes.

    Examples
    --------
    >>> import numpy as np
    >>> import ptml
    >>> from ptml.layers import Dropout, Input
    >>> X = Input("X", shape=(None, 4))
    >>> noisy = ptml.function([X], Dropout("drop", p=0.5)(X), seed=0)
    >>> one, other = noisy(np.ones((2, 4))), noisy(np.ones((2, 4)))
    >>> sorted(set(one.ravel()))
    [np.float64(0.0), np.float64(2.0)]
    >>> bool((one == other).all())
    False
    """
    return build(
        inputs,
        outputs,
        updates=updates,
        givens=givens,
        state=state,
        seed=seed,
        backend=backend,
        options={**(compile_kwargs or {}), **options},
    )


def compile_predict(
    outputs: Any,
    *,
    inputs: Sequence[Any] | None = None,
    state: State | Store | Program | None = None,
    seed: int | None = None,
    backend: str | None = None,
    compile_kwargs: Mapping[str, Any] | None = None,
) -> Program:
    """Compile a graph for prediction: dropout is gone, batch norm reads its running statistics.

    The program advances nothing.

    Parameters
    ----------
    outputs : Variable or sequence of Variable
        What a call gives.
    inputs, backend, compile_kwargs
        As for :func:`function`.
    state : State, Store or Program
        The trained state; needed where the graph has parameters or statistics.
    seed : int, optional
        Decides the random numbers of a graph that draws some in prediction too.

    Raises
    ------
    ValueError
        If the graph reads parameters or statistics and there is no state for them.

    Examples
    --------
    >>> import numpy as np
    >>> import ptml
    >>> from ptml.layers import Dropout, Input
    >>> X = Input("X", shape=(None, 4))
    >>> ptml.compile_predict(Dropout("drop", p=0.5)(X))(np.ones((1, 4)))
    array([[1., 1., 1., 1.]])
    """
    return build(
        inputs,
        outputs,
        state=state,
        seed=seed,
        backend=backend,
        options=dict(compile_kwargs or {}),
        training=False,
    )


@collector_paused()
def build(
    inputs: Sequence[Any] | None,
    outputs: Any,
    *,
    observed: Sequence[Variable] = (),
    updates: Any = None,
    givens: Any = None,
    state: State | Store | Program | None = None,
    seed: int | None = None,
    backend: str | None = None,
    options: dict[str, Any],
    training: bool = True,
    structure: Callable[[list[Any]], Any] | None = None,
    rates_set_by_data: tuple[str, ...] = (),
) -> Program:
    """Compile; see :func:`function` for what the arguments mean.

    Parameters
    ----------
    observed : sequence of Variable
        Outputs after the others, which advance nothing.
    training : bool
        Whether to compile for training or prediction.
    structure : callable, optional
        What to make of the list of results.
    rates_set_by_data : tuple of str
        The rules of a training step whose learning rate depends on the batch.
    """
    start = time.perf_counter()
    target = backend_for(backend, options.get("mode"))
    options = {**options, "mode": target.mode}
    wrapped = _as_outputs(outputs)
    if structure is None:
        structure = _one if isinstance(outputs, Variable | SymbolicOutput) else list
    graph = _Graph([output.variable for output in wrapped], list(observed), _as_updates(updates))
    if givens:
        graph = graph.changed(lambda variables: clone_replace(variables, givens))
    entries = None if inputs is None else [_as_input(entry) for entry in inputs]
    graph = graph.changed(partial(_with_roots, entries or ()))

    threaded = thread(graph.results, graph.observed, graph.updates, training=training)
    if entries is None:
        entries = [In(variable) for variable in _collected_inputs(threaded)]
    placed = lay_out(calls_in(graph.everything), threaded.slots)
    threaded = checked_updates(threaded, {place.slot: place.address for place in placed})
    store, draw = _store_for(state, seed, placed, training)
    borrowing = [output.borrow for output in wrapped] + [False] * len(observed)
    program = _compiled(threaded, placed, entries, borrowing, store, target, options, draw=draw)
    return attrs.evolve(
        program,
        timings=Timings(compile=time.perf_counter() - start),
        structure=structure,
        rates_set_by_data=rates_set_by_data,
    )


def _compiled(
    threaded: Threaded,
    placed: Sequence[Placed],
    entries: Sequence[SymbolicInput],
    borrowing: list[bool],
    store: Store,
    target: Backend,
    options: dict[str, Any],
    *,
    draw: bool,
) -> Program:
    """Compile what is threaded for a backend, over a store."""
    start = time.perf_counter()
    verdicts: list[Verdict] = []
    if not target.raises:
        threaded, verdicts = hoist_checks(threaded)
        threaded.outputs.extend(verdict.passed for verdict in verdicts)
    if store.residence not in ("numpy", target.residence):
        # Some linkers look at the values when they compile, and know no other library's arrays.
        store.move("numpy", np.asarray)
    cells = store.cells_for(placed, draw=draw)
    target.load()
    target.check([*(e.variable for e in entries), *(p.slot.handle for p in placed), *threaded.outputs])
    lowered = lower(condense(threaded, target), cells)
    if {entry.variable for entry in entries} <= {*lowered.roots}:
        options = {**options, "on_unused_input": "ignore"}  # PyTensor would look for what is found already
    borrowing = borrowing + [False] * len(verdicts)
    with target.context():
        made = pytensor.function(
            list(entries),
            [Out(variable, borrow=may) for variable, may in zip(lowered.outputs, borrowing, strict=True)],
            updates={
                **{cells[slot]: new for slot, new in lowered.updates.items()},
                **lowered.shared_updates,
            },
            **options,
        )
    store.adopt(placed, cells)
    return Program(
        inputs=tuple(entry.variable for entry in entries),
        store=store,
        function=made,
        backend=target,
        timings=Timings(compile=time.perf_counter() - start),
        rates_set_by_data=(),
        placed=tuple(placed),
        threaded=threaded,
        verdicts=tuple(verdicts),
        structure=list,
        options=options,
    )


def on_backend(program: Program, backend: str) -> Program:
    """Compile a program once more, for another backend, over a store of its own with the same values.

    Parameters
    ----------
    program : Program
    backend : {"numba", "c", "jax", "mlx", "pytorch"}

    Raises
    ------
    TypeError
        If the backend cannot compute what the program computes.
    """
    # Checks that a backend without errors gives as outputs are of no use to one that raises.
    kept = len(program._threaded.outputs) - len(program._verdicts)
    return compiled(
        program,
        threaded=attrs.evolve(program._threaded, outputs=program._threaded.outputs[:kept]),
        placed=program._placed,
        inputs=program.inputs,
        store=Store(program.store.state, seed=program.store.seed),
        backend=backend,
    )


def compiled(
    like: Program,
    *,
    threaded: Threaded,
    placed: Sequence[Placed],
    inputs: Sequence[Variable],
    store: Store,
    backend: str | None = None,
) -> Program:
    """Compile a threaded graph, with the options of a program, which gives its results in the same structure.

    Parameters
    ----------
    like : Program
    threaded : Threaded
        Its outputs are as many as the program's.
    placed : sequence of Placed
        Its slots.
    inputs : sequence of Variable
    store : Store
        It has a value of every slot.
    backend : str, optional
        The program's own unless given.
    """
    target = like.backend if backend is None else backend_for(backend)
    entries = [In(variable) for variable in inputs]
    options = {**like._options, "mode": target.mode}
    borrowing = [False] * len(threaded.outputs)
    made = _compiled(threaded, placed, entries, borrowing, store, target, options, draw=False)
    return attrs.evolve(made, structure=like._structure)


@attrs.frozen
class _Graph:
    """What is to be compiled: outputs, outputs that only observe, and updates by what they write."""

    results: list[Variable]
    observed: list[Variable]
    updates: dict[Variable, Variable]

    @property
    def everything(self) -> list[Variable]:
        return [*self.results, *self.observed, *self.updates.values()]

    def changed(self, change: Callable[[list[Variable]], Sequence[Variable]]) -> _Graph:
        """Give the same with every variable replaced by what `change` makes of it."""
        new = iter(change(self.everything))
        results, observed = [next(new) for _ in self.results], [next(new) for _ in self.observed]
        return _Graph(results, observed, {key: next(new) for key in self.updates})


def _one(results: list[Any]) -> Any:
    return results[0]


def _as_outputs(outputs: Any) -> list[SymbolicOutput]:
    if outputs is None:
        return []
    listed = [outputs] if isinstance(outputs, Variable | SymbolicOutput) else list(outputs)
    return [output if isinstance(output, SymbolicOutput) else Out(output) for output in listed]


def _as_input(entry: Any) -> SymbolicInput:
    return copy(entry) if isinstance(entry, SymbolicInput) else In(entry)


def _with_roots(entries: Sequence[SymbolicInput], graph: list[Variable]) -> list[Variable]:
    """Put a root in the place of each input that is computed from others, in the graph and the entry."""
    computed = [entry for entry in entries if entry.variable.owner is not None]
    roots = {entry.variable: entry.variable.type(name=entry.variable.name) for entry in computed}
    for entry in computed:
        entry.variable = roots[entry.variable]
    return clone_replace(graph, roots) if roots else graph


def _as_updates(updates: Any) -> dict[Variable, Variable]:
    from ptml.optim.updates import Gradients  # ptml.optim.train imports this module

    if isinstance(updates, Gradients):
        raise TypeError(GRADIENTS)
    pairs = list(updates.items() if isinstance(updates, Mapping) else updates or ())
    result: dict[Variable, Variable] = {}
    for key, new in pairs:
        if not isinstance(key, SlotVariable | SharedVariable):
            raise TypeError(NOT_AN_UPDATE_KEY.format(key=key))
        if key in result:
            raise ValueError(TWICE.format(key=key))
        result[key] = pytensor.tensor.as_tensor(new) if isinstance(key, SlotVariable) else new
    return result


def _collected_inputs(threaded: Threaded) -> list[Variable]:
    """Give the roots that a call must supply, in the order in which they were made."""
    roots: Iterable[Variable] = threaded.roots
    free = [
        root for root in roots if not isinstance(root, Constant | SharedVariable | SlotVariable | Application)
    ]
    return sorted(free, key=lambda root: int(root.auto_name.removeprefix("auto_")))


def _store_for(state: Any, seed: int | None, placed: Sequence[Placed], training: bool) -> tuple[Store, bool]:
    """Give the store, and whether parameters and statistics may be drawn into it."""
    if isinstance(state, Program):
        state = state.store
    if isinstance(state, Store):
        if seed is not None:
            raise ValueError(SEED_OF_STORE)
        return state, training
    if state is None:
        learned = [p.address for p in placed if p.role in (Role.PARAMETER, Role.STATISTIC)]
        if learned and not training:
            raise ValueError(NO_STATE.format(addresses=", ".join(learned)))
        return Store(seed=seed), True
    if isinstance(state, State):
        return Store(state, seed=seed), training
    remedy = "Make one of a mapping: State(mapping)." if isinstance(state, Mapping) else ""
    raise TypeError(NOT_A_STATE.format(given=type(state).__name__, remedy=remedy))
