"""Ops that hold graphs: calls of layers, nested graphs, loops, branches."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from pytensor.compile.builders import OpFromGraph, SymbolicOp
from pytensor.conditional.op import IfElse
from pytensor.graph.basic import Variable
from pytensor.graph.fg import FunctionGraph
from pytensor.scan.op import Scan, ScanInfo
from pytensor.tensor import special
from pytensor.tensor.basic import AllocDiag
from pytensor.tensor.einsum import Einsum
from pytensor.tensor.linalg.products import KroneckerProduct
from pytensor.tensor.pad import Pad
from pytensor.tensor.symbolic import FusibleSymbolicOpDerivative

from ptml.graphs.encode import Order
from ptml.graphs.errors import GraphError
from ptml.graphs.fields import (
    COUNT,
    FLAG,
    GRAPH,
    INTEGER,
    OP,
    TEXT,
    TYPE,
    Field,
    Reader,
    choice,
    items,
    optional,
)
from ptml.graphs.registry import Entry, add, register_op
from ptml.layer import DefaultName, Layer, LayerGradient, LayerOp
from ptml.loss.softmax import Surprisal
from ptml.ops.recompute import Recomputed
from ptml_state.strictjson import short

__all__ = ["FrozenCall"]

OWN_GRADIENT = (
    "{op} has a gradient of its own, made by Python code, which no text can hold. Give the gradient as an "
    "OpFromGraph, or put the graph of {op} in its place: ptml.flatten.flatten."
)
NO_GRAPH_OP = "takes the label of a nested graph; got {given}"
WRONG_COUNTS = (
    "the loop has {inputs} inputs and {outputs} outputs, and its numbers make {wanted_inputs} and "
    "{wanted_outputs}"
)
NO_STATISTIC = "statistics are positions among the {count} inputs; got {given}"

_Graph = tuple[list[Variable], list[Variable]]


def _register(
    op_class: type,
    name: str,
    fields: Mapping[str, Field],
    encode: Callable[[Any], Mapping[str, Any]],
    decode: Callable[..., Any],
    label: Callable[[Any], str] | None = None,
) -> Entry:
    entry = Entry(name, fields, encode, decode, label or (lambda op: name), by_value=False)
    add(op_class, entry)
    return entry


def _read_rank(value: Any, reader: Reader, where: str) -> int:
    if type(value) is not int or not 0 <= value < 2**63:
        raise GraphError(f"takes a rank, a whole number from 0; got {short(value)}", where)
    return value


class FrozenLayer(Layer):
    """Stands for the layer of a call that was read: all that is known is its name, and its class's."""

    kind: str

    def build(self, *inputs: Any) -> Any:
        """Refuse: its graph stands where it was called."""
        raise TypeError(
            f"{self.name} was read from JSON with the graph it is called in, and builds no other."
        )


class FrozenCall(LayerOp):
    """The nested graph of one call of a layer, as it was read."""

    layer: Any

    def __str__(self) -> str:
        return (
            self.layer.kind
            if isinstance(self.layer.name, DefaultName)
            else f"{self.layer.name}:{self.layer.kind}"
        )


def _encode_call(op: LayerOp) -> dict[str, Any]:
    layer: Any = op.layer
    _refuse_own_gradient(op)
    return {
        "name": str(layer.name),
        "kind": layer.kind if isinstance(layer, FrozenLayer) else type(layer).__name__,
        "unnamed": isinstance(layer.name, DefaultName),
        "order": op.call_ordinal,
        "statistics": sorted(op.statistics),
        "graph": op.fgraph,
    }


def _decode_call(
    name: str, kind: str, unnamed: bool, order: int, statistics: tuple[int, ...], graph: _Graph
) -> LayerOp:
    inputs, outputs = graph
    if not all(0 <= k < len(inputs) for k in statistics):
        raise GraphError(NO_STATISTIC.format(count=len(inputs), given=list(statistics)))
    op = FrozenCall(inputs, outputs, layer=FrozenLayer(DefaultName(name) if unnamed else name, kind=kind))
    op.statistics = frozenset(statistics)
    op.call_ordinal = order
    return op


_call = _register(
    LayerOp,
    "ptml.Call",
    {
        "name": TEXT,
        "kind": TEXT,
        "unnamed": FLAG,
        "order": Field(lambda value, writer: Order(value), _read_rank),
        "statistics": items(INTEGER),
        "graph": GRAPH,
    },
    _encode_call,
    _decode_call,
    lambda op: str(op.layer.name),
)
add(FrozenCall, _call)


_register(
    Recomputed,
    "ptml.Recomputed",
    {"n_data": COUNT, "graph": GRAPH},
    lambda op: {
        "n_data": op.n_data,
        "graph": FunctionGraph(list(op.inner_inputs), list(op.inner_outputs), clone=True),
    },
    lambda n_data, graph: Recomputed(graph[0], graph[1], n_data),
)


def _refuse_own_gradient(op: OpFromGraph) -> None:
    overrides = (op.pullback_overrides, op.pushforward_overrides)
    if any(override is not None and not isinstance(override, OpFromGraph) for override in overrides):
        raise GraphError(OWN_GRADIENT.format(op=op))


def _read_nested(value: Any, reader: Reader, where: str) -> OpFromGraph:
    op = reader.op(value, where)
    if not isinstance(op, OpFromGraph):
        raise GraphError(NO_GRAPH_OP.format(given=short(value)), where)
    return op


_NESTED = optional(Field(OP.write, _read_nested))


def _encode_nested(op: OpFromGraph) -> dict[str, Any]:
    _refuse_own_gradient(op)
    return {
        "name": op.name,
        "inline": op.is_inline,
        "connected": op._connection_pattern,
        "pullback": op.pullback_overrides,
        "pushforward": op.pushforward_overrides,
        "graph": op.fgraph,
    }


def _decode_nested(op_class: type[OpFromGraph]) -> Callable[..., OpFromGraph]:
    def decode(
        name: str | None,
        inline: bool,
        connected: Any,
        pullback: OpFromGraph | None,
        pushforward: OpFromGraph | None,
        graph: _Graph,
    ) -> OpFromGraph:
        inputs, outputs = graph
        if connected is not None:
            connected = [list(row) for row in connected]
            if len(connected) != len(inputs) or any(len(row) != len(outputs) for row in connected):
                raise GraphError("'connected' has a row for each input, and in it a flag for each output")
        return op_class(
            inputs,
            outputs,
            name=name,
            inline=inline,
            connection_pattern=connected,
            pullback=pullback,
            pushforward=pushforward,
            on_unused_input="ignore",
        )

    return decode


for _kind, _name in (
    (OpFromGraph, "OpFromGraph"),
    (LayerGradient, "ptml.CallGradient"),
    (FusibleSymbolicOpDerivative, "FusibleSymbolicOpDerivative"),
):
    _register(
        _kind,
        _name,
        {
            "name": optional(TEXT),
            "inline": FLAG,
            "connected": optional(items(items(FLAG))),
            "pullback": _NESTED,
            "pushforward": _NESTED,
            "graph": GRAPH,
        },
        _encode_nested,
        _decode_nested(_kind),
    )


def _symbolic(op_class: type[SymbolicOp], name: str, **fields: Field) -> None:
    """Register an op that builds its graph from the types of its inputs."""

    def encode(op: Any) -> dict[str, Any]:
        return {"inputs": op.input_types, **{key: getattr(op, key) for key in fields}}

    def decode(inputs: tuple[Any, ...], **properties: Any) -> SymbolicOp:
        return op_class(input_types=list(inputs), **properties)

    _register(op_class, name, {"inputs": items(TYPE), **fields}, encode, decode)


_AXIS = optional(items(INTEGER))
_symbolic(special.Softmax, "Softmax", axis=_AXIS)
_symbolic(special.LogSoftmax, "LogSoftmax", axis=_AXIS)
_symbolic(special.LogSumExp, "LogSumExp", axis=_AXIS)
_symbolic(special.LogAddExp, "LogAddExp")
_symbolic(special.XLogY, "XLogY")
_symbolic(special.XLog1PY, "XLog1PY")
_symbolic(AllocDiag, "AllocDiag", axis1=INTEGER, axis2=INTEGER, offset=INTEGER)
_symbolic(KroneckerProduct, "KroneckerProduct")
_symbolic(
    Pad,
    "Pad",
    pad_mode=choice(
        "constant",
        "edge",
        "linear_ramp",
        "maximum",
        "minimum",
        "mean",
        "median",
        "wrap",
        "symmetric",
        "reflect",
    ),
    reflect_type=optional(choice("even", "odd")),
    has_stat_length=FLAG,
    static_pad_width=optional(items(items(INTEGER))),
)
_symbolic(Surprisal, "ptml.Surprisal")


def _einsum(subscripts: str, path: Any, optimized: bool, graph: _Graph) -> Einsum:
    return Einsum(*graph, subscripts=subscripts, path=path, optimized=optimized)


_register(
    Einsum,
    "Einsum",
    {"subscripts": TEXT, "path": items(items(INTEGER)), "optimized": FLAG, "graph": GRAPH},
    lambda op: {
        "subscripts": op.subscripts,
        "path": op.path,
        "optimized": op.optimized,
        "graph": op.fgraph,
    },
    _einsum,
)

_TAPS = items(items(INTEGER))
_LOOP: dict[str, Field] = {
    "n_seqs": COUNT,
    "mit_mot_in_slices": _TAPS,
    "mit_mot_out_slices": _TAPS,
    "mit_sot_in_slices": _TAPS,
    "sit_sot_in_slices": _TAPS,
    "n_nit_sot": COUNT,
    "n_untraced_sit_sot": COUNT,
    "n_non_seqs": COUNT,
    "as_while": FLAG,
}


def _encode_loop(op: Scan) -> dict[str, Any]:
    return {
        **{name: getattr(op.info, name) for name in _LOOP},
        "name": op.name,
        "truncate_gradient": op.truncate_gradient,
        "allow_gc": op.allow_gc,
        "graph": op.fgraph,
    }


def _decode_loop(name: str, truncate_gradient: int, allow_gc: bool, graph: _Graph, **numbers: Any) -> Scan:
    inputs, outputs = graph
    info = ScanInfo(**numbers)
    if (info.n_inner_inputs, info.n_inner_outputs) != (len(inputs), len(outputs)):
        raise GraphError(
            WRONG_COUNTS.format(
                inputs=len(inputs),
                outputs=len(outputs),
                wanted_inputs=info.n_inner_inputs,
                wanted_outputs=info.n_inner_outputs,
            )
        )
    op = Scan(
        inputs,
        outputs,
        info,
        name=name,
        truncate_gradient=truncate_gradient,
        allow_gc=allow_gc,
        profile=False,
    )
    op.validate_inner_graph()
    return op


_register(
    Scan,
    "Scan",
    {**_LOOP, "name": TEXT, "truncate_gradient": INTEGER, "allow_gc": FLAG, "graph": GRAPH},
    _encode_loop,
    _decode_loop,
)

register_op(IfElse, fields={"n_outs": COUNT, "as_view": FLAG, "name": optional(TEXT)})
