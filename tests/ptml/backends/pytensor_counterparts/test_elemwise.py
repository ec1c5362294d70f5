"""Elementwise work on operands of every kind, by a plan and by PyTensor's Python linker."""

from __future__ import annotations

import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest

from ptml.backends.numba.plan import PLAN

RNG = np.random.default_rng(14)


def numbers(dtype, *shape):
    if np.dtype(dtype).kind == "f":
        return (RNG.normal(size=shape) * 3).astype(dtype)
    return RNG.integers(1, 3, shape).astype(dtype)


PAIRS = [
    ("float32", "float64"), ("float64", "int8"), ("float32", "int64"), ("float32", "bool"), ("int8", "uint8"),
    ("int64", "uint32"), ("int16", "bool"), ("uint8", "uint16"),
]  # fmt: skip


@pytest.mark.parametrize("pair", PAIRS)
def test_operands_of_two_types(same_on_both, pair):
    x, y = pt.matrix("x", dtype=pair[0]), pt.matrix("y", dtype=pair[1])
    outputs = [
        x + y, x * y, x / y, pt.maximum(x, y), x < y, pt.eq(x, y), pt.switch(y, x, 1), pt.clip(x, 1, 2),
        pt.cast(x, pair[1]) + y, pt.cast(y, pair[0]), pt.sqr(x), abs(x), -(x + 1),
    ]  # fmt: skip
    a, b = numbers(pair[0], 4, 5), numbers(pair[1], 4, 5)
    same_on_both([x, y], outputs, [a, b], [a.T, np.asfortranarray(b.T)], rtol=1e-5)


@pytest.mark.parametrize("ndim", range(5))
def test_every_rank(same_on_both, ndim):
    x = pt.tensor("x", shape=(None,) * ndim, dtype="float64")
    y = pt.tensor("y", shape=(1,) * (ndim > 0) + (None,) * (ndim - 1), dtype="float64")
    outputs = [pt.exp(x) + y, (x * y).sum(), pt.switch(x > y, x, y)]
    shape = (2, 3, 4, 2)[:ndim]
    calls = [[numbers("f8", *shape), numbers("f8", *(1, *shape[1:])[:ndim])]]
    if ndim:
        calls.append([calls[0][0][::-1], calls[0][1]])
        calls.append([np.zeros((0, *shape[1:])), calls[0][1]])
    same_on_both([x, y], outputs, *calls)


def test_operands_that_are_stretched_along_different_axes(same_on_both):
    x = pt.tensor("x", shape=(None, 1, None), dtype="float32")
    y = pt.tensor("y", shape=(1, None, 1), dtype="float32")
    v, s = pt.vector("v", dtype="float32"), pt.scalar("s", dtype="float32")
    outputs = [x + y, x * y * v + s, pt.tanh(x) + s, (x - y).max(1), pt.stack([s, s + 1])]
    call = [numbers("f4", 3, 1, 4), numbers("f4", 1, 5, 1), numbers("f4", 4), numbers("f4")]
    same_on_both([x, y, v, s], outputs, call, rtol=1e-5, atol=1e-5)


def test_roundings_and_signs(same_on_both):
    x = pt.vector("x", dtype="float64")
    modes = ["half_to_even", "half_away_from_zero"]
    outputs = [*(pt.round(x, mode=mode) for mode in modes), pt.floor(x), pt.ceil(x), pt.trunc(x), pt.sign(x)]
    special = np.array([0.5, 1.5, -0.5, -1.5, 2.5, 0.0, -0.0, np.inf, -np.inf, np.nan, 1e300])
    same_on_both([x], outputs, [special])


def test_whole_numbers_divide_as_numpy_divides(same_on_both):
    x, y = pt.vector("x", dtype="int32"), pt.vector("y", dtype="int32")
    a, b = (grid.ravel().astype("i4") for grid in np.meshgrid(np.arange(-5, 6), [-3, -1, 1, 2, 7]))
    same_on_both([x, y], [x // y, x % y, x / y, pt.true_div(x, y)], [a, b])


def test_sizes_that_differ_raise(fails_alike):
    x, y = pt.matrix("x", dtype="float64"), pt.matrix("y", dtype="float64")
    fails_alike([x, y], x + y, [np.ones((2, 3)), np.ones((2, 3))], [np.ones((2, 3)), np.ones((3, 2))])
    # An axis of one element is stretched only where its type says so.
    fails_alike([x, y], x + y, None, [np.ones((2, 3)), np.ones((1, 3))])


def test_a_deep_chain_is_one_kernel_and_gives_the_same(same_on_both):
    x = pt.vector("x", dtype="float64")
    y = x
    for k in range(8):
        y = pt.tanh(y + k) * 0.9
    planned = same_on_both([x], [y, y.sum()], [numbers("f8", 50)])
    (table,) = planned.vm.tables.values()
    assert table.n_kernels <= 2


def test_several_results_of_one_loop(same_on_both):
    x, y = pt.matrix("x", dtype="float64"), pt.matrix("y", dtype="float64")
    shared = pt.exp(x - y)
    outputs = [shared, shared + 1, shared * x, shared.sum(0), shared.max(1), (shared * y).sum()]
    same_on_both([x, y], outputs, [numbers("f8", 5, 4), numbers("f8", 5, 4)])


def test_a_cell_that_is_read_in_two_ways_is_read_before_it_is_written():
    w = pytensor.shared(numbers("f8", 6), name="w")
    want = w.get_value()
    f = pytensor.function([], [w.sum()], updates={w: pt.switch(w > 0, w, w[::-1])}, mode=PLAN)
    f()
    np.testing.assert_array_equal(w.get_value(), np.where(want > 0, want, want[::-1]))
