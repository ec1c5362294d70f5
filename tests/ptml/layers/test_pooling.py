"""Pooling: which element wins, what padding does, and what short data raises, on every backend."""

from __future__ import annotations

import math

import numpy as np
import pytensor
import pytest

import ptml
from ptml import layers
from ptml.layers import (
    AdaptiveAvgPool1D,
    AdaptiveAvgPool2D,
    AdaptiveMaxPool1D,
    AvgPool1D,
    AvgPool2D,
    GlobalAvgPool1D,
    GlobalAvgPool2D,
    GlobalMaxPool1D,
    GlobalMaxPool2D,
    Input,
    LpPool1D,
    MaxPool1D,
    MaxPool2D,
    MaxPool3D,
)

NAN, INF = np.nan, np.inf


def column(*numbers):
    return np.array(numbers, "float64").reshape(1, -1, 1)


#: A layer, what it is given, what it gives, and the gradient of the sum of that.
WINNERS = {
    "a_nan": (MaxPool1D(kernel_size=4), column(1, NAN, 5, 6), [NAN], [0, 1, 0, 0]),
    "a_nan_first": (MaxPool1D(kernel_size=4), column(NAN, 1, 2, 3), [NAN], [1, 0, 0, 0]),
    "two_nans": (MaxPool1D(kernel_size=4), column(7, NAN, NAN, 6), [NAN], [0, 1, 0, 0]),
    "a_nan_last": (MaxPool1D(kernel_size=3), column(7, INF, NAN), [NAN], [0, 0, 1]),
    "a_tie": (MaxPool1D(kernel_size=4), column(0, 0, 0, 0), [0], [1, 0, 0, 0]),
    "a_late_tie": (MaxPool1D(kernel_size=4), column(1, 3, 3, 3), [3], [0, 1, 0, 0]),
    "a_tie_that_overlaps": (
        MaxPool1D(kernel_size=3, stride=1),
        column(2, 2, 1, 2),
        [2, 2],
        [1, 1, 0, 0],
    ),
    "nothing_but_minus_infinity": (
        MaxPool1D(kernel_size=3, padding=1, stride=2),
        column(-INF, -INF, -INF),
        [-INF, -INF],
        [1, 1, 0],
    ),
    "padding_below_negative_numbers": (
        MaxPool1D(kernel_size=3, padding="same", stride=1),
        column(-3, -1, -2),
        [-1, -1, -1],
        [0, 3, 0],
    ),
    "a_tie_over_all": (GlobalMaxPool1D(), column(1, 4, 4), [4], [0, 1, 0]),
    "a_nan_over_all": (GlobalMaxPool1D(), column(1, 4, NAN), [NAN], [0, 0, 1]),
    "a_tie_shared_by_windows": (
        AdaptiveMaxPool1D(output_size=2),
        column(1, 2, 2, 2, 0),
        [2, 2],
        [0, 1, 1, 0, 0],
    ),
    "a_nan_among_windows": (
        AdaptiveMaxPool1D(output_size=2),
        column(NAN, 2, 2, 2, NAN),
        [NAN, NAN],
        [1, 0, 0, 0, 1],
    ),
    "a_nan_in_one_mean": (AdaptiveAvgPool1D(output_size=2), column(1, 3, 5, NAN, 9), [3, NAN], None),
    "an_infinite_mean": (AvgPool1D(), column(1, 3, INF, 2), [2, INF], [0.5] * 4),
    "zeros_of_a_norm": (LpPool1D(), column(0, 0, 3, 4), [0, 5], [0, 0, 0.6, 0.8]),
}


def test_ties_go_to_the_first_and_nan_is_not_lost(backend):
    inputs, outputs = [], []
    with pytensor.config.change_flags(floatX="float32"):
        for name, (layer, _, _, gradient) in WINNERS.items():
            X = Input(name, (None, None, None))
            y = layer(X)
            inputs.append(X)
            outputs += [y, X if gradient is None else pytensor.grad(y.sum(), X)]
        program = ptml.function(inputs, outputs, backend=backend)
    found = program(*(x.astype("float32") for _, x, _, _ in WINNERS.values()))
    for k, (name, (_, _, value, gradient)) in enumerate(WINNERS.items()):
        np.testing.assert_allclose(np.ravel(found[2 * k]), value, rtol=1e-6, err_msg=name)
        if gradient is not None:
            np.testing.assert_allclose(np.ravel(found[2 * k + 1]), gradient, rtol=1e-6, err_msg=name)


TOO_SHORT = [
    (
        MaxPool1D("pool", kernel_size=3),
        1,
        r"pool \(MaxPool1D\) needs at least 3 positions \(its window spans 3",
    ),
    (MaxPool1D("pool", kernel_size=2, dilation=3), 3, r"at least 4 positions .* got 3, in shape \(2, 3, 2\)"),
    (AvgPool1D("pool", kernel_size=5, padding=1), 2, r"at least 3 positions .*to which padding adds 2"),
    (MaxPool1D("pool", kernel_size=2, padding=1), 0, r"at least 1 positions"),
    (GlobalAvgPool1D("pool"), 0, r"pool \(GlobalAvgPool1D\) needs at least 1 position "),
    (AdaptiveMaxPool1D("pool", output_size=2), 0, r"needs at least 1 position .*axis -2"),
]


def test_data_shorter_than_a_window_raises_when_it_comes(backend):
    with pytensor.config.change_flags(floatX="float32"):
        for layer, length, match in TOO_SHORT:
            X = Input("X", (None, None, 2))
            program = ptml.function([X], layer(X), backend=backend)
            with pytest.raises(ValueError, match=match):
                program(np.ones((2, length, 2), "float32"))


@pytest.mark.parametrize(("layer", "length", "match"), TOO_SHORT)
def test_data_known_to_be_too_short_raises_at_the_call(layer, length, match):
    with pytest.raises(ValueError, match=match):
        layer(Input("X", (2, length, 2)))


def test_pooling_strides_by_its_kernel():
    X = Input("X", (None, 9, 9, 1))
    assert MaxPool2D(kernel_size=3)(X).type.shape == AvgPool2D(kernel_size=3)(X).type.shape == (None, 3, 3, 1)
    assert MaxPool2D(kernel_size=3, stride=1)(X).type.shape == (None, 7, 7, 1)


def windows(n, k, s, p, ceil):
    """Count windows, and the elements of each, as PyTorch's documentation has it."""
    count = (math.ceil if ceil else math.floor)((n + 2 * p - k) / s) + 1
    if ceil and (count - 1) * s >= n + p:
        count -= 1
    spans = [(i * s - p, min(i * s - p + k, n + p)) for i in range(count)]
    return [(range(max(a, 0), min(b, n)), b - a) for a, b in spans]


@pytest.mark.parametrize("ceil", [False, True])
@pytest.mark.parametrize("include", [False, True])
def test_windows_and_divisors_are_those_of_pytorch(ceil, include):
    rng = np.random.default_rng(0)
    inputs, outputs, given, wanted = [], [], [], []
    for n in (3, 4, 5, 8):
        for k, s, p in ((2, 2, 0), (2, 3, 0), (3, 2, 1), (3, 1, 1), (3, 3, 0), (2, 2, 1), (3, 4, 1)):
            X = Input("X", (None, n, 1))
            x = rng.normal(size=(1, n, 1))
            options = {"kernel_size": k, "stride": s, "padding": p, "ceil_mode": ceil}
            inputs.append(X)
            outputs += [MaxPool1D(**options)(X), AvgPool1D(count_include_pad=include, **options)(X)]
            given.append(x)
            taken = windows(n, k, s, p, ceil)
            wanted.append([x[0, list(r), 0].max() for r, _ in taken])
            wanted.append([x[0, list(r), 0].sum() / (size if include else len(r)) for r, size in taken])
    for got, right in zip(ptml.function(inputs, outputs)(*given), wanted, strict=True):
        np.testing.assert_allclose(got.ravel(), right, rtol=1e-12)


def test_lengths_that_are_known_or_not_make_no_difference():
    x = np.random.default_rng(0).normal(size=(2, 7, 6, 3))
    for layer in (
        layers.AdaptiveMaxPool2D(output_size=(3, 2)),
        AdaptiveAvgPool2D(output_size=(7, 4)),
        MaxPool2D(kernel_size=3, stride=2, padding="same"),
        AvgPool2D(padding=1, count_include_pad=False, ceil_mode=True),
        GlobalMaxPool2D(),
    ):
        of = []
        for shape in (x.shape, (None, None, None, None)):
            X = Input("X", shape)
            y = layer(X)
            of.append(ptml.function([X], [y, pytensor.grad((y**2).sum(), X)])(x))
        for one, other in zip(*of, strict=True):
            np.testing.assert_allclose(one, other, rtol=1e-13)


def test_global_pooling_keeps_axes_where_it_is_asked_to():
    X = Input("X", (None, 4, 5, 3))
    assert GlobalAvgPool2D()(X).type.shape == GlobalMaxPool2D()(X).type.shape == (None, 3)
    assert GlobalAvgPool2D(keepdims=True)(X).type.shape == (None, 1, 1, 3)
    assert GlobalMaxPool2D(keepdims=True)(X).type.shape == (None, 1, 1, 3)


@pytest.mark.parametrize(
    ("make", "match"),
    [
        (lambda: MaxPool2D(2), r"must be a string; got 2\. Write MaxPool2D\(kernel_size=2\)"),
        (
            lambda: MaxPool2D(kernel_size=(2, 2, 2)),
            "kernel_size must be .* a tuple of 2, for height and width",
        ),
        (lambda: MaxPool2D(kernel_size=0), "kernel_size must be a positive integer"),
        (lambda: MaxPool3D(stride=-1), "stride must be a positive integer"),
        (lambda: MaxPool1D(dilation=0), "dilation must be a positive integer"),
        (lambda: MaxPool1D(padding="causal"), "padding must be 'valid', 'same', "),
        (
            lambda: MaxPool1D("pool", padding=2),
            r"pool \(MaxPool1D\): padding must be less than the 2 positions",
        ),
        (
            lambda: AvgPool2D(kernel_size=1, padding=1),
            "less than the 1 positions that a window spans in height",
        ),
        (lambda: LpPool1D(p=0.5), "p must be a number of 1 or more"),
        (lambda: AdaptiveAvgPool2D(output_size=0), "output_size must be a positive integer"),
        (lambda: AdaptiveAvgPool2D(output_size=(1, 2, 3)), "a tuple of 2, for height and width"),
        (lambda: GlobalAvgPool2D(keepdims=1), "keepdims must be True or False"),
    ],
)
def test_a_wrong_hyperparameter_raises_when_the_layer_is_made(make, match):
    with pytest.raises((TypeError, ValueError), match=match):
        make()


@pytest.mark.parametrize(
    ("X", "match"),
    [
        (Input("X", (None, 8, 8)), r"takes \(batch, height, width, channels\); got 3 axes"),
        (Input("X", (None, 2, 8, 8, 3)), "got 5 axes"),
        (Input("X", (None, 3, 8, 8), axes="NCHW"), r"Write X\.transpose\(0, 2, 3, 1\)"),
        (Input("X", (None, 8, 8, 3), dtype="int64"), "computes with floating-point numbers"),
    ],
)
def test_an_input_of_the_wrong_kind_raises_when_the_layer_is_called(X, match):
    for layer in (MaxPool2D(), AvgPool2D(), GlobalMaxPool2D(), AdaptiveAvgPool2D(output_size=2)):
        with pytest.raises((TypeError, ValueError), match=match):
            layer(X)


def test_second_derivatives_through_a_maximum_are_those_of_finite_differences():
    X, V = Input("X", (None, 6, 5, 2)), Input("V", (None, 6, 5, 2))
    for layer in (MaxPool2D(kernel_size=3, stride=2, padding=1), MaxPool2D(), GlobalMaxPool2D()):
        g = pytensor.grad((layer(X) ** 3).sum(), X)
        f = ptml.function([X, V], [g, pytensor.grad((g * V).sum(), X)])
        rng = np.random.default_rng(3)
        x, v = rng.permutation(120).reshape(2, 6, 5, 2) / 40, rng.normal(size=(2, 6, 5, 2))
        up, down = (f(x + step * v, v)[0] for step in (1e-6, -1e-6))
        np.testing.assert_allclose(f(x, v)[1], (up - down) / 2e-6, rtol=1e-6, atol=1e-7)
