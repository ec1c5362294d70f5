"""Nadam: the look-ahead's correction, and what it refuses."""

from __future__ import annotations

import numpy as np
import pytest

from ptml.optim import Nadam, nadam, nadam_updates


def test_the_look_ahead_is_corrected_one_step_further(run):
    # Corrected like the gradient, the first step would be 1.9 times the rate.
    expected = [-0.14736841957894742, -0.2630996283653129, -0.37092177587787073]
    np.testing.assert_allclose(run(nadam(0.1), p=0.0).follow([1, 1, 1]), expected, rtol=1e-13)


def test_the_low_level_function_builds_the_same_steps(run):
    visited = run(lambda loss, parameters: nadam_updates(loss, parameters, 0.1), p=0.0).follow([1, -2])
    np.testing.assert_array_equal(visited, run(nadam(0.1), p=0.0).follow([1, -2]))


def test_positional_arguments_are_in_the_order_of_the_page():
    assert nadam(0.1, 0.8, 0.9, 1e-6, "n") == Nadam(
        learning_rate=0.1, beta1=0.8, beta2=0.9, epsilon=1e-6, namespace="n"
    )


@pytest.mark.parametrize(
    ("argument", "value", "wants"),
    [
        ("learning_rate", -1, "a finite number of 0 or more"),
        ("beta1", 1.0, r"a number in \[0, 1\)"),
        ("beta2", np.nan, r"a number in \[0, 1\)"),
        ("epsilon", np.inf, "a finite number of 0 or more"),
    ],
)
def test_an_impossible_hyperparameter_is_refused_when_the_rule_is_made(argument, value, wants):
    with pytest.raises(ValueError, match=rf"Nadam: {argument} must be {wants}.*; got {value}"):
        nadam(**{argument: value})
