"""Archives: states in safetensors files."""

from __future__ import annotations

import importlib.metadata
import json
import os
import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import safetensors
from safetensors.numpy import save

from ptml_state.leaf import Leaf
from ptml_state.slot import Role, living_slot
from ptml_state.state import State

__all__ = ["ArchiveError", "load_state", "save_state"]

FORMAT = 1

# Keys of the file's metadata, whose values are strings.
_FORMAT_KEY = "ptml_state.format"
_VERSION_KEY = "ptml_state.version"
_LEAVES_KEY = "ptml_state.leaves"


# What safetensors calls its metadata among the arrays.
_RESERVED = "__metadata__"

# The dtypes that safetensors has and reads back into NumPy.
_KEPT = (
    *("float64", "float32", "float16", "bfloat16", "complex64", "bool"),
    *("int64", "int32", "int16", "int8", "uint64", "uint32", "uint16", "uint8"),
)


class ArchiveError(ValueError):
    """A file is no archive that can be read. The message names it and says what is wrong."""


def save_state(state: State, path: str | os.PathLike[str]) -> None:
    """Write a state to a safetensors file.

    The file appears whole or not at all: where writing fails, what was there before is still there. Any
    program that reads safetensors reads it; the arrays are called by their addresses.

    Parameters
    ----------
    state : State
        What to write.
    path : str or path
        Where to. The folder has to exist; a file that is there is replaced.

    Raises
    ------
    OSError
        When the file cannot be written.
    TypeError
        When a leaf's dtype is none that safetensors has.

    Examples
    --------
    >>> import tempfile, pathlib
    >>> from ptml_state import State, load_state, save_state
    >>> state = State({"fc1/W": [[1.0, 2.0]], "adam/step_count": 3})
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = pathlib.Path(folder) / "model.safetensors"
    ...     save_state(state, path)
    ...     load_state(path) == state
    True
    """
    path = Path(path)
    if not isinstance(state, State):
        raise TypeError(
            f"save_state writes a State; got {type(state).__name__}. Write program.state or State(...)."
        )
    if path.is_dir():
        raise IsADirectoryError(f"{path} is a folder; an archive is one file.")
    if _RESERVED in state:
        raise ValueError(
            f"{_RESERVED!r} is no address for an archive: safetensors keeps its own things there."
        )
    # safetensors writes the memory as it lies, so it must lie in C order.
    arrays = {address: np.asarray(value, order="C") for address, value in state.items()}
    for address, array in arrays.items():
        if array.dtype.name not in _KEPT:
            raise TypeError(
                f"{address!r} is {array.dtype}, which archives do not keep. "
                f"Write state.astype(dtype, {address!r}) with one of {', '.join(_KEPT)}."
            )
    rows = [[leaf.address, leaf.role.value, leaf.owner, leaf.uses, *_identity(leaf)] for leaf in state.leaves]
    metadata = {_FORMAT_KEY: str(FORMAT), _VERSION_KEY: _version(), _LEAVES_KEY: json.dumps(rows)}
    _write_whole(path, save(arrays, metadata))


def load_state(path: str | os.PathLike[str]) -> State:
    """Read a state from a safetensors file.

    Nothing is imported or run for it. In a file that was not written by :func:`save_state` every array is
    a parameter.

    Parameters
    ----------
    path : str or path
        The file.

    Raises
    ------
    ArchiveError
        When the file is truncated, damaged, no safetensors file, or of a later format.
    FileNotFoundError
        When there is none.
    """
    path = Path(path)
    if path.is_dir():
        raise ArchiveError(f"{path} is a folder; an archive is one file.")
    try:
        with safetensors.safe_open(path, framework="numpy") as file:
            metadata = file.metadata() or {}
            arrays = {address: file.get_tensor(address) for address in file.keys()}  # noqa: SIM118 no mapping
    except FileNotFoundError:
        raise FileNotFoundError(f"There is no file {path}.") from None
    except safetensors.SafetensorError as error:
        raise ArchiveError(f"{path} is no whole safetensors file: {_what_is_wrong(path, error)}.") from error
    except AttributeError as error:  # safetensors' own, where NumPy lacks a dtype
        raise ArchiveError(f"{path} has arrays of a dtype that NumPy does not know: {error}.") from error
    for array in arrays.values():
        array.flags.writeable = False
    try:
        return State.of(_leaves(arrays, metadata))
    except (ValueError, TypeError, KeyError) as error:
        raise ArchiveError(f"{path} holds no state: {error}") from error


def _identity(leaf: Leaf) -> list[str]:
    """Give the identity of a leaf whose layer is numbered, and none of one whose layer has a name.

    A number changes with the order of the layers, and the values must not go to another layer with it.
    """
    slot = living_slot(leaf.uid)
    if leaf.uid is None or (slot is not None and slot.address == leaf.address):
        return []
    return [leaf.uid]


def _leaves(arrays: Mapping[str, np.ndarray], metadata: Mapping[str, str]) -> list[Leaf]:
    if _FORMAT_KEY not in metadata:
        return [Leaf(address, array) for address, array in arrays.items()]
    if int(metadata[_FORMAT_KEY]) > FORMAT:
        raise ValueError(
            f"it is of format {metadata[_FORMAT_KEY]}, written by version {metadata.get(_VERSION_KEY)}; "
            f"this version reads up to format {FORMAT}. Update ptml."
        )
    rows = json.loads(metadata[_LEAVES_KEY])
    listed = [address for address, *_ in rows]
    if sorted(listed) != sorted(arrays):
        differing = ", ".join(sorted(set(listed) ^ set(arrays)))
        raise ValueError(f"its list of leaves and its arrays differ in {differing}.")
    return [
        Leaf(address, arrays[address], Role(role), owner, next(iter(uid), None), uses)
        for address, role, owner, uses, *uid in rows
    ]


def _what_is_wrong(path: Path, error: Exception) -> str:
    """Say why a file was refused, in words that do not hang on the release of safetensors."""
    size = path.stat().st_size
    if size == 0:
        return "it is empty"
    with path.open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
        if size < 8 or length > 100_000_000:
            return f"it does not start as one does ({size} bytes in all)"
        if 8 + length > size:
            return f"it is truncated: the header alone takes {8 + length} bytes, and there are {size}"
        header = file.read(length)
    try:
        entries: Any = json.loads(header)
        ends = [entry["data_offsets"][1] for name, entry in entries.items() if name != _RESERVED]
    except (ValueError, TypeError, KeyError, IndexError, AttributeError):
        return "its header is garbage"
    expected = 8 + length + max(ends, default=0)
    if size < expected:
        return f"it is truncated: {expected} bytes are announced, and there are {size}"
    if size > expected:
        return f"it has {size - expected} trailing bytes behind the last array"
    return str(error)


def _write_whole(path: Path, content: bytes) -> None:
    # Written beside the target, so that replacing it is one step of the file system.
    beside = path.with_name(f".{path.name}.{uuid.uuid4().hex}.tmp")
    try:
        with beside.open("xb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        beside.replace(path)
    except BaseException:
        beside.unlink(missing_ok=True)
        raise


def _version() -> str:
    try:
        return importlib.metadata.version("ptml")
    except importlib.metadata.PackageNotFoundError:
        return "not installed"
