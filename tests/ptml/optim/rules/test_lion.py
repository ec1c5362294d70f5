"""Lion: signs, its decay, and what it refuses."""

from __future__ import annotations

import numpy as np
import pytest

from ptml.optim import Lion, lion, lion_updates
from ptml_state import where


def test_every_element_moves_by_the_rate_and_zeros_stay(run):
    visited = run(lion(0.1), p=np.zeros(3)).follow([[1e-9, -7.0, 0.0]])
    np.testing.assert_allclose(visited, [[-0.1, 0.1, 0.0]])


def test_only_what_the_mask_selects_decays(run):
    problem = run(lion(0.1, 0.5, mask=~where("b")), W=[[1.0, 2.0]], b=[1.0])
    problem([[0.0, 0.0]], [0.0])
    np.testing.assert_allclose(problem["W"], [[0.95, 1.9]])
    np.testing.assert_array_equal(problem["b"], [1.0])


def test_the_low_level_function_builds_the_same_steps(run):
    visited = run(lambda loss, parameters: lion_updates(loss, parameters, 0.1), p=0.0).follow([1, -2])
    np.testing.assert_array_equal(visited, run(lion(0.1), p=0.0).follow([1, -2]))


def test_positional_arguments_begin_as_those_of_adamw():
    assert lion(0.1, 0.2, 0.8) == Lion(learning_rate=0.1, weight_decay=0.2, beta1=0.8)


@pytest.mark.parametrize(
    ("argument", "value", "wants"),
    [
        ("learning_rate", -1, "a finite number of 0 or more"),
        ("weight_decay", np.inf, "a finite number of 0 or more"),
        ("beta1", 1.0, r"a number in \[0, 1\)"),
        ("beta2", -0.5, r"a number in \[0, 1\)"),
    ],
)
def test_an_impossible_hyperparameter_is_refused_when_the_rule_is_made(argument, value, wants):
    with pytest.raises(ValueError, match=rf"Lion: {argument} must be {wants}.*; got {value}"):
        lion(**{argument: value})
