"""Sgd: closed-form steps, optax's trajectory, and what it refuses."""

from __future__ import annotations

import jax
import numpy as np
import optax
import pytensor.tensor as pt
import pytest

from ptml.optim import Sgd, constant_schedule, cosine_schedule, scalar_state, sgd, sgd_updates, take_step


def optax_path(optimizer, start, gradients):
    with jax.enable_x64(True):
        position, state = np.asarray(start), optimizer.init(np.asarray(start))
        visited = []
        for gradient in gradients:
            move, state = optimizer.update(np.asarray(gradient), state, position)
            position = optax.apply_updates(position, move)
            visited.append(np.asarray(position))
    return np.array(visited)


def test_a_plain_step_goes_down_the_gradient_by_the_rate(run):
    np.testing.assert_array_equal(run(sgd(0.5), p=[1.0, 2.0]).follow([[2.0, -4.0]]), [[0.0, 4.0]])


def test_without_momentum_nothing_is_remembered(run):
    assert list(run(sgd(0.5), p=1.0).program.state) == ["p"]


def test_momentum_makes_the_steps_of_the_anchors(run):
    np.testing.assert_allclose(run(sgd(0.1, momentum=0.9), p=0.0).follow([1, 1]), [-0.1, -0.29], rtol=1e-14)


def test_nesterov_momentum_makes_the_steps_of_the_anchors(run):
    nesterov = sgd(0.1, momentum=0.9, nesterov=True)
    np.testing.assert_allclose(run(nesterov, p=0.0).follow([1, 1]), [-0.19, -0.461], rtol=1e-14)


@pytest.mark.parametrize("nesterov", [False, True])
def test_a_hundred_steps_are_those_of_optax(run, nesterov):
    gradients = np.random.default_rng(0).normal(size=(100, 3))
    start = np.array([1.0, -2.0, 0.5])
    visited = run(sgd(0.03, 0.8, nesterov), p=start).follow(gradients)
    expected = optax_path(optax.sgd(0.03, momentum=0.8, nesterov=nesterov), start, gradients)
    np.testing.assert_allclose(visited, expected, atol=1e-10, rtol=0)


def test_a_schedule_runs_on_the_rules_own_clock(run):
    rule = sgd(cosine_schedule(0.4, 2), namespace="mine")
    problem = run(rule, p=0.0)
    np.testing.assert_allclose(problem.follow([1.0, 1.0, 1.0]), [-0.4, -0.6, -0.6], rtol=1e-14)
    assert problem["mine/step_count"] == 3


def test_any_function_of_the_count_is_a_schedule(run):
    np.testing.assert_allclose(run(sgd(lambda count: 0.1 * (count + 1)), p=0.0).follow([1, 1]), [-0.1, -0.3])


def test_a_rate_that_is_state_is_steered_between_steps(run):
    problem = run(sgd(scalar_state("rate", 0.1)), p=0.0)
    problem(1.0)
    problem.program.store.set({"rate": 0.5})
    problem(1.0)
    np.testing.assert_allclose(problem["p"], -0.6, rtol=1e-14)


@pytest.mark.parametrize(
    "rate", [0.1, np.float64(0.1), constant_schedule(0.1), pt.constant(0.1, dtype="float64")]
)
def test_no_kind_of_rate_widens_float32(run, rate):
    problem = run(sgd(rate, momentum=0.9), dtype="float32", p=[0.0])
    steps = take_step(sgd(rate, momentum=0.9), problem.gradients, problem.parameters)
    assert {new.dtype for new in [*steps.amounts.values(), *steps.values()]} == {"float32"}
    np.testing.assert_allclose(problem.follow([[1.0]]), [[-0.1]], rtol=1e-7)


def test_the_low_level_function_builds_the_same_steps(run):
    def rule(loss, parameters):
        return sgd_updates(loss, parameters, 0.1, momentum=0.9)

    np.testing.assert_allclose(run(rule, p=0.0).follow([1, 1]), [-0.1, -0.29], rtol=1e-14)


def test_a_small_gradient_is_not_lost_beside_a_large_parameter(run):
    problem = run(sgd(1e6, momentum=0.5), dtype="float32", p=[1.0])
    problem([1e-9])
    assert problem["sgd/velocity/p"] == np.float32(1e-9)
    np.testing.assert_allclose(problem["p"], [0.999], rtol=1e-6)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"learning_rate": -1.0}, r"Sgd: learning_rate must be a finite number of 0 or more.*; got -1\.0"),
        ({"learning_rate": np.nan}, r"learning_rate must be .*; got nan"),
        ({"learning_rate": np.inf}, r"learning_rate must be .*; got inf"),
        ({"momentum": 1.5}, r"Sgd: momentum must be a number in \[0, 1\); got 1\.5"),
        ({"momentum": 1.0}, r"momentum must be a number in \[0, 1\); got 1\.0"),
        ({"momentum": -0.1}, r"momentum must be a number in \[0, 1\); got -0\.1"),
        ({"nesterov": True}, r"nesterov=True looks ahead along the momentum, and momentum is 0"),
        ({"namespace": ""}, r"namespace must be one or more words joined by '/'"),
        ({"namespace": "a*"}, r"namespace must be one or more words"),
    ],
)
def test_an_impossible_hyperparameter_is_refused_when_the_rule_is_made(arguments, message):
    with pytest.raises(ValueError, match=message):
        sgd(**arguments)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"learning_rate": "0.1"}, r"learning_rate must be .*, a symbolic scalar or a schedule; got '0\.1'"),
        ({"learning_rate": True}, r"learning_rate must be .*; got True"),
        ({"learning_rate": pt.vector("rates")}, r"got a tensor of type .*A hyperparameter is a scalar"),
        ({"momentum": None}, r"momentum must be a number in \[0, 1\); got None"),
        ({"momentum": lambda count: 0.9}, r"momentum must be a number"),
        ({"nesterov": 1}, r"nesterov must be True or False; got 1"),
        ({"namespace": 3}, r"namespace must be one or more words"),
        ({"lr": 0.1}, r"Sgd has no argument 'lr'"),
    ],
)
def test_a_hyperparameter_of_the_wrong_kind_is_refused(arguments, message):
    with pytest.raises(TypeError, match=message):
        sgd(**arguments)


def test_rules_are_values():
    assert sgd(0.1, momentum=0.9) == sgd(0.1, 0.9)
    assert sgd(0.1) != sgd(0.2)
    assert hash(sgd(0.1)) == hash(sgd(0.1))
    assert eval(repr(sgd(0.1, namespace="fast")), {"Sgd": Sgd}) == sgd(0.1, namespace="fast")
    with pytest.raises(AttributeError):
        sgd(0.1).learning_rate = 0.2
