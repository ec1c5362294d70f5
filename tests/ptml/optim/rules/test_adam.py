"""Adam and AdamW: closed-form steps, optax's trajectory, half precision, overflow, and what they refuse."""

from __future__ import annotations

import jax
import numpy as np
import optax
import pytest

from ptml.optim import (
    Adam,
    AdamW,
    adam,
    adam_updates,
    adamw,
    adamw_updates,
    chain,
    clip_by_global_norm,
    cosine_schedule,
    scalar_state,
)
from ptml_state import Role, where


def optax_path(optimizer, start, gradients):
    with jax.enable_x64(True):
        position, state = np.asarray(start), optimizer.init(np.asarray(start))
        visited = []
        for gradient in gradients:
            move, state = optimizer.update(np.asarray(gradient), state, position)
            position = optax.apply_updates(position, move)
            visited.append(np.asarray(position))
    return np.array(visited)


def test_a_gradient_as_small_as_epsilon_makes_half_a_step(run):
    np.testing.assert_allclose(run(adam(0.1), p=0.0).follow([1e-8]), [-0.05], rtol=1e-12)


def test_adam_makes_the_steps_of_the_anchors(run):
    expected = [-0.099999999, -0.199999998, -0.192435065]
    np.testing.assert_allclose(run(adam(0.1), p=0.0).follow([1, 1, -2]), expected, atol=5e-10, rtol=0)


def test_a_hundred_steps_of_adam_are_those_of_optax(run):
    gradients = np.random.default_rng(0).normal(size=(100, 3)) * [1e-6, 1.0, 1e4]
    start = np.array([1.0, -2.0, 0.5])
    visited = run(adam(0.03, 0.8, 0.95, 1e-7), p=start).follow(gradients)
    expected = optax_path(optax.adam(0.03, 0.8, 0.95, 1e-7), start, gradients)
    np.testing.assert_allclose(visited, expected, atol=1e-10, rtol=0)


def test_a_hundred_steps_of_adamw_on_a_schedule_are_those_of_optax(run):
    gradients = np.random.default_rng(1).normal(size=(100, 3))
    start = np.array([1.0, -2.0, 0.5])
    visited = run(adamw(cosine_schedule(0.05, 80), 0.2), p=start).follow(gradients)
    ours = optax.adamw(optax.cosine_decay_schedule(0.05, 80), weight_decay=0.2)
    np.testing.assert_allclose(visited, optax_path(ours, start, gradients), atol=1e-10, rtol=0)


def test_adam_behind_a_clip_is_that_of_optax(run):
    gradients = np.random.default_rng(2).normal(size=(50, 3)) * 3
    start = np.zeros(3)
    visited = run(chain(clip_by_global_norm(1.0), adam(0.1)), p=start).follow(gradients)
    ours = optax.chain(optax.clip_by_global_norm(1.0), optax.adam(0.1))
    np.testing.assert_allclose(visited, optax_path(ours, start, gradients), atol=1e-10, rtol=0)


def test_beta_zero_is_the_sign_of_the_gradient(run):
    visited = run(adam(0.1, beta1=0.0, beta2=0.0, epsilon=0.0), p=0.0).follow([3.0, -0.2])
    np.testing.assert_allclose(visited, [-0.1, 0.0], atol=1e-15)


def test_a_symbolic_beta_gives_what_the_number_gives(run):
    gradients = np.random.default_rng(3).normal(size=(20,))
    steered = adam(scalar_state("rate", 0.1), scalar_state("beta1", 0.9), scalar_state("beta2", 0.999))
    visited = run(steered, p=0.0).follow(gradients)
    np.testing.assert_allclose(visited, run(adam(0.1), p=0.0).follow(gradients), rtol=1e-11)


def test_float32_loses_no_digits_in_the_bias_correction(run):
    gradients = np.random.default_rng(4).normal(size=(10, 4))
    exact = run(adam(0.1), p=np.zeros(4)).follow(gradients)
    single = run(adam(0.1), dtype="float32", p=np.zeros(4)).follow(gradients)
    assert single.dtype == np.float32
    np.testing.assert_allclose(single, exact, atol=1.5e-7, rtol=0)


@pytest.mark.parametrize("rule", [adam(0.1), adamw(0.1, weight_decay=0.0)])
def test_a_zero_gradient_in_half_precision_moves_nothing(run, rule):
    problem = run(rule, dtype="float16", p=[1.0, 2.0])
    problem([0.0, 0.0])
    problem([0.0, 0.0])
    np.testing.assert_array_equal(problem["p"], np.array([1, 2], "float16"))
    assert problem["p"].dtype == np.float16
    for address, leaf in problem.program.state.items():
        assert np.isfinite(leaf).all()
        assert leaf.dtype == (np.int64 if address.endswith("step_count") else np.float16)


def test_a_large_finite_gradient_does_not_freeze_a_coordinate_for_ever(run):
    visited = run(adam(0.1), dtype="float32", p=[0.0]).follow([[1e20], [1.0], [1.0], [1.0]])
    np.testing.assert_allclose(visited[:, 0], [-0.1, -0.1670058, -0.2188015, -0.2612294], atol=1e-6, rtol=0)


def test_rewrites_do_not_bring_the_overflow_back(run):
    problem = run(adam(0.1), dtype="float32", options={"backend": "c"}, p=[0.0])
    visited = problem.follow([[1e20], [1.0], [1.0], [1.0]])
    np.testing.assert_allclose(visited[:, 0], [-0.1, -0.1670058, -0.2188015, -0.2612294], atol=1e-6, rtol=0)


def test_decoupled_decay_is_multiplied_by_the_rate(run):
    np.testing.assert_allclose(run(adamw(1e-3, 0.01), p=1.0).follow([0.0]), [0.99999], rtol=1e-15)


def test_only_what_the_mask_selects_decays(run):
    problem = run(adamw(0.1, 0.5, mask=~where("b")), W=[[1.0, 2.0]], b=[1.0])
    problem([[0.0, 0.0]], [0.0])
    np.testing.assert_allclose(problem["W"], [[0.95, 1.9]])
    np.testing.assert_array_equal(problem["b"], [1.0])


def test_a_mask_may_be_a_function_of_a_parameter(run):
    problem = run(adamw(0.1, 0.5, mask=lambda p: p.ndim > 1), W=[[1.0, 2.0]], b=[1.0])
    problem([[0.0, 0.0]], [0.0])
    np.testing.assert_allclose(problem["W"], [[0.95, 1.9]])
    np.testing.assert_array_equal(problem["b"], [1.0])


def test_a_misspelt_mask_is_an_error_and_not_silent(run):
    with pytest.raises(KeyError, match=r"'bias' matches nothing in the parameters"):
        run(adamw(mask=~where("bias")), W=[1.0])


def test_the_state_lies_where_the_archives_have_it(run):
    problem = run(adam(0.1), p=[0.0, 0.0])
    assert list(problem.program.state) == [
        "p",
        "adam/step_count",
        "adam/first_moment/p",
        "adam/second_moment/p",
    ]
    roles = [leaf.role for leaf in problem.program.state.leaves]
    assert roles == [Role.PARAMETER, Role.CLOCK, Role.OPTIMIZER, Role.OPTIMIZER]
    problem([1.0, 2.0])
    assert problem["adam/step_count"] == 1
    np.testing.assert_allclose(problem["adam/first_moment/p"], [0.1, 0.2])
    np.testing.assert_allclose(problem["adam/second_moment/p"], [1e-3, 4e-3])


@pytest.mark.parametrize(("build", "rule"), [(adam_updates, adam), (adamw_updates, adamw)])
def test_the_low_level_functions_build_the_same_steps(run, build, rule):
    visited = run(lambda loss, parameters: build(loss, parameters, 0.1), p=1.0).follow([1, 1, -2])
    np.testing.assert_array_equal(visited, run(rule(0.1), p=1.0).follow([1, 1, -2]))


@pytest.mark.parametrize(
    ("make", "argument", "value", "wants"),
    [
        (adam, "learning_rate", -1, "a finite number of 0 or more"),
        (adam, "learning_rate", np.nan, "a finite number of 0 or more"),
        (adam, "beta1", 1.5, r"a number in \[0, 1\)"),
        (adam, "beta2", 1.0, r"a number in \[0, 1\)"),
        (adam, "beta2", np.nan, r"a number in \[0, 1\)"),
        (adam, "epsilon", -1e-8, "a finite number of 0 or more"),
        (adamw, "weight_decay", -1, "a finite number of 0 or more"),
        (adamw, "learning_rate", np.inf, "a finite number of 0 or more"),
    ],
)
def test_an_impossible_hyperparameter_is_refused_when_the_rule_is_made(make, argument, value, wants):
    with pytest.raises(ValueError, match=rf"{argument} must be {wants}.*; got {value}"):
        make(**{argument: value})


def test_a_mask_that_is_no_selector_is_refused():
    with pytest.raises(TypeError, match="A selector is one of"):
        adamw(mask=3)


def test_positional_arguments_are_in_the_order_of_the_page():
    assert adam(0.1, 0.8, 0.9, 1e-6) == Adam(learning_rate=0.1, beta1=0.8, beta2=0.9, epsilon=1e-6)
    assert adamw(0.1, 0.2, 0.8) == AdamW(learning_rate=0.1, weight_decay=0.2, beta1=0.8)
    assert eval(repr(adamw(0.1, 0.2)), {"AdamW": AdamW}) == adamw(0.1, 0.2)


@pytest.mark.backends("numba", "c", "jax", "mlx")
def test_every_backend_makes_the_same_steps(run, backend):
    rule = chain(clip_by_global_norm(2.0), adam(cosine_schedule(0.1, 4)))
    gradients = [[3.0, 4.0], [0.1, -0.2], [1.0, 1.0]]
    problem = run(rule, dtype="float32", options={"backend": backend}, p=[0.0, 1.0])
    expected = run(rule, p=[0.0, 1.0])
    np.testing.assert_allclose(problem.follow(gradients), expected.follow(gradients), atol=1e-6, rtol=0)
    assert problem["adam/step_count"] == 3
