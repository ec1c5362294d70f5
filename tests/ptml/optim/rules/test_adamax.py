"""AdaMax: a norm without squares, and what it refuses."""

from __future__ import annotations

import numpy as np
import pytest

from ptml.optim import Adamax, adamax, adamax_updates


def test_the_largest_gradient_fades_by_beta2(run):
    problem = run(adamax(0.1, beta2=0.5, epsilon=0.0), p=0.0)
    problem.follow([8.0, 1.0, 0.5, 0.25])
    np.testing.assert_allclose(problem["adamax/infinity_norm/p"], 1.0)


def test_the_largest_float32_gradient_is_an_ordinary_one(run):
    visited = run(adamax(0.1), dtype="float32", p=[0.0]).follow([[3e38], [3e38]])
    np.testing.assert_allclose(visited, [[-0.1], [-0.2]], rtol=1e-6)


def test_the_low_level_function_builds_the_same_steps(run):
    visited = run(lambda loss, parameters: adamax_updates(loss, parameters, 0.1), p=0.0).follow([1, -2])
    np.testing.assert_array_equal(visited, run(adamax(0.1), p=0.0).follow([1, -2]))


def test_positional_arguments_are_in_the_order_of_the_page():
    assert adamax(0.1, 0.8, 0.9, 1e-6, "n") == Adamax(
        learning_rate=0.1, beta1=0.8, beta2=0.9, epsilon=1e-6, namespace="n"
    )


@pytest.mark.parametrize(
    ("argument", "value", "wants"),
    [
        ("learning_rate", np.nan, "a finite number of 0 or more"),
        ("beta1", -0.1, r"a number in \[0, 1\)"),
        ("beta2", 1.0, r"a number in \[0, 1\)"),
        ("epsilon", -1.0, "a finite number of 0 or more"),
    ],
)
def test_an_impossible_hyperparameter_is_refused_when_the_rule_is_made(argument, value, wants):
    with pytest.raises(ValueError, match=rf"Adamax: {argument} must be {wants}.*; got {value}"):
        adamax(**{argument: value})
