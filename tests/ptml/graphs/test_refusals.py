"""What cannot be written as JSON and what cannot be read, and the registry of ops."""

from __future__ import annotations

import json

import pytensor
import pytensor.tensor as pt
import pytest
from pytensor.compile.builders import OpFromGraph
from pytensor.compile.mode import Mode
from pytensor.tensor.elemwise import Elemwise

import ptml
from ptml.graphs import GraphError, graph_from_json, graph_to_json, register_op, registered_ops
from ptml.graphs.fields import INTEGER, items
from ptml.layers import Linear
from ptml.optim import adam, apply_if_finite

PYTHON = {"mode": Mode(linker="py", optimizer="fast_compile")}

x = pt.matrix("x", dtype="float64")


def back(outputs, inputs=None, updates=None):
    """Write, read, and see that what was read is written as it was."""
    text = graph_to_json(outputs, inputs, updates=updates)
    graph = graph_from_json(text)
    assert graph_to_json(graph.outputs, graph.inputs, updates=graph.updates) == text
    return graph


# What cannot be written


def _inplace():
    return Elemwise(pytensor.scalar.add, inplace_pattern={0: 0})(x, x)


class Unregistered(pytensor.graph.op.Op):
    """An op that nobody registered."""

    itypes = (pt.dmatrix,)
    otypes = (pt.dmatrix,)

    def perform(self, node, inputs, output_storage):
        output_storage[0][0] = inputs[0]


def _guarded():
    fc = Linear("fc", n_in=4, n_out=2)
    updates = apply_if_finite(adam(1e-3))(fc(x).sum(), [fc.W])
    return [dict(updates)[fc.W]]


REFUSED = {
    "an op that is not registered": (lambda: Unregistered()(x), "which is not registered"),
    "a shared variable": (
        lambda: x + pytensor.shared(1.0, name="rate"),
        "reads the shared variable rate, whose value",
    ),
    "what overwrites its inputs": (_inplace, "overwrites its inputs, as rewritten graphs do"),
    "a gradient in Python": (
        lambda: OpFromGraph([x], [2 * x], pullback=lambda i, o, g: [g[0]])(x),
        "has a gradient of its own, made by Python code",
    ),
    "what a guard holds back": (_guarded, r"Write the program: graph_to_json\(program\)"),
    "nothing": (list, "nothing to write"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_has_no_form_in_json_is_named(name):
    make, match = REFUSED[name]
    with pytest.raises(GraphError, match=match):
        graph_to_json(make())


def test_inputs_are_roots_that_are_named_once_and_all():
    y, fc = pt.matrix("y"), Linear("fc", n_in=4, n_out=2)
    for inputs, match in [
        ([2 * x], "is computed from others"),
        ([x, x], "The input x is named twice"),
        ([y], "reads x, which is not among the inputs y"),
        ([x, fc.W], "is a constant or a slot"),
    ]:
        with pytest.raises(GraphError, match=match):
            graph_to_json(x * 1, inputs)


def test_updates_are_of_slots_and_a_program_brings_its_own():
    fc = Linear("fc", n_in=4, n_out=2)
    graph = back(fc(x), [x], updates={fc.W: fc.W * 2})
    assert list(graph.updates) == [graph.slots["fc/W"]]
    with pytest.raises(GraphError, match="is no slot's handle"):
        graph_to_json(x, updates={x: x})
    program = ptml.function([x], fc(x), seed=0, compile_kwargs=PYTHON)
    with pytest.raises(GraphError, match="A program is written with its own inputs"):
        graph_to_json(program, [x])


def test_a_graph_that_was_read_has_no_values_of_its_own():
    graph = back(Linear("fc", n_in=4, n_out=2)(x), [x])
    with pytest.raises(TypeError, match="has no first values of its own"):
        ptml.function(graph.inputs, graph.outputs, seed=0, compile_kwargs=PYTHON)


# What cannot be read


def _changed(change) -> str:
    fc = Linear("fc", n_in=4, n_out=2)
    document = json.loads(graph_to_json(fc(x), [x], updates={fc.W: fc.W * 2}))
    change(document)
    return json.dumps(document)


UNREADABLE = {
    "another format": (lambda d: d.update(format="x"), "is no graph: 'format' is 'x'"),
    "a later version": (
        lambda d: d.update(version=2),
        "version: is of version 2; this is a reader of version 1",
    ),
    "an unknown field": (
        lambda d: d["graph"].update(nodez=[]),
        "graph: there is no 'nodez' here. The nearest .* 'nodes'",
    ),
    "a missing field": (lambda d: d["graph"].pop("outputs"), "graph: lacks 'outputs'"),
    "an unknown property": (
        lambda d: d["ops"]["add"].update(scaler="mul"),
        "ops.add: there is no 'scaler' here. The nearest is 'scalar'",
    ),
    "an unknown scalar op": (
        lambda d: d["ops"]["add"].update(scalar="ad"),
        "ops.add.scalar: takes the name of a scalar op.* 'add'",
    ),
    "an unknown slot": (
        lambda d: d["graph"]["roots"][1].update(slot="fc/w"),
        r"graph.roots\[1\].slot: takes the address of a slot; got 'fc/w'. The nearest .* 'fc/W'",
    ),
    "an address in another": (
        lambda d: d["slots"].update({"fc": d["slots"]["fc/b"]}),
        "lies inside the address 'fc'",
    ),
    "an address that is none": (
        lambda d: d["slots"].update({"a//b": d["slots"]["fc/b"]}),
        "takes an address",
    ),
    "a role that is none": (lambda d: d["slots"]["fc/b"].update(role="weight"), "takes one of parameter"),
    "a slot of unknown size": (
        lambda d: d["slots"]["fc/b"].update(type="float64[?]"),
        "a slot is a tensor whose sizes are all known",
    ),
    "an update of another type": (
        lambda d: d["updates"].update({"fc/W": 0}),
        r"updates\['fc/W'\]: is .*, where 'fc/W' is",
    ),
    "a use of a parameter": (
        lambda d: d["graph"]["roots"].append({"id": 4, "kind": "reading", "slot": "fc/b", "order": 0}),
        "takes a statistic; 'fc/b' is a parameter",
    ),
    "a late input": (
        lambda d: d["graph"]["roots"].append({"id": 4, "kind": "input", "type": "none"}),
        "inputs stand before",
    ),
}


@pytest.mark.parametrize("name", UNREADABLE)
def test_what_makes_no_sense_is_refused_with_its_place(name):
    change, match = UNREADABLE[name]
    with pytest.raises(GraphError, match=match):
        graph_from_json(_changed(change))


def test_an_error_in_a_file_names_the_file(tmp_path):
    path = tmp_path / "graph.json"
    path.write_text('{"format": "ptml-graph", "version": 9}')
    with pytest.raises(GraphError, match=r"graph.json: version: is of version 9"):
        graph_from_json(path)
    path.write_text("{")
    with pytest.raises(GraphError, match=r"graph.json: the file is no JSON"):
        graph_from_json(path)
    with pytest.raises(FileNotFoundError):
        graph_from_json(tmp_path / "none.json")


# The registry


class Roll(ptml.fused.Fused):
    """Roll rows by so many places."""

    __props__ = ("places",)

    def __init__(self, places: tuple[int, ...]) -> None:
        self.places = places

    def build(self, a):
        return [pt.roll(a, self.places[0], axis=0)]


def test_an_application_registers_its_own_ops_on_purpose():
    out = Roll((2,))(x)
    with pytest.raises(GraphError, match=r"Register it on purpose: ptml.graphs.register_op\(Roll\)"):
        graph_to_json(out)
    register_op(Roll, "application.Roll", fields={"places": items(INTEGER)})
    assert registered_ops()["application.Roll"] == (Roll,)
    assert back(out).outputs[0].owner.op == Roll((2,))
    text = graph_to_json(out).replace('"places": [2]', '"places": [true]')
    with pytest.raises(GraphError, match=r"places\[0\]: takes a whole number of 64 bits; got true"):
        graph_from_json(text)
    with pytest.raises(ValueError, match=r"Roll is registered as 'application.Roll' already"):
        register_op(Roll)
    with pytest.raises(ValueError, match="'Dot' is Dot in graphs as data"):
        register_op(Unregistered, "Dot")
    with pytest.raises(TypeError, match="takes a class of ops"):
        register_op(Roll((1,)))


def test_a_property_that_is_not_registered_is_noticed():
    class Wide(Roll):
        pass

    register_op(Wide, "application.Wide", fields={}, decode=lambda: Wide((1,)))
    back(Wide((1,))(x))
    with pytest.raises(GraphError, match=r"has properties besides those that are registered for .*Wide"):
        graph_to_json(Wide((2,))(x))
