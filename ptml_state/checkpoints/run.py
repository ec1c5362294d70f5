"""Runs: who writes into a folder, and what those left in it that are dead."""

from __future__ import annotations

import contextlib
import fcntl
import itertools
import os
import re
import shutil
import uuid
import warnings
from pathlib import Path

__all__ = ["Run", "is_alive", "sweep"]

NO_LOCKS = (
    "The file system of {directory} has no locks ({reason}), so nobody can tell there whether a run still "
    "lives: what dead runs leave is not cleaned up. Delete old checkpoints by hand."
)

# A run's lock, and the folders that it is filling or emptying. None can be taken for a checkpoint.
_LOCK = re.compile(r"\.run-([0-9a-f]+)\.lock")
_UNFINISHED = re.compile(r"\.(?:writing|removing)-([0-9a-f]+)-\d+")


class Run:
    """A claim on a folder, which lasts until it is given back or its process dies in whatever way.

    It is a locked file. The operating system unlocks it when the process is gone, which also those see that
    do not share our process numbers: other containers, and other machines with the folder mounted.

    Parameters
    ----------
    directory : Path
        A folder that is there.

    Attributes
    ----------
    name : str
        What no other run is called.

    Examples
    --------
    >>> import pathlib, tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     run = Run(pathlib.Path(folder))
    ...     before = is_alive(pathlib.Path(folder), run.name)
    ...     run.release()
    ...     before, is_alive(pathlib.Path(folder), run.name)
    (True, False)
    """

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._process = os.getpid()
        self._numbers = itertools.count()
        while not self._claim():
            pass

    def _claim(self) -> bool:
        self.name = uuid.uuid4().hex
        path = _lock_of(self.directory, self.name)
        self._descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o666)
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            pass  # somebody is just looking whether the new file's run lives
        except OSError as error:
            warnings.warn(NO_LOCKS.format(directory=self.directory, reason=error.strerror), stacklevel=2)
            return True
        else:
            # Between its making and its locking the file looked like a dead run's, and may be gone.
            if os.fstat(self._descriptor).st_nlink:
                return True
        os.close(self._descriptor)
        path.unlink(missing_ok=True)
        return False

    @property
    def is_mine(self) -> bool:
        """Whether this process made the claim; a child made by fork only inherits it."""
        return self._process == os.getpid()

    def writing(self) -> Path:
        """Name a new folder to fill."""
        return self.directory / f".writing-{self.name}-{next(self._numbers)}"

    def removing(self) -> Path:
        """Name a new folder to empty."""
        return self.directory / f".removing-{self.name}-{next(self._numbers)}"

    def release(self) -> None:
        """Give the claim back."""
        if self.is_mine:
            _lock_of(self.directory, self.name).unlink(missing_ok=True)
        os.close(self._descriptor)


def is_alive(directory: Path, name: str) -> bool:
    """Say whether a run still lives; where nobody can tell, it does."""
    try:
        descriptor = os.open(_lock_of(directory, name), os.O_RDONLY)
    except FileNotFoundError:
        return False
    except OSError:
        return True
    try:
        # Shared, so that two that ask do not take one another for the run.
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError:
        return True
    finally:
        os.close(descriptor)
    return False


def sweep(directory: Path) -> None:
    """Delete what dead runs left in a folder: half-written checkpoints and locks.

    What cannot be deleted stays, and is no checkpoint all the same.
    """
    try:
        names = os.listdir(directory)
    except FileNotFoundError:
        return
    unfinished = [(match[1], name) for name in names if (match := _UNFINISHED.fullmatch(name))]
    locks = {match[1] for name in names if (match := _LOCK.fullmatch(name))}
    for run in locks | {run for run, _ in unfinished}:
        _bury(directory, run, [directory / name for owner, name in unfinished if owner == run])


def _bury(directory: Path, run: str, unfinished: list[Path]) -> None:
    lock = _lock_of(directory, run)
    with contextlib.suppress(OSError), contextlib.ExitStack() as held:
        try:
            descriptor = os.open(lock, os.O_RDWR)
        except FileNotFoundError:
            pass  # given back, or deleted: a living run has its lock before it has folders
        else:
            held.callback(os.close, descriptor)
            # Held until the file is gone: a run just starting must not lock what is being deleted.
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        for folder in unfinished:
            shutil.rmtree(folder)
        lock.unlink(missing_ok=True)


def _lock_of(directory: Path, name: str) -> Path:
    return directory / f".run-{name}.lock"
