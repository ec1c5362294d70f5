"""Writing in the background: one write, and what became of it."""

from __future__ import annotations

import threading
import traceback
import warnings
import weakref
from collections.abc import Callable
from typing import Any

__all__ = ["Writer"]

LOST = "The checkpoint of step {step} was not written, and nobody asked: {error!r}"


class Writer:
    """One write in the background, which starts at once.

    The interpreter does not end before it. An error that nobody asks for is told as a warning.

    Parameters
    ----------
    step : int
        What it is called.
    write : callable
        What writes.
    *arguments
        What that is given.

    Examples
    --------
    >>> done = []
    >>> writer = Writer(3, done.append, 3)
    >>> writer.join()
    >>> writer.tell()
    >>> done
    [3]
    """

    def __init__(self, step: int, write: Callable[..., None], *arguments: Any) -> None:
        self._outcome: list[BaseException] = []
        self._thread = threading.Thread(
            target=_noting, args=(self._outcome, write, *arguments), name=f"save step {step}"
        )
        # Runs at the latest when the interpreter ends, which waits for threads first.
        self._unheard = weakref.finalize(self, _report, step, self._outcome)
        self._thread.start()

    @property
    def is_done(self) -> bool:
        """Whether there is nothing to wait for."""
        return not self._thread.is_alive()

    def join(self) -> None:
        """Wait for it."""
        self._thread.join()

    def tell(self) -> None:
        """Raise its error, if there was one."""
        self._unheard.detach()
        if self._outcome:
            raise self._outcome[0]


def _noting(outcome: list[BaseException], write: Callable[..., None], *arguments: Any) -> None:
    try:
        write(*arguments)
    except BaseException as error:
        # Where it was is worth keeping, and the values that were at hand there are not.
        traceback.clear_frames(error.__traceback__)
        outcome.append(error)
    del write, arguments


def _report(step: int, outcome: list[BaseException]) -> None:
    if outcome:
        warnings.warn(LOST.format(step=step, error=outcome[0]), stacklevel=2)
