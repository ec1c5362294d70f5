"""What an archive says of its leaves beside their values, by format number.

Format 2 writes, as texts of the file's metadata, its number (``ptml_state.format``), the version that wrote
it (``ptml_state.version``), the application's own number (``ptml_state.revision``), the leaves in order as a
JSON list of objects (``ptml_state.leaves``: ``address``, ``role``, and, where there is something to say,
``owner``, ``uses``, ``uid`` and ``layer``), and the layers that have no name of their own as a JSON object by
label (``ptml_state.layers``: ``position`` and ``configuration``).

Format 1 wrote the leaves as lists (address, role, owner, uses, uid), and nothing of layers.
"""

from __future__ import annotations

import importlib.metadata
import json
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import attrs

from ptml_state.leaf import Leaf, Numbered, index_leaves
from ptml_state.slot import Role

__all__ = ["FORMAT", "Described", "described", "description"]

#: The format that is written.
FORMAT = 2

_FORMAT, _VERSION, _REVISION, _LEAVES, _LAYERS = (
    f"ptml_state.{name}" for name in ("format", "version", "revision", "leaves", "layers")
)


@attrs.frozen
class Described:
    """What the metadata of a file say.

    Parameters
    ----------
    format : int or None
        The format's number; None for a file that somebody else wrote.
    version : str or None
        The version that wrote it.
    revision : int
        The application's own number.
    leaves : tuple of Leaf
        The leaves, whose values are what was given for the arrays.
    other : dict from str to str
        Texts that are not ours.
    """

    format: int | None
    version: str | None
    revision: int
    leaves: tuple[Leaf, ...]
    other: dict[str, str]


def description(leaves: Iterable[Leaf], revision: int) -> dict[str, str]:
    """Write the metadata of a file.

    Parameters
    ----------
    leaves : iterable of Leaf
        The leaves, in order.
    revision : int
        The application's own number.
    """
    rows = []
    layers: dict[str, dict[str, Any]] = {}
    for leaf in leaves:
        row: dict[str, Any] = {"address": leaf.address, "role": leaf.role.value}
        if leaf.owner is not None:
            row["owner"] = leaf.owner
        if leaf.uses != 1:
            row["uses"] = leaf.uses
        if leaf.layer is not None:
            row["layer"] = leaf.layer.label
            layers[leaf.layer.label] = {
                "position": leaf.layer.position,
                "configuration": leaf.layer.configuration,
            }
            # Layers that are equal as values are told apart in the process that has them.
            if leaf.uid is not None:
                row["uid"] = leaf.uid
        rows.append(row)
    return {
        _FORMAT: str(FORMAT),
        _VERSION: _version(),
        _REVISION: str(revision),
        _LEAVES: json.dumps(rows, separators=(",", ":")),
        _LAYERS: json.dumps(layers, separators=(",", ":")),
    }


def described(metadata: Mapping[str, str], arrays: Mapping[str, Any]) -> Described:
    """Read the metadata of a file. Where they are somebody else's, every array is a parameter.

    Parameters
    ----------
    metadata : mapping from str to str
        The texts.
    arrays : mapping from str to anything
        What becomes the leaves' values.

    Raises
    ------
    ValueError
        When they are of a later format, or do not fit the arrays.
    """
    if _FORMAT not in metadata:
        leaves = [Leaf(address, array) for address, array in arrays.items()]
        # Names that make no tree are some other library's habit: it shows when a state is made of them.
        return Described(None, None, 0, tuple(leaves), dict(metadata))
    written = _number(metadata, _FORMAT)
    if written > FORMAT:
        raise ValueError(
            f"it is of format {written}, written by version {metadata.get(_VERSION)}; "
            f"this version reads up to format {FORMAT}. Update ptml."
        )
    texts = dict(metadata)
    for number in range(written, FORMAT):
        if number not in _UPGRADES:
            raise ValueError(f"it is of format {written}, which never was.")
        texts = _UPGRADES[number](texts)
    layers = {
        label: Numbered(label, _field(entry, "configuration", str))
        for label, entry in _json(texts, _LAYERS, dict).items()
    }
    leaves = [_leaf(row, arrays, layers) for row in _json(texts, _LEAVES, list)]
    lacking = arrays.keys() - {leaf.address for leaf in leaves}
    if lacking:
        raise ValueError(_differ(sorted(lacking)))
    other = {name: text for name, text in metadata.items() if not name.startswith("ptml_state.")}
    known = tuple(index_leaves(leaves).values())
    return Described(written, metadata.get(_VERSION), _number(texts, _REVISION), known, other)


def _leaf(row: Any, arrays: Mapping[str, Any], layers: Mapping[str, Numbered]) -> Leaf:
    address = _field(row, "address", str)
    if address not in arrays:
        raise ValueError(_differ([address]))
    label, uses = _field(row, "layer", str, None), _field(row, "uses", int, 1)
    if label is not None and label not in layers:
        raise ValueError(f"the leaf {address!r} is of a layer {label!r} that it does not describe.")
    if uses < 1:
        raise ValueError(f"the leaf {address!r} is used {uses} times.")
    return Leaf(
        address,
        arrays[address],
        Role(_field(row, "role", str)),
        owner=_field(row, "owner", str, None),
        uid=_field(row, "uid", str, None),
        uses=uses,
        layer=None if label is None else layers[label],
    )


def _differ(addresses: Iterable[str]) -> str:
    return f"its list of leaves and its arrays differ in {', '.join(addresses)}."


_REQUIRED: Any = object()


def _field(row: Any, name: str, kind: type, default: Any = _REQUIRED) -> Any:
    value = row.get(name, default) if isinstance(row, dict) else _REQUIRED
    if value is _REQUIRED or not (type(value) is kind or value is default):
        raise ValueError(f"its leaves or layers have an entry without a {kind.__name__} called {name!r}.")
    return value


def _json[Kind](texts: Mapping[str, str], name: str, kind: type[Kind]) -> Kind:
    try:
        value = json.loads(texts[name])
    except KeyError:
        raise ValueError(f"its metadata lack {name!r}.") from None
    except RecursionError:
        raise ValueError(f"{name!r} of its metadata is nested too deeply.") from None
    except ValueError as error:
        raise ValueError(f"{name!r} of its metadata is garbage: {error}.") from None
    if not isinstance(value, kind):
        raise ValueError(f"{name!r} of its metadata is no {kind.__name__}.")
    return value


def _number(texts: Mapping[str, str], name: str) -> int:
    text = texts.get(name, "")
    if not (text.isascii() and text.isdecimal() and len(text) < 10):
        raise ValueError(f"{name!r} of its metadata is {text[:40]!r}, and no number.")
    return int(text)


def _from_format_1(texts: dict[str, str]) -> dict[str, str]:
    rows = []
    for row in _json(texts, _LEAVES, list):
        if not isinstance(row, list) or not 4 <= len(row) <= 5:
            raise ValueError("its list of leaves has an entry that is none.")
        named = dict(zip(("address", "role", "owner", "uses", "uid"), row, strict=False))
        rows.append({name: value for name, value in named.items() if value is not None})
    return {**texts, _LEAVES: json.dumps(rows), _LAYERS: "{}", _REVISION: "0"}


#: What makes the metadata of one format those of the next.
_UPGRADES: dict[int, Callable[[dict[str, str]], dict[str, str]]] = {1: _from_format_1}


def _version() -> str:
    try:
        return importlib.metadata.version("ptml")
    except importlib.metadata.PackageNotFoundError:
        return "not installed"
