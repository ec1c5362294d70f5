"""The loop that runs a table of kernels.

A frame is six words: the kernels' addresses, the tables of their operands, how many kernels there are, the
relocations, how many of these, and the arrays that they refer to. A relocation is three words: where to write
an address, which array's address that is, and what to add to it: what a call brings with it (its inputs, the
cells of the state) lies elsewhere each time, and its addresses are put into the kernels' tables before they
run. All of it happens in compiled code, in one call from Python.

Before that, another loop compares the cells of the state with what they held at the last call: PyTensor keeps
each in a list of one element, and asking hundreds of lists from Python would take longer than a small step.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import numpy as np

from ptml.backends.numba.plan.runtime.cache import kernels

__all__ = ["DONE", "Cells", "data_offset", "runner", "runner_address"]

#: What the loop gives when every kernel ran; else it gives the number of the one that met an error.
DONE = -1

_LAYOUT = "This Python keeps {what} in an unknown layout; run programs with backend='c' here."


@cache
def data_offset() -> int:
    """Give how many bytes into an array's object its data's address stands: behind the header."""
    probe = np.zeros(3)
    offset = object.__basicsize__
    if ctypes.c_void_p.from_address(id(probe) + offset).value != probe.ctypes.data:
        raise RuntimeError(_LAYOUT.format(what="NumPy arrays"))
    return offset


# LLVM's own text: a call of an address is shorter to write in it than through a builder.
_SOURCE = """
define i64 @run(ptr %frame) {{
entry:
  %functions = load ptr, ptr %frame
  %at1 = getelementptr i64, ptr %frame, i64 1
  %tables = load ptr, ptr %at1
  %at2 = getelementptr i64, ptr %frame, i64 2
  %n_kernels = load i64, ptr %at2
  %at3 = getelementptr i64, ptr %frame, i64 3
  %relocations = load ptr, ptr %at3
  %at4 = getelementptr i64, ptr %frame, i64 4
  %n_relocations = load i64, ptr %at4
  %at5 = getelementptr i64, ptr %frame, i64 5
  %arrays = load ptr, ptr %at5
  %any = icmp sgt i64 %n_relocations, 0
  br i1 %any, label %relocate, label %ready
relocate:
  %k = phi i64 [ 0, %entry ], [ %k_next, %relocate ]
  %word = mul i64 %k, 3
  %entry0 = getelementptr i64, ptr %relocations, i64 %word
  %slot = load ptr, ptr %entry0
  %entry1 = getelementptr i64, ptr %entry0, i64 1
  %which = load i64, ptr %entry1
  %entry2 = getelementptr i64, ptr %entry0, i64 2
  %bytes = load i64, ptr %entry2
  %array_at = getelementptr ptr, ptr %arrays, i64 %which
  %array = load ptr, ptr %array_at
  %data_at = getelementptr i8, ptr %array, i64 {offset}
  %data = load ptr, ptr %data_at
  %operand = getelementptr i8, ptr %data, i64 %bytes
  store ptr %operand, ptr %slot
  %k_next = add i64 %k, 1
  %more = icmp slt i64 %k_next, %n_relocations
  br i1 %more, label %relocate, label %ready
ready:
  %work = icmp sgt i64 %n_kernels, 0
  br i1 %work, label %step, label %done
step:
  %i = phi i64 [ 0, %ready ], [ %i_next, %next ]
  %kernel_at = getelementptr ptr, ptr %functions, i64 %i
  %kernel = load ptr, ptr %kernel_at
  %table_at = getelementptr ptr, ptr %tables, i64 %i
  %table = load ptr, ptr %table_at
  %code = call i32 %kernel(ptr %table)
  %fine = icmp eq i32 %code, 0
  br i1 %fine, label %next, label %failed
next:
  %i_next = add i64 %i, 1
  %again = icmp slt i64 %i_next, %n_kernels
  br i1 %again, label %step, label %done
failed:
  ret i64 %i
done:
  ret i64 -1
}}

define i64 @unchanged(ptr %frame) {{
entry:
  %lists = load ptr, ptr %frame
  %at1 = getelementptr i64, ptr %frame, i64 1
  %held = load ptr, ptr %at1
  %at2 = getelementptr i64, ptr %frame, i64 2
  %n = load i64, ptr %at2
  %any = icmp sgt i64 %n, 0
  br i1 %any, label %compare, label %same
compare:
  %k = phi i64 [ 0, %entry ], [ %k_next, %next ]
  %list_at = getelementptr ptr, ptr %lists, i64 %k
  %list = load ptr, ptr %list_at
  %items_at = getelementptr i8, ptr %list, i64 {items}
  %items = load ptr, ptr %items_at
  %item = load ptr, ptr %items
  %held_at = getelementptr ptr, ptr %held, i64 %k
  %old = load ptr, ptr %held_at
  %equal = icmp eq ptr %item, %old
  br i1 %equal, label %next, label %other
next:
  %k_next = add i64 %k, 1
  %more = icmp slt i64 %k_next, %n
  br i1 %more, label %compare, label %same
same:
  ret i64 1
other:
  ret i64 0
}}
"""


@cache
def items_offset() -> int:
    """Give how many bytes into a list's object the address of its items stands: behind header and length."""
    probe = [object()]
    offset = object.__basicsize__ + ctypes.sizeof(ctypes.c_ssize_t)
    items = ctypes.c_void_p.from_address(id(probe) + offset).value
    if not items or ctypes.c_void_p.from_address(items).value != id(probe[0]):
        raise RuntimeError(_LAYOUT.format(what="lists"))
    return offset


@cache
def _loop(name: str) -> Callable[[int], int]:
    return ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_void_p)(_address(name))


def _address(name: str) -> int:
    source = _SOURCE.format(offset=data_offset(), items=items_offset())
    return kernels.address(source, name)


def runner_address() -> int:
    """Give the address of the compiled loop, for kernels that run tables."""
    return _address("run")


def runner() -> Callable[[int], int]:
    """Give the compiled loop: it takes a frame's address, and gives `DONE` or the number of a kernel."""
    return _loop("run")


class Cells:
    """The cells of a state, and the values that they were last seen to hold.

    Parameters
    ----------
    storages : sequence of list
        PyTensor's lists of one element each.

    Attributes
    ----------
    values : list
        What they held when `look` was called.
    """

    def __init__(self, storages: Sequence[list[Any]]) -> None:
        self.storages = list(storages)
        self.values: list[Any] = []
        self._lists = np.array([id(storage) for storage in self.storages], np.uint64)
        self._held = np.zeros(len(self.storages), np.uint64)
        self._frame = np.array(
            [self._lists.ctypes.data, self._held.ctypes.data, len(self.storages)], np.uint64
        )
        self._address = self._frame.ctypes.data
        self._unchanged = _loop("unchanged")

    def unchanged(self) -> bool:
        """Say whether they hold what they held."""
        return self._unchanged(self._address) == 1

    def look(self) -> list[Any]:
        """See what they hold now."""
        self.values = [storage[0] for storage in self.storages]
        self._held[:] = list(map(id, self.values))
        return self.values
