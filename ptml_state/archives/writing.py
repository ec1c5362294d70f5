"""Writing files that appear whole or not at all."""

from __future__ import annotations

import contextlib
import errno
import os
import uuid
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from ptml_state.archives.header import KEPT, RESERVED, header_bytes
from ptml_state.archives.metadata import description
from ptml_state.state import State

__all__ = ["sync_folder", "whole_file", "write_state"]

# What is written at a time: more at once is no faster, and system calls take less than 2 GiB.
_CHUNK = 1 << 26


def write_state(state: State, path: Path, revision: int) -> None:
    """Write a state to a file: its header, then one array after the other.

    Raises
    ------
    TypeError
        When a leaf's dtype is none that archives keep.
    ValueError
        When an address is none that they can have.
    """
    for leaf in state.leaves:
        _refuse_unkept(leaf)
    # JAX's arrays know their dtype and shape without being fetched.
    header, order = header_bytes(
        {leaf.address: leaf.value for leaf in state.leaves}, description(state.leaves, revision)
    )
    with whole_file(path) as write:
        write(header)
        for address in order:
            # safetensors has the memory as it lies, so it must lie in C order.
            array = np.asarray(state[address], order="C")
            write(array.reshape(-1).view(np.uint8))


def _refuse_unkept(leaf: Any) -> None:
    if leaf.address == RESERVED:
        raise ValueError(
            f"{RESERVED!r} is no address for an archive: safetensors keeps its own things there."
        )
    try:
        leaf.address.encode()
    except UnicodeEncodeError:
        raise ValueError(f"{leaf.address!r} is no address for an archive: it is no text.") from None
    name = np.dtype(leaf.dtype).name
    if name not in KEPT:
        raise TypeError(
            f"{leaf.address!r} is {name}, which archives do not keep. "
            f"Write state.astype(dtype, {leaf.address!r}) with one of {', '.join(KEPT)}."
        )


@contextlib.contextmanager
def whole_file(path: Path) -> Iterator[Any]:
    """Write a file that takes its place, in one step, when it is whole and on the disk.

    Gives a function that writes bytes, or anything alike. Where anything fails, what was at the path is still
    there, and nothing else is.

    Parameters
    ----------
    path : Path
        Where to. Its folder has to exist.

    Examples
    --------
    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     with whole_file(Path(folder) / "note") as write:
    ...         write(b"two ")
    ...         write(b"parts")
    ...     (Path(folder) / "note").read_text()
    'two parts'
    """
    # Written beside the target, so that replacing it is one step of the file system.
    beside = path.with_name(f".{path.name}.{uuid.uuid4().hex}.tmp")
    try:
        with beside.open("xb", buffering=0) as file:

            def write(content: Any) -> None:
                for part in _parts(content):
                    while part:
                        part = part[file.write(part) :]

            yield write
            os.fsync(file.fileno())
        beside.replace(path)
    except BaseException:
        beside.unlink(missing_ok=True)
        raise
    sync_folder(path.parent)


def _parts(content: Any) -> Iterable[memoryview]:
    view = memoryview(content)
    return (view[start : start + _CHUNK] for start in range(0, len(view), _CHUNK))


def sync_folder(folder: Path) -> None:
    """Have the names in a folder on the disk, where the system can do that."""
    if os.name != "posix":
        return
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOTSUP):  # a file system whose folders are never behind
            raise
    finally:
        os.close(descriptor)
