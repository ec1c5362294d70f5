"""Fused ops: values that a graph defines, which any mode, gradient, loop or copy takes."""

from __future__ import annotations

import copy
import pickle

import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest
from pytensor.compile.builders import OpFromGraph
from pytensor.compile.mode import Mode
from pytensor.graph.replace import vectorize_graph
from pytensor.graph.traversal import apply_ancestors

import ptml
from ptml.fused import Fused
from ptml.layers import Input
from ptml.loss.entropy import LabelEntropy, TargetEntropy
from ptml.ops.moments import Moments
from ptml.ops.normalization import Normalize, NormalizeGradient
from ptml.ops.softmax import LogSoftmax, LogSoftmaxGradient, Softmax, SoftmaxGradient

PYTHON = Mode(linker="py", optimizer="fast_compile")


class Power(Fused):
    """A power of each number, whose gradient is that of its graph."""

    __props__ = ("exponent",)

    def __init__(self, exponent):
        self.exponent = exponent

    def build(self, x):
        return [x**self.exponent]


class Halved(Power):
    """The same, with a gradient that shows where it came from."""

    def pullback(self, inputs, outputs, cotangents):
        return [0.5 * cotangents[0] * Power(self.exponent - 1)(inputs[0]) * self.exponent]


class WithPower(ptml.Layer):
    """A layer that uses one."""

    def build(self, X):
        return Power(3)(X)


def _holds_fused(variables):
    return any(isinstance(node.op, Fused) for node in apply_ancestors(list(variables)))


def test_two_of_the_same_properties_are_one_value():
    assert Power(2) == Power(2) != Power(3)
    assert Power(2) != Halved(2)
    assert len({Power(2), Power(2), Power(3), Halved(2)}) == 3
    assert str(Power(2)) == "Power{exponent=2}"
    x = pt.vector("x")
    f = pytensor.function([x], Power(2)(x) + Power(2)(x), mode="FAST_RUN")
    np.testing.assert_allclose(f([3.0]), [18.0])


@pytest.mark.parametrize("mode", [PYTHON, Mode("py", None), Mode("py", "fast_run"), "CVM", "NUMBA", None])
def test_its_graph_stands_in_its_place_where_there_is_no_kernel(mode):
    x = pt.vector("x")
    f = pytensor.function([x], Power(3)(2 * x), mode=mode)
    assert not _holds_fused(f.maker.fgraph.outputs)
    np.testing.assert_allclose(f([1.0, -2.0]), [8.0, -64.0])


def test_one_that_nothing_expands_runs_in_python():
    node = Power(3)(pt.vector("x")).owner
    storage = [[None]]
    node.op.perform(node, [np.array([1.0, 2.0])], storage)
    np.testing.assert_allclose(storage[0][0], [1.0, 8.0])


class Chained(Fused):
    """Two outputs, of which one is computed of the other."""

    def build(self, x):
        square = x**2
        return [square, 3 * square, square]


def test_an_output_that_another_is_computed_of_has_the_gradients_of_both():
    x = pt.vector("x")
    first, second, third = Chained()(x)
    for loss, wanted in ((first + second, 8.0), (first + second + third, 10.0), (second, 6.0)):
        gradient = pytensor.grad(loss.sum(), x)
        np.testing.assert_allclose(pytensor.function([x], gradient, mode=PYTHON)([1.0]), [wanted])


def test_its_gradients_are_those_of_its_graph_unless_made_by_hand():
    x = pt.vector("x")
    first = pytensor.grad(Power(3)(x).sum(), x)
    second = pytensor.grad(first.sum(), x)
    halved = pytensor.grad(Halved(3)(x).sum(), x)
    twice = pytensor.grad(halved.sum(), x)
    f = pytensor.function([x], [first, second, halved, twice], mode=PYTHON)
    np.testing.assert_allclose(f([2.0]), [[12.0], [12.0], [6.0], [6.0]])


def test_no_gradient_flows_into_integers():
    class Picked(Fused):
        def build(self, x, k):
            return [x * k.astype(x.type.dtype)]

    x, k = pt.vector("x"), pt.ivector("k")
    y = Picked()(x, k)
    assert y.owner.op.connection_pattern(y.owner) == [[True], [False]]
    np.testing.assert_allclose(pytensor.grad(y.sum(), x).eval({x: [1.0], k: [3]}, mode=PYTHON), [3.0])
    with pytest.raises(pytensor.gradient.DisconnectedInputError):
        pytensor.grad(y.sum(), k)


def test_the_gradient_by_one_input_takes_no_way_round_by_another():
    class Product(Fused):
        def build(self, x, y):
            return [x * y]

    x = pt.vector("x")
    y = x**2
    out = Product()(x, y)
    by_y = pytensor.grad(out.sum(), y)
    np.testing.assert_allclose(by_y.eval({x: [3.0]}, mode=PYTHON), [3.0])
    np.testing.assert_allclose(pytensor.grad(out.sum(), x).eval({x: [3.0]}, mode=PYTHON), [27.0])


def test_shapes_are_known_without_computing_it():
    x = pt.matrix("x", shape=(None, 4))
    y = Power(2)(x)
    assert y.type.shape == (None, 4)
    f = pytensor.function([x], y.shape[0], mode=Mode("py", "fast_run"))
    assert not any("Pow" in str(node) or "Sqr" in str(node) for node in f.maker.fgraph.apply_nodes)
    assert f(np.zeros((3, 4))) == 3


def test_it_is_copied_pickled_and_vectorized():
    x, batch = pt.vector("x"), pt.matrix("batch")
    y = Power(2)(x)
    kept = pickle.loads(pickle.dumps(y))
    assert kept.owner.op == copy.deepcopy(y).owner.op == Power(2)
    stacked = vectorize_graph(y, {x: batch})
    np.testing.assert_allclose(stacked.eval({batch: [[1.0, 2.0]]}, mode=PYTHON), [[1.0, 4.0]])
    p = Softmax()(x)
    assert vectorize_graph(p, {x: batch}).owner.op == Softmax()


def test_layers_loops_and_nested_graphs_may_hold_one():
    X = Input("X", shape=(None,))
    calls = WithPower()(X)
    inner = pt.vector("inner")
    nested = OpFromGraph([inner], [Power(3)(inner)])(X)
    looped = ptml.scan(lambda x: Power(3)(x), sequences=X[None], return_updates=False)[0]
    outputs = [calls, nested, looped, *(pytensor.grad(y.sum(), X) for y in (calls, nested, looped))]
    for backend in ("numba", "c"):
        f = ptml.function([X], outputs, backend=backend)
        for result, wanted in zip(f([2.0]), [8, 8, 8, 12, 12, 12], strict=True):
            np.testing.assert_allclose(result, [wanted])


def test_one_without_a_graph_says_what_is_missing():
    class Empty(Fused):
        pass

    with pytest.raises(TypeError, match=r"Empty defines no build\(self, \*inputs\): give there, as a list"):
        Empty()(pt.vector("x"))


X, G = pt.matrix("X", shape=(None, 3)), pt.matrix("G", shape=(None, 3))
W = pt.vector("w", shape=(3,))
EVERY = [
    (Softmax(), [X]),
    (SoftmaxGradient(), [X, G]),
    (LogSoftmax(), [X]),
    (LogSoftmaxGradient(), [X, G]),
    (TargetEntropy(), [X, G]),
    (LabelEntropy(), [X, pt.lvector("y")]),
    (LabelEntropy(0.1, -1, True), [X, pt.lvector("y"), pt.vector("w", shape=(3,))]),
    (Moments(), [X, pt.lscalar("n")]),
    (Normalize(1e-5), [X, W, W.clone()]),
    (Normalize(1e-5, False), [X]),
    (NormalizeGradient(1e-5), [X, W, G, pt.vector("r"), pt.vector("m")]),
    (NormalizeGradient(1e-5, False), [X, G, pt.vector("r")]),
]


@pytest.mark.parametrize(("op", "inputs"), EVERY, ids=str)
def test_what_an_op_knows_of_its_graph_is_so(op, inputs):
    node = op(*inputs, return_list=True)[0].owner
    built = op.build(*inputs)
    assert [v.type for v in node.outputs] == [v.type for v in built]
    shapes = [tuple(v.shape) for v in inputs]
    inferred = op.infer_shape(node, shapes)
    wanted = Fused.infer_shape(op, node, shapes)
    given = {v: np.zeros([2, 3][: v.ndim] if v.ndim > 1 else [2] * v.ndim, v.type.dtype) for v in inputs}
    given |= {v: np.ones(3) for v in inputs if v.name == "w"}
    f = pytensor.function(
        inputs, [pt.stack(s) for s in (*inferred, *wanted)], mode=PYTHON, on_unused_input="ignore"
    )
    sizes = f(*(given[v] for v in inputs))
    for mine, graphs in zip(sizes[: len(built)], sizes[len(built) :], strict=True):
        assert list(mine) == list(graphs)
    pattern, graphs_pattern = op.connection_pattern(node), Fused.connection_pattern(op, node)
    # An op may leave out what has no gradient; it may not claim what is not there.
    for row, wider in zip(pattern, graphs_pattern, strict=True):
        assert all(not own or there for own, there in zip(row, wider, strict=True))
