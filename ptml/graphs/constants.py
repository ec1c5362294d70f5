"""Constants as JSON: small ones as exact numbers, the others as their bytes."""

from __future__ import annotations

import base64
import binascii
import math
from typing import Any

import numpy as np
from pytensor.graph.basic import Constant
from pytensor.graph.type import Type
from pytensor.scalar.basic import ScalarConstant, ScalarType
from pytensor.tensor.type import TensorType
from pytensor.tensor.type_other import NoneTypeT, SliceConstant, SliceType
from pytensor.tensor.variable import TensorConstant

from ptml.graphs.errors import GraphError
from ptml.graphs.types import write_type
from ptml_state.strictjson import short

__all__ = ["read_constant", "write_constant"]

#: Arrays of at most so many elements are written as numbers.
MOST_NUMBERS = 64

NOT_DATA = "A constant of type {given} holds {value}, which JSON has no form for."
WRONG_LENGTH = "takes a list of {wanted}; got {given}"
WRONG_NUMBER = "takes {wanted}; got {given}"
WRONG_BYTES = "are {given} bytes, where {dtype}{shape} has {wanted}"
BOTH = "a constant has either a 'value' or 'base64'"
NO_BASE64 = "is no base64: {why}"
WRONG_SHAPE = "is {given}, which {type} does not allow"

#: What floats are called that are no JSON numbers.
_NAMED = {"nan": math.nan, "inf": math.inf, "-inf": -math.inf}


def write_constant(constant: Constant) -> dict[str, Any]:
    """Write a constant, without its name.

    Raises
    ------
    GraphError
        If it holds something that is neither numbers, a slice of whole numbers, nor None.

    Examples
    --------
    >>> import numpy as np
    >>> import pytensor.tensor as pt
    >>> write_constant(pt.constant(np.array([0.1, -np.inf])))
    {'type': 'float64[2]', 'value': [0.1, '-inf']}
    """
    kind, data = constant.type, constant.data
    written: dict[str, Any] = {"type": write_type(kind)}
    if isinstance(kind, NoneTypeT):
        return written
    if isinstance(kind, SliceType):
        parts = [data.start, data.stop, data.step]
        if not all(part is None or isinstance(part, int | np.integer) for part in parts):
            raise GraphError(NOT_DATA.format(given=written["type"], value=data))
        return {**written, "value": [None if part is None else int(part) for part in parts]}
    if not isinstance(kind, TensorType | ScalarType):
        raise GraphError(NOT_DATA.format(given=written["type"], value=type(data).__name__))
    array = np.asarray(data)
    if None in getattr(kind, "shape", ()):
        written["shape"] = list(array.shape)
    if 0 < array.size <= MOST_NUMBERS and _has_numbers(array):
        return {**written, "value": _numbers(array.tolist())}
    little = array.astype(array.dtype.newbyteorder("<"), order="C", copy=False)
    return {**written, "base64": base64.b64encode(little.tobytes()).decode("ascii")}


def _has_numbers(array: np.ndarray) -> bool:
    """Say whether numbers give every bit back: complex ones have no form, and there are many NaNs."""
    if array.dtype.kind != "f":
        return array.dtype.kind in "biu"
    nan = np.isnan(array)
    return not nan.any() or array[nan].tobytes() == np.full(nan.sum(), np.nan, array.dtype).tobytes()


def _numbers(value: Any) -> Any:
    if isinstance(value, list):
        return [_numbers(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return "nan" if math.isnan(value) else "inf" if value > 0 else "-inf"
    return value


def read_constant(kind: Type, fields: dict[str, Any], where: str, name: str | None = None) -> Constant:
    """Read a constant.

    Parameters
    ----------
    kind : Type
        Its type.
    fields : dict
        What :func:`write_constant` gives besides the type.
    where : str
        The place in the JSON.
    name : str, optional
        The constant's name.

    Raises
    ------
    GraphError
        If the value is not of the type.

    Examples
    --------
    >>> import pytensor.tensor as pt
    >>> read_constant(pt.vector(shape=(2,)).type, {"value": [0.1, "-inf"]}, "constants[0]").data
    array([ 0.1, -inf])
    """
    if isinstance(kind, NoneTypeT):
        _takes(fields, (), where)
        return Constant(kind, None, name=name)
    if isinstance(kind, SliceType):
        _takes(fields, ("value",), where)
        parts = fields.get("value")
        if not isinstance(parts, list) or len(parts) != 3 or not all(map(_is_bound, parts)):
            raise GraphError(WRONG_NUMBER.format(wanted="[start, stop, step]", given=short(parts)), where)
        return SliceConstant(kind, slice(*parts), name=name)
    if not isinstance(kind, TensorType | ScalarType):
        raise GraphError(NOT_DATA.format(given=write_type(kind), value="anything"), where)
    array = _array(kind, fields, where)
    if isinstance(kind, ScalarType):
        return ScalarConstant(kind, array[()], name=name)
    return TensorConstant(kind, array, name=name)


def _is_bound(part: Any) -> bool:
    return part is None or (type(part) is int and abs(part) < 2**63)


def _takes(fields: dict[str, Any], names: tuple[str, ...], where: str) -> None:
    for name in fields:
        if name not in names:
            raise GraphError(f"a constant of this type has no {short(name)}", where)


def _array(kind: Any, fields: dict[str, Any], where: str) -> np.ndarray:
    dtype, static = np.dtype(kind.dtype), tuple(getattr(kind, "shape", ()))
    unknown = None in static
    _takes(fields, ("shape", "value", "base64") if unknown else ("value", "base64"), where)
    shape = static
    if unknown:
        given: Any = fields.get("shape")
        sized = isinstance(given, list) and all(type(n) is int and 0 <= n < 2**62 for n in given)
        if not sized or not _allows(static, given):
            text = WRONG_SHAPE.format(given=short(given), type=write_type(kind))
            raise GraphError(text, f"{where}.shape")
        shape = tuple(given)
    if ("value" in fields) == ("base64" in fields):
        raise GraphError(BOTH, where)
    if "value" in fields:
        flat: list[Any] = []
        _flatten(fields["value"], shape, dtype, f"{where}.value", flat)
        return np.array(flat, dtype).reshape(shape)
    return _from_bytes(fields["base64"], shape, dtype, f"{where}.base64")


def _allows(static: tuple[int | None, ...], shape: list[int]) -> bool:
    return len(shape) == len(static) and all(
        wanted is None or wanted == size for wanted, size in zip(static, shape, strict=True)
    )


def _flatten(value: Any, shape: tuple[int, ...], dtype: np.dtype, where: str, flat: list[Any]) -> None:
    if not shape:
        flat.append(_number(value, dtype, where))
        return
    if not isinstance(value, list) or len(value) != shape[0]:
        given = f"one of {len(value)}" if isinstance(value, list) else short(value)
        raise GraphError(WRONG_LENGTH.format(wanted=shape[0], given=given), where)
    for k, item in enumerate(value):
        _flatten(item, shape[1:], dtype, f"{where}[{k}]", flat)


def _number(value: Any, dtype: np.dtype, where: str) -> Any:
    if dtype.kind == "b" and type(value) is bool:
        return value
    if dtype.kind in "iu" and type(value) is int:
        range_of = np.iinfo(dtype)
        if range_of.min <= value <= range_of.max:
            return value
    if dtype.kind == "f":
        if isinstance(value, str) and value in _NAMED:
            return _NAMED[value]
        if type(value) in (int, float) and abs(value) <= float(np.finfo(dtype).max):
            return float(value)
    named = " (or 'nan', 'inf', '-inf')" if dtype.kind == "f" else ""
    raise GraphError(WRONG_NUMBER.format(wanted=f"{dtype}{named}", given=short(value)), where)


def _from_bytes(text: Any, shape: tuple[int, ...], dtype: np.dtype, where: str) -> np.ndarray:
    if not isinstance(text, str):
        raise GraphError(NO_BASE64.format(why=short(text)), where)
    try:
        content = base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError) as error:
        raise GraphError(NO_BASE64.format(why=error), where) from None
    wanted = math.prod(shape) * dtype.itemsize
    if len(content) != wanted:
        text = WRONG_BYTES.format(given=len(content), dtype=dtype, shape=list(shape), wanted=wanted)
        raise GraphError(text, where)
    if dtype.kind == "b" and content.strip(b"\x00\x01"):
        raise GraphError(WRONG_NUMBER.format(wanted="bytes 0 and 1", given="others"), where)
    try:
        array = np.frombuffer(content, dtype.newbyteorder("<")).reshape(shape)
    except ValueError as error:  # no element, and sizes that NumPy does not take
        raise GraphError(f"{error}", where) from None
    return array.astype(dtype)
