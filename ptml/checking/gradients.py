"""Gradients against finite differences, entry by entry."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pytensor
from pytensor.graph.basic import Variable

from ptml.compile.function import function
from ptml.compile.program import Program
from ptml.start import slots
from ptml_state import Role, SlotVariable, State

__all__ = ["GradientError", "check_gradients"]

WRONG = (
    "The gradient with respect to {name}{entry} is {exact:.6g}, and the difference quotient {numeric:.6g}: "
    "they differ by {off:.2g}, where {allowed:.2g} is allowed. {n} of the {total} entries that were "
    "tried are wrong."
)
NOT_FLOAT64 = (
    "Differences need float64: {name} is {dtype}, whose {digits} digits leave none to compare. Build the "
    "network under pytensor.config.change_flags(floatX='float64')."
)
NO_LOSS = "check_gradients(loss, ...): the loss is a scalar tensor; got {given}."
NOTHING = "The loss depends on no parameters, and wrt= names no inputs: there is nothing to check."
#: The cube root of the spacing of float64: where truncation and rounding of a central difference balance.
STEP = float(np.cbrt(np.finfo("float64").eps))


class GradientError(AssertionError):
    """A gradient is not what differences say. The message names the parameter and the entry."""


def check_gradients(
    loss: Variable,
    batch: Mapping[Any, Any] | Sequence[Any] = (),
    *,
    wrt: Sequence[Variable] | None = None,
    state: State | None = None,
    seed: int = 0,
    entries: int = 20,
    rtol: float = 1e-5,
    atol: float = 1e-7,
    backend: str | None = None,
) -> dict[str, float]:
    """Compare the gradients of a loss with central differences, in float64.

    Every call sees the same dropout masks, as of the first call in training.

    Parameters
    ----------
    loss : scalar tensor
    batch : sequence of arrays, or mapping of arrays by input
        The inputs: by position, in the order in which they were made, or by variable.
    wrt : sequence of tensors, optional
        Handles of parameters, and inputs; every parameter that the loss depends on unless given.
    state : State, optional
        Where to differentiate; drawn unless given.
    seed : int, default 0
        Decides what is drawn, and which entries are tried.
    entries : int, default 20
        How many of each tensor's entries are tried, at most.
    rtol, atol : float, default 1e-5 and 1e-7
        How far apart the two may be.
    backend : {"numba", "c", "jax", "pytorch"}, optional

    Returns
    -------
    dict
        The largest difference found, by the address of a parameter or the name of an input.

    Raises
    ------
    GradientError
        If a gradient is wrong: at a kink, such as that of ReLU at 0, it may be.
    TypeError
        If something is not float64, or the loss no scalar.

    Examples
    --------
    >>> import numpy as np
    >>> import ptml
    >>> from ptml.activations import Tanh
    >>> from ptml.layers import Input, Linear, Sequential
    >>> net = Sequential(Linear("fc1", n_in=2, n_out=3), Tanh(), Linear("fc2", n_in=3, n_out=1))
    >>> loss = (net(Input("X", shape=(None, 2))) ** 2).mean()
    >>> found = ptml.check_gradients(loss, [np.ones((4, 2))])
    >>> list(found)
    ['fc1/W', 'fc1/b', 'fc2/W', 'fc2/b']
    """
    if not isinstance(loss, Variable) or getattr(loss.type, "ndim", None) != 0:
        raise TypeError(NO_LOSS.format(given=loss))
    wanted = list(slots(loss, Role.PARAMETER) if wrt is None else wrt)
    if not wanted:
        raise ValueError(NOTHING)
    for variable in wanted:
        if variable.type.dtype != "float64":
            digits = np.finfo(variable.type.dtype).precision if "float" in variable.type.dtype else 0
            raise TypeError(NOT_FLOAT64.format(name=variable, dtype=variable.type.dtype, digits=digits))
    inputs = list(batch) if isinstance(batch, Mapping) else None
    values = [np.asarray(value) for value in (batch.values() if isinstance(batch, Mapping) else batch)]
    program = function(
        inputs,
        [loss, *pytensor.grad(loss, wanted)],
        state=state,
        seed=None if state is not None else seed,
        backend=backend,
        on_unused_input="ignore",
    )
    return _compared(program, wanted, values, np.random.default_rng(seed), entries, rtol, atol)


def _compared(
    program: Program,
    wanted: Sequence[Variable],
    batch: list[np.ndarray],
    rng: np.random.Generator,
    entries: int,
    rtol: float,
    atol: float,
) -> dict[str, float]:
    start = program.store.state
    addresses = dict(zip(program.slots, program.state, strict=True))

    def losses_at(variable: Variable, entry: Any, value: Any) -> Any:
        changed = list(batch)
        if isinstance(variable, SlotVariable):
            moved = np.array(start[addresses[variable]])
            moved[entry] = value
            program.store.load(start.replace({addresses[variable]: moved}))
        else:
            place = program.inputs.index(variable)
            changed[place] = np.array(changed[place], "float64")
            changed[place][entry] = value
            program.store.load(start)
        return program(*changed)

    program.store.load(start)
    _, *exact = program(*batch)
    worst: dict[str, float] = {}
    for variable, gradient in zip(wanted, exact, strict=True):
        is_slot = isinstance(variable, SlotVariable)
        name = addresses[variable] if is_slot else str(variable.name)
        at = np.asarray(start[name] if is_slot else batch[program.inputs.index(variable)])
        tried = rng.permutation(at.size)[:entries]
        wrong: list[dict[str, Any]] = []
        worst[name] = 0.0
        for flat in tried:
            entry = np.unravel_index(flat, at.shape)
            step = STEP * max(1.0, abs(float(at[entry])))
            high, low = (float(losses_at(variable, entry, at[entry] + s)[0]) for s in (step, -step))
            numeric = (high - low) / (2 * step)
            off = abs(float(gradient[entry]) - numeric)
            allowed = atol + rtol * max(abs(numeric), abs(float(gradient[entry])))
            worst[name] = max(worst[name], off)
            if not off <= allowed:
                shown = str([int(i) for i in entry]) if at.ndim else ""
                wrong.append(
                    {
                        "entry": shown,
                        "exact": float(gradient[entry]),
                        "numeric": numeric,
                        "off": off,
                        "allowed": allowed,
                    }
                )
        if wrong:
            first = max(wrong, key=lambda one: one["off"])
            raise GradientError(WRONG.format(name=name, n=len(wrong), total=len(tried), **first))
    program.store.load(start)
    return worst
