"""What memory a program holds."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import attrs
import numpy as np
from pytensor.compile.executor import Function

from ptml_state import Slot

__all__ = ["Memory", "memory_of"]


@attrs.frozen(repr=False)
class Memory:
    """Bytes that a program holds between two calls.

    Attributes
    ----------
    state : int
        Its own leaves, which other programs of the store may share.
    planned : int or None
        The buffers that were planned for its calls, for every layout of inputs that it keeps; None where the
        backend does not say.
    batch : int
        The inputs of the last call, as far as they are still held.
    results : int
        What the last call gave, as far as it is still held.
    peak : int or None
        The most that is held while a call runs; None where the backend does not say.

    Examples
    --------
    >>> Memory(state=4096, planned=1_500_000, batch=800, results=4, peak=1_504_900)
    <Memory: state 4.1 kB, planned 1.5 MB, batch 800 B, results 4 B, peak 1.5 MB>
    """

    state: int
    planned: int | None
    batch: int
    results: int
    peak: int | None

    def __repr__(self) -> str:
        parts = (f"{field.name} {_shown(getattr(self, field.name))}" for field in attrs.fields(Memory))
        return f"<Memory: {', '.join(parts)}>"


def memory_of(function: Function, slots: Iterable[Slot]) -> Memory:
    """Add up what a function holds.

    Parameters
    ----------
    function : pytensor Function
    slots : iterable of Slot
        Its state.
    """
    state = sum(math.prod(slot.shape) * np.dtype(slot.dtype).itemsize for slot in slots)
    batch = sum(
        _size(container.storage[0])
        for entry, container in zip(function.maker.inputs, function.input_storage, strict=True)
        if not entry.implicit
    )
    n_results = len(function.maker.outputs)
    results = sum(_size(container.storage[0]) for container in function.output_storage[:n_results])
    planned = getattr(function.vm, "planned_bytes", None)
    # A plan holds all of it at once, and takes nothing else but where nodes run in Python.
    if planned is None or function.vm.has_python_steps:
        return Memory(state, planned, batch, results, peak=None)
    return Memory(state, planned, batch, results, peak=state + planned + batch + results)


def _size(value: Any) -> int:
    return int(getattr(value, "nbytes", 0))


def _shown(size: int | None) -> str:
    if size is None:
        return "unknown"
    for unit, scale in (("GB", 10**9), ("MB", 10**6), ("kB", 10**3)):
        if size >= scale:
            return f"{size / scale:.1f} {unit}"
    return f"{size} B"
