"""AdaGrad: the root of the sum, which does not overflow; its start; and what it refuses."""

from __future__ import annotations

import numpy as np
import pytest

from ptml.optim import Adagrad, adagrad, adagrad_updates


@pytest.mark.parametrize("options", [None, {"backend": "numba"}, {"backend": "c"}])
def test_a_gradient_whose_square_is_no_float_does_not_freeze_a_coordinate(run, options):
    gradients = [[1e20], [1.0], [1.0], [1.0]]
    problem = run(adagrad(0.1), dtype="float32", options=options, p=[0.0])
    np.testing.assert_allclose(problem.follow(gradients), [[-0.1]] * 4, rtol=1e-6)
    assert problem["adagrad/root_sum_of_squares/p"] == np.float32(1e20)
    later = run(adagrad(0.1), dtype="float32", options=options, p=[0.0])
    np.testing.assert_allclose(later.follow([[3e20], [4e20]]), [[-0.1], [-0.18]], rtol=1e-6)


def test_what_is_kept_is_the_root_of_the_sum(run):
    gradients = np.random.default_rng(0).normal(size=(100, 3)) * [1e-6, 1.0, 1e6]
    problem = run(adagrad(0.1, initial_accumulator=4.0), p=np.zeros(3))
    np.testing.assert_array_equal(problem["adagrad/root_sum_of_squares/p"], 2.0)
    problem.follow(gradients)
    root = np.sqrt(4 + (gradients**2).sum(0))
    np.testing.assert_allclose(problem["adagrad/root_sum_of_squares/p"], root, rtol=1e-13)


def test_the_low_level_function_builds_the_same_steps(run):
    def rule(loss, parameters):
        return adagrad_updates(loss, parameters, 0.1, initial_accumulator=1.0)

    visited = run(rule, p=0.0).follow([1, -2])
    np.testing.assert_array_equal(visited, run(adagrad(0.1, initial_accumulator=1.0), p=0.0).follow([1, -2]))


def test_positional_arguments_are_in_the_order_of_the_page():
    assert adagrad(0.1, 1e-6, "n") == Adagrad(learning_rate=0.1, epsilon=1e-6, namespace="n")
    with pytest.raises(TypeError, match="takes from 1 to 4 positional arguments"):
        adagrad(0.1, 1e-6, "n", 0.1)


@pytest.mark.parametrize(
    ("argument", "value", "wants"),
    [
        ("learning_rate", np.inf, "a finite number of 0 or more"),
        ("epsilon", -1e-8, "a finite number of 0 or more"),
        ("initial_accumulator", -1.0, "a number of 0 or more"),
    ],
)
def test_an_impossible_hyperparameter_is_refused_when_the_rule_is_made(argument, value, wants):
    with pytest.raises(ValueError, match=rf"Adagrad: {argument} must be {wants}.*; got {value}"):
        adagrad(**{argument: value})
