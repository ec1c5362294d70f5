"""How many threads programs on the numba backend run large work on."""

from __future__ import annotations

import os
from collections.abc import Callable
from numbers import Integral

__all__ = ["MAX_THREADS", "get_threads", "set_threads", "watch"]

MAX_THREADS = 256

NOT_A_NUMBER = "set_threads takes a whole number from 1 to {most}; got {given!r}. Write {instead}."
BAD_VARIABLE = (
    "The environment variable PTML_NUM_THREADS is {given!r}. Set it to a whole number from 1 to {most}, or "
    "unset it for as many threads as there are cores."
)

_chosen: int | None = None
_watchers: list[Callable[[int], None]] = []


def set_threads(n: int) -> None:
    """Set how many threads large work runs on, in programs of the numba backend.

    It holds for the whole process, from the next call of any program on; nothing is compiled anew. Small work
    always runs on the calling thread. Other backends have settings of their own.

    Parameters
    ----------
    n : int
        From 1, which starts no threads, to 256. Before it is set it is ``PTML_NUM_THREADS`` from the
        environment, else ``OMP_NUM_THREADS``, else the number of cores that the process may use.

    Raises
    ------
    TypeError
        If it is no whole number.
    ValueError
        If it is out of range.

    Examples
    --------
    >>> import ptml
    >>> before = ptml.get_threads()
    >>> ptml.set_threads(1)
    >>> ptml.get_threads()
    1
    >>> ptml.set_threads(before)
    """
    global _chosen
    if isinstance(n, bool) or not isinstance(n, Integral):
        instead = f"set_threads({n})" if isinstance(n, str) and n.strip().isdigit() else "set_threads(2)"
        raise TypeError(NOT_A_NUMBER.format(most=MAX_THREADS, given=n, instead=instead))
    if not 1 <= n <= MAX_THREADS:
        instead = f"set_threads({1 if n < 1 else MAX_THREADS})"
        raise ValueError(NOT_A_NUMBER.format(most=MAX_THREADS, given=n, instead=instead))
    _chosen = int(n)
    for watcher in _watchers:
        watcher(_chosen)


def get_threads() -> int:
    """Give how many threads large work runs on, in programs of the numba backend.

    Raises
    ------
    ValueError
        If nothing was set and the environment's ``PTML_NUM_THREADS`` is no number of threads.

    Examples
    --------
    >>> import ptml
    >>> ptml.get_threads() >= 1
    True
    """
    global _chosen
    if _chosen is None:
        _chosen = _default()
    return _chosen


def watch(watcher: Callable[[int], None]) -> None:
    """Let a function know whenever the number changes."""
    _watchers.append(watcher)


def _default() -> int:
    own = os.environ.get("PTML_NUM_THREADS")
    if own:
        if not own.strip().isdecimal() or not 1 <= int(own) <= MAX_THREADS:
            raise ValueError(BAD_VARIABLE.format(given=own, most=MAX_THREADS))
        return int(own)
    # OpenMP's variable may list a number for each level of nesting; other values are not ours to refuse.
    first = os.environ.get("OMP_NUM_THREADS", "").split(",")[0].strip()
    if first.isdecimal() and int(first) >= 1:
        return min(int(first), MAX_THREADS)
    return min(_cores(), MAX_THREADS)


def _cores() -> int:
    """Count the cores that this process may use."""
    if hasattr(os, "process_cpu_count"):
        return os.process_cpu_count() or 1
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
