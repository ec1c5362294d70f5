"""One checkpoint: a folder with a state, what is known of it, and the checksums of both."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import attrs

from ptml_state.archive import load_state, save_state
from ptml_state.archives.writing import sync_folder
from ptml_state.state import State

__all__ = [
    "Checkpoint",
    "CheckpointError",
    "plain",
    "read_checkpoint",
    "read_state",
    "sync_folder",
    "write_checkpoint",
]

FORMAT = 1

# The files. The last is what the program sha256sum writes and checks.
_STATE, _ABOUT, _SUMS = "state.safetensors", "checkpoint.json", "SHA256SUMS"
_LISTED = re.compile(rf"([0-9a-f]{{64}})  {_STATE}\n([0-9a-f]{{64}})  {_ABOUT}\n".encode())

BROKEN = "The checkpoint {path} is broken: {reason}."
NEWER = (
    "The checkpoint {path} is of format {format}, and this version reads up to format {known}. Update ptml."
)


class CheckpointError(ValueError):
    """A checkpoint cannot be used. The message names its folder and says what is wrong."""


@attrs.frozen(unsafe_hash=False)
class Checkpoint:
    """One checkpoint on disk. It is a folder, and reading this much of it reads no arrays.

    Attributes
    ----------
    path : Path
        The folder.
    step : int
        The step that it was saved after.
    metric : float or None
        What was measured then.
    extra : JSON value
        What else was saved: numbers, texts, lists, dicts.
    position : dict or None
        Where the data loader stood.
    run : str
        Which run wrote it: one life of one process.

    Examples
    --------
    >>> import tempfile
    >>> from ptml_state import Checkpointer, State
    >>> with tempfile.TemporaryDirectory() as folder, Checkpointer(folder) as checkpoints:
    ...     _ = checkpoints.save(10, State({"fc/b": [0.5]}), extra={"note": "first"})
    ...     found = checkpoints.latest()
    ...     found.step, found.extra, found.restore()["fc/b"]
    (10, {'note': 'first'}, array([0.5]))
    """

    path: Path
    step: int
    metric: float | None
    extra: Any
    position: Any
    run: str

    def verify(self) -> None:
        """Compare the files with their checksums.

        Raises
        ------
        CheckpointError
            When they differ, or cannot be read.
        """
        with _naming(self.path):
            wanted = _sums(self.path)[_STATE]
            with (self.path / _STATE).open("rb") as file:
                found = hashlib.file_digest(file, "sha256").hexdigest()
        if found != wanted:
            raise CheckpointError(
                _broken(self.path, f"{_STATE} is not what was written: its checksum differs")
            )

    def restore(self, like: Any = None) -> State:
        """Verify, and read the state.

        Parameters
        ----------
        like : State, Store or program, optional
            What it has to agree with; see :func:`load_state`.

        Raises
        ------
        CheckpointError
            When the checkpoint is broken.
        ArchiveError
            When the state does not agree with `like`.
        """
        self.verify()
        return read_state(self.path, like)


def read_state(path: Path, like: Any = None, *, mapped: bool = False) -> State:
    """Read the state of the checkpoint in a folder, without verifying it.

    All of it was just read for its checksum, and another process may delete the folder at any time: so the
    values are read too, unless they are needed for a moment only.
    """
    return load_state(path / _STATE, like=like, mapped=mapped)


def write_checkpoint(folder: Path, state: State, about: Mapping[str, Any]) -> None:
    """Write the files of a checkpoint into a folder that nobody takes for one yet, and have them on disk.

    Parameters
    ----------
    folder : Path
        A new, empty folder.
    state : State
        The values.
    about : mapping
        The fields of a :class:`Checkpoint` but its path.
    """
    save_state(state, folder / _STATE)
    _write(folder / _ABOUT, json.dumps({"format": FORMAT, **about}, indent=1) + "\n")
    lines = []
    for name in (_STATE, _ABOUT):
        with (folder / name).open("rb") as file:
            lines.append(f"{hashlib.file_digest(file, 'sha256').hexdigest()}  {name}\n")
    _write(folder / _SUMS, "".join(lines))
    sync_folder(folder)


def read_checkpoint(path: Path) -> Checkpoint:
    """Read what is known of a checkpoint, but not its state.

    Raises
    ------
    CheckpointError
        When the folder is no checkpoint, or what it says of itself is damaged.
    """
    with _naming(path):
        sums = _sums(path)
        content = (path / _ABOUT).read_bytes()
    if hashlib.sha256(content).hexdigest() != sums[_ABOUT]:
        raise CheckpointError(_broken(path, f"{_ABOUT} is not what was written: its checksum differs"))
    try:
        about = json.loads(content)
        version = about.pop("format")
        found = None if version > FORMAT else Checkpoint(path, **about)
    except (TypeError, KeyError, AttributeError, ValueError, RecursionError) as error:
        raise CheckpointError(_broken(path, f"{_ABOUT} does not describe a checkpoint ({error})")) from error
    if found is None:
        raise CheckpointError(NEWER.format(path=path, format=version, known=FORMAT))
    return found


def plain(value: Any, name: str) -> Any:
    """Copy a value that JSON can hold; tuples become lists.

    Parameters
    ----------
    value : dict, list, tuple, str, bool, int, float or None
        Anything of these, nested. NaN and infinities are numbers too.
    name : str
        What errors call it.

    Raises
    ------
    TypeError
        If there is anything else in it.

    Examples
    --------
    >>> plain({"losses": (0.5, 0.25)}, "extra")
    {'losses': [0.5, 0.25]}
    """
    if value is None or isinstance(value, str | bool | int | float):
        # The plain kind: what JSON gives back of a NumPy number or an enum would be another.
        return next((kind(value) for kind in (bool, int, float, str) if isinstance(value, kind)), None)
    if isinstance(value, list | tuple):
        return [plain(item, f"{name}[{index}]") for index, item in enumerate(value)]
    if not isinstance(value, dict):
        raise TypeError(
            f"{name} is {value!r} ({type(value).__name__}), which JSON cannot hold. Write float(...), "
            "int(...) or .tolist(); arrays belong into the state."
        )
    for key in value:
        if not isinstance(key, str):
            raise TypeError(
                f"{name} has the key {key!r} ({type(key).__name__}); keys in JSON are strings: {str(key)!r}."
            )
    return {str(key): plain(item, f"{name}[{key!r}]") for key, item in value.items()}


def _write(path: Path, text: str) -> None:
    with path.open("x", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())


def _sums(path: Path) -> dict[str, str]:
    match = _LISTED.fullmatch((path / _SUMS).read_bytes())
    if match is None:
        raise CheckpointError(_broken(path, f"{_SUMS} is damaged"))
    return {_STATE: match[1].decode(), _ABOUT: match[2].decode()}


@contextlib.contextmanager
def _naming(path: Path) -> Iterator[None]:
    """Say why a checkpoint cannot be read; whoever is not allowed to read it is told just that."""
    try:
        yield
    except PermissionError:
        raise
    except FileNotFoundError as error:
        what = f"it has no {Path(error.filename).name}" if path.is_dir() else "there is no such folder"
        raise CheckpointError(_broken(path, what)) from None
    except OSError as error:
        raise CheckpointError(_broken(path, f"it cannot be read ({error.strerror})")) from error


def _broken(path: Path, reason: str) -> str:
    return BROKEN.format(path=path, reason=reason)
