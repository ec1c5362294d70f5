"""Scalar ops, and what applies them to tensors: elementwise ops and reductions.

The scalar ops that PyTensor offers are known by the names under which it offers them: ``add``, ``exp``,
``convert_to_float32``. Those that hold a graph of others, and an application's own, stand in the table of
ops.
"""

from __future__ import annotations

from typing import Any

from pytensor.graph.basic import Variable
from pytensor.scalar import basic, math
from pytensor.scalar.basic import Composite, ScalarOp
from pytensor.scalar.loop import ScalarLoop
from pytensor.tensor import math as reductions
from pytensor.tensor.elemwise import CAReduce, Elemwise

from ptml.graphs.errors import GraphError, nearest
from ptml.graphs.fields import DTYPE, FLAG, GRAPH, INTEGER, TEXT, Field, Reader, Writer, items, optional
from ptml.graphs.registry import Entry, add, register_op
from ptml_state.strictjson import short

__all__ = ["SCALAR", "scalar_named"]

NO_SCALAR = "takes the name of a scalar op, or {{'op': label}}; got {given}.{nearest}"
NO_NAME = (
    "The scalar op {op} is not the {kind} that PyTensor offers: its results have types of their own. Apply "
    "that one, and cast."
)
NOT_SCALAR = "{label!r} is no scalar op"

#: The scalar ops that PyTensor offers, by name. Where it offers one under several, the first counts.
_named: dict[str, ScalarOp] = {}
for _module in (basic, math):
    for _name, _op in vars(_module).items():
        if isinstance(_op, ScalarOp):
            _named.setdefault(_name, _op)
_names: dict[ScalarOp, str] = {}
for _name, _op in _named.items():
    _names.setdefault(_op, _name)


def scalar_named(name: Any, where: str) -> ScalarOp:
    """Give the scalar op that PyTensor offers under a name.

    Raises
    ------
    GraphError
        If it offers none.

    Examples
    --------
    >>> scalar_named("exp", "ops.exp.scalar")
    Exp()
    """
    if not isinstance(name, str) or name not in _named:
        close = nearest(name, _named) if isinstance(name, str) else ""
        raise GraphError(NO_SCALAR.format(given=short(name), nearest=close), where)
    return _named[name]


def _write_scalar(op: ScalarOp, writer: Writer) -> Any:
    return _names[op] if op in _names else {"op": writer.op(op)}


def _read_scalar(value: Any, reader: Reader, where: str) -> ScalarOp:
    if not isinstance(value, dict) or set(value) != {"op"}:
        return scalar_named(value, where)
    op = reader.op(value["op"], f"{where}.op")
    if not isinstance(op, ScalarOp):
        raise GraphError(NOT_SCALAR.format(label=value["op"]), where)
    return op


#: A scalar op: the name of one of PyTensor's, or the label of one in the table.
SCALAR = Field(_write_scalar, _read_scalar)


def _name_of(op: ScalarOp) -> str:
    if op not in _names:
        raise GraphError(NO_NAME.format(op=op, kind=type(op).__name__))
    return _names[op]


_scalar = Entry(
    "Scalar",
    {"name": TEXT},
    lambda op: {"name": _name_of(op)},
    lambda name: scalar_named(name, "ops"),
    lambda op: f"scalar {_name_of(op)}",
)
for _kind in dict.fromkeys(map(type, _named.values())):
    add(_kind, _scalar)


register_op(
    Composite,
    fields={"graph": GRAPH},
    encode=lambda op: {"graph": op.fgraph},
    decode=lambda graph: Composite(*graph),
)


def _scalar_loop(is_while: bool, graph: tuple[list[Variable], list[Variable]]) -> ScalarLoop:
    inputs, outputs = graph
    until = outputs[-1] if is_while and outputs else None
    update = outputs[: len(outputs) - is_while]
    return ScalarLoop(inputs[: len(update)], update, inputs[len(update) :], until)


register_op(
    ScalarLoop,
    fields={"is_while": FLAG, "graph": GRAPH},
    encode=lambda op: {"is_while": op.is_while, "graph": op.fgraph},
    decode=_scalar_loop,
)


def _label(op: Any) -> str:
    scalar = op.scalar_op
    return _names.get(scalar, type(scalar).__name__).removeprefix("convert_to_")


add(
    Elemwise,
    Entry(
        "Elemwise",
        {"scalar": SCALAR},
        lambda op: {"scalar": op.scalar_op},
        lambda scalar: Elemwise(scalar),
        _label,
    ),
)

_AXES = optional(items(INTEGER))
_ACCUMULATED = {"axis": _AXES, "dtype": optional(DTYPE), "acc_dtype": optional(DTYPE)}

register_op(
    CAReduce,
    fields={"scalar_op": SCALAR, **_ACCUMULATED, "upcast_discrete_output": optional(FLAG)},
)
register_op(reductions.Sum, fields=_ACCUMULATED)
register_op(reductions.Prod, fields={**_ACCUMULATED, "no_zeros_in_input": FLAG})
register_op(reductions.ProdWithoutZeros, fields=_ACCUMULATED)
register_op(reductions.Max, fields={"axis": _AXES, "initial": FLAG})
register_op(reductions.Min, fields={"axis": _AXES, "initial": FLAG})
register_op(reductions.All, fields={"axis": _AXES})
register_op(reductions.Any, fields={"axis": _AXES})
register_op(reductions.Argmax, fields={"axis": _AXES})
