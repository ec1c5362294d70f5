"""Positions that are added to vectors."""

from __future__ import annotations

import numpy as np
import pytensor
import pytest
from pytensor.compile.mode import Mode

import ptml
from ptml.layers import Input, LearnedPositions, RotaryPositions, SinusoidalPositions, alibi_bias

PYTHON = Mode(linker="py", optimizer="fast_compile")


@pytest.mark.parametrize("shape", [(2, 5), (None, 5), (None, None)])
def test_an_odd_width_ends_in_a_sine(shape):
    X = Input("X", shape)
    y = ptml.function([X], SinusoidalPositions("positions", n_features=5)(X), mode=PYTHON)(np.zeros((2, 5)))
    np.testing.assert_array_equal(y[0], [0, 1, 0, 1, 0])
    np.testing.assert_allclose(
        y[1], [0.8414709848, 0.5403023059, 0.0251162229, 0.9996845379, 0.0006309573], atol=5e-11
    )


def test_a_known_length_is_rounded_once_in_float32(float32):
    X = Input("X", (5000, 4))
    y = ptml.function([X], SinusoidalPositions("positions", n_features=4)(X), mode=PYTHON)(
        np.zeros((5000, 4), "float32")
    )
    assert y.dtype == "float32"
    t = np.arange(5000.0)
    np.testing.assert_allclose(
        y, np.stack([f(t / b) for b in (1, 100) for f in (np.sin, np.cos)], 1), atol=1e-7
    )


def test_sequences_longer_than_the_table_are_refused_before_and_in_the_run():
    positions = LearnedPositions("positions", n_positions=3, n_features=2)
    with pytest.raises(
        ValueError, match=r"positions \(LearnedPositions\) has 3 positions; got \(None, 4, 2\): axis -2 is 4"
    ):
        positions(Input("X", (None, 4, 2)))
    X = Input("X", (None, None, 2))
    program = ptml.function([X], positions(X), seed=0, mode=PYTHON)
    W = program.state["positions/W"]
    for length in range(4):
        np.testing.assert_array_equal(program(np.ones((2, length, 2))), np.ones((2, 1, 1)) + W[None, :length])
    message = r"positions \(LearnedPositions\): there is no row 3 in its table of 3"
    with pytest.raises(ValueError, match=message):
        program(np.ones((2, 4, 2)))


@pytest.mark.backends("numba", "c", "jax", "mlx")
def test_no_backend_makes_a_position_up(backend, float32):
    X = Input("X", (None, None, 2))
    program = ptml.function(
        [X], LearnedPositions("positions", n_positions=3, n_features=2)(X), seed=0, backend=backend
    )
    W, x = program.state["positions/W"], np.ones((2, 2, 2), "float32")
    np.testing.assert_array_equal(program(x), x + W[:2])
    x = np.ones((1, 4, 2), "float32")
    if backend in ("numba", "c"):
        with pytest.raises(
            ValueError, match=r"positions \(LearnedPositions\): there is no row 3 in its table of 3"
        ):
            program(x)
    else:
        np.testing.assert_array_equal(program(x)[0], [*(1 + W), [np.nan, np.nan]])


@pytest.mark.backends("numba", "c", "jax", "mlx")
def test_a_length_may_be_unknown_on_every_backend(backend, float32):
    X = Input("X", (None, None, 4))
    layers = [SinusoidalPositions("sine", n_features=4), RotaryPositions("rotary")]
    outputs = [*(layer(X) for layer in layers), alibi_bias(1, X.shape[1])]
    program = ptml.function([X], outputs, backend=backend)
    x = np.ones((2, 3, 4), "float32")
    t = np.arange(3.0)[:, None] * np.array([1, 1 / 100])
    added, turned, bias = program(x)
    np.testing.assert_allclose(added, x + np.stack([np.sin(t), np.cos(t)], -1).reshape(3, 4), atol=1e-6)
    both = np.concatenate([np.cos(t) - np.sin(t), np.cos(t) + np.sin(t)], -1)
    np.testing.assert_allclose(turned, np.broadcast_to(both, x.shape), atol=1e-6)
    np.testing.assert_array_equal(bias[0] * 256, [[0, -1, -2], [-1, 0, -1], [-2, -1, 0]])


@pytest.mark.parametrize("kind", [SinusoidalPositions, LearnedPositions])
def test_a_wrong_width_is_refused_by_name(kind):
    options = {"n_positions": 9} if kind is LearnedPositions else {}
    layer = kind("positions", n_features=4, **options)
    with pytest.raises(
        ValueError,
        match=r"positions \(.*\) takes \(\.\.\., length, 4 features\); got \(None, 7, 3\): axis -1 is 3",
    ):
        layer(Input("X", (None, 7, 3)))
    with pytest.raises(ValueError, match=r"positions \(.*\) takes .* got 1 axes"):
        layer(Input("X", (4,)))
    with pytest.raises(TypeError, match=r"positions \(.*\) computes with floating-point numbers"):
        layer(Input("X", (None, 7, 4), dtype="int64"))


def test_only_positions_that_are_there_take_a_gradient():
    positions = LearnedPositions("positions", n_positions=4, n_features=1)
    X = Input("X", (None, None, 1))
    gradient = ptml.function([X], pytensor.grad(positions(X).sum(), positions.W), seed=0, mode=PYTHON)
    np.testing.assert_array_equal(gradient(np.zeros((5, 2, 1))), [[5], [5], [0], [0]])
