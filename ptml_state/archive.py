"""Archives: states in safetensors files."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from ptml_state.archives.header import ArchiveError
from ptml_state.archives.inspecting import Archive, inspect
from ptml_state.archives.loading import Migration, Request, planned
from ptml_state.archives.report import LoadReport
from ptml_state.archives.writing import write_state
from ptml_state.state import State

__all__ = [
    "Archive",
    "ArchiveError",
    "LoadReport",
    "inspect",
    "load_report",
    "load_state",
    "save_state",
]


def save_state(state: State, path: str | os.PathLike[str], *, revision: int = 0) -> None:
    """Write a state to a safetensors file.

    The file appears whole or not at all: where writing fails, what was there before is still there. When this
    returns, the file is on the disk. Any program that reads safetensors reads it; the arrays are called by
    their addresses.

    Parameters
    ----------
    state : State
        What to write. Nothing is copied: what it takes in memory is all that saving it takes.
    path : str or path
        Where to. The folder has to exist; a file that is there is replaced, and states that were loaded from
        it keep their values.
    revision : int, default 0
        A number of your own for how your states are laid out; raise it when you rename layers, and give
        :func:`load_state` the migrations that lead up to it.

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
    if isinstance(revision, bool) or not isinstance(revision, int) or not 0 <= revision < 10**9:
        raise ValueError(f"revision is a whole number from 0 on; got {revision!r}.")
    if path.is_dir():
        raise IsADirectoryError(f"{path} is a folder; an archive is one file.")
    write_state(state, path, revision)


def load_state(
    path: str | os.PathLike[str],
    *,
    like: Any = None,
    where: Any = None,
    rename: Mapping[str, str] | None = None,
    transpose: Mapping[Any, Sequence[int]] | None = None,
    missing: Literal["error", "init"] = "error",
    unexpected: Literal["error", "ignore"] = "error",
    retyped: Literal["error", "cast"] = "error",
    source: Literal["ptml", "torch"] = "ptml",
    seed: int | None = None,
    revision: int | None = None,
    migrations: Mapping[int, Migration] | None = None,
    mapped: bool = True,
) -> State:
    r"""Read a state from a safetensors file.

    Nothing is imported or run for it. In a file that was not written by :func:`save_state` every array is
    a parameter; with `like`, the names of the seeds' library (``fc1_W``, ``fc1_W/adam/first_moment``) are
    found too.

    Parameters
    ----------
    path : str or path
        The file.
    like : State, Store, program, network or graph, optional
        What the values are for. The result then has its leaves, in its order, and what differs is an error:
        one message has all that is missing, unexpected, of another dtype or shape, and layers without a name
        that stand in another order.
    where : selector, optional
        Which leaves to load. No other array is read.
    rename : mapping from address to address, optional
        From the file's addresses to others, with patterns, as for ``State.rename``.
    transpose : mapping from selector to sequence of int, optional
        For arrays that lie otherwise in the file: the old axes in their new order, such as
        ``{Linear: (1, 0)}``. Applies to what has as many axes.
    missing : {"error", "init"}
        What to do for leaves that the file lacks. ``"init"`` gives them their declared first value, or that
        of the state `like`.
    unexpected : {"error", "ignore"}
        What to do with leaves that there is no place for.
    retyped : {"error", "cast"}
        What to do with floating-point arrays of another dtype.
    source : {"ptml", "torch"}
        Whose names and layouts the file has. ``"torch"`` reads a PyTorch state dict into what `like` has:
        ``encoder.fc1.weight`` is ``encoder/fc1/W`` and transposed, as linear weights lie (out, in) there;
        kernels of convolutions are brought from (out, in, \*kernel) to (\*kernel, in, out). Say where the
        axes of other layers' arrays go by `transpose`. `rename` takes PyTorch's names with ``/`` for their
        dots: ``{"0": "fc1", "2": "fc2"}`` for a Sequential. Parameters and statistics are loaded unless
        `where` says otherwise.
    seed : int, optional
        Decides what is drawn for `missing`, as in ``ptml.init``. The program's seed, or a random one, unless
        given.
    revision : int, optional
        The number that you give :func:`save_state` now. A file of a later one is refused.
    migrations : mapping from int to callable, optional
        From a revision to a function of a State that makes it one of the next revision.
    mapped : bool, default True
        Let the arrays lie in the file until they are looked at: loading takes no time or memory to speak of.
        The file may be replaced or removed meanwhile, as :func:`save_state` does; say False where something
        else writes into files as they stand, or removes them on Windows.

    Returns
    -------
    State
        Whole, or an error is raised.

    Raises
    ------
    ArchiveError
        When the file is truncated, damaged, no safetensors file, of a later format, or does not fit.
    FileNotFoundError
        When there is none.
    KeyError
        When a name in `where`, `rename` or `transpose` matches nothing; with the nearest.

    Examples
    --------
    >>> import pathlib, tempfile
    >>> from ptml_state import State, load_state, save_state
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = pathlib.Path(folder) / "model.safetensors"
    ...     save_state(State({"encoder/W": [1.0, 2.0], "head/W": [3.0]}), path)
    ...     load_state(path, where="head")
    ...     like = State({"backbone/W": [0.0, 0.0], "top/W": [0.5]})
    ...     options = {"rename": {"encoder": "backbone"}, "missing": "init", "unexpected": "ignore"}
    ...     state = load_state(path, like=like, **options)
    State(1 leaf, 8 B: head/W float64[1])
    >>> state["backbone/W"], state["top/W"]
    (array([1., 2.]), array([0.5]))
    """
    return load_report(
        path,
        like=like,
        where=where,
        rename=rename,
        transpose=transpose,
        missing=missing,
        unexpected=unexpected,
        retyped=retyped,
        source=source,
        seed=seed,
        revision=revision,
        migrations=migrations,
        mapped=mapped,
    ).state


def load_report(
    path: str | os.PathLike[str],
    *,
    like: Any = None,
    where: Any = None,
    rename: Mapping[str, str] | None = None,
    transpose: Mapping[Any, Sequence[int]] | None = None,
    missing: Literal["error", "init"] = "error",
    unexpected: Literal["error", "ignore"] = "error",
    retyped: Literal["error", "cast"] = "error",
    source: Literal["ptml", "torch"] = "ptml",
    seed: int | None = None,
    revision: int | None = None,
    migrations: Mapping[int, Migration] | None = None,
    mapped: bool = True,
) -> LoadReport:
    """Say what :func:`load_state` does with the same arguments; the report's ``state`` is what it gives.

    No array is read for it, and a file that does not fit is no error yet: print the report to see what to
    rename or relax.

    Returns
    -------
    LoadReport

    Raises
    ------
    ArchiveError
        When the file is truncated, damaged, no safetensors file, or of a later format.
    """
    return planned(
        Request(
            path,
            like=like,
            where=where,
            rename=rename,
            transpose=transpose,
            missing=missing,
            unexpected=unexpected,
            retyped=retyped,
            source=source,
            seed=seed,
            revision=revision,
            migrations=migrations,
            mapped=mapped,
        )
    )
