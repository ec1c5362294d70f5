"""Looking into an archive without reading its arrays."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import attrs

from ptml_state.archives.header import ArchiveError, Header, open_archive
from ptml_state.archives.metadata import Described, described
from ptml_state.display import table_text
from ptml_state.leaf import Leaf

__all__ = ["Archive", "describe", "inspect"]


@attrs.frozen(repr=False)
class Archive:
    """What an archive holds, from :func:`inspect`. Printing it shows the tree.

    Parameters
    ----------
    path : Path
        The file.
    format : int or None
        The number of the format; None for a file that was not written by :func:`save_state`.
    version : str or None
        The version that wrote it.
    revision : int
        The number that the application gave to :func:`save_state`.
    leaves : tuple of Leaf
        The leaves in order. Their values are no arrays, but say where those lie; dtype, shape, nbytes, role
        and the rest are as ever, so that any selector works on them.
    metadata : dict from str to str
        The file's texts that are not ours.
    """

    path: Path
    format: int | None
    version: str | None
    revision: int
    leaves: tuple[Leaf, ...]
    metadata: dict[str, str]

    @property
    def nbytes(self) -> int:
        """Bytes that all arrays take together."""
        return sum(leaf.nbytes for leaf in self.leaves)

    def __repr__(self) -> str:
        origin = (
            "a safetensors file of somebody else's"
            if self.format is None
            else f"format {self.format}, written by version {self.version}"
        )
        revision = f", revision {self.revision}" if self.revision else ""
        return f"{self.path.name}: {origin}{revision}\n{table_text(self.leaves)}"


def inspect(path: str | os.PathLike[str]) -> Archive:
    """Say what an archive holds, reading nothing but its header.

    Parameters
    ----------
    path : str or path
        The file.

    Returns
    -------
    Archive

    Raises
    ------
    ArchiveError
        When the file is truncated, damaged, no safetensors file, or of a later format.
    FileNotFoundError
        When there is none.

    Examples
    --------
    >>> import pathlib, tempfile
    >>> from ptml_state import State, inspect, save_state
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = pathlib.Path(folder) / "model.safetensors"
    ...     save_state(State({"fc1": {"W": [[1.0, 2.0]], "b": [0.0, 0.0]}}), path)
    ...     archive = inspect(path)
    >>> [(leaf.address, leaf.shape, leaf.nbytes) for leaf in archive.leaves]
    [('fc1/W', (1, 2), 16), ('fc1/b', (2,), 16)]
    """
    header, _ = open_archive(path)
    known = describe(header, header.arrays)
    return Archive(header.path, known.format, known.version, known.revision, known.leaves, known.other)


def describe(header: Header, arrays: Mapping[str, Any]) -> Described:
    """Read what a file says of its leaves, the errors naming the file.

    Parameters
    ----------
    header : Header
        The file's header.
    arrays : mapping from str to anything
        What becomes the leaves' values.
    """
    try:
        return described(header.metadata, arrays)
    except ValueError as error:
        raise ArchiveError(f"{header.path} holds no state: {error}") from None
