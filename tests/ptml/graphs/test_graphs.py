"""Graphs to JSON and back: what the text is, what it keeps, and that the numbers are the same."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pytensor.compile.builders import OpFromGraph
from pytensor.compile.mode import Mode
from pytensor.graph.basic import equal_computations

import ptml
from ptml.graphs import graph_from_json, graph_to_json
from ptml.layers import BatchNorm, Dropout, Input, Linear, Sequential
from ptml.loss import CrossEntropy
from ptml.optim import adam, apply_if_finite, chain, clip_by_global_norm, compile_train, cosine_schedule
from ptml_state import load_state, save_state

PYTHON = {"mode": Mode(linker="py", optimizer="fast_compile")}
ROWS, COLUMNS = 3, 4

x = pt.matrix("x", dtype="float64")


def back(outputs, inputs=None, updates=None):
    """Write, read, and see that what was read is written as it was."""
    text = graph_to_json(outputs, inputs, updates=updates)
    graph = graph_from_json(text)
    assert graph_to_json(graph.outputs, graph.inputs, updates=graph.updates) == text
    return graph


# What the text is


def test_the_text_of_a_small_graph_is_this():
    scaled = x * 2.5
    scaled.name = "scaled"
    assert json.loads(graph_to_json([scaled, scaled.sum(axis=0)])) == {
        "format": "ptml-graph",
        "version": 1,
        "ptml": ptml.__version__,
        "slots": {},
        "ops": {
            "DimShuffle": {"op": "DimShuffle", "input_ndim": 0, "new_order": ["x", "x"]},
            "mul": {"op": "Elemwise", "scalar": "mul"},
            "Sum": {"op": "Sum", "axis": [0], "dtype": "float64", "acc_dtype": "float64"},
        },
        "graph": {
            "roots": [
                {"id": 0, "kind": "input", "type": "float64[?,?]", "name": "x"},
                {"id": 1, "kind": "constant", "type": "float32[]", "value": 2.5},
            ],
            "nodes": [
                {"op": "DimShuffle", "in": [1], "out": [{"id": 2, "type": "float32[1,1]"}]},
                {"op": "mul", "in": [0, 2], "out": [{"id": 3, "type": "float64[?,?]", "name": "scaled"}]},
                {"op": "Sum", "in": [3], "out": [{"id": 4, "type": "float64[?]"}]},
            ],
            "outputs": [3, 4],
        },
        "updates": {},
    }


def test_what_is_used_twice_is_written_once_and_is_one_again():
    shared = pt.exp(x)
    for _ in range(60):  # as a tree this would have 2**60 leaves
        shared = shared + shared
    graph = back(shared)
    assert graph.outputs[0].owner.inputs[0] is graph.outputs[0].owner.inputs[1]


def test_names_types_and_constants_are_kept():
    a = pt.tensor("a", shape=(None, 3), dtype="float32")
    values = [
        np.array([0.1, np.nan, -np.inf, -0.0], "float32"),
        np.array([np.frombuffer(b"\x01\x00\xc0\xff", "<f4")[0]]),
        np.array([[1, 2], [3, 2**63]], "uint64"),
        np.asfortranarray(np.random.default_rng(0).normal(size=(20, 7))),
        np.array([1 + 2j], "complex64"),
        np.zeros((0, 3), "int8"),
        np.array(True),
    ]
    constants = [pt.constant(value, name=f"c{k}") for k, value in enumerate(values)]
    graph = back([a.astype("float64"), *constants])
    assert graph.inputs[0].name == "a"
    assert graph.inputs[0].type == a.type
    for value, constant, made in zip(values, constants, graph.outputs[1:], strict=True):
        assert made.type == constant.type
        assert made.name == constant.name
        assert made.data.tobytes() == np.ascontiguousarray(value).tobytes()


def test_inputs_keep_their_order_and_those_that_nothing_reads_are_kept():
    a, b, unused = pt.vectors("a", "b", "unused")
    assert [v.name for v in back(b - a).inputs] == ["a", "b"]
    assert [v.name for v in back(b - a, [unused, b, a]).inputs] == ["unused", "b", "a"]


def test_another_network_of_the_same_layers_gives_the_same_text():
    def text():
        net = Sequential(Linear(n_in=4, n_out=3), BatchNorm(n_in=3), Linear(n_in=3, n_out=3), Dropout(p=0.5))
        X = Input("X", shape=(None, 4))
        return graph_to_json(net[2](net(X)), [X])

    assert text() == text()


def test_a_graph_that_was_read_prints_as_the_architecture():
    X = Input("X", shape=(None, 4))
    graph = back(Sequential(Linear("fc", n_in=4, n_out=3), Dropout(p=0.5))(X), [X])
    printed = pytensor.dprint(graph.outputs[0], file="str")
    assert "Sequential" in printed
    assert "fc:Linear" in printed
    assert repr(graph) == "Graph of X: float64[?,4] to float64[?,3], over fc/W, fc/b, Dropout/key"


# The same numbers


STEPS = [
    lambda a, b: a + b,
    lambda a, b: a * b - 1,
    lambda a, b: pt.switch(a > 0.1, a, 0.5 * b),
    lambda a, b: pt.sigmoid(a) * a,
    lambda a, b: a - a.max(1, keepdims=True) + b.mean(),
    lambda a, b: a.T.reshape((ROWS, COLUMNS)),
    lambda a, b: pt.concatenate([a[1:], b[:1]]),
    lambda a, b: pt.set_subtensor(a[1:, 0], 0.25),
    lambda a, b: pt.inc_subtensor(a[::2], b[1]),
    lambda a, b: pt.tanh(b @ a.T) @ a,
    lambda a, b: pt.cast(pt.floor(a), "int64") + b,
    lambda a, b: pt.cumsum(a, axis=0) * (b.argmax(1)[:, None] + 1),
    lambda a, b: pt.alloc(a[0], ROWS, COLUMNS) + pt.sort(b, axis=1),
    lambda a, b: a[pt.as_tensor([2, 0, 1])],
    lambda a, b: pt.special.softmax(a, axis=1) * b,
    lambda a, b: OpFromGraph([one := pt.matrix()], [pt.exp(-one)])(a) - b,
]
numbers = st.integers(0, 10**6)


@settings(max_examples=30)
@given(
    steps=st.lists(st.tuples(st.integers(0, len(STEPS) - 1), numbers, numbers), min_size=1, max_size=10),
    gradient=st.booleans(),
)
def test_a_random_graph_comes_back_as_the_same_computation(steps, gradient):
    y = pt.matrix("y", dtype="float64")
    made = [x, y]
    for which, left, right in steps:
        made.append(STEPS[which](made[-1 - left % min(3, len(made))], made[right % len(made)]))
    outputs = [made[-1], made[len(made) // 2]]
    if gradient:
        outputs.append(pt.grad(pt.tanh(made[-1]).sum(), x, disconnected_inputs="ignore"))
    graph = back(outputs, [x, y])
    assert equal_computations(list(graph.outputs), outputs, list(graph.inputs), [x, y])
    assert [new.type for new in graph.outputs] == [old.type for old in outputs]


def _network():
    net = Sequential(
        Linear(n_in=4, n_out=5), BatchNorm(n_in=5), Dropout("drop", p=0.4), Linear(n_in=5, n_out=3)
    )
    X, y = Input("X", shape=(None, 4)), pt.lvector("y")
    return net, X, y, CrossEntropy(expect_logits=True)(net(X), y)


def _batches():
    rng = np.random.default_rng(0)
    return list(zip(rng.normal(size=(4, 6, 4)), rng.integers(0, 3, size=(4, 6)), strict=True))


def _rule():
    return apply_if_finite(chain(clip_by_global_norm(1.0), adam(cosine_schedule(1e-2, 10, 1e-3))))


def _same_state(one, other):
    assert list(one) == list(other)
    for address in one:
        assert one[address].tobytes() == other[address].tobytes(), address


def test_a_loss_that_was_read_trains_and_predicts_to_the_same_bits():
    net, X, y, loss = _network()
    graph = back([loss, net(X)], [X, y])
    state = ptml.init(net, seed=0)
    mine = compile_train(loss, _rule(), inputs=[X, y], state=state, compile_kwargs=PYTHON)
    other = compile_train(
        graph.outputs[0], _rule(), inputs=list(graph.inputs), state=state, compile_kwargs=PYTHON
    )
    for batch in _batches():
        assert mine(*batch) == other(*batch)
    _same_state(mine.state, other.state)
    X_again = graph.inputs[0]
    want = ptml.compile_predict(net(X), inputs=[X], state=mine.state, compile_kwargs=PYTHON)
    have = ptml.compile_predict(graph.outputs[1], inputs=[X_again], state=mine.state, compile_kwargs=PYTHON)
    np.testing.assert_array_equal(have(_batches()[0][0]), want(_batches()[0][0]))


def test_a_whole_program_goes_on_from_where_it_was_with_its_guards():
    _, X, y, loss = _network()
    step = compile_train(loss, _rule(), inputs=[X, y], seed=0, compile_kwargs=PYTHON)
    step(*_batches()[0])
    graph, state = back(step), step.state
    again = ptml.function(
        graph.inputs, graph.outputs, updates=graph.updates, state=state, compile_kwargs=PYTHON
    )
    broken = (np.full((6, 4), np.nan), _batches()[1][1])
    for batch in [_batches()[1], broken, _batches()[2]]:
        np.testing.assert_array_equal(step(*batch), again(*batch)[0])
    assert int(step.state["skip_if/total_skips"]) == 1
    _same_state(step.state, again.state)


@pytest.mark.backends("numba", "c", "jax", "mlx")
def test_a_program_that_was_read_goes_on_on_every_backend(backend, float32):
    net = Sequential(BatchNorm(n_in=4), Dropout("drop", p=0.4), Linear("fc", n_in=4, n_out=3))
    X, y = Input("X", shape=(None, 4)), pt.lvector("y")
    loss = CrossEntropy(expect_logits=True)(net(X), y)
    step = compile_train(loss, adam(1e-2), inputs=[X, y], seed=0, backend=backend)
    graph = back(step)
    again = ptml.function(
        graph.inputs, graph.outputs, updates=graph.updates, state=step.state, backend=backend
    )
    for batch in _batches():
        rows = batch[0].astype(float32)
        np.testing.assert_array_equal(again(rows, batch[1])[0], step(rows, batch[1]))
    _same_state(step.state, again.state)


def test_gradients_of_layers_are_graphs_like_others():
    net, X, y, loss = _network()
    parameters = [handle for handle in ptml.slots(net) if handle.slot.role.value == "parameter"]
    outputs = [loss, *pt.grad(loss, parameters)]
    graph, state = back(outputs, [X, y]), ptml.init(net, seed=0)
    want = ptml.function([X, y], outputs, state=state, compile_kwargs=PYTHON)(*_batches()[0])
    have = ptml.function(graph.inputs, graph.outputs, state=state, compile_kwargs=PYTHON)(*_batches()[0])
    for mine, original in zip(have, want, strict=True):
        assert mine.tobytes() == original.tobytes()


def test_a_loop_that_draws_and_moves_statistics_goes_on_alike():
    drop, bn, rows = Dropout("drop", p=0.5), BatchNorm("bn", n_in=4), pt.tensor3("rows")
    out = ptml.scan(lambda row, before: pt.tanh(bn(drop(row)) + before), rows, pt.zeros((6, 4)))
    graph, state = back(out, [rows]), ptml.init([drop, bn], seed=1)
    mine = ptml.function([rows], out, state=state, compile_kwargs=PYTHON)
    other = ptml.function(graph.inputs, graph.outputs, state=state, compile_kwargs=PYTHON)
    values = np.stack([batch[0] for batch in _batches()])
    for _ in range(2):
        np.testing.assert_array_equal(mine(values), other(values)[0])
    _same_state(mine.state, other.state)


def test_several_uses_of_one_layer_keep_their_order():
    bn, X = BatchNorm("bn", n_in=4), Input("X", shape=(None, 4))
    first = bn(X)
    out = [bn(X * 2) + first]
    graph, state = back(out, [X]), ptml.init(bn, seed=0)
    mine = ptml.function([X], out, state=state, compile_kwargs=PYTHON)
    other = ptml.function(graph.inputs, graph.outputs, state=state, compile_kwargs=PYTHON)
    for batch in _batches():
        np.testing.assert_array_equal(mine(batch[0]), other(batch[0]))
    _same_state(mine.state, other.state)


def test_random_variables_of_pytensor_draw_the_same():
    class Noise(ptml.Layer):
        @ptml.slot
        def key(self):
            return ptml.generator()

        def build(self, X):
            _, noise = ptml.random.pytensor_rng(self.key).gamma(2.0, scale=1.5, size=X.shape)
            return X + noise

    noise, X = Noise("noise"), Input("X", shape=(None, 4))
    graph, state = back(noise(X), [X]), ptml.init(noise, seed=0)
    mine = ptml.function([X], noise(X), state=state, compile_kwargs=PYTHON)
    other = ptml.function(graph.inputs, graph.outputs[0], state=state, compile_kwargs=PYTHON)
    for batch in _batches():
        np.testing.assert_array_equal(mine(batch[0]), other(batch[0]))


ELSEWHERE = """
import sys
from pathlib import Path
import numpy as np
import ptml
from pytensor.compile.mode import Mode
from ptml.graphs import graph_from_json
from ptml_state import load_state

graph = graph_from_json(Path(sys.argv[1]) / "graph.json")
state = load_state(Path(sys.argv[1]) / "state.safetensors")
mode = Mode(linker="py", optimizer="fast_compile")
step = ptml.function(graph.inputs, graph.outputs, updates=graph.updates, state=state, mode=mode)
data = np.load(Path(sys.argv[1]) / "batches.npz")
losses = [float(step(X, y)[0]) for X, y in zip(data["X"], data["y"])]
print([loss.hex() for loss in losses])
"""


def test_another_process_goes_on_from_the_files_alone(tmp_path):
    _, X, y, loss = _network()
    step = compile_train(loss, adam(1e-2), inputs=[X, y], seed=0, compile_kwargs=PYTHON)
    (tmp_path / "graph.json").write_text(graph_to_json(step))
    save_state(step.state, tmp_path / "state.safetensors")
    batches = _batches()
    np.savez(tmp_path / "batches.npz", X=[b[0] for b in batches], y=[b[1] for b in batches])
    done = subprocess.run(
        [sys.executable, "-c", ELSEWHERE, str(tmp_path)],
        capture_output=True,
        text=True,
        cwd=Path(__file__).parents[3],
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(str([float(step(*batch)).hex() for batch in batches]))
    assert list(load_state(tmp_path / "state.safetensors")) == list(step.state)
