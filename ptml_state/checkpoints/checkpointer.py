"""The checkpointer: saves a run as it goes, and lets it go on after a crash."""

from __future__ import annotations

import datetime
import operator
import os
import shutil
import time
import types
import weakref
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, Protocol, Self

from ptml_state.archives.writing import sync_folder
from ptml_state.checkpoints.background import Writer
from ptml_state.checkpoints.checkpoint import (
    Checkpoint,
    plain,
    read_checkpoint,
    read_state,
    write_checkpoint,
)
from ptml_state.checkpoints.folder import (
    best_first,
    best_whole,
    commit,
    described,
    newest_whole,
    paths_in,
    retire,
)
from ptml_state.checkpoints.run import Run, sweep
from ptml_state.state import State

__all__ = ["Checkpointer", "Loader"]

NOT_WRITTEN = "The checkpoint of step {step} was not written; those before it are as they were."
NO_POSITION = (
    "The checkpoint {path} has no position of a data loader. Save with save(step, program, loader=loader), "
    "or resume without one: resume(program)."
)
POSITION = (
    "The checkpoint {path} has the position of a data loader. Write resume(program, loader), so that the "
    "data go on where they were; or take the state alone: program.store.load(checkpoints.restore())."
)


class Loader(Protocol):
    """What has a position in its data, as :class:`ptml.data.DataLoader` has."""

    @property
    def state(self) -> Any:
        """The position, as a value that JSON can hold."""
        ...

    def load(self, state: Any) -> None:
        """Go to a position."""
        ...


class Checkpointer:
    """Save a run into a folder as it goes, and let it go on after a crash.

    A checkpoint is a folder in there, ``000012-step-600`` say, the twelfth, saved after step 600. It appears
    in one step of the file system, when all of it is on disk, with checksums: a crash, a full disk or a kill
    at any moment leaves what was there before, and nothing that could be taken for a checkpoint. What a dead
    run left half-written is deleted by the next one.

    Parameters
    ----------
    directory : str or path
        The folder. It is made when the first checkpoint is saved.
    keep_last : int or None, default 3
        How many of the latest checkpoints stay; None deletes none.
    keep_best : int, default 0
        How many of those with the best metric stay besides.
    mode : "min" or "max", default "min"
        Which metric is best. NaN never is.
    every : int or timedelta, optional
        Save at multiples of this many steps, or after this much time; at each call unless given.
    asynchronous : bool, default False
        Write in the background. The values are copied before :meth:`save` returns, so training may go on. One
        is written at a time: a `save` waits until the one before is written.

    Raises
    ------
    ValueError, TypeError
        If an option is none of these.

    Notes
    -----
    An error of the writer in the background is raised by the next call, whichever it is, so by the end of
    a ``with`` at the latest. At the end of the program what is being written is finished.

    Several runs may save into one folder at once. Each deletes only what itself and dead runs have saved.
    A checkpoint that was renamed (to a name of another form) is kept for ever; give its path to
    :meth:`restore`.

    Examples
    --------
    >>> import tempfile
    >>> import ptml
    >>> from ptml.layers import Input, Linear
    >>> from ptml.optim import adam, compile_train
    >>> from ptml_state import Checkpointer
    >>> def described():
    ...     X, fc = Input("X", shape=(None, 2)), Linear("fc", n_in=2, n_out=1)
    ...     return compile_train((fc(X) ** 2).mean(), adam(1e-2))
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     program = described()
    ...     with Checkpointer(folder, keep_last=2) as checkpoints:
    ...         for done in range(1, 5):
    ...             loss = program([[1.0, 2.0]])
    ...             _ = checkpoints.save(done, program)
    ...         found = [checkpoint.step for checkpoint in checkpoints.all()]
    ...     again = described()
    ...     found, Checkpointer(folder).resume(again).step, again.state == program.state
    ([3, 4], 4, True)
    """

    def __init__(
        self,
        directory: str | os.PathLike[str],
        *,
        keep_last: int | None = 3,
        keep_best: int = 0,
        mode: Literal["min", "max"] = "min",
        every: int | datetime.timedelta | None = None,
        asynchronous: bool = False,
    ) -> None:
        self.directory = Path(directory)
        self.keep_last = None if keep_last is None else _whole(keep_last, "keep_last", 1)
        self.keep_best = _whole(keep_best, "keep_best", 0)
        if mode not in ("min", "max"):
            raise ValueError(f"mode is 'min' or 'max', whichever metric is best; got {mode!r}.")
        self.mode = mode
        if isinstance(every, datetime.timedelta):
            if every <= datetime.timedelta(0):
                raise ValueError(f"every is a positive time; got {every!r}.")
        elif every is not None:
            every = _whole(every, "every", 1)
        self.every = every
        self.asynchronous = asynchronous
        if self.directory.exists() and not self.directory.is_dir():
            raise NotADirectoryError(f"{self.directory} is a file; checkpoints are saved into a folder.")
        self._closed = False
        self._saved_at = time.monotonic()
        self._writer: Writer | None = None
        self._claim: Run | None = None
        self._release: weakref.finalize[..., Any] | None = None
        sweep(self.directory)

    # ---- saving

    def due(self, step: int) -> bool:
        """Say whether `every` asks for a checkpoint after this step."""
        if isinstance(self.every, datetime.timedelta):
            return time.monotonic() - self._saved_at >= self.every.total_seconds()
        return self.every is None or step % self.every == 0

    def save(
        self,
        step: int,
        state: Any,
        extra: Any = None,
        *,
        loader: Loader | None = None,
        metric: float | None = None,
        force: bool = False,
    ) -> bool:
        """Save a checkpoint, if one is due.

        Parameters
        ----------
        step : int
            How many steps were made.
        state : Program, Store or State
            What to save; of a program, all that is in its store. It is read only if a checkpoint is due.
        extra : JSON value, optional
            What else to save: numbers, texts, lists and dicts of them. Tuples come back as lists.
        loader : Loader, optional
            The data loader, whose position is saved.
        metric : float, optional
            What `keep_best` and :meth:`best` go by.
        force : bool, default False
            Save even if none is due: at the end of training, say.

        Returns
        -------
        bool
            Whether one was saved, or is being saved in the background.

        Raises
        ------
        OSError
            If it could not be written. The checkpoints before it are as they were.
        TypeError
            If `extra` holds what JSON does not.
        ValueError
            If the checkpointer is closed.
        """
        if self._closed:
            raise ValueError(f"The Checkpointer of {self.directory} is closed; make a new one.")
        step = _whole(step, "step", 0)
        due = force or self.due(step)
        if due or (self._writer is not None and self._writer.is_done):
            self.wait()
        if not due:
            return False
        about = {
            "step": step,
            "metric": None if metric is None else float(metric),
            "extra": plain(extra, "extra"),
            "position": None if loader is None else plain(_position(loader), "loader.state"),
        }
        snapshot = _snapshot(state)
        run = self._run()
        self._saved_at = time.monotonic()
        if self.asynchronous:
            self._writer = Writer(step, self._write, run, snapshot, about)
        else:
            self._write(run, snapshot, about)
        return True

    def _run(self) -> Run:
        """Claim the folder for this process, which makes the folder if need be."""
        if self._claim is None or not self._claim.is_mine:
            if not self.directory.is_dir():
                self.directory.mkdir(parents=True, exist_ok=True)
                sync_folder(self.directory.parent)
            self._claim = Run(self.directory)
            self._release = weakref.finalize(self, self._claim.release)
        return self._claim

    def _write(self, run: Run, state: State, about: Mapping[str, Any]) -> None:
        folder = run.writing()
        try:
            folder.mkdir()
            write_checkpoint(folder, state, {**about, "run": run.name})
            commit(folder, self.directory, about["step"])
        except BaseException as error:
            shutil.rmtree(folder, ignore_errors=True)
            error.add_note(NOT_WRITTEN.format(step=about["step"]))
            raise
        # Older ones go when the new one cannot get lost any more.
        sync_folder(self.directory)
        if self.keep_last is not None:
            retire(self.directory, run, self._kept)

    def _kept(self, checkpoints: list[Checkpoint]) -> list[Checkpoint]:
        """Give those of these that stay; they come oldest first."""
        last = checkpoints if self.keep_last is None else checkpoints[-self.keep_last :]
        return [*last, *best_first(checkpoints, self.mode)[: self.keep_best]]

    def wait(self) -> None:
        """Wait until what is being written in the background is on disk.

        Raises
        ------
        OSError
            If it could not be written.
        """
        if self._writer is not None:
            self._writer.join()
            writer, self._writer = self._writer, None
            writer.tell()

    def close(self) -> None:
        """Wait as :meth:`wait` does, and give the folder back. Nothing can be saved any more, only read."""
        self._closed = True
        try:
            self.wait()
        finally:
            if self._release is not None:
                self._release()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: types.TracebackType | None,
    ) -> None:
        if error is None:
            self.close()
            return
        try:
            self.close()
        except Exception as another:
            # What ended the block is what the caller has to see.
            error.add_note(f"Then saving failed too: {another!r}")

    # ---- reading

    def all(self) -> tuple[Checkpoint, ...]:
        """Give the checkpoints, oldest first, without reading their states.

        Those whose description cannot be read are left out.
        """
        self.wait()
        return tuple(described(paths_in(self.directory), []))

    def latest(self) -> Checkpoint | None:
        """Give the checkpoint that was saved last, after verifying it; None where there is none.

        A broken one is skipped, with a warning that says why.

        Raises
        ------
        CheckpointError
            If all are broken.
        """
        self.wait()
        return newest_whole(self.directory)

    def best(self) -> Checkpoint | None:
        """Give the checkpoint of the best metric, after verifying it; None where none has a metric.

        A broken one is skipped, with a warning that says why.

        Raises
        ------
        CheckpointError
            If all are broken.
        """
        self.wait()
        return best_whole(self.directory, self.mode)

    def _newest(self, like: Any, *, mapped: bool = False) -> tuple[Checkpoint, State] | None:
        while (found := self.latest()) is not None:
            try:
                return found, read_state(found.path, like, mapped=mapped)
            except FileNotFoundError:
                if found.path.exists():  # else it was deleted just now, and there is a newer one
                    raise
        return None

    def restore(self, which: Checkpoint | str | os.PathLike[str] | None = None, *, like: Any = None) -> State:
        """Read the state of a checkpoint.

        Parameters
        ----------
        which : Checkpoint or path, optional
            Which one; :meth:`latest` unless given.
        like : State, Store or program, optional
            What the state has to agree with; see :func:`load_state`.

        Raises
        ------
        CheckpointError
            If it is broken.
        FileNotFoundError
            If there is no checkpoint.
        """
        if which is None:
            newest = self._newest(like)
            if newest is None:
                raise FileNotFoundError(f"There is no checkpoint in {self.directory}.")
            return newest[1]
        self.wait()
        return (which if isinstance(which, Checkpoint) else read_checkpoint(Path(which))).restore(like)

    def resume(self, program: Any, loader: Loader | None = None) -> Checkpoint | None:
        """Let a program, and its data, go on from the latest checkpoint.

        Parameters
        ----------
        program : Program or Store
            Compiled as the one that was saved. Its store takes the values.
        loader : Loader, optional
            The data loader, made as the one whose position was saved.

        Returns
        -------
        Checkpoint or None
            What it goes on from; None where there is no checkpoint, and nothing was done then.

        Raises
        ------
        ValueError
            If the checkpoint is of another program or loader, or of one and not of the other. Both are then
            as they were.
        CheckpointError
            If there are checkpoints, and all are broken.
        """
        store = getattr(program, "store", program)
        newest = self._newest(store, mapped=True)
        if newest is None:
            return None
        found, state = newest
        if (found.position is None) != (loader is None):
            raise ValueError((NO_POSITION if found.position is None else POSITION).format(path=found.path))
        if loader is not None:
            loader.load(found.position)  # which may refuse; the state is known to fit
        store.load(state)
        return found

    def __repr__(self) -> str:
        return f"Checkpointer({str(self.directory)!r}, {len(paths_in(self.directory))} checkpoints)"


def _snapshot(state: Any) -> State:
    """Give a state that nobody can change: of a store it is a copy."""
    found = state if isinstance(state, State) else getattr(getattr(state, "store", state), "state", None)
    if not isinstance(found, State):
        raise TypeError(f"save takes a program, a Store or a State; got {type(state).__name__}.")
    return State(found)  # arrays of other libraries, which may change, become ours


def _position(loader: Any) -> Any:
    try:
        return loader.state
    except AttributeError:
        raise TypeError(
            f"A loader has a position, `state`, and `load(state)`, as ptml.data.DataLoader has; "
            f"got {type(loader).__name__}."
        ) from None


def _whole(value: Any, name: str, least: int) -> int:
    try:
        number = operator.index(value)
    except TypeError:
        number = None
    if number is None or isinstance(value, bool):
        raise TypeError(f"{name} is a whole number; got {value!r} ({type(value).__name__}).")
    if number < least:
        raise ValueError(f"{name} is at least {least}; got {number}.")
    return number
