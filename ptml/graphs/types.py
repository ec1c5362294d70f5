"""The types of variables as text: ``float64[?,3]``, ``scalar int64``, ``slice``, ``none``, ``generator``."""

from __future__ import annotations

import re
from typing import Any

from pytensor.graph.type import Type
from pytensor.scalar.basic import ScalarType, get_scalar_type
from pytensor.tensor.random.type import RandomGeneratorType, random_generator_type
from pytensor.tensor.type import TensorType
from pytensor.tensor.type_other import NoneTypeT, SliceType, none_type_t, slicetype

from ptml.graphs.errors import GraphError
from ptml_state.strictjson import short
from ptml_state.typetext import type_text

__all__ = ["DTYPES", "read_type", "write_type"]

#: The dtypes that a graph may speak of.
DTYPES = (
    "bool",
    *(f"{kind}{bits}" for kind in ("int", "uint") for bits in (8, 16, 32, 64)),
    *("float16", "float32", "float64", "complex64", "complex128"),
)

NO_TEXT = "{given} has no text: variables are tensors, scalars, slices, None and random generators."
NO_TYPE = "takes a type such as 'float64[?,3]', 'scalar int64', 'slice', 'none' or 'generator'; got {given}."
NO_DTYPE = "{given} is no dtype. There are {known}."
TOO_MANY_AXES = "{given} has {count} axes; NumPy has 64 at most."

_TENSOR = re.compile(r"([a-z]+[0-9]*)\[((?:(?:\?|[0-9]{1,18})(?:,(?:\?|[0-9]{1,18}))*)?)\]")
_OTHERS: dict[str, Type] = {"slice": slicetype, "none": none_type_t, "generator": random_generator_type}
_CLASSES = {SliceType: "slice", NoneTypeT: "none", RandomGeneratorType: "generator"}
_MOST_AXES = 64


def write_type(kind: Type) -> str:
    """Write a type.

    Raises
    ------
    GraphError
        If it is of a kind that graphs as data do not have.

    Examples
    --------
    >>> import pytensor.tensor as pt
    >>> write_type(pt.tensor(shape=(None, 3), dtype="float32").type)
    'float32[?,3]'
    """
    if type(kind) is TensorType:
        return type_text(kind)
    if type(kind) is ScalarType:
        return f"scalar {kind.dtype}"
    if type(kind) in _CLASSES:
        return _CLASSES[type(kind)]
    raise GraphError(NO_TEXT.format(given=kind))


def read_type(text: Any, where: str = "") -> Type:
    """Read a type.

    Raises
    ------
    GraphError
        If the text is none.

    Examples
    --------
    >>> read_type("float32[?,3]").shape
    (None, 3)
    """
    if not isinstance(text, str):
        raise GraphError(NO_TYPE.format(given=short(text)), where)
    if text in _OTHERS:
        return _OTHERS[text]
    if text.startswith("scalar "):
        return get_scalar_type(_dtype(text.removeprefix("scalar "), where))
    parts = _TENSOR.fullmatch(text)
    if parts is None:
        raise GraphError(NO_TYPE.format(given=short(text)), where)
    sizes = parts[2].split(",") if parts[2] else []
    if len(sizes) > _MOST_AXES:
        raise GraphError(TOO_MANY_AXES.format(given=short(text), count=len(sizes)), where)
    return TensorType(_dtype(parts[1], where), tuple(None if size == "?" else int(size) for size in sizes))


def _dtype(name: str, where: str) -> str:
    if name not in DTYPES:
        raise GraphError(NO_DTYPE.format(given=short(name), known=", ".join(DTYPES)), where)
    return name
