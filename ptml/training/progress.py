"""How far a run has come: a bar where somebody watches, plain lines elsewhere."""

from __future__ import annotations

import contextlib
import importlib.util
import math
import sys
from collections.abc import Iterator
from typing import Any

__all__ = ["Lines", "Silence", "reporting"]

#: How many lines a long run prints at most.
LINES = 40


class Silence:
    """Says nothing."""

    def step(self, done: int, loss: float) -> None:
        """Tell of a step, the how many-th of its epoch."""

    def epoch(self, row: dict[str, Any], best: bool) -> None:
        """Tell of a finished epoch."""

    def say(self, text: str) -> None:
        """Tell of something else."""


class Lines(Silence):
    """One line an epoch, and of a long run some of them."""

    def __init__(self, epochs: int) -> None:
        self.epochs = epochs
        self.every = math.ceil(epochs / LINES)

    def epoch(self, row: dict[str, Any], best: bool) -> None:
        if row["epoch"] == 1 or row["epoch"] % self.every == 0 or row["epoch"] == self.epochs:
            self.say(_line(row, self.epochs))

    def say(self, text: str) -> None:
        sys.stdout.write(f"{text}\n")
        sys.stdout.flush()


class Bar(Silence):
    """A bar of rich's, with the numbers of the last epoch behind it."""

    def __init__(self, epochs: int, per_epoch: int | None) -> None:
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

        self.epochs, self.per_epoch = epochs, per_epoch
        columns = (TextColumn("training"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
        self.progress = Progress(*columns, TextColumn("{task.fields[numbers]}"))
        self.task = self.progress.add_task("", total=epochs, numbers="")
        self.finished = 0

    def step(self, done: int, loss: float) -> None:
        if self.per_epoch:
            self.progress.update(self.task, completed=self.finished + min(done / self.per_epoch, 1))

    def epoch(self, row: dict[str, Any], best: bool) -> None:
        self.finished = row["epoch"]
        self.progress.update(self.task, completed=self.finished, numbers=_numbers(row))

    def say(self, text: str) -> None:
        self.progress.console.print(text, highlight=False, markup=False, soft_wrap=True)


@contextlib.contextmanager
def reporting(wanted: bool | None, epochs: int, per_epoch: int | None) -> Iterator[Silence]:
    """Choose how to report, for as long as a run goes.

    Parameters
    ----------
    wanted : bool or None
        False says nothing. True and None report: by a bar on a terminal where rich is installed, by lines
        otherwise.
    epochs : int
    per_epoch : int or None
        Batches in one, where that is known.
    """
    if wanted is False:
        yield Silence()
    elif sys.stdout.isatty() and importlib.util.find_spec("rich") is not None:
        bar = Bar(epochs, per_epoch)
        with bar.progress:
            yield bar
    else:
        yield Lines(epochs)


def _numbers(row: dict[str, Any]) -> str:
    shown = {k: v for k, v in row.items() if isinstance(v, float) and k != "seconds"}
    return "  ".join(f"{name} {value:.4g}" for name, value in shown.items())


def _line(row: dict[str, Any], epochs: int) -> str:
    width = len(str(epochs))
    return f"epoch {row['epoch']:{width}d}/{epochs}  {_numbers(row)}  {row['seconds']:.1f} s"
