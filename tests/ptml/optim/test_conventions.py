"""Where optax's conventions differ from ours: the numbers of the table in docs/optimizers.md."""

from __future__ import annotations

import inspect

import jax
import numpy as np
import optax
import pytest

from ptml.optim import (
    adafactor,
    adagrad,
    adam,
    adamw,
    add_weight_decay,
    chain,
    lion,
    nadam,
    rmsprop,
    rprop,
)

START = np.array([1.0, -2.0, 0.5])
GRADIENTS = np.random.default_rng(0).normal(size=(20, 3)) * [1e-4, 1.0, 1e2]


def optax_path(optimizer):
    with jax.enable_x64(True):
        position, state = START, optimizer.init(START)
        for gradient in GRADIENTS:
            move, state = optimizer.update(gradient, state, position)
            position = np.asarray(optax.apply_updates(position, move))
            yield position


def default(function, argument):
    return inspect.signature(function).parameters[argument].default


@pytest.mark.parametrize(
    ("function", "argument", "theirs"),
    [
        (optax.adamw, "weight_decay", 1e-4),
        (optax.adam, "eps", 1e-8),
        (optax.adam, "eps_root", 0.0),
        (optax.rmsprop, "decay", 0.9),
        (optax.rmsprop, "eps_in_sqrt", True),
        (optax.rmsprop, "initial_scale", 0.0),
        (optax.adagrad, "initial_accumulator_value", 0.1),
        (optax.adagrad, "eps", 1e-7),
        (optax.lion, "weight_decay", 1e-3),
        (optax.lamb, "eps", 1e-6),
        (optax.radam, "threshold", 5.0),
        (optax.adadelta, "rho", 0.9),
        (optax.adadelta, "eps", 1e-6),
    ],
)
def test_the_defaults_of_optax_are_those_of_the_table(function, argument, theirs):
    assert default(function, argument) == theirs


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        (adamw(0.1, weight_decay=1e-4), optax.adamw(0.1)),
        (adagrad(0.1, 0.0, initial_accumulator=0.1 + 1e-7), optax.adagrad(0.1)),
        (lion(0.1, weight_decay=1e-3), optax.lion(0.1)),
        (rmsprop(0.1, momentum=0.9), optax.rmsprop(0.1, momentum=0.9, eps_in_sqrt=False)),
    ],
    ids=["adamw", "adagrad", "lion", "rmsprop"],
)
def test_the_table_tells_how_to_get_optax(run, ours, theirs):
    visited = run(ours, p=START).follow(GRADIENTS)
    np.testing.assert_allclose(visited, list(optax_path(theirs)), rtol=1e-11, atol=1e-12)


def test_adafactors_decay_is_divided_by_the_rate_to_get_optax(run):
    visited = run(adafactor(0.1, weight_decay=0.02 / 0.1), p=START).follow(GRADIENTS)
    theirs = optax.adafactor(0.1, weight_decay_rate=0.02)
    np.testing.assert_allclose(visited, list(optax_path(theirs)), rtol=1e-5)
    unscaled = run(adafactor(1.0), p=START).follow(GRADIENTS)
    np.testing.assert_allclose(unscaled, list(optax_path(optax.adafactor())), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("gradient", [1e-8, 1e-5, 1e-4, 1e-3, 1.0, 1e4])
def test_an_epsilon_inside_the_root_is_met_by_its_root_outside_to_a_factor_of_root_two(run, gradient):
    [ours] = run(rmsprop(1.0, epsilon=1e-4), p=0.0).follow([gradient])
    theirs = -gradient / np.sqrt(0.1 * gradient**2 + 1e-8)
    assert 1 <= theirs / ours <= 2**0.5


def test_rmsprops_start_is_set_in_the_state(run):
    problem = run(rmsprop(0.1), p=START)
    problem.program.store.set({"rmsprop/root_mean_square/**": 0.5**0.5})
    theirs = optax.rmsprop(0.1, initial_scale=0.5, eps_in_sqrt=False)
    np.testing.assert_allclose(problem.follow(GRADIENTS), list(optax_path(theirs)), rtol=1e-12)


def test_amsgrad_takes_the_largest_before_the_correction_and_optax_after(run):
    visited = run(adam(0.1, amsgrad=True), p=0.0).follow([1.0, 10.0, 0.1])
    np.testing.assert_allclose(visited, [-0.099999999, -0.180708774, -0.243701336], atol=5e-10, rtol=0)
    corrected = (0.81 * 0.1 + 0.9 * 1.0 + 0.01) / (1 - 0.9**3) / np.sqrt(0.100999 / 0.001999)
    with jax.enable_x64(True):
        optimizer = optax.amsgrad(0.1)
        position, state = np.zeros(()), optimizer.init(np.zeros(()))
        for gradient in (1.0, 10.0, 0.1):
            move, state = optimizer.update(np.float64(gradient), state, position)
    np.testing.assert_allclose(move, -0.1 * corrected, rtol=1e-7)


def test_nadam_moves_by_1_47_rates_at_first_and_pytorchs_by_1_06(run):
    [ours] = run(nadam(0.1), p=0.0).follow([1.0])
    np.testing.assert_allclose(ours, -0.14736841957894742, rtol=1e-13)
    now, after = (0.9 * (1 - 0.5 * 0.96 ** (t * 0.004)) for t in (1, 2))
    pytorchs = after * 0.1 / (1 - now * after) + (1 - now) / (1 - now)
    np.testing.assert_allclose(0.1 * pytorchs, 0.10564517677908707, rtol=1e-7)


def test_rprop_steps_at_the_first_gradient_and_optax_one_later(run):
    ours = run(rprop(0.1), p=START).follow(GRADIENTS)
    theirs = np.array(list(optax_path(optax.rprop(0.1))))
    np.testing.assert_array_equal(theirs[0], START)
    np.testing.assert_allclose(theirs[1], ours[0], rtol=1e-12)


def test_decay_behind_adam_is_a_thousand_times_that_of_adamw(run):
    [coupled] = run(chain(add_weight_decay(0.01), adam(1e-3)), p=1.0).follow([0.0])
    [decoupled] = run(adamw(1e-3, 0.01), p=1.0).follow([0.0])
    [full] = run(chain(adam(1e-3), add_weight_decay(0.01)), p=1.0).follow([0.0])
    np.testing.assert_allclose([coupled, decoupled, full], [0.999000000999999, 0.99999, 0.99], rtol=1e-14)
    np.testing.assert_allclose((1 - full) / (1 - decoupled), 1000, rtol=1e-9)
