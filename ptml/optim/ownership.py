"""Who owns the state that a transform allocates: the outermost transform that is running.

A transform called twice, or compiled into two programs, has one set of moments, since the slots that it
declares are kept with it. Inside a chain they are kept with the chain, by the place where the transform
that declares them stands, so that two equal transforms of one chain do not share.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from typing import Any

import attrs
import pytensor

from ptml.initializers import Constant
from ptml.module import Module
from ptml_state import Role, Slot, SlotVariable

__all__ = ["ReusesState", "counter", "reuses_state", "running", "scalar_state", "state_for"]

NOT_A_HANDLE = "state_for makes state for a parameter: give its handle, such as fc1.W; got {got!r}."
NOT_A_FUNCTION = "reuses_state takes a function of (loss, parameters) that gives updates; got {got!r}."

#: The attribute of an owner that holds its slots. No field, so copies and pickles leave it behind.
KEPT = "_kept_state"


@attrs.frozen(eq=False)
class _Frame:
    """A transform that is running, inside the outermost one, `owner`."""

    owner: Module
    path: tuple[int, ...]
    transform: Any
    inner: Iterator[int] = attrs.field(init=False, factory=itertools.count)


_current: ContextVar[_Frame | None] = ContextVar("running_transform", default=None)


@contextlib.contextmanager
def running(transform: Any) -> Iterator[None]:
    """Run a transform: the state that is declared meanwhile is its own, or its outermost transform's."""
    outer = _current.get()
    if outer is None:
        frame = _Frame(transform, (), transform)
    else:
        frame = _Frame(outer.owner, (*outer.path, next(outer.inner)), transform)
    token = _current.set(frame)
    try:
        yield
    finally:
        _current.reset(token)


def _owned(
    name: str, role: Role, dtype: str, shape: tuple[int, ...], fill_value: float, of: Slot | None = None
) -> SlotVariable:
    frame = _current.get()
    declares = None if frame is None or not isinstance(frame.transform, Module) else frame.transform

    def allocate() -> SlotVariable:
        return Slot(name, role, dtype, shape, Constant(fill_value), owner=declares, of=of).handle

    if frame is None:
        return allocate()
    kept: dict[Any, SlotVariable] = vars(frame.owner).setdefault(KEPT, {})
    key = (frame.path, name, dtype, of)
    if key not in kept:
        kept[key] = allocate()
    return kept[key]


def state_for(parameter: SlotVariable, slot: str, fill_value: float = 0.0) -> SlotVariable:
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
    fill_value : float, default 0.0
        What its elements are before the first step.

    Raises
    ------
    TypeError
        If `parameter` is no handle.

    Examples
    --------
    >>> from ptml.layers import Linear
    >>> fc = Linear("fc", n_in=2, n_out=1)
    >>> state_for(fc.W, "adam/first_moment").slot
    Slot('adam/first_moment/fc/W', Role.OPTIMIZER, float64[2,1])
    """
    if not isinstance(parameter, SlotVariable):
        raise TypeError(NOT_A_HANDLE.format(got=parameter))
    of = parameter.slot
    return _owned(slot, Role.OPTIMIZER, of.dtype, of.shape, fill_value, of)


def scalar_state(name: str, fill_value: float = 0.0) -> SlotVariable:
    """Give a scalar of optimizer state, of dtype ``floatX``, whose name is its address.

    Inside a transform, or a function under :func:`reuses_state`, it is the same at every call; outside
    any it is new each time. One made outside and given as a hyperparameter is a leaf that is read and
    changed between steps, without compiling again.

    Parameters
    ----------
    name : str
        Its address.
    fill_value : float, default 0.0
        What it is before the first step.

    Examples
    --------
    >>> from ptml.optim import adam
    >>> rate = scalar_state("rate", 1e-3)
    >>> rate.slot
    Slot('rate', Role.OPTIMIZER, float64[])
    >>> rule = adam(rate)
    """
    return _owned(name, Role.OPTIMIZER, pytensor.config.floatX, (), fill_value)


def counter(name: str) -> SlotVariable:
    """Give the clock on which a transform counts its own steps: ``int64``, zero at the first step.

    It moves by itself: a program that reads it, and does not write it, counts it one step further.

    Parameters
    ----------
    name : str
        Its address, the namespace first: ``"adam/step_count"``.

    Examples
    --------
    >>> counter("warmup/step_count").slot
    Slot('warmup/step_count', Role.CLOCK, int64[])
    """
    return _owned(name, Role.CLOCK, "int64", (), 0)


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
