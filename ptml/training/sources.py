"""What a run gets its batches from: a loader, arrays, or anything that gives tuples again and again."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np

from ptml.data import DataLoader

__all__ = ["Batches", "arrays_of", "as_batches"]

NOT_DATA = (
    "fit(program, data): data is a DataLoader, a tuple of arrays with batch_size=, or an iterable of "
    "batches, each a tuple of arrays; got {given}."
)
NEEDS_SIZE = "fit(program, (X, y)): say how many rows a batch has, batch_size=32, or give a DataLoader."
SIZE_OF_LOADER = "batch_size= is for arrays; this data has batches already."
ONCE = (
    "{given} gives its batches once, and every epoch needs them. Give a list, a DataLoader, or an object "
    "with an __iter__ that starts anew."
)


class Batches:
    """Batches of an iterable without a position, counted as a `DataLoader` counts its own."""

    def __init__(self, batches: Iterable[Sequence[Any]]) -> None:
        self.batches = batches
        self.epoch = 0

    def __iter__(self) -> Iterator[Sequence[Any]]:
        yield from self.batches
        self.epoch += 1

    def __len__(self) -> int:
        return len(self.batches)  # type: ignore[arg-type]


def as_batches(data: Any, batch_size: int | None) -> DataLoader | Batches:
    """Give data as batches.

    Parameters
    ----------
    data : DataLoader, tuple of arrays, or iterable of tuples
    batch_size : int or None
        For arrays: they are shuffled, with seed 0.

    Raises
    ------
    TypeError
        If it is none of these, or gives its batches only once.
    """
    if isinstance(data, DataLoader):
        if batch_size is not None:
            raise TypeError(SIZE_OF_LOADER)
        return data
    if isinstance(data, tuple) and data and all(hasattr(array, "__array__") for array in data):
        if batch_size is None:
            raise TypeError(NEEDS_SIZE)
        return DataLoader(*data, batch_size=batch_size, shuffle=True)
    if batch_size is not None:
        raise TypeError(SIZE_OF_LOADER)
    if not isinstance(data, Iterable) or hasattr(data, "__array__"):
        raise TypeError(NOT_DATA.format(given=type(data).__name__))
    if isinstance(data, Iterator):
        raise TypeError(ONCE.format(given=type(data).__name__))
    return Batches(data)


def arrays_of(data: Any) -> tuple[np.ndarray, ...] | None:
    """Give all rows of data, where they are in memory."""
    if isinstance(data, DataLoader):
        return data.arrays
    if isinstance(data, tuple) and data and all(hasattr(array, "__array__") for array in data):
        return tuple(np.asarray(array) for array in data)
    return None
