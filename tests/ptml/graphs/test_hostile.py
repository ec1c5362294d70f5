"""Texts that somebody broke, by accident or on purpose: one kind of error, soon, and nothing else."""

from __future__ import annotations

import json
import random
import resource
import time

import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest
from pytensor.compile.mode import Mode
from pytensor.graph.basic import equal_computations

import ptml
from ptml.graphs import Graph, GraphError, graph_from_json, graph_to_json
from ptml.layers import BatchNorm, Dropout, Input, Linear, Sequential
from ptml.loss import CrossEntropy

#: What stands in the place of a value, somewhere.
JUNK = [
    None,
    True,
    -1,
    0,
    1,
    3,
    17,
    2**31,
    2**63,
    10**400,
    1.5,
    -0.0,
    "",
    "x",
    "nan",
    "os.system",
    "builtins.eval",
    "__import__('os').system('true')",
    "float64[?]",
    "float64[9999999999999,9999999999999]",
    "float32[]",
    "scalar int64",
    "slice",
    "none",
    "generator",
    "add",
    "Scan",
    "ptml.Call",
    "\x00",
    "é" * 50,
    "A" * 20_000,
    [],
    {},
    [[]],
    [0],
    [0, 1],
    [None, None, None],
    {"op": "add"},
    [10**12] * 3,
    {"id": 0, "kind": "input", "type": "float64[?]"},
]


def _loss() -> str:
    net = Sequential(
        Linear("fc", n_in=3, n_out=4),
        BatchNorm("bn", n_in=4),
        Dropout("drop", p=0.5),
        Linear(n_in=4, n_out=2),
    )
    X, y = Input("X", shape=(None, 3)), pt.lvector("y")
    return graph_to_json(CrossEntropy(expect_logits=True)(net(X), y), [X, y])


def _loop() -> str:
    drop = Dropout("drop", p=0.5)
    rows = pt.matrix("rows")
    states = ptml.scan(lambda row, before: pt.tanh(drop(row) + before), rows, pt.zeros(3))
    return graph_to_json([states, pt.grad(states.sum(), rows)], [rows])


def _mixture() -> str:
    x, k, n = pt.matrix("x"), pt.lvector("k"), pt.lscalar("n")
    inner = pytensor.compile.builders.OpFromGraph([x], [pt.exp(x)])
    outputs = [
        pt.set_subtensor(x[1:, ::2], 0.0)[k],
        pt.sort(inner(x), axis=1).reshape((-1, 2)),
        pt.alloc(x[0], n, 3) + pt.constant(np.arange(3.0)),
        pt.concatenate([x, pt.eye(n)], axis=1),
        pt.constant(np.random.default_rng(0).normal(size=(9, 9)).astype("float32")),
        pytensor.ifelse(n > 0, x.sum(axis=0), x.max(axis=0)),
        *pt.split(k, [1, 2], n_splits=2),
    ]
    return graph_to_json(outputs)


TEXTS = [_loss, _loop, _mixture]


def _places(value, at=()):
    """Give the way to every value in a document."""
    yield at
    for key, item in value.items() if isinstance(value, dict) else enumerate(value):
        if isinstance(item, dict | list):
            yield from _places(item, (*at, key))
        else:
            yield (*at, key)


def _broken(text: str, rng: random.Random) -> str | bytes:
    """Break a text in one of many ways."""
    kind = rng.randrange(8)
    if kind == 0:
        return text[: rng.randrange(len(text))]
    if kind == 1:
        content = bytearray(text.encode())
        for _ in range(rng.randint(1, 4)):
            content[rng.randrange(len(content))] ^= 1 << rng.randrange(8)
        return bytes(content)
    if kind == 2:
        start = rng.randrange(len(text))
        return text[:start] + text[start + rng.randint(1, 30) :]
    document = json.loads(text)
    places = list(_places(document))[1:]
    properties = [at for at in places if at[0] == "ops" and "graph" not in at]
    for _ in range(rng.randint(1, 2)):
        # The properties of ops are few among all values, and the most interesting.
        *way, last = rng.choice(properties if kind == 7 and properties else places)
        holder = document
        try:
            for key in way:
                holder = holder[key]
            if kind == 3 and isinstance(holder, dict):
                del holder[last]
            elif kind == 4 and isinstance(holder, dict):
                holder[rng.choice(["op", "extra", "type", "nodes"])] = holder.pop(last)
            elif kind == 5 and isinstance(holder, list):
                holder.insert(last, holder[rng.randrange(len(holder))])
            elif kind == 6 and isinstance(holder[last], int) and not isinstance(holder[last], bool):
                holder[last] += rng.choice([-100, -1, 1, 100, 10**9])
            else:
                holder[last] = rng.choice(JUNK)
        except (KeyError, IndexError, TypeError):
            continue
    return json.dumps(document)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("make", TEXTS)
def test_a_broken_text_is_a_graph_error_or_another_graph(make):
    text = make()
    rng = random.Random(make.__name__)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    refused, others, longest, slowest = 0, 0, 0, 0.0
    for _ in range(700):
        broken = _broken(text, rng)
        start = time.process_time()
        try:
            graph = graph_from_json(broken)
        except GraphError as error:
            refused += 1
            longest = max(longest, len(str(error)))
        else:
            others += isinstance(graph, Graph)
        slowest = max(slowest, time.process_time() - start)
    assert refused > 500
    assert refused + others == 700
    assert longest < 25_000
    assert slowest < 5.0
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 500_000  # kilobytes


def _document(ops: dict, nodes: list, outputs: list, roots: list | None = None) -> str:
    roots = [{"id": 0, "kind": "input", "type": "float64[?]"}] if roots is None else roots
    graph = {"roots": roots, "nodes": nodes, "outputs": outputs}
    fields = {"format": "ptml-graph", "version": 1, "slots": {}, "ops": ops, "graph": graph, "updates": {}}
    return json.dumps(fields)


def _node(op: str, taken: list[int], given: int, kind: str = "float64[?]") -> dict:
    return {"op": op, "in": taken, "out": [{"id": given, "type": kind}]}


def _nested(levels: int, width: int) -> str:
    """Write graphs in graphs, each of which applies the one before several times."""
    ops: dict = {"exp": {"op": "Elemwise", "scalar": "exp"}}
    for level in range(levels):
        inner = list(ops)[-1]
        graph = {
            "roots": [{"id": 0, "kind": "input", "type": "float64[?]"}],
            "nodes": [_node(inner, [k], k + 1) for k in range(width)],
            "outputs": [width],
        }
        ops[f"level {level}"] = {"op": "OpFromGraph", "inline": False, "graph": graph}
    return _document(ops, [_node(list(ops)[-1], [0], 1)], [1])


def _constant(kind: str, **value: object) -> str:
    return _document({}, [], [0], [{"id": 0, "kind": "constant", "type": kind, **value}])


EXP = {"exp": {"op": "Elemwise", "scalar": "exp"}}

BOMBS = {
    "nested deeper than 100": (_nested(150, 1), r"ops\['level 100'\].graph: is nested more than 100 deep"),
    "a billion laughs": (_nested(40, 2), "applies nested graphs to [0-9]+ nodes in all; 1000000 are allowed"),
    "lists in lists": ("[" * 100_000, "the graph is nested more than 200 deep"),
    "a constant of 8 TB": (_constant("float64[1000000000000]", base64="AAAA"), "are 3 bytes, where float64"),
    "a list that is said to be long": (_constant("int8[99999999]", value=[1]), "takes a list of 99999999"),
    "a number too large": (_constant("int8[]", value=300), r"roots\[0\].value: takes int8; got 300"),
    "a float too large": (_constant("float32[]", value=1e300), "takes float32 .or 'nan', 'inf', '-inf'."),
    "a number of many digits": ("9" * 10_000, "a whole number of 10000 digits"),
    "a class of Python's": (_document({"x": {"op": "os.system"}}, [], [0]), "ops.x.op: no op 'os.system' is"),
    "a module of ours": (_document({"x": {"op": "ptml.bits.Draw"}}, [], [0]), "The nearest .* 'ptml.Draw'"),
    "an exception of ours": (
        _document({"x": {"op": "CheckAndRaise", "exc_type": "SystemExit", "msg": ""}}, [], [0]),
        "ops.x.exc_type: takes one of .*; got 'SystemExit'",
    ),
    "a cycle": (
        _document(EXP, [_node("exp", [1], 1)], [1]),
        "takes the number of a variable that stands before",
    ),
    "an op in itself": (
        _document({"b": {"op": "Blockwise", "core_op": "b", "signature": "()->()"}}, [], [0]),
        "ops.b.core_op: takes the label of an op that stands before",
    ),
    "a million results": (
        _document({"s": {"op": "Split", "len_splits": 10**12, "axis": 0}}, [], [0]),
        "ops.s.len_splits: takes a count up to 65536; got 1000000000000",
    ),
    "too many axes": (_constant(f"int8[{','.join('1' * 70)}]", value=1), "has 70 axes"),
    "one name twice": ('{"format": "ptml-graph", "format": "x"}', "'format' is there twice"),
    "not a number": ('{"version": NaN}', "version: NaN is no JSON"),
}


@pytest.mark.parametrize("name", BOMBS)
def test_what_would_take_long_or_much_is_refused_at_once(name):
    text, match = BOMBS[name]
    start = time.process_time()
    with pytest.raises(GraphError, match=match):
        graph_from_json(text)
    assert time.process_time() - start < 5.0


def test_a_shape_is_never_computed_while_a_graph_is_read():
    # The sum of 8 TB of ones, as the size of an array: PyTensor would compute it to know the size.
    ops = {
        "alloc": {"op": "Alloc"},
        "sum": {"op": "Sum", "dtype": "float64", "acc_dtype": "float64"},
        "whole": {"op": "Elemwise", "scalar": "convert_to_int64"},
    }
    roots = [
        {"id": 0, "kind": "constant", "type": "float64[]", "value": 1.0},
        {"id": 1, "kind": "constant", "type": "int64[]", "value": 10**12},
    ]
    nodes = [
        _node("alloc", [0, 1], 2),
        _node("sum", [2], 3, "float64[]"),
        _node("whole", [3], 4, "int64[]"),
        _node("alloc", [0, 4], 5),
    ]
    graph = graph_from_json(_document(ops, nodes, [5], roots))
    assert graph.outputs[0].type.shape == (None,)


def test_a_size_that_is_a_lie_is_found_out_when_the_graph_runs():
    x, n = pt.vector("x", dtype="float64"), pt.lscalar("n")
    text = graph_to_json(x[:n], [x, n])
    head, made, tail = text.rpartition('"float64[?]"')
    lying = f'{head}"float64[2]"{tail}'
    assert made
    graph = graph_from_json(lying)
    assert graph.outputs[0].type.shape == (2,)
    mode = Mode(linker="py", optimizer="fast_compile")
    compute = pytensor.function(list(graph.inputs), list(graph.outputs), mode=mode)
    assert compute([3.0, 4.0, 5.0], 2)[0].shape == (2,)
    with pytest.raises(AssertionError, match="SpecifyShape"):
        compute([3.0, 4.0, 5.0], 3)


def test_a_size_that_contradicts_the_op_is_refused():
    x = pt.tensor("x", shape=(3,))
    text = graph_to_json(pt.exp(x)).replace('"id": 1, "type": "float64[3]"', '"id": 1, "type": "float64[4]"')
    with pytest.raises(
        GraphError, match=r"nodes\[0\]: Exp gives float64\[3\] here, and float64\[4\] is said"
    ):
        graph_from_json(text)


def test_sizes_that_are_computed_in_a_tangle_take_no_time():
    # 2**30 ways lead from the size of the array to the one number that it is computed from.
    size = pt.lscalar("n")
    for _ in range(30):
        size = size + size
    text = graph_to_json(pt.zeros(size))
    head, _, tail = text.rpartition('"float64[?]"')
    start = time.process_time()
    graph = graph_from_json(f'{head}"float64[7]"{tail}')
    assert graph.outputs[0].type.shape == (7,)
    assert time.process_time() - start < 5.0


def test_sizes_that_shapes_tell_are_known_again():
    x = pt.tensor("x", shape=(None, 3, 4), dtype="float64")
    outputs = [
        pt.zeros((x.shape[1], x.shape[2] * 2 - 1)),
        pt.zeros(pt.concatenate([x.shape[1:], pt.constant([5])])),
        x.reshape((-1, x.shape[1] * x.shape[2])),
        pt.alloc(0.0, pt.prod(x.shape[1:])),
    ]
    graph = graph_from_json(graph_to_json(outputs))
    assert [made.type.shape for made in graph.outputs] == [(3, 7), (3, 4, 5), (None, 12), (12,)]
    assert equal_computations(list(graph.outputs), outputs, list(graph.inputs), [x])
