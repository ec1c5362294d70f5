"""The frame of a safetensors file: where its arrays lie, and what else its header says.

A file is the length of the header (8 bytes, little-endian), the header (JSON: for each array its dtype, its
shape, and the bytes from which and up to which it lies; and texts by name under ``__metadata__``), and the
arrays without gaps. The format is described at https://github.com/huggingface/safetensors.
"""

from __future__ import annotations

import json
import math
import mmap
import os
import stat
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import attrs
import numpy as np

from ptml_state.mapped import MappedFile

__all__ = ["KEPT", "RESERVED", "ArchiveError", "Header", "Stored", "header_bytes", "open_archive"]

#: What safetensors calls its texts among the arrays.
RESERVED = "__metadata__"

#: The longest header that readers of safetensors take.
LONGEST_HEADER = 100_000_000

#: The dtypes that are kept, and their names in a header.
KEPT = {
    "float64": "F64",
    "float32": "F32",
    "float16": "F16",
    "bfloat16": "BF16",
    "complex64": "C64",
    "bool": "BOOL",
    "int64": "I64",
    "int32": "I32",
    "int16": "I16",
    "int8": "I8",
    "uint64": "U64",
    "uint32": "U32",
    "uint16": "U16",
    "uint8": "U8",
}
_CALLED = {called: name for name, called in KEPT.items()}

# A mapping needs its file no more once it stands, and a process may keep many states but few files open.
_UNTRACKED: dict[str, Any] = {"trackfd": False} if os.name == "posix" and sys.version_info >= (3, 13) else {}

NO_BFLOAT16 = (
    "{address!r} is bfloat16, which NumPy has only where ml_dtypes is installed: write pip install ml_dtypes"
)


class ArchiveError(ValueError):
    """A file is no archive that can be read, or does not fit. The message names it and says what is wrong."""


@attrs.frozen
class Stored:
    """An array as it lies in a file.

    Parameters
    ----------
    dtype : numpy.dtype
        Its dtype.
    shape : tuple of int
        Its shape.
    start, stop : int
        The bytes of the file from which and up to which it lies.
    """

    dtype: np.dtype
    shape: tuple[int, ...]
    start: int
    stop: int

    def within(self, memory: MappedFile | None) -> np.ndarray:
        """Give the array, in the memory of its file."""
        if self.start == self.stop or memory is None:
            array = np.zeros(self.shape, self.dtype)
            array.flags.writeable = False
            return array
        count = (self.stop - self.start) // self.dtype.itemsize
        return np.frombuffer(memory, self.dtype, count, self.start).reshape(self.shape)


@attrs.frozen
class Header:
    """What a file says before its arrays.

    Parameters
    ----------
    path : Path
        The file.
    arrays : dict from str to Stored
        Where each array lies, in the header's order.
    metadata : dict from str to str
        The texts.
    """

    path: Path
    arrays: dict[str, Stored]
    metadata: dict[str, str]


class _BadHeaderError(Exception):
    """Why a file is refused, without its name."""


class _NoDtypeError(Exception):
    """Why an array of a whole file cannot be had, without the file's name."""


def _dtype_called(called: str, address: str) -> np.dtype:
    name = _CALLED.get(called)
    if name == "bfloat16":
        try:
            import ml_dtypes
        except ImportError:
            raise _NoDtypeError(NO_BFLOAT16.format(address=address)) from None
        return np.dtype(ml_dtypes.bfloat16)
    if name is None:
        raise _NoDtypeError(
            f"{_short(address)} is of the dtype {_short(called)}, and archives have {', '.join(_CALLED)}"
        )
    return np.dtype(name)


def header_bytes(arrays: Mapping[str, Any], metadata: Mapping[str, str]) -> tuple[bytes, list[str]]:
    """Write the bytes before the arrays, and say in which order those follow.

    Parameters
    ----------
    arrays : mapping from str to anything with a dtype and a shape
        What will follow.
    metadata : mapping from str to str
        The texts.

    Examples
    --------
    >>> content, order = header_bytes({"b": np.zeros(2, "int8"), "a": np.zeros(3)}, {})
    >>> content[8:].rstrip()
    b'{"__metadata__":{},"a":{"dtype":"F64","shape":[3],"data_offsets":[0,24]},"b":{"dtype":"I8","shape":[2],"data_offsets":[24,26]}}'
    >>> order
    ['a', 'b']
    """
    # The widest come first, so that each lies at a multiple of its own width.
    order = sorted(arrays, key=lambda address: (-np.dtype(arrays[address].dtype).itemsize, address))
    entries: dict[str, Any] = {RESERVED: dict(metadata)}
    position = 0
    for address in order:
        dtype, shape = np.dtype(arrays[address].dtype), [int(size) for size in arrays[address].shape]
        end = position + math.prod(shape) * dtype.itemsize
        entries[address] = {"dtype": KEPT[dtype.name], "shape": shape, "data_offsets": [position, end]}
        position = end
    text = json.dumps(entries, ensure_ascii=False, separators=(",", ":")).encode()
    text += b" " * (-(8 + len(text)) % 64)
    if len(text) > LONGEST_HEADER:
        raise ValueError(
            f"The header of this archive would take {len(text)} bytes, and readers of safetensors take "
            f"{LONGEST_HEADER}. Save the state in parts: state.partition(...)."
        )
    return len(text).to_bytes(8, "little") + text, order


def open_archive(path: str | os.PathLike[str]) -> tuple[Header, MappedFile | None]:
    """Read the header of a safetensors file, and map its memory.

    Nothing of the arrays is read. All that the header says is checked against the file's size first.

    Parameters
    ----------
    path : str or path
        The file.

    Returns
    -------
    header : Header
    memory : MappedFile, or None for a file without arrays

    Raises
    ------
    ArchiveError
        When it is truncated, damaged, or no safetensors file.
    FileNotFoundError
        When there is none.
    """
    path = Path(path)
    try:
        mode = path.stat().st_mode
        if stat.S_ISDIR(mode):
            raise ArchiveError(f"{path} is a folder; an archive is one file.")
        if not stat.S_ISREG(mode):
            raise ArchiveError(f"{path} is no regular file, and so no archive.")
        with path.open("rb") as file:
            size = os.fstat(file.fileno()).st_size
            content = _header_text(file, size)
            arrays, metadata = _entries(content, 8 + len(content), size)
            has_data = 8 + len(content) < size
            memory = (
                MappedFile(file.fileno(), size, access=mmap.ACCESS_READ, **_UNTRACKED) if has_data else None
            )
    except FileNotFoundError:
        raise FileNotFoundError(f"There is no file {path}.") from None
    except _BadHeaderError as error:
        raise ArchiveError(f"{path} is no whole safetensors file: {error}.") from error.__cause__
    except _NoDtypeError as error:
        raise ArchiveError(f"{path} has an array that cannot be read: {error}.") from None
    return Header(path, arrays, metadata), memory


def _header_text(file: Any, size: int) -> bytes:
    if size == 0:
        raise _BadHeaderError("it is empty")
    length = int.from_bytes(file.read(8), "little")
    if size < 8 or length > LONGEST_HEADER:
        raise _BadHeaderError(f"it does not start as one does ({size} bytes in all)")
    if 8 + length > size:
        raise _BadHeaderError(
            f"it is truncated: the header alone takes {8 + length} bytes, and there are {size}"
        )
    return file.read(length)


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    made: dict[str, Any] = {}
    for name, value in pairs:
        if name in made:
            raise _BadHeaderError(f"its header names {_short(name)} twice")
        made[name] = value
    return made


def _entries(content: bytes, start: int, size: int) -> tuple[dict[str, Stored], dict[str, str]]:
    try:
        entries = json.loads(content.decode(), object_pairs_hook=_unique)
    except RecursionError:
        raise _BadHeaderError("its header is garbage, nested too deeply") from None
    except ValueError as error:
        raise _BadHeaderError("its header is garbage") from error
    if not isinstance(entries, dict):
        raise _BadHeaderError("its header is garbage: it lists no arrays")
    metadata = entries.pop(RESERVED, None) or {}
    if not isinstance(metadata, dict) or not all(isinstance(text, str) for text in metadata.values()):
        raise _BadHeaderError("its metadata are no texts by name")
    arrays = {address: _stored(address, entry, start) for address, entry in entries.items()}
    end = start
    for address, stored in sorted(arrays.items(), key=lambda item: (item[1].start, item[1].stop)):
        if stored.start != end:
            raise _BadHeaderError(f"{_short(address)} does not start where the array before it ends")
        end = stored.stop
    if size < end:
        raise _BadHeaderError(f"it is truncated: {end} bytes are announced, and there are {size}")
    if size > end:
        raise _BadHeaderError(f"it has {size - end} trailing bytes behind the last array")
    return arrays, metadata


def _stored(address: str, entry: Any, start: int) -> Stored:
    try:
        address.encode()
    except UnicodeEncodeError:
        raise _BadHeaderError(f"the name {_short(address)} is no text") from None
    if not isinstance(entry, dict) or not {"dtype", "shape", "data_offsets"} <= entry.keys():
        raise _BadHeaderError(f"of {_short(address)} it does not say dtype, shape and data_offsets")
    called, shape, offsets = entry["dtype"], entry["shape"], entry["data_offsets"]
    if not isinstance(called, str):
        raise _BadHeaderError(f"the dtype of {_short(address)} is no text")
    if not _are_sizes(shape) or len(shape) > 32:
        raise _BadHeaderError(f"the shape of {_short(address)} is no list of up to 32 sizes")
    if not _are_sizes(offsets) or len(offsets) != 2 or offsets[1] < offsets[0]:
        raise _BadHeaderError(f"the data_offsets of {_short(address)} are no two positions in order")
    dtype = _dtype_called(called, address)
    if math.prod(shape) * dtype.itemsize != offsets[1] - offsets[0]:
        raise _BadHeaderError(
            f"{_short(address)} of {dtype} and shape {_short(shape)} does not take the "
            f"{_short(offsets[1] - offsets[0])} bytes announced"
        )
    # An array without numbers may still have sizes beyond what NumPy counts in.
    if math.prod(size for size in shape if size) * dtype.itemsize >= 2**63:
        raise _BadHeaderError(f"the shape of {_short(address)} is larger than any memory")
    return Stored(dtype, tuple(shape), start + offsets[0], start + offsets[1])


def _are_sizes(values: Any) -> bool:
    return isinstance(values, list) and all(type(value) is int and 0 <= value < 2**63 for value in values)


def _short(value: Any) -> str:
    text = ascii(value)
    return text if len(text) <= 80 else f"{text[:60]}…"
