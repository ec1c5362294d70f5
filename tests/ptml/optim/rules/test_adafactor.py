"""Adafactor: what is kept, optax's trajectory, overflow, and what it refuses."""

from __future__ import annotations

import jax
import numpy as np
import optax
import pytest

from ptml.optim import Adafactor, adafactor, adafactor_updates
from ptml_state import where


def shapes(problem):
    state = problem.program.state
    return {a: leaf.shape for a, leaf in state.items() if a.startswith("adafactor/") and "count" not in a}


def test_large_matrices_keep_a_row_and_a_column_and_everything_else_is_whole(run):
    small, large, kernel = np.zeros((127, 500)), np.zeros((128, 200)), np.zeros((3, 3, 128, 130))
    assert shapes(run(adafactor(), a=small, b=large, c=kernel, d=np.zeros(1000))) == {
        "adafactor/root_mean_square/a": (127, 500),
        "adafactor/row_rms/b": (128,),
        "adafactor/column_rms/b": (200,),
        "adafactor/row_rms/c": (3, 3, 128),
        "adafactor/column_rms/c": (3, 3, 130),
        "adafactor/root_mean_square/d": (1000,),
    }


def test_rows_and_columns_are_root_mean_squares(run):
    gradient = np.random.default_rng(0).normal(size=(3, 4))
    problem = run(adafactor(min_size_to_factor=2), p=np.ones((3, 4)))
    problem(gradient)
    np.testing.assert_allclose(problem["adafactor/row_rms/p"], np.sqrt((gradient**2).mean(1)), rtol=1e-14)
    np.testing.assert_allclose(problem["adafactor/column_rms/p"], np.sqrt((gradient**2).mean(0)), rtol=1e-14)


def test_a_hundred_steps_are_those_of_optax_as_far_as_its_float32_decay_goes(run):
    gradients = np.random.default_rng(0).normal(size=(100, 4, 3))
    start = np.random.default_rng(1).normal(size=(4, 3))
    visited = run(adafactor(0.01, min_size_to_factor=2), p=start).follow(gradients)
    with jax.enable_x64(True):
        optimizer = optax.adafactor(0.01, min_dim_size_to_factor=2)
        position, state = start, optimizer.init(start)
        for expected, gradient in zip(visited, gradients, strict=True):
            move, state = optimizer.update(gradient, state, position)
            position = np.asarray(optax.apply_updates(position, move))
            np.testing.assert_allclose(expected, position, rtol=1e-6, atol=1e-8)


@pytest.mark.parametrize("least", [2, 128])
def test_a_gradient_whose_square_is_no_float_does_not_freeze_anything(run, least):
    gradients = np.ones((3, 2, 3))
    gradients[0] *= 1e30
    gradients[0, 0, 0] = 1.0
    rule = adafactor(0.1, min_size_to_factor=least)
    problem = run(rule, dtype="float32", options={"backend": "numba"}, p=np.ones((2, 3)))
    expected = run(rule, p=np.ones((2, 3))).follow(gradients)
    np.testing.assert_allclose(problem.follow(gradients), expected, rtol=1e-5)


def test_the_bound_holds_for_the_root_mean_square_of_a_step(run):
    for threshold, expected in ((0.5, 0.05), (None, 0.1)):
        rule = adafactor(0.1, clipping_threshold=threshold, scale_by_parameter=False)
        [step] = run(rule, p=np.zeros(2)).follow([[3.0, -4.0]])
        np.testing.assert_allclose(np.abs(step), expected, rtol=1e-12)


def test_decay_is_multiplied_by_the_rate_and_spares_what_the_mask_leaves_out(run):
    problem = run(adafactor(0.1, weight_decay=0.5, mask=~where("b")), W=[[1.0, 2.0]], b=[1.0])
    problem([[0.0, 0.0]], [0.0])
    np.testing.assert_allclose(problem["W"], [[0.95, 1.9]])
    np.testing.assert_array_equal(problem["b"], [1.0])


def test_the_paper_s_rate_falls_with_the_root_of_the_steps(run):
    problem = run(adafactor(scale_by_parameter=False), p=np.zeros(1))
    visited = problem.follow(np.ones((40_000 // 100, 1)))
    np.testing.assert_allclose(visited[-1], -0.01 * 400, rtol=1e-9)
    problem.program.store.set({"adafactor/step_count": 39_999})
    problem([1.0])
    np.testing.assert_allclose(problem["p"] - visited[-1], -0.005, rtol=1e-9)


def test_the_low_level_function_builds_the_same_steps(run):
    visited = run(lambda loss, ps: adafactor_updates(loss, ps, 0.1), p=[1.0]).follow([[1], [-2]])
    np.testing.assert_array_equal(visited, run(adafactor(0.1), p=[1.0]).follow([[1], [-2]]))


def test_positional_arguments_begin_with_rate_decay_and_bound():
    assert adafactor(0.1, 0.7, None) == Adafactor(learning_rate=0.1, decay_rate=0.7, clipping_threshold=None)


@pytest.mark.parametrize(
    ("argument", "value", "wants"),
    [
        ("learning_rate", -1, "a finite number of 0 or more"),
        ("decay_rate", 0.0, "a finite number above 0"),
        ("clipping_threshold", 0.0, "a number above 0, or None"),
        ("beta1", 1.0, r"a number in \[0, 1\)"),
        ("weight_decay", np.nan, "a finite number of 0 or more"),
        ("min_size_to_factor", 0, "a positive integer"),
        ("epsilon", 0.0, "a finite number above 0"),
        ("epsilon_scale", -1.0, "a finite number above 0"),
    ],
)
def test_an_impossible_hyperparameter_is_refused_when_the_rule_is_made(argument, value, wants):
    with pytest.raises(ValueError, match=rf"Adafactor: {argument} must be {wants}.*; got {value}"):
        adafactor(**{argument: value})
