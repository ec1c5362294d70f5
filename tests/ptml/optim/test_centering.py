"""Gradient centralization: each unit's weights lose the mean of their gradient."""

from __future__ import annotations

import numpy as np
import pytensor.tensor as pt
import pytest

from ptml.optim import Centralize, centralize, chain, sgd


def test_the_columns_of_a_matrix_lose_their_means_and_a_bias_stays(run):
    problem = run(chain(centralize(), sgd(1.0)), W=np.zeros((2, 3)), b=np.zeros(3), s=0.0)
    problem([[1.0, 2.0, 3.0], [4.0, 5.0, 7.0]], [1.0, 2.0, 3.0], 5.0)
    np.testing.assert_allclose(problem["W"], [[1.5, 1.5, 2.0], [-1.5, -1.5, -2.0]])
    np.testing.assert_array_equal(problem["b"], [-1.0, -2.0, -3.0])
    assert problem["s"] == -5.0


@pytest.mark.parametrize("shape", [(3, 2, 4), (2, 2, 3, 4)])
def test_a_kernel_loses_the_mean_of_each_output_channel(run, shape):
    gradient = np.random.default_rng(0).normal(size=shape)
    problem = run(chain(centralize(), sgd(1.0)), dtype="float32", W=np.zeros(shape))
    problem(gradient)
    axes = tuple(range(len(shape) - 1))
    np.testing.assert_allclose(problem["W"], gradient.mean(axis=axes, keepdims=True) - gradient, atol=1e-6)
    assert problem["W"].dtype == np.float32


def test_it_agrees_with_optax_where_the_output_is_optaxs_leading_axis(new_parameter):
    jax, optax = pytest.importorskip("jax"), pytest.importorskip("optax")
    gradient = np.random.default_rng(0).normal(size=(4, 3))
    p = new_parameter(gradient)
    ours = centralize()([pt.constant(gradient)], [p]).amounts[p].eval()
    with jax.enable_x64(True):
        theirs, _ = optax.centralize().update(jax.numpy.asarray(gradient.T), optax.EmptyState())
        theirs = np.asarray(theirs)
    np.testing.assert_allclose(ours, theirs.T, rtol=1e-12, atol=1e-15)


def test_it_is_a_value():
    assert centralize() == Centralize()
    assert repr(centralize()) == "Centralize()"
