"""Leaks: rows, and groups of rows, that are in the training data and in the validation data too."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

__all__ = ["check_groups", "repeated_rows"]

BOTH_SIDES = (
    "{n} of the {total} validation groups have rows in training too: {examples}. What a network remembers of "
    "them would pass for what it has learned. Split by group, as scikit-learn's GroupShuffleSplit and "
    "GroupKFold do."
)
#: How many rows are looked at together.
CHUNK = 16384

NOT_A_PAIR = "groups= is a pair: the group of each training row, and of each validation row; got {given}."
WRONG_LENGTH = "groups= names {given} {side} rows, and there are {wanted}."


def check_groups(groups: Any, rows: tuple[int | None, int | None]) -> None:
    """Refuse a split that has a group on both sides.

    Parameters
    ----------
    groups : pair of array-like
        The group of each training row, and of each validation row: numbers or texts.
    rows : pair of int or None
        How many rows there are; None where that is not known.

    Raises
    ------
    ValueError
        If a group is on both sides, or there is not one for each row.
    TypeError
        If it is no pair.

    Examples
    --------
    >>> from ptml.training.leaks import check_groups
    >>> check_groups((["a", "b"], ["c"]), (2, 1))
    >>> check_groups((["a", "b"], ["b"]), (2, 1))
    Traceback (most recent call last):
        ...
    ValueError: 1 of the 1 validation groups have rows in training too: b. What a network remembers of them
    would pass for what it has learned. Split by group, as scikit-learn's GroupShuffleSplit and GroupKFold do.
    """
    if not isinstance(groups, tuple | list) or len(groups) != 2:
        raise TypeError(NOT_A_PAIR.format(given=type(groups).__name__))
    sides = [np.asarray(side) for side in groups]
    for name, side, wanted in zip(("training", "validation"), sides, rows, strict=True):
        if wanted is not None and len(side) != wanted:
            raise ValueError(WRONG_LENGTH.format(given=len(side), side=name, wanted=wanted))
    training, validation = (np.unique(side) for side in sides)
    shared = np.intersect1d(training, validation)
    if len(shared):
        examples = ", ".join(map(str, shared[:5].tolist())) + (", ..." if len(shared) > 5 else "")
        raise ValueError(BOTH_SIDES.format(n=len(shared), total=len(validation), examples=examples))


def repeated_rows(training: Sequence[np.ndarray], validation: Sequence[np.ndarray]) -> int:
    """Count the validation rows whose features are those of a training row, bit for bit.

    Parameters
    ----------
    training, validation : sequence of arrays
        The features of each, of one number of rows.

    Examples
    --------
    >>> import numpy as np
    >>> from ptml.training.leaks import repeated_rows
    >>> repeated_rows([np.array([[1.0, 2.0], [3.0, 4.0]])], [np.array([[3.0, 4.0], [3.0, 5.0]])])
    1
    """
    return int(np.isin(_marks(validation), _marks(training)).sum())


def _marks(arrays: Sequence[np.ndarray]) -> np.ndarray:
    """Give a number of 64 bits for each row, the same for equal rows and for no others, but by a wonder."""
    total = np.zeros(len(arrays[0]), "uint64")
    rng = np.random.default_rng(0)
    for array in arrays:
        flat = array.reshape(len(array), -1)
        size = flat.shape[1] * array.dtype.itemsize
        factors = rng.integers(2**63, size=-(-size // 8), dtype="uint64") * 2 + 1
        for start in range(0, len(flat), CHUNK):
            rows = flat[start : start + CHUNK]
            # -0.0 and 0.0 are equal, and their sum with 0.0 is 0.0.
            rows = np.ascontiguousarray(rows + 0.0 if array.dtype.kind == "f" else rows)
            padded = np.zeros((len(rows), len(factors) * 8), "uint8")
            padded[:, :size] = rows.view("uint8").reshape(len(rows), size)
            total[start : start + CHUNK] += (padded.view("uint64") * factors).sum(axis=1, dtype="uint64")
    return total
