"""Initializers: moments against closed forms, orthogonality, determinism, and values as values."""

from __future__ import annotations

import pickle

import attrs
import numpy as np
import pytest

from ptml import initializers
from ptml.initializers import (
    Constant,
    Empty,
    HeNormal,
    HeUniform,
    Initializer,
    Normal,
    Ones,
    Orthogonal,
    Uniform,
    XavierNormal,
    XavierUniform,
    Zeros,
    fans,
    initializer,
)

SHAPE = (200, 300)
VALUES = [
    Zeros(),
    Ones(),
    Empty(),
    Constant(0.5),
    Uniform(-1.0, 2.0),
    Normal(1.0, 0.5),
    XavierUniform(),
    XavierNormal(2.0),
    HeUniform(negative_slope=0.2),
    HeNormal(mode="fan_out"),
    Orthogonal(1.5),
]


@initializer
def checkerboard(rng, shape, dtype, high=1.0, *, low):
    """Alternate two values."""
    return np.where(np.indices(shape).sum(axis=0) % 2, high, low)


def _drawn(value, shape=SHAPE, dtype="float64", seed=0):
    return value(np.random.default_rng(seed), shape, dtype)


@pytest.mark.parametrize(
    ("shape", "wanted"),
    [((64, 10), (64, 10)), ((3, 3, 16, 32), (144, 288)), ((5, 2, 4), (10, 20)), ((1, 1), (1, 1))],
)
def test_fans_count_the_features_times_the_kernel(shape, wanted):
    assert fans(shape) == wanted


@pytest.mark.parametrize("shape", [(), (3,)])
def test_fans_of_a_vector_are_refused(shape):
    with pytest.raises(ValueError, match=r"fans counts .* two axes or more.*got shape \("):
        fans(shape)


@pytest.mark.parametrize("value", [XavierNormal(), XavierUniform(), HeNormal(), HeUniform(), Orthogonal()])
def test_an_initializer_of_weights_refuses_a_bias_and_says_what_to_take(value):
    with pytest.raises(ValueError, match=rf"{type(value).__name__} counts .* \(3,\).*Zeros\(\)"):
        _drawn(value, (3,))


# Glorot and Bengio: variance 2 / (fan_in + fan_out). He: 2 / ((1 + slope^2) fan).
@pytest.mark.parametrize(
    ("value", "mean", "variance"),
    [
        (Uniform(-1.0, 2.0), 0.5, 9 / 12),
        (Normal(1.0, 0.5), 1.0, 0.25),
        (XavierUniform(), 0.0, 2 / 500),
        (XavierUniform(3.0), 0.0, 9 * 2 / 500),
        (XavierNormal(), 0.0, 2 / 500),
        (XavierNormal(gain=2.0), 0.0, 4 * 2 / 500),
        (HeUniform(), 0.0, 2 / 200),
        (HeUniform(mode="fan_out"), 0.0, 2 / 300),
        (HeNormal(), 0.0, 2 / 200),
        (HeNormal(mode="fan_out", negative_slope=1.0), 0.0, 1 / 300),
    ],
)
def test_mean_and_variance_are_those_of_the_paper(value, mean, variance):
    drawn = _drawn(value)
    # Four standard errors: of a mean sqrt(var / n), of a variance at most var * sqrt(2 / n).
    assert abs(drawn.mean() - mean) < 4 * np.sqrt(variance / drawn.size)
    assert abs(drawn.var() / variance - 1) < 4 * np.sqrt(2 / drawn.size)


@pytest.mark.parametrize(
    ("value", "bound"),
    [
        (Uniform(-0.5, 0.5), 0.5),
        (XavierUniform(), np.sqrt(6 / 500)),
        (HeUniform(negative_slope=2.0), np.sqrt(6 / (5 * 200))),
    ],
)
def test_uniform_draws_reach_up_to_their_bound_and_not_past_it(value, bound):
    assert 0.999 * bound < np.abs(_drawn(value)).max() <= bound


def test_convolutions_are_scaled_by_the_size_of_their_kernel():
    drawn = _drawn(HeNormal(), (3, 3, 20, 200))
    assert abs(drawn.var() / (2 / 180) - 1) < 4 * np.sqrt(2 / drawn.size)


@pytest.mark.parametrize("shape", [(5, 5), (8, 3), (3, 8), (2, 2, 3, 5), (2, 2, 3, 20)])
def test_orthogonal_draws_have_orthonormal_rows_or_columns(shape):
    matrix = _drawn(Orthogonal(1.5), shape).reshape(-1, shape[-1])
    small = matrix.T @ matrix if matrix.shape[0] >= matrix.shape[1] else matrix @ matrix.T
    np.testing.assert_allclose(small, 1.5**2 * np.eye(len(small)), atol=1e-12)


def test_orthogonal_draws_favour_no_sign():
    # Q of a plain QR decomposition has first entries of one sign; of a uniform draw half are positive.
    firsts = [_drawn(Orthogonal(), (2, 2), seed=seed)[0, 0] for seed in range(400)]
    assert abs(np.mean(np.sign(firsts))) < 4 / np.sqrt(400)


def test_constants_fill_with_a_number_or_with_an_array_that_broadcasts():
    np.testing.assert_array_equal(_drawn(Constant(3), (2, 2)), [[3.0, 3.0], [3.0, 3.0]])
    np.testing.assert_array_equal(_drawn(Constant(np.array([1.0, 2.0])), (2, 2)), [[1.0, 2.0], [1.0, 2.0]])
    assert Constant(np.array([1.0, 2.0])) == Constant((1.0, 2.0))
    assert hash(Constant([1.0, 2.0])) == hash(Constant((1.0, 2.0)))


def test_a_constant_that_does_not_broadcast_says_both_shapes():
    with pytest.raises(ValueError, match=r"Constant\(\(1.0, 2.0\)\) has a value of shape \(2,\).*\(2, 3\)"):
        _drawn(Constant([1.0, 2.0]), (2, 3))


def test_zeros_ones_and_empty_draw_nothing():
    for value, filled in ((Zeros(), 0.0), (Ones(), 1.0), (Empty(), 0.0)):
        rng = np.random.default_rng(0)
        before = rng.bit_generator.state
        np.testing.assert_array_equal(value(rng, (2, 3), "float32"), np.full((2, 3), filled))
        assert rng.bit_generator.state == before


@pytest.mark.parametrize("value", VALUES, ids=repr)
def test_float32_and_float64_start_from_the_same_numbers(value):
    double, single = _drawn(value), _drawn(value, dtype="float32")
    assert (double.dtype, single.dtype) == ("float64", "float32")
    np.testing.assert_array_equal(single, double.astype("float32"))


@pytest.mark.parametrize("value", VALUES, ids=repr)
def test_an_initializer_gives_a_new_writable_array_and_the_same_for_one_seed(value):
    first, again = _drawn(value), _drawn(value)
    np.testing.assert_array_equal(first, again)
    first[...] = 7.0
    assert not np.array_equal(first, _drawn(value))


@pytest.mark.parametrize("value", [*VALUES, checkerboard(low=-1.0)], ids=repr)
def test_initializers_are_values(value):
    twin = pickle.loads(pickle.dumps(value))
    rebuilt = eval(repr(value), {**vars(initializers), "checkerboard": checkerboard})
    assert value == twin == rebuilt == attrs.evolve(value)
    assert hash(value) == hash(twin)
    assert repr(twin) == repr(value)


def test_reprs_are_the_shortest_call_that_rebuilds():
    assert repr(XavierNormal()) == "XavierNormal()"
    assert repr(Uniform(-1.0)) == "Uniform(-1.0)"
    assert repr(HeNormal(mode="fan_out")) == "HeNormal(mode='fan_out')"


@pytest.mark.parametrize("value", [v for v in VALUES if not isinstance(v, Constant)], ids=repr)
def test_an_array_without_elements_is_fine(value):
    assert _drawn(value, (0, 4)).shape == (0, 4)


def test_a_function_becomes_an_initializer_with_hyperparameters_by_keyword():
    value = checkerboard(low=-1.0)
    assert isinstance(value, Initializer)
    assert repr(value) == "checkerboard(low=-1.0)"
    assert checkerboard.__doc__ == "Alternate two values."
    np.testing.assert_array_equal(_drawn(value, (2, 2)), [[-1.0, 1.0], [1.0, -1.0]])
    np.testing.assert_array_equal(_drawn(attrs.evolve(value, high=5.0), (1, 2)), [[-1.0, 5.0]])
    with pytest.raises(TypeError, match=r"checkerboard has no argument 'hihg'\. Did you mean 'high'"):
        checkerboard(low=0.0, hihg=1.0)
    with pytest.raises(TypeError, match="low"):
        checkerboard()


def test_a_function_that_is_no_initializer_is_refused():
    with pytest.raises(
        TypeError, match=r"first three parameters are rng, shape and dtype.*bad\(shape, rng\)"
    ):

        @initializer
        def bad(shape, rng):
            return np.zeros(shape)

    with pytest.raises(TypeError, match=r"greedy\(rng, shape, dtype, \*\*options\)"):

        @initializer
        def greedy(rng, shape, dtype, **options):
            return np.zeros(shape)


def test_an_initializer_that_gives_another_shape_is_found_out():
    @initializer
    def transposed(rng, shape, dtype):
        return np.zeros(shape[::-1])

    with pytest.raises(ValueError, match=r"transposed\(\) was asked for .*\(2, 3\) and gave .*\(3, 2\)"):
        _drawn(transposed(), (2, 3))


def test_a_subclass_without_draw_says_what_it_lacks():
    class Half(Initializer):
        pass

    with pytest.raises(TypeError, match=r"Half defines no draw\(self, rng, shape, dtype\)"):
        _drawn(Half())


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Normal(scale=-1.0), r"Normal: scale must be a number of 0 or more; got -1.0"),
        (lambda: Normal(mean=float("nan")), r"Normal: mean must be a finite number; got nan"),
        (lambda: Uniform(1.0, 0.0), r"Uniform: low must be less than high.*low=1.0, high=0.0"),
        (lambda: Uniform(0.0, float("inf")), r"Uniform: high must be a finite number; got inf"),
        (lambda: XavierUniform(0.0), r"XavierUniform: gain must be a positive number; got 0.0"),
        (lambda: HeNormal(mode="fan"), r"HeNormal: mode must be 'fan_in' or 'fan_out'; got 'fan'"),
        (lambda: HeUniform(float("nan")), r"HeUniform: negative_slope must be a finite number; got nan"),
        (lambda: Orthogonal(-2.0), r"Orthogonal: gain must be a positive number; got -2.0"),
    ],
)
def test_impossible_hyperparameters_are_refused_by_name(make, message):
    with pytest.raises(ValueError, match=message):
        make()


def test_a_hyperparameter_that_is_no_number_is_refused_by_name():
    with pytest.raises(TypeError, match="XavierNormal: gain must be a positive number; got 'relu'"):
        XavierNormal("relu")
