"""AdaDelta: steps in the parameter's units, roots that do not overflow, and what it refuses."""

from __future__ import annotations

import numpy as np
import pytest

from ptml.optim import Adadelta, adadelta, adadelta_updates


def test_what_is_kept_is_the_roots_of_both_means(run):
    problem = run(adadelta(), p=0.0)
    [position] = problem.follow([2.0])
    np.testing.assert_allclose(problem["adadelta/root_mean_square/p"], np.sqrt(0.1 * 4), rtol=1e-14)
    expected = np.sqrt(0.1) * abs(position)
    np.testing.assert_allclose(problem["adadelta/root_mean_square_step/p"], expected, rtol=1e-14)


def test_a_gradient_whose_square_is_no_float_does_not_freeze_a_coordinate(run):
    gradients = [[1e30], [1.0], [1.0]]
    single = run(adadelta(), dtype="float32", options={"backend": "c"}, p=[0.0]).follow(gradients)
    np.testing.assert_allclose(single, run(adadelta(), p=[0.0]).follow(gradients), rtol=1e-6)


def test_the_low_level_function_builds_the_same_steps(run):
    visited = run(lambda loss, parameters: adadelta_updates(loss, parameters), p=0.0).follow([1, -2])
    np.testing.assert_array_equal(visited, run(adadelta(), p=0.0).follow([1, -2]))


def test_positional_arguments_are_in_the_order_of_the_page():
    assert adadelta(0.1, 0.8, 1e-5, "n") == Adadelta(learning_rate=0.1, rho=0.8, epsilon=1e-5, namespace="n")


@pytest.mark.parametrize(
    ("argument", "value", "wants"),
    [
        ("learning_rate", -1, "a finite number of 0 or more"),
        ("rho", 1.0, r"a number in \[0, 1\)"),
        ("epsilon", 0.0, "a finite number above 0"),
    ],
)
def test_an_impossible_hyperparameter_is_refused_when_the_rule_is_made(argument, value, wants):
    with pytest.raises(ValueError, match=rf"Adadelta: {argument} must be {wants}.*; got {value}"):
        adadelta(**{argument: value})
