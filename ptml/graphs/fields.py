"""What the properties of an op are in JSON: a field for each kind, which writes and reads it strictly."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import attrs
from pytensor.graph.basic import Variable
from pytensor.graph.op import Op

from ptml.graphs.errors import GraphError
from ptml.graphs.types import DTYPES, read_type, write_type
from ptml_state.strictjson import short

__all__ = [
    "COUNT",
    "DTYPE",
    "FLAG",
    "GRAPH",
    "INDEX",
    "INTEGER",
    "NUMBER",
    "OP",
    "PLAIN",
    "TEXT",
    "TYPE",
    "Field",
    "Reader",
    "Writer",
    "choice",
    "items",
    "optional",
]

_NAMED = {"nan": math.nan, "inf": math.inf, "-inf": -math.inf}


class Writer(Protocol):
    """What a field may ask of who writes: where other ops and nested graphs go."""

    def op(self, op: Op) -> str: ...
    def graph(self, inputs: Sequence[Variable], outputs: Sequence[Variable]) -> dict[str, Any]: ...


class Reader(Protocol):
    """What a field may ask of who reads."""

    def op(self, label: Any, where: str) -> Op: ...
    def graph(self, fields: Any, where: str) -> tuple[list[Variable], list[Variable]]: ...


@attrs.frozen
class Field:
    """One kind of property.

    Parameters
    ----------
    write : function
        ``write(value, writer)`` gives what JSON has of it.
    read : function
        ``read(value, reader, where)`` gives the property, or raises :class:`GraphError`.
    """

    write: Callable[[Any, Writer], Any]
    read: Callable[[Any, Reader, str], Any]


def _plainly(takes: str, fits: Callable[[Any], bool], write: Callable[[Any], Any] = lambda v: v) -> Field:
    """Make the field of a property that JSON has as it is."""

    def read(value: Any, reader: Reader, where: str) -> Any:
        if not fits(value):
            raise GraphError(f"takes {takes}; got {short(value)}", where)
        return value

    return Field(lambda value, writer: write(value), read)


def _is_integer(value: Any) -> bool:
    return type(value) is int and abs(value) < 2**63


FLAG = _plainly("true or false", lambda value: type(value) is bool, bool)
INTEGER = _plainly("a whole number of 64 bits", _is_integer, int)
#: How many inputs, results or axes there are: some ops prepare something for each.
COUNT = _plainly("a count up to 65536", lambda value: type(value) is int and 0 <= value <= 1 << 16, int)
TEXT = _plainly("text", lambda value: isinstance(value, str))
DTYPE = _plainly("a dtype, such as 'float64'", lambda value: isinstance(value, str) and value in DTYPES)


def choice(*options: Any) -> Field:
    """Make the field of a property that is one of a few.

    Examples
    --------
    >>> choice("add", "mul").read("div", None, "ops.cumsum.mode")
    Traceback (most recent call last):
        ...
    ptml.graphs.errors.GraphError: ops.cumsum.mode: takes one of 'add', 'mul'; got 'div'
    """
    known = [(type(option), option) for option in options]
    return _plainly(f"one of {', '.join(map(repr, options))}", lambda value: (type(value), value) in known)


def optional(field: Field) -> Field:
    """Make the field of a property that may be None."""
    return Field(
        lambda value, writer: None if value is None else field.write(value, writer),
        lambda value, reader, where: None if value is None else field.read(value, reader, where),
    )


def items(field: Field) -> Field:
    """Make the field of a tuple of properties of one kind.

    Examples
    --------
    >>> items(INTEGER).read([0, 1], None, "ops.sum.axis")
    (0, 1)
    """

    def read(value: Any, reader: Reader, where: str) -> tuple[Any, ...]:
        if not isinstance(value, list):
            raise GraphError(f"takes a list; got {short(value)}", where)
        return tuple(field.read(item, reader, f"{where}[{k}]") for k, item in enumerate(value))

    return Field(lambda value, writer: [field.write(item, writer) for item in value], read)


def _write_number(value: Any) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        return "nan" if math.isnan(value) else "inf" if value > 0 else "-inf"
    return value


def _read_number(value: Any, reader: Reader, where: str) -> float:
    if isinstance(value, str) and value in _NAMED:
        return _NAMED[value]
    if type(value) is float or _is_integer(value):
        return value
    raise GraphError(f"takes a number, 'nan', 'inf' or '-inf'; got {short(value)}", where)


NUMBER = Field(lambda value, writer: _write_number(value), _read_number)


def _write_plain(value: Any, writer: Writer) -> Any:
    if isinstance(value, tuple):
        return [_write_plain(item, writer) for item in value]
    if value is None or isinstance(value, bool | str) or _is_integer(value):
        return value
    if type(value) is float and math.isfinite(value):
        return value
    raise GraphError(
        f"the property {value!r} is neither a finite number, text, true, false, None, nor a tuple of those"
    )


def _read_plain(value: Any, reader: Reader, where: str) -> Any:
    if isinstance(value, list):
        return tuple(_read_plain(item, reader, f"{where}[{k}]") for k, item in enumerate(value))
    if value is None or isinstance(value, bool | str | float) or _is_integer(value):
        return value
    raise GraphError(f"takes a number, text, true, false, null or a list; got {short(value)}", where)


#: A finite number, text, a flag, None, or a tuple of these: for ops whose own code checks what they get.
PLAIN = Field(_write_plain, _read_plain)

TYPE = Field(
    lambda value, writer: write_type(value),
    lambda value, reader, where: read_type(value, where),
)
"""The type of a variable."""

OP = Field(
    lambda value, writer: writer.op(value),
    lambda value, reader, where: reader.op(value, where),
)
"""Another op, which stands before in the table of ops, by its label."""

GRAPH = Field(
    lambda value, writer: writer.graph(value.inputs, value.outputs),
    lambda value, reader, where: reader.graph(value, where),
)
"""A nested graph: anything with ``inputs`` and ``outputs`` when written, two lists when read."""


def _write_index(value: Any, writer: Writer) -> Any:
    return [value.start, value.stop, value.step] if isinstance(value, slice) else int(value)


def _read_index(value: Any, reader: Reader, where: str) -> Any:
    if type(value) is int:
        return value
    if isinstance(value, list) and len(value) == 3 and all(v is None or type(v) is int for v in value):
        return slice(*value)
    raise GraphError(f"takes a position or [start, stop, step]; got {short(value)}", where)


#: An entry of an index: the position of an input, or a slice of three.
INDEX = Field(_write_index, _read_index)
