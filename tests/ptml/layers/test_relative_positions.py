"""Rotary positions and linear biases."""

from __future__ import annotations

import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest
from pytensor.compile.mode import Mode

import ptml
from ptml.layers import Input, RotaryPositions, alibi_bias

PYTHON = Mode(linker="py", optimizer="fast_compile")


def _turned(x, positions, interleaved=False):
    """Turn pairs as complex numbers; positions have the axes of x before the features."""
    n = x.shape[-1]
    one, other = (x[..., 0::2], x[..., 1::2]) if interleaved else (x[..., : n // 2], x[..., n // 2 :])
    z = (one + 1j * other) * np.exp(1j * positions[..., None] * 10000.0 ** (-np.arange(0, n, 2) / n))
    if interleaved:
        return np.stack([z.real, z.imag], -1).reshape(x.shape)
    return np.concatenate([z.real, z.imag], -1)


def test_the_product_of_query_and_key_depends_on_their_distance_alone():
    X, positions = Input("X", (None, 8)), pt.vector("positions", dtype="int64")
    program = ptml.function([X, positions], RotaryPositions()(X, positions=positions), mode=PYTHON)
    q, k = np.random.default_rng(0).normal(size=(2, 8))
    products = []
    for start in (0, 5, 100):
        a, b = program(np.stack([q, k]), [start + 3, start])
        products.append(a @ b)
    np.testing.assert_allclose(products, products[0], rtol=1e-11)


@pytest.mark.parametrize("interleaved", [False, True])
@pytest.mark.parametrize("shape", [(2, 3, 5, 6), (None, None, None, 6)])
def test_heads_may_stand_before_or_after_the_length(interleaved, shape):
    X = Input("X", shape)
    before = RotaryPositions("before", interleaved=interleaved)(X)
    after = RotaryPositions("after", interleaved=interleaved, axis=-3)(X)
    x = np.random.default_rng(0).normal(size=(2, 3, 5, 6))
    got = ptml.function([X], [before, after], mode=PYTHON)(x)
    np.testing.assert_allclose(got[0], _turned(x, np.arange(5.0), interleaved), rtol=1e-11)
    np.testing.assert_allclose(got[1], _turned(x, np.arange(3.0)[:, None], interleaved), rtol=1e-11)


@pytest.mark.parametrize("axis", [-2, -3])
def test_each_example_may_have_positions_of_its_own(axis):
    X, positions = Input("X", (None, None, None, 4)), pt.matrix("positions", dtype="int64")
    program = ptml.function([X, positions], RotaryPositions(axis=axis)(X, positions=positions), mode=PYTHON)
    x = np.random.default_rng(0).normal(size=(2, 3, 3, 4))
    at = np.array([[0, 1, 2], [7, 8, 9]])
    wanted = _turned(x, at[:, None, :] if axis == -2 else at[:, :, None])
    np.testing.assert_allclose(program(x, at), wanted, rtol=1e-11)


def test_half_precision_is_turned_in_single():
    with pytensor.config.change_flags(floatX="float16"):
        X = Input("X", (2000, 2))
        program = ptml.function([X], RotaryPositions()(X), mode=PYTHON)
    x = np.ones((2000, 2), "float16")
    assert program(x).dtype == "float16"
    np.testing.assert_allclose(program(x), _turned(x.astype("float64"), np.arange(2000.0)), atol=2e-3)


@pytest.mark.parametrize(
    ("layer", "shape", "message"),
    [
        (
            RotaryPositions("rotary"),
            (None, 3, 5),
            r"rotary \(RotaryPositions\) turns features in pairs.* got shape \(None, 3, 5\)",
        ),
        (RotaryPositions("rotary"), (None, None), r"an even number of them; got shape \(None, None\)"),
        (
            RotaryPositions("rotary"),
            (4,),
            r"rotary \(RotaryPositions\) takes \(\.\.\., length, features\); got 1 axes",
        ),
        (
            RotaryPositions("rotary", axis=-3),
            (None, 4),
            r"rotary \(RotaryPositions\) has axis=-3; got a tensor of 2 axes",
        ),
    ],
)
def test_a_shape_that_cannot_be_turned_is_refused_by_name(layer, shape, message):
    with pytest.raises(ValueError, match=message):
        layer(Input("X", shape))


def test_positions_that_are_no_numbers_or_have_too_many_axes_are_refused():
    X = Input("X", (None, 3, 4))
    for positions in (np.zeros((1, 1, 1)), np.zeros(3, "bool")):
        with pytest.raises(ValueError, match=r"RotaryPositions takes positions of shape \(length,\) or"):
            RotaryPositions()(X, positions=positions)


@pytest.mark.parametrize("axis", [-1, 0, 1])
def test_the_axis_of_the_features_is_not_that_of_the_positions(axis):
    with pytest.raises(ValueError, match=r"rotary \(RotaryPositions\): axis must be -2 or less"):
        RotaryPositions("rotary", axis=axis)
    with pytest.raises(TypeError, match=r"rotary \(RotaryPositions\): axis must be an integer"):
        RotaryPositions("rotary", axis=1.5)


def test_the_slopes_are_those_of_the_paper():
    slopes = -alibi_bias(8, 2).eval()[:, 0, 1]
    np.testing.assert_allclose(slopes, 2.0 ** -np.arange(1, 9), rtol=1e-15)
    # Those of 8 heads, then the first, third, ... of 16.
    slopes = -alibi_bias(12, 2).eval()[:, 0, 1]
    np.testing.assert_allclose(
        slopes, [*2.0 ** -np.arange(1, 9), *2.0 ** -np.array([0.5, 1.5, 2.5, 3.5])], rtol=1e-15
    )


def test_the_last_query_stands_at_the_last_key(float32):
    n_queries = pt.scalar("n", dtype="int64")
    bias = ptml.function([n_queries], alibi_bias(1, n_queries, 4), mode=PYTHON)(2)
    assert bias.dtype == "float32"
    np.testing.assert_array_equal(bias, -np.float32(2.0**-8) * np.array([[[2, 1, 0, 1], [3, 2, 1, 0]]]))


def test_a_number_of_heads_that_cannot_be_is_refused():
    with pytest.raises(ValueError, match="alibi_bias: n_heads must be a positive integer; got 0"):
        alibi_bias(0, 3)
