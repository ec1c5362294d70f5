"""Resizing against numbers from the definitions and from PyTorch, on every backend."""

from __future__ import annotations

import numpy as np
import pytensor
import pytest

import ptml
from ptml.layers import Input, Upsample1D, Upsample2D, Upsample3D

#: Layers, what they are given, and what they give. The cubic ones are PyTorch's (bicubic, along one axis).
NUMBERS = [
    (Upsample1D(scale_factor=2, mode="linear"), [0, 1], [0, 0.25, 0.75, 1]),
    (Upsample1D(scale_factor=2, mode="linear", align_corners=True), [0, 1], [0, 1 / 3, 2 / 3, 1]),
    (Upsample1D(size=1, mode="linear", align_corners=True), [2, 3, 4, 5, 6], [2]),
    (Upsample1D(size=1, mode="linear"), [2, 3, 4, 5, 6], [4]),
    (Upsample1D(size=3, mode="linear"), [5], [5, 5, 5]),
    (Upsample1D(size=3, mode="linear", align_corners=True), [5], [5, 5, 5]),
    (Upsample1D(size=3, mode="cubic"), [5], [5, 5, 5]),
    (Upsample1D(scale_factor=3), [1, 2], [1, 1, 1, 2, 2, 2]),
    (Upsample1D(size=3), [0, 1, 2, 3, 4], [0, 1, 3]),
    (Upsample1D(size=5), [0, 1, 2], [0, 0, 1, 1, 2]),
    (Upsample1D(size=2, mode="linear"), [0, 1, 2, 3], [0.5, 2.5]),
    (
        Upsample1D(scale_factor=2, mode="cubic"),
        [0, 1, 4],
        [-0.10546875, 0.12109375, 0.45703125, 1.78515625, 3.35546875, 4.31640625],
    ),
    (
        Upsample1D(size=5, mode="cubic", align_corners=True),
        [0, 1, 4],
        [0, 0.21875, 1, 2.59375, 4],
    ),
]


@pytest.mark.backends("numba", "jax", "mlx", "pytorch")
def test_numbers(backend):
    inputs, outputs, given = [], [], []
    with pytensor.config.change_flags(floatX="float32"):
        for layer, x, _ in NUMBERS:
            X = Input("X", (None, None, None))
            y = layer(X)
            inputs.append(X)
            outputs += [y, pytensor.grad((y**2).sum() / 2, X)]
            given.append(np.array(x, "float32").reshape(1, -1, 1))
        program = ptml.function(inputs, outputs, backend=backend)
    found = program(*given)
    for k, (layer, x, right) in enumerate(NUMBERS):
        np.testing.assert_allclose(np.ravel(found[2 * k]), right, rtol=1e-5, atol=1e-6, err_msg=repr(layer))
        # The result is linear in the data: what comes back for it, times the data, is its square.
        square = np.dot(np.ravel(found[2 * k + 1]), x)
        np.testing.assert_allclose(square, np.dot(right, right), rtol=1e-5, err_msg=repr(layer))


def test_every_rank_takes_pytorchs_names_and_the_plain_ones():
    X = {n: Input("X", (None, *(2, 3, 4)[:n], 1)) for n in (1, 2, 3)}
    rng = np.random.default_rng(0)
    for cls, n, names in (
        (Upsample2D, 2, [("bilinear", "linear"), ("bicubic", "cubic")]),
        (Upsample3D, 3, [("trilinear", "linear"), ("tricubic", "cubic")]),
    ):
        x = rng.normal(size=(2, *(2, 3, 4)[:n], 1))
        for one, other in names:
            f = ptml.function([X[n]], [cls(scale_factor=2, mode=mode)(X[n]) for mode in (one, other)])
            np.testing.assert_array_equal(*f(x))


def test_along_several_axes_is_along_one_after_the_other():
    X = Input("X", (None, 3, 4, 2))
    flat = Input("Z", (None, None, 2))
    both = ptml.function([X], Upsample2D(size=(5, 2), mode="bicubic")(X))
    down, across = (ptml.function([flat], Upsample1D(size=n, mode="cubic")(flat)) for n in (5, 2))
    x = np.random.default_rng(0).normal(size=(2, 3, 4, 2))
    first = down(x.transpose(0, 2, 1, 3).reshape(8, 3, 2)).reshape(2, 4, 5, 2).transpose(0, 2, 1, 3)
    second = across(first.reshape(10, 4, 2)).reshape(2, 5, 2, 2)
    np.testing.assert_allclose(both(x), second, rtol=1e-12)


def test_what_has_no_weight_has_no_part():
    X = Input("X", (None, 3, 1))
    y = Upsample1D(size=5, mode="linear", align_corners=True)(X)
    found = ptml.function([X], y)(np.array([1.0, np.nan, np.inf]).reshape(1, 3, 1)).ravel()
    np.testing.assert_array_equal(found, [1, np.nan, np.nan, np.nan, np.inf])


def test_a_size_that_is_there_already_changes_nothing():
    X = Input("X", (None, 3, 4, 2))
    x = np.random.default_rng(0).normal(size=(2, 3, 4, 2))
    for options in ({"size": (3, 4)}, {"scale_factor": 1}, {"size": (3, 4), "mode": "bicubic"}):
        np.testing.assert_array_equal(ptml.function([X], Upsample2D(**options)(X))(x), x)


def test_nothing_cannot_be_enlarged():
    with pytest.raises(ValueError, match=r"up \(Upsample1D\) needs at least 1 position .* got 0"):
        Upsample1D("up", scale_factor=2)(Input("X", (None, 0, 2)))
    X = Input("X", (None, None, 2))
    with pytest.raises(ValueError, match=r"up \(Upsample1D\) needs at least 1 position .* got 0"):
        ptml.function([X], Upsample1D("up", size=2)(X))(np.ones((1, 0, 2)))


@pytest.mark.parametrize(
    ("make", "match"),
    [
        (Upsample1D, "takes either scale_factor or size; got scale_factor=None and size=None"),
        (lambda: Upsample2D(scale_factor=2, size=4), "takes either scale_factor or size"),
        (
            lambda: Upsample1D(scale_factor=2, mode="bilinear"),
            "mode must be one of 'nearest', 'linear', 'cubic'",
        ),
        (lambda: Upsample2D(scale_factor=2, mode="trilinear"), "mode must be one of 'nearest', 'bilinear'"),
        (lambda: Upsample2D(scale_factor=2, align_corners=True), "or write mode='bilinear'"),
        (lambda: Upsample2D(scale_factor=1.5), "scale_factor must be a positive integer"),
        (lambda: Upsample2D(size=(0, 2)), "size must be a positive integer"),
        (lambda: Upsample2D(2), r"Write Upsample2D\(scale_factor=2\)"),
    ],
)
def test_a_wrong_hyperparameter_raises(make, match):
    with pytest.raises((TypeError, ValueError), match=match):
        make()
