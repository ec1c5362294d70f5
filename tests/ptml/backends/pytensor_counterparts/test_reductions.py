"""Reductions of every kind, by a plan and by PyTensor's Python linker."""

from __future__ import annotations

import itertools

import numpy as np
import pytensor.tensor as pt
import pytest

RNG = np.random.default_rng(15)
AXES = [None, *(axes for n in (1, 2, 3) for axes in itertools.combinations(range(3), n))]


def numbers(dtype, *shape):
    if np.dtype(dtype).kind == "f":
        return RNG.normal(size=shape).astype(dtype)
    return RNG.integers(0, 3, shape).astype(dtype)


KINDS = {
    "sum": lambda x, axis: x.sum(axis),
    "prod": lambda x, axis: x.prod(axis),
    "max": lambda x, axis: x.max(axis),
    "min": lambda x, axis: x.min(axis),
    "all": lambda x, axis: (x > 0).all(axis),
    "any": lambda x, axis: (x > 1).any(axis),
    "mean, axes kept": lambda x, axis: x.mean(axis, keepdims=True),
}


@pytest.mark.parametrize("dtype", ["float64", "float32", "int64", "int8", "uint16", "bool"])
def test_reductions_along_all_sets_of_axes(same_on_both, dtype):
    x = pt.tensor3("x", dtype=dtype)
    kinds = ["sum", "prod", "max", "min"] if dtype == "bool" else list(KINDS)
    some = AXES if dtype == "float64" else [None, (1,), (0, 2)]
    values = numbers(dtype, 3, 4, 5)
    calls = [[values], [values.transpose(1, 2, 0)], [values[::-1, ::2]]]
    outputs = [KINDS[kind](x, axis) for kind in kinds for axis in some]
    same_on_both([x], outputs, *calls, rtol=1e-5, atol=1e-6)


def test_reductions_of_nothing(same_on_both):
    x = pt.tensor3("x", dtype="float64")
    outputs = [KINDS[kind](x, axis) for kind in ("sum", "prod", "all", "any") for axis in AXES]
    same_on_both([x], outputs, [np.zeros((0, 2, 3))], [np.zeros((2, 0, 3))], [np.zeros((2, 3, 0))])


@pytest.mark.parametrize("axis", [None, 0, 1])
def test_the_largest_of_nothing_raises(fails_alike, axis):
    x = pt.matrix("x", dtype="float64")
    shape = {None: (0, 2), 0: (0, 2), 1: (2, 0)}[axis]
    fails_alike([x], x.max(axis), [np.ones((2, 2))], [np.ones(shape)], "zero-size")


def test_sums_in_a_type_of_their_own(same_on_both):
    x, k = pt.matrix("x", dtype="float32"), pt.matrix("k", dtype="int8")
    outputs = [
        x.sum(0, dtype="float64"), x.sum(1, acc_dtype="float64"), k.sum(0), k.sum(1, dtype="int8"),
        k.prod(dtype="int32"), k.mean(0), x.mean(dtype="float64"),
    ]  # fmt: skip
    same_on_both([x, k], outputs, [numbers("f4", 30, 7), numbers("i1", 30, 7)], rtol=1e-5)


@pytest.mark.filterwarnings("ignore:invalid value")
def test_special_numbers(same_on_both):
    x = pt.matrix("x", dtype="float64")
    outputs = [
        f(x, axis) for f in (KINDS["sum"], KINDS["max"], KINDS["min"], KINDS["prod"]) for axis in (0, 1)
    ]
    special = np.array([[np.nan, 1, np.inf, -0.0], [1, -np.inf, np.inf, 0.0], [2, 3, -np.inf, -0.0]])
    same_on_both([x], outputs, [special])


def test_gradients(same_on_both):
    x = pt.tensor3("x", dtype="float64")
    losses = [x.max((0, 2)), x.mean(1), x.var((0, 1)), pt.logsumexp(x, axis=2), pt.abs(x).sum((0, 2)) ** 2]
    outputs = [pt.grad((loss**2).sum(), x) for loss in losses]
    same_on_both([x], outputs, [numbers("f8", 3, 4, 5)])


def test_bits(same_on_both):
    p = pt.matrix("p", dtype="bool")
    same_on_both(
        [p], [p.all(0), p.any(1), p.all(), p.any()], [numbers("bool", 3, 4)], [np.ones((2, 3), bool)]
    )
