"""Ctrl-C: the first one lets the step that is under way finish, a second one ends the program."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Callable, Iterator

__all__ = ["asked_to_stop"]


@contextlib.contextmanager
def asked_to_stop() -> Iterator[Callable[[], bool]]:
    """Collect the first Ctrl-C, so that no step is torn apart.

    Yields
    ------
    callable
        Says whether it came. Outside of the main thread, which alone is told of signals, it never does.

    Examples
    --------
    >>> from ptml.training.interrupts import asked_to_stop
    >>> with asked_to_stop() as stop:
    ...     stop()
    False
    """
    came: list[int] = []
    if threading.current_thread() is not threading.main_thread():
        yield lambda: False
        return

    def remember(number: int, frame: object) -> None:
        came.append(number)
        signal.signal(signal.SIGINT, signal.default_int_handler)

    before = signal.signal(signal.SIGINT, remember)
    try:
        yield lambda: bool(came)
    finally:
        signal.signal(signal.SIGINT, before)
