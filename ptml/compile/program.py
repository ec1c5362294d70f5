"""Programs: what compiling returns."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Any

import attrs
import numpy as np
import pytensor
from pytensor.compile.executor import Function
from pytensor.compile.io import In
from pytensor.compile.sharedvalue import SharedVariable
from pytensor.graph.basic import Variable
from pytensor.graph.fg import FunctionGraph

from ptml.backends.modes import Backend
from ptml.compile.calling import trusting
from ptml.compile.hoist import Verdict
from ptml.compile.lower import condense, lower
from ptml.compile.memory import Memory, memory_of
from ptml.compile.thread import Threaded
from ptml.network import Placed
from ptml_state import Leaf, SlotVariable, State, Store
from ptml_state.archives import Wanted, wanted_by, wanted_places
from ptml_state.typetext import type_text
from ptml_state.where import AddressError

__all__ = ["Program", "Timings"]

WRONG_INPUT = "{name} takes {wanted}; got {given}. {remedy}"
SHARED = (
    "The program reads or writes the shared variables {names}, which are no part of a State: a pure program "
    "depends on its arguments alone. Declare a slot instead, or give their values as inputs."
)
LACKS = "The state given to `pure` lacks {missing}, which the program reads."
WRONG_LEAF = "The state given to `pure` has {address!r} as {given}, where {wanted} is declared."


@attrs.define
class Timings:
    """How long a program took, in seconds, each call timed until its results are there.

    Attributes
    ----------
    compile : float
        From the graph to the program.
    first_call : float or None
        The first call, in which a backend may compile too.
    calls : int
        How many calls there were after the first.
    total : float
        What those took together.
    """

    compile: float
    first_call: float | None = None
    calls: int = 0
    total: float = 0.0

    @property
    def mean_call(self) -> float | None:
        """What a call after the first took on average."""
        return self.total / self.calls if self.calls else None

    def record(self, seconds: float) -> None:
        """Count a call."""
        if self.first_call is None:
            self.first_call = seconds
        else:
            self.calls += 1
            self.total += seconds


@attrs.frozen(eq=False, repr=False, slots=False)
class Program:
    """A compiled graph over a store: call it with a batch.

    Made by :func:`ptml.function`, :func:`ptml.compile_train` and :func:`ptml.compile_predict`.

    Attributes
    ----------
    inputs : tuple of Variable
        What a call takes, in order.
    store : Store
        Where its state lives. Other programs may live there too.
    function : pytensor Function
        The compiled function: profile it, print it.
    backend : Backend
    timings : Timings
    rates_set_by_data : tuple of str
        The rules of a training step whose learning rate depends on the batch: on its size, where a schedule's
        horizon does.

    Examples
    --------
    >>> import numpy as np
    >>> import ptml
    >>> from ptml.layers import Input, Linear
    >>> X, fc = Input("X", shape=(None, 2)), Linear("fc", n_in=2, n_out=1)
    >>> program = ptml.function([X], fc(X), seed=0)
    >>> program(np.zeros((3, 2))).shape
    (3, 1)
    >>> list(program.state)
    ['fc/W', 'fc/b']
    """

    inputs: tuple[Variable, ...]
    store: Store
    function: Function
    backend: Backend
    timings: Timings
    rates_set_by_data: tuple[str, ...]
    _placed: tuple[Placed, ...]
    _threaded: Threaded
    _verdicts: tuple[Verdict, ...]
    _structure: Callable[[list[Any]], Any]
    _options: dict[str, Any]

    def __call__(self, *batch: Any, **named: Any) -> Any:
        """Run the program once.

        Parameters
        ----------
        *batch, **named : array-like
            The inputs, by position or name.

        Returns
        -------
        numpy arrays, as the outputs were given

        Raises
        ------
        TypeError
            If an input has another dtype or shape than declared and does not cast to it without loss.
        """
        if self.store.residence != self.backend.residence:
            self._move_in()
        start = time.perf_counter()
        try:
            results = self._run(*batch, **named)
        except Exception as error:
            raise self._explained(error, batch, named) from error
        arrays = self._arrays(results)
        self.timings.record(time.perf_counter() - start)
        return self._finished(arrays)

    def _move_in(self) -> None:
        """Let the store keep its values as the arrays of this program's backend."""
        with self.backend.context():
            self.store.move(self.backend.residence, self.backend.resident)

    @cached_property
    def _run(self) -> Callable[..., Any]:
        """The compiled function, within what the backend needs around a call."""
        return self.backend.within(trusting(self.function))

    @cached_property
    def _dtypes(self) -> list[np.dtype]:
        return [np.dtype(variable.type.dtype) for variable in self._threaded.outputs]

    def _finished(self, arrays: list[np.ndarray]) -> Any:
        """Raise what the backend could not, and give the outputs as they were asked for."""
        if not self._verdicts:
            return self._structure(arrays)
        kept = len(arrays) - len(self._verdicts)
        for verdict, passed in zip(self._verdicts, arrays[kept:], strict=True):
            if not passed:
                raise type(verdict.error)(*verdict.error.args)
        return self._structure(arrays[:kept])

    def _arrays(self, results: Sequence[Any]) -> list[np.ndarray]:
        """Give results as numpy arrays of the dtypes declared, whatever the backend works in."""
        return [
            result if type(result) is np.ndarray and result.dtype is dtype else np.asarray(result, dtype)
            for result, dtype in zip(results, self._dtypes, strict=True)
        ]

    def _explained(self, error: Exception, batch: Sequence[Any], named: dict[str, Any]) -> Exception:
        """Give the error that says what to write instead, where we know."""
        for variable, value in [*zip(self.inputs, batch, strict=False), *self._by_name(named)]:
            if (wrong := _wrong_input(variable, value)) is not None:
                return wrong
        cause: BaseException | None = error
        while cause is not None:
            # A compiled kernel cannot write numbers into a text; it hands on the text and the numbers.
            if len(cause.args) > 1 and isinstance(cause.args[0], str) and "{" in cause.args[0]:
                return type(cause)(cause.args[0].format(*cause.args[1:]))  # type: ignore[return-value]
            cause = cause.__context__
        return error

    def _by_name(self, named: dict[str, Any]) -> list[tuple[Variable, Any]]:
        known = {variable.name: variable for variable in self.inputs}
        return [(known[name], value) for name, value in named.items() if name in known]

    @property
    def state(self) -> State:
        """A snapshot of the program's own slots; ``program.store.state`` has every leaf."""
        return self.store.snapshot(place.slot for place in self._placed)

    def memory(self) -> Memory:
        """Add up the memory that the program holds: its state, its buffers, and what the last call left.

        Returns
        -------
        Memory
            In bytes; what a backend does not say is None.
        """
        return memory_of(self.function, [place.slot for place in self._placed])

    @property
    def slots(self) -> tuple[SlotVariable, ...]:
        """The handles of the slots that the program reads or writes, in the order of their leaves."""
        return tuple(place.slot.handle for place in self._placed)

    def _explicit(self, threaded: Threaded) -> tuple[list[Variable], list[Variable]]:
        """Give a graph with its state as inputs and outputs: (state and batch), (outputs and new values)."""
        roots = [*self._threaded.roots, *self._threaded.shared_updates]
        if shared := dict.fromkeys(str(root) for root in roots if isinstance(root, SharedVariable)):
            raise ValueError(SHARED.format(names=", ".join(shared)))
        entries = {place.slot: place.slot.type(name=place.address) for place in self._placed}
        return [*entries.values(), *self.inputs], lower(threaded, entries).everything

    @cached_property
    def _pure_function(self) -> Callable[..., Any]:
        inputs, outputs = self._explicit(condense(self._threaded, self.backend))
        options = {**self._options, "on_unused_input": "ignore"}
        with self.backend.context():
            compiled = pytensor.function([In(v, borrow=True) for v in inputs], outputs, **options)
        return self.backend.within(compiled)

    def pure(self, state: State, *batch: Any) -> tuple[Any, State]:
        """Run the program on a state given, and give the state that it leads to.

        Nothing is remembered: the program's store, and the state given, stay as they are.

        Parameters
        ----------
        state : State
            It has at least the program's leaves. Others pass through.
        *batch : array-like
            The inputs.

        Returns
        -------
        outputs, State
            As a call gives them, and the state after it.
        """
        missing = [place.address for place in self._placed if place.address not in state]
        if missing:
            raise AddressError(LACKS.format(missing=", ".join(missing)))
        values = [np.asarray(state[place.address]) for place in self._placed]
        try:
            results = self._pure_function(*values, *batch)
        except Exception as error:
            raise self._wrong_leaf(state) or self._explained(error, batch, {}) from error
        n = len(self._threaded.outputs)
        dtypes = [slot.dtype for slot in self._threaded.updates]
        new = [np.array(value, dtype) for value, dtype in zip(results[n:], dtypes, strict=True)]
        return self._finished(self._arrays(results[:n])), self._after(state, new)

    def _wrong_leaf(self, state: State) -> TypeError | None:
        """Find a leaf of another shape than declared, or of a dtype that does not cast to it without loss."""
        for place in self._placed:
            slot, value = place.slot, state[place.address]
            if value.shape != slot.shape or not np.can_cast(value.dtype, slot.dtype, "safe"):
                wanted, given = type_text(slot), type_text(value)
                return TypeError(WRONG_LEAF.format(address=place.address, given=given, wanted=wanted))
        return None

    def _after(self, state: State, new: Sequence[Any]) -> State:
        addresses = {place.slot: place.address for place in self._placed}
        changed = dict(zip((addresses[slot] for slot in self._threaded.updates), new, strict=True))
        return State.of(
            _with_value(leaf, changed[leaf.address]) if leaf.address in changed else leaf
            for leaf in state.leaves
        )

    def to_jax(self) -> Callable[..., Any]:
        """Give the pure program as a plain JAX function.

        Returns
        -------
        callable
            ``f(state, *batch) -> (outputs, new_state)``, for ``jax.jit``, ``jax.grad``, ``jax.vmap`` and
            device meshes. A `State` is a pytree.

        Raises
        ------
        ImportError
            If JAX is not installed.

        Notes
        -----
        JAX decides what becomes of 64-bit numbers: unless ``jax_enable_x64`` is set, it makes them
        32-bit ones, clocks among them.

        On a device mesh its axes are of type ``jax.sharding.AxisType.Auto``, so that JAX finds out by itself
        where what is computed lives.
        """
        from ptml.backends.jax.export import jax_function

        inputs, outputs = self._explicit(self._threaded)
        compute = jax_function(FunctionGraph(inputs, outputs, clone=True))
        addresses = [place.address for place in self._placed]
        n = len(self._threaded.outputs)
        kept = n - len(self._verdicts)

        def pure(state: State, *batch: Any) -> tuple[Any, State]:
            if (wrong := self._wrong_leaf(state)) is not None:
                raise wrong
            results = compute(*(state[address] for address in addresses), *batch)
            return self._structure(list(results[:kept])), self._after(state, results[n:])

        return pure

    def __repr__(self) -> str:
        inputs = ", ".join(
            f"{variable.name or variable}: {type_text(variable.type)}" for variable in self.inputs
        )
        return f"<Program({inputs}) on {self.backend.name}, {len(self._placed)} leaves>"


@wanted_by.register
def _(like: Program, seed: int | None) -> list[Wanted]:
    return wanted_places(like._placed, like.store.seed if seed is None else seed)


def _with_value(leaf: Leaf, value: Any) -> Leaf:
    return attrs.evolve(leaf, value=value)


def _wrong_input(variable: Variable, value: Any) -> TypeError | None:
    try:
        array = np.asarray(value)
    except ValueError:
        return None
    name = variable.name or str(variable)
    wanted, shape = type_text(variable.type), variable.type.shape
    if array.ndim != len(shape) or any(
        want is not None and want != have for want, have in zip(shape, array.shape, strict=True)
    ):
        remedy = "Reshape it, or declare the input with that shape."
    elif not np.can_cast(array.dtype, variable.type.dtype, "safe"):
        declared, given = variable.type.dtype, str(array.dtype)
        remedy = f"Cast it: {name}.astype({declared!r}), or declare the input with dtype={given!r}."
    else:
        return None
    return TypeError(WRONG_INPUT.format(name=name, wanted=wanted, given=type_text(array), remedy=remedy))
