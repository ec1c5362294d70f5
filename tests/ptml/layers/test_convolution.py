"""Convolutional layers: numbers known beforehand, the named cases, and what is refused."""

from __future__ import annotations

import numpy as np
import pytensor
import pytest
from pytensor.graph.traversal import apply_ancestors

import ptml
from ptml import layers, threads
from ptml.activations import ReLU
from ptml.layers import (
    Conv1D,
    Conv2D,
    Conv3D,
    ConvTranspose1D,
    ConvTranspose2D,
    Flatten,
    Input,
    Linear,
    Sequential,
)
from ptml.ops.convolution import ConvolveKernel, ConvolveTransposed
from ptml_state import Role

NATURAL = np.array([[[1.0], [2.0], [3.0]]])


def _applied(layer, x, W, shape=None, backend="numba"):
    X = Input("X", (None, *x.shape[1:]) if shape is None else shape)
    state = ptml.init(layer, seed=0).replace({f"{layer.name}/W": W})
    return ptml.compile_predict(layer(X), state=state, backend=backend)(x.astype(X.type.dtype))


def _single(cls, kernel, **fields):
    """Make a layer of one channel without bias, and its kernel's value."""
    layer = cls("conv", in_channels=1, out_channels=1, kernel_size=len(kernel), bias=False, **fields)
    return layer, np.reshape(kernel, (-1, 1, 1)).astype("float64")


def test_a_kernel_is_not_turned_round():
    layer, W = _single(Conv1D, [1.0, 10.0])
    assert _applied(layer, NATURAL, W).ravel().tolist() == [21.0, 32.0]


@pytest.mark.parametrize(
    ("padding", "mode", "padded"),
    [
        ("valid", "constant", [1, 2, 3]),
        ("same", "constant", [0, 1, 2, 3, 0]),
        ("same", "zeros", [0, 1, 2, 3, 0]),
        ("causal", "constant", [0, 0, 1, 2, 3]),
        (2, "constant", [0, 0, 1, 2, 3, 0, 0]),
        ((2,), "constant", [0, 0, 1, 2, 3, 0, 0]),
        ((1, 0), "constant", [0, 1, 2, 3]),
        (((0, 2),), "constant", [1, 2, 3, 0, 0]),
        ("same", "reflect", [2, 1, 2, 3, 2]),
        ("same", "replicate", [1, 1, 2, 3, 3]),
        ("same", "edge", [1, 1, 2, 3, 3]),
        ("same", "circular", [3, 1, 2, 3, 1]),
        ("same", "wrap", [3, 1, 2, 3, 1]),
    ],
)
def test_padding_is_what_it_says_in_every_way_to_write_it(padding, mode, padded):
    layer, W = _single(Conv1D, [1.0, 10.0, 100.0], padding=padding, padding_mode=mode)
    wanted = np.convolve(padded, [100.0, 10.0, 1.0], "valid")
    assert _applied(layer, NATURAL, W).ravel().tolist() == wanted.tolist()


def test_an_even_kernel_has_its_odd_element_of_padding_after():
    layer, W = _single(Conv1D, [1.0, 10.0], padding="same")
    assert _applied(layer, NATURAL, W).ravel().tolist() == [21.0, 32.0, 3.0]


@pytest.mark.parametrize("stride", [1, 2, 3])
@pytest.mark.parametrize("length", [5, 6, 7])
@pytest.mark.parametrize("kernel", [2, 3])
def test_same_leaves_the_size_divided_by_the_stride(stride, length, kernel):
    conv = Conv1D(in_channels=1, out_channels=1, kernel_size=kernel, stride=stride, padding="same")
    assert conv(Input("X", (None, length, 1))).type.shape == (None, -(-length // stride), 1)


def test_nothing_that_comes_later_is_seen_by_a_causal_convolution():
    conv = Conv1D("conv", in_channels=1, out_channels=1, kernel_size=3, dilation=2, padding="causal")
    X = Input("X", (None, 8, 1))
    f = ptml.compile_predict(conv(X), state=ptml.init(conv, seed=0))
    x = np.random.default_rng(0).normal(size=(1, 8, 1))
    changed = x.copy()
    changed[:, 5:] += 1.0
    np.testing.assert_array_equal(f(x)[:, :5], f(changed)[:, :5])


# C07


def test_a_transposed_convolution_is_what_it_is_by_hand_on_every_backend(backend, float32):
    for fields, wanted in (
        ({"stride": 2}, [1, 10, 102, 20, 203, 30, 300]),
        ({"stride": 2, "padding": 1, "output_padding": 1}, [10, 102, 20, 203, 30, 300]),
        ({"padding": (1, 0)}, [12, 123, 230, 300]),
        ({"dilation": 2}, [1, 2, 13, 20, 130, 200, 300]),
    ):
        layer, W = _single(ConvTranspose1D, [1.0, 10.0, 100.0], **fields)
        got = _applied(layer, NATURAL, W.astype("float32"), (None, None, 1), backend)
        assert got.ravel().tolist() == wanted, fields


def test_a_transposed_convolution_is_the_adjoint_of_the_convolution():
    fields = {"kernel_size": (3, 2), "stride": (2, 1), "dilation": (1, 2), "padding": (1, 1), "groups": 2}
    conv = Conv2D("conv", in_channels=4, out_channels=6, bias=False, **fields)
    turned = ConvTranspose2D("up", in_channels=6, out_channels=4, bias=False, output_padding=(1, 0), **fields)
    Y, X = Input("Y", (None, 6, 5, 4)), Input("X", (None, 3, 5, 6))
    rng = np.random.default_rng(0)
    W = rng.normal(size=(3, 2, 2, 6))
    # Channels in and out change places within each group.
    W_up = W.reshape(3, 2, 2, 2, 3).transpose(0, 1, 4, 3, 2).reshape(3, 2, 3, 4)
    state = ptml.init([conv, turned], seed=0).replace({"conv/W": W, "up/W": W_up})
    f = ptml.compile_predict([conv(Y), turned(X)], state=state)
    y, x = rng.normal(size=(2, 6, 5, 4)), rng.normal(size=(2, 3, 5, 6))
    forward, back = f(y, x)
    np.testing.assert_allclose((forward * x).sum(), (back * y).sum(), rtol=1e-12)


# C04


def test_a_sequence_shorter_than_a_window_is_refused_when_it_arrives(backend, float32):
    conv = Conv1D("conv", in_channels=2, out_channels=1, kernel_size=4)
    X = Input("X", (None, None, 2))
    f = ptml.compile_predict(conv(X), state=ptml.init(conv, seed=0), backend=backend)
    assert f(np.zeros((1, 4, 2), "float32")).shape == (1, 1, 1)
    with pytest.raises(ValueError, match=r"conv \(Conv1D\).*spans 4.*\b1\b") as refused:
        f(np.zeros((1, 1, 2), "float32"))
    assert "1, 1, 2" in str(refused.value)


@pytest.mark.parametrize(
    ("fields", "shape", "message"),
    [
        ({}, (None, 3, 2), r"at least 4 positions \(its window spans 4 in time\) along axis -2; got 3"),
        ({"dilation": 2}, (None, 6, 2), r"spans 7 in time\) along axis -2; got 6"),
        ({"padding": 1}, (None, 1, 2), r"at least 2 positions .*to which padding adds 2\) .*got 1"),
    ],
)
def test_a_sequence_known_to_be_too_short_is_refused_at_once(fields, shape, message):
    conv = Conv1D("conv", in_channels=2, out_channels=1, kernel_size=4, **fields)
    with pytest.raises(ValueError, match=message):
        conv(Input("X", shape))


def test_padding_that_cuts_off_all_of_a_transposed_convolution_is_refused():
    up = ConvTranspose1D("up", in_channels=1, out_channels=1, kernel_size=2, stride=2, padding=2)
    with pytest.raises(ValueError, match=r"up \(ConvTranspose1D\) needs at least 3 positions .*got 2"):
        up(Input("X", (None, 2, 1)))
    assert up(Input("X", (None, 3, 1))).type.shape == (None, 2, 1)
    X = Input("X", (None, None, 1))
    f = ptml.compile_predict(up(X), state=ptml.init(up, seed=0))
    with pytest.raises(ValueError, match=r"up \(ConvTranspose1D\) needs at least 3 positions .*got 2"):
        f(np.zeros((1, 2, 1)))


# C14, and the sharp edges


@pytest.mark.parametrize(
    ("shape", "axes", "message"),
    [
        ((None, 3, 4, 4), None, r"conv \(Conv2D\) takes \(batch, height, width, 3 channels\).*Axis 1 has 3"),
        ((None, 4, 4, 5), None, r"conv \(Conv2D\).*axis -1 is 5, where 3 is declared"),
        ((1, 3, 4, 3), "NCHW", r"conv \(Conv2D\).*Write X.transpose\(0, 2, 3, 1\)"),
        ((4, 4, 3), None, r"conv \(Conv2D\) takes .*3 axes"),
        ((None, 1, 4, 4, 3), None, r"conv \(Conv2D\) takes .*5 axes"),
    ],
)
def test_an_image_of_another_layout_is_refused(shape, axes, message):
    conv = Conv2D("conv", in_channels=3, out_channels=2, kernel_size=2)
    with pytest.raises(ValueError, match=message):
        conv(Input("X", shape, axes=axes))


def test_a_width_that_only_the_running_graph_knows_is_refused_there():
    conv = Conv2D("conv", in_channels=3, out_channels=2, kernel_size=2)
    X = Input("X", (None, None, None, None))
    f = ptml.compile_predict(conv(X), state=ptml.init(conv, seed=0))
    with pytest.raises(ValueError, match=r"conv \(Conv2D\) takes \(batch, height, width, 3 channels\)"):
        f(np.zeros((1, 4, 4, 2)))


def test_integers_and_wider_floats_are_refused():
    with pytensor.config.change_flags(floatX="float32"):
        conv = Conv1D("conv", in_channels=1, out_channels=1, kernel_size=1)
        with pytest.raises(TypeError, match=r"conv \(Conv1D\) computes with floating"):
            conv(Input("X", (None, 3, 1), dtype="int64"))
        with pytest.raises(TypeError, match=r"conv \(Conv1D\) has float32 parameters; got .*float64"):
            conv(Input("X", (None, 3, 1), dtype="float64"))


def test_convolution_strides_by_one_and_takes_hyperparameters_by_keyword():
    assert Conv2D(in_channels=1, out_channels=2, kernel_size=3).stride == (1, 1)
    with pytest.raises(TypeError, match=r"in_channels=1, out_channels=16, kernel_size=3"):
        Conv2D("conv", 1, 16, 3)


CHANNELS = {"in_channels": 4, "out_channels": 6, "kernel_size": 3}


@pytest.mark.parametrize(
    ("cls", "fields", "error", "message"),
    [
        (Conv2D, {"in_channels": 0}, ValueError, "in_channels must be a positive integer; got 0"),
        (Conv2D, {"out_channels": 1.5}, TypeError, "out_channels must be a positive integer"),
        (Conv2D, {"kernel_size": 0}, ValueError, "kernel_size must be a positive integer .*got 0"),
        (Conv2D, {"kernel_size": (3,)}, ValueError, "a tuple of 2, for height and width; got 3"),
        (Conv3D, {"kernel_size": (3, 3)}, ValueError, "a tuple of 3, for depth and height and width"),
        (Conv2D, {"kernel_size": "3"}, TypeError, "kernel_size must be a positive integer"),
        (Conv2D, {"stride": 0}, ValueError, "stride must be a positive integer"),
        (Conv2D, {"stride": (1, -1)}, ValueError, r"stride must be .*got \(1, -1\)"),
        (Conv2D, {"stride": True}, TypeError, "stride must be a positive integer"),
        (Conv1D, {"dilation": 0}, ValueError, "dilation must be a positive integer"),
        (Conv2D, {"groups": 3}, ValueError, "groups=3, in_channels=4, out_channels=6. Write groups=2"),
        (Conv2D, {"groups": 4}, ValueError, "groups must divide in_channels and out_channels"),
        (Conv2D, {"groups": 0}, ValueError, "groups must be a positive integer"),
        (Conv2D, {"padding": "full"}, ValueError, "padding must be 'valid', 'same', 'causal'"),
        (Conv2D, {"padding": "causal"}, ValueError, "'causal' is for one axis"),
        (Conv2D, {"padding": -1}, ValueError, "padding adds elements"),
        (Conv2D, {"padding": (1, 1, 1)}, ValueError, "a tuple of one for each of height and width"),
        (Conv2D, {"padding": 1.0}, TypeError, "padding must be"),
        (Conv2D, {"padding_mode": "mirror"}, ValueError, "padding_mode must be one of 'zeros'"),
        (Conv2D, {"bias": 1}, TypeError, "bias must be True or False"),
        (Conv2D, {"weight_initializer": 0.1}, TypeError, "weight_initializer must be an initializer"),
        (ConvTranspose1D, {"padding": "same"}, ValueError, "padding must be a number of elements"),
        (ConvTranspose1D, {"output_padding": 1}, ValueError, "less than that; got 1 along time"),
        (ConvTranspose1D, {"output_padding": -1}, ValueError, "output_padding must be an integer of 0"),
        (ConvTranspose1D, {"groups": 4}, ValueError, "groups must divide in_channels and out_channels"),
    ],
)
def test_what_makes_no_layer_is_refused_with_what_to_write(cls, fields, error, message):
    with pytest.raises(error, match=rf"conv \({cls.__name__}\): .*{message}"):
        cls("conv", **{**CHANNELS, **fields})


def test_numbers_and_tuples_make_the_same_layer():
    one = Conv2D("conv", **CHANNELS, stride=2, padding=1)
    assert one == Conv2D("conv", in_channels=4, out_channels=6, kernel_size=[3, 3], stride=(2, 2), padding=1)
    assert repr(one) == (
        "Conv2D('conv', in_channels=4, out_channels=6, kernel_size=(3, 3), stride=(2, 2), padding=1)"
    )
    assert eval(repr(one), vars(layers)) == one


def test_the_kernels_are_of_the_layout_that_initializers_count_by():
    conv = Conv2D("conv", **CHANNELS, groups=2)
    assert conv.W.type.shape == (3, 3, 2, 6)
    up = ConvTranspose2D("up", **CHANNELS, groups=2)
    assert up.W.type.shape == (3, 3, 2, 6)


def _network():
    return Sequential(
        Conv2D("conv1", in_channels=1, out_channels=4, kernel_size=3, padding="same"),
        ReLU(),
        Conv2D("conv2", in_channels=4, out_channels=3, kernel_size=3, stride=2),
        Flatten(),
        Linear("fc", n_in=27, n_out=2),
    )


def test_the_gradient_by_the_data_is_not_computed_where_nobody_wants_it():
    net = _network()
    X = Input("X", (None, 8, 8, 1))
    wrt = ptml.slots(net, Role.PARAMETER)
    program = ptml.function([X], pytensor.grad((net(X) ** 2).sum(), list(wrt)), seed=0)
    ops = [node.op for node in apply_ancestors(program.function.maker.fgraph.outputs)]
    assert sum(isinstance(op, ConvolveTransposed) for op in ops) == 1
    assert sum(isinstance(op, ConvolveKernel) for op in ops) == 2


def test_results_do_not_depend_on_the_number_of_threads(float32):
    conv = Conv2D("conv", in_channels=8, out_channels=20, kernel_size=3, padding="same")
    X = Input("X", (None, 12, 12, 8))
    Y = conv(X)
    wrt = [X, conv.W, conv.b]
    program = ptml.function([X], [Y, *pytensor.grad((Y**2).sum(), wrt)], seed=0)
    x = np.random.default_rng(0).normal(size=(40, 12, 12, 8)).astype("float32")
    before, found = threads.get_threads(), []
    try:
        for n in (1, 2, 3):
            threads.set_threads(n)
            found.append([np.array(r) for r in program(x)])
    finally:
        threads.set_threads(before)
    for other in found[1:]:
        for got, right in zip(other, found[0], strict=True):
            np.testing.assert_array_equal(got, right)


def test_large_work_that_is_shared_out_gives_what_parts_of_it_give(float64):
    conv = Conv2D("conv", in_channels=6, out_channels=20, kernel_size=3, padding=(1, (0, 2)), stride=(1, 2))
    X = Input("X", (None, None, None, 6))
    Y = conv(X)
    program = ptml.function([X], [Y, *pytensor.grad((Y**2).sum(), [X, conv.W])], seed=0)
    x = np.random.default_rng(0).normal(size=(24, 14, 15, 6))
    Y, by_X, by_W = program(x)
    each = [[np.array(r) for r in program(x[k : k + 1])] for k in range(len(x))]
    np.testing.assert_allclose(Y, np.concatenate([one[0] for one in each]), rtol=1e-12, atol=1e-12)
    np.testing.assert_allclose(by_X, np.concatenate([one[1] for one in each]), rtol=1e-12, atol=1e-12)
    np.testing.assert_allclose(by_W, sum(one[2] for one in each), rtol=1e-10)
