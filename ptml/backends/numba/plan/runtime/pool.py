"""Threads for large work: workers of our own, and how a kernel's work is shared out among them.

Workers are threads of the C library, not of Python: a program runs without the interpreter's lock, and they
never need it. They start at the first work that is large enough, look out for more of it for some tens of
microseconds, and then sleep. Work is cut into parts that whoever is free takes, the calling thread among
them: where a core is busy with something else the others do its parts, and where no worker could be started
the caller does all. A second caller, while they are at work, does its own parts alone.

Which parts there are depends on sizes and on the number of threads, never on time. Before a process forks the
workers are stopped: parent and child start their own when they need them.
"""

from __future__ import annotations

import atexit
import ctypes
import os
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

import attrs
import numpy as np

from ptml import threads
from ptml.backends.numba.plan.memory import Block, address_of
from ptml.backends.numba.plan.runtime.cache import hold_still, kernels, move_again
from ptml.backends.numba.plan.runtime.workers import AT, POOL_BYTES, workers_source

if TYPE_CHECKING:
    from ptml.backends.numba.plan.memory import Value

__all__ = ["Share", "at_fork", "shared", "shares"]

#: How long a worker looks out for more before it sleeps.
PATIENCE_S = 30e-6


@attrs.frozen
class Share:
    """How a kernel's work can be cut into parts.

    Attributes
    ----------
    word : int
        Which of its words says how many units of work there are.
    size : int
        What it says.
    steps : mapping
        The words that say where a part begins, and how much each grows by with a unit: an address by bytes,
        a number by 1.
    grain : int
        A part has a multiple of so many units, but for the last one.
    each : int
        How many parts there are for each thread, at most; 0 where every part is one grain, whatever the
        number of threads.
    part_steps : mapping
        Like `steps`, by how much each grows with a part.
    """

    word: int
    size: int
    steps: Mapping[int, int]
    grain: int = 1
    each: int = 4
    part_steps: Mapping[int, int] = attrs.field(factory=dict)


class _Pool:
    """The pool of this process."""

    def __init__(self) -> None:
        source = workers_source()
        self.kernel = kernels.address(source, "share")
        self._block = Block.of_size(POOL_BYTES)
        self._words = self._block.memory.view(np.int64)
        self._words[:] = 0
        self.address = address_of(self._words)
        one = ctypes.CFUNCTYPE(None, ctypes.c_int64)
        self._stop, self._go_on, prepare, self._spin = (
            one(kernels.address(source, name)) for name in ("stop", "go_on", "prepare", "spin")
        )
        prepare(self.address)
        self._words[AT["spins"] // 8] = max(PATIENCE_S / self._pause(), 1)
        self.resize(threads.get_threads())
        atexit.register(self.resize, 1)

    def _pause(self, rounds: int = 1000) -> float:
        """Measure how long a processor's waiting instruction takes, in seconds: between 1 and 100 ns."""
        taken = []
        for _ in range(3):
            start = time.perf_counter()
            self._spin(rounds)
            taken.append(time.perf_counter() - start)
        return min(taken) / rounds

    def stop(self) -> None:
        """Stop the workers when what they do is done, and let nobody have them."""
        self._stop(self.address)

    def go_on(self) -> None:
        """Let whoever needs workers start them."""
        self._go_on(self.address)

    def resize(self, n: int) -> None:
        """Set the number of threads, the caller's among them."""
        self.stop()
        self._words[AT["threads"] // 8] = n
        self.go_on()


_lock = threading.Lock()
_made: list[_Pool] = []


def _pool() -> _Pool:
    """Give the pool, and make it where this is the first call."""
    with _lock:
        if not _made:
            _made.append(_Pool())
            threads.watch(_made[0].resize)
    return _made[0]


def _before_fork() -> None:
    # Nobody may be at work when memory is copied: who holds a lock then has no copy that would let it go.
    hold_still()
    _lock.acquire()
    for pool in _made:
        pool.stop()
    for before, _ in _at_fork:
        before()


def _after_fork() -> None:
    for _, after in _at_fork:
        after()
    for pool in _made:
        pool.go_on()
    _lock.release()
    move_again()


#: What is to be done when the workers have stopped before a fork, and after it, in parent and child.
_at_fork: list[tuple[Callable[[], None], Callable[[], None]]] = []

if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_before_fork, after_in_parent=_after_fork, after_in_child=_after_fork)


def at_fork(before: Callable[[], None], after: Callable[[], None]) -> None:
    """Let something be done before a fork, when the workers have stopped, and after it."""
    _at_fork.append((before, after))


def shares() -> bool:
    """Say whether work can be shared out on this system: whether the C library has POSIX threads."""
    return os.name == "posix"


def shared(kernel: int, words: Sequence[int | Value], share: Share) -> tuple[int, Sequence[int | Value]]:
    """Give a kernel and its words that do the work of another on as many threads as there may be.

    Parameters
    ----------
    kernel : int
        The other kernel's address. It may run several times at once, on parts of the work.
    words : sequence
        Its words: numbers, and values for their addresses.
    share : Share

    Returns
    -------
    kernel : int
    words : sequence
    """
    if not shares():
        return kernel, words
    pool = _pool()
    head = [pool.address, kernel, len(words), share.word, share.size, share.grain, share.each]
    moved = [*share.steps, *(word for word in share.part_steps if word not in share.steps)]
    steps = [n for w in moved for n in (w, share.steps.get(w, 0), share.part_steps.get(w, 0))]
    return pool.kernel, [*head, len(moved), *steps, *words]
