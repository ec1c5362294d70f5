"""Summaries and captured activations: of nested, shared and numbered layers, and in every mode."""

from __future__ import annotations

import numpy as np
import pytensor
import pytest

import ptml
from ptml.activations import ReLU
from ptml.layers import BatchNorm, Dropout, Input, Linear, Residual, Sequential
from ptml.loss import SquaredError, supervised_loss
from ptml.optim import compile_train, sgd


class Block(ptml.Layer):
    """A layer that builds another."""

    n: int

    @ptml.sublayer
    def inner(self):
        return Linear(f"{self.name}/inner", n_in=self.n, n_out=self.n)

    def build(self, X):
        return X + self.inner(X)


def _net():
    return Sequential(Linear("fc", n_in=3, n_out=4), BatchNorm("bn", n_in=4), Block("block", n=4), ReLU())


def test_a_summary_has_a_row_for_each_call_in_order():
    found = ptml.summary(_net(), (None, 3))
    assert [(row.name, row.kind, row.depth) for row in found.rows] == [
        ("Sequential", "Sequential", 0),
        ("fc", "Linear", 1),
        ("bn", "BatchNorm", 1),
        ("block", "Block", 1),
        ("block/inner", "Linear", 2),
        ("ReLU", "ReLU", 1),
    ]
    assert [row.shapes for row in found.rows] == [((None, 4),)] * 6
    assert [row.parameters for row in found.rows] == [0, 16, 8, 0, 20, 0]
    assert [row.others for row in found.rows] == [0, 0, 8, 0, 0, 0]
    assert found.parameters == 44
    state = ptml.init(_net(), seed=0)
    assert found.nbytes == state.nbytes
    assert str(found).splitlines()[-1].split() == ["total", "44", "8", "416", "B"]


def test_a_layer_that_is_called_twice_is_counted_once():
    fc = Linear("fc", n_in=3, n_out=3)
    X = Input("X", shape=(8, 3))
    found = ptml.summary(fc(fc(X)))
    assert [(row.name, row.shared) for row in found.rows] == [("fc", False), ("fc#2", True)]
    assert found.parameters == 12
    assert "shared" in str(found)


def test_unnamed_layers_have_their_numbers():
    net = Sequential(Linear(n_in=3, n_out=3), Linear(n_in=3, n_out=2))
    assert [row.name for row in ptml.summary(net, (1, 3)).rows[1:]] == ["Linear_1", "Linear_2"]


def test_a_summary_needs_something_to_call_on():
    for inputs in ((), (64,)):
        with pytest.raises(TypeError, match=r"give what it takes, an Input or a shape such as \(None, 64\)"):
            ptml.summary(_net(), *inputs)


def test_captured_activations_are_what_the_layers_give(backend):
    with pytensor.config.change_flags(floatX="float32"):
        net = _net()
        X = Input("X", shape=(None, 3))
        output, taken = ptml.capture(net(X), "*")
        names = ["Sequential", "fc", "bn", "block", "block/inner", "ReLU"]
        assert list(taken) == names
        state = ptml.init(net, seed=0)
        look = ptml.compile_predict([output, *taken.values()], state=state, backend=backend)
    rows = np.random.default_rng(0).normal(size=(5, 3)).astype("float32")
    whole, *parts = look(rows)
    fc = rows @ state["fc/W"] + state["fc/b"]
    bn = fc / np.sqrt(1 + 1e-5)
    inner = bn @ state["block/inner/W"] + state["block/inner/b"]
    expected = [np.maximum(bn + inner, 0), fc, bn, bn + inner, inner, np.maximum(bn + inner, 0)]
    for name, part, value in zip(names, parts, expected, strict=True):
        np.testing.assert_allclose(part, value, rtol=1e-5, atol=1e-6, err_msg=name)
    np.testing.assert_array_equal(whole, parts[0])


def test_the_gradient_of_an_activation_is_there_too():
    net = Sequential(Linear("fc1", n_in=2, n_out=3), ReLU(), Linear("fc2", n_in=3, n_out=1))
    loss, _ = supervised_loss(net(Input("X", shape=(None, 2))), SquaredError(reduction="sum"))
    loss, taken = ptml.capture(loss, "fc1")
    state = ptml.init(net, seed=1)
    gradient = ptml.compile_predict([pytensor.grad(loss, taken["fc1"]), taken["fc1"]], state=state)
    rows, targets = np.array([[1.0, 2.0], [-1.0, 0.5]]), np.array([[1.0], [2.0]])
    found, activation = gradient(rows, targets)
    out = np.maximum(activation, 0) @ state["fc2/W"] + state["fc2/b"]
    np.testing.assert_allclose(found, 2 * (out - targets) @ state["fc2/W"].T * (activation > 0), rtol=1e-12)


def test_training_goes_on_as_without():
    def trained(captured):
        net = Sequential(Linear("fc", n_in=2, n_out=4), BatchNorm("bn", n_in=4), Dropout("drop", p=0.5))
        loss, _ = supervised_loss(net(Input("X", shape=(None, 2))), SquaredError())
        if captured:
            loss, taken = ptml.capture(loss, "bn")
            step = compile_train(loss, sgd(0.1), extra_outputs=taken, seed=0)
        else:
            step = compile_train(loss, sgd(0.1), seed=0)
        for _ in range(3):
            step(np.arange(12.0).reshape(6, 2), np.zeros((6, 4)))
        return step.state

    assert trained(captured=True) == trained(captured=False)


def test_selectors_are_those_of_networks():
    net = Sequential(Linear("a", n_in=2, n_out=2), Residual(Linear("b", n_in=2, n_out=2)))
    given = net(Input("X", shape=(None, 2)))
    assert list(ptml.capture(given, Linear)[1]) == ["a", "b"]
    with pytest.raises(KeyError, match="'c'"):
        ptml.capture(given, "c")
