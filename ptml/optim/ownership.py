"""Who owns the state that a transform allocates: the outermost transform that is running.

A transform called twice, or compiled into two programs, has one set of moments, since the slots that it
declares are kept with it. Inside a chain they are kept with the chain, by the place where the transform
that declares them stands, so that two equal transforms of one chain do not share.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextvars import ContextVar
from typing import Any

import attrs
import pytensor
from pytensor.graph.basic import Variable

from ptml.declare import FreshKey
from ptml.holds import Hold
from ptml.initializers import Constant
from ptml.module import Module
from ptml_state import Role, Slot, SlotVariable
from ptml_state.slot import Copied

__all__ = [
    "ReusesState",
    "counter",
    "enclosing",
    "is_running",
    "key_for_draws",
    "reuses_state",
    "running",
    "scalar_state",
    "sharing_clocks",
    "state_for",
]

NOT_A_HANDLE = "state_for makes state for a parameter: give its handle, such as fc1.W; got {got!r}."
NO_FILL_VALUE = "state_for's fill_value is a number, or the parameter {parameter!r} itself; got {got!r}."
NOT_A_FUNCTION = "reuses_state takes a function of (loss, parameters) that gives updates; got {got!r}."

#: The attribute of an owner that holds its slots. No field, so copies and pickles leave it behind.
KEPT = "_kept_state"


@attrs.frozen(eq=False)
class _Frame:
    """A transform that is running, inside the outermost one, `owner`.

    Attributes
    ----------
    module : Module
        The transform, or what it runs in where it is a function: what the state that it declares belongs to.
    holds : tuple of Hold
        What may hold back what it writes.
    """

    owner: Module
    path: tuple[int, ...]
    transform: Any
    module: Module
    holds: tuple[Hold, ...]
    outer: _Frame | None
    inner: Iterator[int] = attrs.field(init=False, factory=itertools.count)


_current: ContextVar[_Frame | None] = ContextVar("running_transform", default=None)


def is_running(transform: Any) -> bool:
    """Say whether a transform is the innermost one that runs."""
    frame = _current.get()
    return frame is not None and frame.transform is transform


def enclosing() -> list[Any]:
    """Give the transforms that the innermost one runs in, from the inside out."""
    frame, found = _current.get(), []
    while frame is not None and frame.outer is not None:
        frame = frame.outer
        found.append(frame.transform)
    return found


@contextlib.contextmanager
def running(transform: Any, holds: Iterable[Hold] = ()) -> Iterator[None]:
    """Run a transform: the state that is declared meanwhile is its own, or its outermost transform's.

    Parameters
    ----------
    transform : Module, or function inside of one
    holds : iterable of Hold
        What may hold back what it writes: they cover the clocks that it declares too.
    """
    outer = _current.get()
    if outer is None:
        frame = _Frame(transform, (), transform, transform, tuple(holds), None)
    else:
        path = (*outer.path, next(outer.inner))
        module = transform if isinstance(transform, Module) else outer.module
        frame = _Frame(outer.owner, path, transform, module, (*outer.holds, *holds), outer)
    token = _current.set(frame)
    try:
        yield
    finally:
        _current.reset(token)


def _owned(
    name: str,
    role: Role,
    dtype: str,
    shape: tuple[int, ...],
    initializer: Callable[..., Any],
    of: Slot | None = None,
) -> SlotVariable:
    frame = _current.get()
    declares = None if frame is None else frame.module

    def allocate() -> SlotVariable:
        return Slot(name, role, dtype, shape, initializer, owner=declares, of=of).handle

    if frame is None:
        return allocate()
    kept: dict[Any, SlotVariable] = vars(frame.owner).setdefault(KEPT, {})
    key = (frame.path, name, dtype, of)
    if key not in kept:
        kept[key] = allocate()
    return kept[key]


def state_for(
    parameter: SlotVariable,
    slot: str,
    fill_value: float | SlotVariable = 0.0,
    *,
    dtype: str | None = None,
    shape: tuple[int, ...] | None = None,
) -> SlotVariable:
    """Give the optimizer state of this name that accompanies a parameter, shaped and typed like it.

    Inside a transform, or a function under :func:`reuses_state`, it is the same at every call; outside
    any it is new each time.

    Parameters
    ----------
    parameter : handle
        What it accompanies.
    slot : str
        Its name, the namespace first: ``"adam/first_moment"``. Its address is the name, then the
        parameter's address.
    fill_value : float or `parameter` itself, default 0.0
        What its elements are before the first step; the parameter's values where it is the parameter.
    dtype : str, optional
        The parameter's unless given.
    shape : tuple of int, optional
        The parameter's unless given: one number for each row, say.

    Raises
    ------
    TypeError
        If `parameter` is no handle, or `fill_value` another one.

    Examples
    --------
    >>> from ptml.layers import Linear
    >>> fc = Linear("fc", n_in=2, n_out=1)
    >>> state_for(fc.W, "adam/first_moment").slot
    Slot('adam/first_moment/fc/W', Role.OPTIMIZER, float64[2,1])
    """
    if not isinstance(parameter, SlotVariable):
        raise TypeError(NOT_A_HANDLE.format(got=parameter))
    if isinstance(fill_value, Variable) and fill_value is not parameter:
        raise TypeError(NO_FILL_VALUE.format(got=fill_value, parameter=parameter.slot.address))
    first = Copied() if fill_value is parameter else Constant(fill_value)
    of = parameter.slot
    return _owned(slot, Role.OPTIMIZER, dtype or of.dtype, of.shape if shape is None else shape, first, of)


def scalar_state(name: str, fill_value: float = 0.0, *, dtype: str | None = None) -> SlotVariable:
    """Give a scalar of optimizer state, whose name is its address.

    Inside a transform, or a function under :func:`reuses_state`, it is the same at every call; outside
    any it is new each time. One made outside and given as a hyperparameter is a leaf that is read and
    changed between steps, without compiling again.

    Parameters
    ----------
    name : str
        Its address.
    fill_value : float, default 0.0
        What it is before the first step.
    dtype : str, optional
        ``floatX`` unless given; ``"int64"`` for a count.

    Examples
    --------
    >>> from ptml.optim import adam
    >>> rate = scalar_state("rate", 1e-3)
    >>> rate.slot
    Slot('rate', Role.OPTIMIZER, float64[])
    >>> rule = adam(rate)
    """
    return _owned(name, Role.OPTIMIZER, dtype or pytensor.config.floatX, (), Constant(fill_value))


def counter(name: str) -> SlotVariable:
    """Give the clock on which a transform counts its own steps: ``int64``, zero at the first step.

    It moves by itself: a program that reads it, and does not write it, counts it one step further. One that
    a transform declares is the transform's: it stands still when a guard throws a step away, and while
    gradients are gathered ahead of the transform. One made outside of any is yours, and counts every call.

    Parameters
    ----------
    name : str
        Its address, the namespace first: ``"adam/step_count"``.

    Examples
    --------
    >>> counter("warmup/step_count").slot
    Slot('warmup/step_count', Role.CLOCK, int64[])
    """
    shared = _clocks.get()
    if shared is not None and name in shared.known:
        clock = shared.known[name]
    else:
        clock = _owned(name, Role.CLOCK, "int64", (), Constant(0))
    if shared is not None:
        shared.read[name] = clock
    frame = _current.get()
    for hold in () if frame is None else frame.holds:
        hold.clocks[clock.slot] = None
    return clock


@attrs.frozen
class _SharedClocks:
    known: dict[str, SlotVariable]
    read: dict[str, SlotVariable] = attrs.field(init=False, factory=dict)


_clocks: ContextVar[_SharedClocks | None] = ContextVar("shared_clocks", default=None)


@contextlib.contextmanager
def sharing_clocks(known: Mapping[str, SlotVariable]) -> Iterator[Mapping[str, SlotVariable]]:
    """Let transforms that run side by side have one clock where theirs have one address.

    Parameters
    ----------
    known : mapping
        The clocks, by address, of those that ran before.

    Yields
    ------
    mapping
        The clocks that those which run meanwhile read.
    """
    outer = _clocks.get()
    shared = _SharedClocks({**(outer.known if outer else {}), **known})
    token = _clocks.set(shared)
    try:
        yield shared.read
    finally:
        _clocks.reset(token)
        if outer is not None:
            outer.read.update(shared.read)


def key_for_draws(name: str) -> SlotVariable:
    """Give a generator that a transform draws from by :mod:`ptml.random`: a ``uint32[4]`` leaf.

    It moves by itself: a program that draws from it counts its calls. The program's seed decides what it is
    before the first step.

    Parameters
    ----------
    name : str
        Its address, the namespace first: ``"add_noise/key"``.

    Examples
    --------
    >>> key_for_draws("add_noise/key").slot
    Slot('add_noise/key', Role.GENERATOR, uint32[4])
    """
    return _owned(name, Role.GENERATOR, "uint32", (4,), FreshKey())


class ReusesState(Module, kw_only=False):
    """A function that builds updates, with the state that it declares; made by :func:`reuses_state`.

    Parameters
    ----------
    builds_updates : function
        ``builds_updates(loss_gradients_or_updates, parameters, ...) -> updates``.
    """

    builds_updates: Callable[..., Any]

    def __attrs_post_init__(self) -> None:
        if not callable(self.builds_updates):
            raise TypeError(NOT_A_FUNCTION.format(got=self.builds_updates))

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Build updates; `state_for` and its like give the same state at every call."""
        with running(self):
            return self.builds_updates(*args, **kwargs)


def reuses_state(builds_updates: Callable[..., Any]) -> ReusesState:
    """Give a function that builds updates a private set of optimizer state, the same at every call.

    Parameters
    ----------
    builds_updates : function
        A function of ``(loss_gradients_or_updates, parameters)``.

    Returns
    -------
    ReusesState
        Takes what the function takes, and stands wherever a transform does.

    Raises
    ------
    TypeError
        If it is no function.

    Examples
    --------
    >>> from ptml.optim import Steps, get_gradients
    >>> @reuses_state
    ... def heavy_ball(loss, parameters):
    ...     steps, state = {}, {}
    ...     for p, g in zip(parameters, get_gradients(loss, parameters)):
    ...         velocity = state_for(p, "heavy_ball/velocity")
    ...         state[velocity] = 0.9 * velocity + g
    ...         steps[p] = -0.1 * state[velocity]
    ...     return Steps(steps, state)
    >>> heavy_ball
    ReusesState(heavy_ball)
    """
    return ReusesState(builds_updates)
