"""Layers: names, calls, the nested graphs of calls, and their copies."""

from __future__ import annotations

import copy
import io
import pickle
import subprocess
import sys

import attrs
import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest
from pytensor.compile.mode import Mode
from pytensor.graph.basic import clone
from pytensor.graph.fg import FunctionGraph
from pytensor.graph.replace import clone_replace, vectorize_graph

import ptml
from ptml.layer import DefaultName, name_by_keyword
from ptml.layers import BatchNorm, Dropout, Input, Linear, Sequential

PYTHON = Mode(linker="py", optimizer="fast_compile")


class Shifted(ptml.Layer):
    by: float = 1.0

    def build(self, X, factor=1.0, *, twice=False):
        Y = factor * X + self.by
        return (Y, 2 * Y) if twice else Y


class Block(ptml.Layer):
    inner: ptml.Layer

    def build(self, X):
        return X + self.inner(X)


class Reversed(ptml.Layer):
    """Calls its layers in another order than it lists them."""

    first: ptml.Layer
    second: ptml.Layer

    def build(self, X):
        return self.first(self.second(X))


@pytest.fixture
def X():
    return Input("X", (None, 2))


def run(graph, *values, seed=0, inputs=None):
    return ptml.function(inputs, graph, seed=seed, mode=PYTHON)(*values)


def test_a_name_falls_back_to_the_class():
    assert Shifted().name == "Shifted"
    assert Shifted(None).name == "Shifted"
    assert isinstance(Shifted().name, DefaultName)
    assert not isinstance(Shifted("Shifted").name, DefaultName)


def test_a_name_may_be_given_by_keyword_or_lead_through_a_path():
    assert Shifted(name="a").name == "a"
    assert Shifted("block/inner").name == "block/inner"


@pytest.mark.parametrize("name", ["", "/", "a/", "/a", "a//b", "a*", "a?", "[a]"])
def test_what_is_no_path_cannot_name_a_layer(name):
    with pytest.raises(ValueError, match="cannot name a layer: a name is one or more words joined by '/'"):
        Shifted(name)


def test_hyperparameters_by_position_are_told_by_keyword():
    with pytest.raises(
        TypeError, match=r"Shifted's `name` must be a string; got 2\.0\. Write Shifted\(by=2\.0\)"
    ):
        Shifted(2.0)
    with pytest.raises(TypeError, match=r"got 2 positional arguments\. Write Shifted\('s', by=2\.0\)"):
        Shifted("s", 2.0)
    with pytest.raises(TypeError, match=r"Write Linear\('fc', n_in=64, n_out=10, bias=False\)"):
        Linear("fc", 64, 10, bias=False)


def test_build_decides_what_a_call_gives(X):
    x = np.ones((1, 2))
    np.testing.assert_array_equal(run(Shifted()(X), x), x + 1)
    one, other = Shifted()(X, twice=True)
    np.testing.assert_array_equal(run([one, other], x), [x + 1, 2 * (x + 1)])


def test_numbers_and_arrays_become_tensors():
    np.testing.assert_array_equal(run(Shifted()([1.0, 2.0])), [2.0, 3.0])
    np.testing.assert_array_equal(run(Shifted()(np.ones(2), np.array([2.0, 3.0]))), [3.0, 4.0])


def test_tensors_by_keyword_are_inputs_of_the_nested_graph(X):
    factor = pt.scalar("factor")
    Y = Shifted()(X, factor=factor)
    assert factor in Y.owner.inputs
    np.testing.assert_array_equal(run(Y, np.ones((1, 2)), 3.0), [[4.0, 4.0]])


def test_tensors_in_nested_tuples_are_inputs_and_results_of_the_nested_graph(X):
    class Nested(ptml.Layer):
        def build(self, X, *, parts=None):
            (a, b), c = parts
            return X + a, (X * b, (c,))

    a, b = pt.scalar("a"), pt.scalar("b")
    results = Nested("nested")(X, parts=[(a, b), np.array(5.0)])
    total, (product, (c,)) = results
    assert {a, b} <= set(total.owner.inputs)
    assert str(product.owner.op) == "nested:Nested"
    found = run([total, product, c], np.ones((1, 2)), 3.0, 4.0, inputs=[X, a, b])
    np.testing.assert_array_equal(found[0], [[4.0, 4.0]])
    np.testing.assert_array_equal(found[1], [[4.0, 4.0]])
    assert found[2] == 5.0


def test_a_layer_may_take_layers_by_position_and_its_name_by_keyword():
    class Twice(ptml.Layer):
        inner: ptml.Layer = attrs.field(kw_only=False)
        name: str = name_by_keyword()

        def build(self, X):
            return self.inner(self.inner(X))

    inner = Shifted("inner")
    assert repr(Twice(inner)) == "Twice(Shifted('inner'))"
    assert repr(Twice(inner, name="twice")) == "Twice(Shifted('inner'), name='twice')"
    assert isinstance(Twice(inner).name, DefaultName)
    assert attrs.evolve(Twice(inner), name="other").inner is inner
    with pytest.raises(
        TypeError, match=r"Twice takes inner by position, and its name and everything else by keyword; got 2"
    ):
        Twice(inner, "twice")
    with pytest.raises(ValueError, match="cannot name a layer"):
        Twice(inner, name="a//b")


def test_a_layer_without_build_says_what_to_define(X):
    class Nothing(ptml.Layer):
        pass

    with pytest.raises(TypeError, match=r"Nothing defines no build\(self, X\)"):
        Nothing()(X)


def test_an_error_in_build_names_the_layers_that_were_being_called(X):
    with pytest.raises(ValueError, match="fc") as caught:
        Block("block", inner=Linear("fc", n_in=3, n_out=3))(X)
    assert caught.value.__notes__ == ["while calling fc (Linear)", "while calling block (Block)"]


def test_a_failed_call_leaves_no_trace_in_later_ones(X):
    class Moves(ptml.Layer):
        fail: bool

        @ptml.slot
        def seen(self):
            return ptml.statistic((), ptml.initializers.Zeros())

        def build(self, X):
            marked = ptml.advance(X, {self.seen: self.seen + 1.0})
            if self.fail:
                raise RuntimeError("no")
            return marked

    with pytest.raises(RuntimeError, match="no"):
        Moves("m", fail=True)(X)
    fine = Moves("m", fail=False)
    program = ptml.function([X], fine(X), seed=0, mode=PYTHON)
    program(np.ones((1, 2)))
    assert program.state["m/seen"] == 1.0


def test_a_printed_graph_shows_layers_by_name_and_class(X):
    text = io.StringIO()
    pytensor.dprint(Block("block", inner=Shifted())(X), file=text)
    assert "block:Block" in text.getvalue()
    assert str(Shifted()(X).owner.op) == "Shifted"


def test_a_layer_called_on_a_handle_or_an_expression_of_one(X):
    fc = Linear("fc", n_in=2, n_out=2, bias=False)
    program = ptml.function([X], [Shifted()(fc.W), fc(fc(X)), X @ fc.W.T], seed=0, mode=PYTHON)
    x, W = np.ones((1, 2)), program.state["fc/W"]
    shifted, twice, tied = program(x)
    np.testing.assert_allclose(shifted, W + 1)
    np.testing.assert_allclose(twice, x @ W @ W)
    np.testing.assert_allclose(tied, x @ W.T)


def test_what_build_closes_over_is_computed_with_it(X):
    outer = 2 * X

    class Closing(ptml.Layer):
        def build(self, Z):
            return Z + outer

    np.testing.assert_array_equal(run(Closing()(X), np.ones((1, 2))), [[3.0, 3.0]])


def test_an_output_may_be_an_input_or_a_constant(X):
    class Odd(ptml.Layer):
        def build(self, X):
            return X, pt.constant(np.float64(3.0)), X

    same, three, again = run(list(Odd()(X)), np.ones((1, 2)))
    np.testing.assert_array_equal(same, [[1.0, 1.0]])
    np.testing.assert_array_equal(again, [[1.0, 1.0]])
    assert three == 3.0


def test_gradients_through_a_call_are_those_of_its_graph(X):
    fc, x = Linear("fc", n_in=2, n_out=2), np.array([[1.0, 2.0], [3.0, 5.0]])
    loss = (Block("block", inner=fc)(X) ** 2).sum()
    program = ptml.function([X], pytensor.grad(loss, [fc.W, fc.b, X]), seed=0, mode=PYTHON)
    W, b = program.state["fc/W"], program.state["fc/b"]
    Y = x + x @ W + b
    for got, wanted in zip(program(x), (x.T @ (2 * Y), 2 * Y.sum(0), 2 * Y + 2 * Y @ W.T), strict=True):
        np.testing.assert_allclose(got, wanted, rtol=1e-12)


def test_second_derivatives_and_products_with_jacobians(X):
    fc, x = Linear("fc", n_in=2, n_out=1, bias=False), np.array([[1.0, 2.0]])
    loss = (fc(X) ** 3).sum()
    gradient = pytensor.grad(loss, fc.W)
    second = pytensor.grad(gradient.sum(), fc.W)
    V = pt.matrix("V")
    forward = pytensor.gradient.pushforward(fc(X), X, V)
    program = ptml.function([X, V], [second, forward], seed=0, mode=PYTHON)
    W, v = program.state["fc/W"], np.array([[0.5, -1.0]])
    got, product = program(x, v)
    np.testing.assert_allclose(got, 6 * (x @ W).item() * x.sum() * x.T, rtol=1e-12)
    np.testing.assert_allclose(product, v @ W, rtol=1e-12)


def test_a_call_is_vectorized_over_its_input_and_over_its_weight(X):
    fc = Linear("fc", n_in=2, n_out=3, bias=False)
    stacked, weights = Input("stacked", (None, None, 2)), pt.tensor("weights", shape=(None, 2, 3))
    rng = np.random.default_rng(0)
    x, xs, ws = rng.normal(size=(4, 2)), rng.normal(size=(5, 4, 2)), rng.normal(size=(5, 2, 3))
    program = ptml.function([stacked], vectorize_graph(fc(X), {X: stacked}), seed=0, mode=PYTHON)
    np.testing.assert_allclose(program(xs), xs @ program.state["fc/W"], rtol=1e-12)
    ensemble = ptml.function([X, weights], vectorize_graph(fc(X), {fc.W: weights}), mode=PYTHON)
    np.testing.assert_allclose(ensemble(x, ws), x @ ws, rtol=1e-12)
    assert list(ensemble.state) == []


def test_a_vectorized_gradient_is_that_of_each_graph(X):
    fc = Linear("fc", n_in=2, n_out=1, bias=False)
    gradient = pytensor.grad((fc(X) ** 2).sum(), X)
    stacked, xs = Input("stacked", (None, None, 2)), np.random.default_rng(0).normal(size=(5, 4, 2))
    program = ptml.function([stacked], vectorize_graph(gradient, {X: stacked}), seed=0, mode=PYTHON)
    W = program.state["fc/W"]
    np.testing.assert_allclose(program(xs), 2 * xs @ W @ W.T, rtol=1e-12)


COPIES = {
    "clone": lambda X, outputs: (X, clone([X], outputs, copy_inputs=False)[1]),
    "clone_replace": lambda X, outputs: (X, clone_replace(outputs, {})),
    "FunctionGraph": lambda X, outputs: (lambda g: (g.inputs[0], g.outputs))(
        FunctionGraph(outputs=outputs, clone=True)
    ),
    "deepcopy": lambda X, outputs: copy.deepcopy((X, outputs)),
    "pickle": lambda X, outputs: pickle.loads(pickle.dumps((X, outputs))),
}


def applied_twice(X):
    """Two applications of each layer, the later one written first."""
    bn, drop, fc = BatchNorm(n_in=2), Dropout(p=0.5), Linear(n_in=2, n_out=2)
    net = Reversed(first=fc, second=Linear(n_in=2, n_out=2))
    early, late = bn(X), bn(3 * X + 1)
    first, second = drop(X), drop(X)
    return [late, early, second, first, net(X)]


@pytest.mark.parametrize("kind", COPIES)
def test_a_copied_graph_has_the_same_slots_addresses_and_draws(X, kind):
    outputs = applied_twice(X)
    if kind == "FunctionGraph":
        roots = [X, *(h for h in FunctionGraph(outputs=outputs, clone=False).inputs if h is not X)]
        copied_graph = FunctionGraph(roots, outputs, clone=True)
        entry, copied = copied_graph.inputs[0], list(copied_graph.outputs)
    else:
        entry, copied = COPIES[kind](X, outputs)
    assert ptml.slots(list(copied)) == ptml.slots(outputs)
    assert list(ptml.init(list(copied), seed=0)) == list(ptml.init(outputs, seed=0))
    x = np.random.default_rng(0).normal(size=(5, 2))
    one = ptml.function([X], outputs, seed=0, mode=PYTHON)
    other = ptml.function([entry], list(copied), seed=0, mode=PYTHON)
    for _ in range(2):
        for got, wanted in zip(other(x), one(x), strict=True):
            np.testing.assert_array_equal(got, wanted)
    assert one.state == other.state


ELSEWHERE = """
import pickle, sys
import numpy as np, pytensor
from pytensor.compile.mode import Mode
import ptml
from ptml.layers import Dropout, Linear, BatchNorm

for _ in range(40):  # so that whatever counts has counted elsewhere
    Dropout("busy", p=0.5)(Linear("fc", n_in=2, n_out=2)(np.ones((1, 2))))
X, outputs, x = pickle.load(sys.stdin.buffer)
program = ptml.function([X], outputs, seed=0, mode=Mode(linker="py", optimizer="fast_compile"))
results = [program(x) for _ in range(2)]
sys.stdout.buffer.write(pickle.dumps((results, dict(program.state), outputs)))
"""


def test_a_pickled_graph_means_the_same_in_another_process(X):
    # Layers of this file's own classes would not be found there.
    bn, drop = BatchNorm(n_in=2), Dropout(p=0.5)
    late_fc, fc = Linear(n_in=2, n_out=2), Linear(n_in=2, n_out=2)
    early, late = bn(X), bn(3 * X + 1)
    first, second = drop(X), drop(X)
    outputs = [late, early, second, first, late_fc(fc(X))]
    x = np.random.default_rng(0).normal(size=(5, 2))
    sent = pickle.dumps((X, outputs, x))
    done = subprocess.run([sys.executable, "-c", ELSEWHERE], input=sent, capture_output=True, check=False)
    assert done.returncode == 0, done.stderr.decode()
    results, state, returned = pickle.loads(done.stdout)
    program = ptml.function([X], outputs, seed=0, mode=PYTHON)
    for there in results:
        for got, wanted in zip(there, program(x), strict=True):
            np.testing.assert_array_equal(got, wanted)
    assert list(state) == list(program.state)
    for address, value in state.items():
        np.testing.assert_array_equal(value, program.state[address])
    assert ptml.slots(returned) == ptml.slots(outputs)


def test_layers_are_dropped_when_nothing_uses_them(X):
    import gc
    import weakref

    net = Sequential(Linear("a", n_in=2, n_out=2), Dropout("d", p=0.5))
    known = weakref.ref(net)
    graph = copy.deepcopy(net(X))
    del graph, net
    gc.collect()
    assert known() is None
