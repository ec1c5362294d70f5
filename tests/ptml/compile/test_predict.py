"""Predictions: dropout is gone, batch norm reads its running statistics, and nothing advances."""

from __future__ import annotations

import numpy as np
import pytest
from pytensor.compile.builders import OpFromGraph
from pytensor.compile.mode import Mode
from pytensor.graph.basic import Constant
from pytensor.graph.traversal import graph_inputs

import ptml
from ptml.activations import ReLU
from ptml.layers import BatchNorm, Dropout, Input, Linear, Sequential
from ptml.loss import SquaredError, supervised_loss
from ptml.optim import adam, compile_train
from ptml_state import Role, Store

PYTHON = {"mode": Mode(linker="py", optimizer="fast_compile")}


@pytest.fixture
def X():
    return Input("X", (None, 2))


@pytest.fixture
def net():
    return Sequential(
        Linear("fc1", n_in=2, n_out=4),
        BatchNorm("bn", n_in=4),
        ReLU(),
        Dropout("drop", p=0.5),
        Linear("fc2", n_in=4, n_out=1),
    )


@pytest.fixture
def step(X, net):
    loss, _ = supervised_loss(net(X), SquaredError())
    trained = compile_train(loss, adam(0.01), seed=0, compile_kwargs=PYTHON)
    rng = np.random.default_rng(0)
    for _ in range(3):
        trained(rng.normal(size=(8, 2)), rng.normal(size=(8, 1)))
    return trained


def by_hand(state, x):
    h = x @ state["fc1/W"] + state["fc1/b"]
    h = (h - state["bn/running_mean"]) / np.sqrt(state["bn/running_var"] + 1e-5) * state["bn/scale"] + state[
        "bn/b"
    ]
    return np.maximum(h, 0) @ state["fc2/W"] + state["fc2/b"]


@pytest.mark.parametrize("source", ["program", "store", "state"])
def test_a_prediction_is_the_one_by_hand_and_moves_nothing(X, net, step, source):
    state = {"program": step, "store": step.store, "state": step.state}[source]
    predict = ptml.compile_predict(net(X), state=state, compile_kwargs=PYTHON)
    before, x = step.state, np.random.default_rng(1).normal(size=(5, 2))
    for _ in range(2):
        np.testing.assert_allclose(predict(x), by_hand(before, x), rtol=1e-12)
        np.testing.assert_allclose(predict(x[:1]), by_hand(before, x[:1]), rtol=1e-12)
    assert step.state == before
    assert step.store.state == before


def test_keys_moments_and_clocks_are_no_slots_of_a_prediction(X, net, step):
    predict = ptml.compile_predict(net(X), state=step, compile_kwargs=PYTHON)
    assert {leaf.role for leaf in predict.state.leaves} == {Role.PARAMETER, Role.STATISTIC}
    assert list(predict.state) == list(ptml.init(net, seed=0).drop(Role.GENERATOR))


def test_a_predictor_follows_the_training_that_it_shares_a_store_with(X, net, step):
    live = ptml.compile_predict(net(X), state=step, compile_kwargs=PYTHON)
    taken = ptml.compile_predict(net(X), state=step.state, compile_kwargs=PYTHON)
    x = np.ones((3, 2))
    before = live(x)
    np.testing.assert_array_equal(taken(x), before)
    step(np.ones((8, 2)) * np.arange(8.0)[:, None], np.ones((8, 1)))
    assert not np.array_equal(live(x), before)
    np.testing.assert_array_equal(taken(x), before)


def test_a_rebuilt_network_takes_up_a_state_by_address(step):
    X = Input("X", (None, 2))
    rebuilt = Sequential(
        Linear("fc1", n_in=2, n_out=4), BatchNorm("bn", n_in=4), ReLU(), Linear("fc2", n_in=4, n_out=1)
    )
    predict = ptml.compile_predict(rebuilt(X), state=step.state, compile_kwargs=PYTHON)
    x = np.ones((3, 2))
    np.testing.assert_allclose(predict(x), by_hand(step.state, x), rtol=1e-12)


def test_a_part_of_the_network_predicts_alone(X, net, step):
    hidden = net[:2](X)
    predict = ptml.compile_predict([hidden, net[0](X)], state=step, compile_kwargs=PYTHON)
    assert predict.inputs == (X,)
    np.testing.assert_allclose(predict([[0.0, 0.0]])[1], [step.state["fc1/b"]])


def test_without_a_state_random_weights_are_refused(X, net):
    with pytest.raises(ValueError, match=r"This prediction reads fc1/W, .*nobody's wish.*state=program"):
        ptml.compile_predict(net(X), compile_kwargs=PYTHON)
    with pytest.raises(ValueError, match=r"reads bn/scale, bn/b, bn/running_mean, bn/running_var"):
        ptml.compile_predict(BatchNorm("bn", n_in=2)(X), seed=0, compile_kwargs=PYTHON)


def test_a_state_or_store_that_lacks_weights_is_refused(X, net):
    whole = ptml.init(net, seed=0)
    partial = whole.select("fc1")
    with pytest.raises(
        ValueError, match=r"The state lacks bn/scale, .*fc2/b, without which a prediction means nothing"
    ):
        ptml.compile_predict(net(X), state=partial, compile_kwargs=PYTHON)
    with pytest.raises(ValueError, match="without which a prediction means nothing"):
        ptml.compile_predict(net(X), state=Store(seed=0), compile_kwargs=PYTHON)
    with pytest.raises(ValueError, match=r"lacks bn/running_mean, bn/running_var, without which"):
        ptml.compile_predict(net(X), state=whole.drop(Role.STATISTIC), compile_kwargs=PYTHON)


def test_a_graph_without_weights_needs_no_state(X):
    predict = ptml.compile_predict(Dropout("drop", p=0.5)(X), compile_kwargs=PYTHON)
    np.testing.assert_array_equal(predict([[1.0, 2.0]]), [[1.0, 2.0]])
    assert list(predict.state) == []


def test_several_outputs_come_as_a_list(X, net, step):
    predict = ptml.compile_predict([net(X), 2 * net(X)], state=step, compile_kwargs=PYTHON)
    one, two = predict(np.ones((3, 2)))
    np.testing.assert_array_equal(2 * one, two)


def test_a_loss_is_evaluated_as_in_prediction(X, net, step):
    loss, target = supervised_loss(net(X), SquaredError())
    evaluate = ptml.compile_predict(loss, inputs=[X, target], state=step, compile_kwargs=PYTHON)
    x, y = np.ones((3, 2)), np.zeros((3, 1))
    np.testing.assert_allclose(evaluate(x, y), (by_hand(step.state, x) ** 2).mean(), rtol=1e-12)


def test_nested_graphs_of_the_users_are_specialized(X, net, step):
    inner = X.type()
    output = net(inner)
    roots = [r for r in graph_inputs([output]) if r is not inner and not isinstance(r, Constant)]
    op = OpFromGraph([inner, *roots], [output])
    predict = ptml.compile_predict(op(X, *roots), state=step, compile_kwargs=PYTHON)
    x = np.ones((3, 2))
    np.testing.assert_allclose(predict(x), by_hand(step.state, x), rtol=1e-12)
    assert "drop/key" not in predict.state


def test_a_graph_that_draws_in_prediction_too_draws_the_same_at_every_call():
    class Sampled(ptml.Layer):
        @ptml.slot
        def key(self):
            return ptml.generator()

        def build(self, X):
            return X + ptml.random.normal(self.key, X.shape)

    X, layer = Input("X", (None, 2)), Sampled("sampled")
    predict = ptml.compile_predict(layer(X), seed=0, compile_kwargs=PYTHON)
    x = np.zeros((3, 2))
    np.testing.assert_array_equal(predict(x), predict(x))
    other = ptml.compile_predict(layer(X), seed=1, compile_kwargs=PYTHON)
    assert not np.array_equal(predict(x), other(x))
