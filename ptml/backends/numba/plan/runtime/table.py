"""A table: kernels and what they read, up to a step in Python or to the end of the program."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from typing import Any

import attrs
import numpy as np
from pytensor.graph.basic import Apply

from ptml.backends.numba.plan.memory import Live, Value, address_of
from ptml.backends.numba.plan.runtime.executor import DONE, runner

__all__ = ["Ahead", "KernelError", "Table"]

_MASK = 2**64 - 1


class KernelError(Exception):
    """A kernel met an error; the node says which, computed in Python.

    Attributes
    ----------
    step : PythonStep
    """

    def __init__(self, step: Any) -> None:
        super().__init__(step)
        self.step = step


@attrs.frozen
class Ahead:
    """A word that is the address of another one, so many places further on in the table."""

    places: int


class Table:
    """Kernels in their order, with their words.

    Attributes
    ----------
    step : PythonStep or None
        What runs in Python after the kernels.
    resume : callable or None
        What plans the table after that.
    finish : Finish or None
        What is left to do, where no step follows.
    planned_bytes : int
        What the blocks of this table, and of those before it, take.
    following : dict
        The tables after the step, by the layout of what it gives.
    """

    def __init__(self) -> None:
        self._kernels: list[int] = []
        self._starts: list[int] = []
        self._words: list[int] = []
        self._relocations: list[tuple[int, int, int]] = []
        self._ahead: list[tuple[int, int]] = []
        self._keep: list[Any] = []
        self._nodes: list[tuple[Apply, Any]] = []
        self.step: Any = None
        self.resume: Any = None
        self.finish: Any = None
        self.planned_bytes = 0
        self.following: dict[Any, Table] = {}

    def keep(self, thing: Any) -> None:
        """Let something live as long as the table: memory that words point to."""
        self._keep.append(thing)

    def mark(self) -> tuple[int, ...]:
        """Say how far the table is, to go back to."""
        return len(self._kernels), len(self._words), len(self._relocations), len(self._ahead)

    def rewind(self, mark: tuple[int, ...]) -> None:
        """Forget what was added since a mark."""
        kernels, words, relocations, ahead = mark
        del self._kernels[kernels:], self._starts[kernels:], self._nodes[kernels:]
        del self._words[words:], self._relocations[relocations:], self._ahead[ahead:]

    def add(
        self, kernel: int, words: Sequence[int | Value | Ahead], node: Apply, failure: Any = None
    ) -> None:
        """Add a kernel.

        Parameters
        ----------
        kernel : int
            Its address.
        words : sequence
            What it reads: numbers, values for their addresses, and the addresses of words ahead.
        node : Apply
            Whose it is.
        failure : PythonStep, optional
            What raises the error, where it can meet one.
        """
        self._kernels.append(kernel)
        self._starts.append(len(self._words))
        self._nodes.append((node, failure))
        for place, word in enumerate(words, len(self._words)):
            if isinstance(word, Value):
                root = word.root
                if isinstance(root, Live):
                    self._relocations.append((place, root.index, word.offset))
                else:
                    self._keep.append(word.array)
                word = word.address
            elif isinstance(word, Ahead):
                self._ahead.append((place, place + word.places))
                word = 0
            self._words.append(word & _MASK)

    def close(self, step: Any = None, resume: Callable | None = None, finish: Any = None) -> None:
        """Lay the table out in memory: nothing is added after this."""
        self.step, self.resume, self.finish = step, resume, finish
        words = np.array(self._words, np.uint64)
        start = address_of(words)
        for word, other in self._ahead:
            words[word] = start + 8 * other
        tables = np.array(self._starts, np.uint64) * np.uint64(8) + np.uint64(start)
        kernels = np.array(self._kernels, np.uint64)
        #: The live memory that the kernels read, in the order of `objects`.
        self.needs = sorted({index for _, index, _ in self._relocations})
        self._bringing: list[tuple[int, int]] = []
        self._bound: Any = None
        place = {index: k for k, index in enumerate(self.needs)}
        relocations = np.array(
            [(start + 8 * word, place[index], offset & _MASK) for word, index, offset in self._relocations],
            np.uint64,
        ).reshape(-1, 3)
        self.objects = (ctypes.c_uint64 * max(len(self.needs), 1))()
        self._frame = np.array(
            [
                address_of(kernels),
                address_of(tables),
                len(kernels),
                address_of(relocations),
                len(relocations),
                ctypes.addressof(self.objects),
            ],
            np.uint64,
        )
        self._frame_address = address_of(self._frame)
        self._run = runner()
        self._keep += [words, tables, kernels, relocations]
        self._words, self._relocations, self._ahead, self._starts = [], [], [], []

    @property
    def can_fail(self) -> bool:
        """Whether any kernel can meet an error."""
        return any(failure is not None for _, failure in self._nodes)

    @property
    def frame_address(self) -> int:
        """Where the frame is that the compiled loop takes."""
        return self._frame_address

    @property
    def n_kernels(self) -> int:
        return len(self._kernels)

    def run(self, live: Sequence[Any], cells: list[Any]) -> None:
        """Run the kernels on a call's live memory.

        Parameters
        ----------
        live : sequence
            Cells, inputs, what Python steps gave.
        cells : list
            The cells alone: the same list as at the last call if they hold the same arrays.

        Raises
        ------
        KernelError
            If one of them met an error.
        """
        objects = self.objects
        if cells is not self._bound:
            for k, index in enumerate(self.needs):
                objects[k] = id(live[index])
            self._bringing = [(k, index) for k, index in enumerate(self.needs) if index >= len(cells)]
            self._bound = cells
        else:
            for k, index in self._bringing:
                objects[k] = id(live[index])
        stopped = self._run(self._frame_address)
        if stopped != DONE:
            raise KernelError(self._nodes[stopped][1])
