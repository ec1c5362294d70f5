"""The history of a run: one row for each epoch, to print, plot and export."""

from __future__ import annotations

import csv
import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ptml_state import State
from ptml_state.display import columns

__all__ = ["History", "plain_value"]

UNKNOWN = "The history has no {name!r}; it has {known}."
NO_MATPLOTLIB = "plot() draws with matplotlib: pip install 'ptml[training]'."
NOTHING = "The history is empty: no epoch was finished."
#: How many rows are printed; of more, the first and last.
SHOWN = 12


class History(Sequence[dict[str, Any]]):
    """What a run of :func:`ptml.fit` was like: a sequence of one dict for each epoch.

    ``history["loss"]`` gives a column as an array, ``history[-1]`` the last epoch. It prints as a table.

    Attributes
    ----------
    stopped : str
        Why the run ended: ``"epochs"``, ``"no improvement"``, ``"interrupted"``, ``"callback"`` or
        ``"diverged"``; ``""`` while it runs.
    notices : list of str
        What was noticed, each once.
    best_epoch : int or None
        The epoch of the best monitored value, from 1; None where nothing was monitored.
    best_state : State or None
        The state after it.

    Examples
    --------
    >>> from ptml.training import History
    >>> history = History([{"epoch": 1, "loss": 0.5}, {"epoch": 2, "loss": 0.25}])
    >>> history["loss"]
    array([0.5 , 0.25])
    >>> history[-1]
    {'epoch': 2, 'loss': 0.25}
    >>> history
    epoch  loss
        1  0.5
        2  0.25
    """

    def __init__(self, rows: Sequence[dict[str, Any]] = ()) -> None:
        self.rows = [dict(row) for row in rows]
        self.stopped = ""
        self.notices: list[str] = []
        self.best_epoch: int | None = None
        self.best_state: State | None = None

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, which: Any) -> Any:
        if not isinstance(which, str):
            return self.rows[which]
        if not any(which in row for row in self.rows):
            raise KeyError(UNKNOWN.format(name=which, known=", ".join(self.names) or "no columns"))
        return np.array([row.get(which, np.nan) for row in self.rows])

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the columns."""
        return tuple(dict.fromkeys(name for row in self.rows for name in row))

    @property
    def numbers(self) -> tuple[str, ...]:
        """The names of the columns that hold one number for each epoch."""
        return tuple(name for name in self.names if all(np.ndim(row.get(name, 0)) == 0 for row in self.rows))

    def to_dict(self) -> dict[str, list[Any]]:
        """Give the columns as lists, for a data frame."""
        return {name: [plain_value(row.get(name)) for row in self.rows] for name in self.names}

    def to_csv(self, path: str | os.PathLike[str]) -> None:
        """Write the columns of numbers, one line an epoch.

        Parameters
        ----------
        path : path
        """
        with Path(path).open("w", newline="", encoding="utf-8") as file:
            writer = csv.DictWriter(file, self.numbers, extrasaction="ignore")
            writer.writeheader()
            writer.writerows(self.rows)

    def to_jsonl(self, path: str | os.PathLike[str]) -> None:
        """Write one JSON object a line for each epoch, arrays as lists.

        Parameters
        ----------
        path : path
        """
        lines = (json.dumps({name: plain_value(value) for name, value in row.items()}) for row in self.rows)
        Path(path).write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")

    def plot(self, path: str | os.PathLike[str] | None = None) -> Any:
        """Draw every column of numbers over the epochs, training and validation of one name together.

        Parameters
        ----------
        path : path, optional
            Where to save the picture.

        Returns
        -------
        matplotlib Figure

        Raises
        ------
        ImportError
            If matplotlib is not installed.
        ValueError
            If no epoch was finished.
        """
        try:
            from matplotlib.figure import Figure
        except ImportError:
            raise ImportError(NO_MATPLOTLIB) from None
        if not self.rows:
            raise ValueError(NOTHING)
        panels: dict[str, list[str]] = {}
        for name in self.numbers:
            if name not in ("epoch", "steps", "seconds"):
                panels.setdefault(name.removeprefix("validation/"), []).append(name)
        figure = Figure(figsize=(4.6 * len(panels), 3.6), layout="constrained")
        for axes, (title, names) in zip(
            np.atleast_1d(figure.subplots(1, len(panels))), panels.items(), strict=True
        ):
            for name in names:
                label = "validation" if name.startswith("validation/") else "training"
                axes.plot(self["epoch"], self[name], label=label)
            axes.set(xlabel="epoch", title=title)
            axes.spines[["top", "right"]].set_visible(False)
            if self.best_epoch is not None:
                axes.axvline(self.best_epoch, color="0.8", zorder=0)
            axes.legend(frameon=False)
        if path is not None:
            figure.savefig(path, dpi=150)
        return figure

    def __str__(self) -> str:
        if not self.rows:
            return "no epoch was finished"
        names = self.numbers
        rows = [[_short(row.get(name, "")) for name in names] for row in self.rows]
        if len(rows) > SHOWN:
            half = SHOWN // 2
            rows = [*rows[:half], ["..."] + [""] * (len(names) - 1), *rows[-half:]]
        text = columns([list(names), *rows], [name in ("epoch", "steps") for name in names])
        if self.stopped:
            best = "" if self.best_epoch is None else f"; best epoch {self.best_epoch}"
            text += f"\nstopped: {self.stopped}{best}"
        return "\n".join([text, *(f"notice: {notice}" for notice in self.notices)])

    __repr__ = __str__


def plain_value(value: Any) -> Any:
    """Give arrays as lists, and NumPy's numbers as Python's."""
    return value.tolist() if isinstance(value, np.ndarray | np.generic) else value


def _short(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)
