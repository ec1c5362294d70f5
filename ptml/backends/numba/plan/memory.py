"""Planned memory: blocks that are taken when a value is made and given back after its last use.

Values that are never alive together share a block, so a program's memory is what it needs at its fullest
moment, and a call allocates nothing. Blocks are kept for one layout of the inputs, and die with its table.
"""

from __future__ import annotations

import ctypes
from bisect import bisect_left, insort
from collections.abc import Callable, Sequence
from typing import Any

import attrs
import numpy as np

from ptml.backends.numba.plan.runtime.executor import data_offset

__all__ = ["Block", "Fixed", "Live", "Place", "Pool", "Value", "address_of"]

#: Blocks begin where a processor's widest loads like it, and are whole cache lines.
ALIGNMENT = 64

_OFFSET = data_offset()
_number_at = ctypes.c_size_t.from_address


def address_of(array: np.ndarray) -> int:
    """Give the address of an array's first element."""
    # From the array's object, as the loop that runs a table finds it: NumPy's own ways take four times as
    # long, and a plan asks for thousands.
    return _number_at(id(array) + _OFFSET).value


@attrs.frozen(eq=False)
class Block:
    """A piece of planned memory: bytes, aligned."""

    memory: np.ndarray = attrs.field(repr=False)
    address: int = attrs.field(init=False, repr=False)

    @address.default
    def _find_address(self) -> int:
        return address_of(self.memory)

    @classmethod
    def of_size(cls, nbytes: int) -> Block:
        """Make a new block."""
        raw = np.empty(nbytes + ALIGNMENT, np.uint8)
        start = -address_of(raw) % ALIGNMENT
        return cls(raw[start : start + nbytes])

    @property
    def nbytes(self) -> int:
        return self.memory.nbytes


@attrs.frozen(eq=False)
class Fixed:
    """Memory of a constant, or of what is known when the table is built: never written."""


@attrs.frozen(eq=False)
class Live:
    """Memory that a call brings with it: a cell of the state, an input, what a Python step gave.

    Attributes
    ----------
    index : int
        Its place among those of a call.
    """

    index: int


#: Where something is: the live memory that it is in, if it is in such, and its address.
Place = tuple[Live | None, int]


@attrs.define(eq=False)
class Value:
    """A variable's value while a table is built; nothing changes it.

    Attributes
    ----------
    array : ndarray or object
        An array over the very memory in planned memory; for `Live` memory, that of the call at hand.
    root : Block, Fixed or Live
        Whose memory it is.
    known : bool
        Whether its numbers are known, and stay.
    offset : int
        Where it begins, in bytes from the first element of what it is a view of.
    whole : bool
        Whether it is no view.
    address : int
        Where its first element is, while the table is built; 0 for what is no array.
    """

    array: Any
    root: Block | Fixed | Live
    known: bool = False
    offset: int = 0
    whole: bool = True
    address: int = attrs.field(init=False, repr=False)

    def __attrs_post_init__(self) -> None:
        self.address = address_of(self.array) if isinstance(self.array, np.ndarray) else 0

    @property
    def place(self) -> Place:
        """What two values of one array have in common, whatever a call brings: arrays that lie in one place
        when a table is built may lie in two when it runs."""
        return (self.root if isinstance(self.root, Live) else None), self.address

    def seen_as(self, array: np.ndarray) -> Value:
        """Give a view of it."""
        if array is self.array:
            return self
        seen = Value(array, self.root, self.known, self.offset, False)
        seen.offset += seen.address - self.address
        return seen

    def fetcher(self) -> Callable[[Sequence[Any]], Any]:
        """Give a function of a call's live memory that finds the value there."""
        array, root, offset = self.array, self.root, self.offset
        if not isinstance(root, Live):
            return lambda live: array
        index = root.index
        if self.whole:
            return lambda live: live[index]
        interface = {
            "shape": array.shape,
            "strides": array.strides,
            "typestr": array.dtype.str,
            "version": 3,
        }
        return lambda live: np.asarray(_Window(live[index], offset, interface))


class _Window:
    """Part of an array, at an offset into its memory."""

    __slots__ = ("__array_interface__", "base")

    def __init__(self, base: np.ndarray, offset: int, interface: dict[str, Any]) -> None:
        self.base = base
        self.__array_interface__ = {**interface, "data": (address_of(base) + offset, False)}


class Pool:
    """Blocks that are free, smallest first.

    Parameters
    ----------
    free : sequence of Block
        Those to begin with: where a table goes on from another, what that one had left.
    """

    def __init__(self, free: Sequence[Block] = ()) -> None:
        self.free = sorted(free, key=_size)
        self.taken: list[Block] = []
        self.allocated = 0

    def take(self, nbytes: int) -> Block:
        """Give the smallest free block that is large enough, or a new one rather than waste half."""
        nbytes = max(-(-nbytes // ALIGNMENT) * ALIGNMENT, ALIGNMENT)
        place = bisect_left(self.free, nbytes, key=_size)
        if place < len(self.free) and self.free[place].nbytes <= 2 * nbytes:
            block = self.free.pop(place)
        else:
            block = Block.of_size(nbytes)
            self.allocated += nbytes
        self.taken.append(block)
        return block

    def give_back(self, block: Block) -> None:
        """Take a block back, for the next value."""
        insort(self.free, block, key=_size)

    @staticmethod
    def array(block: Block, shape: Sequence[int], dtype: Any) -> np.ndarray:
        """Give an array of a block's first bytes, in C order."""
        return np.ndarray(shape, dtype, block.memory)


def _size(block: Block) -> int:
    return block.nbytes
