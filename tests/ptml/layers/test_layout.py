"""Declared axes: where they go, and how a layer of another layout refuses them."""

from __future__ import annotations

import pickle

import numpy as np
import pytensor.tensor as pt
import pytest

import ptml
from ptml.activations import ReLU
from ptml.axes import axes_of
from ptml.layers import (
    BatchNorm,
    DropPath,
    Flatten,
    GroupNorm,
    Input,
    InstanceNorm,
    Lambda,
    LayerNorm,
    LearnedPositions,
    Linear,
    Residual,
    RMSNorm,
    Sequential,
    SpatialDropout,
)
from ptml.layout import check_layout

#: Sizes that fit whichever axis is taken for the channels.
FITS = (None, 8, 8, 8)


def images(axes="NCHW"):
    return Input("X", FITS, axes=axes)


@pytest.mark.parametrize(
    ("made", "axes"),
    [
        (lambda X: X, "NCHW"),
        (lambda X: 2 * X + 1, "NCHW"),
        (lambda X: X.transpose(0, 2, 3, 1), "NHWC"),
        (lambda X: pt.moveaxis(X, 1, -1), "NHWC"),
        (lambda X: X.mean(axis=(2, 3)), "NC"),
        (lambda X: X.mean(axis=(2, 3), keepdims=True), None),
        (lambda X: X[:, 0], "NHW"),
        (lambda X: X[:, :, ::2], "NCHW"),
        (lambda X: X.max(), ""),
        (lambda X: X.reshape((-1, 512)), None),
        (lambda X: X.dimshuffle(0, 1, "x", 2, 3), None),
        (lambda X: X + X.transpose(0, 2, 3, 1), None),
        (lambda X: X - X.mean(axis=0, keepdims=True), "NCHW"),
    ],
)
def test_the_axes_go_along_with_what_keeps_them_apart(made, axes):
    assert axes_of(made(images())) == axes


def test_nothing_is_known_of_an_input_that_declares_nothing():
    assert axes_of(Input("X", FITS)) is None
    assert axes_of(pt.tensor4("X") * 2) is None


@pytest.mark.parametrize(
    "layer",
    [
        ReLU(),
        BatchNorm("bn", n_in=8),
        LayerNorm("ln", n_in=8),
        Linear("fc", n_in=8, n_out=5),
        SpatialDropout("drop"),
        Residual(Linear("fc", n_in=8, n_out=8), ReLU()),
        Sequential(GroupNorm("norm", n_groups=2, n_in=8), Linear("fc", n_in=8, n_out=3), ReLU()),
        Lambda(lambda X: X * X),
    ],
    ids=lambda layer: type(layer).__name__,
)
def test_a_layer_of_the_layout_gives_what_it_takes(layer):
    assert axes_of(layer(images("NHWC"))) == "NHWC"


def test_what_takes_axes_together_gives_unknown_ones():
    assert axes_of(Flatten()(images("NHWC"))) is None


@pytest.mark.parametrize(
    "layer",
    [
        BatchNorm("here", n_in=8),
        GroupNorm("here", n_groups=2, n_in=8),
        InstanceNorm("here", n_in=8),
        LayerNorm("here", n_in=8),
        RMSNorm("here", n_in=8),
        Linear("here", n_in=8, n_out=3),
        SpatialDropout("here"),
    ],
    ids=lambda layer: type(layer).__name__,
)
def test_channels_first_are_refused_also_where_the_sizes_fit(layer):
    kind = type(layer).__name__
    with pytest.raises(
        ValueError,
        match=rf"here \({kind}\) takes axes .*channels\); X has the axes NCHW\. "
        r"Write X\.transpose\(0, 2, 3, 1\), whose axes are NHWC\.",
    ):
        layer(images())
    # What the error says to write is taken.
    layer(images().transpose(0, 2, 3, 1))


def test_a_layer_inside_others_is_the_one_that_is_named():
    net = Sequential(ReLU(), Residual(BatchNorm("inner", n_in=8)))
    with pytest.raises(ValueError, match=r"inner \(BatchNorm\) takes axes"):
        net(images())


def test_the_time_axis_has_its_place_too():
    positions = LearnedPositions("positions", n_positions=8, n_features=8)
    with pytest.raises(
        ValueError, match=r"takes axes \.\.\.TC .*; T has the axes NCT\. Write T\.transpose\(0, 2, 1\)"
    ):
        positions(Input("T", (None, 8, 8), axes="NCT"))
    positions(Input("T", (None, 8, 8), axes="NLC"))


def test_a_batch_that_is_not_first_is_refused_where_it_counts():
    with pytest.raises(ValueError, match=r"DropPath takes axes N\.\.\. .*X\.transpose\(1, 0\)"):
        DropPath()(Input("X", (3, None), axes="CN"))


@pytest.mark.parametrize(
    ("axes", "wants", "write"),
    [
        ("NHWC", "NHWC", None),
        ("NWHC", "NHWC", r"transpose\(0, 2, 1, 3\), whose axes are NHWC"),
        ("NTHC", "NHWC", None),
        ("NCTW", "NHWC", r"transpose\(0, 2, 3, 1\), whose axes are NTWC"),
        ("NTC", "NTC", None),
        ("NLC", "NTC", None),
        ("NHC", "NTC", None),
        ("TNC", "NTC", r"transpose\(1, 0, 2\), whose axes are NTC"),
        ("NCL", "NTC", r"transpose\(0, 2, 1\), whose axes are NLC"),
        ("NCDHW", "NDHWC", r"transpose\(0, 2, 3, 4, 1\), whose axes are NDHWC"),
        ("HWCN", "N...C", r"transpose\(3, 0, 1, 2\), whose axes are NHWC"),
        ("NT", "...C", None),
        ("CT", "...TC", r"transpose\(1, 0\), whose axes are TC"),
        ("NTC", "NHWC", None),
    ],
)
def test_the_error_has_the_transpose_to_write(axes, wants, write):
    layer, X = Linear("layer", n_in=2, n_out=2), Input("X", (2,) * len(axes), axes=axes)
    if write is None:
        check_layout(layer, X, wants)
        return
    with pytest.raises(ValueError, match=write):
        check_layout(layer, X, wants)


def test_axes_that_are_not_there_are_named():
    X = Input("X", (None, 4, 4), axes="NHW")
    with pytest.raises(ValueError, match=r"X has the axes NHW, without C \(channels\)"):
        check_layout(Linear("layer", n_in=2, n_out=2), X, "NTC")


@pytest.mark.parametrize(
    ("axes", "error", "message"),
    [
        ("NCH", ValueError, r"Input 'X': axes='NCH' has 3 letters, and shape .* has 4 axes"),
        ("NCHWT", ValueError, r"has 5 letters"),
        ("NCHQ", ValueError, r"letter 'Q', which stands for nothing\. The letters are N \(batch\), C \(chan"),
        ("nchw", ValueError, r"letter 'n', which stands for nothing"),
        ("NHHC", ValueError, r"has 'H' twice"),
        (("N", "C", "H", "W"), TypeError, r"axes must be a string with one letter for each axis"),
        (0, TypeError, r"axes must be a string"),
    ],
)
def test_what_declares_no_axes_is_refused(axes, error, message):
    with pytest.raises(error, match=message):
        Input("X", FITS, axes=axes)


def test_a_pickled_input_has_its_axes():
    assert axes_of(pickle.loads(pickle.dumps(images()))) == "NCHW"


def test_a_declaration_changes_no_number():
    x, layer = np.arange(6.0).reshape(3, 2), BatchNorm("bn", n_in=2)
    state = ptml.init(layer, seed=0)
    given = [
        ptml.compile_predict(layer(Input("X", (None, 2), axes=axes)), state=state)(x) for axes in (None, "NC")
    ]
    np.testing.assert_array_equal(*given)
