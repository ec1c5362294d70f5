"""Padding of spatial axes against NumPy's, with its adjoint, and what is too short for it."""

from __future__ import annotations

import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest
from pytensor.compile.mode import Mode

import ptml
from ptml.layers import (
    CircularPad1D,
    ConstantPad2D,
    Input,
    ReflectionPad1D,
    ReflectionPad2D,
    ReplicationPad1D,
    ZeroPad1D,
    ZeroPad2D,
)
from ptml.ops.padding import MODES, Pad, PadGradient, pad

PYTHON = Mode(linker="py", optimizer="fast_compile")
NUMPY = {"constant": "constant", "reflect": "reflect", "replicate": "edge", "circular": "wrap"}
WIDTHS = ((1, 2), (2, 0))


def padded(x, widths, mode, value=0.0):
    options = {"constant_values": value} if mode == "constant" else {}
    return np.pad(x, [(0, 0), *widths, (0, 0)], mode=NUMPY[mode], **options)


def unpadded(g, widths, mode, shape):
    """Add each number up where padding took it from."""
    places = padded(np.arange(np.prod(shape)).reshape(shape), widths, mode, -1)
    total = np.zeros(np.prod(shape))
    np.add.at(total, places[places >= 0], g[places >= 0])
    return total.reshape(shape)


def test_padding_is_numpys_and_so_are_its_gradients(backend):
    x = np.random.default_rng(0).normal(size=(2, 4, 3, 2)).astype("float32")
    inputs, outputs, given, wanted = [], [], [], []
    with pytensor.config.change_flags(floatX="float32"):
        for mode in MODES:
            X = Input("X", (None,) * 4)
            y = pad(X, WIDTHS, mode, 0.5)
            G, V = y.type("G"), X.type("V")
            gradient = pytensor.grad((y * G).sum(), X)
            g, v = (np.random.default_rng(k).normal(size=s) for k, s in ((1, (2, 7, 5, 2)), (2, x.shape)))
            inputs += [X, G, V]
            outputs += [y, gradient, pytensor.grad((gradient * V).sum(), G)]
            given += [x, g.astype("float32"), v.astype("float32")]
            wanted += [
                padded(x, WIDTHS, mode, 0.5),
                unpadded(g, WIDTHS, mode, x.shape),
                padded(v, WIDTHS, mode),
            ]
        program = ptml.function(inputs, outputs, backend=backend)
    for got, right in zip(program(*given), wanted, strict=True):
        np.testing.assert_allclose(got, right, rtol=1e-5, atol=1e-5)


TOO_SHORT = [
    (ReflectionPad1D("mirror", padding=(0, 3)), 3, r"mirror \(ReflectionPad1D\) needs at least 4 positions"),
    (CircularPad1D("ring", padding=3), 2, r"ring \(CircularPad1D\) needs at least 3 positions .* got 2"),
    (ReplicationPad1D("edge", padding=1), 0, r"edge \(ReplicationPad1D\) needs at least 1 positions"),
]


def test_data_too_short_to_be_mirrored_raises_when_it_comes(backend):
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


def test_as_much_as_there_is_is_not_too_much():
    x = np.arange(4.0).reshape(1, 4, 1)
    X = Input("X", (None, None, 1))
    assert ptml.function([X], ReflectionPad1D(padding=3)(X))(x).ravel().tolist() == [
        *(3, 2, 1, 0, 1, 2, 3, 2, 1, 0)
    ]
    assert ptml.function([X], CircularPad1D(padding=(4, 0))(X))(x).ravel().tolist() == [0, 1, 2, 3] * 2


def test_nothing_is_added_where_nothing_is_asked_for():
    X = Input("X", (None, 4, 4, 2))
    assert pad(X, [(0, 0), (0, 0)], "reflect") is X
    assert ReflectionPad2D()(X).type.shape == (None, 4, 4, 2)


def test_padding_is_written_in_the_ways_of_convolutions():
    X = Input("X", (None, 4, 6, 2))
    for padding, shape in (
        (1, (None, 6, 8, 2)),
        ((1, 2), (None, 6, 10, 2)),
        (((0, 1), (2, 3)), (None, 5, 11, 2)),
    ):
        assert ZeroPad2D(padding=padding)(X).type.shape == shape
    assert ZeroPad1D(padding=(1, 2))(Input("X", (None, 4, 2))).type.shape == (None, 7, 2)


def test_integers_stay_integers():
    X = Input("X", (None, 2, 1), dtype="int64")
    y = ptml.function([X], ZeroPad1D(padding=1)(X))(np.array([[[3], [4]]]))
    assert y.dtype == "int64"
    assert y.ravel().tolist() == [0, 3, 4, 0]


@pytest.mark.parametrize(
    ("make", "match"),
    [
        (lambda: ZeroPad2D(padding=-1), "padding adds elements, and cannot be negative"),
        (lambda: ZeroPad2D(padding=(1, 2, 3)), "padding must be a number of elements"),
        (lambda: ZeroPad1D(padding="same"), "padding must be a number of elements"),
        (lambda: ConstantPad2D(value="0"), "value must be a number; got '0'"),
        (lambda: ZeroPad2D()(Input("X", (None, 4, 4))), "got 3 axes"),
        (
            lambda: pad(Input("X", (None, 4, 4)), [(1, 1)], "mirror"),
            "mode must be one of 'constant', 'reflect'",
        ),
        (
            lambda: pad(Input("X", (None, 4, 4)), [(1, 1)] * 2),
            "has 1 between batch and channels; got 2 pairs",
        ),
    ],
)
def test_what_makes_no_sense_raises(make, match):
    with pytest.raises((TypeError, ValueError), match=match):
        make()


@pytest.mark.parametrize("mode", MODES)
def test_the_ops_compute_what_their_shapes_say(mode):
    x, g = pt.tensor("x", shape=(None, 4, None)), pt.tensor("g", shape=(None, 7, None))
    there, back = Pad(((1, 2),), mode)(x), PadGradient(((1, 2),), mode)(g)
    assert there.type.shape == (None, 7, None)
    assert back.type.shape == (None, 4, None)
    f = pytensor.function([x, g], [there.shape, back.shape], mode=PYTHON)
    shapes = f(np.ones((2, 4, 3)), np.ones((5, 7, 1)))
    assert [s.tolist() for s in shapes] == [[2, 7, 3], [5, 4, 1]]
