"""Batches of rows from arrays in memory, in an order that can be saved and resumed."""

from __future__ import annotations

import operator
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, DTypeLike

from ptml_state.typetext import type_text

__all__ = ["DataLoader"]

_ACCEPTED = (
    "DataLoader takes numbers or booleans in NumPy arrays, in anything NumPy reads as one (a pandas column, "
    "a JAX or PyTorch array on the CPU), or in lists whose rows all have one shape"
)
_STALE = (
    "This loop over a DataLoader was left behind: since its last batch, another loop over the same loader "
    "started or `load` was called. A loader has one position; to walk the rows twice at once, make two "
    "loaders."
)
_WORTH_COMPARING = 2.0**53  # the first float64 whose successor is not the next whole number


def _whole_number(value: Any, name: str, least: int) -> int:
    """Give `value` as a Python integer, or say what `name` has to be."""
    wanted = f"{name} must be a whole number, at least {least}; got {value!r}"
    if isinstance(value, bool | np.bool_):
        raise TypeError(f"{wanted}, a {type(value).__name__}.")
    try:
        number = operator.index(value)
    except TypeError:
        raise TypeError(f"{wanted}, a {type(value).__name__}.") from None
    if number < least:
        raise ValueError(f"{wanted}.")
    return number


def _switch(value: Any, name: str) -> bool:
    if not isinstance(value, bool | np.bool_):
        raise TypeError(f"{name} must be True or False; got {value!r}.")
    return bool(value)


def _float_dtype(dtype: DTypeLike) -> np.dtype:
    try:
        resolved = np.dtype(dtype)
    except TypeError:
        resolved = None
    if resolved is None or resolved.kind != "f":
        raise TypeError(
            f'float_dtype must be a floating dtype such as "float32", or None to keep every dtype; '
            f"got {dtype!r}."
        )
    return resolved


def _read(value: Any, position: int) -> np.ndarray:
    """Read one argument of a loader as an array of numbers, without changing any value of it."""
    if isinstance(value, np.ma.MaskedArray):
        raise TypeError(
            f"Array {position} is a masked array, whose mask would be lost. Give its filled values and its "
            f"mask as two arrays: x.filled(0), ~np.ma.getmaskarray(x)."
        )
    try:
        array = np.asarray(value)
    except (TypeError, ValueError) as error:
        raise TypeError(
            f"Array {position}, a {type(value).__name__}, cannot be read as one array: {error}. {_ACCEPTED}. "
            f"Several arrays are given one by one: DataLoader(X, y, batch_size=32)."
        ) from error
    if array.dtype.kind not in "biufc":
        raise TypeError(
            f"Array {position}, a {type(value).__name__}, reads as dtype {array.dtype}. {_ACCEPTED}."
        )
    if array.ndim == 0:
        raise TypeError(f"Array {position} is the single number {array}: it has no rows. {_ACCEPTED}.")
    if array.dtype.kind == "f" and not hasattr(value, "__array__"):
        _refuse_rounding(value, array, position)
    # Compiled code reads native bytes only; FITS and other big-endian files give the rest.
    return array if array.dtype.isnative else array.astype(array.dtype.newbyteorder("="))


def _refuse_rounding(value: Any, array: np.ndarray, position: int) -> None:
    # NumPy reads a list that holds both 1 and 2**63 as float64, which moves large ids to their neighbours.
    if not (np.abs(array) >= _WORTH_COMPARING).any():
        return
    given = np.asarray(value, dtype=object)
    moved = (given != array) & ~np.isnan(array)
    if moved.any():
        raise TypeError(
            f"Array {position} is a list that NumPy reads as {array.dtype}, which cannot hold its value "
            f"{given[moved][0]}. Give it as an array of one integer dtype: np.asarray(ids, dtype='uint64')."
        )


def _cast(array: np.ndarray, dtype: np.dtype, position: int) -> np.ndarray:
    try:
        with np.errstate(over="raise"):
            return array.astype(dtype, copy=False)
    except FloatingPointError:
        raise ValueError(
            f"Array {position} ({array.dtype}) has finite values too large for float_dtype={dtype.name!r}, "
            f"which would become infinite. Scale the array first, or keep its dtype."
        ) from None


class DataLoader:
    """Hand out batches of rows from arrays in memory, epoch by epoch.

    Each ``for`` over a loader is one epoch. A batch is always a tuple, of as many arrays as the loader
    was given (a 1-tuple for one array), and each of them is a fresh copy of some rows that may be edited
    freely.

    Parameters
    ----------
    *arrays : array_like
        Arrays of shape ``(rows, ...)``, all with the same number of rows. They keep their dtypes: integer
        labels stay integers, and no id passes through a float. NumPy arrays in the machine's byte order are
        not copied, so edits made to them later are seen by later batches; the loader never writes to them.
    batch_size : int
        Rows in a batch.
    shuffle : bool, default False
        Draw a new order of the rows for each epoch. Otherwise each epoch goes through the rows as they lie.
    seed : int or None, default 0
        Decides the orders, with the number of the epoch and the number of rows and nothing else: epoch 7
        has the same order in every process, however it was reached. None draws a seed, which `seed` and
        `state` then report. Without effect if rows are not shuffled.
    drop_last : bool, default False
        Leave out the last batch of an epoch where it has fewer than `batch_size` rows.
    float_dtype : dtype_like, optional
        Cast the arrays of floating dtype to this one, once, as the loader is made. ``"float32"`` is what a
        network built under ``floatX="float32"`` takes: its inputs refuse float64 rather than round it.
        Integers, booleans and complex numbers are left alone. By default nothing is cast.

    Raises
    ------
    ValueError
        If the arrays differ in length or have no rows, if `batch_size` is below 1 or `seed` below 0, if
        `drop_last` leaves no batch at all, or if a value overflows `float_dtype`.
    TypeError
        If an array is not made of numbers or booleans, or an option is not of its type.

    Notes
    -----
    **Position.** A loader stands at one position, `state`: an epoch and the number of batches of it that
    were handed out. A ``for`` that runs to its end moves it to the start of the next epoch. A ``for`` that
    was left early (``break``, an exception, ``next(iter(loader))``) leaves it where it was, for `state` to
    be saved; the next ``for`` then begins the epoch *after* it. So every ``for`` starts from a whole
    epoch, a look at the first batch takes no rows away from training, and loops capped at some number of
    batches see new rows each time if shuffled. Only after `load` does a ``for`` start within an epoch.

    As there is one position, there can be one loop at a time: where a second one has started, going on with
    the first is a RuntimeError.

    **Order.** Epoch ``e`` of a shuffled loader visits the rows sorted by the first ``rows`` 64-bit outputs
    of ``PCG64(SeedSequence(seed, spawn_key=(e,)))``. NumPy promises never to change those, as it does not
    for its own ``permutation``, so a position saved under one version of NumPy holds under another.

    Examples
    --------
    >>> import numpy as np
    >>> from ptml.data import DataLoader
    >>> X, y = np.arange(10.0).reshape(5, 2), np.array([0, 1, 0, 1, 1])
    >>> loader = DataLoader(X, y, batch_size=2, shuffle=True, seed=3)
    >>> loader
    DataLoader(float64[5,2], int64[5], batch_size=2, shuffle=True, seed=3)
    >>> for epoch in range(2):
    ...     for X_batch, y_batch in loader:
    ...         print(epoch, X_batch.shape, y_batch.dtype)
    0 (2, 2) int64
    0 (2, 2) int64
    0 (1, 2) int64
    1 (2, 2) int64
    1 (2, 2) int64
    1 (1, 2) int64
    """

    def __init__(
        self,
        *arrays: ArrayLike,
        batch_size: int,
        shuffle: bool = False,
        seed: int | None = 0,
        drop_last: bool = False,
        float_dtype: DTypeLike | None = None,
    ) -> None:
        if not arrays:
            raise TypeError("DataLoader needs at least one array: DataLoader(X, y, batch_size=32).")
        read = [_read(array, position) for position, array in enumerate(arrays)]
        self._rows = len(read[0])
        for position, array in enumerate(read):
            if len(array) != self._rows:
                raise ValueError(
                    f"All arrays of a DataLoader have the same number of rows; array 0 has {self._rows} and "
                    f"array {position} has {len(array)}."
                )
        if self._rows == 0:
            raise ValueError("The dataset is empty: the arrays of this DataLoader have 0 rows.")

        self._batch_size = _whole_number(batch_size, "batch_size", least=1)
        self._shuffle = _switch(shuffle, "shuffle")
        self._drop_last = _switch(drop_last, "drop_last")
        if self._drop_last and self._rows < self._batch_size:
            raise ValueError(
                f"drop_last=True leaves no batch: the dataset has {self._rows} rows, fewer than "
                f"batch_size={self._batch_size}. Give a smaller batch_size, or drop_last=False."
            )
        if seed is not None:
            seed = _whole_number(seed, "seed", least=0)
        self._seed_was_drawn = seed is None
        if self._shuffle and seed is None:
            # 32 bits, so that any JSON reader gives the seed back exactly.
            seed = int(np.random.SeedSequence().generate_state(1)[0])
        self._seed = seed if self._shuffle else None

        if float_dtype is not None:
            target = _float_dtype(float_dtype)
            read = [
                _cast(array, target, position) if array.dtype.kind == "f" else array
                for position, array in enumerate(read)
            ]
        views = [array.view() for array in read]
        for view in views:
            view.flags.writeable = False
        self._arrays = tuple(views)

        self._epoch = 0
        self._batch = 0
        self._loop = 0  # numbers the loops and loads, so that a loop knows whether it is the latest
        self._left_off = False  # whether a loop of this process, not `load`, brought us to this position

    @property
    def arrays(self) -> tuple[np.ndarray, ...]:
        """All rows in the order they lie, as read-only views."""
        return self._arrays

    @property
    def rows(self) -> int:
        """Rows in each array, also those that `drop_last` leaves out."""
        return self._rows

    @property
    def batch_size(self) -> int:
        """Rows in every batch but, perhaps, an epoch's last."""
        return self._batch_size

    @property
    def seed(self) -> int | None:
        """What the orders are drawn from; None where rows are not shuffled."""
        return self._seed

    @property
    def epoch(self) -> int:
        """The epoch of the latest batch, or the one about to start, counted from 0.

        ``for epoch in range(loader.epoch, n_epochs)`` is right for a first run and for a resumed one.
        """
        return self._epoch

    @property
    def state(self) -> dict[str, Any]:
        """The position, and what it depends on, as plain numbers that JSON can hold.

        ``epoch`` and ``batch`` are the position: ``batch`` batches of ``epoch`` were handed out. The rest
        (``rows``, ``batch_size``, ``shuffle``, ``seed``, ``drop_last``) is there for `load` to compare.
        """
        return {"epoch": self._epoch, "batch": self._batch, **self._settings}

    @property
    def _settings(self) -> dict[str, Any]:
        return {
            "rows": self._rows,
            "batch_size": self._batch_size,
            "shuffle": self._shuffle,
            "seed": self._seed,
            "drop_last": self._drop_last,
        }

    def load(self, state: Mapping[str, Any]) -> None:
        """Go to a saved position: the next ``for`` hands out what was left of its epoch.

        A position saved within the last batch of an epoch has nothing left, so the next ``for`` is empty,
        and a training script does what it does after an epoch, just as the interrupted run would have done.

        Parameters
        ----------
        state : mapping
            A `state` of this loader or of one with the same settings. A loader made with ``seed=None``
            takes over the seed; all other settings must agree.

        Raises
        ------
        ValueError
            If entries are missing or unknown, if a setting differs, or if there is no such position. The
            loader then stays as it was.
        TypeError
            If `state` is not a mapping, or its numbers are not whole numbers.

        Examples
        --------
        >>> import numpy as np
        >>> from ptml.data import DataLoader
        >>> loader = DataLoader(np.arange(6), batch_size=2)
        >>> for (batch,) in loader:
        ...     saved = loader.state
        ...     break
        >>> saved["epoch"], saved["batch"]
        (0, 1)
        >>> resumed = DataLoader(np.arange(6), batch_size=2)
        >>> resumed.load(saved)
        >>> [batch.tolist() for (batch,) in resumed]
        [[2, 3], [4, 5]]
        """
        if not isinstance(state, Mapping):
            raise TypeError(f"load takes the `state` of a DataLoader, a mapping; got {state!r}.")
        known = self.state.keys()
        missing = [key for key in known if key not in state]
        unknown = [str(key) for key in state if key not in known]
        if missing or unknown:
            faults = [f"lacks {', '.join(missing)}"] if missing else []
            faults += [f"has {', '.join(unknown)}"] if unknown else []
            raise ValueError(f"This is not the `state` of a DataLoader: it {' and '.join(faults)}.")

        adopts_seed = self._seed_was_drawn and self._shuffle
        differing = [
            (key, state[key], mine)
            for key, mine in self._settings.items()
            if state[key] != mine and not (key == "seed" and adopts_seed)
        ]
        if differing:
            theirs = ", ".join(f"{key}={value}" for key, value, _ in differing)
            ours = ", ".join(f"{key}={value}" for key, _, value in differing)
            raise ValueError(
                f"The position was saved by a DataLoader with {theirs}; this one has {ours}, so its batches "
                f"are others. Make the loader with the settings that the position was saved with."
            )
        seed = (
            _whole_number(state["seed"], "The seed in a saved position", least=0)
            if adopts_seed
            else self._seed
        )
        epoch = _whole_number(state["epoch"], "The epoch in a saved position", least=0)
        batch = _whole_number(state["batch"], "The batch in a saved position", least=0)
        if batch > len(self):
            raise ValueError(f"The saved position is after batch {batch} of an epoch that has {len(self)}.")
        self._seed, self._epoch, self._batch = seed, epoch, batch
        self._left_off = False
        self._loop += 1

    def __len__(self) -> int:
        """Count the batches of a whole epoch."""
        whole, rest = divmod(self._rows, self._batch_size)
        return whole + (rest > 0 and not self._drop_last)

    def __iter__(self) -> Iterator[tuple[np.ndarray, ...]]:
        """Start an epoch, or go on with the one that `load` led into."""
        if self._left_off:
            self._epoch, self._batch, self._left_off = self._epoch + 1, 0, False
        self._loop += 1
        return self._batches(self._loop)

    def _batches(self, loop: int) -> Iterator[tuple[np.ndarray, ...]]:
        order = self._order()
        while loop == self._loop:
            if self._batch == len(self):
                self._epoch, self._batch, self._left_off = self._epoch + 1, 0, False
                return
            part = slice(self._batch * self._batch_size, (self._batch + 1) * self._batch_size)
            if order is None:
                batch = tuple(array[part].copy() for array in self._arrays)
            else:
                batch = tuple(np.take(array, order[part], axis=0) for array in self._arrays)
            self._batch, self._left_off = self._batch + 1, True
            yield batch
        raise RuntimeError(_STALE)

    def _order(self) -> np.ndarray | None:
        """Give the rows of the current epoch in the order of their visit; None stands for as they lie."""
        if self._seed is None:
            return None
        bits = np.random.PCG64(np.random.SeedSequence(self._seed, spawn_key=(self._epoch,)))
        return np.argsort(bits.random_raw(self._rows), kind="stable")

    def __repr__(self) -> str:
        parts = [type_text(array) for array in self._arrays]
        parts.append(f"batch_size={self._batch_size}")
        if self._shuffle:
            parts.append(f"shuffle=True, seed={self._seed}")
        if self._drop_last:
            parts.append("drop_last=True")
        return f"DataLoader({', '.join(parts)})"
