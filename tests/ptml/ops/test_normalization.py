"""Rows normalized by one op, and its gradient: against closed forms, on every backend, and in kernels."""

from __future__ import annotations

import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest

import ptml
from ptml.backends.numba.plan import PLAN
from ptml.ops.normalization import Normalize, NormalizeGradient

EPSILON = 1e-3
CLOSE = {"float32": {"rtol": 1e-4, "atol": 1e-5}, "float64": {"rtol": 1e-11, "atol": 1e-12}}


def reference(x, scale, b, g, centred):
    """Rows, and their gradients by all that there is."""
    x, g = x.astype("float64"), g.astype("float64")
    rest = x - x.mean(-1, keepdims=True) if centred else x
    inverse = 1 / np.sqrt((rest**2).mean(-1, keepdims=True) + EPSILON)
    y = rest * inverse
    back = g if scale is None else g * scale
    of_x = back - y * (back * y).mean(-1, keepdims=True)
    if centred:
        of_x -= back.mean(-1, keepdims=True)
    found = [y if scale is None else y * scale + (0 if b is None else b), of_x * inverse]
    axes = tuple(range(x.ndim - 1))
    return found + ([] if scale is None else [(g * y).sum(axes)]) + ([] if b is None else [g.sum(axes)])


def graphs(x, affine, g, centred):
    """Give inputs, and rows with their gradients, for values."""
    given = [x, *affine]
    inputs = [
        pt.tensor(n, dtype=str(v.dtype), shape=(None,) * v.ndim) for n, v in zip("xsb", given, strict=False)
    ]
    G = pt.tensor("g", dtype=str(g.dtype), shape=(None,) * g.ndim)
    rows, *_ = Normalize(EPSILON, centred)(*inputs)
    return [*inputs, G], [rows, *pytensor.grad((rows * G).sum(), inputs)]


def values(shape, dtype, n_affine):
    rng = np.random.default_rng(0)
    x, g = rng.normal(2.0, 3.0, shape).astype(dtype), rng.normal(size=shape).astype(dtype)
    return x, [rng.normal(size=shape[-1:]).astype(dtype) for _ in range(n_affine)], g


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("centred", [True, False])
@pytest.mark.parametrize("n_affine", [0, 1, 2])
def test_kernels_against_closed_forms(dtype, centred, n_affine):
    for shape in [(5,), (3, 4, 7), (1, 1), (0, 3), (2000, 128)]:
        x, affine, g = values(shape, dtype, n_affine)
        inputs, outputs = graphs(x, affine, g, centred)
        f = pytensor.function(inputs, outputs, mode=PLAN)
        found = f(x, *affine, g)
        (table,) = f.vm.tables.values()
        assert table.step is None
        if x.size:
            assert {Normalize, NormalizeGradient} <= {type(node.op) for node, _ in table._nodes}
        wanted = reference(x, *[*affine, None, None][:2], g, centred)
        for result, value in zip(found, wanted, strict=True):
            assert result.dtype == dtype
            np.testing.assert_allclose(result, value, **CLOSE[dtype], err_msg=str(shape))


def test_every_backend_gives_the_same(backend):
    dtype = "float32" if backend == "mlx" else "float64"
    x, affine, g = values((2, 3, 6), dtype, 2)
    inputs, outputs = graphs(x, affine, g, True)
    found = ptml.function(inputs, outputs, backend=backend)(x, *affine, g)
    for result, value in zip(found, reference(x, *affine, g, True), strict=True):
        np.testing.assert_allclose(np.asarray(result), value, **CLOSE[dtype])


def test_operands_may_lie_anyhow():
    x, affine, g = values((6, 8), "float64", 2)
    x, g, affine[0] = x.T[::-1].T, np.broadcast_to(g[:1], g.shape), affine[0][::-1]
    inputs, outputs = graphs(x, affine, g, True)
    found = pytensor.function(inputs, outputs, mode=PLAN)(x, *affine, g)
    for result, value in zip(found, reference(x, *affine, g, True), strict=True):
        np.testing.assert_allclose(result, value, rtol=1e-11, atol=1e-12)


def test_a_large_mean_does_not_cancel():
    x = (np.random.default_rng(0).normal(size=(4, 256)) + 1e4).astype("float32")
    X = pt.matrix("X", dtype="float32")
    rows = pytensor.function([X], Normalize(1e-6)(X)[0], mode=PLAN)(x)
    wide = x.astype("float64")
    wanted = (wide - wide.mean(1, keepdims=True)) / np.sqrt(wide.var(1, keepdims=True) + 1e-6)
    assert np.abs(rows - wanted).max() < 2e-3


@pytest.mark.parametrize("centred", [True, False])
def test_second_derivatives_are_those_of_first_ones(centred):
    x, affine, g = values((3, 5), "float64", 2)
    inputs, (rows, *_) = graphs(x, affine, g, centred)
    first = pytensor.grad((pt.tanh(rows) * inputs[-1]).sum(), inputs[:3])
    along = sum((f * (k + 1.0)).sum() for k, f in enumerate(first)) + pt.sqr(first[0]).sum()
    f = ptml.function(inputs, [along, *pytensor.grad(along, inputs[:3])])
    given = [x, *affine, g]
    _, *second = f(*given)
    for n, slope in enumerate(second):
        step = np.zeros_like(given[n])
        step.flat[1] = 1e-5
        low, high = (f(*given[:n], given[n] + sign * step, *given[n + 1 :])[0] for sign in (-1, 1))
        np.testing.assert_allclose(slope.flat[1], (high - low) / 2e-5, rtol=1e-5, atol=1e-7)


def test_the_other_results_have_gradients_too():
    x = values((3, 5), "float64", 0)[0]
    X = pt.matrix("X", dtype="float64")
    _, inverse, mean = Normalize(EPSILON)(X)
    f = ptml.function([X], pytensor.grad(inverse.sum() + mean.sum(), X))
    rest = x - x.mean(1, keepdims=True)
    inverse = 1 / np.sqrt((rest**2).mean(1, keepdims=True) + EPSILON)
    np.testing.assert_allclose(f(x), 1 / 5 - inverse**3 * rest / 5)


def test_results_do_not_depend_on_the_number_of_threads():
    x, affine, g = values((4000, 64), "float32", 2)
    before, found = ptml.get_threads(), []
    try:
        for n in (1, 3):
            ptml.set_threads(n)
            inputs, outputs = graphs(x, affine, g, True)
            found.append(pytensor.function(inputs, outputs, mode=PLAN)(x, *affine, g))
    finally:
        ptml.set_threads(before)
    for one, several in zip(*found, strict=True):
        np.testing.assert_array_equal(one, several)
