"""Why a loss is not finite: which input, or which leaf first, at which step."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from ptml.data import DataLoader
from ptml_state import Role, State

__all__ = ["broken_leaf", "cause_of"]

BAD_INPUT = "the batch has {n} {what} in {name}"
FIRST = "the first leaf to be so was {address}, after step {step}"
NOW = "{address} is not finite"
OVERFLOW = "batch and state are finite: it overflows on the way"


def broken_leaf(state: State) -> str | None:
    """Give the address of the first leaf that is not finite; None where all are.

    Infinity is how some leaves of optimizers begin, so it counts in parameters and statistics only.
    """
    for leaf in state.leaves:
        if leaf.value.dtype.kind != "f":
            continue
        learned = leaf.role in (Role.PARAMETER, Role.STATISTIC)
        if not np.isfinite(leaf.value).all() if learned else np.isnan(leaf.value).any():
            return leaf.address
    return None


def cause_of(
    program: Any, batch: Sequence[Any], before: State | None, data: Any, position: Any, steps: tuple[int, int]
) -> str:
    """Find what made a loss infinite or NaN.

    The steps since the epoch began are made once more, from the state that it began with, and looked at one
    by one. The program's state, and the place in the data, are afterwards as they were.

    Parameters
    ----------
    program : Program
    batch : sequence of arrays
        Of the step whose loss was not finite.
    before : State or None
        The state when the epoch began, or this run within it.
    data : iterable
        Only a `DataLoader`'s batches can be had once more.
    position : dict or None
        Where it stood then.
    steps : pair of int
        How many steps had been made then, and have been by now.
    """
    for variable, array in zip(program.inputs, batch, strict=False):
        array = np.asarray(array)
        if array.dtype.kind == "f" and not np.isfinite(array).all():
            nans = int(np.isnan(array).sum())
            n, what = (nans, "NaN") if nans else (int(np.isinf(array).sum()), "infinite numbers")
            return BAD_INPUT.format(n=n, what=what, name=variable.name)
    now = broken_leaf(program.store.state)
    if now is None:
        return OVERFLOW
    if before is not None and isinstance(data, DataLoader):
        found = _first(program, before, _again(data, position), steps)
        if found is not None:
            return found
    return NOW.format(address=now)


def _first(program: Any, before: State, batches: Iterable[Any], steps: tuple[int, int]) -> str | None:
    start, end = steps
    current = program.store.state
    program.store.load(before)
    try:
        for step, batch in zip(range(start + 1, end + 1), batches, strict=False):
            program(*batch)
            address = broken_leaf(program.store.state)
            if address is not None:
                return FIRST.format(address=address, step=step)
    finally:
        program.store.load(current)
    return None


def _again(data: DataLoader, position: Any) -> DataLoader:
    settings = data.state
    again = DataLoader(
        *data.arrays,
        batch_size=settings["batch_size"],
        shuffle=settings["shuffle"],
        seed=settings["seed"],
        drop_last=settings["drop_last"],
    )
    again.load(position)
    return again
