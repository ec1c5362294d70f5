"""Arrays that lie in files: read when they are looked at, and never written."""

from __future__ import annotations

import mmap
from typing import Any

import numpy as np

__all__ = ["MappedFile", "is_mapped"]


class MappedFile(mmap.mmap):
    """The memory of a file that is mapped for reading. It stays for as long as an array needs it.

    Examples
    --------
    >>> import pathlib, tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = pathlib.Path(folder) / "numbers"
    ...     _ = path.write_bytes(np.arange(3.0).tobytes())
    ...     with path.open("rb") as file:
    ...         array = np.frombuffer(MappedFile(file.fileno(), 0, access=mmap.ACCESS_READ))
    >>> array, is_mapped(array)
    (array([0., 1., 2.]), True)
    """


def is_mapped(array: Any) -> bool:
    """Say whether an array's memory is that of a :class:`MappedFile`.

    Examples
    --------
    >>> is_mapped(np.zeros(3))
    False
    """
    base = array
    while isinstance(base, np.ndarray | memoryview):
        base = base.base if isinstance(base, np.ndarray) else base.obj
    return isinstance(base, MappedFile)
