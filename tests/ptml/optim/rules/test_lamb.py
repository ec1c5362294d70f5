"""LAMB: steps in proportion to parameters, and what it refuses."""

from __future__ import annotations

import numpy as np
import pytest

from ptml.optim import Lamb, lamb, lamb_updates
from ptml_state import where


def test_each_parameter_moves_by_the_rate_times_its_own_norm(run):
    problem = run(lamb(0.01), W=[[3.0, 4.0]], b=[0.5])
    problem([[1.0, -20.0]], [1e-3])
    np.testing.assert_allclose(np.linalg.norm(problem["W"] - [[3.0, 4.0]]), 0.05, rtol=1e-12)
    np.testing.assert_allclose(problem["b"], [0.495], rtol=1e-12)


def test_a_parameter_or_a_direction_of_zero_moves_as_adam_would(run):
    problem = run(lamb(0.01, epsilon=0.0), p=[0.0, 0.0], q=[2.0, 1.0], r=np.zeros((3, 0)))
    problem([1.0, -1.0], [1.0, 1.0], np.zeros((3, 0)))
    np.testing.assert_allclose(problem["p"], [-0.01, 0.01])
    unmoved = run(lamb(0.01), q=[2.0, 1.0])
    unmoved([0.0, 0.0])
    np.testing.assert_array_equal(unmoved["q"], [2.0, 1.0])


def test_a_parameter_whose_square_is_no_float32_has_a_norm(run):
    problem = run(lamb(0.1), dtype="float32", options={"backend": "numba"}, p=[3e20, 4e20])
    problem([1.0, 1.0])
    np.testing.assert_allclose(problem["p"], [3e20 - 0.5e20 / 2**0.5, 4e20 - 0.5e20 / 2**0.5], rtol=1e-5)


def test_only_what_the_mask_selects_decays(run):
    problem = run(lamb(0.1, 0.5, mask=~where("b")), W=[[1.0, 2.0]], b=[1.0])
    problem([[0.0, 0.0]], [0.0])
    np.testing.assert_allclose(problem["W"], [[0.9, 1.8]])
    np.testing.assert_array_equal(problem["b"], [1.0])


def test_the_low_level_function_builds_the_same_steps(run):
    visited = run(lambda loss, parameters: lamb_updates(loss, parameters, 0.1), p=1.0).follow([1, -2])
    np.testing.assert_array_equal(visited, run(lamb(0.1), p=1.0).follow([1, -2]))


def test_positional_arguments_begin_as_those_of_adamw():
    assert lamb(0.1, 0.2, 0.8) == Lamb(learning_rate=0.1, weight_decay=0.2, beta1=0.8)


@pytest.mark.parametrize(
    ("argument", "value", "wants"),
    [
        ("learning_rate", -1, "a finite number of 0 or more"),
        ("weight_decay", -1, "a finite number of 0 or more"),
        ("beta1", 1.0, r"a number in \[0, 1\)"),
        ("epsilon", np.nan, "a finite number of 0 or more"),
    ],
)
def test_an_impossible_hyperparameter_is_refused_when_the_rule_is_made(argument, value, wants):
    with pytest.raises(ValueError, match=rf"Lamb: {argument} must be {wants}.*; got {value}"):
        lamb(**{argument: value})
