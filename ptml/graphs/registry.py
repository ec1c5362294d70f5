"""The registry of ops: what a graph may be made of, by name.

A text names ops, and a name means what was registered under it, on purpose, by code. Nothing is imported,
looked up or run because a text says so.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import attrs
from pytensor.graph.op import Op

from ptml.graphs.errors import GraphError, nearest
from ptml.graphs.fields import GRAPH, PLAIN, Field

__all__ = ["Entry", "entry_named", "entry_of", "register_op", "registered_ops"]

NOT_AN_OP = "register_op takes a class of ops; got {given!r}."
TAKEN = (
    "{name!r} is {other} in graphs as data. Register {op} under another name: register_op({short}, name=...)."
)
ALREADY = "{op} is registered as {name!r} already."
UNKNOWN = "no op {name!r} is registered.{nearest} An application adds its own: ptml.graphs.register_op."
NOT_REGISTERED = (
    "{op} is of {kind}, which is not registered, so it has no name in JSON.{nearest} Register it on purpose: "
    "ptml.graphs.register_op({short})."
)


@attrs.frozen
class Entry:
    """What is known of one class of ops.

    Attributes
    ----------
    name : str
        What JSON calls it.
    fields : dict of str to Field
        Its properties.
    encode : function
        ``encode(op)`` gives the value of each property.
    decode : function
        ``decode(**properties)`` makes the op.
    label : function
        ``label(op)`` gives a word for the op in the table.
    """

    name: str
    fields: Mapping[str, Field]
    encode: Callable[[Any], Mapping[str, Any]]
    decode: Callable[..., Op]
    label: Callable[[Any], str]
    #: Whether ops of equal properties may stand for one another; those that hold graphs may not.
    by_value: bool = True


_by_class: dict[type, Entry] = {}
_by_name: dict[str, Entry] = {}


def register_op(
    op_class: type[Op],
    name: str | None = None,
    *,
    fields: Mapping[str, Field] | None = None,
    encode: Callable[[Any], Mapping[str, Any]] | None = None,
    decode: Callable[..., Op] | None = None,
) -> type[Op]:
    """Let graphs that use an op be written and read.

    Parameters
    ----------
    op_class : type
        The class; its subclasses are not meant.
    name : str, optional
        What JSON calls it; the class's name unless given. It is part of files, and so is for good.
    fields : mapping, optional
        The op's properties, and what each is in JSON, of :mod:`ptml.graphs.fields`. Those that the class
        names in ``__props__`` unless given: numbers, texts, flags, None and tuples of these.
    encode : function, optional
        ``encode(op)`` gives the value of each property; attributes of their names unless given.
    decode : function, optional
        ``decode(**properties)`` makes the op; the class unless given. It is called with what a file says, and
        raises where that makes no sense.

    Returns
    -------
    type
        The class, so that this decorates it as well.

    Raises
    ------
    TypeError
        If it is no class of ops.
    ValueError
        If the class is registered already, or the name is another class's.

    Examples
    --------
    >>> import pytensor.tensor as pt
    >>> from ptml.fused import Fused
    >>> from ptml.graphs import graph_from_json, graph_to_json, register_op
    >>> @register_op
    ... class Cube(Fused):
    ...     def build(self, x):
    ...         return [x * x * x]
    >>> x = pt.vector("x")
    >>> graph_from_json(graph_to_json(Cube()(x))).outputs[0].owner.op == Cube()
    True
    """
    if not isinstance(op_class, type) or not issubclass(op_class, Op):
        raise TypeError(NOT_AN_OP.format(given=op_class))
    if fields is None:
        fields = dict.fromkeys(getattr(op_class, "__props__", ()) or (), PLAIN)
    chosen = name or op_class.__name__
    properties = tuple(fields)
    entry = Entry(
        chosen,
        dict(fields),
        encode or (lambda op: {key: getattr(op, key) for key in properties}),
        decode or op_class,
        lambda op: chosen,
        by_value=GRAPH not in fields.values(),
    )
    add(op_class, entry)
    return op_class


def add(op_class: type, entry: Entry) -> None:
    """Register a class under an entry, which several classes may share."""
    if op_class in _by_class:
        raise ValueError(ALREADY.format(op=op_class.__qualname__, name=_by_class[op_class].name))
    if _by_name.setdefault(entry.name, entry) is not entry:
        others = [c.__qualname__ for c, e in _by_class.items() if e is _by_name[entry.name]]
        raise ValueError(
            TAKEN.format(
                name=entry.name, other=others[0], op=op_class.__qualname__, short=op_class.__qualname__
            )
        )
    _by_class[op_class] = entry


def registered_ops() -> dict[str, tuple[type, ...]]:
    """Give the names of all registered ops, with their classes.

    Examples
    --------
    >>> [kind.__name__ for kind in registered_ops()["Dot"]]
    ['Dot']
    """
    found: dict[str, tuple[type, ...]] = {}
    for op_class, entry in _by_class.items():
        found[entry.name] = (*found.get(entry.name, ()), op_class)
    return dict(sorted(found.items()))


def entry_of(op: Op) -> Entry:
    """Give the entry of an op's class.

    Raises
    ------
    GraphError
        If there is none.
    """
    kind = type(op)
    if kind not in _by_class:
        raise GraphError(
            NOT_REGISTERED.format(
                op=op,
                kind=f"{kind.__module__}.{kind.__qualname__}",
                nearest=nearest(kind.__name__, _by_name),
                short=kind.__qualname__,
            )
        )
    return _by_class[kind]


def entry_named(name: str, where: str) -> Entry:
    """Give the entry of a name.

    Raises
    ------
    GraphError
        If there is none.
    """
    if name not in _by_name:
        raise GraphError(UNKNOWN.format(name=name[:60], nearest=nearest(name, _by_name)), where)
    return _by_name[name]
