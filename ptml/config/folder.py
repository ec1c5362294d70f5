"""Networks in folders: a config, and the archive of a state that fits it."""

from __future__ import annotations

import os
import shutil
import uuid
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import pytensor

from ptml.config.decode import read_config
from ptml.config.encode import to_config
from ptml.config.errors import DEEPEST, LARGEST, ConfigError, cut
from ptml.layer import Layer
from ptml.network import Placed, lay_out
from ptml_state import Role, State, load_state, save_state, where
from ptml_state.archives.writing import sync_folder
from ptml_state.order import in_another_order
from ptml_state.strictjson import JSONError, json_text, read_json
from ptml_state.typetext import type_text

__all__ = ["CONFIG", "STATE", "load_network", "save_network"]

#: The files of a folder.
CONFIG, STATE = "network.json", "state.safetensors"

NO_STATE = "save_network writes a State; got {kind}. Write program.state or State(...)."
EXISTS = "{path} is there already, and is left as it is. Save to another path, or say overwrite=True."
NOT_OURS = "{path} is no folder of save_network's, and is not overwritten."
NO_FOLDER = "There is no folder {path}."
NOT_A_FOLDER = "{path} is a file; a network is a folder with {config} and {state}."
LACKS_FILE = "{path} has no {file}, and so is no network: a folder with {config} and {state}."
NO_FIT = "{source}: the state does not fit the network: {problems}"
LACKING = "it lacks {addresses}"
OTHER_TYPE = "{address} is {given}, where {owner} has {wanted}"
OTHER_FLOAT = " (the dtype of floats is pytensor.config.floatX, here {floatx})"
UNEXPECTED = "it has {addresses}, which the network has not. Save what is the network's: state.drop(...)"

#: The roles that a state may have more of: what an optimizer keeps rides along.
_RIDE_ALONG = (Role.OPTIMIZER, Role.CLOCK)


def save_network(
    network: Any,
    state: State,
    path: str | os.PathLike[str],
    *,
    revision: int = 0,
    overwrite: bool = False,
) -> None:
    """Write a network and its state to a folder, from which :func:`load_network` makes both again.

    The folder has the network as JSON, ``network.json``, for people and programs to read, and the arrays in
    ``state.safetensors``. It is written beside its place and put there by one rename: at `path` there is
    a whole network or none.

    Parameters
    ----------
    network : Module, or tuple of modules
        What :func:`to_config` writes.
    state : State
        A value for each of its leaves. What an optimizer keeps may be among it, and is saved too.
    path : str or path
        The folder to make. The one that it lies in has to exist.
    revision : int
        A number of your own, 0 unless given, for config and state; see :func:`to_config`.
    overwrite : bool
        Whether a network that is there already may be replaced; False unless given. It is moved aside
        first, and removed when the new one is in its place: a process that is killed in between leaves
        both, under names that begin with a dot.

    Raises
    ------
    ConfigError
        If the network cannot be written, or the state does not fit it.
    FileExistsError
        If something is there already.
    OSError
        If the folder cannot be written.

    Examples
    --------
    >>> import pathlib, tempfile
    >>> import ptml
    >>> from ptml.layers import Linear
    >>> net = Linear("fc", n_in=2, n_out=3)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = pathlib.Path(folder) / "model"
    ...     ptml.save_network(net, ptml.init(net, seed=0), path)
    ...     again, state = ptml.load_network(path)
    >>> again, state["fc/b"]
    (Linear('fc', n_in=2, n_out=3), array([0., 0., 0.]))
    """
    path = Path(path)
    if not isinstance(state, State):
        raise TypeError(NO_STATE.format(kind=type(state).__name__))
    config = to_config(network, revision=revision)
    _refuse_misfit(network, state, "save_network")
    there = os.path.lexists(path)
    if there and not overwrite:
        raise FileExistsError(EXISTS.format(path=path))
    if there and (path.is_symlink() or not (path / CONFIG).is_file()):
        raise FileExistsError(NOT_OURS.format(path=path))
    mark = uuid.uuid4().hex
    beside, aside = (path.with_name(f".{path.name}.{mark}.{end}") for end in ("tmp", "old"))
    try:
        beside.mkdir()
        _write(beside / CONFIG, json_text(config).encode())
        save_state(state, beside / STATE, revision=revision)
        sync_folder(beside)
        if there:
            # No system has a rename that takes the place of a folder with files.
            path.rename(aside)
        beside.rename(path)
    except BaseException:
        if aside.exists() and not path.exists():
            aside.rename(path)
        shutil.rmtree(beside, ignore_errors=True)
        raise
    sync_folder(path.parent)
    shutil.rmtree(aside, ignore_errors=True)


def _write(path: Path, content: bytes) -> None:
    with path.open("xb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


def load_network(
    path: str | os.PathLike[str],
    *,
    revision: int | None = None,
    migrations: Mapping[int, Callable[[Any], Any]] | None = None,
    state_migrations: Mapping[int, Callable[[State], State]] | None = None,
    mapped: bool = True,
) -> tuple[Any, State]:
    """Make the network and the state that :func:`save_network` wrote to a folder.

    Nothing is given back before all of it is known to be right: the state has a value of the right shape and
    dtype for each leaf of the network, and layers that are numbered stand in the order in which they stood.

    Parameters
    ----------
    path : str or path
        The folder.
    revision : int, optional
        The number that you give :func:`save_network` now. A network of a later one is refused.
    migrations, state_migrations : mapping from int to function, optional
        From a revision to a function that makes the config's ``"module"``, or the state, one of the next
        revision; see :func:`from_config` and :func:`ptml_state.load_state`. A revision that one of the two
        has no function for left that one as it was.
    mapped : bool
        Whether the arrays lie in the file until they are looked at; True unless given.

    Returns
    -------
    network : Module, or tuple of modules
    state : State

    Raises
    ------
    ConfigError
        If the config is damaged, or the state does not fit it; the message names the file and the place
        in it.
    ArchiveError
        If the archive is damaged.
    FileNotFoundError
        If there is no such folder.
    """
    path = Path(path)
    if not path.exists():
        raise FileNotFoundError(NO_FOLDER.format(path=path))
    if not path.is_dir():
        raise ConfigError(NOT_A_FOLDER.format(path=path, config=CONFIG, state=STATE))
    for file in (CONFIG, STATE):
        if not (path / file).exists():
            raise ConfigError(LACKS_FILE.format(path=path, file=file, config=CONFIG, state=STATE))
    source = str(path / CONFIG)
    try:
        config = read_json(path / CONFIG, largest=LARGEST, deepest=DEEPEST)
    except JSONError as error:
        raise ConfigError(f"{source}: {error}.") from None
    both = dict.fromkeys({*(migrations or {}), *(state_migrations or {})}, _unchanged)
    network = read_config(config, source, revision, {**both, **(migrations or {})})
    state = load_state(
        path / STATE, revision=revision, migrations={**both, **(state_migrations or {})}, mapped=mapped
    )
    _refuse_misfit(network, state, str(path))
    return network, state


def _unchanged(value: Any) -> Any:
    return value


def _refuse_misfit(network: Any, state: State, source: str) -> None:
    try:
        places = lay_out([network])
    except Exception as error:
        # A class may first find out in its slots that its fields are impossible.
        raise ConfigError(f"{source}: the network cannot be laid out: {cut(str(error))}") from error
    problems = _misfits(places, state)
    if problems:
        raise ConfigError(NO_FIT.format(source=source, problems=_listed(problems, "; ")))


def _misfits(places: list[Placed], state: State) -> list[str]:
    """Say in what a state does not fit a network's leaves; nothing where it does."""
    leaves = {leaf.address: leaf for leaf in state.leaves}
    wanted = {place.address: place.slot for place in places}
    order = in_another_order(state.leaves, places)
    if order is not None:
        return [cut(order, 2000)]
    problems = []
    lacking = [address for address in wanted if address not in leaves]
    if lacking:
        problems.append(LACKING.format(addresses=_listed(lacking)))
    for place in places:
        leaf, slot = leaves.get(place.address), place.slot
        if leaf is None:
            continue
        if leaf.role is not slot.role:
            given, needed = f"of role {leaf.role.name}", slot.role.name
        elif (tuple(leaf.shape), str(leaf.dtype)) != (slot.shape, slot.dtype):
            given, needed = type_text(leaf), type_text(slot)
        else:
            continue
        text = OTHER_TYPE.format(address=place.address, given=given, owner=place.owner, wanted=needed)
        if slot.dtype == pytensor.config.floatX != str(leaf.dtype):
            text += OTHER_FLOAT.format(floatx=slot.dtype)
        problems.append(text)
    # An archive knows a leaf's owner by name, which tells a layer's generator from a transform's.
    of_a_layer = where(Layer)
    more = [
        address
        for address, leaf in leaves.items()
        if address not in wanted
        and leaf.role not in _RIDE_ALONG
        and (leaf.role is not Role.GENERATOR or of_a_layer.matches(leaf))
    ]
    if more:
        problems.append(UNEXPECTED.format(addresses=_listed(more)))
    return problems


def _listed(texts: Iterable[str], sign: str = ", ") -> str:
    texts = [cut(text, 300) for text in texts]
    shown = sign.join(texts[:8])
    return shown if len(texts) <= 8 else f"{shown}{sign}and {len(texts) - 8} more"
