"""Sorting, the largest, and running sums, by a plan and by PyTensor's Python linker."""

from __future__ import annotations

import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest

from ptml.backends.numba.plan import PLAN

RNG = np.random.default_rng(12)
DTYPES = ["float64", "float32", "int64", "int8", "uint16", "bool"]


def numbers(dtype, *shape):
    return (RNG.normal(size=shape) * 30).astype(dtype)


@pytest.mark.parametrize("dtype", DTYPES)
def test_sorting_along_every_axis(same_on_both, dtype):
    x = pt.tensor3("x", dtype=dtype)
    outputs = [f(x, axis=axis, stable=True) for f in (pt.sort, pt.argsort) for axis in (0, 1, 2, None)]
    values = numbers(dtype, 4, 5, 7)
    same_on_both([x], outputs, [values], [values.transpose(2, 0, 1)], [values[:1, :, ::-1]], [values[:, :0]])


def test_sorting_lengths_around_powers_of_two(same_on_both):
    x = pt.vector("x", dtype="float32")
    calls = [[numbers("float32", n)] for n in (0, 1, 2, 3, 4, 5, 8, 9, 16, 17, 100)]
    same_on_both([x], [pt.sort(x), pt.argsort(x)], *calls)


def test_numbers_that_are_none_go_last(same_on_both):
    x = pt.vector("x", dtype="float64")
    special = np.array([np.nan, 1.0, -np.inf, np.nan, np.inf, -0.0, 0.0, -1.0])
    same_on_both(
        [x], [pt.sort(x), pt.argsort(x, stable=True), x.argmax(), x.argmin()], [special], [special[1:]]
    )


def test_gradients_of_sorted_numbers(same_on_both):
    x = pt.matrix("x", dtype="float64")
    weights = np.arange(4.0)
    outputs = [pt.grad((pt.sort(x, axis=axis) ** 2 * weights).sum(), x) for axis in (0, 1)]
    same_on_both([x], [*outputs, pt.sort(x, axis=1)[:, -2:]], [numbers("float64", 4, 4)])


@pytest.mark.parametrize("dtype", DTYPES)
def test_the_place_of_the_largest(same_on_both, dtype):
    x = pt.tensor3("x", dtype=dtype)
    outputs = [x.argmax(axis) for axis in (None, 0, 1, 2)]
    if dtype != "bool":
        outputs += [pt.argmin(x, axis) for axis in (None, 1)]
    values = numbers(dtype, 3, 4, 5)
    # Of equal ones the first.
    values[1] = values[0]
    same_on_both([x], outputs, [values], [np.asfortranarray(values)], [values[:, ::-1, ::2]])


def test_the_largest_of_nothing_raises(fails_alike):
    x = pt.matrix("x", dtype="float64")
    fails_alike([x], x.argmax(1), [np.ones((2, 2))], [np.ones((2, 0))], "empty sequence")


@pytest.mark.parametrize("dtype", ["float64", "float32", "int64"])
def test_running_sums_and_products(same_on_both, dtype):
    x = pt.tensor3("x", dtype=dtype)
    outputs = [f(x, axis) for f in (pt.cumsum, pt.cumprod) for axis in (0, 1, 2, None)]
    values = RNG.integers(0, 3, (3, 4, 5)).astype(dtype)
    same_on_both([x], outputs, [values], [np.asfortranarray(values)], [values[:0]], [values[::-1, :, ::2]])


@pytest.mark.parametrize("dtype", ["int8", "uint16", "bool"])
def test_running_sums_of_narrow_numbers_stay_narrow(dtype):
    x = pt.matrix("x", dtype=dtype)
    f = pytensor.function([x], [pt.cumsum(x, 1), pt.cumprod(x, 0)], mode=PLAN)
    values = RNG.integers(0, 3, (4, 200)).astype(dtype)
    sums, products = f(values)
    np.testing.assert_array_equal(sums, np.cumsum(values, 1, dtype=dtype))
    np.testing.assert_array_equal(products, np.cumprod(values, 0, dtype=dtype))


def test_gradients_of_running_sums(same_on_both):
    x = pt.matrix("x", dtype="float64")
    outputs = [pt.grad((f(x, axis) ** 2).sum(), x) for f in (pt.cumsum, pt.cumprod) for axis in (0, 1)]
    same_on_both([x], outputs, [numbers("float64", 3, 4)], rtol=1e-8)
