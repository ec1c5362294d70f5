"""Rprop: sizes that signs decide on, their bounds, rates that change, and what it refuses."""

from __future__ import annotations

import numpy as np
import pytest

from ptml.optim import Rprop, linear_schedule, rprop, rprop_updates, scalar_state


def test_a_turn_halves_the_size_and_waits_a_step(run):
    expected = [-0.01, -0.022, -0.022, -0.016]
    np.testing.assert_allclose(run(rprop(0.01), p=0.0).follow([1, 1, -1, -1]), expected, rtol=1e-14)


def test_the_size_of_a_gradient_does_not_matter(run):
    one = run(rprop(0.01), p=0.0).follow([1, 1, -1, -1])
    np.testing.assert_array_equal(run(rprop(0.01), p=0.0).follow([1e-300, 1e300, -1e-9, -7]), one)


def test_sizes_stay_within_their_bounds(run):
    visited = run(rprop(1.0, 0.5, 2.0, 0.5, 3.0), p=0.0).follow([1, 1, 1, -1, 1, -1, -1, 1, -1, 1])
    np.testing.assert_allclose(visited, [-1, -3, -6, -6, -7.5, -7.5, -6.75, -6.75, -6.25, -6.25])


def test_a_rate_that_changes_scales_the_sizes_and_at_zero_nothing_moves(run):
    problem = run(rprop(linear_schedule(0.1, 2)), p=0.0)
    np.testing.assert_allclose(problem.follow([1, 1, 1, 1]), [-0.1, -0.16, -0.16, -0.16], rtol=1e-12)
    assert np.isfinite(problem["rprop/relative_step/p"])
    assert problem["rprop/step_count"] == 4


def test_the_low_level_function_builds_the_same_steps(run):
    visited = run(lambda loss, parameters: rprop_updates(loss, parameters, 0.1), p=0.0).follow([1, -2])
    np.testing.assert_array_equal(visited, run(rprop(0.1), p=0.0).follow([1, -2]))


def test_positional_arguments_are_in_the_order_of_the_page():
    assert rprop(0.1, 0.4, 1.3, 1e-5, 2.0, "n") == Rprop(
        learning_rate=0.1, eta_minus=0.4, eta_plus=1.3, min_step=1e-5, max_step=2.0, namespace="n"
    )


@pytest.mark.parametrize(
    ("argument", "value", "wants"),
    [
        ("learning_rate", -1, "a finite number of 0 or more"),
        ("eta_minus", 2, "a number between 0 and 1"),
        ("eta_minus", 0, "a number between 0 and 1"),
        ("eta_plus", 1.0, "a finite number above 1"),
        ("eta_plus", np.nan, "a finite number above 1"),
        ("min_step", -1e-6, "a finite number of 0 or more"),
        ("max_step", 0, "a finite number above 0"),
    ],
)
def test_an_impossible_hyperparameter_is_refused_when_the_rule_is_made(argument, value, wants):
    with pytest.raises(ValueError, match=rf"Rprop: {argument} must be {wants}.*; got {value}"):
        rprop(**{argument: value})


def test_bounds_that_cross_are_refused_when_the_rule_is_made_or_when_the_graph_runs(run):
    with pytest.raises(ValueError, match=r"min_step must not be above max_step; got 2\.0 and 1\.0"):
        rprop(min_step=2.0, max_step=1.0)
    problem = run(rprop(min_step=scalar_state("least", 1.0), max_step=1.0), p=0.0)
    problem(1.0)
    problem.program.store.set({"least": 2.0})
    with pytest.raises(ValueError, match="min_step must not be above max_step, and these"):
        problem(1.0)
