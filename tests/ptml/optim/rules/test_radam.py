"""RAdam: when the root is trusted, a rectifier without cancellation, and what it refuses."""

from __future__ import annotations

import numpy as np
import pytensor.tensor as pt
import pytest

from ptml.optim import Radam, radam, radam_updates
from ptml.optim.rules.radam import _lengths


@pytest.mark.parametrize(("threshold", "momentum_steps"), [(5.0, 5), (4.0, 4)])
def test_the_first_steps_are_momentum_alone(run, threshold, momentum_steps):
    visited = run(radam(0.1, threshold=threshold), p=0.0).follow([100.0] * 8)
    moves = -np.diff(visited, prepend=0.0)
    np.testing.assert_allclose(moves[:momentum_steps], 10.0, rtol=1e-12)
    assert (moves[momentum_steps:] < 0.1).all()


@pytest.mark.parametrize(("dtype", "tolerance"), [("float32", 2e-6), ("float64", 1e-11)])
@pytest.mark.parametrize("beta", [0.0, 0.5, 0.9, 0.999, 0.99999])
def test_lengths_are_those_of_the_paper_without_its_cancellation(evaluate, dtype, tolerance, beta):
    steps = np.array([1, 2, 5, 6, 7, 100, 10_000, 10_000_000])
    lengths = evaluate([part for t in steps for part in _lengths(beta, pt.constant(t), dtype)])
    wide, t = np.longdouble(beta), np.longdouble(steps)
    last = 2 / (1 - wide) - 1
    now = last - 2 * t * wide**t / (1 - wide**t)
    np.testing.assert_allclose(lengths[::2], np.full(len(steps), float(last)), rtol=tolerance)
    # With so long a memory even the paper's formula in 80 bits is short of digits.
    np.testing.assert_allclose(lengths[1::2], now.astype(float), rtol=max(tolerance, 1e-9))
    assert {str(np.asarray(length).dtype) for length in lengths} == {dtype}


def test_float32_loses_no_digits_in_the_rectifier(run):
    gradients = np.random.default_rng(4).normal(size=(20, 4))
    exact = run(radam(0.1), p=np.zeros(4)).follow(gradients)
    single = run(radam(0.1), dtype="float32", p=np.zeros(4)).follow(gradients)
    np.testing.assert_allclose(single, exact, atol=5e-7, rtol=0)


def test_the_low_level_function_builds_the_same_steps(run):
    visited = run(lambda loss, parameters: radam_updates(loss, parameters, 0.1), p=0.0).follow([1, -2])
    np.testing.assert_array_equal(visited, run(radam(0.1), p=0.0).follow([1, -2]))


def test_positional_arguments_begin_as_those_of_adam():
    assert radam(0.1, 0.8, 0.9, 1e-6, 4.0) == Radam(
        learning_rate=0.1, beta1=0.8, beta2=0.9, epsilon=1e-6, threshold=4.0
    )


@pytest.mark.parametrize(
    ("argument", "value", "wants"),
    [
        ("learning_rate", -1, "a finite number of 0 or more"),
        ("beta1", 1.0, r"a number in \[0, 1\)"),
        ("beta2", 1.0, r"a number in \[0, 1\)"),
        ("epsilon", -1.0, "a finite number of 0 or more"),
        ("threshold", 3.9, "a finite number of 4 or more"),
    ],
)
def test_an_impossible_hyperparameter_is_refused_when_the_rule_is_made(argument, value, wants):
    with pytest.raises(ValueError, match=rf"Radam: {argument} must be {wants}.*; got {value}"):
        radam(**{argument: value})
