"""Layer, RMS, group and instance normalization: widths, precision, and what is refused."""

from __future__ import annotations

import numpy as np
import pytensor
import pytest
from pytensor.compile.mode import Mode

import ptml
from ptml.layers import BatchNorm, GroupNorm, Input, InstanceNorm, LayerNorm, RMSNorm

PYTHON = Mode(linker="py", optimizer="fast_compile")

OF_FOUR = {
    "LayerNorm": LayerNorm("norm", n_in=4),
    "RMSNorm": RMSNorm("norm", n_in=4),
    "GroupNorm": GroupNorm("norm", n_groups=2, n_in=4),
    "InstanceNorm": InstanceNorm("norm", n_in=4),
}


def _standardized(x, axes):
    x = x.astype("float64")
    return (x - x.mean(axis=axes, keepdims=True)) / x.std(axis=axes, keepdims=True)


@pytest.mark.parametrize("kind", OF_FOUR)
def test_a_wrong_width_is_refused_by_the_layers_name_and_the_axis(kind):
    layer = OF_FOUR[kind]
    message = rf"norm \({kind}\) takes \(.*4 (features|channels)\); got \(None, 5, 3\): axis -1 is 3, where 4"
    with pytest.raises(ValueError, match=message):
        layer(Input("X", (None, 5, 3)))
    X = Input("X", (None, None, None))
    program = ptml.function([X], layer(X), seed=0, mode=PYTHON)
    with pytest.raises(ValueError, match=rf"norm \({kind}\) takes .* got \(2, 5, 3\): axis -1 is 3"):
        program(np.ones((2, 5, 3)))


def test_channels_first_is_refused_with_the_axis_to_move():
    with pytest.raises(ValueError, match="Axis 1 has 4: move it to the end"):
        OF_FOUR["GroupNorm"](Input("X", (None, 4, 8, 7)))


@pytest.mark.parametrize("kind", OF_FOUR)
def test_integers_and_wider_floats_are_refused(kind):
    with pytest.raises(TypeError, match=rf"norm \({kind}\) computes with floating-point numbers"):
        OF_FOUR[kind](Input("X", (None, 5, 4), dtype="int64"))
    with pytensor.config.change_flags(floatX="float32"):
        narrow = type(OF_FOUR[kind])("narrow", **({"n_groups": 2} if kind == "GroupNorm" else {}), n_in=4)
        assert narrow(Input("X", (None, 5, 4))).type.dtype == "float32"
    with pytest.raises(TypeError, match=rf"narrow \({kind}\) has float32 parameters"):
        narrow(Input("X", (None, 5, 4), dtype="float64"))


@pytest.mark.parametrize(
    ("layer", "shape", "message"),
    [
        (
            OF_FOUR["InstanceNorm"],
            (3, 1, 4),
            r"takes at least 2 positions; got shape \(3, 1, 4\)\. One value has no",
        ),
        (
            GroupNorm("norm", n_groups=4, n_in=4),
            (3, 1, 4),
            r"takes at least 2 values per group; got shape \(3, 1, 4\)",
        ),
        (
            GroupNorm("norm", n_groups=4, n_in=4),
            (3, 4),
            r"takes at least 2 values per group; got shape \(3, 4\)",
        ),
    ],
)
def test_a_single_value_is_refused(layer, shape, message):
    X = Input("X", (None,) * len(shape))
    with pytest.raises(ValueError, match=message):
        ptml.function([X], layer(X), seed=0, mode=PYTHON)(np.ones(shape))


def test_an_instance_norm_wants_an_axis_of_positions():
    with pytest.raises(ValueError, match=r"norm \(InstanceNorm\) takes \(batch, positions, .* got 2 axes"):
        OF_FOUR["InstanceNorm"](Input("X", (None, 4)))


def test_channels_must_divide_into_groups():
    with pytest.raises(
        ValueError,
        match=r"norm \(GroupNorm\): n_in must be a multiple of n_groups; got n_in=4 and n_groups=3",
    ):
        GroupNorm("norm", n_groups=3, n_in=4)


def test_one_group_is_a_norm_of_the_example_and_as_many_as_channels_one_of_instances(float64):
    X = Input("X", (None, 3, 2, 4))
    x = np.random.default_rng(0).normal(2.0, 3.0, (2, 3, 2, 4))
    one, each = GroupNorm("one", n_groups=1, n_in=4)(X), GroupNorm("each", n_groups=4, n_in=4)(X)
    outputs = ptml.function([X], [one, each, InstanceNorm("instance", n_in=4)(X)], seed=0, mode=PYTHON)(x)
    np.testing.assert_allclose(outputs[0], _standardized(x, (1, 2, 3)), rtol=1e-5)
    np.testing.assert_allclose(outputs[1], outputs[2], rtol=1e-12)


@pytest.mark.backends("numba", "jax", "mlx")
def test_a_mean_far_from_zero_does_not_cancel_in_float32(backend, float32):
    X = Input("X", (None, 64, 4))
    layers = [
        LayerNorm("ln", n_in=4),
        GroupNorm("group", n_groups=2, n_in=4),
        InstanceNorm("instance", n_in=4),
    ]
    program = ptml.function([X], [layer(X) for layer in layers], seed=0, backend=backend)
    # Multiples of 1/64 at 10000 are exact in float32.
    x = 10000 + np.random.default_rng(0).integers(-128, 129, (3, 64, 4)) / 64
    grouped = x.reshape(3, 64, 2, 2)
    wanted = [
        _standardized(x, -1),
        _standardized(grouped, (1, 3)).reshape(x.shape),
        _standardized(x, 1),
    ]
    # A mean of 64 numbers of such a size is off by a few of float32's steps there, which are 1/1024 wide.
    for got, right in zip(program(x.astype("float32")), wanted, strict=True):
        np.testing.assert_allclose(got, right, atol=4e-3)


@pytest.mark.parametrize("affine", [True, False])
def test_half_precision_is_computed_in_single(affine):
    # The square of 300 is past the 65504 that float16 ends at.
    x = np.random.default_rng(0).normal(0, 300, (4, 6, 8)).astype("float16")
    with pytensor.config.change_flags(floatX="float16"):
        X = Input("X", (None, 6, 8))
        layers = [
            LayerNorm("ln", n_in=8, affine=affine),
            RMSNorm("rms", n_in=8, affine=affine),
            GroupNorm("group", n_groups=2, n_in=8, affine=affine),
            InstanceNorm("instance", n_in=8, affine=affine),
            BatchNorm("bn", n_in=8, affine=affine),
            BatchNorm("untracked", n_in=8, affine=affine, track_running_stats=False),
        ]
        program = ptml.function([X], [layer(X) for layer in layers], seed=0, mode=PYTHON)
    wide = x.astype("float64")
    wanted = [
        _standardized(x, -1),
        wide / np.sqrt((wide**2).mean(-1, keepdims=True)),
        _standardized(x.reshape(4, 6, 2, 4), (1, 3)).reshape(x.shape),
        _standardized(x, 1),
        _standardized(x, (0, 1)),
        _standardized(x, (0, 1)),
    ]
    for got, right in zip(program(x), wanted, strict=True):
        assert got.dtype == "float16"
        np.testing.assert_allclose(got, right, rtol=2e-3, atol=2e-3)


def test_half_precision_into_single_parameters_gives_single(float32):
    X = Input("X", (None, 4), dtype="float16")
    assert LayerNorm("ln", n_in=4)(X).type.dtype == "float32"
    assert LayerNorm("bare", n_in=4, affine=False)(X).type.dtype == "float16"


def test_a_batch_norm_without_running_statistics_normalizes_by_the_batch_in_prediction_too():
    bn = BatchNorm("bn", n_in=1, track_running_stats=False)
    assert bn.running_mean is None
    assert bn.running_var is None
    X = Input("X", (None, 1))
    predict = ptml.compile_predict(bn(X), state=ptml.init(bn, seed=0), compile_kwargs={"mode": PYTHON})
    np.testing.assert_allclose(predict([[0.0], [2.0]]), [[-1.0], [1.0]], rtol=1e-5)
    message = r"bn \(BatchNorm\) takes at least 2 values per channel; got shape \(1, 1\)\. One value has no"
    with pytest.raises(ValueError, match=message):
        predict([[1.0]])


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: LayerNorm("norm", n_in=0), r"norm \(LayerNorm\): n_in must be a positive integer; got 0"),
        (
            lambda: RMSNorm("norm", n_in=2, epsilon=-1.0),
            r"norm \(RMSNorm\): epsilon must be a positive number",
        ),
        (lambda: GroupNorm("norm", n_groups=0, n_in=2), "n_groups must be a positive integer; got 0"),
    ],
)
def test_impossible_hyperparameters_are_refused_by_name(make, message):
    with pytest.raises(ValueError, match=message):
        make()
