"""The marks `advance` and `in_training`: identities to PyTensor, instructions to the compile step."""

from __future__ import annotations

import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest
from pytensor.compile.mode import Mode
from pytensor.graph.replace import vectorize_graph

import ptml
from ptml.initializers import Zeros
from ptml.layers import BatchNorm, Input

PYTHON = Mode(linker="py", optimizer="fast_compile")


class Count(ptml.Layer):
    @ptml.slot
    def seen(self):
        return ptml.statistic((), Zeros(), dtype="int64")

    def build(self, X):
        return ptml.advance(X, {self.seen: self.seen + X.shape[0]})


class Centred(ptml.Layer):
    @ptml.slot
    def mean(self):
        return ptml.statistic((2,), Zeros())

    @ptml.slot
    def W(self):
        return ptml.parameter((2,), Zeros())

    def build(self, X):
        return ptml.advance(X - self.mean, {self.mean: X.mean(axis=0)})


@pytest.fixture
def X():
    return Input("X", (None, 2))


def test_advance_gives_its_value_back_and_moves_at_every_call(X):
    program = ptml.function([X], Count("count")(X), seed=0, mode=PYTHON)
    x = np.ones((3, 2))
    np.testing.assert_array_equal(program(x), x)
    program(x[:2])
    assert program.state["count/seen"] == 5


def test_what_is_read_is_the_value_before_the_move(X):
    program = ptml.function([X], Centred("c")(X), seed=0, mode=PYTHON)
    x = np.array([[1.0, 2.0], [3.0, 4.0]])
    np.testing.assert_array_equal(program(x), x)
    np.testing.assert_array_equal(program(x), x - [2.0, 3.0])


def test_a_prediction_reads_the_value_and_moves_nothing(X):
    program = ptml.function([X], Centred("c")(X), seed=0, mode=PYTHON)
    program(np.array([[1.0, 2.0]]))
    predict = ptml.compile_predict(Centred("c")(X), state=program.state, compile_kwargs={"mode": PYTHON})
    for _ in range(2):
        np.testing.assert_array_equal(predict(np.zeros((1, 2))), [[-1.0, -2.0]])


def test_advance_outside_a_layer_is_one_application(X):
    count = Count("count")
    marked = ptml.advance(X.sum(), {count.seen: count.seen + X.shape[0]})
    again = ptml.advance(2 * marked, {count.seen: count.seen * 10})
    program = ptml.function([X], again, seed=0, mode=PYTHON)
    program(np.ones((3, 2)))
    assert program.state["count/seen"] == 30


def test_only_statistics_advance(X):
    centred = Centred("c")
    with pytest.raises(TypeError, match=r"c/W.* is not the handle of a statistic"):
        ptml.advance(X, {centred.W: X[0]})
    with pytest.raises(TypeError, match="is not the handle of a statistic"):
        ptml.advance(X, {X: X})


@pytest.mark.parametrize("new", [pt.ones((2,), dtype="int64"), pt.ones((2, 2)), pt.ones((3,))])
def test_a_new_value_has_the_type_of_its_statistic(X, new):
    with pytest.raises(TypeError, match=r"The new value of c/mean is .* Cast or reshape it"):
        ptml.advance(X, {Centred("c").mean: new})


def test_a_new_value_whose_shape_only_the_run_knows_is_checked_there(X):
    centred, vector = Centred("c"), pt.vector("vector")
    program = ptml.function([X, vector], ptml.advance(X, {centred.mean: vector}), seed=0, mode=PYTHON)
    program(np.ones((1, 2)), np.ones(2))
    before = program.state
    with pytest.raises(AssertionError, match="shape"):
        program(np.ones((1, 2)), np.ones(3))
    assert program.state == before


def test_in_training_computes_one_or_the_other():
    x = pt.vector("x")
    y = ptml.in_training(2 * x, x + 1)
    value = np.array([1.0, 2.0])
    np.testing.assert_array_equal(ptml.function([x], y, mode=PYTHON)(value), 2 * value)
    predict = ptml.compile_predict(y, inputs=[x], compile_kwargs={"mode": PYTHON})
    np.testing.assert_array_equal(predict(value), value + 1)


def test_the_gradient_flows_through_what_training_computes():
    x = pt.vector("x")
    gradient = pytensor.grad((ptml.in_training(x**2, 5 * x)).sum(), x)
    np.testing.assert_array_equal(ptml.function([x], gradient, mode=PYTHON)(np.array([3.0])), [6.0])


def test_the_marks_mean_the_same_to_plain_pytensor():
    x = pt.vector("x")
    y = ptml.in_training(2 * x, x)
    np.testing.assert_array_equal(pytensor.function([x], y, mode=PYTHON)(np.array([1.0])), [2.0])
    assert y.type.shape == (2 * x).type.shape


def test_training_and_prediction_have_one_type():
    with pytest.raises(TypeError, match="Cannot convert"):
        ptml.in_training(pt.vector(), pt.matrix())
    assert ptml.in_training(pt.vector(dtype="float32"), pt.vector(dtype="float64")).type.dtype == "float32"


def test_in_training_is_vectorized_over_either_part():
    x, c = pt.vector("x"), pt.vector("c")
    y = ptml.in_training(2 * x, c)
    xs = pt.matrix("xs")
    for replaced, training, prediction in (
        ({x: xs}, lambda m, v: 2 * m, lambda m, v: np.broadcast_to(v, m.shape)),
        ({c: xs}, lambda m, v: np.broadcast_to(2 * v, m.shape), lambda m, v: m),
    ):
        stacked = vectorize_graph(y, replaced)
        other = c if x in replaced else x
        m, v = np.arange(6.0).reshape(2, 3), np.array([1.0, 2.0, 3.0])
        trained = ptml.function([xs, other], stacked, mode=PYTHON, on_unused_input="ignore")(m, v)
        np.testing.assert_array_equal(trained, training(m, v))
        predict = ptml.compile_predict(
            stacked, inputs=[xs, other], compile_kwargs={"mode": PYTHON, "on_unused_input": "ignore"}
        )
        np.testing.assert_array_equal(predict(m, v), prediction(m, v))


def test_a_statistic_of_stacked_graphs_is_refused(X):
    stacked = Input("stacked", (None, None, 2))
    with pytest.raises(
        ValueError, match=r"makes the new value of a statistic .* it has one value, however many"
    ):
        vectorize_graph(BatchNorm("bn", n_in=2)(X), {X: stacked})


def test_a_statistic_that_does_not_depend_on_what_is_stacked_still_moves():
    x, xs = pt.vector("x", shape=(2,)), pt.matrix("xs", shape=(None, 2))
    count = Count("count")
    y = ptml.advance(x, {count.seen: count.seen + 1})
    program = ptml.function([xs], vectorize_graph(y, {x: xs}), seed=0, mode=PYTHON)
    np.testing.assert_array_equal(program(np.ones((3, 2))), np.ones((3, 2)))
    assert program.state["count/seen"] == 1
