"""Averages of parameters: what they start at, what they follow, and the swap for evaluation."""

from __future__ import annotations

import numpy as np
import pytest

import ptml
from ptml.layers import BatchNorm, Input, Linear, Sequential
from ptml.loss import SquaredError, supervised_loss
from ptml.optim import (
    Ema,
    adam,
    averaged,
    chain,
    compile_train,
    ema,
    freeze,
    scalar_state,
    scale,
    sgd,
)
from ptml_state import Role, State, Store, where

X = np.random.default_rng(0).normal(size=(8, 2))
Y = X[:, :1] * X[:, 1:]


@pytest.fixture
def net():
    return Sequential(Linear("fc1", n_in=2, n_out=3), BatchNorm("bn", n_in=3), Linear("fc2", n_in=3, n_out=1))


@pytest.fixture
def train(net):
    def compiled(rule, **options):
        x = Input("X", shape=(None, 2))
        loss, _ = supervised_loss(net(x), SquaredError())
        return compile_train(loss, rule, **{"seed": 0, **options})

    return compiled


def test_an_average_starts_at_its_parameter_and_follows_where_steps_lead(run):
    problem = run(chain(sgd(1.0), ema(0.9)), p=[2.0, -1.0])
    np.testing.assert_array_equal(problem["ema/p"], [2.0, -1.0])
    where_it_was = problem.follow([[1.0, 0.0]] * 3)
    average = np.array([2.0, -1.0])
    for value in where_it_was:
        average = 0.9 * average + 0.1 * value
    np.testing.assert_allclose(problem["ema/p"], average, rtol=1e-14)


def test_it_agrees_with_optax_started_at_the_parameters(run):
    jax, optax = pytest.importorskip("jax"), pytest.importorskip("optax")
    values = np.random.default_rng(0).normal(size=(100, 3))
    problem = run(chain(sgd(1.0), ema(0.95)), p=np.zeros(3))
    for before, after in zip([np.zeros(3), *values], values, strict=False):
        problem(before - after)
    with jax.enable_x64(True):
        rule = optax.ema(0.95, debias=False)
        state = rule.init(jax.numpy.zeros(3))
        for value in values:
            _, state = rule.update(jax.numpy.asarray(value), state)
        theirs = np.asarray(state.ema)
    np.testing.assert_allclose(problem["ema/p"], theirs, rtol=1e-10, atol=1e-12)


def test_parameters_move_as_they_would_without(train):
    plain, average = train(adam(0.1)), train(chain(adam(0.1), ema(0.9)))
    for _ in range(3):
        assert plain(X, Y) == average(X, Y)
    assert plain.state.select(Role.PARAMETER) == average.state.select(Role.PARAMETER)


def test_an_average_starts_at_values_that_are_loaded(train):
    trained = train(adam(0.1))
    trained(X, Y)
    goes_on = train(chain(adam(0.1), ema(0.9)), state=trained.state)
    for address in trained.state.select(Role.PARAMETER):
        np.testing.assert_array_equal(goes_on.state[f"ema/{address}"], trained.state[address])


def test_it_resumes_exactly(train):
    whole, half = train(chain(adam(0.1), ema(0.9))), train(chain(adam(0.1), ema(0.9)))
    for _ in range(4):
        whole(X, Y)
    for _ in range(2):
        half(X, Y)
    resumed = train(chain(adam(0.1), ema(0.9)), state=half.state)
    for _ in range(2):
        resumed(X, Y)
    assert resumed.state == whole.state


def test_averages_stand_in_for_the_parameters_in_one_line(net, train):
    step = train(chain(adam(0.1), ema(0.5)))
    for _ in range(5):
        step(X, Y)
    swapped = averaged(step)
    for address, value in step.state.select(Role.PARAMETER).items():
        np.testing.assert_array_equal(swapped[address], step.state[f"ema/{address}"])
        assert (swapped[address] != value).any()
    rest = ~Role.PARAMETER
    assert swapped.select(rest) == step.state.select(rest)
    x = Input("X", shape=(None, 2))
    predict = ptml.compile_predict(net(x), state=averaged(step))
    assert predict(X).shape == (8, 1)
    step(X, Y)
    predict.store.load(averaged(step))
    np.testing.assert_array_equal(predict.state["fc1/W"], step.state["ema/fc1/W"])


def test_states_and_stores_are_swapped_too(train):
    step = train(chain(adam(0.1), ema(0.5)))
    step(X, Y)
    assert averaged(step.state) == averaged(step.store) == averaged(step)
    assert isinstance(step.store, Store)


def test_only_what_is_selected_is_averaged(train):
    step = train(chain(sgd(0.1), ema(0.9, where=~where("**/b"))))
    averages = {address.removeprefix("ema/") for address in step.state if address.startswith("ema/")}
    assert averages == {p for p in step.state.select(Role.PARAMETER) if not p.endswith("/b")}


def test_two_averages_stand_side_by_side(run):
    problem = run(chain(sgd(1.0), ema(0.5, namespace="fast"), ema(0.9, namespace="slow")), p=1.0)
    problem(1.0)
    np.testing.assert_allclose([problem["fast/p"], problem["slow/p"]], [0.5, 0.9])
    assert averaged(problem.program, "slow")["p"] == problem["slow/p"]


def test_frozen_parameters_have_no_average(train):
    step = train(chain(freeze("fc1"), sgd(0.1), ema(0.9)))
    assert not [address for address in step.state if address.startswith("ema/fc1")]
    with pytest.raises(ValueError, match=r"Ema\(0.9, 'fc1'\) matches none of the parameters that move: "):
        train(chain(freeze("fc1"), sgd(0.1), ema(0.9, "fc1")))


def test_the_average_of_half_precision_is_wide_and_swaps_narrow(run):
    problem = run(chain(sgd(1.0), ema(0.999)), dtype="float16", p=[1.0])
    problem.follow([[0.001]] * 5)
    assert problem["ema/p"].dtype == np.float32
    assert 0.99 < problem["ema/p"] < 1.0
    assert averaged(problem.program)["p"].dtype == np.float16


def test_the_decay_is_steered_and_checked(run):
    problem = run(chain(sgd(1.0), ema(scalar_state("decay", 0.0))), p=0.0)
    problem(1.0)
    assert problem["ema/p"] == problem["p"] == -1.0
    problem.program.store.set({"decay": 0.5})
    problem(1.0)
    assert problem["ema/p"] == -1.5
    problem.program.store.set({"decay": 1.0})
    with pytest.raises(ValueError, match=r"Ema: decay must be a number in \[0, 1\), and this one"):
        problem(1.0)


@pytest.mark.parametrize("decay", [-0.1, 1.0, np.nan])
def test_an_impossible_decay_is_refused(decay):
    with pytest.raises(ValueError, match=r"Ema: decay must be a number in \[0, 1\); got"):
        ema(decay)


def test_it_stands_last(new_parameter):
    p = new_parameter(1.0)
    with pytest.raises(ValueError, match=r"Ema\(\) averages the parameters that a step leads to, and here"):
        ema()([p], [p])
    with pytest.raises(ValueError, match=r"Ema\(\) has to stand last .* Here Scale\(0.1\) stands behind it"):
        chain(sgd(0.1), ema(), scale(0.1))
    with pytest.raises(ValueError, match=r"Ema\(\) has to stand last .* Here Sgd\(0.1\) stands behind it"):
        chain(ema(), sgd(0.1))


def test_a_state_without_averages_is_refused(train):
    with pytest.raises(ValueError, match=r"The state has no averages under 'ema/'"):
        averaged(train(sgd(0.1)))
    with pytest.raises(ValueError, match=r"The state has averages of fc1/W, and not these parameters"):
        averaged(State({"ema/fc1/W": [1.0]}))
    with pytest.raises(TypeError, match="averaged takes a State, a Store or a Program; got dict"):
        averaged({"ema/fc1/W": [1.0]})


def test_it_is_a_value():
    assert ema(0.99) == Ema(0.99)
    assert repr(ema(0.99, ~where("**/b"), namespace="slow")) == "Ema(0.99, ~where('**/b'), namespace='slow')"
