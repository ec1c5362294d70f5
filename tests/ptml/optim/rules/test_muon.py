"""Muon: singular values near to 1, scale invariance, and what it refuses."""

from __future__ import annotations

import numpy as np
import pytest

from ptml.optim import Muon, muon, muon_updates


@pytest.mark.parametrize("shape", [(6, 6), (3, 8), (8, 3)])
def test_singular_values_of_a_step_lie_near_to_one(run, shape):
    gradient = np.random.default_rng(0).normal(size=shape)
    [step] = run(muon(1.0), p=np.zeros(shape)).follow([gradient])
    stretch = np.sqrt(max(1, shape[1] / shape[0]))
    values = np.linalg.svd(step / stretch, compute_uv=False)
    assert ((values > 0.6) & (values < 1.3)).all()
    # It turns no singular vector: the polar factor is the same.
    u, _, w = np.linalg.svd(-gradient, full_matrices=False)
    assert np.sum(u @ w * step) / stretch > 0.6 * min(shape)


@pytest.mark.parametrize("size", [1e-30, 1e20])
def test_the_size_of_a_gradient_does_not_matter(run, size):
    gradient = np.random.default_rng(0).normal(size=(3, 4))
    problem = run(muon(0.1), dtype="float32", options={"backend": "numba"}, p=np.zeros((3, 4)))
    problem(gradient * size)
    [expected] = run(muon(0.1), p=np.zeros((3, 4))).follow([gradient])
    np.testing.assert_allclose(problem["p"], expected, atol=1e-5)


def test_a_gradient_of_zero_and_a_matrix_of_nothing_stay_where_they_are(run):
    problem = run(muon(0.1), p=np.ones((2, 3)), q=np.zeros((3, 0)))
    problem(np.zeros((2, 3)), np.zeros((3, 0)))
    np.testing.assert_array_equal(problem["p"], np.ones((2, 3)))


def test_without_nesterov_the_velocity_itself_is_made_orthogonal(run):
    gradients = np.random.default_rng(0).normal(size=(2, 3, 3))
    visited = run(muon(0.1, 0.5, nesterov=False), p=np.zeros((3, 3))).follow(gradients)
    [expected] = run(muon(0.1, 0.0, nesterov=False), p=np.zeros((3, 3))).follow(
        [0.5 * gradients[0] + gradients[1]]
    )
    np.testing.assert_allclose(visited[1] - visited[0], expected, atol=1e-14)


def test_what_is_no_matrix_is_refused_with_its_address_and_the_way_out(run):
    with pytest.raises(
        ValueError,
        match=r"Muon moves matrices, and b is none\..*partition\(\{'\*\*/W': muon\(0\.02\)\}, otherwise",
    ):
        run(muon(), W=[[1.0]], b=[1.0])
    with pytest.raises(ValueError, match=r"Muon moves matrices, and b, k are none"):
        run(muon(), W=[[1.0]], b=[1.0], k=np.zeros((2, 2, 2, 2)))


def test_the_low_level_function_builds_the_same_steps(run):
    gradients = np.random.default_rng(0).normal(size=(2, 3, 2))
    visited = run(lambda loss, ps: muon_updates(loss, ps, 0.1), p=np.ones((3, 2))).follow(gradients)
    np.testing.assert_array_equal(visited, run(muon(0.1), p=np.ones((3, 2))).follow(gradients))


def test_positional_arguments_begin_as_those_of_sgd():
    assert muon(0.1, 0.9, False) == Muon(learning_rate=0.1, momentum=0.9, nesterov=False)


@pytest.mark.parametrize(
    ("argument", "value", "wants"),
    [
        ("learning_rate", -1, "a finite number of 0 or more"),
        ("momentum", 1.0, r"a number in \[0, 1\)"),
        ("weight_decay", -0.1, "a finite number of 0 or more"),
        ("n_steps", 0, "a positive integer"),
    ],
)
def test_an_impossible_hyperparameter_is_refused_when_the_rule_is_made(argument, value, wants):
    with pytest.raises(ValueError, match=rf"Muon: {argument} must be {wants}.*; got {value}"):
        muon(**{argument: value})
