"""RMSProp: a variance that is never negative, roots that do not overflow, and what it refuses."""

from __future__ import annotations

import numpy as np
import pytest

from ptml.optim import Rmsprop, linear_schedule, rmsprop, rmsprop_updates, scalar_state


def test_constant_gradients_of_any_size_have_a_finite_deviation(run):
    gradients = np.geomspace(1e-2, 1e4, 20_000)
    rule = rmsprop(0.01, 0.9, epsilon=1e-8, centered=True)
    problem = run(rule, dtype="float32", options={"backend": "numba"}, p=np.zeros(20_000))
    for _ in range(300):
        problem(gradients)
        assert np.isfinite(problem["p"]).all()
    assert (problem["rmsprop/deviation/p"] >= 0).all()


def test_the_deviation_is_the_root_of_the_difference_of_moments(run):
    gradients = np.random.default_rng(0).normal(3.0, 0.1, size=50)
    problem = run(rmsprop(0.01, centered=True), p=0.0)
    problem.follow(gradients)
    weights = 0.1 * 0.9 ** np.arange(50)[::-1]
    variance = (weights * gradients**2).sum() - (weights * gradients).sum() ** 2
    np.testing.assert_allclose(problem["rmsprop/deviation/p"], np.sqrt(variance), rtol=1e-12)
    np.testing.assert_allclose(problem["rmsprop/first_moment/p"], (weights * gradients).sum(), rtol=1e-12)


@pytest.mark.parametrize("centered", [False, True])
def test_a_gradient_whose_square_is_no_float_does_not_freeze_a_coordinate(run, centered):
    gradients = [[1e30], [1.0], [1.0]]
    rule = rmsprop(0.1, centered=centered)
    single = run(rule, dtype="float32", options={"backend": "c"}, p=[0.0]).follow(gradients)
    np.testing.assert_allclose(single, run(rule, p=[0.0]).follow(gradients), rtol=1e-6)


def test_state_is_kept_for_what_is_asked_only(run):
    assert list(run(rmsprop(), p=0.0).program.state) == ["p", "rmsprop/root_mean_square/p"]
    everything = rmsprop(linear_schedule(0.1, 10), 0.9, 0.5, centered=True, namespace="r")
    assert list(run(everything, p=0.0).program.state) == [
        "p",
        "r/step_count",
        "r/first_moment/p",
        "r/deviation/p",
        "r/velocity/p",
    ]


def test_a_rate_that_changes_acts_on_all_of_the_velocity_at_once(run):
    problem = run(rmsprop(scalar_state("rate", 0.1), momentum=0.9), p=0.0)
    problem(1.0)
    before = problem["p"]
    problem.program.store.set({"rate": 0.0})
    problem(1.0)
    assert problem["p"] == before


def test_the_low_level_function_builds_the_same_steps(run):
    visited = run(lambda loss, parameters: rmsprop_updates(loss, parameters, 0.1), p=0.0).follow([1, -2])
    np.testing.assert_array_equal(visited, run(rmsprop(0.1), p=0.0).follow([1, -2]))


def test_positional_arguments_are_in_the_order_of_the_page():
    assert rmsprop(0.1, 0.8, 0.5, 1e-6, True, "n") == Rmsprop(
        learning_rate=0.1, rho=0.8, momentum=0.5, epsilon=1e-6, centered=True, namespace="n"
    )


@pytest.mark.parametrize(
    ("argument", "value", "wants"),
    [
        ("learning_rate", -1, "a finite number of 0 or more"),
        ("rho", 1.0, r"a number in \[0, 1\)"),
        ("momentum", 1.5, r"a number in \[0, 1\)"),
        ("epsilon", np.nan, "a finite number of 0 or more"),
    ],
)
def test_an_impossible_hyperparameter_is_refused_when_the_rule_is_made(argument, value, wants):
    with pytest.raises(ValueError, match=rf"Rmsprop: {argument} must be {wants}.*; got {value}"):
        rmsprop(**{argument: value})


def test_centered_is_a_flag():
    with pytest.raises(TypeError, match="Rmsprop: centered must be True or False; got 1"):
        rmsprop(centered=1)
